"""Main function of the history worker: takes a sample every few seconds, and a last one when all others have ended."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dro.bus.actor import WorkerContext
from dro.bus.worker_guards import start_thread
from dro.config.dro_xml.model import DroConfig
from dro.errors import DroError
from dro.log.events import LogEvent
from dro.log.to_monitor import HISTORY_SOCKET
from dro.metrics.slots import WorkerSlot as Slot
from supervisor.samples.watch import DroObserver, first_status

if TYPE_CHECKING:
    from supervisor.samples.events import EventRow

NICE: Final = 5
"""Lets portals come first where processors are scarce."""
CHECK_S: Final = 1.0
"""How long the first sample waits to hear whether there is such a store."""
INTERVAL_S: Final = 10.0
"""Between two samples, unless said otherwise."""
MAX_EVENTS: Final = 10_000
"""Events that wait for the next sample; of more the oldest are left out."""


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """`--history` (a directory or a URI), `--history-interval` and `--history-journal`."""

    history: str
    interval_s: float = INTERVAL_S
    journal: Path | None = None


def run_history(ctx: WorkerContext, options: HistoryOptions, config: DroConfig) -> None:
    """Write the history of a DRO until it is told to end."""
    from supervisor.samples.events import EventSocket

    os.nice(NICE)
    recorder = _Recorder(ctx, options, config)
    events = EventSocket(
        ctx.run_dir / HISTORY_SOCKET, recorder.on_event, lambda: ctx.counters.add(Slot.MONITOR_EVENTS_MALFORMED)
    )
    ctx.loop.add_reader(events.fileno(), events.read)
    ctx.on_stop = recorder.stop
    start_thread(recorder.run)
    ctx.ready()
    ctx.run()
    events.close()


class _Recorder:
    """Takes samples in a thread of its own, so that neither a slow disk nor a slow parent keeps the worker waiting."""

    def __init__(self, ctx: WorkerContext, options: HistoryOptions, config: DroConfig) -> None:
        """Raises: ResourceError."""
        from supervisor.history.sampler import Sampler
        from supervisor.history.store import Store

        self._ctx, self._options = ctx, options
        self._watch = DroObserver(ctx.run_dir, first_status(ctx, config))
        self._store = Store(options.history, config.daemon.name or "tnwgd", journal=options.journal)
        self._sampler = Sampler(self._store)
        self._shown = self._store.shown
        self._is_over = threading.Event()
        self._events: deque[EventRow] = deque(maxlen=MAX_EVENTS)
        self._failing: set[str] = set()

    def stop(self) -> None:
        """Take the last sample and end."""
        self._is_over.set()

    def on_event(self, event: EventRow) -> None:
        """Keep an event for the next sample."""
        self._events.append(event)

    def run(self) -> None:
        """Take samples until told to stop, in a thread."""
        from supervisor.history.store_thread import StoreThread

        extra = {"folder": self._shown, "interval_s": self._options.interval_s}
        self._ctx.log.info(LogEvent.HISTORY_BEGINS, extra=extra)
        files = StoreThread(self._store, partial(self._try, "store"))
        self._try("store", partial(files.check, CHECK_S))
        due_s = time.monotonic()
        try:
            while not self._is_over.wait(max(0.0, due_s - time.monotonic())):
                self._try("journal", self._sample)
                due_s = max(due_s + self._options.interval_s, time.monotonic())
            self._try("journal", self._sample)
            if left := files.close():
                self._ctx.log.error(LogEvent.HISTORY_NOT_WRITTEN, extra={"reason": left})
        finally:
            self._ctx.loop.call_soon_threadsafe(self._ctx.finish)

    def _sample(self) -> None:
        known = self._watch.look()
        if known.asked_s < 0:
            return  # nobody has told yet when this run began
        events = list(self._events)
        try:
            self._sampler.add(known)
            self._sampler.add_events(known.status, events)
            self._store.commit()
        except DroError:
            self._store.forget()
            raise
        self._sampler.on_kept()
        while events and self._events and self._events[0].serial <= events[-1].serial:
            self._events.popleft()

    def _try(self, what: str, work: Callable[[], object]) -> None:
        """Do it; log once what fails, which is tried again later: counters lose nothing by it. What had nothing to do
        is no success."""
        try:
            done = work()
        except DroError as e:
            if what not in self._failing:
                self._ctx.log.error(LogEvent.HISTORY_NOT_WRITTEN, extra={"reason": str(e)})
            self._failing.add(what)
        else:
            if what in self._failing and done is not False:
                self._ctx.log.info(LogEvent.HISTORY_WRITTEN_AGAIN, extra={"folder": self._shown})
                self._failing.remove(what)
