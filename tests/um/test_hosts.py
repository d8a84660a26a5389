"""The two places where a client's loop runs."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from dro.clock import ms, s
from dro.transport.session import DataReader
from dro.um.hosts import AsyncLoop, PausableLoop, ThreadLoop
from dro.um.message.events import UsageError
from tests.fakes.clock import SteppedClock
from tests.fakes.um_contexts import PATIENCE_S, turn_until


@pytest.fixture
def thread_loop() -> ThreadLoop:
    loop = ThreadLoop("test")
    loop.start()
    return loop


def test_a_timer_set_by_another_thread_wakes_the_sleeping_loop(thread_loop: ThreadLoop) -> None:
    fired = threading.Event()
    threads: list[bool] = []

    def fire() -> None:
        threads.append(thread_loop.is_own_thread)
        fired.set()

    with thread_loop:
        thread_loop.call_later(ms(5), fire)
    assert fired.wait(PATIENCE_S)
    assert threads == [True]
    soon = threading.Event()
    with thread_loop:
        thread_loop.call_soon(soon.set)
    assert soon.wait(PATIENCE_S)
    thread_loop.join()
    thread_loop.close()


def test_a_busy_sender_does_not_keep_the_loop_out(thread_loop: ThreadLoop) -> None:
    ticks = 0

    def tick() -> None:
        nonlocal ticks
        ticks += 1
        thread_loop.call_later(ms(1), tick)

    with thread_loop:
        thread_loop.call_soon(tick)
    deadline = time.monotonic() + PATIENCE_S
    while ticks < 20 and time.monotonic() < deadline:
        with thread_loop:
            pass
    assert ticks >= 20
    thread_loop.join()
    thread_loop.close()


def test_waiting_on_the_own_thread_is_refused(thread_loop: ThreadLoop) -> None:
    caught: list[Exception] = []
    done = threading.Event()

    def wait() -> None:
        try:
            thread_loop.check_may_wait()
        except UsageError as e:
            caught.append(e)
        done.set()

    with thread_loop:
        thread_loop.call_soon(wait)
    assert done.wait(PATIENCE_S)
    assert len(caught) == 1
    thread_loop.check_may_wait()
    thread_loop.join()
    thread_loop.close()


def test_asyncio_turns_the_loop_for_timers_and_calls() -> None:
    async def run() -> list[str]:
        loop = AsyncLoop()
        loop.attach()
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        order: list[str] = []

        def later() -> None:
            order.append("later")
            loop.call_later(ms(1), last)

        def last() -> None:
            order.append("last")
            done.set_result(None)

        loop.call_later(ms(20), later)
        loop.call_later(ms(5), lambda: order.append("earlier"))
        loop.call_soon(lambda: order.append("soon"))
        await asyncio.wait_for(done, PATIENCE_S)
        loop.detach()
        loop.close()
        return order

    assert asyncio.run(run()) == ["soon", "earlier", "later", "last"]


def test_a_cancelled_timer_does_not_fire_in_asyncio() -> None:
    async def run() -> list[str]:
        loop = AsyncLoop()
        loop.attach()
        order: list[str] = []
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = loop.call_later(ms(5), lambda: order.append("never"))
        loop.call_later(ms(15), lambda: done.set_result(None))
        timer.cancel()
        await asyncio.wait_for(done, PATIENCE_S)
        loop.detach()
        loop.close()
        return order

    assert asyncio.run(run()) == []


def test_a_timer_set_in_a_callback_wakes_nobody(thread_loop: ThreadLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's thread is awake then: a wake would only cost another turn."""
    own: list[bool] = []
    wake = thread_loop.wake

    def note() -> None:
        own.append(thread_loop.is_own_thread)
        wake()

    monkeypatch.setattr(thread_loop, "wake", note)
    running, done = threading.Event(), threading.Event()
    with thread_loop:
        thread_loop.call_soon(running.set)
    assert running.wait(PATIENCE_S)
    with thread_loop:  # it sleeps now, without an end
        thread_loop.call_soon(lambda: thread_loop.call_later(ms(1), done.set))
    assert done.wait(PATIENCE_S)
    assert True not in own
    thread_loop.join()
    thread_loop.close()


# data that waits while an application lags behind


class Reader(DataReader):
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.got: list[bytes] = []

    def on_readable(self) -> None:
        self.got.append(self.sock.recv(100))


@pytest.fixture
def paired() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.mark.parametrize("by_number", [True, False])
def test_paused_data_waits_for_all_who_paused_and_everything_else_goes_on(
    by_number: bool, paired: tuple[socket.socket, socket.socket]
) -> None:
    loop = PausableLoop()
    ours, theirs = paired
    reader, other = Reader(ours), []
    control, controlling = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    loop.add_reader(control, lambda: other.append(control.recv(100)))
    loop.add_reader(ours.fileno() if by_number else ours, reader.on_readable)
    assert not loop.is_paused
    loop.resume("nobody paused")
    for who in ("one", "two", "one"):
        loop.pause(who)
    assert loop.is_paused
    theirs.send(b"data")
    controlling.send(b"control")
    turn_until(loop, lambda: bool(other))  # on a busy machine a turn may be over before it reads
    assert (reader.got, other) == ([], [b"control"])
    loop.resume("one")
    loop.resume("one")
    loop.run_once(0)
    assert (loop.is_paused, reader.got) == (True, [])
    loop.resume("two")
    turn_until(loop, lambda: bool(reader.got))
    assert (loop.is_paused, reader.got) == (False, [b"data"])
    loop.pause("one")
    loop.remove_reader(ours.fileno() if by_number else ours)
    loop.resume("one")
    theirs.send(b"more")
    loop.run_once(0)
    assert reader.got == [b"data"], "nobody reads any more"
    loop.close()
    control.close()
    controlling.close()


def test_a_session_that_is_joined_during_a_pause_is_read_after_it(paired: tuple[socket.socket, socket.socket]) -> None:
    loop = PausableLoop()
    ours, theirs = paired
    reader = Reader(ours)
    loop.pause("somebody")
    loop.add_reader(ours, reader.on_readable)
    theirs.send(b"data")
    loop.run_once(0)
    assert reader.got == []
    loop.resume("somebody")
    loop.run_once(0)
    assert reader.got == [b"data"]
    loop.close()


# asyncio, of which only the calls are looked at


class Handle:
    def __init__(self, delay: float | None, callback: Callable[[], object]) -> None:
        self.delay = delay
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Aio:
    """In the place of the running asyncio loop: what it was asked for."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[[], object]] = {}
        self.handles: list[Handle] = []

    def add_reader(self, fd: int, callback: Callable[[], object]) -> None:
        self.readers[fd] = callback

    def remove_reader(self, fd: int) -> None:
        del self.readers[fd]

    def call_soon(self, callback: Callable[[], object]) -> Handle:
        self.handles.append(Handle(None, callback))
        return self.handles[-1]

    def call_later(self, delay: float, callback: Callable[[], object]) -> Handle:
        self.handles.append(Handle(delay, callback))
        return self.handles[-1]

    @property
    def due(self) -> list[float | None]:
        """Delays of what is to be called; None for at once."""
        return [handle.delay for handle in self.handles if not handle.is_cancelled]

    def fire(self) -> None:
        (handle,) = [handle for handle in self.handles if not handle.is_cancelled]
        self.handles.clear()
        handle.callback()


@pytest.fixture
def aio(monkeypatch: pytest.MonkeyPatch) -> Aio:
    made = Aio()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: made)
    return made


@pytest.fixture
def hosted() -> Iterator[AsyncLoop]:
    loop = AsyncLoop()
    loop.clock = SteppedClock(s(1))
    yield loop
    loop.close()


def test_asyncio_has_one_call_for_the_next_deadline_and_none_when_there_is_none(aio: Aio, hosted: AsyncLoop) -> None:
    hosted.call_later(ms(500), lambda: None)
    hosted.attach()
    assert (list(aio.readers), aio.due) == ([hosted.fileno()], [0.5])
    hosted.call_later(ms(900), lambda: None)
    hosted.call_later(ms(500), lambda: None)
    assert (aio.due, len(aio.handles)) == ([0.5], 1), "nothing sooner, so nothing to change"
    soon = hosted.call_later(ms(250), lambda: None)
    assert (aio.due, len(aio.handles)) == ([0.25], 2)
    hosted.call_at(s(1), lambda: None)
    assert aio.due == [None], "due now"
    aio.fire()
    assert aio.due == [0.25]
    soon.cancel()
    aio.readers[hosted.fileno()]()
    assert aio.due == [0.5]
    hosted.call_soon(lambda: None)
    assert aio.due == [None]
    aio.fire()
    assert aio.due == [0.5]
    hosted.detach()
    assert (aio.readers, aio.due) == ({}, [])
    hosted.detach()


def test_a_turn_runs_what_is_due_and_sets_the_call_once_at_its_end(aio: Aio, hosted: AsyncLoop) -> None:
    order: list[str] = []

    def turn_again() -> None:
        order.append("due")
        hosted.call_later(ms(70), lambda: order.append("later"))
        hosted.call_soon(lambda: order.append("soon"))
        aio.readers[hosted.fileno()]()  # as from within a callback
        assert aio.due == [], "not while it turns"

    hosted.attach()
    assert aio.due == []
    hosted.call_later(ms(10), turn_again)
    aio.fire()
    assert aio.due == [0.01], "asyncio was early"
    hosted.clock.time_ns += ms(10)  # type: ignore[attr-defined]  # stepped
    aio.fire()
    assert (order, aio.due) == (["due"], [None])
    aio.fire()
    assert (order, aio.due) == (["due", "soon"], [0.07])
    hosted.clock.time_ns += ms(70)  # type: ignore[attr-defined]  # stepped
    aio.fire()
    assert (order, aio.due) == (["due", "soon", "later"], [])


def test_a_callback_that_fails_costs_asyncio_no_later_turn(aio: Aio, hosted: AsyncLoop) -> None:
    def fail() -> None:
        raise ValueError("the application's fault")

    hosted.attach()
    hosted.call_soon(fail)
    with contextlib.suppress(ValueError):
        aio.fire()
    ran: list[bool] = []
    hosted.call_soon(lambda: ran.append(True))
    aio.fire()
    assert ran == [True]


def test_a_loop_without_asyncio_keeps_what_it_is_given(aio: Aio, hosted: AsyncLoop) -> None:
    ran: list[bool] = []
    hosted.call_soon(lambda: ran.append(True))
    hosted.call_later(ms(5), lambda: None)
    hosted.detach()
    assert aio.handles == []
    hosted.attach()
    assert aio.due == [None]
    turn = aio.readers[hosted.fileno()]
    hosted.detach()
    turn()
    assert ran == [], "detached"
    hosted.attach()
    aio.fire()
    assert ran == [True]


# a thread


class Asleep:
    """As an epoll on which nothing happens."""

    def __init__(self, meanwhile: Callable[[float | None], None]) -> None:
        self._meanwhile = meanwhile

    def poll(self, wait_s: float | None) -> list[tuple[int, int]]:
        if wait_s != 0:
            self._meanwhile(wait_s)
        return []

    def close(self) -> None:
        pass


def test_only_what_is_sooner_than_its_sleep_wakes_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sleep is played by an epoll that does what other threads would do meanwhile."""
    loop = ThreadLoop("test")
    loop.clock = SteppedClock(s(1))
    woken: list[str] = []
    doing = ""
    monkeypatch.setattr(loop, "wake", lambda: woken.append(doing))

    def meanwhile(_wait_s: float | None) -> None:
        nonlocal doing
        with loop:  # the lock is free
            for doing, when_ns in (("before", s(3) - 1), ("at", s(3)), ("after", s(4))):  # noqa: B007  told by `wake`
                loop.call_at(when_ns, lambda: None)
            doing = "soon"
            loop.call_soon(lambda: None)
            doing = "resume"
            loop.resume("nobody")

    loop._epoll.close()
    loop._epoll = cast(select.epoll, Asleep(meanwhile))
    with loop:
        loop.call_at(s(3), lambda: None)
        loop.run_once(None)
        assert woken == ["before", "soon", "resume"]
        woken.clear()
        loop.run_once(0)
        loop.call_at(s(1), lambda: pytest.fail("cancelled")).cancel()
        loop.call_soon(lambda: None)
        loop.resume("nobody")
        assert woken == [], "it is awake"
        loop.run_once(0)
    loop.close()


def test_a_sleep_without_end_is_woken_by_any_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = ThreadLoop("test")
    woken: list[bool] = []
    monkeypatch.setattr(loop, "wake", lambda: woken.append(True))

    def meanwhile(wait_s: float | None) -> None:
        assert wait_s is None
        with loop:
            loop.call_at(1 << 62, lambda: None)

    loop._epoll.close()
    loop._epoll = cast(select.epoll, Asleep(meanwhile))
    with loop:
        loop.run_once(None)
    assert woken == [True]
    loop.close()


def test_the_thread_of_a_loop_has_its_name_and_ends_with_the_program(thread_loop: ThreadLoop) -> None:
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "test"]
    assert thread.daemon
    assert not thread_loop.is_own_thread
    thread_loop.join()
    assert not thread.is_alive()
    thread_loop.close()


def test_who_has_the_lock_may_take_it_again_while_the_thread_waits_for_it() -> None:
    loop = ThreadLoop("again")
    loop.start()
    done = threading.Event()

    def nested() -> None:
        with loop:
            loop.wake()
            deadline = time.monotonic() + PATIENCE_S
            while not loop._gate.locked():
                assert time.monotonic() < deadline, "the thread does not come for the lock"
                time.sleep(0.001)
            with loop:
                done.set()

    threading.Thread(target=nested, daemon=True).start()
    assert done.wait(PATIENCE_S), "each waits for the other"
    loop.join()
