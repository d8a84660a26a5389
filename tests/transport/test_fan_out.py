"""One datagram to many addresses."""

from __future__ import annotations

import errno
import os
import socket
import struct
from array import array
from collections.abc import Iterator

import pytest

from dro.transport.fan_out import CHUNK, FanOut


def words(address: tuple[str, int]) -> tuple[int, int]:
    raw = struct.pack("=H", socket.AF_INET) + struct.pack("!H", address[1]) + socket.inet_aton(address[0])
    return int.from_bytes(raw, "little"), 0


@pytest.fixture
def sender() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        yield sock


@pytest.fixture
def receivers() -> Iterator[list[socket.socket]]:
    made = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(5)]
    for sock in made:
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
    yield made
    for sock in made:
        sock.close()


def got(receivers: list[socket.socket]) -> list[bytes]:
    """What waits at each, one or none."""
    found = []
    for sock in receivers:
        try:
            found.append(sock.recv(65535))
        except BlockingIOError:
            found.append(b"")
    return found


def test_a_span_of_the_addresses_gets_the_datagram(sender: socket.socket, receivers: list[socket.socket]) -> None:
    addresses = array("Q")
    fan = FanOut(addresses)
    for number, sock in enumerate(receivers):  # the array grows and moves meanwhile
        addresses.extend(words(sock.getsockname()))
        data = bytes((number,)) * (1 + 1000 * number)
        fan.send(sender.fileno(), data, 0, number + 1)
        assert got(receivers) == [data] * (number + 1) + [b""] * (4 - number)
    fan.send(sender.fileno(), b"some", 1, 3)
    assert got(receivers) == [b"", b"some", b"some", b"", b""]
    fan.send(sender.fileno(), b"none", 2, 2)
    assert (fan.sent, fan.blocked, fan.failed) == (17, 0, 0)


def test_an_address_that_cannot_be_sent_to_costs_no_other(
    sender: socket.socket, receivers: list[socket.socket]
) -> None:
    bad = words(("255.255.255.255", 9))  # not without SO_BROADCAST
    ends = [bad, words(receivers[0].getsockname()), bad, bad, words(receivers[1].getsockname())]
    fan = FanOut(array("Q", [word for end in ends for word in end]))
    fan.send(sender.fileno(), b"all", 0, 5)
    assert got(receivers[:2]) == [b"all", b"all"]
    assert (fan.sent, fan.failed) == (2, 3)
    assert [fan.take_error(), fan.take_error()] == [errno.EACCES, 0]


def test_more_addresses_than_a_call_takes(sender: socket.socket, receivers: list[socket.socket]) -> None:
    count = 2 * CHUNK + 100
    fan = FanOut(array("Q", words(receivers[0].getsockname()) * count))
    fan.send(sender.fileno(), b"", 0, count)
    assert fan.sent == count


def test_what_a_full_socket_does_not_take_is_dropped_and_counted() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)  # of which nobody reads
    with ours, theirs:
        fan = FanOut(array("Q", (0, 0) * 5000))
        fan._headers = array("Q", (0, 0, fan._iov.buffer_info()[0], 1, 0, 0, 0, 0)) * 5000
        fan._names_at = fan._addresses.buffer_info()[0]
        os.set_blocking(ours.fileno(), False)
        fan.send(ours.fileno(), b"x" * 1000, 0, 5000)
        assert fan.sent > 0
        assert fan.sent + fan.blocked == 5000
        assert fan.failed == 0
