"""The sockets of the transports: set up as UM requires, never making the loop wait, with errors that help."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable

import pytest

from dro.clock import ms, s
from dro.errors import ResourceError
from dro.transport import sockets
from dro.transport.sockets import OS_SOCKETS

LOOPBACK = "127.0.0.1"
GROUP = sockets.ip_number("239.201.0.1")


def refuse(monkeypatch: pytest.MonkeyPatch, *refused: tuple[str, object], code: int = errno.EPERM) -> None:
    """Sockets refuse these: (call, first argument of interest)."""

    class Refusing(socket.socket):
        def _check(self, call: str, what: object) -> None:
            if (call, what) in refused:
                raise OSError(code, os.strerror(code))

        def setsockopt(self, level: int, option: int, value: int | bytes) -> None:  # type: ignore[override]  # as used
            self._check("setsockopt", option)
            super().setsockopt(level, option, value)

        def bind(self, address: tuple[str, int]) -> None:  # type: ignore[override]  # IPv4 only
            self._check("bind", address[1])
            super().bind(address)

        def connect(self, address: tuple[str, int]) -> None:  # type: ignore[override]  # IPv4 only
            self._check("connect", address[1])
            super().connect(address)

    monkeypatch.setattr(socket, "socket", Refusing)


def test_no_socket_blocks() -> None:
    with (
        OS_SOCKETS.bind_in_range(socket.SOCK_DGRAM, LOOPBACK, (0,), option="test") as bound,
        OS_SOCKETS.multicast_sender(GROUP, bound.getsockname()[1], LOOPBACK, ttl=0, buffer_bytes=0) as sender,
        OS_SOCKETS.multicast_receiver(GROUP, 0, LOOPBACK, buffer_bytes=0, option="test") as receiver,
    ):
        assert [sock.getblocking() for sock in (bound, sender, receiver)] == [False] * 3


def test_a_group_that_cannot_be_joined_leaves_no_socket() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ResourceError) as raised:
        OS_SOCKETS.multicast_receiver(sockets.ip_number("10.0.0.1"), 0, LOOPBACK, buffer_bytes=0, option="test")
    assert os.listdir("/proc/self/fd") == before
    assert raised.value.what == (
        "cannot listen to group 10.0.0.1:0 on interface 127.0.0.1: Cannot assign requested address"
    )
    assert raised.value.remedy == "change test or the interface"


def test_a_group_that_nothing_can_be_sent_to_leaves_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, ("connect", 14400), code=errno.ENETUNREACH)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(ResourceError) as raised:
        OS_SOCKETS.multicast_sender(GROUP, 14400, LOOPBACK, ttl=1, buffer_bytes=0)
    assert os.listdir("/proc/self/fd") == before
    assert raised.value.what == (
        "cannot send to group 239.201.0.1:14400 from interface 127.0.0.1: Network is unreachable"
    )
    assert raised.value.remedy == "check that the interface is up and has a route for multicast"


@pytest.mark.parametrize(
    "opened",
    [
        lambda: OS_SOCKETS.bind_in_range(socket.SOCK_DGRAM, LOOPBACK, (0,), option="test"),
        lambda: OS_SOCKETS.multicast_sender(GROUP, 14400, LOOPBACK, ttl=0, buffer_bytes=0),
        lambda: OS_SOCKETS.multicast_receiver(GROUP, 0, LOOPBACK, buffer_bytes=0, option="test"),
        lambda: OS_SOCKETS.nak_socket(LOOPBACK),
    ],
    ids=["bind_in_range", "multicast_sender", "multicast_receiver", "nak_socket"],
)
def test_too_many_open_files_are_an_error_that_names_the_remedy(
    opened: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_socket(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(socket, "socket", no_socket)
    with pytest.raises(ResourceError) as raised:
        opened()
    assert raised.value.remedy == "raise the limit of open files"


@pytest.mark.parametrize(
    ("text", "number", "is_multicast"),
    [
        ("223.255.255.255", 0xDFFFFFFF, False),
        ("224.0.0.0", 0xE0000000, True),
        ("239.255.255.255", 0xEFFFFFFF, True),
        ("240.0.0.0", 0xF0000000, False),
        ("10.1.2.3", 0x0A010203, False),
    ],
)
def test_addresses_as_text_and_as_numbers(text: str, number: int, is_multicast: bool) -> None:
    assert sockets.ip_number(text) == number
    assert sockets.ip_text(number) == text
    assert sockets.is_multicast(number) is is_multicast


def test_a_receiver_of_a_group_shares_its_port_and_hears_no_other_group() -> None:
    other = sockets.ip_number("239.201.0.2")
    with OS_SOCKETS.multicast_receiver(GROUP, 0, LOOPBACK, buffer_bytes=300_000, option="test") as first:
        assert first.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 600_000  # the system doubles it
        assert first.getsockopt(socket.IPPROTO_IP, sockets.IP_MULTICAST_ALL) == 0
        port = first.getsockname()[1]
        with (
            OS_SOCKETS.multicast_receiver(GROUP, port, LOOPBACK, buffer_bytes=0, option="test") as second,
            OS_SOCKETS.multicast_sender(GROUP, port, LOOPBACK, ttl=0, buffer_bytes=200_000) as sender,
            OS_SOCKETS.multicast_sender(other, port, LOOPBACK, ttl=0, buffer_bytes=0) as foreign,
        ):
            assert first.getsockname() == ("239.201.0.1", port)
            assert sender.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 400_000
            membership = other.to_bytes(4, "big") + socket.inet_aton(LOOPBACK)
            second.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)  # as another program here
            foreign.send(b"to the other group")
            sender.send(b"to this group")
            assert first.recv(100) == second.recv(100) == b"to this group"


@pytest.mark.parametrize("interface", [LOOPBACK, "127.0.0.3"])
@pytest.mark.parametrize("ttl", [0, 1, 16])
def test_a_sender_leaves_from_its_interface_with_its_ttl_and_is_heard_on_its_own_host(interface: str, ttl: int) -> None:
    with OS_SOCKETS.multicast_sender(GROUP, 14400, interface, ttl=ttl, buffer_bytes=0) as sender:
        assert sender.getsockname()[0] == interface
        assert sender.getsockname()[1] not in (0, 1)
        assert sender.getpeername() == ("239.201.0.1", 14400)
        assert sender.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL) == ttl
        assert sender.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP) == 1
        chosen = sender.getsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, 4)
        assert socket.inet_ntoa(chosen) == interface


def test_a_sender_on_any_interface_leaves_the_choice_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, ("bind", 0), ("setsockopt", socket.IP_MULTICAST_IF))
    with OS_SOCKETS.multicast_sender(GROUP, 14400, sockets.ANY, ttl=0, buffer_bytes=0) as sender:
        assert sender.getpeername() == ("239.201.0.1", 14400)


@pytest.mark.parametrize(
    ("option", "force"),
    [(socket.SO_RCVBUF, sockets.SO_RCVBUFFORCE), (socket.SO_SNDBUF, sockets.SO_SNDBUFFORCE)],
)
def test_a_buffer_is_what_was_asked_for_or_what_the_system_allows(
    option: int, force: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as sock:
        usual = sock.getsockopt(socket.SOL_SOCKET, option)
        assert sockets.set_buffer(sock, option, 0) == usual // 2
        assert sockets.set_buffer(sock, option, 50_000) == 50_000
        other = ({socket.SO_RCVBUF, socket.SO_SNDBUF} - {option}).pop()
        assert sock.getsockopt(socket.SOL_SOCKET, other) // 2 != 50_000
    refuse(monkeypatch, ("setsockopt", force))  # as without CAP_NET_ADMIN
    with socket.socket() as sock:
        assert sockets.set_buffer(sock, option, 60_000) == 60_000
    refuse(monkeypatch, ("setsockopt", option))  # beyond the limit only the other one helps
    with socket.socket() as sock:
        assert sockets.set_buffer(sock, option, 70_000) == 70_000


@pytest.mark.parametrize(
    ("timeout_ns", "expected"),
    [
        (0, None),
        (ms(1), (1, 1)),
        (s(3), (1, 1)),
        (s(4), (2, 1)),
        (s(19), (9, 1)),
        (s(20), (10, 2)),
        (s(100) + 999_999_999, (50, 10)),
    ],
)
def test_keepalive_ends_a_silent_connection_after_about_its_timeout(
    timeout_ns: int, expected: tuple[int, int] | None
) -> None:
    """Half of the time in silence, then five probes within the rest."""
    with socket.socket() as sock:
        sockets.set_keepalive(sock, timeout_ns)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == (expected is not None)
        if expected is not None:
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            assert tuple(sock.getsockopt(socket.IPPROTO_TCP, option) for option in options) == (*expected, 5)


# ports of a range


def test_the_first_free_port_that_is_not_our_own_is_bound() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        first = taken.getsockname()[1]
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            ours, free = probe.getsockname()[1], 0
            with socket.socket() as another:
                another.bind((LOOPBACK, 0))
                free = another.getsockname()[1]
        made = OS_SOCKETS.bind_in_range(
            socket.SOCK_STREAM, LOOPBACK, (first, ours, free), option="test", taken=[ours, first + 1]
        )
        with made, socket.create_connection(made.getsockname()) as client:
            assert made.getsockname() == (LOOPBACK, free)
            accepted, peer = made.accept()
            assert peer == client.getsockname()
            accepted.close()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_range_without_a_free_port_says_how_many_were_tried(kind: socket.SocketKind) -> None:
    before = os.listdir("/proc/self/fd")
    with socket.socket(socket.AF_INET, kind) as one, socket.socket(socket.AF_INET, kind) as two:
        for sock in (one, two):
            sock.bind((LOOPBACK, 0))
            if kind == socket.SOCK_STREAM:
                sock.listen(1)
        ports = [one.getsockname()[1], 9, two.getsockname()[1]]
        with pytest.raises(ResourceError) as raised:
            OS_SOCKETS.bind_in_range(kind, LOOPBACK, ports, option="the_range", taken=[9])
    assert raised.value.what == ("no port of the_range can be bound on 127.0.0.1 (2 tried): Address already in use")
    assert raised.value.remedy == "widen or move the_range"
    with pytest.raises(ResourceError, match=r"can be bound on 127\.0\.0\.1 \(all are in use here\); widen or move r"):
        OS_SOCKETS.bind_in_range(kind, LOOPBACK, [9], option="r", taken=[9])
    assert os.listdir("/proc/self/fd") == before


def test_an_address_of_another_host_is_not_tried_on_every_port() -> None:
    with pytest.raises(ResourceError, match=r"\(1 tried\): Cannot assign requested address"):
        OS_SOCKETS.bind_in_range(socket.SOCK_STREAM, "203.0.113.1", range(20000, 30000), option="test")


def test_a_port_of_the_system_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, ("bind", 80), code=errno.EACCES)
    with OS_SOCKETS.bind_in_range(socket.SOCK_STREAM, LOOPBACK, (80, 0), option="test") as made:
        assert made.getsockname()[1] != 80


def test_a_listening_port_can_be_had_again_while_old_connections_fade() -> None:
    with OS_SOCKETS.bind_in_range(socket.SOCK_STREAM, LOOPBACK, (0,), option="test") as first:
        port = first.getsockname()[1]
        client = socket.create_connection((LOOPBACK, port))
        first.setblocking(True)
        accepted, _ = first.accept()
    accepted.close()  # it fades on this side
    client.close()
    with OS_SOCKETS.bind_in_range(socket.SOCK_STREAM, LOOPBACK, (port,), option="test") as again:
        assert again.getsockname()[1] == port


def test_no_descriptor_is_told_with_the_limit_to_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socket", none)
    with pytest.raises(ResourceError) as raised:
        OS_SOCKETS.bind_in_range(socket.SOCK_STREAM, LOOPBACK, (0,), option="test")
    assert raised.value.what == "no socket: Too many open files"
    assert raised.value.remedy == "raise the limit of open files"


# what the host has


def test_a_socket_that_is_closed_or_was_never_there_tells_no_drops() -> None:
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    assert sockets.receive_drops(sock) == 0
    sock.close()
    assert (sockets.receive_drops(sock), sockets.receive_drops(None)) == (0, 0)


def test_trains_need_a_udp_socket_of_a_kernel_that_can() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp, socket.socket() as tcp:
        assert sockets.supports_gso(udp) is True
        assert udp.getsockopt(sockets.SOL_UDP, sockets.UDP_SEGMENT) == 0  # asked, not set
        assert sockets.supports_gso(tcp) is False


@pytest.mark.parametrize(("interface", "mtu"), [("10.0.0.1", 9000), ("10.0.0.2", 1400), ("10.0.0.3", 1500)])
def test_the_mtu_is_that_of_the_interface_with_the_address(
    interface: str, mtu: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One interface has no address."""
    hosts = {b"a": ("10.0.0.1", 9000), b"c": ("10.0.0.2", 1400)}

    def ioctl(fd: int, request: int, argument: bytes) -> bytes:
        assert len(argument) == 256
        name = argument.rstrip(b"\0")
        if name not in hosts:
            raise OSError(errno.EADDRNOTAVAIL, "none")
        address, mtu = hosts[name]
        head = name.ljust(16, b"\0")
        if request == 0x8915:
            return head + struct.pack("=HH4s", socket.AF_INET, 0, socket.inet_aton(address)) + bytes(232)
        assert request == 0x8921
        return head + struct.pack("i", mtu) + bytes(236)

    monkeypatch.setattr(socket, "if_nameindex", lambda: [(1, "a"), (2, "b"), (3, "c")])
    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    assert sockets.interface_mtu(interface) == mtu


@pytest.mark.parametrize(("interface", "mtu"), [("127.0.0.1", 65536), ("127.9.9.9", 65536), ("203.0.113.1", 1500)])
def test_the_mtu_of_loopback_and_of_an_address_that_no_interface_has(interface: str, mtu: int) -> None:
    assert sockets.interface_mtu(interface) == mtu


def test_the_default_address_is_the_one_that_multicast_leaves_from(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("224.0.0.1", 1))
            expected = probe.getsockname()[0]
        except OSError:
            expected = LOOPBACK
    assert sockets.default_address() == expected
    refuse(monkeypatch, ("connect", 9), code=errno.ENETUNREACH)
    assert sockets.default_address() == LOOPBACK
