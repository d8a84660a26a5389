"""Messages of a peer link: who says what in which blocks.

Codecs only. What a DRO of this project tells another in an extension of its own stands in EXTOPT blocks that others
ignore. Source: peer link notes, sections 3, 4 and 15. Guess: all compositions that the notes call ours; the subtypes
0xF004 and above.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from struct import Struct
from typing import Final

from dro.errors import DecodeError
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.block import TEXT_MAX, RawBlock
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.codes import BLOCK_MAX, END_DATA, BlockType, MessageType
from dro.wire.lbmc.data_blocks import CtxInst, OtidBlock, SrcIdx, TopicIdx, TopicName
from dro.wire.lbmc.dro_blocks import (
    INTEREST_CANCEL,
    INTEREST_REFRESH,
    KA_QUERY,
    KA_RESPONSE,
    PATTERN_CANCEL,
    PATTERN_REFRESH,
    SOURCE_EOS,
    GatewayName,
    PatIdx,
    PatternMdInterest,
    TnwgCapabilities,
    TnwgKeepalive,
    TopicMdInterest,
    TopicSource,
    TopicSourceExfunc,
)

VERSION: Final = 1
TOPIC_DOMAINS_MAX: Final = 61  # in one message
PATTERN_DOMAINS_MAX: Final = 59

UDP_PORT: Final = 0xF001
COMPRESSION: Final = 0xF002
UDP_KEY: Final = 0xF003
SOURCE_OPTIONS: Final = 0xF004
DIGESTS: Final = 0xF007
SINCE: Final = 0xF008
UDP_SESSION: Final = 0xF009
FAST_KEEPALIVE: Final = 0xF00A
CANARY: Final = 0xF00C
NODE_ID: Final = 0xF00D
RESUME: Final = 0xF00F  # 0xF00E is the signature of ROUTE
COMPRESSION_LZ4: Final = 1

_EXTENSION: Final = Struct("!BBHH")  # flags, id, subtype, offset of the piece
_IGNORE: Final = 0x40  # when the subtype is not known
_MORE: Final = 0x20
_PIECE_MAX: Final = BLOCK_MAX - 2 - _EXTENSION.size
_PORT: Final = Struct("!H")
_DIGESTS: Final = Struct("!QQB27x")
_HAS_INTEREST, _HAS_SOURCES = 1, 2
_SINCE: Final = Struct("!Q")
_SESSION: Final = Struct("!I")
_NODE_ID: Final = Struct("!Q")
_FAST: Final = Struct("!II")  # interval, timeout in ms
_KNOWN: Final = frozenset(
    (
        UDP_PORT,
        COMPRESSION,
        UDP_KEY,
        SOURCE_OPTIONS,
        DIGESTS,
        SINCE,
        UDP_SESSION,
        FAST_KEEPALIVE,
        CANARY,
        NODE_ID,
        RESUME,
    )
)
_KEY_BYTES: Final = 36


class MessageKind(Enum):
    """The classes of messages, in the order in which they are told apart."""

    CONTROL = "control"
    SOURCE = "data or control of a source"
    UNICAST = "unicast"
    IMMEDIATE = "immediate"
    OTHER = "no message of a peer link"


_CONTROL_BLOCKS: Final = frozenset(
    (
        BlockType.TNWG_CAPABILITIES,
        BlockType.TNWG_KA,
        BlockType.ROUTE_INFO,
        BlockType.TOPIC_INTEREST,
        BlockType.PATTERN_INTEREST,
        BlockType.TOPIC_MD_INTEREST,
        BlockType.PATTERN_MD_INTEREST,
        BlockType.TOPIC_SOURCE,
        BlockType.DOMAIN,
        BlockType.CTXINFO,
        BlockType.ADVERTISEMENT,
    )
)


def kind_of(message: bytes | memoryview) -> MessageKind:
    """Find the kind of one whole message. Raises: DecodeError for a broken chain."""
    blocks, _, _ = lbmc.chain(message, 0, len(message))
    codes = {code for code, _, _ in blocks}
    is_control = message[0] == MessageType.CONTROL
    if is_control and codes & _CONTROL_BLOCKS:
        return MessageKind.CONTROL
    if BlockType.SRCIDX in codes:
        return MessageKind.SOURCE
    if codes & {BlockType.DESTINATION, BlockType.CTXINSTD, BlockType.STREAM}:
        return MessageKind.UNICAST
    return MessageKind.IMMEDIATE if message[0] == MessageType.MESSAGE else MessageKind.OTHER


def fits(name: bytes) -> bool:
    """Say whether a topic or pattern of that name can be told over a link."""
    return 0 < len(name) <= TEXT_MAX


# extensions


def extension(subtype: int, data: bytes) -> tuple[RawBlock, ...]:
    """EXTOPT blocks that whoever does not know the subtype ignores."""
    starts = range(0, max(1, len(data)), _PIECE_MAX)
    return tuple(
        RawBlock(
            BlockType.EXTOPT,
            _EXTENSION.pack(_IGNORE | (_MORE if at + _PIECE_MAX < len(data) else 0), 0, subtype, at)
            + data[at : at + _PIECE_MAX],
        )
        for at in starts
    )


def extensions_of(message: lbmc.Message) -> dict[int, bytes]:
    """Return what EXTOPT blocks of known subtypes hold. Raises: DecodeError for pieces that do not join."""
    found: dict[int, bytes] = {}
    unfinished: set[int] = set()
    for block in message.blocks:
        if not isinstance(block, RawBlock) or block.code != BlockType.EXTOPT:
            continue
        if len(block.data) < _EXTENSION.size:
            raise DecodeError("lbmc.extopt", f"{len(block.data)} bytes")
        flags, _, subtype, at = _EXTENSION.unpack_from(block.data)
        if subtype not in _KNOWN:
            continue
        if at != len(found.get(subtype, b"")):
            raise DecodeError("lbmc.extopt", f"a piece of subtype {subtype:#06x} at {at}")
        found[subtype] = found.get(subtype, b"") + block.data[_EXTENSION.size :]
        (unfinished.add if flags & _MORE else unfinished.discard)(subtype)
    if unfinished:
        raise DecodeError("lbmc.extopt", f"subtype {min(unfinished):#06x} has no last piece")
    return found


# the dialogue


@dataclass(frozen=True, slots=True)
class Hello:
    """Who a DRO is and what it can do.

    `udp_key`: key and salt for the datagrams that it will send, 36 bytes; `udp_session`: the session id in them.
    `since_us`: when the initiator began to connect, by its clock, 0 if not told. `fast_ms`: gap and timeout of the
    keepalives that it would use if both sides do. `has_canaries`: it answers them. `node_id`: 0 if not told.
    `resumes`: it confirms data, and goes on with what was not confirmed (`dro.proto.peerlink.resume`).
    """

    name: bytes
    context_instance: bytes
    version: int = VERSION
    capabilities1: int = 0
    capabilities3: int = 0
    udp_port: int = 0
    compression: tuple[int, ...] = ()
    udp_key: bytes = b""
    has_digests: bool = False
    since_us: int = 0
    udp_session: int = 0
    fast_ms: tuple[int, int] | None = None
    has_canaries: bool = False
    node_id: int = 0
    resumes: bool = False


def hello(own: Hello) -> bytes:
    """HELLO, the first message of either side."""
    blocks: list[AnyBlock] = [
        TnwgCapabilities(own.version, capabilities1=own.capabilities1, capabilities3=own.capabilities3)
    ]
    if own.name:
        blocks.append(GatewayName(own.name[:TEXT_MAX]))
    blocks.append(CtxInst(own.context_instance))
    for subtype, data in (
        (UDP_PORT, _PORT.pack(own.udp_port) if own.udp_port else b""),
        (COMPRESSION, bytes(own.compression)),
        (UDP_KEY, own.udp_key),
        (DIGESTS, b"\x01" if own.has_digests else b""),
        (SINCE, _SINCE.pack(own.since_us) if own.since_us else b""),
        (UDP_SESSION, _SESSION.pack(own.udp_session) if own.udp_session else b""),
        (FAST_KEEPALIVE, _FAST.pack(*own.fast_ms) if own.fast_ms is not None else b""),
        (CANARY, b"\x01" if own.has_canaries else b""),
        (NODE_ID, _NODE_ID.pack(own.node_id) if own.node_id else b""),
        (RESUME, b"\x01" if own.resumes else b""),
    ):
        if data:
            blocks += extension(subtype, data)
    return lbmc.encode(lbmc.control_message(*blocks))


def read_hello(message: lbmc.Message) -> Hello | None:
    """None for a message that is none. Raises: DecodeError."""
    capabilities = message.get(TnwgCapabilities)
    if capabilities is None:
        return None
    name, instance, more = message.get(GatewayName), message.get(CtxInst), extensions_of(message)
    port, key, session = more.get(UDP_PORT, b"\0\0"), more.get(UDP_KEY, b""), more.get(UDP_SESSION, bytes(4))
    since = more.get(SINCE, bytes(_SINCE.size))
    if len(port) != _PORT.size or (key and len(key) != _KEY_BYTES) or len(since) != _SINCE.size:
        raise DecodeError("hello", f"extensions of {len(port)}, {len(key)} and {len(since)} bytes")
    if len(session) != _SESSION.size:
        raise DecodeError("hello", f"a session id of {len(session)} bytes")
    fast = more.get(FAST_KEEPALIVE)
    if fast is not None and len(fast) != _FAST.size:
        raise DecodeError("hello", f"a fast keepalive of {len(fast)} bytes")
    node_id = more.get(NODE_ID, bytes(_NODE_ID.size))
    if len(node_id) != _NODE_ID.size:
        raise DecodeError("hello", f"a node id of {len(node_id)} bytes")
    return Hello(
        name.name if name is not None else b"",
        instance.ctxinst if instance is not None else b"",
        capabilities.version,
        capabilities.capabilities1,
        capabilities.capabilities3,
        _PORT.unpack(port)[0],
        tuple(more.get(COMPRESSION, b"")),
        key,
        DIGESTS in more,
        _SINCE.unpack(since)[0],
        _SESSION.unpack(session)[0],
        _FAST.unpack(fast) if fast is not None else None,
        CANARY in more,
        _NODE_ID.unpack(node_id)[0],
        RESUME in more,
    )


@dataclass(frozen=True, slots=True)
class Digests:
    """Digests of the interest and the sources that one side has told the other, or the other has recorded of it.

    None: not all was recorded, or all is being told once more, so there is nothing to compare.
    """

    interest: int | None
    sources: int | None

    def differences(self, other: Digests) -> tuple[bool, bool]:
        """Say whether interest differs, and whether sources do."""
        return _differ(self.interest, other.interest), _differ(self.sources, other.sources)


def _differ(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one != other


NO_DIGESTS: Final = Digests(None, None)


def keepalive(index: int, now_us: int, canary: bytes = b"") -> bytes:
    """The query; `now_us` by the asker's clock. `canary` follows as user data, for its size, in the answer too."""
    seconds, microseconds = divmod(now_us, 1_000_000)
    return _keepalive(TnwgKeepalive(index, seconds, microseconds, flags=KA_QUERY), canary)


def _keepalive(block: TnwgKeepalive, canary: bytes) -> bytes:
    if not canary:
        return lbmc.encode(lbmc.control_message(block))
    marked = lbmc.control_message(block, *extension(CANARY, b""))
    return lbmc.encode(replace(marked, payload=canary, end=END_DATA))


def canary_of(message: lbmc.Message) -> bytes:
    """The user data of a canary; empty for other messages. Raises: DecodeError."""
    return message.payload if message.payload and CANARY in extensions_of(message) else b""


def canary_response(query: TnwgKeepalive, canary: bytes) -> bytes:
    """Index, clock and size as they came."""
    return _keepalive(TnwgKeepalive(query.index, query.seconds, query.microseconds, flags=KA_RESPONSE), canary)


def response_to(query: TnwgKeepalive, digests: Digests = NO_DIGESTS) -> bytes:
    """Index and clock as they came."""
    interest, sources = digests.interest, digests.sources
    has = _HAS_INTEREST * (interest is not None) | _HAS_SOURCES * (sources is not None)
    reserved = _DIGESTS.pack(interest or 0, sources or 0, has)
    block = TnwgKeepalive(query.index, query.seconds, query.microseconds, reserved=reserved, flags=KA_RESPONSE)
    return lbmc.encode(lbmc.control_message(block))


def digests_of(response: TnwgKeepalive) -> Digests:
    interest, sources, has = _DIGESTS.unpack(response.reserved)
    return Digests(interest if has & _HAS_INTEREST else None, sources if has & _HAS_SOURCES else None)


# interest


def topic_interest(
    topic: bytes, domains: Iterable[int], *, is_cancel: bool = False, is_refresh: bool = False
) -> Iterator[bytes]:
    """TOPIC INTEREST, as many as it takes; the name fits."""
    flags = (INTEREST_CANCEL if is_cancel else 0) | (INTEREST_REFRESH if is_refresh else 0)
    for some in _parts(domains, TOPIC_DOMAINS_MAX):
        yield lbmc.encode(lbmc.control_message(TopicName(topic), TopicMdInterest(domains=some, flags=flags)))


def pattern_interest(
    pattern: bytes,
    kind: int,
    index: int,
    domains: Iterable[int],
    *,
    is_cancel: bool = False,
    is_refresh: bool = False,
) -> Iterator[bytes]:
    """PATTERN INTEREST, likewise; `index` is the sender's number for the pattern."""
    flags = (PATTERN_CANCEL if is_cancel else 0) | (PATTERN_REFRESH if is_refresh else 0)
    for some in _parts(domains, PATTERN_DOMAINS_MAX):
        block = PatternMdInterest(pattern_type=kind, index=index, domains=some, flags=flags)
        yield lbmc.encode(lbmc.control_message(TopicName(pattern), block))


def _parts(domains: Iterable[int], most: int) -> Iterator[tuple[int, ...]]:
    ordered = sorted(domains)
    for at in range(0, len(ordered), most):
        yield tuple(ordered[at : at + most])


# sources


@dataclass(frozen=True, slots=True)
class SourceRecord:
    """A source that the sender would forward under the number `srcidx`.

    `request`: address and port for requests, and abilities. `options`: of its advertisement, encoded, those that cross
    DROs unchanged.
    """

    srcidx: int
    domain_id: int
    topic: bytes
    otid: bytes
    topic_index: int
    pattern_index: int | None = None
    context_instance: bytes = b""
    request: tuple[int, int, int] | None = None
    options: bytes = b""


@dataclass(frozen=True, slots=True)
class SourceEnd:
    """That source is forwarded no more."""

    srcidx: int
    otid: bytes


def source(record: SourceRecord) -> bytes:
    """SOURCE; the name fits."""
    blocks: list[AnyBlock] = [
        TopicSource(domain_id=record.domain_id),
        TopicName(record.topic),
        OtidBlock(record.otid),
        TopicIdx(record.topic_index),
        SrcIdx(record.srcidx),
    ]
    if record.pattern_index is not None:
        blocks.append(PatIdx(record.pattern_index))
    if record.context_instance:
        blocks.append(CtxInst(record.context_instance))
    if record.request is not None:
        ip, port, functionality = record.request
        blocks.append(TopicSourceExfunc(ip=ip, port=port, functionality=functionality))
    if record.options:
        blocks += extension(SOURCE_OPTIONS, record.options)
    return lbmc.encode(lbmc.control_message(*blocks))


def source_end(domain_id: int, record: SourceEnd, topic_index: int) -> bytes:
    """SOURCE END."""
    return lbmc.encode(
        lbmc.control_message(
            TopicSource(domain_id=domain_id, flags=SOURCE_EOS),
            OtidBlock(record.otid),
            TopicIdx(topic_index),
            SrcIdx(record.srcidx),
        )
    )


def read_source(message: lbmc.Message) -> SourceRecord | SourceEnd:
    """Read a message with a TOPIC_SOURCE block. Raises: DecodeError when something is missing."""
    about, otid, number = message.get(TopicSource), message.get(OtidBlock), message.get(SrcIdx)
    if about is None or otid is None or number is None:
        raise DecodeError("source", "the OTID or the number of the source is missing")
    if about.flags & SOURCE_EOS:
        return SourceEnd(number.source_index, otid.otid)
    topic, index = message.get(TopicName), message.get(TopicIdx)
    if topic is None:
        raise DecodeError("source", "the name of the topic is missing")
    pattern, instance, request = message.get(PatIdx), message.get(CtxInst), message.get(TopicSourceExfunc)
    return SourceRecord(
        number.source_index,
        about.domain_id,
        topic.topic,
        otid.otid,
        index.topic_index if index is not None else 0,
        pattern.pattern_index if pattern is not None else None,
        instance.ctxinst if instance is not None else b"",
        (request.ip, request.port, request.functionality) if request is not None else None,
        extensions_of(message).get(SOURCE_OPTIONS, b""),
    )
