"""LBT-RU packets: reliable unicast data, session messages, NAKs, NCFs, ACKs, connect requests and resets.

One datagram is one packet. `decode` checks in the order in which a receiver counts its drops: size, version, type,
header chain; the session id is compared by the caller. No state.

Guess: any packet may carry any subset of the SID and CID options, and a missing SID means session id 0; options after a
reset are read at the same place as in other packets.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Final

from dro.wire.cursor import pack
from dro.wire.transport import (
    DropReason,
    TransportDecodeError,
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
    ACK = 5
    CREQ = 6
    RST = 7


RECEIVER_TYPES: Final = frozenset({PacketType.DATA, PacketType.SM, PacketType.NCF, PacketType.RST})
SOURCE_TYPES: Final = frozenset({PacketType.NAK, PacketType.ACK, PacketType.CREQ})
ALL_TYPES: Final = frozenset(PacketType)

FLAG_RETRANSMISSION: Final = 0x4000  # DATA
FLAG_SYN: Final = 0x8000  # SM: the answer to a connect request (inferred)
REQUEST_SYN: Final = 0
RESET_DEFAULT: Final = 0

OPTION_SID: Final = 1
OPTION_CID: Final = 2

HEADER: Final = Struct("!BBH")  # version and type, first option, a word whose meaning depends on the type
DATA_LAYOUT: Final = Struct("!BBHII")  # header with flags; sqn, trail
SM_LAYOUT: Final = Struct("!BBHIII")  # header with flags; SM sqn, lead, trail
NAK_LAYOUT: Final = Struct("!BBHHH")  # header; count, format
NCF_LAYOUT: Final = Struct("!BBHIHBB")  # header; trail, count, reserved, reason and format
ACK_LAYOUT: Final = Struct("!BBHI")  # header; sqn

_LAYOUTS: Final[dict[int, Struct]] = {
    PacketType.DATA: DATA_LAYOUT,
    PacketType.SM: SM_LAYOUT,
    PacketType.NAK: NAK_LAYOUT,
    PacketType.NCF: NCF_LAYOUT,
    PacketType.ACK: ACK_LAYOUT,
    PacketType.CREQ: HEADER,
    PacketType.RST: HEADER,
}
_SIZES: Final = {kind: layout.size for kind, layout in _LAYOUTS.items()}
_U32: Final = Struct("!I")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packet:
    """What every packet may carry: options, and a header word that is reserved in NAK, NCF and ACK."""

    options: tuple[TransportOption, ...] = ()

    @property
    def session_id(self) -> int:
        """From the SID option; 0 without one."""
        body = _option(self.options, OPTION_SID)
        return 0 if body is None else int.from_bytes(body[:4], "big")

    @property
    def client_id(self) -> int | None:
        """From the CID option; None without one."""
        body = _option(self.options, OPTION_CID)
        return None if body is None else int.from_bytes(body[:4], "big")


def _option(options: tuple[TransportOption, ...], kind: int) -> bytes | None:
    return next((option.body for option in options if option.kind == kind), None)


def sid_option(session_id: int) -> TransportOption:
    return TransportOption(OPTION_SID, pack(_U32, session_id))


def cid_option(client_id: int) -> TransportOption:
    return TransportOption(OPTION_CID, pack(_U32, client_id))


@dataclass(frozen=True, slots=True)
class Data(_Packet):
    """A data packet; `payload` holds LBMC messages end to end, or nothing."""

    sqn: int
    trail: int
    flags: int = 0
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class SessionMessage(_Packet):
    """Where the stream stands; with `FLAG_SYN` the answer to a connect request."""

    sm_sqn: int
    lead: int
    trail: int
    flags: int = 0


@dataclass(frozen=True, slots=True)
class Nak(_Packet):
    """A client's request for datagrams."""

    sqns: tuple[int, ...]
    format: int = 0
    reserved: int = field(default=0, kw_only=True)  # header word
    format_reserved: int = field(default=0, kw_only=True)  # the upper 12 bits of the format word, in place


@dataclass(frozen=True, slots=True)
class Ncf(_Packet):
    """A source's answer to NAKs that it does not satisfy now; one `reason` for all `sqns`."""

    trail: int
    reason: int
    format: int
    sqns: tuple[int, ...]
    reserved: int = field(default=0, kw_only=True)  # header word
    reserved2: int = field(default=0, kw_only=True)  # byte before the reason


@dataclass(frozen=True, slots=True)
class Ack(_Packet):
    """A client's sign of life, not a flow control. Guess: sqn is the highest contiguous one that it has."""

    sqn: int
    reserved: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class ConnectRequest(_Packet):
    """A client asks to be served; `REQUEST_SYN` is the only request known."""

    request: int = REQUEST_SYN


@dataclass(frozen=True, slots=True)
class Reset(_Packet):
    """A source ends the session of a client."""

    reason: int = RESET_DEFAULT


Packet = Data | SessionMessage | Nak | Ncf | Ack | ConnectRequest | Reset


def check(data: bytes | bytearray | memoryview, accept: Container[int] = ALL_TYPES) -> int:
    """The packet type, after the checks for size, version and type. Raises: TransportDecodeError."""
    return packet_type("lbtru", _SIZES, HEADER.size, data, accept)


def decode(data: bytes, accept: Container[int] = ALL_TYPES) -> Packet:
    """One datagram. Bytes behind a packet other than DATA are ignored.

    `accept`: the packet types that this side takes (`RECEIVER_TYPES`, `SOURCE_TYPES`).
    Raises: TransportDecodeError with the reason to count.
    """
    kind = check(data, accept)
    layout = _LAYOUTS[kind]
    _, first, word, *values = layout.unpack_from(data)
    sqns: tuple[int, ...] = ()
    at = layout.size
    if kind == PacketType.NAK or kind == PacketType.NCF:
        count = values[0] if kind == PacketType.NAK else values[1]
        sqns = read_sqns("lbtru.nak" if kind == PacketType.NAK else "lbtru.ncf", data, at, count)
        at += 4 * count
    options, at = _read_options(data, at, first)
    match kind:
        case PacketType.DATA:
            return Data(values[0], values[1], word, data[at:], options=options)
        case PacketType.SM:
            sm_sqn, lead, trail = values
            return SessionMessage(sm_sqn, lead, trail, word, options=options)
        case PacketType.NAK:
            form = values[1]
            return Nak(sqns, form & 0x0F, reserved=word, format_reserved=form & 0xFFF0, options=options)
        case PacketType.NCF:
            trail, _, reserved2, form = values
            return Ncf(trail, form >> 4, form & 0x0F, sqns, reserved=word, reserved2=reserved2, options=options)
        case PacketType.ACK:
            return Ack(values[0], reserved=word, options=options)
        case PacketType.CREQ:
            return ConnectRequest(word, options=options)
        case _:
            return Reset(word, options=options)


def encode(packet: Packet) -> bytes:
    """The datagram of one packet. Raises: LocalProtocolError when a value does not fit its field."""
    first, chain = write_options(packet.options)
    match packet:
        case Data(sqn, trail, flags, payload):
            return pack(DATA_LAYOUT, PacketType.DATA, first, flags, sqn, trail) + chain + payload
        case SessionMessage(sm_sqn, lead, trail, flags):
            return pack(SM_LAYOUT, PacketType.SM, first, flags, sm_sqn, lead, trail) + chain
        case Nak(sqns, form):
            word = form | packet.format_reserved
            return pack(NAK_LAYOUT, PacketType.NAK, first, packet.reserved, len(sqns), word) + write_sqns(sqns) + chain
        case Ncf(trail, reason, form, sqns):
            tail = (trail, len(sqns), packet.reserved2, reason << 4 | form)
            return pack(NCF_LAYOUT, PacketType.NCF, first, packet.reserved, *tail) + write_sqns(sqns) + chain
        case Ack(sqn):
            return pack(ACK_LAYOUT, PacketType.ACK, first, packet.reserved, sqn) + chain
        case ConnectRequest(request):
            return pack(HEADER, PacketType.CREQ, first, request) + chain
        case Reset(reason):
            return pack(HEADER, PacketType.RST, first, reason) + chain


def _read_options(data: bytes, pos: int, first: int) -> tuple[tuple[TransportOption, ...], int]:
    options, at = read_options("lbtru", data, pos, first)
    for option in options:
        if option.kind in (OPTION_SID, OPTION_CID) and len(option.body) < _U32.size:
            why = f"option {option.kind} with {len(option.body)} bytes"
            raise TransportDecodeError(DropReason.HEADER, "lbtru.option", why, pos)
    return options, at
