"""The shell of every portal: connects its engine with the data path, the bus and the loop.

Its state is only external: rings of siblings, the own sources as the data path knows them, timers. What is done in
which order is in `portals.decisions.engine`.

Source: forwarding notes, sections 2 to 10.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from dro.bus.actor import WorkerContext
from dro.bus.descriptors import ADDRESSED, DescriptorWriter
from dro.bus.messages import (
    ROUTE_MANAGER,
    ROUTE_MESSAGES,
    ForwardsAgain,
    LinkBusy,
    PeerDown,
    PeerRemoved,
    PeerUp,
    PortalGone,
    PortalUp,
    Role,
    RouteInfoHeard,
    RouteMessage,
    RouteTable,
    SendRouteInfo,
)
from dro.bus.ring_size import ring_bytes
from dro.clock import NS_PER_US, ms, s
from dro.errors import LocalProtocolError, ResourceError
from dro.log.events import LogEvent
from dro.metrics.slots import Slot
from dro.proto.context.sources import BoundSource
from dro.table import Table
from dro.timers import Timer
from portals.datapath.addressed import AddressedData
from portals.datapath.egress import Egress
from portals.datapath.handover import ForwardEntry
from portals.datapath.ingress import Ingress
from portals.datapath.intake import Intake
from portals.decisions.core import PortalCore
from portals.decisions.effects import (
    ChangeForwarding,
    ExpireQueue,
    FeederEnded,
    HostEffect,
    InterestIgnored,
    ReadQueue,
    SendInitialState,
    SendToSibling,
    SourceIgnored,
    WhyIgnored,
)
from portals.decisions.engine import PortalEngine
from portals.decisions.messages import PortalHello, PortalMessage
from portals.decisions.relearning import CHECK_NS
from portals.shell.conversations import Conversations
from portals.shell.drain import DrainPortal
from portals.shell.gauges import count_interest, show_core
from portals.shell.kept_sources import KeptSources
from portals.shell.link import Link

GAUGES_NS: Final = ms(500)
GIVE_BACK_NS: Final = s(10)  # memory of the ring that was not needed for so long
RING_RETRY_NS: Final = s(1)  # Guess
BUSY_NS: Final = ms(500)
DELIVER_NS: Final = s(2)
"""What siblings announced while this portal was away waits for proxy sources and receivers no longer than that."""
GOES_ON_NS: Final = s(4)
"""That, of a portal that goes on: all of it has been there before. Queues of 4,032 batches hold about as much."""
KNOWN_NS: Final = s(2)
"""How long a portal that goes on waits for siblings to name the sources that they had from it."""
ROUTED_NS: Final = s(2)
"""How long a portal that goes on waits for routes to all proxy sources that it had: the route manager may be new."""
LOOK_NS: Final = ms(4)
"""Between two looks whether receivers have joined, or all is as before."""
_WAITS_REMEDY: Final = "let receivers share fewer patterns; see which there are with tnwgdctl interest"


class PortalShell:
    """Made before its link, which needs it; nothing happens before `start`."""

    def __init__(self, ctx: WorkerContext, core: PortalCore, max_queue_bytes: int) -> None:
        """Raises: ResourceError when the ring cannot be made."""
        self._ctx = ctx
        self.core = core
        self.now_ns, self.run_in_slices = ctx.loop.now_ns, ctx.loop.run_in_slices
        self.on_interest = partial(count_interest, page=ctx.counters)
        self.engine = PortalEngine(core, self)
        self.egress = Egress(ctx.counters, max_queue_bytes, ctx.loop.now_ns, ctx.loop.call_later, ctx.kept_state)
        self._ring = ring = ctx.create_ring(ring_bytes(max_queue_bytes))
        self._queues = DescriptorWriter(ring)
        self.ingress = Ingress(
            ring, ctx.counters, self._queues, self._wake, now_ns=ctx.loop.now_ns, name_of=ctx.name_of,
            at_turn_end=ctx.loop.at_turn_end, rows=ctx.kept_state.rows,
        )  # fmt: skip
        if ctx.goes_on:
            self.ingress.go_on(ctx.former_ring)
        ring.needs.append(self.ingress.has_placed)
        self.addressed = AddressedData(ring, ctx.counters, DescriptorWriter(ring, ADDRESSED), self._wake)
        self._intake = Intake(self.egress, self.addressed, ctx.counters, ctx.kept_state, ctx.forget_sibling_ring)
        self.entries: Table[int, ForwardEntry] = Table()  # own sources by handle
        self._siblings = Conversations(ctx, self._on_message, self.engine.act, lambda: self.engine.is_behind)
        self._route_manager: int | None = None
        self._busy_ns = -BUSY_NS  # when that was reported
        self._timer: Timer | None = None
        self._is_stopping = False
        self._acts_soon = False
        self._undelivered: set[int] = set()  # siblings whose proxy sources are open, while receivers join
        self._deliver_limit_ns = GOES_ON_NS if ctx.goes_on else DELIVER_NS
        self._deliver_ns = ctx.loop.now_ns() + self._deliver_limit_ns
        self._routed_ns = ctx.loop.now_ns() + ROUTED_NS  # from then on no proxy source is waited for
        self._kept_sources = KeptSources(ctx.kept_state, needs_join_info=ctx.role is Role.ENDPOINT)
        self._to_rejoin = self._kept_sources.former if ctx.goes_on else []
        self._is_rejoining = ctx.goes_on
        self._unmet: list[PeerUp] = []  # siblings that came up meanwhile
        self._gets_back = ctx.goes_on
        self._forwards_again = not ctx.goes_on
        self.on_forwards_again: Callable[[], object] = lambda: None
        """Called once in a portal that goes on: it forwards again what its former incarnation did."""
        self._readable: set[int] = set()  # siblings whose proxy sources were opened

    def start(self, link: Link) -> None:
        ctx = self._ctx
        self._link = link
        self.drain = DrainPortal(ctx, self.engine, self.entries, self.ingress, self.egress, link, self._on_drained)
        ctx.channels.on_ctl = self._on_ctl
        ctx.loop.add_poller(self._intake)
        ctx.on_peer_up = self._on_peer_up
        ctx.on_peer_down = self._on_peer_down
        ctx.on_peer_removed = self._on_peer_removed
        ctx.on_drain = self.drain.on_drain
        ctx.on_stop = self._on_stop
        self.core.rejoin(self._to_rejoin)
        self.engine.start(link)
        ctx.loop.call_later(GAUGES_NS, self._refresh_gauges)
        ctx.loop.call_later(CHECK_NS, self._check_relearnt)
        ctx.loop.call_later(GIVE_BACK_NS, self._give_back)
        if ctx.goes_on:
            ctx.loop.call_later(KNOWN_NS, self._forward_late)
            ctx.loop.call_later(LOOK_NS, self._report_again)

    # the bus

    def _wake(self, worker: int) -> None:
        if self._queues.must_wake(worker):
            self._ctx.channels.wake(worker)

    def _on_peer_up(self, peer: PeerUp) -> None:
        if peer.role is Role.ROUTE_MANAGER:
            self._route_manager = peer.worker
            self.report_up()
        elif peer.role in (Role.ENDPOINT, Role.PEER):
            meet = self._unmet.append if self._is_rejoining else self._on_sibling_up
            self._intake.when_gone(peer.worker, partial(meet, peer))

    def _on_sibling_up(self, peer: PeerUp) -> None:
        try:
            ring = self._ctx.open_ring(peer)
        except ResourceError as e:
            self._ctx.limited(LogEvent.RING_NOT_OPENED, extra={"sibling": peer.name, "error": str(e)})
            self._ctx.loop.call_later(RING_RETRY_NS, partial(self._on_ring_retry, peer))
            return
        now_ns = self._ctx.loop.now_ns()
        self._intake.add(peer.worker, ring, self._ctx.index, partial(self._ctx.former_sibling_rings, peer.worker))
        self._siblings.begin(peer.worker)
        handed, announced = self.ingress.handed(peer.worker), self._queues.announced(peer.worker)
        expired = self._queues.expired(peer.worker)
        self.core.on_sibling_up(peer.worker, peer.incarnation, *handed, now_ns, announced, expired)
        self._ctx.loop.call_later(self._deliver_limit_ns, partial(self._deliver_late, peer))
        self.engine.act()

    def _deliver_late(self, peer: PeerUp) -> None:
        if self._ctx.peers.get(peer.worker) is peer:
            self._intake.deliver(peer.worker)
        else:
            self._intake.leave(peer.worker)

    def _deliver(self) -> None:
        """Read what the siblings of `_undelivered` have announced when somebody hears it, or not in time."""
        now_ns = self._ctx.loop.now_ns()
        has_proxies = not self._ctx.goes_on or self.core.sources.has_all_had or now_ns >= self._routed_ns
        if now_ns >= self._deliver_ns or (has_proxies and self._link.can_deliver(now_ns)):
            while self._undelivered:
                self._intake.deliver(self._undelivered.pop())
        elif not self._is_stopping:
            self._ctx.loop.call_later(LOOK_NS, self._deliver)

    def _on_ring_retry(self, peer: PeerUp) -> None:
        if self._ctx.peers.get(peer.worker) is peer and not self._ctx.is_stopping:
            self._siblings.keep_waiting(peer.worker)
            self._on_sibling_up(peer)

    def report_up(self) -> None:
        """Report to the route manager that the portal works, and at which cost."""
        self.report(self._link.describe())

    def report(self, portal: PortalUp | PortalGone) -> None:
        """Report to the route manager, unless the portal is drained."""
        if not self.drain.is_over:
            self._report(portal)

    def report_busy(self) -> None:
        """Report to the route manager, now and then, that a link has more to read than there is time for."""
        now_ns = self._ctx.loop.now_ns()
        if now_ns - self._busy_ns >= BUSY_NS:
            self._busy_ns = now_ns
            self._report(LinkBusy(self._ctx.index))

    def report_route_info(self, message: bytes, ip: int = 0, port: int = 0) -> None:
        """Report to the route manager what another DRO says, an LBMC message; in a TRD, by a connection from there."""
        self._report(RouteInfoHeard(self._ctx.index, message, ip, port))

    def _report(self, message: RouteMessage) -> None:
        if self._route_manager is not None:
            self._ctx.channels.send_ctl(self._route_manager, ROUTE_MESSAGES.encode(message))

    def _on_peer_down(self, peer: PeerDown) -> None:
        if peer.worker == self._route_manager:
            self._route_manager = None  # the routes that it gave hold until it is back
            return
        self._siblings.end(peer.worker)
        self._readable.discard(peer.worker)
        was_met = peer.worker in self._intake
        self._intake.remove(peer.worker)
        if not was_met:
            return
        self.drain.on_sibling_down(peer.worker)
        self.core.on_sibling_down(peer.worker, self._ctx.loop.now_ns())
        self.engine.act()

    def _on_peer_removed(self, peer: PeerRemoved) -> None:
        self.core.on_sibling_removed(peer.worker, self._ctx.loop.now_ns())
        self.engine.act()

    def _on_ctl(self, worker: int, frame: bytes) -> None:
        if worker != ROUTE_MANAGER:
            self._siblings.on_frame(worker, frame)
            return
        match message := ROUTE_MESSAGES.decode(frame):
            case RouteTable():
                self._on_routes(message)
            case SendRouteInfo(message=info):
                self._link.on_route_info(info)
            case _:
                raise LocalProtocolError("the route manager sent what is for the route manager")

    def _on_routes(self, table: RouteTable) -> None:
        began_ns = time.perf_counter_ns()
        self.engine.on_routes(table)
        self._show_duration(Slot.PROXY_RECALCULATION_US, began_ns)
        began_ns = time.perf_counter_ns()
        self.engine.on_paths(table)
        self._show_duration(Slot.INTEREST_RECALCULATION_US, began_ns)

    def _show_duration(self, slot: Slot, began_ns: int) -> None:
        """Show how long it took, as far as it is done at once; the rest goes on in slices."""
        self._ctx.counters.set(slot, (time.perf_counter_ns() - began_ns) // NS_PER_US)

    def _on_message(self, worker: int, message: PortalMessage) -> None:
        if isinstance(message, PortalHello):
            compare = partial(self._compare, worker, message)
            self._intake.on_hello(worker, message.announced, compare, message.expired)
        peer = self._ctx.peers.get(worker)
        if peer is not None:
            self.core.on_message(worker, peer.incarnation, message, self._ctx.loop.now_ns())
            self.drain.on_message(worker, message)
            self.act_soon()

    def is_catching_up(self) -> bool:
        """A sibling has said more at once than has been worked off, as after the start."""
        return self._siblings.is_behind

    def _compare(self, worker: int, hello: PortalHello) -> None:
        """Compare what the sibling had handed over before its greeting with what has come of it."""
        lost = self.egress.reconcile(worker, hello.forwarded, hello.forwarded_bytes)
        if lost:
            self._ctx.log.info(LogEvent.FRAGMENTS_LOST, extra={"sibling": self._ctx.name_of(worker), "fragments": lost})

    # own sources, which the link joins

    def add_source(
        self,
        source: BoundSource[ForwardEntry],
        domain_id: int,
        hop_count: int,
        cost: int,
        pass_through: bytes,
        join_info: bytes = b"",
    ) -> None:
        handle = self.core.own.add(source.otid, source.topic, domain_id, hop_count, cost, pass_through, join_info)
        source.user = self.entries[handle] = entry = ForwardEntry(handle, source)
        entry.want(self.core.own.getting(handle))  # at once: its data may follow in this turn
        self.act_soon()

    def move_source(self, before: BoundSource[ForwardEntry], now: BoundSource[ForwardEntry]) -> None:
        """The same source by another session: it keeps its handle and the siblings that want it."""
        if (entry := before.user) is not None:
            before.user, now.user, entry.source = None, entry, now

    def change_source(
        self, source: BoundSource[ForwardEntry], hop_count: int, cost: int, pass_through: bytes, join_info: bytes = b""
    ) -> None:
        """Take changed attributes of a source; one that was not added is fine."""
        if (entry := source.user) is not None:
            self.core.own.change(entry.handle, hop_count, cost, pass_through, join_info)
            self._keep_source(entry.handle, entry.egress)
            self.act_soon()

    def remove_source(self, source: BoundSource[ForwardEntry]) -> None:
        """Remove a source; one that was not added is fine."""
        if (entry := source.user) is not None:
            source.user = None
            self.entries.pop(entry.handle, None)
            self.core.own.end(entry.handle)
            self._kept_sources.forget(entry.handle)
            self.act_soon()

    def _keep_source(self, handle: int, workers: Collection[int]) -> None:
        if (seen := self.core.own.seen.get(handle)) is not None:
            self._kept_sources.keep(seen, workers)

    # what is to be done

    def act_soon(self) -> None:
        """Act once for all messages and packets of this turn: an exchange is hundreds of them."""
        if not self._acts_soon:
            self._acts_soon = True
            self._ctx.loop.call_soon(self._on_soon)

    def _on_soon(self) -> None:
        self._acts_soon = False
        self.engine.on_due()

    def _on_rejoined(self) -> None:
        """Go on as the former incarnation did, also for siblings that are down, and meet those that are up."""
        self._is_rejoining = False
        for worker in sorted({worker for _, workers in self._to_rejoin for worker in workers}):
            self.core.on_sibling_down(worker, self._ctx.loop.now_ns())
        if self._kept_sources.is_whole:
            self._forward_again()
        unmet, self._unmet = self._unmet, []
        for peer in unmet:
            if self._ctx.peers.get(peer.worker) is peer:
                self._on_sibling_up(peer)
        self.act_soon()

    def _look_whether_it_forwards(self) -> None:
        """Look whether all siblings have named the sources that they had from here, and these are joined."""
        if self._has_heard_all():
            self._ctx.hear_parent()  # of siblings that are up as well
            if self._has_heard_all():
                self._forward_again()

    def _siblings_up(self) -> list[int]:
        return [peer.worker for peer in self._ctx.peers.values() if peer.role in (Role.ENDPOINT, Role.PEER)]

    def _has_heard_all(self) -> bool:
        up = self._siblings_up()
        return bool(up) and self.engine.is_quiet and all(map(self.core.siblings.has_sent_known_sources, up))

    def has_proxies_again(self) -> bool:
        """Say whether the proxy sources that siblings fed in a former incarnation of this portal are open."""
        up = self._siblings_up()
        return bool(up) and self.engine.is_quiet and self._readable.issuperset(up)

    def _forward_late(self) -> None:
        """Wait no longer for siblings; but for what is being joined, as data of it would be lost."""
        if self._is_rejoining and self._ctx.loop.now_ns() < self._deliver_ns:
            self._ctx.loop.call_later(LOOK_NS, self._forward_late)
        else:
            self._forward_again()

    def _forward_again(self) -> None:
        if not self._forwards_again:
            self._forwards_again = True
            self.on_forwards_again()

    @property
    def is_returning(self) -> bool:
        """Whether siblings still give the portal back what it had, and it has not been waited for that too long."""
        return self._gets_back and self._siblings.is_behind

    def _report_again(self) -> None:
        """Report that the portal is where its former incarnation was, to siblings too, or does not wait any longer."""
        ctx, up = self._ctx, self._siblings_up()
        is_there = ctx.is_ready and self._forwards_again and bool(up) and all(map(self._intake.delivers, up))
        if is_there or ctx.loop.now_ns() >= self._deliver_ns:
            self._gets_back = False
            self.act_soon()
            ctx.report(ForwardsAgain())
        elif not self._is_stopping:
            ctx.loop.call_later(LOOK_NS, self._report_again)

    def on_acted(self) -> None:
        self._siblings.send()
        if self._is_rejoining and self.engine.is_quiet:
            self._on_rejoined()
        if not self._forwards_again:
            self._look_whether_it_forwards()
        deadline = self.engine.next_deadline()
        if self._timer is not None and self._timer.is_pending:
            if self._timer.when_ns == deadline:
                return
            self._timer.cancel()
        if deadline is None or self._is_stopping:
            return
        if deadline <= self._ctx.loop.now_ns():
            self.act_soon()  # more than the part does at once
        else:
            self._timer = self._ctx.loop.call_at(deadline, self.engine.on_due)

    def perform(self, effect: HostEffect) -> None:
        match effect:
            case SendToSibling(worker=worker, message=message, then=then):
                self._siblings.enqueue(worker, message, None if then is None else partial(self.engine.carry_out, then))
            case SendInitialState(worker=worker, messages=messages):
                self._siblings.enqueue_all(worker, messages)
            case ChangeForwarding(handle=handle, workers=workers):
                if (entry := self.entries.get(handle)) is not None:
                    entry.want(workers)
                    self._keep_source(handle, workers)
            case ReadQueue(worker=worker):
                self._readable.add(worker)
                self._undelivered.add(worker)
                if len(self._undelivered) == 1:
                    self._deliver()
            case ExpireQueue(worker=worker):
                self.ingress.flush()
                self._queues.expire(worker)
            case FeederEnded(worker=worker, handle=handle):
                self.egress.on_feeder_ended(worker, handle)
            case InterestIgnored(name=name, waits=waits):
                if waits:
                    self._ctx.limited(LogEvent.PATTERN_WAITS, extra={"symbol": name[:80], "remedy": _WAITS_REMEDY})
                else:
                    self._ctx.limited(LogEvent.INTEREST_WITHOUT_NAME, extra={"symbol": name[:80]})
            case SourceIgnored(why=why, otid=otid, topic=topic):
                extra = {"topic": topic.decode(errors="replace")}
                if why is WhyIgnored.TOO_MANY_HOPS:
                    self._ctx.limited(LogEvent.SOURCE_HOPS, extra=extra)
                else:
                    self._ctx.limited(LogEvent.SOURCE_OTHER_TOPIC, extra={"otid": otid.hex()} | extra)

    def _check_relearnt(self) -> None:
        if self._is_stopping:
            return
        if not self.engine.check_relearnt():
            self._ctx.loop.call_later(CHECK_NS, self._check_relearnt)
            return
        for source, _ in self._to_rejoin:
            if source.handle not in self.entries:
                self._kept_sources.forget(source.handle)
        self._to_rejoin = []
        self._ctx.forget_former_rings()
        self.egress.logs.forget_former()

    # the end

    def _on_drained(self) -> None:
        """Take the portal out of all routes, as nothing is left to be forwarded."""
        self._report(PortalGone(self._ctx.index))
        self._link.on_routes(set(), self._ctx.loop.now_ns())

    def _on_stop(self) -> None:
        """Take the proxy sources back, as far as the grace period goes; nothing is opened from now on."""
        self._is_stopping = True
        self.core.withdraw()
        self.engine.act_on_all()
        self._ctx.loop.call_later(self._link.stop(), self._finish)

    def _finish(self) -> None:
        self._link.close()
        self._ctx.finish()

    def _give_back(self) -> None:
        self._ring.give_back()
        self._ctx.loop.call_later(GIVE_BACK_NS, self._give_back)

    # gauges

    def _refresh_gauges(self) -> None:
        self.refresh_gauges()
        if not self._is_stopping:
            self._ctx.loop.call_later(GAUGES_NS, self._refresh_gauges)

    def refresh_gauges(self) -> None:
        show_core(self.core, self._ctx.counters)
        self.egress.queue.count_blocked()
        self._ctx.counters.set(Slot.REPORTS_WAITING, self._siblings.waiting)
        self._link.refresh_gauges()
