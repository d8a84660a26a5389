"""Random batches through the steps of the data path; prints a digest of all tables, counters and bytes that come out.

Run in both forms of the steps, the outputs are equal: `python -m tests.rigs.steps SEED`.
"""

from __future__ import annotations

import hashlib
import random
import struct
import sys
from typing import Final, cast

from dro.compiled_steps import form
from dro.errors import DecodeError
from dro.transport.frames import drop_first, in_stream, keep_first, lay_out, write_topics
from dro.transport.lbtrm.headers import write_headers
from dro.transport.lbtrm.receiver import HEADER as LBTRM
from dro.transport.runs import ROW, RunTable, read_messages
from dro.transport.scan import BadStream, DatagramHeader, Stream, scan_datagrams, scan_stream
from dro.transport.session import SenderTransport
from dro.wire.lbmc.message import HEADER
from dro.wire.lbtru import FLAG_RETRANSMISSION, Data, encode, sid_option
from portals.datapath import descriptor
from portals.datapath.duplicate_window import DuplicateWindow
from portals.datapath.outgoing import Lane, ProxySource
from portals.datapath.plan import plan
from portals.datapath.select import compact, extent, move, split, take_all
from tests.fakes.transport import FakeSender

SENDER: Final = 7 << 32
LBTRU: Final = DatagramHeader(
    20, key_at=12, sqn_at=4, trail_at=8, mark_at=0, mark_bytes=4, mark_mask=0xFFFFFFFF, mark=1 << 16
)
"""Of packets with a session id and no other option: a transport whose header is laid out in another way."""
KEYS: Final = {LBTRM: 1234 << 32 | 5, LBTRU: 8 << 48 | 5}
STRIDE: Final = 1500
TOPICS: Final = 9


class Sender(FakeSender):
    fragment_max_bytes = 900


def message(rng: random.Random, sqns: list[int]) -> bytes:
    topic = rng.randrange(TOPICS)
    if rng.random() < 0.03:
        return bytes([8, 0x65, 0, 12, 0xFF, 8, 0, 0]) + topic.to_bytes(4, "big")
    kind, head = rng.choice((0, 0, 0, 0, 2, 10)), rng.choice((0, 0, 0, 0x66))
    size = rng.choice((12, 50, 50, 50, 200, 700, 1000))
    sqns[topic] = (sqns[topic] + rng.choice((1, 1, 1, 1, 1, 2, 0))) & 0xFFFFFFFF
    return HEADER.pack(kind, head, size, topic, sqns[topic]) + rng.randbytes(size - 12)


def batch(rng: random.Random, sqns: list[int], first: int, header: DatagramHeader) -> tuple[bytearray, list[int]]:
    """Datagrams `STRIDE` apart: in order, and now and then a hole, a repair, noise, or several messages in one."""
    area, lengths = bytearray(), []
    style = rng.choice(("one", "one", "several"))
    for n in range(rng.choice((1, 5, 64))):
        content = message(rng, sqns)
        while style == "several" and len(content) < 400:
            content += message(rng, sqns)
        is_repair = rng.random() < 0.01
        sqn = (first + n + (rng.random() < 0.01)) & 0xFFFFFFFF
        if header is LBTRM:
            datagram = struct.pack("!BBHIIIBBH", 0, 0, 1234, 5, sqn, 0, 0xA0 if is_repair else 0x80, 3, 0) + content
        else:
            flags = FLAG_RETRANSMISSION if is_repair else 0
            datagram = encode(Data(sqn, 0, flags, content, options=(sid_option(5),)))
        if rng.random() < 0.02:
            damaged = bytearray(datagram)
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            datagram = bytes(damaged[: rng.randrange(1, len(damaged) + 1)])
        datagram = datagram[:STRIDE]
        area += datagram.ljust(STRIDE, b"\0")
        lengths.append(len(datagram))
    return area, lengths


def digest_of(seed: int, rounds: int = 300) -> str:
    rng, total = random.Random(seed), hashlib.sha256()

    def note(*values: object) -> None:
        total.update(repr(values).encode())

    header = (LBTRM, LBTRU)[seed % 2]
    stream = Stream(KEYS[header])
    streams = {(stream.key, 7): stream}
    lane = Lane(cast(SenderTransport, Sender()))
    feeds: dict[int, ProxySource] = {}
    for topic in range(TOPICS - 1):
        window = DuplicateWindow(512, 64)
        feeds[100 + topic] = ProxySource(bytes(32), b"t", 5000 + topic, lane.transport, window)
        feeds[100 + topic].lane = lane
    sqns = [0] * TOPICS
    for _ in range(rounds):
        first = rng.choice((0, 1000, 0xFFFFFFE0))
        area, lengths = batch(rng, sqns, first, header)
        view, touched = memoryview(area), list[Stream]()
        stream.expected, stream.is_touched = first, False
        stream.datagrams = stream.nbytes = stream.messages = 0
        left: list[int] = []
        offsets, senders = list(range(0, len(area), STRIDE)), [SENDER] * len(lengths)
        at = -1
        while at < len(lengths):
            at = scan_datagrams(view, offsets, lengths, senders, at + 1, streams, touched, header)
            left.append(at)
        note(
            stream.first, stream.datagrams, stream.nbytes, stream.trail, stream.messages, stream.expected, len(touched)
        )
        table, out = stream.table, RunTable()
        note(list(table))
        if not table.rows:
            continue
        take_all(table, [100 + run.topic_index % TOPICS for run in table], out)
        low, high = extent(out)
        note(low, high)
        if rng.random() < 0.5:
            move(out, low)
            parts = [(bytearray(view[low:high]), out)]
        else:
            first, most = rng.randrange(out.rows), rng.choice((2000, 1 << 20))
            compacted = compact(view, out, first, most)
            note(first, compacted, list(out))
            out.tobytes()[: (out.rows - first) * ROW.size] = bytes(out.tobytes()[first * ROW.size :])
            out.rows -= first
            parts = [(compacted, out)] if compacted else list(split(view, out, most))
        for chunk, rows in parts:
            joined = RunTable()
            joined.put(7, 0, 1, 0, 12, 12, 0)
            base, frame = rng.randrange(1000), descriptor.encode(99, len(chunk), rows)
            try:
                note(descriptor.decode(frame, joined, base), joined.total(1), extent(joined, 1))
            except DecodeError as e:
                note(str(e))
            note(list(joined), joined.total())
            datagrams = bytearray(400)
            write_headers(datagrams, [0, 20, 300], rng.getrandbits(48), rng.choice((5, 0xFFFFFFFE)), 3, 2, 3)
            note(datagrams)
            lanes: list[Lane] = []
            irregular = plan(rows, feeds, lanes)
            note(list(rows), irregular, lane.noted, lane.topics)
            mine = lane.gather(rows)
            if not mine.rows:
                continue
            write_topics(chunk, mine)
            note(lay_out(chunk, mine, 20, rng.choice((0, 900, 8192))), in_stream(chunk, mine))
            rest = keep_first(mine, rng.randrange(mine.fragments() + 1))
            if rest.rows:
                drop_first(rest, rng.randrange(rest.fragments()))
            note(list(mine), list(rest))
        table.clear()
        content = b"".join(message(rng, sqns) for _ in range(rng.randrange(40))) + rng.randbytes(rng.randrange(9))
        try:
            note(scan_stream(memoryview(content), 0, len(content), table), list(table))
        except BadStream as e:
            note(e.pos, e.messages, list(table))
        table.clear()
        try:
            note(read_messages(rng.randbytes(rng.randrange(60)), 0, rng.randrange(60), 0, table))
        except (DecodeError, IndexError, struct.error) as e:
            note(type(e) is DecodeError)
        table.clear()
    return total.hexdigest()


if __name__ == "__main__":
    print(form(), digest_of(int(sys.argv[1])))
