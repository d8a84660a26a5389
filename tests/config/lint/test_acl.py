"""Lint of access control lists is right: an entry that it says never decides can be taken out, and nothing changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.config.dro_xml.acl import Acl, Session, SessionTransport
from dro.config.dro_xml.model import AceConfig, AclConfig, ConditionConfig, DroConfig
from dro.config.lint.acl import MAX_SEARCHES
from dro.config.lint.finding import Machine
from dro.config.lint.rules import lint
from dro.errors import ConfigError
from tests.builders.dro_documents import documents
from tests.builders.dro_file import endpoint, gateway, load

TOPICS = ("a", "ab", "b", "ba", "x")
PATTERNS = ("^a", "b$", ".*", "^ab$", "a|b")
ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
PORTS = (1, 2, 3)
TRANSPORTS: tuple[SessionTransport, ...] = ("tcp", "lbt-rm", "lbt-ru", "lbt-ipc", "other")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
BASE = load(gateway(endpoint("A", 1)))

CONDITIONS = st.one_of(
    st.builds(ConditionConfig, st.just("topic"), st.sampled_from(TOPICS)),
    st.builds(ConditionConfig, st.just("pcre-pattern"), st.sampled_from(PATTERNS)),
    st.builds(ConditionConfig, st.just("transport"), st.sampled_from(TRANSPORTS[:4]), st.sampled_from(("eq", "ne"))),
    st.builds(ConditionConfig, st.just("source-ip"), st.sampled_from(ADDRESSES), st.sampled_from(COMPARISONS)),
    st.builds(
        ConditionConfig, st.sampled_from(("udp-source-port", "tcp-source-port", "xport-id")), st.sampled_from(PORTS),
        st.sampled_from(COMPARISONS),
    ),
)  # fmt: skip


def numbered(made: list[tuple[bool, list[ConditionConfig]]]) -> tuple[AceConfig, ...]:
    return tuple(AceConfig(accept, tuple(all_of), "dro.xml", n) for n, (accept, all_of) in enumerate(made, start=10))


ACES = st.lists(
    st.tuples(st.booleans(), st.lists(CONDITIONS, min_size=1, max_size=3)), min_size=1, max_size=5
).map(numbered)  # fmt: skip
SESSIONS = [
    Session(transport, int.from_bytes(map(int, address.split(".")), "big"), 0, port, port, port, port)
    for transport in TRANSPORTS
    for address in ADDRESSES
    for port in PORTS
]


def with_acl(acl: AclConfig) -> DroConfig:
    return replace(BASE, portals=(replace(BASE.portals[0], acl=acl),))


def verdicts(acl: AclConfig) -> list[bool]:
    compiled = Acl.of(acl)
    inbound = [compiled.inbound(topic, session).accept for topic in TOPICS for session in SESSIONS]
    return inbound + [compiled.outbound(topic).accept for topic in TOPICS]


@given(ACES, st.booleans())
def test_an_entry_without_effect_can_go(aces: tuple[AceConfig, ...], is_inbound: bool) -> None:
    acl = AclConfig(inbound=aces) if is_inbound else AclConfig(outbound=aces)
    found = [f for f in lint(with_acl(acl), Machine()) if f.rule == "acl"]
    dead = {f.place.line for f in found if f.place.line >= 10 and "<ace>" in f.subject}
    for line in dead:
        left = tuple(ace for ace in aces if ace.line != line)
        assert verdicts(AclConfig(inbound=left) if is_inbound else AclConfig(outbound=left)) == verdicts(acl)
    if any("no entry accepts" in f.what for f in found):
        part = verdicts(acl)
        outbound = part[-len(TOPICS) :]
        assert not any(part[: -len(TOPICS)] if is_inbound else outbound)


def test_what_is_found_among_simple_entries() -> None:
    """The property above would hold for a lint that finds nothing."""

    def entry(ok: bool, topic: str, line: int) -> AceConfig:
        return AceConfig(ok, (ConditionConfig("topic", topic),), "dro.xml", line)

    aces = (
        entry(True, "a", 10),
        entry(False, "b", 11),
        entry(False, "a", 12),
        entry(True, "b", 13),
        entry(True, "c", 14),
    )
    found = [f for f in lint(with_acl(AclConfig(inbound=aces)), Machine()) if f.rule == "acl"]
    assert [f.place.line for f in found] == [12, 13]


def test_many_patterns_and_names_take_bounded_work(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = 0

    def holds(topic: tuple[str, str], _name: object) -> bool:
        nonlocal searches
        searches += 1
        return topic[0] == "topic"

    monkeypatch.setattr("dro.config.lint.acl._holds", holds)
    patterns = tuple(AceConfig(True, (ConditionConfig("pcre-pattern", f"^p{n}$"),), "f", n) for n in range(10, 400))
    names = tuple(AceConfig(True, (ConditionConfig("topic", f"t{n}"),), "f", n) for n in range(400, 800))
    assert lint(with_acl(AclConfig(inbound=(*patterns, *names))), Machine()) == []
    assert 0 < searches <= MAX_SEARCHES + len(patterns) + 2 * len(names)


@settings(max_examples=30)
@given(documents())
def test_lint_takes_every_valid_file(raw: bytes) -> None:
    try:
        config = load(raw)
    except ConfigError:
        return
    for finding in lint(config, Machine(shm_bytes=1 << 26)):
        assert str(finding).count("; ") >= 1
        assert finding.remedy
        assert finding.place.file
