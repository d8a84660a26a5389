"""What comes from siblings: their descriptor queues, in turn, into the egress.

The poller of the portal's loop. A queue is read from where this portal, or its incarnation before, had stopped, but not
before the sibling's greeting has been compared with what lies before it: `PortalHello` counts what was announced up to
then, and what comes later must not be in the books yet. The queue of a sibling that has died is read to its end.
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
        self._greeted: dict[int, DescriptorReader] = {}  # those that are polled

    def __contains__(self, worker: int) -> bool:
        return worker in self._queues

    def add(self, worker: int, queue: DescriptorReader) -> None:
        self._queues[worker] = queue
        self._egress.on_ring(worker, queue.ring)

    def remove(self, worker: int) -> None:
        """The sibling is gone: take all that it has announced, then let go of its ring."""
        queue = self._queues.get(worker)
        if queue is not None:
            self._drain(worker, queue, None)
            del self._queues[worker]
            self._greeted.pop(worker, None)
            self._egress.on_ring(worker, None)
            queue.close()
            queue.ring.close()

    def on_hello(self, worker: int, announced: int) -> None:
        """Take the first `announced` descriptors of the queue, as far as that was not done. `poll` it then."""
        if (queue := self._queues.get(worker)) is not None:
            self._drain(worker, queue, announced)

    def poll(self, worker: int) -> None:
        """From now on take what the sibling announces."""
        if (queue := self._queues.get(worker)) is not None:
            self._greeted[worker] = queue

    def _drain(self, worker: int, queue: DescriptorReader, until: int | None) -> None:
        while (until is None or queue.taken < until) and (slot := queue.take()) is not None:
            self._egress.on_batch(worker, slot)
        queue.finish()
        self._egress.flush_sessions()

    # the poller of the loop

    def take(self) -> bool:
        egress = self._egress
        worked = False
        for worker, queue in self._greeted.items():
            if not queue.has_more():
                continue
            worked = True
            for _ in range(BATCHES_PER_TURN):
                slot = queue.take()
                if slot is None:
                    break
                egress.on_batch(worker, slot)
            queue.finish()
        if worked:
            egress.flush_sessions()
        return worked

    def before_sleep(self) -> bool:
        queues = self._greeted.values()
        for queue in queues:
            queue.ask_for_wake_up()
        fence()
        return not any(queue.has_more() for queue in queues)

    def after_sleep(self) -> None:
        for queue in self._greeted.values():
            queue.stay_awake()
