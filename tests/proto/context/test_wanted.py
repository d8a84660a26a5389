"""What receivers want, counted: what the resolver is told, with which options, and what a removal leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

from dro.clock import ms
from dro.errors import DecodeError
from dro.proto.context.wanted import WantedTopics
from dro.proto.resolver.core import Resolver
from dro.proto.resolver.schedule import QueryOptions, WildcardQueryOptions
from dro.proto.resolver.source_advertisements import Matcher
from tests.fakes.steps import steps

P, Q = (b"^p", 1), (b"^p", 2)
USUAL, OTHER = (QueryOptions(minimum_initial_interval_ns=ms(interval)) for interval in (30, 70))
PATTERNS = WildcardQueryOptions(minimum_interval_ns=ms(90))


def is_match(topic: bytes) -> bool:
    return topic.startswith(b"p")


class Asked:
    """In the place of the resolver."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []
        self.handles = 40
        self.found: dict[int, list[bytes]] = {}  # topics of patterns

    def add_receiver(self, topic: bytes, now_ns: int, options: QueryOptions) -> None:
        if topic == b"bad":
            raise DecodeError("topic", "bad")
        self.calls.append(("+", topic, now_ns, options.minimum_initial_interval_ns))

    def remove_receiver(self, topic: bytes, now_ns: int) -> None:
        self.calls.append(("-", topic, now_ns))

    def add_wildcard(
        self, pattern: bytes, kind: int, matcher: Matcher, now_ns: int, queries: WildcardQueryOptions,
        of_topics: QueryOptions,
    ) -> int:  # fmt: skip
        if pattern == b"bad":
            raise DecodeError("pattern", "bad")
        assert matcher is is_match
        self.handles += 1
        self.calls.append(
            ("+", pattern, kind, now_ns, queries.minimum_interval_ns, of_topics.minimum_initial_interval_ns)
        )
        return self.handles

    def remove_wildcard(self, handle: int, now_ns: int) -> Iterator[bytes]:
        self.calls.append(("-", handle, now_ns))
        return iter(self.found.pop(handle, ()))

    def take(self) -> list[tuple[object, ...]]:
        calls, self.calls = self.calls, []
        return calls


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def wanted(asked: Asked) -> WantedTopics:
    return WantedTopics(cast(Resolver, asked))


def test_a_topic_is_asked_for_once_with_the_options_of_its_first_receiver(asked: Asked, wanted: WantedTopics) -> None:
    firsts = [wanted.add_topic(b"t", 5, OTHER), wanted.add_topic(b"t", 6, USUAL), wanted.add_topic(b"u", 7, USUAL)]
    assert firsts == [True, False, True]
    assert asked.take() == [("+", b"t", 5, ms(70)), ("+", b"u", 7, ms(30))]
    assert wanted.named_topics() == wanted.all_topics() == {b"t", b"u"}
    assert wanted.is_wanted(b"t")
    assert wanted.remove_topic(b"t", 8) is False
    assert (asked.take(), wanted.is_wanted(b"t")) == ([], True)
    assert wanted.remove_topic(b"t", 9) is True
    assert (asked.take(), wanted.is_wanted(b"t")) == ([("-", b"t", 9)], False)
    assert wanted.add_topic(b"t", 10, USUAL) is True
    assert asked.take() == [("+", b"t", 10, ms(30))]


def test_what_nothing_else_is_said_of_is_asked_for_as_by_default(asked: Asked, wanted: WantedTopics) -> None:
    wanted.add_topic(b"t", 1)
    wanted.add_pattern(P, is_match, 2)
    query, pattern = QueryOptions().minimum_initial_interval_ns, WildcardQueryOptions().minimum_interval_ns
    assert asked.take() == [("+", b"t", 1, query), ("+", b"^p", 1, 2, pattern, query)]


def test_a_pattern_is_asked_for_once_and_wants_what_it_has_found(asked: Asked, wanted: WantedTopics) -> None:
    wanted.add_pattern(P, is_match, 5, PATTERNS, OTHER)
    wanted.add_pattern(P, is_match, 6)
    usual = WildcardQueryOptions()
    wanted.add_pattern(Q, is_match, 7, usual, USUAL)
    assert asked.take() == [
        ("+", b"^p", 1, 5, ms(90), ms(70)),
        ("+", b"^p", 2, 7, usual.minimum_interval_ns, ms(30)),
    ]
    assert wanted.on_matched(41, b"p.1") == P
    assert wanted.on_matched(41, b"p.2") == P
    assert wanted.on_matched(42, b"p.2") == Q
    assert wanted.on_matched(43, b"p.3") is None
    assert wanted.on_unmatched(43, b"p.1") is None
    wanted.add_topic(b"t", 8)
    assert wanted.all_topics() == {b"t", b"p.1", b"p.2"}
    assert wanted.named_topics() == {b"t"}
    assert [wanted.topics_of(key) for key in (P, Q, (b"^p", 3))] == [{b"p.1", b"p.2"}, {b"p.2"}, frozenset()]
    assert [wanted.is_wanted(topic) for topic in (b"p.1", b"p.2", b"p.3")] == [True, True, False]
    assert wanted.on_unmatched(42, b"p.2") == Q
    assert wanted.topics_of(Q) == frozenset()
    asked.take()
    asked.found = {41: [b"p.1", b"p.2", b"not told yet"]}
    assert list(wanted.remove_pattern(P, 9)) == []
    assert (asked.take(), wanted.is_wanted(b"p.1")) == ([], True)
    topics = wanted.remove_pattern(P, 10)
    assert (asked.take(), wanted.topics_of(P)) == ([("-", 41, 10)], frozenset())
    assert (next(topics), wanted.all_topics()) == (b"p.1", {b"t", b"p.2"}), "one by one"
    assert (list(topics), wanted.all_topics()) == ([b"p.2", b"not told yet"], {b"t"})
    assert wanted.on_matched(41, b"p.1") is None
    wanted.add_pattern(P, is_match, 11)
    assert wanted.on_matched(43, b"p.9") == P


def test_a_pattern_that_is_removed_keeps_no_topic_that_the_resolver_has_let_go(
    asked: Asked, wanted: WantedTopics
) -> None:
    """What it says of the topic comes too late: nobody wants the pattern any more."""
    wanted.add_pattern(P, is_match, 1)
    for topic in (b"p.1", b"p.2"):
        wanted.on_matched(41, topic)
    asked.found = {41: [b"p.1"]}
    assert list(wanted.remove_pattern(P, 2)) == [b"p.1", b"p.2"]
    assert wanted.on_unmatched(41, b"p.2") is None
    assert wanted.all_topics() == set()


def test_what_cannot_be_asked_for_is_not_wanted(asked: Asked, wanted: WantedTopics) -> None:
    with pytest.raises(DecodeError):
        wanted.add_topic(b"bad", 1)
    with pytest.raises(DecodeError):
        wanted.add_pattern((b"bad", 1), is_match, 1)
    assert (wanted.all_topics(), wanted.topics_of((b"bad", 1))) == (set(), frozenset())
    wanted.remove_all(2)
    assert asked.take() == []


def test_a_topic_that_two_patterns_found_is_wanted_until_both_are_gone(asked: Asked, wanted: WantedTopics) -> None:
    for key in (P, Q):
        wanted.add_pattern(key, is_match, 1)
    for handle in (41, 42, 42):
        wanted.on_matched(handle, b"p")
    asked.found = {41: [b"p"]}
    assert list(wanted.remove_pattern(P, 2)) == [b"p"]
    assert (wanted.is_wanted(b"p"), wanted.all_topics()) == (True, {b"p"})
    for _ in range(2):
        wanted.on_unmatched(42, b"p")
    assert (wanted.is_wanted(b"p"), wanted.all_topics()) == (False, set())


def test_whether_a_topic_is_wanted_costs_the_same_however_many_patterns_there_are(wanted: WantedTopics) -> None:
    def cost(patterns: int) -> int:
        for number in range(patterns):
            wanted.add_pattern((b"%d" % number, 1), is_match, 1)
        return steps(lambda: wanted.is_wanted(b"t"))

    assert cost(1) == cost(100)


def test_at_the_end_everything_is_taken_from_the_resolver_once(asked: Asked, wanted: WantedTopics) -> None:
    for topic in (b"t", b"t", b"u"):
        wanted.add_topic(topic, 1)
    for key in (P, P, Q):
        wanted.add_pattern(key, is_match, 1)
    asked.take()
    wanted.remove_all(2)
    assert asked.take() == [("-", b"t", 2), ("-", b"u", 2), ("-", 41, 2), ("-", 42, 2)]
