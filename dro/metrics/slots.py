"""Names the cells of counter pages: enumerations made from the tables, and the cells about siblings."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from dro.metrics.table import ENDPOINT, PEER, PORTAL, ROUTE_MANAGER, WORKER, rows

if TYPE_CHECKING:

    class _AnyName(type):  # which names there are is known when the table is read; a test looks at every use
        def __getattr__(cls, name: str) -> Slot: ...
        def __getitem__(cls, name: str) -> Slot: ...
        def __iter__(cls) -> Iterator[Slot]: ...

    class Slot(int, metaclass=_AnyName):
        """A cell of a portal's page."""

        name: Final = ""

    class RouterSlot(Slot): ...

    class WorkerSlot(Slot): ...

else:

    def _slots(name: str, table: str) -> type[IntEnum]:
        return IntEnum(name, {cell: at for row in rows(table) for cell, at in row.slots.items()}, module=__name__)

    Slot = _slots("Slot", PORTAL)
    RouterSlot = _slots("RouterSlot", ROUTE_MANAGER)
    WorkerSlot = _slots("WorkerSlot", WORKER)


class PairSlot(IntEnum):
    """Cells about one sibling, relative to its pair block."""

    HANDED = 0  # fragments that this portal handed to the sibling, also those that its channel refused
    HANDED_BYTES = 1
    REFUSED = 2  # of these, refused by the full channel: they count as dropped by the sibling, reason blocking
    REFUSED_BYTES = 3
    ACCOUNTED = 4  # fragments from the sibling that were sent or dropped here, for whatever reason
    ACCOUNTED_BYTES = 5
    QUEUED = 6  # fragments from the sibling that wait here
    QUEUED_BYTES = 7
    SENT = 8
    SENT_BYTES = 9
    NO_MEMORY = 10  # handed, and refused for want of shared memory: dropped by the sibling, reason queue failure
    NO_MEMORY_BYTES = 11
    UNICAST_NO_MEMORY = 12  # unicast messages, likewise
    UNICAST_NO_MEMORY_BYTES = 13


DROP_SLOTS: Final[dict[str, Slot]] = {
    dict(row.labels[ENDPOINT] or row.labels[PEER] or ())["reason"]: Slot[row.name]
    for row in rows(PORTAL)
    if row.metric == "dropped" and row.name.startswith("DROPPED_")
}
"""Reason -> fragments of sources that were not sent for it; their bytes are in the next cell."""
