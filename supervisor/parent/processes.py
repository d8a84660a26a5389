"""The processes behind the workers' records: fork them, send to them, announce them to each other, reap them.

Messages about siblings follow from three events: a worker is ready (it and every ready sibling get a `PeerUp` of the
other), died (`PeerDown`), or was removed (`PeerRemoved`). Joining and rejoining are the same.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from dro.bus.actor import EXIT_BUG, WorkerIdentity, run_worker
from dro.bus.control import ControlSocket, control_pair
from dro.bus.counters import CounterPage
from dro.bus.kept_sockets import SocketsAtFork
from dro.bus.messages import (
    PARENT_MESSAGES,
    WORKER_REPORTS,
    ParentMessage,
    PeerDown,
    PeerRemoved,
    PeerUp,
    Ready,
    WorkerReport,
)
from dro.clock import s
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from supervisor.host.run_dirs import RunDirs
from supervisor.parent.estate import Estate
from supervisor.parent.forked_task import fork
from supervisor.parent.workers import Event, Worker, Workers, WorkerState

CLOSED_LIMIT_NS: Final = s(1)  # a worker that closed its control socket is as good as gone


@dataclass(frozen=True, slots=True)
class FormerProgram:
    """Describes what stays of a DRO when another program takes it over in its process."""

    node_id: int
    start_s: float  # seconds since the epoch
    began_ns: int  # the same by the clock of loops


class OtherProgram(Protocol):
    """Forks lives of workers in place of this program. Raises: OSError."""

    number: int
    version: str

    def fork(self, identity: WorkerIdentity, control: socket.socket) -> tuple[int, int]: ...
    def close_inherited(self) -> None: ...


class WorkerProcesses:
    """Owns every process, process descriptor and control socket."""

    def __init__(
        self,
        workers: Workers,
        loop: Loop,
        log: logging.Logger,
        *,
        node_id: int,
        on_report: Callable[[Worker, WorkerReport], object],
        on_end: Callable[[Worker, int], object],
        close_inherited: Callable[[], object],
    ) -> None:
        """`on_end` gets what `waitpid` reports; `close_inherited` is called in each child."""
        self._workers, self._loop, self._log = workers, loop, log
        self._node_id = node_id
        self._on_report, self._on_end, self._close_inherited = on_report, on_end, close_inherited
        self.incarnations = 0
        """How many lives there were, of all workers."""
        self.program, self.version = 0, ""
        """Which of the programs that this process has been forks workers now: the first is 0, those after it count."""
        self.other: OtherProgram | None = None
        self.by_other = set[Worker]()
        """The former program, until an upgrade is done, and which workers it forks."""
        self._limited = LimitedLogger(log, loop.now_ns).event
        self._estates: dict[int, Estate] = {}
        self.run_dirs: RunDirs

    # the beginning

    def estate_of(self, worker: Worker) -> Estate:
        return self._estates[worker.index]

    def prepare(self, worker: Worker, memory_fd: int = -1) -> None:
        """Make its counter page, unless another one had its index before, and its estate. Raises: ResourceError."""
        page = self.run_dirs.counters(worker.index)
        if not page.exists():
            CounterPage.create(page).close()
        if worker.index in self._estates:
            self._estates[worker.index].prepare()
            return

        def refused(why: str, remedy: str) -> None:
            extra = {"worker": worker.name, "reason": why, "remedy": remedy}
            self._limited(LogEvent.SOCKET_NOT_KEPT, extra=extra, key=(worker.index, why))

        directory = self.run_dirs.kept(worker.index)
        self._estates[worker.index] = Estate(worker, directory, self._loop, self._log, refused, memory_fd)

    def start(self, worker: Worker) -> None:
        """Fork the next life of a waiting worker. Raises: OSError; the worker is waiting then, as before."""
        worker.cancel_restart()
        self.incarnations += 1
        worker.incarnation = self.incarnations
        worker.ready = worker.failure = None
        worker.trouble = ""
        worker.is_announced = worker.hands_over = False
        worker.unanswered = 0
        worker.started_ns = self._loop.now_ns()
        worker.backoff.on_start(worker.started_ns)
        other = self.other if worker in self.by_other else None
        mine, worker.pid, worker.pidfd = self._fork(worker, other)
        self._estates[worker.index].on_start()
        worker.move(Event.FORKED)
        worker.starts += 1
        worker.program, worker.version = (
            (self.program, self.version) if other is None else (other.number, other.version)
        )
        self.watch(worker, mine)
        extra = {"worker": worker.name, "pid": worker.pid, "incarnation": worker.incarnation}
        self._log.info(LogEvent.WORKER_STARTED, extra=extra)

    def watch(self, worker: Worker, control: socket.socket) -> None:
        """Hear what a process says, and of its end."""
        self._loop.add_reader(worker.pidfd, lambda: self._on_exit(worker))
        incarnation = worker.incarnation
        worker.control = ControlSocket[ParentMessage, WorkerReport](
            self._loop,
            control,
            PARENT_MESSAGES,
            WORKER_REPORTS,
            lambda report: self._on_report(worker, report),
            lambda: self._on_closed(worker, incarnation),
        )

    def _fork(self, worker: Worker, other: OtherProgram | None) -> tuple[socket.socket, int, int]:
        """Fork a child; its control socket, process id and descriptor. Raises: OSError, leaving nothing behind."""
        estate = self._estates[worker.index]
        goes_on, sockets = estate.open()
        try:
            return self._fork_with(worker, self.identity(worker, goes_on, sockets), other)
        except OSError:
            estate.sockets.detach()
            raise
        finally:
            if sockets is not None:
                sockets.end.close()

    def _fork_with(
        self, worker: Worker, identity: WorkerIdentity, other: OtherProgram | None
    ) -> tuple[socket.socket, int, int]:
        mine, theirs = control_pair()

        def child() -> None:
            self.close_inherited(worker.index)
            mine.close()
            run_worker(identity, theirs, worker.spec.main)

        try:
            return mine, *(fork(child, EXIT_BUG) if other is None else other.fork(identity, theirs))
        except OSError:
            mine.close()
            raise
        finally:
            theirs.close()

    def identity(self, worker: Worker, goes_on: bool, sockets: SocketsAtFork | None) -> WorkerIdentity:
        """Return who the next life of a worker is."""
        estate = self._estates[worker.index]
        return WorkerIdentity(
            name=worker.name,
            index=worker.index,
            incarnation=worker.incarnation,
            role=worker.spec.role,
            run_dir=self.run_dirs.run,
            ring_path=self.run_dirs.ring(worker.index, worker.incarnation),
            counters_path=self.run_dirs.counters(worker.index),
            parent_pid=os.getpid(),
            dro_node_id=self._node_id,
            kept=estate.memory,
            kept_dir=estate.directory,
            goes_on=goes_on,
            sockets=sockets,
        )

    def close_inherited(self, own: int = -1) -> None:
        """Close in the child all that is the parent's, above all the siblings' control sockets."""
        for index, estate in self._estates.items():
            estate.close_inherited(is_own=index == own)
        for worker in self._workers:
            if worker.control is not None:
                worker.control.close_inherited()
            if worker.pidfd >= 0:
                os.close(worker.pidfd)
        if self.other is not None:
            self.other.close_inherited()
        self._close_inherited()
        self._loop.close()

    # talking

    def send(self, worker: Worker, message: ParentMessage) -> None:
        """A worker that takes no messages is killed: it cannot be right about its siblings any more."""
        if worker.control is None:
            return
        try:
            worker.control.send(message)
        except ResourceError:
            self._log.error(LogEvent.WORKER_DEAF, extra={"worker": worker.name})
            self.kill(worker)

    def announce(self, worker: Worker, ready: Ready) -> None:
        """Announce a worker: it and its siblings may talk from now on."""
        worker.ready = ready
        worker.is_tried = False
        self._estates[worker.index].succession.on_ready()
        worker.is_announced = worker.spec.is_on_bus
        siblings = list(self._workers.working_siblings(worker))
        for sibling in siblings:
            self.send(worker, _peer_up(sibling))
        for sibling in siblings:  # behind: who hears of the first has all others to hear
            self.send(sibling, _peer_up(worker))

    def on_taken_over(self, worker: Worker) -> None:
        """Note that a worker has taken over the newest configuration."""
        self._estates[worker.index].on_taken_over()

    def take_out(self, worker: Worker) -> None:
        """Tell the siblings of a worker that has ended and comes back no more."""
        for sibling in self._workers.informed_siblings(worker):
            self.send(sibling, PeerRemoved(worker.index, worker.incarnation))
        self._estates.pop(worker.index).close()

    # the end

    def obstacle(self, worker: Worker) -> str:
        """Return why the next life of a worker would not go on from this one; empty when it would."""
        return self._estates[worker.index].succession.obstacle(worker.spec.part)

    def let_go(self, worker: Worker) -> None:
        """Let go of what the last life of a worker without a process has kept: by an order there is no next one."""
        self._estates[worker.index].on_order()

    def kill(self, worker: Worker) -> None:
        signal.pidfd_send_signal(worker.pidfd, signal.SIGKILL)

    def _on_closed(self, worker: Worker, incarnation: int) -> None:
        def kill_if_alive() -> None:
            if worker.is_alive and worker.incarnation == incarnation:
                self.kill(worker)

        self._loop.call_later(CLOSED_LIMIT_NS, kill_if_alive)

    def _on_exit(self, worker: Worker) -> None:
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
        worker.last_death = cause_of(status, is_ordered=worker.state is WorkerState.STOPPING)
        self._estates[worker.index].on_end(status)
        self.run_dirs.remove_incarnation(worker.index, worker.incarnation)
        if worker.is_announced:
            for sibling in self._workers.informed_siblings(worker):
                self.send(sibling, PeerDown(worker.index, worker.incarnation))
        worker.is_announced = False
        self._on_end(worker, status)


def _peer_up(worker: Worker) -> PeerUp:
    ready = worker.ready
    assert ready is not None
    assert worker.state in (WorkerState.READY, WorkerState.DRAINING)
    spec = worker.spec
    return PeerUp(worker.index, worker.incarnation, spec.name, spec.role, ready.ring, ready.ctl)


def cause_of(status: int, *, is_ordered: bool = False) -> str:
    """Return what `waitpid` reports about the end of a process, in words. `is_ordered`: it had been told to stop."""
    if os.WIFSIGNALED(status):
        return f"killed by {_signal_name(os.WTERMSIG(status))}"
    code = os.waitstatus_to_exitcode(status)
    if code:
        return f"exit status {code}"
    return "ended by order" if is_ordered else "ended by itself"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
