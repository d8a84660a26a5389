"""Whatever comes over a peer link, before or after the greeting: the DRO lives, forgets it, and serves the next one.

A DRO in this process, with real portals and a real route manager, gets streams that are mutations of what a companion
says. `DRO_FUZZ_STREAMS` is how many, `DRO_FUZZ_SEED` which; a million is the long profile. Each batch of streams has a
DRO of its own, so that a stream that fails is found again by its batch alone.
"""

from __future__ import annotations

import gc
import logging
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

import pytest
from lz4.frame import BLOCKSIZE_MAX64KB, LZ4FrameCompressor

from dro.proto.peerlink.messages import (
    COMPRESSION_LZ4,
    DIGESTS,
    Hello,
    SourceEnd,
    SourceRecord,
    canary_response,
    extension,
    hello,
    keepalive,
    pattern_interest,
    source,
    source_end,
    topic_interest,
)
from dro.proto.peerlink.session import LinkEnd
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MessageType
from dro.wire.lbmc.data_blocks import CtxInst, SrcIdx, TopicIdx, Tsni, TsniRecord
from dro.wire.lbmc.dro_blocks import (
    KA_QUERY,
    KA_RESPONSE,
    PATTERN_PCRE,
    Domain,
    RouteInfo,
    RouteInfoNeighbor,
    TnwgKeepalive,
)
from dro.wire.source_string import TcpAddress
from portals.peer.stream.connection import PeerConnection
from tests.fakes.stream import FakeStream
from tests.fakes.um_contexts import Stepper
from tests.rigs.network import Application, Dro, Network, network

STREAMS: Final = int(os.environ.get("DRO_FUZZ_STREAMS", "2000"))
SEED: Final = int(os.environ.get("DRO_FUZZ_SEED", "1"))
OF_A_KIND: Final = STREAMS // 2
"""On links without and with compression."""
BATCH: Final = 5000
"""Streams that one DRO gets."""
CHECK: Final = 500
"""After so many a good companion connects."""
STREAM_S: Final = 2.0
"""Processor time of one stream, at most."""
BLOCKS: Final = 20_000
ALONE: Final = 10_000
GROWTH: Final = 32 << 20
"""What a DRO may grow by in a batch, after its first streams: blocks of memory, and bytes."""
FORGOTTEN_MS: Final = 90_000
"""More than a DRO that is gone is remembered."""
ADDRESS: Final = TcpAddress(0x7F000001, 9, 0)
_numbers = count(1)


def route(node_id: int, sqn: int) -> bytes:
    """Of a companion with a TRD of its own, domain 1, and the link."""
    neighbours = (RouteInfoNeighbor(1, 1, 1), RouteInfoNeighbor(1 << 63 | 1, 1, 1))
    return lbmc.encode(lbmc.control_message(RouteInfo(node_id, 1, sqn & 0x7FFF, 5), *neighbours))


def data(number: int, sqn: int, payload: bytes) -> bytes:
    return lbmc.encode(lbmc.Message(MessageType.MESSAGE, 7, sqn, (SrcIdx(number),), payload, 0))


def record(number: int, topic: bytes = b"AAA") -> SourceRecord:
    otid = number.to_bytes(4, "big").rjust(32, b"o")
    return SourceRecord(number, 1, topic, otid, 7, options=b"" if number % 2 else b"options")


def greeting(name: bytes = b"companion", *, has_canaries: bool = False) -> bytes:
    fast_ms = (200, 700) if has_canaries else None
    own = Hello(name, b"instance", capabilities3=0x30000, has_digests=True, since_us=5)
    return hello(replace(own, fast_ms=fast_ms, has_canaries=has_canaries))


def dialogue(draw: random.Random) -> list[bytes]:
    """What a companion says: every kind of message that there is, some of them several times."""
    made = [
        greeting(draw.choice((b"companion", b"other", b"")), has_canaries=draw.randrange(2) == 0),
        route(1 << 63 | draw.randrange(100, 140), draw.randrange(1 << 15)),
        *topic_interest(draw.choice((b"AAA", b"BBB", b"C" * 200)), range(1, draw.choice((2, 5, 70)))),
        *topic_interest(b"AAA", (1,), is_cancel=True),
        *topic_interest(b"BBB", (1,), is_refresh=True),
        *pattern_interest(b"^A.*", PATTERN_PCRE, 1, (1, 3)),
        *(source(record(number)) for number in range(1, draw.randrange(2, 6))),
        *(data(draw.randrange(1, 6), sqn, b"x" * draw.choice((0, 5, 900))) for sqn in range(draw.randrange(10))),
        lbmc.encode(lbmc.control_message(SrcIdx(1), Tsni((TsniRecord(7, 3),)))),
        lbmc.encode(lbmc.control_message(SrcIdx(1), TopicIdx(7))),
        keepalive(draw.randrange(3), 5),
        keepalive(draw.randrange(3), 5, b"x" * draw.choice((1, 1200, 60_000))),
        canary_response(TnwgKeepalive(draw.randrange(20), 2, 3, flags=KA_QUERY), b"x" * draw.choice((1, 1200))),
        lbmc.encode(lbmc.control_message(TnwgKeepalive(1, 2, 3, flags=draw.choice((KA_QUERY, KA_RESPONSE))))),
        source_end(1, SourceEnd(1, record(1).otid), 7),
        lbmc.encode(lbmc.control_message(Domain(domain_id=1))),
        lbmc.encode(lbmc.control_message(CtxInst(b"instance"), *extension(DIGESTS, b"\x01"))),
        lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, 0, (), b"immediate", 0)),
    ]
    draw.shuffle(middle := made[1:])
    return [made[0], *middle[: draw.randrange(len(middle) + 1)]]


def flipped(draw: random.Random, message: bytes) -> bytes:
    changed = bytearray(message)
    for _ in range(draw.randrange(1, 5)):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def with_extremes(draw: random.Random, message: bytes) -> bytes:
    """A field of some size is 0, all ones or the sign bit alone."""
    size = draw.choice((1, 2, 4, 8))
    at = draw.randrange(len(message))
    value = draw.choice((bytes(size), b"\xff" * size, b"\x80" + bytes(size - 1), b"\x7f" + b"\xff" * (size - 1)))
    return (message[:at] + value + message[at + size :])[: len(message)]


def with_length(draw: random.Random, message: bytes) -> bytes:
    """That of the message, or one that may be that of a block."""
    if draw.randrange(2):
        length = draw.choice((0, 3, 4, 8, 12, len(message) - 1, len(message) + 1, 0xFFFF, draw.randrange(1 << 16)))
        return message[:2] + length.to_bytes(2, "big") + message[4:]
    at = draw.randrange(len(message))
    return message[:at] + bytes((draw.choice((0, 1, 2, 4, 255, draw.randrange(256))),)) + message[at + 1 :]


def spliced(draw: random.Random, message: bytes) -> bytes:
    """Random bytes in place of some, and the length of the message as it is then."""
    at, to = sorted(draw.randrange(len(message) + 1) for _ in range(2))
    made = message[:at] + draw.randbytes(draw.randrange(40)) + message[to:]
    return made[:2] + len(made).to_bytes(2, "big") + made[4:] if len(made) >= 4 else made


def mutated(draw: random.Random) -> bytes:
    """One stream."""
    messages = dialogue(draw)
    first = draw.randrange(3) != 0  # two of three streams are greeted properly
    for _ in range(draw.randrange(1, 4)):
        at = draw.randrange(first and len(messages) > 1, len(messages))
        match draw.randrange(9):
            case 0:
                messages[at] = flipped(draw, messages[at])
            case 1:
                messages[at] = messages[at][: draw.randrange(len(messages[at]) + 1)] or b"\0"
            case 2:
                messages[at:at] = [messages[at]] * draw.choice((1, 2, 50))
            case 3:
                tail = messages[first:]
                draw.shuffle(tail)
                messages[first:] = tail
            case 4:
                messages[at] = with_length(draw, messages[at].ljust(8, b"\0"))
            case 5:
                messages.insert(at + 1, draw.randbytes(draw.choice((1, 4, 60, 3000))))
            case 6:
                messages[at] = with_extremes(draw, messages[at])
            case 7:
                messages[at] = spliced(draw, messages[at])
            case _:
                del messages[at]
                messages.append(b"\x16\x03\x01" if draw.randrange(4) == 0 else draw.randbytes(4))
    return b"".join(messages)


def compressed(draw: random.Random, body: bytes) -> bytes:
    """A greeting that agrees to compression, and the body as it is then, which may be broken once more."""
    frame = LZ4FrameCompressor(block_size=BLOCKSIZE_MAX64KB, block_linked=True, auto_flush=True)
    made = frame.begin() + frame.compress(body)
    if draw.randrange(3) == 0:
        made = draw.choice((flipped, with_extremes, spliced))(draw, made)
    return hello(Hello(b"companion", b"instance", compression=(COMPRESSION_LZ4,), has_digests=True)) + made


class Bench:
    """DRO B, whose peer portal listens, and an application in its TRD that wants GOOD. The test is the companion."""

    def __init__(self, net: Network, *, is_compressed: bool) -> None:
        self.net = net
        self.is_compressed = is_compressed
        file = net.plan.file("B")
        text = file.read_text().replace("</peer>", "<fast-keepalive/><canary/></peer>")
        compression = "<compression>LZ4</compression>" if is_compressed else ""
        file.write_text(text.replace("<nodelay/>", f"<nodelay/>{compression}"))
        self.net.start("B")
        self.dro: Dro = self.net.dros["B"]
        self.portal = self.dro.peers["A"]
        self.receiver: Application = self.net.application(2)
        self.receiver.context.want_topic(b"GOOD")
        self.receiver.context.want_topic(b"AAA")
        self.ends: list[str] = []
        over = self.portal.on_over

        def on_over(connection: PeerConnection, why: str, remedy: str, end: LinkEnd) -> None:
            self.ends.append(why)
            over(connection, why, remedy, end)

        self.portal.on_over = on_over  # type: ignore[method-assign]
        self.net.run(500)

    def companion(self) -> FakeStream:
        stream = FakeStream()
        self.portal._on_stream(stream, ADDRESS)
        return stream

    def say(self, stream: FakeStream, content: bytes, *, step_ms: int = 0) -> None:
        stream.to_read += content
        while not stream.is_closed and stream.events is not None:
            if not stream.events.on_readable() and (stream.is_closed or not stream.to_read):
                break
        self.turn(step_ms)

    def turn(self, step_ms: int) -> None:
        self.net.stepper.clock.time_ns += step_ms * 1_000_000
        for _ in range(3):
            self.net.loop.run_once(0)

    def throw(self, draw: random.Random) -> None:
        """One stream, in one or more pieces, and then the companion goes away, unless it was turned away."""
        content, stream = mutated(draw), self.companion()
        if self.is_compressed and draw.randrange(4):
            content = compressed(draw, content)
        before = len(self.ends)
        cuts = sorted(draw.randrange(len(content) + 1) for _ in range(draw.choice((0, 0, 1, 3))))
        for begin, end in zip((0, *cuts), (*cuts, len(content)), strict=True):
            if not stream.is_closed:
                self.say(stream, content[begin:end], step_ms=draw.randrange(2))
        if not stream.is_closed:
            stream.is_at_end = True
            assert stream.events is not None
            while stream.events.on_readable():
                pass
            self.turn(0)
        assert stream.is_closed
        assert len(self.ends) == before + 1, self.ends[before:]
        assert self.ends[-1]
        del self.ends[:]

    def rest(self) -> None:
        """Until nothing that was said counts any more."""
        self.net.run(4000, step_ms=100)
        assert self.portal.connection is None
        assert not self.portal.link.newcomers
        assert len(self.portal.link.heard) == 0

    def serves(self) -> None:
        """A good companion is taken, and a message of its source arrives."""
        number = next(_numbers)
        about = replace(record(1, b"GOOD"), otid=b"good" + number.to_bytes(28, "big"))
        stream = self.companion()
        self.say(stream, greeting() + source(about))
        assert not stream.is_closed
        said = b""
        for sqn in range(300):
            self.say(stream, route(1 << 63 | 1 << 40 | number, sqn + 1) if sqn % 5 == 0 else b"", step_ms=20)
            self.net.stepper.settle()
            said = b"message %d of %d" % (sqn, number)
            self.say(stream, data(1, sqn, said), step_ms=20)
            self.net.stepper.settle()
            if any(message.endswith(said) for topic, _, message in self.receiver.sink.fragments if topic == b"GOOD"):
                break
        else:
            raise AssertionError("no message has arrived")
        self.receiver.sink.fragments.clear()
        self.receiver.sink.unbound.clear()
        stream.is_at_end = True
        assert stream.events is not None
        while stream.events.on_readable():
            pass


@contextmanager
def silence() -> Iterator[None]:
    """Lines are made, as the portal says why, and kept by nobody."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def resident() -> int:
    """Bytes of memory that the process holds, without what it shares: rings grow under load, and shrink by and by."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def run_batch(folder: Path, batch: int, streams: int, *, is_compressed: bool) -> tuple[int, int]:
    """By how many blocks and bytes of memory the DRO has grown since its first streams."""
    folder.mkdir()
    stepper = Stepper()
    before = 0, 0
    with silence(), closing(stepper.loop), network(folder, stepper, {"A": [1, "B"], "B": [2, "A"]}) as net:
        bench = Bench(net, is_compressed=is_compressed)
        draw = random.Random(f"{SEED} {batch}")
        for number in range(streams):
            began = time.thread_time()
            bench.throw(draw)
            assert time.thread_time() - began < STREAM_S, f"stream {number} of batch {batch} took too long"
            if number % CHECK == CHECK - 1 or number == streams - 1:
                bench.rest()
                bench.serves()
                bench.rest()
                net.run(FORGOTTEN_MS, step_ms=1000)
                gc.collect()
                after = sys.getallocatedblocks(), resident()
                before = before if any(before) else after
        return after[0] - before[0], after[1] - before[1]


@pytest.mark.parametrize("is_compressed", [False, True], ids=["plain", "LZ4"])
@pytest.mark.parametrize("batch", range(-(-OF_A_KIND // BATCH)))
def test_fuzzed_peer_streams_never_crash_leak_or_stall_a_portal(
    batch: int, tmp_path: Path, *, is_compressed: bool
) -> None:
    streams = min(BATCH, OF_A_KIND - batch * BATCH)
    blocks, size = run_batch(tmp_path / "dro", batch, streams, is_compressed=is_compressed)
    assert blocks < BLOCKS
    if OF_A_KIND > ALONE:  # the memory of a process that has other tests as well says nothing
        assert size < GROWTH
