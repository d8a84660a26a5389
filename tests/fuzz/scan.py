"""Targets of the data path: what is received becomes runs, each fragment of which is a message that lies there."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from struct import Struct
from typing import Final

from dro.errors import DecodeError
from dro.transport.lbtrm.receiver import HEADER as LBTRM
from dro.transport.runs import KIND_CONTROL, KIND_DATA, KIND_TSNI, ROW, Run, RunTable, has_block, read_messages
from dro.transport.scan import BadStream, DatagramHeader, Stream, scan_datagrams, scan_stream
from dro.wire import lbtrm, lbtru
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import BlockType
from portals.datapath import descriptor
from tests.fuzz.mutate import script, steps_of
from tests.fuzz.seeds import published, vectors
from tests.fuzz.target import Target
from tests.rigs.steps import KEYS, LBTRU

_STRIDE: Final = 2048
_SENDER: Final = 9 << 32
_ROWS: Final = 1024
_FIRST: Final = 100
_NUMBERS: Final = Struct("!II")


def _check(data: bytes | memoryview, runs: list[Run]) -> None:
    """Raises: AssertionError when a run names what does not lie there."""
    for run in runs:
        if run.kind != KIND_DATA:
            assert run.offset + run.length <= len(data)
            continue
        for n in range(run.fragments):
            at = run.offset + n * run.stride
            message = bytes(data[at : at + run.length])
            assert len(message) == run.length == int.from_bytes(message[2:4], "big")
            assert message[1] == run.next_header
            assert _NUMBERS.unpack_from(message, 4) == (run.topic_index, run.first_sqn + n & 0xFFFFFFFF)
            lbmc.header_size(message[0])
        has_block(data, run, BlockType.REQUEST)


def _messages(data: bytes) -> Hashable:
    table = RunTable(_ROWS + len(data) // 8)
    try:
        count = read_messages(data, 0, len(data), 20, table, 1)
    except DecodeError:
        _check(data, list(table))
        if not table.rows:
            raise
        count = -1
    runs = list(table)
    _check(data, runs)
    return min(count, 9), tuple([run.kind for run in runs[:4]])


def _stream(data: bytes) -> Hashable:
    """With room for all, and with little room, piece by piece."""
    found: list[tuple[int, bool]] = []
    for rows in (len(data) // 8 + _ROWS, 40):
        table, pos, messages, is_bad = RunTable(rows), 0, 0, False
        while True:
            try:
                end, count = scan_stream(memoryview(data), pos, len(data), table)
            except BadStream as e:
                end, count, is_bad = e.pos, e.messages, True
            _check(data, list(table))
            assert pos <= end <= len(data)
            messages, pos = messages + count, end
            table.clear()
            if is_bad or not count:
                break
        found.append((messages, is_bad))
    whole, small = found
    assert small[0] <= whole[0]
    if whole == (0, True):
        raise DecodeError("stream", "no message")
    return min(whole[0], 20), whole[1], small == whole


def _datagrams(header: DatagramHeader) -> Callable[[bytes], Hashable]:
    """A batch: those that are plain data in order are taken."""

    def check(data: bytes) -> Hashable:
        datagrams = [packet[:_STRIDE] for _, packet in steps_of(data)][:64]
        lengths = [len(datagram) for datagram in datagrams]
        area = bytearray(b"".join([datagram.ljust(_STRIDE, b"\0") for datagram in datagrams]))
        stream, touched = Stream(KEYS[header], RunTable(_ROWS)), list[Stream]()
        stream.expected = _FIRST
        streams = {(stream.key, _SENDER >> 32): stream}
        left: list[int] = []
        offsets, at = list(range(0, len(area), _STRIDE)), 0
        while at < len(lengths):
            stop = scan_datagrams(
                memoryview(area), offsets, lengths, [_SENDER] * len(lengths), at, streams, touched, header
            )
            assert at <= stop <= len(lengths)
            left += [stop] if stop < len(lengths) else []
            at = stop + 1
        taken = len(lengths) - len(left)
        assert stream.datagrams == taken
        assert stream.expected == _FIRST + taken
        assert stream.nbytes == sum(length for n, length in enumerate(lengths) if n not in left)
        _check(memoryview(area), list(stream.table))
        if not taken:
            raise DecodeError("scan", "nothing was taken")
        return taken, len(left), tuple([run.kind for run in stream.table][:4])

    return check


@cache
def _contents() -> list[bytes]:
    """Of datagrams: one or several messages."""
    plain = [lbmc.HEADER.pack(0, 0, 12 + size, 7, 50 + size) + bytes(size) for size in (1, 2, 3, 60)]
    return [
        *plain,
        *plain[:1] * 3,
        b"".join(plain),
        *vectors("lbmc", "", ("data", "frag", "tsni", "retr", "eot", "req")),
    ]


def _batches(header: DatagramHeader) -> Callable[[], list[bytes]]:
    def one(sqn: int, content: bytes) -> bytes:
        if header is LBTRM:
            key = KEYS[header]
            return lbtrm.encode(lbtrm.Data(key >> 32 & 0xFFFF, key & 0xFFFFFFFF, sqn, 3, payload=content))
        return lbtru.encode(lbtru.Data(sqn, 3, 0, content, options=(lbtru.sid_option(KEYS[header] & 0xFFFFFFFF),)))

    def made() -> list[bytes]:
        contents = _contents()
        batches = [contents[at : at + 5] for at in range(0, len(contents), 5)]
        return [script([(0, one(_FIRST + n, content)) for n, content in enumerate(batch)]) for batch in batches]

    return made


def _descriptor(data: bytes) -> Hashable:
    """What one portal tells another of a fragment ring: no run reaches out of its chunk."""
    table = RunTable(len(data) // ROW.size + 1)
    position, size = descriptor.decode(data, table)
    runs = list(table)
    for run in runs:
        assert run.offset + (run.fragments - 1) * run.stride + run.length <= size or not run.length
        assert run.offset >= run.headroom or not run.length
    assert descriptor.encode(position, size, table) == data
    return min(len(runs), 5), tuple([run.kind for run in runs[:4]])


def _descriptor_seeds() -> list[bytes]:
    one = Run(7, 5, 1, 20, 50, 70, 20, 0, KIND_DATA)
    many = Run(8, 5, 30, 200, 50, 70, 20, 0, KIND_DATA)
    others = (Run(7, 9, 1, 0, 0, 0, 0, 0, KIND_TSNI), Run(7, 0, 1, 90, 12, 12, 0, 0, KIND_CONTROL))
    made = []
    far = one._replace(stride=0xFFFFFFFF)  # of one fragment it means nothing
    for runs in ((one,), (many,), (one, many, *others), (far,)):
        table = RunTable(len(runs))
        for run in runs:
            table.add_run(run)
        made.append(descriptor.encode(1 << 40, 4096, table))
    return made


TARGETS: Final = (
    Target("runs-messages", published("lbmc"), _messages),
    Target("runs-stream", published("lbmc", "", "data", "frag", "peer_data", "tsni", "retr"), _stream),
    Target("runs-lbtrm", _batches(LBTRM), _datagrams(LBTRM), form="script"),
    Target("runs-lbtru", _batches(LBTRU), _datagrams(LBTRU), form="script"),
    Target("runs-descriptor", _descriptor_seeds, _descriptor),
)
