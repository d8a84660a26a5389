"""ZeroMQ between the workers of one DRO: messages to and from siblings.

Each incarnation of a worker binds a PULL socket in the run directory, `w<index>.<incarnation>.ctl`; a sibling connects
a PUSH socket when the parent announces it. Every frame begins with the sender's index and incarnation, so messages of
an ended incarnation are dropped here; those of one that has not been announced yet are held until it is. Order is kept
within one pair.

Control messages are never lost between two running workers: a sibling that stops accepting them (tens of thousands are
waiting, or the caller gives it up) is disconnected and reported as stuck; it returns as a new incarnation. Data is not
sent here: it lies in shared memory (`dro.bus.descriptors`), and a byte in a named pipe, `w<index>.<incarnation>.bell`,
wakes a sibling that sleeps: no thread of ZeroMQ has a part in that. A sibling without one, which is of an older program
during an upgrade, is woken by a frame with nothing in it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, Final

import zmq

from dro.clock import ms
from dro.errors import LocalProtocolError, ResourceError
from dro.loop import Loop
from dro.os_errors import remedy_of

# as plain functions and integers: what is above them in pyzmq costs as much again
_get: Callable[[zmq.Socket[bytes], int], Any] = zmq.backend.Socket.get
_send, _recv = zmq.backend.Socket.send, zmq.backend.Socket.recv
_read, _write = os.read, os.write
_EVENTS, _POLLIN, _NOBLOCK = int(zmq.EVENTS), int(zmq.POLLIN), int(zmq.NOBLOCK)
_ENVELOPE: Final = Struct("=IQ")  # sender's worker index, sender's incarnation

CTL_HWM: Final = 65_536  # messages
MAX_MESSAGE_BYTES: Final = 16 << 20
MAX_HELD: Final = 65_536  # messages of incarnations not announced yet
CTL_PER_TURN: Final = 256
CTL_TURN_NS: Final = ms(5)
_BELL_BYTES = 4096
_SUN_PATH_MAX: Final = 107  # bytes of a socket path, without its NUL

CtlCallback = Callable[[int, bytes], object]
"""Gets the sender's worker index and the message."""


@dataclass(slots=True)
class _Peer:
    incarnation: int
    ctl: zmq.Socket[bytes]
    bell: int  # -1: it has none


def _nothing(*_: object) -> None:
    return None


def _bell_of(ctl: str) -> str:
    """Return the path of the named pipe that belongs to the address of a control socket."""
    return ctl.removeprefix("ipc://").removesuffix(".ctl") + ".bell"


class Channels:
    """Both directions of one worker. Made after the fork: it owns the worker's only ZeroMQ context."""

    def __init__(self, loop: Loop, run_dir: Path, me: int, incarnation: int) -> None:
        """Raises: ResourceError when the sockets cannot be bound."""
        self._loop = loop
        self._envelope = _ENVELOPE.pack(me, incarnation)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._context.setsockopt(zmq.LINGER, 0)  # of every socket: what was not sent does not hold up an end
        self._peers: dict[int, _Peer] = {}
        self._newest: dict[int, int] = {}  # worker -> newest incarnation that was connected
        self._held_ctl: list[tuple[int, int, bytes]] = []  # (worker, incarnation, frame)
        self.on_ctl: CtlCallback = _nothing
        self.on_stuck: Callable[[int, int], object] = _nothing
        """Gets worker and incarnation of a sibling that was disconnected because it takes nothing any more."""
        self._closed = False
        self._bell = -1
        self.stale = 0  # messages of incarnations that are over
        self.malformed = 0
        self.ctl_address = f"ipc://{run_dir}/w{me}.{incarnation}.ctl"
        try:
            self._ctl_in = self._pull(self.ctl_address, CTL_HWM)
        except ResourceError:
            self._context.destroy()
            raise
        loop.add_reader(self._ctl_in, self._take_ctl)
        self._bell = self._make_bell()
        loop.add_reader(self._bell, self._take_bell)

    def _make_bell(self) -> int:
        path = _bell_of(self.ctl_address)
        try:
            os.mkfifo(path, 0o600)
            return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as e:
            self.close()
            raise ResourceError(f"cannot make {path}: {e.strerror}", remedy=remedy_of(e.errno)) from e

    def _pull(self, address: str, hwm: int) -> zmq.Socket[bytes]:
        if len(address.removeprefix("ipc://").encode()) > _SUN_PATH_MAX:
            raise ResourceError(f"{address} is too long for a socket", remedy="use a shorter XDG_RUNTIME_DIR")
        pull = self._context.socket(zmq.PULL)
        pull.setsockopt(zmq.RCVHWM, hwm)
        pull.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        mask = os.umask(0o177)  # a run directory that the operator names may be open to others
        try:
            pull.bind(address)
        except zmq.ZMQError as e:
            raise ResourceError(f"cannot bind {address}: {e.strerror}", remedy=remedy_of(e.errno)) from e
        finally:
            os.umask(mask)
        return pull

    # siblings

    def connect(self, worker: int, incarnation: int, ctl: str) -> None:
        """Begin to talk to that incarnation and to hear it; what it said before this call is heard next."""
        self.disconnect(worker)
        self._newest[worker] = max(incarnation, self._newest.get(worker, 0))
        bell = -1
        with contextlib.suppress(OSError):  # of one that has ended meanwhile, too
            bell = os.open(_bell_of(ctl), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._peers[worker] = _Peer(incarnation, self._push(ctl, CTL_HWM), bell)
        if self._held_ctl:
            self._loop.call_soon(self._receive_held_ctl)

    def _push(self, address: str, hwm: int) -> zmq.Socket[bytes]:
        push = self._context.socket(zmq.PUSH)
        push.setsockopt(zmq.SNDHWM, hwm)
        push.connect(address)
        return push

    def disconnect(self, worker: int) -> None:
        """Forget a sibling: what is still on the way to or from it is lost. Does nothing when it is unknown."""
        peer = self._peers.pop(worker, None)
        if peer is not None:
            peer.ctl.close()
            if peer.bell >= 0:
                os.close(peer.bell)

    # saying

    def send_ctl(self, worker: int, message: bytes) -> bool:
        """Queue a control message; False when that sibling is not connected (it will hear everything on its return)."""
        peer = self._peers.get(worker)
        if peer is None:
            return False
        if len(message) + _ENVELOPE.size > MAX_MESSAGE_BYTES:
            raise LocalProtocolError(f"a control message of {len(message)} bytes")
        try:
            peer.ctl.send(self._envelope + message, zmq.NOBLOCK)
        except zmq.Again:
            self.give_up(worker)
            return False
        return True

    def give_up(self, worker: int) -> None:
        """That sibling takes nothing any more; nothing is done for one that is not connected."""
        if (peer := self._peers.get(worker)) is not None:
            self.disconnect(worker)
            self.on_stuck(worker, peer.incarnation)

    def wake(self, worker: int) -> None:
        """Make the loop of that sibling turn, if it is there."""
        peer = self._peers.get(worker)
        if peer is not None:
            try:
                if peer.bell >= 0:
                    _write(peer.bell, b"\0")
                else:
                    _send(peer.ctl, self._envelope, _NOBLOCK)
            except (zmq.Again, OSError):
                return  # it has much to wake up by, or has ended

    # hearing; a ZeroMQ descriptor tells of news once, so it is drained until Again or called again by the loop

    def _take_bell(self) -> None:
        """Take what rang; what was asked for is done by turning."""
        _read(self._bell, _BELL_BYTES)

    def _take_ctl(self) -> bool:
        self._receive_held_ctl()
        stop_ns = time.monotonic_ns() + CTL_TURN_NS
        for _ in range(CTL_PER_TURN):
            if self._closed:
                return False
            try:
                frame = _recv(self._ctl_in, _NOBLOCK)
            except zmq.Again:  # the descriptor tells of other things, too
                return False
            self._receive_ctl(frame)
            if self._closed or not _get(self._ctl_in, _EVENTS) & _POLLIN:
                return False
            if time.monotonic_ns() >= stop_ns:
                break
        return True

    def _receive_ctl(self, frame: bytes) -> None:
        if len(frame) < _ENVELOPE.size:
            self.malformed += 1
            return
        if len(frame) == _ENVELOPE.size:
            return  # to wake us
        worker, incarnation = _ENVELOPE.unpack_from(frame)
        peer = self._peers.get(worker)
        if peer is not None and peer.incarnation == incarnation:
            self.on_ctl(worker, frame[_ENVELOPE.size :])
        elif incarnation > self._newest.get(worker, 0):
            if len(self._held_ctl) >= MAX_HELD:
                raise LocalProtocolError(f"{MAX_HELD} control messages of workers never announced")
            self._held_ctl.append((worker, incarnation, frame))
        else:
            self.stale += 1

    def _is_announced(self, held: list[tuple[int, int, bytes]]) -> bool:
        return any(self._newest.get(worker, 0) >= incarnation for worker, incarnation, _ in held)

    def _receive_held_ctl(self) -> None:
        if self._held_ctl and self._is_announced(self._held_ctl):
            held, self._held_ctl = self._held_ctl, []
            for _, _, frame in held:
                if not self._closed:
                    self._receive_ctl(frame)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError, ValueError):  # the loop may be closed already
            self._loop.remove_reader(self._ctl_in)
            if self._bell >= 0:
                self._loop.remove_reader(self._bell)
                os.close(self._bell)
        self._ctl_in.close()
        for worker in list(self._peers):
            self.disconnect(worker)
        self._context.term()
