"""Hotlinks: which DROs do not see each other, and how many hotlink hops a path makes.

Two DROs with indexed portals in one TRD are invisible to each other, so each finds itself on the only path, and both
forward. DROs without an index see all. Source: DRO guide, "DRO Hotlinks"; behaviour reference 14.3.
Guess: a full hotlink hop begins where traffic enters a DRO at an indexed portal and ends at the next indexed portal by
which it leaves one; a path with two of them is not used ("no hotlink chains").
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from router.topology import DroRecord

HOPS_MAX: Final = 1


@dataclass(frozen=True, slots=True, order=True)
class SharedIndex:
    """Two DROs or more use one index in a TRD, where each needs its own."""

    domain_id: int
    index: int
    node_ids: tuple[int, ...]


def visible_to(node_id: int, records: Iterable[DroRecord]) -> list[DroRecord]:
    """Leave out the DROs that are invisible to that one."""
    all_records = list(records)
    own = {h.domain_id for r in all_records if r.node_id == node_id for h in r.hotlinks}
    if not own:
        return all_records
    return [r for r in all_records if r.node_id == node_id or own.isdisjoint(h.domain_id for h in r.hotlinks)]


def shared_indexes(records: Iterable[DroRecord]) -> list[SharedIndex]:
    users: dict[tuple[int, int], list[int]] = defaultdict(list)
    for record in records:
        for hotlink in record.hotlinks:
            users[hotlink.domain_id, hotlink.index].append(record.node_id)
    return sorted(SharedIndex(*where, tuple(sorted(nodes))) for where, nodes in users.items() if len(nodes) > 1)


def indexed_portals(records: Iterable[DroRecord]) -> frozenset[tuple[int, int]]:
    """DRO and domain of each."""
    return frozenset((r.node_id, h.domain_id) for r in records for h in r.hotlinks)


def chained(hops: Mapping[int, int], target: int, indexed: frozenset[tuple[int, int]]) -> set[int]:
    """The nodes whose path by the in-tree `hops`, nearest first, makes more than `HOPS_MAX` full hotlink hops."""
    full = {target: (0, 0)}  # node -> hops of the rest of the path: from here, and if one has begun before
    for node, onward in hops.items():
        afresh, begun = full[onward]
        if (node, onward) in indexed:
            begun = afresh + 1
        elif (onward, node) in indexed:
            afresh = begun
        full[node] = afresh, begun
    return {node for node, (afresh, _) in full.items() if afresh > HOPS_MAX}
