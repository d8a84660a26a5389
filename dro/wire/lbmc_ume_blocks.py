"""LBMC blocks of persistence (UME): registration, acknowledgements, keepalives, source registration information.

A DRO passes these through; the client library reads and writes them. Addresses are IPv4 as 32-bit integers, session
ids have 64 bits, context instances are 8 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import ClassVar, Final, Self

from dro.wire.lbmc_block import (
    FLAGS16,
    HEAD_SIZE,
    IGNORE8,
    IGNORE16,
    LOW15,
    Block,
    FixedBlock,
    TextBlock,
    too_short,
)
from dro.wire.lbmc_codes import BLOCK_MIN, BlockType
from dro.wire.packing import pack

PREG_NO_ACK_FORWARD: Final = 0x40
PREG_PROXY_SOURCE: Final = 0x20
PREG_RECEIVER_PACED: Final = 0x10
PREG_DEREGISTER: Final = 0x08
MARKER_SOURCE: Final = 0x80  # in `marker`: a source's registration, else a receiver's; low 7 bits 1, 2, 3

PREG_RESP_KNOWN: Final = 0x40
PREG_RESP_ERROR: Final = 0x20  # then the low 4 bits are an error code
PREG_RESP_NO_CACHE: Final = 0x10  # for a receiver: no acknowledgements
PREG_RESP_RECEIVER_PACED: Final = 0x02
PREG_RESP_DEREGISTER: Final = 0x01

ACK_ARRIVAL_ORDER: Final = 0x40
ACK_NO_FORWARD: Final = 0x20
ACK_USER_ID: Final = 0x10
ACK_EXPLICIT: Final = 0x08
ACK_DELIVERED: Final = 0
ACK_STABLE: Final = 1

KEEPALIVE_ANSWER_WANTED: Final = 0x40
KEEPALIVE_NO_ADVERTISEMENT: Final = 0x20

CAPABILITY_QUORUM: Final = 0x4000
CAPABILITY_CLIENT_LIFETIME: Final = 0x2000

SRI_ACK_TO_SOURCE: Final = 0x0001
SRI_INITIAL_SQN_KNOWN: Final = 0x0002


@dataclass(frozen=True, slots=True)
class UmePreg(FixedBlock):
    """Registration of a source or a receiver with a store."""

    CODE: ClassVar[int] = BlockType.UME_PREG
    IGNORE: ClassVar[int] = IGNORE8
    LAYOUT: ClassVar[Struct] = Struct("!BBIIIIHHI")
    WIRE: ClassVar[tuple[str, ...]] = (
        "flags",
        "marker",
        "reg_id",
        "transport_index",
        "topic_index",
        "source_reg_id",
        "port",
        "reserved",
        "ip",
    )

    marker: int
    reg_id: int
    transport_index: int
    topic_index: int
    source_reg_id: int  # for a receiver
    ip: int  # where to answer
    port: int
    reserved: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class UmePregResp(FixedBlock):
    """The store's answer; `flags` is the code byte."""

    CODE: ClassVar[int] = BlockType.UME_PREG_RESP
    IGNORE: ClassVar[int] = IGNORE8
    LAYOUT: ClassVar[Struct] = Struct("!BBIIIII")
    WIRE: ClassVar[tuple[str, ...]] = (
        "flags",
        "marker",
        "reg_id",
        "transport_index",
        "topic_index",
        "low_sqn",
        "high_sqn",
    )

    marker: int
    reg_id: int
    transport_index: int
    topic_index: int
    low_sqn: int
    high_sqn: int


@dataclass(frozen=True, slots=True)
class UmeAck(FixedBlock):
    """Acknowledgement of one message: delivered to a receiver or stable in a store."""

    CODE: ClassVar[int] = BlockType.UME_ACK
    IGNORE: ClassVar[int] = IGNORE8
    LAYOUT: ClassVar[Struct] = Struct("!BBIIII")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "ack_type", "transport_index", "id_2", "receiver_reg_id", "sqn")

    ack_type: int
    transport_index: int
    id_2: int  # to a source: topic index; to a store: the source's registration id
    receiver_reg_id: int
    sqn: int


@dataclass(frozen=True, slots=True)
class UmeKeepalive(FixedBlock):
    """Persistence keepalive from a store (0), a receiver (1) or a source (2)."""

    CODE: ClassVar[int] = BlockType.UME_KEEPALIVE
    IGNORE: ClassVar[int] = IGNORE8
    LAYOUT: ClassVar[Struct] = Struct("!BBIII")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "sender", "transport_index", "topic_index", "reg_id")

    sender: int
    transport_index: int
    topic_index: int
    reg_id: int


@dataclass(frozen=True, slots=True)
class UmeRcvKeepalive(FixedBlock):
    """Keepalive of a receiver that has a session id."""

    CODE: ClassVar[int] = BlockType.UME_RCV_KEEPALIVE
    LAYOUT: ClassVar[Struct] = Struct("!HIQ8s")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "receiver_reg_id", "session_id", "ctxinst")

    receiver_reg_id: int
    session_id: int
    ctxinst: bytes


@dataclass(frozen=True, slots=True)
class UmeStoreId(Block):
    """The number of a store, 15 bits; shares its word with the ignore bit."""

    CODE: ClassVar[int] = BlockType.UME_STOREID

    store_id: int

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        if size < BLOCK_MIN:
            raise too_short("ume_storeid", pos, size, BLOCK_MIN)
        word: int = FLAGS16.unpack_from(data, pos + HEAD_SIZE)[0]
        return cls(word & LOW15, flags=word & IGNORE16, growth=data[pos + BLOCK_MIN : pos + size])

    def body(self) -> bytes:
        return pack(FLAGS16, self.store_id | self.flags) + self.growth


@dataclass(frozen=True, slots=True)
class UmeRangedAck(FixedBlock):
    """A range of acknowledged sqns, both ends included."""

    CODE: ClassVar[int] = BlockType.UME_RANGED_ACK
    LAYOUT: ClassVar[Struct] = Struct("!HII")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "first_sqn", "last_sqn")

    first_sqn: int
    last_sqn: int


@dataclass(frozen=True, slots=True)
class UmeAckId(FixedBlock):
    """The id of an acknowledgement."""

    CODE: ClassVar[int] = BlockType.UME_ACK_ID
    LAYOUT: ClassVar[Struct] = Struct("!HI")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "ack_id")

    ack_id: int


@dataclass(frozen=True, slots=True)
class UmeCapability(FixedBlock):
    """Persistence capabilities, all in `flags`."""

    CODE: ClassVar[int] = BlockType.UME_CAPABILITY
    LAYOUT: ClassVar[Struct] = Struct("!H")
    WIRE: ClassVar[tuple[str, ...]] = ("flags",)


@dataclass(frozen=True, slots=True)
class UmeStoreGroup(FixedBlock):
    """A group of stores and how many it has."""

    CODE: ClassVar[int] = BlockType.UME_STORE_GROUP
    IGNORE: ClassVar[int] = IGNORE8
    LAYOUT: ClassVar[Struct] = Struct("!BBHH")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "group_index", "group_size", "reserved")

    group_index: int
    group_size: int
    reserved: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class UmeStoreInfo(FixedBlock):
    """One store of a group."""

    CODE: ClassVar[int] = BlockType.UME_STORE_INFO
    IGNORE: ClassVar[int] = IGNORE8
    LAYOUT: ClassVar[Struct] = Struct("!BBHHII")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "group_index", "port", "store_index", "ip", "source_reg_id")

    group_index: int
    store_index: int
    ip: int
    port: int
    source_reg_id: int


@dataclass(frozen=True, slots=True)
class UmeStoreInfoExt(FixedBlock):
    """One store of a group, with its domain and the version of the source's registration there."""

    CODE: ClassVar[int] = BlockType.UME_STORE_INFO_EXT
    IGNORE: ClassVar[int] = IGNORE8
    LAYOUT: ClassVar[Struct] = Struct("!BBHHIIII")
    WIRE: ClassVar[tuple[str, ...]] = (
        "flags",
        "group_index",
        "port",
        "store_index",
        "ip",
        "source_reg_id",
        "domain_id",
        "version",
    )

    group_index: int
    store_index: int
    ip: int
    port: int
    source_reg_id: int
    domain_id: int
    version: int


@dataclass(frozen=True, slots=True)
class UmeStoreName(TextBlock):
    """The context name of a store."""

    CODE: ClassVar[int] = BlockType.UME_STORENAME

    store: bytes

    @classmethod
    def text_field(cls) -> str:
        return "store"


@dataclass(frozen=True, slots=True)
class SriReq(FixedBlock):
    """Request for source registration information."""

    CODE: ClassVar[int] = BlockType.SRI_REQ
    LAYOUT: ClassVar[Struct] = Struct("!HII")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "transport_index", "topic_index")

    transport_index: int
    topic_index: int


@dataclass(frozen=True, slots=True)
class Sri(FixedBlock):
    """Source registration information; the stores follow, a higher version is newer."""

    CODE: ClassVar[int] = BlockType.SRI
    LAYOUT: ClassVar[Struct] = Struct("!HIII")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "version", "low_sqn", "high_sqn")

    version: int
    low_sqn: int
    high_sqn: int


@dataclass(frozen=True, slots=True)
class UmeStoreDomain(FixedBlock):
    """The domain of a store."""

    CODE: ClassVar[int] = BlockType.UME_STORE_DOMAIN
    LAYOUT: ClassVar[Struct] = Struct("!HI")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "domain_id")

    domain_id: int


@dataclass(frozen=True, slots=True)
class UmeClientLifetime(FixedBlock):
    """How long the store keeps a silent client; milliseconds (inferred)."""

    CODE: ClassVar[int] = BlockType.UME_CLIENT_LIFETIME
    LAYOUT: ClassVar[Struct] = Struct("!HIII")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "activity_timeout", "lifetime", "ttl")

    activity_timeout: int
    lifetime: int
    ttl: int


@dataclass(frozen=True, slots=True)
class UmeSid(FixedBlock):
    """A persistence session id."""

    CODE: ClassVar[int] = BlockType.UME_SID
    LAYOUT: ClassVar[Struct] = Struct("!HQ")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "session_id")

    session_id: int


UME_BLOCKS: Final[tuple[type[Block], ...]] = (
    UmePreg,
    UmePregResp,
    UmeAck,
    UmeKeepalive,
    UmeRcvKeepalive,
    UmeStoreId,
    UmeRangedAck,
    UmeAckId,
    UmeCapability,
    UmeStoreGroup,
    UmeStoreInfo,
    UmeStoreInfoExt,
    UmeStoreName,
    SriReq,
    Sri,
    UmeStoreDomain,
    UmeClientLifetime,
    UmeSid,
)
