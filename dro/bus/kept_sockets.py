"""Sockets of a worker that outlive its process: the parent holds duplicates, the next life gets them by its fork.

Worker and parent have a pair of sockets for it, made before each fork: the worker sends names with descriptors, the
parent sends nothing. Sending never blocks: what the kernel does not take waits here, one entry for each name.

A duplicate keeps the socket open, so of a kept socket three things differ. It must leave the loop before it is closed,
as the kernel goes on to report its events. Its connection ends when the parent has heard `drop`, unless it is shut
down; until then its port is taken as well. And whoever takes it must expect what came since the last life read from it.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import resource
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dro.bus.control import control_pair
from dro.errors import LocalProtocolError
from dro.loop import Loop
from dro.os_errors import remedy_of

MAX_KEPT: Final = 4096
"""Sockets that the parent holds for one worker."""
MAX_KEPT_NAME: Final = 200  # bytes
RESERVED_FILES: Final = 64
"""Descriptors that kept sockets leave to the parent: without any it could not fork the next life."""
_KEEP: Final = b"k"
_DROP: Final = b"d"
_PER_TURN: Final = 64
_GONE: Final = frozenset({errno.EPIPE, errno.ECONNRESET, errno.ENOTCONN, errno.ESHUTDOWN})
_ROOM: Final = socket.CMSG_LEN(array.array("i").itemsize)  # of one descriptor

Refused = Callable[[str, str], object]
"""Gets why a socket is not kept, and a remedy."""


@dataclass(frozen=True, slots=True)
class SocketsAtFork:
    """Names what a worker's process gets by its fork: its end of the pair, and descriptors by name."""

    end: socket.socket
    by_name: Mapping[bytes, int]


class KeptSockets:
    """The worker's side. Names are of the worker's own choice, at most 200 bytes."""

    def __init__(self, loop: Loop, at_fork: SocketsAtFork, refused: Refused = lambda _why, _remedy: None) -> None:
        self._loop = loop
        self._end = at_fork.end
        self._refused = refused
        self._untaken = dict(at_fork.by_name)
        self._held = set(at_fork.by_name)  # by the parent, as far as it was told
        self._waiting: dict[bytes, socket.socket | None] = {}  # None: to be dropped
        self._open = True

    def keep(self, name: bytes, sock: socket.socket) -> None:
        """Let the parent hold a duplicate until `drop`, in place of one that has the name already."""
        if len(name) > MAX_KEPT_NAME:
            raise LocalProtocolError(f"the name of a kept socket has {len(name)} bytes")
        self._close_untaken(name)
        self._put(name, sock)

    def drop(self, name: bytes) -> None:
        """Let the parent close its duplicate; belongs beside the close of the socket. A name without one is fine."""
        self._close_untaken(name)
        if name in self._held:
            self._put(name, None)
        else:
            self._waiting.pop(name, None)

    def take(self, name: bytes) -> socket.socket | None:
        """Return, once and non-blocking, what the former incarnation had kept, or None. The parent still holds it."""
        fd = self._untaken.pop(name, -1)
        if fd < 0:
            return None
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        return sock

    def names(self) -> list[bytes]:
        """List what the former incarnation had kept and nobody has taken yet."""
        return list(self._untaken)

    def drop_rest(self) -> None:
        """Drop all that nobody has taken."""
        for name in self.names():
            self.drop(name)

    def close(self) -> None:
        """Leave the loop and close what is this process's; what the parent holds stays. Idempotent."""
        if self._open:
            self._open = False
            self._waiting.clear()
            with contextlib.suppress(OSError, ValueError):
                self._loop.remove_writer(self._end)
            self._end.close()
            for name in self.names():
                self._close_untaken(name)

    def _close_untaken(self, name: bytes) -> None:
        if (fd := self._untaken.pop(name, -1)) >= 0:
            os.close(fd)

    def _put(self, name: bytes, sock: socket.socket | None) -> None:
        if self._open:
            self._waiting.pop(name, None)
            self._waiting[name] = sock
            if len(self._waiting) == 1:
                self._flush()

    def _flush(self) -> None:
        while self._waiting:
            name, sock = next(iter(self._waiting.items()))
            fd = -1 if sock is None else sock.fileno()  # also of one that was closed meanwhile
            try:
                if fd < 0:
                    self._end.send(_DROP + name)
                    self._held.discard(name)
                else:
                    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
                    self._end.sendmsg([_KEEP + name], [rights])
                    self._held.add(name)
            except BlockingIOError:
                self._loop.add_writer(self._end, self._on_writable)
                return
            except OSError as e:
                if fd < 0 or e.errno in _GONE:  # the parent is gone
                    self._waiting.clear()
                    return
                self._refused(e.strerror or str(e), remedy_of(e.errno, remedy_of(errno.EMFILE)))
                self._waiting[name] = None  # what had the name before is not that socket
                continue
            del self._waiting[name]

    def _on_writable(self) -> None:
        self._loop.remove_writer(self._end)
        self._flush()


class NoKeptSockets(KeptSockets):
    """Keeps nothing, for hosts without a parent."""

    def __init__(self) -> None:
        """Take nothing: there is no pair of sockets."""

    def keep(self, name: bytes, sock: socket.socket) -> None:
        """Let the socket end with this process."""

    def drop(self, name: bytes) -> None:
        """Do nothing: there is no duplicate."""

    def take(self, name: bytes) -> socket.socket | None:
        return None

    def names(self) -> list[bytes]:
        return []

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


NO_SOCKETS: Final[KeptSockets] = NoKeptSockets()


class SocketKeeper:
    """The parent's side, of one worker and all its lives: holds the duplicates."""

    def __init__(self, loop: Loop, refused: Refused) -> None:
        self._loop = loop
        self._refused = refused
        self._fds: dict[bytes, int] = {}
        self._end: socket.socket | None = None

    def __len__(self) -> int:
        return len(self._fds)

    @property
    def by_name(self) -> Mapping[bytes, int]:
        """The descriptors of the duplicates."""
        return self._fds

    @property
    def end_fd(self) -> int:
        """The descriptor of this side of the pair; -1 without a process."""
        return self._end.fileno() if self._end is not None else -1

    def adopt(self, by_name: Mapping[bytes, int], end_fd: int) -> None:
        """Hold what another program has held in this process."""
        self._fds.update(by_name)
        if end_fd >= 0:
            self._end = socket.socket(fileno=end_fd)
            self._end.setblocking(False)
            self._loop.add_reader(self._end, self._take)

    def attach(self) -> SocketsAtFork:
        """Make the pair for the next life, whose end is to be closed here after the fork. Raises: OSError."""
        mine, theirs = control_pair()
        self._end = mine
        self._loop.add_reader(mine, self._take)
        return SocketsAtFork(theirs, dict(self._fds))

    def detach(self) -> None:
        """Hear what the process has sent to its end, and close this side of the pair; idempotent."""
        while self._take():
            pass
        self._close_end()

    def clear(self) -> None:
        """Close all duplicates."""
        for name in list(self._fds):
            self._drop(name)

    def close_inherited(self, *, keeps_sockets: bool) -> None:
        """Close in a forked child what is the parent's, and the sockets unless they are the child's own."""
        if self._end is not None:
            self._end.close()
        if not keeps_sockets:
            self.clear()

    def _close_end(self) -> None:
        if self._end is not None:
            self._loop.remove_reader(self._end)
            self._end.close()
            self._end = None

    def _take(self) -> bool:
        for _ in range(_PER_TURN):
            if self._end is None:
                return False
            try:
                packet, controls, flags, _ = self._end.recvmsg(1 + MAX_KEPT_NAME, _ROOM, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return False
            except OSError:
                packet, controls, flags = b"", [], 0
            fds = array.array("i")
            for level, kind, data in controls:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
            if not packet:
                _close_all(fds)
                self._close_end()
                return False
            self._on_packet(packet, fds, flags)
        return True

    def _on_packet(self, packet: bytes, fds: array.array[int], flags: int) -> None:
        kind, name = packet[:1], packet[1:]
        if flags & socket.MSG_TRUNC or kind not in (_KEEP, _DROP) or len(fds) > 1:
            _close_all(fds)
            self._refused("its message is broken", "report it")
            return
        self._drop(name)
        why, remedy = ("", "") if kind == _DROP else self._obstacle(fds, flags)
        if kind == _DROP or why:
            _close_all(fds)
        else:
            self._fds[name] = fds[0]
        if why:
            self._refused(why, remedy)

    def _obstacle(self, fds: array.array[int], flags: int) -> tuple[str, str]:
        """Return why a socket cannot be kept, and a remedy; two empty texts when it can."""
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        is_scarce = bool(fds) and limit != resource.RLIM_INFINITY and fds[0] >= limit - RESERVED_FILES
        if is_scarce or (not fds and flags & socket.MSG_CTRUNC):
            return "the parent has no descriptor left for it", remedy_of(errno.EMFILE)
        if len(fds) != 1 or flags & socket.MSG_CTRUNC:
            return "its message is broken", "report it"
        if len(self._fds) >= MAX_KEPT:
            return f"{MAX_KEPT} are kept already", "spread the topics over more portals"
        return "", ""

    def _drop(self, name: bytes) -> None:
        if (fd := self._fds.pop(name, -1)) >= 0:
            os.close(fd)


def _close_all(fds: array.array[int]) -> None:
    for fd in fds:
        os.close(fd)
