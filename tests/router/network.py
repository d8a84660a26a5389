"""A network of route managers without processes: cores, links and TRDs that carry route information, and a clock.

Portals are named `DRO/portal`. A link tells both ends who their neighbour is by the first message that comes over it,
as a peer portal does. Losses and delays are drawn from a seed.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from dro.bus.messages import PortalUp, Route
from dro.clock import ms, s
from router.authentication import Authentication
from router.core import CoreEffect, RouteManagerCore, Self
from router.route_info import read_head
from router.route_info_exchange import ExchangeTiming, SendInfo
from router.route_recalculation import Timing

EXAMPLES = Path(__file__).parents[1] / "golden" / "examples"
GUIDE = Timing(check_ns=ms(750), backoff_ns=s(5), warning_ns=s(10))
SETTLED_S = 12  # backoff, check, and the exchange of signatures after that
DRO_BIT = 1 << 63


@dataclass(eq=False)
class Link:
    """Between two portals."""

    ends: tuple[str, str]
    delay_ns: int = ms(1)
    loss: float = 0.0
    """None on a connection, where the first message counts."""
    is_up: bool = False
    known: set[str] = field(default_factory=set)  # ends that have heard the other one
    life: int = 0

    def other(self, portal: str) -> str:
        return self.ends[self.ends[0] == portal]


@dataclass(eq=False)
class Trd:
    """What each portal in it sends comes to all others."""

    domain_id: int
    portals: list[str] = field(default_factory=list)
    delay_ns: int = ms(1)
    loss: float = 0.0
    is_up: bool = True


@dataclass
class Portal:
    name: str
    worker: int
    cost: int
    domain_id: int = 0
    hotlink_index: int = 0
    link: Link | None = None


@dataclass
class Dro:
    name: str
    node_id: int
    core: RouteManagerCore
    portals: dict[int, Portal] = field(default_factory=dict)
    incarnation: int = 1
    is_up: bool = True
    effects: list[CoreEffect] = field(default_factory=list)  # those that are not messages

    def neighbours(self) -> set[int]:
        return {n.node_id for n in self.core.routes.own().neighbours}


class Network:
    """DROs by name."""

    def __init__(
        self, seed: int = 1, timing: Timing = GUIDE, exchange: ExchangeTiming | None = None, loss: float = 0.0,
        sharing: int = 0, authentication: Authentication | None = None,
    ) -> None:  # fmt: skip
        """`sharing` and `authentication` are those of all DROs."""
        self.now_ns = 0
        self.dros: dict[str, Dro] = {}
        self.portals: dict[str, tuple[Dro, Portal]] = {}
        self.trds: dict[int, Trd] = {}
        self.links: dict[tuple[str, str], Link] = {}
        self.sharing, self.authentication = sharing, authentication
        self.timing, self.exchange, self.loss = timing, exchange or ExchangeTiming(), loss
        self.messages = 0
        self._random = Random(seed)
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._serial = count()

    # what there is

    def _core(self, name: str, node_id: int, incarnation: int, version: int, sqn: int) -> RouteManagerCore:
        return RouteManagerCore(
            Self(node_id, name, sharing=self.sharing, authentication=self.authentication), self.timing, self.exchange,
            incarnation=incarnation, now_ns=self.now_ns, version=version, sqn=sqn,
        )  # fmt: skip

    def _node_id(self) -> int:
        return DRO_BIT | self._random.getrandbits(63)

    def add_dro(self, name: str, node_id: int = 0) -> Dro:
        node_id = node_id or self._node_id()
        self.dros[name] = dro = Dro(name, node_id, self._core(name, node_id, 1, 0, 0))
        return dro

    def _add_portal(self, dro: str, name: str, cost: int) -> tuple[Dro, Portal]:
        owner = self.dros[dro]
        portal = Portal(f"{dro}/{name}", len(owner.portals) + 1, cost)
        owner.portals[portal.worker] = portal
        self.portals[portal.name] = owner, portal
        return owner, portal

    def add_endpoint(self, dro: str, name: str, domain_id: int, cost: int = 1, hotlink_index: int = 0) -> None:
        owner, portal = self._add_portal(dro, name, cost)
        portal.domain_id, portal.hotlink_index = domain_id, hotlink_index
        trd = self.trds.setdefault(domain_id, Trd(domain_id, loss=self.loss))
        trd.portals.append(portal.name)
        self._up(owner, portal)

    def add_link(self, one: tuple[str, str, int], other: tuple[str, str, int]) -> Link:
        """Each end: DRO, name of the portal, cost."""
        ends = [self._add_portal(*end)[1] for end in (one, other)]
        link = Link((ends[0].name, ends[1].name))
        ends[0].link = ends[1].link = link
        self.links[one[0], other[0]] = link
        self.mend(link)
        return link

    # what happens to it

    def _up(self, dro: Dro, portal: Portal, neighbour: int = 0) -> None:
        report = PortalUp(portal.worker, portal.domain_id, portal.cost, neighbour, portal.hotlink_index)
        dro.core.on_portal_up(report, self.now_ns)
        self._act(dro)

    def _gone(self, dro: Dro, portal: Portal, *, restarts: bool = False) -> None:
        dro.core.on_portal_gone(portal.worker, self.now_ns, restarts=restarts)
        self._act(dro)

    def cut(self, link: Link) -> None:
        """Both ends notice."""
        if link.is_up:
            link.is_up, link.life = False, link.life + 1
            link.known.clear()
            for end in link.ends:
                if self.portals[end][0].is_up:
                    self._gone(*self.portals[end])

    def mend(self, link: Link) -> None:
        if not link.is_up and all(self.portals[end][0].is_up for end in link.ends):
            link.is_up = True
            for end in link.ends:
                self._up(*self.portals[end])

    def kill(self, name: str) -> None:
        """The DRO is gone; TCP tells its companions."""
        dro = self.dros[name]
        dro.is_up = False
        for portal in dro.portals.values():
            if portal.link is not None:
                self.cut(portal.link)

    def start(self, name: str) -> None:
        """Again, as another node."""
        dro = self.dros[name]
        dro.node_id, dro.is_up, dro.incarnation = self._node_id(), True, 1
        dro.core = self._core(name, dro.node_id, 1, 0, 0)
        for portal in dro.portals.values():
            if portal.link is not None:
                self.mend(portal.link)
            else:
                self._up(dro, portal)

    def restart_route_manager(self, name: str) -> None:
        """Its portals and the node live on; versions are those of its counter page."""
        dro = self.dros[name]
        version, sqn = dro.core.routes.own_version, dro.core.exchange.sqn
        dro.incarnation += 1
        dro.core = self._core(name, dro.node_id, dro.incarnation, version, sqn)
        for portal in dro.portals.values():
            dro.core.on_portal_expected(portal.worker, self.now_ns)
        for portal in dro.portals.values():
            link = portal.link
            neighbour = self.portals[link.other(portal.name)][0].node_id if link and portal.name in link.known else 0
            if link is None or link.is_up:
                self._up(dro, portal, neighbour)

    def restart_portal(self, name: str) -> None:
        """Of an endpoint: its process is back at once."""
        dro, portal = self.portals[name]
        self._gone(dro, portal, restarts=True)
        self._up(dro, portal)

    def set_cost(self, name: str, cost: int) -> None:
        dro, portal = self.portals[name]
        portal.cost = cost
        there = portal.link and self.portals[portal.link.other(name)][0].node_id
        self._up(dro, portal, there or 0)

    # time

    def run(self, seconds: float) -> None:
        until_ns = self.now_ns + round(seconds * s(1))
        while True:
            due = [(d, n) for n, dro in self.dros.items() if dro.is_up and (d := dro.core.next_deadline()) is not None]
            next_ns = max(min([*(d for d, _ in due), *(e[0] for e in self._events[:1])], default=until_ns), self.now_ns)
            if next_ns > until_ns:
                break
            if next_ns == until_ns and not due and not self._events:
                break
            self.now_ns = next_ns
            while self._events and self._events[0][0] <= next_ns:
                heapq.heappop(self._events)[2]()
            for deadline, name in due:
                if deadline <= next_ns:
                    self.dros[name].core.on_timer(next_ns)
                    self._act(self.dros[name])
        self.now_ns = until_ns

    def _act(self, dro: Dro) -> None:
        for effect in dro.core.take_effects():
            if not isinstance(effect, SendInfo):
                dro.effects.append(effect)
                continue
            for worker in effect.workers:
                self._send(dro.portals[worker], effect.message)

    def _send(self, portal: Portal, message: bytes) -> None:
        way = portal.link or self.trds[portal.domain_id]
        to = [portal.link.other(portal.name)] if portal.link else self.trds[portal.domain_id].portals
        for other in to:
            if other != portal.name and way.is_up and self._random.random() >= way.loss:
                sender = (0, 0) if portal.link else (1 + list(self.portals).index(portal.name), 1)
                self.deliver(other, message, way.delay_ns, portal.link, sender)

    def deliver(
        self, to: str, message: bytes, delay_ns: int = 0, link: Link | None = None, sender: tuple[int, int] = (0, 0)
    ) -> None:
        """`sender`: address and port, in a TRD."""
        life = link.life if link else 0

        def arrive() -> None:
            dro, portal = self.portals[to]
            if not dro.is_up or (link is not None and link.life != life):
                return
            self.messages += 1
            dro.core.on_route_info(portal.worker, message, self.now_ns, sender)
            self._act(dro)
            if link is not None and to not in link.known:
                link.known.add(to)
                self._up(dro, portal, read_head(message).node_id)

        heapq.heappush(self._events, (self.now_ns + delay_ns, next(self._serial), arrive))

    # what has come of it

    def up(self) -> list[Dro]:
        return [dro for dro in self.dros.values() if dro.is_up]

    def signatures(self) -> set[int]:
        return {dro.core.routes.signature for dro in self.up()}

    def take(self, name: str) -> list[CoreEffect]:
        """The effects of a DRO so far that are no messages."""
        effects, self.dros[name].effects = self.dros[name].effects, []
        return effects

    def ways(self, source: int, target: int) -> list[tuple[str, ...]]:
        """Where the tables of all DROs lead traffic: portals passed and TRDs crossed, as in a `topology.json`."""
        return [way for dro, portal in self._at(source) for way in self._from(dro, portal, source, target, ())]

    def _at(self, domain_id: int, besides: str = "") -> list[tuple[Dro, Portal]]:
        names = (name for name in self.trds[domain_id].portals if name != besides)
        return [self.portals[name] for name in names if self.portals[name][0].is_up]

    def _from(
        self, dro: Dro, portal: Portal, source: int, target: int, passed: tuple[str, ...]
    ) -> Iterator[tuple[str, ...]]:
        assert portal.name not in passed, f"a loop from {source} to {target}: {passed}"
        for route in self._routes(dro, source, target, portal.worker):
            out = dro.portals[route.egress]
            way = (*passed, portal.name, out.name)
            if out.link is not None:
                yield from self._from(*self.portals[out.link.other(out.name)], source, target, way)
            elif out.domain_id == target:
                yield way
            else:
                for there in self._at(out.domain_id, out.name):
                    yield from self._from(*there, source, target, (*way, f"TRD{out.domain_id}"))

    @staticmethod
    def _routes(dro: Dro, source: int, target: int, ingress: int) -> list[Route]:
        table = dro.core.routes.table
        routes = table.routes if table is not None else ()
        return [
            r for r in routes if source in r.source_domains and (r.interested_domain, r.ingress) == (target, ingress)
        ]

    def cost(self, way: tuple[str, ...]) -> int:
        return sum(self.portals[name][1].cost for name in way if name in self.portals)


def topology(name: str) -> dict[str, Any]:
    """That of one of the examples."""
    loaded: dict[str, Any] = json.loads((EXAMPLES / name / "topology.json").read_text())
    return loaded


def example(name: str, seed: int = 1, loss: float = 0.0) -> Network:
    """The network of one of the examples. `loss`: the part of the messages that does not cross a TRD."""
    made = Network(seed, loss=loss)
    wanted = topology(name)
    costs = {f"{dro['name']}/{p['name']}": p["cost"] for dro in wanted["dros"] for p in dro["portals"]}
    for dro in wanted["dros"]:
        made.add_dro(dro["name"])
        for p in dro["portals"]:
            if p["type"] == "endpoint":
                made.add_endpoint(dro["name"], p["name"], p["domain_id"], p["cost"], p.get("hotlink_index", 0))
    for link in wanted["links"]:
        one, other = ((*link[end].split("/", 1), costs[link[end]]) for end in ("initiator", "acceptor"))
        made.add_link(one, other)
    return made
