"""Evaluation of access control lists: the entries of `<acl>`, compiled once, applied to a topic or a session.

Enforcement in a portal is `portals.decisions.acl_enforcement`.

Pure and without state: `Acl.of` compiles, `inbound` and `outbound` decide. The first entry whose conditions all hold
decides; if there is none, the topic is rejected; a direction without a list accepts everything. Conditions that cannot
apply (on the session in outbound, or on another transport) are ignored; an entry without an applicable condition does
not match. Sessions are those of sources, or proxy sources, in the TRD of the portal.

Source: DRO guide, chapter 4.2.3. Guess: addresses compare as numbers; two different topics in one entry never match; a
pattern whose search exceeds its limit rejects the topic, whatever its entry says.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import merge
from ipaddress import IPv4Address
from typing import Final, Literal

from dro.config.dro_xml.elements_acl import MATCH_ALL
from dro.config.dro_xml.model import AceConfig, AclConfig, ConditionConfig
from dro.errors import ConfigError
from dro.pattern_groups import PatternIndex
from dro.patterns import PCRE, REGEX, Pattern, PatternError, PatternLimit

SessionTransport = Literal["tcp", "lbt-rm", "lbt-ru", "lbt-ipc", "other"]  # other: none that a condition can name


@dataclass(frozen=True, slots=True)
class Session:
    """A transport session as conditions see it; what its transport does not have is 0."""

    transport: SessionTransport
    source_ip: int = 0  # addresses as numbers
    multicast_group: int = 0
    udp_source_port: int = 0
    udp_destination_port: int = 0
    tcp_source_port: int = 0
    xport_id: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an ACL says, and why: the number of the entry (from 1) and its place; entry 0 is no entry.

    `needs_session` says that the verdict could be another one if the session were known.
    """

    accept: bool
    ace: int = 0
    file: str = ""
    line: int = 0
    needs_session: bool = False
    reason: str = ""


ACCEPT_ALL: Final = Verdict(True, reason="no list")
REJECT_ALL: Final = Verdict(False, reason="no entry matches")

_APPLIES: Final[dict[str, frozenset[str]]] = {
    "transport": frozenset({"tcp", "lbt-rm", "lbt-ru", "lbt-ipc", "other"}),
    "source-ip": frozenset({"tcp", "lbt-rm", "lbt-ru"}),
    "multicast-group": frozenset({"lbt-rm"}),
    "udp-source-port": frozenset({"lbt-rm", "lbt-ru"}),
    "udp-destination-port": frozenset({"lbt-rm"}),
    "tcp-source-port": frozenset({"tcp"}),
    "xport-id": frozenset({"lbt-ipc"}),
}
_VALUE_OF: Final[dict[str, Callable[[Session], int | str]]] = {
    kind: operator.attrgetter(kind.replace("-", "_")) for kind in _APPLIES
}
_NUMBER_TESTS: Final[dict[str, Callable[[int, int], bool]]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}


@dataclass(frozen=True, slots=True)
class _TopicTest:
    """One topic condition: the name to compare, or a pattern; neither for all."""

    exact: bytes | None
    pattern: Pattern | None = None

    def holds(self, topic: bytes) -> bool:
        """Say whether the condition holds for a topic. Raises: PatternLimit."""
        if self.exact is not None:
            return topic == self.exact
        return self.pattern is None or self.pattern.search(topic)


@dataclass(frozen=True, slots=True)
class _SessionTest:
    kind: str
    comparison: str
    want: int | str

    def applies(self, session: Session) -> bool:
        return session.transport in _APPLIES[self.kind]

    def holds(self, session: Session) -> bool:
        have = _VALUE_OF[self.kind](session)
        if isinstance(have, int) and isinstance(self.want, int):
            return _NUMBER_TESTS[self.comparison](have, self.want)
        return (have == self.want) == (self.comparison == "eq")


@dataclass(frozen=True, slots=True)
class _Entry:
    accept: bool
    topics: tuple[_TopicTest, ...]
    sessions: tuple[_SessionTest, ...]
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class _List:
    """The entries of one direction: those that ask for an exact topic by name, the others in a `PatternIndex`.

    `by_topic` gives for a name the entries that ask for it; `general` has the others; both are in order, and the
    numbers in front say which comes first.
    """

    by_topic: dict[bytes, tuple[tuple[int, _Entry], ...]]
    general: PatternIndex[tuple[int, _Entry]]

    def candidates(self, topic: bytes) -> Iterable[tuple[int, _Entry]]:
        general = self.general.candidates(topic)
        named = self.by_topic.get(topic)
        return general if named is None else merge(named, general, key=lambda pair: pair[0])


def _topic_test(condition: ConditionConfig) -> _TopicTest:
    raw = _raw(str(condition.value))
    if condition.kind == "topic":
        return _TopicTest(None if condition.value == MATCH_ALL else raw)
    return _TopicTest(None, Pattern(raw, PCRE if condition.kind == "pcre-pattern" else REGEX))


def _raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _session_test(condition: ConditionConfig) -> _SessionTest:
    want = condition.value
    if condition.kind in ("source-ip", "multicast-group"):
        want = int(IPv4Address(str(want)))
    return _SessionTest(condition.kind, condition.comparison, want)


def _compile(entries: tuple[AceConfig, ...] | None, *, with_sessions: bool) -> _List | None:
    """Compile the entries of one direction. Raises: ConfigError with the entry's place for a pattern that is none."""
    if entries is None:
        return None
    by_topic: dict[bytes, list[tuple[int, _Entry]]] = {}
    general: list[tuple[Pattern | None, tuple[int, _Entry]]] = []
    for number, ace in enumerate(entries, start=1):
        topics: list[_TopicTest] = []
        for condition in ace.conditions:
            if condition.kind in _APPLIES:
                continue
            try:
                topics.append(_topic_test(condition))
            except PatternError as e:
                raise ConfigError(
                    e.what, file=ace.file, line=condition.line, element=f"<{condition.kind}>", remedy=e.remedy
                ) from e
        sessions = tuple(_session_test(c) for c in ace.conditions if c.kind in _APPLIES and with_sessions)
        if not topics and not sessions:
            continue
        verdict = Verdict(ace.accept, number, ace.file, ace.line, reason="accept" if ace.accept else "reject")
        entry = _Entry(ace.accept, tuple(topics), sessions, verdict)
        names = {test.exact for test in topics if test.exact is not None}
        if len(names) > 1:
            continue  # two different topics at once: never
        for name in names:
            by_topic.setdefault(name, []).append((number, entry))
        if not names:
            pattern = next((test.pattern for test in topics if test.pattern is not None), None)
            general.append((pattern, (number, entry)))
    return _List({name: tuple(found) for name, found in by_topic.items()}, PatternIndex(general))


@dataclass(frozen=True, slots=True)
class Acl:
    """The compiled ACL of one portal."""

    _inbound: _List | None = None
    _outbound: _List | None = None

    @classmethod
    def of(cls, config: AclConfig | None, *, has_sessions: bool = True) -> Acl:
        """`has_sessions` is False for a peer portal: what comes over its link has no session to ask about.

        Raises: ConfigError with file and line for a pattern that is none.
        """
        if config is None:
            return cls()
        return cls(_compile(config.inbound, with_sessions=has_sessions), _compile(config.outbound, with_sessions=False))

    def inbound(self, topic: str, session: Session | None) -> Verdict:
        """Judge a source with its session; without one, interest in a topic.

        Without a session the verdict accepts, with `needs_session`, unless every session would be treated alike.
        """
        return _decide(self._inbound, topic, session)

    def outbound(self, topic: str) -> Verdict:
        """Judge what leaves the DRO here."""
        return _decide(self._outbound, topic, None)


def _decide(entries: _List | None, topic: str, session: Session | None) -> Verdict:
    if entries is None:
        return ACCEPT_ALL
    name = _raw(topic)
    open_entries: list[Verdict] = []  # those that would decide if the session, which is not known, fitted
    for _, entry in entries.candidates(name):
        try:
            if not all(test.holds(name) for test in entry.topics):
                continue
        except PatternLimit:
            at = entry.verdict
            given_up = Verdict(False, at.ace, at.file, at.line, reason="the search for a pattern was given up")
            return _with_open(given_up, open_entries)
        if not entry.sessions:
            return _with_open(entry.verdict, open_entries)
        if session is None:
            open_entries.append(entry.verdict)
            continue
        applicable = [test for test in entry.sessions if test.applies(session)]
        if (applicable or entry.topics) and all(test.holds(session) for test in applicable):
            return entry.verdict
    return _with_open(REJECT_ALL, open_entries)


def _with_open(verdict: Verdict, open_entries: list[Verdict]) -> Verdict:
    """Return `verdict`, unless an open entry could still say otherwise: then nothing is refused yet."""
    for entry in open_entries:
        if entry.accept != verdict.accept:
            return Verdict(True, entry.ace, entry.file, entry.line, needs_session=True, reason="depends on the session")
    return verdict


def applies(kind: str, transport: str) -> bool:
    """Whether a condition of that kind is asked about sessions of that transport; others leave it out."""
    return transport in _APPLIES[kind]
