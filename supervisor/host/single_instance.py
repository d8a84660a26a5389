"""One DRO per configuration file and per DRO name on a host: the parent of each holds an abstract socket for either.

"Host" is the network namespace, in which two DROs of one configuration would receive each other's traffic. Such sockets
need no file, do not depend on PID namespaces or directory permissions, and the kernel frees them with their process.
Another user could bind one to prevent a DRO from starting, so only those of root and the users of the DRO count.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Final

from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.loop import Loop
from supervisor.host.run_dirs import start_time_of

_BACKLOG: Final = 64
_CREDENTIALS: Final = struct.Struct("3i")
_FOREIGN_TRIES: Final = 5
_PAUSE_S: Final = 0.01
_ENDING_LIMIT_S: Final = 5.0  # for the workers of a killed DRO, which may not have let go yet
_DYING_S: Final = 0.5  # a process that was sent SIGKILL a moment ago is still there, and looks as ever
_UNKNOWN: Final = -1


@dataclass(frozen=True, slots=True)
class InstanceClaim:
    """Something that one DRO of a host has for itself. `key` tells claims apart, `what` is for people."""

    key: str
    what: str

    @property
    def address(self) -> bytes:
        return b"\0open-dro/" + hashlib.sha256(self.key.encode("utf-8", "surrogateescape")).hexdigest().encode()


@dataclass(frozen=True, slots=True)
class ClaimHolder:
    """The process that has a claim; pid 0 when it is in a PID namespace out of sight."""

    pid: int
    uid: int

    def __str__(self) -> str:
        return f"process {self.pid}" if self.pid else "a process of another PID namespace"


def claims_of(file: str, name: str) -> tuple[InstanceClaim, ...]:
    """Return what no two DROs of a host have; one without a name has only its file.

    The file counts by real path and device: one that an editor has replaced is the same, that of a container is not.
    """
    real = os.path.realpath(file)
    device = 0
    with contextlib.suppress(OSError):
        device = os.stat(os.path.dirname(real)).st_dev
    of_file = InstanceClaim(f"file {device} {real}", f"the configuration file {real}")
    return (of_file, InstanceClaim(f"name {name}", f"the DRO name {name}")) if name else (of_file,)


def holder_of(claim: InstanceClaim) -> ClaimHolder | None:
    """None when nobody has it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as sock:
        try:
            sock.connect(claim.address)
        except ConnectionRefusedError:
            return None
        except OSError:  # whoever has it lets nobody in, which is no DRO
            return ClaimHolder(0, _UNKNOWN)
        pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        return ClaimHolder(pid, uid)


class InstanceLocks:
    """The claims of this DRO. Forked workers let go of them, so that they end with the parent."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._sockets: list[socket.socket] = []

    def take(
        self, claims: Collection[InstanceClaim], owners: Collection[int], is_cancelled: Callable[[], bool]
    ) -> None:
        """Wait for claims of what ends. Raises: ResourceError when root or one of `owners` has one and lives on."""
        began = time.monotonic()
        for claim in claims:
            tries = 0
            while tries < _FOREIGN_TRIES and not is_cancelled():
                sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                try:
                    sock.bind(claim.address)
                except OSError:
                    sock.close()
                else:
                    sock.listen(_BACKLOG)
                    self._sockets.append(sock)
                    break
                holder = holder_of(claim)
                is_ending = holder is not None and holder.pid > 0 and start_time_of(holder.pid) is None
                if holder is None or holder.uid not in {0, *owners}:
                    tries += 1  # the holder may just be beginning, or ending
                elif time.monotonic() > began + (_ENDING_LIMIT_S if is_ending else _DYING_S):
                    what = f"{claim.what} is in use: {holder} runs that DRO on this host"
                    raise ResourceError(what, remedy="stop that one first, or use another file and name")
                time.sleep(_PAUSE_S)
            if tries == _FOREIGN_TRIES:
                self._log.warning(LogEvent.FOREIGN_CLAIM, extra={"claim": claim.what})

    def filenos(self) -> list[int]:
        return [sock.fileno() for sock in self._sockets]

    def adopt(self, fds: Collection[int]) -> None:
        """Have the claims that another program in this process had."""
        for fd in fds:
            self._sockets.append(socket.socket(fileno=fd))
            self._sockets[-1].setblocking(False)

    def serve(self, loop: Loop) -> None:
        """Answer who asks for the holder."""
        for sock in self._sockets:
            loop.add_reader(sock, partial(_accept, sock))

    def close(self) -> None:
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()


def _accept(sock: socket.socket) -> bool:
    with contextlib.suppress(OSError):
        sock.accept()[0].close()
    return False
