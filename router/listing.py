"""The lists of the route manager for operators: routes, topology, and the paths between two domains.

Portals have names here if they are of this DRO; other DROs tell only whom they have as neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

from dro.bus.listing import IN_USE, READY, PathRow, RouteRow, TopologyRow
from dro.clock import NS_PER_S
from dro.shares import ALL_SHARES, SHARES, percent_of, share_of
from router.core import RouteManagerCore
from router.own_portals import Portal
from router.paths import follow, of_tree, shared_hops
from router.sharing import hindrances
from router.topology import VERSION_MASK, DroRecord, is_domain

TRD, DRO = "TRD", "DRO"
NameOf = Callable[[int], str]


def route_rows(core: RouteManagerCore, name_of: NameOf) -> Iterator[RouteRow]:
    for route in core.routes.table.routes if core.routes.table is not None else ():
        ingress, egress = name_of(route.ingress), name_of(route.egress)
        for source in route.source_domains:
            yield RouteRow(source, route.interested_domain, ingress, egress, percent_of(route.shares))


def topology_rows(core: RouteManagerCore, portals: Mapping[int, str], now_ns: int) -> Iterator[TopologyRow]:
    """A row for each neighbour of each DRO, this one first; `portals` are the names of its own."""
    sharing = _sharing(core)
    for row in _topology_rows(core, portals, now_ns):
        yield replace(row, sharing=sharing.get(int(row.node_id), ""))


def _sharing(core: RouteManagerCore) -> dict[int, str]:
    """Describe the sharing of equal costs, by DRO; nothing while none is ready for it."""
    records = core.routes.records()
    if not any(record.sharing for record in records):
        return {}
    usual = IN_USE if core.routes.is_shared else READY
    return dict.fromkeys((r.node_id for r in records), usual) | {r.node_id: why for r, why in hindrances(records)}


def _topology_rows(core: RouteManagerCore, portals: Mapping[int, str], now_ns: int) -> Iterator[TopologyRow]:
    own = core.routes.own()
    others = sorted(core.exchange.others.values(), key=lambda o: (o.record.name, o.record.node_id))
    records = {r.node_id: r for r in (own, *(other.record for other in others))}
    for worker, name in sorted(portals.items()):
        portal = core.routes.portals.get(worker)
        row = replace(_row(own, core.routes.signature), portal=name, is_own=True)
        if portal is None:
            yield replace(row, remark="down")
        else:
            yield _own_row(row, portal, _remark(core, worker, now_ns), records)
    if not portals:
        yield replace(_row(own, core.routes.signature), is_own=True)
    for other in others:
        record = other.record
        row = replace(
            _row(record, other.head.topology),
            agrees=other.head.topology == core.routes.signature,
            age_s=round((now_ns - other.heard_ns) / NS_PER_S, 1),
        )
        yield from _neighbour_rows(row, record, records)


def _row(record: DroRecord, signature: int) -> TopologyRow:
    return TopologyRow(record.name, str(record.node_id), record.version & VERSION_MASK, f"{signature:08x}")


def _remark(core: RouteManagerCore, worker: int, now_ns: int) -> str:
    """Say what is wrong with a portal that is up."""
    if (since_ns := core.unknown_since_ns.get(worker)) is not None:
        return f"no neighbour for {(now_ns - since_ns) // NS_PER_S} s"
    return core.routes.portals.refused.get(worker, "")


def _own_row(row: TopologyRow, portal: Portal, remark: str, records: Mapping[int, DroRecord]) -> TopologyRow:
    node = portal.node_id
    return replace(
        row, neighbour=str(node) if node else "", kind=DRO if portal.is_link else TRD, ingress_cost=portal.cost,
        egress_cost=portal.cost, hotlink_index=portal.hotlink_index,
        neighbour_name=_name(records, node), remark=remark or _one_sided(records, int(row.node_id), node),
    )  # fmt: skip


def _neighbour_rows(row: TopologyRow, record: DroRecord, records: Mapping[int, DroRecord]) -> Iterator[TopologyRow]:
    index_of = {h.domain_id: h.index for h in record.hotlinks}
    for n in record.neighbours:
        yield replace(
            row, neighbour=str(n.node_id), kind=TRD if is_domain(n.node_id) else DRO, ingress_cost=n.ingress_cost,
            egress_cost=n.egress_cost, hotlink_index=index_of.get(n.node_id, 0),
            neighbour_name=_name(records, n.node_id), remark=_one_sided(records, record.node_id, n.node_id),
        )  # fmt: skip
    if not record.neighbours:
        yield row


def _name(records: Mapping[int, DroRecord], node: int) -> str:
    return records[node].name if node in records else ""


def _one_sided(records: Mapping[int, DroRecord], dro: int, node: int) -> str:
    """Say why nothing passes a link between two DROs that only one of them lists; empty for others."""
    if not node or is_domain(node):
        return ""
    there = records.get(node)
    if there is None:
        return "that DRO is not heard"
    return "" if any(n.node_id == dro for n in there.neighbours) else "that DRO does not list this one"


class NoPathError(Exception):
    """There is no path: the text says why, to the operator."""


def path_rows(core: RouteManagerCore, text: str, name_of: NameOf) -> Iterator[PathRow]:
    """The paths from one domain to another, by the topology of the last calculation, that of the first tree first.

    `text`: their two ids, and an OTID for the path of that source alone. Raises: NoPathError.
    """
    try:
        source, target = map(int, text.split()[:2])
        otids = [bytes.fromhex(word) for word in text.split()[2:]]
    except ValueError:
        raise NoPathError(f"{text!r} is no pair of domain ids") from None
    graph = core.routes.graph
    if graph is None:
        raise NoPathError("no routes are calculated yet")
    for domain in (source, target):
        if not is_domain(domain) or domain not in graph:
            raise NoPathError(f"no DRO that is known is in domain {domain}")
    hops = shared_hops(graph, target, is_shared=core.routes.is_shared)
    paths: dict[tuple[int, ...], int] = {}
    for shares in [1 << tree for tree in range(SHARES)] if core.routes.is_shared else [ALL_SHARES]:
        nodes = follow(of_tree(hops, shares), source, target)
        if nodes is None:
            raise NoPathError(f"domain {target} cannot be reached from domain {source}")
        paths[nodes] = paths.get(nodes, 0) | shares
    for number, (nodes, shares) in enumerate(paths.items(), 1):
        if all(share_of(otid) & shares for otid in otids):
            for row in _path_rows(core, nodes, name_of):
                yield replace(row, way=number, share=percent_of(shares))


def _path_rows(core: RouteManagerCore, nodes: tuple[int, ...], name_of: NameOf) -> Iterator[PathRow]:
    workers, own = core.routes.portals.workers(), core.routes.own()
    records = {n: other.record for n, other in core.exchange.others.items()} | {own.node_id: own}
    before = {b: a for a, b in pairwise(nodes)}
    after = dict(pairwise(nodes))
    for node in nodes:
        if is_domain(node):
            yield PathRow(TRD, str(node))
            continue
        record = records.get(node, DroRecord(node, ()))  # it may have timed out since the calculation
        costs = {n.node_id: n for n in record.neighbours}
        entered, left = costs.get(before[node]), costs.get(after[node])
        is_own = node == own.node_id
        yield PathRow(
            DRO, str(node), record.name,
            entered_at=name_of(workers[before[node]]) if is_own and entered else "",
            ingress_cost=entered.ingress_cost if entered else 0,
            left_at=name_of(workers[after[node]]) if is_own and left else "",
            egress_cost=left.egress_cost if left else 0,
        )  # fmt: skip
