"""The parent process: forks the workers, reaps and restarts them, introduces them to each other, and stops them.

It has no thread and no ZeroMQ context, so a fork on its ninetieth day is as safe as the first. All it owns are the
run directory, the counter pages and one control socket per worker. A worker's life:

    WAITING --fork--> STARTING --Ready--> READY --death--> WAITING ... and ENDED once the DRO stops

Everything a worker is told about its siblings follows from two events: one is ready (it and every ready sibling get
a `PeerUp` of the other), one died (every ready sibling gets a `PeerDown`). Joining and rejoining are the same.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import secrets
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import Final, assert_never

from dro.bus.actor import EXIT_BUG, FORK_MASK, STOP_SIGNALS, WorkerIdentity, WorkerMain, name_process, run_worker
from dro.bus.control import ControlSocket, control_pair
from dro.bus.counters import CounterPage
from dro.bus.messages import (
    PARENT_MESSAGES,
    WORKER_REPORTS,
    Drained,
    ParentMessage,
    PeerDown,
    PeerStuck,
    PeerUp,
    Ping,
    Pong,
    Ready,
    Reconfigured,
    Role,
    StartFailed,
    Stop,
    Stopped,
    WorkerReport,
)
from dro.clock import NS_PER_MS, NS_PER_S, ms, s
from dro.errors import ResourceError
from dro.loop import Loop
from dro.os_errors import remedy_of
from dro.timers import Timer
from supervisor.admin import SOCKET_NAME, AdminServer
from supervisor.ground import Ground, GroundPlan
from supervisor.places import SHARED_MEMORY, Places
from supervisor.policy import Backoff
from supervisor.status import WorkerStatus

STOP_GRACE_MS: Final = 3_500  # for a worker to say goodbye
STOP_LIMIT_NS: Final = ms(4_000)  # then it is killed
PING_INTERVAL_NS: Final = s(1)
SILENT_PINGS: Final = 5  # a worker that leaves that many unanswered is talked about in the log
SAME_SIGNAL_NS: Final = ms(200)  # one order to stop, told to the process and to its group
CLOSED_LIMIT_NS: Final = s(1)  # a worker that closed its control socket is as good as gone

EXIT_OK: Final = 0
EXIT_NOT_STARTED: Final = 1
EXIT_KILLED: Final = 3
"""Told to stop, it had to kill a worker, whose proxy sources ended without a word."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker of the plan; its index is its place in the plan."""

    name: str
    role: Role
    main: WorkerMain


class State(Enum):
    """Where a worker is in its life."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    ENDED = "ended"


@dataclass(slots=True)
class _Worker:
    spec: WorkerSpec
    index: int
    state: State = State.WAITING
    incarnation: int = 0
    pid: int = 0
    pidfd: int = -1
    control: ControlSocket[ParentMessage, WorkerReport] | None = None
    ready: Ready | None = None
    failure: StartFailed | None = None
    was_ready: bool = False  # in any life
    unanswered: int = 0  # pings since it was last heard
    lives: int = 0
    started_ns: int = 0  # of this life
    last_death: str = ""
    restart: Timer | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(random.random))

    @property
    def is_alive(self) -> bool:
        return self.state in (State.STARTING, State.READY)


class Parent:
    """Runs one DRO from the first fork to the last exit."""

    def __init__(
        self,
        name: str,
        plan: Sequence[WorkerSpec],
        log: logging.Logger,
        *,
        run_base: Path | None = None,
        shm_base: Path = SHARED_MEMORY,
        ground: Ground | None = None,
    ) -> None:
        """`ground`: what the DRO stands on, if it is to be more than its directories below the two bases."""
        self._name = name
        self._log = log
        self._ground = ground or Ground(GroundPlan(name, run_base, shm_base, workers=len(plan)), log)
        self.on_running: Callable[[], object] = lambda: None
        """Called once, when every worker is ready."""
        self.failure = ""
        """Why the DRO could not start."""
        self._loop = Loop()
        self.admin = AdminServer(self._loop, log)
        """Takes commands from operators; add them before `run`."""
        self._workers = [_Worker(spec, index) for index, spec in enumerate(plan)]
        self._node_id = 1 << 63 | secrets.randbits(63)
        self._incarnations = 0
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
            places = self._ground.take(lambda: any(number in STOP_SIGNALS for number in self._signals))
        except ResourceError as e:
            return self._refuse(e.what, e.remedy)
        if places is None:
            return EXIT_OK
        self._places = places
        try:
            self._set_up()
            while not self._stopping or any(worker.is_alive for worker in self._workers):
                self._loop.run_once()
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
        self._log.info("DRO stopped", extra={"dro": self._name, "status": self._status})
        return self._status

    def _refuse(self, what: str, remedy: str, **where: object) -> int:
        """The exit status of a DRO that cannot start."""
        self._log.critical("DRO cannot start", extra={**where, "reason": what, "remedy": remedy})
        self.failure = f"{what}; {remedy}" if remedy else what
        return EXIT_NOT_STARTED

    def _take_signals(self) -> None:
        for number in (*STOP_SIGNALS, signal.SIGHUP):
            signal.signal(number, self._on_signal)

    def _set_up(self) -> None:
        name_process("tnwgd")
        self.admin.listen(self._places.run / SOCKET_NAME)
        for worker in self._workers:
            CounterPage.create(self._places.counters(worker.index)).close()
        gc.collect()
        gc.freeze()  # children share these pages for longer
        for worker in self._workers:
            if self._signals or self._stopping:
                break  # it is to end before all of it is there
            self._start(worker)
        self._loop.call_later(PING_INTERVAL_NS, self._ping)

    # what operators see

    @property
    def name(self) -> str:
        return self._name

    @property
    def node_id(self) -> int:
        return self._node_id

    @property
    def run_dir(self) -> Path:
        return self._places.run

    @property
    def is_running(self) -> bool:
        """Every worker was ready at least once, and nobody has ordered the end."""
        return self._started and not self._stopping

    def worker_status(self) -> tuple[WorkerStatus, ...]:
        now_ns = self._loop.now_ns()
        return tuple(
            WorkerStatus(
                worker.spec.name,
                worker.spec.role.name.lower().replace("_", " "),
                worker.index,
                worker.state.value,
                worker.pid if worker.is_alive else 0,
                worker.incarnation,
                max(0, worker.lives - 1),
                round((now_ns - worker.started_ns) / NS_PER_S, 3) if worker.is_alive else 0.0,
                worker.last_death,
            )
            for worker in self._workers
        )

    # signals: the handler only remembers

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append(number)
        self._loop.call_soon_threadsafe(self._take_signal)

    def _take_signal(self) -> None:
        if not self._signals:
            return
        number = self._signals.popleft()
        if number == signal.SIGHUP:
            self._log.warning("SIGHUP ignored: a changed configuration needs a restart")
            return
        now_ns = self._loop.now_ns()
        if not self._stopping:
            self._log.info("stopping", extra={"signal": signal.Signals(number).name})
            self._stop_ns = now_ns
            self._stop()
        elif now_ns - self._stop_ns >= SAME_SIGNAL_NS:
            self._log.warning("stopping at once", extra={"signal": signal.Signals(number).name})
            self._kill_all("worker is killed")

    # starting

    def _start(self, worker: _Worker) -> None:
        worker.restart = None
        self._incarnations += 1
        worker.incarnation = self._incarnations
        worker.ready = worker.failure = None
        worker.unanswered = 0
        worker.lives += 1
        worker.started_ns = self._loop.now_ns()
        worker.backoff.on_start(worker.started_ns)
        try:
            mine, worker.pid, worker.pidfd = self._fork(worker)
        except OSError as e:
            if not self._started:
                what = f"cannot start a process: {e.strerror}"
                self._status = self._refuse(what, remedy_of(e.errno), worker=worker.spec.name)
                self._stop()
                return
            why = {"worker": worker.spec.name, "reason": e.strerror, "remedy": remedy_of(e.errno)}
            self._log.error("cannot start a process", extra=why)
            self._restart_later(worker, clean=False)
            return
        worker.state = State.STARTING
        self._loop.add_reader(worker.pidfd, lambda: self._on_death(worker))
        incarnation = worker.incarnation
        worker.control = ControlSocket[ParentMessage, WorkerReport](
            self._loop,
            mine,
            PARENT_MESSAGES,
            WORKER_REPORTS,
            lambda report: self._hear(worker, report),
            lambda: self._on_closed(worker, incarnation),
        )
        extra = {"worker": worker.spec.name, "pid": worker.pid, "incarnation": incarnation}
        self._log.info("worker started", extra=extra)

    def _fork(self, worker: _Worker) -> tuple[socket.socket, int, int]:
        """Control socket, process id and process descriptor of the child. Raises: OSError, leaving nothing behind."""
        identity = self._identity(worker)
        mine, theirs = control_pair()
        pid = 0
        signal.pthread_sigmask(signal.SIG_BLOCK, FORK_MASK)
        try:
            pid = os.fork()
            if pid == 0:
                try:
                    self._abandon()
                    mine.close()
                    run_worker(identity, theirs, worker.spec.main)
                finally:
                    os._exit(EXIT_BUG)
            return mine, pid, os.pidfd_open(pid)
        except OSError:
            mine.close()
            if pid:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            raise
        finally:
            theirs.close()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORK_MASK)

    def _identity(self, worker: _Worker) -> WorkerIdentity:
        return WorkerIdentity(
            name=worker.spec.name,
            index=worker.index,
            incarnation=worker.incarnation,
            role=worker.spec.role,
            run_dir=self._places.run,
            ring_path=self._places.ring(worker.index, worker.incarnation),
            counters_path=self._places.counters(worker.index),
            parent_pid=os.getpid(),
            dro_node_id=self._node_id,
        )

    def _abandon(self) -> None:
        """In the child: let go of everything that is the parent's, above all of the siblings' control sockets."""
        for worker in self._workers:
            if worker.control is not None:
                worker.control.abandon()
            if worker.pidfd >= 0:
                os.close(worker.pidfd)
        self.admin.abandon()
        self._loop.close()

    # what workers say

    def _hear(self, worker: _Worker, report: WorkerReport) -> None:
        if worker.unanswered > SILENT_PINGS:
            self._log.info("worker answers again", extra={"worker": worker.spec.name})
        worker.unanswered = 0
        match report:
            case Ready():
                self._on_ready(worker, report)
            case StartFailed():
                worker.failure = report
            case PeerStuck():
                self._on_stuck(worker, report)
            case Pong() | Stopped() | Reconfigured() | Drained():
                pass
            case _:
                assert_never(report)

    def _on_ready(self, worker: _Worker, ready: Ready) -> None:
        worker.state = State.READY
        worker.ready = ready
        worker.was_ready = True
        self._log.info("worker ready", extra={"worker": worker.spec.name, "incarnation": worker.incarnation})
        for sibling in self._workers:
            if sibling is not worker and sibling.state is State.READY:
                self._tell(worker, _peer_up(sibling))
                self._tell(sibling, _peer_up(worker))
        if not self._started and all(w.was_ready for w in self._workers):
            self._started = True
            self._log.info("DRO is running", extra={"dro": self._name, "node_id": f"{self._node_id:016x}"})
            self.on_running()

    def _on_stuck(self, reporter: _Worker, report: PeerStuck) -> None:
        for stuck in self._workers:
            if (stuck.index, stuck.incarnation) != (report.worker, report.incarnation) or not stuck.is_alive:
                continue
            extra = {"worker": stuck.spec.name, "told_by": reporter.spec.name}
            self._log.error("worker takes no messages from its siblings, it is started anew", extra=extra)
            self._kill(stuck)

    def _tell(self, worker: _Worker, message: ParentMessage) -> None:
        if worker.control is None:
            return
        try:
            worker.control.send(message)
        except ResourceError:
            self._log.error("worker does not listen, it is started anew", extra={"worker": worker.spec.name})
            self._kill(worker)

    def _ping(self) -> None:
        self._pings += 1
        for worker in self._workers:
            if worker.state is not State.READY or worker.unanswered > SILENT_PINGS:
                continue
            worker.unanswered += 1
            if worker.unanswered > SILENT_PINGS:
                self._log.warning("worker does not answer", extra={"worker": worker.spec.name})
            else:
                self._tell(worker, Ping(self._pings))
        self._loop.call_later(PING_INTERVAL_NS, self._ping)

    # the end of a worker

    def _on_closed(self, worker: _Worker, incarnation: int) -> None:
        def kill_if_alive() -> None:
            if worker.is_alive and worker.incarnation == incarnation:
                self._kill(worker)

        self._loop.call_later(CLOSED_LIMIT_NS, kill_if_alive)

    def _on_death(self, worker: _Worker) -> None:
        pid, status = os.waitpid(worker.pid, os.WNOHANG)
        if pid == 0:
            return
        assert worker.control is not None
        worker.control.drain()  # its last words
        worker.control.close()
        worker.control = None
        self._loop.remove_reader(worker.pidfd)
        os.close(worker.pidfd)
        worker.pidfd = -1
        was_announced = worker.state is State.READY
        worker.state = State.ENDED if self._stopping else State.WAITING
        self._places.remove_incarnation(worker.index, worker.incarnation)
        if was_announced:
            for sibling in self._workers:
                if sibling.state is State.READY:
                    self._tell(sibling, PeerDown(worker.index, worker.incarnation))
        self._after_death(worker, status)

    def _after_death(self, worker: _Worker, status: int) -> None:
        clean = status == 0
        worker.last_death = cause_of(status)
        extra = {"worker": worker.spec.name, "incarnation": worker.incarnation, "cause": worker.last_death}
        self._log.log(logging.INFO if clean else logging.ERROR, "worker ended", extra=extra)
        if self._stopping:
            return
        if worker.failure is not None and not self._started:
            failure = worker.failure
            self._status = self._refuse(failure.reason, failure.remedy, worker=worker.spec.name)
            self._stop()
            return
        self._restart_later(worker, clean=clean)

    def _restart_later(self, worker: _Worker, *, clean: bool) -> None:
        delay_ns = worker.backoff.on_death(self._loop.now_ns(), clean=clean)
        worker.state = State.WAITING
        worker.restart = self._loop.call_later(delay_ns, lambda: self._start(worker))
        extra = {"worker": worker.spec.name, "in_ms": delay_ns // NS_PER_MS}
        self._log.info("worker is restarted", extra=extra)

    # the end of the DRO

    def _stop(self) -> None:
        self._stopping = True
        for worker in self._workers:
            if worker.is_alive:
                self._tell(worker, Stop(STOP_GRACE_MS))
            else:
                worker.state = State.ENDED
                if worker.restart is not None:
                    worker.restart.cancel()
        self._loop.call_later(STOP_LIMIT_NS, self._stop_late)

    def _stop_late(self) -> None:
        if self._status == EXIT_OK and any(worker.is_alive for worker in self._workers):
            self._status = EXIT_KILLED
        self._kill_all("worker did not end in time, it is killed")

    def _kill(self, worker: _Worker) -> None:
        signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)

    def _kill_all(self, why: str) -> None:
        for worker in self._workers:
            if worker.is_alive:
                self._log.error(why, extra={"worker": worker.spec.name})
                self._kill(worker)


def _peer_up(worker: _Worker) -> PeerUp:
    ready = worker.ready
    assert ready is not None
    spec = worker.spec
    return PeerUp(worker.index, worker.incarnation, spec.name, spec.role, ready.ring, ready.ctl, ready.data)


def cause_of(status: int) -> str:
    """What `waitpid` says about the end of a process, in words."""
    if os.WIFSIGNALED(status):
        return f"killed by {_signal_name(os.WTERMSIG(status))}"
    code = os.waitstatus_to_exitcode(status)
    return "ended by itself" if code == 0 else f"exit status {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
