"""Makes the message of a DRO (`DROMonMsg`) from its counter pages and from what an observer knows of it.

Field names are those of `dro.metrics.table`, so what a page shows and what is published is one number. Source: DRO
guide, 5.3 and 5.4; the protobuf definitions, by `dro.lbmmon.fields`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import Any, Final

from dro.bus.listing import TopologyRow
from dro.clock import NS_PER_MS, NS_PER_US
from dro.lbmmon.fields import NO_SAMPLE, message_class
from dro.metrics.slots import RouterSlot, Slot, WorkerSlot
from dro.metrics.table import ENDPOINT, PEER, PORTAL, metrics
from supervisor.admin.status import PortalPlace, WorkerStatus
from supervisor.samples.pages import Pages
from supervisor.samples.watch import KnownDros

US_PER_S: Final = 1_000_000
US_PER_MS: Final = NS_PER_MS // NS_PER_US
U32: Final = (1 << 32) - 1
TYPES: Final = {ENDPOINT: 0, PEER: 1}
_PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    ENDPOINT: ("endpoint.receive", "endpoint.send", "endpoint", ""),
    PEER: ("peer.receive", "peer.send", "peer.udp_receive", "peer.udp_send", "peer", ""),
}
_MALLOC: Final = {
    name: WorkerSlot[name.upper()] for name in ("arena", "ordblks", "hblks", "hblkhd", "uordblks", "fordblks")
}


@cache
def _cells(portal_type: str) -> tuple[tuple[str, str, tuple[int, ...], bool, bool], ...]:
    """List the fields of a portal: path of its message, name, slots that are added up, whether the page has us where
    the field has ms, whether it is a minimum."""
    places: dict[str, str] = {}
    for part in _PARTS[portal_type]:
        descriptor = message_class("DROMonMsg.Stats.Portal").DESCRIPTOR
        for name in filter(None, part.split(".")):
            descriptor = descriptor.fields_by_name[name].message_type
        for field in descriptor.fields:
            if field.message_type is None:
                places.setdefault(field.name, part)
    return tuple(
        (places[m.field], m.field, m.slots, m.field.startswith("nak_stm"), m.may_lack and m.field.endswith("_min"))
        for m in metrics(PORTAL, portal_type)
        if m.field
    )


def dro_message(known: KnownDros, pages: Pages, udp_peers: Collection[str] = ()) -> Any:  # noqa: ANN401  a message
    """Make the statistics part of a `DROMonMsg`; who sends it and the configuration are left to others.

    `udp_peers`: names of the peer portals with `<udp>`. Raises: ResourceError when a page cannot be read.
    """
    made = message_class("DROMonMsg")()
    status = known.status
    _fill_local(made.stats.local, known, pages)
    by_name = {worker.name: worker for worker in status.workers if worker.is_portal}
    for index, place in enumerate(status.portals):
        if (worker := by_name.get(place.name)) is not None and worker.index in pages:
            portal = made.stats.portals.add()
            _fill_portal(portal, index, place, worker, pages, known.topology)
            if worker.role == PEER and place.name not in udp_peers:
                portal.peer.ClearField("udp_receive")
                portal.peer.ClearField("udp_send")
    _fill_others(made.stats, known)
    return made


def portal_list(known: KnownDros) -> list[tuple[int, str, int]]:
    """List index, name and type of each portal, in the order of the configuration."""
    types = {worker.name: TYPES[worker.role] for worker in known.status.workers if worker.is_portal}
    return [(n, place.name, types[place.name]) for n, place in enumerate(known.status.portals) if place.name in types]


def _fill_local(local: Any, known: KnownDros, pages: Pages) -> None:  # noqa: ANN401
    status, manager = known.status, known.status.manager
    local.gateway_name, local.gateway_id = status.name, int(status.node_id)
    if manager is not None and manager.index in pages:
        page = pages[manager.index]
        local.version = page[RouterSlot.OWN_VERSION]
        local.topology_signature = page[RouterSlot.SIGNATURE]
        local.recalc_duration_sec, local.recalc_duration_usec = divmod(page[RouterSlot.RECALCULATION_US], US_PER_S)
        local.graph_version = page[RouterSlot.GRAPH_VERSION]
        local.gateway_count, local.trd_count = page[RouterSlot.NETWORK_DROS], page[RouterSlot.NETWORK_TRDS]
    of_workers = [pages[worker.index] for worker in status.workers if worker.index in pages]
    for name, slot in _MALLOC.items():
        setattr(local.malloc_info, name, sum(page[slot] for page in of_workers) & U32)


def _fill_portal(
    portal: Any, index: int, place: PortalPlace, worker: WorkerStatus, pages: Pages, topology: Sequence[TopologyRow],  # noqa: ANN401
) -> None:  # fmt: skip
    values = pages.values_of(worker)
    portal.portal_name, portal.portal_index, portal.cost = place.name, index, place.cost
    portal.recalc_duration_sec, portal.recalc_duration_usec = divmod(values[Slot.INTEREST_RECALCULATION_US], US_PER_S)
    portal.proxy_rec_recalc_duration_sec, portal.proxy_rec_recalc_duration_usec = divmod(
        values[Slot.PROXY_RECALCULATION_US], US_PER_S
    )
    parts = {"": portal}
    for part in _PARTS[worker.role]:
        found = portal
        for name in filter(None, part.split(".")):
            found = getattr(found, name)
        found.SetInParent()
        parts[part] = found
    for part, name, slots, is_us, is_minimum in _cells(worker.role):
        value = sum([values[slot] for slot in slots])
        if is_minimum and not value:
            value = NO_SAMPLE
        elif is_us:
            value //= US_PER_MS
        setattr(parts[part], name, value)
    if worker.role == ENDPOINT:
        portal.endpoint.domain_id = place.domain_id
    else:
        portal.peer.adjacent_gateway_id = next(
            (int(r.neighbour or 0) for r in topology if r.is_own and r.kind == "DRO" and r.portal == place.name), 0
        )


def _fill_others(stats: Any, known: KnownDros) -> None:  # noqa: ANN401
    by_id: dict[str, Any] = {}
    for row in known.topology:
        if row.is_own:
            continue
        if (other := by_id.get(row.node_id)) is None:
            other = by_id[row.node_id] = stats.other_gateways.add()
            other.gateway_name, other.gateway_id = row.dro, int(row.node_id)
            other.version, other.topology_signature = row.version, int(row.signature or "0", 16)
            heard_us = max(0, round((known.topology_s - row.age_s) * US_PER_S))
            other.last_activity_sec, other.last_activity_usec = divmod(heard_us, US_PER_S)
        if row.neighbour:
            portal = other.other_portals.add()
            portal.cost = row.ingress_cost
            if row.kind == "DRO":
                portal.adjacent_gateway_id = int(row.neighbour)
            else:
                portal.adjacent_domain_id = int(row.neighbour)
