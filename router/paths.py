"""Paths between domains: least cost, then fewest nodes, then the smallest next node id towards the destination.

Computed as next hops, which form an in-tree towards each destination, so all DROs with the same graph get the same,
consistent paths. Ties may make the two directions of a pair differ. Source: DRO guide, "Routing Topics" (costs; equal
costs are decided by node id). Guess: the order of the tie-breaks.
"""

from __future__ import annotations

from collections.abc import Mapping

import networkx as nx

from router.topology import Topology


def next_hops(graph: Topology, target: int) -> dict[int, int]:
    """For every node that reaches `target`, except itself, nearest first: the node to go to next."""
    if target not in graph:
        return {}
    scale = len(graph)  # a path has fewer edges than that, so costs decide before node counts

    def weight(_u: int, _v: int, edge: Mapping[str, int]) -> int:
        return edge["cost"] * scale + 1

    onward, distances = nx.dijkstra_predecessor_and_distance(graph.reverse(copy=False), target, weight=weight)
    return {node: min(onward[node]) for node in distances if node != target}


def follow(hops: Mapping[int, int], source: int, target: int) -> tuple[int, ...] | None:
    """The nodes from `source` to `target`, both included, by the in-tree `hops`; None when there is no way."""
    path = [source]
    while path[-1] != target:
        onward = hops.get(path[-1])
        if onward is None:
            return None
        path.append(onward)
    return tuple(path)
