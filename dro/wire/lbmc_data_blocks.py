"""LBMC blocks of data messages, late join, retransmission and source-side filtering.

Addresses are IPv4 as 32-bit integers. Positional fields are the ones that a sender must choose; flags, reserved
fields and growth bytes are keyword-only and default to what is sent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import ClassVar, Final, NamedTuple, Self

from dro.errors import DecodeError, LocalProtocolError
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
from dro.wire.lbmc_codes import BLOCK_MAX, BLOCK_MIN, END_NONE, BlockType
from dro.wire.packing import pack

BATCH_START: Final = 0x0002
BATCH_END: Final = 0x0001
LJI_TX_LOW_SQN: Final = 0x0001
LJI_RX_REQ_MAX: Final = 0x0002
LJI_RX_REQ_OUTSTANDING_MAX: Final = 0x0004
RXREQ_TSNI: Final = 0x4000
SSF_DEFAULT_INCLUDE: Final = 0x40
SSF_DEFAULT_EXCLUDE: Final = 0x20


@dataclass(frozen=True, slots=True)
class Frag(FixedBlock):
    """One piece of a larger message; the length of the piece is what is left of the message after the chain."""

    CODE: ClassVar[int] = BlockType.FRAG
    LAYOUT: ClassVar[Struct] = Struct("!HIII")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "first_sqn", "offset", "length")

    first_sqn: int  # sqn of the first piece of the message
    offset: int  # bytes, where this piece starts in the whole message
    length: int  # bytes, the whole message, message properties included


@dataclass(frozen=True, slots=True)
class Batch(FixedBlock):
    """Marks of an explicit batch, in `flags`: `BATCH_START`, `BATCH_END`, both, or neither on a middle message."""

    CODE: ClassVar[int] = BlockType.BATCH
    LAYOUT: ClassVar[Struct] = Struct("!H")
    WIRE: ClassVar[tuple[str, ...]] = ("flags",)


@dataclass(frozen=True, slots=True)
class Request(FixedBlock):
    """The message wants a response: where to, and under which number."""

    CODE: ClassVar[int] = BlockType.REQUEST
    IGNORE: ClassVar[int] = IGNORE8
    LAYOUT: ClassVar[Struct] = Struct("!BBIHHI")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "transport", "request_index", "port", "reserved", "ip")

    request_index: int  # chosen by the requester; the response carries it as topic index
    ip: int
    port: int
    transport: int = field(default=0, kw_only=True)  # 0 = TCP, the only value known
    reserved: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class TopicName(TextBlock):
    """A topic or pattern string, as bytes without a terminator; at most `TEXT_MAX` bytes."""

    CODE: ClassVar[int] = BlockType.TOPICNAME

    topic: bytes

    @classmethod
    def text_field(cls) -> str:
        return "topic"


@dataclass(frozen=True, slots=True)
class AppHdr(Block):
    """The old single application header; `app_code` has 15 bits, `flags` only the ignore bit."""

    CODE: ClassVar[int] = BlockType.APPHDR

    app_code: int
    data: bytes

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        if size < BLOCK_MIN + 1:
            raise too_short("apphdr", pos, size, BLOCK_MIN + 1)
        word: int = FLAGS16.unpack_from(data, pos + HEAD_SIZE)[0]
        return cls(word & LOW15, data[pos + BLOCK_MIN : pos + size], flags=word & IGNORE16)

    def body(self) -> bytes:
        return pack(FLAGS16, self.app_code | self.flags) + self.data + self.growth


class AppHdrType:
    """Types of the elements of an APPHDR_CHAIN; the bodies of 1, 2 and 3 are not public and are kept untouched."""

    CHANNEL_NUMBER: Final = 1
    HOT_FAILOVER_SQN: Final = 2
    GATEWAY_INFO: Final = 3
    APPHDR: Final = 4
    USER_DATA: Final = 5
    PROPERTIES_LENGTH: Final = 6
    NONE: Final = 0xFF


class ChainElement(NamedTuple):
    """One typed application header; `subtype` counts for user data (inferred) and is 0 elsewhere."""

    type: int
    data: bytes
    subtype: int = 0


_ELEMENT: Final = Struct("!BBH")


@dataclass(frozen=True, slots=True)
class AppHdrChain(Block):
    """Typed application headers. `flags` is the reserved byte; `end` what the last element names as its successor."""

    CODE: ClassVar[int] = BlockType.APPHDR_CHAIN
    IGNORE: ClassVar[int] = IGNORE8

    elements: tuple[ChainElement, ...]
    end: int = field(default=AppHdrType.NONE, kw_only=True)

    @property
    def properties_length(self) -> int:
        """Bytes of message properties at the end of the message; elements of that type add up."""
        return sum(int.from_bytes(e.data[:4], "big") for e in self.elements if e.type == AppHdrType.PROPERTIES_LENGTH)

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        if size < BLOCK_MIN:
            raise too_short("apphdr_chain", pos, size, BLOCK_MIN)
        kind, at, end = data[pos + 3], pos + BLOCK_MIN, pos + size
        elements: list[ChainElement] = []
        while kind != END_NONE and end - at >= _ELEMENT.size:
            successor, length, subtype = _ELEMENT.unpack_from(data, at)
            if length < _ELEMENT.size or at + length > end:
                raise DecodeError("lbmc.apphdr_chain", f"element of {length} bytes, {end - at} left", at)
            if kind == AppHdrType.PROPERTIES_LENGTH and length < _ELEMENT.size + 4:
                raise DecodeError("lbmc.apphdr_chain", f"properties length element of {length} bytes", at)
            elements.append(ChainElement(kind, data[at + _ELEMENT.size : at + length], subtype))
            kind, at = successor, at + length
        return cls(tuple(elements), end=kind, flags=data[pos + 2], growth=data[at:end])

    def body(self) -> bytes:
        kinds = [*(e.type for e in self.elements), self.end]
        out = bytearray((self.flags, kinds[0]))
        for element, successor in zip(self.elements, kinds[1:], strict=True):
            out += pack(_ELEMENT, successor, _ELEMENT.size + len(element.data), element.subtype) + element.data
        return bytes(out) + self.growth


def properties_chain(length: int) -> AppHdrChain:
    """The block that announces `length` bytes of message properties at the end of the message."""
    return AppHdrChain((ChainElement(AppHdrType.PROPERTIES_LENGTH, length.to_bytes(4, "big")),))


@dataclass(frozen=True, slots=True)
class OtidBlock(FixedBlock):
    """Originating transport id: 32 bytes that name one source; compared byte for byte, read only by `otid`."""

    CODE: ClassVar[int] = BlockType.OTID
    LAYOUT: ClassVar[Struct] = Struct("!H32s")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "otid")

    otid: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _ContextInstance(FixedBlock):
    LAYOUT: ClassVar[Struct] = Struct("!H8s")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "ctxinst")


@dataclass(frozen=True, slots=True)
class CtxInstD(_ContextInstance):
    """The context (8 bytes) that the message is for."""

    CODE: ClassVar[int] = BlockType.CTXINSTD

    ctxinst: bytes


@dataclass(frozen=True, slots=True)
class CtxInstR(_ContextInstance):
    """The context (8 bytes) to which an answer should go (inferred)."""

    CODE: ClassVar[int] = BlockType.CTXINSTR

    ctxinst: bytes


@dataclass(frozen=True, slots=True)
class CtxInst(_ContextInstance):
    """A context (8 bytes): the sender's own, or the source's in a source announcement."""

    CODE: ClassVar[int] = BlockType.CTXINST

    ctxinst: bytes


@dataclass(frozen=True, slots=True)
class UmeCtxInstS(_ContextInstance):
    """The context (8 bytes) of a store."""

    CODE: ClassVar[int] = BlockType.UME_CTXINSTS

    ctxinst: bytes


@dataclass(frozen=True, slots=True)
class SrcIdx(FixedBlock):
    """The number that stands for a source on one peer link."""

    CODE: ClassVar[int] = BlockType.SRCIDX
    LAYOUT: ClassVar[Struct] = Struct("!HQ")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "source_index")

    source_index: int


@dataclass(frozen=True, slots=True)
class ODomain(FixedBlock):
    """The domain in which the message was first sent (inferred)."""

    CODE: ClassVar[int] = BlockType.ODOMAIN
    LAYOUT: ClassVar[Struct] = Struct("!HI")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "domain_id")

    domain_id: int


@dataclass(frozen=True, slots=True)
class Stream(FixedBlock):
    """A unicast stream, the place of this message in it, and the sender's context instance (8 bytes)."""

    CODE: ClassVar[int] = BlockType.STREAM
    LAYOUT: ClassVar[Struct] = Struct("!HII8s")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "stream_id", "sqn", "ctxinst")

    stream_id: int
    sqn: int
    ctxinst: bytes


@dataclass(frozen=True, slots=True)
class Destination(FixedBlock):
    """Where a routed unicast message goes and comes from: domain, UIM address, UIM port of both ends."""

    CODE: ClassVar[int] = BlockType.DESTINATION
    LAYOUT: ClassVar[Struct] = Struct("!HIIHHIIHH")
    WIRE: ClassVar[tuple[str, ...]] = (
        "flags",
        "domain_id",
        "ip",
        "port",
        "hops_taken",
        "origin_domain_id",
        "origin_ip",
        "origin_port",
        "reserved",
    )

    domain_id: int
    ip: int
    port: int
    origin_domain_id: int
    origin_ip: int
    origin_port: int
    hops_taken: int = 0  # DROs passed so far (inferred: each adds one)
    reserved: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class TopicIdx(FixedBlock):
    """The topic index for a message whose header has none."""

    CODE: ClassVar[int] = BlockType.TOPIC_IDX
    LAYOUT: ClassVar[Struct] = Struct("!HI")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "topic_index")

    topic_index: int


@dataclass(frozen=True, slots=True)
class TcpSid(FixedBlock):
    """The TCP transport session id that a receiver believes it has connected to."""

    CODE: ClassVar[int] = BlockType.TCP_SID
    LAYOUT: ClassVar[Struct] = Struct("!HI")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "session_id")

    session_id: int


class TsniRecord(NamedTuple):
    """The last topic sqn sent on a topic; for a source that has sent nothing, the next one minus one (Guess)."""

    topic_index: int
    sqn: int


_TSNI_RECORD: Final = Struct("!II")
TSNI_RECORDS_MAX: Final = (BLOCK_MAX - BLOCK_MIN) // _TSNI_RECORD.size


@dataclass(frozen=True, slots=True)
class Tsni(Block):
    """Topic sequence number information; at most `TSNI_RECORDS_MAX` records.

    The block length says how many records there are. `declared` is the number that the block itself states when it
    differs, else None.
    """

    CODE: ClassVar[int] = BlockType.TSNI

    records: tuple[TsniRecord, ...]
    declared: int | None = field(default=None, kw_only=True)

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        if size < BLOCK_MIN:
            raise too_short("tsni", pos, size, BLOCK_MIN)
        word: int = FLAGS16.unpack_from(data, pos + HEAD_SIZE)[0]
        count = (size - BLOCK_MIN) // _TSNI_RECORD.size
        end = pos + BLOCK_MIN + count * _TSNI_RECORD.size
        records = tuple(TsniRecord(*rec) for rec in _TSNI_RECORD.iter_unpack(data[pos + BLOCK_MIN : end]))
        declared = None if word & LOW15 == count else word & LOW15
        return cls(records, declared=declared, flags=word & IGNORE16, growth=data[end : pos + size])

    def body(self) -> bytes:
        if len(self.records) > TSNI_RECORDS_MAX:
            raise LocalProtocolError(f"TSNI: {len(self.records)} records, at most {TSNI_RECORDS_MAX} fit")
        count = len(self.records) if self.declared is None else self.declared
        records = b"".join(pack(_TSNI_RECORD, *record) for record in self.records)
        return pack(FLAGS16, count | self.flags) + records + self.growth


@dataclass(frozen=True, slots=True)
class LjiReq(FixedBlock):
    """Late join information request; the flags say which of the three last fields count."""

    CODE: ClassVar[int] = BlockType.LJI_REQ
    LAYOUT: ClassVar[Struct] = Struct("!HIIIIHHIII")
    WIRE: ClassVar[tuple[str, ...]] = (
        "flags",
        "request_index",
        "transport_index",
        "topic_index",
        "ip",
        "port",
        "reserved",
        "tx_low_sqn",
        "rx_req_max",
        "rx_req_outstanding_max",
    )

    request_index: int  # chosen by the requester, comes back in the late join information
    transport_index: int  # of the source, from its advertisement or its OTID (inferred)
    topic_index: int  # of the source
    ip: int  # where the answer goes
    port: int
    tx_low_sqn: int = 0
    rx_req_max: int = 0
    rx_req_outstanding_max: int = 0
    reserved: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class UmeLjInfo(FixedBlock):
    """Late join information: the range of sqns that is retained."""

    CODE: ClassVar[int] = BlockType.UME_LJ_INFO
    LAYOUT: ClassVar[Struct] = Struct("!HIII")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "low_sqn", "high_sqn", "request_index")

    low_sqn: int
    high_sqn: int
    request_index: int


@dataclass(frozen=True, slots=True)
class UmeRxReq(FixedBlock):
    """Request for one retransmission, or with `RXREQ_TSNI` for topic sequence number information.

    The low byte of `flags` is the marker of a store: 1 primary, 2 secondary, 3 tertiary (inferred); 0 for a source.
    """

    CODE: ClassVar[int] = BlockType.UME_RXREQ
    LAYOUT: ClassVar[Struct] = Struct("!HIIIIHHI")
    WIRE: ClassVar[tuple[str, ...]] = (
        "flags",
        "request_index",
        "transport_index",
        "id_2",
        "sqn",
        "port",
        "reserved",
        "ip",
    )

    request_index: int  # chosen by the requester, comes back as topic index of the retransmission (inferred)
    transport_index: int
    id_2: int  # to a source: topic index; to a store: registration id
    sqn: int
    ip: int  # where the retransmission goes
    port: int
    reserved: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class SsfInit(FixedBlock):
    """Source-side filtering: the source's invitation, with the default in `flags`."""

    CODE: ClassVar[int] = BlockType.SSF_INIT
    IGNORE: ClassVar[int] = IGNORE8
    LAYOUT: ClassVar[Struct] = Struct("!BBIIHHI")
    WIRE: ClassVar[tuple[str, ...]] = (
        "flags",
        "transport",
        "transport_index",
        "client_index",
        "port",
        "reserved",
        "ip",
    )

    transport_index: int
    client_index: int  # the number that the source gave this receiver
    ip: int  # where the control requests go
    port: int
    transport: int = field(default=0, kw_only=True)  # 0 = TCP
    reserved: int = field(default=0, kw_only=True)


@dataclass(frozen=True, slots=True)
class SsfCreq(FixedBlock):
    """Source-side filtering: include (mode 0) or exclude (mode 1) one topic."""

    CODE: ClassVar[int] = BlockType.SSF_CREQ
    IGNORE: ClassVar[int] = IGNORE8
    LAYOUT: ClassVar[Struct] = Struct("!BBIII")
    WIRE: ClassVar[tuple[str, ...]] = ("flags", "mode", "transport_index", "topic_index", "client_index")

    mode: int
    transport_index: int
    topic_index: int
    client_index: int


DATA_BLOCKS: Final[tuple[type[Block], ...]] = (
    Frag,
    Batch,
    Request,
    TopicName,
    AppHdr,
    AppHdrChain,
    OtidBlock,
    CtxInstD,
    CtxInstR,
    CtxInst,
    UmeCtxInstS,
    SrcIdx,
    ODomain,
    Stream,
    Destination,
    TopicIdx,
    TcpSid,
    Tsni,
    LjiReq,
    UmeLjInfo,
    UmeRxReq,
    SsfInit,
    SsfCreq,
)
