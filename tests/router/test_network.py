"""Networks of route managers: after they have settled, all have the same view, and tables lead along the best paths."""

from __future__ import annotations

from typing import Any

import pytest

from dro.shares import METHOD
from router.hotlinks import SharedIndex
from router.own_portals import DUPLICATE, LEAVING_COST, LOOP, LinkRefused
from router.route_info import write_route
from router.route_info_exchange import Dropped, ExchangeTiming, InfoDropped
from router.route_recalculation import ChainsLeftOut, Change, IndexShared, SendTable, TopologyChanged
from router.topology import DroRecord, Neighbour
from tests.router.network import DRO_BIT, EXAMPLES, SETTLED_S, Network, example, topology

NAMES = sorted(folder.name for folder in EXAMPLES.iterdir() if folder.is_dir())
SUPPORTED = [name for name in NAMES if topology(name)["supported"]]
HOTLINKED = [name for name in SUPPORTED if "hotlinks" in topology(name)]
PLAIN = [name for name in SUPPORTED if name not in HOTLINKED]


def changes(network: Network, dro: str) -> list[Change]:
    return [e.what for e in network.take(dro) if isinstance(e, TopologyChanged)]


def calculations(network: Network, dro: str) -> int:
    return sum(isinstance(e, SendTable) and e.is_new for e in network.take(dro))


def both_directions(name: str) -> list[tuple[int, int, dict[str, Any]]]:
    paths = topology(name)["paths"]
    return [(p["from"], p["to"], p) for p in paths] + [(p["to"], p["from"], p) for p in paths]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", PLAIN)
def test_the_tables_of_all_dros_lead_along_the_paths_of_the_examples(name: str, seed: int) -> None:
    network = example(name, seed)
    network.run(SETTLED_S)
    assert len(network.signatures()) == 1
    for source, target, expected in both_directions(name):
        (way,) = network.ways(source, target)
        routes = [tuple(route) for route in expected["routes"]]
        assert way in routes or way[::-1] in routes
        assert network.cost(way) == expected["cost"]


@pytest.mark.parametrize("name", HOTLINKED)
def test_hotlinked_trds_are_joined_by_both_ways_at_once(name: str) -> None:
    network = example(name)
    network.run(SETTLED_S)
    assert len(network.signatures()) == 1
    for source, target, expected in both_directions(name):
        routes = {tuple(route) for route in expected["routes"]}
        routes |= {way[::-1] for way in routes}
        ways = network.ways(source, target)
        if {source, target} <= {1, 2, 3}:
            assert len(ways) == 2
            assert set(ways) <= routes
        assert len(set(ways)) == len(ways)


def test_a_spur_of_a_hotlinked_trd_gets_both_copies_into_that_trd() -> None:
    network = example("hotlinks-mixed")
    network.run(SETTLED_S)
    assert len(network.ways(200, 3)) == 2
    assert {way[-1] for way in network.ways(1, 200)} == {"200/200-TRD200"}


def test_hotlinks_are_not_chained() -> None:
    network = example("unsupported-hotlink-chain")
    network.run(SETTLED_S)
    assert len(network.ways(1, 2)) == 2
    assert len(network.ways(2, 4)) == 2
    assert network.ways(1, 4) == network.ways(4, 1) == []
    effects = network.take("1A")
    chains = {pair for e in effects if isinstance(e, ChainsLeftOut) for pair in e.pairs}
    assert (1, 4) in chains, "as it is seen from where the path begins"
    shared = {e.shared for e in effects if isinstance(e, IndexShared)}
    node = {name: dro.node_id for name, dro in network.dros.items()}
    users = [tuple(sorted((node[a], node[b]))) for a, b in (("2A", "2C"), ("2B", "2D"))]
    assert shared == {SharedIndex(2, index, nodes) for index, nodes in enumerate(users, 1)}


def test_a_second_link_between_two_dros_is_refused_until_the_first_one_goes() -> None:
    network = example("unsupported-two-peer-links")
    network.links.clear()
    network.run(SETTLED_S)
    a, b = network.dros["G1"], network.dros["G2"]
    for dro, other in ((a, b), (b, a)):
        told = [e for e in network.take(dro.name) if isinstance(e, LinkRefused)]
        assert told == [LinkRefused(3, other.node_id, DUPLICATE)]
    assert network.ways(1, 2) == [("G1/G1-TRD1", "G1/G1-G2", "G2/G2-G1", "G2/G2-TRD2")]
    first = network.portals["G1/G1-G2"][1].link
    assert first is not None
    network.cut(first)
    network.run(SETTLED_S)
    assert network.ways(1, 2) == [("G1/G1-TRD1", "G1/G1-G2-2", "G2/G2-G1-2", "G2/G2-TRD2")]
    network.mend(first)
    network.run(SETTLED_S)
    assert network.ways(1, 2) == [("G1/G1-TRD1", "G1/G1-G2-2", "G2/G2-G1-2", "G2/G2-TRD2")]


def test_a_dro_that_leaves_is_gone_round_where_there_is_another_way() -> None:
    network = Network()
    for name in "ABC":
        network.add_dro(name)
        network.add_endpoint(name, f"{name}-E", ord(name))
    for one, other, cost in ("A", "B", 1), ("B", "C", 1), ("C", "A", 50):
        network.add_link((one, f"{one}-{other}", cost), (other, f"{other}-{one}", cost))
    network.run(SETTLED_S)
    b = network.dros["B"]
    assert b.core.is_agreed
    (before,) = network.ways(ord("A"), ord("C"))
    assert "B/B-A" in before
    b.core.leave(network.now_ns)
    assert not b.core.is_agreed
    b.core.leave(network.now_ns)  # once is enough
    network.run(SETTLED_S)
    assert b.core.is_agreed
    (after,) = network.ways(ord("A"), ord("C"))
    assert after == ("A/A-E", "A/A-C", "C/C-A", "C/C-E")
    assert len(network.ways(ord("A"), ord("B"))) == 1, "for want of another way"
    assert {portal.cost for portal in b.core.routes.portals.accepted.values()} == {1 + LEAVING_COST}


def test_a_link_that_leads_back_is_refused() -> None:
    network = Network()
    network.add_dro("A")
    network.add_endpoint("A", "E", 1)
    network.add_link(("A", "P", 1), ("A", "Q", 1))
    network.run(SETTLED_S)
    a = network.dros["A"]
    refused = [e for e in network.take("A") if isinstance(e, LinkRefused)]
    assert sorted(refused, key=lambda e: e.worker) == [LinkRefused(w, a.node_id, LOOP) for w in (2, 3)]
    assert a.neighbours() == {1}


def test_costs_and_hops_to_each_dro_are_told_to_its_portals() -> None:
    network = example("cost-choice")
    network.run(SETTLED_S)
    origins = {
        name: {o.domain_id: (o.cost, o.hop_count) for o in dro.core.routes.table.origins}
        for name, dro in network.dros.items()
        if dro.core.routes.table is not None
    }
    assert origins["B"] == {1: (1, 0), 2: (6, 1)}
    assert origins["D"] == {1: (5, 1), 2: (2, 0)}
    assert origins["A"] == origins["C"] == {}, "nothing passes them"


def test_a_partition_and_its_end() -> None:
    """The two ends of the dumbbell hear of each other through TRD 3 alone."""
    network = example("dumbbell")
    network.run(SETTLED_S)
    whole = network.signatures()
    network.trds[3].is_up = False
    network.run(SETTLED_S + 5)
    assert len(network.signatures()) == 2
    assert network.ways(1, 4) == network.ways(4, 1) == []
    assert network.ways(1, 3)
    assert network.ways(5, 8)
    assert {Change.DRO_TIMED_OUT} <= set(changes(network, "G1"))
    network.trds[3].is_up = True
    network.run(SETTLED_S)
    assert network.signatures() == whole, "no link has changed"
    for source, target, expected in both_directions("dumbbell"):
        (way,) = network.ways(source, target)
        assert network.cost(way) == expected["cost"]
    assert changes(network, "G1") == [Change.DRO_DISCOVERED] * 5


def test_traffic_moves_when_a_dro_dies_and_returns_when_it_does() -> None:
    network = example("parallel-links")
    network.run(SETTLED_S)
    (best,) = network.ways(1, 2)
    name = best[0].partition("/")[0]
    network.take(other := next(n for n in network.dros if n != name and network.portals[best[0]][0].name != n))
    network.kill(name)
    network.run(SETTLED_S)
    (instead,) = network.ways(1, 2)
    assert name not in {step.partition("/")[0] for step in instead}
    assert network.cost(instead) > network.cost(best)
    assert len(network.signatures()) == 1
    told = changes(network, other)
    assert told[-1] is Change.DRO_TIMED_OUT
    network.start(name)
    network.run(SETTLED_S)
    assert network.ways(1, 2) == [best]
    assert Change.DRO_DISCOVERED in changes(network, other)


def test_a_dro_that_is_back_at_once_under_another_node_id_costs_one_calculation() -> None:
    network = example("star-central-trd")
    network.run(SETTLED_S)
    for name in network.dros:
        network.take(name)
    network.kill("G2")
    network.run(0.5)
    network.start("G2")
    old = [d for d in network.dros["G1"].core.exchange.others.values() if d.record.name == "G2"]
    network.run(3)
    both = [d for d in network.dros["G1"].core.exchange.others.values() if d.record.name == "G2"]
    assert (len(old), len(both)) == (1, 2)
    network.run(SETTLED_S)
    assert len(network.signatures()) == 1
    told = network.take("G1")
    assert [e.what for e in told if isinstance(e, TopologyChanged)] == [Change.DRO_DISCOVERED, Change.DRO_TIMED_OUT]
    assert sum(isinstance(e, SendTable) and e.is_new for e in told) == 1
    for source, target, expected in both_directions("star-central-trd"):
        assert [network.cost(way) for way in network.ways(source, target)] == [expected["cost"]]


@pytest.mark.parametrize("name", ["loop", "star-central-trd", "mesh"])
def test_a_restart_of_the_route_manager_or_of_an_endpoint_changes_no_route(name: str) -> None:
    network = example(name)
    network.run(SETTLED_S)
    tables = {n: dro.core.routes.table for n, dro in network.dros.items()}
    for each in network.dros:
        network.take(each)
    first, second, *_ = network.dros
    version = network.dros[first].core.routes.own_version
    network.restart_route_manager(first)
    network.run(1.5)
    assert {o.head.version for o in _seen(network, first)} == {network.dros[first].core.routes.own_version}
    assert network.dros[first].core.routes.own_version > version
    endpoint = next(p.name for p in network.dros[second].portals.values() if p.domain_id)
    network.restart_portal(endpoint)
    network.run(SETTLED_S)
    assert len(network.signatures()) == 1
    for each in network.dros:
        assert calculations(network, each) == (each == first)
        now = network.dros[each].core.routes.table
        before = tables[each]
        assert now is not None
        assert before is not None
        assert now.routes == before.routes
        assert (now.version > before.version) is (each == first)


def _seen(network: Network, name: str) -> list[Any]:
    """What others know of that DRO."""
    node = network.dros[name].node_id
    return [dro.core.exchange.others[node] for dro in network.dros.values() if dro.name != name]


def test_a_new_cost_moves_traffic_everywhere_at_the_same_time() -> None:
    network = example("cost-choice")
    network.run(SETTLED_S)
    (way,) = network.ways(1, 2)
    assert network.cost(way) == 7
    network.set_cost("B/B-D", 20)
    network.run(SETTLED_S)
    (way,) = network.ways(1, 2)
    assert network.cost(way) == 11
    assert len(network.signatures()) == 1


def test_a_fifth_of_the_messages_may_be_lost() -> None:
    network = example("palm-tree", loss=0.2)
    network.run(60)
    assert len(network.signatures()) == 1
    for source, target, expected in both_directions("palm-tree"):
        assert [network.cost(way) for way in network.ways(source, target)] == [expected["cost"]]


def test_no_message_goes_round_for_ever() -> None:
    """In a mesh each DRO passes each message on once: twice the links, less the one that it came by."""
    network = example("mesh-six")
    network.run(SETTLED_S)
    before = network.messages
    network.run(10)
    links, dros = len(network.links), len(network.dros)
    in_trds = sum(len(trd.portals) * (len(trd.portals) - 1) for trd in network.trds.values())
    assert network.messages - before <= 10 * dros * (2 * links + in_trds)


def test_the_hop_limit_ends_what_is_known() -> None:
    network = Network(exchange=ExchangeTiming(max_hops=2))
    for n in range(5):
        network.add_dro(f"G{n}")
        network.add_endpoint(f"G{n}", "E", n + 1)
        if n:
            network.add_link((f"G{n - 1}", f"P{n}", 1), (f"G{n}", f"Q{n}", 1))
    network.run(SETTLED_S)
    known = {other.record.name for other in network.dros["G0"].core.exchange.others.values()}
    assert known == {"G1", "G2"}
    network.run(15)
    assert len(network.signatures()) > 1


def test_a_liar_changes_nothing() -> None:
    network = example("loop")
    network.run(SETTLED_S)
    tables = {n: dro.core.routes.table for n, dro in network.dros.items()}
    g1 = network.dros["G1"]
    own = g1.core.routes.own()

    def route(node_id: int, *neighbours: Neighbour) -> bytes:
        record = DroRecord(node_id, neighbours, version=own.version + 5, name="liar")
        return write_route(record, sqn=9, ttl=9, topology=0, configuration=0, gateway_version=0)

    stranger = DRO_BIT | 77
    lies = {
        route(g1.node_id, Neighbour(2, 1, 1)): Dropped.OWN_NODE_ID,
        route(stranger, Neighbour(2, 0, 1)): Dropped.REFUSED,
        route(stranger, Neighbour(2, 1, 1 << 31)): Dropped.REFUSED,
        route(stranger, Neighbour(0, 1, 1)): Dropped.REFUSED,
        route(stranger, Neighbour(stranger, 1, 1)): Dropped.REFUSED,
        route(stranger, Neighbour(2, 1, 1), Neighbour(2, 2, 2)): Dropped.REFUSED,
        route(7): Dropped.REFUSED,
        b"": Dropped.MALFORMED,
        route(stranger)[:-1]: Dropped.MALFORMED,
    }
    network.take("G1")
    for lie in lies:
        network.deliver("G1/G1-TRD1", lie)
        network.run(0.01)
    dropped = [e.why for e in network.take("G1") if isinstance(e, InfoDropped) and e.worker == 1]
    assert dropped == [*lies.values()]
    network.run(SETTLED_S)
    assert {n: dro.core.routes.table for n, dro in network.dros.items()} == tables
    assert len(network.signatures()) == 1


def test_forty_dros_agree() -> None:
    network = Network(seed=5)
    for n in range(40):
        network.add_dro(f"G{n}")
        network.add_endpoint(f"G{n}", "E", 1 + n % 30)
        if n:
            network.add_link((f"G{n * 7 % n}", f"P{n}", 1 + n % 3), (f"G{n}", "Q", 1))
    network.run(SETTLED_S)
    assert len(network.signatures()) == 1
    for target in range(2, 30, 5):
        assert len(network.ways(1, target)) == 1


def test_equally_good_ways_are_shared_as_long_as_all_are_ready() -> None:
    """Two DROs between two TRDs, and one behind; the readiness of that one is switched off and on again."""
    network = Network(sharing=METHOD)
    for name, trds in (("A", (1, 2)), ("B", (1, 2)), ("C", (2, 3))):
        network.add_dro(name)
        for trd in trds:
            network.add_endpoint(name, f"P{trd}", trd)
    cores = [dro.core for dro in network.dros.values()]
    network.run(SETTLED_S)
    shared = network.ways(1, 3)
    assert len(shared) == 2
    assert all(core.routes.is_shared for core in cores)
    network.take("A")
    cores[2].set_sharing(0, network.now_ns)
    network.run(SETTLED_S)
    assert len(network.signatures()) == 1
    (way,) = network.ways(1, 3)
    assert way in shared
    assert not any(core.routes.is_shared for core in cores)
    cores[2].set_sharing(METHOD, network.now_ns)
    cores[2].set_sharing(METHOD, network.now_ns)
    network.run(SETTLED_S)
    assert network.ways(1, 3) == shared
    assert changes(network, "A").count(Change.NODE_UPDATED) == 2
