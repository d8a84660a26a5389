"""What comes from siblings: their descriptor queues, in turn, into the egress.

The poller of the portal's loop. A queue is read from where this portal, or its incarnation before, had stopped. The
queue of a sibling that has died is read to its end.
"""

from __future__ import annotations

from typing import Final

from dro.bus.descriptors import DescriptorReader, fence
from portals.datapath.egress import Egress

BATCHES_PER_TURN: Final = 8  # of each sibling


class Intake:
    """The queues of all siblings that are up."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._queues: dict[int, DescriptorReader] = {}

    def __contains__(self, worker: int) -> bool:
        return worker in self._queues

    def add(self, worker: int, queue: DescriptorReader) -> None:
        self._queues[worker] = queue
        self._egress.on_ring(worker, queue.ring)

    def remove(self, worker: int) -> None:
        """The sibling is gone: take all that it has announced, then let go of its ring."""
        queue = self._queues.get(worker)
        if queue is not None:
            self.drain(worker)
            del self._queues[worker]
            self._egress.on_ring(worker, None)
            queue.close()
            queue.ring.close()

    def drain(self, worker: int) -> None:
        """Take all that the sibling has announced so far."""
        queue = self._queues.get(worker)
        while queue is not None and (slot := queue.take()) is not None:
            self._egress.on_batch(worker, slot)
        self._egress.flush_sessions()

    # the poller of the loop

    def take(self) -> bool:
        egress = self._egress
        worked = False
        for worker, queue in self._queues.items():
            if not queue.has_more():
                continue
            worked = True
            for _ in range(BATCHES_PER_TURN):
                slot = queue.take()
                if slot is None:
                    break
                egress.on_batch(worker, slot)
        if worked:
            egress.flush_sessions()
        return worked

    def before_sleep(self) -> bool:
        queues = self._queues.values()
        for queue in queues:
            queue.ask_for_wake_up()
        fence()
        return not any(queue.has_more() for queue in queues)

    def after_sleep(self) -> None:
        for queue in self._queues.values():
            queue.stay_awake()
