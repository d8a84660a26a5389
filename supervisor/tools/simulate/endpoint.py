"""A simulated endpoint portal's side of its TRD: the real `TrdInterest`, and the proxies as that TRD has them."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import Final

from dro.bus.messages import Origin, PortalUp
from dro.config.dro_xml.model import EndpointConfig, PeerConfig
from dro.proto.interest.events import InterestEvent, Symbol
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import standard_options
from dro.wire.source_string import TcpAddress
from portals.decisions.advertisement import proxy_options
from portals.decisions.effects import (
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
from portals.decisions.recorded_interest import Matcher
from portals.endpoint.interest import TrdInterest
from portals.endpoint.join_rules import JoinRules, cost_through
from supervisor.tools.simulate.messages import Sent
from supervisor.tools.simulate.portal import Proxy, SimPortal, compiled
from supervisor.tools.simulate.trd import SimSession, Trd

DATAGRAM_BYTES: Final = 8192
UNICAST_PORT: Final = 14391
ADDRESS: Final = TcpAddress(0x7F000001, 14371, 0)
"""Is the address of every source."""


class EndpointEnd:
    """Implements `SimLink` and `Member`."""

    def __init__(self, portal: SimPortal, config: EndpointConfig, trd: Trd, rng: Random) -> None:
        self._portal, self._config, self._trd, self._rng = portal, config, trd, rng
        self._rules = JoinRules(trd.domain_id, portal.core.routes, portal.acl)
        self._wanted: dict[Symbol, Matcher | None] = {}
        self._sessions: dict[bytes, SimSession] = {}  # of proxy sources, by OTID
        self._offers: dict[bytes, SourceSeen] = {}  # what each is fed from
        self._handles: dict[SimSession, int] = {}  # of joined sources

    @property
    def portal_name(self) -> str:
        return self._portal.name

    def start(self) -> None:
        now_ns = self._portal.clock.now_ns
        address = self._trd.enter(self), UNICAST_PORT
        options = standard_options(self._rng.randbytes(8), lbmr.SenderType.DRO, self._trd.domain_id)
        self._interest = TrdInterest(self._config, options, DATAGRAM_BYTES, address, self._rng, now_ns)

    def on_killed(self) -> None:
        self._trd.leave(self)

    # what the portal asks

    def take_interest(self) -> list[InterestEvent]:
        return self._interest.take_events()

    def together(self) -> AbstractContextManager[object]:
        return nullcontext()

    def send_pending(self, now_ns: int) -> None:
        self._trd.send_packets(self, self._interest.take_datagrams(now_ns))

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
        self._trd.send_route_info(self, message)

    def perform(self, effect: ProxyEffect, now_ns: int) -> None:
        self._interest.perform(effect, now_ns)
        match effect:
            case OpenProxyReceiver(symbol=symbol, pattern=pattern):
                self._wanted[symbol, pattern] = compiled(symbol, pattern) if pattern != PATTERN_NONE else None
                self._trd.look(self)
            case CloseProxyReceiver(symbol=symbol, pattern=pattern):
                self._wanted.pop((symbol, pattern), None)
                self._trd.unwant(self)
            case OpenProxySource(worker=worker, source=source) | FeedProxySource(worker=worker, source=source):
                self._portal.feed(source.otid, source.topic, worker, source.handle)
                self._advertise(source)
            case UpdateProxySource(source=source):
                self._advertise(source)
            case CloseProxySource(otid=otid):
                self._portal.end_proxy(otid)
                self._offers.pop(otid, None)
                if (session := self._sessions.pop(otid, None)) is not None:
                    self._trd.end(session)
            case ReviewSources():
                self._trd.unwant(self)
                self._trd.look(self)
            case CheckKnown():
                self._trd.unwant(self)
            case UpdateProxyReceiver() | RecordKnownInterest() | DelayDeletion() | JoinKnownSource():
                pass  # of interest alone; a source is found anew at once: no topic resolution is as slow as a real one

    def _advertise(self, seen: SourceSeen) -> None:
        self._offers[seen.otid] = seen
        options = proxy_options(seen, self._config.cost, self._config.hotlink_index)
        session = self._sessions.get(seen.otid)
        if session is None:
            session = self._sessions[seen.otid] = SimSession(self, seen.otid, seen.topic, options)
            self._trd.advertise(session)
        elif session.options != options:
            session.options = options
            self._trd.change(session)

    def on_config(self, config: EndpointConfig | PeerConfig) -> None:
        """Take over cost and access control list; timers stay as they are."""
        assert isinstance(config, EndpointConfig)
        self._config, self._rules.acl = config, self._portal.acl
        self._trd.unwant(self)
        self._trd.look(self)
        self._portal.report_up()
        for session, handle in self._handles.items():
            self._portal.core.own.change(handle, *self._advertised(session), b"")
        for seen in self._offers.values():
            self._advertise(seen)

    def send(self, proxy: Proxy, sent: Sent) -> None:
        if (session := self._sessions.get(proxy.otid)) is not None:
            self._trd.send(session, sent)

    # what comes from the TRD

    def on_packet(self, packet: lbmr.Packet, sender_ip: int) -> None:
        self._interest.on_packet(packet, sender_ip, self._portal.clock.now_ns)
        self._portal.act_soon()

    def on_unicast(self, message: bytes, sender_ip: int) -> None:
        self._portal.report_route_info(message, (sender_ip, UNICAST_PORT))

    def wants(self, session: SimSession) -> bool:
        rules = self._rules
        if rules.are_divided and not rules.carries(session.otid, self._origin(session)):
            return False
        if not rules.may_enter(session.topic, ADDRESS):
            return False
        return any(
            symbol == session.topic if pattern == PATTERN_NONE else matcher is not None and matcher(session.topic)
            for (symbol, pattern), matcher in self._wanted.items()
        )

    def on_joined(self, session: SimSession) -> None:
        own, origin = self._portal.core.own, self._origin(session)
        self._handles[session] = own.add(session.otid, session.topic, origin, *self._advertised(session), b"")
        self._portal.act_soon()

    def _origin(self, session: SimSession) -> int:
        domain = session.option(lbmr.DomainId)
        return domain.domain_id if isinstance(domain, lbmr.DomainId) else self._trd.domain_id

    def _advertised(self, session: SimSession) -> tuple[int, int]:
        cost = session.option(lbmr.Cost)
        return cost_through(cost if isinstance(cost, lbmr.Cost) else None, self._config.cost)

    def on_changed(self, session: SimSession) -> None:
        if (handle := self._handles.get(session)) is not None:
            self._portal.core.own.change(handle, *self._advertised(session), b"")
            self._portal.act_soon()

    def on_left(self, session: SimSession) -> None:
        if (handle := self._handles.pop(session, None)) is not None:
            self._portal.end_source(handle)
            self._portal.act_soon()

    def on_data(self, session: SimSession, sent: Sent) -> None:
        if (handle := self._handles.get(session)) is not None:
            is_first = not sent.passed
            self._portal.on_data(handle, sent if is_first else sent.past(self._trd.name))
