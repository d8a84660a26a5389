"""ZeroMQ between the workers of one DRO: messages to and from siblings.

Each incarnation of a worker binds two PULL sockets in the run directory, `w<index>.<incarnation>.ctl` and `.data`; a
sibling connects two PUSH sockets when the parent announces it. Every frame begins with the sender's index and
incarnation, so messages of an ended incarnation are dropped here; those of one that has not been announced yet are held
until it is. Order is kept within one pair and kind, but not between control and data.

Control messages are never lost between two running workers: a sibling that stops accepting them (tens of thousands are
waiting, or the caller gives it up) is disconnected and reported as stuck; it returns as a new incarnation. Data
messages are descriptors: a full channel refuses them and the caller counts them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Final

import zmq

from dro.errors import LocalProtocolError, ResourceError
from dro.loop import Loop
from dro.os_errors import remedy_of

_ENVELOPE: Final = Struct("=IQ")  # sender's worker index, sender's incarnation

CTL_HWM: Final = 65_536  # messages
DATA_HWM: Final = 1_024  # descriptors
MAX_MESSAGE_BYTES: Final = 16 << 20
MAX_HELD: Final = 65_536  # messages of one kind, of incarnations not announced yet
CTL_PER_TURN: Final = 256
DATA_PER_TURN: Final = 16
_SUN_PATH_MAX: Final = 107  # bytes of a socket path, without its NUL

CtlCallback = Callable[[int, bytes], object]
"""Gets the sender's worker index and the message."""
DataCallback = Callable[[list[tuple[int, bytes]]], object]
"""Gets what was taken in this turn, about `DATA_PER_TURN`: (sender's worker index, descriptor), in order."""


@dataclass(slots=True)
class _Peer:
    incarnation: int
    ctl: zmq.Socket[bytes]
    data: zmq.Socket[bytes]


def _nothing(*_: object) -> None:
    return None


class Channels:
    """Both directions of one worker. Made after the fork: it owns the worker's only ZeroMQ context."""

    def __init__(self, loop: Loop, run_dir: Path, me: int, incarnation: int, *, data_hwm: int = DATA_HWM) -> None:
        """Raises: ResourceError when the sockets cannot be bound."""
        self._loop = loop
        self._data_hwm = data_hwm
        self._envelope = _ENVELOPE.pack(me, incarnation)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._context.setsockopt(zmq.LINGER, 0)  # of every socket: what was not sent does not hold up an end
        self._peers: dict[int, _Peer] = {}
        self._newest: dict[int, int] = {}  # worker -> newest incarnation that was connected
        self._held_ctl: list[tuple[int, int, bytes]] = []  # (worker, incarnation, frame)
        self._held_data: list[tuple[int, int, bytes]] = []
        self.on_ctl: CtlCallback = _nothing
        self.on_data: DataCallback = _nothing
        self.on_stuck: Callable[[int, int], object] = _nothing
        """Gets worker and incarnation of a sibling that was disconnected because it takes nothing any more."""
        self._closed = False
        self.stale = 0  # messages of incarnations that are over
        self.malformed = 0
        self.ctl_address = f"ipc://{run_dir}/w{me}.{incarnation}.ctl"
        self.data_address = f"ipc://{run_dir}/w{me}.{incarnation}.data"
        try:
            self._ctl_in = self._pull(self.ctl_address, CTL_HWM)
            self._data_in = self._pull(self.data_address, data_hwm)
        except ResourceError:
            self._context.destroy()
            raise
        loop.add_reader(self._ctl_in, self._take_ctl)
        loop.add_reader(self._data_in, self._take_data)

    def _pull(self, address: str, hwm: int) -> zmq.Socket[bytes]:
        if len(address.removeprefix("ipc://").encode()) > _SUN_PATH_MAX:
            raise ResourceError(f"{address} is too long for a socket", remedy="use a shorter XDG_RUNTIME_DIR")
        pull = self._context.socket(zmq.PULL)
        pull.setsockopt(zmq.RCVHWM, hwm)
        pull.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        try:
            pull.bind(address)
        except zmq.ZMQError as e:
            raise ResourceError(f"cannot bind {address}: {e.strerror}", remedy=remedy_of(e.errno)) from e
        return pull

    # siblings

    def connect(self, worker: int, incarnation: int, ctl: str, data: str) -> None:
        """Begin to talk to that incarnation and to hear it; what it said before this call is heard next."""
        self.disconnect(worker)
        self._newest[worker] = max(incarnation, self._newest.get(worker, 0))
        self._peers[worker] = _Peer(incarnation, self._push(ctl, CTL_HWM), self._push(data, self._data_hwm))
        if self._held_ctl:
            self._loop.call_soon(self._receive_held_ctl)
        if self._held_data:
            self._loop.call_soon(self._take_data)

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
            peer.data.close()

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

    def send_data(self, worker: int, descriptor: bytes) -> bool:
        """Queue a descriptor; False when the channel is full or the sibling is gone: count a drop."""
        peer = self._peers.get(worker)
        if peer is None:
            return False
        try:
            peer.data.send(self._envelope + descriptor, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    # hearing; a ZeroMQ descriptor tells of news once, so it is drained until Again or called again by the loop

    def _take_ctl(self) -> bool:
        self._receive_held_ctl()
        for _ in range(CTL_PER_TURN):
            if self._closed:
                return False
            try:
                frame = self._ctl_in.recv(zmq.NOBLOCK)
            except zmq.Again:
                return False
            self._receive_ctl(frame)
        return True

    def _receive_ctl(self, frame: bytes) -> None:
        if len(frame) < _ENVELOPE.size:
            self.malformed += 1
            return
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

    def _take_data(self) -> bool:
        if self._closed:
            return False
        batch: list[tuple[int, bytes]] = []
        more = self._drain_data(batch)
        if batch:
            self.on_data(batch)
        return more and not self._closed

    def _drain_data(self, batch: list[tuple[int, bytes]]) -> bool:
        if self._held_data and self._is_announced(self._held_data):
            held, self._held_data = self._held_data, []
            for _, _, frame in held:
                self._sort_data(frame, batch)
        for _ in range(DATA_PER_TURN):
            try:
                frame = self._data_in.recv(zmq.NOBLOCK)
            except zmq.Again:
                return False
            self._sort_data(frame, batch)
        return True

    def _sort_data(self, frame: bytes, batch: list[tuple[int, bytes]]) -> None:
        if len(frame) < _ENVELOPE.size:
            self.malformed += 1
            return
        worker, incarnation = _ENVELOPE.unpack_from(frame)
        peer = self._peers.get(worker)
        if peer is not None and peer.incarnation == incarnation:
            batch.append((worker, frame[_ENVELOPE.size :]))
        elif incarnation > self._newest.get(worker, 0) and len(self._held_data) < MAX_HELD:
            self._held_data.append((worker, incarnation, frame))
        else:
            self.stale += 1

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for pull in (self._ctl_in, self._data_in):
            with contextlib.suppress(OSError, ValueError):  # the loop may be closed already
                self._loop.remove_reader(pull)
            pull.close()
        for worker in list(self._peers):
            self.disconnect(worker)
        self._context.term()
