"""Remembers the network as it was seen, so that what is down keeps its place in the picture, with since when.

A DRO gets a new node id each time it starts: it is the same one by its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Final

from dro.bus.listing import TopologyRow
from supervisor.admin.status import WORKING, DroStatus

KEPT_S: Final = 24 * 3600.0
"""How long what is gone is shown."""
SEEN_MAX: Final = 4096
_FIELDS: Final = attrgetter(*(field.name for field in fields(TopologyRow)))
_GROWING: Final = re.compile(r" for \d+ s$")
"""A time that says less than since when."""
_Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class SeenRow(TopologyRow):
    """A row as the route manager has it now, or had it last. `remark` says why nothing passes."""

    since_s: float = 0.0  # when something passed last, since 1970; 0 while it does, or if nobody looked then
    is_seen: bool = True  # something has passed since somebody looks


class SeenNetwork:
    """Looked at by one thread; read by many."""

    def __init__(self) -> None:
        self.rows: tuple[SeenRow, ...] = ()
        """Without those of DROs that were forgotten."""
        self._last: tuple[TopologyRow, ...] = ()
        self._seen: dict[_Key, SeenRow] = {}

    def look(self, now_s: float, topology: tuple[TopologyRow, ...], status: DroStatus) -> None:
        """Take in what the route manager knows now; the same tuple again is nothing new."""
        if topology is self._last or not topology:
            return
        self._last = topology
        current = {_key(row): row for row in (*topology, *_absent(topology, status))}
        heard = {row.node_id for row in current.values()}
        ids = {row.dro: row.node_id for row in current.values() if row.dro}
        own = next((row.node_id for row in current.values() if row.is_own), "")
        found = {key: self._now(row, self._seen.get(key), now_s) for key, row in current.items()}
        gone = [
            replace(row, remark="down" if row.node_id in heard else "not heard", since_s=row.since_s or now_s)
            for key, row in self._seen.items()
            if key not in current and row.node_id != own and row.neighbour
            and ids.get(row.dro, row.node_id) == row.node_id
            and ids.get(row.neighbour_name, row.neighbour) == row.neighbour
        ]  # fmt: skip
        gone = [row for row in gone if now_s - row.since_s < KEPT_S]
        for row in sorted(gone, key=lambda row: -row.since_s)[: max(0, SEEN_MAX - len(found))]:
            found[_key(row)] = row
        self._seen = found
        self.rows = tuple(found.values())

    def _now(self, row: TopologyRow, before: SeenRow | None, now_s: float) -> SeenRow:
        """Join what the row says with what was known of its edge; a DRO without neighbours has none."""
        is_edge = bool(row.neighbour or row.portal)
        if not row.remark or not is_edge:
            return SeenRow(*_FIELDS(row))
        if before is None:
            return replace(SeenRow(*_FIELDS(row)), is_seen=False)
        if not row.neighbour and before.neighbour:
            row = replace(
                row, neighbour=before.neighbour, neighbour_name=before.neighbour_name, kind=before.kind,
                ingress_cost=row.ingress_cost or before.ingress_cost, egress_cost=row.egress_cost or before.egress_cost,
            )  # fmt: skip
        since_s = before.since_s if before.remark else now_s
        remark = _GROWING.sub("", row.remark)
        return replace(SeenRow(*_FIELDS(row)), remark=remark, since_s=since_s, is_seen=before.is_seen)


def _key(row: TopologyRow) -> _Key:
    return (row.node_id, row.portal, "" if row.portal else row.neighbour)


def _absent(topology: tuple[TopologyRow, ...], status: DroStatus) -> list[TopologyRow]:
    """Make rows for portals that are configured and that the route manager does not list, as those that are paused."""
    own = next((row for row in topology if row.is_own), None)
    if own is None:
        return []
    listed = {row.portal for row in topology if row.is_own}
    states = {worker.name: worker.state for worker in status.workers if worker.state not in WORKING}
    return [
        TopologyRow(
            own.dro, own.node_id, own.version, own.signature, is_own=True, portal=place.name,
            neighbour=str(place.domain_id or ""), kind="TRD" if place.domain_id else "", ingress_cost=place.cost,
            egress_cost=place.cost, remark=states.get(place.name, "down"),
        )
        for place in status.portals
        if place.name not in listed
    ]  # fmt: skip
