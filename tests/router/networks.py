"""Networks of `simulate` as a route manager sees them: what tables say, and what is told that is not true."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from dro.clock import s
from dro.config.dro_xml.model import DroConfig, EndpointConfig
from supervisor.tools.simulate.network import SimNetwork
from supervisor.tools.simulate.peer import PeerEnd
from supervisor.tools.simulate.plan import NetworkPlan, PlannedLink, PortalId, dro_of, of_topology, peer
from supervisor.tools.simulate.portal import SimPortal

EXAMPLES = Path(__file__).parents[1] / "golden" / "examples"
SETTLED_NS = s(12)
"""Backoff, check, and the exchange of signatures after that."""
DRO_BIT = 1 << 63
Way = tuple[str, ...]


def example(name: str, seed: int = 1) -> SimNetwork:
    return started(of_topology(str(EXAMPLES / name / "topology.json")), seed)


def planned(endpoints: Mapping[str, Iterable[EndpointConfig]], *links: tuple[str, str, int]) -> NetworkPlan:
    """Endpoints by DRO, and links from a portal `to-B` of A to a portal `from-A` of B, at a cost at each end."""

    def dro(name: str) -> DroConfig:
        peers = [peer(f"to-{b}", cost, is_initiator=True) for a, b, cost in links if a == name]
        peers += [peer(f"from-{a}", cost, is_initiator=False) for a, b, cost in links if b == name]
        return dro_of(name, endpoints[name], peers)

    ends = (PlannedLink(PortalId(a, f"to-{b}"), PortalId(b, f"from-{a}")) for a, b, _ in links)
    return NetworkPlan({name: dro(name) for name in endpoints}, tuple(ends))


def started(plan: NetworkPlan, seed: int = 1) -> SimNetwork:
    """All routes are calculated."""
    net = SimNetwork(plan, seed)
    net.start()
    net.run(SETTLED_NS)
    return net


def deliver(net: SimNetwork, to: str, message: bytes, delay_ns: int = 0, sender: tuple[int, int] = (0, 0)) -> None:
    """Let a portal hear a ROUTE message; `sender`: address and port, in a TRD."""
    dro, portal = net.portal(to)
    tell = partial(dro.routes.on_info, dro.worker_of(portal), message, net.clock.now_ns + delay_ns, sender)
    net.clock.after(delay_ns, tell)


def signatures(net: SimNetwork) -> set[int]:
    return {dro.routes.core.routes.signature for dro in net.up()}


def take(net: SimNetwork, name: str) -> list[object]:
    """Return what the route manager of a DRO has found so far."""
    findings, net.dros[name].findings = net.dros[name].findings, []
    return [finding for _, finding in findings]


def cost(net: SimNetwork, way: Way) -> int:
    return sum(dro.costs[portal] for dro, portal in (net.portal(name) for name in way if "/" in name))


def ways(net: SimNetwork, source: int, target: int) -> list[Way]:
    """Follow the tables of all DROs: portals and TRDs that traffic passes, as in a `topology.json`."""
    return [way for portal in _members(net, source) for way in _from(net, portal, source, target, ())]


def _members(net: SimNetwork, domain_id: int) -> list[SimPortal]:
    return [p for dro in net.up() for p in dro.portals.values() if _domain(p) == domain_id]


def _domain(portal: SimPortal) -> int:
    return portal.config.domain_id if isinstance(portal.config, EndpointConfig) else 0


def _from(net: SimNetwork, portal: SimPortal, source: int, target: int, passed: Way) -> Iterator[Way]:
    assert portal.name not in passed, f"a loop from {source} to {target}: {passed}"
    dro = portal.dro
    table = net.dros[dro.name].routes.core.routes.table
    for route in table.routes if table is not None else ():
        if source not in route.source_domains or (route.interested_domain, route.ingress) != (target, portal.worker):
            continue
        out = dro.portals[route.egress]
        way = (*passed, portal.name, out.name)
        if (domain_id := _domain(out)) == target:
            yield way
        elif isinstance(out.link, PeerEnd):
            companion = net.wires[PortalId(dro.name, out.config.name)].other(out.link)
            yield from _from(net, companion.portal, source, target, way)
        else:
            for there in _members(net, domain_id):
                if there is not out:
                    yield from _from(net, there, source, target, (*way, f"TRD{domain_id}"))
