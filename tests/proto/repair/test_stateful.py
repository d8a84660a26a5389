"""Arbitrary input to the sessions: no crash, no double delivery, nothing counted twice, memory bounded."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dro.clock import ms
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.effects import Retransmit, SendNcf
from dro.proto.repair.loss import LossConfig, NakDue, Skipped, Unrecoverable
from dro.proto.repair.receiver import ReceiverSession
from dro.proto.repair.retransmit import Chunk
from dro.proto.repair.session_messages import SendSm
from dro.proto.repair.source import SourceConfig, SourceSession
from dro.proto.session_events import Began, Ended
from tests.fakes.receiver_bench import sqns_of

MASK = 0xFFFFFFFF
MAX_GAP = 50
CONFIG = LossConfig(
    backoff_ns=ms(20),
    suppress_ns=ms(100),
    generation_ns=ms(400),
    activity_timeout_ns=ms(5000),
    max_gap=MAX_GAP,
    max_naks_per_packet=7,
)
START = 0xFFFFFFF0  # every longer run wraps

near = st.integers(-60, 60)
any_sqn = st.one_of(near.map(lambda n: (START + n) & MASK), st.integers(0, MASK))
steps = st.integers(0, 300).map(ms)


class ReceiverMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.draws = 0.0
        self.session = ReceiverSession(CONFIG, self.draw, 0)
        self.delivered: Counter[int] = Counter()
        self.given_up: Counter[int] = Counter()
        self.skipped = 0
        self.naks = 0
        self.nak_packets = 0
        self.begins = self.ends = 0

    def draw(self) -> float:
        self.draws = (self.draws + 0.37) % 1.0
        return self.draws

    def position(self, distance: int) -> int:
        expected = self.session.expected
        return ((START if expected is None else expected) + distance) & MASK

    @rule(distance=near, trail=near, rx=st.booleans(), step=steps)
    def data_nearby(self, distance: int, trail: int, rx: bool, step: int) -> None:
        self.give(self.position(distance), self.position(trail - 60), rx, step)

    @rule(sqn=any_sqn, trail=any_sqn, rx=st.booleans())
    def data_anywhere(self, sqn: int, trail: int, rx: bool) -> None:
        self.give(sqn, trail, rx, 0)

    def give(self, sqn: int, trail: int, rx: bool, step: int) -> None:
        self.now += step
        if self.session.on_data(sqn, trail, rx, self.now):
            self.delivered[sqn] += 1
        self.drain()

    @precondition(lambda self: self.session.expected is not None)
    @rule(count=st.integers(1, 64), trail=near, step=steps)
    def run_of_originals(self, count: int, trail: int, step: int) -> None:
        self.now += step
        first = self.session.expected
        assert first is not None
        self.session.on_run(first, count, self.position(trail - 60), self.now)
        self.delivered.update((first + i) & MASK for i in range(count))
        self.drain()

    @rule(distance=near, trail=near)
    def session_message_nearby(self, distance: int, trail: int) -> None:
        self.session.on_session_message(self.position(distance), self.position(trail - 60), self.now)
        self.drain()

    @rule(lead=any_sqn, trail=any_sqn)
    def session_message_anywhere(self, lead: int, trail: int) -> None:
        self.session.on_session_message(lead, trail, self.now)
        self.drain()

    @rule(distances=st.lists(near, max_size=20), reason=st.integers(0, 15), trail=near)
    def ncf(self, distances: list[int], reason: int, trail: int) -> None:
        sqns = [self.position(distance) for distance in distances]
        self.session.on_ncf(sqns, reason, self.position(trail - 60), self.now)
        self.drain()

    @rule(step=st.integers(0, 2000).map(ms))
    def time_passes_in_steps(self, step: int) -> None:
        until = self.now + step
        turns = 0
        while (deadline := self.session.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.session.on_timer(self.now)
            self.drain()
            turns += 1
            assert turns < 20_000
        self.now = until

    @rule(step=steps)
    def time_passes_at_once(self, step: int) -> None:
        self.now += step
        self.session.on_timer(self.now)
        self.drain()

    def drain(self) -> None:
        for event in self.session.take_events():
            match event:
                case NakDue(sqns=sqns):
                    assert 0 < len(sqns) <= CONFIG.max_naks_per_packet
                    assert len(set(sqns)) == len(sqns)
                    assert not set(sqns) & set(self.given_up)
                    self.naks += len(sqns)
                    self.nak_packets += 1
                case Unrecoverable(ranges=ranges):
                    sqns = sqns_of(ranges)
                    assert 0 < len(sqns) <= MAX_GAP
                    self.given_up.update(sqns)
                case Skipped(count=count):
                    assert count > 0
                    self.skipped += count
                case Began():
                    self.begins += 1
                case Ended():
                    self.ends += 1

    @invariant()
    def each_sqn_has_one_fate(self) -> None:
        # jumps to anywhere may come round the number circle; within what a test can reach they do not
        if self.skipped == 0:
            assert all(count == 1 for count in self.delivered.values())
            assert all(count == 1 for count in self.given_up.values())
            assert not set(self.delivered) & set(self.given_up)

    @invariant()
    def statistics_add_up(self) -> None:
        stats = self.session.stats
        assert stats.unrecovered_txw + stats.unrecovered_tmo == self.given_up.total() + self.skipped
        assert (stats.naks_sent, stats.nak_pckts_sent) == (self.naks, self.nak_packets)
        assert stats.lost >= stats.unrecovered_txw + stats.unrecovered_tmo + self.session._loss.count

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.session._loss.count <= MAX_GAP
        assert len(self.session._loss._heap) <= 4 * MAX_GAP + 128

    @invariant()
    def the_session_begins_and_ends_once(self) -> None:
        assert self.begins <= 1
        assert self.ends <= 1
        assert self.session.has_ended == (self.ends == 1)
        assert (self.session.next_deadline() is None) == self.session.has_ended
        assert not self.session.has_events


class SourceMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.rx_limiter = RateLimiter(80_000, ms(10), 0)
        self.data_limiter = RateLimiter(800_000, ms(10), 0)
        config = SourceConfig(window_size_bytes=3000, first_sqn=START, rx_queue_bytes=2000, max_ncfs_per_packet=5)
        self.source = SourceSession(config, self.data_limiter, self.rx_limiter, 0)
        self.lengths: dict[int, int] = {}
        self.rxs = 0
        self.last_rx: dict[int, int] = {}
        self.sms = 0
        self.is_failing = False

    @rule(count=st.integers(1, 64), length=st.integers(20, 400), step=steps)
    def data(self, count: int, length: int, step: int) -> None:
        self.now += step
        first = self.source.next_sqn
        sqns = [(first + i) & MASK for i in range(count)]
        buffer = b"xx" + b"".join(sqn.to_bytes(4) + bytes(length - 4) for sqn in sqns)
        self.lengths.update(dict.fromkeys(sqns, length))
        for sqn in sqns:
            self.last_rx.pop(sqn, None)
        self.source.on_sent_run(count, length - 20, Chunk(buffer, 2, length, length), self.now)

    @rule(distances=st.lists(st.integers(-100, 5), max_size=30), step=steps)
    def nak_nearby(self, distances: list[int], step: int) -> None:
        self.now += step
        before = self.source.stats.naks_rcved
        sqns = [(self.source.next_sqn + distance) & MASK for distance in distances]
        self.perform(self.source.on_nak(sqns, self.now), asked=set(sqns))
        assert self.source.stats.naks_rcved == before + len(sqns)

    @rule(sqns=st.lists(any_sqn, max_size=30))
    def nak_anywhere(self, sqns: list[int]) -> None:
        self.perform(self.source.on_nak(sqns, self.now), asked=set(sqns))

    @rule()
    def sends_begin_or_cease_to_fail(self) -> None:
        self.is_failing = not self.is_failing

    @rule(step=st.integers(0, 3000).map(ms))
    def time_passes(self, step: int) -> None:
        until = self.now + step
        turns = 0
        while (deadline := self.source.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.perform(self.source.on_timer(self.now))
            turns += 1
            assert turns < 20_000
        self.now = until

    @rule(step=steps)
    def time_passes_at_once(self, step: int) -> None:
        self.now += step
        self.perform(self.source.on_timer(self.now))

    def perform(self, effects: list[Retransmit | SendNcf | SendSm], asked: set[int] | None = None) -> None:
        told: set[int] = set()
        for effect in effects:
            assert effect.at_ns == self.now
            match effect:
                case Retransmit(sqn=sqn, buffer=buffer, offset=offset, length=length):
                    assert int.from_bytes(buffer[offset : offset + 4]) == sqn
                    assert length == self.lengths[sqn]
                    assert sqn not in self.last_rx or self.now - self.last_rx[sqn] >= ms(500)
                    assert not told
                    if self.is_failing:
                        self.source.on_send_failed(sqn, length)
                    else:
                        self.last_rx[sqn] = self.now
                        self.rxs += 1
                case SendNcf(reason=reason, sqns=sqns):
                    assert asked is not None
                    assert 0 < len(sqns) <= 5
                    assert reason in (0, 1, 2, 3)
                    assert set(sqns) <= asked
                    told |= set(sqns)
                case SendSm(lead=lead, trail=trail):
                    assert (lead, trail) == ((self.source.next_sqn - 1) & MASK, self.source.trail)
                    self.sms += 1

    @invariant()
    def window_and_queue_are_bounded(self) -> None:
        source = self.source
        assert source.txw_msgs == (source.next_sqn - source.trail) & MASK
        assert source.txw_bytes <= 3000
        assert source.rctlr_rx_msgs <= 2000 // 20 + 1
        assert source.stats.rxs_sent == self.rxs
        assert source.next_sm_sqn == self.sms


TestReceiverMachine = ReceiverMachine.TestCase
TestReceiverMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestSourceMachine = SourceMachine.TestCase
TestSourceMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
