"""Operators' orders to one portal of a running DRO: restart, pause, resume, drain, add, remove.

An operation is accepted or refused at once; an accepted one calls its `done` exactly once, later, with an
`OperationOutcome`. Every step has a time limit, so every operation ends. One worker has one operation at a time. A
worker that an operator has stopped stays stopped: the restart policy does not apply until it is resumed.

    restart   stopped so that its next life goes on from it, or in good order; started at once with the current
              configuration; done when it is ready, and forwards again what the one before did
    pause     stopped in good order; done when its process is gone
    resume    started again after pause or drain; done when it is ready
    drain     hands over its traffic without loss, then as pause
    add       a portal of the current configuration that is not running; done when it is ready, else removed again
    remove    drained, then forgotten, also by its siblings

The caller updates the configuration: `add` requires the portal in it, `remove` leaves it there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from dro.bus.messages import Drain, ParentMessage, Stop
from dro.clock import ms, s
from dro.errors import RefusedError, ResourceError
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.timers import Timer
from supervisor.parent.workers import Event, Worker, Workers, WorkerSpec, WorkerState

STOP_GRACE_MS: Final = 3_500  # for a worker to say goodbye
STOP_LIMIT_NS: Final = ms(6_000)  # then it is killed: letting go of sockets may take the kernel a second or two
HAND_OVER_GRACE_MS: Final = 1_000  # for one that hands over to end its turn
HAND_OVER_LIMIT_NS: Final = ms(2_000)  # then it is killed, which loses nothing either
START_LIMIT_NS: Final = s(60)  # to become ready; it is not killed then, only not waited for any longer
DRAIN_SLACK_NS: Final = s(2)  # beyond the limit of a drain, for its answer
DRAIN_LIMIT_MS: Final = 30_000  # unless the operator says otherwise


@dataclass(frozen=True, slots=True)
class OperationOutcome:
    """How an operation ended. Without a `problem` it did what it should."""

    worker: str
    state: str  # of the worker, now
    problem: str = ""
    remedy: str = ""
    note: str = ""
    """What was not clean although it is done: traffic given up at the limit of a drain, a process that was killed."""

    @property
    def is_ok(self) -> bool:
        return not self.problem


Done = Callable[[OperationOutcome], object]


class OperationKind(Enum):
    RESTART = "restart"
    PAUSE = "pause"
    RESUME = "resume"
    DRAIN = "drain"
    ADD = "add"
    REMOVE = "remove"


_RESTS: Final = {
    OperationKind.PAUSE: Event.PAUSED,
    OperationKind.DRAIN: Event.DRAINED,
    OperationKind.REMOVE: Event.REMOVED,
}
"""Operations after which there is no process, and what the worker is then."""
_DRAINS: Final = (OperationKind.DRAIN, OperationKind.REMOVE)


@dataclass(slots=True, eq=False)
class _Operation:
    kind: OperationKind
    worker: Worker
    done: Done
    problem: str = ""
    note: str = ""
    hands_over: bool = False
    timer: Timer | None = None


class ProcessControl(Protocol):
    """Gives what operations need of the processes; `WorkerProcesses` says what each does."""

    def prepare(self, worker: Worker) -> None: ...
    def send(self, worker: Worker, message: ParentMessage) -> None: ...
    def kill(self, worker: Worker) -> None: ...
    def take_out(self, worker: Worker) -> None: ...
    def let_go(self, worker: Worker) -> None: ...
    def obstacle(self, worker: Worker) -> str: ...


class Operations:
    """All operations under way. The parent reports to it what happens to workers, with the `on_` methods."""

    def __init__(
        self,
        workers: Workers,
        processes: ProcessControl,
        loop: Loop,
        log: logging.Logger,
        *,
        start: Callable[[Worker], object],
        spec_of: Callable[[str], WorkerSpec],
    ) -> None:
        """`start` starts a waiting worker, or reports `on_cannot_start`; `spec_of` is that of `ConfigInForce`."""
        self._workers, self._processes, self._loop, self._log = workers, processes, loop, log
        self._start, self._spec_of = start, spec_of
        self._under_way: dict[Worker, _Operation] = {}
        self._closed = ""

    # what an operator orders; each raises RefusedError, and then nothing has changed

    def restart(self, name: str, done: Done, *, clean: bool = False, is_trial: bool = False) -> None:
        """Restart any worker, also the route manager. One that waits for its next start is started now.

        Its next life goes on from this one as far as it can, unless it shall be `clean`. With `is_trial` one that does
        not start changes nothing of that and is not tried again.
        """
        worker = self._idle(name)
        if worker.is_resting:
            raise RefusedError(f"{name} is {worker.state.value}", remedy="resume it instead")
        operation = self._begin(OperationKind.RESTART, worker, done)
        operation.hands_over = not clean and not self._processes.obstacle(worker)
        worker.is_tried = is_trial
        if worker.is_alive:
            self._stop(operation)
        else:
            self._launch(operation)

    def pause(self, name: str, done: Done) -> None:
        """Stop it in good order until it is resumed."""
        operation = self._begin(OperationKind.PAUSE, self._restable(name), done)
        if operation.worker.is_alive:
            self._stop(operation)
        else:
            self._rest(operation)

    def resume(self, name: str, done: Done) -> None:
        """Start a paused or drained portal with the current configuration."""
        worker = self._idle(name)
        if not worker.is_resting:
            raise RefusedError(f"{name} is {worker.state.value}, neither paused nor drained")
        worker.move(Event.AGAIN)
        self._launch(self._begin(OperationKind.RESUME, worker, done))

    def drain(self, name: str, done: Done, *, limit_ms: int = DRAIN_LIMIT_MS) -> None:
        """Withdraw, deliver all that is held, stop. At `limit_ms` the rest is given up, and the outcome's `note` names
        it."""
        self._drain(self._begin(OperationKind.DRAIN, self._restable(name), done), limit_ms)

    def is_resting(self, name: str) -> bool:
        """Stopped by an operator."""
        worker = self._workers.find(name)
        return worker is not None and worker.is_resting

    def add(self, name: str, done: Done) -> None:
        """Start one more portal of the configuration. Also raises: ResourceError.

        If its first life ends before it is ready, or it is not ready in time, it is taken out again and the outcome is
        a problem.
        """
        self._check_open()
        worker = self._workers.add(self._spec_of(name))
        try:
            self._processes.prepare(worker)
        except ResourceError:
            worker.move(Event.REMOVED)
            worker.forget()
            raise
        self._launch(self._begin(OperationKind.ADD, worker, done))

    def remove(self, name: str, done: Done, *, limit_ms: int = DRAIN_LIMIT_MS) -> None:
        """Drain it, then forget it. In whatever state it is."""
        worker = self._portal(name)
        operation = self._begin(OperationKind.REMOVE, worker, done)
        if worker.is_resting:
            self._rest(operation)
        else:
            self._drain(operation, limit_ms)

    # what happens to workers

    def on_ready(self, worker: Worker) -> None:
        operation = self._under_way.get(worker)
        goes_on = worker.ready is not None and worker.ready.goes_on
        if operation is not None and worker.state is WorkerState.READY and not goes_on:
            self._finish(operation)

    def on_forwards_again(self, worker: Worker) -> None:
        """Note that a worker that goes on is where the one before was."""
        operation = self._under_way.get(worker)
        if operation is not None and worker.state is WorkerState.READY:
            self._finish(operation)

    def on_drained(self, worker: Worker, waiting: str) -> None:
        operation = self._under_way.get(worker)
        if operation is not None and worker.state is WorkerState.DRAINING:
            operation.note = waiting
            self._stop(operation)

    def on_cannot_start(self, worker: Worker, reason: str) -> None:
        """A process could not be made. An added worker is taken out; any other is tried again by the policy."""
        operation = self._under_way.get(worker)
        if operation is not None:
            self._failed_start(operation, f"its process cannot be made: {reason}", "")

    def on_end(self, worker: Worker) -> bool:
        """Note that a process is gone. True when that was in order or is dealt with, False for the policy to decide."""
        operation = self._under_way.get(worker)
        if operation is None:
            return False
        if operation.kind in _RESTS:
            if worker.state is WorkerState.DRAINING:
                operation.note = f"it ended while it drained: {worker.last_death}"
            self._rest(operation)
            return True
        if worker.state is WorkerState.STOPPING:
            worker.move(Event.AGAIN)
            self._launch(operation)
            return True
        failure = worker.failure
        reason = failure.reason if failure else f"it ended before it was ready: {worker.last_death}"
        self._failed_start(operation, reason, failure.remedy if failure else "")
        return worker.state is WorkerState.REMOVED

    def close(self, why: str) -> None:
        """End everything that is under way, and refuse the rest: the DRO stops."""
        self._closed = why
        for operation in list(self._under_way.values()):
            self._finish(operation, why)

    # steps

    def _check_open(self) -> None:
        if self._closed:
            raise RefusedError(self._closed)

    def _idle(self, name: str) -> Worker:
        self._check_open()
        worker = self._workers.of(name)
        if worker.operation:
            remedy = "try again when that is done"
            raise RefusedError(f"{name} is busy: {worker.operation} is under way", remedy=remedy)
        return worker

    def _portal(self, name: str) -> Worker:
        worker = self._idle(name)
        if not worker.spec.is_portal:
            raise RefusedError(f"{name} is no portal: it can only be restarted")
        return worker

    def _restable(self, name: str) -> Worker:
        worker = self._portal(name)
        if worker.is_resting:
            raise RefusedError(f"{name} is {worker.state.value} already")
        return worker

    def _begin(self, kind: OperationKind, worker: Worker, done: Done) -> _Operation:
        operation = self._under_way[worker] = _Operation(kind, worker, done)
        worker.operation = kind.value
        self._log.info(LogEvent.OPERATION_BEGINS, extra={"operation": kind.value, "worker": worker.name})
        return operation

    def _launch(self, operation: _Operation) -> None:
        """Start a waiting worker; `on_ready` or `on_end` says how it went."""
        worker = operation.worker
        worker.cancel_restart()
        worker.backoff.reset()
        if not operation.hands_over:
            self._processes.let_go(worker)
        limit_s = START_LIMIT_NS // s(1)
        self._limit(operation, START_LIMIT_NS, lambda: self._too_late(operation, f"it is not ready after {limit_s} s"))
        self._start(worker)

    def _too_late(self, operation: _Operation, reason: str) -> None:
        if operation.kind is not OperationKind.ADD:
            if operation.worker.state is WorkerState.READY:
                self._finish(
                    operation, "it is ready, and does not say that it forwards again", "restart it with --clean"
                )
            else:
                self._finish(operation, reason, "it goes on trying; see the log")
            return
        operation.problem = reason
        operation.kind = OperationKind.REMOVE  # its end takes it out
        self._stop(operation)

    def _failed_start(self, operation: _Operation, reason: str, remedy: str) -> None:
        if operation.kind is OperationKind.ADD:
            self._take_out(operation.worker)
        self._finish(operation, reason, remedy)

    def _drain(self, operation: _Operation, limit_ms: int) -> None:
        worker = operation.worker
        if worker.state is WorkerState.READY:
            worker.move(Event.DRAIN)
            self._limit(operation, ms(limit_ms) + DRAIN_SLACK_NS, lambda: self._drain_unanswered(operation))
            self._processes.send(worker, Drain(limit_ms))
        elif worker.is_alive:
            self._stop(operation)  # it has no traffic yet
        else:
            self._rest(operation)

    def _drain_unanswered(self, operation: _Operation) -> None:
        operation.note = "it did not say in time that it had drained"
        self._stop(operation)

    def _stop(self, operation: _Operation) -> None:
        worker = operation.worker
        worker.move(Event.STOP)
        worker.hands_over = hands_over = operation.hands_over
        limit_ns, grace_ms = (HAND_OVER_LIMIT_NS, HAND_OVER_GRACE_MS) if hands_over else (STOP_LIMIT_NS, STOP_GRACE_MS)
        self._limit(operation, limit_ns, lambda: self._kill(operation))
        self._processes.send(worker, Stop(grace_ms, hands_over))

    def _kill(self, operation: _Operation) -> None:
        worker = operation.worker
        self._log.error(LogEvent.WORKER_TOO_SLOW, extra={"worker": worker.name})
        operation.note = "; ".join(filter(None, [operation.note, "it did not end in time and was killed"]))
        self._processes.kill(worker)

    def _rest(self, operation: _Operation) -> None:
        """End the operation: there is no process (any more), and so it stays."""
        worker = operation.worker
        worker.cancel_restart()
        if operation.kind is OperationKind.REMOVE:
            self._take_out(worker)
        else:
            worker.move(_RESTS[operation.kind])
            self._processes.let_go(worker)
        self._finish(operation)

    def _take_out(self, worker: Worker) -> None:
        worker.cancel_restart()
        worker.move(Event.REMOVED)
        self._processes.take_out(worker)
        worker.forget()

    def _limit(self, operation: _Operation, delay_ns: int, callback: Callable[[], object]) -> None:
        if operation.timer is not None:
            operation.timer.cancel()
        operation.timer = self._loop.call_later(delay_ns, callback)

    def _finish(self, operation: _Operation, problem: str = "", remedy: str = "") -> None:
        worker = operation.worker
        problem = problem or operation.problem
        if operation.timer is not None:
            operation.timer.cancel()
        del self._under_way[worker]
        worker.operation = ""
        extra = {"operation": operation.kind.value, "worker": worker.name}
        if problem:
            self._log.error(LogEvent.OPERATION_FAILED, extra=extra | {"reason": problem})
        elif operation.note:
            self._log.warning(LogEvent.OPERATION_NOTE, extra=extra | {"note": operation.note})
        else:
            self._log.info(LogEvent.OPERATION_DONE, extra=extra)

        def answer() -> None:  # later: the state is then the one that it was left in
            operation.done(OperationOutcome(worker.name, worker.state.value, problem, remedy, operation.note))

        self._loop.call_soon(answer)
