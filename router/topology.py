"""The graph that routes are computed on: domains and DROs as nodes, portals as edges.

A node is an unsigned 64-bit number: a domain is its domain id (below 2^32), a DRO its node id (top bit set). Edges
are directed because ingress and egress cost may differ on the wire; one of our own portals has one cost for both.
Source: DRO guide, "Routing Topics" and "Port Costs"; an edge between two DROs exists only when both list each other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias
from zlib import crc32

import networkx as nx

MAX_DOMAIN_ID: Final = 0xFFFF_FFFF
VERSION_MASK: Final = 0xFFFF

Topology: TypeAlias = "nx.DiGraph[int]"
_DRO: Final = struct.Struct("!QHH")
_NEIGHBOUR: Final = struct.Struct("!QII")


@dataclass(frozen=True, slots=True, order=True)
class Neighbour:
    """What one working portal of a DRO leads to."""

    node_id: int  # a domain id, or the node id of the DRO on the other end of a peer link
    ingress_cost: int
    egress_cost: int


@dataclass(frozen=True, slots=True, order=True)
class Hotlink:
    """An endpoint portal with a `<hotlink-index>`."""

    domain_id: int
    index: int


@dataclass(frozen=True, slots=True)
class DroRecord:
    """One DRO as it describes itself. Neighbours are in order of their ids wherever records are compared."""

    node_id: int
    neighbours: tuple[Neighbour, ...]
    hotlinks: tuple[Hotlink, ...] = ()
    version: int = 0  # grows with its link state changes
    name: str = ""
    sharing: int = 0
    """The method of equal-cost sharing that it is ready for, see `dro.shares`; 0: none."""


def is_domain(node: int) -> bool:
    return node <= MAX_DOMAIN_ID


def build(records: Iterable[DroRecord]) -> Topology:
    """The graph of these DROs. Edge attribute `cost`: what traffic in that direction pays, both portals of a link."""
    of_node = {record.node_id: {n.node_id: n for n in record.neighbours} for record in records}
    graph: Topology = nx.DiGraph()
    for dro, neighbours in of_node.items():
        for node, there in neighbours.items():
            if is_domain(node):
                graph.add_edge(node, dro, cost=there.ingress_cost)
                graph.add_edge(dro, node, cost=there.egress_cost)
            elif (back := of_node.get(node, {}).get(dro)) is not None:
                graph.add_edge(dro, node, cost=there.egress_cost + back.ingress_cost)
    return graph


def domains(graph: Topology) -> tuple[int, ...]:
    """All domains of the graph, ascending."""
    return tuple(sorted(node for node in graph if is_domain(node)))


def topology_signature(records: Iterable[DroRecord]) -> int:
    """Equal in all DROs that know the same of each other: CRC-32 over all DROs in order of node id (ours)."""
    signature = 0
    for record in sorted(records, key=lambda r: r.node_id):
        head = _DRO.pack(record.node_id, record.version & VERSION_MASK, len(record.neighbours))
        signature = crc32(head + _packed(record.neighbours), signature)
    return signature


def configuration_signature(neighbours: Iterable[Neighbour]) -> int:
    """CRC-32 of the own portals as configured, working or not; one that leads to a DRO has node id 0 (ours)."""
    return crc32(_packed(neighbours))


def _packed(neighbours: Iterable[Neighbour]) -> bytes:
    return b"".join(_NEIGHBOUR.pack(n.node_id, n.ingress_cost, n.egress_cost) for n in sorted(neighbours))
