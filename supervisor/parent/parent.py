"""The parent process: starts the workers, restarts those that die, carries out operators' orders, and stops the DRO.

It has no thread and no ZeroMQ context, so a fork after months is as safe as the first. It owns only the run directory,
the counter pages, the admin socket and one control socket per worker. Beside this module are the processes themselves
(`processes`), the states of a worker (`workers`) and operators' orders (`operations`).

The configuration is of any type; `planner` returns the workers for it.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import secrets
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Container, Iterable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, Generic, assert_never

from dro import compiled_steps
from dro.bus.actor import FORK_MASK, STOP_SIGNALS
from dro.bus.messages import (
    Drained,
    ForwardsAgain,
    PeerStuck,
    Pong,
    Ready,
    Reconfigured,
    Role,
    RoutesAvoid,
    RoutesCalculated,
    Rows,
    SetLog,
    StartFailed,
    Stop,
    Stopped,
    Trouble,
    WorkerReport,
)
from dro.bus.process_name import name_process
from dro.clock import NS_PER_MS, ms
from dro.devices.watch import AddressWatch
from dro.errors import ResourceError
from dro.log import setup as logs
from dro.log.events import LogEvent
from dro.log.handler import Settings
from dro.log.limits import LimitedLogger
from dro.log.to_monitor import EVENTS_SOCKET, HISTORY_SOCKET
from dro.loop import Loop
from dro.os_errors import remedy_of
from supervisor.admin.server import SOCKET_NAME, AdminServer
from supervisor.admin.status import WorkerStatus
from supervisor.host.resources import HostResources, ResourcePlan
from supervisor.host.run_dirs import SHARED_MEMORY, RunDirs
from supervisor.parent.config_in_force import C, ConfigInForce, PartFor, Planner
from supervisor.parent.forked_task import Failed, ForkedTask, T
from supervisor.parent.lists import WorkerLists
from supervisor.parent.operations import STOP_GRACE_MS, STOP_LIMIT_NS, Operations
from supervisor.parent.pings import WorkerPings
from supervisor.parent.processes import FormerProgram, WorkerProcesses
from supervisor.parent.rollout import Rollout
from supervisor.parent.workers import Event, Worker, Workers, WorkerState

SAME_SIGNAL_NS: Final = ms(200)  # one order to stop, sent to the process and to its group
FAULT_PAUSE_S: Final = 0.05  # after a turn that failed, as the next one may fail as well

OBSERVERS: Final = {Role.MONITOR: EVENTS_SOCKET, Role.HISTORY: HISTORY_SOCKET}
"""Those of the observers, which look at the others and end after them, that are told of log events, and where."""
OBSERVER_GRACE_MS: Final = {Role.MONITOR: 500, Role.HISTORY: 5_000, Role.STATISTICS: 5_000}

EXIT_OK: Final = 0
EXIT_NOT_STARTED: Final = 1
EXIT_KILLED: Final = 3
"""At its end it had to kill a worker, whose proxy sources ended without final advertisements."""


class Parent(Generic[C]):
    """Runs one DRO from the first fork to the last exit."""

    def __init__(
        self,
        name: str,
        config: C,
        planner: Planner[C],
        log: logging.Logger,
        *,
        part_for: PartFor[C] = lambda config, _only: config,
        run_base: Path | None = None,
        shm_base: Path = SHARED_MEMORY,
        resources: HostResources | None = None,
        former: FormerProgram | None = None,
    ) -> None:
        """`resources`: what the DRO takes of its host, if it is to be more than its directories below the two bases.

        `former`: the program whose DRO this is; its workers are adopted before `run`, which starts none. Raises:
        ConfigError.
        """
        self.name = name
        self.node_id: Final = former.node_id if former is not None else 1 << 63 | secrets.randbits(63)
        self.start_s: Final = former.start_s if former is not None else time.time()
        self.failure = ""
        """Why the DRO could not start."""
        self._log = log
        self.loop: Final = Loop()
        self.began_ns: Final = former.began_ns if former is not None else self.loop.now_ns()
        self._limited: Final = LimitedLogger(log, self.loop.now_ns).event
        self.admin: Final = AdminServer(self.loop, log)
        """Takes commands from operators; add them before `run`."""
        specs = planner(config)
        self.resources = resources or HostResources(ResourcePlan(name, run_base, shm_base, workers=len(specs)), log)
        self.workers: Final = Workers(specs)
        self.processes: Final = WorkerProcesses(
            self.workers,
            self.loop,
            log,
            node_id=self.node_id,
            on_report=self._on_report,
            on_end=self._on_end,
            close_inherited=self._close_inherited,
        )
        self._tasks: set[ForkedTask[Any]] = set()
        self.rollout: Final = Rollout(self.workers, self.loop, self.processes.send, self.processes.on_taken_over)
        self.configuration: Final = ConfigInForce(self.workers, self.rollout, config, planner, part_for)
        self.operations: Final = Operations(
            self.workers, self.processes, self.loop, log, start=self._start, spec_of=self.configuration.spec_of
        )
        self._lists = WorkerLists(self.workers, self.loop, self.processes.send, self.admin)
        self.routes: RoutesCalculated | None = None
        """The routes of the last calculation, in any life of the route manager."""
        self.routes_avoid: RoutesAvoid | None = None
        """The answer to `Leave`."""
        self._pings = WorkerPings(
            self.workers, self.loop, log, self.processes.send, lambda worker: self.kill(LogEvent.WORKER_HUNG, [worker])
        )
        self._started = former is not None
        self.is_stopping = False
        self._stop_ns = 0
        self._status = EXIT_OK
        self._signals: deque[int] = deque()
        self.on_addresses: Callable[[], object] = lambda: None  # devices or addresses of this host have changed
        self._watch: AddressWatch | None = None
        self.run_dirs: RunDirs

    def run(
        self,
        *,
        on_running: Callable[[], object] = lambda: None,
        on_hangup: Callable[[], object] | None = None,
        on_stopping: Callable[[], object] = lambda: None,
    ) -> int:
        """Run until a signal stops it; returns the exit status. Every worker is gone by then, and so are all files.

        `on_running` is called once, when every worker is ready; `on_hangup` for each SIGHUP; `on_stopping` once, when
        the end begins.
        """
        self._on_running, self._on_stopping = on_running, on_stopping
        self._on_hangup = on_hangup or self._ignore_hangup
        self._take_signals()  # first: whatever is made from here on is removed again
        try:
            run_dirs = self.resources.acquire(self._has_stop_signal)
        except ResourceError as e:
            return self._refuse(e.what, e.remedy)
        if run_dirs is None:
            return EXIT_OK
        self.run_dirs = self.processes.run_dirs = run_dirs
        self.rollout.run_dir = run_dirs.run
        logs.send_events([run_dirs.run / OBSERVERS[w.spec.role] for w in self.workers if w.spec.role in OBSERVERS])
        try:
            self._set_up()
            while not self.is_stopping or any(worker.is_alive for worker in self.workers):
                self._turn()
        except ResourceError as e:
            if self._started:
                raise
            self._status = self._refuse(e.what, e.remedy)
        finally:
            self.kill(LogEvent.WORKER_KILLED, self.workers)
            self.admin.close()
            logs.send_events([])
            self.resources.release()
            for number in STOP_SIGNALS:  # one that comes while the interpreter ends must not change the exit status
                signal.signal(number, signal.SIG_IGN)
        self._log.info(LogEvent.DRO_STOPPED, extra={"dro": self.name, "status": self._status})
        return self._status

    def _turn(self) -> None:
        """Run one turn of the loop; once the DRO runs, what is wrong in one is logged, and the next one follows."""
        try:
            self.loop.run_once()
        except Exception as e:
            if not self._started or self.is_stopping:
                raise
            place = traceback.extract_tb(e.__traceback__)[-1]
            reason = f"{type(e).__name__}: {e} ({place.filename}:{place.lineno})"
            self._limited(LogEvent.PARENT_FAULT, extra={"reason": reason}, key=(place.filename, place.lineno))
            time.sleep(FAULT_PAUSE_S)

    def _refuse(self, what: str, remedy: str, **where: object) -> int:
        """Say why the DRO cannot start, and return the exit status."""
        self._log.critical(LogEvent.DRO_CANNOT_START, extra={**where, "reason": what, "remedy": remedy})
        self.failure = f"{what}; {remedy}" if remedy else what
        return EXIT_NOT_STARTED

    def _take_signals(self) -> None:
        for number in (*STOP_SIGNALS, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORK_MASK)

    def _has_stop_signal(self) -> bool:
        """Say whether a signal that the loop has not seen yet stops the DRO."""
        return not STOP_SIGNALS.isdisjoint(tuple(self._signals))  # a signal may come while they are looked at

    def _set_up(self) -> None:
        name_process("tnwgd")
        self.resources.locks.serve(self.loop)
        if not self._started:
            self.admin.listen(self.run_dirs.run / SOCKET_NAME)
            self.run_dirs.link()
            for worker in self.workers:
                self.processes.prepare(worker)
        gc.collect()
        gc.freeze()  # children share these pages for longer
        for worker in self.workers if not self._started else ():
            if self._has_stop_signal() or self.is_stopping:
                break  # it is to end before all of it is there
            self._start(worker)
        self._pings.start()
        with contextlib.suppress(ResourceError):  # the portals say so
            self._watch = AddressWatch(self.loop, self._on_addresses)

    def _on_addresses(self, gone: Container[int]) -> None:
        """Start what could not start before, as it may be able to now."""
        for worker in () if self.is_stopping else self.workers:
            if worker.state is WorkerState.WAITING and worker.failure is not None:
                self._start(worker)
        self.on_addresses()

    # the log

    def set_log(self, settings: Settings) -> None:
        """Change where the log of every process goes, or what it looks like. Raises: ResourceError, nothing changed."""
        logs.apply(settings)
        new = settings
        message = SetLog(new.kind, new.file, new.frequency, new.size_bytes, new.level, new.utc, new.json)
        for worker in self.workers:
            if worker.is_alive:
                self.processes.send(worker, message)

    # what takes long

    def run_forked(
        self, work: Callable[[], T], done: Callable[[T | Failed], object], *, limit_ns: int, what: str
    ) -> None:
        """Have `work` done in a forked child; see `ForkedTask`. When the DRO stops it is cancelled without `done`."""

        def finished(result: T | Failed) -> None:
            self._tasks.discard(task)
            done(result)

        task = ForkedTask(
            self.loop, work, finished, limit_ns=limit_ns, what=what, in_child=self.processes.close_inherited
        )
        self._tasks.add(task)

    def _close_inherited(self) -> None:
        """Close in a forked child what it inherits, but for what the processes have."""
        self.resources.locks.close()
        self.admin.close_inherited()
        if self._watch is not None:
            self._watch.close_inherited()
        for task in self._tasks:
            task.close_inherited()

    @property
    def is_quiet(self) -> bool:
        """No forked task is under way, no signal waits, and workers have been told all that there was to tell."""
        is_done = not self._tasks and not self._signals
        return is_done and all(w.control.is_idle for w in self.workers if w.control is not None)

    # what operators see

    @property
    def is_running(self) -> bool:
        """Every worker was ready at least once, and nobody has ordered the end."""
        return self._started and not self.is_stopping

    def worker_status(self) -> tuple[WorkerStatus, ...]:
        now_ns = self.loop.now_ns()
        return tuple(worker.status(now_ns) for worker in self.workers)

    # signals: the handler only remembers

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)
        self.loop.call_soon_threadsafe(self._take_signal)

    def _take_signal(self) -> None:
        if not self._signals:
            return
        number = self._signals.popleft()
        if number == signal.SIGHUP:
            self._on_hangup()
            return
        now_ns = self.loop.now_ns()
        if not self.is_stopping:
            self._log.info(LogEvent.STOPPING, extra={"signal": signal.Signals(number).name})
            self._stop_ns = now_ns
            self._stop()
        elif now_ns - self._stop_ns >= SAME_SIGNAL_NS:
            self._log.warning(LogEvent.STOPPING_AT_ONCE, extra={"signal": signal.Signals(number).name})
            self.kill(LogEvent.WORKER_KILLED, self.workers)

    def _ignore_hangup(self) -> None:
        self._log.warning(LogEvent.HANGUP_NEEDS_RESTART)

    # the start of a worker

    def _start(self, worker: Worker) -> None:
        """Start a waiting worker, now; when that fails it is tried again later, and operations learn of it."""
        worker.config_serial = self.rollout.serial
        try:
            self.processes.start(worker)
        except OSError as e:
            self._on_no_process(worker, e)

    def _on_no_process(self, worker: Worker, error: OSError) -> None:
        reason, remedy = error.strerror or str(error), remedy_of(error.errno)
        if not self._started:
            self._status = self._refuse(f"cannot start a process: {reason}", remedy, worker=worker.name)
            self._stop()
            return
        extra = {"worker": worker.name, "reason": reason, "remedy": remedy}
        self._log.error(LogEvent.CANNOT_START_PROCESS, extra=extra)
        self.operations.on_cannot_start(worker, reason)
        if worker.state is WorkerState.WAITING:
            self._restart_later(worker, clean=False)

    # reports of workers

    def _on_report(self, worker: Worker, report: WorkerReport) -> None:
        self._pings.on_report(worker)
        match report:
            case Ready():
                self._on_ready(worker, report)
            case StartFailed():
                worker.failure = report
            case PeerStuck():
                self._on_stuck(worker, report)
            case Reconfigured():
                self.rollout.on_answer(worker, report)
            case Drained():
                self.operations.on_drained(worker, report.waiting)
            case Rows():
                self._lists.on_rows(report)
            case RoutesCalculated():
                self.routes = report
            case RoutesAvoid():
                self.routes_avoid = report
            case Trouble(reason=reason):
                worker.trouble = reason
            case ForwardsAgain():
                self.operations.on_forwards_again(worker)
            case Pong() | Stopped():
                pass
            case _:
                assert_never(report)

    def _on_ready(self, worker: Worker, ready: Ready) -> None:
        worker.move(Event.BECAME_READY)
        if worker.state is not WorkerState.READY:
            return
        worker.was_ready = True
        self._log.info(LogEvent.WORKER_READY, extra={"worker": worker.name, "incarnation": worker.incarnation})
        self.processes.announce(worker, ready)
        self.rollout.on_ready(worker)
        self.operations.on_ready(worker)
        self._check_started()

    def _check_started(self) -> None:
        if (
            self._started
            or self.is_stopping
            or not all(w.was_ready or w.is_resting for w in self.workers if w.spec.is_on_bus)
        ):
            return
        self._started = True
        self._log.info(LogEvent.STEPS_FORM, extra={"form": compiled_steps.form()})
        self._log.info(LogEvent.DRO_RUNNING, extra={"dro": self.name, "node_id": self.node_id})
        self._on_running()

    def _on_stuck(self, reporter: Worker, report: PeerStuck) -> None:
        for stuck in self.workers:
            if (stuck.index, stuck.incarnation) != (report.worker, report.incarnation) or not stuck.is_alive:
                continue
            extra = {"worker": stuck.name, "reported_by": reporter.name}
            self._log.error(LogEvent.WORKER_STUCK, extra=extra)
            self.processes.kill(stuck)

    # the end of a worker

    def _on_end(self, worker: Worker, status: int) -> None:
        clean = status == 0
        extra = {"worker": worker.name, "incarnation": worker.incarnation, "cause": worker.last_death}
        self._log.log(logging.INFO if clean else logging.ERROR, LogEvent.WORKER_ENDED, extra=extra)
        self.rollout.on_end(worker)
        self._lists.on_end(worker)
        if self.is_stopping:
            worker.move(Event.OVER)
            self._stop_observers()
            return
        if self.operations.on_end(worker):
            self._check_started()
            return
        worker.move(Event.AGAIN)
        if worker.is_tried and worker.ready is None:
            return
        if worker.failure is not None and not self._started and worker.spec.is_on_bus:
            failure = worker.failure
            self._status = self._refuse(failure.reason, failure.remedy, worker=worker.name)
            self._stop()
            return
        self._restart_later(worker, clean=clean)

    def _restart_later(self, worker: Worker, *, clean: bool) -> None:
        delay_ns = worker.backoff.on_death(self.loop.now_ns(), clean=clean)
        worker.restart = self.loop.call_later(delay_ns, lambda: self._start(worker))
        extra = {"worker": worker.name, "in_ms": delay_ns // NS_PER_MS}
        self._log.info(LogEvent.WORKER_RESTARTED, extra=extra)

    # the end of the DRO

    def stop(self) -> None:
        """Stop by order of an operator. Later, when the answer is on its way."""
        if self.is_stopping:
            return
        self._log.info(LogEvent.STOPPING, extra={"signal": "none, drained by order"})
        self._stop_ns = self.loop.now_ns()
        self._stop()

    def _stop(self) -> None:
        self.is_stopping = True
        self.configuration.close("the DRO is stopping")
        for task in self._tasks:
            task.cancel()
        self._on_stopping()
        self.operations.close("the DRO is stopping")
        for worker in self.workers:
            worker.cancel_restart()
            if not worker.is_alive:
                worker.move(Event.OVER)
                continue
            if not worker.spec.is_on_bus:
                continue  # it shows the end of the others
            if worker.state is not WorkerState.STOPPING:
                worker.move(Event.STOP)
            self.processes.send(worker, Stop(STOP_GRACE_MS))
        self._stop_observers()
        self.loop.call_later(STOP_LIMIT_NS, self._stop_late)

    def _stop_observers(self) -> None:
        """Order them to end when they are the last; one may hang, and has nobody to say goodbye to."""
        living = [worker for worker in self.workers if worker.is_alive]
        if any(worker.spec.is_on_bus for worker in living):
            return
        for worker in living:
            if worker.state is not WorkerState.STOPPING:
                grace_ms = OBSERVER_GRACE_MS[worker.spec.role]
                worker.move(Event.STOP)
                self.processes.send(worker, Stop(grace_ms))
                self.loop.call_later(2 * ms(grace_ms), partial(self.kill, LogEvent.WORKER_TOO_SLOW, [worker]))

    def _stop_late(self) -> None:
        late = [worker for worker in self.workers if worker.is_alive and worker.spec.is_on_bus]
        if late and self._status == EXIT_OK:
            self._status = EXIT_KILLED
        self.kill(LogEvent.WORKER_TOO_SLOW, late)

    def kill(self, why: LogEvent, workers: Iterable[Worker]) -> None:
        for worker in workers:
            if worker.is_alive:
                self._log.error(why, extra={"worker": worker.name})
                self.processes.kill(worker)
