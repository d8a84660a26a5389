"""The oracle of NAK times, on small histories made by hand."""

from __future__ import annotations

import struct

import pytest

from tests.builders.nak_schedule import NS_PER_MS, RETRANSMISSION, Arrival, Asked, Windows, outside, schedule_of


def data(at_ms: float, sqn: int, flags: int = 0) -> Arrival:
    return Arrival(round(at_ms * NS_PER_MS), struct.pack("!QIIBBH", 0, sqn, 0, flags, 3, 0))


def repair(at_ms: float, sqn: int) -> Arrival:
    return data(at_ms, sqn, RETRANSMISSION)


def session_message(at_ms: float, lead: int) -> Arrival:
    return Arrival(round(at_ms * NS_PER_MS), struct.pack("!QIIIBBH", 2 << 56, 0, lead, 0, 0, 3, 0))


def ncf(at_ms: float, *sqns: int) -> Arrival:
    return Arrival(round(at_ms * NS_PER_MS), struct.pack(f"!QIHBB{len(sqns)}I", 4 << 56, 0, len(sqns), 0, 16, *sqns))


def nak(at_ms: float, *sqns: int) -> Asked:
    return Asked(round(at_ms * NS_PER_MS), sqns)


def test_first_nak_repeat_and_nak_after_an_ncf_are_told_apart() -> None:
    arrivals = [data(0, 0), data(5, 3), data(6, 4), ncf(300, 2), repair(301, 1), repair(1350, 2)]
    found = schedule_of(arrivals, [nak(45, 1), nak(60, 2), nak(250, 1, 2), nak(1310, 2)], grace_ms=0)
    assert found.first == [40, 55]
    assert found.repeats == [205, 190]
    assert found.after_ncf == [1010]
    assert found.unasked == found.needless == found.unknown == []


def test_an_ncf_that_may_have_been_read_after_the_nak_allows_both() -> None:
    arrivals = [data(0, 0), data(5, 2), ncf(246, 1), repair(1300, 1)]
    naks = [nak(45, 1), nak(250, 1), nak(1248, 1)]
    found = schedule_of(arrivals, naks, grace_ms=20)
    assert (found.first, found.repeats, found.after_ncf) == ([40], [], [])
    assert found.either == [{"after_ncf": 4, "repeats": 205}, {"after_ncf": 1002, "repeats": 998}]
    assert schedule_of(arrivals, naks, grace_ms=3).either == []


def test_a_session_message_shows_a_lost_tail() -> None:
    found = schedule_of([data(0, 0), session_message(200, 2)], [nak(240, 1, 2)], grace_ms=0)
    assert found.first == [40, 40]


def test_naks_without_cause_are_found() -> None:
    arrivals = [data(0, 0), data(1, 2), repair(50, 1), data(60, 3), data(61, 5), repair(70, 4)]
    found = schedule_of(arrivals, [nak(0.5, 1), nak(40, 1), nak(90, 1), nak(95, 3)], grace_ms=20)
    assert found.unknown == [1, 3]  # before the gap was shown; never missing
    assert found.first == [39]
    assert found.needless == [1]
    assert found.unasked == [4]
    assert schedule_of(arrivals, [nak(40, 1), nak(60, 1)], grace_ms=20).needless == []


@pytest.mark.parametrize(("delay", "is_outside"), [(24.9, True), (25, False), (80, False), (85.1, True)])
def test_a_window_widens_to_the_late_side(delay: float, is_outside: bool) -> None:
    assert bool(outside([delay], Windows().first, early_ms=0, late_ms=10)) is is_outside


def test_windows_follow_the_options() -> None:
    assert (Windows().first, Windows().repeat, Windows().after_ncf) == ((25, 75), (100, 300), (1000, 1000))
    assert (Windows(20, 40, 5).first, Windows(20, 40, 5).repeat) == ((10, 30), (20, 60))
