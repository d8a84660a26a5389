"""LBMC blocks that DROs exchange: capabilities, route information, interest, sources, context information.

Used on peer links; route information and interest also cross a TRD. Domain ids and addresses are 32-bit integers,
node ids and pattern indexes have 64 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import Any, Final, Self

from dro.errors import DecodeError, LocalProtocolError
from dro.wire.cursor import pack
from dro.wire.lbmc.block import HEAD_SIZE, Block, FixedBlock, TextBlock, block
from dro.wire.lbmc.codes import BLOCK_MAX, BlockType

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


@block(BlockType.TNWG_CAPABILITIES, "HIIII", shared="version")
class TnwgCapabilities(FixedBlock):
    """What a DRO can do: `CAPABILITY1_*` and `CAPABILITY3_*`; the other two words have no known bits."""

    version: int  # protocol version, 15 bits; shares its word with the ignore bit
    capabilities1: int = 0
    capabilities2: int = 0
    capabilities3: int = 0
    capabilities4: int = 0


@block(
    BlockType.ROUTE_INFO, "HIIQIHHBBH",
    "gateway_version configuration_signature node_id topology version sqn ttl reserved1 reserved2",
)  # fmt: skip
class RouteInfo(FixedBlock):
    """Route information of one DRO; its neighbours follow, one `RouteInfoNeighbor` each."""

    node_id: int
    version: int  # 16 bits; grows each time a link of that DRO changes state
    sqn: int  # 16 bits; counts the messages (inferred)
    ttl: int  # DROs that the message may still pass
    topology: int = 0  # topology signature
    configuration_signature: int = 0
    gateway_version: int = 0
    reserved1: int = field(default=0, kw_only=True)
    reserved2: int = field(default=0, kw_only=True)


@block(BlockType.ROUTE_INFO_NEIGHBOR, "HQII")
class RouteInfoNeighbor(FixedBlock):
    """One neighbour of the DRO that the message describes: a domain id, or the node id of another DRO."""

    node_id: int
    ingress_cost: int  # from that node to the DRO described
    egress_cost: int  # from the DRO described to that node (inferred)


@block(BlockType.GATEWAY_NAME)
class GatewayName(TextBlock):
    """The name of a DRO; leave the block out when it has none."""

    name: bytes


@block(BlockType.TNWG_KA, "HIQI44s")
class TnwgKeepalive(FixedBlock):
    """Keepalive of a peer link: `KA_QUERY`, or `KA_RESPONSE` with index and clock of the query (inferred)."""

    index: int
    seconds: int  # the asker's clock
    microseconds: int
    reserved: bytes = field(default=bytes(44), kw_only=True)


_DOMAIN: Final = Struct("!I")


@dataclass(frozen=True, slots=True)
class _Domains(Block):
    """A layout with the number of domains in `count`, and the domains behind it."""

    domains: tuple[int, ...]

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        values: dict[str, Any] = dict(zip(cls.WIRE, cls.unpack(data, pos, size), strict=True))
        at, end = pos + HEAD_SIZE + cls.LAYOUT.size, pos + size
        count = values.pop("count")
        behind = at + count * _DOMAIN.size
        if behind > end:
            what = f"{count} domains, room for {(end - at) // _DOMAIN.size}"
            raise DecodeError(f"lbmc.{BlockType(cls.CODE).name.lower()}", what, at)
        domains = tuple(domain for (domain,) in _DOMAIN.iter_unpack(data[at:behind]))
        return cls(**values, domains=domains, growth=data[behind:end])

    def body(self) -> bytes:
        count, most = len(self.domains), (BLOCK_MAX - HEAD_SIZE - self.LAYOUT.size) // _DOMAIN.size
        if count > most:
            raise LocalProtocolError(f"{BlockType(self.CODE).name}: {count} domains, at most {most} fit")
        fixed = pack(self.LAYOUT, *(count if name == "count" else getattr(self, name) for name in self.WIRE))
        return fixed + b"".join(pack(_DOMAIN, domain) for domain in self.domains) + self.growth


@block(BlockType.TOPIC_MD_INTEREST, "HHH", "count reserved")
class TopicMdInterest(_Domains):
    """Domains that want the topic named in the same message; `INTEREST_CANCEL`, `INTEREST_REFRESH` in `flags`."""

    reserved: int = field(default=0, kw_only=True)


@block(BlockType.PATTERN_MD_INTEREST, "BBHHq", "pattern_type count reserved index")
class PatternMdInterest(_Domains):
    """Domains that want what matches the pattern named in the same message; `PATTERN_*` flags, 8 bits."""

    pattern_type: int  # PATTERN_PCRE or PATTERN_REGEX
    index: int  # the sender's number for the pattern, signed 64 bits
    reserved: int = field(default=0, kw_only=True)


@block(BlockType.TOPIC_SOURCE, "HI")
class TopicSource(FixedBlock):
    """A source of the topic named in the same message, in `domain_id`; `SOURCE_EOS` says that it has gone."""

    domain_id: int


@block(BlockType.TOPIC_SOURCE_EXFUNC, "HIHHI")
class TopicSourceExfunc(FixedBlock):
    """Request address and abilities (`EXFUNC_*`) of that source."""

    ip: int
    port: int
    unused: int = field(default=0, kw_only=True)
    functionality: int


@block(BlockType.PATIDX, "HQ")
class PatIdx(FixedBlock):
    """The pattern through which a source was found; unsigned here, signed in the interest blocks."""

    pattern_index: int


@block(BlockType.DOMAIN, "HI")
class Domain(FixedBlock):
    """A domain and, by `DOMAIN_ACTIVE`, whether it is active."""

    domain_id: int


@block(BlockType.CTXINFO, "HBBHII8s")
class CtxInfo(Block):
    """Where a context is, or with `CTXINFO_QUERY` a question for it; `flags` says which fields count."""

    ip: int = 0
    port: int = 0
    domain_id: int = 0
    ctxinst: bytes = bytes(8)
    hop_count: int = 0  # DROs passed
    name: bytes = b""  # only with CTXINFO_NAME, and then not empty
    reserved: int = field(default=0, kw_only=True)

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        flags, reserved, hops, port, ip, domain_id, ctxinst = cls.unpack(data, pos, size)
        if flags & CTXINFO_NAME:
            cls.unpack(data, pos, size, more=1)  # there is a name
        rest = data[pos + HEAD_SIZE + cls.LAYOUT.size : pos + size]
        name = rest.rstrip(b"\0") if flags & CTXINFO_NAME else b""
        growth = rest[len(name) :]
        return cls(ip, port, domain_id, ctxinst, hops, name, reserved=reserved, flags=flags, growth=growth)

    def body(self) -> bytes:
        has_name = bool(self.name) or (bool(self.growth) and bool(self.flags & CTXINFO_NAME))
        if has_name != bool(self.flags & CTXINFO_NAME):
            raise LocalProtocolError(f"CTXINFO: name {self.name!r} with flags {self.flags:#06x}")
        fixed = (self.flags, self.reserved, self.hop_count, self.port, self.ip, self.domain_id, self.ctxinst)
        return pack(self.LAYOUT, *fixed) + self.name + self.growth


CTXINFO_NAME_MAX: Final = BLOCK_MAX - HEAD_SIZE - CtxInfo.LAYOUT.size
