"""LBT-RM packets: round trips, the order in which faults are counted, option chains, the annotated capture."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.dissect import packet as dissect
from dro.errors import LocalProtocolError
from dro.wire import lbtrm
from dro.wire.lbtrm import Data, Nak, Ncf, PacketType, SessionMessage
from dro.wire.transport import NCF_IGNORED, DropReason, TransportDecodeError, TransportOption
from tests.builders import lbtrm_capture
from tests.builders.lbmc_messages import decode_all

SESSION: Final = 0xF9D74F3E
HEAD: Final = "00 00 2f3a f9d74f3e"


def raw(text: str) -> bytes:
    return bytes.fromhex(text)


ANNOTATED: Final = {
    "first data": (
        "00002f3a f9d74f3e 00000000 00000000 80030000 000000 2550a53ee900000000 6d65737361676520 30" + 16 * "00",
        Data(12090, SESSION, 0, 0, 0x80, 3, 0, raw("00000025 50a53ee9 00000000") + b"message 0" + bytes(16)),
    ),
    "retransmission": (
        "00002f3a f9d74f3e 00000004 00000000 a0030004 0000000c 50a53ee9 00000004",
        Data(12090, SESSION, 4, 0, 0xA0, 3, 4, raw("0000000c 50a53ee9 00000004")),
    ),
    "nak": ("03002f3a f9d74f3e 0002 0000 00000004 0000001d", Nak(12090, SESSION, (4, 29))),
    "ncf": ("04002f3a f9d74f3e 00000000 0001 00 10 000000b8", Ncf(12090, SESSION, 0, NCF_IGNORED, 0, (184,))),
    "session message": (
        "02002f3a f9d74f3e 00000000 00001387 00000000 80030000",
        SessionMessage(12090, SESSION, 0, 4999, 0),
    ),
}


@pytest.mark.parametrize(("text", "packet"), ANNOTATED.values(), ids=ANNOTATED)
def test_packets_of_the_real_capture(text: str, packet: lbtrm.Packet) -> None:
    assert lbtrm.decode(raw(text)) == packet
    assert lbtrm.encode(packet) == raw(text)


def test_every_packet_of_the_capture_is_written_again_byte_for_byte() -> None:
    counts = dict.fromkeys(("data", "rx", "sm", "nak", "ncf"), 0)
    for captured in lbtrm_capture.packets():
        counts[captured.kind] += 1
        decoded = lbtrm.decode(captured.payload)
        assert lbtrm.encode(decoded) == captured.payload
        match decoded:
            case Data():
                kind = "rx" if decoded.flags & lbtrm.FLAG_RETRANSMISSION else "data"
                assert (kind, decoded.sqn, decoded.trail) == (captured.kind, captured.sqn, captured.trail)
                assert decoded.fec_symbol == decoded.sqn % 8
                assert len(decode_all(decoded.payload)) == 1
            case SessionMessage():
                assert (captured.kind, decoded.lead) == ("sm", captured.sqn)
            case Nak():
                assert (captured.kind, decoded.sqns) == ("nak", captured.sqns)
            case Ncf():
                assert (captured.kind, decoded.sqns, decoded.reason) == ("ncf", captured.sqns, captured.reason)
    assert counts == {"data": 5000, "rx": 541, "sm": 4, "nak": 295, "ncf": 45}


def test_the_retransmission_flag_is_one_byte_of_the_datagram() -> None:
    first = lbtrm.encode(Data(1, 2, 3, 4, payload=b"x"))
    again = lbtrm.encode(Data(1, 2, 3, 4, 0xA0, payload=b"x"))
    assert [i for i in range(len(first)) if first[i] != again[i]] == [lbtrm.FLAGS_OFFSET]
    assert len(first) == lbtrm.DATA_HEADER + 1


def test_a_nak_holds_2045_sqns_in_8192_bytes() -> None:
    assert len(lbtrm.encode(Nak(1, 2, tuple(range(2045))))) == 8192


# (bytes, reason): the first check that fails counts.
BAD: Final = {
    "empty": ("", DropReason.SIZE),
    "seven bytes": ("00 00 2f3a f9d74f", DropReason.SIZE),
    "data one byte short": (HEAD + 11 * "00", DropReason.SIZE),
    "sm one byte short": ("02 00 2f3a f9d74f3e" + 15 * "00", DropReason.SIZE),
    "short and of another version": ("10 00 2f3a f9d74f3e" + 11 * "00", DropReason.SIZE),
    "another version": ("10 00 2f3a f9d74f3e" + 12 * "00", DropReason.VERSION),
    "another version and type": ("15 00 2f3a f9d74f3e", DropReason.VERSION),
    "another type": ("01 00 2f3a f9d74f3e", DropReason.TYPE),
    "type 15": ("0f 00 2f3a f9d74f3e", DropReason.TYPE),
    "nak list cut": ("03 00 2f3a f9d74f3e 0002 0000 00000004 000000", DropReason.SIZE),
    "nak count 65535": ("03 00 2f3a f9d74f3e ffff 0000 00000004", DropReason.SIZE),
    "ncf list cut": ("04 00 2f3a f9d74f3e 00000000 0001 00 10 0000", DropReason.SIZE),
    "option missing": ("00 01 2f3a f9d74f3e" + 12 * "00", DropReason.HEADER),
    "option of length 0": ("00 01 2f3a f9d74f3e" + 12 * "00" + "00 00 0000", DropReason.HEADER),
    "option of length 3": ("00 01 2f3a f9d74f3e" + 12 * "00" + "00 03 0000", DropReason.HEADER),
    "option past the end": ("00 01 2f3a f9d74f3e" + 12 * "00" + "00 05 0000", DropReason.HEADER),
    "second option missing": ("00 01 2f3a f9d74f3e" + 12 * "00" + "02 04 0000", DropReason.HEADER),
}


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD)
def test_a_bad_datagram_names_the_counter(text: str, reason: DropReason) -> None:
    with pytest.raises(TransportDecodeError) as caught:
        lbtrm.decode(raw(text))
    assert caught.value.reason is reason
    assert dissect.fields("lbtrm", raw(text)).error is not None


def test_each_side_takes_its_own_types() -> None:
    for text, packet in ANNOTATED.values():
        mine, other = (
            (lbtrm.SOURCE_TYPES, lbtrm.RECEIVER_TYPES)
            if isinstance(packet, Nak)
            else (lbtrm.RECEIVER_TYPES, lbtrm.SOURCE_TYPES)
        )
        assert lbtrm.decode(raw(text), mine) == packet
        with pytest.raises(TransportDecodeError) as caught:
            lbtrm.decode(raw(text), other)
        assert caught.value.reason is DropReason.TYPE


def test_options_are_walked_over_and_kept() -> None:
    packet = Data(1, 2, 3, 4, payload=b"lbmc", options=(TransportOption(0x7E, b"\xde\xad"), TransportOption(9)))
    data = lbtrm.encode(packet)
    assert data[1] == 0x7E
    assert lbtrm.decode(data) == packet


def test_bytes_behind_a_list_are_ignored() -> None:
    assert lbtrm.decode(raw(ANNOTATED["nak"][0]) + b"rest") == ANNOTATED["nak"][1]


@pytest.mark.parametrize(
    "packet",
    [
        Data(1 << 16, 0, 0, 0),
        Data(0, 1 << 32, 0, 0),
        Nak(0, 0, (1 << 32,)),
        Nak(0, 0, tuple([1] * 65536)),
        Ncf(0, 0, 0, 16, 0, ()),
        Data(0, 0, 0, 0, options=(TransportOption(0),)),
        Data(0, 0, 0, 0, options=(TransportOption(1, bytes(252)),)),
    ],
    ids=["port", "session", "sqn", "count", "reason", "option kind", "option size"],
)
def test_what_does_not_fit_is_our_own_fault(packet: lbtrm.Packet) -> None:
    with pytest.raises(LocalProtocolError):
        lbtrm.encode(packet)


u8, u16, u32 = st.integers(0, 0xFF), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)
nibble = st.integers(0, 15)
options = st.lists(st.builds(TransportOption, st.integers(1, 255), st.binary(max_size=12), u16), max_size=3).map(tuple)
sqns = st.lists(u32, max_size=8).map(tuple)
packets = st.one_of(
    st.builds(Data, u16, u32, u32, u32, u8, u8, u16, st.binary(max_size=30), options=options),
    st.builds(SessionMessage, u16, u32, u32, u32, u32, u8, u8, reserved=u16, options=options),
    st.builds(Nak, u16, u32, sqns, nibble, reserved=u16.map(lambda word: word & 0xFFF0), options=options),
    st.builds(Ncf, u16, u32, u32, nibble, nibble, sqns, reserved=u8, options=options),
)


@given(packets)
def test_round_trip(packet: lbtrm.Packet) -> None:
    assert lbtrm.decode(lbtrm.encode(packet)) == packet


@given(st.sampled_from([*PacketType, 1, 5, 0x10]), st.binary(max_size=80))
def test_arbitrary_bytes_raise_nothing_but_errors_with_a_reason(first: int, rest: bytes) -> None:
    data = bytes((first,)) + rest
    dissect.fields("lbtrm", data)
    try:
        packet = lbtrm.decode(data)
    except TransportDecodeError:
        return
    assert data.startswith(lbtrm.encode(packet))
