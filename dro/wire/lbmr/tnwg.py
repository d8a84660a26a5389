"""TNWG messages between DROs inside a TRD: interest, context information, resolution requests.

Source: wire notes LBMR section 8.4; ambiguities A3 (the dissector's cursor, not the format, is wrong for three or more
options), A8 (lengths), A9 (NUL of symbols), A18.

Guess: every length counts its own structure from its first byte; a body that does not fill its declared length
exactly is inconsistent.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Final, TypeAlias

from dro.errors import DecodeError
from dro.wire.cursor import Reader
from dro.wire.lbmr.tlv import NAME_MAX, Flags0, OptionTable, UnknownOption, fits, kind, strip_counted, write_counted

HEADER_SIZE: Final = 8  # packet header, length, function, reserved
INTEREST_OVERHEAD: Final = HEADER_SIZE + 4
"""Bytes of an interest message that are neither records nor packet options."""

_HEAD: Final = Struct("!HHH")
_INTEREST: Final = Struct("!HH")
_RECORD: Final = Struct("!HBBI")
_CONTEXT: Final = Struct("!HBBII")


class TnwgFunction(IntEnum):
    INTEREST = 0
    CONTEXT_INFO = 1
    TOPIC_RESOLUTION_REQUEST = 2


class InterestFlag(IntEnum):
    PATTERN = 0x80
    CANCEL = 0x40
    REFRESH = 0x20


@dataclass(frozen=True, slots=True)
class InterestRecord:
    """Interest of one TRD in one topic or pattern. `flags` are `InterestFlag` bits, `pattern_type` 0 for a topic."""

    domain_id: int
    symbol: bytes
    flags: int = 0
    pattern_type: int = 0

    @property
    def is_pattern(self) -> bool:
        return bool(self.flags & InterestFlag.PATTERN)

    @property
    def is_cancel(self) -> bool:
        return bool(self.flags & InterestFlag.CANCEL)


@dataclass(frozen=True, slots=True)
class TnwgInterest:
    """Interest of TRDs beyond the one in which the packet travels."""

    records: tuple[InterestRecord, ...]


@dataclass(frozen=True, slots=True)
class TnwgContextInstance(Flags0):
    instance: bytes


@dataclass(frozen=True, slots=True)
class TnwgAddress(Flags0):
    port: int
    reserved: int = field(default=0, kw_only=True)
    ip: int


@dataclass(frozen=True, slots=True)
class TnwgDomain(Flags0):
    domain_id: int


@dataclass(frozen=True, slots=True)
class TnwgName(Flags0):
    name: bytes


TnwgOption: TypeAlias = TnwgContextInstance | TnwgAddress | TnwgDomain | TnwgName | UnknownOption

TNWG_OPTIONS: Final = OptionTable[TnwgOption](
    "tnwg.option",
    (
        kind(0x00, TnwgContextInstance, "H8s"),
        kind(0x01, TnwgAddress, "HHHI"),
        kind(0x02, TnwgDomain, "HI"),
        kind(0x03, TnwgName, "H*"),
    ),
    UnknownOption,
)


class TnwgContextFlag(IntEnum):
    """Bits of `TnwgContextInfo.flags`; without QUERY it is a response."""

    QUERY = 0x80000000
    DRO_SOURCE = 0x40000000
    DRO_RECEIVER = 0x20000000
    PROXY = 0x10000000


@dataclass(frozen=True, slots=True)
class TnwgContextInfo:
    """Query for contexts, or what one says of itself. No bit of `flags2` is known."""

    hop_count: int
    flags: int
    flags2: int = 0
    options: tuple[TnwgOption, ...] = ()
    reserved: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class TnwgTopicResolutionRequest:
    """Asks the DRO that the options name to send its state again; unlike the plain request it has no flags."""

    options: tuple[TnwgOption, ...] = ()


TnwgBody: TypeAlias = TnwgInterest | TnwgContextInfo | TnwgTopicResolutionRequest


def read_tnwg(r: Reader) -> tuple[TnwgBody, DecodeError | None]:
    """A TNWG message after the packet header; with an error, the interest records before it.

    Raises: DecodeError when nothing can be used.
    """
    at = r.pos
    length, function, _ = r.unpack("tnwg", _HEAD)
    if length < HEADER_SIZE:
        raise DecodeError("tnwg.len", f"length {length}", at)
    body = r.sub("tnwg.len", length - HEADER_SIZE)
    match function:
        case TnwgFunction.INTEREST:
            return _read_interest(body)
        case TnwgFunction.CONTEXT_INFO:
            return _read_context_info(body), None
        case TnwgFunction.TOPIC_RESOLUTION_REQUEST:
            inner = _body(body, "tnwg.request", body.u16("tnwg.request"), 2)
            return TnwgTopicResolutionRequest(_read_options(inner)), None
    raise DecodeError("tnwg.function", f"function {function} is not known", at + 2)


def _body(r: Reader, where: str, length: int, header_size: int) -> Reader:
    """Return what is left of a body that declares `length`, once its header has been read."""
    if length < header_size:
        raise r.fail(where, f"length {length}")
    inner = r.sub(where, length - header_size)
    if r.left:
        raise r.fail(where, f"{r.left} bytes more than its length says")
    return inner


def _read_interest(body: Reader) -> tuple[TnwgInterest, DecodeError | None]:
    records: list[InterestRecord] = []
    trouble = None
    try:
        length, count = body.unpack("tnwg.interest", _INTEREST)
        inner = _body(body, "tnwg.interest", length, _INTEREST.size)
        for _ in range(count):
            records.append(_read_record(inner))  # noqa: PERF401 - what was read before an error is kept
        if inner.left:
            raise inner.fail("tnwg.interest", f"{inner.left} bytes behind the last record")
    except DecodeError as e:
        trouble = e
    return TnwgInterest(tuple(records)), trouble


def _read_record(r: Reader) -> InterestRecord:
    at = r.pos
    length, flags, pattern_type, domain_id = r.unpack("interest", _RECORD)
    if length < _RECORD.size:
        raise DecodeError("interest.len", f"length {length}", at)
    symbol = strip_counted(r.take("interest.symbol", length - _RECORD.size))
    if len(symbol) > NAME_MAX:
        raise DecodeError("interest.symbol", f"longer than {NAME_MAX} bytes", at)
    return InterestRecord(domain_id, symbol, flags, pattern_type)


def _read_context_info(body: Reader) -> TnwgContextInfo:
    length, hop_count, reserved, flags, flags2 = body.unpack("tnwg.context", _CONTEXT)
    inner = _body(body, "tnwg.context", length, _CONTEXT.size)
    return TnwgContextInfo(hop_count, flags, flags2, _read_options(inner), reserved=reserved)


def _read_options(r: Reader) -> tuple[TnwgOption, ...]:
    return TNWG_OPTIONS.read_all(r, spare=3)


@fits("interest")
def write_interest_record(record: InterestRecord) -> bytes:
    """Write a record. Raises: DecodeError for a symbol that is too long, or a value that does not fit."""
    if len(record.symbol) > NAME_MAX:
        raise DecodeError("interest.symbol", f"longer than {NAME_MAX} bytes")
    symbol = write_counted(record.symbol)
    return _RECORD.pack(_RECORD.size + len(symbol), record.flags, record.pattern_type, record.domain_id) + symbol


def write_interest_block(records: bytes, count: int) -> bytes:
    """A whole interest message after the packet header, around records already written."""
    length = _INTEREST.size + len(records)
    if HEADER_SIZE + length > 0xFFFF or count > 0xFFFF:
        raise DecodeError("tnwg.interest", f"{count} records in {length} bytes")
    return _HEAD.pack(HEADER_SIZE + length, TnwgFunction.INTEREST, 0) + _INTEREST.pack(length, count) + records


@fits("tnwg")
def write_tnwg(message: TnwgBody) -> bytes:
    """A TNWG message after the packet header. Raises: DecodeError for a value that does not fit."""
    if isinstance(message, TnwgInterest):
        return write_interest_block(b"".join(map(write_interest_record, message.records)), len(message.records))
    options = TNWG_OPTIONS.write_all(message.options)
    if isinstance(message, TnwgContextInfo):
        function = TnwgFunction.CONTEXT_INFO
        body = _CONTEXT.pack(
            _CONTEXT.size + len(options), message.hop_count, message.reserved, message.flags, message.flags2
        )
    else:
        function = TnwgFunction.TOPIC_RESOLUTION_REQUEST
        body = struct.pack("!H", 2 + len(options))
    return _HEAD.pack(HEADER_SIZE + len(body) + len(options), function, 0) + body + options
