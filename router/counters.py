"""Slots of the route manager's counter page, which survives a restart of the process, as the node id does."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from router.route_info_exchange import Dropped


class Slot(IntEnum):
    """General slots; append only. 77 and 78 are those of every worker."""

    OWN_VERSION = 0  # the last that was told to others: a new life goes on from there, or nobody would believe it
    OWN_SQN = 1
    INFO_HEARD = 2  # messages of route information from portals
    INFO_SENT = 3  # to portals
    INFO_REPEATED = 4  # from here on: dropped
    INFO_OWN = 5
    INFO_MALFORMED = 6
    INFO_REFUSED = 7
    INFO_OWN_NODE_ID = 8
    INFO_TOO_MANY_DROS = 9


SLOT_OF: Final = {
    Dropped.REPEATED: Slot.INFO_REPEATED,
    Dropped.OWN: Slot.INFO_OWN,
    Dropped.MALFORMED: Slot.INFO_MALFORMED,
    Dropped.REFUSED: Slot.INFO_REFUSED,
    Dropped.OWN_NODE_ID: Slot.INFO_OWN_NODE_ID,
    Dropped.TOO_MANY_DROS: Slot.INFO_TOO_MANY_DROS,
}
