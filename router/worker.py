"""The route manager's process: messages to the core, effects to the portals and the log."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, assert_never, cast

import msgpack

from dro.bus.actor import WorkerContext
from dro.bus.listing import PATH, ROUTES, TOPOLOGY, Listings, Row
from dro.bus.messages import (
    ROUTE_MESSAGES,
    LinkBusy,
    ListRows,
    PeerDown,
    PeerRemoved,
    PeerUp,
    PortalGone,
    PortalUp,
    Role,
    RouteInfoHeard,
    RoutesAvoid,
    RoutesCalculated,
    RouteTable,
    Rows,
    SendRouteInfo,
)
from dro.clock import NS_PER_MS, NS_PER_S, NS_PER_US
from dro.config.dro_xml.model import DroConfig
from dro.errors import DecodeError, LocalProtocolError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.metrics.slots import RouterSlot as Slot
from dro.os_errors import remedy_of
from dro.shares import ALL_SHARES
from dro.timers import Timer
from router.core import CoreEffect, OneSidedLink, OwnDro, RouteManagerCore, SignaturesDiffer
from router.counters import SLOT_OF, SLOT_OF_CHANGE
from router.listing import NoPathError, path_rows, route_rows, topology_rows
from router.own_portals import DomainTaken, LinkRefused
from router.route_info_exchange import USUAL, ExchangeTiming, InfoDropped, InfoDropReason, SendInfo
from router.route_recalculation import (
    ChainsLeftOut,
    IndexShared,
    KeptTable,
    SendTable,
    StillChanging,
    Timing,
    TopologyChange,
    TopologyChanged,
)
from router.settings import exchange_timing_of, own_dro, timing_of
from router.topology import domains

_EVENT_OF: Final = {
    TopologyChange.LINK_UP: LogEvent.LINK_UP,
    TopologyChange.LINK_DOWN: LogEvent.LINK_DOWN,
    TopologyChange.NODE_UPDATED: LogEvent.NODE_UPDATED,
    TopologyChange.DRO_DISCOVERED: LogEvent.DRO_DISCOVERED,
    TopologyChange.DRO_TIMED_OUT: LogEvent.DRO_TIMED_OUT,
    TopologyChange.FORCED: LogEvent.RECALCULATION_FORCED,
}
_LINKS: Final = (TopologyChange.LINK_UP, TopologyChange.LINK_DOWN)
_DROS_NAMED: Final = 10
"""In a line of the log."""
_REFUSED_REMEDY: Final = "two DROs can have one peer link: remove the other from both configurations"
_NODE_ID_REMEDY: Final = "find who speaks for this DRO there; of two DROs with one node id, restart one"
_DOUBTED_REMEDY: Final = "find who sends route information of that DRO into the TRD, or over that link"
_UNSIGNED_REMEDY: Final = "give all DROs of the network the same keys; else find who sends it there"
_CHAIN_REMEDY: Final = (
    "expected while one plane is down; else give <hotlink-index> to one redundant pair of networks only"
)
_INDEX_REMEDY: Final = "give each DRO of the TRD a <hotlink-index> of its own"
_ONE_SIDED_REMEDY: Final = "start the neighbour, or look at its tnwgdctl peers and topology"
_DIFFER_REMEDY: Final = "compare tnwgdctl topology of these DROs: some do not hear of each other"


class RouteManager:
    """The shell around one `RouteManagerCore`."""

    def __init__(self, ctx: WorkerContext, me: OwnDro, timing: Timing, exchange: ExchangeTiming) -> None:
        self._ctx = ctx
        self._core = RouteManagerCore(
            me, timing, exchange, incarnation=ctx.incarnation, now_ns=ctx.loop.now_ns(),
            version=ctx.counters[Slot.OWN_VERSION], sqn=ctx.counters[Slot.OWN_SQN], kept=_kept(ctx),
        )  # fmt: skip
        self._me = me
        self._timing = timing, exchange
        self._timer: Timer | None = None
        self._changes = LimitedLogger.of_events(ctx.log, ctx.loop.now_ns)
        self._took_ns = 0  # of the calculation that is under way or was made last
        ctx.channels.on_ctl = self._on_ctl
        ctx.on_peer_up = self._on_peer_up
        ctx.on_peer_down = self._on_peer_down
        ctx.on_reconfigure = self._on_reconfigure
        ctx.on_peer_removed = self._on_peer_removed
        ctx.on_recalculate = self._on_recalculate
        ctx.on_leave = self._on_leave
        self._is_leaving = False  # and has not said yet that routes avoid it
        self._listings = Listings(time.monotonic_ns)
        ctx.on_list = self._on_list

    def _on_ctl(self, worker: int, frame: bytes) -> None:
        try:
            message = ROUTE_MESSAGES.decode(frame)
        except DecodeError as e:
            raise LocalProtocolError(f"worker {worker} sent what is none of the route manager's: {e}") from e
        now_ns = self._ctx.loop.now_ns()
        match message:
            case PortalUp():
                self._core.on_portal_up(message, now_ns)
            case PortalGone():
                self._core.on_portal_gone(worker, now_ns)
            case RouteInfoHeard():
                self._ctx.counters.add(Slot.INFO_HEARD)
                self._core.on_route_info(worker, message.message, now_ns, (message.ip, message.port))
            case LinkBusy():
                self._core.on_link_busy(worker, now_ns)
            case RouteTable() | SendRouteInfo():
                raise LocalProtocolError(f"worker {worker} sent what the route manager sends")
            case _:
                assert_never(message)
        self._act()

    def _on_peer_up(self, peer: PeerUp) -> None:
        if peer.role is Role.ENDPOINT:  # a peer portal reports when it has a link, which may be never
            self._core.on_portal_expected(peer.worker, self._ctx.loop.now_ns())
            self._act()

    def _on_peer_down(self, peer: PeerDown) -> None:
        self._core.on_portal_gone(peer.worker, self._ctx.loop.now_ns(), restarts=True)
        self._act()

    def _on_peer_removed(self, peer: PeerRemoved) -> None:
        self._core.on_portal_gone(peer.worker, self._ctx.loop.now_ns())
        self._act()

    def _on_recalculate(self) -> None:
        self._core.force(self._ctx.loop.now_ns())
        self._act()

    def _on_leave(self) -> None:
        self._is_leaving = True
        self._core.leave(self._ctx.loop.now_ns())
        self._act()

    def _on_reconfigure(self, new: object) -> None:
        assert isinstance(new, DroConfig)
        timing = timing_of(new), exchange_timing_of(new)
        before, self._me = self._me, own_dro(new, self._me.node_id)
        self._core.set_timing(*timing, self._me.configuration_signature)
        self._core.set_authentication(self._me.authentication)
        self._core.set_sharing(self._me.sharing, self._ctx.loop.now_ns())
        changed = ["route_info", "route_recalculation"] if timing != self._timing else []
        changed += ["equal_cost_sharing"] if self._me.sharing != before.sharing else []
        changed += ["route_authentication"] if self._me.authentication != before.authentication else []
        if changed:
            self._timing = timing
            self._ctx.log.info(LogEvent.CONFIGURATION_CHANGED, extra={"changed": changed})
            self._act()

    def _on_list(self, question: ListRows) -> Rows:
        core, now_ns = self._core, self._ctx.loop.now_ns()
        lists: dict[str, Callable[[], Iterator[Row]]] = {
            ROUTES: lambda: route_rows(core, self._ctx.name_of),
            TOPOLOGY: lambda: topology_rows(core, self._portals(), now_ns),
            PATH: lambda: path_rows(core, question.text, self._ctx.name_of),
        }
        if question.what not in lists:
            return Rows(question.serial, "[]", 0, f"{self._ctx.name} lists no {question.what}")
        try:
            return self._listings.page(question, lists[question.what])
        except NoPathError as e:
            return Rows(question.serial, "[]", 0, str(e))

    def _portals(self) -> dict[int, str]:
        """Name the portals that run, by worker."""
        return {w: peer.name for w, peer in self._ctx.peers.items() if peer.role in (Role.ENDPOINT, Role.PEER)}

    def _on_timer(self) -> None:
        was_calculating = self._core.routes.is_calculating
        began_ns = time.perf_counter_ns()
        self._core.on_timer(self._ctx.loop.now_ns())
        spent_ns = time.perf_counter_ns() - began_ns
        self._took_ns = self._took_ns + spent_ns if was_calculating else spent_ns
        self._act()

    def _act(self) -> None:
        # first of all, so that no life of this process tells again what another has told
        self._ctx.counters.set(Slot.OWN_VERSION, self._core.routes.own_version)
        self._ctx.counters.set(Slot.OWN_SQN, self._core.exchange.sqn)
        for effect in self._core.take_effects():
            self._perform(effect)
        self._ctx.counters.set(Slot.SIGNATURE, self._core.exchange.topology)
        self._ctx.counters.set(Slot.BACKOFF, int(self._core.routes.is_put_off))
        if self._is_leaving and self._core.is_agreed:
            table = self._core.routes.table
            self._is_leaving = False
            self._ctx.report(RoutesAvoid(_pairs(table) if table is not None else 0))
        deadline = self._core.next_deadline()
        if deadline is not None:  # in the middle of a calculation: after all that has come meanwhile
            deadline = max(deadline, self._ctx.loop.now_ns() + 1)
        if self._timer is not None and self._timer.is_pending:
            if self._timer.when_ns == deadline:
                return
            self._timer.cancel()
        if deadline is not None:
            self._timer = self._ctx.loop.call_at(deadline, self._on_timer)

    def _perform(self, effect: CoreEffect) -> None:
        log = self._ctx.log
        match effect:
            case SendInfo():
                frame = ROUTE_MESSAGES.encode(SendRouteInfo(effect.message))
                self._ctx.counters.add(Slot.INFO_SENT, len(effect.workers))
                for worker in effect.workers:
                    self._ctx.channels.send_ctl(worker, frame)
            case SendTable():
                steps = self._send_table(effect)
                if effect.is_new:
                    self._ctx.loop.run_in_slices(steps)
                else:
                    deque(steps, maxlen=0)  # to one portal
            case InfoDropped():
                self._ctx.counters.add(SLOT_OF[effect.why])
                if effect.why not in USUAL:
                    self._log_dropped(effect)
            case TopologyChanged():
                self._log_change(effect)
            case StillChanging():
                log.warning(LogEvent.ROUTES_LATE, extra={"waiting_ms": effect.waiting_ns // NS_PER_MS})
            case SignaturesDiffer():
                own = f"{self._core.routes.signature:08x}"
                dros = [f"{_named(o.record.name, o.record.node_id)} {o.head.topology:08x}" for o in effect.dros]
                extra = {"waiting_ms": effect.waiting_ns // NS_PER_MS, "own": own, "remedy": _DIFFER_REMEDY}
                log.warning(LogEvent.SIGNATURES_DIFFER, extra=extra | {"dros": dros[:_DROS_NAMED]})
            case OneSidedLink():
                extra = {"dro": effect.dro, "neighbour": effect.neighbour, "reason": effect.reason}
                self._ctx.limited(LogEvent.LINK_ONE_SIDED, extra=extra | {"remedy": _ONE_SIDED_REMEDY})
            case DomainTaken():
                log.error(LogEvent.DOMAIN_TAKEN, extra={"worker": effect.worker, "domain": effect.domain_id})
            case LinkRefused():
                self._log_refused(effect)
            case IndexShared(shared):
                dros = [_named(self._core.routes.name_of(node), node) for node in shared.node_ids]
                extra = {"domain": shared.domain_id, "index": shared.index, "dros": dros, "remedy": _INDEX_REMEDY}
                log.error(LogEvent.HOTLINK_INDEX_SHARED, extra=extra)
            case ChainsLeftOut(pairs):
                shown = [f"{one} to {other}" for one, other in pairs[:_DROS_NAMED]]
                extra = {"pairs": shown, "count": len(pairs), "remedy": _CHAIN_REMEDY}
                log.warning(LogEvent.HOTLINK_CHAIN, extra=extra)
            case _:
                assert_never(effect)

    def _send_table(self, effect: SendTable) -> Iterator[None]:
        """Send tables portal by portal: those of a hub have many, with many routes each."""
        for worker, table in effect.parts(self._portals()):
            self._ctx.channels.send_ctl(worker, ROUTE_MESSAGES.encode(table))
            yield
        if not effect.is_new:
            return
        self._keep()
        pairs, graph = _pairs(effect.table), self._core.routes.graph
        self._ctx.report(RoutesCalculated(effect.table.version, pairs))
        gauges = {
            Slot.ROUTES: pairs,
            Slot.RECALCULATION_US: self._took_ns // NS_PER_US,
            Slot.NETWORK_DROS: len(self._core.routes.records()),
            Slot.NETWORK_TRDS: len(domains(graph)) if graph is not None else 0,
        }
        for slot, value in gauges.items():
            self._ctx.counters.set(slot, value)
        described = _describe(effect.table, self._took_ns)
        self._ctx.log.info(LogEvent.ROUTES_CALCULATED, extra=described)
        if self._took_ns > self._timing[1].propagation_ns:
            self._ctx.log.warning(LogEvent.ROUTES_SLOW, extra={"took_s": described["took_s"]})

    def _keep(self) -> None:
        kept = self._core.routes.kept
        assert kept is not None
        try:
            self._ctx.kept.put(msgpack.packb((kept.nodes, ROUTE_MESSAGES.encode(kept.table))))
        except OSError as e:
            self._ctx.limited(LogEvent.ROUTES_NOT_KEPT, extra={"reason": e.strerror, "remedy": remedy_of(e.errno)})

    def _log_change(self, effect: TopologyChanged) -> None:
        page = self._ctx.counters
        page.add(Slot.GRAPH_VERSION)
        page.add(SLOT_OF_CHANGE[effect.what])
        extra: dict[str, object] = {"version": page[Slot.GRAPH_VERSION], "route_version": _short(effect.version)}
        if effect.what is not TopologyChange.FORCED:
            extra["node_id"] = effect.node_id
            if effect.name or effect.what not in _LINKS:
                extra["node_name"] = effect.name
        self._changes.event(_EVENT_OF[effect.what], extra)

    def _log_refused(self, effect: LinkRefused) -> None:
        extra = {
            "portal": self._ctx.name_of(effect.worker), "node_id": effect.neighbour, "reason": effect.why,
            "remedy": _REFUSED_REMEDY,
        }  # fmt: skip
        if name := self._core.routes.name_of(effect.neighbour):
            self._ctx.log.error(LogEvent.NAMED_LINK_REFUSED, extra=extra | {"dro": name})
        else:
            self._ctx.log.error(LogEvent.LINK_REFUSED, extra=extra)

    def _log_dropped(self, effect: InfoDropped) -> None:
        portal, node_id = self._ctx.name_of(effect.worker), effect.node_id
        key = effect.why, effect.worker
        match effect.why:
            case InfoDropReason.MALFORMED:
                extra: dict[str, object] = {"portal": portal, "error": effect.detail}
                self._ctx.limited(LogEvent.ROUTE_INFO_MALFORMED, extra, key=key)
            case InfoDropReason.REFUSED:
                extra = {"portal": portal, "dro": effect.name, "node_id": node_id, "reason": effect.detail}
                self._ctx.limited(LogEvent.ROUTE_INFO_REFUSED, extra, key=key)
            case InfoDropReason.DOUBTED:
                extra = {"portal": portal, "dro": effect.name, "node_id": node_id, "remedy": _DOUBTED_REMEDY}
                self._ctx.limited(LogEvent.ROUTE_INFO_DENIED, extra, key=key)
            case InfoDropReason.UNAUTHENTIC:
                extra = {"portal": portal, "dro": effect.name, "node_id": node_id, "reason": effect.detail}
                self._ctx.limited(LogEvent.ROUTE_INFO_UNSIGNED, extra | {"remedy": _UNSIGNED_REMEDY}, key=key)
            case InfoDropReason.OWN_NODE_ID:
                extra = {"portal": portal, "node_id": node_id, "remedy": _NODE_ID_REMEDY}
                self._ctx.limited(LogEvent.NODE_ID_USED_TWICE, extra, key=key)
            case _:
                extra = {"portal": portal, "node_id": node_id, "reason": effect.detail}
                self._ctx.limited(LogEvent.TOO_MANY_DROS, extra, key=key)


def _kept(ctx: WorkerContext) -> KeptTable | None:
    """Read the table of the incarnation before: a portal that starts while there is no other gets it."""
    if (data := ctx.kept.get()) is None:
        return None
    kept = cast("list[Any]", msgpack.unpackb(data, strict_map_key=False))
    table = ROUTE_MESSAGES.decode(kept[1])
    assert isinstance(table, RouteTable)
    return KeptTable(kept[0], table)


def _named(name: str, node_id: int) -> str:
    return name or str(node_id)


def _pairs(table: RouteTable) -> int:
    """Return the number of pairs of domains with a route; trees may have several."""
    whole = [route for route in table.routes if route.shares == ALL_SHARES]
    parts = {(s, r.interested_domain) for r in table.routes if r.shares != ALL_SHARES for s in r.source_domains}
    return sum(len(route.source_domains) for route in whole) + len(parts)


def _short(version: int) -> str:
    return f"{version >> 32}.{version & 0xFFFF_FFFF}"


def _describe(table: RouteTable, took_ns: int) -> dict[str, object]:
    return {
        "took_s": f"{took_ns / NS_PER_S:.6f}",
        "route_version": _short(table.version),
        "routes": _pairs(table),
    }


def manager_of(ctx: WorkerContext, config: DroConfig) -> RouteManager:
    """Make the route manager as the configuration says."""
    me = own_dro(config, ctx.identity.dro_node_id)
    return RouteManager(ctx, me, timing_of(config), exchange_timing_of(config))


def run_route_manager(ctx: WorkerContext, config: DroConfig) -> None:
    """Main function of the worker."""
    manager_of(ctx, config)
    ctx.ready()
    ctx.run()
