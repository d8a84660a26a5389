"""Whether equal-cost sharing is in use: all DROs are ready for it in the same way, and none has a hotlink.

All DROs with the same records come to the same answer; a change of it is a change of the topology.
Guess: hotlinks are two ways for each message, in graphs that differ from DRO to DRO, so their networks do not share.
"""

from __future__ import annotations

from collections.abc import Sequence

from dro.shares import METHOD
from router.topology import DroRecord


def is_in_use(records: Sequence[DroRecord]) -> bool:
    return all(record.sharing == METHOD and not record.hotlinks for record in records)


def hindrances(records: Sequence[DroRecord]) -> list[tuple[DroRecord, str]]:
    """The DROs for which it is not in use though one is ready for it, and why."""
    if not any(record.sharing == METHOD for record in records):
        return []
    found = [(record, _hindrance(record)) for record in records]
    return sorted(((record, why) for record, why in found if why), key=lambda one: (one[0].name, one[0].node_id))


def _hindrance(record: DroRecord) -> str:
    if record.sharing != METHOD:
        return "is not ready for it" if record.sharing == 0 else f"shares in another way ({record.sharing})"
    return "has a hotlink index" if record.hotlinks else ""
