"""The dialogue on one connection: two sessions that talk to each other, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.errors import DecodeError
from dro.proto.peerlink.messages import (
    COMPRESSION_LZ4,
    Digests,
    Hello,
    canary_of,
    canary_response,
    hello,
    keepalive,
    response_to,
    topic_interest,
)  # fmt: skip
from dro.proto.peerlink.session import (
    HELLO_LIMIT_NS,
    PROVEN,
    CanaryOptions,
    CloseLink,
    DataPathState,
    LinkEffect,
    LinkOptions,
    LinkSession,
    LinkUp,
    RefreshNeeded,
    RttStatistics,
    SendCanary,
    SendControl,
    Warned,
)
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.block import RawBlock
from dro.wire.lbmc.data_blocks import SrcIdx, TopicName
from dro.wire.lbmc.dro_blocks import KA_QUERY, Domain, TnwgCapabilities, TnwgKeepalive, TopicMdInterest

GUIDE = LinkOptions(s(5), s(15), only_when_idle=True)
WATCHED = replace(GUIDE, canary=CanaryOptions(s(1), s(3), bytes(1200)))
A = Hello(b"A", b"instance", has_digests=True)
B = Hello(b"B", b"another!", has_digests=True)


class Side:
    def __init__(self, own: Hello, options: LinkOptions) -> None:
        self.effects: list[LinkEffect] = []
        self.told = self.recorded = Digests(1, 1)
        self.rtt = RttStatistics()
        self.session = LinkSession(
            own, options, 0, rtt=self.rtt, told=lambda: self.told, recorded=lambda: self.recorded
        )

    def take(self) -> list[bytes]:
        """What it wants to be sent; the rest is in `effects`."""
        effects = self.session.take_effects()
        self.effects += [effect for effect in effects if not isinstance(effect, SendControl | SendCanary)]
        return [effect.message for effect in effects if isinstance(effect, SendControl | SendCanary)]

    @property
    def carried(self) -> list[bool]:
        """What canaries have shown."""
        return [effect.is_so for effect in self.effects if isinstance(effect, DataPathState)]

    @property
    def is_closed(self) -> bool:
        return any(isinstance(effect, CloseLink) for effect in self.effects)

    @property
    def why(self) -> str:
        return next(effect.text for effect in self.effects if isinstance(effect, CloseLink))


class Pair:
    """Two sides with `delay_ns` between them."""

    def __init__(
        self, one: Hello = A, other: Hello = B, options: LinkOptions = GUIDE, others: LinkOptions | None = None
    ) -> None:
        self.now_ns = 0
        self.delay_ns = ms(10)
        self.sides = (Side(one, options), Side(other, others or options))
        self.on_the_way: list[tuple[int, int, bytes]] = []
        self.is_cut = False
        self.largest = 10_000
        """Larger messages are lost."""
        self.sent = 0
        for side in self.sides:
            side.session.on_connected(0)
        self._collect()

    def _collect(self) -> None:
        for number, side in enumerate(self.sides):
            for message in side.take():
                self.sent += 1
                if not self.is_cut and len(message) <= self.largest:
                    self.on_the_way.append((self.now_ns + self.delay_ns, 1 - number, message))

    def run(self, ns: int, until: Callable[[], bool] = lambda: False) -> None:
        end_ns = self.now_ns + ns
        while not until():
            times = [at for at, _, _ in self.on_the_way]
            times += [at for side in self.sides if (at := side.session.next_deadline()) is not None]
            if not times or min(times) > end_ns:
                self.now_ns = end_ns
                return
            self.now_ns = max(self.now_ns, min(times))
            arrived = [item for item in self.on_the_way if item[0] <= self.now_ns]
            self.on_the_way = [item for item in self.on_the_way if item[0] > self.now_ns]
            for _, to, message in arrived:
                self.sides[to].session.on_received(self.now_ns)
                self.sides[to].session.on_message(message, self.now_ns)
            for side in self.sides:
                side.session.on_timer(self.now_ns)
            self._collect()


def test_both_are_up_after_one_way() -> None:
    pair = Pair()
    pair.run(ms(10))
    a, b = pair.sides
    assert a.effects == [LinkUp(B, is_compressed=False)]
    assert b.effects == [LinkUp(A, is_compressed=False)]
    assert a.session.is_up
    assert b.session.is_up


def test_an_idle_link_is_asked_once_in_an_interval_and_answers_at_once() -> None:
    pair = Pair()
    pair.run(s(60))
    a, b = pair.sides
    assert not a.is_closed
    assert not b.is_closed
    assert a.rtt.us.count + b.rtt.us.count in range(10, 26)
    for side in pair.sides:
        if side.rtt.us.count:
            assert side.rtt.us.minimum == side.rtt.us.maximum == side.rtt.last_us == 20_000


def test_traffic_saves_keepalives_when_only_an_idle_link_is_asked() -> None:
    pair = Pair()
    pair.run(ms(10))
    before = pair.sent
    for _ in range(29):
        pair.run(s(1))
        for side in pair.sides:
            side.session.on_sent(pair.now_ns)
            side.session.on_received(pair.now_ns)
    assert pair.sent == before


def test_a_busy_link_is_asked_now_and_then_what_was_recorded() -> None:
    pair = Pair()
    pair.run(ms(10))
    for _ in range(95):
        pair.run(s(1))
        for side in pair.sides:
            side.session.on_sent(pair.now_ns)
            side.session.on_received(pair.now_ns)
    assert [side.rtt.us.count for side in pair.sides] == [3, 3]


def test_a_link_with_data_one_way_only_stays_up() -> None:
    pair = Pair()
    pair.run(ms(10))
    a, b = pair.sides
    for _ in range(100):
        pair.run(s(1))
        a.session.on_sent(pair.now_ns)
        b.session.on_received(pair.now_ns)
    assert not a.is_closed
    assert not b.is_closed
    assert a.rtt.us.count


def test_it_is_asked_each_interval_when_that_is_configured() -> None:
    pair = Pair(options=replace(GUIDE, only_when_idle=False))
    pair.run(ms(10))
    for _ in range(30):
        pair.run(s(1))
        for side in pair.sides:
            side.session.on_received(pair.now_ns)
    assert [side.rtt.us.count for side in pair.sides] == [5, 5]  # the sixth is being asked


def test_a_silent_companion_is_given_up_after_the_timeout() -> None:
    pair = Pair()
    pair.run(s(7))
    pair.is_cut = True
    pair.on_the_way.clear()
    began_ns = max(side.session.heard_ns for side in pair.sides)
    pair.run(s(14), lambda: any(side.is_closed for side in pair.sides))
    pair.run(s(16), lambda: all(side.is_closed for side in pair.sides))
    assert pair.now_ns - began_ns <= s(15)
    assert "nothing came for 15000 ms" in pair.sides[0].why


def test_without_an_interval_nothing_is_asked_and_nothing_given_up() -> None:
    pair = Pair(options=LinkOptions(0, s(15), only_when_idle=True))
    pair.run(ms(10))
    pair.is_cut = True
    pair.run(s(1000))
    assert pair.sent == 2
    assert not any(side.is_closed for side in pair.sides)


@pytest.mark.parametrize(
    ("ours", "theirs", "interval_ms", "timeout_ms"),
    [((200, 700), (200, 700), 200, 700), ((200, 700), (50, 2000), 200, 2000), ((200, 700), None, 5000, 15000),
     (None, (10, 20), 5000, 15000), ((200, 700), (0, 0), 200, 700), ((200, 700), (2**32 - 1, 2**32 - 1), 5000, 15000),
     ((200, 700), (200, 15_001), 5000, 15000)],
)  # fmt: skip
def test_keepalives_are_fast_when_both_say_so_and_as_slow_as_the_slower_side(
    ours: tuple[int, int] | None, theirs: tuple[int, int] | None, interval_ms: int, timeout_ms: int
) -> None:
    pair = Pair(replace(A, fast_ms=ours), replace(B, fast_ms=theirs))
    pair.run(s(60))
    assert not any(side.is_closed for side in pair.sides)
    assert pair.sent >= 2 * s(60) / ms(interval_ms) * 0.8
    pair.is_cut = True
    pair.on_the_way.clear()
    began_ns = max(side.session.heard_ns for side in pair.sides)
    pair.run(s(16), lambda: all(side.is_closed for side in pair.sides))
    assert pair.now_ns - began_ns <= ms(timeout_ms)
    assert f"nothing came for {timeout_ms} ms" in pair.sides[0].why


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (hello(replace(B, version=0)), "version 0"),
        (hello(replace(B, context_instance=A.context_instance)), "leads back"),
        (keepalive(1, 2), "before it said who it is"),
        (next(topic_interest(b"T", (1,))), "before it said who it is"),
        (lbmc.encode(lbmc.control_message(SrcIdx(1))), "before it said who it is"),
        (lbmc.HEADER.pack(0, 0, 13, 1, 1) + b"x", "before it said who it is"),
    ],
)
def test_what_ends_the_dialogue_before_it_began(first: bytes, why: str) -> None:
    side = Side(A, GUIDE)
    side.session.on_connected(0)
    side.take()
    assert side.session.on_message(first, ms(1)) is None
    side.take()
    assert why in side.why
    assert side.session.next_deadline() is None
    assert side.session.on_message(hello(B), ms(2)) is None
    assert side.take() == []


def test_who_says_nothing_is_given_up() -> None:
    side = Side(A, GUIDE)
    side.session.on_connected(0)
    assert side.session.next_deadline() == HELLO_LIMIT_NS
    side.session.on_timer(HELLO_LIMIT_NS)
    side.take()
    assert "did not say who it is" in side.why


def test_a_second_greeting_is_ignored() -> None:
    pair = Pair()
    pair.run(ms(10))
    a = pair.sides[0]
    assert a.session.on_message(hello(replace(B, name=b"C")), pair.now_ns) is None
    assert a.take() == []
    assert a.session.hello == B


def test_udp_on_one_side_only_is_refused_by_both() -> None:
    pair = Pair(one=replace(A, udp_port=5000), options=replace(GUIDE, uses_udp=True), others=GUIDE)
    pair.run(ms(10))
    assert "<udp> is configured only here" in pair.sides[0].why
    assert "<udp> is configured only at the companion" in pair.sides[1].why


@pytest.mark.parametrize(("ours", "theirs"), [(True, True), (True, False), (False, True), (False, False)])
def test_compression_needs_both(ours: bool, theirs: bool) -> None:
    def options(uses: bool) -> LinkOptions:
        return replace(GUIDE, uses_compression=uses)

    def greeting(who: Hello, uses: bool) -> Hello:
        return replace(who, compression=(COMPRESSION_LZ4,) if uses else ())

    pair = Pair(greeting(A, ours), greeting(B, theirs), options(ours), options(theirs))
    pair.run(ms(10))
    for side in pair.sides:
        ups = [effect for effect in side.effects if isinstance(effect, LinkUp)]
        assert [up.is_compressed for up in ups] == [ours and theirs]
        assert any(isinstance(effect, Warned) for effect in side.effects) == (ours != theirs)


def test_a_response_to_nothing_is_counted() -> None:
    pair = Pair()
    pair.run(ms(10))
    a = pair.sides[0]
    a.session.on_message(response_to(TnwgKeepalive(99, 0, 1, flags=KA_QUERY)), pair.now_ns)
    assert (a.session.unhandled, a.rtt.us.count) == (1, 0)


def test_what_a_block_forbids_to_use_is_not_handed_on() -> None:
    pair = Pair()
    pair.run(ms(10))
    a = pair.sides[0]
    wanted = lbmc.control_message(TopicName(b"T"), TopicMdInterest(domains=(1,)), RawBlock(0x6E, b"??"))
    assert a.session.on_message(lbmc.encode(wanted), pair.now_ns) is None
    assert a.session.unhandled == 1


def test_a_query_with_any_clock_is_answered() -> None:
    pair = Pair()
    pair.run(ms(10))
    a = pair.sides[0]
    query = TnwgKeepalive(5, 2**64 - 1, 2**32 - 1, flags=KA_QUERY)
    a.session.on_message(lbmc.encode(lbmc.control_message(query)), pair.now_ns)
    assert [lbmc.decode(message).get(TnwgKeepalive) is not None for message in a.take()] == [True]


def test_messages_for_others_are_handed_on() -> None:
    pair = Pair()
    pair.run(ms(10))
    a = pair.sides[0]
    interest = next(topic_interest(b"T", (1,)))
    assert a.session.on_message(interest, pair.now_ns) == lbmc.decode(interest)
    domain = lbmc.encode(lbmc.control_message(Domain(domain_id=1)))
    assert a.session.on_message(domain, pair.now_ns) == lbmc.decode(domain)


def test_what_was_missed_is_told_once_more_and_then_the_link_starts_anew() -> None:
    pair = Pair()
    pair.run(s(1))
    a, b = pair.sides
    b.recorded = Digests(1, 9)  # of what a has told
    pair.run(s(100), lambda: any(isinstance(effect, RefreshNeeded) for effect in a.effects))
    assert a.effects[-1] == RefreshNeeded(interest=False, sources=True)
    assert not b.is_closed
    pair.run(s(100), lambda: a.is_closed)
    assert "recorded something else" in a.why


def test_answers_to_questions_from_before_the_repair_say_nothing_about_it() -> None:
    """More of them are on the way when the link takes longer than the time between two."""
    pair = Pair(options=replace(GUIDE, interval_ns=ms(100), only_when_idle=False))
    pair.delay_ns = ms(400)
    pair.run(s(3))
    a, b = pair.sides
    b.recorded = Digests(1, 9)
    pair.run(s(3), lambda: RefreshNeeded(interest=False, sources=True) in a.effects)
    pair.run(ms(399))
    b.recorded = Digests(1, 1)  # what was told again comes
    pair.run(s(3))
    assert a.effects[1:] == [RefreshNeeded(interest=False, sources=True)]


@pytest.mark.parametrize("sources", [1, None])
def test_what_was_missed_and_repaired_is_forgotten(sources: int | None) -> None:
    pair = Pair()
    pair.run(s(1))
    a, b = pair.sides
    for _ in range(3):
        b.recorded = Digests(9, 1)
        before = len(a.effects)
        pair.run(s(100), lambda: len(a.effects) > before)  # noqa: B023  # it is called at once
        assert a.effects[-1] == RefreshNeeded(interest=True, sources=False)
        b.recorded = Digests(1, sources)
        pair.run(s(100))
    assert not a.is_closed


def test_what_was_not_recorded_whole_or_not_sent_yet_is_not_compared() -> None:
    pair = Pair()
    pair.run(s(1))
    a, b = pair.sides
    b.recorded, a.recorded = Digests(None, 1), Digests(7, 1)
    b.told = Digests(None, None)
    pair.run(s(100))
    assert [effect for side in pair.sides for effect in side.effects if not isinstance(effect, LinkUp)] == []
    b.recorded = Digests(None, 2)
    pair.run(s(35), lambda: len(a.effects) > 1)
    assert a.effects[-1] == RefreshNeeded(interest=False, sources=True)


def test_what_is_told_after_a_query_is_not_missed() -> None:
    """The companion records in the order in which it is told, so an answer has what was told before the query."""
    pair = Pair(options=replace(GUIDE, only_when_idle=False))
    pair.run(s(5) + ms(10))  # both have asked, and the answers are on their way
    for side, other in (pair.sides, pair.sides[::-1]):
        side.told = other.recorded = Digests(2, 2)
    pair.run(s(60))
    assert [effect for side in pair.sides for effect in side.effects if not isinstance(effect, LinkUp)] == []


@given(st.lists(st.binary(min_size=4, max_size=90), max_size=12), st.booleans())
def test_no_message_breaks_it(messages: list[bytes], is_greeted: bool) -> None:
    side = Side(A, GUIDE)
    side.session.on_connected(0)
    if is_greeted:
        side.session.on_message(hello(B), 0)
    for body in messages:
        raw = bytes([body[0] & 0x0A, body[1]]) + (len(body) + 8).to_bytes(2, "big") + body + b"12345678"
        raw = raw[: len(body) + 8]
        try:
            side.session.on_message(raw, ms(1))
        except DecodeError:
            return
    side.take()


def test_a_version_above_ours_is_accepted() -> None:
    side = Side(A, GUIDE)
    side.session.on_connected(0)
    capabilities = lbmc.encode(lbmc.control_message(TnwgCapabilities(700)))
    side.session.on_message(capabilities, 1)
    side.take()
    assert side.session.is_up


CANARY_A, CANARY_B = replace(A, has_canaries=True), replace(B, has_canaries=True)


def test_a_link_carries_data_from_the_first_answer_to_a_canary_on() -> None:
    pair = Pair(CANARY_A, CANARY_B, WATCHED, GUIDE)
    a, b = pair.sides
    pair.run(ms(10))
    assert a.session.is_up
    assert not a.session.carries
    assert b.session.carries, "it has no canaries"
    pair.run(ms(30))
    assert a.carried == [True]
    pair.run(s(600))
    assert (a.carried, b.carried) == ([True], [])
    assert a.session.unhandled == b.session.unhandled == 0


def test_the_time_for_the_first_answer_begins_when_both_have_said_who_they_are() -> None:
    pair = Pair(CANARY_A, CANARY_B, WATCHED, GUIDE)
    pair.delay_ns = ms(1200)
    pair.on_the_way = [(pair.delay_ns, to, message) for _, to, message in pair.on_the_way]
    pair.run(s(60))
    assert pair.sides[0].carried == [True]


def test_a_link_that_loses_what_is_large_is_degraded_until_it_has_proven_itself() -> None:
    pair = Pair(CANARY_A, CANARY_B, WATCHED)
    pair.run(s(10))
    pair.largest = 500
    lost_ns = pair.now_ns
    pair.run(s(10), lambda: all(side.carried == [True, False] for side in pair.sides))
    assert s(2) <= pair.now_ns - lost_ns <= s(4) + ms(10)
    pair.run(s(60))
    assert not any(side.is_closed or side.session.carries for side in pair.sides), "keepalives go on"
    pair.largest = 10_000
    back_ns = pair.now_ns
    pair.run(s(10), lambda: all(side.carried == [True, False, True] for side in pair.sides))
    assert ms(200) * (PROVEN - 1) <= pair.now_ns - back_ns <= s(2)


def test_answers_count_when_they_are_in_a_row() -> None:
    pair = Pair(CANARY_A, CANARY_B, WATCHED, GUIDE)
    pair.run(s(10))
    pair.largest = 500
    pair.run(s(10))
    a = pair.sides[0]
    assert a.carried == [True, False]
    for _ in range(3 * PROVEN):  # never so many after each other
        pair.largest = 10_000
        pair.run(ms(200) * (PROVEN - 1))
        pair.largest = 500
        pair.run(ms(400))
    assert a.carried == [True, False]


def test_an_answer_without_the_size_of_a_canary_shows_nothing() -> None:
    session = LinkSession(CANARY_A, WATCHED, 0)
    session.on_message(hello(CANARY_B), 0)
    session.on_timer(0)
    (sent,) = [effect.message for effect in session.take_effects() if isinstance(effect, SendCanary)]
    query = lbmc.decode(sent).get(TnwgKeepalive)
    assert query is not None
    session.on_message(response_to(query), ms(1))
    assert not session.carries
    session.on_message(canary_response(query, b"x"), ms(1))
    assert session.carries


def test_a_link_on_which_nothing_large_ever_comes_is_not_taken_and_said_once() -> None:
    pair = Pair(CANARY_A, CANARY_B, WATCHED)
    pair.largest = 500
    pair.run(s(60))
    assert [side.carried for side in pair.sides] == [[False], [False]]


def test_a_companion_without_canaries_is_named_and_used() -> None:
    pair = Pair(CANARY_A, B, WATCHED, GUIDE)
    pair.run(s(60))
    a, b = pair.sides
    assert a.session.carries
    assert [effect.text for effect in a.effects if isinstance(effect, Warned)] == [
        "the companion answers no canaries, the link is used without"
    ]
    assert b.session.unhandled == 0


@given(st.binary(min_size=1, max_size=4000))
def test_an_answer_to_a_canary_has_its_size(padding: bytes) -> None:
    query = lbmc.decode(keepalive(7, 1, padding))
    assert canary_of(query) == padding
    block = query.get(TnwgKeepalive)
    assert block is not None
    answer = canary_response(block, padding)
    assert len(answer) == len(keepalive(7, 1, padding))
    assert canary_of(lbmc.decode(answer)) == padding
