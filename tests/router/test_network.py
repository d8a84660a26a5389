"""Networks of route managers: after they have settled, all have the same view, and tables lead along the best paths."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from dro.clock import ms, s
from dro.shares import METHOD
from router.hotlinks import SharedIndex
from router.own_portals import DEPARTURE_COST, DUPLICATE, LinkRefused
from router.route_info import write_route
from router.route_info_exchange import ExchangeTiming, InfoDropped, InfoDropReason
from router.route_recalculation import ChainsLeftOut, IndexShared, TopologyChange, TopologyChanged
from router.topology import DroRecord, Neighbour
from supervisor.tools.simulate.network import SimNetwork, SimRouteManager
from supervisor.tools.simulate.plan import NetworkPlan, dro_of, endpoint
from supervisor.tools.simulate.trd import Trd
from tests.router.networks import (
    DRO_BIT,
    EXAMPLES,
    SETTLED_NS,
    cost,
    deliver,
    example,
    planned,
    signatures,
    started,
    take,
    ways,
)


def topology(name: str) -> dict[str, Any]:
    """That of one of the examples."""
    loaded: dict[str, Any] = json.loads((EXAMPLES / name / "topology.json").read_text())
    return loaded


def changes(network: SimNetwork, dro: str) -> list[TopologyChange]:
    return [e.what for e in take(network, dro) if isinstance(e, TopologyChanged)]


def both_directions(name: str) -> list[tuple[int, int, dict[str, Any]]]:
    paths = topology(name)["paths"]
    return [(p["from"], p["to"], p) for p in paths] + [(p["to"], p["from"], p) for p in paths]


@pytest.mark.parametrize("name", ["hotlinks", "hotlinks-mixed"])
def test_hotlinked_trds_are_joined_by_both_ways_at_once(name: str) -> None:
    network = example(name)
    assert len(signatures(network)) == 1
    for source, target, expected in both_directions(name):
        routes = {tuple(route) for route in expected["routes"]}
        routes |= {way[::-1] for way in routes}
        found = ways(network, source, target)
        if {source, target} <= {1, 2, 3}:
            assert len(found) == 2
            assert set(found) <= routes
        assert len(set(found)) == len(found)


def test_a_spur_of_a_hotlinked_trd_gets_both_copies_into_that_trd() -> None:
    network = example("hotlinks-mixed")
    assert len(ways(network, 200, 3)) == 2
    assert {way[-1] for way in ways(network, 1, 200)} == {"200/200-TRD200"}


def test_hotlinks_are_not_chained() -> None:
    network = example("unsupported-hotlink-chain")
    assert len(ways(network, 1, 2)) == 2
    assert len(ways(network, 2, 4)) == 2
    assert ways(network, 1, 4) == ways(network, 4, 1) == []
    effects = take(network, "1A")
    chains = {pair for e in effects if isinstance(e, ChainsLeftOut) for pair in e.pairs}
    assert (1, 4) in chains, "as it is seen from where the path begins"
    shared = {e.shared for e in effects if isinstance(e, IndexShared)}
    node = {name: dro.node_id for name, dro in network.dros.items()}
    users = [tuple(sorted((node[a], node[b]))) for a, b in (("2A", "2C"), ("2B", "2D"))]
    assert shared == {SharedIndex(2, index, nodes) for index, nodes in enumerate(users, 1)}


def test_a_second_link_between_two_dros_is_refused_until_the_first_one_goes() -> None:
    network = example("unsupported-two-peer-links")
    a, b = network.dros["G1"], network.dros["G2"]
    for dro, other in ((a, b), (b, a)):
        told = [e for e in take(network, dro.name) if isinstance(e, LinkRefused)]
        assert told == [LinkRefused(3, other.node_id, DUPLICATE)]
    assert ways(network, 1, 2) == [("G1/G1-TRD1", "G1/G1-G2", "G2/G2-G1", "G2/G2-TRD2")]
    first = network.wire("G1/G1-G2")
    first.cut(is_silent=False)
    network.run(SETTLED_NS)
    assert ways(network, 1, 2) == [("G1/G1-TRD1", "G1/G1-G2-2", "G2/G2-G1-2", "G2/G2-TRD2")]
    first.mend()
    network.run(SETTLED_NS)
    assert ways(network, 1, 2) == [("G1/G1-TRD1", "G1/G1-G2-2", "G2/G2-G1-2", "G2/G2-TRD2")]


def test_a_dro_that_leaves_is_gone_round_where_there_is_another_way() -> None:
    trds = {name: [endpoint("E", nth)] for nth, name in enumerate("ABC", 1)}
    network = started(planned(trds, ("A", "B", 1), ("B", "C", 1), ("C", "A", 50)))
    core = network.dros["B"].routes.core
    assert core.is_agreed
    (before,) = ways(network, 1, 3)
    assert "B/from-A" in before
    core.leave(network.clock.now_ns)
    assert not core.is_agreed
    core.leave(network.clock.now_ns)  # once is enough
    network.dros["B"].routes.act()
    network.run(SETTLED_NS)
    assert core.is_agreed
    assert ways(network, 1, 3) == [("A/E", "A/from-C", "C/to-A", "C/E")]
    assert len(ways(network, 1, 2)) == 1, "for want of another way"
    assert {portal.cost for portal in core.routes.portals.accepted.values()} == {1 + DEPARTURE_COST}


def test_costs_and_hops_to_each_dro_are_told_to_its_portals() -> None:
    network = example("cost-choice")
    origins = {
        name: {o.domain_id: (o.cost, o.hop_count) for o in dro.routes.core.routes.table.origins}
        for name, dro in network.dros.items()
        if dro.routes.core.routes.table is not None
    }
    assert origins["B"] == {1: (1, 0), 2: (6, 1)}
    assert origins["D"] == {1: (5, 1), 2: (2, 0)}
    assert origins["A"] == origins["C"] == {}, "nothing passes them"


def test_a_partition_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two ends of the dumbbell hear of each other through TRD 3 alone."""
    network = example("dumbbell")
    whole, send = signatures(network), Trd.send_route_info
    with monkeypatch.context() as parted:
        parted.setattr(Trd, "send_route_info", lambda trd, *of: None if trd.domain_id == 3 else send(trd, *of))
        network.run(SETTLED_NS + s(5))
    assert len(signatures(network)) == 2
    assert ways(network, 1, 4) == ways(network, 4, 1) == []
    assert ways(network, 1, 3)
    assert ways(network, 5, 8)
    assert {TopologyChange.DRO_TIMED_OUT} <= set(changes(network, "G1"))
    network.run(SETTLED_NS)
    assert signatures(network) == whole, "no link has changed"
    for source, target, expected in both_directions("dumbbell"):
        (way,) = ways(network, source, target)
        assert cost(network, way) == expected["cost"]
    assert changes(network, "G1") == [TopologyChange.DRO_DISCOVERED] * 5


def test_traffic_moves_when_a_dro_dies_and_returns_when_it_does() -> None:
    network = example("parallel-links")
    (best,) = ways(network, 1, 2)
    name = best[0].partition("/")[0]
    take(network, other := next(n for n in network.dros if n != name))
    network.dro(name).kill()
    network.run(SETTLED_NS)
    (instead,) = ways(network, 1, 2)
    assert name not in {step.partition("/")[0] for step in instead}
    assert cost(network, instead) > cost(network, best)
    assert len(signatures(network)) == 1
    told = changes(network, other)
    assert told[-1] is TopologyChange.DRO_TIMED_OUT
    network.start([name])
    network.run(SETTLED_NS)
    assert ways(network, 1, 2) == [best]
    assert TopologyChange.DRO_DISCOVERED in changes(network, other)


def test_a_dro_that_is_back_at_once_under_another_node_id_costs_one_calculation() -> None:
    network = example("star-central-trd")
    take(network, "G1")
    calculation = network.dros["G1"].routes.core.routes
    assert calculation.table is not None
    before = calculation.table.version
    network.dro("G2").kill()
    network.run(ms(500))
    network.start(["G2"])
    old = [d for d in network.dros["G1"].routes.core.exchange.others.values() if d.record.name == "G2"]
    network.run(s(3))
    both = [d for d in network.dros["G1"].routes.core.exchange.others.values() if d.record.name == "G2"]
    assert (len(old), len(both)) == (1, 2)
    network.run(SETTLED_NS)
    assert len(signatures(network)) == 1
    told = take(network, "G1")
    assert [e.what for e in told if isinstance(e, TopologyChanged)] == [
        TopologyChange.DRO_DISCOVERED,
        TopologyChange.DRO_TIMED_OUT,
    ]
    assert calculation.table.version == before + 1, "a calculation"
    for source, target, expected in both_directions("star-central-trd"):
        assert [cost(network, way) for way in ways(network, source, target)] == [expected["cost"]]


@pytest.mark.parametrize("name", ["loop", "star-central-trd", "mesh"])
def test_a_restart_of_the_route_manager_or_of_an_endpoint_changes_no_route(name: str) -> None:
    network = example(name)
    tables = {n: dro.routes.core.routes.table for n, dro in network.dros.items()}
    first, second, *_ = network.dros.values()
    before = first.routes.core.routes.own_version
    first.restart_routes()
    network.run(ms(1500))
    assert {o.head.version for o in _seen(network, first.name)} == {first.routes.core.routes.own_version}
    assert first.routes.core.routes.own_version > before
    second.restart_portal(second.config.portals[0].name)
    network.run(SETTLED_NS)
    assert len(signatures(network)) == 1
    for dro in network.dros.values():
        now, then = dro.routes.core.routes.table, tables[dro.name]
        assert now is not None
        assert then is not None
        assert now.routes == then.routes
        assert now.version == ((2 << 32) + 1 if dro is first else then.version)


def _seen(network: SimNetwork, name: str) -> list[Any]:
    """What others know of that DRO."""
    node = network.dros[name].node_id
    return [dro.routes.core.exchange.others[node] for dro in network.dros.values() if dro.name != name]


def test_a_new_cost_moves_traffic_everywhere_at_the_same_time() -> None:
    network = example("cost-choice")
    (way,) = ways(network, 1, 2)
    assert cost(network, way) == 7
    network.dro("B").set_cost("B-D", 20)
    network.run(SETTLED_NS)
    (way,) = ways(network, 1, 2)
    assert cost(network, way) == 11
    assert len(signatures(network)) == 1


def test_a_fifth_of_the_messages_may_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    send, random = Trd.send_route_info, Random(1)
    monkeypatch.setattr(Trd, "send_route_info", lambda *of: send(*of) if random.random() >= 0.2 else None)
    network = example("palm-tree")
    network.run(s(48))
    assert len(signatures(network)) == 1
    for source, target, expected in both_directions("palm-tree"):
        assert [cost(network, way) for way in ways(network, source, target)] == [expected["cost"]]


def test_no_message_goes_round_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a mesh each DRO passes each message on once: twice the links, less the one that it came by."""
    network, heard = example("mesh-six"), Counter[SimRouteManager]()
    take_info = SimRouteManager.on_info

    monkeypatch.setattr(
        SimRouteManager, "on_info", lambda routes, *of: (heard.update([routes]), take_info(routes, *of))
    )
    network.run(s(10))
    links, dros = len(network.plan.links), len(network.dros)
    in_trds = sum(len(trd.members) * (len(trd.members) - 1) for trd in network.trds.values())
    assert 10 * dros * (dros - 1) <= heard.total() <= 10 * dros * (2 * links + in_trds)


def test_the_hop_limit_ends_what_is_known() -> None:
    names = [f"G{n}" for n in range(5)]
    made = planned({name: [endpoint("E", n)] for n, name in enumerate(names, 1)}, *((*p, 1) for p in pairwise(names)))
    network = SimNetwork(made)
    network.start()
    for dro in network.up():
        dro.routes.core.exchange.set_timing(ExchangeTiming(max_hops=2))
    network.run(SETTLED_NS)
    known = {other.record.name for other in network.dros["G0"].routes.core.exchange.others.values()}
    assert known == {"G1", "G2"}
    network.run(s(15))
    assert len(signatures(network)) > 1


def test_a_liar_changes_nothing() -> None:
    network = example("loop")
    tables = {n: dro.routes.core.routes.table for n, dro in network.dros.items()}
    g1 = network.dros["G1"]
    own = g1.routes.core.routes.own()

    def route(node_id: int, *neighbours: Neighbour) -> bytes:
        record = DroRecord(node_id, neighbours, version=own.version + 5, name="liar")
        return write_route(record, sqn=9, ttl=9, topology=0, configuration=0, gateway_version=0)

    stranger = DRO_BIT | 77
    lies = {
        route(g1.node_id, Neighbour(2, 1, 1)): InfoDropReason.OWN_NODE_ID,
        route(stranger, Neighbour(2, 0, 1)): InfoDropReason.REFUSED,
        route(stranger, Neighbour(2, 1, 1 << 31)): InfoDropReason.REFUSED,
        route(stranger, Neighbour(0, 1, 1)): InfoDropReason.REFUSED,
        route(stranger, Neighbour(stranger, 1, 1)): InfoDropReason.REFUSED,
        route(stranger, Neighbour(2, 1, 1), Neighbour(2, 2, 2)): InfoDropReason.REFUSED,
        route(7): InfoDropReason.REFUSED,
        b"": InfoDropReason.MALFORMED,
        route(stranger)[:-1]: InfoDropReason.MALFORMED,
    }
    take(network, "G1")
    for lie in lies:
        deliver(network, "G1/G1-TRD1", lie)
        network.run(ms(10))
    dropped = [e.why for e in take(network, "G1") if isinstance(e, InfoDropped) and e.worker == 1]
    assert dropped == [*lies.values()]
    network.run(SETTLED_NS)
    assert {n: dro.routes.core.routes.table for n, dro in network.dros.items()} == tables
    assert len(signatures(network)) == 1


def test_thirty_dros_agree() -> None:
    trds = {f"G{n}": [endpoint("E", 1 + n % 24)] for n in range(30)}
    network = started(planned(trds, *((f"G{n * 7 % n}", f"G{n}", 1 + n % 3) for n in range(1, 30))), seed=5)
    assert len(signatures(network)) == 1
    for target in range(2, 24, 4):
        assert len(ways(network, 1, target)) == 1


def test_equally_good_ways_are_shared_as_long_as_all_are_ready() -> None:
    """Two DROs between two TRDs, and one behind; the readiness of that one is switched off and on again."""
    trds = {"A": (1, 2), "B": (1, 2), "C": (2, 3)}
    portals = {name: [endpoint(f"P{trd}", trd) for trd in of] for name, of in trds.items()}
    network = started(NetworkPlan({name: dro_of(name, of, [], shares=True) for name, of in portals.items()}, ()))
    cores = [dro.routes.core for dro in network.dros.values()]
    shared = ways(network, 1, 3)
    assert len(shared) == 2
    assert all(core.routes.is_shared for core in cores)
    take(network, "A")
    cores[2].set_sharing(0, network.clock.now_ns)
    network.dros["C"].routes.act()
    network.run(SETTLED_NS)
    assert len(signatures(network)) == 1
    (way,) = ways(network, 1, 3)
    assert way in shared
    assert not any(core.routes.is_shared for core in cores)
    for _ in range(2):
        cores[2].set_sharing(METHOD, network.clock.now_ns)
        network.dros["C"].routes.act()
    network.run(SETTLED_NS)
    assert ways(network, 1, 3) == shared
    assert changes(network, "A").count(TopologyChange.NODE_UPDATED) == 2
