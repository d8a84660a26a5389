"""An endpoint portal as a process: two UM contexts in its TRD, the data path, and the core that decides.

State here is only what belongs to the outside: contexts, proxies as objects, rings. What is wanted is decided by
`EndpointCore` (proxies and forwarding) and `TrdInterest` (interest of the TRD); this module carries it out.

Source: DRO guide, chapters 2, 3 and 5.4.2; forwarding notes, sections 2 to 10.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from dro.bus.actor import WorkerContext
from dro.bus.messages import ROUTE_MESSAGES, PeerDown, PeerRemoved, PeerUp, PortalGone, PortalUp, Role, RouteTable
from dro.bus.ring import RingReader
from dro.clock import ms
from dro.config.model import DroConfig, EndpointConfig
from dro.config.um_sets import LbtrmReceiverOptions, ResolverOptions
from dro.errors import DecodeError, ResourceError
from dro.log import LimitedLogger
from dro.timers import Timer
from dro.um import sockets
from dro.um.context_core import ContextCore, FragmentSource
from dro.um.patterns import PatternError, compile_pattern
from dro.um.runs import Run
from dro.um.session import BoundSource, ReceiverTransport
from dro.wire import lbmr
from dro.wire.source_string import TransportAddress
from portals.counters import PairSlot
from portals.endpoint import live
from portals.endpoint.access import Access
from portals.endpoint.advertisement import is_name, pass_through_of, proxy_options
from portals.endpoint.core import EndpointCore, Matcher
from portals.endpoint.departure import Departure, PortalParts
from portals.endpoint.effects import (
    ChangeForwarding,
    CloseProxyReceiver,
    CloseProxySource,
    Effect,
    FeedProxySource,
    OpenProxyReceiver,
    OpenProxySource,
    StarveProxySource,
    Tell,
    UpdateProxyReceiver,
    UpdateProxySource,
)
from portals.endpoint.egress import Egress, ProxySource
from portals.endpoint.gauges import Gauges
from portals.endpoint.handover import ForwardEntry
from portals.endpoint.ingress import Ingress
from portals.endpoint.interest import InterestChange, TrdInterest
from portals.endpoint.options import ProxyOptions
from portals.messages import PATTERN_NONE, PORTAL_MESSAGES, PortalHello, SourceSeen
from portals.window import SequenceWindow

RING_MIN_BYTES: Final = 16 << 20
RING_PER_QUEUE: Final = 4  # the ring is this many times as large as <max-queue>
CHUNK_MAX_BYTES: Final = 1 << 20
FIRST_PORTAL_TAG: Final = 32
GAUGES_NS: Final = ms(500)
STOP_GRACE_NS: Final = ms(1800)
"""A stopping portal advertises the end of its proxy sources for so long; all final advertisements take 1.5 s."""
DRO_SOURCE: Final = 1


class EndpointPortal:
    """The shell. Implements `dro.um.session.FragmentSink` for the receiving context."""

    def __init__(self, ctx: WorkerContext, config: EndpointConfig) -> None:
        """Raises: ResourceError when a port or group cannot be had."""
        self._ctx = ctx
        self._config = config
        self._page = ctx.counters
        loop = ctx.loop
        now_ns = loop.now_ns()
        ring = ctx.create_ring(max(RING_MIN_BYTES, RING_PER_QUEUE * config.max_queue_bytes))
        self._ingress = Ingress(ring, self._page, ctx.channels.send_data, chunk_max_bytes=CHUNK_MAX_BYTES)
        self._egress = Egress(self._page, config.max_queue_bytes, loop.now_ns)
        self._egress.reconcile_own_restart()
        self._options = ProxyOptions(config.sending, config.receiving)
        self._access = Access(config.acl, sending=config.sending, receiving=config.receiving)
        self._core = EndpointCore(
            ctx.index,
            ctx.incarnation,
            config.domain_id,
            source_deletion_delay_ns=ms(config.source_deletion_delay_ms),
            matcher=self._matcher,
            access=self._access,
        )
        self._matchers: WeakValueDictionary[tuple[bytes, int], Matcher] = WeakValueDictionary()  # of living patterns
        self._rings: dict[int, RingReader] = {}
        self._entries: dict[int, ForwardEntry] = {}
        self._proxies: dict[bytes, tuple[FragmentSource, ProxySource]] = {}
        self._offers: dict[bytes, SourceSeen] = {}  # what each proxy source was made or changed from last
        self._route_manager: int | None = None
        self._timer: Timer | None = None
        self._interest_timer: Timer | None = None
        self._is_stopping = False
        self._events = LimitedLogger.of_events(ctx.log, loop.now_ns)
        self._is_acting = False
        self._acts_soon = False
        rng = random.Random()
        self._src = ContextCore(
            config.sending.context(), loop, sink=self, source_type=DRO_SOURCE, domain_id=config.domain_id, rng=rng,
            name=f"{config.name}_src_ctx", sm_before_data=True, hears_sources=False,
        )  # fmt: skip
        self._rcv = ContextCore(
            config.receiving.context(), loop, sink=self, source_type=DRO_SOURCE, domain_id=config.domain_id, rng=rng,
            name=f"{config.name}_rcv_ctx",
        )  # fmt: skip
        for context in (self._src, self._rcv):
            extra = {
                "address": sockets.ip_text(context.request_address[0]),
                "context_id": context.context_id,
                "context": context.name,
            }
            ctx.log.info("context created", extra=extra)
        self._judge_sources()
        self._src.ignore_source_ids.add(self._rcv.context_instance)
        self._rcv.ignore_source_ids.add(self._src.context_instance)
        self._rcv.on_tr_packet = self._on_tr_packet
        self._rcv.on_source_changed = self._on_source_changed
        self._linger_ns = LbtrmReceiverOptions.of(config.receiving.context()).generation_ns
        self._interest = TrdInterest(
            config,
            self._rcv.packet_options,
            ResolverOptions.of(config.receiving.context()).receiver_datagram_max_bytes,
            self._src.request_address,
            rng,
            now_ns,
        )
        self._gauges = Gauges(self._page, self._core, self._interest, self._rcv, self._src)
        ctx.channels.on_ctl(self._on_ctl)
        ctx.channels.on_data(self._on_data)
        ctx.on_peer_up(self._on_peer_up)
        ctx.on_peer_down(self._on_peer_down)
        ctx.on_peer_removed(self._on_peer_removed)
        self._departure = Departure(
            ctx,
            PortalParts(
                core=self._core,
                page=self._page,
                entries=self._entries,
                proxies=self._proxies,
                receiving=self._rcv,
                sending=self._src,
                linger_ns=lambda: self._linger_ns,
                end_delay_ns=lambda: ms(self._config.source_deletion_delay_ms),
                act=self._act,
                on_over=self._on_drained,
            ),
        )
        ctx.on_drain(self._departure.on_drain)
        ctx.on_stop(self._on_stop)
        ctx.on_reconfigure(self._on_reconfigure)
        self._act(now_ns)
        loop.call_later(GAUGES_NS, self._refresh_gauges)

    # the bus

    def _on_peer_up(self, peer: PeerUp) -> None:
        now_ns = self._ctx.loop.now_ns()
        if peer.role is Role.ROUTE_MANAGER:
            self._route_manager = peer.worker
            self._tell_cost()
            return
        if peer.role not in (Role.ENDPOINT, Role.PEER):
            return
        try:
            self._rings[peer.worker] = self._ctx.open_ring(peer)
        except ResourceError as e:
            self._ctx.log.warning("ring of a sibling cannot be opened", extra={"sibling": peer.name, "error": str(e)})
            return
        self._egress.on_ring(peer.worker, self._rings[peer.worker])
        base = self._page.pair(peer.worker)
        page = self._page
        self._core.on_sibling_up(
            peer.worker,
            peer.incarnation,
            page[base + PairSlot.HANDED] - page[base + PairSlot.REFUSED],
            page[base + PairSlot.HANDED_BYTES] - page[base + PairSlot.REFUSED_BYTES],
            now_ns,
        )
        self._act(now_ns)

    def _tell_cost(self) -> None:
        if self._route_manager is not None and not self._departure.is_over:
            up = PortalUp(self._ctx.index, self._config.domain_id, self._config.cost)
            self._ctx.channels.send_ctl(self._route_manager, ROUTE_MESSAGES.encode(up))

    def _on_peer_down(self, peer: PeerDown) -> None:
        if peer.worker == self._route_manager:
            self._route_manager = None  # the routes that it gave hold until it is back
            return
        ring = self._rings.pop(peer.worker, None)
        if ring is None:
            return
        self._egress.on_ring(peer.worker, None)
        ring.close()
        now_ns = self._ctx.loop.now_ns()
        self._departure.on_sibling_down(peer.worker)
        self._core.on_sibling_down(peer.worker, now_ns)
        self._act(now_ns)

    def _on_peer_removed(self, peer: PeerRemoved) -> None:
        now_ns = self._ctx.loop.now_ns()
        self._core.on_sibling_removed(peer.worker, now_ns)
        self._act(now_ns)

    def _on_ctl(self, worker: int, frame: bytes) -> None:
        now_ns = self._ctx.loop.now_ns()
        if len(frame) > 1 and frame[1] < FIRST_PORTAL_TAG:  # [tag, fields...] in msgpack
            table = ROUTE_MESSAGES.decode(frame)
            if isinstance(table, RouteTable):
                self._core.on_routes(
                    table.version,
                    [(r.source_domain, r.interested_domain, r.ingress, r.egress) for r in table.routes],
                    now_ns,
                )
                self._interest.on_routes(
                    {r.interested_domain for r in table.routes if r.ingress == self._ctx.index}, now_ns
                )
        else:
            message = PORTAL_MESSAGES.decode(frame)
            if isinstance(message, PortalHello):
                lost = self._egress.reconcile(worker, message.forwarded, message.forwarded_bytes)
                if lost:
                    self._ctx.log.info("fragments lost with a worker", extra={"sibling": worker, "fragments": lost})
            peer = self._ctx.peers.get(worker)
            if peer is not None:
                self._core.on_message(worker, peer.incarnation, message, now_ns)
                self._departure.on_message(worker, message)
        self._act_soon()

    def _on_data(self, batch: list[tuple[int, bytes]]) -> None:
        self._egress.on_descriptors(batch)

    # topic resolution of the TRD

    def _on_tr_packet(self, packet: lbmr.Packet, sender_ip: int, now_ns: int) -> None:
        self._interest.on_packet(packet, sender_ip, now_ns)
        self._act_soon()

    def _on_interest_timer(self) -> None:
        now_ns = self._ctx.loop.now_ns()
        self._interest.on_timer(now_ns)
        self._act(now_ns)

    def _on_interest(self, change: InterestChange, now_ns: int) -> None:
        if not is_name(change.symbol):
            self._ctx.limited("symbol", "interest ignored: no name", extra={"symbol": change.symbol[:80]})
        elif change.is_added:
            self._core.on_interest_added(change.symbol, change.pattern, change.domain_id, now_ns)
        else:
            self._core.on_interest_removed(change.symbol, change.pattern, change.domain_id, now_ns)

    def _matcher(self, pattern: bytes, kind: int) -> Matcher | None:
        """Compiled once for all who hold it: the core while the interest lasts, the context while it is wanted."""
        key = (pattern, kind)
        matcher = self._matchers.get(key)
        if matcher is None:
            try:
                matcher = self._matchers[key] = compile_pattern(pattern, kind)
            except PatternError as e:
                self._ctx.limited("bad pattern", "pattern ignored", extra={"pattern": pattern, "error": str(e)})
                return None
        return matcher

    # fragments and sources of the receiving context

    def on_fragments(self, transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        self._ingress.on_fragments(transport, view, runs, now_ns)

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        """BOS is told hop by hop: the proxy sources make their own."""

    def on_bound(self, source: BoundSource, now_ns: int) -> None:
        if self._departure.is_draining:
            return
        options = source.tir.options
        domain_id = options.domain_id if options else None
        handle = self._core.on_source_seen(
            source.otid, source.topic, domain_id or self._config.domain_id, *self._advertised(source)
        )
        source.user = ForwardEntry(handle, source)
        self._entries[handle] = source.user
        self._act_soon()

    def _advertised(self, source: BoundSource) -> tuple[int, int, bytes]:
        """Hop count, cost with that of this portal, and the options that cross the DRO."""
        options = source.tir.options
        cost = options.cost if options else None
        hop_count, before = (cost.hop_count, cost.cost) if cost else (0, 0)
        return hop_count, before + self._config.cost, pass_through_of(source.tir)

    def _on_source_changed(self, source: BoundSource) -> None:
        entry = source.user
        if isinstance(entry, ForwardEntry):
            self._core.on_source_changed(entry.handle, *self._advertised(source))
            self._act_soon()

    def on_unbound(self, source: BoundSource, *, ended: bool, now_ns: int) -> None:
        entry = source.user
        if isinstance(entry, ForwardEntry):
            source.user = None
            self._entries.pop(entry.handle, None)
            self._core.on_source_gone(entry.handle)
            self._act_soon()

    def _judge_sources(self) -> None:
        self._rcv.set_judge(self._may_enter if self._access.judges_sources else None)

    def _may_enter(self, topic: bytes, address: TransportAddress) -> bool:
        return self._access.may_enter(topic, address)

    # effects

    def _act(self, now_ns: int) -> None:
        """Carry out what the cores ask for until they ask for nothing more, then set the timers.

        What is carried out may call back (a cached source is found at once); the outermost call goes on with that.
        """
        if self._is_acting:
            return
        self._is_acting = True
        try:
            while True:
                effects, changes = self._core.take_effects(), self._interest.take_changes()
                if not effects and not changes:
                    break
                with self._rcv.together(), self._src.together():
                    for effect in effects:
                        self._perform(effect, now_ns)
                for change in changes:
                    self._on_interest(change, now_ns)
        finally:
            self._is_acting = False
        if datagrams := self._interest.take_datagrams(now_ns):
            self._rcv.send_tr(datagrams)
        self._timer = self._set_timer(self._timer, self._core.next_deadline(), self._on_timer)
        self._interest_timer = self._set_timer(
            self._interest_timer, self._interest.next_deadline(), self._on_interest_timer
        )

    def _act_soon(self) -> None:
        """Act once for all messages and packets of this turn: an exchange is hundreds of them."""
        if not self._acts_soon:
            self._acts_soon = True
            self._ctx.loop.call_soon(self._on_soon)

    def _on_soon(self) -> None:
        self._acts_soon = False
        self._act(self._ctx.loop.now_ns())

    def _set_timer(self, timer: Timer | None, deadline: int | None, callback: Callable[[], object]) -> Timer | None:
        if timer is not None and timer.is_pending:
            if timer.when_ns == deadline:
                return timer
            timer.cancel()
        return None if deadline is None or self._is_stopping else self._ctx.loop.call_at(deadline, callback)

    def _on_timer(self) -> None:
        now_ns = self._ctx.loop.now_ns()
        self._core.on_timer(now_ns)
        self._act(now_ns)

    def _perform(self, effect: Effect, now_ns: int) -> None:
        match effect:
            case Tell(worker=worker, message=message):
                self._ctx.channels.send_ctl(worker, PORTAL_MESSAGES.encode(message))
            case OpenProxyReceiver(symbol=symbol, pattern=pattern, domains=domains):
                self._open_receiver(symbol, pattern, domains, now_ns)
            case UpdateProxyReceiver(symbol=symbol, pattern=pattern, added=added, removed=removed):
                self._interest.on_wanted(symbol, pattern, added, removed, now_ns)
            case CloseProxyReceiver(symbol=symbol, pattern=pattern, domains=domains):
                self._close_receiver(symbol, pattern, domains, now_ns)
            case ChangeForwarding(handle=handle, workers=workers):
                if (entry := self._entries.get(handle)) is not None:
                    entry.want(workers)
            case OpenProxySource(worker=worker, source=source):
                self._open_source(worker, source)
            case FeedProxySource(worker=worker, source=source):
                self._feed_source(worker, source)
            case UpdateProxySource(source=source):
                self._advertise(source)
            case StarveProxySource():
                pass  # what its feeder handed over before still counts
            case CloseProxySource(otid=otid):
                self._close_source(otid)

    def _open_receiver(self, symbol: bytes, pattern: int, domains: tuple[int, ...], now_ns: int) -> None:
        self._events.told("proxy receiver created", _symbol(symbol, pattern) | {"domains": domains})
        self._interest.on_wanted(symbol, pattern, domains, (), now_ns)
        if pattern == PATTERN_NONE:
            self._rcv.want_topic(symbol, self._options.receiver(symbol))
        elif (matcher := self._matcher(symbol, pattern)) is not None:
            self._rcv.want_pattern(symbol, pattern, matcher, self._options.wildcard_receiver(symbol, pattern))

    def _close_receiver(self, symbol: bytes, pattern: int, domains: tuple[int, ...], now_ns: int) -> None:
        self._events.told("proxy receiver deleted", _symbol(symbol, pattern))
        self._interest.on_wanted(symbol, pattern, (), domains, now_ns)
        if pattern == PATTERN_NONE:
            self._rcv.unwant_topic(symbol)
        elif self._matcher(symbol, pattern) is not None:
            self._rcv.unwant_pattern(symbol, pattern)

    def _open_source(self, worker: int, seen: SourceSeen) -> None:
        try:
            source = self._src.open_source(
                seen.topic,
                options=self._options.source(seen.topic),
                otid=seen.otid,
                tir_options=proxy_options(seen, self._config.cost),
            )
        except (ResourceError, DecodeError) as e:  # DecodeError: the origin's options do not fit into our datagram
            self._ctx.log.error("proxy source cannot be created", extra={"topic": _text(seen.topic), "error": str(e)})
            return
        window = self._config.sqn_window
        proxy = ProxySource(
            seen.otid,
            seen.topic,
            source.topic_index,
            source.transport,
            SequenceWindow(window.size, window.increment),
            source.send_tsni,
        )
        self._proxies[seen.otid] = (source, proxy)
        self._offers[seen.otid] = seen
        self._egress.feed(proxy, worker, seen.handle)
        self._events.told("proxy source created", {"topic": _text(seen.topic), "otid": seen.otid.hex()})

    def _feed_source(self, worker: int, seen: SourceSeen) -> None:
        found = self._proxies.get(seen.otid)
        if found is None:
            self._open_source(worker, seen)
            return
        self._advertise(seen)
        self._egress.feed(found[1], worker, seen.handle)

    def _advertise(self, seen: SourceSeen) -> None:
        """The proxy source of that OTID says what its origin says, and what it costs to come here."""
        found = self._proxies.get(seen.otid)
        if found is None:
            return
        self._offers[seen.otid] = seen
        try:
            found[0].update(proxy_options(seen, self._config.cost))
        except DecodeError as e:
            self._ctx.log.warning("advertisement unchanged", extra=_symbol(seen.topic, 0) | {"error": str(e)})

    def _close_source(self, otid: bytes) -> None:
        found = self._proxies.pop(otid, None)
        if found is None:
            return
        del self._offers[otid]
        source, proxy = found
        self._egress.flush(proxy)
        source.close(final=True, linger_ns=0 if self._is_stopping else self._linger_ns)
        self._events.told("proxy source deleted", {"topic": _text(proxy.topic), "otid": otid.hex()})

    # changes of the configuration

    def _on_reconfigure(self, new: object) -> None:
        """Take over what `portals.endpoint.live` names. Raises: ConfigError; nothing has changed then."""
        assert isinstance(new, DroConfig)
        mine = live.own_part(self._config.name, new)
        if mine is None:
            return  # the parent removes this portal next
        old = self._config
        fields = live.changed(old, mine)
        access = Access(mine.acl, sending=old.sending, receiving=old.receiving)
        self._config = config = live.taken_over(old, mine)
        now_ns = self._ctx.loop.now_ns()
        if "acl" in fields:
            before, self._access = self._access, access
            self._core.on_access(access, now_ns)
            if not access.lets_in_like(before):
                self._judge_sources()
        else:
            self._access.move_to(access)
        if "cost" in fields:
            self._on_cost()
        if "source_deletion_delay_ms" in fields:
            self._core.set_deletion_delay(ms(config.source_deletion_delay_ms))
        if "max_queue_bytes" in fields:
            self._egress.set_limit(config.max_queue_bytes)
        if fields & live.TOPIC_RESOLUTION:
            self._interest.on_config(config, now_ns)
        if fields:
            self._ctx.log.info("changed configuration taken over", extra={"changed": sorted(fields)})
            self._act(now_ns)

    def _on_cost(self) -> None:
        """Routes, what siblings advertise for the sources of this TRD, and what this portal advertises."""
        self._tell_cost()
        for entry in self._entries.values():
            self._core.on_source_changed(entry.handle, *self._advertised(entry.source))
        with self._src.together():
            for seen in list(self._offers.values()):
                self._advertise(seen)

    # the end

    def _on_drained(self) -> None:
        """Nothing is left to be forwarded: no routes go through here any more."""
        if self._route_manager is not None:
            self._ctx.channels.send_ctl(self._route_manager, ROUTE_MESSAGES.encode(PortalGone(self._ctx.index)))
        self._interest.on_routes(set(), self._ctx.loop.now_ns())

    def _on_stop(self) -> None:
        """Take the proxy sources out of the TRD, as far as the grace period goes."""
        self._is_stopping = True
        self._departure.stop()
        had_sources = bool(self._proxies)
        for otid in list(self._proxies):
            self._close_source(otid)
        self._ctx.loop.call_later(STOP_GRACE_NS if had_sources else 0, self._finish)

    def _finish(self) -> None:
        self._rcv.close()
        self._src.close()
        self._ctx.finish()

    # counters

    def _refresh_gauges(self) -> None:
        self._gauges.refresh(len(self._proxies))
        if not self._is_stopping:
            self._ctx.loop.call_later(GAUGES_NS, self._refresh_gauges)


def _text(topic: bytes) -> str:
    return topic.decode(errors="replace")


def _symbol(symbol: bytes, pattern: int) -> dict[str, object]:
    return {"topic" if pattern == PATTERN_NONE else "pattern": _text(symbol)}


def run_endpoint(ctx: WorkerContext, endpoint: EndpointConfig, config: DroConfig) -> None:
    """Main function of the worker."""
    EndpointPortal(ctx, endpoint)
    ctx.ready()
    ctx.run()
