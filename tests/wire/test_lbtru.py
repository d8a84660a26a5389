"""LBT-RU packets: round trips, options, the order in which faults are counted."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.dissect import packet as dissect
from dro.errors import LocalProtocolError
from dro.wire import lbtru
from dro.wire.lbtru import Ack, ConnectRequest, Data, Nak, Ncf, PacketType, Reset, SessionMessage
from dro.wire.transport import NCF_SHED, DropReason, TransportDecodeError, TransportOption


def raw(text: str) -> bytes:
    return bytes.fromhex(text)


SID: Final = lbtru.sid_option(0x263170A3)
CID: Final = lbtru.cid_option(0x0BADCAFE)

KNOWN: Final = {
    "connect request": ("06 01 0000 02080000263170a3 000800000badcafe", ConnectRequest(options=(SID, CID))),
    "unknown request": ("06 00 0001", ConnectRequest(1)),
    "answer to it": (
        "02 01 8000 00000000 00000000 00000000 00080000263170a3",
        SessionMessage(0, 0, 0, lbtru.FLAG_SYN, options=(SID,)),
    ),
    "data": ("00 01 0000 00000007 00000001 00080000263170a3 01000004", Data(7, 1, 0, raw("01000004"), options=(SID,))),
    "data without options": ("00 00 4000 00000007 00000001", Data(7, 1, lbtru.FLAG_RETRANSMISSION)),
    "nak": ("03 01 0000 0002 0000 00000008 fffffffe 00080000263170a3", Nak((8, 0xFFFFFFFE), options=(SID,))),
    "ncf": (
        "04 01 0000 00000100 0001 00 30 00000104 00080000263170a3",
        Ncf(0x100, NCF_SHED, 0, (0x104,), options=(SID,)),
    ),
    "ack": ("05 00 0000 ffffffff", Ack(0xFFFFFFFF)),
    "reset": ("07 00 0102", Reset(0x102)),
    "reset with an option": ("07 01 0000 00080000263170a3", Reset(options=(SID,))),
}


@pytest.mark.parametrize(("text", "packet"), KNOWN.values(), ids=KNOWN)
def test_known_packets(text: str, packet: lbtru.Packet) -> None:
    assert lbtru.decode(raw(text)) == packet
    assert lbtru.encode(packet) == raw(text)
    assert dissect.fields("lbtru", raw(text)).error is None


def test_ids_come_from_options_and_have_defaults() -> None:
    assert Data(0, 0, options=(CID, SID)).session_id == 0x263170A3
    assert Data(0, 0, options=(CID, SID)).client_id == 0x0BADCAFE
    assert Ack(0).session_id == 0
    assert Ack(0).client_id is None


def test_a_longer_session_id_option_is_read_and_kept() -> None:
    data = raw("05 01 0000 00000001 000c8000 263170a3 aabbccdd")
    packet = lbtru.decode(data)
    assert packet.session_id == 0x263170A3
    assert packet.options[0].flags == 0x8000
    assert lbtru.encode(packet) == data
    assert dissect.fields("lbtru", data).values["lbtru.opt_sid.session_id"] == "0x263170a3"


def test_an_unknown_option_is_walked_over() -> None:
    packet = Data(1, 0, 0, b"lbmc", options=(TransportOption(9, b"??"), SID))
    assert lbtru.decode(lbtru.encode(packet)) == packet
    assert packet.session_id == 0x263170A3
    printed = dissect.fields("lbtru", lbtru.encode(Data(1, 0, options=(TransportOption(9, b"??"),))))
    assert printed.error is None
    assert printed.values["lbtru.opt_unknown.hdr_len"] == "6"


BAD: Final = {
    "empty": ("", DropReason.SIZE),
    "three bytes": ("06 00 00", DropReason.SIZE),
    "data one byte short": ("00 00 0000 00000001 000000", DropReason.SIZE),
    "sm one byte short": ("02 00 0000" + 11 * "00", DropReason.SIZE),
    "ack one byte short": ("05 00 0000 000000", DropReason.SIZE),
    "nak list cut": ("03 00 0000 0002 0000 00000008", DropReason.SIZE),
    "ncf list cut": ("04 00 0000 00000000 0001 00 10 000000", DropReason.SIZE),
    "another version": ("16 00 0000", DropReason.VERSION),
    "another version and type": ("18 00 0000", DropReason.VERSION),
    "type 1": ("01 00 0000", DropReason.TYPE),
    "type 8": ("08 00 0000", DropReason.TYPE),
    "option missing": ("06 01 0000", DropReason.HEADER),
    "option of length 0": ("06 01 0000 00 00 0000", DropReason.HEADER),
    "option past the end": ("06 01 0000 00 08 0000 263170", DropReason.HEADER),
    "session id cut": ("06 01 0000 00 07 0000 263170", DropReason.HEADER),
    "client id empty": ("06 02 0000 00 04 0000", DropReason.HEADER),
    "chain without end": ("06 01 0000 01 08 0000 00000001 01 08 0000 00000001", DropReason.HEADER),
}


@pytest.mark.parametrize(("text", "reason"), BAD.values(), ids=BAD)
def test_a_bad_datagram_names_the_counter(text: str, reason: DropReason) -> None:
    with pytest.raises(TransportDecodeError) as caught:
        lbtru.decode(raw(text))
    assert caught.value.reason is reason
    assert dissect.fields("lbtru", raw(text)).error is not None


def test_each_side_takes_its_own_types() -> None:
    assert set(PacketType) == lbtru.SOURCE_TYPES | lbtru.RECEIVER_TYPES
    assert not lbtru.SOURCE_TYPES & lbtru.RECEIVER_TYPES
    for text, packet in KNOWN.values():
        is_clients = isinstance(packet, Nak | Ack | ConnectRequest)
        assert lbtru.decode(raw(text), lbtru.SOURCE_TYPES if is_clients else lbtru.RECEIVER_TYPES) == packet
        with pytest.raises(TransportDecodeError) as caught:
            lbtru.decode(raw(text), lbtru.RECEIVER_TYPES if is_clients else lbtru.SOURCE_TYPES)
        assert caught.value.reason is DropReason.TYPE


@pytest.mark.parametrize("packet", [Data(1 << 32, 0), Nak((-1,)), ConnectRequest(1 << 16)], ids=repr)
def test_what_does_not_fit_is_our_own_fault(packet: lbtru.Packet) -> None:
    with pytest.raises(LocalProtocolError):
        lbtru.encode(packet)


u8, u16, u32 = st.integers(0, 0xFF), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)
nibble = st.integers(0, 15)
option = st.one_of(
    st.builds(TransportOption, st.integers(3, 255), st.binary(max_size=12), u16),
    st.builds(lbtru.sid_option, u32),
    st.builds(lbtru.cid_option, u32),
)
options = st.lists(option, max_size=3).map(tuple)
sqns = st.lists(u32, max_size=8).map(tuple)
packets = st.one_of(
    st.builds(Data, u32, u32, u16, st.binary(max_size=30), options=options),
    st.builds(SessionMessage, u32, u32, u32, u16, options=options),
    st.builds(Nak, sqns, nibble, reserved=u16, format_reserved=u16.map(lambda word: word & 0xFFF0), options=options),
    st.builds(Ncf, u32, nibble, nibble, sqns, reserved=u16, reserved2=u8, options=options),
    st.builds(Ack, u32, reserved=u16, options=options),
    st.builds(ConnectRequest, u16, options=options),
    st.builds(Reset, u16, options=options),
)


@given(packets)
def test_round_trip(packet: lbtru.Packet) -> None:
    assert lbtru.decode(lbtru.encode(packet)) == packet


@given(st.sampled_from([*PacketType, 1, 8, 0x10]), st.binary(max_size=80))
def test_arbitrary_bytes_raise_nothing_but_errors_with_a_reason(first: int, rest: bytes) -> None:
    data = bytes((first,)) + rest
    dissect.fields("lbtru", data)
    try:
        packet = lbtru.decode(data)
    except TransportDecodeError:
        return
    assert data.startswith(lbtru.encode(packet))
