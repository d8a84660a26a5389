"""Addressed data: messages to a portal because of where they go, not of what they tell.

The third class on the bus, beside control messages, which are never lost, and source data, which follows interest.
A message is taken over at once or dropped, and counted: at most `ADDRESSED.slots` of them wait for each portal, in a
queue of their own, which is read after the one of source data and for a bounded part of each turn. So a flood of them
neither delays source data nor takes its room. Order is kept within one pair of portals.

In the ring a message has its domain in front; its descriptor has the kind, by which the handler is found.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from struct import Struct
from typing import Final

from dro.bus.counters import CounterPage
from dro.bus.descriptors import BatchDescriptor as QueueSlot
from dro.errors import DecodeError, ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.metrics.slots import PairSlot, Slot
from dro.shared_memory.ring import RingReader, RingWriter
from portals.datapath.descriptor import BatchKind
from portals.datapath.ingress import Announce

limited = LimitedLogger(logging.getLogger(__name__)).event

DOMAIN: Final = Struct("=I")

Handler = Callable[[int, int, memoryview], object]
"""Gets the worker that the message comes from, the domain that it goes to (0: none), and the message, which it may
keep. A message that raises DecodeError counts as an error."""


class AddressedData:
    """Both ends of a portal: what it hands to siblings, and what they hand to it."""

    def __init__(self, ring: RingWriter, page: CounterPage, queues: Announce, wake: Callable[[int], object]) -> None:
        self._ring = ring
        self._page = page
        self._queues = queues
        self._wake = wake
        self.handlers: dict[int, Handler] = {}
        """By kind, see `BatchKind`. A message of a kind that has none counts as an error."""

    def send(self, worker: int, kind: BatchKind, domain_id: int, message: bytes | memoryview) -> bool:
        """Hand it to that portal; False when it is dropped, for want of room in its queue or in shared memory."""
        nbytes = len(message)
        try:
            at = self._ring.write(DOMAIN.pack(domain_id) + message)
            is_taken = self._queues.put(worker, QueueSlot(at, 1, 1, nbytes, kind))
        except ResourceError:
            is_taken = False
            if kind is BatchKind.UNICAST:
                self._page.add_sized(self._page.pair(worker) + PairSlot.UNICAST_NO_MEMORY, 1, nbytes)
        self._page.add_sized(Slot.ADDRESSED_HANDED if is_taken else Slot.ADDRESSED_REFUSED, 1, nbytes)
        if is_taken:
            self._wake(worker)
        return is_taken

    def on_message(self, worker: int, slot: QueueSlot, ring: RingReader) -> None:
        """What a descriptor of the sibling tells of."""
        page = self._page
        page.add_sized(Slot.ADDRESSED_FORWARDED, 1, slot.nbytes)
        handler = self.handlers.get(slot.kind)
        if handler is None:
            self._drop_broken(slot, f"addressed data of kind {slot.kind}")
            return
        data = ring.copy(slot.table, DOMAIN.size + slot.nbytes)
        if data is None:  # this portal was too slow: the writer has been round
            page.add_sized(Slot.ADDRESSED_OVERRUN, 1, slot.nbytes)
            return
        try:
            handler(worker, DOMAIN.unpack_from(data)[0], memoryview(data)[DOMAIN.size :])
        except DecodeError as e:
            self._drop_broken(slot, str(e))

    def _drop_broken(self, slot: QueueSlot, error: str) -> None:
        self._page.add_sized(Slot.ADDRESSED_ERROR, 1, slot.nbytes)
        limited(LogEvent.DESCRIPTOR_BROKEN, extra={"error": error})
