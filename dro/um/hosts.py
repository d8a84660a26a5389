"""Where a client context's loop runs: a background thread, or inside asyncio. The code above does not know which.

    ThreadLoop   a thread runs the loop and holds its lock except while it sleeps; other threads take the
                 lock for each call, so a send runs in the thread that sends
    AsyncLoop    asyncio watches the loop's descriptor and runs it when something is ready or due; single-threaded

Both can stop reading data while an application lags behind (`pause`): then the sockets fill, which slows a TCP source
down and makes an LBT-RM receiver lose what exceeds its socket buffer. Everything else continues.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Hashable
from typing import Final

from dro.clock import NS_PER_S
from dro.loop import Callback, HasFileno, Loop
from dro.timers import Timer
from dro.transport.session import DataReader
from dro.um.message.events import UsageError

_NEVER: Final = 1 << 63


class PausableLoop(Loop):
    """A loop that can leave the sockets of joined sessions alone for a while."""

    def __init__(self) -> None:
        super().__init__()
        self._data: dict[int, Callback] = {}
        self._pausing: set[Hashable] = set()

    @property
    def is_paused(self) -> bool:
        return bool(self._pausing)

    def add_reader(self, source: int | HasFileno, callback: Callback) -> None:
        if isinstance(getattr(callback, "__self__", None), DataReader):
            self._data[source if isinstance(source, int) else source.fileno()] = callback
            if self._pausing:
                return
        super().add_reader(source, callback)

    def remove_reader(self, source: int | HasFileno) -> None:
        self._data.pop(source if isinstance(source, int) else source.fileno(), None)
        super().remove_reader(source)

    def pause(self, who: Hashable) -> None:
        """Read no data until `who` and everybody else that paused has resumed."""
        if not self._pausing:
            for fd in self._data:
                super().remove_reader(fd)
        self._pausing.add(who)

    def resume(self, who: Hashable) -> None:
        if who not in self._pausing:
            return
        self._pausing.discard(who)
        if not self._pausing:
            for fd, callback in self._data.items():
                super().add_reader(fd, callback)


class ThreadLoop(PausableLoop):
    """Turned by a daemon thread. `with loop:` around whatever another thread does to the things on it.

    A thread that comes back to the lock again and again would keep the loop's thread out; so whoever takes it passes
    a gate first, which the loop's thread closes while it waits.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._lock = threading.RLock()
        self._gate = threading.Lock()
        self._holder = 0  # the thread that has the lock by `with`
        self._depth = 0
        self._sleeps_until = 0
        self._host = threading.Thread(target=self._main, name=name, daemon=True)

    def start(self) -> None:
        self._host.start()

    @property
    def is_own_thread(self) -> bool:
        return threading.get_ident() == self._host.ident

    def __enter__(self) -> None:
        if self._holder != threading.get_ident():  # else the loop's thread may wait behind the gate for this one
            self._gate.acquire()
            self._gate.release()
        self._lock.acquire()
        self._holder = threading.get_ident()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._holder = 0
        self._lock.release()

    def check_may_wait(self) -> None:
        """Check that this is not the loop's own thread, where waiting would wait for itself. Raises: UsageError."""
        if self.is_own_thread:
            raise UsageError("a blocking call from a callback; callbacks run on the thread that must make it end")

    def _main(self) -> None:
        with self._lock:
            self.run()

    def _wait(self, wait_ns: int | None) -> list[tuple[int, int]]:
        self._sleeps_until = _NEVER if wait_ns is None else self.now_ns() + wait_ns
        self._lock.release()
        try:
            return super()._wait(wait_ns)
        finally:
            with self._gate:
                self._lock.acquire()
            self._sleeps_until = 0

    def call_at(self, when_ns: int, callback: Callback) -> Timer:
        timer = self._timers.call_at(when_ns, callback)
        if when_ns < self._sleeps_until:
            self.wake()
        return timer

    def call_soon(self, callback: Callback) -> None:
        super().call_soon(callback)
        if self._sleeps_until:
            self.wake()

    def resume(self, who: Hashable) -> None:
        super().resume(who)
        if self._sleeps_until:
            self.wake()

    def join(self) -> None:
        """Stop turning and wait for the thread's end; from another thread only, without the lock."""
        self.stop()
        self._host.join()


class AsyncLoop(PausableLoop):
    """Turned by the running asyncio loop, between `attach` and `detach`."""

    def __init__(self) -> None:
        super().__init__()
        self._aio: asyncio.AbstractEventLoop | None = None
        self._handle: asyncio.Handle | None = None
        self._armed_ns = _NEVER
        self._is_turning = False

    def attach(self) -> None:
        self._aio = asyncio.get_running_loop()
        self._aio.add_reader(self.fileno(), self._turn)
        self._arm()

    def detach(self) -> None:
        if self._aio is not None:
            self._aio.remove_reader(self.fileno())
            self._aio = None
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def call_at(self, when_ns: int, callback: Callback) -> Timer:
        timer = super().call_at(when_ns, callback)
        if when_ns < self._armed_ns:
            self._arm()
        return timer

    def call_soon(self, callback: Callback) -> None:
        super().call_soon(callback)
        self._arm()

    def _turn(self) -> None:
        if self._is_turning or self._aio is None:
            return
        self._is_turning = True
        try:
            self.run_once(0)
        finally:
            self._is_turning = False
            self._arm()

    def _on_due(self) -> None:
        self._handle = None
        self._turn()

    def _arm(self) -> None:
        """Have asyncio turn this loop when its next deadline comes."""
        aio = self._aio
        if aio is None or self._is_turning:
            return
        deadline = self.next_deadline()
        due_ns = _NEVER if deadline is None else deadline
        if self._handle is not None:
            if due_ns == self._armed_ns:
                return
            self._handle.cancel()
            self._handle = None
        self._armed_ns = due_ns
        if deadline is not None:
            delay_ns = deadline - self.now_ns()
            if delay_ns <= 0:
                self._handle = aio.call_soon(self._on_due)
            else:
                self._handle = aio.call_later(delay_ns / NS_PER_S, self._on_due)
