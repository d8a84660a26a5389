"""The counter pages of one DRO, read as samples: what is in one of them belongs together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dro.bus.counters import CounterPage
from dro.errors import ResourceError
from dro.metrics.slots import PairSlot, Slot
from dro.metrics.table import GAUGE, PORTAL, rows
from supervisor.admin.status import WORKING, PortalPlace, PortalStatus, WorkerStatus

_OF_NOW: Final = tuple(
    slot
    for row in rows(PORTAL)
    for slot in row.slots.values()
    if row.kind == GAUGE and not row.metric.startswith("send_queue")
)
_REFUSED: Final = (
    (PairSlot.REFUSED, Slot.DROPPED_BLOCKED, Slot.FORWARDED),
    (PairSlot.NO_MEMORY, Slot.DROPPED_QUEUE_FAILURE, Slot.FORWARDED),
    (PairSlot.UNICAST_NO_MEMORY, Slot.UNICAST_DROPPED_QUEUE_FAILURE, Slot.UNICAST_FORWARDED),
)
"""What the siblings of a portal counted: they could not hand it over, so it is forwarded and dropped."""


class Pages:
    """The pages of all workers that this DRO has or had, open for one look; close it when done.

    Also those of portals that have left: without what they could not hand over, counters of others would fall.
    """

    def __init__(self, folder: Path) -> None:
        """`folder`: of the DRO in shared memory."""
        self._pages: dict[int, CounterPage] = {}
        for path in folder.glob("counters.*"):
            with contextlib.suppress(ResourceError):  # it is just being made
                self._pages[int(path.suffix[1:])] = CounterPage.open(path, readonly=True)
        # before the pages of those who refused: what they have dropped has been forwarded
        self._refused = [
            ((dropped + step, forwarded + step), self._sums(pair + step))
            for pair, dropped, forwarded in _REFUSED
            for step in (0, 1)
        ]

    def close(self) -> None:
        for page in self._pages.values():
            page.close()

    def __contains__(self, index: int) -> bool:
        return index in self._pages

    def __getitem__(self, index: int) -> list[int]:
        """The general slots of a worker, as it published them last. Raises: ResourceError."""
        return self._pages[index].snapshot()

    def portals(self, workers: Iterable[WorkerStatus], places: Iterable[PortalPlace]) -> tuple[PortalStatus, ...]:
        """All portals that are configured and have a page. Raises: ResourceError."""
        by_name = {place.name: place for place in places}
        return tuple(
            self.status_of(worker, place.domain_id, place.cost, place.resolved_by)
            for worker in workers
            if (place := by_name.get(worker.name)) is not None and worker.index in self
        )

    def status_of(
        self, worker: WorkerStatus, domain_id: int, cost: int, resolved_by: tuple[str, ...] = ()
    ) -> PortalStatus:
        """One portal. Raises: ResourceError."""
        values = self.values_of(worker)
        counters = {name: values[slot] for name, slot in _SLOTS}
        return PortalStatus(
            worker.name, worker.role, worker.state, domain_id, cost, worker.index, counters, resolved_by
        )

    def values_of(self, worker: WorkerStatus) -> list[int]:
        """The general slots of a portal, with what its siblings could not hand over. Raises: ResourceError."""
        values = self[worker.index]
        for slots, sums in self._refused:
            for slot in slots:
                values[slot] += sums[worker.index]
        if worker.state not in WORKING:
            for slot in _OF_NOW:
                values[slot] = 0
        return values

    def _sums(self, slot: int) -> list[int]:
        """Sum up by egress, over all ingress portals. In whole columns: with 255 portals there are 65,000 pairs."""
        columns = (page.slots[page.general_slots + slot :: page.pair_slots].tolist() for page in self._pages.values())
        return [sum(column) for column in zip(*columns, strict=True)]


_SLOTS: Final = tuple((slot.name, int(slot)) for slot in Slot)
