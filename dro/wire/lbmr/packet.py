"""LBMR, topic resolution over UDP: one datagram to one `Packet` and back.

No state. Re-exports every record of the protocol; the modules beside this one hold them by subject. Called by the
resolver cores and the dissector. Source: wire notes LBMR; section 11 for the usable part of a bad packet.

    packet = decode(datagram)
    match packet.body:
        case Queries(tqrs, tirs): ...
"""

# ruff: noqa: F401  # what is imported and not used here is part of the protocol

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar, assert_never

from dro.errors import DecodeError
from dro.wire.cursor import Reader
from dro.wire.lbmr.extended import (
    ContextFlag,
    ContextInfo,
    ProxySourceElection,
    RemoteContextInfo,
    RemoteDomainRoute,
    RequestFlag,
    TopicResolutionRequest,
    read_context_info,
    read_election,
    read_remote_context_info,
    read_route,
    write_context_info,
    write_election,
    write_remote_context_info,
    write_route,
)
from dro.wire.lbmr.options import (
    FINAL_COST,
    Cost,
    DomainId,
    ExtendedFunctionality,
    LateJoin,
    LocalDomain,
    OtidOption,
    PacketOptions,
    QueueContextInstance,
    SenderType,
    SourceId,
    SourceType,
    StoreContextInstance,
    TirOption,
    TirOptions,
    Ulb,
    Ume,
    UmeStore,
    UmeStoreGroup,
    UmqQueueInfo,
    UmqRcrIndex,
    read_packet_options,
    standard_options,
    write_packet_options,
)
from dro.wire.lbmr.pack import (
    VERSION,
    ExtendedType,
    PacketType,
    pack_domain_routes,
    pack_interest,
    pack_tirs,
    pack_tmrs,
    pack_tqrs,
    pack_wildcard_tqrs,
    write_header,
    write_management,
)
from dro.wire.lbmr.queue_records import (
    QueueManagement,
    QueuePacket,
    QueueResolution,
    read_qir,
    read_qqr,
    read_queue_management,
    write_qir,
    write_queue_management,
)
from dro.wire.lbmr.records import (
    FIRST_TIR_TTL,
    TIR_TTL,
    PatternType,
    Tir,
    Tmr,
    TmrFlag,
    TmrType,
    WildcardTqr,
    read_tir,
    read_tmr,
    read_tqr,
    read_wildcard_tqr,
    write_tir,
    write_tmr,
    write_tqr,
    write_wildcard_tqr,
)
from dro.wire.lbmr.tlv import NAME_MAX, UnknownOption
from dro.wire.lbmr.tnwg import (
    InterestFlag,
    InterestRecord,
    TnwgContextInfo,
    TnwgInterest,
    TnwgTopicResolutionRequest,
    read_tnwg,
    write_tnwg,
)

HEADER_SIZE: Final = 4
OPTIONS_BIT: Final = 0x08


@dataclass(frozen=True, slots=True)
class Queries:
    """Type 0: topics looked for, and advertisements. Both empty: keepalive of a unicast resolver daemon."""

    tqrs: tuple[bytes, ...] = ()
    tirs: tuple[Tir, ...] = ()


@dataclass(frozen=True, slots=True)
class WildcardQueries:
    """Type 1: patterns looked for, and advertisements."""

    patterns: tuple[WildcardTqr, ...] = ()
    tirs: tuple[Tir, ...] = ()


@dataclass(frozen=True, slots=True)
class ReceiverAlive:
    """Type 2: keepalive of a context towards a unicast resolver daemon."""


@dataclass(frozen=True, slots=True)
class SourceAlive:
    """Type 3: the same from the source part of a context."""


@dataclass(frozen=True, slots=True)
class TopicManagement:
    """Type 4: use queries, use responses and leaves."""

    records: tuple[Tmr, ...]


Body: TypeAlias = (
    Queries
    | WildcardQueries
    | ReceiverAlive
    | SourceAlive
    | TopicManagement
    | QueueResolution
    | ProxySourceElection
    | QueueManagement
    | ContextInfo
    | TopicResolutionRequest
    | TnwgInterest
    | TnwgContextInfo
    | TnwgTopicResolutionRequest
    | RemoteDomainRoute
    | RemoteContextInfo
)


@dataclass(frozen=True, slots=True)
class Packet:
    """One datagram. `version` 0 or 1; 1 is sent always. `options` None: the packet says that it has none."""

    version: int
    options: PacketOptions | None
    body: Body


def decode(data: bytes) -> Packet:
    """Decode a packet; bytes between body and packet options are ignored. Raises: DecodeError, nothing else."""
    packet, trouble = decode_lenient(data)
    if trouble is not None:
        raise trouble
    assert packet is not None
    return packet


def decode_lenient(data: bytes) -> tuple[Packet | None, DecodeError | None]:
    """Return what can be used of a datagram, and what is wrong with it.

    Lists of records keep those before the error; no packet at all when the header, the packet options or a body that
    is not a list is bad. Never raises DecodeError.
    """
    try:
        return _decode(data)
    except DecodeError as e:
        return None, e


def _decode(data: bytes) -> tuple[Packet, DecodeError | None]:
    if len(data) < HEADER_SIZE:
        raise DecodeError("packet", f"{len(data)} bytes are no header", 0)
    first = data[0]
    version = first >> 4
    if version > VERSION:
        raise DecodeError("packet.version", f"version {version} is not known", 0)
    options = None
    end = len(data)
    if first & OPTIONS_BIT:
        options, end = read_packet_options(data, HEADER_SIZE)
    body, trouble = _read_body(data, end)
    return Packet(version, options, body), trouble


def _read_body(data: bytes, end: int) -> tuple[Body, DecodeError | None]:
    kind = data[0] & 0x07
    if kind == PacketType.EXTENDED:
        return _read_extended(data[1], Reader(data, 2, end))
    r = Reader(data, HEADER_SIZE, end)
    queries, answers = data[1], data[2] << 8 | data[3]
    tirs: tuple[Tir, ...]
    match kind:
        case PacketType.NORMAL:
            tqrs, tirs, trouble = _read_two(r, queries, read_tqr, answers, read_tir)
            return Queries(tqrs, tirs), trouble
        case PacketType.WILDCARD:
            patterns, tirs, trouble = _read_two(r, queries, read_wildcard_tqr, answers, read_tir)
            return WildcardQueries(patterns, tirs), trouble
        case PacketType.RECEIVER_ALIVE:
            return ReceiverAlive(), None
        case PacketType.SOURCE_ALIVE:
            return SourceAlive(), None
        case PacketType.TOPIC_MANAGEMENT:
            return _read_management(r)
        case PacketType.QUEUE_RESOLUTION:
            queues, records, trouble = _read_two(r, queries, read_qqr, answers, read_qir)
            return QueueResolution(queues, records), trouble
    raise DecodeError("packet.type", f"type {kind} is not known", 0)


A = TypeVar("A")
B = TypeVar("B")


def _read_list(r: Reader, count: int, read: Callable[[Reader], A]) -> tuple[tuple[A, ...], DecodeError | None]:
    """Read up to `count` records, to the first bad one. Each takes a byte at least, so `r` bounds the work."""
    records: list[A] = []
    try:
        for _ in range(count):
            records.append(read(r))  # noqa: PERF401 - what was read before an error is kept
    except DecodeError as e:
        return tuple(records), e
    return tuple(records), None


def _read_two(
    r: Reader, count_a: int, read_a: Callable[[Reader], A], count_b: int, read_b: Callable[[Reader], B]
) -> tuple[tuple[A, ...], tuple[B, ...], DecodeError | None]:
    first, trouble = _read_list(r, count_a, read_a)
    if trouble is not None:
        return first, (), trouble
    second, trouble = _read_list(r, count_b, read_b)
    return first, second, trouble


def _read_management(r: Reader) -> tuple[TopicManagement, DecodeError | None]:
    at = r.pos
    length = r.u16("tmb.len")
    count = r.u16("tmb.count")
    if length < 4 or length - 4 > r.left:
        raise DecodeError("tmb.len", f"length {length}, {r.left + 4} bytes there", at)
    inner = r.sub("tmb.len", length - 4)
    records, trouble = _read_list(inner, count, read_tmr)
    if trouble is None and inner.left:
        trouble = inner.fail("tmb.len", f"{inner.left} bytes behind the last record")
    return TopicManagement(records), trouble


def _read_extended(kind: int, r: Reader) -> tuple[Body, DecodeError | None]:
    match kind:
        case ExtendedType.PROXY_SOURCE_ELECTION:
            return read_election(r), None
        case ExtendedType.QUEUE_MANAGEMENT:
            return read_queue_management(r), None
        case ExtendedType.CONTEXT_INFO:
            return read_context_info(r), None
        case ExtendedType.TOPIC_RESOLUTION_REQUEST:
            return TopicResolutionRequest(r.u16("request.flags")), None
        case ExtendedType.TNWG:
            return read_tnwg(r)
        case ExtendedType.REMOTE_DOMAIN_ROUTE:
            return read_route(r), None
        case ExtendedType.REMOTE_CONTEXT_INFO:
            return read_remote_context_info(r), None
    raise DecodeError("packet.extended_type", f"type {kind} is not known", 1)


def encode(packet: Packet) -> bytes:
    """Encode a packet. Raises: DecodeError for a value that does not fit its field, nothing else."""
    options = None if packet.options is None else write_packet_options(packet.options)
    header, payload = _write_body(packet.body)
    if not 0 <= packet.version <= VERSION:
        raise DecodeError("packet.version", f"version {packet.version} is not known")
    first = packet.version << 4 | (OPTIONS_BIT if options is not None else 0) | header[0]
    return bytes((first,)) + header[1:] + payload + (options or b"")


def _write_body(body: Body) -> tuple[bytes, bytes]:
    """Write the header without version and options bit, and what follows it."""
    match body:
        case Queries(tqrs, tirs):
            payload = b"".join([*map(write_tqr, tqrs), *map(write_tir, tirs)])
            return write_header(PacketType.NORMAL, len(tqrs), len(tirs)), payload
        case WildcardQueries(patterns, tirs):
            payload = b"".join([*map(write_wildcard_tqr, patterns), *map(write_tir, tirs)])
            return write_header(PacketType.WILDCARD, len(patterns), len(tirs)), payload
        case ReceiverAlive():
            return write_header(PacketType.RECEIVER_ALIVE, 0, 0), b""
        case SourceAlive():
            return write_header(PacketType.SOURCE_ALIVE, 0, 0), b""
        case TopicManagement(records):
            block = write_management(b"".join(map(write_tmr, records)), len(records))
            return write_header(PacketType.TOPIC_MANAGEMENT, 0, 0), block
        case QueueResolution(queues, answers):
            payload = b"".join([*map(write_tqr, queues), *map(write_qir, answers)])
            return write_header(PacketType.QUEUE_RESOLUTION, len(queues), len(answers)), payload
        case ProxySourceElection():
            return _extended(ExtendedType.PROXY_SOURCE_ELECTION), write_election(body)
        case QueueManagement():
            return _extended(ExtendedType.QUEUE_MANAGEMENT), write_queue_management(body)
        case ContextInfo():
            return _extended(ExtendedType.CONTEXT_INFO), write_context_info(body)
        case TopicResolutionRequest(flags):
            if not 0 <= flags <= 0xFFFF:
                raise DecodeError("request.flags", f"{flags} does not fit")
            return _extended(ExtendedType.TOPIC_RESOLUTION_REQUEST), flags.to_bytes(2, "big")
        case TnwgInterest() | TnwgContextInfo() | TnwgTopicResolutionRequest():
            return _extended(ExtendedType.TNWG), write_tnwg(body)
        case RemoteDomainRoute():
            return _extended(ExtendedType.REMOTE_DOMAIN_ROUTE), write_route(body)
        case RemoteContextInfo():
            return _extended(ExtendedType.REMOTE_CONTEXT_INFO), write_remote_context_info(body)
    assert_never(body)


def _extended(kind: ExtendedType) -> bytes:
    return bytes((PacketType.EXTENDED, kind))
