"""How threads wait in the blocking interface: for changes, for events in a queue, and for what is still to be sent.

State: what happened that nobody has seen yet. Source: client library notes, section 1.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Self

from dro.um.handles import DRAIN_CHECK_S, DRAIN_TIMEOUT_S
from dro.um.hosts import ThreadLoop
from dro.um.message.events import Event
from dro.um.message.receiver import CallbackListener, OnSource


class ThreadChanges:
    """Threads that wait for something to change; `wake` is called with the loop's lock held."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0

    def wake(self) -> None:
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait_until(self, is_true: Callable[[], bool], timeout: float | None, what: str) -> None:
        """Wait until it is true. Raises: TimeoutError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._condition:
                seen = self._count
            if is_true():  # takes the loop's lock, so not under the condition's
                return
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(what)
            self._wait_past(seen, left)

    def _wait_past(self, seen: int, timeout: float | None) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._count != seen, timeout)


class ThreadQueue(CallbackListener):
    """Events for other threads; more than `limit` of them pause the loop until half of them are taken."""

    def __init__(self, loop: ThreadLoop, limit: int, on_source: OnSource | None) -> None:
        super().__init__(None, None, on_source)
        self._loop = loop
        self._limit = limit
        self._events: deque[Event] = deque()
        self._condition = threading.Condition()
        self._is_ended = False

    def on_events(self, events: list[Event]) -> None:
        with self._condition:
            if self._is_ended:
                return
            self._events.extend(events)
            self._condition.notify()
            if len(self._events) > self._limit:
                self._loop.pause(self)  # under the condition, so that who takes the events sees it

    def get(self, timeout: float | None) -> Event | None:
        """The next event; None after the end. Raises: TimeoutError."""
        with self._condition:
            if not self._events:
                self._loop.check_may_wait()
            if not self._condition.wait_for(lambda: self._events or self._is_ended, timeout):
                raise TimeoutError("no event")
            if self._is_ended:
                return None
            event = self._events.popleft()
            is_low = len(self._events) <= self._limit // 2
        if is_low and self._loop.is_paused:
            with self._loop:
                self._loop.resume(self)
        return event

    def close(self) -> None:
        super().close()
        self._loop.resume(self)
        with self._condition:
            self._is_ended = True
            self._events.clear()
            self._condition.notify_all()


class ThreadClosing:
    """Is closed at the end of `with`."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def settle(
    lock: ThreadLoop,
    is_done: Callable[[], bool],
    progress: Callable[[], int] = lambda: 0,
    is_stopped: Callable[[], bool] = lambda: False,
) -> bool:
    """Wait until it is done, `DRAIN_TIMEOUT_S` at most without progress; return whether it is."""
    before, deadline = -1, time.monotonic() + DRAIN_TIMEOUT_S
    while time.monotonic() < deadline and not is_stopped():
        with lock:
            if is_done():
                return True
            if (now := progress()) != before:
                before, deadline = now, time.monotonic() + DRAIN_TIMEOUT_S
        time.sleep(DRAIN_CHECK_S)
    return False
