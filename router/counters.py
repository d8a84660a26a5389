"""Where the route manager counts what it drops, and why."""

from __future__ import annotations

from typing import Final

from dro.metrics.slots import RouterSlot as Slot
from router.route_info_exchange import Dropped

SLOT_OF: Final = {
    Dropped.REPEATED: Slot.INFO_REPEATED,
    Dropped.OWN: Slot.INFO_OWN,
    Dropped.MALFORMED: Slot.INFO_MALFORMED,
    Dropped.REFUSED: Slot.INFO_REFUSED,
    Dropped.OWN_NODE_ID: Slot.INFO_OWN_NODE_ID,
    Dropped.TOO_MANY_DROS: Slot.INFO_TOO_MANY_DROS,
}
