"""The scan of datagrams whose header a transport describes: what is taken, and what is left to the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from dro.transport.lbtrm.receiver import HEADER
from dro.transport.runs import KIND_DATA, Run
from dro.transport.scan import DatagramHeader, Stream, scan_datagrams
from dro.wire import lbtrm, lbtru
from dro.wire.lbmc.message import HEADER as LBMC
from tests.rigs.steps import KEYS, LBTRU

SENDER: Final = 9 << 32 | 4321
STRIDE: Final = 300
SIZE: Final = 50


def content(sqn: int) -> bytes:
    return LBMC.pack(0, 0, SIZE, 77, sqn) + bytes(SIZE - LBMC.size)


def multicast(sqn: int, *, session: int = 5, again: bool = False) -> bytes:
    flags = lbtrm.FLAG_UCAST_NAKS | (lbtrm.FLAG_RETRANSMISSION if again else 0)
    return lbtrm.encode(lbtrm.Data(1234, session, sqn, 3, flags, 3, sqn & 7, content(sqn)))


def unicast(sqn: int, *, session: int = 5, again: bool = False) -> bytes:
    options = (lbtru.sid_option(session),)
    return lbtru.encode(lbtru.Data(sqn, 3, lbtru.FLAG_RETRANSMISSION if again else 0, content(sqn), options=options))


def session_message(sqn: int) -> bytes:
    """Of LBT-RU; as long as data."""
    packet = lbtru.SessionMessage(sqn, 3, 3, options=(lbtru.sid_option(5),))
    return lbtru.encode(packet) + bytes(SIZE)


def two_options(sqn: int) -> bytes:
    options = (lbtru.sid_option(5), lbtru.cid_option(6))
    return lbtru.encode(lbtru.Data(sqn, 3, 0, content(sqn), options=options))


KINDS: Final = [(HEADER, multicast), (LBTRU, unicast)]


class Batch:
    """Datagrams `STRIDE` apart."""

    def __init__(self, header: DatagramHeader, *datagrams: bytes) -> None:
        self.header = header
        self.lengths = [len(datagram) for datagram in datagrams]
        self.view = memoryview(bytearray(b"".join([datagram.ljust(STRIDE, b"\0") for datagram in datagrams])))
        self.stream = Stream(KEYS[header])
        self.stream.expected = 100
        self.streams = {(self.stream.key, 9): self.stream}

    def one_by_one(self) -> int:
        offsets = list(range(0, len(self.view), STRIDE))
        senders = [SENDER] * len(offsets)
        return scan_datagrams(self.view, offsets, self.lengths, senders, 0, self.streams, [], self.header)


@pytest.mark.parametrize(("header", "make"), KINDS)
def test_data_in_order_is_a_run(header: DatagramHeader, make: Callable[..., bytes]) -> None:
    batch = Batch(header, *(make(sqn) for sqn in range(100, 108)))
    assert batch.one_by_one() == 8
    stream = batch.stream
    assert list(stream.table) == [Run(77, 100, 8, 20, SIZE, STRIDE, 20, 0, KIND_DATA)]
    assert (stream.first, stream.datagrams, stream.trail, stream.expected) == (100, 8, 3, 108)
    assert stream.nbytes == 8 * (20 + SIZE)


@pytest.mark.parametrize(("header", "make"), KINDS)
def test_what_is_sent_again_or_of_another_session_is_left(header: DatagramHeader, make: Callable[..., bytes]) -> None:
    for odd in (make(101, again=True), make(101, session=6), make(102)):
        batch = Batch(header, make(100), odd)
        assert batch.one_by_one() == 1
        assert batch.stream.datagrams == 1


@pytest.mark.parametrize("make", [session_message, two_options])
def test_a_packet_that_is_laid_out_in_another_way_is_left(make: Callable[[int], bytes]) -> None:
    batch = Batch(LBTRU, unicast(100), make(101))
    assert batch.one_by_one() == 1
