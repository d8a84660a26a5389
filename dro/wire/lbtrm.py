"""LBT-RM packets: reliable multicast data, session messages, NAKs and NCFs.

One datagram is one packet. `decode` checks in the order in which a receiver counts its drops: size, version, type,
header chain. Sessions are not known here; the caller compares source address, `ucast_port` and `session_id`. Used for
multicast immediate messages as well. No state.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Final

from dro.wire.cursor import pack
from dro.wire.transport import (
    TransportOption,
    packet_type,
    read_options,
    read_sqns,
    write_options,
    write_sqns,
)


class PacketType(IntEnum):
    """Low four bits of the first byte."""

    DATA = 0
    SM = 2
    NAK = 3
    NCF = 4


RECEIVER_TYPES: Final = frozenset({PacketType.DATA, PacketType.SM, PacketType.NCF})
SOURCE_TYPES: Final = frozenset({PacketType.NAK})
ALL_TYPES: Final = frozenset(PacketType)

FLAG_UCAST_NAKS: Final = 0x80  # receivers send NAKs to the source's unicast port: set in every packet captured
FLAG_RETRANSMISSION: Final = 0x20
TGSZ_DEFAULT: Final = 3  # log2 of the transmission group size of 8 packets (inferred)
TGSZ_MASK: Final = 0x0F
GROUP_DEFAULT: Final = 1 << TGSZ_DEFAULT

HEADER: Final = Struct("!BBHI")  # version and type, first option, source unicast port, session id
DATA_LAYOUT: Final = Struct("!BBHIIIBBH")  # header; sqn, trail, flags and FEC type, group size, FEC symbol
DATA_HEADER: Final = DATA_LAYOUT.size
SM_LAYOUT: Final = Struct("!BBHIIIIBBH")  # header; SM sqn, lead, trail, flags and FEC type, group size, reserved
NAK_LAYOUT: Final = Struct("!BBHIHH")  # header; count, format
NCF_LAYOUT: Final = Struct("!BBHIIHBB")  # header; trail, count, reserved, reason and format
FLAGS_OFFSET: Final = 16  # of the flags byte in DATA: the only byte that a retransmission changes (trail apart)

_SIZES: Final[dict[int, int]] = {
    PacketType.DATA: DATA_LAYOUT.size,
    PacketType.SM: SM_LAYOUT.size,
    PacketType.NAK: NAK_LAYOUT.size,
    PacketType.NCF: NCF_LAYOUT.size,
}


@dataclass(frozen=True, slots=True)
class Data:
    """A data packet; `payload` holds LBMC messages end to end, or nothing."""

    ucast_port: int
    session_id: int
    sqn: int
    trail: int
    flags: int = FLAG_UCAST_NAKS
    tgsz: int = TGSZ_DEFAULT
    fec_symbol: int = 0  # sqn modulo the group size when sent, in retransmissions too
    payload: bytes = b""
    options: tuple[TransportOption, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class SessionMessage:
    """A session message: where the stream stands while no data flows."""

    ucast_port: int
    session_id: int
    sm_sqn: int  # own counter, unrelated to data sqns
    lead: int
    trail: int
    flags: int = FLAG_UCAST_NAKS
    tgsz: int = TGSZ_DEFAULT
    reserved: int = field(default=0, kw_only=True)
    options: tuple[TransportOption, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class Nak:
    """A receiver's request for datagrams; port and session id are the source's."""

    ucast_port: int
    session_id: int
    sqns: tuple[int, ...]
    format: int = 0
    reserved: int = field(default=0, kw_only=True)  # the upper 12 bits of the format word, in place
    options: tuple[TransportOption, ...] = field(default=(), kw_only=True)


@dataclass(frozen=True, slots=True)
class Ncf:
    """A source's answer to NAKs that it does not satisfy now; one `reason` for all `sqns`."""

    ucast_port: int
    session_id: int
    trail: int
    reason: int
    format: int
    sqns: tuple[int, ...]
    reserved: int = field(default=0, kw_only=True)
    options: tuple[TransportOption, ...] = field(default=(), kw_only=True)


Packet = Data | SessionMessage | Nak | Ncf


def check(data: bytes | bytearray | memoryview, accept: Container[int] = ALL_TYPES) -> int:
    """The packet type, after the checks for size, version and type. Raises: TransportDecodeError."""
    return packet_type("lbtrm", _SIZES, HEADER.size, data, accept)


def decode(data: bytes, accept: Container[int] = ALL_TYPES) -> Packet:
    """One datagram. Bytes behind a packet other than DATA are ignored.

    `accept`: the packet types that this side takes (`RECEIVER_TYPES`, `SOURCE_TYPES`).
    Raises: TransportDecodeError with the reason to count.
    """
    kind = check(data, accept)
    first = data[1]
    if kind == PacketType.DATA:
        _, _, port, session_id, sqn, trail, flags, tgsz, symbol = DATA_LAYOUT.unpack_from(data)
        options, at = read_options("lbtrm", data, DATA_LAYOUT.size, first) if first else ((), DATA_LAYOUT.size)
        return Data(port, session_id, sqn, trail, flags, tgsz, symbol, data[at:], options=options)
    if kind == PacketType.SM:
        _, _, port, session_id, sm_sqn, lead, trail, flags, tgsz, reserved = SM_LAYOUT.unpack_from(data)
        options, _ = read_options("lbtrm", data, SM_LAYOUT.size, first)
        return SessionMessage(port, session_id, sm_sqn, lead, trail, flags, tgsz, reserved=reserved, options=options)
    if kind == PacketType.NAK:
        _, _, port, session_id, count, word = NAK_LAYOUT.unpack_from(data)
        sqns = read_sqns("lbtrm.nak", data, NAK_LAYOUT.size, count)
        options, _ = read_options("lbtrm", data, NAK_LAYOUT.size + 4 * count, first)
        return Nak(port, session_id, sqns, word & 0x0F, reserved=word & 0xFFF0, options=options)
    _, _, port, session_id, trail, count, reserved, word = NCF_LAYOUT.unpack_from(data)
    sqns = read_sqns("lbtrm.ncf", data, NCF_LAYOUT.size, count)
    options, _ = read_options("lbtrm", data, NCF_LAYOUT.size + 4 * count, first)
    return Ncf(port, session_id, trail, word >> 4, word & 0x0F, sqns, reserved=reserved, options=options)


def encode(packet: Packet) -> bytes:
    """The datagram of one packet. Raises: LocalProtocolError when a value does not fit its field."""
    first, chain = write_options(packet.options)
    match packet:
        case Data(port, session_id, sqn, trail, flags, tgsz, symbol, payload):
            head = pack(DATA_LAYOUT, PacketType.DATA, first, port, session_id, sqn, trail, flags, tgsz, symbol)
            return head + chain + payload
        case SessionMessage(port, session_id, sm_sqn, lead, trail, flags, tgsz):
            common = (PacketType.SM, first, port, session_id)
            return pack(SM_LAYOUT, *common, sm_sqn, lead, trail, flags, tgsz, packet.reserved) + chain
        case Nak(port, session_id, sqns, form):
            head = pack(NAK_LAYOUT, PacketType.NAK, first, port, session_id, len(sqns), form | packet.reserved)
            return head + write_sqns(sqns) + chain
        case Ncf(port, session_id, trail, reason, form, sqns):
            common = (PacketType.NCF, first, port, session_id)
            head = pack(NCF_LAYOUT, *common, trail, len(sqns), packet.reserved, reason << 4 | form)
            return head + write_sqns(sqns) + chain
