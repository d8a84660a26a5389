"""Extended LBMR packets about contexts, requests and routes (TNWG and queue management have modules of their own).

Source: wire notes LBMR sections 8.1, 8.2, 8.3, 8.5 and 8.6; ambiguities A8, A12, A17, A19, A20, A21.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from struct import Struct
from typing import Final, TypeAlias

from dro.errors import DecodeError
from dro.wire.cursor import Reader
from dro.wire.lbmr.tlv import Flags0, OptionTable, fits, kind, strip_counted, write_counted

HEADER_SIZE: Final = 2  # of an extended packet: version and type, extended type


# proxy source election (0x01)


@dataclass(frozen=True, slots=True)
class ElectionOption:
    """`code` 0: instance of the source context, 1: of the store context; others are kept. `body`: 8 bytes for both."""

    code: int
    body: bytes


@dataclass(frozen=True, slots=True)
class ElectionOptions:
    """Option block of an election. No value of `code` but 0 is known (A12)."""

    items: tuple[ElectionOption, ...]
    code: int = 0


@dataclass(frozen=True, slots=True)
class ProxySourceElection:
    """Election (`kind` 0) or re-election (1) of a proxy source by old persistent stores."""

    kind: int
    source_ip: int
    store_ip: int
    transport_index: int
    topic_index: int
    source_port: int
    store_port: int
    topic: bytes
    flags: int = 0
    options: ElectionOptions | None = None


_ELECTION: Final = Struct("!HHHIIIIHH")
_ELECTION_SIZE: Final = HEADER_SIZE + _ELECTION.size
_ELECTION_OPTIONS: Final = Struct("!HH")
_HAS_OPTIONS: Final = 0x8000


def read_election(r: Reader) -> ProxySourceElection:
    """Read an election after the packet header. Raises: DecodeError."""
    at = r.pos
    kind_, length, flags, source_ip, store_ip, transport, topic, source_port, store_port = r.unpack("pser", _ELECTION)
    if length < _ELECTION_SIZE:
        raise DecodeError("pser.len", f"length {length}", at + 2)
    name = strip_counted(r.take("pser.topic", length - _ELECTION_SIZE))
    options = _read_election_options(r) if flags & _HAS_OPTIONS else None
    return ProxySourceElection(
        kind_, source_ip, store_ip, transport, topic, source_port, store_port, name, flags, options
    )


def _read_election_options(r: Reader) -> ElectionOptions:
    at = r.pos
    code, total = r.unpack("pser.options", _ELECTION_OPTIONS)
    if total < _ELECTION_OPTIONS.size:
        raise DecodeError("pser.options", f"total length {total}", at)
    block = r.sub("pser.options", total - _ELECTION_OPTIONS.size)
    items = []
    while block.left:
        length = block.u8("pser.option")
        if length < 2:
            raise block.fail("pser.option", f"length {length}")
        item = ElectionOption(block.u8("pser.option"), block.take("pser.option", length - 2))
        if item.code <= 1 and len(item.body) != 8:
            raise block.fail("pser.option", f"{len(item.body)} bytes of context instance")
        items.append(item)
    return ElectionOptions(tuple(items), code)


@fits("pser")
def write_election(message: ProxySourceElection) -> bytes:
    """Write what follows the packet header; the options bit of `flags` follows `options`. Raises: DecodeError."""
    name = write_counted(message.topic)
    options = message.options
    flags = message.flags & ~_HAS_OPTIONS | (_HAS_OPTIONS if options is not None else 0)
    raw = _ELECTION.pack(
        message.kind,
        _ELECTION_SIZE + len(name),
        flags,
        message.source_ip,
        message.store_ip,
        message.transport_index,
        message.topic_index,
        message.source_port,
        message.store_port,
    )
    if options is None:
        return raw + name
    block = b"".join([struct.pack("!BB", 2 + len(item.body), item.code) + item.body for item in options.items])
    return raw + name + _ELECTION_OPTIONS.pack(options.code, _ELECTION_OPTIONS.size + len(block)) + block


# context information (0x03)


class ContextFlag(IntEnum):
    """Bits of `ContextInfo.flags`; without QUERY it is a response or an advertisement."""

    QUERY = 0x8000
    ADDRESS = 0x4000
    INSTANCE = 0x2000
    DRO_SOURCE = 0x1000
    DRO_RECEIVER = 0x0800
    PROXY = 0x0400
    NAME = 0x0001


@dataclass(frozen=True, slots=True)
class ContextInfo:
    """A context that is looked for or that answers. The NAME bit of `flags` follows `name` when writing.

    Address, port and instance are on the wire always; ADDRESS and INSTANCE say whether they mean anything.
    """

    hop_count: int
    flags: int
    port: int = 0
    address: int = 0
    instance: bytes = bytes(8)
    name: bytes | None = None


_CONTEXT: Final = Struct("!BBHHI8s")
_CONTEXT_SIZE: Final = HEADER_SIZE + _CONTEXT.size


def read_context_info(r: Reader) -> ContextInfo:
    """Read context information after the packet header. Raises: DecodeError."""
    at = r.pos
    length, hop_count, flags, port, address, instance = r.unpack("ctxinfo", _CONTEXT)
    if length < _CONTEXT_SIZE:
        raise DecodeError("ctxinfo.len", f"length {length}", at)
    rest = r.take("ctxinfo.name", length - _CONTEXT_SIZE)
    name = strip_counted(rest) if flags & ContextFlag.NAME else None
    return ContextInfo(hop_count, flags, port, address, instance, name)


@fits("ctxinfo")
def write_context_info(message: ContextInfo) -> bytes:
    """Write what follows the packet header. Raises: DecodeError, for a name of more than 234 bytes among others."""
    name = b"" if message.name is None else write_counted(message.name)
    flags = message.flags & ~ContextFlag.NAME | (ContextFlag.NAME if message.name is not None else 0)
    if len(message.instance) != 8:
        raise DecodeError("ctxinfo.instance", f"{len(message.instance)} bytes instead of 8")
    fixed = _CONTEXT.pack(
        _CONTEXT_SIZE + len(name), message.hop_count, flags, message.port, message.address, message.instance
    )
    return fixed + name


# topic resolution request (0x04)


class RequestFlag(IntEnum):
    """What `TopicResolutionRequest.flags` asks for."""

    WILDCARD_QUERY = 0x0001
    QUERY = 0x0002
    ADVERTISEMENT = 0x0004
    DRO_META = 0x0008
    CONTEXT_ADVERTISEMENT = 0x0010
    CONTEXT_QUERY = 0x0020
    DRO_REMOTE_INTEREST = 0x0040


@dataclass(frozen=True, slots=True)
class TopicResolutionRequest:
    """Asks everybody in the TRD to speak at once; `flags` are `RequestFlag` bits."""

    flags: int


# remote domain route (0x06)


@dataclass(frozen=True, slots=True)
class RemoteDomainRoute:
    """Unicast traffic for `domains` goes to `address`:`port`, a DRO portal.

    `route_index`: Guess: the index of a hotlink in the word the dissector calls reserved (A17); 0 is sent.
    """

    address: int
    port: int
    route_index: int
    domains: tuple[int, ...]


_ROUTE: Final = Struct("!HIHHI")
ROUTE_SIZE: Final = HEADER_SIZE + _ROUTE.size


def read_route(r: Reader) -> RemoteDomainRoute:
    """Read a route after the packet header. Raises: DecodeError on domain 0 or a wrong length.

    Guess: the length counts the packet from its first byte, without packet options (A8).
    """
    at = r.pos
    count, address, port, route_index, length = r.unpack("route", _ROUTE)
    if length != ROUTE_SIZE + 4 * count:
        raise DecodeError("route.length", f"length {length} for {count} domains", at + 10)
    r.need("route.domains", 4 * count)
    domains: tuple[int, ...] = struct.unpack(f"!{count}I", r.take("route.domains", 4 * count))
    if 0 in domains:
        raise DecodeError("route.domains", "domain 0", at + _ROUTE.size + 4 * domains.index(0))
    return RemoteDomainRoute(address, port, route_index, domains)


@fits("route")
def write_route(route: RemoteDomainRoute) -> bytes:
    """Write what follows the packet header. Raises: DecodeError."""
    count = len(route.domains)
    if 0 in route.domains:
        raise DecodeError("route.domains", "domain 0")
    fixed = _ROUTE.pack(count, route.address, route.port, route.route_index, ROUTE_SIZE + 4 * count)
    return fixed + struct.pack(f"!{count}I", *route.domains)


# remote context information (0x07)


@dataclass(frozen=True, slots=True)
class RemoteAddress(Flags0):
    """Where the context is: TRD and address there."""

    domain_id: int
    ip: int
    port: int
    reserved: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class RemoteInstance(Flags0):
    instance: bytes


@dataclass(frozen=True, slots=True)
class RemoteOriginatingDomain(Flags0):
    domain_id: int


@dataclass(frozen=True, slots=True)
class RemoteName(Flags0):
    name: bytes


RemoteContextOption: TypeAlias = RemoteAddress | RemoteInstance | RemoteOriginatingDomain | RemoteName

REMOTE_CONTEXT_OPTIONS: Final = OptionTable[RemoteContextOption](
    "rctxinfo.option",
    (
        kind(0x01, RemoteAddress, "HIIHH"),
        kind(0x02, RemoteInstance, "H8s"),
        kind(0x03, RemoteOriginatingDomain, "HI"),
        kind(0x04, RemoteName, "H*"),
    ),
    unknown=None,
)


@dataclass(frozen=True, slots=True)
class RemoteContextRecord:
    """One query (flag 0x8000) or response."""

    options: tuple[RemoteContextOption, ...]
    flags: int = 0


@dataclass(frozen=True, slots=True)
class RemoteContextInfo:
    """Resolution of context names across TRDs. `reserved` may be flags (A20); 0 is sent."""

    records: tuple[RemoteContextRecord, ...]
    reserved: int = 0


_REMOTE: Final = Struct("!HHH")
_REMOTE_SIZE: Final = HEADER_SIZE + _REMOTE.size
_REMOTE_RECORD: Final = Struct("!HH")


def read_remote_context_info(r: Reader) -> RemoteContextInfo:
    """Read what follows the packet header. Raises: DecodeError on any bad length or option: nothing of it is used then.

    Guess: the length counts the packet from its first byte, without packet options (A8).
    """
    at = r.pos
    length, count, reserved = r.unpack("rctxinfo", _REMOTE)
    if length < _REMOTE_SIZE:
        raise DecodeError("rctxinfo.len", f"length {length}", at)
    block = r.sub("rctxinfo.len", length - _REMOTE_SIZE)
    records = []
    for _ in range(count):
        size, flags = block.unpack("rctxinfo.record", _REMOTE_RECORD)
        if size < _REMOTE_RECORD.size:
            raise block.fail("rctxinfo.record", f"length {size}")
        options = REMOTE_CONTEXT_OPTIONS.read_all(block.sub("rctxinfo.record", size - _REMOTE_RECORD.size))
        records.append(RemoteContextRecord(options, flags))
    if block.left:
        raise block.fail("rctxinfo.len", f"{block.left} bytes behind the last record")
    return RemoteContextInfo(tuple(records), reserved)


@fits("rctxinfo")
def write_remote_context_info(message: RemoteContextInfo) -> bytes:
    """Write what follows the packet header. Raises: DecodeError."""
    parts = []
    for record in message.records:
        options = REMOTE_CONTEXT_OPTIONS.write_all(record.options)
        parts.append(_REMOTE_RECORD.pack(_REMOTE_RECORD.size + len(options), record.flags) + options)
    block = b"".join(parts)
    return _REMOTE.pack(_REMOTE_SIZE + len(block), len(message.records), message.reserved) + block
