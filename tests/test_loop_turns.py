"""Long work in slices, work without a descriptor, and the measure of a turn."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from dro.loop import MUCH, SLICE_NS, TURN_NS, Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


class Queue:
    """A poller whose work is a list."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.taken: list[int] = []
        self.sleeps = 0
        self.comes_late: list[int] = []

    def take(self) -> bool:
        had, self.taken, self.waiting = bool(self.waiting), self.taken + self.waiting, []
        return had

    def before_sleep(self) -> bool:
        self.sleeps += 1
        self.waiting, self.comes_late = self.waiting + self.comes_late, []
        return not self.waiting

    def after_sleep(self) -> None:
        self.sleeps += 1000


def spin(ns: int) -> None:
    end = time.monotonic_ns() + ns
    while time.monotonic_ns() < end:
        pass


def test_long_work_leaves_turns_to_others_and_several_take_turns(loop: Loop) -> None:
    seen: list[str] = []

    def steps(name: str) -> Iterator[None]:
        for _ in range(3):
            spin(SLICE_NS)
            seen.append(name)
            yield

    loop.run_in_slices(steps("a"))
    loop.run_in_slices(steps("b"))
    assert loop.next_deadline() == 0, "it waits for nothing"
    others = 0
    while len(seen) < 6:
        loop.call_soon(lambda: None)
        loop.run_once()
        others += 1
    assert seen == ["a", "b"] * 3
    assert others >= 6, "a step as long as a slice ends its turn"
    loop.run_once(0)
    loop.run_once(0)
    assert loop.next_deadline() is None


def test_short_steps_share_one_turn(loop: Loop) -> None:
    seen: list[int] = []
    loop.run_in_slices(iter(map(seen.append, range(100))))
    loop.run_once(0)
    assert seen == list(range(100))


def test_a_poller_is_asked_in_each_turn_and_before_each_sleep(loop: Loop) -> None:
    queue = Queue()
    loop.add_poller(queue)
    queue.waiting = [1]
    assert loop.run_once(0), "it worked"
    assert queue.taken == [1]
    assert queue.sleeps == 0, "no sleep without time to sleep"
    loop.run_once(1_000_000)
    assert queue.sleeps == 1001, "before and after the sleep"


def test_work_that_comes_while_a_wake_up_is_asked_for_prevents_the_sleep(loop: Loop) -> None:
    queue = Queue()
    loop.add_poller(queue)
    queue.comes_late = [7]
    loop.run_once()  # would sleep for ever
    assert queue.taken == [7]
    assert queue.sleeps == 1


def test_polling_takes_work_without_a_sleep(loop: Loop) -> None:
    class Late(Queue):
        def take(self) -> bool:
            self.asked = getattr(self, "asked", 0) + 1
            if self.asked == 3:
                self.waiting = [3]
            return super().take()

    queue = Late()
    loop.add_poller(queue)
    loop.poll_ns = 10_000_000_000
    loop.run_once()
    assert queue.taken == [3]
    assert queue.sleeps == 0


def test_the_longest_turn_is_measured_without_its_sleep(loop: Loop) -> None:
    loop.forget_longest_turn()
    loop.run_once(30_000_000)
    assert loop.longest_turn_ns < 30_000_000
    assert loop.longest_turn_cpu_ns < 30_000_000
    loop.call_soon(lambda: spin(40_000_000))
    loop.run_once(0)
    loop.run_once(0)
    assert loop.longest_turn_ns >= 40_000_000
    assert loop.longest_turn_cpu_ns > 0
    loop.forget_longest_turn()
    assert loop.longest_turn_ns == 0


def spin_cpu(ns: int) -> None:
    end = time.thread_time_ns() + ns
    while time.thread_time_ns() < end:
        pass


def test_what_a_full_turn_has_not_called_comes_first_in_the_next(loop: Loop) -> None:
    seen: list[int] = []
    pairs = [socket.socketpair() for _ in range(3)]
    queue = Queue()
    loop.add_poller(queue)

    def reader(name: int, ns: int) -> Callable[[], bool]:
        def read() -> bool:
            seen.append(name)
            spin_cpu(ns)
            return False

        return read

    for name, (one, other) in enumerate(pairs):
        loop.add_reader(one, reader(name, TURN_NS + 1_000_000 if name < 2 else 0))
        other.send(b"never read")
    queue.waiting = [7]
    turns = []
    for _ in range(4):
        assert loop.run_once(0)
        turns.append((seen.copy(), queue.taken))
        seen.clear()
        queue.taken = []
        assert loop.next_deadline() in (0, None)
    assert [called for called, _ in turns[:3]] == [[0], [1], [2, 0]], "each had its turn, and the first once more"
    assert [taken for _, taken in turns[:2]] == [[], [7]], "at the beginning of the next turn"
    for one, other in pairs:
        loop.remove_reader(one)
        one.close()
        other.close()


def test_slices_and_readers_wait_for_one_turn_when_calls_have_filled_it(loop: Loop) -> None:
    seen: list[str] = []
    one, other = socket.socketpair()

    def call() -> None:
        seen.append("call")
        spin_cpu(TURN_NS + 1_000_000)
        loop.call_soon(call)

    def read() -> None:
        seen.append("reader")

    def steps() -> Iterator[None]:
        while True:
            seen.append("slice")
            spin(SLICE_NS)
            yield

    loop.add_reader(one, read)
    other.send(b"never read")
    loop.run_in_slices(steps())
    loop.call_soon(call)
    turns = []
    for _ in range(4):
        assert loop.run_once(0)
        turns.append(seen.copy())
        seen.clear()
    assert turns == [["call"], ["call", "slice", "reader"]] * 2
    loop.remove_reader(one)
    one.close()
    other.close()


def test_a_reader_that_is_removed_while_it_waits_for_a_turn_is_not_called(loop: Loop) -> None:
    pairs = [socket.socketpair() for _ in range(2)]
    loop.add_reader(pairs[0][0], lambda: spin_cpu(TURN_NS + 1_000_000))
    loop.add_reader(pairs[1][0], lambda: pytest.fail("it is removed"))
    for _, other in pairs:
        other.send(b"x")
    loop.run_once(0)
    loop.remove_reader(pairs[1][0])
    loop.run_once(0)
    loop.remove_reader(pairs[0][0])
    assert loop.next_deadline() is None
    for pair in pairs:
        for end in pair:
            end.close()


def test_what_is_put_off_to_the_end_of_a_turn_is_called_once_behind_all_else(loop: Loop) -> None:
    said: list[str] = []

    def last() -> None:
        said.append("last")

    class Talking(Queue):
        def take(self) -> bool:
            said.append("polled")
            return False

    def first() -> None:
        said.append("first")
        loop.at_turn_end(last)
        loop.at_turn_end(last)

    loop.add_poller(Talking())
    loop.call_soon(first)
    loop.run_once(0)
    loop.run_once(0)
    assert said == ["first", "polled", "last", "polled"]


def resting(below_ns: int, counted: int = MUCH) -> Loop:
    """Make a loop whose turns count that much."""
    loop = Loop(rest_below_ns=below_ns)
    loop.after_turn = lambda: counted
    loop.forget_longest_turn()
    return loop


@pytest.mark.parametrize(("limit_ns", "rests"), [(0, False), (20_000_000, False), (1_000_000_000, True)])
def test_a_small_turn_is_followed_by_a_rest_as_long(
    limit_ns: int, rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    loop = resting(limit_ns)
    loop.call_soon(lambda: spin_cpu(30_000_000))
    loop.run_once(0)
    monkeypatch.setattr(time, "sleep", slept.append)
    for _ in range(2):  # after a turn without work, which a wake-up alone is, there is no rest
        loop.wake()
        assert not loop.run_once(None)
    assert (len(slept) == 1 and 0.03 <= slept[0] < 0.9) is rests
    assert rests or not slept
    loop.close()


def test_no_rest_lasts_longer_than_the_next_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = resting(10_000_000_000)
    loop.call_soon(lambda: spin_cpu(300_000_000))
    loop.run_once(0)
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    loop.call_later(1_000_000, lambda: None)
    loop.run_once(None)
    assert all(seconds <= 0.001 for seconds in slept)
    loop.close()


@pytest.mark.parametrize(("counted", "rests"), [(0, False), (MUCH - 1, False), (MUCH, True)])
def test_a_turn_that_counted_little_is_not_followed_by_a_rest(
    counted: int, rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = resting(1_000_000_000, counted)
    slept: list[float] = []
    loop.call_soon(lambda: spin_cpu(1_000_000))
    loop.run_once(0)
    monkeypatch.setattr(time, "sleep", slept.append)
    loop.run_once(1)
    assert bool(slept) is rests
    loop.close()


def test_after_a_sleep_what_is_polled_comes_before_the_reader_that_ended_it(loop: Loop) -> None:
    seen: list[list[int]] = []
    mine, far = socket.socketpair()
    queue = Queue()
    loop.add_poller(queue)

    def read() -> None:
        mine.recv(1)
        seen.append(queue.taken)

    loop.add_reader(mine, read)

    def wake(number: int) -> None:
        queue.waiting.append(number)
        far.send(b"w")

    after = threading.Timer(0.05, wake, [1])
    after.start()
    loop.run_once(5_000_000_000)
    wake(2)  # there at once: no sleep
    loop.run_once(0)
    assert seen == [[1], [1]]
    assert queue.taken == [1, 2]
    after.join()
    mine.close()
    far.close()


def test_what_must_come_after_all_that_was_put_off_comes_last_whoever_asked_first(loop: Loop) -> None:
    seen: list[str] = []

    def work() -> None:
        loop.when_settled(settled)
        loop.at_turn_end(first)

    def first() -> None:
        seen.append("first")
        loop.at_turn_end(second)

    def second() -> None:
        seen.append("second")
        loop.when_settled(settled)

    def settled() -> None:
        seen.append("settled")

    loop.call_soon(work)
    loop.run_once(0)
    loop.run_once(0)
    assert seen == ["first", "second", "settled"]
