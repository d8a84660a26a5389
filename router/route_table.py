"""The calculation of the route table of one DRO: which pairs of domains it is on the path of, and what it costs to it.

For each destination the next hops of all nodes form an in-tree; the sources whose traffic passes the DRO are those in
its subtree, divided by the branch through which they come. A domain with one DRO alone is never on the way of others
and has the in-tree of that DRO, so it takes no part in the search, and the domains of a star need one in-tree together.

With equal-cost sharing a domain's traffic may come through several branches and go on to several nodes, each with the
trees for which that holds; a route is made of a branch and a next node that have trees in common.

With hotlinks the DRO calculates in a graph without the DROs that are invisible to it, and leaves out chains.
Guess: of equally good ways from a domain to this DRO, `Origin` describes that of the tie-break.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Final

from dro.bus.messages import Origin, Route
from dro.shares import ALL_SHARES
from router.hotlinks import chained, indexed_portals, visible_to
from router.paths import Choice, next_hops, shared_hops
from router.sharing import is_in_use
from router.topology import DroRecord, Topology, build, domains, is_domain
from router.trees import FAR, Trees

COMPILED_EDGES: Final = 200
"""From so many on, trees are searched for by the compiled step."""
Branch = tuple[int, int, tuple[int, ...]]
"""A neighbour, the trees by which traffic comes through it, and the domains where that begins."""


class TableCalculation:
    """One calculation, done in pieces. `routes` and `origins` are whole when `run` has returned True."""

    def __init__(
        self,
        node_id: int,
        records: Iterable[DroRecord],
        worker_of: Mapping[int, int],
        before: TableCalculation | None = None,
    ) -> None:
        """`worker_of` each neighbour of this DRO: the portal that leads there."""
        all_records = list(records)
        visible = visible_to(node_id, all_records)
        self.is_shared = is_in_use(all_records)
        """Equal-cost sharing is in use."""
        self._me = node_id
        self._worker_of = worker_of
        self._indexed = indexed_portals(visible)
        self.whole: Topology = build(visible)
        """The graph as this DRO sees it, not to be changed."""
        self._stubs = {} if self._indexed else _stubs(self.whole)
        self._graph = self.whole.copy()
        self._graph.add_node(node_id)
        self._graph.remove_nodes_from(stub for stubs in self._stubs.values() for stub in stubs)
        self._tuples: dict[tuple[int, ...], tuple[int, ...]] = {}  # the same sources in many routes are one object
        self._routes: dict[int, list[Route]] = {}
        self._before = before
        self._fast: Trees | None = None
        self._distances: dict[int, array[int]] = {}  # by root
        self._found: dict[int, list[Branch]] = {}  # likewise
        self._work = self._steps()
        self.chains: set[tuple[int, int]] = set()
        """Pairs of domains whose path is left out, as it would make a second hotlink hop."""
        self.routes: tuple[Route, ...] = ()
        self.origins: tuple[Origin, ...] = ()

    def run(self, edges: int) -> bool:
        """Go on until so many edges were looked at or it is done, which is the result. One step at least is taken."""
        for spent in self._work:
            edges -= spent
            if edges <= 0:
                return False
        return True

    def _steps(self) -> Iterator[int]:
        edges = self._graph.number_of_edges()
        if edges >= COMPILED_EDGES and not self._indexed:
            yield from self._compiled_steps(edges)
        else:
            for root, targets in self._trees():
                hops = shared_hops(self._graph, root, is_shared=self.is_shared)
                yield edges
                if root == self._me or self._me in hops:
                    onward = () if root == self._me else hops[self._me]
                    yield from self._add_routes(self._branches(hops, root), onward, root, targets)
        self.routes = tuple(route for target in sorted(self._routes) for route in self._routes[target])
        self.origins = tuple(self._origins())
        self._before = None

    def _compiled_steps(self, edges: int) -> Iterator[int]:
        """Do the same with `router.trees`."""
        trees = self._fast = Trees(self._graph)
        yield edges
        me = trees.numbers[self._me]
        behind = [(node,) if is_domain(node) else self._stubs.get(node, ()) for node in trees.ids]
        own = self._stubs.get(self._me, ())
        behind[me] = ()
        before = self._before
        if before is None or before._fast is None or not self._has_nodes_of(before, before._fast.ids):
            before, changes = None, []
        else:
            changes = trees.changes(before._fast)
        for root, targets in self._trees():
            if before is not None and not trees.is_touched(before._distances[root], changes):
                self._distances[root], branches = before._distances[root], before._found.get(root, [])
                self._found[root] = branches
                self._tuples |= {sources: sources for _, _, sources in branches}
                for target in targets:
                    if (routes := before._routes.get(target)) is not None:
                        self._routes[target] = routes
                yield edges // 50
                continue
            trees.search(trees.numbers[root])
            self._distances[root] = trees.distances[:]
            yield edges // 5
            if trees.distances[me] == FAR:
                continue
            onward = () if root == self._me else trees.onward(me, self.is_shared)
            found = trees.branches(me, self.is_shared, behind)
            for stub in own:
                found.setdefault((stub, ALL_SHARES), []).append(stub)
            made = ((*branch, tuple(sorted(nodes))) for branch, nodes in found.items())
            branches = self._found[root] = self._sorted(made)
            yield from self._add_routes(branches, onward, root, targets)

    def _has_nodes_of(self, before: TableCalculation, ids: list[int]) -> bool:
        """Say whether trees of that calculation may hold in this one."""
        return (
            self._fast is not None and self._fast.ids == ids and self._stubs == before._stubs
            and self._worker_of == before._worker_of and self.is_shared == before.is_shared
        )  # fmt: skip

    def _trees(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the root of each in-tree, and the destinations that it serves."""
        if len(self._worker_of) < 2:
            return  # nothing passes
        for domain in domains(self._graph):
            yield domain, (domain,)
        yield from self._stubs.items()

    def _add_routes(self, branches: list[Branch], choice: Choice, root: int, targets: tuple[int, ...]) -> Iterator[int]:
        for target in targets:
            onward = ((target, ALL_SHARES),) if self._me == root else choice
            self._routes[target] = [
                Route(sources, target, self._worker_of[branch], self._worker_of[egress], shares & leaving)
                for branch, shares, sources in branches
                if branch != target
                for egress, leaving in onward
                if shares & leaving
            ]
            yield len(branches)

    def _branches(self, hops: Mapping[int, Choice], root: int) -> list[Branch]:
        """Find neighbours through which traffic to `root` comes to this DRO, by which trees, and from which domains."""
        left_out: Set[int] = set()
        if self._indexed:  # then nothing is shared
            left_out = chained({node: choice[0][0] for node, choice in hops.items()}, root, self._indexed)
        branches_of: dict[int, dict[int, int]] = {}  # node -> branch -> trees
        sources: dict[tuple[int, int], list[int]] = defaultdict(list)
        for stub in self._stubs.get(self._me, ()):
            sources[stub, ALL_SHARES].append(stub)
        for node, choice in hops.items():
            if not (branches := self._branches_of(node, choice, branches_of)):
                continue
            branches_of[node] = branches
            if node in left_out and is_domain(node):
                self.chains.add((node, root))
                continue
            found = (node,) if is_domain(node) else self._stubs.get(node, ())
            for branch in branches.items():
                sources[branch] += found
        made = ((*branch, tuple(sorted(found))) for branch, found in sources.items() if found)
        return self._sorted(made)

    def _sorted(self, made: Iterable[Branch]) -> list[Branch]:
        return sorted(((b, s, self._tuples.setdefault(t, t)) for b, s, t in made), key=lambda one: (one[2], one[1]))

    def _branches_of(self, node: int, choice: Choice, known: Mapping[int, dict[int, int]]) -> dict[int, int]:
        if len(choice) == 1:
            onward = choice[0][0]
            return {node: ALL_SHARES} if onward == self._me else known.get(onward, {})
        found: dict[int, int] = defaultdict(int)
        for onward, shares in choice:
            if onward == self._me:
                found[node] |= shares
            for branch, coming in known.get(onward, {}).items():
                if coming & shares:
                    found[branch] |= coming & shares
        return found

    def _origins(self) -> Iterator[Origin]:
        costs = {self._me: (0, 0)}  # node -> cost from there, DROs on the way
        for node, onward in next_hops(self.whole, self._me).items():
            cost, passed = costs[onward]
            costs[node] = cost + self.whole.edges[node, onward]["cost"], passed + (not is_domain(node))
        for domain in sorted(set[int]().union(*self._tuples)):
            yield Origin(domain, *costs[domain])


def _stubs(graph: Topology) -> dict[int, tuple[int, ...]]:
    """Find the domains that one DRO alone is in, by that DRO."""
    found: dict[int, list[int]] = defaultdict(list)
    for domain in domains(graph):
        (dro, *others) = graph[domain]
        if not others:
            found[dro].append(domain)
    return {dro: tuple(stubs) for dro, stubs in found.items()}
