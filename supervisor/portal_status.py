"""`portals` on the admin socket: what the counter pages say about each portal."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Final

from dro.bus.counters import CounterPage
from dro.config.model import DroConfig
from dro.errors import ResourceError
from portals.counters import DROP_SLOTS, PairSlot, Slot
from supervisor.admin import Arguments, Reply
from supervisor.fleet import State
from supervisor.parent import Parent
from supervisor.records import to_json
from supervisor.status import PortalsStatus, PortalStatus, WorkerStatus

_WORKING: Final = (State.READY.value, State.DRAINING.value)  # in any other state gauges tell of the past


class PortalsCommand:
    """Registers itself with the parent's admin server."""

    def __init__(self, parent: Parent[DroConfig]) -> None:
        self._parent = parent
        parent.admin.add("portals", self._answer, looks=True)

    def _answer(self, arguments: Arguments, reply: Reply) -> None:
        arguments.done()
        reply.ok(to_json(self.look()))

    def look(self) -> PortalsStatus:
        """The portals that belong to the DRO now, whatever state they are in."""
        parent = self._parent
        configured = {portal.name: portal for portal in parent.config.portals}
        workers = [worker for worker in parent.worker_status() if worker.name in configured]
        pages = Pages(parent.counters_dir, parent.known_indices)
        try:
            portals = []
            for worker in workers:
                portal = configured[worker.name]
                portals.append(pages.status_of(worker, portal.domain_id, portal.cost))
            return PortalsStatus(round(time.monotonic(), 6), tuple(portals))
        finally:
            pages.close()


class Pages:
    """The counter pages of all portals that this DRO has or had, open for one look."""

    def __init__(self, folder: Path, indices: range) -> None:
        self._pages: dict[int, CounterPage] = {}
        for index in indices:
            with contextlib.suppress(ResourceError):  # of a portal that could not be added
                self._pages[index] = CounterPage.open(folder / f"counters.{index}", readonly=True)
        # what a portal's full channel did not take is counted by its siblings
        self._refused = self._sums(PairSlot.REFUSED)
        self._refused_bytes = self._sums(PairSlot.REFUSED_BYTES)

    def close(self) -> None:
        for page in self._pages.values():
            page.close()

    def status_of(self, worker: WorkerStatus, domain_id: int, cost: int) -> PortalStatus:
        page = self._pages[worker.index]
        refused, refused_bytes = self._refused[worker.index], self._refused_bytes[worker.index]
        dropped = {reason: page[slot] for reason, slot in DROP_SLOTS.items()}
        dropped["would_block"] += refused

        def gauge(*slots: Slot) -> int:
            return sum(page[slot] for slot in slots) if worker.state in _WORKING else 0

        return PortalStatus(
            name=worker.name,
            kind=worker.role,
            state=worker.state,
            domain_id=domain_id,
            cost=cost,
            proxy_receivers=gauge(Slot.PROXY_RECEIVERS),
            proxy_sources=gauge(Slot.PROXY_SOURCES),
            local_topics=gauge(Slot.LOCAL_TOPICS),
            local_patterns=gauge(Slot.LOCAL_PCRE, Slot.LOCAL_REGEX),
            remote_topics=gauge(Slot.REMOTE_TOPICS),
            remote_patterns=gauge(Slot.REMOTE_PCRE, Slot.REMOTE_REGEX),
            received=page[Slot.TOPIC_RCVD],
            received_bytes=page[Slot.TOPIC_RCVD_BYTES],
            forwarded=page[Slot.FORWARDED] + refused,
            forwarded_bytes=page[Slot.FORWARDED_BYTES] + refused_bytes,
            sent=page[Slot.SENT],
            sent_bytes=page[Slot.SENT_BYTES],
            dropped=dropped,
            queued=page[Slot.QUEUED],
            queued_bytes=page[Slot.QUEUED_BYTES],
            queued_bytes_max=page[Slot.QUEUED_BYTES_MAX],
            queue_limit_bytes=page[Slot.QUEUE_LIMIT],
            unrecovered=page[Slot.UNRECOVERABLE],
            naks_sent=page[Slot.NAKS_SENT],
            retransmitted=page[Slot.RETRANSMITTED],
        )

    def _sums(self, slot: PairSlot) -> list[int]:
        """By egress, over all ingress portals. In whole columns: with 255 portals there are 65,000 pairs."""
        columns = (page.slots[page.general_slots + slot :: page.pair_slots].tolist() for page in self._pages.values())
        return [sum(column) for column in zip(*columns, strict=True)]
