"""LBMC blocks that DROs exchange: capabilities, route information, interest, sources, context information.

Used on peer links; route information and interest also cross a TRD. Domain ids and addresses are 32-bit integers,
node ids and pattern indexes have 64 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import ClassVar, Final, Self

from dro.errors import DecodeError, LocalProtocolError
from dro.wire.lbmc_block import HEAD_SIZE, IGNORE8, IGNORE16, LOW15, Block, FixedBlock, TextBlock, too_short
from dro.wire.lbmc_codes import BLOCK_MAX, BlockType
from dro.wire.packing import pack

CAPABILITY1_UME: Final = 0x80000000
CAPABILITY1_UMQ: Final = 0x40000000
CAPABILITY3_PCRE: Final = 0x80000000
CAPABILITY3_REGEX: Final = 0x40000000

KA_QUERY: Final = 0x4000
KA_RESPONSE: Final = 0x2000

INTEREST_CANCEL: Final = 0x4000
INTEREST_REFRESH: Final = 0x2000
PATTERN_CANCEL: Final = 0x40
PATTERN_REFRESH: Final = 0x20
PATTERN_PCRE: Final = 1
PATTERN_REGEX: Final = 2

SOURCE_EOS: Final = 0x4000
DOMAIN_ACTIVE: Final = 0x4000

EXFUNC_LATE_JOIN: Final = 0x1
EXFUNC_UME: Final = 0x2
EXFUNC_UMQ: Final = 0x4
EXFUNC_ULB: Final = 0x8

CTXINFO_QUERY: Final = 0x4000
CTXINFO_ADDRESS: Final = 0x2000
CTXINFO_CTXINST: Final = 0x1000
CTXINFO_NAME: Final = 0x0800
CTXINFO_DRO_SOURCE: Final = 0x0400
CTXINFO_DRO_RECEIVER: Final = 0x0200
CTXINFO_PROXY: Final = 0x0100


@dataclass(frozen=True, slots=True)
class TnwgCapabilities(FixedBlock):
    """What a DRO can do: `CAPABILITY1_*` and `CAPABILITY3_*`; the other two words have no known bits."""

    CODE: ClassVar[int] = BlockType.TNWG_CAPABILITIES
    LAYOUT: ClassVar[Struct] = Struct("!HIIII")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "capabilities1", "capabilities2", "capabilities3", "capabilities4")

    version: int  # protocol version, 15 bits; shares its word with the ignore bit
    capabilities1: int = 0
    capabilities2: int = 0
    capabilities3: int = 0
    capabilities4: int = 0

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        known = HEAD_SIZE + cls.LAYOUT.size
        if size < known:
            raise too_short("tnwg_capabilities", pos, size, known)
        word, *capabilities = cls.LAYOUT.unpack_from(data, pos + HEAD_SIZE)
        return cls(word & LOW15, *capabilities, flags=word & IGNORE16, growth=data[pos + known : pos + size])

    def body(self) -> bytes:
        words = (self.capabilities1, self.capabilities2, self.capabilities3, self.capabilities4)
        return pack(self.LAYOUT, self.version | self.flags, *words) + self.growth


@dataclass(frozen=True, slots=True)
class RouteInfo(FixedBlock):
    """Route information of one DRO; its neighbours follow, one `RouteInfoNeighbor` each."""

    CODE: ClassVar[int] = BlockType.ROUTE_INFO
    LAYOUT: ClassVar[Struct] = Struct("!HIIQIHHBBH")
    WIRE: ClassVar[tuple[str, ...]] = (
        "flags",
        "gateway_version",
        "configuration_signature",
        "node_id",
        "topology",
        "version",
        "sqn",
        "ttl",
        "reserved1",
        "reserved2",
    )

    node_id: int
    version: int  # 16 bits; grows each time a link of that DRO changes state
    sqn: int  # 16 bits; counts the messages (inferred)
    ttl: int  # DROs that the message may still pass
    topology: int = 0  # topology signature
    configuration_signature: int = 0
    gateway_version: int = 0
    reserved1: int = field(default=0, kw_only=True)
    reserved2: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class RouteInfoNeighbor(FixedBlock):
    """One neighbour of the DRO that the message describes: a domain id, or the node id of another DRO."""

    CODE: ClassVar[int] = BlockType.ROUTE_INFO_NEIGHBOR
    LAYOUT: ClassVar[Struct] = Struct("!HQII")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "node_id", "ingress_cost", "egress_cost")

    node_id: int
    ingress_cost: int  # from that node to the DRO described
    egress_cost: int  # from the DRO described to that node (inferred)


@dataclass(frozen=True, slots=True)
class GatewayName(TextBlock):
    """The name of a DRO; leave the block out when it has none."""

    CODE: ClassVar[int] = BlockType.GATEWAY_NAME

    name: bytes

    @classmethod
    def text_field(cls) -> str:
        return "name"


@dataclass(frozen=True, slots=True)
class TnwgKeepalive(FixedBlock):
    """Keepalive of a peer link: `KA_QUERY`, or `KA_RESPONSE` with index and clock of the query (inferred)."""

    CODE: ClassVar[int] = BlockType.TNWG_KA
    LAYOUT: ClassVar[Struct] = Struct("!HIQI44s")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "index", "seconds", "microseconds", "reserved")

    index: int
    seconds: int  # the asker's clock
    microseconds: int
    reserved: bytes = field(default=bytes(44), kw_only=True)


_DOMAIN: Final = Struct("!I")


def _read_domains(name: str, data: bytes, pos: int, count: int, end: int) -> tuple[int, ...]:
    if count * _DOMAIN.size > end - pos:
        raise DecodeError(f"lbmc.{name}", f"{count} domains, room for {(end - pos) // _DOMAIN.size}", pos)
    return tuple(domain for (domain,) in _DOMAIN.iter_unpack(data[pos : pos + count * _DOMAIN.size]))


def _write_domains(name: str, domains: tuple[int, ...], limit: int) -> bytes:
    if len(domains) > limit:
        raise LocalProtocolError(f"{name}: {len(domains)} domains, at most {limit} fit")
    return b"".join(pack(_DOMAIN, domain) for domain in domains)


_TOPIC_MD: Final = Struct("!HHH")
TOPIC_INTEREST_DOMAINS_MAX: Final = (BLOCK_MAX - HEAD_SIZE - _TOPIC_MD.size) // _DOMAIN.size


@dataclass(frozen=True, slots=True)
class TopicMdInterest(Block):
    """Domains that want the topic named in the same message; `INTEREST_CANCEL`, `INTEREST_REFRESH` in `flags`."""

    CODE: ClassVar[int] = BlockType.TOPIC_MD_INTEREST

    domains: tuple[int, ...]
    reserved: int = field(default=0, kw_only=True)

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        at = pos + HEAD_SIZE + _TOPIC_MD.size
        if at > pos + size:
            raise too_short("topic_md_interest", pos, size, at - pos)
        flags, count, reserved = _TOPIC_MD.unpack_from(data, pos + HEAD_SIZE)
        domains = _read_domains("topic_md_interest", data, at, count, pos + size)
        return cls(domains, reserved=reserved, flags=flags, growth=data[at + count * _DOMAIN.size : pos + size])

    def body(self) -> bytes:
        domains = _write_domains("TOPIC_MD_INTEREST", self.domains, TOPIC_INTEREST_DOMAINS_MAX)
        return pack(_TOPIC_MD, self.flags, len(self.domains), self.reserved) + domains + self.growth


_PATTERN_MD: Final = Struct("!BBHHq")
PATTERN_INTEREST_DOMAINS_MAX: Final = (BLOCK_MAX - HEAD_SIZE - _PATTERN_MD.size) // _DOMAIN.size


@dataclass(frozen=True, slots=True)
class PatternMdInterest(Block):
    """Domains that want what matches the pattern named in the same message; `PATTERN_*` flags, 8 bits."""

    CODE: ClassVar[int] = BlockType.PATTERN_MD_INTEREST
    IGNORE: ClassVar[int] = IGNORE8

    pattern_type: int  # PATTERN_PCRE or PATTERN_REGEX
    index: int  # the sender's number for the pattern, signed 64 bits
    domains: tuple[int, ...]
    reserved: int = field(default=0, kw_only=True)

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        at = pos + HEAD_SIZE + _PATTERN_MD.size
        if at > pos + size:
            raise too_short("pattern_md_interest", pos, size, at - pos)
        flags, kind, count, reserved, index = _PATTERN_MD.unpack_from(data, pos + HEAD_SIZE)
        domains = _read_domains("pattern_md_interest", data, at, count, pos + size)
        growth = data[at + count * _DOMAIN.size : pos + size]
        return cls(kind, index, domains, reserved=reserved, flags=flags, growth=growth)

    def body(self) -> bytes:
        domains = _write_domains("PATTERN_MD_INTEREST", self.domains, PATTERN_INTEREST_DOMAINS_MAX)
        head = pack(_PATTERN_MD, self.flags, self.pattern_type, len(self.domains), self.reserved, self.index)
        return head + domains + self.growth


@dataclass(frozen=True, slots=True)
class TopicSource(FixedBlock):
    """A source of the topic named in the same message, in `domain_id`; `SOURCE_EOS` says that it has gone."""

    CODE: ClassVar[int] = BlockType.TOPIC_SOURCE
    LAYOUT: ClassVar[Struct] = Struct("!HI")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "domain_id")

    domain_id: int


@dataclass(frozen=True, slots=True)
class TopicSourceExfunc(FixedBlock):
    """Request address and abilities (`EXFUNC_*`) of that source."""

    CODE: ClassVar[int] = BlockType.TOPIC_SOURCE_EXFUNC
    LAYOUT: ClassVar[Struct] = Struct("!HIHHI")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "ip", "port", "unused", "functionality")

    ip: int
    port: int
    functionality: int
    unused: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class PatIdx(FixedBlock):
    """The pattern through which a source was found; unsigned here, signed in the interest blocks."""

    CODE: ClassVar[int] = BlockType.PATIDX
    LAYOUT: ClassVar[Struct] = Struct("!HQ")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "pattern_index")

    pattern_index: int


@dataclass(frozen=True, slots=True)
class Domain(FixedBlock):
    """A domain and, by `DOMAIN_ACTIVE`, whether it is active."""

    CODE: ClassVar[int] = BlockType.DOMAIN
    LAYOUT: ClassVar[Struct] = Struct("!HI")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "domain_id")

    domain_id: int


_CTXINFO: Final = Struct("!HBBHII8s")


@dataclass(frozen=True, slots=True)
class CtxInfo(Block):
    """Where a context is, or with `CTXINFO_QUERY` a question for it; `flags` says which fields count."""

    CODE: ClassVar[int] = BlockType.CTXINFO

    ip: int = 0
    port: int = 0
    domain_id: int = 0
    ctxinst: bytes = bytes(8)
    hop_count: int = 0  # DROs passed
    name: bytes = b""  # only with CTXINFO_NAME, and then not empty
    reserved: int = field(default=0, kw_only=True)

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        at, end = pos + HEAD_SIZE + _CTXINFO.size, pos + size
        if at > end:
            raise too_short("ctxinfo", pos, size, at - pos)
        flags, reserved, hops, port, ip, domain_id, ctxinst = _CTXINFO.unpack_from(data, pos + HEAD_SIZE)
        rest = data[at:end]
        if flags & CTXINFO_NAME and not rest:
            raise too_short("ctxinfo", pos, size, at - pos + 1)
        name = rest.rstrip(b"\0") if flags & CTXINFO_NAME else b""
        growth = rest[len(name) :]
        return cls(ip, port, domain_id, ctxinst, hops, name, reserved=reserved, flags=flags, growth=growth)

    def body(self) -> bytes:
        has_name = bool(self.name) or (bool(self.growth) and bool(self.flags & CTXINFO_NAME))
        if has_name != bool(self.flags & CTXINFO_NAME):
            raise LocalProtocolError(f"CTXINFO: name {self.name!r} with flags {self.flags:#06x}")
        fixed = (self.flags, self.reserved, self.hop_count, self.port, self.ip, self.domain_id, self.ctxinst)
        return pack(_CTXINFO, *fixed) + self.name + self.growth


DRO_BLOCKS: Final[tuple[type[Block], ...]] = (
    TnwgCapabilities,
    RouteInfo,
    RouteInfoNeighbor,
    GatewayName,
    TnwgKeepalive,
    TopicMdInterest,
    PatternMdInterest,
    TopicSource,
    TopicSourceExfunc,
    PatIdx,
    Domain,
    CtxInfo,
)
