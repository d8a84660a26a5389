"""The records of topic resolution proper: wildcard queries, advertisements (TIR) and topic management (TMR).

A plain query (TQR) is only a name, so it has no record. Source: wire notes LBMR sections 4, 5 and 7.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final
from weakref import WeakValueDictionary

from dro.errors import DecodeError
from dro.wire.cursor import Reader
from dro.wire.lbmr.options import TirOptions, read_tir_options, write_tir_options
from dro.wire.lbmr.tlv import fits, read_z, write_z
from dro.wire.source_string import (
    IpcAddress,
    LbtrmAddress,
    LbtruAddress,
    RdmaAddress,
    SmxAddress,
    TcpAddress,
    TransportAddress,
    TransportCode,
    UnknownTransport,
)

TIR_TTL: Final = 60
"""What UM sends in every TIR but the first of a source; its meaning is open (A13), receivers ignore it."""

FIRST_TIR_TTL: Final = 16


class PatternType(IntEnum):
    PCRE = 1
    REGEX = 2


@dataclass(frozen=True, slots=True)
class WildcardTqr:
    """A query for all topics that match. `pattern_type` is a `PatternType`, or a number to be ignored."""

    pattern_type: int
    pattern: bytes


@dataclass(frozen=True, slots=True)
class Tir:
    """Topic information record: one source's advertisement of one topic.

    `options` is None when the record says that it has none, which differs on the wire from an empty block.
    """

    topic: bytes
    transport: TransportAddress
    ttl: int
    topic_index: int
    options: TirOptions | None = None

    @property
    def otid(self) -> bytes | None:
        return self.options.otid if self.options else None

    @property
    def domain_id(self) -> int:
        """Return the originating domain; 0 where it is not said."""
        return (self.options.domain_id if self.options else None) or 0

    @property
    def is_final(self) -> bool:
        """A final advertisement: the source is gone (cost -1)."""
        return self.options is not None and self.options.is_final


class TmrType(IntEnum):
    LEAVE = 0
    USE = 1


class TmrFlag(IntEnum):
    RESPONSE = 0x80
    PCRE = 0x40
    REGEX = 0x20


@dataclass(frozen=True, slots=True)
class Tmr:
    """Topic management record. `kind` is a `TmrType`, `flags` are `TmrFlag` bits, `name` a topic or pattern.

    Use query: USE without RESPONSE; use response: USE with RESPONSE; leave: LEAVE.
    """

    kind: int
    flags: int
    name: bytes

    @property
    def is_response(self) -> bool:
        return bool(self.flags & TmrFlag.RESPONSE)

    @property
    def is_pattern(self) -> bool:
        return bool(self.flags & (TmrFlag.PCRE | TmrFlag.REGEX))

    @property
    def pattern_type(self) -> int:
        """The `PatternType` of a pattern, 0 for a topic. Guess: PCRE when both bits are set."""
        if self.flags & TmrFlag.PCRE:
            return PatternType.PCRE
        return PatternType.REGEX if self.flags & TmrFlag.REGEX else 0


# queries


def read_wildcard_tqr(r: Reader) -> WildcardTqr:
    return WildcardTqr(r.u8("wctqr.pattern_type"), read_z(r, "wctqr.pattern"))


def write_wildcard_tqr(tqr: WildcardTqr) -> bytes:
    if not 0 <= tqr.pattern_type <= 0xFF:
        raise DecodeError("wctqr.pattern_type", f"{tqr.pattern_type} does not fit")
    return bytes((tqr.pattern_type,)) + write_z("wctqr.pattern", tqr.pattern)


def read_tqr(r: Reader) -> bytes:
    return read_z(r, "tqr.topic")


def write_tqr(topic: bytes) -> bytes:
    return write_z("tqr.topic", topic)


# advertisements

_TIR_FIXED: Final = Struct("!BBHI")  # options bit and transport, size of the transport body, TTL, topic index
_TTL_AFTER_TOPIC: Final = 3  # its NUL and two bytes
_OPTIONS: Final = 0x80
_SHORT: Final = Struct("!IH")
_LONG: Final = Struct("!IIH")
_LBTRM: Final = Struct("!IIIHH")


def read_tir(r: Reader) -> Tir:
    """One TIR; `r` is left on the byte after it. Raises: DecodeError, nothing else."""
    topic = read_z(r, "tir.topic")
    code, length, ttl, index = r.unpack("tir", _TIR_FIXED)
    options = read_tir_options(r) if code & _OPTIONS else None
    at = r.pos
    transport = read_transport(code & ~_OPTIONS, r.take("tir.transport", length), at)
    return Tir(topic, transport, ttl, index, options)


@fits("tir")
def write_tir(tir: Tir) -> bytes:
    """Write a TIR. Raises: DecodeError for a value that does not fit its field."""
    code, body = write_transport(tir.transport)
    options = b""
    if tir.options is not None:
        code |= _OPTIONS
        options = write_tir_options(tir.options)
    fixed = _TIR_FIXED.pack(code, len(body), tir.ttl, tir.topic_index)
    return write_z("tir.topic", tir.topic) + fixed + options + body


def with_ttl(written: bytes, topic: bytes, ttl: int) -> bytes:
    """A written TIR of that topic with another TTL."""
    at = len(topic) + _TTL_AFTER_TOPIC
    return b"".join((written[:at], ttl.to_bytes(2, "big"), written[at + 2 :]))


def _long_tcp(body: bytes) -> TransportAddress:
    ip, session, port = _LONG.unpack(body)
    return TcpAddress(ip, port, session, long_form=not session)


def _long_lbtru(body: bytes) -> TransportAddress:
    ip, session, port = _LONG.unpack(body)
    return LbtruAddress(ip, port, session, long_form=not session)


def _rdma(body: bytes) -> TransportAddress:
    ip, session, port = _LONG.unpack(body)
    return RdmaAddress(ip, port, session)


_BODIES: Final[dict[int, dict[int, Callable[[bytes], TransportAddress]]]] = {
    TransportCode.TCP: {6: lambda body: TcpAddress(*_SHORT.unpack(body)), 10: _long_tcp},
    TransportCode.LBTRU: {6: lambda body: LbtruAddress(*_SHORT.unpack(body)), 10: _long_lbtru},
    TransportCode.LBTRM: {16: lambda body: LbtrmAddress(*_LBTRM.unpack(body))},
    TransportCode.IPC: {10: lambda body: IpcAddress(*_LONG.unpack(body))},
    TransportCode.SMX: {10: lambda body: SmxAddress(*_LONG.unpack(body))},
    TransportCode.RDMA: {10: _rdma},
}
_KNOWN: Final[WeakValueDictionary[tuple[int, bytes], TransportAddress]] = WeakValueDictionary()
"""One record for the many sources of a session, as long as there are any."""


def read_transport(code: int, body: bytes, at: int = -1) -> TransportAddress:
    """The transport part of a TIR; unknown codes are kept as they are.

    Raises: DecodeError when a known transport has another size, `at` being its place in the packet.
    """
    sizes = _BODIES.get(code)
    if sizes is None:
        return UnknownTransport(code, body)
    if len(body) not in sizes:
        raise DecodeError("tir.transport", f"{len(body)} bytes for transport 0x{code:02x}", at)
    address = _KNOWN.get((code, body))
    if address is None:
        address = _KNOWN[code, body] = sizes[len(body)](body)
    return address


@fits("tir.transport")
def write_transport(address: TransportAddress) -> tuple[int, bytes]:
    """Transport code and body. TCP and LBT-RU without a session id take the short form. Raises: DecodeError."""
    match address:
        case TcpAddress(ip, port, session) | LbtruAddress(ip, port, session):
            if session or address.long_form:
                return address.CODE, _LONG.pack(ip, session, port)
            return address.CODE, _SHORT.pack(ip, port)
        case LbtrmAddress(ip, group, session, dport, nak_port):
            return address.CODE, _LBTRM.pack(ip, group, session, dport, nak_port)
        case IpcAddress(host_id, session, transport_id) | SmxAddress(host_id, session, transport_id):
            return address.CODE, _LONG.pack(host_id, session, transport_id)
        case RdmaAddress(ip, port, session):
            return address.CODE, _LONG.pack(ip, session, port)
        case UnknownTransport(code, body):
            if not 0 <= code < _OPTIONS or code in _BODIES or len(body) > 0xFF:
                raise DecodeError("tir.transport", f"{len(body)} bytes for transport 0x{code:02x}")
            return code, body


# topic management

_TMR: Final = Struct("!HBB")


def read_tmr(r: Reader) -> Tmr:
    """One TMR; its name ends at the first NUL within the record. Raises: DecodeError."""
    at = r.pos
    length, kind, flags = r.unpack("tmr", _TMR)
    if length <= _TMR.size:
        raise DecodeError("tmr", f"length {length}", at)
    name = read_z(r.sub("tmr.name", length - _TMR.size), "tmr.name")
    return Tmr(kind, flags, name)


@fits("tmr")
def write_tmr(tmr: Tmr) -> bytes:
    name = write_z("tmr.name", tmr.name)
    return _TMR.pack(_TMR.size + len(name), tmr.kind, tmr.flags) + name
