"""The route manager without its process: the exchange of route information and the recalculation of routes, together.

What portals report goes to both; what the exchange hears of other DROs becomes a change of the topology; what changes
about this DRO's links and its topology signature is told to the others. Other DROs are looked at, and signatures
compared, at each check.

Source: DRO guide, `<route-info>`, `<route-recalculation warning-interval>`. Guess: differing signatures are warned
about once they have differed for the warning interval while this DRO had nothing to calculate, and again only after
they were equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Final

from dro.bus.messages import PortalUp
from router.authentication import Authentication
from router.route_info_exchange import ExchangeTiming, InfoDropped, News, OtherDro, RouteInfoExchange, SendInfo
from router.route_recalculation import Effect, KeptTable, RouteCore, Timing
from router.topology import is_domain


@dataclass(frozen=True, slots=True)
class OwnDro:
    """What a DRO tells of itself that no portal reports."""

    node_id: int
    name: str = ""
    configuration_signature: int = 0
    gateway_version: int = 0
    sharing: int = 0
    """The method of equal-cost sharing that it is ready for."""
    authentication: Authentication | None = None


@dataclass(frozen=True, slots=True)
class SignaturesDiffer:
    """For the log: these DROs have another view of the topology, for so long."""

    waiting_ns: int
    dros: tuple[OtherDro, ...]


@dataclass(frozen=True, slots=True)
class OneSidedLink:
    """For the log: a DRO has told of a link to a neighbour, which has not told of it, for the warning interval."""

    dro: str
    neighbour: str
    reason: str


CoreEffect = Effect | SendInfo | InfoDropped | SignaturesDiffer | OneSidedLink
_LOOKS: Final = 4
"""In a warning interval."""
_ONE_SIDED_MAX: Final = 1000
"""Links that are remembered until they are worth a warning; nobody repairs more at once."""


class RouteManagerCore:
    """Everything that the route manager decides."""

    def __init__(
        self,
        me: OwnDro,
        timing: Timing,
        exchange: ExchangeTiming,
        *,
        incarnation: int,
        now_ns: int,
        version: int = 0,
        sqn: int = 0,
        kept: KeptTable | None = None,
    ) -> None:
        """`version` and `sqn`: the last ones that were told under this node id, in any life of the process; `kept`: the
        table of the life before."""
        self.routes = RouteCore(
            me.node_id, timing, incarnation=incarnation, now_ns=now_ns, name=me.name, version=version,
            sharing=me.sharing, kept=kept,
        )  # fmt: skip
        self.exchange = RouteInfoExchange(
            self.routes.own(), exchange, configuration=me.configuration_signature,
            gateway_version=me.gateway_version, sqn=sqn, now_ns=now_ns, authentication=me.authentication,
        )  # fmt: skip
        self._timing = timing
        self._checked_ns = now_ns
        self._differ_since_ns: int | None = None
        self._is_warned = False
        self.unknown_since_ns: dict[int, int] = {}
        """Links whose other end is not known, by worker."""
        self._one_sided_ns: dict[tuple[int, int], int | None] = {}  # by both ends: since when; None: it was told
        self._links_seen_ns = now_ns
        self._effects: list[SignaturesDiffer | OneSidedLink] = []

    def set_sharing(self, sharing: int, now_ns: int) -> None:
        self.routes.set_sharing(sharing, now_ns)
        self._describe()
        self.exchange.on_timer(now_ns)

    def set_authentication(self, authentication: Authentication | None) -> None:
        self.exchange.set_authentication(authentication)

    def set_timing(self, timing: Timing, exchange: ExchangeTiming, configuration_signature: int) -> None:
        self._timing = timing
        self.routes.set_timing(timing)
        self.exchange.set_timing(exchange)
        self.exchange.set_configuration(configuration_signature)

    # inputs

    def on_portal_expected(self, worker: int, now_ns: int) -> None:
        self.routes.on_portal_expected(worker, now_ns)
        self._describe()

    def on_portal_up(self, report: PortalUp, now_ns: int) -> None:
        worker = report.worker
        known = self.routes.portals.get(worker)
        self.routes.on_portal_up(
            worker, report.domain_id, report.cost, now_ns,
            neighbour=report.neighbour, hotlink_index=report.hotlink_index, since_us=report.since_us,
        )  # fmt: skip
        portal = self.routes.portals.get(worker)
        assert portal is not None
        if portal.node_id:
            self.unknown_since_ns.pop(worker, None)
        else:
            self.unknown_since_ns.setdefault(worker, now_ns)
        self._describe()
        if known is None or known.node_id not in (0, portal.node_id):
            self.exchange.on_link(worker, now_ns)
        self.exchange.on_timer(now_ns)

    def on_portal_gone(self, worker: int, now_ns: int, *, restarts: bool = False) -> None:
        self.routes.on_portal_gone(worker, now_ns, restarts=restarts)
        self.unknown_since_ns.pop(worker, None)
        self.exchange.on_link_gone(worker)
        self._describe()
        self.exchange.on_timer(now_ns)

    def on_route_info(self, worker: int, message: bytes, now_ns: int, sender: tuple[int, int] = (0, 0)) -> None:
        """`sender`: in a TRD, address and port of the connection by which it came."""
        self.exchange.on_message(worker, message, now_ns, sender)
        self._take_news(now_ns)
        self._deny(now_ns)

    def _deny(self, now_ns: int) -> None:
        """Tell of this DRO anew when another has told of it."""
        version = self.exchange.take_foreign(now_ns)
        if version is not None:
            self.routes.raise_version(version)
            self._describe()
            self.exchange.on_timer(now_ns)

    def on_link_busy(self, worker: int, now_ns: int) -> None:
        self.exchange.on_link_busy(worker, now_ns)

    def force(self, now_ns: int) -> None:
        self.routes.force(now_ns)

    def leave(self, now_ns: int) -> None:
        """This DRO ends soon: let others find other ways."""
        self.routes.raise_costs(now_ns)
        self._describe()
        self.exchange.on_timer(now_ns)

    @property
    def is_agreed(self) -> bool:
        """All DROs have calculated for the topology as it is."""
        return self.routes.is_settled and not self.exchange.differing(self.routes.signature)

    def _take_news(self, now_ns: int) -> None:
        for what, record in self.exchange.take_changes():
            if what is News.TIMED_OUT:
                self.routes.on_dro_gone(record.node_id, now_ns)
            else:
                self.routes.on_dro(record, now_ns)

    def _describe(self) -> None:
        self.exchange.describe(self.routes.own(), self.routes.signature, self.routes.held_until_ns)

    # time

    def _next_check_ns(self) -> int:
        return self.routes.next_check(self._checked_ns + 1)

    def next_deadline(self) -> int | None:
        check_ns = self._next_check_ns() if self.exchange.others else None
        deadlines = (check_ns, self.routes.next_deadline(), self.exchange.next_deadline())
        return min((d for d in deadlines if d is not None), default=None)

    def on_timer(self, now_ns: int) -> None:
        if now_ns >= self._next_check_ns():
            self._checked_ns = now_ns
            self.exchange.on_check(now_ns)
            self._take_news(now_ns)
            self._compare_signatures(now_ns)
            self._watch_links(now_ns)
        self.routes.on_timer(now_ns)
        self._deny(now_ns)
        self._describe()
        self.exchange.on_timer(now_ns)

    def _compare_signatures(self, now_ns: int) -> None:
        differing = self.exchange.differing(self.routes.signature) if self.routes.is_settled else []
        if not differing:
            self._differ_since_ns, self._is_warned = None, False
            return
        if self._differ_since_ns is None:
            self._differ_since_ns = now_ns
        waiting_ns = now_ns - self._differ_since_ns
        if not self._is_warned and waiting_ns >= self._timing.warning_ns:
            self._is_warned = True
            self._effects.append(SignaturesDiffer(waiting_ns, tuple(differing)))

    def _watch_links(self, now_ns: int) -> None:
        """Watch links that only one of two DROs lists, and that stay so; now and then, as there may be many."""
        if now_ns - self._links_seen_ns < self._timing.warning_ns // _LOOKS:
            return
        self._links_seen_ns = now_ns
        own = self.routes.own()
        records = {r.node_id: r for r in (own, *(other.record for other in self.exchange.others.values()))}
        ends = {r.node_id: {n.node_id for n in r.neighbours if not is_domain(n.node_id)} for r in records.values()}
        found = ((a, b) for a, bs in ends.items() for b in bs if a not in ends.get(b, ()))
        before = self._one_sided_ns
        self._one_sided_ns = {pair: before.get(pair, now_ns) for pair in islice(found, _ONE_SIDED_MAX)}
        for (a, b), since_ns in self._one_sided_ns.items():
            if since_ns is None or now_ns - since_ns < self._timing.warning_ns:
                continue
            self._one_sided_ns[a, b] = None
            there = records[b].name if b in records else ""
            reason = "the neighbour does not list it" if b in records else "the neighbour is not heard"
            self._effects.append(OneSidedLink(records[a].name or str(a), there or str(b), reason))

    def take_effects(self) -> list[CoreEffect]:
        effects: list[CoreEffect] = [*self.routes.take_effects(), *self.exchange.take_effects(), *self._effects]
        self._effects.clear()
        return effects
