"""Every LBMC block record: round trips, growth, the ignore bit, limits."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError, LocalProtocolError
from dro.wire.lbmc.block import BLOCK_RECORDS, Block, FixedBlock, RawBlock, TextBlock
from dro.wire.lbmc.blocks import read_block, write_block
from dro.wire.lbmc.codes import BlockType
from dro.wire.lbmc.data_blocks import (
    AppHdr,
    AppHdrChain,
    AppHdrType,
    ChainElement,
    CtxInstD,
    CtxInstR,
    Destination,
    Frag,
    OtidBlock,
    Stream,
    TopicName,
    Tsni,
    TsniRecord,
)
from dro.wire.lbmc.dro_blocks import (
    CTXINFO_NAME,
    CtxInfo,
    GatewayName,
    PatternMdInterest,
    RouteInfo,
    TnwgCapabilities,
    TnwgKeepalive,
    TopicMdInterest,
)
from dro.wire.lbmc.ume_blocks import UmeStoreId
from tests.builders.lbmc_messages import properties_chain

RECORDS = list(BLOCK_RECORDS.values())


def name_of(record: type[Block]) -> str:
    return record.__name__


def again(block: Block) -> object:
    data = write_block(block, 0x55)
    assert data[0] == 0x55
    assert data[1] == len(data)
    return read_block(block.code, data, 0, len(data))


def test_every_block_of_the_first_two_tiers_has_a_record() -> None:
    passed_through = {
        code for code in BlockType if code.name.startswith("UMQ_") or code in
        {BlockType.TGIDX, BlockType.UME_PROXY_SRC, BlockType.UME_PSER, BlockType.UME_PSRC_ELECTION_TOKEN,
         BlockType.TOPIC_INTEREST, BlockType.PATTERN_INTEREST, BlockType.ADVERTISEMENT, BlockType.AUTHENTICATION,
         BlockType.HMAC, BlockType.EXTOPT}
    }  # fmt: skip
    assert set(BLOCK_RECORDS) == set(BlockType) - passed_through
    assert len(BLOCK_RECORDS) == len({record.__name__ for record in RECORDS})


@pytest.mark.parametrize("record", [r for r in RECORDS if issubclass(r, FixedBlock)], ids=name_of)
def test_a_fixed_layout_names_every_field_of_its_record(record: type[FixedBlock]) -> None:
    named = {f.name for f in fields(record)} - {"growth"}
    assert set(record.WIRE) | ({record.SHARED} if record in (TnwgCapabilities, UmeStoreId) else set()) == named
    assert len(set(record.WIRE)) == len(record.WIRE)
    assert record.WIRE[0] == "flags"


@pytest.mark.parametrize("record", RECORDS, ids=name_of)
@given(body=st.binary(min_size=2, max_size=253), where=st.integers(0, 3))
def test_what_is_read_is_written_again_byte_for_byte(record: type[Block], body: bytes, where: int) -> None:
    data = bytes(where) + bytes((0x00, 2 + len(body))) + body + b"\xee"
    try:
        block = read_block(record.CODE, data, where, 2 + len(body))
    except DecodeError:
        return
    assert isinstance(block, record)
    assert write_block(block, 0x00) == data[where:-1]


@pytest.mark.parametrize("record", [r for r in RECORDS if issubclass(r, FixedBlock)], ids=name_of)
def test_a_fixed_block_grows_but_never_shrinks(record: type[FixedBlock]) -> None:
    known = 2 + record.LAYOUT.size
    body = bytes(record.LAYOUT.size) + b"\xaa\xbb"
    block = read_block(record.CODE, b"\0\0" + body, 0, known + 2)
    assert isinstance(block, record)
    assert block.growth == b"\xaa\xbb"
    assert block.body() == body
    with pytest.raises(DecodeError):
        read_block(record.CODE, b"\0\0" + body, 0, known - 1)


@pytest.mark.parametrize("record", RECORDS, ids=name_of)
def test_the_ignore_bit_is_the_top_bit_of_the_third_byte(record: type[Block]) -> None:
    rest = b"\xff" + bytes(98)  # 0xff: no application header follows, or flags and numbers that mean nothing here
    for third, expected in ((0x80, True), (0x00, False), (0x77, False)):
        if record is CtxInfo and third == 0x77:
            continue  # the same byte says that a name follows
        block = read_block(record.CODE, bytes((0, 0, third)) + rest, 0, 102)
        assert isinstance(block, record)
        assert block.ignore is expected


@pytest.mark.parametrize("record", [r for r in RECORDS if issubclass(r, TextBlock)], ids=name_of)
def test_a_text_loses_its_terminator_and_keeps_it_for_writing(record: type[TextBlock]) -> None:
    data = b"\0\x09\0\0AAA\0\0"
    block = read_block(record.CODE, data, 0, len(data))
    assert isinstance(block, record)
    assert getattr(block, record.WIRE[-1]) == b"AAA"
    assert block.growth == b"\0\0"
    assert write_block(block, 0) == data


def test_names_are_written_without_terminator_up_to_251_bytes() -> None:
    assert write_block(TopicName(b"AAA"), 0xFF) == b"\xff\x07\0\0AAA"
    assert len(write_block(GatewayName(b"x" * 251), 0)) == 255
    with pytest.raises(LocalProtocolError):
        write_block(GatewayName(b"x" * 252), 0)


def test_positional_fields_are_what_a_sender_chooses() -> None:
    assert write_block(Frag(100, 24, 40), 0).hex() == "0010000000000064" + "00000018" + "00000028"
    assert write_block(Destination(2, 0x0A020214, 14391, 1, 0x0A010114, 14392, 1), 0x4B).hex() == (
        "4b1c0000000000020a02021438370001000000010a01011438380000"
    )
    assert write_block(Stream(3, 9, bytes.fromhex("0a0101140f1e2d3c")), 0).hex() == (
        "001400000000000300000009" + "0a0101140f1e2d3c"
    )
    route = RouteInfo(0x8000000000000A01, 2, 513, 99, 0xDEADBEEF, 0x1234ABCD, 0x06110000)
    assert write_block(route, 0x58).hex() == "58200000061100001234abcd8000000000000a01deadbeef0002020163000000"


def test_blocks_with_the_same_layout_differ_by_their_class() -> None:
    instance = bytes(range(8))
    pair: tuple[Block, Block] = (CtxInstD(instance), CtxInstR(instance))
    assert pair[0] != pair[1]
    assert write_block(CtxInstD(instance), 0) == write_block(CtxInstR(instance), 0)


@pytest.mark.parametrize(
    "block",
    [
        OtidBlock(bytes(31)),
        OtidBlock(bytes(33)),
        CtxInstD(b"seven77"),
        Frag(1 << 32, 0, 0),
        Frag(-1, 0, 0),
        TnwgKeepalive(1, 2, 3, reserved=b""),
        TopicMdInterest(tuple(range(62))),
        PatternMdInterest(tuple(range(60)), 1, 1),
        PatternMdInterest((), 1, 1 << 63),
        CtxInfo(name=b"no flag"),
        CtxInfo(flags=CTXINFO_NAME),
        RawBlock(0x30, bytes(254)),
    ],
    ids=repr,
)
def test_what_does_not_fit_is_our_own_fault(block: Block | RawBlock) -> None:
    with pytest.raises(LocalProtocolError):
        write_block(block, 0)


def test_lists_take_as_many_entries_as_their_block_holds() -> None:
    for block in (
        TopicMdInterest(tuple(range(61))),
        PatternMdInterest(tuple(range(59)), 2, -2),
        Tsni(tuple(TsniRecord(i, i) for i in range(31))),
    ):
        assert again(block) == block


def test_a_tsni_count_that_lies_is_kept_and_not_believed() -> None:
    data = bytes.fromhex("ff0f 0005 00000001 00000002 aabbcc")
    block = read_block(BlockType.TSNI, data, 0, len(data))
    assert block == Tsni((TsniRecord(1, 2),), declared=5, growth=b"\xaa\xbb\xcc")
    assert write_block(Tsni((TsniRecord(1, 2),), declared=5, growth=b"\xaa\xbb\xcc"), 0xFF) == data


def test_fifteen_bits_share_their_word_with_the_ignore_bit() -> None:
    for block in (
        TnwgCapabilities(0x7FFF, 1, 2, 3, 4, flags=0x8000),
        UmeStoreId(0x7FFF, flags=0x8000),
        AppHdr(0x123, b"x", flags=0x8000),
        Tsni((), flags=0x8000),
    ):
        assert again(block) == block
        assert block.ignore


def test_a_chain_of_application_headers_keeps_its_elements() -> None:
    chain = AppHdrChain(
        (
            ChainElement(AppHdrType.USER_DATA, b"abc", 7),
            ChainElement(AppHdrType.PROPERTIES_LENGTH, (5).to_bytes(4, "big")),
            ChainElement(AppHdrType.PROPERTIES_LENGTH, (6).to_bytes(4, "big")),
        )
    )
    assert again(chain) == chain
    assert chain.properties_length == 11
    assert write_block(properties_chain(72), 0).hex() == "000c0006ff08000000000048"
    assert again(AppHdrChain(())) == AppHdrChain(())


def test_a_context_name_counts_only_with_its_flag() -> None:
    named = CtxInfo(1, 2, 3, bytes(8), 4, b"store", flags=CTXINFO_NAME)
    assert again(named) == named
    data = bytes.fromhex("ff1b0000") + bytes(20) + b"abc"
    block = read_block(BlockType.CTXINFO, data, 0, len(data))
    assert isinstance(block, CtxInfo)
    assert (block.name, block.growth) == (b"", b"abc")
