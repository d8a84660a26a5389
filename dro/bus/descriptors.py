"""Descriptor queues in shared memory: which batches in a ring are for a reader.

A ring has two queues for each reader, by worker index: one for source data, and a short one for what is addressed to
the reader (`Queue`), so that neither takes room from the other. Each has one writer and one reader. The writer puts a
descriptor into the next slot and then moves `head`; the reader moves `begun` when it takes one, and `tail` when it has
worked off what it took. Its next incarnation goes on at `tail` where it knows what the one before has sent, so that
nothing is lost; else at `begun`, so that nothing is sent twice. What is addressed to the reader is never taken twice:
both are one cell. When it has copied what it took it moves `done` as well: up to there slots and ring are the writer's
again. All count from 0 for ever.

A reader that sleeps says so in a third cell, and only then the writer has to wake it. Store and load of the two sides
cross: each stores its cell, orders that before what follows (`fence`), and only then loads the other's cell.

Cells and slots are native u64 and u32: both sides are processes of one machine.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, NamedTuple

from dro import system_calls
from dro.errors import LocalProtocolError, ResourceError
from dro.shared_memory.ring import CELLS_AT, CELLS_BYTES, QUEUES_BYTES, READERS, SLOTS_AT, RingReader, RingWriter

_SLOT: Final = Struct("=QIIII8x")
_SLEEPS = 9  # cell of a reader, as index of u64; those of its queues are in `Queue`

_CELLS, _QUEUES, _SLOT_BYTES = CELLS_BYTES // 8, QUEUES_BYTES, _SLOT.size  # plain integers in the compiled form
# what does not change is looked up once
_pack_into, _unpack_from, _new = _SLOT.pack_into, _SLOT.unpack_from, tuple.__new__


class Queue(NamedTuple):
    """Where its cells are, as indexes of u64 (the writer's has a cache line of its own), and its descriptors."""

    head: int
    begun: int
    tail: int
    done: int
    slots_at: int
    slots: int


SOURCE_DATA: Final = Queue(0, 13, 8, 10, 0, 4032)
ADDRESSED: Final = Queue(1, 11, 11, 12, 4032 * _SLOT.size, 64)


def announced_in(ring: RingReader, reader: int) -> int:
    """Return how many descriptors of source data a ring has ever had for a reader."""
    at = CELLS_AT + reader * CELLS_BYTES
    with ring.queues[at : at + CELLS_BYTES] as view, view.cast("Q") as cells:
        return cells[SOURCE_DATA.head]


class BatchDescriptor(NamedTuple):
    """A batch: its table of `rows` runs lies at ring position `table`; `fragments` and `nbytes` in all of them.

    `kind` tells what the rows are, see `portals.datapath.descriptor`.
    """

    table: int
    rows: int
    fragments: int
    nbytes: int
    kind: int


class DescriptorWriter:
    """The queues of one ring that are for the same."""

    def __init__(self, ring: RingWriter, queue: Queue = SOURCE_DATA) -> None:
        self._ring = ring
        self._head, _, _, self._done, self._slots_at, self._slots = queue
        self._slots_at += SLOTS_AT
        self._cells: Any = ring.queues[CELLS_AT:SLOTS_AT].cast("Q")
        self._heads: dict[int, int] = {}  # of readers whose queue has memory
        self._expired: dict[int, int] = {}
        ring.needs.append(self._is_needed)

    def put(self, reader: int, slot: BatchDescriptor) -> bool:
        """False when the queue is full, or there is no memory for it.

        A reader that says that it has copied what was never put is broken, and gets nothing more.
        """
        known = self._heads.get(reader)
        if known is None:
            if not 0 <= reader < READERS:
                raise LocalProtocolError(f"no descriptor queue for worker {reader}")
            try:
                self._ring.allocate_queues(reader)
            except ResourceError:
                return False
            known = self._heads[reader] = 0
        head = known
        cell = reader * _CELLS
        slots = self._slots
        done = self._cells[cell + self._done]
        if done > head or head - done >= slots:
            return False
        at = self._slots_at + reader * _QUEUES + head % slots * _SLOT_BYTES
        _pack_into(self._ring.queues, at, *slot)
        self._heads[reader] = self._cells[cell + self._head] = head + 1
        return True

    def _is_needed(self) -> bool:
        """Say whether a reader has still to read; not where its slot was overwritten: it may never return."""
        for reader, head in self._heads.items():
            if self._cells[reader * _CELLS + self._done] != head != self._expired.get(reader, 0):
                at = self._slots_at + reader * QUEUES_BYTES + (head - 1) % self._slots * _SLOT.size
                if not self._ring.is_overrun(_SLOT.unpack_from(self._ring.queues, at)[0]):
                    return True
        return False

    def announced(self, reader: int) -> int:
        """Return how many descriptors were ever put into its queue."""
        return self._heads.get(reader, 0)

    def expire(self, reader: int) -> None:
        """Give up what a queue has now: its reader has been away for too long."""
        self._expired[reader] = self.announced(reader)

    def expired(self, reader: int) -> int:
        """Return how many descriptors, from the first on, have expired."""
        return self._expired.get(reader, 0)

    def must_wake(self, reader: int) -> bool:
        """Say whether the reader sleeps. It is asked once for each sleep."""
        system_calls.fence()
        at = reader * _CELLS + _SLEEPS
        if not self._cells[at]:
            return False
        self._cells[at] = 0
        return True

    def close(self) -> None:
        self._cells = None


class DescriptorReader:
    """A queue of one reader in the ring of a sibling."""

    def __init__(
        self, ring: RingReader, reader: int, queue: Queue = SOURCE_DATA, *, goes_on_at: int | None = None
    ) -> None:
        """`goes_on_at`: what the incarnation before had worked off, if that is more than it had said here.

        None where that is not known, nor what it has sent: what it had begun is not taken again then.
        """
        self.ring = ring
        at = CELLS_AT + reader * CELLS_BYTES
        self._cells: Any = ring.queues[at : at + CELLS_BYTES].cast("Q")
        self._head, self._begun, self._tail, self._done, slots_at, self._slots = queue
        self._slots_at = SLOTS_AT + reader * QUEUES_BYTES + slots_at
        known = self._cells[self._begun] if goes_on_at is None else goes_on_at
        self.taken: int = max(self._cells[self._tail], min(known, self._cells[self._head]))
        """How many descriptors were ever taken, also by earlier incarnations of the reader."""
        self.finish()

    def has_more(self) -> bool:
        return bool(self._cells[self._head] != self.taken)

    def take(self) -> BatchDescriptor | None:
        """Take the next descriptor; a next incarnation that goes on takes it again unless `finish` follows."""
        tail = self.taken
        if self._cells[self._head] == tail:
            return None
        at = self._slots_at + tail % self._slots * _SLOT_BYTES
        slot = _new(BatchDescriptor, _unpack_from(self.ring.queues, at))
        self.taken = self._cells[self._begun] = tail + 1
        return slot

    def finish(self) -> None:
        """All that was taken has been copied out of the ring, and worked off."""
        self._cells[self._tail] = self.taken
        self._cells[self._done] = self.taken

    def ask_for_wake_up(self) -> None:
        """`has_more` is to be asked after that, and after a `fence`."""
        self._cells[_SLEEPS] = 1

    def stay_awake(self) -> None:
        self._cells[_SLEEPS] = 0

    def close(self) -> None:
        self._cells = None
