"""Paths between domains: least cost, then fewest nodes, then the smallest next node id towards the destination.

Computed as next hops, which form an in-tree towards each destination, so all DROs with the same graph get the same,
consistent paths. Ties may make the two directions of a pair differ. Source: DRO guide, "Routing Topics" (costs; equal
costs are decided by node id). Guess: the order of the tie-breaks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import networkx as nx

from router.topology import Topology, domains


@dataclass(frozen=True, slots=True)
class Passage:
    """Traffic from one domain to another goes through a DRO: the nodes before and after it on the path."""

    source_domain: int
    interested_domain: int
    previous: int
    next: int


def next_hops(graph: Topology, target: int) -> dict[int, int]:
    """For every node that reaches `target`, except itself: the node to go to next."""
    if target not in graph:
        return {}
    scale = len(graph)  # a path has fewer edges than that, so costs decide before node counts

    def weight(_u: int, _v: int, edge: Mapping[str, int]) -> int:
        return edge["cost"] * scale + 1

    onward, _ = nx.dijkstra_predecessor_and_distance(graph.reverse(copy=False), target, weight=weight)
    return {node: min(choices) for node, choices in onward.items() if choices}


def follow(hops: Mapping[int, int], source: int, target: int) -> tuple[int, ...] | None:
    """The nodes from `source` to `target`, both included, by the in-tree `hops`; None when there is no way."""
    if source == target:
        return (source,)
    path = [source]
    while path[-1] != target:
        onward = hops.get(path[-1])
        if onward is None:
            return None
        path.append(onward)
    return tuple(path)


def passages(graph: Topology, dro: int) -> tuple[Passage, ...]:
    """All pairs of domains whose path goes through `dro`, by interested domain, then by source domain."""
    found: list[Passage] = []
    all_domains = domains(graph)
    for interested in all_domains:
        hops = next_hops(graph, interested)
        if dro not in hops:
            continue
        for source in all_domains:
            nodes = follow(hops, source, interested)
            if nodes is not None and dro in nodes:
                at = nodes.index(dro)
                found.append(Passage(source, interested, nodes[at - 1], nodes[at + 1]))
    return tuple(found)
