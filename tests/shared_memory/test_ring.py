"""The fragment ring: what a reader gets is what was written there, or nothing."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
import random
import stat
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import LocalProtocolError, ResourceError
from dro.os_errors import remedy_of
from dro.shared_memory.ring import (
    ALIGN,
    DATA_AT,
    FIRST_BYTES,
    HEADER_BYTES,
    MIN_CAPACITY,
    QUEUES_BYTES,
    READERS,
    SLOTS_AT,
    RingReader,
    RingWriter,
)
from tests.bus.conftest import open_files
from tests.rigs.circumstances import mounted

CAPACITY = 8192
CHUNKS = 15_000  # of a writer that is read while it writes
PATIENCE_S = 60


@pytest.fixture
def writer(tmp_path: Path, open_umask: None) -> Iterator[RingWriter]:
    ring = RingWriter.create(tmp_path / "ring", CAPACITY, incarnation=7)
    yield ring
    ring.close()


@pytest.fixture
def reader(writer: RingWriter) -> Iterator[RingReader]:
    ring = RingReader.open(writer.path, 7)
    yield ring
    ring.close()


def test_the_file_is_private_and_whole(writer: RingWriter) -> None:
    status = writer.path.stat()
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_size == DATA_AT + CAPACITY
    assert SLOTS_AT <= status.st_blocks * 512 < SLOTS_AT + CAPACITY, "allocated, but for queues of readers and data"
    writer.allocate_queues(3)
    assert writer.path.stat().st_blocks * 512 >= SLOTS_AT + QUEUES_BYTES
    writer.write(b"x")
    assert writer.path.stat().st_blocks * 512 >= SLOTS_AT + QUEUES_BYTES + CAPACITY


def test_the_smallest_ring_is_one_too(tmp_path: Path) -> None:
    writer = RingWriter.create(tmp_path / "ring", 0, incarnation=7)
    reader = RingReader.open(writer.path, 7)
    assert reader.capacity == writer.capacity == MIN_CAPACITY
    reader.close()
    writer.close()


def test_an_old_file_is_never_taken_over(writer: RingWriter) -> None:
    with pytest.raises(ResourceError, match="File exists"):
        RingWriter.create(writer.path, CAPACITY, incarnation=8)


def test_a_reader_wants_the_incarnation_that_it_was_told(writer: RingWriter, tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="incarnation 7, not 8"):
        RingReader.open(writer.path, 8)
    with pytest.raises(ResourceError, match="No such file"):
        RingReader.open(tmp_path / "none", 7)
    (tmp_path / "link").symlink_to(writer.path)
    with pytest.raises(ResourceError, match=r"cannot open the fragment ring .*: Too many levels of symbolic links"):
        RingReader.open(tmp_path / "link", 7)
    for size, why in ((HEADER_BYTES + 4095, "too short"), (DATA_AT + 4096, "not a fragment ring")):
        (tmp_path / "noise").write_bytes(bytes(size))
        with pytest.raises(ResourceError, match=why):
            RingReader.open(tmp_path / "noise", 7)


def test_the_header_of_a_ring_has_one_layout(writer: RingWriter, tmp_path: Path) -> None:
    """Any other is not read: a change here needs another version."""
    pos = writer.reserve(100)
    writer.commit(pos + 30)
    content = bytearray(writer.path.read_bytes())
    cells = memoryview(content).cast("Q")
    expected = {0: int.from_bytes(b"DRORING\0", "little"), 1: 5, 2: 7, 3: 8192, 4: DATA_AT, 8: 100, 16: 30}
    assert {at: cells[at] for at in range(512) if cells[at]} == expected
    for at in (0, 1, 3):
        cells[at] += 1
        (tmp_path / "other").write_bytes(content)
        cells[at] -= 1
        with pytest.raises(ResourceError, match="is not a fragment ring"):
            RingReader.open(tmp_path / "other", 7)
    (tmp_path / "other").write_bytes(content)
    RingReader.open(tmp_path / "other", 7).close()


def test_what_cannot_be_made_or_opened_leaves_nothing_behind(writer: RingWriter, tmp_path: Path) -> None:
    path = tmp_path / "huge"
    before = open_files()
    with pytest.raises(ResourceError, match=f"no room for a fragment ring in {tmp_path}: ") as no:
        RingWriter.create(path, 1 << 62, 1)
    assert no.value.remedy == "give the machine more shared memory or lower <max-queue>"
    assert not path.exists()
    with pytest.raises(ResourceError) as exists:
        RingWriter.create(writer.path, CAPACITY, incarnation=8)
    assert (exists.value.what, exists.value.remedy) == (
        f"cannot create the fragment ring {writer.path}: File exists", remedy_of(errno.EEXIST)
    )  # fmt: skip
    with pytest.raises(ResourceError) as other:
        RingReader.open(writer.path, 8)
    assert open_files() == before
    del no, exists, other


def test_a_closed_ring_gives_its_memory_and_its_file_back(tmp_path: Path) -> None:
    before = open_files()
    writer = RingWriter.create(tmp_path / "ring", 1, incarnation=7)
    reader = RingReader.open(writer.path, 7)
    assert (reader.path, reader.incarnation, reader.capacity) == (writer.path, 7, 4096)
    assert (writer.path, writer.incarnation, writer.capacity) == (tmp_path / "ring", 7, 4096)
    reader.close()
    writer.close(unlink=False)
    assert open_files() == before
    assert writer.path.exists()
    other = RingWriter.create(tmp_path / "other", 4097, incarnation=7)
    assert other.capacity == 8192
    other.path.unlink()
    other.close()
    other = RingWriter.create(tmp_path / "other", 4097, incarnation=7)
    other.close()
    assert not other.path.exists()


def test_elsewhere_a_reader_stays_a_quarter_of_the_ring_away(
    writer: RingWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dro.shared_memory.ring._STRONGLY_ORDERED", False)
    reader = RingReader.open(writer.path, 7)
    pos = writer.write(b"a" * 64)
    writer.reserve(CAPACITY * 3 // 4 - 64)
    assert reader.copy(pos, 64) == bytearray(b"a" * 64)
    writer.reserve(CAPACITY * 3 // 4 - 63)
    assert reader.copy(pos, 64) is None
    reader.close()


def test_what_is_written_can_be_read(writer: RingWriter, reader: RingReader) -> None:
    first = writer.write(b"one")
    second = writer.write(b"second")
    assert (first, second) == (0, ALIGN)
    assert reader.copy(first, 3) == bytearray(b"one")
    assert reader.copy(second, 6) == bytearray(b"second")
    assert reader.copy(second + 3, 3) == bytearray(b"ond")
    assert reader.copy(second, 0) == bytearray()


@pytest.mark.parametrize("size", [ALIGN - 1, ALIGN, ALIGN + 1])
def test_chunks_begin_behind_each_other(writer: RingWriter, reader: RingReader, size: int) -> None:
    first = writer.write(b"a" * size)
    second = writer.write(b"b" * size)
    assert second % ALIGN == 0
    assert reader.copy(first, size) == bytearray(b"a" * size)
    assert reader.copy(second, size) == bytearray(b"b" * size)


def test_a_chunk_never_wraps(writer: RingWriter, reader: RingReader) -> None:
    writer.write(bytes(CAPACITY - 100))
    pos = writer.write(b"x" * 200)
    assert pos == CAPACITY
    assert reader.copy(pos, 200) == bytearray(b"x" * 200)
    last = writer.write(b"y" * (CAPACITY - 256))
    assert last == CAPACITY + 256, "what just fits stays in this round"
    assert reader.copy(last, CAPACITY - 256) == bytearray(b"y" * (CAPACITY - 256))
    assert writer.write(b"z" * CAPACITY) == 2 * CAPACITY
    assert writer.position == reader.position == 3 * CAPACITY


def test_a_chunk_is_gone_as_soon_as_its_room_is_reserved(writer: RingWriter, reader: RingReader) -> None:
    pos = writer.write(b"a" * 100)
    writer.write(bytes(CAPACITY - 128))
    assert reader.copy(pos, 100) is not None
    writer.reserve(1)
    assert reader.copy(pos, 100) is None


def test_what_is_not_committed_cannot_be_read(writer: RingWriter, reader: RingReader) -> None:
    pos = writer.reserve(100)
    assert reader.copy(pos, 100) is None
    writer.commit(pos + 50)
    assert reader.copy(pos, 50) is not None
    assert reader.copy(pos, 51) is None
    assert reader.copy(pos, -1) is None
    assert reader.copy(pos + CAPACITY - 10, 20) is None
    assert reader.copy(2**64 - 1, 1) is None, "as a broken table may say"
    assert reader.position == pos + 50


def test_a_reservation_need_not_be_used_up(writer: RingWriter) -> None:
    pos = writer.reserve(4000)
    assert writer.reserve(2000) == pos
    writer.commit(pos + 10)
    assert writer.reserve(4000) == pos + ALIGN


def test_rules_of_the_writer(writer: RingWriter) -> None:
    for wrong in (CAPACITY + 1, -1):
        with pytest.raises(LocalProtocolError):
            writer.reserve(wrong)
    assert writer.reserve(CAPACITY) == writer.reserve(0) == 0
    writer.commit(0)
    writer.commit(0)
    pos = writer.write(b"x" * 64)
    pos = writer.reserve(CAPACITY - 64)
    with pytest.raises(LocalProtocolError):
        writer.commit(CAPACITY + 1)
    writer.commit(pos + 10)
    with pytest.raises(LocalProtocolError):
        writer.commit(pos + 9)


@given(st.lists(st.tuples(st.integers(0, CAPACITY), st.integers(0, CAPACITY)), min_size=1, max_size=60))
def test_every_chunk_reads_back_until_it_is_overrun(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("ring") / "r"
    writer = RingWriter.create(path, CAPACITY, 1)
    reader = RingReader.open(path, 1)
    chunks: list[tuple[int, bytes]] = []
    reserved = 0
    for serial, (claimed, used) in enumerate(sizes):
        used = min(claimed, used)
        pos = writer.reserve(claimed)
        assert pos % ALIGN == 0
        assert pos % CAPACITY + claimed <= CAPACITY
        reserved = max(reserved, pos + claimed)
        data = bytes([serial % 251]) * used
        writer.mv[writer.offset(pos) : writer.offset(pos) + used] = data
        writer.commit(pos + used)
        chunks.append((pos, data))
        for old, content in chunks:
            expected = content if old + CAPACITY >= reserved else None
            assert reader.copy(old, len(content)) == expected
    reader.close()
    writer.close()


def _in_little_memory(check: Callable[[Path], None], options: str, folder: Path) -> int:
    """Exit status of a process that does this in a file system in memory with so little room; None: it was killed."""

    def run() -> None:
        mounted(options, str(folder))()
        check(folder)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode is not None
    return process.exitcode


def _fill(folder: Path) -> None:
    ring = RingWriter.create(folder / "ring", 16 << 20, 1)
    other = RingWriter.create(folder / "other", 16 << 20, 1)
    reader = RingReader.open(ring.path, 1)
    for _ in range(100):
        ring.write(bytes(100 << 10))
    assert ring.extent == 2 * FIRST_BYTES, "as far as there was memory"
    last = ring.write(b"x" * (100 << 10))
    assert reader.copy(last, 100 << 10) == bytearray(b"x" * (100 << 10)), "it goes round in what it has"
    with pytest.raises(ResourceError, match=f"no room for 800000 bytes in the fragment ring {folder}/ring; give"):
        ring.write(bytes(800_000))
    with pytest.raises(ResourceError, match="no room for 1 bytes"):
        other.write(b"x")
    ring.needs.append(lambda: False)
    for _ in range(2):
        ring.give_back()
    assert other.write(b"x") == 0, "there is room again"


@pytest.mark.netns  # mounts
def test_where_memory_ends_a_ring_gets_no_larger_and_nobody_dies(tmp_path: Path) -> None:
    assert _in_little_memory(_fill, "size=420k", tmp_path) == 0


@pytest.mark.netns
def test_255_portals_without_traffic_fit_into_little_memory(tmp_path: Path) -> None:
    def check(folder: Path) -> None:
        for n in range(READERS - 1):
            RingWriter.create(folder / f"ring{n}", 16 << 20, 1)

    assert _in_little_memory(check, "size=10m", tmp_path) == 0


def _pattern(pos: int, size: int) -> bytes:
    seed = hashlib.blake2b(pos.to_bytes(8, "little"), digest_size=32).digest()
    return (seed * (size // 32 + 1))[:size]


def _write_many(path: Path, capacity: int, announce: Connection) -> None:
    writer = RingWriter.create(path, capacity, 3)
    rng = random.Random(5)
    announce.send((0, 0))
    for serial in range(CHUNKS):
        size = rng.randrange(1, capacity // 4)
        pos = writer.reserve(size)
        start = writer.offset(pos)
        writer.mv[start : start + size] = _pattern(pos, size)
        writer.commit(pos + size)
        if serial % 3 == 0:
            announce.send((pos, size))
    announce.send(None)
    os._exit(0)


@pytest.fixture(params=[16 << 10, 256 << 10])
def fast_writer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Connection]:
    """Where the chunks are that a process writes to `tmp_path/ring`, None at the end. It is killed with the test."""
    fork = multiprocessing.get_context("fork")
    chunks, announce = fork.Pipe(duplex=False)
    process = fork.Process(target=_write_many, args=(tmp_path / "ring", request.param, announce))
    process.start()
    announce.close()
    yield chunks
    chunks.close()
    process.kill()
    process.join()


def test_a_reader_beside_a_fast_writer_never_gets_wrong_bytes(tmp_path: Path, fast_writer: Connection) -> None:
    def next_chunk() -> tuple[int, int] | None:
        assert fast_writer.poll(PATIENCE_S), "the writer stands still"
        chunk: tuple[int, int] | None = fast_writer.recv()
        return chunk

    assert next_chunk() == (0, 0)
    reader = RingReader.open(tmp_path / "ring", 3)
    rng = random.Random(9)
    good = gone = 0
    pending: list[tuple[int, int]] = []
    while (chunk := next_chunk()) is not None:
        pending.append(chunk)
        if rng.random() < 0.3:  # fall behind on purpose
            continue
        for pos, size in pending:
            data = reader.copy(pos, size)
            if data is None:
                gone += 1
            else:
                good += 1
                assert data == _pattern(pos, size)
        pending.clear()
    assert good > 0
    assert gone > 0
    reader.close()
