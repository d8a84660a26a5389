"""Descriptor queues of a portal's siblings, without shared memory; and batches that a test hands over by itself."""

from __future__ import annotations

from collections.abc import Sequence

from dro.bus.descriptors import BatchDescriptor, DescriptorWriter
from dro.shared_memory.ring import RingReader, RingWriter
from dro.transport.runs import Run, RunTable
from portals.datapath import descriptor
from portals.datapath.descriptor import BatchKind
from tests.fakes.runs import table_of


class FakeQueues:
    """Keeps what is announced, up to `room` descriptors."""

    def __init__(self) -> None:
        self.announced: list[tuple[int, BatchDescriptor]] = []
        self.room = 1 << 30

    def put(self, reader: int, slot: BatchDescriptor) -> bool:
        if len(self.announced) >= self.room:
            return False
        self.announced.append((reader, slot))
        return True


def table_at(ring: RingReader, slot: BatchDescriptor) -> tuple[RunTable, int]:
    """The table that a descriptor announces, with handles for topic indexes, and the bytes of its chunk."""
    table = RunTable()
    frame = ring.copy(slot.table, descriptor.table_bytes(slot.rows))
    assert frame is not None
    return table, descriptor.decode(frame, table)[1]


def hand_over(ring: RingWriter, queues: DescriptorWriter, reader: int, chunk: bytes, runs: Sequence[Run]) -> None:
    """Announce these runs of a chunk, as a sibling would."""
    table = table_of(runs)
    at = ring.write(descriptor.encode(ring.write(chunk), len(chunk), table))
    assert queues.put(reader, BatchDescriptor(at, table.rows, table.fragments(), table.nbytes(), BatchKind.SOURCE_DATA))
