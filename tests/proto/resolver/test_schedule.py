"""Send times of the resolver, to the ms: the default tables, ticks, phases and what restarts them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.clock import ms, s
from dro.proto.resolver.schedule import (
    AdvertisingOptions,
    AdvertisingSchedule,
    DoublingSchedule,
    Phase,
    PhasedSchedule,
    QueryOptions,
    QuerySchedule,
    WildcardQueryOptions,
    WildcardQuerySchedule,
    tick_at,
)


def sends(schedule: PhasedSchedule, until_ms: float, *, limit: int = 10_000) -> list[float]:
    out = []
    while (due := schedule.next_due()) is not None and due <= ms(until_ms):
        assert not schedule.on_tick(due - 1)
        assert schedule.on_tick(due)
        out.append(due / 1_000_000)
        assert len(out) < limit
    return out


def test_initial_advertisements() -> None:
    schedule = AdvertisingSchedule(AdvertisingOptions(), 0)
    expect = [0, 10, 30, 70, 150, 310, 630, 1130, 1630, 2130, 2630, 3130, 3630, 4130, 4630, 5130]
    assert sends(schedule, 5500) == expect
    assert schedule.phase is Phase.SUSTAINING


def test_sustaining_advertisements_without_ticks() -> None:
    schedule = AdvertisingSchedule(AdvertisingOptions(), 0, sustain_tick_ns=0)
    assert sends(schedule, 1_000_000)[16:] == [5130 + 1000 * k for k in range(1, 61)]
    assert schedule.next_due() is None


def test_sustaining_advertisements_leave_at_ticks() -> None:
    schedule = AdvertisingSchedule(AdvertisingOptions(), 0)
    assert sends(schedule, 1_000_000)[16:] == [5200 + 1000 * k for k in range(1, 61)]


def test_queries() -> None:
    schedule = QuerySchedule(QueryOptions(), 0)
    got = sends(schedule, 1_000_000)
    assert got[:29] == [0, 20, 60, 140, *range(300, 5101, 200)]
    assert got[29:] == [5100 + 1000 * k for k in range(1, 61)]


def test_wildcard_queries() -> None:
    expect = [0, 50, 150, 350, 750, 1550, *range(2550, 60551, 1000)]
    assert sends(WildcardQuerySchedule(WildcardQueryOptions(), 0, tick_ns=0), 1_000_000) == expect
    with_ticks = sends(WildcardQuerySchedule(WildcardQueryOptions(), 0), 1_000_000)
    assert with_ticks == [-(-at // 30) * 30 for at in expect]
    assert len(expect) == 65


def test_lateness_of_ticks_does_not_add_up() -> None:
    options = AdvertisingOptions(minimum_initial_interval_ns=0, sustain_interval_ns=ms(1250))
    assert sends(AdvertisingSchedule(options, 0), 5000) == [1300, 2500, 3800, 5000]


def test_the_grid_of_ticks_has_an_origin() -> None:
    options = AdvertisingOptions(minimum_initial_interval_ns=0, sustain_interval_ns=ms(1250))
    assert sends(AdvertisingSchedule(options, 0, grid_ns=ms(37)), 5000) == [1337, 2537, 3837]
    assert tick_at(-5, 10, 3) == 3 - 0
    assert tick_at(3, 10, 3) == 3
    assert tick_at(4, 10, 3) == 13


def test_an_interval_below_the_tick_acts_as_the_tick() -> None:
    options = QueryOptions(minimum_initial_interval_ns=ms(1), maximum_initial_interval_ns=ms(5))
    assert sends(QuerySchedule(options, 0), 100) == [0, 20, 40, 60, 80, 100]


def test_a_duration_of_zero_never_ends() -> None:
    initial = QuerySchedule(QueryOptions(minimum_initial_duration_ns=0), 0)
    assert len(sends(initial, 100_000)) == 4 + 499
    assert initial.phase is Phase.INITIAL
    sustaining = QuerySchedule(QueryOptions(minimum_initial_interval_ns=0, minimum_sustain_duration_ns=0), 0)
    assert sends(sustaining, 500_000) == [1000 * k for k in range(1, 501)]


@pytest.mark.parametrize(
    "options", [QueryOptions(minimum_initial_interval_ns=0), QueryOptions(maximum_initial_interval_ns=0)]
)
def test_an_initial_interval_of_zero_switches_that_phase_off(options: QueryOptions) -> None:
    assert sends(QuerySchedule(options, 0), 3000) == [1000, 2000, 3000]


def test_both_phases_off_is_silence() -> None:
    options = AdvertisingOptions(minimum_initial_interval_ns=0, sustain_interval_ns=0)
    schedule = AdvertisingSchedule(options, 0)
    assert schedule.next_due() is None
    schedule.on_answered(ms(5))
    assert schedule.next_due() is None


def test_answers_do_not_disturb_the_initial_phase() -> None:
    schedule = AdvertisingSchedule(AdvertisingOptions(), 0)
    assert sends(schedule, 100) == [0, 10, 30, 70]
    schedule.on_answered(ms(100))
    assert sends(schedule, 400) == [150, 310]


def test_an_answer_restarts_sustaining_with_its_full_duration() -> None:
    schedule = AdvertisingSchedule(AdvertisingOptions(), 0)
    sends(schedule, 40_000)
    schedule.on_answered(ms(40_500))
    got = sends(schedule, 1_000_000)
    assert got == [41_500 + 1000 * k for k in range(60)]


def test_a_quiescent_source_wakes_up() -> None:
    schedule = AdvertisingSchedule(AdvertisingOptions(), 0)
    sends(schedule, 1_000_000)
    assert schedule.phase is Phase.QUIESCENT
    schedule.on_answered(ms(500_000))
    got = sends(schedule, 1_000_000)
    assert (got[0], got[-1], len(got)) == (501_000, 560_000, 60)


def test_queries_more_often_than_the_interval_leave_only_answers() -> None:
    schedule = AdvertisingSchedule(AdvertisingOptions(), 0)
    sends(schedule, 5200)
    for at in range(5300, 20_000, 900):
        assert sends(schedule, at) == []
        schedule.on_answered(ms(at))


def test_an_extra_query_leaves_out_the_ticks_within_its_interval() -> None:
    """As the capture shows it: extra query at 12.358 s, nothing at 13.2 s, the next at 14.2 s."""
    schedule = QuerySchedule(QueryOptions(), ms(160))
    assert sends(schedule, 12_400)[-1] == 12_300
    schedule.restart_sustaining(ms(12_358))
    assert sends(schedule, 16_000) == [14_300, 15_300]
    for late_ns, first in ((0, 16_300), (1, 17_300)):
        schedule = QuerySchedule(QueryOptions(), ms(160))
        assert sends(schedule, 15_300)[-1] == 15_300
        schedule.restart_sustaining(ms(15_260) + late_ns)
        assert schedule.next_due() == ms(first), "the phase counts from 5260 ms"


def test_an_extra_query_in_the_initial_phase_changes_nothing() -> None:
    schedule = QuerySchedule(QueryOptions(), 0)
    sends(schedule, 100)
    schedule.restart_sustaining(ms(100))
    assert sends(schedule, 500) == [140, 300, 500]


def test_a_late_timer_sends_one_record_and_keeps_the_anchor() -> None:
    schedule = QuerySchedule(QueryOptions(), 0)
    sends(schedule, 6100)
    assert schedule.on_tick(ms(9_750))
    assert schedule.next_due() == ms(10_100)


@pytest.mark.parametrize("punctual_ms", [0, 400, 5600, 8000])
@pytest.mark.parametrize(
    "make",
    [
        lambda: AdvertisingSchedule(AdvertisingOptions(), 0, grid_ns=ms(3)),
        lambda: QuerySchedule(QueryOptions(), 0, grid_ns=ms(33)),
        lambda: QuerySchedule(QueryOptions(minimum_sustain_duration_ns=ms(2500)), 0, grid_ns=ms(7)),
        lambda: WildcardQuerySchedule(WildcardQueryOptions(), 0),
        lambda: DoublingSchedule(ms(100), ms(750), ms(3)),
    ],
)
def test_a_late_timer_leaves_out_just_what_it_missed(make: Callable[[], PhasedSchedule], punctual_ms: int) -> None:
    for late_ms in (*range(0, 9000, 97), 65_100, 70_000):
        punctual, late = make(), make()
        sends(punctual, punctual_ms)
        sends(late, punctual_ms)
        missed = sends(punctual, punctual_ms + late_ms)
        if punctual.phase is not late.phase:
            break
        assert late.on_tick(ms(punctual_ms + late_ms)) == bool(missed)
        assert (late.next_due(), late.phase) == (punctual.next_due(), punctual.phase)
        assert sends(late, punctual_ms + late_ms + 5000) == sends(punctual, punctual_ms + late_ms + 5000)


def test_the_record_that_ends_a_phase_late_begins_the_next_one_late() -> None:
    schedule = QuerySchedule(QueryOptions(), 0)
    assert sends(schedule, 5000)[-1] == 4900
    assert schedule.on_tick(ms(9750))
    rest = sends(schedule, 1_000_000)
    assert (rest[0], rest[-1]) == (10_800, 69_800)


def test_an_extra_query_just_before_a_late_timer_counts_for_the_phase_that_it_begins() -> None:
    schedule = QuerySchedule(QueryOptions(), 0)
    assert sends(schedule, 5000)[-1] == 4900
    schedule.restart_sustaining(ms(5250))
    assert schedule.on_tick(ms(5250))
    assert schedule.phase is Phase.SUSTAINING
    assert schedule.next_due() == ms(7100), "6100 is less than an interval after the extra query"


def test_a_very_late_timer_is_cheap_and_ends_a_phase() -> None:
    schedule = QuerySchedule(QueryOptions(), 0)
    assert schedule.on_tick(s(10**9))
    assert (schedule.phase, schedule.next_due()) == (Phase.SUSTAINING, s(10**9 + 1))
    assert schedule.on_tick(s(2 * 10**9))
    assert schedule.next_due() is None
    ticking = QuerySchedule(QueryOptions(minimum_initial_duration_ns=0), 0)
    assert ticking.on_tick(s(10**9))
    assert ticking.next_due() == s(10**9) + ms(100)
    endless = DoublingSchedule(ms(100), ms(1000), 0)
    assert endless.on_tick(s(10**9) + 1)
    assert endless.next_due() == s(10**9) + ms(500)


def test_doubling_without_ticks() -> None:
    assert sends(DoublingSchedule(ms(100), ms(1000), ms(3)), 4000) == [3, 103, 303, 703, 1503, 2503, 3503]


@given(
    late=st.lists(st.integers(0, 3_000_000_000), max_size=40),
    interval=st.integers(1, 2000),
    duration=st.integers(0, 5000),
    events=st.lists(st.booleans(), max_size=40),
)
def test_due_times_always_move_forward(late: list[int], interval: int, duration: int, events: list[bool]) -> None:
    options = QueryOptions(
        sustain_interval_ns=ms(interval),
        minimum_sustain_duration_ns=ms(duration),
        minimum_initial_duration_ns=ms(duration),
    )
    schedule = QuerySchedule(options, 0)
    now = 0
    for step, extra in zip(late, events, strict=False):
        due = schedule.next_due()
        now = max(now, due or 0) + step
        if extra:
            schedule.restart_sustaining(now)
        schedule.on_tick(now)
        after = schedule.next_due()
        assert after is None or after > now or schedule.phase is not Phase.QUIESCENT
        if after is not None:
            assert after > now


def test_an_extra_query_begins_the_sustaining_phase_anew() -> None:
    schedule = QuerySchedule(QueryOptions(), 0)
    assert sends(schedule, 49_200)[-1] == 49_100
    schedule.restart_sustaining(ms(49_200))
    rest = sends(schedule, 1_000_000)
    assert (rest[0], rest[-1]) == (51_100, 110_100)
