"""LBMC blocks of data messages, late join, retransmission and source-side filtering.

Addresses are IPv4 as 32-bit integers. Positional fields are the ones that a sender must choose; flags, reserved
fields and growth bytes are keyword-only and default to what is sent.
"""

from __future__ import annotations

from dataclasses import field
from struct import Struct
from typing import Final, NamedTuple, Self

from dro.errors import DecodeError, LocalProtocolError
from dro.wire.cursor import pack
from dro.wire.lbmc.block import IGNORE16, LOW15, Block, FixedBlock, TextBlock, block
from dro.wire.lbmc.codes import BLOCK_MAX, BLOCK_MIN, END_NONE, BlockType

BATCH_START: Final = 0x0002
BATCH_END: Final = 0x0001
LJI_TX_LOW_SQN: Final = 0x0001
LJI_RX_REQ_MAX: Final = 0x0002
LJI_RX_REQ_OUTSTANDING_MAX: Final = 0x0004
RXREQ_TSNI: Final = 0x4000
SSF_DEFAULT_INCLUDE: Final = 0x40
SSF_DEFAULT_EXCLUDE: Final = 0x20


@block(BlockType.FRAG, "HIII")
class Frag(FixedBlock):
    """One piece of a larger message; the length of the piece is what is left of the message after the chain."""

    first_sqn: int  # sqn of the first piece of the message
    offset: int  # bytes, where this piece starts in the whole message
    length: int  # bytes, the whole message, message properties included


@block(BlockType.BATCH, "H")
class Batch(FixedBlock):
    """Marks of an explicit batch, in `flags`: `BATCH_START`, `BATCH_END`, both, or neither on a middle message."""


@block(BlockType.REQUEST, "BBIHHI", "transport request_index port reserved ip")
class Request(FixedBlock):
    """The message wants a response: where to, and under which number."""

    request_index: int  # chosen by the requester; the response carries it as topic index
    ip: int
    port: int
    transport: int = field(default=0, kw_only=True)  # 0 = TCP, the only value known
    reserved: int = field(default=0, kw_only=True)


@block(BlockType.TOPICNAME)
class TopicName(TextBlock):
    """A topic or pattern string, as bytes without a terminator; at most `TEXT_MAX` bytes."""

    topic: bytes


@block(BlockType.APPHDR)
class AppHdr(Block):
    """The old single application header; `app_code` has 15 bits, `flags` only the ignore bit."""

    app_code: int
    data: bytes

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        (word,) = cls.unpack(data, pos, size, more=1)
        return cls(word & LOW15, data[pos + BLOCK_MIN : pos + size], flags=word & IGNORE16)

    def body(self) -> bytes:
        return pack(self.LAYOUT, self.app_code | self.flags) + self.data + self.growth


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


@block(BlockType.APPHDR_CHAIN, "BB")
class AppHdrChain(Block):
    """Typed application headers. `flags` is the reserved byte; `end` what the last element names as its successor."""

    elements: tuple[ChainElement, ...]
    end: int = field(default=AppHdrType.NONE, kw_only=True)

    @property
    def properties_length(self) -> int:
        """Bytes of message properties at the end of the message; elements of that type add up."""
        return sum(int.from_bytes(e.data[:4], "big") for e in self.elements if e.type == AppHdrType.PROPERTIES_LENGTH)

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        flags, kind = cls.unpack(data, pos, size)
        at, end = pos + BLOCK_MIN, pos + size
        elements: list[ChainElement] = []
        while kind != END_NONE and end - at >= _ELEMENT.size:
            successor, length, subtype = _ELEMENT.unpack_from(data, at)
            if length < _ELEMENT.size or at + length > end:
                raise DecodeError("lbmc.apphdr_chain", f"element of {length} bytes, {end - at} left", at)
            if kind == AppHdrType.PROPERTIES_LENGTH and length < _ELEMENT.size + 4:
                raise DecodeError("lbmc.apphdr_chain", f"properties length element of {length} bytes", at)
            elements.append(ChainElement(kind, data[at + _ELEMENT.size : at + length], subtype))
            kind, at = successor, at + length
        return cls(tuple(elements), end=kind, flags=flags, growth=data[at:end])

    def body(self) -> bytes:
        kinds = [*(e.type for e in self.elements), self.end]
        out = bytearray((self.flags, kinds[0]))
        for element, successor in zip(self.elements, kinds[1:], strict=True):
            out += pack(_ELEMENT, successor, _ELEMENT.size + len(element.data), element.subtype) + element.data
        return bytes(out) + self.growth


@block(BlockType.OTID, "H32s")
class OtidBlock(FixedBlock):
    """Originating transport id: 32 bytes that name one source; compared byte for byte, read only by `otid`."""

    otid: bytes


@block(BlockType.CTXINSTD, "H8s")
class CtxInstD(FixedBlock):
    """The context (8 bytes) that the message is for."""

    ctxinst: bytes


@block(BlockType.CTXINSTR, "H8s")
class CtxInstR(FixedBlock):
    """The context (8 bytes) to which an answer should go (inferred)."""

    ctxinst: bytes


@block(BlockType.CTXINST, "H8s")
class CtxInst(FixedBlock):
    """A context (8 bytes): the sender's own, or the source's in a source announcement."""

    ctxinst: bytes


@block(BlockType.UME_CTXINSTS, "H8s")
class UmeCtxInstS(FixedBlock):
    """The context (8 bytes) of a store."""

    ctxinst: bytes


@block(BlockType.SRCIDX, "HQ")
class SrcIdx(FixedBlock):
    """The number that stands for a source on one peer link."""

    source_index: int


@block(BlockType.ODOMAIN, "HI")
class ODomain(FixedBlock):
    """The domain in which the message was first sent (inferred)."""

    domain_id: int


@block(BlockType.STREAM, "HII8s")
class Stream(FixedBlock):
    """A unicast stream, the place of this message in it, and the sender's context instance (8 bytes)."""

    stream_id: int
    sqn: int
    ctxinst: bytes


@block(
    BlockType.DESTINATION, "HIIHHIIHH", "domain_id ip port hops_taken origin_domain_id origin_ip origin_port reserved"
)
class Destination(FixedBlock):
    """Where a routed unicast message goes and comes from: domain, UIM address, UIM port of both ends."""

    domain_id: int
    ip: int
    port: int
    origin_domain_id: int
    origin_ip: int
    origin_port: int
    hops_taken: int = 0  # DROs passed so far (inferred: each adds one)
    reserved: int = field(default=0, kw_only=True)


@block(BlockType.TOPIC_IDX, "HI")
class TopicIdx(FixedBlock):
    """The topic index for a message whose header has none."""

    topic_index: int


@block(BlockType.TCP_SID, "HI")
class TcpSid(FixedBlock):
    """The TCP transport session id that a receiver believes it has connected to."""

    session_id: int


class TsniRecord(NamedTuple):
    """The last topic sqn sent on a topic; for a source that has sent nothing, the next one minus one (Guess)."""

    topic_index: int
    sqn: int


_TSNI_RECORD: Final = Struct("!II")
TSNI_RECORDS_MAX: Final = (BLOCK_MAX - BLOCK_MIN) // _TSNI_RECORD.size


@block(BlockType.TSNI)
class Tsni(Block):
    """Topic sequence number information; at most `TSNI_RECORDS_MAX` records.

    The block length says how many records there are. `declared` is the number that the block itself states when it
    differs, else None.
    """

    records: tuple[TsniRecord, ...]
    declared: int | None = field(default=None, kw_only=True)

    @classmethod
    def read(cls, data: bytes, pos: int, size: int) -> Self:
        (word,) = cls.unpack(data, pos, size)
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
        return pack(self.LAYOUT, count | self.flags) + records + self.growth


@block(BlockType.LJI_REQ, "HIIIIHHIII")
class LjiReq(FixedBlock):
    """Late join information request; the flags say which of the three last fields count."""

    request_index: int  # chosen by the requester, comes back in the late join information
    transport_index: int  # of the source, from its advertisement or its OTID (inferred)
    topic_index: int  # of the source
    ip: int  # where the answer goes
    port: int
    reserved: int = field(default=0, kw_only=True)
    tx_low_sqn: int = 0
    rx_req_max: int = 0
    rx_req_outstanding_max: int = 0


@block(BlockType.UME_LJ_INFO, "HIII")
class UmeLjInfo(FixedBlock):
    """Late join information: the range of sqns that is retained."""

    low_sqn: int
    high_sqn: int
    request_index: int


@block(BlockType.UME_RXREQ, "HIIIIHHI", "request_index transport_index id_2 sqn port reserved ip")
class UmeRxReq(FixedBlock):
    """Request for one retransmission, or with `RXREQ_TSNI` for topic sequence number information.

    The low byte of `flags` is the marker of a store: 1 primary, 2 secondary, 3 tertiary (inferred); 0 for a source.
    """

    request_index: int  # chosen by the requester, comes back as topic index of the retransmission (inferred)
    transport_index: int
    id_2: int  # to a source: topic index; to a store: registration id
    sqn: int
    ip: int  # where the retransmission goes
    port: int
    reserved: int = field(default=0, kw_only=True)


@block(BlockType.SSF_INIT, "BBIIHHI", "transport transport_index client_index port reserved ip")
class SsfInit(FixedBlock):
    """Source-side filtering: the source's invitation, with the default in `flags`."""

    transport_index: int
    client_index: int  # the number that the source gave this receiver
    ip: int  # where the control requests go
    port: int
    transport: int = field(default=0, kw_only=True)  # 0 = TCP
    reserved: int = field(default=0, kw_only=True)


@block(BlockType.SSF_CREQ, "BBIII")
class SsfCreq(FixedBlock):
    """Source-side filtering: include (mode 0) or exclude (mode 1) one topic."""

    mode: int
    transport_index: int
    topic_index: int
    client_index: int
