"""Patterns of interest: how they are searched in a new topic, and how many are taken."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.clock import ms
from dro.patterns import PCRE, Pattern
from dro.proto.interest.events import InterestGained, InterestLost, Symbol
from dro.table import Table
from portals.decisions.acl_enforcement import OPEN
from portals.decisions.core import PortalCore
from portals.decisions.effects import Effect, GoOn, InterestIgnored, OpenProxySource, SendToSibling
from portals.decisions.engine import STEP
from portals.decisions.messages import PATTERN_NONE, InterestAdded, SourceGone, SourceSeen
from portals.decisions.recorded_interest import PATTERNS_MAX, RecordedInterest
from tests.builders.routes import whole
from tests.fakes.patterns import compile_pattern

ME, SIBLING = 1, 2
SLOW = b"a" * 200


def searched_slowly(number: int) -> tuple[bytes, int]:
    return b"(?:a+)+[^a]|x%d" % number, PCRE


class Made:
    """A portal whose sibling offers sources; `quiescence` is what it left to later turns."""

    def __init__(self) -> None:
        self.core = PortalCore(ME, 1, ME, source_deletion_delay_ns=0, matcher=Pattern)
        self.core.on_routes(1, whole([(SIBLING, ME, SIBLING, ME)]), 0)
        self.core.on_sibling_up(SIBLING, 1, 0, 0, 0)
        self.quiescence: list[Iterator[object]] = []
        self.effects()

    def effects(self) -> list[Effect]:
        effects = self.core.take_effects()
        self.quiescence += [effect.steps for effect in effects if isinstance(effect, GoOn)]
        return [effect for effect in effects if not isinstance(effect, GoOn)]

    def want(self, *symbols: Symbol) -> None:
        for symbol in symbols:
            self.core.on_interest(InterestGained(symbol), 0)

    def offer(self, topic: bytes, handle: int = 1) -> None:
        seen = SourceSeen(handle, bytes([handle]) * 32, topic, SIBLING, 0, 1, b"")
        self.core.on_message(SIBLING, 1, seen, 0)

    def turns(self) -> Iterator[None]:
        """What was left, as much at once as the shell takes."""
        while self.quiescence:
            steps = self.quiescence.pop(0)
            while sum(1 for _ in islice(steps, STEP)) == STEP:
                yield
            self.effects_before = self.effects()

    def opened(self) -> list[bytes]:
        """Topics of the proxy sources that are asked for, after all that was left."""
        found = self.effects()
        while self.quiescence:
            deque(self.quiescence.pop(0), maxlen=0)
            found += self.effects()
        return [effect.source.topic for effect in found if isinstance(effect, OpenProxySource)]


@pytest.fixture
def made() -> Made:
    return Made()


def test_a_thousand_slow_patterns_do_not_hold_up_a_turn() -> None:
    def longest_ns() -> int:
        made = Made()
        made.want(*map(searched_slowly, range(PATTERNS_MAX)))
        made.effects()
        longest = 0
        for handle in range(1, 12):  # one of them has the patterns grouped
            began = time.thread_time_ns()
            made.offer(SLOW + b"%d" % handle, handle)
            made.effects()
            for _ in made.turns():
                longest, began = max(longest, time.thread_time_ns() - began), time.thread_time_ns()
        assert len(made.core.proxies) == 11
        return longest

    # one step of the compiler of patterns takes 13 ms of processor time, and 20 while the sibling core is busy
    assert any(longest_ns() < ms(20) for _ in range(10))


def test_a_source_is_decided_when_all_patterns_have_been_searched(made: Made) -> None:
    made.want(*map(searched_slowly, range(100)), (b"b$", PCRE), (SLOW + b"b", PATTERN_NONE))
    made.offer(SLOW + b"b")
    assert not any(isinstance(effect, OpenProxySource) for effect in made.effects())
    made.offer(SLOW + b"b", 2)
    assert made.opened() == [SLOW + b"b"] * 2


def test_a_source_that_has_gone_meanwhile_is_not_decided(made: Made) -> None:
    made.want(*map(searched_slowly, range(100)), (b"a", PCRE))
    made.offer(SLOW)
    made.core.on_message(SIBLING, 1, SourceGone(1), 0)
    assert made.opened() == []
    made.offer(SLOW, 2)
    assert made.opened() == [SLOW]


def test_what_is_beyond_the_most_waits_until_another_is_wanted_no_more(made: Made) -> None:
    made.want(*((b"^%d$" % n, PCRE) for n in range(PATTERNS_MAX)))
    made.effects()
    made.want((b"^A", PCRE), (b"^B", PCRE))
    assert made.effects() == [InterestIgnored(b"^A", waits=True), InterestIgnored(b"^B", waits=True)]
    made.offer(b"AB")
    assert made.opened() == []
    made.core.on_interest(InterestLost((b"^A", PCRE)), 0)
    made.core.on_interest(InterestGained((b"^A", PCRE)), 0)
    made.core.on_interest(InterestLost((b"^7$", PCRE)), 0)
    told = [e.message for e in made.effects() if isinstance(e, SendToSibling)]
    assert [m.symbol for m in told if isinstance(m, InterestAdded)] == [b"^B"], "the one that waits for longest"
    assert list(made.core.recorded.waiting) == [(b"^A", PCRE)]
    assert made.opened() == []
    made.core.on_interest(InterestLost((b"^8$", PCRE)), 0)
    assert made.opened() == [b"AB"]


PATTERNS: list[Symbol] = [(pattern, PCRE) for pattern in (b"A", b"B", b"^A", b"B$", b".", b"C")]
TOPICS = (b"A", b"AB", b"BA", b"C")
OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(["add", "remove"]), st.sampled_from(PATTERNS)),
    st.tuples(st.sampled_from(["offer", "withdraw"]), st.sampled_from(TOPICS)),
    st.tuples(st.just("run"), st.integers(1, 9)),
)


@given(st.lists(OPERATIONS, max_size=40))
def test_all_patterns_that_find_a_topic_are_found_whatever_changes_meanwhile(
    operations: list[tuple[str, Symbol | bytes | int]],
) -> None:
    offered: Table[bytes, set[bytes]] = Table()
    recorded = RecordedInterest(compile_pattern, OPEN, offered)
    wanted: set[Symbol] = set()
    running: list[Iterator[object]] = []

    def decide(topic: bytes) -> None:
        if not recorded.has_searched(topic) and recorded.put_off(topic, b""):
            running.append(recorded.search(topic))

    for operation in operations:
        match operation:
            case "add", (bytes(), int()) as symbol if symbol not in wanted:
                wanted.add(symbol)
                assert recorded.add(symbol, wanted_by(symbol))
                running.append(recorded.topics_of(symbol))
            case "remove", (bytes(), int()) as symbol if symbol in wanted:
                wanted.remove(symbol)
                assert recorded.remove(symbol, wanted_by(symbol))
                recorded.take_found(symbol)
            case "offer", bytes(topic):
                offered[topic] = set()
                decide(topic)
            case "withdraw", bytes(topic) if topic in offered:
                del offered[topic]
                recorded.forget(topic)
            case "run", int(count):
                for steps in running:
                    deque(islice(steps, count), maxlen=0)
    for steps in running:
        deque(steps, maxlen=0)
    running.clear()
    for topic in offered.snapshot():
        decide(topic)
    for steps in running:
        deque(steps, maxlen=0)
    for topic in offered.snapshot():
        assert recorded.has_searched(topic)
        expected = {wanted_by(one) for one in wanted if (matcher := compile_pattern(*one)) and matcher(topic)}
        assert recorded.interested(topic) == expected


def wanted_by(symbol: Symbol) -> int:
    """A domain for each pattern."""
    return 10 + PATTERNS.index(symbol)
