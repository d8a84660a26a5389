"""The parent process: starts the workers, restarts those that die, carries out what operators order, and ends it all.

It has no thread and no ZeroMQ context, so a fork on its ninetieth day is as safe as the first. All it owns are the
run directory, the counter pages, the admin socket and one control socket per worker. The processes themselves are in
`supervisor.crew`, the states of a worker in `supervisor.fleet`, operators' orders in `supervisor.operations`.

What configures the DRO is of any type; `planner` says which workers it asks for.
"""

from __future__ import annotations

import gc
import logging
import secrets
import signal
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final, assert_never

from dro import log as logs
from dro.bus.actor import FORK_MASK, STOP_SIGNALS, name_process
from dro.bus.counters import CounterPage
from dro.bus.messages import (
    Drained,
    ParentMessage,
    PeerStuck,
    Ping,
    Pong,
    Ready,
    Reconfigured,
    SetLog,
    StartFailed,
    Stop,
    Stopped,
    WorkerReport,
)
from dro.clock import NS_PER_MS, ms, s
from dro.errors import ResourceError
from dro.loop import Loop
from dro.os_errors import remedy_of
from supervisor.admin import SOCKET_NAME, AdminServer
from supervisor.child import ChildTask, Failed
from supervisor.config_in_force import C, ConfigInForce, Planner
from supervisor.crew import Crew
from supervisor.fleet import Event, Fleet, State, Worker
from supervisor.ground import Ground, GroundPlan
from supervisor.operations import STOP_GRACE_MS, STOP_LIMIT_NS, Operations
from supervisor.places import RUN_LINK, SHARED_MEMORY, Places
from supervisor.rollout import Rollout
from supervisor.status import WorkerStatus

PING_INTERVAL_NS: Final = s(1)
SILENT_PINGS: Final = 5  # a worker that leaves that many unanswered is talked about in the log
SAME_SIGNAL_NS: Final = ms(200)  # one order to stop, told to the process and to its group

EXIT_OK: Final = 0
EXIT_NOT_STARTED: Final = 1
EXIT_KILLED: Final = 3
"""Told to stop, it had to kill a worker, whose proxy sources ended without a word."""


class Parent(ConfigInForce[C]):
    """Runs one DRO from the first fork to the last exit."""

    def __init__(
        self,
        name: str,
        config: C,
        planner: Planner[C],
        log: logging.Logger,
        *,
        run_base: Path | None = None,
        shm_base: Path = SHARED_MEMORY,
        ground: Ground | None = None,
    ) -> None:
        """`ground`: what the DRO stands on, if it is to be more than its directories below the two bases.

        Raises: ConfigError.
        """
        super().__init__(config, planner)
        self.name = name
        self.node_id: Final = 1 << 63 | secrets.randbits(63)
        self.on_running: Callable[[], object] = lambda: None
        """Called once, when every worker is ready."""
        self.on_hangup: Callable[[], object] = self._ignore_hangup
        """Called for each SIGHUP, by the loop."""
        self.failure = ""
        """Why the DRO could not start."""
        self.on_stopping: Callable[[], object] = lambda: None
        """Called once, when the end of the DRO begins."""
        self._log = log
        self.loop: Final = Loop()
        self.admin: Final = AdminServer(self.loop, log)
        """Takes commands from operators; add them before `run`."""
        specs = planner(config)
        self._ground = ground or Ground(GroundPlan(name, run_base, shm_base, workers=len(specs)), log)
        self._fleet = Fleet(specs)
        self._crew = Crew(
            self._fleet,
            self.loop,
            log,
            self.node_id,
            on_report=self._hear,
            on_end=self._on_end,
            in_child=self._in_child,
        )
        self._tasks: set[ChildTask[object]] = set()
        self.operations: Final = Operations(self._fleet, self, self.loop, log)
        self._rollout = Rollout(self._fleet, self.loop, self._crew.tell)
        self._pings = 0
        self._started = False
        self._stopping = False
        self._stop_ns = 0
        self._status = EXIT_OK
        self._signals: deque[int] = deque()
        self._places: Places

    def run(self) -> int:
        """Run until told to stop; returns the exit status. Every worker is gone by then, and so are all files."""
        self._take_signals()  # first: whatever is made from here on is removed again
        try:
            places = self._ground.take(self._is_told_to_stop)
        except ResourceError as e:
            return self._refuse(e.what, e.remedy)
        if places is None:
            return EXIT_OK
        self._places = self._crew.places = places
        try:
            self._set_up()
            while not self._stopping or any(worker.is_alive for worker in self._fleet):
                self.loop.run_once()
        except ResourceError as e:
            if self._started:
                raise
            self._status = self._refuse(e.what, e.remedy)
        finally:
            self._kill_all("worker is killed")
            self.admin.close()
            self._ground.leave()
            for number in STOP_SIGNALS:  # one that comes while the interpreter ends must not change the exit status
                signal.signal(number, signal.SIG_IGN)
        self._log.info("DRO stopped", extra={"dro": self.name, "status": self._status})
        return self._status

    def _refuse(self, what: str, remedy: str, **where: object) -> int:
        """The exit status of a DRO that cannot start."""
        self._log.critical("DRO cannot start", extra={**where, "reason": what, "remedy": remedy})
        self.failure = f"{what}; {remedy}" if remedy else what
        return EXIT_NOT_STARTED

    def _take_signals(self) -> None:
        for number in (*STOP_SIGNALS, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORK_MASK)

    def _is_told_to_stop(self) -> bool:
        """By a signal that the loop has not seen yet."""
        return any(number in STOP_SIGNALS for number in self._signals)

    def _set_up(self) -> None:
        name_process("tnwgd")
        self.admin.listen(self._places.run / SOCKET_NAME)
        self._link_run_directory()
        for worker in self._fleet:
            self.prepare(worker)
        gc.collect()
        gc.freeze()  # children share these pages for longer
        for worker in self._fleet:
            if self._is_told_to_stop() or self._stopping:
                break  # it is to end before all of it is there
            self.start(worker)
        self.loop.call_later(PING_INTERVAL_NS, self._ping)

    def _link_run_directory(self) -> None:
        """Let those find it who look for running DROs. Raises: ResourceError."""
        link = self._places.shm / RUN_LINK
        try:
            link.symlink_to(self._places.run.absolute())
        except OSError as e:
            raise ResourceError(f"cannot make {link}: {e.strerror}", remedy=remedy_of(e.errno)) from e

    # the log

    def set_log(self, settings: logs.Settings) -> None:
        """Change where the log of every process goes, or what it looks like. Raises: ResourceError, nothing changed."""
        logs.apply(settings)
        new = settings
        message = SetLog(new.kind, new.file, new.frequency, new.size_bytes, new.level, new.utc, new.json)
        for worker in self._fleet:
            if worker.is_alive:
                self._crew.tell(worker, message)

    # what takes long

    def work_aside(
        self, work: Callable[[], object], done: Callable[[object | Failed], object], *, limit_ns: int, what: str
    ) -> None:
        """Have `work` done in a forked child; see `ChildTask`. When the DRO stops it is cancelled, and nobody told."""

        def finished(result: object | Failed) -> None:
            self._tasks.discard(task)
            done(result)

        task = ChildTask(self.loop, work, finished, limit_ns=limit_ns, what=what, in_child=self._crew.abandon)
        self._tasks.add(task)

    def _in_child(self) -> None:
        self.admin.abandon()
        for task in self._tasks:
            task.abandon()

    # what operators see

    @property
    def run_dir(self) -> Path:
        return self._places.run

    @property
    def counters_dir(self) -> Path:
        """Where the counter pages lie."""
        return self._places.shm

    @property
    def known_indices(self) -> range:
        """Of all workers that this DRO has or had; each has a counter page."""
        return self._fleet.indices

    @property
    def is_running(self) -> bool:
        """Every worker was ready at least once, and nobody has ordered the end."""
        return self._started and not self._stopping

    @property
    def is_stopping(self) -> bool:
        return self._stopping

    def worker_status(self) -> tuple[WorkerStatus, ...]:
        now_ns = self.loop.now_ns()
        return tuple(worker.status(now_ns) for worker in self._fleet)

    # signals: the handler only remembers

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)
        self.loop.call_soon_threadsafe(self._take_signal)

    def _take_signal(self) -> None:
        if not self._signals:
            return
        number = self._signals.popleft()
        if number == signal.SIGHUP:
            self.on_hangup()
            return
        now_ns = self.loop.now_ns()
        if not self._stopping:
            self._log.info("stopping", extra={"signal": signal.Signals(number).name})
            self._stop_ns = now_ns
            self._stop()
        elif now_ns - self._stop_ns >= SAME_SIGNAL_NS:
            self._log.warning("stopping at once", extra={"signal": signal.Signals(number).name})
            self._kill_all("worker is killed")

    def _ignore_hangup(self) -> None:
        self._log.warning("SIGHUP ignored: a changed configuration needs a restart")

    # the hands of operations

    def prepare(self, worker: Worker) -> None:
        """Make its counter page, unless another one had its index before. Raises: ResourceError."""
        page = self._places.counters(worker.index)
        if not page.exists():
            CounterPage.create(page).close()

    def start(self, worker: Worker) -> None:
        worker.config_serial = self._rollout.serial
        try:
            self._crew.start(worker)
        except OSError as e:
            self._on_no_process(worker, e)

    def tell(self, worker: Worker, message: ParentMessage) -> None:
        self._crew.tell(worker, message)

    def kill(self, worker: Worker) -> None:
        self._crew.kill(worker)

    def take_out(self, worker: Worker) -> None:
        self._crew.take_out(worker)

    def _on_no_process(self, worker: Worker, error: OSError) -> None:
        reason, remedy = error.strerror or str(error), remedy_of(error.errno)
        if not self._started:
            self._status = self._refuse(f"cannot start a process: {reason}", remedy, worker=worker.name)
            self._stop()
            return
        extra = {"worker": worker.name, "reason": reason, "remedy": remedy}
        self._log.error("cannot start a process", extra=extra)
        self.operations.on_cannot_start(worker, reason)
        if worker.state is State.WAITING:
            self._restart_later(worker, clean=False)

    # what workers say

    def _hear(self, worker: Worker, report: WorkerReport) -> None:
        if worker.unanswered > SILENT_PINGS:
            self._log.info("worker answers again", extra={"worker": worker.name})
        worker.unanswered = 0
        match report:
            case Ready():
                self._on_ready(worker, report)
            case StartFailed():
                worker.failure = report
            case PeerStuck():
                self._on_stuck(worker, report)
            case Reconfigured():
                self._rollout.on_answer(worker, report)
            case Drained():
                self.operations.on_drained(worker, report.waiting)
            case Pong() | Stopped():
                pass
            case _:
                assert_never(report)

    def _on_ready(self, worker: Worker, ready: Ready) -> None:
        worker.move(Event.BECAME_READY)
        if worker.state is not State.READY:
            return
        worker.was_ready = True
        self._log.info("worker ready", extra={"worker": worker.name, "incarnation": worker.incarnation})
        self._crew.introduce(worker, ready)
        self._rollout.on_ready(worker)
        self.operations.on_ready(worker)
        self._look_whether_started()

    def _look_whether_started(self) -> None:
        if self._started or self._stopping or not all(w.was_ready or w.is_resting for w in self._fleet):
            return
        self._started = True
        self._log.info("DRO is running", extra={"dro": self.name, "node_id": self.node_id})
        self.on_running()

    def _on_stuck(self, reporter: Worker, report: PeerStuck) -> None:
        for stuck in self._fleet:
            if (stuck.index, stuck.incarnation) != (report.worker, report.incarnation) or not stuck.is_alive:
                continue
            extra = {"worker": stuck.name, "told_by": reporter.name}
            self._log.error("worker takes no messages from its siblings, it is started anew", extra=extra)
            self._crew.kill(stuck)

    def _ping(self) -> None:
        logs.tick()
        self._pings += 1
        for worker in self._fleet:
            if worker.state not in (State.READY, State.DRAINING) or worker.unanswered > SILENT_PINGS:
                continue
            worker.unanswered += 1
            if worker.unanswered > SILENT_PINGS:
                self._log.warning("worker does not answer", extra={"worker": worker.name})
            else:
                self._crew.tell(worker, Ping(self._pings))
        self.loop.call_later(PING_INTERVAL_NS, self._ping)

    # the end of a worker

    def _on_end(self, worker: Worker, status: int) -> None:
        clean = status == 0
        extra = {"worker": worker.name, "incarnation": worker.incarnation, "cause": worker.last_death}
        self._log.log(logging.INFO if clean else logging.ERROR, "worker ended", extra=extra)
        self._rollout.on_end(worker)
        if self._stopping:
            worker.move(Event.OVER)
            return
        if self.operations.on_end(worker):
            self._look_whether_started()
            return
        worker.move(Event.AGAIN)
        if worker.failure is not None and not self._started:
            failure = worker.failure
            self._status = self._refuse(failure.reason, failure.remedy, worker=worker.name)
            self._stop()
            return
        self._restart_later(worker, clean=clean)

    def _restart_later(self, worker: Worker, *, clean: bool) -> None:
        delay_ns = worker.backoff.on_death(self.loop.now_ns(), clean=clean)
        worker.restart = self.loop.call_later(delay_ns, lambda: self.start(worker))
        extra = {"worker": worker.name, "in_ms": delay_ns // NS_PER_MS}
        self._log.info("worker is restarted", extra=extra)

    # the end of the DRO

    def _stop(self) -> None:
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        self.on_stopping()
        self.operations.close("the DRO is stopping")
        for worker in self._fleet:
            worker.cancel_restart()
            if not worker.is_alive:
                worker.move(Event.OVER)
                continue
            if worker.state is not State.STOPPING:
                worker.move(Event.STOP)
            self._crew.tell(worker, Stop(STOP_GRACE_MS))
        self.loop.call_later(STOP_LIMIT_NS, self._stop_late)

    def _stop_late(self) -> None:
        if self._status == EXIT_OK and any(worker.is_alive for worker in self._fleet):
            self._status = EXIT_KILLED
        self._kill_all("worker did not end in time, it is killed")

    def _kill_all(self, why: str) -> None:
        for worker in self._fleet:
            if worker.is_alive:
                self._log.error(why, extra={"worker": worker.name})
                self._crew.kill(worker)
