"""Paths between domains: least cost, then fewest nodes, then the smallest next node id towards the destination.

Computed as next hops, which form an in-tree towards each destination, so all DROs with the same graph get the same,
consistent paths. Ties may make the two directions of a pair differ. Source: DRO guide, "Routing Topics" (costs; equal
costs are decided by node id). Guess: the order of the tie-breaks.

With equal-cost sharing there are `SHARES` such in-trees, of the same costs and numbers of nodes, which differ in the
choice among equally good next nodes. Each tree has an order of all nodes: tree 0 that of the ids, tree 2j that of a
hash of j and the id, tree 2j + 1 the reverse of tree 2j. So two equally good nodes get half of the trees each. As the
order does not depend on the destination, the paths of a tree from one source part and never meet again: one DRO
brings the source into each TRD on its ways, whatever the number of destinations behind it.
Guess: all that concerns sharing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Final

import networkx as nx

from dro.shares import ALL_SHARES, SHARES
from router.topology import Topology

Choice = tuple[tuple[int, int], ...]
"""Nodes to go to next, and the trees that do, which are all trees together."""
_RANKED: Final = Struct("!BQ")


def next_hops(graph: Topology, target: int) -> dict[int, int]:
    """Find for every node that reaches `target`, except itself, nearest first, the node to go to next."""
    return {node: min(onward) for node, onward in equal_hops(graph, target).items()}


def shared_hops(graph: Topology, target: int, *, is_shared: bool) -> dict[int, Choice]:
    """Find the nodes to go to next in all trees; without sharing all are tree 0."""
    equal = equal_hops(graph, target).items()
    if not is_shared:
        return {node: ((min(onward), ALL_SHARES),) for node, onward in equal}
    return {n: ((on[0], ALL_SHARES),) if len(on) == 1 else choice_of(tuple(sorted(on))) for n, on in equal}


def of_tree(hops: Mapping[int, Choice], share: int) -> dict[int, int]:
    """One of the trees, by its mask."""
    return {node: next(to for to, shares in choice if shares & share) for node, choice in hops.items()}


@lru_cache(maxsize=1 << 14)  # most destinations have the same ties
def choice_of(nodes: tuple[int, ...]) -> Choice:
    chosen: defaultdict[int, int] = defaultdict(int)
    for pair in range(SHARES // 2):
        order = sorted(nodes, key=lambda node: (_rank(pair, node), node))
        chosen[order[0]] |= 1 << 2 * pair
        chosen[order[-1]] |= 1 << 2 * pair + 1
    return tuple(sorted(chosen.items()))


def _rank(pair: int, node: int) -> int:
    return node if pair == 0 else int.from_bytes(blake2b(_RANKED.pack(pair, node), digest_size=8).digest(), "big")


def equal_hops(graph: Topology, target: int) -> dict[int, list[int]]:
    """Find for every node that reaches `target`, except itself, nearest first, the nodes to go to next."""
    if target not in graph:
        return {}
    scale = len(graph)  # a path has fewer edges than that, so costs decide before node counts

    def weight(_u: int, _v: int, edge: Mapping[str, int]) -> int:
        return edge["cost"] * scale + 1

    onward, distances = nx.dijkstra_predecessor_and_distance(graph.reverse(copy=False), target, weight=weight)
    return {node: onward[node] for node in distances if node != target}


def follow(hops: Mapping[int, int], source: int, target: int) -> tuple[int, ...] | None:
    """The nodes from `source` to `target`, both included, by the in-tree `hops`; None when there is no way."""
    path = [source]
    while path[-1] != target:
        onward = hops.get(path[-1])
        if onward is None:
            return None
        path.append(onward)
    return tuple(path)
