"""A network of simulated DROs: real route managers, portals around real cores, TRDs with applications, and faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from random import Random
from typing import Final

from dro.bus.messages import PortalGone, PortalUp, RouteTable
from dro.clock import ms
from dro.config.dro_xml.model import DroConfig, EndpointConfig, PeerConfig
from dro.errors import ConfigError
from dro.proto.interest.events import Symbol
from router.core import RouteManagerCore
from router.route_info_exchange import SendInfo
from router.route_recalculation import SendTable
from router.settings import exchange_timing_of, own_dro, timing_of
from supervisor.tools.simulate.application import SimApplication
from supervisor.tools.simulate.clock import SimClock
from supervisor.tools.simulate.endpoint import EndpointEnd
from supervisor.tools.simulate.peer import PeerEnd, Wire
from supervisor.tools.simulate.plan import NetworkPlan, PortalId
from supervisor.tools.simulate.portal import CONTROL_NS, SimPortal
from supervisor.tools.simulate.trd import Trd

RESTART_NS: Final = ms(300)
"""Between the death of a worker and the work of its next incarnation."""
_NODE_ID_BIT: Final = 1 << 63


class SimRouteManager:
    """The route manager of a DRO, one incarnation."""

    def __init__(
        self, clock: SimClock, dro: Dro, node_id: int, incarnation: int, before: RouteManagerCore | None = None
    ) -> None:
        """`before`: of the incarnation before, whose versions and table are kept."""
        config = dro.config
        self._clock, self._dro = clock, dro
        self.incarnation = incarnation
        self.calculated_ns = 0
        self.core = RouteManagerCore(
            replace(own_dro(config, node_id), authentication=None),  # keys are of other hosts
            timing_of(config), exchange_timing_of(config), incarnation=incarnation,
            now_ns=clock.now_ns, version=before.routes.own_version if before else 0,
            sqn=before.exchange.sqn if before else 0, kept=before.routes.kept if before else None,
        )  # fmt: skip

    def on_report(self, worker: int, report: PortalUp | PortalGone, now_ns: int) -> None:
        if isinstance(report, PortalUp):
            self.core.on_portal_up(report, now_ns)
        else:
            self.core.on_portal_gone(worker, now_ns)
        self.act()

    def on_info(self, worker: int, message: bytes, now_ns: int, sender: tuple[int, int]) -> None:
        self.core.on_route_info(worker, message, now_ns, sender)
        self.act()

    def next_deadline(self) -> int | None:
        return self.core.next_deadline() if self._dro.routes is self and self._dro.is_up else None

    def on_timer(self, now_ns: int) -> None:
        self.core.on_timer(now_ns)
        self.act()

    def act(self) -> None:
        for effect in self.core.take_effects():
            match effect:
                case SendInfo():
                    for worker in effect.workers:
                        self._to_portal(worker, partial(_send_info, effect.message))
                case SendTable():
                    if effect.is_new:
                        self.calculated_ns = self._clock.now_ns
                    for worker, table in effect.parts(self._dro.portals):
                        self._to_portal(worker, partial(_send_table, table))
                case _:
                    self._dro.findings.append((self._clock.now_ns, effect))
        self._clock.arm(self)

    def _to_portal(self, worker: int, act: Callable[[SimPortal], object]) -> None:
        portal = self._dro.portals.get(worker)
        if portal is not None and portal.is_alive:
            self._clock.after(CONTROL_NS, lambda: act(portal) if portal.is_alive else None)


def _send_table(table: RouteTable, portal: SimPortal) -> None:
    portal.on_routes(table)


def _send_info(message: bytes, portal: SimPortal) -> None:
    portal.link.on_route_info(message)


class Dro:
    """A DRO by its configuration. `make_portal` makes one incarnation of a portal."""

    def __init__(self, clock: SimClock, name: str, config: DroConfig, rng: Random, make: MakePortal) -> None:
        self.clock, self.name, self.config = clock, name, config
        self._rng, self._make = rng, make
        self._configs: dict[int, EndpointConfig | PeerConfig] = dict(enumerate((*config.portals, *config.peers), 1))
        self.costs: dict[str, int] = {p.name: p.cost for p in self._configs.values()}
        self._incarnations: dict[int, int] = dict.fromkeys(self._configs, 0)
        self.portals: dict[int, SimPortal] = {}
        self.findings: list[tuple[int, object]] = []
        """What the route manager would log, and when."""
        self.is_up = False
        self.routes: SimRouteManager

    def start(self) -> None:
        """Start under another node id each time, as a real one."""
        self.is_up = True
        self.node_id = self._rng.getrandbits(63) | _NODE_ID_BIT
        self.routes = SimRouteManager(self.clock, self, self.node_id, 1)
        for worker, config in self._configs.items():
            if isinstance(config, EndpointConfig):
                self.routes.core.on_portal_expected(worker, self.clock.now_ns)
        for worker in self._configs:
            self._start_portal(worker)

    def _start_portal(self, worker: int) -> None:
        self._incarnations[worker] += 1
        portal = self._make(self, worker, self._incarnations[worker], self._configs[worker])
        self.portals[worker] = portal
        portal.start()
        for sibling in self.siblings_of(portal):
            sibling.on_sibling_up(portal)
        portal.report_up()

    def siblings_of(self, portal: SimPortal) -> list[SimPortal]:
        return [other for other in self.portals.values() if other is not portal and other.is_alive]

    def kill(self) -> None:
        self.is_up = False
        for portal in self.portals.values():
            if portal.is_alive:
                portal.kill()

    def worker_of(self, name: str) -> int:
        return next(worker for worker, config in self._configs.items() if config.name == name)

    def restart_portal(self, name: str) -> None:
        """Let a process die; the parent starts it again."""
        worker = self.worker_of(name)
        portal = self.portals[worker]
        if not portal.is_alive:
            return
        portal.kill()
        for sibling in self.siblings_of(portal):
            sibling.on_sibling_down(portal)
        self.routes.core.on_portal_gone(worker, self.clock.now_ns, restarts=True)
        self.routes.act()
        self.clock.after(
            RESTART_NS, lambda: self._start_portal(worker) if self.is_up and self.portals[worker] is portal else None
        )

    def restart_routes(self) -> None:
        """The route manager's process dies; it begins anew with what is kept of it."""
        old = self.routes
        self.routes = routes = SimRouteManager(self.clock, self, self.node_id, old.incarnation + 1, old.core)
        now_ns = self.clock.now_ns
        for worker, portal in self.portals.items():
            if isinstance(portal.config, EndpointConfig) or isinstance(portal.link.describe(), PortalUp):
                routes.core.on_portal_expected(worker, now_ns)
        for portal in self.portals.values():
            if portal.is_alive:
                portal.report_up()

    def set_cost(self, name: str, cost: int) -> None:
        self.costs[name] = cost
        worker = self.worker_of(name)
        self.configure(worker, replace(self._configs[worker], cost=cost))

    def configure(self, worker: int, config: EndpointConfig | PeerConfig) -> None:
        """Change the configuration of a portal, live."""
        self._configs[worker] = config
        portal = self.portals.get(worker)
        if portal is not None and portal.is_alive:
            portal.on_config(config)

    def report(self, worker: int, report: PortalUp | PortalGone) -> None:
        self._to_routes(lambda routes, now_ns: routes.on_report(worker, report, now_ns))

    def pass_route_info(self, worker: int, message: bytes, sender: tuple[int, int]) -> None:
        self._to_routes(lambda routes, now_ns: routes.on_info(worker, message, now_ns, sender))

    def _to_routes(self, say: Callable[[SimRouteManager, int], object]) -> None:
        """Send the route manager what a portal says, as a message."""
        routes = self.routes
        self.clock.after(
            CONTROL_NS, lambda: say(routes, self.clock.now_ns) if self.is_up and routes is self.routes else None
        )


MakePortal = Callable[[Dro, int, int, EndpointConfig | PeerConfig], SimPortal]


class SimNetwork:
    """All of a plan, with an application in each TRD that sends a topic of its own."""

    def __init__(self, plan: NetworkPlan, seed: int = 1) -> None:
        self.plan = plan
        self.clock = SimClock()
        self._rng = rng = Random(seed)
        self.trds = {domain_id: Trd(self.clock, domain_id) for domain_id in plan.domains}
        self.wires: dict[PortalId, Wire] = {}
        for link in plan.links:
            wire = Wire(self.clock, f"{link.initiator}-{link.acceptor}")
            self.wires[link.initiator] = self.wires[link.acceptor] = wire
        self.dros = {n: Dro(self.clock, n, c, rng, self._make_portal) for n, c in plan.dros.items()}
        self.applications: dict[int, SimApplication] = {}

    def _make_portal(self, dro: Dro, worker: int, incarnation: int, config: EndpointConfig | PeerConfig) -> SimPortal:
        portal = SimPortal(self.clock, dro, worker, incarnation, config)
        if isinstance(config, EndpointConfig):
            portal.link = EndpointEnd(portal, config, self.trds[config.domain_id], self._rng)
        else:
            portal.link = PeerEnd(portal, config, self.wires[PortalId(dro.name, config.name)], self._rng)
        return portal

    def add_applications(self, wanted: Mapping[int, list[Symbol]]) -> None:
        """Add applications by domain: what its receivers want."""
        for domain_id, trd in self.trds.items():
            application = SimApplication(trd, self._rng, topic_of(domain_id), wanted.get(domain_id, []))
            self.applications[domain_id] = application

    def start(self, names: Iterable[str] = ()) -> None:
        for name in names or self.dros:
            if not self.dros[name].is_up:
                self.dros[name].start()

    def run(self, duration_ns: int) -> None:
        self.clock.run_until(self.clock.now_ns + duration_ns)

    # faults

    def dro(self, name: str) -> Dro:
        """Find a DRO by name. Raises: ConfigError."""
        if name not in self.dros:
            raise _unknown("DRO", name, self.dros)
        return self.dros[name]

    def portal(self, name: str) -> tuple[Dro, str]:
        """Find the portal of `DRO/PORTAL`. Raises: ConfigError."""
        dro, _, portal = name.partition("/")
        if dro not in self.dros or portal not in self.dros[dro].costs:
            raise _unknown("portal", name, (f"{d.name}/{p}" for d in self.dros.values() for p in d.costs))
        return self.dros[dro], portal

    def wire(self, name: str) -> Wire:
        """The link of `DRO/PORTAL`, or between `DRO-DRO`. Raises: ConfigError."""
        for link in self.plan.links:
            ends = (link.initiator, link.acceptor)
            names = {str(end) for end in ends} | {"-".join(e.dro for e in order) for order in (ends, ends[::-1])}
            if name in names:
                return self.wires[link.initiator]
        raise _unknown("link", name, (f"{link.initiator.dro}-{link.acceptor.dro}" for link in self.plan.links))

    def trd(self, name: str) -> Trd:
        """Find a TRD by its domain id. Raises: ConfigError."""
        found = self.trds.get(int(name)) if name.isdecimal() else None
        if found is None:
            raise _unknown("TRD", name, map(str, self.trds))
        return found

    # what there is

    def up(self) -> list[Dro]:
        return [dro for dro in self.dros.values() if dro.is_up]

    def portals(self) -> Iterator[SimPortal]:
        for dro in self.dros.values():
            yield from dro.portals.values()

    @property
    def calculated_ns(self) -> int:
        """When a route table was calculated last."""
        return max((dro.routes.calculated_ns for dro in self.up()), default=0)


def topic_of(domain_id: int) -> bytes:
    return b"of TRD%d" % domain_id


def _unknown(what: str, name: str, known: Iterable[str]) -> ConfigError:
    some = sorted(known)
    there = ", ".join(some[:10]) + (", ..." if len(some) > 10 else "") if some else "none"
    return ConfigError(f"no {what} {name!r}", remedy=f"there is: {there}")
