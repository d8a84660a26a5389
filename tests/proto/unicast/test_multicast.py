"""Multicast immediate messages of one sender and of many, by one way and by several: order, repeats, loss, bounds."""

from __future__ import annotations

import random
from typing import Final

import pytest

from dro.clock import ms, s
from dro.errors import DecodeError
from dro.proto.unicast import multicast
from dro.proto.unicast.messages import Immediate
from dro.proto.unicast.multicast import (
    MulticastEvent,
    MulticastLimits,
    MulticastLoss,
    MulticastMessage,
    MulticastReader,
    MulticastWriter,
)
from dro.wire import otid
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import AppHdrChain, ChainElement, ODomain, Request, TopicName
from dro.wire.lbmc.headers import ContextAddress, ReturnAddress
from dro.wire.source_string import LbtrmAddress, format_source

LARGEST: Final = 1000
ONE, OTHER, DRO = (LbtrmAddress(0x0A000000 + n, 0xE00A0A15, n, 14401, 14390) for n in (1, 2, 3))
OTID, OTHER_OTID = otid.encode(ONE, 0, 7, 1), otid.encode(OTHER, 0, 7, 1)
LIMITS: Final = MulticastLimits(1, 16384, s(10), 0, s(60), s(5))
QUOTES: Final = (TopicName(b"quotes"), ODomain(3))
LARGE: Final = random.Random(3).randbytes(5000)


def texts(events: list[MulticastEvent]) -> list[bytes | int]:
    """Data of messages, first sqns of losses."""
    return [event.immediate.data if isinstance(event, MulticastMessage) else event.sqn for event in events]


def numbered(writer: MulticastWriter, count: int) -> list[bytes]:
    return [piece for n in range(count) for piece in writer.pieces(b"%d" % n, QUOTES, LARGEST)]


def test_a_message_comes_with_its_topic_its_origin_and_where_responses_go() -> None:
    reader, writer = MulticastReader(LIMITS), MulticastWriter(OTID)
    blocks = (*QUOTES, Request(9, 0x0A000009, 14391))
    [piece] = writer.pieces(b"x", blocks, LARGEST)
    [event] = reader.read(piece, DRO, 0)
    assert isinstance(event, MulticastMessage)
    assert (event.source, event.sqn, event.otid) == (format_source(ONE), 0, OTID)
    assert (event.immediate.data, event.immediate.topic) == (b"x", b"quotes")
    assert event.immediate.headers is not None
    assert event.immediate.headers.returns_to == ReturnAddress(9, ContextAddress(3, 0x0A000009, 14391))


@pytest.mark.parametrize("data", [b"", b"x", LARGE], ids=["empty", "small", "pieces"])
def test_what_is_written_is_read_again(data: bytes) -> None:
    reader, writer = MulticastReader(LIMITS), MulticastWriter(OTID)
    for _ in range(2):
        pieces = writer.pieces(data, (ODomain(3),), LARGEST)
        assert all(len(piece) <= LARGEST for piece in pieces)
        events = [event for piece in pieces for event in reader.read(piece, ONE, 0)]
        assert [event.immediate for event in events if isinstance(event, MulticastMessage)] == [Immediate(data)]


def test_what_several_dros_bring_is_taken_once() -> None:
    reader = MulticastReader(LIMITS)
    pieces = numbered(MulticastWriter(OTID), 50)
    events = [event for piece in pieces for session in (ONE, DRO) for event in reader.read(piece, session, 0)]
    assert texts(events) == [b"%d" % n for n in range(50)]
    assert reader.duplicates == 50


def test_what_one_way_has_lost_comes_by_the_other_in_order() -> None:
    reader = MulticastReader(LIMITS)
    pieces = numbered(MulticastWriter(OTID), 4)
    events = [event for n in (0, 2, 3) for event in reader.read(pieces[n], ONE, 0)]
    assert texts(events) == [b"0"]
    assert texts(reader.read(pieces[1], DRO, 0)) == [b"1", b"2", b"3"]


def test_senders_have_numbers_of_their_own() -> None:
    reader = MulticastReader(LIMITS)
    streams = [numbered(MulticastWriter(of), 2) for of in (OTID, OTHER_OTID)]
    events = [event for n in range(2) for pieces in streams for event in reader.read(pieces[n], DRO, 0)]
    assert texts(events) == [b"0", b"0", b"1", b"1"]
    assert len(reader) == 2


def test_without_an_otid_the_session_tells_senders_apart() -> None:
    reader = MulticastReader(LIMITS)
    message = lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 5, (), b"x"))
    events = [event for session in (ONE, OTHER, ONE) for event in reader.read(message, session, 0)]
    assert [event.source for event in events] == [format_source(ONE), format_source(OTHER)]


def test_a_loss_is_told_when_its_time_is_over_and_what_waits_is_handed_up() -> None:
    reader = MulticastReader(LIMITS)
    pieces = numbered(MulticastWriter(OTID), 3)
    assert texts(reader.read(pieces[0], ONE, 0) + reader.read(pieces[2], ONE, ms(1))) == [b"0"]
    told: list[tuple[int, list[bytes | int]]] = []
    while (deadline := reader.next_deadline()) is not None:
        if events := reader.on_timer(deadline):
            told.append((deadline, texts(events)))
    assert told == [(s(15), [1, b"2"])]
    assert len(reader) == 0, "it was silent for a minute"


def test_a_loss_check_interval_is_kept() -> None:
    reader = MulticastReader(MulticastLimits(1, 16384, s(1), ms(100), s(60), s(5)))
    pieces = numbered(MulticastWriter(OTID), 3)
    reader.read(pieces[0], ONE, 0)
    reader.read(pieces[2], ONE, 0)
    now_ns = 0
    while not (events := reader.on_timer(now_ns)):
        now_ns = reader.next_deadline() or 0
    assert (now_ns, texts(events)) == (s(1), [1, b"2"])


def test_a_long_gap_within_the_window_is_one_loss_too() -> None:
    """What one message of a stranger costs does not grow with the gap before it."""
    reader, writer = MulticastReader(LIMITS), MulticastWriter(OTID)
    first, *_, last = numbered(writer, 5000)
    assert texts(reader.read(first, DRO, 0)) == [b"0"]
    assert reader.read(last, DRO, 0) == []
    loss, message = reader.on_timer(s(3600))
    assert loss == MulticastLoss(format_source(ONE), 1, 4998)
    assert texts([message]) == [b"4999"]


def test_a_gap_beyond_the_window_is_one_loss() -> None:
    reader = MulticastReader(LIMITS)
    first, far = (lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, n, (), b"%d" % n)) for n in (0, 20_000))
    events = reader.read(first, ONE, 0) + reader.read(far, ONE, 0)
    assert texts(events) == [b"0", 1, b"20000"]
    assert events[1] == MulticastLoss(format_source(ONE), 1, 19_999)


def test_without_order_messages_come_as_they_arrive() -> None:
    reader = MulticastReader(MulticastLimits(0, 16384, s(10), 0, s(60), s(5)))
    pieces = numbered(MulticastWriter(OTID), 3)
    assert texts([event for n in (0, 2, 2, 1, 0) for event in reader.read(pieces[n], ONE, 0)]) == [b"0", b"2", b"1"]


def test_properties_that_are_longer_than_the_message_break_it() -> None:
    reader = MulticastReader(LIMITS)
    chain = AppHdrChain((ChainElement(6, (9).to_bytes(4, "big")),))
    message = lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 0, (chain,), b"x"))
    assert reader.read(message, ONE, 0) == []
    assert reader.broken == 1


@pytest.mark.parametrize(
    "message",
    [b"", lbmc.encode(lbmc.tsni_message([(1, 2)])), b"\x00\xff\x00\x0d" + bytes(9)],
    ids=["nothing", "control", "no chain"],
)
def test_what_is_no_message_is_counted(message: bytes) -> None:
    reader = MulticastReader(LIMITS)
    assert reader.read(message, ONE, 0) == []
    assert (reader.broken, len(reader)) == (1, 0)


def test_of_too_many_senders_the_one_silent_for_longest_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multicast, "STREAMS_MAX", 2)
    reader = MulticastReader(LIMITS)
    otids = [otid.encode(ONE, 0, n, 1) for n in range(3)]
    messages = [MulticastWriter(of).pieces(b"%d" % n, (), LARGEST)[0] for n, of in enumerate(otids)]
    for n in (0, 1, 0, 2):
        reader.read(messages[n], ONE, 0)
    assert texts(reader.read(messages[0], ONE, 0)) == []
    assert texts(reader.read(messages[1], ONE, 0)) == [b"1"]


def test_what_waits_is_bounded_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multicast, "PARTS_MAX_BYTES", 3000)
    reader = MulticastReader(LIMITS)
    for n in range(5):
        for piece in MulticastWriter(otid.encode(ONE, 0, n, 1)).pieces(LARGE, (), LARGEST)[:2]:
            reader.read(piece, ONE, 0)
    assert len(reader) == 1
    assert 0 < reader._held_bytes <= 3000


def test_blocks_that_leave_no_room_are_refused() -> None:
    with pytest.raises(DecodeError, match="no room"):
        MulticastWriter(OTID).pieces(LARGE, QUOTES, 60)
