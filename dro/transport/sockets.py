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
import weakref
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from dro.clock import NS_PER_S
from dro.config.um.interfaces import SYSTEM, is_of_device
from dro.errors import ResourceError

SO_RCVBUFFORCE: Final = 33
SO_SNDBUFFORCE: Final = 32
IP_MULTICAST_ALL: Final = 49
SOL_UDP: Final = 17
UDP_SEGMENT: Final = 103
SO_MEMINFO: Final = 55
TCP_RTO_MAX_MS: Final = 44
RETRANSMIT_MS: Final = 2000
"""Guess: UM does not say. A connection is given up after 15 attempts, with this 25 s after the last acknowledgement."""
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


@dataclass(slots=True)
class _DevicePlace:
    """Keeps where a socket is on this host.

    The kernel keeps a membership, and where a datagram to a group leaves, by the number of a device, which is another
    one when the device is made again.
    """

    interface: str
    device: int = 0  # its number; 0: as the kernel chooses, or not known
    group: int = 0  # that the socket has joined; 0: none
    sends_to_groups: bool = False

    @property
    def membership(self) -> bytes:
        return _MEMBERSHIP.pack(self.group.to_bytes(4, "big"), socket.inet_aton(self.interface), self.device)

    def take(self, sock: socket.socket) -> None:
        """Join the group there, and send from there. Raises: OSError."""
        if self.sends_to_groups:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, self.membership)
        if self.group:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, self.membership)

    def follow(self, sock: socket.socket, device: int) -> None:
        """Do on another device what was done on the one before. Raises: OSError."""
        if self.group and self.device:
            with contextlib.suppress(OSError):  # it goes with the device, but its place in the socket stays taken
                sock.setsockopt(socket.IPPROTO_IP, socket.IP_DROP_MEMBERSHIP, self.membership)
        before, self.device = self.device, device
        try:
            self.take(sock)
        except OSError as e:
            if e.errno != errno.EADDRINUSE:  # it has joined there already
                self.device = before
                raise


_MEMBERSHIP: Final = struct.Struct("=4s4si")
_NO_DEVICE: Final = (0, True)
_open: Final[weakref.WeakKeyDictionary[socket.socket, _DevicePlace]] = weakref.WeakKeyDictionary()
"""Those that can follow their device."""


def devices() -> dict[str, tuple[int, bool]]:
    """Number of the device of each address of this host, and whether it is up. Raises: OSError."""
    found: dict[str, tuple[int, bool]] = {}
    for one in SYSTEM.interfaces():
        with contextlib.suppress(OSError):  # it goes in this moment
            found[one.address] = socket.if_nametoindex(one.name.partition(":")[0]), one.is_up
    return found


def follow_devices(gone: Container[int], more: Iterable[str] = ()) -> list[str]:
    """Let all open sockets of this process follow the devices of their addresses; what is in the way of that.

    `gone`: devices that were removed, whatever has their numbers now; `more`: further addresses that are needed.
    Raises: OSError.
    """
    known = devices()
    problems = {_problem(address, known) for address in more if is_of_device(address)} - {""}
    for reference in _open.keyrefs():  # other threads of an application may make sockets meanwhile
        sock = reference()
        place = _open.get(sock) if sock is not None else None
        if sock is None or place is None or sock.fileno() < 0:
            continue
        device = known.get(place.interface, _NO_DEVICE)[0]
        if place.device and (problem := _problem(place.interface, known)):
            problems.add(problem)
        if (device and device != place.device) or place.device in gone or (place.group and place.interface == ANY):
            try:
                place.follow(sock, device)
            except OSError as e:
                if device:
                    problems.add(f"group {ip_text(place.group)} on {place.interface}: {e.strerror}")
    return sorted(problems)


def adopt_group(sock: socket.socket, group: int, interface: str) -> None:
    """Take a socket of a former process, which has joined `group` on `interface`, so that it follows its device.

    Raises: OSError when it cannot be in the group any more; it is open still.
    """
    device = devices().get(interface, _NO_DEVICE)[0] if interface != ANY else 0
    place = _DevicePlace(interface, device, group)
    try:
        place.take(sock)
    except OSError as e:
        if e.errno != errno.EADDRINUSE:  # it is there still
            raise
    _open[sock] = place


def _problem(address: str, known: Mapping[str, tuple[int, bool]]) -> str:
    device, is_up = known.get(address, _NO_DEVICE)
    if not device:
        return f"no device has the address {address}"
    return "" if is_up else f"the device of {address} is down"


def _socket(kind: int, interface: str) -> tuple[socket.socket, _DevicePlace]:
    """Open a socket that is to be on that interface. Raises: ResourceError."""
    place = _DevicePlace(interface)
    try:
        if interface != ANY:
            place.device = devices().get(interface, _NO_DEVICE)[0]
        sock = socket.socket(socket.AF_INET, kind)
    except OSError as e:
        raise ResourceError(f"no socket: {e.strerror}", remedy="raise the limit of open files") from e
    _open[sock] = place
    return sock, place


def adopt(sock: socket.socket, interface: str, *, group: int = 0, sends_to_groups: bool = False) -> None:
    """Let a socket that another process has opened on that interface follow its device from now on."""
    _open[sock] = _DevicePlace(interface, 0, group, sends_to_groups)


@contextlib.contextmanager
def _closed_on_error(sock: socket.socket, what: str, remedy: str) -> Iterator[None]:
    """Close the socket when it cannot be set up. Raises: ResourceError."""
    try:
        yield
    except OSError as e:
        sock.close()
        raise ResourceError(f"{what}: {e.strerror}", remedy=remedy) from e


class Sockets(Protocol):
    """Opens the sockets of sessions and contexts; none of them blocks.

    `option` names the configuration option that decides group and port, for the error.
    """

    def multicast_receiver(
        self, group: int, port: int, interface: str, *, buffer_bytes: int, option: str
    ) -> socket.socket:
        """A UDP socket that has joined `group` on `interface` and hears nothing of others. Raises: ResourceError."""

    def multicast_sender(self, group: int, port: int, interface: str, *, ttl: int, buffer_bytes: int) -> socket.socket:
        """A UDP socket connected to `group`, with an ephemeral source port. Raises: ResourceError."""

    def connecting(
        self, peer: tuple[str, int], interface: str, *, buffer_bytes: int, keepalive: bool, port: int = 0
    ) -> socket.socket:
        """A TCP socket on its way to `peer`, from `port` if that is not 0; writable when that is decided.

        Raises: OSError.
        """

    def bind_in_range(
        self, kind: int, interface: str, ports: Iterable[int], *, option: str, taken: Iterable[int] = ()
    ) -> socket.socket:
        """A socket of `kind` bound to the first free port. Raises: ResourceError when all are taken."""

    def nak_socket(self, interface: str) -> socket.socket:
        """A UDP socket that NAKs leave from. Raises: ResourceError."""


class OsSockets:
    """Opens them itself. Implements `Sockets`."""

    def multicast_receiver(
        self, group: int, port: int, interface: str, *, buffer_bytes: int, option: str
    ) -> socket.socket:
        sock, place = _socket(socket.SOCK_DGRAM, interface)
        what = f"cannot listen to group {ip_text(group)}:{port} on interface {interface}"
        with _closed_on_error(sock, what, f"change {option} or the interface"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.IPPROTO_IP, IP_MULTICAST_ALL, 0)
            set_buffer(sock, socket.SO_RCVBUF, buffer_bytes)
            sock.setblocking(False)
            sock.bind((ip_text(group), port))
            place.group = group
            place.take(sock)
        return sock

    def multicast_sender(self, group: int, port: int, interface: str, *, ttl: int, buffer_bytes: int) -> socket.socket:
        sock, place = _socket(socket.SOCK_DGRAM, interface)
        what = f"cannot send to group {ip_text(group)}:{port} from interface {interface}"
        with _closed_on_error(sock, what, "check that the interface is up and has a route for multicast"):
            if interface != ANY:
                place.sends_to_groups = True
                place.take(sock)
                sock.bind((interface, 0))
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
            set_buffer(sock, socket.SO_SNDBUF, buffer_bytes)
            sock.setblocking(False)
            sock.connect((ip_text(group), port))
        return sock

    def connecting(
        self, peer: tuple[str, int], interface: str, *, buffer_bytes: int, keepalive: bool, port: int = 0
    ) -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            if buffer_bytes:
                set_buffer(sock, socket.SO_RCVBUF, buffer_bytes)
            if keepalive:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            retransmit_soon(sock)
            if port:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if interface != ANY or port:
                sock.bind((interface, port))
            if (code := sock.connect_ex(peer)) not in (0, errno.EINPROGRESS):
                raise OSError(code, os.strerror(code))
        except OSError:
            sock.close()
            raise
        return sock

    def bind_in_range(
        self, kind: int, interface: str, ports: Iterable[int], *, option: str, taken: Iterable[int] = ()
    ) -> socket.socket:
        skip = set(taken)
        tried = 0
        reason = ""
        for port in ports:
            if port in skip:
                continue
            tried += 1
            sock, _ = _socket(kind, interface)
            try:
                if kind == socket.SOCK_STREAM:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    retransmit_soon(sock)
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

    def nak_socket(self, interface: str) -> socket.socket:
        sock, _ = _socket(socket.SOCK_DGRAM, interface)
        what = f"no UDP port on {interface} for NAKs"
        with _closed_on_error(sock, what, "change resolver_multicast_interface"):
            sock.setblocking(False)
            sock.bind((interface, 0))
        return sock


OS_SOCKETS: Final = OsSockets()


def retransmit_soon(sock: socket.socket) -> None:
    """Let a connection, or those that a listener takes, go on soon after an outage, however long that was.

    The kernel doubles its wait between two attempts, to two minutes. Linux before 6.15 knows no other limit.
    """
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, RETRANSMIT_MS)


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


def supports_gso(sock: socket.socket) -> bool:
    """Say whether this UDP socket can send trains (`UDP_SEGMENT`)."""
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
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
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
    return address_towards("224.0.0.1")


def address_towards(peer: str) -> str:
    """The address of this host that packets to `peer` leave from; loopback when there is no way to it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))  # sends nothing: only asks for the route
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
