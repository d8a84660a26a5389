"""Questions to the DRO take turns, with a rest after each, and few wait."""

from __future__ import annotations

import threading

import pytest

from supervisor.monitor.answers import turns as turns_module
from supervisor.monitor.answers.models import ApiError
from supervisor.monitor.answers.turns import REST_MAX_S, WAITING_MAX, Turns


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize(("took_s", "rest_s"), [(0.0, 0.0), (0.5, 0.5), (REST_MAX_S + 5, REST_MAX_S)])
def test_after_an_answer_there_is_a_rest_as_long(took_s: float, rest_s: float) -> None:
    clock = Clock()
    turns = Turns(clock, clock.sleep)
    with turns.take():
        clock.now_s += took_s
    ended_s = clock.now_s
    with turns.take():
        assert clock.now_s == pytest.approx(ended_s + rest_s)


def test_a_rest_that_is_over_delays_nobody() -> None:
    clock = Clock()
    turns = Turns(clock, clock.sleep)
    with turns.take():
        clock.now_s += 1
    clock.now_s = before_s = clock.now_s + 2
    with turns.take():
        assert clock.now_s == before_s


def test_a_failure_gives_the_turn_back() -> None:
    turns = Turns()
    with pytest.raises(KeyError), turns.take():
        raise KeyError
    with turns.take():
        pass


def test_who_finds_too_many_waiting_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "PATIENCE_S", 0.01)
    turns, goes_on = Turns(), threading.Event()
    holds = threading.Barrier(2)

    def hold() -> None:
        with turns.take():
            holds.wait(10)
            goes_on.wait(10)

    def wait() -> None:
        with turns.take():
            pass

    threads = [threading.Thread(target=hold)]
    threads[0].start()
    holds.wait(10)
    threads += [threading.Thread(target=wait) for _ in range(WAITING_MAX - 1)]
    for thread in threads[1:]:
        thread.start()
    try:
        while turns._room._value:  # until all of them wait
            goes_on.wait(0.001)
        with pytest.raises(ApiError, match="questions wait already") as caught, turns.take():
            pass
        assert caught.value.status == 503
    finally:
        goes_on.set()
        for thread in threads:
            thread.join(10)
    with turns.take():
        pass
