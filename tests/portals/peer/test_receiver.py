"""What comes over a peer link, split into data and messages."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.transport.read_space import READ_BYTES, ReadSpace
from dro.transport.runs import KIND_CONTROL, KIND_TSNI
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import END_DATA, BlockType, MessageType
from dro.wire.lbmc.data_blocks import SrcIdx, TopicIdx, Tsni, TsniRecord
from dro.wire.lbmc.dro_blocks import TnwgCapabilities, TnwgKeepalive
from dro.wire.source_string import TcpAddress
from portals.peer.stream.receiver import LinkReader, LinkReceiver
from tests.fakes.stream import FakeStream

KEEPALIVE = lbmc.encode(lbmc.control_message(TnwgKeepalive(1, 2, 3)))


def data(source: int, sqn: int, payload: bytes = b"payload") -> bytes:
    return lbmc.encode(lbmc.Message(MessageType.MESSAGE, 99, sqn, (SrcIdx(source),), payload, END_DATA))


class Bench:
    """A reader whose messages and runs are noted in one list, in the order in which they come."""

    def __init__(self, *, is_data_allowed: bool = True, space: ReadSpace | None = None) -> None:
        self.stream = FakeStream()
        self.heard: list[object] = []
        self.goes_on = True
        self.receiver = LinkReceiver(TcpAddress(0x7F000001, 1, 0), 0)
        self.reader = LinkReader(self.receiver, self, space or ReadSpace())
        self.reader.is_data_allowed = is_data_allowed

    def _on_message(self, message: bytes) -> bool:
        self.heard.append(message)
        return self.goes_on

    def on_fragments(self, view: memoryview, parts: object, now_ns: int) -> None:
        for _, table in parts:  # type: ignore[attr-defined]
            for run in table:
                for i in range(run.fragments):
                    at = run.offset + i * run.stride
                    self.heard.append((run.kind, run.topic_index, run.first_sqn + i, bytes(view[at : at + run.length])))

    def on_began(self, transport: object, now_ns: int) -> None: ...

    def read(self) -> bool:
        return self.reader.read(self.stream, self._on_message, 0)

    def feed(self, content: bytes) -> None:
        self.stream.to_read += content
        while self.read() or self.stream.to_read:
            pass


def plain(source: int, sqn: int, payload: bytes = b"payload") -> tuple[int, int, int, bytes]:
    return 0, source, sqn, lbmc.HEADER.pack(0, 0, 12 + len(payload), 99, sqn) + payload


@settings(max_examples=200)
@given(st.data())
def test_order_is_kept_however_the_stream_is_cut(draw: st.DataObject) -> None:
    kinds = draw.draw(st.lists(st.sampled_from("dddct"), max_size=60))
    content, expected = b"", []
    for number, kind in enumerate(kinds):
        if kind == "d":
            content += data(1 + number % 3, number)
            expected.append(plain(1 + number % 3, number))
        elif kind == "c":
            content += KEEPALIVE
            expected.append(KEEPALIVE)  # type: ignore[arg-type]
        else:
            content += lbmc.encode(lbmc.control_message(SrcIdx(5), Tsni((TsniRecord(99, number),))))
            expected.append((KIND_TSNI, 5, number, b""))
    bench = Bench()
    while content:
        count = draw.draw(st.integers(1, max(1, len(content))))
        bench.feed(content[:count])
        content = content[count:]
    assert bench.heard == expected


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 70)), max_size=60))
def test_connections_that_share_memory_keep_what_has_come_in_part(pieces: list[tuple[int, int]]) -> None:
    space = ReadSpace(50)
    benches = [Bench(space=space) for _ in range(3)]
    contents = [b"".join(data(1 + who, sqn) for sqn in range(9)) for who in range(3)]
    ends = [0, 0, 0]
    for who, count in pieces:
        benches[who].feed(contents[who][ends[who] : ends[who] + count])
        ends[who] += count
    for who, bench in enumerate(benches):
        whole = min(ends[who], len(contents[who])) // len(data(1, 0))
        assert bench.heard == [plain(1 + who, sqn) for sqn in range(whole)]
        assert len(bench.reader.unread) == min(ends[who], len(contents[who])) % len(data(1, 0))


def test_control_of_a_source_comes_without_its_number() -> None:
    bench = Bench()
    bench.feed(lbmc.encode(lbmc.control_message(SrcIdx(5), TopicIdx(3))))
    ((kind, source, _, message),) = cast(list[tuple[int, int, int, bytes]], bench.heard)
    assert (kind, source) == (KIND_CONTROL, 5)
    assert lbmc.decode(message).blocks == (TopicIdx(3),)


def test_more_than_a_table_holds_comes_in_several() -> None:
    bench = Bench()
    expected = [plain(1 + sqn % 2, sqn, b"") for sqn in range(20_000)]
    bench.feed(b"".join(data(source, sqn, b"") for _, source, sqn, _ in expected))
    assert bench.heard == expected
    assert bench.receiver.msgs_rcved == 20_000


def test_before_the_greeting_data_is_a_message_like_any_other() -> None:
    bench = Bench(is_data_allowed=False)
    bench.feed(data(1, 2))
    assert bench.heard == [data(1, 2)]


def test_reading_ends_where_it_is_told_to_and_the_rest_can_be_taken() -> None:
    bench = Bench()
    bench.goes_on = False
    hello = lbmc.encode(lbmc.control_message(TnwgCapabilities(1)))
    bench.stream.to_read += hello + b"something else"
    assert not bench.read()
    assert bench.heard == [hello]
    assert bench.reader.take_rest() == b"something else"
    assert bench.reader.take_rest() == b""


@pytest.mark.parametrize(
    "bad",
    [
        b"\x18\xff\x00\x08\x00\x00\x00\x00",  # a version that does not exist
        b"\x03\x00\x00\x0c" + bytes(8),  # a type that does not exist
        b"\x08\xff\x00\x03",  # shorter than its header
        b"\x00\x0e\x00\x08" + bytes(20),
        lbmc.MINIMAL.pack(8, 0x0E, 12) + bytes([0xFF, 200, 0, 0, 0, 0, 0, 0]),  # a block that reaches beyond
        lbmc.MINIMAL.pack(8, BlockType.SRCIDX, 4),  # control of a source without its number
        lbmc.MINIMAL.pack(8, BlockType.SRCIDX, 20) + bytes([0xFF, 16]) + bytes(14),  # with a larger one
    ],
)
def test_what_cannot_be_split_is_an_error_and_what_came_before_is_kept(bad: bytes) -> None:
    bench = Bench()
    with pytest.raises(DecodeError):
        bench.feed(data(1, 1) + bad + bytes(64))
    assert bench.heard[:1] == [plain(1, 1)]


def test_the_end_of_the_stream_is_told() -> None:
    bench = Bench()
    bench.stream.is_at_end = True
    with pytest.raises(EOFError):
        bench.read()


def test_a_flood_of_messages_is_worked_off_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    now = iter(range(0, 10**12, 1_000_000))
    monkeypatch.setattr("portals.peer.stream.receiver.time.monotonic_ns", lambda: next(now))
    bench.stream.to_read += KEEPALIVE * 1000
    calls = 0
    while bench.read():
        calls += 1
        assert len(bench.heard) <= 4 * calls
    assert len(bench.heard) == 1000
    assert calls > 200


def test_it_reads_on_only_when_it_has_worked_off_what_came(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    now = iter(range(0, 10**15, 10_000_000))
    monkeypatch.setattr("portals.peer.stream.receiver.time.monotonic_ns", lambda: next(now))
    size = 4 * READ_BYTES // len(KEEPALIVE) * len(KEEPALIVE)
    bench.stream.to_read += KEEPALIVE * (size // len(KEEPALIVE))
    least = size
    while bench.read():
        held = len(bench.stream.to_read) + len(bench.heard) * len(KEEPALIVE)
        least = min(least, held)
    assert size - least <= READ_BYTES + 0xFFFF
    assert len(bench.heard) * len(KEEPALIVE) == size


@given(st.binary(max_size=400))
def test_any_bytes_are_split_or_refused(noise: bytes) -> None:
    bench = Bench()
    bench.stream.to_read += data(1, 1) + noise
    try:
        for _ in range(5):
            bench.read()
    except (DecodeError, BlockingIOError):
        pass
    assert bench.heard[:1] == [plain(1, 1)]
