"""Paths against the documented examples and against brute force."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise, permutations
from pathlib import Path
from random import Random
from typing import Any

import networkx as nx
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dro.shares import ALL_SHARES, SHARES
from router.paths import follow, next_hops, of_tree, shared_hops
from router.topology import DroRecord, Neighbour, Topology, build, domains, is_domain

DRO_BIT = 1 << 63
EXAMPLES = Path(__file__).parents[1] / "golden" / "examples"


def example(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((EXAMPLES / name / "topology.json").read_text())
    return loaded


def path(graph: Topology, source: int, target: int) -> tuple[int, ...] | None:
    return follow(next_hops(graph, target), source, target)


def graph_of(topology: dict[str, Any]) -> tuple[Topology, dict[str, int]]:
    """The graph of a `topology.json` and the node of each endpoint portal's domain by `DRO/portal`."""
    ids = {dro["name"]: DRO_BIT | n for n, dro in enumerate(topology["dros"], 1)}
    portals: dict[str, int] = {}
    records = []
    for dro in topology["dros"]:
        neighbours = []
        for portal in dro["portals"]:
            assert portal["type"] == "endpoint"
            portals[f"{dro['name']}/{portal['name']}"] = portal["domain_id"]
            neighbours.append(Neighbour(portal["domain_id"], portal["cost"], portal["cost"]))
        records.append(DroRecord(ids[dro["name"]], tuple(neighbours)))
    return build(records), portals


@pytest.mark.parametrize("name", ["direct-link", "star-central-dro"])
def test_the_best_paths_of_the_examples(name: str) -> None:
    topology = example(name)
    graph, portals = graph_of(topology)
    for expected in topology["paths"]:
        for source, target in ((expected["from"], expected["to"]), (expected["to"], expected["from"])):
            nodes = path(graph, source, target)
            assert nodes is not None
            assert nx.path_weight(graph, nodes, "cost") == expected["cost"]
            passed = [node for node in nodes if is_domain(node)]
            routes = [[portals[p] for p in route] for route in expected["routes"]]
            assert passed in routes or passed[::-1] in routes


def test_the_costs_of_the_guide() -> None:
    """Domain-1 -3- A -2- Domain-2 -4- B -25- Domain-3 costs 34."""
    a = DroRecord(DRO_BIT | 1, (Neighbour(1, 3, 3), Neighbour(2, 2, 2)))
    b = DroRecord(DRO_BIT | 2, (Neighbour(2, 4, 4), Neighbour(3, 25, 25)))
    graph = build([a, b])
    nodes = path(graph, 1, 3)
    assert nodes == (1, a.node_id, 2, b.node_id, 3)
    assert nx.path_weight(graph, nodes, "cost") == 34


def test_the_routing_figure_of_the_guide() -> None:
    """Two ways over peer links: 1 + 5 + 3 + 2 = 11 by A and C, 1 + 2 + 2 + 2 = 7 by B and D, which wins."""
    a, b, c, d = (DRO_BIT | n for n in range(1, 5))
    graph = build(
        [
            DroRecord(a, (Neighbour(1, 1, 1), Neighbour(c, 5, 5))),
            DroRecord(c, (Neighbour(a, 3, 3), Neighbour(2, 2, 2))),
            DroRecord(b, (Neighbour(1, 1, 1), Neighbour(d, 2, 2))),
            DroRecord(d, (Neighbour(b, 2, 2), Neighbour(2, 2, 2))),
        ]
    )
    nodes = path(graph, 1, 2)
    assert nodes == (1, b, d, 2)
    assert nx.path_weight(graph, nodes, "cost") == 7
    assert nx.path_weight(graph, (1, a, c, 2), "cost") == 11


@pytest.mark.parametrize(
    ("link", "total", "first"), [(2, 7, "b"), (5, 10, "b"), (6, 11, "a"), (7, 11, "a"), (20, 11, "a")]
)
def test_traffic_moves_as_soon_as_the_other_way_is_cheaper(link: int, total: int, first: str) -> None:
    """The figure of the guide, one cost of the cheaper way raised: totals of 11 are a tie, from 12 on it moves."""
    a, b, c, d = (DRO_BIT | n for n in range(1, 5))
    graph = build(
        [
            DroRecord(a, (Neighbour(1, 1, 1), Neighbour(c, 5, 5))),
            DroRecord(c, (Neighbour(a, 3, 3), Neighbour(2, 2, 2))),
            DroRecord(b, (Neighbour(1, 1, 1), Neighbour(d, link, link))),
            DroRecord(d, (Neighbour(b, 2, 2), Neighbour(2, 2, 2))),
        ]
    )
    nodes = path(graph, 1, 2)
    assert nodes is not None
    assert nx.path_weight(graph, nodes, "cost") == total
    assert nodes[1] == {"a": a, "b": b}[first], "a tie goes to the smaller id"


def test_a_link_between_dros_needs_both() -> None:
    a, b = DRO_BIT | 1, DRO_BIT | 2
    one_sided = build([DroRecord(a, (Neighbour(1, 1, 1), Neighbour(b, 1, 1))), DroRecord(b, (Neighbour(2, 1, 1),))])
    assert path(one_sided, 1, 2) is None
    unknown = build([DroRecord(a, (Neighbour(1, 1, 1), Neighbour(b, 1, 1)))])
    assert set(unknown) == {1, a}


def test_ingress_and_egress_cost_may_differ() -> None:
    a, b = DRO_BIT | 1, DRO_BIT | 2
    graph = build(
        [
            DroRecord(a, (Neighbour(1, 10, 100), Neighbour(b, 1000, 10000))),
            DroRecord(b, (Neighbour(a, 7, 70), Neighbour(2, 3, 30))),
        ]
    )
    assert nx.path_weight(graph, (1, a, b, 2), "cost") == 10 + 10000 + 7 + 30
    assert nx.path_weight(graph, (2, b, a, 1), "cost") == 3 + 70 + 1000 + 100


def test_of_equal_ways_the_smaller_next_node_wins_and_directions_may_differ() -> None:
    """Towards 2 the first choice is between DROs 1 and 2, towards 1 between domains behind DROs 4 and 3."""
    n1, n2, n3, n4 = (DRO_BIT | n for n in range(1, 5))
    graph = build(
        [
            DroRecord(n1, (Neighbour(1, 1, 1), Neighbour(8, 1, 1))),
            DroRecord(n2, (Neighbour(1, 1, 1), Neighbour(9, 1, 1))),
            DroRecord(n4, (Neighbour(8, 1, 1), Neighbour(2, 1, 1))),
            DroRecord(n3, (Neighbour(9, 1, 1), Neighbour(2, 1, 1))),
        ]
    )
    assert path(graph, 1, 2) == (1, n1, 8, n4, 2)
    assert path(graph, 2, 1) == (2, n3, 9, n2, 1)


def test_fewer_nodes_beat_smaller_ids() -> None:
    a, b = DRO_BIT | 1, DRO_BIT | 2
    direct = DroRecord(DRO_BIT | 9, (Neighbour(1, 2, 2), Neighbour(2, 2, 2)))
    graph = build(
        [
            direct,
            DroRecord(a, (Neighbour(1, 1, 1), Neighbour(5, 1, 1))),
            DroRecord(b, (Neighbour(5, 1, 1), Neighbour(2, 1, 1))),
        ]
    )
    assert path(graph, 1, 2) == (1, direct.node_id, 2)


def test_unknown_nodes_have_no_path() -> None:
    graph = build([DroRecord(DRO_BIT | 1, (Neighbour(1, 1, 1),))])
    assert path(graph, 1, 2) is None
    assert path(graph, 2, 1) is None
    assert path(graph, 1, 1) == (1,)
    assert next_hops(graph, 77) == {}


@st.composite
def networks(draw: st.DrawFn) -> list[DroRecord]:
    """Up to four domains and five DROs, few different costs so that ties are common."""
    trds = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4, unique=True))
    dros = [DRO_BIT | n for n in draw(st.lists(st.integers(1, 99), min_size=1, max_size=5, unique=True))]
    costs = st.integers(1, 3)
    links: dict[int, list[Neighbour]] = {dro: [] for dro in dros}
    for n, dro in enumerate(dros):
        for trd in draw(st.lists(st.sampled_from(trds), max_size=3, unique=True)):
            links[dro].append(Neighbour(trd, draw(costs), draw(costs)))
        for other in dros[:n]:
            if draw(st.integers(0, 3)) == 0:
                links[dro].append(Neighbour(other, draw(costs), draw(costs)))
                links[other].append(Neighbour(dro, draw(costs), draw(costs)))
    return [DroRecord(dro, tuple(links[dro])) for dro in dros]


def best_by_brute_force(graph: Topology, source: int, target: int) -> tuple[int, ...] | None:
    """Every simple path, compared as the rule says."""
    found = [tuple(p) for p in nx.all_simple_paths(graph, source, target)]
    return min(found, key=lambda p: (nx.path_weight(graph, p, "cost"), len(p), p), default=None)


@given(networks())
def test_paths_are_those_of_brute_force(records: list[DroRecord]) -> None:
    graph = build(records)
    for source, target in permutations(domains(graph), 2):
        assert path(graph, source, target) == best_by_brute_force(graph, source, target)


@given(networks(), st.randoms(use_true_random=False))
def test_the_order_of_building_does_not_matter(records: list[DroRecord], rng: Random) -> None:
    shuffled = [DroRecord(r.node_id, tuple(rng.sample(r.neighbours, len(r.neighbours)))) for r in records]
    rng.shuffle(shuffled)
    one, other = build(records), build(shuffled)
    assert {t: next_hops(one, t) for t in domains(one)} == {t: next_hops(other, t) for t in domains(other)}


@given(networks())
def test_every_node_of_a_path_agrees_on_the_rest_of_it(records: list[DroRecord]) -> None:
    graph = build(records)
    for source, target in permutations(domains(graph), 2):
        nodes = path(graph, source, target)
        assume(nodes is not None)
        assert nodes is not None
        hops = next_hops(graph, target)
        for at, node in enumerate(nodes):
            assert follow(hops, node, target) == nodes[at:]


def test_the_largest_domain_id_is_a_domain_and_the_next_number_is_none() -> None:
    assert (is_domain(0xFFFF_FFFF), is_domain(1 << 32)) == (True, False)


@pytest.mark.parametrize("length", range(2, 12))
def test_a_way_of_lower_cost_wins_however_many_nodes_it_has(length: int) -> None:
    """A chain through all other nodes against a single edge that costs one more."""
    graph: Topology = nx.DiGraph()
    for node in range(length):
        graph.add_edge(node, node + 1, cost=1)
    graph.add_edge(0, length, cost=length + 1)
    assert path(graph, 0, length) == tuple(range(length + 1))
    graph.edges[0, length]["cost"] = length
    assert path(graph, 0, length) == (0, length)


# equal-cost sharing


def trees(graph: Topology, target: int) -> list[dict[int, int]]:
    """The next hops of each tree."""
    hops = shared_hops(graph, target, is_shared=True)
    return [of_tree(hops, 1 << tree) for tree in range(SHARES)]


@given(networks())
def test_all_trees_lead_along_best_paths_and_the_first_is_that_without_sharing(records: list[DroRecord]) -> None:
    graph = build(records)
    for target in domains(graph):
        first, *others = trees(graph, target)
        assert first == next_hops(graph, target)
        assert of_tree(shared_hops(graph, target, is_shared=False), ALL_SHARES) == first
        for tree in others:
            assert list(tree) == list(first), "the same nodes, nearest first"
            for source in tree:
                best, nodes = follow(first, source, target), follow(tree, source, target)
                assert best is not None
                assert nodes is not None
                assert len(set(nodes)) == len(nodes) == len(best)
                assert nx.path_weight(graph, nodes, "cost") == nx.path_weight(graph, best, "cost")


@given(networks())
def test_the_paths_of_a_tree_from_one_source_never_meet_again(records: list[DroRecord]) -> None:
    """So of the ways of a source only one leads into each node."""
    graph = build(records)
    of_target = {target: trees(graph, target) for target in domains(graph)}
    for tree in range(SHARES):
        for source in domains(graph):
            before: dict[int, int] = {}
            for target in domains(graph):
                for one, other in pairwise(follow(of_target[target][tree], source, target) or ()):
                    assert before.setdefault(other, one) == one


@given(networks())
def test_the_trees_of_a_node_are_divided_among_all_its_equally_good_next_nodes(records: list[DroRecord]) -> None:
    graph = build(records)
    for target in domains(graph):
        for choice in shared_hops(graph, target, is_shared=True).values():
            assert sum(shares for _, shares in choice) == ALL_SHARES
            assert ALL_SHARES.bit_count() == sum(shares.bit_count() for _, shares in choice)
            if len(choice) == 2:
                assert [shares.bit_count() for _, shares in choice] == [SHARES // 2] * 2


@pytest.mark.parametrize("ways", [3, 4, 8])
def test_many_equally_good_ways_get_their_part(ways: int) -> None:
    middle = [DRO_BIT | n << 20 for n in range(1, ways + 1)]
    graph = build([DroRecord(dro, (Neighbour(1, 1, 1), Neighbour(2, 1, 1))) for dro in middle])
    choice = shared_hops(graph, 2, is_shared=True)[1]
    assert [node for node, _ in choice] == middle
    assert all(SHARES / ways / 3 < shares.bit_count() < 2 * SHARES / ways for _, shares in choice)


def test_choices_at_nodes_one_behind_the_other_are_independent() -> None:
    """1 - two DROs - 8 - two DROs - 2: each of the four ways gets some of the trees, about a quarter."""
    near, far = ([DRO_BIT | n for n in pair] for pair in ((1, 2), (3, 4)))
    records = [DroRecord(n, (Neighbour(1, 1, 1), Neighbour(8, 1, 1))) for n in near]
    records += [DroRecord(n, (Neighbour(8, 1, 1), Neighbour(2, 1, 1))) for n in far]
    found = Counter(follow(tree, 1, 2) for tree in trees(build(records), 2))
    assert len(found) == 4
    assert min(found.values()) >= SHARES // 8
