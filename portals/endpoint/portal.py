"""An endpoint portal as a process: the shell of every portal, and its link to a TRD, which is two UM contexts.

Its state is only that of the TRD: contexts, interest (`TrdInterest`) and proxies.

Source: DRO guide, chapters 2, 3 and 5.4.2; forwarding notes, sections 2 to 10.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final

from dro.bus.actor import WorkerContext
from dro.bus.messages import Origin, PortalUp, Trouble
from dro.clock import ms
from dro.config.dro_xml.model import DroConfig, EndpointConfig
from dro.config.um.options import UmOptions
from dro.config.um.sets import ResolverOptions, repair_ns, source_transport
from dro.devices.follower import DeviceFollower
from dro.log.events import LogEvent
from dro.metrics.library_rows import LibraryRows
from dro.proto.context.sources import BoundSource
from dro.proto.interest.events import InterestEvent
from dro.proto.unicast.connections import OnOutcome
from dro.table import Table
from dro.transport import sockets
from dro.transport.session import ReceiverTransport
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.resolution import ContextSettings, TopicResolution
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import format_source
from portals.datapath.handover import ForwardEntry
from portals.decisions.acl_enforcement import AclEnforcement
from portals.decisions.core import PortalCore
from portals.decisions.effects import (
    AdvertiseProxySource,
    CheckKnown,
    CloseProxyReceiver,
    CloseProxySource,
    DelayDeletion,
    FeedProxySource,
    JoinKnownSource,
    OpenProxyReceiver,
    OpenProxySource,
    ProxyEffect,
    RecordKnownInterest,
    ReviewSources,
    UpdateProxyReceiver,
    UpdateProxySource,
)
from portals.decisions.messages import SourceSeen
from portals.endpoint.gauges import Gauges
from portals.endpoint.interest import TrdInterest
from portals.endpoint.join_rules import JoinRules
from portals.endpoint.known_sources import known_source, seen_here
from portals.endpoint.library import LibraryStatistics, open_rows
from portals.endpoint.listing import PortalLists
from portals.endpoint.multicast import TrdImmediate
from portals.endpoint.options import ProxyOptions
from portals.endpoint.proxies import ProxyReceivers, ProxySources
from portals.endpoint.requests import RequestOrigins
from portals.endpoint.unicast import TrdUnicast
from portals.shell import live
from portals.shell.losses import Losses
from portals.shell.matchers import Matchers
from portals.shell.portal import PortalShell
from portals.shell.quiescence import SenderQuiescence

STOP_GRACE_NS: Final = ms(1800)
"""How long a stopping portal waits for the final advertisements of its proxy sources, which take 1.5 s."""
_NOT_KNOWN: Final = (None, None)


class EndpointPortal:
    """Implements `portals.shell.link.Link`, and `dro.transport.session.FragmentSink` for the receiving context."""

    def __init__(
        self,
        ctx: WorkerContext,
        config: EndpointConfig,
        rng: random.Random | None = None,
        *,
        library: LibraryRows | None = None,
    ) -> None:
        """`library`: where the statistics of the UM library are shown, if somebody wants them.

        Raises: ResourceError when a port or group cannot be had.
        """
        self._ctx = ctx
        self._config = config
        self._acl = AclEnforcement(config.acl, sending=config.sending, receiving=config.receiving)
        matchers = Matchers(ctx)
        self.core = PortalCore(
            ctx.index,
            ctx.incarnation,
            config.domain_id,
            source_deletion_delay_ns=ms(config.source_deletion_delay_ms),
            matcher=matchers,
            acl=self._acl,
        )
        self._rules = JoinRules(config.domain_id, self.core.routes, self._acl)
        self._shell = PortalShell(ctx, self.core, config.max_queue_bytes)
        self._shell.egress.set_smart_batch(config.smart_batch)
        # Bound here and no method: called for each batch, it would cost a Python call more.
        self.on_fragments = self._shell.ingress.on_fragments
        rng = rng or random.Random()
        self.receiving = self._context("rcv", config.receiving.context(), rng)
        self.sending = self._context("src", config.sending.context(), rng, self.receiving.resolution)
        self.receiving.on_tr_packet = self._on_tr_packet
        self.receiving.on_source_changed = self._on_source_changed
        self.receiving.resolution.on_daemon_back = self._on_daemon_back
        self._judge_sources()
        self._shell.ingress.requests = RequestOrigins(config.domain_id, self.receiving.options)
        options = ResolverOptions.of(self.receiving.options)
        self._interest = TrdInterest(
            config,
            self.receiving.packet_options,
            options.receiver_datagram_max_bytes,
            self.sending.request_address,
            rng,
            ctx.loop.now_ns(),
        )
        self._unicast = TrdUnicast(ctx, config, self._shell, self, self.sending, self.receiving)
        self._immediate = TrdImmediate(ctx, config, self._shell, self, self.sending, self.receiving)
        by_topic = ProxyOptions(config.sending, config.receiving)
        self._known: Table[bytes, tuple[lbmr.Tir | None, SourceSeen | None]] = Table()  # that are joined, by OTID
        self._receivers = ProxyReceivers(ctx, self.receiving, by_topic, matchers)
        self.sources = ProxySources(
            ctx, config, self.sending, self._shell.egress, by_topic, self._shell.is_catching_up, ctx.kept_state
        )
        self._linger_ns = repair_ns(config.receiving.context(), source_transport(config.sending.context()))
        self._gauges = Gauges(ctx.counters, self._interest, self.receiving, self.sending, ctx.limited)
        self._library: LibraryStatistics | None = None
        if library is not None:
            self._library = LibraryStatistics(
                library, ctx.counters, ctx.loop, self.receiving, self.sending, ctx.limited
            )
        ctx.on_reconfigure = self._on_reconfigure
        self._losses = Losses()
        self.receiving.joined.on_lost = self._on_lost
        PortalLists(
            ctx, config.domain_id, self.core, self.receiving, matchers, self.sources.by_otid, self._shell.egress,
            self._losses,
        )  # fmt: skip
        self._shell.on_forwards_again = ctx.kept_state.gate.open
        self._shell.start(self)
        if self._library is not None:
            self._library.refresh()  # who asks for it once the portal is ready gets it

    def _context(
        self, part: str, options: UmOptions, rng: random.Random, resolution: TopicResolution | None = None
    ) -> FragmentContext:
        settings = ContextSettings(
            f"{self._config.name}_{part}_ctx",
            lbmr.SenderType.DRO,
            self._config.domain_id,
            sm_before_data=True,
            sending=self._config.sending.context() if resolution is None else None,
        )
        context = FragmentContext(
            options, self._ctx.loop, sink=self, settings=settings, rng=rng, resolution=resolution,
            kept=self._ctx.kept_state,
        )  # fmt: skip
        extra = {
            "address": sockets.ip_text(context.request_address[0]),
            "context_id": context.context_id,
            "context": context.name,
        }
        self._ctx.log.info(LogEvent.CONTEXT_CREATED, extra=extra)
        return context

    def _judge_sources(self) -> None:
        self.receiving.set_judge(*self._rules.judges)

    # the receiving context

    def _on_tr_packet(self, packet: lbmr.Packet, sender_ip: int, now_ns: int) -> None:
        match packet.body:
            case lbmr.TnwgContextInfo() | lbmr.ContextInfo() | lbmr.RemoteContextInfo():
                self._unicast.on_packet(packet, sender_ip, now_ns)
            case _:
                self._interest.on_packet(packet, sender_ip, now_ns)
        self._shell.act_soon()

    def _on_daemon_back(self) -> None:
        self._interest.on_daemon_back(self._ctx.loop.now_ns())
        self._shell.act_soon()

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        """BOS crosses no DRO: the proxy sources make their own."""

    def _on_lost(self, transport: ReceiverTransport, lost: int, cause: str, now_ns: int) -> None:
        self._losses.on_lost(format_source(transport.address), transport.sources.values(), lost, cause, now_ns)

    def on_bound(self, source: BoundSource[ForwardEntry], now_ns: int) -> None:
        if not self._shell.drain.is_draining:
            domain_id = source.tir.domain_id or self._config.domain_id
            self._unicast.on_source(source.tir, domain_id, now_ns)
            tir, seen = self._known.pop(source.otid, _NOT_KNOWN)
            if seen is not None and tir is source.tir:
                how = seen.hop_count, seen.cost, seen.pass_through, seen.join_info
            else:
                how = seen_here(source, self._config.cost)
            self._shell.add_source(source, domain_id, *how)

    def _on_source_changed(self, source: BoundSource[ForwardEntry]) -> None:
        self._shell.change_source(source, *seen_here(source, self._config.cost))

    def on_unbound(self, source: BoundSource[ForwardEntry], *, ended: bool, now_ns: int) -> None:
        self._shell.remove_source(source)

    def _join_known(self, seen: SourceSeen) -> None:
        known = known_source(seen, self._config.cost)
        self._known[seen.otid] = known.tir, seen
        self.receiving.join_known(
            known.tir, is_from_dro=known.is_from_dro, source_id=known.source_id, source_ip=known.source_ip
        )

    # the link, as the shell sees it

    def take_interest(self) -> list[InterestEvent]:
        return self._interest.take_events()

    def perform(self, effect: ProxyEffect, now_ns: int) -> None:
        self._interest.perform(effect, now_ns)
        match effect:
            case OpenProxyReceiver(symbol=symbol, pattern=pattern, domains=domains):
                self._receivers.open(symbol, pattern, domains)
            case CloseProxyReceiver(symbol=symbol, pattern=pattern):
                self._receivers.close(symbol, pattern)
            case OpenProxySource(worker=worker, source=source):
                self.sources.open(worker, source)
            case AdvertiseProxySource(otid=otid):
                self.sources.advertise_opened(otid)
            case FeedProxySource(worker=worker, source=source, is_beside=is_beside):
                self.sources.feed(worker, source, is_beside=is_beside)
            case UpdateProxySource(source=source):
                self.sources.advertise(source)
            case DelayDeletion(otid=otid, is_fed=is_fed):
                if is_fed:
                    self.sources.end(otid)
            case CloseProxySource(otid=otid):
                self.sources.close(otid, self._linger_ns)
            case JoinKnownSource(source=source):
                self._join_known(source)
            case ReviewSources():
                self._judge_sources()
            case CheckKnown():
                self._known = Table()
                self.receiving.leave_unwanted()
                self.sending.pools.forget_former()
                self.receiving.joined.forget_former()
                if self._library is not None:
                    self._library.forget_former()
            case UpdateProxyReceiver() | RecordKnownInterest():
                pass  # of interest alone

    def together(self) -> AbstractContextManager[None]:
        return self.receiving.resolution.together()

    def can_deliver(self, now_ns: int) -> bool:
        return self.sources.can_deliver(now_ns)

    def send_pending(self, now_ns: int) -> None:
        if datagrams := self._interest.take_datagrams(now_ns) + self._unicast.take_datagrams():
            self.receiving.resolution.send(datagrams)

    def next_deadline(self) -> int | None:
        deadlines = (self._interest.next_deadline(), self._unicast.next_deadline())
        return min((at for at in deadlines if at is not None), default=None)

    def on_timer(self, now_ns: int) -> None:
        self._interest.on_timer(now_ns)
        self._unicast.on_timer(now_ns)

    def describe(self) -> PortalUp:
        config = self._config
        return PortalUp(self._ctx.index, config.domain_id, config.cost, hotlink_index=config.hotlink_index)

    def on_routes(self, reachable: set[int], now_ns: int) -> None:
        self._interest.on_routes(reachable, now_ns)

    def on_origins(self, origins: tuple[Origin, ...]) -> None:
        """What is heard in a TRD is advertised with hop count and cost."""

    def on_route_info(self, message: bytes) -> None:
        self._unicast.on_route_info(message)

    def send_unicast(self, domain_id: int, message: bytes, on_outcome: OnOutcome) -> None:
        self._unicast.send_unicast(domain_id, message, on_outcome)

    def on_context_info(self, worker: int, message: bytes) -> None:
        self._unicast.on_context_info(worker, message)

    def send_immediate(self, message: bytes, on_outcome: OnOutcome) -> None:
        self._immediate.send(message, on_outcome)

    def quiescence(self, worker: int | None, now_ns: int) -> SenderQuiescence:
        return self.sources.quiescence(worker, self._linger_ns, now_ns)

    def finals_pending(self) -> int:
        return self.sending.finals_pending

    def stop(self) -> int:
        had_sources = bool(self.sources)
        if self._library is not None:
            self._library.finish()
        self.sources.close_all()
        return STOP_GRACE_NS if had_sources else 0

    def close(self) -> None:
        if self._library is not None:
            self._library.finish()
        self.sending.close()
        self.receiving.close()

    def refresh_gauges(self) -> None:
        self._gauges.refresh(len(self.sources))
        if self._library is not None:
            self._library.refresh()

    # changes of the configuration

    def _on_reconfigure(self, new: object) -> None:
        """Take over what `portals.shell.live` names. Raises: ConfigError; nothing has changed then."""
        assert isinstance(new, DroConfig)
        mine = live.own_part(self._config, new)
        if mine is None:
            return  # the parent removes this portal next
        old = self._config
        fields = live.changed(old, mine)
        acl = AclEnforcement(mine.acl, sending=old.sending, receiving=old.receiving)
        self._config = config = live.taken_over(old, mine)
        now_ns = self._ctx.loop.now_ns()
        if "acl" in fields:
            before, self._acl = self._acl, acl
            self._rules.acl = acl
            self.core.on_acl(acl, now_ns)
            if not acl.lets_in_like(before):
                self._judge_sources()
        else:
            self._acl.move_to(acl)
        if "cost" in fields:
            self._on_cost()
        live.apply_common(fields, config, self.core, self._shell.egress)
        self._immediate.on_config(config)
        if "context_query" in fields:
            self._unicast.on_config(config)
        if fields & live.TOPIC_RESOLUTION:
            self._interest.on_config(config, now_ns)
        if fields:
            self._ctx.log.info(LogEvent.CHANGE_TAKEN_OVER, extra={"changed": sorted(fields)})
            self._shell.engine.act()

    def _on_cost(self) -> None:
        """Change routes, what siblings advertise for sources of this TRD, and what this portal advertises."""
        self._shell.report_up()
        self._ctx.loop.run_in_slices(self._change_sources())
        self._ctx.loop.run_in_slices(self.sources.set_cost(self._config.cost))

    def _change_sources(self) -> Iterator[None]:
        for handle in self._shell.entries.snapshot():
            if (entry := self._shell.entries.get(handle)) is not None:
                self._shell.change_source(entry.source, *seen_here(entry.source, self._config.cost))
            yield


def run_endpoint(ctx: WorkerContext, endpoint: EndpointConfig, config: DroConfig) -> None:
    """Main function of the worker."""
    EndpointPortal(ctx, endpoint, library=open_rows(ctx, config))
    follower = DeviceFollower(ctx.loop, lambda reason: ctx.report(Trouble(reason)))
    ctx.ready()
    ctx.run()
    follower.close()
