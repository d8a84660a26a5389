"""Route tables: against the paths, with and without hotlinks, and of networks that are large."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, permutations
from random import Random

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import router.paths
from dro.bus.messages import Origin, Route
from dro.shares import ALL_SHARES, METHOD, SHARES
from router import route_table
from router.hotlinks import chained, shared_indexes, visible_to
from router.paths import follow, next_hops, of_tree, shared_hops
from router.route_table import TableCalculation
from router.sharing import hindrances
from router.topology import DroRecord, Hotlink, Neighbour, Topology, build, domains, is_domain
from router.trees import Trees
from tests.router.test_paths import DRO_BIT, networks

Passage = tuple[int, int, int, int, int]  # source, interested domain, the DRO, the nodes before and after it


@pytest.fixture(scope="module", params=[0, 1 << 40], ids=["compiled", "networkx"], autouse=True)
def _way_of_search(request: pytest.FixtureRequest) -> Iterator[None]:
    """Both ways make the same tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(route_table, "COMPILED_EDGES", request.param)
        yield


def begun(
    node_id: int, records: list[DroRecord], before: TableCalculation | None = None
) -> tuple[TableCalculation, dict[int, int]]:
    """With the portal to each neighbour, which is the worker of its place."""
    own = next(r for r in records if r.node_id == node_id)
    worker_of = {n.node_id: worker for worker, n in enumerate(own.neighbours, 1)}
    return TableCalculation(node_id, records, worker_of, before), worker_of


def calculated(node_id: int, records: list[DroRecord], before: TableCalculation | None = None) -> TableCalculation:
    made, _ = begun(node_id, records, before)
    assert made.run(1 << 40)
    return made


def passages(node_id: int, records: list[DroRecord]) -> set[Passage]:
    made, worker_of = begun(node_id, records)
    assert made.run(1 << 40)
    node_of = {worker: node for node, worker in worker_of.items()}
    found = [
        (source, r.interested_domain, node_id, node_of[r.ingress], node_of[r.egress])
        for r in made.routes
        for source in r.source_domains
    ]
    assert len(set(found)) == len(found)
    return set(found)


def expected(graph: Topology) -> set[Passage]:
    """By following every path."""
    return passed({target: next_hops(graph, target) for target in domains(graph)})


def passed(hops: dict[int, dict[int, int]]) -> set[Passage]:
    found = set()
    for source, target in permutations(hops, 2):
        nodes = follow(hops[target], source, target) or ()
        found |= {
            (source, target, dro, before, after)
            for (before, dro), (_, after) in pairwise(pairwise(nodes))
            if not is_domain(dro)
        }
    return found


@given(networks())
def test_the_tables_of_all_dros_are_exactly_the_paths(records: list[DroRecord]) -> None:
    got = set[Passage]().union(*(passages(r.node_id, records) for r in records))
    assert got == expected(build(records))


@given(networks())
def test_origins_are_the_least_costs(records: list[DroRecord]) -> None:
    graph = build(records)
    for record in records:
        made = calculated(record.node_id, records)
        sources = {source for route in made.routes for source in route.source_domains}
        assert sources <= {origin.domain_id for origin in made.origins}
        for origin in made.origins:
            assert origin.cost == nx.dijkstra_path_length(graph, origin.domain_id, record.node_id, "cost")
            way = follow(next_hops(graph, record.node_id), origin.domain_id, record.node_id)
            assert way is not None
            assert origin.hop_count == sum(not is_domain(node) for node in way) - 1


@given(networks(), st.integers(1, 40))
def test_pieces_make_the_same_table(records: list[DroRecord], edges: int) -> None:
    node_id = records[0].node_id
    whole = calculated(node_id, records)
    in_pieces, _ = begun(node_id, records)
    while not in_pieces.run(edges):
        assert in_pieces.routes == ()
    assert (whole.routes, whole.origins) == (in_pieces.routes, in_pieces.origins)


def sharing(records: list[DroRecord]) -> list[DroRecord]:
    return [replace(record, sharing=METHOD) for record in records]


@given(networks())
def test_shared_tables_of_all_dros_are_exactly_the_paths_of_the_trees(records: list[DroRecord]) -> None:
    got: defaultdict[Passage, int] = defaultdict(int)
    for record in sharing(records):
        made, worker_of = begun(record.node_id, sharing(records))
        assert made.run(1 << 40)
        node_of = {worker: node for node, worker in worker_of.items()}
        used: defaultdict[tuple[int, int], int] = defaultdict(int)
        for r in made.routes:
            for source in r.source_domains:
                assert not used[source, r.interested_domain] & r.shares, "masks of a pair are disjoint"
                used[source, r.interested_domain] |= r.shares
                passage = source, r.interested_domain, record.node_id, node_of[r.ingress], node_of[r.egress]
                assert passage not in got, "one row for each way"
                got[passage] = r.shares
    wanted: defaultdict[Passage, int] = defaultdict(int)
    graph = build(records)
    hops = {target: shared_hops(graph, target, is_shared=True) for target in domains(graph)}
    for tree in range(SHARES):
        for passage in passed({target: of_tree(hops[target], 1 << tree) for target in hops}):
            wanted[passage] |= 1 << tree
    assert got == wanted


@given(networks())
def test_without_ties_sharing_changes_no_table(records: list[DroRecord]) -> None:
    for record in records:
        plain, shared = (calculated(record.node_id, kind) for kind in (records, sharing(records)))
        assert set(plain.origins) <= set(shared.origins)
        assert all(route.shares == ALL_SHARES for route in plain.routes)
        if all(route.shares == ALL_SHARES for route in shared.routes):
            assert plain.routes == shared.routes


def test_sharing_is_in_use_when_all_are_ready_and_none_has_a_hotlink() -> None:
    one, two = (DroRecord(DRO_BIT | n, (Neighbour(1, 1, 1), Neighbour(2, 1, 1)), name=f"D{n}") for n in (1, 2))
    ready = sharing([one, two])
    assert hindrances([one, two]) == []
    assert calculated(one.node_id, ready).is_shared
    assert [len(calculated(r.node_id, ready).routes) for r in ready] == [2, 2]
    for other, why in (
        (two, "is not ready for it"),
        (replace(two, sharing=METHOD + 1), f"shares in another way ({METHOD + 1})"),
        (replace(ready[1], hotlinks=(Hotlink(1, 1),)), "has a hotlink index"),
    ):
        assert not calculated(one.node_id, [ready[0], other]).is_shared
        assert hindrances([ready[0], other]) == [(other, why)]


def test_the_figure_of_the_guide_as_a_table() -> None:
    """Domain-1 -3- A -2- Domain-2 -4- B -25- Domain-3."""
    a = DroRecord(DRO_BIT | 1, (Neighbour(1, 3, 3), Neighbour(2, 2, 2)))
    b = DroRecord(DRO_BIT | 2, (Neighbour(2, 4, 4), Neighbour(3, 25, 25)))
    made = calculated(b.node_id, [a, b])
    assert made.routes == (Route((3,), 1, 2, 1), Route((3,), 2, 2, 1), Route((1, 2), 3, 1, 2))
    assert made.origins == (Origin(1, 3 + 2 + 4, 1), Origin(2, 4, 0), Origin(3, 25, 0))


@pytest.mark.parametrize("portals", [(), (Neighbour(1, 1, 1),)])
def test_nothing_passes_a_dro_with_one_portal(portals: tuple[Neighbour, ...]) -> None:
    made = calculated(DRO_BIT | 1, [DroRecord(DRO_BIT | 1, portals)])
    assert (made.routes, made.origins) == ((), ())


def test_a_domain_that_cannot_be_reached_hides_no_route_between_others() -> None:
    here, elsewhere = DRO_BIT | 1, DRO_BIT | 2
    ends = (Neighbour(2, 1, 1), Neighbour(3, 1, 1))
    records = [DroRecord(elsewhere, (Neighbour(1, 1, 1), Neighbour(9, 1, 1))), DroRecord(here, ends)]
    assert calculated(here, records).routes == (Route((3,), 2, 2, 1), Route((2,), 3, 1, 2))


# hotlinks

A, B, C, D = (DRO_BIT | n for n in (1, 2, 3, 4))


def test_dros_with_indexed_portals_in_one_trd_do_not_see_each_other() -> None:
    a = DroRecord(A, (Neighbour(1, 1, 1),), (Hotlink(1, 1),))
    b = DroRecord(B, (Neighbour(1, 1, 1),), (Hotlink(1, 2),))
    c = DroRecord(C, (Neighbour(1, 1, 1), Neighbour(2, 1, 1)), (Hotlink(2, 1),))
    assert visible_to(A, [a, b, c]) == [a, c]
    assert visible_to(B, [a, b, c]) == [b, c]
    assert visible_to(C, [a, b, c]) == [a, b, c]


def test_an_index_belongs_to_one_dro_of_a_trd() -> None:
    a, b = (DroRecord(n, (), (Hotlink(1, 7), Hotlink(2, n & 3))) for n in (A, B))
    assert [(s.domain_id, s.index, s.node_ids) for s in shared_indexes([b, a])] == [(1, 7, (A, B))]


def test_a_chain_begins_with_the_second_full_hop() -> None:
    """1 =A= 10 =B= 2 =C= 20 =D= 3: from 1 to 3 there are two hops, from 10, or to 20, there is one."""
    nodes = (1, A, 10, B, 2, C, 20, D, 3)
    indexed = frozenset({(A, 1), (B, 2), (C, 2), (D, 3)})
    to_3 = dict(reversed([*pairwise(nodes)]))  # nearest first
    assert chained(to_3, 3, indexed) == {1}
    assert chained({n: onward for n, onward in to_3.items() if n not in (20, D)}, 20, indexed) == set()
    assert chained(to_3, 3, indexed - {(C, 2)}) == set()


def test_without_a_chain_a_path_of_plain_dros_passes_a_hotlinked_trd() -> None:
    hotlinked = DroRecord(A, (Neighbour(1, 1, 1), Neighbour(2, 1, 1)), (Hotlink(1, 3),))
    plain = DroRecord(B, (Neighbour(1, 1, 1), Neighbour(9, 1, 1)))
    assert calculated(A, [hotlinked, plain]).routes == (
        Route((2,), 1, 2, 1), Route((1, 9), 2, 1, 2), Route((2,), 9, 2, 1),
    )  # fmt: skip


# large networks


def sparse(dros: int, rng: Random) -> list[DroRecord]:
    """Each DRO in a TRD of its own, with peer links."""
    links: dict[int, dict[int, int]] = {DRO_BIT | n: {n + 1: 1} for n in range(dros)}
    for n in range(1, dros):
        for other in {rng.randrange(n) for _ in range(2)}:
            cost = rng.randint(1, 5)
            links[DRO_BIT | n][DRO_BIT | other] = links[DRO_BIT | other][DRO_BIT | n] = cost
    return [DroRecord(dro, tuple(sorted(Neighbour(n, c, c) for n, c in of.items()))) for dro, of in links.items()]


def searches(
    monkeypatch: pytest.MonkeyPatch, node_id: int, records: list[DroRecord], before: TableCalculation | None = None
) -> tuple[int, TableCalculation]:
    """How many in-trees a table takes."""
    roots = []

    found, search = router.paths.equal_hops, Trees.search

    def counting(graph: Topology, target: int) -> dict[int, list[int]]:
        roots.append(target)
        return found(graph, target)

    class Counting(Trees):
        def search(self, root: int) -> None:
            roots.append(root)
            search(self, root)

    monkeypatch.setattr(router.paths, "equal_hops", counting)
    monkeypatch.setattr(route_table, "Trees", Counting)
    made = calculated(node_id, records, before)
    return len(roots), made


def test_the_work_does_not_grow_with_the_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    star = [DroRecord(A, tuple(Neighbour(n, 1, 1) for n in range(1, 201)))]
    count, made = searches(monkeypatch, A, star)
    assert count == 2, "for all domains of the star, and for the costs from them"
    assert sum(len(r.source_domains) for r in made.routes) == 200 * 199
    chain = [DroRecord(DRO_BIT | n, (Neighbour(n, 1, 1), Neighbour(n + 1, 1, 1))) for n in range(1, 61)]
    count, made = searches(monkeypatch, DRO_BIT | 30, chain)
    assert count == 62
    assert len(made.routes) == 61
    assert sum(len(r.source_domains) for r in made.routes) == 2 * 30 * 31


@given(networks(), st.randoms(use_true_random=False), st.sampled_from([0, METHOD]))
def test_a_table_after_changes_is_that_of_a_new_calculation(
    records: list[DroRecord], rng: Random, sharing: int
) -> None:
    """Costs that change, and portals that come and go, one after the other."""
    records = [replace(record, sharing=sharing) for record in records]
    tables = {record.node_id: calculated(record.node_id, records) for record in records}
    for _ in range(3):
        place = rng.randrange(len(records))
        changed = list(records[place].neighbours)
        if changed and rng.random() < 0.3:
            changed.pop(rng.randrange(len(changed)))
        elif changed:
            nth = rng.randrange(len(changed))
            changed[nth] = Neighbour(changed[nth].node_id, rng.randrange(1, 6), rng.randrange(1, 6))
        else:
            changed.append(Neighbour(1, 1, 1))
        records[place] = replace(records[place], neighbours=tuple(changed))
        for record in records:
            whole = calculated(record.node_id, records)
            tables[record.node_id] = made = calculated(record.node_id, records, tables[record.node_id])
            assert (made.routes, made.origins) == (whole.routes, whole.origins)


def test_a_changed_cost_costs_the_trees_that_it_is_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_table, "COMPILED_EDGES", 0)
    chain = [DroRecord(DRO_BIT | n, (Neighbour(n, 1, 1), Neighbour(n + 1, 1, 1))) for n in range(1, 61)]
    _, before = searches(monkeypatch, DRO_BIT | 30, chain)
    chain[40] = replace(chain[40], neighbours=(Neighbour(41, 2, 1), Neighbour(42, 1, 1)))
    count, made = searches(monkeypatch, DRO_BIT | 30, chain, before)
    assert count == 1 + 20, "the origins, and towards all domains that lie behind"
    assert made.routes == before.routes, "nothing else is as near"


def test_a_network_of_many_dros_is_as_small_ones_are() -> None:
    records = sparse(60, Random(7))
    every = expected(build(records))
    for record in records[::7]:
        assert passages(record.node_id, records) == {p for p in every if p[2] == record.node_id}
