"""Lint of access control lists: entries that can never decide, and lists that reject everything.

Works on the conditions only, for each transport separately, since conditions that do not apply to it are ignored. What
cannot be decided (whether one pattern includes another) counts as different. Source: DRO guide, chapter 4.2.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address
from typing import Final

from dro.config.dro_xml.acl import applies
from dro.config.dro_xml.elements_acl import MATCH_ALL, TOPIC_KINDS
from dro.config.dro_xml.model import AceConfig, ConditionConfig
from dro.config.lint.finding import EndpointView, Finding, PeerView, Place, hint, warning
from dro.patterns import PCRE, REGEX, Pattern, PatternError, PatternLimit

TRANSPORTS: Final = ("tcp", "lbt-rm", "lbt-ru", "lbt-ipc", "other")
_EVERYTHING: Final = frozenset({".*", "^.*", ".*$", "^.*$", ".+", "^.+$", "."})
_TOP: Final = 2**32 - 1
MAX_ENTRIES: Final = 5000  # longer lists are not looked at
MAX_SEARCHES: Final = 50_000  # of patterns in names, for one list; what is left out counts as not matching

Span = tuple[int, int]  # inclusive
Spans = tuple[Span, ...]
Topic = tuple[str, str]  # kind and text
Key = tuple[str, str | int]


@dataclass(frozen=True, slots=True)
class _Scope:
    """What one entry matches for one transport: values of each kind of condition, as spans of numbers."""

    sessions: Mapping[str, Spans]

    def is_within(self, other: _Scope) -> bool:
        own = self.sessions
        return all(_is_subset(own.get(kind, ((0, _TOP),)), spans) for kind, spans in other.sessions.items())


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry; `key`: what every entry within it has among its own `keys`; None if it covers others anyhow."""

    ace: AceConfig
    topics: tuple[Topic, ...]
    scopes: tuple[_Scope | None, ...]  # one for each transport; None: never matches there
    keys: frozenset[Key]
    key: Key | None

    @property
    def names(self) -> list[str]:
        return [text for kind, text in self.topics if kind == "topic"]


def _spans(condition: ConditionConfig) -> Spans:
    if condition.kind == "transport":
        want = TRANSPORTS.index(str(condition.value)) if condition.value in TRANSPORTS else len(TRANSPORTS)
    elif isinstance(condition.value, int):
        want = condition.value
    else:
        want = int(IPv4Address(condition.value))
    spans = {
        "eq": ((want, want),),
        "ne": ((0, want - 1), (want + 1, _TOP)),
        "lt": ((0, want - 1),),
        "le": ((0, want),),
        "gt": ((want + 1, _TOP),),
        "ge": ((want, _TOP),),
    }[condition.comparison]
    return tuple(span for span in spans if span[0] <= span[1])


def _both(one: Spans, other: Spans) -> Spans:
    found = ((max(a[0], b[0]), min(a[1], b[1])) for a in one for b in other)
    return tuple(sorted(span for span in found if span[0] <= span[1]))


def _is_subset(one: Spans, other: Spans) -> bool:
    """Say whether `other` holds every number of `one`; the spans of `other` are apart from each other."""
    return all(any(b[0] <= a[0] and a[1] <= b[1] for b in other) for a in one)


def _scope(ace: AceConfig, transport: str, with_sessions: bool) -> _Scope | None:
    sessions: dict[str, Spans] = {}
    has_topics = False
    for condition in ace.conditions:
        if condition.kind in TOPIC_KINDS:
            has_topics = True
        elif with_sessions and applies(condition.kind, transport):
            spans = _spans(condition)
            known = sessions.get(condition.kind)
            sessions[condition.kind] = spans if known is None else _both(known, spans)
    own = sessions.pop("transport", None)
    if own is not None and not _both(own, ((TRANSPORTS.index(transport),) * 2,)):
        return None
    if any(not spans for spans in sessions.values()) or not (has_topics or sessions or own is not None):
        return None
    return _Scope(sessions)


def _entry(ace: AceConfig, with_sessions: bool) -> _Entry:
    topics = tuple(
        (c.kind, str(c.value))
        for c in ace.conditions
        if c.kind in TOPIC_KINDS and not (c.kind == "topic" and c.value == MATCH_ALL)
    )
    exact = {text for kind, text in topics if kind == "topic"}
    possible = len(exact) <= 1 and all(_holds(topic, name) is not False for topic in topics for name in exact)
    scopes = tuple(_scope(ace, transport, with_sessions) if possible else None for transport in TRANSPORTS)
    equal: set[Key] = {
        (c.kind, c.value)
        for c in ace.conditions
        if with_sessions and c.kind not in TOPIC_KINDS and c.comparison == "eq"
    }
    wanted: list[Key] = [topic for topic in topics if topic[1] not in _EVERYTHING] or sorted(equal, key=str)
    return _Entry(ace, topics, scopes, frozenset(topics) | equal, wanted[0] if wanted else None)


@lru_cache(maxsize=4096)
def _pattern(topic: Topic) -> Pattern | None:
    kind, text = topic
    try:
        return Pattern(text.encode("utf-8", "surrogateescape"), PCRE if kind == "pcre-pattern" else REGEX)
    except PatternError:
        return None


def _holds(topic: Topic, name: str) -> bool | None:
    """Say whether a topic condition holds for a name; None when that is not known."""
    if topic[0] == "topic":
        return topic[1] == name
    pattern = _pattern(topic)
    if pattern is None:
        return None
    try:
        return pattern.search(name.encode("utf-8", "surrogateescape"))
    except PatternLimit:
        return None


class _Earlier:
    """The entries before one, found by what a later entry must have to lie within them."""

    def __init__(self) -> None:
        self._entries: list[_Entry] = []
        self._by_key: dict[Key, list[int]] = {}
        self._general: list[int] = []
        self._patterns: list[int] = []  # they may hold names within them
        self._searches = 0

    def add(self, entry: _Entry) -> None:
        number = len(self._entries)
        self._entries.append(entry)
        if entry.key is None:
            self._general.append(number)
        else:
            self._by_key.setdefault(entry.key, []).append(number)
            if entry.key[0] in TOPIC_KINDS and entry.key[0] != "topic":
                self._patterns.append(number)

    def covering(self, later: _Entry) -> _Entry | None:
        """The last of the entries that together leave nothing to `later`; None if something is left."""
        numbers = {n for key in later.keys for n in self._by_key.get(key, ())}
        if later.names and self._searches < MAX_SEARCHES:
            numbers.update(self._patterns)
        left = [at for at, scope in enumerate(later.scopes) if scope is not None]
        for number in sorted(numbers.union(self._general)):
            earlier = self._entries[number]
            left_here = [at for at in left if not _is_within(later.scopes[at], earlier.scopes[at])]
            if left_here != left and self._holds_topics_of(earlier, later):
                left = left_here
                if not left:
                    return earlier
        return None

    def _holds_topics_of(self, earlier: _Entry, later: _Entry) -> bool:
        """Say whether every topic that the later entry matches is matched by the earlier one."""
        return all(
            topic in later.keys
            or (topic[0] != "topic" and (topic[1] in _EVERYTHING or any(self._finds(topic, n) for n in later.names)))
            for topic in earlier.topics
        )

    def _finds(self, topic: Topic, name: str) -> bool:
        self._searches += 1
        return self._searches <= MAX_SEARCHES and _holds(topic, name) is True


def _is_within(own: _Scope | None, other: _Scope | None) -> bool:
    return own is not None and other is not None and own.is_within(other)


def _list(aces: tuple[AceConfig, ...] | None, at: Place, *, with_sessions: bool, direction: str) -> Iterator[Finding]:
    if aces is None or len(aces) > MAX_ENTRIES:
        return
    earlier = _Earlier()
    passes = False
    for entry in (_entry(ace, with_sessions) for ace in aces):
        place = Place(entry.ace.file, entry.ace.line) if entry.ace.line else at
        if all(scope is None for scope in entry.scopes):
            if not _is_told(entry.ace, with_sessions, direction, len(set(entry.names))):
                yield warning(
                    place, f"<{direction}> <ace>", "its conditions never hold together", "the entry decides nothing",
                    "remove a condition, or make two entries of it",
                )  # fmt: skip
            continue
        covered = earlier.covering(entry)
        if covered is None:
            passes = passes or entry.ace.accept
        else:
            yield _shadowed(entry.ace, covered.ace, place, direction)
        earlier.add(entry)
    if not passes:
        yield warning(
            at, f"<{direction}>", "no entry accepts anything", "nothing passes: what no entry matches is rejected",
            'end the list with <ace match="accept"><pcre-pattern>.*</pcre-pattern></ace>, or remove it',
        )  # fmt: skip


def _shadowed(ace: AceConfig, earlier: AceConfig, place: Place, direction: str) -> Finding:
    verb = "accepts" if earlier.accept else "rejects"
    what = f"the entry in line {earlier.line} {verb} all that this one matches"
    if ace.accept == earlier.accept:
        return hint(place, f"<{direction}> <ace>", what, "the entry changes nothing", "remove it")
    return warning(
        place, f"<{direction}> <ace>", what, "the entry never decides", f"move it above line {earlier.line}"
    )  # fmt: skip


def _is_told(ace: AceConfig, with_sessions: bool, direction: str, names: int) -> bool:
    """Say whether the reader has warned about the entry already."""
    only_sessions = all(c.kind not in TOPIC_KINDS for c in ace.conditions)
    return names > 1 or (direction == "outbound" and not with_sessions and only_sessions)


def acl(p: EndpointView | PeerView) -> Iterator[Finding]:
    """The entries of both directions."""
    if p.config.acl is None:
        return
    is_endpoint = isinstance(p, EndpointView)
    inbound, outbound = p.element("acl", "inbound"), p.element("acl", "outbound")
    yield from _list(p.config.acl.inbound, inbound, with_sessions=is_endpoint, direction="inbound")
    yield from _list(p.config.acl.outbound, outbound, with_sessions=False, direction="outbound")
