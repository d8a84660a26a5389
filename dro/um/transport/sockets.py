"""Sockets set up as UM requires, with errors that name the option to change."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import sys
import termios
from collections.abc import Iterable
from typing import Final

from dro.clock import NS_PER_S
from dro.errors import ResourceError

SO_RCVBUFFORCE: Final = 33
SO_SNDBUFFORCE: Final = 32
IP_MULTICAST_ALL: Final = 49
SOL_UDP: Final = 17
UDP_SEGMENT: Final = 103
SO_MEMINFO: Final = 55
_MEMINFO: Final = struct.Struct("=9I")  # the last is SK_MEMINFO_DROPS
ANY: Final = "0.0.0.0"


def ip_text(ip: int) -> str:
    """Dotted form of an IPv4 address held as an integer."""
    return socket.inet_ntoa(ip.to_bytes(4, "big"))


def ip_number(text: str) -> int:
    """An IPv4 address as an integer. Raises: OSError when it is none."""
    return int.from_bytes(socket.inet_aton(text), "big")


def is_multicast(ip: int) -> bool:
    return 0xE0000000 <= ip <= 0xEFFFFFFF


def set_buffer(sock: socket.socket, option: int, size: int) -> int:
    """Ask for a socket buffer of `size` bytes (0 keeps the system's); returns what was granted.

    `option` is SO_RCVBUF or SO_SNDBUF. With CAP_NET_ADMIN the limit of the system does not apply.
    """
    if size:
        force = SO_RCVBUFFORCE if option == socket.SO_RCVBUF else SO_SNDBUFFORCE
        try:
            sock.setsockopt(socket.SOL_SOCKET, force, size)
        except OSError:
            sock.setsockopt(socket.SOL_SOCKET, option, size)
    return sock.getsockopt(socket.SOL_SOCKET, option) // 2


def _socket(kind: int) -> socket.socket:
    try:
        return socket.socket(socket.AF_INET, kind)
    except OSError as e:
        raise ResourceError(f"no socket: {e.strerror}", remedy="raise the limit of open files") from e


def multicast_receiver(group: int, port: int, interface: str, *, buffer_bytes: int, option: str) -> socket.socket:
    """A non-blocking UDP socket that has joined `group` on `interface` and hears nothing of other groups.

    `option` names the configuration option that decides group and port, for the error. Raises: ResourceError.
    """
    sock = _socket(socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)
        set_buffer(sock, socket.SO_RCVBUF, buffer_bytes)
        sock.setblocking(False)
        sock.bind((ip_text(group), port))
        join(sock, group, interface)
    except OSError as e:
        sock.close()
        raise ResourceError(
            f"cannot listen to group {ip_text(group)}:{port} on interface {interface}: {e.strerror}",
            remedy=f"change {option} or the interface",
        ) from e
    return sock


def join(sock: socket.socket, group: int, interface: str) -> None:
    membership = group.to_bytes(4, "big") + socket.inet_aton(interface)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)


def multicast_sender(group: int, port: int, interface: str, *, ttl: int, buffer_bytes: int) -> socket.socket:
    """A non-blocking UDP socket connected to `group`, with an ephemeral source port. Raises: ResourceError."""
    sock = _socket(socket.SOCK_DGRAM)
    try:
        if interface != ANY:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
            sock.bind((interface, 0))
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        set_buffer(sock, socket.SO_SNDBUF, buffer_bytes)
        sock.setblocking(False)
        sock.connect((ip_text(group), port))
    except OSError as e:
        sock.close()
        raise ResourceError(
            f"cannot send to group {ip_text(group)}:{port} from interface {interface}: {e.strerror}",
            remedy="check that the interface is up and has a route for multicast",
        ) from e
    return sock


def connecting(peer: tuple[str, int], interface: str, *, buffer_bytes: int, keepalive: bool) -> socket.socket:
    """A non-blocking TCP socket on its way to `peer`; writable when that is decided. Raises: OSError."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        if buffer_bytes:
            set_buffer(sock, socket.SO_RCVBUF, buffer_bytes)
        if keepalive:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if interface != ANY:
            sock.bind((interface, 0))
        if (code := sock.connect_ex(peer)) not in (0, errno.EINPROGRESS):
            raise OSError(code, os.strerror(code))
    except OSError:
        sock.close()
        raise
    return sock


def set_keepalive(sock: socket.socket, timeout_ns: int) -> None:
    """Let the system end a TCP connection whose other side has been silent for about `timeout_ns`; 0 does nothing."""
    if timeout_ns:
        seconds = max(2, timeout_ns // NS_PER_S)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds // 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, seconds // 10))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 5)


def unacknowledged_bytes(sock: socket.socket) -> int:
    """Return what was written to a TCP connection and has not reached the other machine yet."""
    found = bytearray(4)
    fcntl.ioctl(sock, termios.TIOCOUTQ, found)
    return int.from_bytes(found, sys.byteorder)


def receive_drops(sock: socket.socket | None) -> int:
    """Datagrams that the kernel dropped because the buffer of this socket was full; 0 when it does not tell."""
    if sock is None:
        return 0
    try:
        info = sock.getsockopt(socket.SOL_SOCKET, SO_MEMINFO, _MEMINFO.size)
        return int(_MEMINFO.unpack(info)[-1])
    except (OSError, struct.error):  # an old kernel, or a closed socket
        return 0


def bind_in_range(
    kind: int, interface: str, ports: Iterable[int], *, option: str, taken: Iterable[int] = ()
) -> socket.socket:
    """A non-blocking socket of `kind` bound to the first free port. Raises: ResourceError when all are taken."""
    skip = set(taken)
    tried = 0
    reason = ""
    for port in ports:
        if port in skip:
            continue
        tried += 1
        sock = _socket(kind)
        try:
            if kind == socket.SOCK_STREAM:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((interface, port))
            if kind == socket.SOCK_STREAM:
                sock.listen(5)  # a taken port may show only here
        except OSError as e:
            sock.close()
            reason = e.strerror or str(e)
            if e.errno not in (errno.EADDRINUSE, errno.EACCES):
                break
            continue
        sock.setblocking(False)
        return sock
    why = f"({tried} tried): {reason}" if tried else "(all are in use here)"
    raise ResourceError(f"no port of {option} can be bound on {interface} {why}", remedy=f"widen or move {option}")


def supports_gso(sock: socket.socket) -> bool:
    """Can this UDP socket send trains (`UDP_SEGMENT`)?"""
    try:
        sock.setsockopt(SOL_UDP, UDP_SEGMENT, 0)
    except OSError:
        return False
    return True


def interface_mtu(interface: str) -> int:
    """MTU of the interface that has this address; 65536 for loopback addresses, 1500 when it is not found.

    Raises: ResourceError.
    """
    if interface.startswith("127."):
        return 65536
    with _socket(socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            with contextlib.suppress(OSError):
                found = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
                if socket.inet_ntoa(found[20:24]) == interface:
                    mtu = fcntl.ioctl(probe.fileno(), 0x8921, request)  # SIOCGIFMTU
                    return int(struct.unpack_from("i", mtu, 16)[0])
    return 1500


def default_address() -> str:
    """The address of this host that others reach it by; loopback when there is none. Raises: ResourceError."""
    with _socket(socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("224.0.0.1", 9))  # sends nothing: only asks for the route
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
