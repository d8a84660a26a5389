"""What both ends of a link know of each other's data, over connections that break at any byte."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.proto.peerlink.messages import SourceRecord, keepalive
from dro.proto.peerlink.resume import (
    PIECE_BYTES,
    POSITION_MAX,
    LinkPiece,
    Packets,
    Progress,
    ProgressKind,
    ReceivedData,
    SentData,
    progress,
    read_progress,
)
from dro.proto.peerlink.sources import OfferedSources, SourceMessage
from dro.wire.lbmc import message as lbmc

HEADER = 20
GOT, BEGINS = ProgressKind.GOT, ProgressKind.BEGINS


def message(number: int, size: int) -> bytes:
    return lbmc.MINIMAL.pack(0, 0, 8 + size) + number.to_bytes(4, "big") + bytes(size)


def numbers_of(stream: bytes) -> list[int]:
    at, found = 0, []
    while at < len(stream):
        found.append(int.from_bytes(stream[at + 4 : at + 8], "big"))
        at += lbmc.MINIMAL.unpack_from(stream, at)[2]
    return found


def batch(first: int, sizes: list[int], *, is_packets: bool = False) -> Packets:
    made, ends = bytearray(), []
    for nth, size in enumerate(sizes):
        made += bytes(HEADER if is_packets else 0) + message(first + nth, size)
        ends.append(len(made))
    return (made, ends) if is_packets else (made, [len(made)])


def an_end() -> SourceMessage:
    offered = OfferedSources()
    offered.offer(SourceRecord(0, 1, b"topic", bytes(32), 7))
    return offered.end(bytes(32))


def log(limit: int = 1 << 20, *, is_packets: bool = False) -> SentData:
    made = SentData(packet_header=HEADER if is_packets else 0)
    made.limit_bytes = limit
    return made


@pytest.mark.parametrize("kind", ProgressKind)
def test_a_position_is_read_back(kind: ProgressKind) -> None:
    raw = progress(kind, 1 << 40)
    assert read_progress(raw) == Progress(kind, 1 << 40)
    assert read_progress(raw[:-9] + b"\7" + raw[-8:]) is None
    assert read_progress(raw + b"\0") is None
    assert read_progress(keepalive(1, 2)) is None
    lbmc.decode(raw)


def test_others_take_a_position_for_no_message_of_theirs() -> None:
    decoded = lbmc.decode(progress(GOT, 5))
    assert not decoded.must_drop


class Side:
    """Sends messages with numbers over a stream, which a test cuts anywhere, and reads whole ones."""

    def __init__(self, *, is_packets: bool) -> None:
        self.is_packets = is_packets
        self.sent, self.received = log(is_packets=is_packets), ReceivedData()
        self.kept: list[LinkPiece] = []
        self.next = 0
        self.wire = bytearray()
        self.packets: list[bytes] = []
        self.got: list[int] = []
        self.handed_up = 0
        self.confirmed: list[int] = []  # on their way back

    def send(self, sizes: list[int]) -> None:
        self.put(batch(self.next, sizes, is_packets=self.is_packets))
        self.next += len(sizes)

    def put(self, piece: LinkPiece) -> None:
        assert not isinstance(piece, SourceMessage)
        self.sent.put(piece)
        data, ends = piece
        self.wire += data
        self.packets += [bytes(data[a + HEADER : b]) for a, b in zip([0, *ends], ends, strict=False)]

    def arrive(self, count: int) -> None:
        """So many bytes, or packets."""
        if self.is_packets:
            some, self.packets = self.packets[:count], self.packets[count:]
            for packet in some:
                self.got += numbers_of(packet)
            self.handed_up += len(some)
        else:
            taken = 0
            whole = bytes(self.wire[:count])
            while taken + 4 <= len(whole) and taken + (size := lbmc.MINIMAL.unpack_from(whole, taken)[2]) <= len(whole):
                taken += size
            self.got += numbers_of(whole[:taken])
            self.handed_up += taken
            del self.wire[:taken]
        self.confirmed.append(self.received.position)

    def confirm(self, count: int) -> None:
        for position in self.confirmed[:count]:
            assert not self.sent.on_got(position)
        del self.confirmed[:count]

    def reset(self, *, begins: bool) -> None:
        """`begins`: the next connection lasts until data begins."""
        self.kept = [*self.sent.take_back([]), *self.kept]
        self.wire.clear()
        self.packets.clear()
        self.confirmed.clear()
        self.received.on_connection(b"one process")
        if not begins:
            return
        wrong, self.kept = self.sent.resume(self.received.position, self.kept)
        assert not wrong
        self.handed_up = 0
        assert not self.received.on_begins(self.sent.end, lambda: self.handed_up)
        kept, self.kept = self.kept, []
        for piece in kept:
            self.put(piece)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.lists(st.integers(0, 40), min_size=1, max_size=5)),
        st.tuples(st.just("arrive"), st.integers(0, 300)),
        st.tuples(st.just("confirm"), st.integers(0, 3)),
        st.tuples(st.just("reset"), st.booleans()),
    ),
    max_size=60,
)


@given(STEPS, st.booleans())
def test_resets_at_any_byte_lose_and_double_nothing(steps: list[tuple[str, object]], is_packets: bool) -> None:
    side = Side(is_packets=is_packets)
    side.reset(begins=True)
    is_up = True
    for what, value in steps:
        if what == "reset":
            is_up = bool(value)
            side.reset(begins=is_up)
        elif is_up and isinstance(value, list):
            side.send(value)
        elif is_up and isinstance(value, int):
            (side.arrive if what == "arrive" else side.confirm)(value)
    side.reset(begins=True)
    side.arrive(1 << 20)
    assert side.got == list(range(side.next))
    assert side.sent.lost == 0


@pytest.mark.parametrize("is_packets", [False, True])
def test_what_is_forgotten_and_needed_is_lost(is_packets: bool) -> None:
    size = 8 + 92 + (HEADER if is_packets else 0)
    sent = log(5 * (size + PIECE_BYTES), is_packets=is_packets)
    for nth in range(20):
        sent.put(batch(nth, [92], is_packets=is_packets))
    kept = sent.take_back([])
    assert len(kept) == 5
    unit = 1 if is_packets else 100
    wrong, left = sent.resume(3 * unit, kept)
    assert (wrong, len(left), sent.end) == ("", 5, 15 * unit)
    assert (sent.lost, sent.lost_bytes) == (12 * unit, 12 * size)


def test_a_link_that_confirms_forgets_and_needs_nothing() -> None:
    sent = log(10 * (100 + PIECE_BYTES))
    for nth in range(1000):
        sent.put(batch(nth, [92]))
        if nth % 5 == 4:
            assert sent.on_got(sent.end) == ""
    assert sent.take_back([]) == []
    assert sent.resume(100_000, []) == ("", [])
    assert sent.lost == 0


def test_what_had_not_been_begun_is_never_forgotten() -> None:
    sent = log(PIECE_BYTES)
    pieces: list[LinkPiece] = [batch(nth, [92]) for nth in range(4)]
    for piece in pieces:
        sent.put(piece)
    assert sent.take_back(pieces[1:]) == pieces[1:]
    assert sent.end == 100


@pytest.mark.parametrize(
    ("position", "text"),
    [(99, "takes back"), (100, ""), (250, ""), (301, "was sent"), (POSITION_MAX, "was sent"), (0, "takes back")],
)
def test_what_is_absurd_is_told(position: int, text: str) -> None:
    sent = log()
    for nth in range(3):
        sent.put(batch(nth, [92]))
    assert not sent.on_got(100)
    wrong = sent.on_got(position)
    assert text in wrong
    assert bool(wrong) == bool(text)


@pytest.mark.parametrize(
    ("position", "text"), [(50, "takes back"), (100, ""), (200, ""), (150, "within a message"), (301, "was sent")]
)
def test_what_is_absurd_on_a_new_connection_is_told(position: int, text: str) -> None:
    sent = log()
    sent.put(batch(0, [92, 92, 92]))
    assert not sent.on_got(100)
    kept = sent.take_back([])
    wrong, left = sent.resume(position, kept)
    assert text in wrong
    assert bool(wrong) == bool(text)
    assert sum(len(piece[0]) for piece in left if not isinstance(piece, SourceMessage)) == (
        300 if wrong else 300 - position
    )


def test_ends_of_sources_keep_their_place() -> None:
    sent, end = log(), an_end()
    sent.put(end)  # behind nothing
    sent.put(batch(0, [92]))
    sent.put(end)
    sent.put(batch(1, [92]))
    kept = sent.take_back([])
    assert [isinstance(piece, SourceMessage) for piece in kept] == [False, True, False]
    assert len(sent.resume(0, kept)[1]) == 3
    assert len(sent.resume(100, kept)[1]) == 1, "the end follows from what is not offered any more"


def test_what_was_given_up_is_counted_once() -> None:
    sent = log()
    sent.put(batch(0, [92]))
    sent.give_up(sent.take_back([]))
    assert sent.end == 100
    assert sent.resume(0, []) == ("", [])
    assert sent.lost == 0


def test_another_process_begins_anew() -> None:
    sent, received = log(), ReceivedData()
    sent.put(batch(0, [92]))
    assert not sent.on_got(100)
    sent.restart()
    assert sent.end == 0
    assert "was sent" in sent.on_got(1)
    received.on_connection(b"one")
    assert not received.on_begins(500, lambda: 7)
    assert received.position == 507
    received.on_connection(b"one")
    assert received.position == 507
    received.on_connection(b"other")
    assert received.position == 0


def test_data_begins_once_and_not_before_what_was_confirmed() -> None:
    received = ReceivedData()
    received.on_connection(b"one")
    assert not received.on_begins(500, lambda: 0)
    assert "twice" in received.on_begins(500, lambda: 0)
    received.on_connection(b"one")
    assert "499" in received.on_begins(499, lambda: 0)
    assert received.on_begins(POSITION_MAX, lambda: 0)
    assert not received.on_begins(600, lambda: 0)


def test_memory_is_bounded_whatever_the_companion_confirms() -> None:
    rng = random.Random(1)
    sent = log(50_000)
    for nth in range(2000):
        sent.put(batch(nth, [rng.randrange(500)]))
        sent.put(an_end())
    kept = sent.take_back([])
    held = sum(PIECE_BYTES + len(piece if isinstance(piece, SourceMessage) else piece[0]) for piece in kept)
    assert 40_000 < held <= 50_000
