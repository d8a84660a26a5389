"""The one event loop: `select.epoll`, a timer heap, bounded work per turn.

It runs in three hosts: a worker process (`run`), a background thread (`run` there, `call_soon_threadsafe` from
elsewhere) and asyncio (`fileno` is an epoll descriptor that asyncio can watch; `run_once(0)` runs one turn,
`next_deadline` is the time of the next). Code above it does not know which.

Order of a turn: queued calls, a slice of long work, timers, then each readable descriptor once, then each writable
one, then what has no descriptor (`Poller`), then what was put off to the end of the turn, and what must come after
all of that. A reader that has more than
one batch waiting returns True and is called again in the next turn, after the others. Once a turn has used `TURN_NS`,
what it has not called waits for the next one and comes first there, as many readers as there is time for and one at
least; after a sleep what has no descriptor comes first: that is what it was woken for. The longest turn is measured.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from dro import system_calls
from dro.clock import NS_PER_S, Clock, MonotonicClock
from dro.timers import Timer, TimerHeap

MAX_CALLS_PER_TURN: Final = 256
SLICE_NS: Final = 2_000_000
"""What long work may take of a turn, see `Loop.run_in_slices`."""
SPARSE_NS: Final = 300_000
"""After a sleep as long, what has no descriptor comes first."""
MUCH: Final = 24
"""A fragment is counted two to four times on its way through a worker."""
_MUCH = MUCH  # a plain integer in the compiled form
TURN_NS: Final = 6_000_000
"""Processor time of a turn after which slices, readers and pollers wait for the next.

That one works on slices, calls the first reader that waits, and the pollers, in any case; other readers may wait on.
"""


class HasFileno(Protocol):
    def fileno(self) -> int: ...


Callback = Callable[[], object]
"""A reader returns True when it left work behind and wants to be called again without waiting for readiness."""


class Poller(Protocol):
    """Work that no descriptor tells of, such as a queue in shared memory."""

    def take(self) -> bool:
        """Do a bounded piece of it; True when there was any."""

    def before_sleep(self) -> bool:
        """Ask for a wake-up by a descriptor; False when work has come meanwhile, so that there must be no sleep."""

    def after_sleep(self) -> None:
        """No wake-up is needed any more."""


def _fd(source: int | HasFileno) -> int:
    return source if isinstance(source, int) else source.fileno()


class Loop:
    """Readers, writers, timers and queued calls of one thread."""

    def __init__(self, clock: Clock | None = None, *, poll_ns: int = 0, rest_below_ns: int = 0) -> None:
        """`poll_ns`: how long to retry with `sched_yield` after work before sleeping; 0 sleeps at once.

        `rest_below_ns`: after a turn that counted `MUCH` or more (`after_turn`) and cost less processor time than this,
        more work is given the same time to come together, but not beyond this in all: small turns cost most for what
        they do. 0: never. At lower rates too little would come meanwhile to be worth the delay.
        """
        self.clock = clock or MonotonicClock()
        self._epoll = select.epoll()
        self._readers: dict[int, Callback] = {}
        self._writers: dict[int, Callback] = {}
        self._again: dict[int, Callback] = {}
        self._late: dict[int, Callback] = {}  # readers for which the turn had no time left
        self._polls_first = False  # nor for the pollers
        self._is_late = False  # nor for slices
        self._soon: deque[Callback] = deque()
        self._timers = TimerHeap()
        self.poll_ns = poll_ns
        self.rest_below_ns = rest_below_ns
        self._rest_ns = 0
        self.longest_turn_ns = 0
        """Of a turn without its sleep, since the start; what the machine gave to other processes counts too."""
        self.longest_turn_cpu_ns = 0
        """The same in processor time of the thread."""
        self._cpu_ns = 0
        self.io_events = self.timer_events = self.queued_calls = 0
        """What descriptors told of, timers and queued calls that have run, since the start."""
        self.after_turn: Callable[[], int] | None = None
        """Called at the end of each turn that did any work; returns how much it counted since the last call."""
        self._ending: dict[Callback, None] = {}
        self._settling: dict[Callback, None] = {}
        self._slices: deque[Iterator[object]] = deque()
        self._pollers: list[Poller] = []
        self._running = False
        self._thread = threading.get_ident()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._closed = False

    def fileno(self) -> int:
        return self._epoll.fileno()

    def now_ns(self) -> int:
        return self.clock.now_ns()

    # descriptors

    def add_reader(self, source: int | HasFileno, callback: Callback) -> None:
        fd = _fd(source)
        known = fd in self._readers or fd in self._writers
        self._readers[fd] = callback
        self._watch(fd, known)

    def add_writer(self, source: int | HasFileno, callback: Callback) -> None:
        fd = _fd(source)
        known = fd in self._readers or fd in self._writers
        self._writers[fd] = callback
        self._watch(fd, known)

    def remove_reader(self, source: int | HasFileno) -> None:
        fd = _fd(source)
        self._again.pop(fd, None)
        self._late.pop(fd, None)
        if self._readers.pop(fd, None) is not None:
            self._watch(fd, True)

    def remove_writer(self, source: int | HasFileno) -> None:
        fd = _fd(source)
        if self._writers.pop(fd, None) is not None:
            self._watch(fd, True)

    def _watch(self, fd: int, known: bool) -> None:
        mask = (select.EPOLLIN if fd in self._readers else 0) | (select.EPOLLOUT if fd in self._writers else 0)
        if mask and known:
            self._epoll.modify(fd, mask)
        elif mask:
            self._epoll.register(fd, mask)
        else:
            with contextlib.suppress(OSError):  # closed before it was removed: the kernel forgot it already
                self._epoll.unregister(fd)

    # calls

    def call_at(self, when_ns: int, callback: Callback) -> Timer:
        timer = self._timers.call_at(when_ns, callback)
        if threading.get_ident() != self._thread:
            self.wake()
        return timer

    def call_later(self, delay_ns: int, callback: Callback) -> Timer:
        return self.call_at(self.now_ns() + delay_ns, callback)

    def call_soon(self, callback: Callback) -> None:
        self._soon.append(callback)

    def call_soon_threadsafe(self, callback: Callback) -> None:
        self._soon.append(callback)
        self.wake()

    def wake(self) -> None:
        """Make a sleeping `run_once` return; safe from any thread and from a signal handler."""
        try:
            os.eventfd_write(self._wake, 1)
        except OSError:
            if not self._closed:
                raise

    def run_in_slices(self, steps: Iterator[object]) -> None:
        """Run `steps` to its end, about `SLICE_NS` a turn; several take turns. A step is a small piece of work."""
        self._slices.append(steps)

    def at_turn_end(self, callback: Callback) -> None:
        """Call it at the end of this turn, or of the next one when none is running; once, however often it is asked."""
        self._ending[callback] = None

    def when_settled(self, callback: Callback) -> None:
        """Call it, as `at_turn_end`, when nothing is left of what was put off to the end of the turn."""
        self._settling[callback] = None

    def add_poller(self, poller: Poller) -> None:
        self._pollers.append(poller)

    def forget_longest_turn(self) -> None:
        """Measure anew."""
        self.longest_turn_ns = self.longest_turn_cpu_ns = 0
        self._cpu_ns = system_calls.thread_time_ns()

    def next_deadline(self) -> int | None:
        """Return when the next turn is due, ns of the loop's clock; the past when work is waiting; None for never."""
        if self._soon or self._again or self._late or self._slices or self._polls_first:
            return 0
        return self._timers.next_deadline()

    def waiting(self) -> tuple[int, int]:
        """Readers, and queued calls, that wait for the next turn."""
        return len(self._again) + len(self._late), len(self._soon)

    # turns

    def run_once(self, timeout_ns: int | None = None) -> bool:
        """One turn, waiting at most `timeout_ns` (None: until something happens). True when it did any work."""
        began_ns, slept_ns = system_calls.monotonic_ns(), 0
        worked = self._run_calls() if self._soon else False
        # the next turn has time for what this one has not
        self._is_late = bool(self._slices) and not self._is_late and worked and self._is_full(began_ns)
        if self._slices and not self._is_late:
            worked = self._run_slices()
        wait_ns = timeout_ns
        if worked:
            wait_ns = 0
        elif (deadline := self.next_deadline()) is not None:
            until = max(0, deadline - self.now_ns())
            wait_ns = until if wait_ns is None else min(wait_ns, until)
        if wait_ns == 0:
            events = self._epoll.poll(0)
        else:
            slept_ns = system_calls.monotonic_ns()
            events = self._wait(wait_ns)
            slept_ns = system_calls.monotonic_ns() - slept_ns
            began_ns += slept_ns
        # An event belongs to the callbacks of now: those of this turn may close a descriptor and get its number back.
        readers, writers = self._readers, self._writers
        ready = [(fd, mask, readers.get(fd), writers.get(fd)) for fd, mask in events]
        timers = self._timers.run_due(self.now_ns())
        self.timer_events += timers
        self.io_events += len(ready)
        worked |= timers > 0
        due, self._late, again, self._again = self._late, {}, self._again, {}
        has_late = bool(due)
        polls_first, self._polls_first = self._polls_first or slept_ns >= SPARSE_NS, False
        if polls_first:  # after a sleep: what a queue has comes before the message that there is some
            worked |= self._take_polled()
        for fd, mask, reader, _ in ready:
            if fd == self._wake:
                self._drain_wake()
                self.io_events -= 1
                continue
            worked = True
            if reader is not None and mask & ~select.EPOLLOUT:
                due.setdefault(fd, reader)
        for fd, reader in again.items():
            due.setdefault(fd, reader)
        is_full = not has_late and self._is_full(began_ns)
        for fd, reader in due.items():
            if readers.get(fd) is not reader:
                continue
            worked = True
            if is_full:
                self._late[fd] = reader
                continue
            if reader() is True and readers.get(fd) is reader:
                self._again[fd] = reader
            is_full = self._is_full(began_ns)
        for fd, mask, _, writer in ready:
            if writer is not None and mask & ~select.EPOLLIN and writers.get(fd) is writer:
                writer()
        if is_full:
            self._polls_first = not polls_first and bool(self._pollers)
        elif not polls_first:
            worked |= self._take_polled()
        while self._ending or self._settling:
            (self._ending or self._settling).popitem()[0]()
        counted = self.after_turn() if worked and self.after_turn is not None else 0
        cost_ns = self._measure(began_ns)
        self._rest_ns = max(0, min(cost_ns, self.rest_below_ns - cost_ns)) if counted >= _MUCH else 0
        return worked

    def _is_full(self, began_ns: int) -> bool:
        """Say whether the turn is full; what the clock on the wall does not show as full cannot be."""
        return (
            system_calls.monotonic_ns() - began_ns > TURN_NS and system_calls.thread_time_ns() - self._cpu_ns > TURN_NS
        )

    def _measure(self, began_ns: int) -> int:
        """Measure the processor time of the turn, ns."""
        turn_ns = system_calls.monotonic_ns() - began_ns
        if turn_ns > self.longest_turn_ns:
            self.longest_turn_ns = turn_ns
        cpu_ns = system_calls.thread_time_ns()
        cost_ns, self._cpu_ns = cpu_ns - self._cpu_ns, cpu_ns
        if cost_ns > self.longest_turn_cpu_ns:
            self.longest_turn_cpu_ns = cost_ns
        return cost_ns

    def _wait(self, wait_ns: int | None) -> list[tuple[int, int]]:
        """Wait until something happens, `wait_ns` at most. With `poll_ns` the processor is offered to others that long
        before it is given away."""
        if self.poll_ns:
            stop = system_calls.monotonic_ns() + (self.poll_ns if wait_ns is None else min(self.poll_ns, wait_ns))
            while True:
                if events := self._epoll.poll(0):
                    return events
                if self._take_polled():
                    return []
                if system_calls.monotonic_ns() >= stop:
                    break
                os.sched_yield()
        elif self._rest_ns:
            time.sleep((self._rest_ns if wait_ns is None else min(self._rest_ns, wait_ns)) / NS_PER_S)
            if events := self._epoll.poll(0):
                return events
        for poller in self._pollers:
            if not poller.before_sleep():
                return []
        # epoll takes milliseconds and rounds up, so a timer is never early by the loop's doing
        events = self._epoll.poll(None if wait_ns is None else wait_ns / NS_PER_S)
        for poller in self._pollers:
            poller.after_sleep()
        return events

    def _take_polled(self) -> bool:
        worked = False
        for poller in self._pollers:
            worked |= poller.take()
        return worked

    def _run_slices(self) -> bool:
        if not self._slices:
            return False
        steps = self._slices.popleft()
        end_ns = system_calls.monotonic_ns() + SLICE_NS
        for _ in steps:
            if system_calls.monotonic_ns() >= end_ns:
                self._slices.append(steps)
                break
        return True

    def _run_calls(self) -> bool:
        soon = self._soon
        count = min(len(soon), MAX_CALLS_PER_TURN)
        for _ in range(count):
            soon.popleft()()
        self.queued_calls += count
        return count > 0

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def run(self) -> None:
        """Turn until `stop`; returns in the thread that called it."""
        self._thread = threading.get_ident()
        self._running = True
        while self._running:
            self.run_once()

    def stop(self) -> None:
        """Make `run` return after the current turn; safe from any thread and from a signal handler."""
        self._running = False
        self.wake()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._readers.clear()
            self._writers.clear()
            self._again.clear()
            self._late.clear()
            self._epoll.close()
            os.close(self._wake)
