"""The calendar: order, cancellation, bounded turns, and that nothing is left behind."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from dro.timers import COMPACT_AT, DUE_MAX, Calendar, Due, TimerHeap
from tests.fakes.steps import steps


@dataclass(slots=True, eq=False)
class Bell(Due):
    name: int
    rung: list[int] = field(default_factory=list)

    def on_due(self) -> None:
        self.rung.append(self.name)


def test_what_is_due_is_called_in_order_of_time_and_then_of_setting() -> None:
    calendar, rung = Calendar(), list[int]()
    for name, at_ns in enumerate((20, 10, 20, 10, 30)):
        calendar.set(Bell(name, rung), at_ns)
    assert (calendar.next_deadline(), len(calendar)) == (10, 5)
    calendar.run_due(9)
    assert rung == []
    calendar.run_due(20)
    assert (rung, calendar.next_deadline(), len(calendar)) == ([1, 3, 0, 2], 30, 1)


def test_what_a_call_sets_for_now_is_done_in_the_same_turn() -> None:
    calendar = Calendar()

    @dataclass(slots=True, eq=False)
    class Echo(Due):
        left: int

        def on_due(self) -> None:
            self.left -= 1
            calendar.set(self, 5 if self.left else None)

    echo = Echo(3)
    calendar.set(echo, 5)
    calendar.run_due(5)
    assert (echo.left, calendar.next_deadline()) == (0, None)


def test_a_turn_ends_and_the_deadline_tells_of_the_rest() -> None:
    calendar, rung = Calendar(), list[int]()
    for name in range(2 * DUE_MAX + 1):
        calendar.set(Bell(name, rung), 7)
    counts = []
    while calendar.next_deadline() == 7:
        calendar.run_due(100)
        counts.append(len(rung))
    assert counts == [DUE_MAX, 2 * DUE_MAX, 2 * DUE_MAX + 1]
    assert rung == sorted(rung)


def test_a_place_that_was_taken_and_left_again_is_one() -> None:
    calendar, rung = Calendar(), list[int]()
    bell = Bell(1, rung)
    for at_ns in (5, 7, 5, None, 5, 5):
        calendar.set(bell, at_ns)
    calendar.run_due(10)
    assert (rung, calendar.next_deadline(), bell.due_ns) == ([1], None, None)


def test_times_that_were_all_cancelled_cost_nothing() -> None:
    calendar = Calendar()
    kept = Bell(0)
    calendar.set(kept, 10**9)
    for at_ns in range(1, 100 * COMPACT_AT):
        bell = Bell(at_ns)
        calendar.set(bell, at_ns)
        calendar.set(bell, None)
    assert steps(calendar.next_deadline) < 100 * COMPACT_AT
    assert calendar.next_deadline() == 10**9


def test_setting_and_cancelling_cost_the_same_however_many_there_are() -> None:
    def cost(others: int) -> int:
        calendar = Calendar()
        for name in range(others):
            calendar.set(Bell(name), name // 100)
        bell = Bell(-1)
        return sum(steps(partial(calendar.set, bell, at_ns)) for at_ns in (1, None))

    assert cost(200) == cost(2000)


@given(st.lists(st.tuples(st.integers(0, 5), st.one_of(st.none(), st.integers(0, 40)))), st.integers(0, 40))
def test_the_calendar_does_what_a_sorted_list_does(moves: list[tuple[int, int | None]], now_ns: int) -> None:
    calendar, rung = Calendar(), list[int]()
    bells = [Bell(name, rung) for name in range(6)]
    places: dict[int, tuple[int, int]] = {}
    for serial, (name, at_ns) in enumerate(moves):
        calendar.set(bells[name], at_ns)
        if at_ns is None:
            places.pop(name, None)
        elif places.get(name, (-1, 0))[0] != at_ns:
            places[name] = (at_ns, serial)
    assert len(calendar) == len(places)
    calendar.run_due(now_ns)
    due = [name for name in sorted(places, key=places.__getitem__) if places[name][0] <= now_ns]
    assert sorted(rung) == sorted(due)
    assert [places[name][0] for name in rung] == [places[name][0] for name in due]
    left = [at_ns for at_ns, _ in places.values() if at_ns > now_ns]
    assert calendar.next_deadline() == min(left, default=None)


def test_long_work_goes_on_beside_what_is_due_however_much_that_is() -> None:
    calendar, rung = Calendar(), list[int]()

    @dataclass(slots=True, eq=False)
    class Ever(Due):
        def on_due(self) -> None:
            calendar.set(self, 5)

    calendar.set(Ever(), 5)
    calendar.run_in_slices(map(rung.append, range(3 * DUE_MAX)), 5)
    calendar.run_in_slices(map(rung.append, range(-1, -2 * DUE_MAX, -1)), 5)
    counts = [len(rung)]
    while calendar.next_deadline() is not None and len(counts) < 7:
        calendar.run_due(6)
        counts.append(len(rung))
    every = 5 * DUE_MAX - 1
    assert counts == [DUE_MAX, 2 * DUE_MAX, 3 * DUE_MAX, 4 * DUE_MAX, every, every, every]
    assert [n for n in rung if n >= 0] == list(range(3 * DUE_MAX))


def test_while_long_work_goes_on_the_deadline_is_now() -> None:
    calendar = Calendar()
    assert calendar.next_deadline() is None
    calendar.run_in_slices(iter(range(DUE_MAX - 1)), 5)
    assert calendar.next_deadline() is None
    calendar.run_in_slices(iter(range(DUE_MAX)), 5)
    assert calendar.next_deadline() == 5
    calendar.set(Bell(1), 9)
    assert calendar.next_deadline() == 5
    calendar.run_due(8)
    assert calendar.next_deadline() == 9


def test_a_timer_that_was_cancelled_or_called_lets_go_of_what_it_calls() -> None:
    heap = TimerHeap()
    calls = [lambda: None for _ in range(2)]
    gone = [weakref.ref(call) for call in calls]
    timers = [heap.call_at(at_ns, call) for at_ns, call in zip((10, 20), calls, strict=True)]
    calls.clear()
    gc.disable()
    try:
        timers[1].cancel()
        assert (gone[0]() is None, gone[1]() is None) == (False, True)
        heap.run_due(10)
        assert gone[0]() is None
    finally:
        gc.enable()
