"""How coroutines wait in the asyncio interface: for changes, for events in a queue, and for what is still to be sent.

State: what happened that nobody has seen yet. Source: client library notes, section 1.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

from dro.um.handles import DRAIN_CHECK_S, DRAIN_TIMEOUT_S
from dro.um.hosts import AsyncLoop
from dro.um.message.events import Event
from dro.um.message.receiver import CallbackListener, OnSource


class TaskWaiters:
    """Coroutines that wait for something to change."""

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    def wake(self) -> None:
        futures, self._futures = self._futures, []
        for future in futures:
            if not future.done():
                future.set_result(None)

    async def wait(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        await future


class TaskQueue(CallbackListener):
    """Events for `async for`; more than `limit` of them pause the loop until half of them are taken."""

    def __init__(self, loop: AsyncLoop, limit: int, on_source: OnSource | None) -> None:
        super().__init__(None, None, on_source)
        self._loop = loop
        self._limit = limit
        self.events: deque[Event] = deque()
        self.waiters = TaskWaiters()
        self.is_ended = False

    def on_events(self, events: list[Event]) -> None:
        if self.is_ended:
            return
        self.events.extend(events)
        self.waiters.wake()
        if len(self.events) > self._limit:
            self._loop.pause(self)

    async def get(self) -> Event | None:
        """The next event; None after the end."""
        while not self.events:
            if self.is_ended:
                return None
            await self.waiters.wait()
        event = self.events.popleft()
        if self._loop.is_paused and len(self.events) <= self._limit // 2:
            self._loop.resume(self)
        return event

    def close(self) -> None:
        super().close()
        self.is_ended = True
        self.events.clear()
        self._loop.resume(self)
        self.waiters.wake()


class TaskClosing:
    """Is closed at the end of `async with`."""

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def settle(is_done: Callable[[], bool], progress: Callable[[], int] = lambda: 0) -> bool:
    """Wait until it is done, `DRAIN_TIMEOUT_S` at most without progress; return whether it is."""
    time = asyncio.get_running_loop().time
    before, deadline = progress(), time() + DRAIN_TIMEOUT_S
    while not (done := is_done()) and time() < deadline:
        await asyncio.sleep(DRAIN_CHECK_S)
        if (now := progress()) != before:
            before, deadline = now, time() + DRAIN_TIMEOUT_S
    return done
