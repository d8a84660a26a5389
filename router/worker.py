"""The route manager's process: messages to the core, effects to the portals and the log."""

from __future__ import annotations

import time
from typing import assert_never

from dro.bus.actor import WorkerContext
from dro.bus.messages import ROUTE_MESSAGES, PeerDown, PeerRemoved, PortalGone, PortalUp, RouteTable
from dro.clock import NS_PER_MS, NS_PER_S, ms
from dro.config.model import DroConfig
from dro.errors import DecodeError, LocalProtocolError
from dro.timers import Timer
from router.core import DomainTaken, Effect, RouteCore, SendTable, StillChanging, Timing, TopologyChanged


class RouteManager:
    """The shell around one `RouteCore`."""

    def __init__(self, ctx: WorkerContext, timing: Timing) -> None:
        self._ctx = ctx
        self._core = RouteCore(ctx.identity.dro_node_id, timing, incarnation=ctx.incarnation, now_ns=ctx.loop.now_ns())
        self._timing = timing
        self._timer: Timer | None = None
        self._triggers = 0  # changes that led, or could have led, to a calculation
        self._took_ns = 0  # the last call of the core that may have calculated
        ctx.channels.on_ctl(self._hear)
        ctx.on_peer_down(self._on_peer_down)
        ctx.on_reconfigure(self._on_reconfigure)
        ctx.on_peer_removed(self._on_peer_removed)

    def _hear(self, worker: int, message: bytes) -> None:
        try:
            said = ROUTE_MESSAGES.decode(message)
        except DecodeError as e:
            raise LocalProtocolError(f"worker {worker} sent what is none of the route manager's: {e}") from e
        now_ns = self._ctx.loop.now_ns()
        match said:
            case PortalUp():
                self._core.on_portal_up(worker, said.domain_id, said.cost, now_ns)
            case PortalGone():
                self._core.on_portal_gone(worker, now_ns)
            case RouteTable():
                raise LocalProtocolError(f"worker {worker} sent a route table")
            case _:
                assert_never(said)
        self._act()

    def _on_peer_down(self, peer: PeerDown) -> None:
        self._core.on_portal_gone(peer.worker, self._ctx.loop.now_ns(), restarts=True)
        self._act()

    def _on_peer_removed(self, peer: PeerRemoved) -> None:
        self._core.on_portal_removed(peer.worker, self._ctx.loop.now_ns())
        self._act()

    def _on_reconfigure(self, new: object) -> None:
        assert isinstance(new, DroConfig)
        timing = timing_of(new)
        if timing != self._timing:
            self._timing = timing
            self._core.set_timing(timing)
            self._ctx.log.info("configuration changed", extra={"changed": ["route_info", "route_recalculation"]})
            self._act()

    def _on_timer(self) -> None:
        self._timer = None
        began_ns = time.perf_counter_ns()
        self._core.on_timer(self._ctx.loop.now_ns())
        self._took_ns = time.perf_counter_ns() - began_ns
        self._act()

    def _act(self) -> None:
        for effect in self._core.take_effects():
            self._perform(effect)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._core.next_deadline()
        if deadline is not None:
            self._timer = self._ctx.loop.call_at(deadline, self._on_timer)

    def _perform(self, effect: Effect) -> None:
        log = self._ctx.log
        match effect:
            case SendTable():
                frame = ROUTE_MESSAGES.encode(effect.table)
                for worker in effect.workers:
                    self._ctx.channels.send_ctl(worker, frame)
                if effect.is_new:
                    log.info("routes calculated", extra=_describe(effect.table, self._took_ns))
            case TopologyChanged():
                self._triggers += 1
                version = _short(effect.version)
                extra = {"version": self._triggers, "domain": effect.domain_id, "route_version": version}
                log.info(effect.what, extra=extra)
            case StillChanging():
                waiting_ms = effect.waiting_ns // NS_PER_MS
                log.warning("topology keeps changing, routes are late", extra={"waiting_ms": waiting_ms})
            case DomainTaken():
                extra = {"worker": effect.worker, "domain": effect.domain_id}
                log.error("two portals in one domain, the second is ignored", extra=extra)
            case _:
                assert_never(effect)


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
    ctx.run()
