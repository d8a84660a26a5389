"""A worker process from its fork to its exit, and the context that its main function gets.

The parent forks; the child calls `run_worker`, which never returns. It creates everything that must not cross a fork
(loop, ZeroMQ context, signal handlers), calls the main function with a `WorkerContext`, and turns its end into an exit
status. A main function sets itself up, calls `ready()`, then `run()`; when it returns, the worker is done.

A worker ends when the parent orders it, on SIGTERM or SIGINT, or when the parent is gone, whichever comes first. It
then has a grace period for an orderly end; after that an alarm ends it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn, assert_never

import zmq

from dro.bus.channel import Channels
from dro.bus.control import ControlSocket
from dro.bus.counters import CounterPage
from dro.bus.cycle_collector import CycleCollector
from dro.bus.kept_bytes import KeptBytes
from dro.bus.kept_sockets import NO_SOCKETS, KeptSockets, SocketsAtFork
from dro.bus.messages import (
    PARENT_MESSAGES,
    WORKER_REPORTS,
    Drain,
    Drained,
    Leave,
    ListRows,
    ParentMessage,
    PeerDown,
    PeerRemoved,
    PeerStuck,
    PeerUp,
    Ping,
    Pong,
    Ready,
    Recalculate,
    Reconfigure,
    Reconfigured,
    Role,
    Rows,
    SetLog,
    StartFailed,
    Stop,
    Stopped,
    WorkerReport,
)
from dro.bus.process_name import name_process, show_name
from dro.bus.worker_gauges import WorkerGauges
from dro.bus.worker_guards import ORPHAN_GRACE_MS, die_with, end_with, require_files, require_threads
from dro.clock import ms
from dro.errors import DecodeError, DroError, LocalProtocolError, ResourceError
from dro.kept.gate import Gate
from dro.kept.rows import KeptRows
from dro.kept.store import NOTHING_KEPT, Kept
from dro.log import setup as logs
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.log.lines import EMERGENCY
from dro.log.setup import rename
from dro.loop import Loop
from dro.os_errors import SCARCE, remedy_of
from dro.shared_memory.ring import RingReader, RingWriter

EXIT_OK: Final = 0
EXIT_START_FAILED: Final = 3
EXIT_BUG: Final = 70
POLL_VARIABLE: Final = "DRO_POLL_US"
POLL_MAX_US: Final = 1_000_000
DEFAULT_GRACE_MS: Final = 3_500
CLOSING_MS: Final = 2_000
"""After the grace period, to close what is open; where multicast groups are left all the time, that waits."""
RING: Final = "ring"
FORMER_RING: Final = "ring.former"
"""What the rings of this incarnation and the one before are called in the folder of what is kept."""
SIBLING_RING: Final = "sibling"
"""Begins the names of siblings' rings there; worker and incarnation follow."""
STOP_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT})
FORK_MASK: Final = frozenset({*STOP_SIGNALS, signal.SIGHUP})
"""Signals that stay blocked from before the fork until the child has handlers of its own."""


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Who a worker is in this life; made by the parent before the fork."""

    name: str
    index: int
    incarnation: int
    role: Role
    run_dir: Path
    ring_path: Path
    counters_path: Path
    parent_pid: int
    dro_node_id: int  # of the DRO that all workers belong to; drawn once, at its start
    kept: KeptBytes
    kept_dir: Path
    goes_on: bool = False
    sockets: SocketsAtFork | None = None


class WorkerContext:
    """What a worker's main function works with."""

    def __init__(self, identity: WorkerIdentity, control: socket.socket, loop: Loop, log: logging.Logger) -> None:
        self.identity = identity
        self.name = identity.name
        self.index = identity.index
        self.incarnation = identity.incarnation
        self.role = identity.role
        self.run_dir = identity.run_dir
        self.loop = loop
        self.log = log
        self.limited = LimitedLogger(log, loop.now_ns).event
        self.peers: dict[int, PeerUp] = {}
        """Siblings that are up, by worker index."""
        self.kept = identity.kept
        """What its former incarnation has left for it, and it leaves for the next."""
        self.goes_on = identity.goes_on
        """Whether the former incarnation was killed or has handed over: what it has kept is there; else nothing is."""
        self.kept_dir = identity.kept_dir
        """A directory in shared memory for files that the next incarnation goes on with."""
        self.kept_sockets = NO_SOCKETS
        self.kept_state: Kept = NOTHING_KEPT
        """Sockets, rows and logs that the former incarnation has left, and this one leaves."""
        if identity.sockets is not None:
            self.kept_sockets = KeptSockets(loop, identity.sockets, self._on_socket_refused)
            self.kept_state = self._open_kept_state(identity.kept_dir)
        self.counters = CounterPage.open(identity.counters_path)
        self.channels = Channels(loop, identity.run_dir, identity.index, identity.incarnation)
        self.channels.on_stuck = self._on_stuck
        self.ring: RingWriter | None = None
        self.is_ready = False
        self.is_stopping = False
        self._collector = CycleCollector(loop)
        self._gauges = WorkerGauges(self.counters, loop)
        loop.after_turn = self.counters.publish
        self._finished = False
        self._signals: deque[int] = deque()
        self.on_peer_up: Callable[[PeerUp], object] = lambda _: None
        """A sibling (or its new incarnation) can be talked to; its channels are connected by then."""
        self.on_peer_down: Callable[[PeerDown], object] = lambda _: None
        """A sibling has ended; also before `on_peer_up` of its next incarnation, always."""
        self.on_peer_removed: Callable[[PeerRemoved], object] = lambda _: None
        """A sibling has left for good; `on_peer_down` of it came before, unless it was down already."""
        self.on_reconfigure: Callable[[object], object] = lambda _: None
        """Takes over what can change live of the changed configuration, which it gets whole, all or nothing. A
        `DroError` that it raises is told to the parent and means that nothing changed."""
        self.on_drain: Callable[[int], object] = lambda _: self.drained("")
        """Called once, with a limit in ms, when the worker shall give up its traffic without losing any: it calls
        `drained` when it holds nothing any more, or at the limit."""
        self.on_list: Callable[[ListRows], Rows] = lambda q: Rows(q.serial, "[]", 0, f"{self.name} lists no {q.what}")
        """Makes a page of a list that an operator asks for; see `dro.bus.listing`."""
        self.on_recalculate: Callable[[], object] = lambda: None
        """An operator wants routes to be calculated; of the route manager alone."""
        self.on_leave: Callable[[], object] = lambda: None
        """The DRO shall leave its network, so that routes must avoid it; of the route manager alone."""
        self.on_stop: Callable[[], object] = self.finish
        """Called once when the worker shall end: says goodbye to the network and calls `finish`, at once or later. Not
        when it hands over to its next life."""
        self._control = ControlSocket[WorkerReport, ParentMessage](
            loop, control, WORKER_REPORTS, PARENT_MESSAGES, self._on_message, self._on_orphaned
        )

    def _open_kept_state(self, folder: Path) -> Kept:
        """Open what the former incarnation has left; nothing of it when a part of it cannot be believed."""
        try:
            try:
                rows = KeptRows.open(folder / "rows")
            except DecodeError as e:
                extra = {"worker": self.name, "reason": str(e), "sockets": len(self.kept_sockets.names())}
                self.log.info(LogEvent.WORKER_STARTS_CLEAN, extra=extra)
                self.goes_on = False
                self.kept_sockets.drop_rest()
                for path in folder.iterdir():
                    path.unlink()
                rows = KeptRows.open(folder / "rows")
        except (ResourceError, OSError) as e:
            self.log.warning(LogEvent.STATE_NOT_KEPT, extra={"worker": self.name, "reason": str(e)})
            self.goes_on = False
            self.kept_sockets.drop_rest()  # nobody would read them: their sources would wait
            return NOTHING_KEPT
        return Kept(self.kept_sockets, rows, folder, Gate(is_open=not self.goes_on))

    # what the main function says

    def drained(self, waiting: str) -> None:
        """Tell the parent that the worker has no traffic left; `waiting` names what it gave up at the limit, or not."""
        self._control.send(Drained(waiting))

    def name_of(self, worker: int) -> str:
        """Return what operators call that worker."""
        peer = self.peers.get(worker)
        return f"worker {worker}" if peer is None else peer.name

    def create_ring(self, capacity: int) -> RingWriter:
        """Make this incarnation's fragment ring; before `ready`. Raises: ResourceError."""
        if self.ring is not None or self.is_ready:
            raise LocalProtocolError("a worker has one ring, made before it is ready")
        self.ring = RingWriter.create(self.identity.ring_path, capacity, self.incarnation)
        if (folder := self.kept_state.folder) is not None:
            with contextlib.suppress(FileNotFoundError):
                (folder / RING).replace(folder / FORMER_RING)
            with contextlib.suppress(OSError):  # then the next incarnation finds no ring of this one
                os.link(self.identity.ring_path, folder / RING)
        return self.ring

    def former_ring(self, incarnation: int) -> RingReader | None:
        """Open the ring of that former incarnation, once: its memory goes with the reader. None when it is not there.

        It may have grown to four times the queue limit.
        """
        folder = self.kept_state.folder
        if folder is None:
            return None
        try:
            ring = RingReader.open(folder / FORMER_RING, incarnation)
        except ResourceError:
            return None
        (folder / FORMER_RING).unlink(missing_ok=True)
        return ring

    def open_ring(self, peer: PeerUp) -> RingReader:
        """Open a sibling's ring, so that it is there for the next incarnation, too, until `forget_sibling_ring`.

        Raises: ResourceError when it has none, or died meanwhile (`on_peer_down` follows).
        """
        if not peer.ring:
            raise ResourceError(f"{peer.name} has no fragment ring")
        ring = RingReader.open(Path(peer.ring), peer.incarnation)
        if self.kept_state.folder is not None:
            with contextlib.suppress(OSError):
                os.link(peer.ring, self._sibling_ring(peer.worker, peer.incarnation))
        return ring

    def _sibling_ring(self, worker: int, incarnation: int) -> Path:
        return self.kept_dir / f"{SIBLING_RING}.{worker}.{incarnation}"

    def former_sibling_rings(self, worker: int, first: int) -> list[RingReader]:
        """Open the rings of a sibling's incarnations that have ended, from `first` on, if not all of them was read."""
        living = self.peers[worker].incarnation if worker in self.peers else 0
        found = {int(path.suffix[1:]) for path in self.kept_dir.glob(f"{SIBLING_RING}.{worker}.*")}
        rings = []
        for incarnation in sorted(number for number in found if first <= number != living):
            with contextlib.suppress(ResourceError):
                rings.append(RingReader.open(self._sibling_ring(worker, incarnation), incarnation))
        return rings

    def forget_sibling_ring(self, worker: int, incarnation: int) -> None:
        """Let go of the ring of a sibling that has ended, as all of it was read."""
        self._sibling_ring(worker, incarnation).unlink(missing_ok=True)

    def forget_former_rings(self) -> None:
        """Let go of the rings of siblings that have ended and that nobody will read any more."""
        living = {self._sibling_ring(peer.worker, peer.incarnation) for peer in self.peers.values()}
        for path in set(self.kept_dir.glob(f"{SIBLING_RING}.*")) - living:
            path.unlink(missing_ok=True)

    def ready(self) -> None:
        """Say that everything is bound and running: siblings are told, and this worker is told of them."""
        if self.is_ready:
            raise LocalProtocolError("a worker is ready once")
        self.is_ready = True
        self.loop.forget_longest_turn()
        self._collector.start()
        self._gauges.start()
        ring = str(self.identity.ring_path) if self.ring is not None else ""
        goes_on = self.goes_on and self.role in (Role.ENDPOINT, Role.PEER)
        self._control.send(Ready(self.incarnation, ring, self.channels.ctl_address, goes_on))

    def hear_parent(self) -> None:
        """Take all that the parent has said up to now."""
        self._control.drain()

    def finish(self) -> None:
        """Make `run` return after this turn."""
        self._finished = True
        self.loop.stop()

    def run(self) -> None:
        """Turn the loop until `finish`; returns at once if that was called before."""
        if not self._finished:
            self.loop.run()

    # what happens to it

    def stop(self, grace_ms: int = DEFAULT_GRACE_MS, *, hands_over: bool = False) -> None:
        """Begin to end, or end at once when it has begun already (the parent or the operator insists).

        With `hands_over` it ends when this turn does, all that the turn began being done, and `on_stop` is not called.
        """
        if self.is_stopping:
            self.finish()
            return
        self.is_stopping = True
        self._end_within(grace_ms)
        if hands_over:
            self.finish()
        else:
            self.on_stop()

    def _end_within(self, grace_ms: int) -> None:
        # the alarm's default action works even when this process does nothing sensible any more
        signal.setitimer(signal.ITIMER_REAL, (grace_ms + CLOSING_MS) / 1000)
        self.loop.call_later(ms(grace_ms), self.finish)

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Signal handler: only remembers; the loop acts."""
        self._signals.append(number)
        self.loop.call_soon_threadsafe(self._take_signal)

    def _take_signal(self) -> None:
        if self._signals:
            self._signals.popleft()
            self.stop()

    def _on_message(self, message: ParentMessage) -> None:
        match message:
            case PeerUp():
                self._peer_gone(message.worker)
                self.peers[message.worker] = message
                self.channels.connect(message.worker, message.incarnation, message.ctl)
                self.on_peer_up(message)
            case PeerDown():
                self._peer_gone(message.worker)
            case PeerRemoved():
                if (peer := self.peers.get(message.worker)) is not None and peer.incarnation <= message.incarnation:
                    self._peer_gone(message.worker)
                self.on_peer_removed(message)
            case Reconfigure():
                self._reconfigure(message)
            case Drain():
                if not self.is_stopping:
                    self.on_drain(message.limit_ms)
            case Stop():
                if not self.is_stopping:
                    self.stop(message.grace_ms, hands_over=message.hands_over)
            case Ping():
                self._control.send(Pong(message.serial))
                logs.tick()
            case SetLog():
                self._set_log(message)
            case ListRows():
                self._control.send(self.on_list(message))
            case Recalculate():
                self.on_recalculate()
            case Leave():
                self.on_leave()
            case _:
                assert_never(message)

    def _set_log(self, message: SetLog) -> None:
        try:
            logs.apply(replace(logs.settings(), **asdict(message)))
        except ResourceError as e:
            self.log.error(LogEvent.LOG_UNCHANGED, extra={"reason": e.what, "remedy": e.remedy})

    def _reconfigure(self, message: Reconfigure) -> None:
        problem = ""
        try:
            self.on_reconfigure(pickle.loads(Path(message.path).read_bytes()))  # of the parent, in a directory of ours
        except (DroError, OSError) as e:
            problem = str(e)
            self.log.error(LogEvent.CHANGE_NOT_TAKEN_OVER, extra={"reason": problem})
        self._control.send(Reconfigured(message.serial, problem))

    def _peer_gone(self, worker: int) -> None:
        peer = self.peers.pop(worker, None)
        if peer is not None:
            self.channels.disconnect(worker)
            self.on_peer_down(PeerDown(worker, peer.incarnation))

    def _on_stuck(self, worker: int, incarnation: int) -> None:
        self.log.error(LogEvent.SIBLING_STUCK, extra={"worker": worker, "incarnation": incarnation})
        self._control.send(PeerStuck(worker, incarnation))

    def _on_orphaned(self) -> None:
        self.log.error(LogEvent.PARENT_GONE)
        if self.is_stopping:  # perhaps by the signal that came with it, and with more time than there is now
            self._end_within(ORPHAN_GRACE_MS)
        else:
            self.stop(ORPHAN_GRACE_MS)

    def _on_socket_refused(self, why: str, remedy: str) -> None:
        extra = {"worker": self.name, "reason": why, "remedy": remedy}
        self.limited(LogEvent.SOCKET_NOT_KEPT, extra=extra)

    def report(self, message: WorkerReport) -> None:
        self._control.send(message)

    def close(self) -> None:
        self._collector.stop()
        self.counters.publish()
        self.channels.close()
        self.kept_sockets.close()
        self._control.close()


REST_BELOW_NS: Final = ms(1)


def poll_ns() -> int:
    """Read how long a worker polls before it sleeps, from `DRO_POLL_US`. Raises: ResourceError for no such time."""
    text = os.environ.get(POLL_VARIABLE, "0")
    if not text.isdecimal() or int(text) > POLL_MAX_US:
        raise ResourceError(
            f"{POLL_VARIABLE} is {text!r}", remedy=f"it is a whole number of microseconds, at most {POLL_MAX_US}"
        )
    return int(text) * 1000


WorkerMain = Callable[[WorkerContext], object]


def run_worker(identity: WorkerIdentity, control: socket.socket, main: WorkerMain) -> NoReturn:
    """Be that worker until it ends; called in the forked child with `FORK_MASK` blocked."""
    status = EXIT_BUG
    try:
        die_with(identity.parent_pid)
        name_process(identity.name)
        show_name(identity.name)
        status = _run(identity, control, main, rename(identity.name))
    except BaseException:
        logging.getLogger("dro").log(EMERGENCY, "worker failed", exc_info=True)
    finally:
        logs.finish()
        os._exit(status)  # nothing of the parent's (exit handlers, buffers, test runners) may run here


def _run(identity: WorkerIdentity, control: socket.socket, main: WorkerMain, log: logging.Logger) -> int:
    context: WorkerContext | None = None
    try:
        end_with(identity.parent_pid)
        require_files()
        require_threads()
        context = WorkerContext(identity, control, Loop(poll_ns=poll_ns(), rest_below_ns=REST_BELOW_NS), log)
        take_signals(context.on_signal)
        main(context)
    except ResourceError as e:
        _refuse(e, control, log, context)
        return EXIT_START_FAILED
    except (OSError, zmq.ZMQError) as e:
        if e.errno not in SCARCE and context is not None:
            raise
        _refuse(ResourceError(e.strerror or str(e), remedy=remedy_of(e.errno)), control, log, context)
        return EXIT_START_FAILED
    context.report(Stopped())
    context.close()
    return EXIT_OK


def _refuse(error: ResourceError, control: socket.socket, log: logging.Logger, context: WorkerContext | None) -> None:
    log.critical(LogEvent.WORKER_CANNOT_RUN, extra={"reason": error.what, "remedy": error.remedy})
    if context is None or not context.is_ready:
        with contextlib.suppress(OSError):  # a parent that is gone needs no reason
            control.send(WORKER_REPORTS.encode(StartFailed(error.what, error.remedy)))


def take_signals(handler: Callable[[int, FrameType | None], object]) -> None:
    """Give a fresh process its handlers, then let in what was blocked across the fork."""
    for number in STOP_SIGNALS:
        signal.signal(number, handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FORK_MASK)
