"""Batched receive gives out exactly what was sent, whatever sizes follow each other."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from itertools import groupby

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dro.transport.mmsg import BATCH, DatagramBatch, address_of

MAX = 65507  # what UDP over IPv4 carries


class Wire:
    """A sender and a receiving socket on loopback, and the batch under test."""

    def __init__(self) -> None:
        self.receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 20)
        self.receiver.bind(("127.0.0.1", 0))
        self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sender.connect(self.receiver.getsockname())
        self.batch = DatagramBatch()

    def close(self) -> None:
        self.receiver.close()
        self.sender.close()

    def pass_through(self, datagrams: list[bytes]) -> None:
        """Send, receive, compare; at most as many as the socket buffer of an ordinary system holds."""
        for datagram in datagrams:
            self.sender.send(datagram)
        got: list[bytes] = []
        while len(got) < len(datagrams):
            assert self.take(got) > 0
        assert got == datagrams
        assert self.batch.receive(self.receiver.fileno()) == 0

    def take(self, got: list[bytes]) -> int:
        batch = self.batch
        count = batch.receive(self.receiver.fileno())
        assert count == batch.count == len(batch.lengths) == len(batch.offsets) == len(batch.senders) <= BATCH
        found = [bytes(batch.view[at : at + n]) for at, n in zip(batch.offsets, batch.lengths, strict=True)]
        assert {address_of(sender) for sender in batch.senders} == {(0x7F000001, self.sender.getsockname()[1])}
        got += found
        return count


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    yield made
    made.close()


def patterned(size: int, number: int) -> bytes:
    return (number.to_bytes(4, "big") * (size // 4 + 1))[:size]


sizes = st.one_of(
    st.sampled_from([0, 1, 40, 41, 1472, 2047, 2048, 2049, 8192, MAX]), st.integers(0, 300), st.integers(0, MAX)
)
bursts = st.lists(st.tuples(sizes, st.integers(1, 5)), min_size=1, max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(loads=st.lists(bursts, max_size=8))
def test_what_was_sent_is_received_in_order_and_whole(wire: Wire, loads: list[list[tuple[int, int]]]) -> None:
    """One batch object through all examples: what one leaves behind meets the next."""
    number = 0
    for load in loads:
        datagrams = []
        for size, count in load:
            for _ in range(count):
                datagrams.append(patterned(size, number))
                number += 1
                if sum(map(len, datagrams)) > 100_000 or len(datagrams) >= BATCH:
                    wire.pass_through(datagrams)
                    datagrams = []
        wire.pass_through(datagrams)


@pytest.mark.parametrize("size", [0, 1, 32, 82, 2048, 3000])
def test_a_steady_stream_lies_back_to_back_whatever_came_before(wire: Wire, size: int) -> None:
    wire.pass_through([patterned(700, i) for i in range(3)])
    for _ in range(2):
        wire.pass_through([patterned(size, i) for i in range(20)])
    wire.pass_through([patterned(size, i) for i in range(20)])
    assert (wire.batch.stride == size) == (size > 0)


def test_empty_datagrams_change_nothing(wire: Wire) -> None:
    for _ in range(4):
        wire.pass_through([b"", b""])
    wire.pass_through([b"", b"x", b"", b"yy"])


def test_more_than_a_batch_is_waiting(wire: Wire) -> None:
    wire.pass_through([patterned(20 + i % 3, i) for i in range(2 * BATCH + 7)])
    lengths = [length for length, _ in groupby(wire.batch.lengths)]
    assert len(lengths) == 7


def test_a_socket_that_is_closed_is_an_error_and_an_icmp_answer_is_none(wire: Wire) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as lonely, socket.socket(socket.AF_INET) as closed:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone:
            gone.bind(("127.0.0.1", 0))
            lonely.connect(gone.getsockname())
        lonely.send(b"nobody hears this")
        assert wire.batch.receive(lonely.fileno()) == 0
        fd = closed.fileno()
        closed.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            wire.batch.receive(fd)


def test_a_batch_that_has_received_nothing_holds_nothing(wire: Wire) -> None:
    batch = wire.batch
    assert (batch.count, batch.lengths, batch.offsets, batch.senders) == (0, [], [], [])
    wire.pass_through([b"x", b"yy"])
    assert batch.count == 0, "nothing was waiting at last"


@pytest.mark.parametrize(
    ("result", "code", "is_error"),
    [
        (0, errno.EPERM, False),  # left from an earlier call
        (-1, errno.EAGAIN, False),
        (-1, errno.ECONNREFUSED, False),
        (-1, errno.EPERM, True),
        (-1, errno.ENOMEM, True),
        (-1, errno.EHOSTDOWN, True),
    ],
)
def test_only_what_a_socket_without_datagrams_says_is_no_error(
    wire: Wire, result: int, code: int, is_error: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire.pass_through([b"x"] * 3)

    def answer(*_: object) -> int:
        return result and -code

    monkeypatch.setattr("dro.transport.mmsg._receive", answer)
    if is_error:
        with pytest.raises(OSError, match=os.strerror(code)) as raised:
            wire.batch.receive(1)
        assert raised.value.errno == code
    else:
        assert wire.batch.receive(1) == 0
    assert wire.batch.count == 0


def test_the_stride_grows_at_once_and_shrinks_to_a_size_that_came_twice_in_a_row_alone(wire: Wire) -> None:
    def stride_after(*sizes: int) -> int:
        for datagram in [patterned(size, 1) for size in sizes]:
            wire.sender.send(datagram)
        while wire.batch.receive(wire.receiver.fileno()):
            pass
        return wire.batch.stride

    assert stride_after(1, 1) == 2048
    assert stride_after(300, 300) == 2048
    assert stride_after(300, 100) == 2048, "of different sizes"
    assert stride_after(300, 300) == 2048, "not in a row"
    assert stride_after(300, 300) == 300
    assert stride_after(300, 300) == 300, "as it is already"
    assert stride_after(500, 100) == 500
    assert stride_after(300, 300) == 500
    assert stride_after(200) == 500, "one says nothing"
    assert stride_after(300, 300) == 500
    assert stride_after(300, 300) == 300
    assert stride_after(0, 0) == 300
    assert stride_after(0, 0) == 300, "empty datagrams are nobody's traffic"


def test_a_batch_has_a_stride_of_its_own_in_memory_that_others_use_as_well(wire: Wire) -> None:
    other = DatagramBatch(like=wire.batch)
    for _ in range(2):
        for _ in range(2):
            wire.sender.send(patterned(90, 1))
        assert other.receive(wire.receiver.fileno()) == 2
    assert (other.stride, wire.batch.stride) == (90, 2048)
    wire.sender.send(patterned(90, 7))
    wire.batch.receive(wire.receiver.fileno())
    assert bytes(other.view[:90]) == patterned(90, 7)


def test_a_datagram_of_the_length_of_its_place_stays_there_and_a_longer_one_is_put_together(wire: Wire) -> None:
    for size in (2047, 2048, 2049, MAX):
        wire.pass_through([patterned(size, 1), b"short", patterned(size, 2)])
