"""Counts what the route manager drops and why, what it calculates and why, and shows how it sees the network."""

from __future__ import annotations

from typing import Final

from dro.metrics.slots import RouterSlot as Slot
from router.route_info_exchange import InfoDropReason
from router.route_recalculation import TopologyChange

SLOT_OF: Final = {
    InfoDropReason.REPEATED: Slot.INFO_REPEATED,
    InfoDropReason.OWN: Slot.INFO_OWN,
    InfoDropReason.MALFORMED: Slot.INFO_MALFORMED,
    InfoDropReason.REFUSED: Slot.INFO_REFUSED,
    InfoDropReason.OWN_NODE_ID: Slot.INFO_OWN_NODE_ID,
    InfoDropReason.TOO_MANY_DROS: Slot.INFO_TOO_MANY_DROS,
    InfoDropReason.DOUBTED: Slot.INFO_DOUBTED,
    InfoDropReason.UNAUTHENTIC: Slot.INFO_UNAUTHENTIC,
}
SLOT_OF_CHANGE: Final = {
    TopologyChange.LINK_UP: Slot.RECALCULATED_LINK_UP,
    TopologyChange.LINK_DOWN: Slot.RECALCULATED_LINK_DOWN,
    TopologyChange.FORCED: Slot.RECALCULATED_FORCED,
    TopologyChange.DRO_DISCOVERED: Slot.RECALCULATED_NEW_DRO,
    TopologyChange.NODE_UPDATED: Slot.RECALCULATED_NODE_UPDATED,
    TopologyChange.DRO_TIMED_OUT: Slot.RECALCULATED_DRO_TIMEOUT,
}
