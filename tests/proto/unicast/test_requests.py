"""Requests and responses as bytes: what is written is read again, in one piece or in many, and the rest is dropped."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dro.proto.unicast.requests import (
    MESSAGE_MAX_BYTES,
    STREAMS_MAX,
    ContextAddress,
    NotTaken,
    ReceivedRequest,
    ReceivedResponse,
    RequestReader,
    RequestWriter,
)
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.addressing import read_addressing
from dro.wire.lbmc.block import RawBlock
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.codes import END_NONE, MESSAGE_MAX, MessageType
from dro.wire.lbmc.data_blocks import AppHdrChain, ChainElement, Frag, ODomain, Request, Stream, TopicName
from dro.wire.lbmc.origin import request_with_domain

HERE, THERE = ContextAddress(1, 0x7F000001, 14391), ContextAddress(2, 0x7F000002, 14392)
PEER = (0x7F000001, 4000)
INSTANCE = b"instance"
LARGE = random.Random(7).randbytes(200_000)


def writer(stream_id: int = 1) -> RequestWriter:
    return RequestWriter(INSTANCE, stream_id)


def request(data: bytes = b"ask", to: ContextAddress = THERE, origin: ContextAddress = HERE) -> list[bytes]:
    return writer().request(data, 7, to, origin)


@pytest.mark.parametrize("data", [b"", b"ask", LARGE, bytes(MESSAGE_MAX_BYTES)], ids=["empty", "small", "large", "max"])
def test_what_is_written_is_read_again(data: bytes) -> None:
    reader, made = RequestReader(), writer()
    for pieces, whole in (
        (made.request(data, 7, THERE, HERE), ReceivedRequest(data, 7, HERE)),
        (made.response(data, 9, HERE, THERE), ReceivedResponse(data, 9)),
    ):
        assert all(len(piece) <= MESSAGE_MAX for piece in pieces)
        taken = [reader.read(piece, PEER) for piece in pieces]
        assert taken == [None] * (len(pieces) - 1) + [whole]
    assert not reader.dropped


def test_pieces_come_in_any_order_and_more_than_once() -> None:
    reader, pieces = RequestReader(), request(LARGE)
    order = [*pieces[1:], pieces[-1], pieces[0]]
    taken = [reader.read(piece, PEER) for piece in order]
    assert taken[-1] == ReceivedRequest(LARGE, 7, HERE)
    assert taken[-2] is NotTaken.PIECE


def test_each_message_says_where_it_goes_and_has_its_own_number_in_the_stream() -> None:
    made = writer(5)
    messages = (
        made.request(b"x", 7, THERE, HERE) + made.response(LARGE, 8, THERE, HERE) + made.request(b"y", 9, THERE, HERE)
    )
    found = [read_addressing(message) for message in messages]
    assert [to.stream for to in found] == [(INSTANCE, 5, sqn) for sqn in range(len(messages))]
    ways = {(to.destination.domain_id, to.destination.ip, to.destination.port) for to in found if to.destination}
    assert ways == {(2, 0x7F000002, 14392)}


def test_a_dro_can_say_from_which_domain_a_request_is() -> None:
    [message] = request(origin=replace(HERE, domain_id=0))
    assert RequestReader().read(request_with_domain(message, 4), PEER) == ReceivedRequest(
        b"ask", 7, replace(HERE, domain_id=4)
    )


def test_properties_are_no_part_of_what_is_asked() -> None:
    chain = AppHdrChain((ChainElement(6, (4).to_bytes(4, "big")),))
    blocks = (Request(7, HERE.ip, HERE.port), ODomain(1), chain)
    message = lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 0, blocks, b"askPROP"))
    assert RequestReader().read(message, PEER) == ReceivedRequest(b"ask", 7, HERE)


def made(*blocks: AnyBlock, index: int = 0, payload: bytes = b"x", end: int = 0) -> bytes:
    return lbmc.encode(lbmc.Message(MessageType.MESSAGE, index, 0, blocks, payload, end))


ASKS = Request(7, HERE.ip, HERE.port)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", NotTaken.BROKEN),
        (made(ASKS)[:-1], NotTaken.BROKEN),
        (made(Request(7, HERE.ip, 0)), NotTaken.BROKEN),
        (made(Request(7, 0, 1)), NotTaken.BROKEN),
        (made(Request(7, 0xE0000001, 1)), NotTaken.BROKEN),
        (made(Request(7, HERE.ip, 1, transport=1)), NotTaken.BROKEN),
        (made(RawBlock(0xF0, b"\0\0"), ASKS), NotTaken.UNKNOWN),
        (made(), NotTaken.NO_REQUEST),
        (made(ASKS, payload=b"", end=END_NONE), NotTaken.NO_REQUEST),
        (lbmc.encode(lbmc.tsni_message([(1, 1)])), NotTaken.NO_REQUEST),
        (made(TopicName(b"t"), ASKS), NotTaken.TOPIC),
        (made(ASKS, Frag(0, 0, MESSAGE_MAX_BYTES + 1)), NotTaken.PIECE),
        (made(ASKS, Frag(0, 5, 4)), NotTaken.PIECE),
    ],
)
def test_what_is_no_request_is_counted_and_dropped(message: bytes, why: NotTaken) -> None:
    reader = RequestReader()
    assert reader.read(message, PEER) is why
    assert reader.dropped == {why: 1}


def test_pieces_of_few_messages_are_kept() -> None:
    """The message begun first gives way, so its last piece makes nothing whole."""
    reader = RequestReader()
    streams = [writer(number).request(LARGE, 7, THERE, HERE) for number in range(STREAMS_MAX + 1)]
    for pieces in streams:
        assert reader.read(pieces[0], PEER) is None
    results = [[reader.read(piece, PEER) for piece in pieces[1:]][-1] for pieces in streams[::-1]]
    assert results == [ReceivedRequest(LARGE, 7, HERE)] * STREAMS_MAX + [None]


def test_a_stream_is_known_by_its_connection_without_a_number() -> None:
    reader = RequestReader()
    for peer in (PEER, (PEER[0], 4001)):
        assert reader.read(made(ASKS, Frag(0, 0, 2)), peer) is None
    stream = lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 1, (ASKS, Stream(1, 0, INSTANCE), Frag(0, 1, 2)), b"y"))
    assert reader.read(stream, PEER) is None
    last = lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 1, (ASKS, Frag(0, 1, 2)), b"y"))
    assert reader.read(last, PEER) == ReceivedRequest(b"xy", 7, replace(HERE, domain_id=0))
