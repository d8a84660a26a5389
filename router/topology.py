"""The graph that routes are computed on: domains and DROs as nodes, portals as edges.

A node is an unsigned 64-bit number: a domain is its domain id (below 2^32), a DRO its node id (top bit set). Edges
are directed because ingress and egress cost may differ on the wire; one of our own portals has one cost for both.
Source: DRO guide, "Routing Topics" and "Port Costs"; an edge between two DROs exists only when both list each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

import networkx as nx

MAX_DOMAIN_ID: Final = 0xFFFF_FFFF
DRO_BIT: Final = 1 << 63

Topology: TypeAlias = "nx.DiGraph[int]"


@dataclass(frozen=True, slots=True)
class Neighbour:
    """What one working portal of a DRO leads to."""

    node_id: int  # a domain id, or the node id of the DRO on the other end of a peer link
    ingress_cost: int
    egress_cost: int


@dataclass(frozen=True, slots=True)
class DroRecord:
    """One DRO as it describes itself."""

    node_id: int
    neighbours: tuple[Neighbour, ...]


def is_domain(node: int) -> bool:
    return node <= MAX_DOMAIN_ID


def build(records: Iterable[DroRecord]) -> Topology:
    """The graph of these DROs. Edge attribute `cost`: what traffic in that direction pays, both portals of a link."""
    by_id = {record.node_id: record for record in records}
    graph: Topology = nx.DiGraph()
    graph.add_nodes_from(by_id)
    for record in by_id.values():
        for neighbour in record.neighbours:
            if is_domain(neighbour.node_id):
                graph.add_edge(neighbour.node_id, record.node_id, cost=neighbour.ingress_cost)
                graph.add_edge(record.node_id, neighbour.node_id, cost=neighbour.egress_cost)
            elif (back := _towards(by_id.get(neighbour.node_id), record.node_id)) is not None:
                graph.add_edge(record.node_id, neighbour.node_id, cost=neighbour.egress_cost + back.ingress_cost)
    return graph


def _towards(record: DroRecord | None, node_id: int) -> Neighbour | None:
    if record is None:
        return None
    return next((n for n in record.neighbours if n.node_id == node_id), None)


def domains(graph: Topology) -> tuple[int, ...]:
    """All domains of the graph, ascending."""
    return tuple(sorted(node for node in graph if is_domain(node)))
