"""Records in a ring: a reader gets each of them, or knows how many it has lost; broken memory is an error, no more."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError, ResourceError
from dro.shared_memory.records import FREE, RecordReader, RecordWriter, index_entries, record_max
from dro.shared_memory.ring import HEADER_BYTES, RingWriter

NAME = 0xABC
ENTRIES = 128
SIZE = 1344  # of which a ring of one page holds three
MOST = 1 << 20
Make = Callable[..., RecordWriter]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[RecordWriter] = []

    def make(capacity: int = 4096, entries: int = ENTRIES) -> RecordWriter:
        path = tmp_path / f"records-{len(made)}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        data_at = HEADER_BYTES + 32 * entries
        made.append(RecordWriter(RingWriter.of_file(path, fd, capacity, NAME, data_at, data_at)))
        return made[-1]

    yield make
    for writer in made:
        writer.close(unlink=True)


def reader_of(writer: RecordWriter, number: int = 0) -> RecordReader:
    fd = os.open(writer.ring.path, os.O_RDONLY)
    try:
        return RecordReader(writer.ring.path, fd, NAME, number)
    finally:
        os.close(fd)


def record(number: int, size: int = SIZE) -> bytes:
    return number.to_bytes(8, "big") * (size // 8)


def numbers(buffer: bytes | bytearray, size: int = SIZE) -> list[int]:
    found = [int.from_bytes(buffer[at : at + 8], "big") for at in range(0, len(buffer), size)]
    assert buffer == b"".join(record(number, size) for number in found)
    return found


def test_t31_five_records_in_a_ring_of_three_leave_the_last_three(make: Make) -> None:
    writer = make()
    reader = reader_of(writer)
    for number in range(1, 6):
        writer.write(record(number), turn=1)
    got = bytearray()
    assert reader.read(got, MOST) == (3, 2)
    assert numbers(got) == [3, 4, 5]
    assert reader.read(got, MOST) == (0, 0)
    reader.close()


def test_each_record_comes_once_to_a_reader_that_keeps_up(make: Make) -> None:
    writer = make()
    readers = [reader_of(writer), reader_of(writer)]
    for number in range(500):
        writer.write(record(number, 8 + number % 100 * 8), turn=1)
        for reader in readers:
            got = bytearray()
            assert reader.read(got, MOST) == (1, 0)
            assert got == record(number, 8 + number % 100 * 8)
    for reader in readers:
        reader.close()


def test_a_reader_may_begin_anywhere_and_takes_a_limited_part(make: Make) -> None:
    writer = make(capacity=1 << 16)
    for number in range(20):
        writer.write(record(number), turn=1)
    reader = reader_of(writer, 4)
    got = bytearray()
    assert reader.read(got, 5000) == (4, 0)
    assert numbers(got) == [4, 5, 6, 7]
    reader.close()


def test_an_index_that_came_round_is_an_overrun_as_well(make: Make) -> None:
    writer = make(capacity=1 << 20)
    reader = reader_of(writer)
    for number in range(ENTRIES + 50):
        writer.write(record(number, 8), turn=1)
    got = bytearray()
    read, lost = reader.read(got, MOST)
    assert (read, lost) == (ENTRIES, 50)
    assert numbers(got, 8) == list(range(50, ENTRIES + 50))
    reader.close()


def test_what_a_reader_has_not_read_is_left_alone_by_who_asks(make: Make) -> None:
    writer = make()
    for number in range(3):
        assert writer.has_room(SIZE, 0)
        writer.write(record(number), turn=1)
    assert not writer.has_room(SIZE, 0)
    assert writer.bytes_from(0) == 3 * SIZE
    reader = reader_of(writer)
    got = bytearray()
    assert reader.read(got, MOST) == (3, 0), "to ask changes nothing"
    assert writer.has_room(SIZE, 1)
    assert writer.has_room(SIZE, 3)
    assert writer.bytes_from(3) == 0
    reader.close()


def test_nor_is_there_room_where_the_index_is_full(make: Make) -> None:
    writer = make(capacity=1 << 20)
    for number in range(ENTRIES):
        writer.write(record(number, 8), turn=1)
    assert not writer.has_room(8, 0)
    assert writer.has_room(8, 1)


def test_the_next_process_goes_on_behind_the_last_record(make: Make, tmp_path: Path) -> None:
    writer = make()
    reader = reader_of(writer)
    for number in range(3):
        writer.write(record(number), turn=number)
    process = reader.asked
    position = writer.ring.reserve(SIZE)  # and killed in the middle of the next
    writer.ring.mv[writer.ring.offset(position) : writer.ring.offset(position) + 8] = b"trash..."
    following = RecordWriter.go_on(writer.ring.path, NAME)
    assert following.count == 3
    assert [(one.number, one.turn, bytes(data) == record(one.number)) for one, data in following.newest_first()] == [
        (2, 2, True), (1, 1, True)
    ], "the oldest one has gone for the one that was not finished"  # fmt: skip
    following.write(record(3), turn=9)
    got = bytearray()
    assert reader.read(got, MOST) == (3, 1)
    assert numbers(got) == [1, 2, 3]
    assert reader.asked == process + 1
    reader.close()
    following.close(unlink=False)


@pytest.mark.parametrize("name", [NAME + 1, NAME])
def test_what_is_no_such_ring_is_refused(make: Make, name: int) -> None:
    writer = make()
    if name == NAME:
        os.truncate(writer.ring.path, 4096)
    with pytest.raises(ResourceError):
        RecordWriter.go_on(writer.ring.path, name)
    with open(writer.ring.path, "rb") as file, pytest.raises(ResourceError):
        RecordReader(writer.ring.path, file.fileno(), name, 0)
    if name == NAME:
        os.truncate(writer.ring.path, HEADER_BYTES + 32 * ENTRIES + 4096)


@pytest.mark.parametrize("moved", [0, 4, 8, 16])
def test_a_ring_without_an_index_of_records_is_refused(make: Make, moved: int) -> None:
    writer = make()
    size = os.stat(writer.ring.path).st_size
    with open(writer.ring.path, "r+b") as file:
        for cell, value in ((3, size - HEADER_BYTES - moved), (4, HEADER_BYTES + moved)):  # capacity, where data is
            file.seek(8 * cell)
            file.write(value.to_bytes(8, sys.byteorder))
    with open(writer.ring.path, "rb") as file, pytest.raises(ResourceError):
        RecordReader(writer.ring.path, file.fileno(), NAME, 0)


def test_a_reader_writes_nothing(make: Make) -> None:
    reader = reader_of(make())
    with pytest.raises(TypeError):
        reader._cells[24] = 1
    reader.close()


def test_sizes_of_real_rings() -> None:
    assert index_entries(25165824) == 32768
    assert index_entries(262144) == 1024
    assert record_max(262144) > 65535
    assert record_max(25165824) == 256 << 10


CELLS = st.integers(0, HEADER_BYTES // 8 + 4 * 8 - 1).filter(lambda cell: cell not in (0, 1, 2, 3, 4))
VALUES = st.one_of(st.integers(0, 20), st.integers(0, FREE), st.sampled_from([FREE, FREE - 1, 1 << 63, 4096, 65536]))


@given(changes=st.lists(st.tuples(CELLS, VALUES), min_size=1, max_size=6), begin=st.integers(0, 12))
def test_whatever_is_in_the_memory_reading_is_bounded(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], begin: int
) -> None:
    path = tmp_path_factory.mktemp("mutated") / "ring"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    data_at = HEADER_BYTES + 32 * ENTRIES
    writer = RecordWriter(RingWriter.of_file(path, fd, 1 << 14, NAME, data_at, data_at))
    for number in range(12):
        writer.write(record(number, 1000), turn=1)
    reader = reader_of(writer, begin)
    for cell, value in changes:
        writer._cells[cell] = value
    got = bytearray()
    try:
        for _ in range(20):
            read, lost = reader.read(got, 1 << 16)
            assert lost >= 0
            assert len(got) <= (1 << 16) + record_max(1 << 14)
            if not read:
                break
    except DecodeError:
        pass
    reader.close()
    writer.close(unlink=True)


def test_broken_entries_are_named(make: Make) -> None:
    for cell, value in ((0, 1), (1, 1 << 40), (2, 5000), (2, 1 << 60)):
        writer = make()
        for number in range(3):
            writer.write(record(number), turn=1)
        reader = reader_of(writer)
        writer._cells[HEADER_BYTES // 8 + cell] = value
        with pytest.raises(DecodeError):
            reader.read(bytearray(), MOST)
        reader.close()


def test_a_count_that_goes_back_is_broken(make: Make) -> None:
    writer = make()
    writer.write(record(1), turn=1)
    reader = reader_of(writer, 1)
    writer._cells[24] = 0
    with pytest.raises(DecodeError, match="0 records"):
        reader.read(bytearray(), MOST)
    reader.close()


def test_random_sizes_and_slow_readers_lose_only_what_was_overrun(make: Make) -> None:
    rng = random.Random(31)
    writer = make(capacity=1 << 14)
    reader = reader_of(writer)
    written = got = lost = 0
    for _ in range(2000):
        for _ in range(rng.randrange(1, 9)):
            writer.write(record(written, 8 * rng.randrange(1, 300)), turn=1)
            written += 1
        if rng.random() < 0.3:
            buffer = bytearray()
            while True:
                before = reader.number
                read, gone = reader.read(buffer, 1)
                assert reader.number == before + read + gone
                got, lost = got + read, lost + gone
                if not read:
                    break
                assert buffer[:8] == (reader.number - 1).to_bytes(8, "big")
                assert buffer == buffer[:8] * (len(buffer) // 8)
                buffer.clear()
    assert got + lost <= written
    assert got > 500
    assert lost > 100
    reader.close()
