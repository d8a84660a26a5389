"""Counts what the route manager drops and why, what it calculates and why, and shows how it sees the network."""

from __future__ import annotations

from typing import Final

from dro.metrics.slots import RouterSlot as Slot
from router.route_info_exchange import Dropped
from router.route_recalculation import Change

SLOT_OF: Final = {
    Dropped.REPEATED: Slot.INFO_REPEATED,
    Dropped.OWN: Slot.INFO_OWN,
    Dropped.MALFORMED: Slot.INFO_MALFORMED,
    Dropped.REFUSED: Slot.INFO_REFUSED,
    Dropped.OWN_NODE_ID: Slot.INFO_OWN_NODE_ID,
    Dropped.TOO_MANY_DROS: Slot.INFO_TOO_MANY_DROS,
    Dropped.DOUBTED: Slot.INFO_DOUBTED,
    Dropped.UNAUTHENTIC: Slot.INFO_UNAUTHENTIC,
}
SLOT_OF_CHANGE: Final = {
    Change.LINK_UP: Slot.RECALCULATED_LINK_UP,
    Change.LINK_DOWN: Slot.RECALCULATED_LINK_DOWN,
    Change.FORCED: Slot.RECALCULATED_FORCED,
    Change.DRO_DISCOVERED: Slot.RECALCULATED_NEW_DRO,
    Change.NODE_UPDATED: Slot.RECALCULATED_NODE_UPDATED,
    Change.DRO_TIMED_OUT: Slot.RECALCULATED_DRO_TIMEOUT,
}
