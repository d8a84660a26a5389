"""A run of a simulated network: faults at their times, traffic all the while, and what must hold once it has settled.

When a fault is over and all DROs agree on the topology again, a few messages of each source must reach each receiver
that wants them exactly once, and nobody else, along a path of least cost, which is calculated here from the plan alone.
Of several such paths it is the one of the tree of the source, or of the first tree without equal-cost sharing.
With hotlinks a receiver gets a message over each plane and takes it once, and costs are not compared; a path leads
through one at most of the DROs that have a hotlink index in the same TRD.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import networkx as nx

from dro.clock import NS_PER_S, ms, s
from dro.proto.interest.events import Symbol
from dro.shares import share_of
from portals.decisions.messages import PATTERN_NONE, PATTERN_PCRE
from router.paths import Choice, follow, of_tree, shared_hops
from router.topology import Topology, is_domain
from supervisor.tools.simulate.application import Got, SimApplication
from supervisor.tools.simulate.network import Dro, SimNetwork, topic_of
from supervisor.tools.simulate.plan import NetworkPlan
from supervisor.tools.simulate.script import ScriptedFault

LOOK_NS: Final = ms(250)
PROBES: Final = 3
PLANES_MAX: Final = 4096
PROBE_NS: Final = ms(500)
_STABLE_NS: Final = s(3)
"""After the last calculation: what was kept of the routes before is over."""


@dataclass(slots=True)
class Period:
    """From one fault to the next one. Times in seconds; None: not within the period."""

    at_s: float
    what: str
    settled_s: float | None = None
    """When all routes were calculated, after the fault."""
    silent_s: float = 0.0
    """The longest time without a message, of all sources and receivers with a path before the fault and at the end."""
    lost: int = 0
    """Messages of these that did not arrive."""
    repeated: int = 0
    """Messages that came to a TRD more than once, and were left out by receivers."""
    violations: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PathTaken:
    """From a TRD to another one, at the end."""

    source: int
    receiver: int
    cost: int | None
    """None: there is no path."""
    way: tuple[str, ...]
    sent: int
    got: int


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    periods: list[Period]
    paths: list[PathTaken]
    messages: dict[str, int]
    """What the network carried, by kind."""

    @property
    def violations(self) -> list[str]:
        return [f"{period.at_s:g} s, {period.what}: {text}" for period in self.periods for text in period.violations]


def interest_in_all(plan: NetworkPlan) -> dict[int, list[Symbol]]:
    """Receivers of every topic in every TRD, every other one by a pattern."""
    topics = [(topic_of(domain), PATTERN_NONE) for domain in plan.domains]
    return {
        domain: [(b"^of TRD", PATTERN_PCRE)] if nth % 2 else list(topics) for nth, domain in enumerate(plan.domains)
    }


class Scenario:
    """See the module text."""

    def __init__(self, network: SimNetwork, *, interval_ns: int) -> None:
        """`interval_ns`: between two messages of a source."""
        self.network = network
        self._interval_ns = interval_ns
        self._has_hotlinks = any(e.hotlink_index for c in network.plan.dros.values() for e in c.portals)
        self._hops: dict[int, dict[int, Choice]] = {}  # by destination, while arrivals are looked at
        self._next_ns = 0
        self._published_ns = 0
        self._joined: set[tuple[SimApplication, SimApplication]] = set()
        """Sources and receivers with a path at the end of the period before."""

    def run(self, faults: Sequence[ScriptedFault], last_ns: int) -> ScenarioResult:
        """Run the scenario. Raises: ConfigError for a fault that names nothing. `last_ns`: after the last fault."""
        net = self.network
        for fault in faults:
            fault.find(net)
        net.start()
        periods: list[Period] = []
        ends = [fault.at_ns for fault in faults]
        steps: list[ScriptedFault | None] = [None, *faults]
        for step, end_ns in zip(steps, (*ends, (ends[-1] if ends else 0) + last_ns), strict=True):
            if step is not None:
                step.apply(net)
            is_last = len(periods) == len(faults)
            periods.append(self._period(step.text if step is not None else "start", end_ns, is_last=is_last))
        return ScenarioResult(periods, list(self._paths()), self._messages())

    # one period

    def _period(self, what: str, end_ns: int, *, is_last: bool) -> Period:
        net = self.network
        clock, began_ns = net.clock, net.clock.now_ns
        period = Period(began_ns / NS_PER_S, what)
        before = {(source, receiver): self._counts(source, receiver, got) for source, receiver, got in self._flows()}
        for _, _, got in self._flows():
            got.longest_ns, got.at_ns = 0, began_ns
        settled_ns: int | None = None
        while clock.now_ns < end_ns - PROBE_NS:
            self._run_until(min(clock.now_ns + LOOK_NS, end_ns - PROBE_NS))
            if not self._is_settled(began_ns):
                settled_ns = None
            elif settled_ns is None:
                settled_ns = max(net.calculated_ns, began_ns)
        if settled_ns is not None and settled_ns + _STABLE_NS <= clock.now_ns:
            period.settled_s = (settled_ns - began_ns) / NS_PER_S
            self._probe(period)
        elif is_last:
            period.violations.append(f"not settled after {(clock.now_ns - began_ns) / NS_PER_S:g} s")
        if clock.now_ns < end_ns:
            self._run_until(end_ns, publishes=False)
        graph = self._graph()
        joined = {(source, receiver) for source, receiver, _ in self._flows() if self._expects(graph, source, receiver)}
        for source, receiver, got in self._flows():
            now = self._counts(source, receiver, got)
            sqn, taken, repeated = before.get((source, receiver), now)
            if (source, receiver) in joined & self._joined:
                silent_ns = max(got.longest_ns, self._published_ns - got.at_ns)
                period.silent_s = max(period.silent_s, silent_ns / NS_PER_S)
                period.lost += (source.sqn - sqn) - (got.taken - taken)
            period.repeated += now[2] - repeated
        self._joined = joined
        return period

    @staticmethod
    def _counts(source: SimApplication, receiver: SimApplication, got: Got) -> tuple[int, int, int]:
        """Return what was sent, what was taken, and what the TRD of the receiver carried more than once."""
        return source.sqn, got.taken, receiver.trd.repeated[source.otid]

    def _run_until(self, until_ns: int, *, publishes: bool = True) -> None:
        clock = self.network.clock
        while publishes and self._next_ns <= until_ns:
            clock.run_until(max(self._next_ns, clock.now_ns))
            self._publish()
            self._next_ns = clock.now_ns + self._interval_ns
        clock.run_until(until_ns)

    def _publish(self) -> None:
        self._published_ns = self.network.clock.now_ns
        for application in self.network.applications.values():
            application.publish()

    def _flows(self) -> Iterator[tuple[SimApplication, SimApplication, Got]]:
        """Yield sources and receivers of other TRDs that want them."""
        applications = self.network.applications.values()
        for source, receiver in itertools.permutations(applications, 2):
            if receiver.wants(source.topic):
                yield source, receiver, receiver.got.setdefault(source.otid, Got())

    # what must hold

    def _graph(self) -> nx.Graph[object]:
        """Make a graph of DROs and TRDs that work, with costs between them, from the plan."""
        net = self.network
        graph: nx.Graph[object] = nx.Graph()
        graph.add_nodes_from(net.trds)
        for dro in net.up():
            graph.add_node(dro.name)
            for e in dro.config.portals:
                graph.add_edge(dro.name, e.domain_id, weight=dro.costs[e.name])
        for link in net.plan.links:
            one, other = (net.dros[end.dro] for end in (link.initiator, link.acceptor))
            if one.is_up and other.is_up and net.wires[link.initiator].is_up:
                cost = one.costs[link.initiator.portal] + other.costs[link.acceptor.portal]
                graph.add_edge(one.name, other.name, weight=cost)
        return graph

    def _is_settled(self, since_ns: int) -> bool:
        """Say whether DROs that can reach each other agree, and none of them has a calculation before it."""
        graph = self._graph()
        for part in nx.connected_components(graph):
            if len(part) == 1:
                continue  # a DRO that is joined to nothing has nothing to calculate
            routes = [self.network.dros[name].routes.core.routes for name in part if isinstance(name, str)]
            if not all(r.is_settled for r in routes) or len({r.signature for r in routes}) > 1:
                return False
            if len({len(dro.routes.core.exchange.others) for dro in self.network.up() if dro.name in part}) > 1:
                return False
        return True

    def _expects(self, graph: nx.Graph[object], source: SimApplication, receiver: SimApplication) -> bool:
        ends = source.domain_id, receiver.domain_id
        return any(nx.has_path(plane, *ends) for plane in self._planes(graph))

    def _planes(self, graph: nx.Graph[object]) -> Iterator[nx.Graph[object]]:
        """Yield parts of the graph with one DRO for each TRD that has hotlinks."""
        indexed: defaultdict[int, list[str]] = defaultdict(list)
        for dro in self.network.up():
            for e in dro.config.portals:
                if e.hotlink_index:
                    indexed[e.domain_id].append(dro.name)
        for kept in itertools.islice(itertools.product(*indexed.values()), PLANES_MAX):
            others = [n for name, names in zip(kept, indexed.values(), strict=True) for n in names if n != name]
            yield nx.restricted_view(graph, others, [])

    def _probe(self, period: Period) -> None:
        """Send a few messages of each source, and look how they arrive."""
        net = self.network
        first = {application: application.sqn for application in net.applications.values()}
        for _ in range(PROBES):
            self._publish()
            net.clock.run_until(net.clock.now_ns + PROBE_NS // (PROBES + 1))
        graph = self._graph()
        self._hops.clear()
        for source, receiver, got in self._flows():
            at = f"from {source.name} to {receiver.name}"
            sqns = range(first[source], source.sqn)
            copies = [receiver.trd.copies[source.otid, sqn] for sqn in sqns]
            missing = [sqn for sqn in sqns if sqn not in got.sqns]
            if not self._expects(graph, source, receiver):
                if any(copies):
                    period.violations.append(f"{at}: messages arrive where there is no path")
                continue
            if missing:
                period.violations.append(f"{at}: {len(missing)} of {len(sqns)} messages do not arrive")
            elif self._has_hotlinks:
                continue
            elif max(copies) > 1:
                period.violations.append(f"{at}: a message arrives {max(copies)} times")
            else:
                period.violations += [f"{at}: {text}" for text in self._wrong_path(graph, source, receiver, got.passed)]
        for dro in net.up():
            for portal in dro.portals.values():
                others = dro.siblings_of(portal)
                handed = sum(other.handed[portal.worker] for other in others)
                if all(other.incarnation == 1 for other in (portal, *others)) and handed != portal.counts["taken"]:
                    text = f"{handed} messages were handed over, {portal.counts['taken']} taken"
                    period.violations.append(f"{portal.name}: {text}")

    def _wrong_path(
        self, graph: nx.Graph[object], source: SimApplication, receiver: SimApplication, nodes: tuple[str, ...]
    ) -> Iterator[str]:
        if len(set(nodes)) != len(nodes):
            yield f"it goes in a loop: {' '.join(nodes)}"
        least = nx.shortest_path_length(graph, source.domain_id, receiver.domain_id, weight="weight")
        cost = self._cost(nodes)
        if cost != least:
            yield f"it costs {cost} by {' '.join(nodes)}, and the cheapest path {least}"
            return
        passed = [dro for dro, _ in itertools.groupby(name.partition("/")[0] for name in nodes if "/" in name)]
        if passed != (chosen := self._chosen(source, receiver)):
            yield f"it goes by {' '.join(passed)} and not by {' '.join(chosen)}, as the tree of the source does"

    def _chosen(self, source: SimApplication, receiver: SimApplication) -> list[str]:
        """List the DROs that the source takes of several equally good ways."""
        hops = self._hops.get(receiver.domain_id)
        if hops is None:
            is_shared = all(dro.config.daemon.equal_cost_sharing for dro in self._part(receiver))
            hops = self._hops[receiver.domain_id] = shared_hops(self._ids(), receiver.domain_id, is_shared=is_shared)
        nodes = follow(of_tree(hops, share_of(source.otid)), source.domain_id, receiver.domain_id) or ()
        names = {dro.node_id: dro.name for dro in self.network.up()}
        return [names[node] for node in nodes if not is_domain(node)]

    def _part(self, receiver: SimApplication) -> list[Dro]:
        """List the DROs that work and can be reached."""
        graph = self._graph()
        return [dro for dro in self.network.up() if nx.has_path(graph, receiver.domain_id, dro.name)]

    def _ids(self) -> Topology:
        """Make the graph with the node ids that DROs have now."""
        ids: dict[object, int] = {dro.name: dro.node_id for dro in self.network.up()} | {
            d: d for d in self.network.trds
        }
        found: Topology = nx.DiGraph()
        for one, other, weight in self._graph().edges(data="weight", default=0):
            found.add_edge(ids[one], ids[other], cost=weight)
            found.add_edge(ids[other], ids[one], cost=weight)
        return found

    def _cost(self, nodes: tuple[str, ...]) -> int:
        parts = (name.partition("/") for name in nodes)
        return sum(self.network.dros[dro].costs[portal] for dro, _, portal in parts if portal)

    # at the end

    def _paths(self) -> Iterator[PathTaken]:
        graph = self._graph()
        for source, receiver, got in self._flows():
            is_there = self._expects(graph, source, receiver)
            yield PathTaken(
                source.domain_id,
                receiver.domain_id,
                self._cost(got.passed) if is_there else None,
                got.passed if is_there else (),
                source.sqn,
                got.taken,
            )

    def _messages(self) -> dict[str, int]:
        net = self.network
        wires = {id(wire): wire for wire in net.wires.values()}.values()
        return {
            "topic resolution datagrams": sum(trd.packets for trd in net.trds.values()),
            "peer link control messages": sum(wire.messages for wire in wires),
            "data messages in TRDs": sum(trd.data for trd in net.trds.values()),
            "messages between portals": sum(sum(portal.handed.values()) for portal in net.portals()),
        }
