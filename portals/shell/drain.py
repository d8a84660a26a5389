"""The shell of `portals.decisions.drain`: its timer, and its cores' view of the portal.

Drains of this portal and of siblings share one tick, which runs only while it is needed. They count, so what the core
has asked for is carried out before each look: a change of forwarding that waits would reopen what a handover closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dro.bus.actor import WorkerContext
from dro.clock import ms
from dro.log.events import LogEvent
from dro.table import Table
from dro.timers import Timer
from portals.datapath.egress import Egress
from portals.datapath.handover import ForwardEntry
from portals.datapath.ingress import Ingress
from portals.decisions.drain import TICK_NS, DrainCore, DrainHelp
from portals.decisions.engine import PortalEngine
from portals.decisions.messages import ForwardingStopped, HandoverAcked, HandoverEnded, PortalMessage, Withdraw
from portals.shell.link import Link


class DrainPortal:
    """Implements `portals.decisions.drain.DrainablePortal`. Raises nothing: what is irregular is left to the limit."""

    def __init__(
        self,
        ctx: WorkerContext,
        engine: PortalEngine,
        entries: Table[int, ForwardEntry],
        ingress: Ingress,
        egress: Egress,
        link: Link,
        on_over: Callable[[], object],
    ) -> None:
        """`on_over`: nothing is left to be forwarded."""
        self._ctx = ctx
        self._engine = engine
        self._entries = entries
        self._ingress = ingress
        self._on_over = on_over
        self.core = engine.core
        self.name, self.accounted = ctx.name_of, egress.accounted
        self.quiescence, self.finals_pending = link.quiescence, link.finals_pending
        self._help = DrainHelp(self)
        self._drain: DrainCore | None = None
        self._timer: Timer | None = None
        self.is_over = False

    # what happens to the portal

    @property
    def is_draining(self) -> bool:
        """The portal makes nothing new any more."""
        return self._drain is not None

    def on_drain(self, limit_ms: int) -> None:
        now_ns = self._ctx.loop.now_ns()
        limit_ns = now_ns + ms(limit_ms)
        if self._drain is None:
            self._ctx.log.info(LogEvent.DRAIN_BEGINS, extra={"limit_ms": limit_ms})
            self._engine.act_on_all()
            self._drain = DrainCore(self, limit_ns, end_delay_ns=self.core.deletion_delay.delay_ns)
        else:
            self._drain.on_again(limit_ns)
        self._on_tick()

    def on_message(self, worker: int, message: PortalMessage) -> None:
        """Take a message of a sibling; those that do not concern a drain are ignored."""
        match message:
            case Withdraw():
                self._engine.act_on_all()  # what it asked for before comes first
                self._help.on_withdraw(worker)
            case HandoverEnded(fragments=fragments):
                self._help.on_handover_ended(worker, fragments)
            case ForwardingStopped(fragments=fragments) if self._drain is not None:
                self._drain.on_forwarding_stopped(worker, fragments)
            case HandoverAcked() if self._drain is not None:
                self._drain.on_handover_acked(worker)
            case _:
                return
        self._arm()

    def on_sibling_down(self, worker: int) -> None:
        self._help.on_gone(worker)
        if self._drain is not None:
            self._drain.on_gone(worker)

    # time

    def _arm(self) -> None:
        is_needed = not self._help.is_idle or (self._drain is not None and not self.is_over)
        if is_needed and not self._ctx.is_stopping and (self._timer is None or not self._timer.is_pending):
            self._timer = self._ctx.loop.call_later(TICK_NS, self._on_tick)

    def _on_tick(self) -> None:
        if self._ctx.is_stopping:
            return
        self._engine.act_on_all()
        now_ns = self._ctx.loop.now_ns()
        self._help.on_tick(now_ns)
        if self._drain is not None:
            self._drain.on_tick(now_ns)
            if self._drain.is_over and not self.is_over:
                self.is_over = True
                self._on_over()
        self._engine.act()
        self._arm()

    # what the cores see

    def entries(self) -> Iterable[ForwardEntry]:
        return list(self._entries.values())

    def handed(self, worker: int) -> int:
        return self._ingress.handed(worker)[0]

    def close_sources(self) -> None:
        self.core.close_sources()
        self._engine.act_on_all()

    def drained(self, waiting: str) -> None:
        if waiting:
            self._ctx.log.warning(LogEvent.DRAIN_AT_LIMIT, extra={"waiting": waiting})
        else:
            self._ctx.log.info(LogEvent.DRAIN_OVER)
        self._ctx.drained(waiting)
