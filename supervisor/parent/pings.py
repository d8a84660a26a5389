"""Asks each second whether workers answer; names those that do not, and has those replaced that do not for long."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from dro.bus.messages import ParentMessage, Ping
from dro.clock import s
from dro.log import setup as logs
from dro.log.events import LogEvent
from dro.loop import Loop
from supervisor.parent.workers import Worker, Workers, WorkerState

PING_INTERVAL_NS: Final = s(1)
SILENT_PINGS: Final = 5  # a worker that leaves that many unanswered is named in the log
HUNG_PINGS: Final = 30
"""Intervals without an answer after which it is replaced. While the machine has no time for the parent, none pass."""


class WorkerPings:
    """Begins with `start`."""

    def __init__(
        self,
        workers: Workers,
        loop: Loop,
        log: logging.Logger,
        send: Callable[[Worker, ParentMessage], object],
        on_hung: Callable[[Worker], object],
    ) -> None:
        self._workers, self._loop, self._log = workers, loop, log
        self._send, self._on_hung = send, on_hung
        self._serial = 0

    def start(self) -> None:
        self._loop.call_later(PING_INTERVAL_NS, self._ping)

    def _ping(self) -> None:
        self.start()
        logs.tick()
        self._serial += 1
        for worker in self._workers:
            if worker.state not in (WorkerState.READY, WorkerState.DRAINING):
                continue
            worker.unanswered += 1
            if worker.unanswered <= SILENT_PINGS:
                self._send(worker, Ping(self._serial))
            elif worker.unanswered == SILENT_PINGS + 1:
                self._log.warning(LogEvent.WORKER_SILENT, extra={"worker": worker.name})
            elif worker.unanswered == HUNG_PINGS:
                self._on_hung(worker)

    def on_report(self, worker: Worker) -> None:
        """Note that a worker has said something."""
        if worker.unanswered > SILENT_PINGS:
            self._log.info(LogEvent.WORKER_ANSWERS, extra={"worker": worker.name})
        worker.unanswered = 0
