"""The datagrams of a peer link: two sides, a wire that loses, delays and repeats, and a clock that is set."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.proto.peerlink.datagram_session import (
    DatagramCounts,
    DatagramOptions,
    DatagramSession,
    DatagramState,
    DatagramsUp,
    SendPacket,
    SessionIds,
)
from dro.proto.peerlink.early_data import HOLD_BYTES, HOLD_NS, LINGER_NS, EarlyData, LingeringSources
from dro.proto.peerlink.session import CloseLink
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.effects import Retransmit
from dro.proto.repair.retransmit import Chunk
from dro.wire import lbtru

STEP_NS = ms(5)


class Side:
    def __init__(self, own: int, companion: int, now_ns: int, options: DatagramOptions, seed: int) -> None:
        limits = RateLimiter(0, ms(100), now_ns), RateLimiter(0, ms(100), now_ns)
        self.counts = DatagramCounts()
        ids = SessionIds(own, companion)
        self.session = DatagramSession(options, ids, *limits, random.Random(seed).random, now_ns, self.counts)
        self.out: list[bytes] = []
        self.got: list[int] = []
        self.sent = 0
        self.events: list[object] = []

    def send(self, now_ns: int) -> None:
        source = self.session.source
        sid = (lbtru.sid_option(self.session.ids.own),)
        packet = lbtru.encode(lbtru.Data(source.next_sqn, source.trail, 0, b"%d" % self.sent, options=sid))
        source.on_sent_run(1, len(packet) - 20, Chunk(packet, 0, len(packet), len(packet)), now_ns)
        self.sent += 1
        self.out.append(packet)

    def hear(self, datagram: bytes, now_ns: int) -> None:
        packet = lbtru.decode(datagram)
        if not self.session.is_mine(packet):
            self.counts.drop("session")
        elif isinstance(packet, lbtru.Data):
            is_repair = bool(packet.flags & lbtru.FLAG_RETRANSMISSION)
            if self.session.receiver.on_data(packet.sqn, packet.trail, is_repair, now_ns):
                self.got.append(int(packet.payload))
            self.session.settle()
        else:
            self.session.on_packet(packet, now_ns)

    def act(self, now_ns: int) -> list[bytes]:
        deadline = self.session.next_deadline()
        if deadline is not None and deadline <= now_ns:
            self.session.on_timer(now_ns)
        for effect in self.session.take_effects():
            match effect:
                case SendPacket(packet=packet):
                    self.out.append(packet)
                case Retransmit(buffer=buffer, offset=offset, length=length):
                    again = bytearray(buffer[offset : offset + length])
                    again[2] |= lbtru.FLAG_RETRANSMISSION >> 8
                    self.out.append(bytes(again))
                case _:
                    self.events.append(effect)
        out, self.out = self.out, []
        return out


class Wire:
    """Datagrams of both directions, each on its way for some time."""

    def __init__(self, seed: int, loss: float, options: DatagramOptions | None = None) -> None:
        self.now_ns = s(1)
        options = options or DatagramOptions()
        self.sides = Side(5, 9, self.now_ns, options, 1), Side(9, 5, self.now_ns, options, 2)
        self.rng = random.Random(seed)
        self.loss = loss
        self.spread_ns = ms(20)
        self.on_way: list[tuple[int, int, bytes]] = []

    def run(self, duration_ns: int, sends: int = 0) -> None:
        end_ns = self.now_ns + duration_ns
        while self.now_ns < end_ns:
            for side in self.sides:
                for _ in range(sends if side.session.is_up else 0):
                    side.send(self.now_ns)
            for number, side in enumerate(self.sides):
                for datagram in side.act(self.now_ns):
                    for _ in range(1 + (self.rng.random() < 0.05)):
                        if self.rng.random() >= self.loss:
                            late_ns = self.now_ns + self.rng.randrange(1, self.spread_ns)
                            self.on_way.append((late_ns, 1 - number, datagram))
            self.now_ns += STEP_NS
            due = [one for one in self.on_way if one[0] <= self.now_ns]
            self.on_way = [one for one in self.on_way if one[0] > self.now_ns]
            for _, to, datagram in sorted(due):
                self.sides[to].hear(datagram, self.now_ns)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1000), st.sampled_from((0.0, 0.05, 0.3)))
def test_everything_arrives_once_both_ways(seed: int, loss: float) -> None:
    options = DatagramOptions()
    if loss == 0.3:  # a round of repairs takes a second and fails every other time: ten of them are not enough for all
        options = replace(options, loss=replace(options.loss, generation_ns=s(30)))
    wire = Wire(seed, loss, options)
    wire.run(s(3))
    assert all(DatagramsUp() in side.events for side in wire.sides)
    wire.run(ms(500), sends=2)
    wire.run(s(40))
    for one, other in (wire.sides, wire.sides[::-1]):
        assert one.sent > 100
        assert sorted(other.got) == list(range(one.sent))
        assert other.counts.unrecoverable == 0
    if loss > 0.04:
        assert all(side.counts.received.naks_sent and side.counts.sent.rxs_sent for side in wire.sides)


def test_what_cannot_be_repaired_is_counted_and_nothing_else_is_lost() -> None:
    options = DatagramOptions()
    options = replace(options, loss=replace(options.loss, send_naks=False, generation_ns=ms(300)))
    wire = Wire(3, 0.0, options)
    wire.run(s(1))
    wire.loss = 0.2
    wire.run(ms(500), sends=2)
    wire.loss = 0.0
    wire.run(s(10))
    for one, other in (wire.sides, wire.sides[::-1]):
        assert len(set(other.got)) == len(other.got) < one.sent
        assert other.counts.unrecoverable == one.sent - len(other.got)
        assert other.counts.received.naks_sent == 0


def test_requests_without_an_answer_end_the_link_after_the_attempts() -> None:
    wire = Wire(1, 1.0, DatagramOptions(attempt_ns=ms(100), attempts=3))
    wire.run(ms(250))
    assert wire.sides[0].session.state is DatagramState.ASKING
    wire.run(ms(100))
    [end] = wire.sides[0].events
    assert isinstance(end, CloseLink)
    assert end.text == "UDP does not get through: 3 requests were not answered"
    assert wire.sides[0].session.next_deadline() is None


def test_one_direction_alone_is_not_enough() -> None:
    side = Side(5, 9, 0, DatagramOptions(), 1)
    side.act(0)
    request = lbtru.ConnectRequest(options=(lbtru.sid_option(5),))
    side.session.on_packet(request, 1)
    answer, asked = (lbtru.decode(packet) for packet in side.act(2))
    assert isinstance(answer, lbtru.SessionMessage)
    assert answer.flags == lbtru.FLAG_SYN
    assert isinstance(asked, lbtru.ConnectRequest)
    side.session.on_packet(request, 3)
    assert len(side.act(4)) == 1  # it asks by itself at its time only
    side.session.on_packet(lbtru.SessionMessage(0, 0xFFFFFFFF, 0, options=(lbtru.sid_option(9),)), 5)
    assert not side.session.is_up
    side.session.on_packet(lbtru.SessionMessage(0, 0xFFFFFFFF, 0, lbtru.FLAG_SYN), 6)
    assert side.session.is_up


def test_silence_ends_the_link_and_session_messages_do_not_let_it_come_to_that() -> None:
    options = DatagramOptions()
    options = replace(options, loss=replace(options.loss, activity_timeout_ns=s(15)))
    wire = Wire(1, 0.0, options)
    wire.run(s(60))
    assert all(side.events == [DatagramsUp()] for side in wire.sides)
    wire.loss = 1.0
    wire.run(s(30))
    ends = [side.events[-1] for side in wire.sides]
    assert [isinstance(end, CloseLink) and end.text for end in ends] == ["no datagram came for 15000 ms"] * 2


@pytest.mark.parametrize("kind", [lbtru.Data(0, 0), lbtru.Nak((1,)), lbtru.ConnectRequest()])
def test_packets_of_another_session_are_not_ours(kind: lbtru.Packet) -> None:
    side = Side(5, 9, 0, DatagramOptions(), 1)
    is_of_source = isinstance(kind, lbtru.Data)
    for session in (0, 5, 9):
        packet = replace(kind, options=(lbtru.sid_option(session),) if session else ())
        assert side.session.is_mine(packet) == (session == (9 if is_of_source else 5))


def test_early_data_waits_in_order_and_not_for_ever() -> None:
    early = EarlyData()
    for n in range(3):
        early.put(7, b"a%d" % n, n)
        early.put(8, b"b", n)
    assert early.take(7) == [b"a0", b"a1", b"a2"]
    assert early.take(7) == []
    assert early.next_deadline() == HOLD_NS
    early.on_timer(HOLD_NS - 1)
    assert early.take_dropped() == []
    early.on_timer(HOLD_NS)
    assert (early.take_dropped(), early.next_deadline(), early.take(8)) == ([b"b"] * 3, None, [])


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, HOLD_BYTES // 2)), max_size=20))
def test_early_data_is_bounded(puts: list[tuple[int, int]]) -> None:
    early = EarlyData()
    for number, size in puts:
        early.put(number, bytes(size), 0)
        assert early._bytes <= HOLD_BYTES
    left = [message for number in range(1, 6) for message in early.take(number)]
    assert len(early.take_dropped()) + len(left) == len(puts)
    assert early._bytes == 0


def test_a_source_that_ended_lingers_until_nothing_before_it_is_missing() -> None:
    lingering = LingeringSources(ms(1000))
    lingering.on_end(b"one", 1, 0)
    lingering.on_end(b"two", 2, 0)
    lingering.on_end(b"three", 3, 0)
    assert lingering.take(b"two") == 2
    assert lingering.pop_due(LINGER_NS - 1, 10, 9) == []
    assert lingering.pop_due(LINGER_NS, 10, 5) == []
    assert lingering.pop_due(LINGER_NS + ms(50), 20, 8) == []
    lingering.on_end(b"four", 4, LINGER_NS)
    assert lingering.pop_due(LINGER_NS + ms(100), 20, 9) == [1, 3]
    assert lingering.pop_due(2 * LINGER_NS, 20, 15) == []
    assert lingering.pop_due(2 * LINGER_NS + ms(1000), 30, 15) == [4]
    assert lingering.next_deadline() is None
    assert lingering.take(b"one") is None
