"""In-trees of next hops in a large graph: a compiled step that finds the same as `router.paths` does.

Nodes are numbers in the order of their ids, so of equally good next nodes the smallest number is the smallest id. A
search finds the distance of every node to a root; the next hops follow from the distances: those over which a node is
as near as it is. `router.paths` is the reference, and has the rules.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import Final

from dro.shares import ALL_SHARES
from router.paths import Choice, choice_of
from router.topology import Topology

FAR: Final = 1 << 62
"""The distance of a node that does not reach the root."""
_FAR, _NONE, _SEVERAL = FAR, -1, -2  # plain integers in the compiled form

Change = tuple[int, int, int, int]
"""An edge by its two nodes, its weight before and now; `FAR` where it is not there."""


class Trees:
    """The edges of a graph, and the tree of the last root that was searched for."""

    def __init__(self, graph: Topology) -> None:
        self.ids = sorted(graph)
        self.numbers = {node: number for number, node in enumerate(self.ids)}
        count, scale = len(self.ids), len(self.ids)  # a path has fewer edges than that: costs decide before node counts
        edges: Iterable[tuple[int, int, int]] = graph.edges.data("cost")
        self.edges: dict[tuple[int, int], int] = {
            (self.numbers[u], self.numbers[v]): cost * scale + 1 for u, v, cost in edges
        }
        self._out_at, self._out_to, self._out_weights = _lists(
            count, sorted((u, v, w) for (u, v), w in self.edges.items())
        )
        self._in_at, self._in_from, self._in_weights = _lists(
            count, sorted((v, u, w) for (u, v), w in self.edges.items())
        )
        self._keys = array("q", bytes(8 * (len(self.edges) + 2)))
        self._nodes = array("i", bytes(4 * (len(self.edges) + 2)))
        self._waiting = 0
        self.distances = array("q", bytes(8 * count))
        self._order = array("i", bytes(4 * count))
        self._branch = array("i", bytes(4 * count))
        self.reached = 0

    def search(self, root: int) -> None:
        """Find the distances of all nodes to that one."""
        distances, order, at, sources, weights = (
            self.distances,
            self._order,
            self._in_at,
            self._in_from,
            self._in_weights,
        )
        for node in range(len(self.ids)):
            distances[node] = _FAR
        distances[root] = 0
        self.reached = 0
        self._waiting = 0
        self._push(0, root)
        while self._waiting:
            distance = self._keys[1]
            node = self._pop()
            if distance > distances[node]:
                continue  # it was reached on a shorter way
            order[self.reached] = node
            self.reached += 1
            for edge in range(at[node], at[node + 1]):
                source, further = sources[edge], distance + weights[edge]
                if further < distances[source]:
                    distances[source] = further
                    self._push(further, source)

    def _push(self, key: int, node: int) -> None:
        keys, nodes = self._keys, self._nodes
        self._waiting += 1
        place = self._waiting
        while place > 1 and keys[place >> 1] > key:
            keys[place], nodes[place] = keys[place >> 1], nodes[place >> 1]
            place >>= 1
        keys[place], nodes[place] = key, node

    def _pop(self) -> int:
        """Take the nearest node."""
        keys, nodes = self._keys, self._nodes
        node, key, last, count = nodes[1], keys[self._waiting], nodes[self._waiting], self._waiting - 1
        self._waiting = count
        place, below = 1, 2
        while below <= count:
            if below < count and keys[below + 1] < keys[below]:
                below += 1
            if keys[below] >= key:
                break
            keys[place], nodes[place] = keys[below], nodes[below]
            place, below = below, 2 * below
        keys[place], nodes[place] = key, last
        return node

    def onward(self, node: int, is_shared: bool) -> Choice:
        """Return where a node that reaches the root goes next."""
        distances, at, onward = self.distances, self._out_at, self._out_to
        found = [
            self.ids[onward[edge]]
            for edge in range(at[node], at[node + 1])
            if distances[onward[edge]] + self._out_weights[edge] == distances[node]
        ]
        return choice_of(tuple(found)) if is_shared and len(found) > 1 else ((found[0], ALL_SHARES),)

    def branches(self, me: int, is_shared: bool, behind: list[tuple[int, ...]]) -> dict[tuple[int, int], list[int]]:
        """Find neighbours through which traffic to the root comes to `me`, by which trees, and from which domains.

        `behind`: the domains that begin at each node.
        """
        distances, order, branch = self.distances, self._order, self._branch
        at, onward, weights = self._out_at, self._out_to, self._out_weights
        found: dict[tuple[int, int], list[int]] = {}
        several: dict[int, dict[int, int]] = {}
        branch[order[0]] = _NONE
        for place in range(1, self.reached):
            node = order[place]
            first, ties = _NONE, 0
            for edge in range(at[node], at[node + 1]):
                if distances[onward[edge]] + weights[edge] == distances[node]:
                    ties += 1
                    if first == _NONE:
                        first = onward[edge]
            if ties == 1 or not is_shared:
                way = branch[node] = node if first == me else branch[first]
                if way == _NONE:
                    continue
                if way == _SEVERAL:
                    several[node] = several[first]
                else:
                    if behind[node]:
                        found.setdefault((self.ids[way], ALL_SHARES), []).extend(behind[node])
                    continue
            else:
                ways = self._ways(node, me, several)
                branch[node] = _SEVERAL if ways else _NONE
                if not ways:
                    continue
                several[node] = ways
            for one in several[node].items():
                if behind[node]:
                    found.setdefault((self.ids[one[0]], one[1]), []).extend(behind[node])
        return found

    def _ways(self, node: int, me: int, several: dict[int, dict[int, int]]) -> dict[int, int]:
        """Return by which trees the traffic of a node with a choice comes to `me`, by branch."""
        ways: dict[int, int] = {}
        for to, shares in self.onward(node, True):
            first = self.numbers[to]
            way = self._branch[first]
            if first == me:
                ways[node] = ways.get(node, 0) | shares
            elif way == _SEVERAL:
                for branch, coming in several[first].items():
                    if coming & shares:
                        ways[branch] = ways.get(branch, 0) | coming & shares
            elif way != _NONE:
                ways[way] = ways.get(way, 0) | shares
        return ways

    def changes(self, before: Trees) -> list[Change]:
        """Find what differs from another graph of the same nodes."""
        edges = self.edges | dict.fromkeys(before.edges.keys() - self.edges.keys(), FAR)
        return [
            (*edge, old, weight) for edge, weight in edges.items() if (old := before.edges.get(edge, FAR)) != weight
        ]

    def is_touched(self, distances: array[int], changes: list[Change]) -> bool:
        """Say whether a tree with these distances may be another one after these changes."""
        for source, to, before, now in changes:
            if distances[to] != _FAR:
                if before != _FAR and distances[to] + before == distances[source]:
                    return True
                if now != _FAR and distances[to] + now <= distances[source]:
                    return True
        return False


def _lists(count: int, edges: list[tuple[int, int, int]]) -> tuple[array[int], array[int], array[int]]:
    """Return where the edges of each node begin, the other nodes, and the weights."""
    begins = [0] * (count + 1)
    for node, _, _ in edges:
        begins[node + 1] += 1
    for node in range(count):
        begins[node + 1] += begins[node]
    return array("i", begins), array("i", [to for _, to, _ in edges]), array("q", [weight for _, _, weight in edges])
