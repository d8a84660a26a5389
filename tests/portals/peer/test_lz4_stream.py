"""Compressed streams: what is given at one end comes out at the other, whatever the sizes; nonsense ends the stream."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

import lz4.block
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dro.loop import Loop
from dro.transport.stream import ByteStream, Piece, PlainStream, StreamEvents
from portals.peer.stream.lz4_stream import TAKEN_MAX, Lz4Stream
from tests.wire.test_lz4_frame import HEADER, block

TURNS = 20_000


class End:
    """One end of a connection: reads all that comes by views of one size, and sends what it was given."""

    def __init__(self, loop: Loop, stream: ByteStream, *, view: int = 1 << 16, reads: int = 2) -> None:
        self.loop, self.stream = loop, stream
        self.got = bytearray()
        self.told: list[str] = []
        self.batches: list[Sequence[Piece]] = []
        self.is_reading = True
        self._view = memoryview(bytearray(view))
        self._reads = reads
        self._is_blocked = False

    def events(self) -> StreamEvents:
        on_open, on_lost = partial(self.told.append, "open"), partial(self._end, "lost")
        return StreamEvents(on_open, on_lost, self.on_readable, self.on_writable)

    def start(self) -> None:
        self.stream.start(self.events())

    def on_readable(self) -> bool:
        for _ in range(self._reads if self.is_reading else 0):
            try:
                count = self.stream.read_into(self._view)
            except BlockingIOError:
                return False
            except OSError as e:
                self._end(f"{e.errno}: {e.strerror}")
                return False
            if not count:
                self._end("end")
                return False
            self.got += self._view[:count]
            if count < len(self._view):
                return False
        return self.is_reading

    def _end(self, what: str) -> None:
        self.told.append(what)
        self.stream.close()

    def on_writable(self) -> None:
        self._is_blocked = False
        self.send()

    def send(self, *batches: Sequence[Piece]) -> None:
        self.batches += batches
        while self.batches and not self._is_blocked:
            rest = b"".join(self.batches[0])
            try:
                rest = rest[self.stream.send_pieces(self.batches[0]) :]
            except BlockingIOError:
                self._is_blocked = True
                return
            self.batches[0:1] = [(rest,)] if rest else []


class Pair:
    """Two ends over a pair of sockets with small buffers."""

    def __init__(self, *, buffer: int = 0, view: int = 1 << 16, leftover: bytes = b"", unsent: bytes = b"") -> None:
        self.loop = Loop()
        near, far = socket.socketpair()
        for sock in (near, far):
            sock.setblocking(False)
            if buffer:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        self.plain = [PlainStream(self.loop, sock, True) for sock in (near, far)]
        silent = StreamEvents(lambda: None, lambda: None, lambda: None, lambda: None)
        for stream in self.plain:
            stream.start(silent)
        self.near = End(self.loop, Lz4Stream(self.loop, self.plain[0], unsent=unsent), view=view)
        self.far = End(self.loop, Lz4Stream(self.loop, self.plain[1], leftover=leftover), view=view)

    def until(self, done: object) -> None:
        assert callable(done)
        for _ in range(TURNS):
            if done():
                return
            self.loop.run_once(1_000_000)
        pytest.fail("it did not happen")

    def close(self) -> None:
        for stream in self.plain:
            stream.close()
        self.loop.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    with closing(Pair()) as made:
        made.near.start()
        made.far.start()
        made.loop.run_once(0)
        made.loop.run_once(0)  # both have read how the frames begin
        yield made


@pytest.fixture
def raw() -> Iterator[Pair]:
    """Its near end sends what the test says."""
    with closing(Pair()) as made:
        made.far.start()
        yield made


PIECES = st.one_of(
    st.binary(min_size=1, max_size=2000),
    st.builds(lambda piece, count: piece * count, st.binary(min_size=1, max_size=30), st.integers(1, 4000)),
    st.builds(lambda seed, size: random.Random(seed).randbytes(size), st.integers(0, 99), st.integers(1, 90_000)),
)
BATCHES = st.lists(st.lists(PIECES, min_size=1, max_size=4), max_size=6)


@settings(deadline=None, max_examples=40)
@given(BATCHES, BATCHES, st.sampled_from([1, 7, 1000, 65_536, 262_144]), st.sampled_from([4096, 0]))
def test_both_directions_arrive_as_they_were_given(
    there: list[list[bytes]], back: list[list[bytes]], view: int, buffer: int
) -> None:
    wanted = [b"".join(piece for batch in batches for piece in batch) for batches in (there, back)]
    view = max(view, max(map(len, wanted)) // 2000)
    with closing(Pair(buffer=buffer, view=view)) as pair:
        pair.near.start()
        pair.far.start()
        pair.near.send(*there)
        pair.far.send(*back)
        pair.until(lambda: [len(pair.far.got), len(pair.near.got)] == [len(part) for part in wanted])
        assert [pair.far.got, pair.near.got] == wanted
        assert (pair.near.told, pair.far.told) == (["open"], ["open"])
        assert (pair.near.stream.holds, pair.far.stream.holds) == (0, 0)


def test_what_was_read_behind_the_plain_part_is_read_first() -> None:
    """The frame begins in the middle of what the reader of the plain part has got."""
    second = block(b"second", is_stored=True)
    with closing(Pair(leftover=HEADER + block(b"first ", is_stored=True) + second[:5])) as pair:
        pair.far.start()
        pair.until(lambda: pair.far.got == b"first ")
        pair.plain[0].send_pieces([second[5:]])
        pair.until(lambda: pair.far.got == b"first second")


def test_a_plain_part_that_waits_leaves_before_the_frame() -> None:
    with closing(Pair(unsent=b"the rest of HELLO")) as pair:
        pair.near.start()
        pair.near.send([b"compressed"])
        got = bytearray(1000)
        pair.until(lambda: _holds(pair.plain[1], got, b"the rest of HELLO" + HEADER))


def _holds(stream: ByteStream, memory: bytearray, wanted: bytes) -> bool:
    with contextlib.suppress(BlockingIOError):
        stream.read_into(memoryview(memory))
    return memory.startswith(wanted)


def test_the_backlog_is_what_was_given_before_it_was_compressed(pair: Pair) -> None:
    pair.far.is_reading = False
    stream, given = pair.near.stream, 0
    with contextlib.suppress(BlockingIOError):
        while True:
            given += stream.send_pieces([bytes(100_000) + os.urandom(100)])
    assert given >= stream.backlog() > 100_000 > stream.holds
    pair.far.is_reading = True
    pair.until(lambda: not stream.backlog())
    stream.send_pieces([bytes(100)])
    stream.close()
    pair.until(lambda: pair.far.told == ["open", "end"])
    assert len(pair.far.got) == given + 100


def test_nothing_is_taken_while_compressed_bytes_wait(pair: Pair) -> None:
    pair.far.is_reading = False
    noise = os.urandom(3 << 20)
    stream = pair.near.stream
    assert stream.send_pieces([noise]) == TAKEN_MAX
    with contextlib.suppress(BlockingIOError):
        for _ in range(100):
            assert stream.send_pieces([noise]) == TAKEN_MAX
    with pytest.raises(BlockingIOError):
        stream.send_pieces([noise])
    assert 0 < stream.holds <= TAKEN_MAX + 100
    assert stream.backlog() >= stream.holds
    pair.far.is_reading = True
    pair.until(lambda: not stream.holds)
    stream.close()
    pair.until(lambda: pair.far.told == ["open", "end"])
    assert pair.far.got == (noise[:TAKEN_MAX] * 100)[: len(pair.far.got)]
    assert len(pair.far.got) % TAKEN_MAX == 0


def test_a_reader_that_pauses_gets_the_rest_without_a_word_from_the_socket(pair: Pair) -> None:
    """All of it is in the decoder: no descriptor becomes readable for it."""
    pair.far._view = memoryview(bytearray(1000))
    pair.near.send([bytes(500_000)])
    pair.until(lambda: len(pair.far.got) == 500_000)
    with pytest.raises(BlockingIOError):
        pair.far.stream.read_into(memoryview(bytearray(10)))


def test_a_bomb_comes_in_as_slowly_as_it_is_read(raw: Pair) -> None:
    pair = raw
    pair.far.is_reading = False
    bomb = block(lz4.block.compress(bytes(65_536), store_size=False))
    pair.plain[0].send_pieces([HEADER + bomb * 300])  # 78 KB for 20 MB
    stream = pair.far.stream
    assert isinstance(stream, Lz4Stream)
    memory = memoryview(bytearray(1000))
    for _ in range(100):
        pair.loop.run_once(0)
        with contextlib.suppress(BlockingIOError):
            stream.read_into(memory)
        assert len(stream._frame._input) < 1 << 17
        assert len(stream._frame._block) <= 1 << 16


@pytest.mark.parametrize("before", [b"", b"sound"])
def test_nonsense_ends_the_stream_after_what_was_sound(raw: Pair, before: bytes) -> None:
    pair = raw
    sound = HEADER + (block(before, is_stored=True) if before else b"")
    pair.plain[0].send_pieces([sound + block(b"\xff" * 20) + bytes(40)])
    pair.until(lambda: len(pair.far.told) == 2)
    assert pair.far.got == before
    assert pair.far.told[1] == (
        f"{errno.EBADMSG}: what the companion sends is not the compressed stream that it announced: "
        "lz4 frame: a block that does not decode"
    )


def test_an_end_and_a_broken_connection_are_told(pair: Pair) -> None:
    pair.near.send([b"last words"])
    pair.near.stream.close()
    pair.until(lambda: pair.far.told == ["open", "end"])
    assert pair.far.got == b"last words"


def test_what_breaks_below_is_raised(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> int:
        raise ConnectionResetError(errno.ECONNRESET, "reset")

    pair.far.is_reading = False
    monkeypatch.setattr(pair.plain[1], "read_into", broken)
    with pytest.raises(ConnectionResetError):
        pair.far.stream.read_into(memoryview(bytearray(10)))
    monkeypatch.setattr(pair.plain[0], "send_pieces", broken)
    with pytest.raises(ConnectionResetError):
        pair.near.send([b"x"])


def test_a_closed_stream_reports_nothing() -> None:
    """Closed before the turn in which it would have looked for what was left over."""
    with closing(Pair(leftover=HEADER + block(b"late", is_stored=True))) as other:
        other.far.start()
        other.far.stream.close()
        other.loop.run_once(0)
        assert (bytes(other.far.got), other.far.told) == (b"", ["open"])


def test_events_can_be_taken_over_again(pair: Pair) -> None:
    second = End(pair.loop, pair.far.stream)
    pair.far.stream.take_over(second.events())
    pair.near.send([b"for the second"])
    pair.until(lambda: second.got == b"for the second")
    assert pair.far.got == b""
