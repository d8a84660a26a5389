"""Packing records into datagrams: as many as fit, every datagram with its own header and all packet options.

Each function takes records in sending order and returns the datagrams in that order. A record that exceeds a datagram
of its own is sent alone nevertheless: the limit of the receiver may be larger. Source: wire notes LBMR sections 1
(datagram size) and 3; real capture section 2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from struct import Struct, error
from typing import Final

from dro.errors import DecodeError
from dro.wire.lbmr.extended import ROUTE_SIZE, RemoteDomainRoute, write_route
from dro.wire.lbmr.options import PacketOptions, write_packet_options
from dro.wire.lbmr.records import Tir, Tmr, WildcardTqr, write_tir, write_tmr, write_tqr, write_wildcard_tqr
from dro.wire.lbmr.tnwg import INTEREST_OVERHEAD, InterestRecord, write_interest_block, write_interest_record

VERSION: Final = 1
"""The version nibble of everything we send (A1)."""

DATAGRAM_MAX_BYTES: Final = 65507
"""What UDP over IPv4 can carry; a larger `max_size` changes nothing."""

_HEADER: Final = Struct("!BBH")
_HEADER_SIZE: Final = 4
_MANAGEMENT: Final = Struct("!HH")
_WITH_OPTIONS: Final = VERSION << 4 | 0x08


class PacketType(IntEnum):
    NORMAL = 0
    WILDCARD = 1
    RECEIVER_ALIVE = 2
    SOURCE_ALIVE = 3
    TOPIC_MANAGEMENT = 4
    QUEUE_RESOLUTION = 6
    EXTENDED = 7


class ExtendedType(IntEnum):
    PROXY_SOURCE_ELECTION = 1
    QUEUE_MANAGEMENT = 2
    CONTEXT_INFO = 3
    TOPIC_RESOLUTION_REQUEST = 4
    TNWG = 5
    REMOTE_DOMAIN_ROUTE = 6
    REMOTE_CONTEXT_INFO = 7


def write_header(first: int, queries: int, answers: int) -> bytes:
    """The 4 bytes in front of types 0 to 6. Raises: DecodeError for counts that do not fit."""
    try:
        return _HEADER.pack(first, queries, answers)
    except error as e:
        raise DecodeError("packet", f"{queries} queries and {answers} answers in one packet") from e


def write_management(records: bytes, count: int) -> bytes:
    """A topic management block around records already written. Raises: DecodeError when it is too long."""
    try:
        return _MANAGEMENT.pack(_MANAGEMENT.size + len(records), count) + records
    except error as e:
        raise DecodeError("tmb", f"{count} records in {len(records)} bytes") from e


def _groups(records: Iterable[bytes], room: int, count_max: int) -> Iterator[list[bytes]]:
    """Yield runs of records, in order, of `room` bytes and `count_max` members at most; a larger record is alone."""
    group: list[bytes] = []
    size = 0
    for record in records:
        if group and (size + len(record) > room or len(group) == count_max):
            yield group
            group, size = [], 0
        group.append(record)
        size += len(record)
    if group:
        yield group


def _pack(
    records: Iterable[bytes],
    options: PacketOptions,
    max_size: int,
    overhead: int,
    count_max: int,
    frame: Callable[[list[bytes]], bytes],
) -> list[bytes]:
    """Write datagrams of `frame(group)` and the options; `frame` adds `overhead` bytes to the records."""
    tail = write_packet_options(options)
    room = min(max_size, DATAGRAM_MAX_BYTES) - overhead - len(tail)
    return [frame(group) + tail for group in _groups(records, room, count_max)]


def pack_tqrs(topics: Iterable[bytes], options: PacketOptions, max_size: int) -> list[bytes]:
    """Type 0 datagrams of queries. Raises: DecodeError for a topic that cannot be a name."""

    def frame(group: list[bytes]) -> bytes:
        return write_header(_WITH_OPTIONS | PacketType.NORMAL, len(group), 0) + b"".join(group)

    return _pack(map(write_tqr, topics), options, max_size, _HEADER_SIZE, 0xFF, frame)


def pack_wildcard_tqrs(patterns: Iterable[WildcardTqr], options: PacketOptions, max_size: int) -> list[bytes]:
    """Type 1 datagrams of wildcard queries. Raises: DecodeError."""

    def frame(group: list[bytes]) -> bytes:
        return write_header(_WITH_OPTIONS | PacketType.WILDCARD, len(group), 0) + b"".join(group)

    return _pack(map(write_wildcard_tqr, patterns), options, max_size, _HEADER_SIZE, 0xFF, frame)


def pack_tirs(tirs: Iterable[Tir | bytes], options: PacketOptions, max_size: int) -> list[bytes]:
    """Type 0 datagrams of advertisements, which may be written already. Raises: DecodeError."""

    def frame(group: list[bytes]) -> bytes:
        return write_header(_WITH_OPTIONS | PacketType.NORMAL, 0, len(group)) + b"".join(group)

    written = (tir if isinstance(tir, bytes) else write_tir(tir) for tir in tirs)
    return _pack(written, options, max_size, _HEADER_SIZE, 0xFFFF, frame)


def pack_tmrs(tmrs: Iterable[Tmr], options: PacketOptions, max_size: int) -> list[bytes]:
    """Type 4 datagrams of use queries, use responses and leaves. Raises: DecodeError."""

    def frame(group: list[bytes]) -> bytes:
        block = write_management(b"".join(group), len(group))
        return write_header(_WITH_OPTIONS | PacketType.TOPIC_MANAGEMENT, 0, 0) + block

    return _pack(map(write_tmr, tmrs), options, max_size, _HEADER_SIZE + _MANAGEMENT.size, 0xFFFF, frame)


def pack_interest(records: Iterable[InterestRecord], options: PacketOptions, max_size: int) -> list[bytes]:
    """TNWG interest datagrams. Raises: DecodeError."""

    def frame(group: list[bytes]) -> bytes:
        first = bytes((_WITH_OPTIONS | PacketType.EXTENDED, ExtendedType.TNWG))
        return first + write_interest_block(b"".join(group), len(group))

    return _pack(map(write_interest_record, records), options, max_size, INTEREST_OVERHEAD, 0xFFFF, frame)


def pack_domain_routes(
    address: int, port: int, route_index: int, domains: Iterable[int], options: PacketOptions, max_size: int
) -> list[bytes]:
    """Remote domain route datagrams, the domains in the order given; none for no domains. Raises: DecodeError."""
    first = bytes((_WITH_OPTIONS | PacketType.EXTENDED, ExtendedType.REMOTE_DOMAIN_ROUTE))

    def frame(group: list[bytes]) -> bytes:
        ids = tuple(int.from_bytes(raw, "big") for raw in group)
        return first + write_route(RemoteDomainRoute(address, port, route_index, ids))

    raw = (domain.to_bytes(4, "big") for domain in domains)
    return _pack(raw, options, max_size, ROUTE_SIZE, 0xFFFF, frame)
