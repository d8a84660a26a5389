"""The blocks of a message's origin: read and completed as the codec would."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.block import Block, RawBlock
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import Frag, ODomain, OtidBlock, Request, TopicName
from dro.wire.lbmc.origin import completed, read_origin, request_with_domain

OTID = bytes(range(32))
U32 = st.integers(0, 0xFFFFFFFF)
topics = st.binary(min_size=1, max_size=200).filter(lambda name: not name.endswith(b"\0")).map(TopicName)
others = st.one_of(topics, st.builds(Request, U32, U32, st.integers(0, 0xFFFF)), st.just(Frag(1, 2, 3)))
raw = st.binary(min_size=2, max_size=20).map(lambda data: RawBlock(0x1F, data))


@st.composite
def messages(draw: st.DrawFn) -> lbmc.Message:
    blocks: list[Block | RawBlock] = draw(st.lists(st.one_of(others, raw), max_size=4, unique_by=lambda b: b.code))
    if draw(st.booleans()):
        blocks.append(ODomain(draw(U32)))
    if draw(st.booleans()):
        blocks.append(OtidBlock(draw(st.binary(min_size=32, max_size=32))))
    blocks = draw(st.permutations(blocks))
    return lbmc.Message(MessageType.MESSAGE, 0, draw(U32), tuple(blocks), draw(st.binary(max_size=50)))


@given(message=messages())
def test_what_is_read_is_what_the_codec_says(message: lbmc.Message) -> None:
    origin = read_origin(lbmc.encode(message))
    domain, sender = message.get(ODomain), message.get(OtidBlock)
    assert origin.sqn == message.sqn
    assert origin.domain_id == (None if domain is None else domain.domain_id)
    assert origin.otid == (None if sender is None else sender.otid)
    assert origin.has_topic == (message.get(TopicName) is not None)
    assert origin.is_request == (message.get(Request) is not None)


@given(message=messages(), domain_id=U32)
def test_completing_adds_what_is_missing_and_nothing_else(message: lbmc.Message, domain_id: int) -> None:
    encoded = lbmc.encode(message)
    made = lbmc.decode(completed(encoded, read_origin(encoded), domain_id, OTID))
    expected = [ODomain(domain_id, flags=b.flags) if isinstance(b, ODomain) else b for b in message.blocks]
    if message.get(OtidBlock) is None:
        expected.append(OtidBlock(OTID))
    assert made.blocks == tuple(expected)
    assert (made.sqn, made.payload, made.type) == (message.sqn, message.payload, message.type)


@given(message=messages(), domain_id=st.integers(1, 0xFFFFFFFF))
def test_a_request_names_its_domain_from_then_on(message: lbmc.Message, domain_id: int) -> None:
    made = lbmc.decode(request_with_domain(lbmc.encode(message), domain_id))
    origin = message.get(ODomain)
    if message.get(Request) is None or (origin is not None and origin.domain_id):
        assert made == message
    else:
        now = made.get(ODomain)
        assert now is not None
        assert now.domain_id == domain_id
        rest = [block for block in made.blocks if not isinstance(block, ODomain)]
        assert rest == [block for block in message.blocks if not isinstance(block, ODomain)]
        assert (made.sqn, made.payload) == (message.sqn, message.payload)


@given(data=st.binary(max_size=100))
def test_arbitrary_bytes_raise_decode_errors_only(data: bytes) -> None:
    try:
        origin = read_origin(data)
        completed(data, origin, 1, OTID)
        request_with_domain(data, 1)
    except DecodeError:
        pass


def test_blocks_that_are_too_short_are_refused() -> None:
    good = bytearray(lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 1, (ODomain(1),), b"")))
    good[13] = 6
    good[3] -= 2
    with pytest.raises(DecodeError):
        read_origin(bytes(good[:-2]))


def test_a_message_without_room_for_an_otid_is_refused() -> None:
    message = lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 1, (ODomain(1),), bytes(65500)))
    with pytest.raises(DecodeError, match="no room"):
        completed(message, read_origin(message), 1, OTID)
