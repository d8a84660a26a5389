"""The route manager's process: messages to the core, effects to the portals and the log."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final, assert_never

from dro.bus.actor import WorkerContext
from dro.bus.counters import show_longest_turn
from dro.bus.listing import ROUTES, Listings, RouteRow, Row
from dro.bus.messages import (
    ROUTE_MESSAGES,
    ListRows,
    PeerDown,
    PeerRemoved,
    PeerUp,
    PortalGone,
    PortalUp,
    Role,
    Route,
    RouteInfoHeard,
    RoutesCalculated,
    RouteTable,
    Rows,
    SendRouteInfo,
)
from dro.clock import NS_PER_MS, NS_PER_S, ms, s
from dro.config.dro_xml.model import DroConfig
from dro.errors import DecodeError, LocalProtocolError
from dro.log.events import LogEvent
from dro.timers import Timer
from router.route_recalculation import (
    Change,
    DomainTaken,
    Effect,
    RouteCore,
    SendTable,
    StillChanging,
    Timing,
    TopologyChanged,
)

SHOW_NS: Final = s(1)
_EVENT_OF: Final = {
    Change.LINK_UP: LogEvent.LINK_UP,
    Change.LINK_DOWN: LogEvent.LINK_DOWN,
    Change.NODE_UPDATED: LogEvent.NODE_UPDATED,
}


class RouteManager:
    """The shell around one `RouteCore`."""

    def __init__(self, ctx: WorkerContext, timing: Timing) -> None:
        self._ctx = ctx
        self._core = RouteCore(ctx.identity.dro_node_id, timing, incarnation=ctx.incarnation, now_ns=ctx.loop.now_ns())
        self._timing = timing
        self._timer: Timer | None = None
        self._triggers = 0  # changes that led, or could have led, to a calculation
        self._took_ns = 0  # the last call of the core that may have calculated
        ctx.channels.on_ctl = self._on_ctl
        ctx.on_peer_up = self._on_peer_up
        ctx.on_peer_down = self._on_peer_down
        ctx.on_reconfigure = self._on_reconfigure
        ctx.on_peer_removed = self._on_peer_removed
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
                self._core.on_portal_up(worker, message.domain_id, message.cost, now_ns)
            case PortalGone():
                self._core.on_portal_gone(worker, now_ns)
            case RouteInfoHeard():
                pass
            case RouteTable() | SendRouteInfo():
                raise LocalProtocolError(f"worker {worker} sent what the route manager sends")
            case _:
                assert_never(message)
        self._act()

    def _on_peer_up(self, peer: PeerUp) -> None:
        if peer.role is Role.ENDPOINT:
            self._core.on_portal_expected(peer.worker, self._ctx.loop.now_ns())
            self._act()

    def _on_peer_down(self, peer: PeerDown) -> None:
        self._core.on_portal_gone(peer.worker, self._ctx.loop.now_ns(), restarts=True)
        self._act()

    def _on_peer_removed(self, peer: PeerRemoved) -> None:
        self._core.on_portal_gone(peer.worker, self._ctx.loop.now_ns())
        self._act()

    def _on_reconfigure(self, new: object) -> None:
        assert isinstance(new, DroConfig)
        timing = timing_of(new)
        if timing != self._timing:
            self._timing = timing
            self._core.set_timing(timing)
            self._ctx.log.info(LogEvent.CONFIGURATION_CHANGED, extra={"changed": ["route_info", "route_recalculation"]})
            self._act()

    def _on_list(self, question: ListRows) -> Rows:
        if question.what != ROUTES:
            return Rows(question.serial, "[]", 0, f"{self._ctx.name} lists no {question.what}")
        return self._listings.page(question, self._rows)

    def _rows(self) -> Iterator[Row]:
        for route in self._core.table.routes if self._core.table is not None else ():
            ingress, egress = self._ctx.name_of(route.ingress), self._ctx.name_of(route.egress)
            for source in route.source_domains:
                yield RouteRow(source, route.interested_domain, ingress, egress)

    def _on_timer(self) -> None:
        began_ns = time.perf_counter_ns()
        self._core.on_timer(self._ctx.loop.now_ns())
        self._took_ns = time.perf_counter_ns() - began_ns
        self._act()

    def _act(self) -> None:
        for effect in self._core.take_effects():
            self._perform(effect)
        if self._timer is not None:
            self._timer.cancel()
        deadline = self._core.next_deadline()
        if deadline is not None:
            self._timer = self._ctx.loop.call_at(deadline, self._on_timer)

    def _perform(self, effect: Effect) -> None:
        log = self._ctx.log
        match effect:
            case SendTable():
                for worker, table in _parts(effect):
                    self._ctx.channels.send_ctl(worker, ROUTE_MESSAGES.encode(table))
                if effect.is_new:
                    self._ctx.report(RoutesCalculated(effect.table.version, len(effect.table.routes)))
                    log.info(LogEvent.ROUTES_CALCULATED, extra=_describe(effect.table, self._took_ns))
            case TopologyChanged():
                self._triggers += 1
                version = _short(effect.version)
                extra = {"version": self._triggers, "domain": effect.domain_id, "route_version": version}
                log.info(_EVENT_OF[effect.what], extra=extra)
            case StillChanging():
                log.warning(LogEvent.ROUTES_LATE, extra={"waiting_ms": effect.waiting_ns // NS_PER_MS})
            case DomainTaken():
                log.error(LogEvent.DOMAIN_TAKEN, extra={"worker": effect.worker, "domain": effect.domain_id})
            case _:
                assert_never(effect)


def _parts(effect: SendTable) -> Iterator[tuple[int, RouteTable]]:
    """Of the table, what each worker needs: the routes that enter or leave the DRO at it."""
    own: dict[int, list[Route]] = {worker: [] for worker in effect.workers}
    for route in effect.table.routes:
        for worker in (route.ingress, route.egress):
            if worker in own:
                own[worker].append(route)
    for worker, routes in own.items():
        yield worker, RouteTable(effect.table.version, tuple(routes))


def _short(version: int) -> str:
    return f"{version >> 32}.{version & 0xFFFF_FFFF}"


def _describe(table: RouteTable, took_ns: int) -> dict[str, object]:
    return {
        "took_s": f"{took_ns / NS_PER_S:.6f}",
        "route_version": _short(table.version),
        "routes": len(table.routes),
    }


def timing_of(config: DroConfig) -> Timing:
    """`<route-info check-interval>` and `<route-recalculation>`."""
    daemon = config.daemon
    return Timing(
        check_ns=ms(daemon.route_info.check_interval_ms),
        backoff_ns=ms(daemon.route_recalculation.backoff_interval_ms),
        warning_ns=ms(daemon.route_recalculation.warning_interval_ms),
    )


def run_route_manager(ctx: WorkerContext, config: DroConfig) -> None:
    """Main function of the worker."""
    RouteManager(ctx, timing_of(config))
    ctx.ready()
    show_turns(ctx)
    ctx.run()


def show_turns(ctx: WorkerContext) -> None:
    """Its page has its longest turn, from now on."""
    show_longest_turn(ctx.counters, ctx.loop)
    ctx.loop.call_later(SHOW_NS, lambda: show_turns(ctx))
