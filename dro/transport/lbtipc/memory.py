"""The memory of a session of LBT-IPC, and the local socket by which receivers get it.

The memory is a file without a name (memfd), or lies in the folder of a process that leaves its sessions to the next;
receivers get a descriptor that is only read. The socket has a name that nobody has to remove (abstract), so nothing is
left of a process that was killed. Such a name holds within one network namespace, which therefore counts as a host.

Who may join: the user of the source, root, and users whose group is one of the source's. A receiver takes memory that
nobody can cut short under it (sealed), or of its own user or groups, or of root. Guess: UM does not say who may; more
would let every user of the host read messages.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from functools import cache
from hashlib import blake2b
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from dro.errors import ResourceError
from dro.os_errors import remedy_of
from dro.shared_memory import records, ring
from dro.shared_memory.records import RecordWriter
from dro.wire import lbtipc
from dro.wire.source_string import IpcAddress

LAYOUT: Final = lbtipc.LAYOUT << 12 | records.LAYOUT_VERSION << 8 | ring.LAYOUT_VERSION
"""Of packets and memory together."""
WINDOW_REMEDY: Final = "lower transport_lbtipc_transmission_window_size, or give the machine more shared memory"
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"
_NAMESPACE: Final = "/proc/self/ns/net"
_CREDENTIALS: Final = Struct("=iII")  # process, user, group
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_BACKLOG: Final = 64


@cache
def host_id() -> int:
    """Name the running kernel and the network namespace, in 32 bits, never 0."""
    try:
        known = Path(_BOOT_ID).read_bytes() + b"%d" % os.stat(_NAMESPACE).st_ino
    except OSError:  # without them nobody else is told apart
        known = b""
    return int.from_bytes(blake2b(known, digest_size=4).digest(), "big") or 1


def shared_name(address: IpcAddress) -> str:
    return f"LBTIPC_{address.session_id:x}_{address.transport_id}"


def local_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)


def listen(address: IpcAddress) -> socket.socket | None:
    """Open the socket of a session; None when that name is taken. Raises: ResourceError."""
    try:
        sock = local_socket()
    except OSError as e:
        raise ResourceError(f"no socket for LBT-IPC: {e.strerror}", remedy=remedy_of(e.errno)) from e
    try:
        sock.bind(b"\0" + shared_name(address).encode())
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        return None
    return sock


def connect(address: IpcAddress) -> socket.socket:
    """Connect to the socket of a session. Raises: OSError."""
    sock = local_socket()
    try:
        sock.connect(b"\0" + shared_name(address).encode())
    except OSError:
        sock.close()
        raise
    return sock


class Peer(NamedTuple):
    """Who is at the other end of a connection."""

    process: int
    user: int
    group: int


def peer_of(sock: socket.socket) -> Peer:
    return Peer(*_CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)))


def is_trusted(user: int, group: int) -> bool:
    """Say whether a user is that of this process, or root, or has a group of this process."""
    return user in (os.geteuid(), 0) or group in (os.getegid(), *os.getgroups())


def may_read(sock: socket.socket) -> bool:
    """Say whether the user of a connection may have the memory."""
    peer = peer_of(sock)
    return is_trusted(peer.user, peer.group)


def may_be_read(sock: socket.socket) -> bool:
    """Say whether the user of a source is one whose memory is read here."""
    return os.geteuid() == 0 or may_read(sock)


def stays_whole(fd: int) -> bool:
    """Say whether nobody else can cut the memory short: what is read of it then would end the process."""
    with contextlib.suppress(OSError):  # it is no memory that can be sealed
        if fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            return True
    owner = os.fstat(fd)
    return is_trusted(owner.st_uid, owner.st_gid)


def make_memory(address: IpcAddress, capacity: int, path: Path | None) -> RecordWriter:
    """Make the memory of a session, in a file of that path if there is one. Raises: ResourceError."""
    name = Path(shared_name(address)) if path is None else path
    try:
        if path is None:
            fd = os.memfd_create(str(name), os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.fchmod(fd, 0o600)
        else:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as e:
        raise ResourceError(f"no memory for LBT-IPC: {e.strerror}", remedy=remedy_of(e.errno)) from e
    try:
        memory = RecordWriter.create(name, fd, capacity, address.session_id)
    except ResourceError as e:
        if path is not None:
            path.unlink(missing_ok=True)
        raise ResourceError(f"no memory for LBT-IPC: {e}", remedy=WINDOW_REMEDY) from e
    if path is None:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    return memory


def for_readers(memory: RecordWriter) -> int:
    """Return a descriptor of the memory that is only read. Raises: ResourceError."""
    try:
        return os.open(f"/proc/self/fd/{memory.ring.fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        raise ResourceError(f"cannot open the memory for LBT-IPC: {e.strerror}", remedy=remedy_of(e.errno)) from e
