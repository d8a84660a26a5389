"""What two versions of the program must have in common, so that the workers of one run beside those of the other."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from hashlib import sha256
from typing import Final

from dro.bus import counters
from dro.bus.messages import PARENT_MESSAGES, ROUTE_MESSAGES, WORKER_REPORTS
from dro.kept import rows
from dro.metrics.slots import PairSlot, RouterSlot, Slot, WorkerSlot
from dro.shared_memory import records, ring
from portals.decisions.messages import PORTAL_MESSAGES

_LOGS: Final = 1
"""Of the logs of what was sent (`dro.kept.log`), the kinds of kept rows, and the names of kept sockets: raise it when
one of them means something else."""
_QUEUES: Final = 1
"""Of descriptors in a ring (`dro.bus.descriptors`) and what they lead to (`portals.datapath.descriptor`), likewise."""

_FORMER: Final = 1
"""Of what is said to the process of the former program (`supervisor.upgrade.former`)."""


def _slots() -> str:
    slots: list[IntEnum] = [*Slot, *PairSlot, *RouterSlot, *WorkerSlot]
    named = [(type(slot).__name__, slot.name, int(slot)) for slot in slots]
    return sha256(repr(sorted(named)).encode()).hexdigest()[:16]


def layouts() -> dict[str, str]:
    """List every layout of this program with its version."""
    return {
        "rings": str(ring.LAYOUT_VERSION),
        "queues of rings": str(_QUEUES),
        "rings of records": str(records.LAYOUT_VERSION),
        "counter pages": str(counters.LAYOUT_VERSION),
        "counters": _slots(),
        "kept rows": str(rows.LAYOUT_VERSION),
        "logs of what was sent": str(_LOGS),
        "orders to workers": PARENT_MESSAGES.layout(),
        "reports of workers": WORKER_REPORTS.layout(),
        "messages of the route manager": ROUTE_MESSAGES.layout(),
        "messages of portals": PORTAL_MESSAGES.layout(),
        "orders to the former program": str(_FORMER),
    }


def differing(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Name the layouts in which two programs differ, or that one of them does not have."""
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
