"""Targets in `dro/wire`: what decodes is encoded again, and means the same then."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, Final

from lz4.frame import BLOCKSIZE_MAX64KB, LZ4FrameCompressor

from dro.errors import DecodeError
from dro.proto.peerlink import messages as peer_messages
from dro.proto.unicast.messages import NotTaken, UnicastReader
from dro.proto.unicast.multicast import MulticastLimits, MulticastReader
from dro.proto.unicast.splitter import MessageSplitter
from dro.wire import lbtipc, lbtrm, lbtru, otid, peer_datagram
from dro.wire.lbmc import addressing, origin, properties
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.block import RawBlock
from dro.wire.lbmc.codes import END_DATA, BlockType
from dro.wire.lbmc.dro_blocks import KA_QUERY, TnwgKeepalive
from dro.wire.lbmc.return_address import decode_return, encode_return
from dro.wire.lbmr import packet as lbmr
from dro.wire.lz4_frame import BLOCK_MAX, FrameReader
from dro.wire.peer_datagram import DatagramDrop, DatagramKey, DatagramReader, DatagramWriter
from dro.wire.source_string import (
    IpcAddress,
    LbtrmAddress,
    LbtruAddress,
    RdmaAddress,
    SmxAddress,
    TcpAddress,
    UnknownTransport,
    format_source,
)
from dro.wire.srs import messages as srs_messages
from dro.wire.srs import rsocket
from dro.wire.srs.rsocket import ErrorFrame, ExtFrame, Frame, PayloadFrame
from tests.builders.srs_records import all_records, client_frames, server_frames
from tests.fuzz.seeds import published, recorded, vectors
from tests.fuzz.target import Target

_RM_PORT: Final = 14400
_KEY: Final = DatagramKey(b"k" * peer_datagram.KEY_BYTES, b"salt")
_MESSAGES_MAX: Final = 70_000


def tried(act: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401  whatever it gives
    """What it gives; None for bytes that it refuses."""
    try:
        return act(*arguments)
    except DecodeError:
        return None


def _lbmr(data: bytes) -> Hashable:
    packet, trouble = lbmr.decode_lenient(data)
    if packet is None:
        assert trouble is not None
        raise trouble
    made = lbmr.encode(packet)
    assert lbmr.decode(made) == packet
    body = packet.body
    first = next(iter(getattr(body, "tirs", ())), None)
    options = getattr(first, "options", None) or getattr(body, "options", None)
    kinds = tuple(sorted({type(option).__name__ for option in getattr(options, "items", ())}))
    return type(body).__name__, trouble and trouble.where, kinds, packet.options is None


def _lbmc(data: bytes) -> Hashable:
    """A message by records, and by all that reads it in place."""
    message = lbmc.decode(data)
    size = int.from_bytes(data[2:4], "big")
    whole = data[:size]
    assert lbmc.encode(message) == whole
    blocks, end, at = lbmc.chain(whole, 0, size)
    assert [code for code, _, _ in blocks] == [block.code for block in message.blocks]
    assert end == message.end
    payload_at = lbmc.payload_at(whole, 0, size)
    assert payload_at == (at if end == END_DATA else -1)
    tried(lbmc.frag_of, whole, 0, size)
    _ = message.must_drop
    where = tried(addressing.read_addressing, whole)
    if where is not None and where.destination is not None:
        moved = addressing.read_addressing(addressing.with_hops(whole, where.destination, 3)).destination
        assert moved is not None
        assert moved.hops_taken == 3
    addressing.asks_for_repair(whole)
    _origin(whole)
    split = tried(properties.split, message)
    if split is not None and split[1]:
        tried(_properties, split[1])
    return message.type, tuple([block.code for block in message.blocks[:3]]), end, where is None


def _origin(whole: bytes) -> None:
    found = tried(origin.read_origin, whole)
    with_domain = origin.request_with_domain(whole, 77)
    if found is None:
        assert with_domain == whole
        return
    if found.is_request and not found.domain_id:
        assert len(with_domain) >= 0xFFF0 or origin.read_origin(with_domain).domain_id == 77
    made = tried(origin.completed, whole, found, 5, bytes(otid.OTID_SIZE))
    if made is not None:
        again = origin.read_origin(made)
        assert again.otid == (bytes(otid.OTID_SIZE) if found.otid is None else found.otid)
        assert again.domain_id == (None if found.domain_id is None else 5)
        assert lbmc.decode(made).payload == lbmc.decode(whole).payload


def _properties(data: bytes) -> Hashable:
    order, _ = properties.read_head(data)
    found = properties.decode(data)
    made = properties.encode(found, order)
    assert properties.encode(properties.decode(made), order) == made
    return order, tuple(sorted({item.type for item in found}))


def _properties_seeds() -> list[bytes]:
    messages = [lbmc.decode(data) for data in vectors("lbmc", "", ("msg_properties",))]
    return [properties.split(message)[1] for message in messages]


def _peer_message(data: bytes) -> Hashable:
    """A message of a peer link, read as what it says that it is."""
    next(lbmc.walk(data, 0, len(data)), None)
    message = lbmc.decode(data)
    whole = data[: int.from_bytes(data[2:4], "big")]
    kind = peer_messages.kind_of(whole)
    greeting = peer_messages.read_hello(message)
    if greeting is not None and len(greeting.context_instance) == 8:
        again = peer_messages.read_hello(lbmc.decode(peer_messages.hello(greeting)))
        assert again is not None
        assert again.name == greeting.name
        assert (again.udp_port, again.compression, again.fast_ms) == (
            greeting.udp_port, greeting.compression, greeting.fast_ms,
        )  # fmt: skip
    peer_messages.canary_of(message)
    source = tried(peer_messages.read_source, message)
    if isinstance(source, peer_messages.SourceRecord) and peer_messages.fits(source.topic):
        assert peer_messages.read_source(lbmc.decode(peer_messages.source(source))) == source
    return kind, greeting is None, type(source).__name__, tuple(sorted(peer_messages.extensions_of(message)))


@cache
def peer_message_seeds() -> list[bytes]:
    made = peer_messages
    record = made.SourceRecord(1, 2, b"AAA", b"o" * 32, 7, 3, b"instance", (1, 2, 3), b"options" * 60)
    own = made.Hello(
        b"name", b"instance", 1, 3, 0x30000, 4444, (1, 2), b"k" * 36, True, 5, 6, (200, 700), True
    )  # fmt: skip
    return [
        *vectors("lbmc", "", ("peer",)), made.hello(own), made.hello(made.Hello(b"", b"instance")),
        made.source(record), made.source_end(2, made.SourceEnd(1, b"o" * 32), 7),
        *made.topic_interest(b"AAA", range(1, 80)), *made.topic_interest(b"B", (1,), is_cancel=True),
        *made.pattern_interest(b"^A", 1, 3, (1, 3), is_refresh=True),
        made.keepalive(1, 5), made.keepalive(2, 9, b"x" * 99),
        made.canary_response(TnwgKeepalive(1, 2, 3, flags=KA_QUERY), b"x" * 30),
        lbmc.encode(lbmc.control_message(RawBlock(BlockType.EXTOPT, b"\xc0\0\xf0\x05\0\0"))),
    ]  # fmt: skip


def _unicast(data: bytes) -> Hashable:
    """A message to an application, whole and as a piece that has come before."""
    reader = UnicastReader()
    taken = [reader.read(data, (1, 1)) for _ in range(2)]
    assert reader.dropped.total() == sum(isinstance(one, NotTaken) for one in taken)
    return tuple(one.name if isinstance(one, NotTaken) else type(one).__name__ for one in taken)


def _multicast(data: bytes) -> Hashable:
    """A multicast immediate message by two ways, and what time does to it: it is taken once."""
    reader = MulticastReader(MulticastLimits(1, 16384, 1000, 0, 60_000_000_000, 5_000_000_000))
    session = LbtrmAddress(1, 0xE0000001, 1, 2, 3)
    taken = [reader.read(data, session, now_ns) for now_ns in range(2)]
    assert not taken[1]
    while (deadline := reader.next_deadline()) is not None:
        taken.append(reader.on_timer(deadline))
    assert not len(reader)
    return tuple(type(event).__name__ for events in taken for event in events)


def _response(data: bytes) -> Hashable:
    """What another program gets of a response: what is read is written the same."""
    assert encode_return(decode_return(data)) == data
    return len(data)


def _walk(data: bytes) -> Hashable:
    """A stream of messages, by the walk and in pieces by the splitter."""
    splitter, messages = MessageSplitter(), []
    error = None
    for at in range(0, len(data), 97):
        splitter.feed(data[at : at + 97])
        try:
            while (message := splitter.next_message()) is not None:
                messages.append(message)
        except DecodeError as e:
            error = e
            break
        assert len(splitter) < _MESSAGES_MAX
    joined = b"".join(messages)
    assert data.startswith(joined)
    walked = 0
    try:
        for pos, length in lbmc.walk(data, 0, len(data)):
            assert pos == walked
            walked = pos + length
            tried(lbmc.payload_at, data, pos, length)
            tried(lbmc.frag_of, data, pos, length)
    except DecodeError:
        assert walked == len(joined)
        if not messages:
            raise
    else:
        assert error is None
        assert walked == len(joined)
    return min(len(messages), 20), error is None, len(data) - walked < 4


def _coded(decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> Callable[[bytes], Hashable]:
    def check(data: bytes) -> Hashable:
        packet = decode(data)
        made = encode(packet)
        assert decode(made) == packet
        options = tuple([option.kind for option in getattr(packet, "options", ())][:3])
        return type(packet).__name__, getattr(packet, "flags", 0) == 0, options

    return check


def _otid(data: bytes) -> Hashable:
    """Also a source string."""
    found = otid.decode(data)
    shown = str(found)
    assert shown.isprintable()
    assert format_source(found.address).isprintable()
    if found.version == otid.VERSION:
        made = otid.encode(found.address, found.topic_index, found.context_id, found.transport_index)
        assert otid.decode(made) == found
    return found.transport_type, found.version == otid.VERSION


def _otid_seeds() -> list[bytes]:
    addresses = (
        TcpAddress(1, 2, 3), LbtrmAddress(1, 0xEF000001, 3, 4, 5), LbtruAddress(1, 2, 3), RdmaAddress(1, 2, 3),
        IpcAddress(1, 2, 3), SmxAddress(1, 2, 3),
    )  # fmt: skip
    return [otid.encode(address, 7, 8, 9) for address in addresses]


def _source_string(data: bytes) -> Hashable:
    """The transport of an advertisement, as a text."""
    packet = lbmr.decode(b"\x10\0\0\1T\0" + data)
    assert isinstance(packet.body, lbmr.Queries)
    address = packet.body.tirs[0].transport
    text = format_source(address, packet.body.tirs[0].topic_index)
    assert isinstance(address, UnknownTransport) or text.isascii()
    return type(address).__name__, text.count(":")


def _source_string_seeds() -> list[bytes]:
    """TIRs behind their topics."""
    packets = [data for data in vectors("lbmr", "", ("tir_tcp", "tir_lbt")) if data[:4] == bytes((0, 0, 0, 1))]
    return [data[data.index(0, 4) + 1 :] for data in packets]


def _lz4_frame(data: bytes) -> Hashable:
    """In pieces; what is held stays bounded."""
    reader, view = FrameReader(), memoryview(bytearray(4 * BLOCK_MAX))
    done = blocks = 0
    for at in range(0, len(data), 1000):
        reader.feed(data[at : at + 1000])
        while count := reader.read_into(view):
            done += count
            blocks += 1
        assert len(reader._input) <= BLOCK_MAX + 1000 + 8
        assert len(reader._history or b"") <= 6 * BLOCK_MAX
    if not done and data:
        raise DecodeError("lz4 frame", "nothing came of it")
    return min(blocks, 9), done.bit_length(), reader.is_broken, reader._trailer


def _lz4_seeds() -> list[bytes]:
    made = []
    for is_linked in (True, False):
        for has_checksum in (True, False):
            frame = LZ4FrameCompressor(
                block_size=BLOCKSIZE_MAX64KB, block_linked=is_linked, block_checksum=has_checksum, auto_flush=True
            )  # type: ignore[call-arg]  # left out of its types
            parts = [frame.begin(), *(frame.compress(b"a text and %d times more of it" % n * n) for n in (1, 9, 30))]
            made.append(b"".join(parts))
    return made


def _peer_datagram(data: bytes, *, is_compressed: bool, key: DatagramKey | None) -> Hashable:
    reader = DatagramReader(is_compressed=is_compressed, key=key)
    packet = reader.read(data)
    if isinstance(packet, DatagramDrop):
        raise DecodeError(packet.value, "dropped")
    assert len(packet) <= max(0xFFFF, len(data))
    assert reader.read(data) == (packet if key is None else DatagramDrop.REPLAYED)
    again = DatagramWriter(compresses=is_compressed, key=key).write(packet)
    assert DatagramReader(is_compressed=is_compressed, key=key).read(again) == packet
    return len(packet).bit_length(), data[:1]


def _lbtipc_seeds() -> list[bytes]:
    return [
        lbtipc.encode(packet, 1)
        for packet in (
            lbtipc.IpcHello(1), lbtipc.IpcHello(2, 3), lbtipc.IpcWelcome(3, True), lbtipc.IpcPosition(4),
            lbtipc.IpcRefusal(lbtipc.Refused.FULL), lbtipc.OtherLayout(2),
        )
    ]  # fmt: skip


def _datagram_seeds(*, is_compressed: bool, key: DatagramKey | None) -> list[bytes]:
    packets = [*vectors("transports", "lbtru"), b"x" * 900, b""]
    return [DatagramWriter(compresses=is_compressed, key=key).write(packet) for packet in packets]


def _lbtrm_content(data: bytes) -> Hashable:
    """A datagram of a source, and each message in it."""
    packet = lbtrm.decode(data)
    if not isinstance(packet, lbtrm.Data):
        return type(packet).__name__
    messages = 0
    for pos, length in lbmc.walk(packet.payload, 0, len(packet.payload)):
        tried(_lbmc, packet.payload[pos : pos + length])
        messages += 1
    return "Data", min(messages, 5)


def _lbmsrs(data: bytes) -> Hashable:
    """A batch; what is kept of it means the same when it is written again."""
    messages, trouble = srs_messages.decode_lenient(data)
    if not messages:
        assert trouble is not None
        raise trouble
    assert srs_messages.decode(b"".join(map(srs_messages.encode, messages))) == messages
    return tuple([type(message).__name__ for message in messages[:3]]), trouble and trouble.where


def _rsocket(data: bytes) -> Hashable:
    """A stream in pieces: each frame means the same when it is written again, and what is held stays bounded."""
    splitter, joiner, frames = rsocket.FrameSplitter(4000), rsocket.FragmentJoiner(4000), []
    for at in range(0, len(data), 97):
        splitter.feed(data[at : at + 97])
        while (raw := splitter.next_frame()) is not None:
            frame = rsocket.decode(raw)
            assert rsocket.decode(rsocket.encode(frame)[rsocket.LENGTH_BYTES :]) == frame
            frames.append(type(joiner.join(frame)).__name__)
        assert len(splitter) < 4000 + 97 + 3
    if not frames:
        raise DecodeError("rsocket", "no frame")
    return tuple(frames[:3]), len(splitter) == 0


def _srs_records() -> list[bytes]:
    return list(map(srs_messages.encode, all_records()))


def _rsocket_seeds() -> list[bytes]:
    several: list[Frame] = [
        PayloadFrame(5, b"a", follows=True),
        PayloadFrame(5, b"b"),
        ErrorFrame(0, 1, b"no"),
        ExtFrame(1, b"x"),
    ]
    runs = [client_frames(), server_frames(), several]
    return [*vectors("lbmsrs"), *(b"".join(map(rsocket.encode, run)) for run in runs)]


_LBMR: Final = {
    "tqr": ("tqr", "wctqr", "keepalive", "unicast"),
    "tir": ("tir", "dro_proxy"),
    "packet-options": ("pktopt",),
    "tmr": ("tmr", "trreq"),
    "queue": ("qqr", "qir", "qmgmt"),
    "extended": ("pser", "ctxinfo", "remote", "rctxinfo"),
    "tnwg": ("tnwg",),
}
TARGETS: Final = (
    *(Target(f"lbmr-{name}", published("lbmr", "", *starts), _lbmr) for name, starts in _LBMR.items()),
    Target("lbmc-data", published("lbmc", "", "data", "frag", "req", "tsni", "tcp", "eot", "retr", "proactive"), _lbmc,
           form="lbmc"),
    Target("lbmc-addressed", published("lbmc", "", "uim", "mim", "response", "lj", "rx", "sri"), _lbmc, form="lbmc"),
    Target("unicast-messages", published("lbmc", "", "uim", "req", "response", "frag", "rx", "lj"), _unicast,
           form="lbmc"),
    Target("multicast-messages", published("lbmc", "", "mim", "data", "frag", "req"), _multicast, form="lbmc"),
    Target("response-bytes", lambda: [bytes.fromhex("01000000030a010203383700000007")], _response),
    Target("lbmc-peer", published("lbmc", "", "peer", "extopt"), _lbmc, form="lbmc"),
    Target("lbmc-stores", published("lbmc", "", "ume", "umq", "auth", "ssf", "apphdr", "msg", "block"), _lbmc,
           form="lbmc"),
    Target("lbmc-properties", _properties_seeds, _properties),
    Target("lbmc-stream", published("lbmc"), _walk),
    Target("peer-messages", peer_message_seeds, _peer_message, form="lbmc"),
    Target("lbtrm", published("transports", "lbtrm"), _coded(lbtrm.decode, lbtrm.encode)),
    Target("lbtrm-content", lambda: recorded(_RM_PORT), _lbtrm_content),
    Target("lbtru", published("transports", "lbtru"), _coded(lbtru.decode, lbtru.encode)),
    Target("lbtipc", _lbtipc_seeds,
           _coded(lambda data: lbtipc.decode(data, 1), lambda packet: lbtipc.encode(packet, 1))),
    Target("lz4-frame", _lz4_seeds, _lz4_frame),
    Target("peer-datagram-lz4", lambda: _datagram_seeds(is_compressed=True, key=None),
           lambda data: _peer_datagram(data, is_compressed=True, key=None)),
    Target("peer-datagram-sealed", lambda: _datagram_seeds(is_compressed=True, key=_KEY),
           lambda data: _peer_datagram(data, is_compressed=True, key=_KEY)),
    Target("lbmsrs", lambda: [*_srs_records(), b"".join(_srs_records())],
           _lbmsrs),
    Target("rsocket", _rsocket_seeds, _rsocket),
    Target("otid", _otid_seeds, _otid),
    Target("source-string", _source_string_seeds, _source_string),
)  # fmt: skip
