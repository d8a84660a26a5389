"""ACLs: order, AND, default, every conditional with every comparison, directions, and what an evaluation costs."""

from __future__ import annotations

import ipaddress
import operator
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.config.dro_xml.acl import Acl, Session, SessionTransport, Verdict
from dro.config.dro_xml.model import AceConfig, AclConfig, ConditionConfig
from dro.config.reading.problems import ConfigErrors
from tests.builders.dro_file import load

TCP = Session("tcp", source_ip=int(ipaddress.IPv4Address("192.0.2.5")), tcp_source_port=14371)
LBTRM = Session(
    "lbt-rm",
    source_ip=int(ipaddress.IPv4Address("192.0.2.5")),
    multicast_group=int(ipaddress.IPv4Address("239.1.1.5")),
    udp_source_port=24000,
    udp_destination_port=14400,
)
LBTRU = Session("lbt-ru", source_ip=LBTRM.source_ip, udp_source_port=24001)
LBTIPC = Session("lbt-ipc", xport_id=7)
ALL = {s.transport: s for s in (TCP, LBTRM, LBTRU, LBTIPC)}
COMPARE: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
LONG = {
    "eq": "equal", "ne": "notequal", "lt": "lessthan", "le": "lessthanequal", "gt": "greaterthan",
    "ge": "greaterthanequal",
}  # fmt: skip


def ace(match: str, *conditions: str) -> str:
    return f'<ace match="{match}">{"".join(conditions)}</ace>'


def topic(name: str) -> str:
    return f"<topic>{name}</topic>"


def condition(kind: str, comparison: str, value: object) -> str:
    return f'<{kind} comparison="{comparison}" value="{value}"/>'


def inbound(*entries: str, outbound: str = "") -> Acl:
    lines = "\n".join(entries)
    return compiled(f"<inbound>\n{lines}</inbound>{outbound}")


def compiled(lists: str) -> Acl:
    portal = f"<endpoint><name>A</name><domain-id>1</domain-id><acl>{lists}</acl></endpoint>"
    raw = f'<tnw-gateway version="1.0"><portals>{portal}</portals></tnw-gateway>'
    return Acl.of(load(raw, file="a.xml").portals[0].acl)


def accepts(acl: Acl, name: str, session: Session | None = TCP) -> bool:
    return acl.inbound(name, session).accept


def test_no_list_accepts_and_only_the_directions_present_are_filtered() -> None:
    assert accepts(Acl.of(None), "any")
    only_in = inbound(ace("reject", topic("X")))
    assert not accepts(only_in, "any")
    assert only_in.outbound("any").accept
    only_out = compiled(f"<outbound>{ace('accept', topic('X'))}</outbound>")
    assert accepts(only_out, "any")
    assert only_out.outbound("X").accept
    assert not only_out.outbound("any").accept


def test_the_first_entry_that_matches_decides_and_names_its_place() -> None:
    acl = inbound(ace("reject", topic("ABC")), ace("accept", topic("ABC")), ace("accept", topic(".*")))
    assert acl.inbound("ABC", TCP) == Verdict(False, 1, "a.xml", 2, reason="reject")
    assert acl.inbound("ABCD", TCP) == Verdict(True, 3, "a.xml", 4, reason="accept")
    assert acl.inbound("", TCP).ace == 3
    assert inbound(ace("accept", topic("ABC"))).inbound("DEF", TCP) == Verdict(False, reason="no entry matches")


@pytest.mark.parametrize(
    ("pattern", "accepts_first"),
    [(pattern, accepts) for pattern in (r"^US", "S", r"\w\w") for accepts in (False, True)],
)
def test_a_pattern_before_an_exact_topic_decides(pattern: str, accepts_first: bool) -> None:
    """Exact topics are found by name and patterns by a search: the order of the entries counts all the same."""
    first, second = ("accept", "reject") if accepts_first else ("reject", "accept")
    by_pattern, by_name = ace(first, f"<pcre-pattern>{pattern}</pcre-pattern>"), ace(second, topic("USERS"))
    for acl, number in ((inbound(by_pattern, by_name), 1), (inbound(by_name, by_pattern), 1)):
        verdict = acl.inbound("USERS", TCP)
        assert (verdict.ace, verdict.line) == (number, 2)
    assert inbound(by_pattern, by_name).inbound("USERS", TCP).accept is accepts_first
    assert inbound(by_name, by_pattern).inbound("USERS", TCP).accept is not accepts_first
    both = inbound(ace("reject", topic("other")), by_pattern, by_name).inbound("USERS", None)
    assert (both.accept, both.ace) == (accepts_first, 2)


def test_the_example_of_users_and_lans() -> None:
    acl = inbound(
        ace("accept", topic("USER.user1")),
        ace("reject", r"<pcre-pattern>^USER\..*</pcre-pattern>"),
        ace("accept", topic(".*")),
    )
    assert [accepts(acl, t) for t in ("USER.user1", "USER.user2", "USER", "other")] == [True, False, True, True]


def test_conditions_of_one_entry_are_joined_by_and() -> None:
    acl = inbound(
        ace("accept", topic("A"), condition("transport", "eq", "tcp"), condition("source-ip", "eq", "192.0.2.5"))
    )
    assert accepts(acl, "A")
    assert not accepts(acl, "B")
    assert not accepts(acl, "A", LBTRM)
    assert not accepts(inbound(ace("accept", topic("A"), topic("B"))), "A")
    pair = (condition("tcp-source-port", "ge", 100), condition("tcp-source-port", "lt", 200))
    span = inbound(ace("accept", *pair))
    for port, is_in in ((99, False), (100, True), (199, True), (200, False)):
        assert accepts(span, "A", Session("tcp", tcp_source_port=port)) == is_in


NUMBERS: list[tuple[str, SessionTransport, str]] = [
    ("udp-source-port", "lbt-rm", "udp_source_port"),
    ("udp-source-port", "lbt-ru", "udp_source_port"),
    ("udp-destination-port", "lbt-rm", "udp_destination_port"),
    ("tcp-source-port", "tcp", "tcp_source_port"),
    ("xport-id", "lbt-ipc", "xport_id"),
    ("source-ip", "tcp", "source_ip"),
    ("source-ip", "lbt-rm", "source_ip"),
    ("source-ip", "lbt-ru", "source_ip"),
    ("multicast-group", "lbt-rm", "multicast_group"),
]


@pytest.mark.parametrize(("kind", "transport", "field"), NUMBERS)
@pytest.mark.parametrize("comparison", COMPARE)
def test_each_conditional_with_each_comparison(
    kind: str, transport: SessionTransport, field: str, comparison: str
) -> None:
    limit = 1000
    is_address = kind in ("source-ip", "multicast-group")
    written = str(ipaddress.IPv4Address(limit)) if is_address else str(limit)
    for spelling in (comparison, LONG[comparison]):
        acl = inbound(ace("accept", condition(kind, spelling, written)))
        for have in (0, limit - 1, limit, limit + 1, 40_000):
            session = Session(transport, **{field: have})
            assert accepts(acl, "T", session) == COMPARE[comparison](have, limit)


def test_addresses_compare_as_numbers() -> None:
    acl = inbound(ace("accept", condition("source-ip", "lt", "192.0.2.10")))
    assert accepts(acl, "T", Session("tcp", source_ip=int(ipaddress.IPv4Address("192.0.2.9"))))
    assert not accepts(acl, "T", Session("tcp", source_ip=int(ipaddress.IPv4Address("200.0.0.1"))))


@pytest.mark.parametrize("transport", list(ALL))
@pytest.mark.parametrize("spelling", ["tcp", "lbtrm", "lbt-rm", "lbtru", "lbt-ru", "lbtipc", "lbt-ipc"])
def test_the_transport(transport: SessionTransport, spelling: str) -> None:
    is_same = spelling.replace("-", "") == transport.replace("-", "")
    for comparison, wanted in (("eq", is_same), ("equal", is_same), ("ne", not is_same), ("notequal", not is_same)):
        assert (
            accepts(inbound(ace("accept", condition("transport", comparison, spelling))), "T", ALL[transport]) == wanted
        )


@pytest.mark.parametrize(("kind", "transport", "field"), NUMBERS)
def test_conditions_that_do_not_apply_are_left_out(kind: str, transport: SessionTransport, field: str) -> None:
    value = "192.0.2.1" if kind in ("source-ip", "multicast-group") else "1"
    alone = inbound(ace("accept", condition(kind, "ne", value)))
    with_topic = inbound(ace("accept", topic("T"), condition(kind, "eq", value)))
    fitting = {t for k, t, _ in NUMBERS if k == kind}
    for name, session in ALL.items():
        if name not in fitting:
            assert not accepts(alone, "T", session), "an entry of which nothing applies does not match"
            assert accepts(with_topic, "T", session), "what is left of the entry decides"


def test_outbound_leaves_out_conditions_of_the_session() -> None:
    entries = ace("accept", topic("A"), condition("transport", "eq", "tcp")) + ace(
        "accept", condition("xport-id", "eq", 1)
    )
    acl = compiled(f"<outbound>{entries}</outbound>")
    assert acl.outbound("A").accept
    assert not acl.outbound("B").accept


def test_a_peer_portal_has_no_sessions() -> None:
    conditions = (ConditionConfig("topic", "A"), ConditionConfig("transport", "tcp"))
    config = AclConfig(inbound=(AceConfig(True, conditions), AceConfig(True, conditions[1:])))
    acl = Acl.of(config, has_sessions=False)
    assert acl.inbound("A", None) == Verdict(True, 1, reason="accept")
    assert acl.inbound("B", None) == Verdict(False, reason="no entry matches")


def test_without_a_session_nothing_is_refused_that_a_session_could_open() -> None:
    tcp_only = condition("transport", "eq", "tcp")
    opened = inbound(ace("accept", topic("A"), tcp_only))
    assert opened.inbound("A", None) == Verdict(
        True, 1, "a.xml", 2, needs_session=True, reason="depends on the session"
    )
    assert not opened.inbound("B", None).accept
    closed = inbound(ace("reject", topic("A"), tcp_only))
    assert closed.inbound("A", None) == Verdict(False, reason="no entry matches")
    either = inbound(ace("reject", tcp_only), ace("accept", topic(".*")))
    assert either.inbound("A", None).needs_session
    same = inbound(ace("accept", tcp_only), ace("accept", topic(".*")))
    assert same.inbound("A", None) == Verdict(True, 2, "a.xml", 3, reason="accept")


@given(
    st.lists(
        st.tuples(st.booleans(), st.sampled_from("AB."), st.sampled_from(["", "tcp", "lbt-rm"])), min_size=1, max_size=6
    )
)
def test_without_a_session_the_verdict_holds_for_every_session(entries: list[tuple[bool, str, str]]) -> None:
    acl = inbound(
        *(
            ace(
                "accept" if accept else "reject",
                topic(".*" if name == "." else name),
                condition("transport", "eq", transport) if transport else "",
            )
            for accept, name, transport in entries
        )
    )
    for name in "ABC":
        verdict = acl.inbound(name, None)
        known = {acl.inbound(name, session).accept for session in ALL.values()}
        assert verdict.needs_session or known == {verdict.accept}
        if verdict.needs_session:
            assert verdict.accept


def test_three_portals_inbound_and_outbound() -> None:
    """Rejected on the way in, a topic reaches nobody; rejected on the way out of one portal, not the other."""
    one = inbound(ace("reject", topic("IN")), ace("accept", topic(".*")))
    two = compiled(f"<outbound>{ace('reject', topic('OUT'))}{ace('accept', topic('.*'))}</outbound>")
    three = Acl.of(None)

    def reached(name: str) -> list[str]:
        if not accepts(one, name):
            return []
        return [portal for portal, acl in (("two", two), ("three", three)) if acl.outbound(name).accept]

    assert reached("IN") == []
    assert reached("OUT") == ["three"]
    assert reached("any") == ["two", "three"]


def test_white_space_of_topics() -> None:
    acl = inbound(ace("accept", "<topic>  a \n b </topic>"), ace("accept", '<topic xml:space="preserve"> x </topic>'))
    assert [accepts(acl, t) for t in ("a b", " x ", "x")] == [True, True, False]


# patterns


def test_a_pattern_that_takes_too_long_rejects() -> None:
    acl = inbound(ace("accept", "<pcre-pattern>^(([a-z])+.)+[A-Z]([a-z])+$</pcre-pattern>"), ace("accept", topic(".*")))
    start = time.process_time()
    verdict = acl.inbound("a" * 240, TCP)
    assert verdict == Verdict(False, 1, "a.xml", 2, reason="the search for a pattern was given up")
    assert time.process_time() - start < 1


@pytest.mark.parametrize("kind", ["pcre-pattern", "regex-pattern"])
def test_what_is_no_pattern_is_an_error_at_its_line(kind: str) -> None:
    with pytest.raises(ConfigErrors, match=rf"a.xml:2: <{kind}>: .*not a pattern: .*; see the syntax"):
        inbound(ace("accept", f"<{kind}>a(b</{kind}>"))


def test_the_cost_of_a_thousand_entries() -> None:
    exact = inbound(*(ace("accept", topic(f"topic/{n}")) for n in range(1000)))
    ranges = inbound(*(ace("accept", condition("tcp-source-port", "eq", n)) for n in range(1000)))
    for acl, name, session in ((exact, "topic/999", None), (ranges, "x", Session("tcp", tcp_source_port=999))):
        rounds = 20
        start = time.process_time()
        for _ in range(rounds):
            assert acl.inbound(name, session).ace == 1000
        assert (time.process_time() - start) / rounds < 0.05
