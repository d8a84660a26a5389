"""The two places where a client's loop runs."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from dro.clock import ms
from dro.um.hosts import AsyncLoop, ThreadLoop
from dro.um.message.events import UsageError
from tests.fakes.um_contexts import PATIENCE_S


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
