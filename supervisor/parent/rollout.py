"""Distribution of a changed configuration to the running workers: written once, read and answered by each.

The parent puts the configuration, pickled, into a file of the run directory and names it in `Reconfigure`. A worker
that starts later has the configuration from its fork; one that was just starting gets it when it is ready.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dro.bus.messages import ParentMessage, Reconfigure, Reconfigured
from dro.clock import s
from dro.errors import ResourceError
from dro.loop import Loop
from dro.os_errors import remedy_of
from dro.timers import Timer
from supervisor.parent.workers import Worker, Workers, WorkerState

ANSWER_LIMIT_NS: Final = s(15)

RolledOut = Callable[[Mapping[str, str]], object]
"""Gets the problems by name of worker: nobody is named when the configuration is in force everywhere."""


@dataclass(slots=True, eq=False)
class _Round:
    serial: int
    path: Path
    only: frozenset[str] | None
    done: RolledOut
    waiting: set[Worker]
    problems: dict[str, str] = field(default_factory=dict)
    timer: Timer | None = None
    is_over: bool = False


class Rollout:
    """Hands out configurations, each with a serial; a worker's record says which one it has."""

    def __init__(
        self,
        workers: Workers,
        loop: Loop,
        send: Callable[[Worker, ParentMessage], object],
        on_taken_over: Callable[[Worker], object] = lambda _: None,
    ) -> None:
        """`on_taken_over`: the worker has the newest configuration, as far as it can while it runs."""
        self._on_taken_over = on_taken_over
        self._workers = workers
        self._loop = loop
        self._send_to = send
        self.serial = 0
        """Of the newest configuration; a worker that is forked now has that one."""
        self.run_dir: Path
        self._round: _Round | None = None  # the newest, also when it is over

    def begin(self, config: object, done: RolledOut, *, only: frozenset[str] | None = None) -> None:
        """Give `config` to the workers that are up, or to those of `only`; `done` is called once, later.

        Raises: ResourceError when the file cannot be written; nothing has changed then.
        """
        path = self.run_dir / f"config.{self.serial + 1}"
        _write(path, config)
        if self._round is not None:
            self._round.path.unlink(missing_ok=True)
            for worker in self._round.waiting:
                self._round.problems[worker.name] = "a newer configuration came before it had answered"
            self._end(self._round)
        self.serial += 1
        this = self._round = _Round(self.serial, path, only, done, set())
        for worker in self._workers:
            if worker.state is WorkerState.READY and self._concerns(worker):
                self._send(worker)
        this.timer = self._loop.call_later(ANSWER_LIMIT_NS, lambda: self._on_limit(this))
        self._end_if_complete()

    def _concerns(self, worker: Worker) -> bool:
        this = self._round
        return this is not None and (this.only is None or worker.name in this.only)

    def _send(self, worker: Worker) -> None:
        assert self._round is not None
        self._round.waiting.add(worker)
        worker.config_serial = self._round.serial
        self._send_to(worker, Reconfigure(self._round.serial, str(self._round.path)))

    # what workers do

    def on_ready(self, worker: Worker) -> None:
        """Note a worker that was forked before the newest configuration came."""
        if worker.config_serial < self.serial and self._concerns(worker):
            self._send(worker)

    def on_answer(self, worker: Worker, answer: Reconfigured) -> None:
        this = self._round
        if this is None or this.serial != answer.serial:
            return
        if answer.problem:
            this.problems[worker.name] = answer.problem
        else:
            self._on_taken_over(worker)
        this.waiting.discard(worker)
        self._end_if_complete()

    def on_end(self, worker: Worker) -> None:
        """Note that a worker has ended: its next life, if any, begins with the newest configuration."""
        if self._round is not None:
            self._round.waiting.discard(worker)
            self._end_if_complete()

    def _on_limit(self, this: _Round) -> None:
        for worker in this.waiting:
            this.problems[worker.name] = f"it has not answered within {ANSWER_LIMIT_NS // s(1)} s"
        self._end(this)

    def _end_if_complete(self) -> None:
        if self._round is not None and not self._round.waiting:
            self._end(self._round)

    def _end(self, this: _Round) -> None:
        if this.is_over:
            return
        this.is_over = True
        if this.timer is not None:
            this.timer.cancel()
        problems = dict(this.problems)
        self._loop.call_soon(lambda: this.done(problems))


def _write(path: Path, config: object) -> None:
    """Write the changed configuration. Raises: ResourceError, leaving nothing behind."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            pickle.dump(config, file, pickle.HIGHEST_PROTOCOL)
    except OSError as e:
        path.unlink(missing_ok=True)
        what = f"the changed configuration cannot be written to {path}: {e.strerror or e}"
        raise ResourceError(what, remedy=remedy_of(e.errno)) from e
