"""`list` on the admin socket: pages of the workers' lists, see `dro.bus.listing`. The parent passes them on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dro.bus.listing import LISTS
from dro.bus.messages import ListRows, ParentMessage, Rows
from dro.clock import s
from dro.errors import RefusedError, ResourceError
from dro.loop import Loop
from dro.timers import Timer
from supervisor.admin.server import AdminServer, Arguments, Reply
from supervisor.parent.workers import Worker, Workers, WorkerState

ANSWER_LIMIT_NS: Final = s(5)
MAX_CURSOR: Final = 1 << 53


@dataclass(frozen=True, slots=True)
class _Asked:
    worker: Worker
    reply: Reply
    timer: Timer


class WorkerLists:
    """Asks a worker for the page that a client wants; as many are under way as there are clients."""

    def __init__(
        self, workers: Workers, loop: Loop, send: Callable[[Worker, ParentMessage], object], admin: AdminServer
    ) -> None:
        self._workers = workers
        self._loop = loop
        self._send = send
        self._asked: dict[int, _Asked] = {}
        self._serial = 0
        admin.add("list", self._on_request, looks=True)

    def _on_request(self, arguments: Arguments, reply: Reply) -> None:
        what, name = arguments.text("what"), arguments.text("worker")
        topic = arguments.text("topic", "")
        cursor = int(arguments.number("cursor", 0, minimum=0, maximum=MAX_CURSOR))
        arguments.done()
        if what not in LISTS:
            raise RefusedError(f"there is no list {what[:40]!r}", remedy=f"there are {', '.join(LISTS)}")
        worker = self._workers.of(name)
        if worker.state not in (WorkerState.READY, WorkerState.DRAINING):
            raise RefusedError(f"{name} is {worker.state.value}")
        self._serial = serial = self._serial + 1
        self._send(worker, ListRows(serial, what, topic, cursor))
        problem = f"{name} has not answered within {ANSWER_LIMIT_NS // s(1)} s"
        timer = self._loop.call_later(ANSWER_LIMIT_NS, lambda: self._fail(serial, problem))
        self._asked[serial] = _Asked(worker, reply, timer)

    def on_rows(self, rows: Rows) -> None:
        asked = self._asked.pop(rows.serial, None)
        if asked is None:
            return
        asked.timer.cancel()
        if rows.problem:
            asked.reply.fail(RefusedError(f"{asked.worker.name}: {rows.problem}"))
        else:
            asked.reply.ok({"rows": json.loads(rows.rows), "cursor": rows.cursor})

    def on_end(self, worker: Worker) -> None:
        """End what was asked of a worker whose process is gone."""
        for serial in [serial for serial, asked in self._asked.items() if asked.worker is worker]:
            self._fail(serial, f"{worker.name} has ended")

    def _fail(self, serial: int, problem: str) -> None:
        asked = self._asked.pop(serial)
        asked.timer.cancel()
        asked.reply.fail(ResourceError(problem))
