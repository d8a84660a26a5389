"""The shell of `portals.endpoint.drain` in an endpoint portal: its timer, and what the cores see of the portal.

Drains of this portal and help for siblings that are drained share one tick, which runs only while it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from dro.bus.actor import WorkerContext
from dro.bus.counters import CounterPage
from dro.clock import ms
from dro.timers import Timer
from dro.um.context_core import ContextCore, FragmentSource
from dro.um.joined import Joined
from dro.um.lbtrm_sender import LbtrmSender
from dro.um.tcp_io import TcpSender
from portals.counters import PairSlot
from portals.endpoint.core import EndpointCore
from portals.endpoint.drain import TICK_NS, DrainCore, DrainHelp
from portals.endpoint.egress import ProxySource
from portals.endpoint.handover import ForwardEntry
from portals.messages import PortalMessage, Released, Settle, Settled, Withdraw


class SendersAtRest:
    """Sessions of proxy sources after which nothing more has to be waited for, see `portals.endpoint.drain`."""

    def __init__(self, sources: Iterable[FragmentSource], linger_ns: int, now_ns: int, *, is_all: bool) -> None:
        """`is_all`: nothing new goes over these sessions, so kernel buffers will run empty as well."""
        senders = {id(source.sender): source.sender for source in sources}.values()
        self._until_ns = max(
            [s.core.busy_until(now_ns, linger_ns) for s in senders if isinstance(s, LbtrmSender)], default=now_ns
        )
        self._tcp = [(s, s.core.mark()) for s in senders if isinstance(s, TcpSender)]
        self._is_all = is_all

    @property
    def is_read_on(self) -> bool:
        return bool(self._tcp)

    def is_over(self, now_ns: int) -> bool:
        return now_ns >= self._until_ns and all(
            sender.core.has_passed(mark) and not (self._is_all and sender.has_unacknowledged())
            for sender, mark in self._tcp
        )


@dataclass(slots=True)
class PortalParts:
    """What the portal is made of, as far as it concerns its departure."""

    core: EndpointCore
    page: CounterPage
    entries: Mapping[int, ForwardEntry]
    proxies: Mapping[bytes, tuple[FragmentSource, ProxySource]]
    receiving: ContextCore
    sending: ContextCore
    linger_ns: Callable[[], int]
    end_delay_ns: Callable[[], int]  # from the end of a source to that of its proxy source
    act: Callable[[int], object]  # carry out what the core asks for
    on_over: Callable[[], object]  # the portal holds nothing any more


class Departure:
    """Implements `portals.endpoint.drain.Portal`. Raises nothing: what is odd is left to the limit."""

    def __init__(self, ctx: WorkerContext, parts: PortalParts) -> None:
        self._ctx = ctx
        self._parts = parts
        self._help = DrainHelp(self)
        self._drain: DrainCore | None = None
        self._timer: Timer | None = None
        self._was_over = False

    # what the portal is told

    @property
    def is_draining(self) -> bool:
        """The portal makes nothing new any more."""
        return self._drain is not None

    @property
    def is_over(self) -> bool:
        return self._was_over

    def on_drain(self, limit_ms: int) -> None:
        now_ns = self._ctx.loop.now_ns()
        limit_ns = now_ns + ms(limit_ms)
        if self._drain is None:
            self._ctx.log.info("drain begins", extra={"limit_ms": limit_ms})
            self._parts.act(now_ns)
            self._drain = DrainCore(self, limit_ns, end_delay_ns=self._parts.end_delay_ns())
        else:
            self._drain.on_again(limit_ns)
        self._on_tick()

    def on_message(self, worker: int, message: PortalMessage) -> None:
        """Of a sibling; those that do not concern a drain are ignored."""
        match message:
            case Withdraw():
                self._parts.act(self._ctx.loop.now_ns())  # what it asked for before comes first
                self._help.on_withdraw(worker)
            case Settle(fragments=fragments):
                self._help.on_settle(worker, fragments)
            case Released(fragments=fragments) if self._drain is not None:
                self._drain.on_released(worker, fragments)
            case Settled() if self._drain is not None:
                self._drain.on_settled(worker)
            case _:
                return
        self._arm()

    def on_sibling_down(self, worker: int) -> None:
        self._help.on_gone(worker)
        if self._drain is not None:
            self._drain.on_gone(worker)

    def stop(self) -> None:
        """The portal ends, drained or not."""
        if self._timer is not None:
            self._timer.cancel()

    # time

    def _arm(self) -> None:
        is_needed = not self._help.is_idle or (self._drain is not None and not self._was_over)
        if is_needed and not self._ctx.is_stopping and (self._timer is None or not self._timer.is_pending):
            self._timer = self._ctx.loop.call_later(TICK_NS, self._on_tick)

    def _on_tick(self) -> None:
        if self._ctx.is_stopping:
            return
        now_ns = self._ctx.loop.now_ns()
        self._help.on_tick(now_ns)
        if self._drain is not None:
            self._drain.on_tick(now_ns)
            if self._drain.is_over and not self._was_over:
                self._was_over = True
                self._parts.on_over()
        self._parts.act(now_ns)
        self._arm()

    # what the cores see

    @property
    def sessions(self) -> Joined:
        return self._parts.receiving.joined

    def entries(self) -> Iterable[ForwardEntry]:
        return list(self._parts.entries.values())

    def tell(self, worker: int, message: PortalMessage) -> None:
        self._parts.core.tell(worker, message)

    def name(self, worker: int) -> str:
        peer = self._ctx.peers.get(worker)
        return peer.name if peer is not None else f"worker {worker}"

    def handed(self, worker: int) -> int:
        page = self._parts.page
        base = page.pair(worker)
        return page[base + PairSlot.HANDED] - page[base + PairSlot.REFUSED]

    def accounted(self, worker: int) -> int:
        page = self._parts.page
        return page[page.pair(worker) + PairSlot.ACCOUNTED]

    def rest(self, worker: int | None) -> SendersAtRest:
        sources = [
            source
            for source, proxy in self._parts.proxies.values()
            if worker is None or (proxy.feeder is not None and proxy.feeder[0] == worker)
        ]
        return SendersAtRest(sources, self._parts.linger_ns(), self._ctx.loop.now_ns(), is_all=worker is None)

    def release(self, worker: int) -> None:
        self._parts.core.on_sibling_released(worker)

    def siblings(self) -> Iterable[int]:
        return self._parts.core.siblings

    def withdraw(self) -> None:
        self._parts.core.withdraw()

    def close_receivers(self) -> None:
        self._parts.core.close_receivers()

    def end_sources(self) -> None:
        self._parts.core.end_sources()

    def close_sources(self) -> None:
        self._parts.core.close_sources()
        self._parts.act(self._ctx.loop.now_ns())

    def finals_pending(self) -> int:
        return self._parts.sending.finals_pending

    def drained(self, waiting: str) -> None:
        if waiting:
            self._ctx.log.warning("drain ends at its limit", extra={"waiting": waiting})
        else:
            self._ctx.log.info("drain is over")
        self._ctx.drained(waiting)
