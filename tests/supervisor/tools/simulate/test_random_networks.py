"""Random networks with random faults: what must hold in a network of DROs holds in each of them once it has settled.

`DRO_CASES` is how many are tried (`make long`: 5,000).
"""

from __future__ import annotations

import os
from collections.abc import Container
from dataclasses import replace
from itertools import combinations, pairwise, product

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st

from dro.clock import s
from dro.config.dro_xml.model import DroConfig, EndpointConfig, PeerConfig
from supervisor.tools.simulate.network import SimNetwork
from supervisor.tools.simulate.plan import NetworkPlan, PlannedLink, PortalId, dro_of, endpoint, peer
from supervisor.tools.simulate.scenario import Scenario, interest_in_all
from supervisor.tools.simulate.script import ScriptedFault
from tests.rigs.effort import IS_LONG

CASES = int(os.environ.get("DRO_CASES", "5000" if IS_LONG else "4"))
DROS_MAX = 12
APART_S = 50
"""Between faults: a link that is silent for 15 s, connected anew after at most 22 s, and a calculation."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(60 + 10 * CASES)]
COSTS = st.integers(1, 3)  # few, so that there are ties


class Builder:
    def __init__(self) -> None:
        self.endpoints: dict[str, list[EndpointConfig]] = {}
        self.peers: dict[str, list[PeerConfig]] = {}
        self.links: list[PlannedLink] = []

    def dro(self, name: str) -> str:
        self.endpoints[name], self.peers[name] = [], []
        return name

    def join(self, dro: str, domain_id: int, cost: int, index: int = 0) -> None:
        self.endpoints[dro].append(endpoint(f"T{domain_id}", domain_id, cost, index))

    def link(self, one: str, other: str, costs: tuple[int, int]) -> None:
        self.peers[one].append(peer(other, costs[0], is_initiator=True))
        self.peers[other].append(peer(one, costs[1], is_initiator=False))
        self.links.append(PlannedLink(PortalId(one, other), PortalId(other, one)))

    def plan(self, sharing: Container[str] = ()) -> NetworkPlan:
        """`sharing`: the DROs with equal-cost sharing."""
        made = {n: dro_of(n, self.endpoints[n], self.peers[n], shares=n in sharing) for n in self.endpoints}
        return NetworkPlan({name: slow(config) for name, config in made.items()}, tuple(self.links))


def slow(config: DroConfig) -> DroConfig:
    """Route information every 4 s instead of every second: it is most of the work of a network without a fault."""
    info = replace(config.daemon.route_info, propagation_interval_ms=4000, timeout_ms=16000)
    return replace(config, daemon=replace(config.daemon, route_info=info))


@st.composite
def meshes(draw: st.DrawFn) -> NetworkPlan:
    """DROs with TRDs of their own and shared ones, and links."""
    made = Builder()
    names = [made.dro(f"D{n}") for n in range(draw(st.integers(2, DROS_MAX)))]
    trds = range(1, draw(st.integers(2, 6)) + 1)
    for nth, name in enumerate(names):
        first = trds[nth % len(trds)]
        others = draw(st.sets(st.sampled_from(trds), max_size=2)) - {first}
        for domain_id in [first, *sorted(others)] if nth < len(trds) else sorted(others):
            made.join(name, domain_id, draw(COSTS))
    pairs = list(combinations(names, 2))
    chosen = set(pairwise(names)) if draw(st.booleans()) else set()
    chosen |= draw(st.sets(st.sampled_from(pairs), max_size=2 * len(names)))
    for one, other in sorted(chosen):
        made.link(one, other, (draw(COSTS), draw(COSTS)))
    for name in names:
        if not made.endpoints[name] and not made.peers[name]:
            made.join(name, trds[0], 1)
    return made.plan(draw(sharing(names)))


def sharing(names: list[str]) -> st.SearchStrategy[set[str]]:
    """The DROs that are ready for it: all, some, so that it is not in use, or none."""
    return st.one_of(st.just(set(names)), st.sets(st.sampled_from(names)), st.just(set[str]()))


@st.composite
def layered(draw: st.DrawFn) -> NetworkPlan:
    """TRDs at the outer layers, and in each layer between them DROs that are alike, each joined to all of the next."""
    made = Builder()
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    layers = [[made.dro(f"L{layer}{n}") for n in range(size)] for layer, size in enumerate(sizes)]
    for outer, first in ((layers[0], 1), (layers[-1], 51)):
        for domain_id in range(first, first + draw(st.integers(1, 3))):
            for name in outer:
                if draw(st.integers(0, 3)):
                    made.join(name, domain_id, 1)
    for nth, (near, far) in enumerate(pairwise(layers)):
        if draw(st.booleans()):
            for name in (*near, *far):
                made.join(name, 90 + nth, 1)
        else:
            for one, other in product(near, far):
                made.link(one, other, (draw(st.sampled_from((1, 1, 1, 2))), 1))
    for name in made.endpoints:
        if not made.endpoints[name] and not made.peers[name]:
            made.join(name, 1, 1)
    return made.plan(draw(sharing(list(made.endpoints))))


@st.composite
def hotlinked(draw: st.DrawFn) -> NetworkPlan:
    """TRDs that are joined by two planes, and DROs behind some of them."""
    made = Builder()
    for domain_id in range(1, draw(st.integers(2, 3)) + 1):
        for plane in (1, 2):
            name = made.dro(f"H{domain_id}{plane}")
            made.join(name, domain_id, draw(COSTS), index=plane)
            made.join(name, 90 + plane, draw(COSTS))
        if draw(st.booleans()):
            name = made.dro(f"S{domain_id}")
            made.join(name, domain_id, draw(COSTS))
            made.join(name, 50 + domain_id, draw(COSTS))
    return made.plan()


def names_of(config: DroConfig) -> list[str]:
    return [e.name for e in config.portals] + [p.name for p in config.peers]


@st.composite
def faults(draw: st.DrawFn, plan: NetworkPlan) -> list[ScriptedFault]:
    """Several, one after the other, each in a network that works or has the faults before."""
    links = [f"{link.initiator.dro}-{link.acceptor.dro}" for link in plan.links]
    portals = [f"{name}/{portal}" for name, config in plan.dros.items() for portal in names_of(config)]
    kinds = [
        st.tuples(st.sampled_from(["kill", "start", "routes"]), st.sampled_from(sorted(plan.dros))),
        st.tuples(st.just("restart"), st.sampled_from(portals)),
        st.tuples(st.just("cost"), st.sampled_from(portals), COSTS.map(str)),
    ]
    if links:
        kinds.append(st.tuples(st.sampled_from(["cut", "silence", "mend"]), st.sampled_from(links)))
    chosen = draw(st.lists(st.one_of(kinds), max_size=3))
    return [ScriptedFault(s(APART_S) * (nth + 1), action, tuple(words)) for nth, (action, *words) in enumerate(chosen)]


def check(plan: NetworkPlan, script: list[ScriptedFault], seed: int) -> None:
    for name, config in plan.dros.items():
        note(f"{name}, shares: {config.daemon.equal_cost_sharing}")
        note(f"    {[(e.domain_id, e.cost, e.hotlink_index) for e in config.portals]}")
        note(f"    {[(p.name, p.cost) for p in config.peers]}")
    note(f"{[fault.text for fault in script]}, seed {seed}")
    network = SimNetwork(plan, seed)
    network.add_applications(interest_in_all(plan))
    result = Scenario(network, interval_ns=s(1)).run(script, s(APART_S))
    assert result.violations == []
    if not script:
        assert result.periods[0].settled_s is not None


TRIED = settings(
    max_examples=CASES,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a case takes a second: shrinking one would take an hour
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@TRIED
@given(data=st.data(), seed=st.integers(0, 1000))
def test_a_random_network_with_random_faults(data: st.DataObject, seed: int) -> None:
    plan = data.draw(meshes())
    check(plan, data.draw(faults(plan)), seed)


@TRIED
@given(data=st.data(), seed=st.integers(0, 1000))
def test_a_network_of_equally_good_ways_with_random_faults(data: st.DataObject, seed: int) -> None:
    plan = data.draw(layered())
    check(plan, data.draw(faults(plan)), seed)


@TRIED
@given(data=st.data(), seed=st.integers(0, 1000))
def test_hotlinks_with_random_faults(data: st.DataObject, seed: int) -> None:
    plan = data.draw(hotlinked())
    check(plan, data.draw(faults(plan)), seed)
