"""The processes behind the workers' records: fork them, talk to them, introduce them to each other, bury them.

Everything that a worker is told about its siblings follows from three events: one is ready (it and every sibling that
works get a `PeerUp` of the other), one died (`PeerDown`), one left for good (`PeerRemoved`). Joining and rejoining are
the same.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from collections.abc import Callable
from typing import Final

from dro.bus.actor import EXIT_BUG, FORK_MASK, WorkerIdentity, run_worker
from dro.bus.control import ControlSocket, control_pair
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
from dro.loop import Loop
from supervisor.fleet import Event, Fleet, State, Worker
from supervisor.places import Places

CLOSED_LIMIT_NS: Final = s(1)  # a worker that closed its control socket is as good as gone


class Crew:
    """Owns every process, process descriptor and control socket. `on_report` and `on_end` tell what happens to them."""

    def __init__(
        self,
        fleet: Fleet,
        loop: Loop,
        log: logging.Logger,
        node_id: int,
        *,
        on_report: Callable[[Worker, WorkerReport], object],
        on_end: Callable[[Worker, int], object],
        in_child: Callable[[], object],
    ) -> None:
        """`on_end` gets the status of `waitpid`; `in_child` closes what else a fork inherits."""
        self._fleet = fleet
        self._loop = loop
        self._log = log
        self._node_id = node_id
        self._on_report = on_report
        self._on_end = on_end
        self._in_child = in_child
        self._incarnations = 0
        self.places: Places

    # the beginning

    def start(self, worker: Worker) -> None:
        """Fork the next life of a waiting worker. Raises: OSError; the worker is waiting then, as before."""
        worker.cancel_restart()
        self._incarnations += 1
        worker.incarnation = self._incarnations
        worker.ready = worker.failure = None
        worker.is_announced = False
        worker.unanswered = 0
        worker.started_ns = self._loop.now_ns()
        worker.backoff.on_start(worker.started_ns)
        mine, worker.pid, worker.pidfd = self._fork(worker)
        worker.move(Event.FORKED)
        worker.lives += 1
        self._loop.add_reader(worker.pidfd, lambda: self._on_exit(worker))
        incarnation = worker.incarnation
        worker.control = ControlSocket[ParentMessage, WorkerReport](
            self._loop,
            mine,
            PARENT_MESSAGES,
            WORKER_REPORTS,
            lambda report: self._on_report(worker, report),
            lambda: self._on_closed(worker, incarnation),
        )
        extra = {"worker": worker.name, "pid": worker.pid, "incarnation": incarnation}
        self._log.info("worker started", extra=extra)

    def _fork(self, worker: Worker) -> tuple[socket.socket, int, int]:
        """Control socket, process id and process descriptor of the child. Raises: OSError, leaving nothing behind."""
        identity = self._identity(worker)
        mine, theirs = control_pair()
        pid = 0
        signal.pthread_sigmask(signal.SIG_BLOCK, FORK_MASK)
        try:
            pid = os.fork()
            if pid == 0:
                try:
                    self.abandon()
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

    def _identity(self, worker: Worker) -> WorkerIdentity:
        return WorkerIdentity(
            name=worker.name,
            index=worker.index,
            incarnation=worker.incarnation,
            role=worker.spec.role,
            run_dir=self.places.run,
            ring_path=self.places.ring(worker.index, worker.incarnation),
            counters_path=self.places.counters(worker.index),
            parent_pid=os.getpid(),
            dro_node_id=self._node_id,
        )

    def abandon(self) -> None:
        """In the child: let go of everything that is the parent's, above all of the siblings' control sockets."""
        for worker in self._fleet:
            if worker.control is not None:
                worker.control.abandon()
            if worker.pidfd >= 0:
                os.close(worker.pidfd)
        self._in_child()
        self._loop.close()

    # talking

    def tell(self, worker: Worker, message: ParentMessage) -> None:
        """A worker that takes no messages is killed: it cannot be right about its siblings any more."""
        if worker.control is None:
            return
        try:
            worker.control.send(message)
        except ResourceError:
            self._log.error("worker does not listen, it is started anew", extra={"worker": worker.name})
            self.kill(worker)

    def introduce(self, worker: Worker, ready: Ready) -> None:
        """It and its siblings may talk from now on."""
        worker.ready = ready
        worker.is_announced = True
        for sibling in self._fleet.introduced(worker):
            self.tell(worker, _peer_up(sibling))
            self.tell(sibling, _peer_up(worker))

    def take_out(self, worker: Worker) -> None:
        """Tell the siblings of a worker that has ended and comes back no more."""
        for sibling in self._fleet.listening(worker):
            self.tell(sibling, PeerRemoved(worker.index, worker.incarnation))

    # the end

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
        worker.last_death = cause_of(status)
        self.places.remove_incarnation(worker.index, worker.incarnation)
        if worker.is_announced:
            for sibling in self._fleet.listening(worker):
                self.tell(sibling, PeerDown(worker.index, worker.incarnation))
        worker.is_announced = False
        self._on_end(worker, status)


def _peer_up(worker: Worker) -> PeerUp:
    ready = worker.ready
    assert ready is not None
    assert worker.state in (State.READY, State.DRAINING)
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
