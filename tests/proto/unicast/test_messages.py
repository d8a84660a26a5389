"""Requests and responses as bytes: what is written is read again, in one piece or in many, and the rest is dropped."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dro.proto.delivery.fragment import message_limit
from dro.proto.delivery.reassembly import PIECE_BYTES
from dro.proto.unicast.messages import (
    MESSAGE_MAX_BYTES,
    PARTS_MAX_BYTES,
    ControlMessage,
    Immediate,
    NotTaken,
    ReceivedResponse,
    Retransmission,
    UnicastReader,
    UnicastWriter,
)
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.addressing import read_addressing
from dro.wire.lbmc.block import RawBlock
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.codes import END_NONE, MESSAGE_MAX, MessageType
from dro.wire.lbmc.data_blocks import AppHdrChain, ChainElement, Frag, LjiReq, ODomain, Request, Stream, TopicName
from dro.wire.lbmc.headers import ContextAddress, MessageHeaders, ReturnAddress
from dro.wire.lbmc.origin import request_with_domain

HERE, THERE = ContextAddress(1, 0x7F000001, 14391), ContextAddress(2, 0x7F000002, 14392)
PEER = (0x7F000001, 4000)
INSTANCE = b"instance"
LARGE = random.Random(7).randbytes(200_000)


def writer(stream_id: int = 1) -> UnicastWriter:
    return UnicastWriter(INSTANCE, stream_id)


def request(data: bytes = b"ask", to: ContextAddress = THERE, origin: ContextAddress = HERE) -> list[bytes]:
    return ask(writer(), data, 7, to, origin)


def ask(made: UnicastWriter, data: bytes, index: int, to: ContextAddress, origin: ContextAddress) -> list[bytes]:
    return made.data(data, 0, (Request(index, origin.ip, origin.port), ODomain(origin.domain_id)), to, origin)


def received(data: bytes, index: int, requester: ContextAddress, origin: ContextAddress | None = HERE) -> Immediate:
    return Immediate(data, None, MessageHeaders(ReturnAddress(index, requester)), origin)


@pytest.mark.parametrize("data", [b"", b"ask", LARGE, bytes(MESSAGE_MAX_BYTES)], ids=["empty", "small", "large", "max"])
def test_what_is_written_is_read_again(data: bytes) -> None:
    reader, made = UnicastReader(), writer()
    for pieces, whole in (
        (ask(made, data, 7, THERE, HERE), received(data, 7, HERE)),
        (made.data(data, 9, (), HERE, THERE), ReceivedResponse(data, 9, None, THERE)),
    ):
        assert all(len(piece) <= MESSAGE_MAX for piece in pieces)
        taken = [reader.read(piece, PEER) for piece in pieces]
        assert taken == [None] * (len(pieces) - 1) + [whole]
    assert not reader.dropped


def test_pieces_come_in_any_order_and_more_than_once() -> None:
    reader, pieces = UnicastReader(), request(LARGE)
    order = [*pieces[1:], pieces[-1], pieces[0]]
    taken = [reader.read(piece, PEER) for piece in order]
    assert taken[-1] == received(LARGE, 7, HERE)
    assert taken[-2] is NotTaken.PIECE


def test_each_message_says_where_it_goes_and_has_its_own_number_in_the_stream() -> None:
    made = writer(5)
    messages = ask(made, b"x", 7, THERE, HERE) + made.data(LARGE, 8, (), THERE, HERE) + ask(made, b"y", 9, THERE, HERE)
    found = [read_addressing(message) for message in messages]
    assert [to.stream for to in found] == [(INSTANCE, 5, sqn) for sqn in range(len(messages))]
    ways = {(to.destination.domain_id, to.destination.ip, to.destination.port) for to in found if to.destination}
    assert ways == {(2, 0x7F000002, 14392)}


def test_a_dro_can_say_from_which_domain_a_request_is() -> None:
    [message] = request(origin=replace(HERE, domain_id=0))
    assert UnicastReader().read(request_with_domain(message, 4), PEER) == received(
        b"ask", 7, replace(HERE, domain_id=4), replace(HERE, domain_id=0)
    )


def test_headers_come_with_the_data() -> None:
    chain = AppHdrChain((ChainElement(6, (4).to_bytes(4, "big")), ChainElement(1, b"\0\0\0\5")))
    blocks = (TopicName(b"t"), Request(7, HERE.ip, HERE.port), ODomain(1), chain)
    for data in (b"askPROP", LARGE):
        reader, pieces = UnicastReader(), writer().data(data, 0, blocks, THERE, HERE)
        taken = [reader.read(piece, PEER) for piece in pieces][-1]
        assert isinstance(taken, Immediate)
        assert (taken.data, taken.topic) == (data, b"t")
        assert taken.headers is not None
        assert taken.headers.returns_to == ReturnAddress(7, HERE)
        assert taken.headers.properties_length == 4
        assert taken.headers.element(1) == (b"\0\0\0\5", 0)
        assert taken.headers.element(2) is None


def test_control_messages_say_who_sends_them() -> None:
    asked = LjiReq(1, 2, 3, HERE.ip, HERE.port)
    taken = UnicastReader().read(writer().control((asked,), THERE, HERE), PEER)
    assert isinstance(taken, ControlMessage)
    assert (taken.message.blocks[0], taken.origin) == (asked, HERE)


def test_the_largest_message_of_a_source_can_be_sent_again() -> None:
    payload = bytes(message_limit(MESSAGE_MAX) - 28)
    sent = lbmc.encode(lbmc.Message(MessageType.MESSAGE, 5, 99, (Frag(98, 0, MESSAGE_MAX_BYTES),), payload))
    again = writer().retransmission(sent, 7, THERE, HERE)
    taken = UnicastReader().read(again, PEER)
    assert isinstance(taken, Retransmission)
    assert (taken.request_index, taken.message.sqn, taken.message.payload) == (7, 99, payload)
    assert taken.message.get(Frag) == Frag(98, 0, MESSAGE_MAX_BYTES)


def made(*blocks: AnyBlock, index: int = 0, sqn: int = 0, payload: bytes = b"x", end: int = 0) -> bytes:
    return lbmc.encode(lbmc.Message(MessageType.MESSAGE, index, sqn, blocks, payload, end))


ASKS = Request(7, HERE.ip, HERE.port)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", NotTaken.BROKEN),
        (made(ASKS)[:-1], NotTaken.BROKEN),
        (made(Request(7, HERE.ip, 0)), NotTaken.BROKEN),
        (made(Request(0, HERE.ip, 1)), NotTaken.BROKEN),
        (made(*([AppHdrChain((ChainElement(1, b""),))] * 65)), NotTaken.BROKEN),
        (made(Request(7, 0, 1)), NotTaken.BROKEN),
        (made(Request(7, 0xE0000001, 1)), NotTaken.BROKEN),
        (made(Request(7, HERE.ip, 1, transport=1)), NotTaken.BROKEN),
        (made(RawBlock(0xF0, b"\0\0"), ASKS), NotTaken.UNKNOWN),
        (made(ASKS, payload=b"", end=END_NONE), NotTaken.NO_DATA),
        (lbmc.encode(lbmc.Message(MessageType.EOT, None, None, (), b"", END_NONE)), NotTaken.NO_DATA),
        (lbmc.encode(lbmc.control_message()), NotTaken.NO_DATA),
        (made(AppHdrChain((ChainElement(6, (2).to_bytes(4, "big")),))), NotTaken.BROKEN),
        (made(ASKS, Frag(0, 0, MESSAGE_MAX_BYTES + 1)), NotTaken.PIECE),
        (made(ASKS, Frag(0, 5, 4)), NotTaken.PIECE),
    ],
)
def test_what_is_no_request_is_counted_and_dropped(message: bytes, why: NotTaken) -> None:
    reader = UnicastReader()
    assert reader.read(message, PEER) is why
    assert reader.dropped == {why: 1}


@pytest.mark.parametrize(("limit", "value"), [("STREAMS_MAX", 16), ("PARTS_MAX_BYTES", 17 * 65_000)])
def test_pieces_of_few_messages_are_kept(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    """The message begun first gives way, so its last piece makes nothing whole."""
    assert PARTS_MAX_BYTES > MESSAGE_MAX_BYTES
    monkeypatch.setattr(f"dro.proto.unicast.messages.{limit}", value)
    data = LARGE[:100_000]
    reader = UnicastReader()
    streams = [ask(writer(number), data, 7, THERE, HERE) for number in range(17)]
    for pieces in streams:
        assert reader.read(pieces[0], PEER) is None
    results = [reader.read(pieces[1], PEER) for pieces in streams[::-1]]
    assert results == [received(data, 7, HERE)] * 16 + [None]


def test_small_pieces_count_with_what_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dro.proto.unicast.messages.PARTS_MAX_BYTES", 10 * PIECE_BYTES)
    reader = UnicastReader()
    for number in range(20):
        assert reader.read(made(ASKS, Frag(2 * number, 0, 2), sqn=2 * number), (PEER[0], number)) is None
    last = [reader.read(made(Frag(2 * n, 1, 2), sqn=2 * n + 1), (PEER[0], n)) for n in range(20)]
    assert [taken is not None for taken in last].count(True) < 10


def test_a_stream_is_known_by_its_connection_without_a_number() -> None:
    reader = UnicastReader()
    for peer in (PEER, (PEER[0], 4001)):
        assert reader.read(made(ASKS, Frag(0, 0, 2)), peer) is None
    stream = lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 1, (ASKS, Stream(1, 0, INSTANCE), Frag(0, 1, 2)), b"y"))
    assert reader.read(stream, PEER) is None
    last = lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 1, (ASKS, Frag(0, 1, 2)), b"y"))
    assert reader.read(last, PEER) == received(b"xy", 7, replace(HERE, domain_id=0), None)
