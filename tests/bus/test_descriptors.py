"""Descriptor queues: each is taken once, in order, over the death of either side; a sleeper is woken once."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dro.bus.descriptors import SOURCE_DATA, BatchDescriptor, DescriptorReader, DescriptorWriter
from dro.errors import LocalProtocolError
from dro.shared_memory.ring import FIRST_BYTES, QUEUES_BYTES, READERS, RingReader, RingWriter
from dro.system_calls import fence

ME, OTHER = 3, READERS - 1
RING_BYTES = 4 * FIRST_BYTES
SLOTS = SOURCE_DATA.slots


class Pair:
    """A ring with its queues, and readers of it."""

    def __init__(self, folder: Path) -> None:
        self.ring = RingWriter.create(folder / "ring", RING_BYTES, 7)
        self.writer = DescriptorWriter(self.ring)
        self.readers: list[DescriptorReader] = []

    def reader(self, worker: int, *, goes_on_at: int | None = 0) -> DescriptorReader:
        self.readers.append(DescriptorReader(RingReader.open(self.ring.path, 7), worker, goes_on_at=goes_on_at))
        return self.readers[-1]

    def close(self) -> None:
        for reader in self.readers:
            reader.close()
            reader.ring.close()
        self.writer.close()
        self.ring.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def slot(n: int) -> BatchDescriptor:
    return BatchDescriptor((1 << 63) + n, 0xFFFFFFFF - n, 2 * n, 3 * n, n % 5)


def test_each_reader_takes_its_own_descriptors_in_order(pair: Pair) -> None:
    mine, others = pair.reader(ME), pair.reader(OTHER)
    assert mine.take() is None
    for n in range(5):
        assert pair.writer.put(ME, slot(n))
        assert pair.writer.put(OTHER, slot(100 + n))
    assert (pair.writer.announced(ME), pair.writer.announced(4)) == (5, 0)
    assert mine.has_more()
    assert [mine.take() for _ in range(6)] == [*map(slot, range(5)), None]
    assert [others.take() for _ in range(5)] == [*map(slot, range(100, 105))]
    assert not mine.has_more()
    assert mine.taken == 5


def test_a_full_queue_refuses_until_there_is_room_and_goes_round(pair: Pair) -> None:
    reader = pair.reader(ME)
    for n in range(SLOTS):
        assert pair.writer.put(ME, slot(n))
    assert not pair.writer.put(ME, slot(SLOTS))
    assert pair.writer.put(OTHER, slot(0)), "another one's is empty"
    assert reader.take() == slot(0)
    assert not pair.writer.put(ME, slot(SLOTS)), "it may still be at it"
    reader.finish()
    assert pair.writer.put(ME, slot(SLOTS))
    assert not pair.writer.put(ME, slot(SLOTS + 1))
    assert [reader.take() for _ in range(SLOTS + 1)] == [*map(slot, range(1, SLOTS + 1)), None]


def test_a_reader_that_has_copied_more_than_was_ever_put_gets_nothing_more(pair: Pair) -> None:
    reader = pair.reader(ME)
    assert pair.writer.put(ME, slot(0))
    reader.taken = 2
    reader.finish()
    assert not pair.writer.put(ME, slot(1))
    assert pair.writer.put(OTHER, slot(0))
    reader.taken = 1
    reader.finish()
    assert pair.writer.put(ME, slot(1))


def test_a_reader_that_returns_goes_on_where_it_had_stopped(pair: Pair) -> None:
    first = pair.reader(ME)
    for n in range(4):
        pair.writer.put(ME, slot(n))
    assert [first.take(), first.take()] == [slot(0), slot(1)]
    first.finish()
    assert first.take() == slot(2)
    second = pair.reader(ME)
    pair.writer.put(ME, slot(4))
    assert [second.take() for _ in range(4)] == [slot(2), slot(3), slot(4), None]
    assert pair.reader(ME, goes_on_at=4).take() == slot(4)
    assert pair.reader(ME, goes_on_at=9).take() is None
    assert second.taken == 5


def test_a_reader_that_does_not_know_what_was_sent_takes_nothing_again(pair: Pair) -> None:
    first = pair.reader(ME)
    for n in range(4):
        pair.writer.put(ME, slot(n))
    assert first.take() == slot(0)
    first.finish()
    assert [first.take(), first.take()] == [slot(1), slot(2)]
    second = pair.reader(ME, goes_on_at=None)
    assert [second.take(), second.take()] == [slot(3), None]
    second.finish()
    assert pair.reader(ME, goes_on_at=None).taken == 4


def test_what_a_dead_writer_had_announced_can_be_taken(pair: Pair) -> None:
    reader = pair.reader(ME)
    pair.writer.put(ME, slot(1))
    pair.ring.path.unlink()
    assert reader.take() == slot(1)


def test_a_reader_is_woken_once_for_each_sleep_and_only_then(pair: Pair) -> None:
    reader = pair.reader(ME)
    assert not pair.writer.must_wake(ME)
    for _ in range(2):
        reader.ask_for_wake_up()
        fence()
        assert not pair.writer.must_wake(OTHER)
        assert pair.writer.must_wake(ME)
        assert not pair.writer.must_wake(ME)
    reader.ask_for_wake_up()
    reader.stay_awake()
    assert not pair.writer.must_wake(ME)


def test_without_memory_for_a_queue_it_refuses(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        assert not pair.writer.put(ME, slot(0))
    assert pair.writer.put(ME, slot(0)), "there is some now"


@pytest.mark.parametrize("worker", [-1, READERS])
def test_a_worker_that_cannot_be_is_a_bug(pair: Pair, worker: int) -> None:
    with pytest.raises(LocalProtocolError, match=f"no descriptor queue for worker {worker}"):
        pair.writer.put(worker, slot(0))


class Backlog:
    """Chunks of half of the first extent through a ring, each announced to ME."""

    SIZE = FIRST_BYTES // 2

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.reader = pair.reader(ME)

    def write(self, chunks: int) -> list[int]:
        at = []
        for _ in range(chunks):
            at.append(self.pair.ring.write(bytes(self.SIZE)))
            assert self.pair.writer.put(ME, BatchDescriptor(at[-1], 1, 1, self.SIZE, 0))
        return at

    def read(self, chunks: int) -> list[bool]:
        """Which of them were still there."""
        slots = [self.reader.take() for _ in range(chunks)]
        return [slot is not None and self.reader.ring.copy(slot.table, slot.nbytes) is not None for slot in slots]


def test_a_ring_is_as_large_as_the_backlog_of_its_readers(pair: Pair) -> None:
    backlog, ring = Backlog(pair), pair.ring
    before = ring.path.stat().st_blocks
    for _ in range(20):
        backlog.write(1)
        assert backlog.read(1) == [True]
        backlog.reader.finish()
    assert ring.extent == FIRST_BYTES
    assert (ring.path.stat().st_blocks - before) * 512 <= FIRST_BYTES + QUEUES_BYTES
    backlog.write(3)
    assert ring.extent == 2 * FIRST_BYTES
    assert backlog.read(3) == [True] * 3
    backlog.write(1)
    assert ring.extent == 2 * FIRST_BYTES
    backlog.write(1)
    assert ring.extent == 4 * FIRST_BYTES, "what was taken may not have been copied yet"


def test_nothing_is_overwritten_before_the_ring_is_as_large_as_it_may_be(pair: Pair) -> None:
    backlog = Backlog(pair)
    backlog.write(2)
    assert backlog.read(2) == [True] * 2
    backlog.reader.finish()
    backlog.write(8)
    assert pair.ring.extent == pair.ring.capacity == 8 * Backlog.SIZE
    backlog.write(1)
    assert backlog.read(9) == [False] + [True] * 8


def test_what_a_reader_that_is_gone_has_left_holds_the_ring_until_it_is_overwritten(pair: Pair) -> None:
    backlog, ring = Backlog(pair), pair.ring
    backlog.write(1)
    backlog.read(1)
    for _ in range(8):
        assert ring.is_needed()
        ring.write(bytes(Backlog.SIZE))
    assert not ring.is_needed()


def test_memory_that_was_not_needed_is_given_back(pair: Pair) -> None:
    backlog, ring = Backlog(pair), pair.ring
    old = backlog.write(4)
    backlog.read(4)
    pair.ring.give_back()
    assert ring.extent == 2 * FIRST_BYTES, "it may still be read"
    backlog.reader.finish()
    ring.give_back()
    assert ring.extent == 0
    assert [backlog.reader.ring.copy(at, 1) for at in old] == [None] * 4
    at = backlog.write(1)
    assert backlog.read(1) == [True]
    backlog.reader.finish()
    assert at[0] % ring.capacity == 0
    ring.give_back()
    assert ring.extent == FIRST_BYTES, "it is used"
    blocks = ring.path.stat().st_blocks
    ring.give_back()
    assert ring.extent == 0
    assert blocks - ring.path.stat().st_blocks == FIRST_BYTES // 512
