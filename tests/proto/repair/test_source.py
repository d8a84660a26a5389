"""The timed source scenarios (T17 to T20, T23), exact to the millisecond, and the transmission window."""

from __future__ import annotations

import random
import weakref
from dataclasses import asdict

import pytest

from dro.clock import ms, s
from dro.config.um.options import UmOptions
from dro.config.um.sets import LbtrmReceiverOptions, LbtrmSourceOptions
from dro.errors import LocalProtocolError
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.effects import Retransmit, SendNcf
from dro.proto.repair.loss import LossConfig
from dro.proto.repair.retransmit import Chunk, TransmissionWindow
from dro.proto.repair.session_messages import SendSm
from dro.proto.repair.source import Effect, SourceConfig, SourceSession
from dro.wire import lbtrm

Note = tuple[object, ...]


class SourceBench:
    """A `SourceSession` driven by a script in ms."""

    def __init__(self, cfg: SourceConfig | None = None, data_bps: int = 0, rx_bps: int = 0) -> None:
        self.data_limiter = RateLimiter(data_bps, ms(10), 0)
        self.rx_limiter = RateLimiter(rx_bps, ms(10), 0)
        self.session = SourceSession(cfg or SourceConfig(), self.data_limiter, self.rx_limiter, 0)
        self.notes: list[Note] = []
        self.sent: dict[int, bytes] = {}

    def tick(self, t: float) -> None:
        while (deadline := self.session.next_deadline()) is not None and deadline <= ms(t):
            self._note(self.session.on_timer(deadline))

    def data(self, t: float, count: int = 1, size: int = 57, payload: int = 25) -> None:
        self.tick(t)
        first = self.session.next_sqn
        run = {sqn: (sqn.to_bytes(4) * size)[:size] for sqn in ((first + i) & 0xFFFFFFFF for i in range(count))}
        self.sent |= run
        self.session.on_sent_run(count, payload, Chunk(b"".join(run.values()), 0, size, size), ms(t))

    def nak(self, t: float, *sqns: int) -> None:
        self.tick(t)
        self._note(self.session.on_nak(sqns, ms(t)))

    def _note(self, effects: list[Effect]) -> None:
        for effect in effects:
            at = effect.at_ns // 1_000_000
            match effect:
                case Retransmit(sqn=sqn, buffer=buffer, offset=offset, length=length):
                    assert buffer[offset : offset + length] == self.sent[sqn]
                    self.notes.append(("rx", at, sqn))
                case SendNcf(reason=reason, sqns=sqns):
                    self.notes.append(("ncf", at, reason, sqns))
                case SendSm(sm_sqn=sm_sqn, lead=lead, trail=trail):
                    self.notes.append(("sm", at, sm_sqn, lead, trail))


def test_t17_session_message_series() -> None:
    b = SourceBench()
    b.data(0)
    b.tick(12_999)
    b.data(13_000)
    b.tick(13_600)
    times = [200, 600, 1400, 3000, 6200, 12_600]
    assert b.notes == [
        *(("sm", t, i, 0, 0) for i, t in enumerate(times)),
        ("sm", 13_200, 6, 1, 0),
        ("sm", 13_600, 7, 1, 0),
    ]


def test_the_session_message_gap_stays_at_the_maximum() -> None:
    b = SourceBench()
    b.data(0)
    b.tick(45_000)
    assert [note[1] for note in b.notes[5:]] == [12_600, 22_600, 32_600, 42_600]


@pytest.mark.parametrize("t", [0, 60_000])
def test_t18_retransmission_and_ignore_interval(t: int) -> None:
    b = SourceBench(SourceConfig(sm_min_ns=s(100)))
    b.data(t, 10)
    for later in (100, 150, 300, 600):
        b.nak(t + later, 5)
    assert b.notes == [("rx", t + 100, 5), ("ncf", t + 150, 1, (5,)), ("rx", t + 600, 5)]
    stats = b.session.stats
    assert (stats.naks_rcved, stats.naks_ignored, stats.rxs_sent) == (4, 2, 2)
    assert (stats.nak_pckts_rcved, stats.rx_bytes_sent) == (4, 114)


def test_t19_outside_the_window() -> None:
    b = SourceBench(SourceConfig(first_sqn=50))
    b.data(0, 11)
    b.nak(10, 49, 50, 61)
    assert b.notes == [("rx", 10, 50), ("ncf", 10, 0, (49,))]


def test_t20_retransmit_limiter() -> None:
    b = SourceBench(rx_bps=5_000_000)
    b.data(0, 10, 3000, 2968)
    b.nak(3, 4, 1, 2, 3)
    b.nak(5, 3)
    b.tick(10)
    assert b.notes == [("rx", 3, 1), ("rx", 3, 2), ("ncf", 3, 2, (3, 4)), ("rx", 10, 3), ("rx", 10, 4)]
    assert b.session.stats.naks_rx_delay_ignored == 2
    assert b.session.rctlr_rx_msgs == 0


def test_t23_transmission_window() -> None:
    b = SourceBench(SourceConfig(window_size_bytes=65_536))
    for t in range(4):
        b.data(t, size=20_032, payload=20_000)
    assert (b.session.trail, b.session.txw_bytes, b.session.txw_msgs) == (1, 60_000, 3)
    b.data(4, size=20_032, payload=20_000)
    assert b.session.trail == 2
    b.nak(5, 0)
    b.tick(204)
    assert b.notes == [("ncf", 5, 0, (0,)), ("sm", 204, 0, 4, 2)]


def test_a_transmission_window_of_the_largest_size_and_limit_of_the_options() -> None:
    b = SourceBench(SourceConfig(window_size_bytes=2**64 - 1, window_limit_bytes=2**64 - 1))
    b.data(0, 3)
    assert (b.session.txw_msgs, b.session.txw_bytes) == (3, 75)


def test_a_session_with_retransmissions_moves_these_counters_and_no_other() -> None:
    b = SourceBench(SourceConfig(rx_queue_bytes=1500), rx_bps=800_000)
    assert set(asdict(b.session.stats).values()) == {0}
    b.data(0, 3, 1000, 900)
    b.data(0, 2, 500, 400)
    b.nak(1, 0, 1, 2, 3, 77)
    b.nak(2, 0, 4)
    assert b.session.rctlr_rx_msgs == 2
    b.tick(100)
    assert b.notes == [
        ("rx", 1, 0), ("ncf", 1, 2, (1, 3)), ("ncf", 1, 3, (2,)), ("ncf", 2, 1, (0,)), ("ncf", 2, 3, (4,)),
        ("rx", 10, 1), ("rx", 20, 3),
    ]  # fmt: skip
    assert asdict(b.session.stats) == {
        "msgs_sent": 5, "bytes_sent": 4000, "nak_pckts_rcved": 2, "naks_rcved": 7, "naks_ignored": 1, "naks_shed": 2,
        "naks_rx_delay_ignored": 2, "rxs_sent": 3, "rx_bytes_sent": 2500,
    }  # fmt: skip
    assert (b.session.txw_msgs, b.session.txw_bytes, b.session.rctlr_rx_msgs) == (5, 3500, 0)


def test_the_defaults_are_those_of_the_options() -> None:
    source, receiver = LbtrmSourceOptions.of(UmOptions()), LbtrmReceiverOptions.of(UmOptions())
    default, loss = SourceConfig(), LossConfig()
    assert source.fill(
        SourceConfig,
        rx_queue_bytes=source.retransmit_rate_bps // 8,
        sm_before_data=False,
        max_ncfs_per_packet=default.max_ncfs_per_packet,
    ) == default  # fmt: skip
    assert receiver.fill(LossConfig, max_naks_per_packet=loss.max_naks_per_packet) == loss
    assert (default.charge_data, default.first_sqn, loss.max_gap) == (True, 0, 65536)


# session messages


def test_no_session_message_before_the_first_data() -> None:
    b = SourceBench()
    assert b.session.next_deadline() is None
    b.tick(100_000)
    assert b.notes == []


def test_a_proxy_source_may_send_session_messages_before_data() -> None:
    b = SourceBench(SourceConfig(sm_before_data=True))
    b.tick(600)
    assert b.notes == [("sm", 200, 0, 0xFFFFFFFF, 0), ("sm", 600, 1, 0xFFFFFFFF, 0)]


def test_a_retransmission_does_not_postpone_session_messages() -> None:
    b = SourceBench()
    b.data(0, 3)
    b.nak(199, 1)
    b.nak(200, 1)
    assert b.notes == [("rx", 199, 1), ("sm", 200, 0, 2, 0), ("ncf", 200, 1, (1,))]


def test_a_late_timer_does_not_shift_the_series_and_is_not_caught_up() -> None:
    b = SourceBench()
    b.data(0)
    b.session.on_timer(ms(230))
    assert b.session.next_deadline() == ms(600)
    assert [e.at_ns for e in b.session.on_timer(ms(50_000))] == [ms(50_000)]
    assert b.session.next_deadline() == ms(50_800)
    b = SourceBench()
    b.data(0)
    assert [e.at_ns for e in b.session.on_timer(ms(600))] == [ms(600)]
    assert b.session.next_deadline() == ms(1000), "just when the second would have been due"


@pytest.mark.parametrize(
    ("shortest", "longest", "times"),
    [
        (0, s(10), [1, 3, 7, 15]),
        (ms(1), ms(3), [1, 3, 6, 9]),
        (ms(5), ms(2), [5, 10, 15]),
        (0, 0, [*range(1, 16)]),
    ],
)
def test_session_messages_have_a_millisecond_and_a_maximum_of_the_minimum(
    shortest: int, longest: int, times: list[int]
) -> None:
    b = SourceBench(SourceConfig(sm_min_ns=shortest, sm_max_ns=longest))
    b.data(0)
    b.tick(15)
    assert [note[1] for note in b.notes][: len(times)] == times


def test_a_session_message_out_of_turn_takes_a_number_and_no_time() -> None:
    b = SourceBench(SourceConfig(first_sqn=7))
    b.data(0, 2)
    b.session.next_sm_sqn = 0xFFFFFFFF
    assert b.session.make_sm(ms(3)) == SendSm(0xFFFFFFFF, 8, 7, ms(3))
    b.tick(600)
    assert b.notes == [("sm", 200, 0, 8, 7), ("sm", 600, 1, 8, 7)]


def test_what_waits_goes_before_the_session_message_of_the_same_time() -> None:
    b = SourceBench(SourceConfig(sm_min_ns=ms(10)), rx_bps=800_000)
    b.data(0, 2, 1000, 900)
    b.nak(1, 0, 1)
    assert b.session.next_deadline() == ms(10)
    b.tick(10)
    assert b.notes == [("rx", 1, 0), ("ncf", 1, 2, (1,)), ("rx", 10, 1), ("sm", 10, 0, 1, 0)]


# NAKs


def test_a_nak_before_any_data_is_ignored() -> None:
    b = SourceBench()
    b.nak(1, 0, 1, 0xFFFFFFFF)
    assert b.notes == [("ncf", 1, 0, (0xFFFFFFFF,))]
    assert b.session.stats.naks_rcved == 3


def test_an_sqn_named_twice_in_one_nak_is_sent_once() -> None:
    b = SourceBench()
    b.data(0, 3)
    b.nak(1, 1, 1, 1)
    assert b.notes == [("rx", 1, 1), ("ncf", 1, 1, (1,))]


@pytest.mark.parametrize(("behind", "answer"), [(0x7FFFFFFF, [0]), (0x80000000, []), (0, []), (1, None)])
def test_a_nak_is_about_the_half_of_the_numbers_behind_the_newest(behind: int, answer: list[int] | None) -> None:
    b = SourceBench()
    b.data(0, 3)
    sqn = (3 - behind) & 0xFFFFFFFF
    b.nak(1, sqn)
    assert b.notes == ([("rx", 1, 2)] if answer is None else [("ncf", 1, reason, (sqn,)) for reason in answer])
    assert (b.session.stats.nak_pckts_rcved, b.session.stats.naks_rcved) == (1, 1)


def test_ncfs_are_split_into_packets_and_come_by_reason_oldest_first() -> None:
    b = SourceBench(SourceConfig(first_sqn=50, max_ncfs_per_packet=2, sm_min_ns=s(100)))
    b.data(0, 5)
    b.nak(1, 52, 51)
    b.nak(2, 49, 52, 47, 48, 51, 46, 45)
    assert b.notes == [
        ("rx", 1, 51), ("rx", 1, 52), ("ncf", 2, 0, (45, 46)), ("ncf", 2, 0, (47, 48)), ("ncf", 2, 0, (49,)),
        ("ncf", 2, 1, (51, 52)),
    ]  # fmt: skip


def test_an_ncf_of_default_size_fills_a_datagram_of_default_size() -> None:
    b = SourceBench(SourceConfig(first_sqn=5000))
    b.data(0)
    b.nak(1, *range(3000))
    full, rest = (note[3] for note in b.notes)
    assert isinstance(full, tuple)
    assert isinstance(rest, tuple)
    assert full + rest == tuple(range(3000))
    for sqns, fits in ((full, True), ((*full, 0), False)):
        assert (len(lbtrm.encode(lbtrm.Ncf(14390, 1, 0, 0, 0, sqns))) <= 8192) == fits


def test_the_oldest_that_waits_goes_first_whenever_it_was_asked_for() -> None:
    b = SourceBench(SourceConfig(rx_queue_bytes=20_000), rx_bps=800_000)
    b.data(0, 3, 1000, 900)
    b.data(0, 1, 3500, 3400)
    b.nak(1, 0, 3)
    assert b.session.next_deadline() == ms(40), "3500 bytes of 1000 in 10 ms"
    b.nak(2, 1)
    assert b.session.next_deadline() == ms(10)
    b.tick(60)
    assert [note for note in b.notes if note[0] == "rx"] == [("rx", 1, 0), ("rx", 10, 1), ("rx", 50, 3)]
    assert b.session.next_deadline() == ms(200), "nothing waits"


def test_a_datagram_above_the_bound_of_the_queue_waits_alone() -> None:
    b = SourceBench(SourceConfig(rx_queue_bytes=500), rx_bps=800_000)
    b.data(0, 3, 1000, 900)
    b.nak(1, 0, 1, 2)
    b.tick(10)
    b.nak(11, 2)
    assert b.notes == [
        ("rx", 1, 0), ("ncf", 1, 2, (1,)), ("ncf", 1, 3, (2,)), ("rx", 10, 1), ("ncf", 11, 2, (2,)),
    ]  # fmt: skip


def test_the_ignore_interval_is_half_open() -> None:
    b = SourceBench(SourceConfig(sm_min_ns=s(100)))
    b.data(0, 3)
    b.nak(100, 1)
    b.nak(599, 1)
    b.nak(600, 1)
    assert b.notes == [("rx", 100, 1), ("ncf", 599, 1, (1,)), ("rx", 600, 1)]


def test_a_full_retransmission_queue_sheds() -> None:
    b = SourceBench(SourceConfig(rx_queue_bytes=2000), rx_bps=800_000)
    b.data(0, 10, 1000, 900)
    b.nak(1, *range(6))
    b.nak(2, 3)
    assert b.notes == [("rx", 1, 0), ("ncf", 1, 2, (1, 2)), ("ncf", 1, 3, (3, 4, 5)), ("ncf", 2, 3, (3,))]
    b.tick(10)
    b.nak(11, 3, 4)
    b.tick(40)
    assert b.notes[4:] == [("rx", 10, 1), ("ncf", 11, 2, (3,)), ("ncf", 11, 3, (4,)), ("rx", 20, 2), ("rx", 30, 3)]
    assert (b.session.stats.naks_shed, b.session.stats.naks_rx_delay_ignored) == (5, 3)


def test_a_datagram_above_the_retransmission_quota_waits_until_enough_has_accumulated() -> None:
    b = SourceBench(rx_bps=5_000_000)
    b.data(0, 3, 8192, 8100)
    b.nak(1, 0, 1)
    b.tick(50)
    assert b.notes == [("ncf", 1, 2, (0, 1)), ("rx", 10, 0), ("rx", 20, 1)]


def test_a_waiting_retransmission_that_leaves_the_window_is_dropped() -> None:
    b = SourceBench(SourceConfig(window_size_bytes=65_536), rx_bps=800_000)
    b.data(0, 2, 1000, 900)
    b.nak(1, 0, 1)
    b.data(2, 1, 65_535, 65_500)
    b.tick(100)
    assert b.notes == [("rx", 1, 0), ("ncf", 1, 2, (1,))]
    assert b.session.rctlr_rx_msgs == 0
    assert b.rx_limiter.take(10, ms(100)), "its place in the line is given up"
    assert b.session.next_deadline() == ms(202)


def test_retransmissions_use_the_data_credit_without_being_held_back() -> None:
    b = SourceBench(data_bps=800_000)
    b.data(0, 5, 600, 500)
    b.nak(1, 0, 1, 2)
    assert [note[0] for note in b.notes] == ["rx", "rx", "rx"]
    assert not b.data_limiter.take(1, ms(2))
    assert b.data_limiter.take(1000, ms(10))


def test_lbtru_retransmissions_leave_the_data_credit_alone() -> None:
    b = SourceBench(SourceConfig(charge_data=False), data_bps=800_000)
    b.data(0, 5, 600, 500)
    b.nak(1, 0, 1, 2)
    assert b.data_limiter.take(1000, ms(2))


def test_a_closed_session_gives_its_place_in_the_line_up() -> None:
    b = SourceBench(rx_bps=80_000)
    b.data(0, 2, 1000, 900)
    b.nak(1, 0)
    assert not b.rx_limiter.take(10, ms(2))
    b.session.close()
    assert b.rx_limiter.take(10, ms(2))
    assert (b.session.next_deadline(), b.session.rctlr_rx_msgs) == (None, 0)


def test_sqns_wrap() -> None:
    b = SourceBench(SourceConfig(first_sqn=0xFFFFFFFE))
    b.data(0, 4)
    assert (b.session.next_sqn, b.session.trail, b.session.lead) == (2, 0xFFFFFFFE, 1)
    b.nak(1, 1, 0, 0xFFFFFFFF, 0xFFFFFFFE, 2, 0xFFFFFFFD)
    assert b.notes == [("rx", 1, sqn) for sqn in (0xFFFFFFFE, 0xFFFFFFFF, 0, 1)] + [("ncf", 1, 0, (0xFFFFFFFD,))]


def test_how_long_a_source_is_worth_keeping() -> None:
    b = SourceBench()
    assert b.session.busy_until(ms(5), s(10)) == ms(5)
    b.data(10)
    assert b.session.busy_until(ms(20), s(10)) == ms(10_210)
    assert b.session.busy_until(s(11), s(10)) == s(11)


# the window


def chunk(count: int, length: int = 10) -> Chunk:
    return Chunk(bytes(count * length), 0, length, length)


def test_trimming_takes_parts_of_runs() -> None:
    w = TransmissionWindow(1000, 0, 0)
    w.append(64, 10, chunk(64, 50))
    assert (w.trail_index, w.payload_bytes) == (0, 640)
    w.append(64, 10, chunk(64, 50))
    assert (w.trail_index, w.payload_bytes, len(w)) == (28, 1000, 100)
    assert w.find(28)[1:] == (1400, 50)
    assert w.find(127)[1:] == (3150, 50)
    with pytest.raises(LocalProtocolError):
        w.find(27)
    with pytest.raises(LocalProtocolError):
        w.find(128)


@pytest.mark.parametrize(("before", "stride"), [(0, 40), (0, 43), (100_000, 40)])
def test_small_runs_are_copied_and_share_entries(before: int, stride: int) -> None:
    """Single datagrams out of large buffers: neither the buffers nor an object for each stays behind."""
    w = TransmissionWindow(10_000_000, 0, 0)
    sent = []
    for i in range(3000):
        one = b"%08d" % i * 5
        buffer = bytes(before) + one + b"\xff" * (stride - 40) + one
        w.append(2, 8, Chunk(buffer, before, stride, 40))
        sent += [one, one]
    assert len(w._runs) == 3000 * 80 // 65_536 + 1
    for index, one in enumerate(sent):
        buffer_kept, offset, length = w.find(index)
        assert buffer_kept[offset : offset + length] == one
        assert len(buffer_kept) == 65_536


def test_copied_runs_of_changing_length_and_payload_are_kept_apart() -> None:
    w = TransmissionWindow(1000, 0, 0)
    expected = []
    for i in range(200):
        one = bytes([i]) * (10 + i % 3)
        w.append(1, 5 + i // 2 % 2, Chunk(one, 0, len(one), len(one)))
        expected.append(one)
    assert w.payload_bytes <= 1000
    assert w.payload_bytes == sum(5 + i // 2 % 2 for i in range(w.trail_index, 200))
    for index in range(w.trail_index, w.next_index):
        buffer, offset, length = w.find(index)
        assert buffer[offset : offset + length] == expected[index]


@pytest.mark.parametrize("count", [1, 2, 5, 40])
@pytest.mark.parametrize(("size", "limit"), [(10_000, 0), (1 << 30, 30_000), (10_000, 20_000), (10_000, 30_000)])
def test_datagrams_of_any_lengths_enter_together_and_leave_one_by_one(count: int, size: int, limit: int) -> None:
    w = TransmissionWindow(size, limit, 0)
    expected: list[bytes] = []

    def is_too_much(kept: list[bytes]) -> bool:
        memory = sum(len(one) + 64 for one in kept)
        return sum(len(one) // 2 for one in kept) > size or (limit > 0 and memory > limit)

    for batch in range(60):
        made = [bytes([batch, i]) * (10 + 37 * i) for i in range(count)]
        payloads = [len(one) // 2 for one in made]
        ends = [sum(map(len, made[: i + 1])) for i in range(count)]
        w.append_mixed(ends, payloads, b"".join(made))
        expected += made
        assert not is_too_much(expected[w.trail_index :])
        assert not w.trail_index or is_too_much(expected[w.trail_index - 1 :])
    kept = expected[w.trail_index :]
    assert w.next_index == len(expected) == 60 * count
    assert w.payload_bytes == sum(len(one) // 2 for one in kept)
    assert w.memory_bytes == sum(len(one) + 64 for one in kept)
    for index, one in enumerate(kept, w.trail_index):
        buffer, offset, length = w.find(index)
        assert buffer[offset : offset + length] == one


def test_copied_runs_of_one_length_leave_one_by_one() -> None:
    w = TransmissionWindow(1000, 0, 0)
    for i in range(200):
        w.append(1, 10, Chunk(bytes([i]) * 20, 0, 20, 20))
    assert (w.trail_index, w.payload_bytes, w.memory_bytes) == (100, 1000, 8400)
    assert [bytes(w.find(i)[0][w.find(i)[1] :][:20]) for i in (100, 199)] == [bytes([100]) * 20, bytes([199]) * 20]
    with pytest.raises(LocalProtocolError):
        w.find(99)


def test_small_runs_on_both_sides_of_a_large_one_are_kept_apart() -> None:
    w = TransmissionWindow(10_000_000, 0, 0)
    for mark in (b"a", b"B", b"c", b"d"):
        length = 5000 if mark == b"B" else 50
        w.append(1, 20, Chunk(mark * length, 0, length, length))
    kept = [bytes(buffer[offset : offset + length]) for buffer, offset, length in map(w.find, range(4))]
    assert kept == [b"a" * 50, b"B" * 5000, b"c" * 50, b"d" * 50]


def test_a_run_that_fills_its_buffer_is_not_copied() -> None:
    w = TransmissionWindow(10_000_000, 0, 0)
    buffer = bytearray(64 * 1000)
    w.append(64, 900, Chunk(buffer, 0, 1000, 1000))
    assert w.find(63) == (buffer, 63_000, 1000)
    assert w.find(63)[0] is buffer
    w.append(1, 7900, Chunk(buffer, 0, 8000, 8000))
    assert w.find(64)[0] is not buffer


@pytest.mark.parametrize(
    ("length", "buffer_bytes", "is_copied"), [(2048, 8192, False), (2047, 2047, True), (2048, 8193, True)]
)
def test_what_is_small_or_a_small_part_of_its_buffer_is_copied(length: int, buffer_bytes: int, is_copied: bool) -> None:
    w = TransmissionWindow(10_000_000, 0, 0)
    buffer = bytearray(buffer_bytes)
    w.append(1, 2000, Chunk(buffer, 0, length, length))
    assert (w.find(0)[0] is not buffer) == is_copied


def test_a_small_part_of_a_very_large_buffer_is_copied_whole() -> None:
    w = TransmissionWindow(10_000_000, 0, 0)
    buffer = random.Random(1).randbytes(1_000_000)
    w.append(1, 10, Chunk(buffer, 5, 20, 20))
    w.append(70, 1000, Chunk(buffer, 100, 1010, 1000))
    w.append(1, 10, Chunk(buffer, 7, 20, 20))
    kept = [bytes(kept[offset : offset + length]) for kept, offset, length in map(w.find, range(72))]
    starts = [100 + 1010 * i for i in range(70)]
    assert kept == [buffer[5:25], *(buffer[at : at + 1000] for at in starts), buffer[7:27]]


def test_a_buffer_is_let_go_when_its_last_datagram_has_left() -> None:
    class Sent(bytearray):
        pass

    w = TransmissionWindow(1000, 0, 0)
    buffer = Sent(4000)
    gone = weakref.ref(buffer)
    w.append(2, 500, Chunk(buffer, 0, 2000, 2000))
    del buffer
    w.append(1, 500, chunk(1))
    assert gone() is not None
    w.append(1, 500, chunk(1))
    assert gone() is None


def test_the_newest_datagram_is_always_kept() -> None:
    w = TransmissionWindow(100, 0, 0)
    w.append(3, 500, chunk(3))
    assert (w.trail_index, len(w), w.payload_bytes) == (2, 1, 500)
    w.append(1, 1, chunk(1))
    assert (w.trail_index, len(w), w.payload_bytes) == (3, 1, 1)
    w.append(3, 500, chunk(3))
    assert (w.trail_index, len(w), w.payload_bytes) == (6, 1, 500)


def test_the_memory_limit_counts_headers_and_overhead() -> None:
    w = TransmissionWindow(1_000_000, 1000, 0)
    w.append(20, 1, chunk(20, 36))
    assert (len(w), w.memory_bytes) == (10, 1000)
    w.append(1, 1, chunk(1, 37))
    assert (len(w), w.memory_bytes, w.payload_bytes) == (9, 901, 9)


def test_the_payload_limit_holds_beside_a_memory_limit() -> None:
    w = TransmissionWindow(50, 10_000, 0)
    w.append(20, 10, chunk(20, 36))
    assert (len(w), w.payload_bytes, w.memory_bytes) == (5, 50, 500)
    w.append(3, 0, chunk(3, 36))
    assert (len(w), w.payload_bytes) == (8, 50)


def test_a_byte_too_much_costs_one_datagram() -> None:
    w = TransmissionWindow(1000, 0, 0)
    w.append(10, 100, chunk(10, 36))
    w.append(1, 1, chunk(1, 36))
    assert (len(w), w.payload_bytes) == (10, 901)
    for payload in (0, 100):
        w = TransmissionWindow(10_000, 1000, 0)
        w.append(10, payload, chunk(10, 36))
        assert (len(w), w.memory_bytes) == (10, 1000)
        w.append(1, payload, chunk(1, 36))
        assert (len(w), w.memory_bytes) == (10, 1000)
    w = TransmissionWindow(10_000, 1000, 0)
    w.append(9, 1, chunk(9, 36))
    w.append(1, 1, chunk(1, 37))
    assert (len(w), w.memory_bytes) == (9, 901)


def test_datagrams_without_payload_do_not_stall_the_window() -> None:
    w = TransmissionWindow(100, 0, 0)
    w.append(10, 0, chunk(10))
    w.append(10, 20, chunk(10))
    assert (w.trail_index, w.payload_bytes) == (15, 100)


def test_a_window_that_lives_long_does_not_grow() -> None:
    w = TransmissionWindow(1_000_000, 0, 0xFFFFFF00)
    shared = chunk(10, 1000)
    for i in range(20_000):
        w.append(10, 950 if i % 2 else 1050, shared)
    assert (len(w), w.payload_bytes) == (1000, 1_000_000)
    assert len(w._starts) < 4000
    for index in range(w.trail_index, w.next_index):
        assert w.find(index)[1] == (index - 0xFFFFFF00) % 10 * 1000


def test_what_waited_for_the_limit_once_is_sent_again_when_it_is_asked_for_again() -> None:
    b = SourceBench(rx_bps=5_000_000)
    b.data(0, 4, 3000, 2968)
    b.nak(3, 1, 2, 3)
    b.tick(10)
    b.nak(20, 3)
    b.nak(600, 3)
    answers = [note for note in b.notes if note[0] != "sm"]
    assert answers[-3:] == [("rx", 10, 3), ("ncf", 20, 1, (3,)), ("rx", 600, 3)]
