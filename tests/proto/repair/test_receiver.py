"""The timed receiver scenarios (T01 to T15), exact to the millisecond, and the bounds of the receiver session."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict

import pytest

from dro.clock import ms, s
from dro.proto.repair.loss import LBTRU_LOSS, LossConfig, NakDue, Unrecoverable
from dro.proto.repair.receiver import ALL_ONES, ReceiverSession
from dro.proto.session_events import Ended
from dro.wire import lbtrm
from dro.wire.transport import TransportDecodeError
from tests.fakes.receiver_bench import ReceiverBench, synchronised


def test_counting_begins_at_nothing() -> None:
    stats = asdict(ReceiverSession(LossConfig(), lambda: 0.5, 0).stats)
    unknown_yet = {"nak_stm_min": ALL_ONES, "nak_tx_min": ALL_ONES}
    assert stats == dict.fromkeys(stats, 0) | unknown_yet


def test_t01_reordering_gives_no_nak() -> None:
    b = synchronised()
    b.data(10, 12)
    b.data(40, 11)
    b.tick(20_000)
    assert b.notes == [("up", 10, 12), ("up", 40, 11)]
    assert (b.stats.lost, b.stats.out_of_order, b.stats.naks_sent) == (1, 1, 0)


def test_t02_retries_and_repair() -> None:
    b = synchronised()
    b.data(10, 12)
    b.data(470, 11, rx=True)
    b.tick(20_000)
    assert b.of("nak") == [("nak", 60, (11,)), ("nak", 260, (11,)), ("nak", 460, (11,))]
    assert b.notes[-1] == ("up", 470, 11)
    assert (b.stats.nak_stm_max, b.stats.nak_tx_max, b.stats.out_of_order) == (460, 3, 0)
    assert (b.stats.nak_stm_min, b.stats.nak_stm_mean, b.stats.nak_tx_min, b.stats.nak_tx_mean) == (460, 460, 3, 3)


def test_t03_timeout() -> None:
    b = synchronised()
    b.data(10, 12)
    b.sm(5000, 12)
    b.sm(10_000, 12)
    b.data(10_020, 11, rx=True)
    assert b.of("nak") == [("nak", 60 + 200 * i, (11,)) for i in range(50)]
    assert b.of("lost") == [("lost", 10_010, "tmo", (11,))]
    assert b.notes[-1] == ("drop", 10_020, 11)
    assert (b.stats.naks_sent, b.stats.unrecovered_tmo, b.stats.duplicate_data) == (50, 1, 1)


def test_t04_random_bounds() -> None:
    b = synchronised(draws=[0.0, 0.75, 0.25])
    b.data(10, 12)
    b.tick(500)
    assert b.of("nak") == [("nak", 35, (11,)), ("nak", 285, (11,)), ("nak", 435, (11,))]


def test_t05_ncf_ignored() -> None:
    b = synchronised()
    b.data(10, 12)
    b.ncf(61, 1, (11,))
    b.data(1062, 11, rx=True)
    b.tick(5000)
    assert b.of("nak") == [("nak", 60, (11,)), ("nak", 1061, (11,))]
    assert b.notes[-1] == ("up", 1062, 11)
    assert (b.stats.naks_sent, b.stats.ncfs_ignored) == (2, 1)


@pytest.mark.parametrize(("second", "delays", "unknown"), [(2, 2, 0), (9, 1, 1)])
def test_t06_ncf_restarts_suppression(second: int, delays: int, unknown: int) -> None:
    b = synchronised()
    b.data(10, 12)
    b.ncf(61, 2, (11,))
    b.ncf(500, second, (11,))
    b.tick(1600)
    assert b.of("nak") == [("nak", 60, (11,)), ("nak", 1500, (11,))]
    assert (b.stats.ncfs_rx_delay, b.stats.ncfs_unknown) == (delays, unknown)


def test_t07_ncf_before_the_first_nak() -> None:
    b = synchronised()
    b.data(10, 12)
    b.ncf(30, 1, (11,))
    b.tick(1100)
    assert b.of("nak") == [("nak", 1030, (11,))]


def test_t08_do_not_retry() -> None:
    b = synchronised()
    b.data(10, 12)
    b.ncf(61, 0, (11,), 12)
    b.tick(20_000)
    assert b.of("nak", "lost") == [("nak", 60, (11,)), ("lost", 61, "txw", (11,))]
    assert b.stats.unrecovered_txw == 1


def test_t09_window_advance() -> None:
    b = synchronised()
    b.data(10, 13)
    b.data(100, 14, 12)
    b.tick(300)
    assert b.notes == [
        ("up", 10, 13),
        ("nak", 60, (11, 12)),
        ("lost", 100, "txw", (11,)),
        ("up", 100, 14),
        ("nak", 260, (12,)),
    ]


def test_t10_two_gaps_have_their_own_deadlines() -> None:
    b = synchronised()
    b.data(10, 15)
    b.data(15, 17)
    b.tick(300)
    assert b.of("nak") == [
        ("nak", 60, (11, 12, 13, 14)),
        ("nak", 65, (16,)),
        ("nak", 260, (11, 12, 13, 14)),
        ("nak", 265, (16,)),
    ]
    assert (b.stats.nak_pckts_sent, b.stats.naks_sent) == (4, 10)


def test_t11_tail_loss_is_found_by_a_session_message() -> None:
    b = synchronised()
    b.sm(200, 12)
    b.data(251, 11, rx=True)
    b.data(252, 12, rx=True)
    b.tick(30_000)
    assert b.notes == [("nak", 250, (11, 12)), ("up", 251, 11), ("up", 252, 12)]


def test_a_session_message_is_activity_and_its_trail_gives_up_what_is_older() -> None:
    b = synchronised()
    b.data(10, 14)
    b.sm(20, 14, 11)
    assert b.of("lost") == []
    b.sm(50_000, 14, 13)
    assert b.of("lost") == [("lost", 10_010, "tmo", (11, 12, 13))]
    b.data(50_010, 17)
    b.sm(50_020, 17, 16)
    b.tick(200_000)
    assert b.of("lost", "eos")[1:] == [("lost", 50_020, "txw", (15,)), ("lost", 60_010, "tmo", (16,)), ("eos", 110_020)]


def test_t12_naks_off() -> None:
    b = synchronised(LossConfig(send_naks=False))
    b.data(10, 12)
    b.ncf(20, 1, (11,))
    b.tick(20_000)
    assert b.notes == [("up", 10, 12), ("lost", 10_010, "tmo", (11,))]


def test_t13_wrap() -> None:
    trail = 0xFFFFFF00
    b = synchronised(sqn=0xFFFFFFFE, trail=trail)
    b.data(10, 0x00000001, trail)
    b.data(70, 0xFFFFFFFF, trail, rx=True)
    b.data(70, 0x00000000, trail, rx=True)
    b.tick(20_000)
    assert b.notes == [("up", 10, 1), ("nak", 60, (0xFFFFFFFF, 0)), ("up", 70, 0xFFFFFFFF), ("up", 70, 0)]
    assert b.session._loss.count == 0


def test_what_is_missing_on_both_sides_of_the_wrap_is_named_oldest_first() -> None:
    missing = (0xFFFFFFFE, 0xFFFFFFFF, 0, 1, 2, 3, 4)
    b = synchronised(sqn=0xFFFFFFFD, trail=0xFFFFFF00)
    b.data(10, 5, 0xFFFFFF00)
    b.ncf(61, 0, (3, 0xFFFFFFFF, 2, 0xFFFFFFFE), 0xFFFFFF00)
    b.data(70, 6, 4)
    assert b.notes == [
        ("up", 10, 5),
        ("nak", 60, missing),
        ("lost", 61, "txw", (0xFFFFFFFE, 0xFFFFFFFF, 2, 3)),
        ("lost", 70, "txw", (0, 1)),
        ("up", 70, 6),
    ]


def test_t14_immediate_first_nak_of_lbtru() -> None:
    b = synchronised(LBTRU_LOSS)
    b.data(10, 12)
    b.tick(500)
    assert b.of("nak") == [("nak", 10, (11,)), ("nak", 210, (11,)), ("nak", 410, (11,))]


def test_t15a_activity_timeout() -> None:
    b = ReceiverBench()
    b.sm(100, 9)
    b.data(500, 10)
    b.tick(200_000)
    assert b.notes == [("bos", 100), ("up", 500, 10), ("eos", 60_500)]


def test_a_duplicate_is_activity_too() -> None:
    b = synchronised()
    b.data(50_000, 10)
    b.tick(200_000)
    assert b.of("drop", "eos") == [("drop", 50_000, 10), ("eos", 110_000)]


def test_t15b_a_silent_session_ends_without_having_begun() -> None:
    b = ReceiverBench()
    b.tick(200_000)
    assert b.notes == [("eos", 60_000)]


def test_t15c_preactivity_timeout() -> None:
    b = ReceiverBench(LossConfig(preactivity_timeout_ns=ms(120_000)))
    b.sm(90_000, 9)
    b.tick(500_000)
    assert b.notes == [("bos", 90_000), ("eos", 150_000)]


def test_t15d_loss_that_is_outstanding_at_the_end_is_not_reported() -> None:
    b = ReceiverBench(LossConfig(generation_ns=ms(70_000)))
    b.sm(100, 9)
    b.data(500, 10)
    b.data(600, 12)
    b.tick(500_000)
    assert b.of("eos", "lost") == [("eos", 60_600)]
    assert b.session.next_deadline() is None


def test_t16_foreign_and_bad_packets() -> None:
    """A minimal receiver in front of the session: what the codec refuses or names another session never gets there."""
    b = synchronised()
    joined = ("192.0.2.1", 14390, 0xC0FFEE)
    counts: Counter[str] = Counter()

    def arrive(t: int, source: str, datagram: bytes) -> None:
        try:
            packet = lbtrm.decode(datagram, lbtrm.RECEIVER_TYPES)
        except TransportDecodeError as e:
            counts[e.reason.value] += 1
            return
        assert isinstance(packet, lbtrm.Data)
        if (source, packet.ucast_port, packet.session_id) != joined:
            counts["unknown"] += 1
            return
        b.data(t, packet.sqn, packet.trail, rx=bool(packet.flags & lbtrm.FLAG_RETRANSMISSION))

    good = lbtrm.encode(lbtrm.Data(14390, 0xC0FFEE, 12, 0))
    arrive(1, "192.0.2.1", lbtrm.encode(lbtrm.Data(14390, 0xBAD, 12, 0)))
    arrive(2, "192.0.2.2", good)
    arrive(3, "192.0.2.1", b"\x10" + good[1:])
    arrive(4, "192.0.2.1", b"\x01" + good[1:])
    arrive(5, "192.0.2.1", good[:15])
    b.tick(100_000)
    assert b.notes == [("eos", 60_000)]
    assert counts == {"unknown": 2, "version": 1, "type": 1, "size": 1}


# synchronisation


def test_retransmissions_do_not_synchronise_but_are_activity() -> None:
    b = ReceiverBench()
    b.data(5, 100, rx=True)
    assert b.notes == [("bos", 5), ("drop", 5, 100)]
    assert b.session.expected is None
    b.data(6, 500)
    assert b.notes[2:] == [("up", 6, 500)]
    b.data(7, 499, rx=True)
    assert b.notes[3:] == [("drop", 7, 499)]
    assert b.session._loss.count == 0


def test_a_session_message_before_any_data_names_the_sqn_before_the_first() -> None:
    b = ReceiverBench()
    b.sm(5, 0xFFFFFFFF)
    assert b.session.expected == 0
    b.data(6, 1)
    b.tick(100)
    assert b.of("nak") == [("nak", 56, (0,))]


def test_nothing_is_taken_after_the_end() -> None:
    b = synchronised()
    b.tick(100_000)
    assert b.notes.pop() == ("eos", 60_000)
    b.data(100_001, 11)
    b.sm(100_002, 20)
    b.ncf(100_003, 1, (12,))
    assert b.notes == [("drop", 100_001, 11)]
    assert (b.session.expected, b.session.has_ended, b.session.next_deadline()) == (None, True, None)


# runs


def test_a_run_counts_like_its_datagrams_one_by_one() -> None:
    one, many = synchronised(), synchronised()
    for i in range(64):
        one.session.on_data(11 + i, 5, False, ms(20), 100)
    many.session.on_run(11, 64, 5, ms(20), 6400)
    assert one.session.stats == many.session.stats
    assert one.session.expected == many.session.expected == 75
    assert one.session.next_deadline() == many.session.next_deadline() == ms(60_020)


def test_the_trail_of_a_run_gives_up_what_is_older() -> None:
    b = synchronised()
    b.data(10, 13)
    b.run(20, 14, 10, 12)
    assert b.of("lost") == [("lost", 20, "txw", (11,))]
    b.run(21, 24, 10, 13)
    assert b.of("lost")[1:] == [("lost", 21, "txw", (12,))]
    assert b.session._loss.count == 0


def test_runs_wrap() -> None:
    b = synchronised(sqn=0xFFFFFFF0, trail=0xFFFFFFF0)
    b.run(1, 0xFFFFFFF1, 64, 0xFFFFFFF0)
    assert b.session.expected == 0x31
    b.data(2, 0x31, 0xFFFFFFF0)
    assert b.notes == [("up", 2, 0x31)]


# NCFs


def test_an_ncf_counts_each_sqn_it_names_and_only_suppresses_missing_ones() -> None:
    b = synchronised()
    b.data(10, 12)
    b.ncf(20, 3, (5, 11, 400))
    b.tick(1100)
    assert b.stats.ncfs_shed == 3
    assert b.of("nak") == [("nak", 1020, (11,))]


@pytest.mark.parametrize(
    ("reason", "counted"),
    [(0, None), (1, "ncfs_ignored"), (2, "ncfs_rx_delay"), (3, "ncfs_shed"), (4, "ncfs_unknown"), (15, "ncfs_unknown")],
)
def test_each_reason_of_an_ncf_has_its_counter(reason: int, counted: str | None) -> None:
    b = synchronised()
    before = asdict(b.stats)
    b.ncf(20, reason, (5, 11))
    assert asdict(b.stats) == before | ({counted: 2} if counted else {})


def test_an_ncf_is_no_activity() -> None:
    b = synchronised()
    b.ncf(50_000, 1, (3,))
    b.tick(100_000)
    assert b.notes == [("eos", 60_000)]


def test_the_trail_of_an_ncf_gives_up_what_is_older() -> None:
    b = synchronised()
    b.data(10, 14)
    b.ncf(20, 1, (13,), 13)
    assert b.of("lost") == [("lost", 20, "txw", (11, 12))]


def test_a_flood_of_ncfs_costs_no_memory() -> None:
    b = synchronised()
    b.data(1, 12)
    session = b.session
    tracemalloc.start()
    try:
        for i in range(20_000):
            session.on_ncf((11,), 1, 0, ms(2) + i)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 100_000
    assert session.next_deadline() == ms(1002) + 19_999


# late timers


def test_a_late_timer_sends_one_nak_and_counts_the_backoff_from_it() -> None:
    b = synchronised()
    b.data(10, 12)
    b.session.on_timer(ms(700))
    b.tick(900)
    assert b.of("nak") == [("nak", 700, (11,)), ("nak", 900, (11,))]


def test_every_missing_sqn_keeps_its_own_time_through_a_flood_of_ncfs() -> None:
    b = synchronised(draws=[0.9, 0.3, 0.0])
    b.data(10, 15)
    for i in range(200):
        b.session.on_ncf((11,), 1, 0, ms(20) + i)
    b.tick(1100)
    assert b.of("nak")[:3] == [("nak", 35, (13,)), ("nak", 50, (12,)), ("nak", 60, (14,))]
    assert ("nak", 1020.000199, (11,)) in b.notes


def test_a_late_timer_respects_what_an_ncf_has_put_off() -> None:
    b = synchronised()
    b.session.on_data(12, 0, False, ms(10))
    b.session.on_ncf((11,), 1, 0, ms(30))
    b.session.on_timer(ms(100))
    assert b.session.take_events() == []
    b.tick(1100)
    assert b.of("nak") == [("nak", 1030, (11,))]


def test_a_timer_later_than_the_end_reports_only_the_loss_from_before_it() -> None:
    b = synchronised(LossConfig(generation_ns=ms(60_500)))
    b.data(500, 12)
    b.data(2000, 14)
    b.session.on_timer(ms(200_000))
    assert [type(event) for event in b.session.take_events()] == [Unrecoverable, Ended]
    assert b.stats.unrecovered_tmo == 1


def test_gaps_that_are_repaired_at_once_leave_nothing_behind() -> None:
    b = synchronised()
    for i in range(2000):
        b.session.on_data(12 + 2 * i, 0, False, ms(1))
        b.session.on_data(11 + 2 * i, 0, False, ms(1))
    assert b.stats.out_of_order == 2000
    assert len(b.session._loss._heap) < 100


def test_a_backoff_of_zero_does_not_spin() -> None:
    b = synchronised(LossConfig(initial_backoff_ns=0, backoff_ns=0))
    b.data(10, 12)
    b.tick(20)
    assert b.of("nak") == [("nak", t, (11,)) for t in range(10, 21)]


def test_many_naks_are_split_into_packets() -> None:
    b = synchronised(LossConfig(max_naks_per_packet=100))
    b.data(10, 261)
    b.tick(60)
    assert [len(note[2]) for note in b.of("nak")] == [100, 100, 50]  # type: ignore[arg-type]  # a tuple of sqns
    assert (b.stats.nak_pckts_sent, b.stats.naks_sent) == (3, 250)


def test_a_nak_of_default_size_fills_a_datagram_of_default_size() -> None:
    b = synchronised(LossConfig(naks_per_round=3000))
    b.data(10, 3011)
    b.session.on_timer(ms(60))
    full, rest = (event.sqns for event in b.session.take_events() if isinstance(event, NakDue))
    assert len(full) + len(rest) == 3000
    assert len(lbtrm.encode(lbtrm.Nak(14390, 1, full))) <= 8192 < len(lbtrm.encode(lbtrm.Nak(14390, 1, (*full, 0))))


def test_a_long_outage_is_asked_for_in_rounds() -> None:
    b = synchronised(LossConfig(generation_ns=ms(1000)))
    b.data(10, 10_011)
    b.session.on_timer(ms(60))
    first = [event for event in b.session.take_events() if isinstance(event, NakDue)]
    assert [sqn for event in first for sqn in event.sqns] == list(range(11, 11 + 2000))
    assert b.session.next_deadline() == ms(110)
    b.tick(260)
    assert [note[1] for note in b.of("nak")] == [110, 160, 210, 260]
    assert b.session.next_deadline() == ms(310)


def test_each_missing_sqn_draws_for_itself() -> None:
    b = synchronised(draws=[0.0, 0.9, 0.1])
    b.data(10, 14)
    b.tick(90)
    assert b.of("nak") == [("nak", 35, (11,)), ("nak", 40, (13,)), ("nak", 80, (12,))]


# statistics


def test_service_times_are_of_repairs_that_were_asked_for() -> None:
    b = synchronised()
    b.data(0, 14)
    b.data(1, 11)
    assert b.stats.nak_stm_min == 0xFFFFFFFFFFFFFFFF
    b.data(60, 12, rx=True)
    b.data(300, 13, rx=True)
    assert (b.stats.nak_stm_min, b.stats.nak_stm_max, b.stats.nak_stm_mean) == (60, 300, 90)
    assert (b.stats.nak_tx_min, b.stats.nak_tx_max) == (1, 2)


def test_a_sample_moves_a_mean_by_an_eighth_of_its_distance() -> None:
    b = synchronised()
    b.data(0, 13)
    b.data(460, 11, rx=True)
    b.data(5260, 12, rx=True)
    assert (b.stats.nak_tx_min, b.stats.nak_tx_mean, b.stats.nak_tx_max) == (3, 6, 27)
    assert (b.stats.nak_stm_min, b.stats.nak_stm_mean, b.stats.nak_stm_max) == (460, 1060, 5260)


def test_a_session_with_loss_and_repair_moves_these_counters_and_no_other() -> None:
    b = synchronised(LossConfig(generation_ns=ms(1000), backoff_ns=ms(400)))
    session = b.session
    session.on_run(11, 4, 0, ms(1), 400)  # up to 14
    session.on_data(20, 0, False, ms(2), 30)  # without 15 to 19
    session.on_data(16, 0, False, ms(3), 7)  # late
    session.on_data(16, 0, True, ms(3), 7)  # again
    b.tick(60)
    session.on_data(15, 0, True, ms(61), 7)
    session.on_ncf((17,), 0, 0, ms(62))
    session.on_data(21, 19, False, ms(63), 5)  # and 18 has left the window
    b.tick(2000)
    zero = asdict(ReceiverSession(LossConfig(), lambda: 0.5, 0).stats)
    assert asdict(b.stats) == zero | {
        "msgs_rcved": 1 + 4 + 5, "bytes_rcved": 400 + 30 + 3 * 7 + 5, "lost": 5, "out_of_order": 1, "duplicate_data": 1,
        "nak_pckts_sent": 3, "naks_sent": 4 + 1 + 1, "nak_stm_min": 59, "nak_stm_mean": 59, "nak_stm_max": 59,
        "nak_tx_min": 1, "nak_tx_mean": 1, "nak_tx_max": 1, "unrecovered_txw": 2, "unrecovered_tmo": 1,
    }  # fmt: skip


# jumps


@pytest.mark.parametrize("jump", [100_000, 0x7FFFFFF0])
def test_a_single_packet_from_far_ahead_is_not_believed(jump: int) -> None:
    b = synchronised()
    b.data(1, 10 + jump)
    b.sm(2, 11)
    b.data(3, 12)
    assert b.of("up", "drop", "skipped") == [("drop", 1, 10 + jump), ("up", 3, 12)]
    assert b.session._loss.count == 1
    assert b.stats.dgrams_dropped_other == 1


def test_a_session_message_from_far_ahead_is_not_believed() -> None:
    b = synchronised()
    b.sm(1, 0x7FFFFFFF)
    b.run(2, 11, 5)
    b.sm(3, 0x7FFFFFFF)
    b.run(4, 16, 5)
    assert b.session.expected == 21
    assert b.session._loss.count == 0
    assert (b.stats.lost, b.stats.dgrams_dropped_other) == (0, 2)


FAR = 0x40000000


@pytest.mark.parametrize("by_session_message", [False, True])
@pytest.mark.parametrize(("jump", "counted"), [(0x7FFFFFFF, "dgrams_dropped_other"), (0x80000000, "duplicate_data")])
def test_half_the_number_space_ahead_is_behind(by_session_message: bool, jump: int, counted: str) -> None:
    b = synchronised()
    if by_session_message:
        b.sm(1, 10 + jump)
    else:
        b.data(1, 11 + jump)
    other = counted == "dgrams_dropped_other"
    assert (b.stats.dgrams_dropped_other, b.stats.duplicate_data) == (other, not other and not by_session_message)
    assert (b.session.expected, b.stats.lost) == (11, 0)


@pytest.mark.parametrize("by_session_message", [False, True])
@pytest.mark.parametrize("most", [10, 65536])
def test_a_jump_of_max_gap_is_believed_at_once_and_one_more_is_not(by_session_message: bool, most: int) -> None:
    for count, lost in ((most, most), (most + 1, 0)):
        b = synchronised(LossConfig(max_gap=10) if most == 10 else None)
        if by_session_message:
            b.sm(1, 10 + count)
        else:
            b.data(1, 11 + count)
        assert (b.stats.lost, b.of("lost", "skipped")) == (lost, [])


@pytest.mark.parametrize(
    "between",
    [lambda b: b.data(2, 11), lambda b: b.run(2, 11, 1), lambda b: b.sm(2, 11), lambda b: b.sm(2, 10)],
    ids=["data", "run", "session message", "idle session message"],
)
def test_a_jump_is_not_believed_when_the_session_goes_on_as_before(between: Callable[[ReceiverBench], None]) -> None:
    b = synchronised()
    b.data(1, FAR)
    between(b)
    b.data(3, FAR + 1)
    assert b.notes[-1] == ("drop", 3, FAR + 1)
    assert b.stats.dgrams_dropped_other == 2


def test_a_confirmed_jump_is_loss_and_stays_bounded() -> None:
    b = synchronised(LossConfig(max_gap=1000))
    b.data(1, 0x40000000)
    tracemalloc.start()
    try:
        b.data(2, 0x40000001)
        size, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000
    assert size < 1_000_000
    skipped = 0x40000001 - 11 - 1000
    assert b.of("skipped", "up", "drop") == [
        ("drop", 1, 0x40000000),
        ("skipped", 2, 11, skipped),
        ("up", 2, 0x40000001),
    ]
    assert b.session._loss.count == 1000
    assert b.stats.lost == skipped + 1000
    assert b.stats.unrecovered_txw == skipped
    b.data(3, 0x40000000, rx=True)
    assert b.notes[-1] == ("up", 3, 0x40000000)


@pytest.mark.parametrize(("apart", "is_believed"), [(1000, True), (1001, False), (-1000, True), (-1001, False)])
def test_a_jump_is_confirmed_by_a_packet_within_max_gap_of_it(apart: int, is_believed: bool) -> None:
    b = synchronised(LossConfig(max_gap=1000))
    b.data(1, 0x40000000)
    b.data(2, 0x40000000 + apart)
    assert (b.stats.lost > 0) == is_believed


@pytest.mark.parametrize("over", [0, 1, 2])
def test_more_missing_than_max_gap_gives_up_the_oldest(over: int) -> None:
    b = synchronised(LossConfig(max_gap=10))
    b.data(1, 19)
    b.data(2, 22 + over)
    assert b.of("lost") == ([("lost", 2, "txw", tuple(range(11, 11 + over)))] if over else [])
    b.tick(60)
    assert b.stats.naks_sent == 10
    assert (b.stats.lost, b.stats.unrecovered_txw) == (10 + over, over)


def test_contiguous_is_the_newest_sqn_without_a_hole_before_it() -> None:
    session = ReceiverSession(LossConfig(), lambda: 0.5, 0)
    assert session.contiguous == 0xFFFFFFFF
    session.on_data(0, 0, False, 0)
    session.on_data(3, 0, False, 0)
    assert session.contiguous == 0
    session.on_data(1, 0, True, s(1))
    assert session.contiguous == 1
    session.on_data(2, 0, True, s(1))
    assert session.contiguous == 3


def gone_on(expected: int, cfg: LossConfig | None = None) -> ReceiverSession:
    session = ReceiverSession(cfg or LossConfig(), lambda: 0.5, 0)
    session.go_on_at(expected, ms(5))
    return session


def test_a_session_goes_on_at_a_hole_and_asks_for_it_with_the_usual_times() -> None:
    session = gone_on(100)
    assert session.contiguous == 99
    assert session.on_data(105, 0, False, ms(10))
    assert (session.missing, session.contiguous) == (5, 99)
    assert session.next_deadline() == ms(10) + ms(50)
    session.on_timer(ms(60))
    assert [event.sqns for event in session.take_events() if isinstance(event, NakDue)] == [(100, 101, 102, 103, 104)]
    for sqn in range(100, 105):
        assert session.on_data(sqn, 0, True, ms(70))
    assert session.contiguous == 105


def test_a_session_that_goes_on_finds_a_hole_by_a_session_message_and_drops_what_was_passed_on() -> None:
    session = gone_on(100)
    assert not session.on_data(99, 0, False, ms(10))
    session.on_session_message(102, 0, ms(11))
    assert session.missing == 3
    assert session.stats.duplicate_data == 1


@pytest.mark.parametrize("hole", [1, 20_000, 65_536])
def test_a_session_that_goes_on_believes_its_first_datagram(hole: int) -> None:
    session = gone_on(0xFFFF_FFF0)
    assert session.on_data((0xFFFF_FFF0 + hole) & 0xFFFF_FFFF, 0xFFFF_FFF0, False, ms(10))
    assert session.missing == hole
    assert session.stats.dgrams_dropped_other == 0


def test_a_session_that_goes_on_has_begun_and_ends_when_nothing_comes() -> None:
    session = gone_on(100)
    session.on_run(100, 3, 0, s(1))
    assert session.contiguous == 102
    session.on_timer(s(61))
    assert [type(event).__name__ for event in session.take_events()] == ["Began", "Ended"]
