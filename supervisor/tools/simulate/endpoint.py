"""A simulated endpoint portal's side of its TRD: the real `TrdInterest` and engine of a context, and its proxies."""

from __future__ import annotations

from contextlib import AbstractContextManager
from random import Random
from typing import Any

from dro.bus.messages import Origin, PortalUp
from dro.config.dro_xml.model import EndpointConfig, PeerConfig
from dro.config.um.sets import ResolverOptions
from dro.proto.context.sources import BoundSource
from dro.proto.interest.events import InterestEvent
from dro.um.fragment.options import ObjectOptions, query_options, wildcard_options
from dro.wire.lbmr import packet as lbmr
from portals.decisions.advertisement import proxy_options
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
from portals.decisions.messages import PATTERN_NONE, SourceSeen
from portals.endpoint.interest import TrdInterest
from portals.endpoint.join_rules import JoinRules
from portals.endpoint.known_sources import known_source, seen_here
from portals.endpoint.options import ProxyOptions
from supervisor.tools.simulate.context import UNICAST_PORT, SimContext, SimSource
from supervisor.tools.simulate.messages import Sent
from supervisor.tools.simulate.portal import Proxy, SimPortal, compiled
from supervisor.tools.simulate.trd import Trd


class EndpointEnd:
    """Implements `SimLink` and `ContextUser`."""

    def __init__(self, portal: SimPortal, config: EndpointConfig, trd: Trd, rng: Random) -> None:
        self._portal, self._config, self._trd, self._rng = portal, config, trd, rng
        self._sending, self._receiving = (ObjectOptions(o.context()) for o in (config.sending, config.receiving))
        self._by_topic = ProxyOptions(config.sending, config.receiving)
        self._rules = JoinRules(trd.domain_id, portal.core.routes, portal.acl)
        self._sources: dict[bytes, SimSource] = {}  # proxy sources, by OTID
        self._offers: dict[bytes, SourceSeen] = {}  # what each is fed from
        self._handles: dict[BoundSource[Any], int] = {}

    def start(self) -> None:
        sending, receiving = self._sending.merged(None), self._receiving.merged(None)
        host = self._portal.dro.name
        self.context = SimContext(self._trd, self, receiving, self._rng, sending=sending, host=host)
        self._interest = TrdInterest(
            self._config,
            self.context.engine.resolver.packet_options(),
            ResolverOptions.of(receiving).receiver_datagram_max_bytes,
            (self.context.ip, UNICAST_PORT),
            self._rng,
            self._portal.clock.now_ns,
        )
        self._judge_sources()

    def on_killed(self) -> None:
        self.context.kill()

    def _judge_sources(self) -> None:
        judge, carries = self._rules.judges
        self.context.engine.resolver.set_judge(judge, self._portal.clock.now_ns, carries)
        self.context.pump()

    # what the portal asks

    def take_interest(self) -> list[InterestEvent]:
        return self._interest.take_events()

    def together(self) -> AbstractContextManager[object]:
        return self.context.together()

    def send_pending(self, now_ns: int) -> None:
        self._trd.send_packets(self.context, self._interest.take_datagrams(now_ns))

    def next_deadline(self) -> int | None:
        return self._interest.next_deadline()

    def on_timer(self, now_ns: int) -> None:
        self._interest.on_timer(now_ns)

    def describe(self) -> PortalUp:
        index = self._config.hotlink_index
        return PortalUp(self._portal.worker, self._trd.domain_id, self._config.cost, hotlink_index=index)

    def on_routes(self, reachable: set[int], now_ns: int) -> None:
        self._interest.on_routes(reachable, now_ns)

    def on_origins(self, origins: tuple[Origin, ...]) -> None:
        """Ignore them: what is heard in a TRD is advertised with hop count and cost."""

    def on_route_info(self, message: bytes) -> None:
        self._trd.send_route_info(self.context, message)

    def perform(self, effect: ProxyEffect, now_ns: int) -> None:
        self._interest.perform(effect, now_ns)
        match effect:
            case OpenProxyReceiver(symbol=symbol, pattern=pattern):
                self._want(symbol, pattern, now_ns)
            case CloseProxyReceiver(symbol=symbol, pattern=pattern):
                if pattern == PATTERN_NONE:
                    self.context.engine.unwant_topic(symbol, now_ns)
                elif compiled(symbol, pattern) is not None:
                    self.context.engine.unwant_pattern((symbol, pattern), now_ns)
            case OpenProxySource(worker=worker, source=source) | FeedProxySource(worker=worker, source=source):
                self._portal.feed(source.otid, source.topic, worker, source.handle)
                self._advertise(source, again=isinstance(effect, FeedProxySource))
            case AdvertiseProxySource():
                pass  # it was when it was opened
            case UpdateProxySource(source=source):
                if source.otid in self._sources:
                    self._advertise(source)
            case DelayDeletion(otid=otid, is_fed=is_fed):
                if is_fed and otid in self._sources:
                    self.context.own.end(self._sources[otid].own, now_ns)
            case CloseProxySource(otid=otid):
                self._portal.end_proxy(otid)
                self._offers.pop(otid, None)
                if (proxy := self._sources.pop(otid, None)) is not None:
                    self.context.close_source(proxy)
            case JoinKnownSource(source=source):
                known = known_source(source, self._config.cost)
                self.context.engine.resolver.join_known(
                    known.tir,
                    source_ip=known.source_ip,
                    from_dro=known.is_from_dro,
                    source_id=known.source_id,
                    now_ns=now_ns,
                )
            case ReviewSources():
                self._judge_sources()
            case CheckKnown():
                self.context.engine.leave_unwanted(now_ns)
            case UpdateProxyReceiver() | RecordKnownInterest():
                pass  # of interest alone
        self.context.pump()

    def _want(self, symbol: bytes, pattern: int, now_ns: int) -> None:
        wanted, by_topic, key = self.context.engine.wanted, self._by_topic, (symbol, pattern)
        if pattern == PATTERN_NONE:
            options = self._receiving.merged(by_topic.receiver(symbol))
            wanted.add_topic(symbol, now_ns, query_options(options, uses_hotlinks=False))
        elif (matcher := compiled(symbol, pattern)) is not None:
            options = self._receiving.merged(by_topic.wildcard_receiver(symbol, pattern))
            queries = query_options(options, uses_hotlinks=False)
            wanted.add_pattern(key, matcher, now_ns, wildcard_options(options), queries)

    def _advertise(self, seen: SourceSeen, *, again: bool = False) -> None:
        self._offers[seen.otid] = seen
        items = proxy_options(seen, self._config.cost, self._config.hotlink_index)
        proxy = self._sources.get(seen.otid)
        if proxy is None:
            options = self._sending.merged(self._by_topic.source(seen.topic))
            opened = self.context.open_source(seen.topic, options, source_otid=seen.otid, tir_items=items)
            self._sources[seen.otid] = opened
        else:
            self.context.own.update(proxy.own, items, self._portal.clock.now_ns, again=again)

    def on_config(self, config: EndpointConfig | PeerConfig) -> None:
        """Take over cost and access control list; timers stay as they are."""
        assert isinstance(config, EndpointConfig)
        self._config, self._rules.acl = config, self._portal.acl
        self._judge_sources()
        self._portal.report_up()
        for source, handle in self._handles.items():
            self._portal.core.own.change(handle, *seen_here(source, self._config.cost))
        for seen in [*self._offers.values()]:
            self._advertise(seen)
        self.context.pump()

    def send(self, proxy: Proxy, sent: Sent) -> None:
        if (found := self._sources.get(proxy.otid)) is not None:
            self._trd.send(found.session, sent)

    # what comes from the TRD

    def on_packet(self, packet: lbmr.Packet, sender_ip: int) -> None:
        self._interest.on_packet(packet, sender_ip, self._portal.clock.now_ns)
        self._portal.act_soon()

    def on_unicast(self, message: bytes, sender_ip: int) -> None:
        self._portal.report_route_info(message, (sender_ip, UNICAST_PORT))

    def on_servers_back(self) -> None:
        self._interest.on_daemon_back(self._portal.clock.now_ns)
        self._portal.act_soon()

    def on_bound(self, source: BoundSource[Any]) -> None:
        domain_id = source.tir.domain_id or self._trd.domain_id
        own = self._portal.core.own
        self._handles[source] = own.add(source.otid, source.topic, domain_id, *seen_here(source, self._config.cost))
        self._portal.act_soon()

    def on_changed(self, source: BoundSource[Any]) -> None:
        self._portal.core.own.change(self._handles[source], *seen_here(source, self._config.cost))
        self._portal.act_soon()

    def on_unbound(self, source: BoundSource[Any]) -> None:
        self._portal.end_source(self._handles.pop(source))
        self._portal.act_soon()

    def on_data(self, source: BoundSource[Any], sent: Sent) -> None:
        is_first = not sent.passed
        self._portal.on_data(self._handles[source], sent if is_first else sent.past(self._trd.name))
