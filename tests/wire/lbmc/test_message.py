"""LBMC messages: headers, the chain of blocks, what ends it, what is refused, and the walk over buffers."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError, LocalProtocolError
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.block import Block, RawBlock
from dro.wire.lbmc.codes import END_NONE, BlockType, MessageType
from dro.wire.lbmc.data_blocks import Batch, Frag, Request, SrcIdx, TcpSid, TopicName, Tsni
from dro.wire.lbmc.message import Message
from tests.builders.lbmc_messages import data_message, decode_all

FULL: Final = "00 00 000c 00000007 00000009"


def raw(text: str) -> bytes:
    return bytes.fromhex(text)


def data_with_chain(first: int, chain: str, payload: bytes = b"", kind: int = 0) -> bytes:
    body = raw(chain) + payload
    return bytes((kind, first)) + (12 + len(body)).to_bytes(2, "big") + raw("00000007 00000009") + body


def test_a_data_message_has_no_block_and_all_of_the_rest_is_payload() -> None:
    message = data_message(7, 9, b"hello")
    assert lbmc.encode(message) == raw("00 00 0011 00000007 00000009") + b"hello"
    assert lbmc.decode(lbmc.encode(message)) == message


def test_a_control_message_ends_with_nothing() -> None:
    message = lbmc.tcp_sid_message(0xF1789BCC)
    assert lbmc.encode(message) == raw("08 6b 000c ff 08 0000 f1789bcc")
    assert message.end == 0xFF
    assert (message.topic_index, message.sqn) == (None, None)


def test_tsni_lists_its_records() -> None:
    message = lbmc.tsni_message([(1, 10), (2, 0xFFFFFFFF)])
    tsni = lbmc.decode(lbmc.encode(message)).get(Tsni)
    assert tsni is not None
    assert tsni.records == ((1, 10), (2, 0xFFFFFFFF))
    assert lbmc.encode(lbmc.tsni_message([(i, i) for i in range(31)]))
    with pytest.raises(LocalProtocolError, match="at most 31"):
        lbmc.encode(lbmc.tsni_message([(i, i) for i in range(32)]))


def test_retransmissions_have_the_full_header() -> None:
    for kind in (MessageType.RETRANSMISSION, MessageType.PROACTIVE_RETRANSMISSION):
        message = data_message(601, 5, b"again", kind=kind)
        assert lbmc.decode(lbmc.encode(message)) == message


def test_blocks_are_found_by_code_and_by_record() -> None:
    message = data_message(7, 9, b"x", blocks=(SrcIdx(5), Batch(flags=2), Frag(9, 0, 1)))
    assert message.find(BlockType.BATCH) == Batch(flags=2)
    assert message.find(BlockType.STREAM) is None
    assert message.get(SrcIdx) == SrcIdx(5)
    assert message.get(TopicName) is None


def test_several_messages_and_up_to_three_stray_bytes() -> None:
    one, two = lbmc.encode(data_message(1, 0, b"a")), lbmc.encode(lbmc.tsni_message([(1, 0)]))
    for stray in range(4):
        assert list(map(lbmc.encode, decode_all(one + two + bytes(stray)))) == [one, two]
    with pytest.raises(DecodeError):
        decode_all(one + two + bytes(4))


def test_decode_looks_only_at_its_own_message() -> None:
    data = b"\xff" * 3 + lbmc.encode(data_message(1, 2, b"mine")) + b"\xff" * 9
    assert lbmc.decode(data, 3).payload == b"mine"


def test_bytes_behind_a_chain_that_ends_with_nothing_are_no_payload() -> None:
    data = data_with_chain(0x02, "ff 04 0001", b"tail")
    message = lbmc.decode(data)
    assert (message.payload, message.trailer, message.end) == (b"", b"tail", 0xFF)
    assert lbmc.encode(message) == data
    assert lbmc.payload_at(data, 0, len(data)) == -1


def test_a_chain_that_names_a_block_without_room_ends_in_silence() -> None:
    data = data_with_chain(0x01, "", b"abc")
    message = lbmc.decode(data)
    assert (message.blocks, message.payload, message.trailer, message.end) == ((), b"", b"abc", 0x01)
    assert lbmc.encode(message) == data
    assert lbmc.frag_of(data, 0, len(data)) is None
    assert lbmc.payload_at(data, 0, len(data)) == -1


def test_a_control_message_may_end_with_data() -> None:
    data = raw("08 6b 0010 00 08 0000 00000001") + b"tail"
    message = lbmc.decode(data)
    assert message.payload == b"tail"
    assert lbmc.encode(message) == data


@pytest.mark.parametrize(
    ("code", "flags", "drop"),
    [
        (0x6C, "0000", True),  # a code that nobody knows
        (0x6C, "8000", False),
        (0x03, "0000", True),  # a name without a layout
        (0x03, "8000", False),
        (0x30, "0000", False),  # a queuing block: known, passed through
        (0xFE, "0000", False),
    ],
)
def test_an_unknown_block_forbids_the_message_unless_it_may_be_ignored(code: int, flags: str, drop: bool) -> None:
    data = data_with_chain(code, f"00 08 {flags} aabbccdd", b"x")
    message = lbmc.decode(data)
    assert message.blocks == (RawBlock(code, raw(f"{flags} aabbccdd")),)
    assert message.must_drop is drop
    assert lbmc.encode(message) == data


BAD_MESSAGES: Final = {
    "nothing": "",
    "three bytes": "000000",
    "length 0": "00000000 00000007 00000009",
    "length 3 of a control message": "08ff0003",
    "length 11 of a data message": "0000000b 00000007 000000",
    "length past the end": "00000011 00000007 00000009 68",
    "unknown type": "0300000c 00000007 00000009",
    "version 1": "1000000c 00000007 00000009",
}


@pytest.mark.parametrize("text", BAD_MESSAGES.values(), ids=BAD_MESSAGES)
def test_a_bad_header_is_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        lbmc.decode(raw(text))
    if len(raw(text)) >= 4:
        with pytest.raises(DecodeError):
            list(lbmc.walk(raw(text), 0, len(raw(text))))


BAD_CHAINS: Final = {
    "block of length 0": (0x01, "00 00 0000"),
    "block of length 3": (0x6C, "00 03 0000"),
    "block past the message": (0x6C, "00 09 0000 00000000"),
    "frag one byte short": (0x01, "00 0f 0000 00000001 00000002 000003"),
    "topic name empty": (0x05, "00 04 0000"),
    "topic count past its block": (0x4C, "00 0c 0000 0002 0000 00000001"),
    "pattern count past its block": (0x4D, "00 14 00 01 0002 0000 0000000000000001 00000001"),
    "context name missing": (0x40, "00 18 0800" + 20 * "00"),
    "application header empty": (0x06, "00 04 0001"),
    "chain element of length 3": (0x07, "00 08 00 05 ff030000"),
    "chain element past its block": (0x07, "00 08 00 05 ff050000"),
    "properties length cut": (0x07, "00 0a 00 06 ff060000 0001"),
}


@pytest.mark.parametrize(("first", "chain"), BAD_CHAINS.values(), ids=BAD_CHAINS)
def test_a_bad_block_is_refused(first: int, chain: str) -> None:
    with pytest.raises(DecodeError):
        lbmc.decode(data_with_chain(first, chain))


@pytest.mark.parametrize("name", ["block of length 0", "block of length 3", "block past the message"])
def test_the_fast_walk_refuses_a_chain_that_cannot_be_followed(name: str) -> None:
    data = data_with_chain(*BAD_CHAINS[name])
    with pytest.raises(DecodeError):
        lbmc.chain(data, 0, len(data))
    with pytest.raises(DecodeError):
        lbmc.payload_at(data, 0, len(data))
    with pytest.raises(DecodeError):
        lbmc.frag_of(data, 0, len(data))


def test_walk_yields_what_stands_before_the_fault() -> None:
    good = lbmc.encode(data_message(1, 0, b"a"))
    walk = lbmc.walk(good + bytes(4), 0, len(good) + 4)
    assert next(walk) == (0, len(good))
    with pytest.raises(DecodeError) as caught:
        next(walk)
    assert caught.value.offset == len(good)


def fragment(offset: int, total: int, piece: bytes, before: tuple[Block, ...] = ()) -> bytes:
    return lbmc.encode(data_message(7, 9, piece, blocks=(*before, Frag(9, offset, total))))


def test_frag_of_finds_the_piece_behind_other_blocks() -> None:
    data = b"??" + fragment(4, 10, b"456789", (SrcIdx(1), Request(1, 2, 3)))
    found = lbmc.frag_of(memoryview(data), 2, len(data) - 2)
    assert found is not None
    assert found[:3] == (9, 4, 10)
    assert data[found[3] :] == b"456789"


def test_a_message_without_frag_is_whole() -> None:
    for blocks in ((), (SrcIdx(1),)):
        data = lbmc.encode(data_message(7, 9, b"all", blocks=blocks))
        assert lbmc.frag_of(data, 0, len(data)) is None
        assert data[lbmc.payload_at(data, 0, len(data)) :] == b"all"


def test_a_piece_that_reaches_past_its_message_is_refused() -> None:
    assert lbmc.frag_of(fragment(8, 10, b"89"), 0, 30) == (9, 8, 10, 28)
    data = fragment(8, 10, b"890")
    with pytest.raises(DecodeError):
        lbmc.frag_of(data, 0, len(data))


def test_the_fragment_header_struct_is_the_encoding() -> None:
    piece = fragment(8, 10, b"89")
    head = lbmc.FRAG_HEADER.pack(0, BlockType.FRAG, len(piece), 7, 9, 0, 16, 0, 9, 8, 10)
    assert head + b"89" == piece
    assert lbmc.HEADER.pack(0, 0, 17, 7, 9) + b"hello" == lbmc.encode(data_message(7, 9, b"hello"))


@pytest.mark.parametrize(
    "message",
    [
        data_message(1 << 32, 0, b""),
        data_message(-1, 0, b""),
        data_message(0, 0, bytes(0xFFFF)),
        data_message(0, 0, b"", blocks=(TopicName(bytes(252)),)),
        data_message(0, 0, b"", blocks=(TopicName(b""),)),
        data_message(0, 0, b"", blocks=(RawBlock(0x30, bytes(254)),)),
        Message(MessageType.MESSAGE, None, None),
    ],
    ids=["index", "negative", "length", "name", "empty name", "raw block", "no index"],
)
def test_what_does_not_fit_is_our_own_fault(message: Message) -> None:
    with pytest.raises(LocalProtocolError):
        lbmc.encode(message)


def test_the_largest_message_fits() -> None:
    message = data_message(1, 2, bytes(65535 - 12))
    assert lbmc.decode(lbmc.encode(message)) == message


# Chains that hold together, made of random blocks; every byte of them must survive.
random_block = st.tuples(st.integers(1, 0xFE), st.binary(min_size=2, max_size=253))


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from(list(MessageType)))
    blocks = draw(st.lists(random_block, max_size=6))
    end = draw(st.sampled_from([0x00, 0xFF]))
    codes = [code for code, _ in blocks] + [end]
    chain = b"".join(bytes((after, 2 + len(body))) + body for (_, body), after in zip(blocks, codes[1:], strict=True))
    body = chain + draw(st.binary(max_size=40))
    full = lbmc.header_size(kind) == 12
    numbers = draw(st.binary(min_size=8, max_size=8)) if full else b""
    return bytes((kind, codes[0])) + (4 + len(numbers) + len(body)).to_bytes(2, "big") + numbers + body


@given(messages())
def test_what_decodes_encodes_to_the_same_bytes(data: bytes) -> None:
    try:
        message = lbmc.decode(data)
    except DecodeError:
        return
    assert lbmc.encode(message) == data


@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_decode_errors(data: bytes) -> None:
    try:
        for message in decode_all(data):
            assert lbmc.encode(message) in data
    except DecodeError:
        pass
    try:
        for pos, length in lbmc.walk(data, 0, len(data)):
            lbmc.frag_of(data, pos, length)
            lbmc.payload_at(data, pos, length)
    except DecodeError:
        pass


@given(messages(), st.integers(0, 300), st.integers(0, 255))
def test_one_changed_byte_raises_nothing_but_decode_errors(data: bytes, at: int, value: int) -> None:
    changed = bytearray(data)
    changed[at % len(changed)] = value
    try:
        messages = decode_all(bytes(changed))
    except DecodeError:
        return
    encoded = b"".join(map(lbmc.encode, messages))
    assert changed.startswith(encoded)
    assert len(changed) - len(encoded) < 4


def test_a_session_id_of_the_wrong_size_is_refused() -> None:
    with pytest.raises(DecodeError):
        lbmc.decode(raw("08 6b 000b ff 07 0000 f1789b"))
    assert TcpSid(1).ignore is False


def test_a_piece_without_user_data_behind_its_chain_is_refused() -> None:
    data = bytearray(fragment(4, 10, b"456789"))
    assert lbmc.frag_of(data, 0, len(data)) is not None
    data[lbmc.HEADER.size] = END_NONE
    with pytest.raises(DecodeError, match="frag"):
        lbmc.frag_of(data, 0, len(data))
