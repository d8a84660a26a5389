"""A peer portal as a process: the shell of every portal, and its link to the companion portal of another DRO.

Its state is only that of the link: the connection, what the companion wants and offers, and what it was told. When the
link goes down, what it wants and offers is held for a while (`portals.peer.proxies.HeldLink`), and what is offered
keeps its numbers.

Source: peer link notes; DRO guide, chapters 2.1, 3.1.3 and 5.4.3; forwarding notes, sections 5 and 21.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Final

from dro.bus.actor import WorkerContext
from dro.bus.messages import Origin, PortalGone, PortalUp
from dro.clock import NS_PER_MS, ms, s
from dro.config.dro_xml.model import DroConfig, PeerConfig
from dro.log.events import LogEvent
from dro.proto.interest.events import InterestEvent
from dro.proto.peerlink.interest import HeardInterest, ToldInterest
from dro.proto.peerlink.messages import COMPRESSION_LZ4, NO_DIGESTS, Digests, Hello
from dro.proto.peerlink.session import (
    Carries,
    LinkEffect,
    LinkEnd,
    LinkSession,
    LinkUp,
    RefreshNeeded,
    RttStatistics,
    SendCanary,
    Warned,
)  # fmt: skip
from dro.proto.peerlink.sources import OfferedSources
from dro.timers import Timer
from dro.um.transport.peer_tls import PeerStreamMaker
from dro.um.transport.read_space import ReadSpace
from dro.um.transport.session import ReceiverTransport
from dro.um.transport.sockets import address_text
from dro.um.transport.stream import ByteStream, PlainStream, StreamMaker
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.dro_blocks import CAPABILITY3_PCRE, CAPABILITY3_REGEX, GatewayName, RouteInfo, TopicSource
from dro.wire.lbmc.message import Message
from dro.wire.source_string import TcpAddress
from portals.decisions.acl_enforcement import AclEnforcement
from portals.decisions.core import PortalCore
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
)  # fmt: skip
from portals.peer.connection import PeerConnection
from portals.peer.connector import Acceptor, Initiator, address_of
from portals.peer.gauges import LinkGauges
from portals.peer.link_watch import NO_ANSWER, AbsenceWarning, LinkWatch
from portals.peer.listing import LinkNow, PeerLists
from portals.peer.newcomers import Newcomers
from portals.peer.options import batching_of, fast_of, options_of
from portals.peer.proxies import HeldLink, Judge, LinkProxySources, LinkSources, Ways
from portals.peer.sender import LinkSender
from portals.peer.udp import UdpPart
from portals.peer.unicast import LinkUnicast
from portals.peer.writer import count_lost
from portals.shell import live
from portals.shell.matchers import Matchers
from portals.shell.portal import PortalShell

REFRESH_NS: Final = s(60)
NO_DOMAIN: Final = 0
SILENT_NS: Final = s(5)
"""Without keepalives: after so long another DRO may take the place of one that says nothing."""
STOP_GRACE_NS: Final = ms(200)
"""How long a stopping portal waits for the companion to take what was said last."""


class PeerPortal:
    """Implements `portals.shell.link.Link` and `portals.peer.connection.ConnectionOwner`."""

    def __init__(self, ctx: WorkerContext, config: PeerConfig, dro: DroConfig) -> None:
        """Raises: ResourceError when the ring cannot be made, or a file of <tls> cannot be used."""
        self._ctx = ctx
        self._config = config
        self._acl = AclEnforcement(config.acl, sending=config.sending, receiving=config.receiving)
        matchers = Matchers(ctx)
        self.core = PortalCore(
            ctx.index,
            ctx.incarnation,
            NO_DOMAIN,
            source_deletion_delay_ns=ms(config.source_deletion_delay_ms),
            matcher=matchers,
            acl=self._acl,
        )
        self._shell = PortalShell(ctx, self.core, config.max_queue_bytes)
        self._udp = UdpPart(ctx, config, self._on_working) if config.udp is not None else None
        self.sender = LinkSender(ctx.loop, batching_of(config)) if self._udp is None else self._udp.sender
        self._shell.egress.set_smart_batch(config.smart_batch)
        self._shell.ingress.counts_unknown = True
        self.on_fragments = self._shell.ingress.on_fragments
        self._offered = OfferedSources()
        self.sources = LinkProxySources(ctx, config.sqn_window, self.sender, self._shell.egress, self._offered)
        self._told, self._heard = ToldInterest(), HeardInterest()
        self._rtt = RttStatistics()
        self._ways = Ways(config.cost)
        self._hello = Hello(
            dro.daemon.name.encode() or ctx.name.encode(),
            random.Random().randbytes(8),
            capabilities3=CAPABILITY3_PCRE | CAPABILITY3_REGEX,
            compression=(COMPRESSION_LZ4,) if config.tcp.compression else (),
            has_digests=True,
            has_canaries=True,
            node_id=ctx.identity.dro_node_id,
        )
        self._options = options_of(config)
        self._space = ReadSpace()  # of all connections
        self._link: PeerConnection | None = None  # whose dialogue is up
        self._offers: LinkSources | None = None  # what it offers
        self._neighbour = self._since_us = 0  # its node id, once it is known; when the initiator began to connect
        self._has_told_own = False  # the companion knows this DRO
        self._held = HeldLink(ctx, self._shell, self._heard, self.sender, self.sources)
        self._refresh: Timer | None = None
        is_initiator, tls = config.tcp.initiator is not None, config.tcp.tls
        make_stream: StreamMaker = PlainStream if tls is None else PeerStreamMaker(tls, is_server=not is_initiator)
        self._make_stream = make_stream
        self._watch = LinkWatch(ctx.loop.now_ns(), is_initiator=is_initiator, address=address_of(config.tcp))
        self._newcomers = Newcomers(ctx, self._watch)
        self._absence = AbsenceWarning(ctx, self._watch)
        self._gauges = LinkGauges(ctx.counters, self._rtt, self._watch, self.sender.counters)
        self._connector = (Initiator if is_initiator else Acceptor)(
            ctx, config.tcp, make_stream, self._on_stream, self._watch
        )
        PeerLists(
            ctx, self.core, matchers, self.sources, self.sender, self._told, self._heard, self._offered, self._rtt,
            self._watch, self._connector, make_stream, self._now, self._udp.losses if self._udp is not None else None,
        )  # fmt: skip
        self._unicast = unicast = LinkUnicast(ctx, config, self._shell, self)
        self.send_unicast, self.on_context_info = unicast.send_unicast, unicast.on_context_info
        self.send_immediate = unicast.send_immediate
        self.next_deadline, self.on_timer, self.rest = unicast.next_deadline, unicast.on_timer, self.sources.rest
        ctx.on_reconfigure = self._on_reconfigure
        self._shell.start(self)
        ctx.on_drain = self._held.on_drain
        self._connector.start()
        self._on_changed()

    def _now(self) -> LinkNow:
        newest = self._newcomers.newest
        return LinkNow(self._config, self._link, self._offers, self._ways, self._neighbour, newest)

    def _on_changed(self) -> None:
        """The link is up, or down."""
        self._shell.egress.is_operational = self._watch.is_up
        self._absence.arm()

    # connections

    def _on_stream(self, stream: ByteStream, address: TcpAddress) -> None:
        since_us = time.time_ns() // 1000 if isinstance(self._connector, Initiator) else 0
        greeting = replace(self._hello, since_us=since_us, fast_ms=fast_of(self._config))
        session = LinkSession(
            greeting if self._udp is None else self._udp.greeting(greeting),
            self._options,
            self._ctx.loop.now_ns(),
            rtt=self._rtt,
            told=self._digests_told,
            recorded=lambda: Digests(self._heard.digest, self._offers.digest if self._offers is not None else None),
            waits=self._link is not None and isinstance(self._connector, Acceptor),
        )
        connection = PeerConnection(self._ctx.loop, stream, address, session, self, self, self._space)
        self._newcomers.add(connection)
        connection.start()

    def _digests_told(self) -> Digests:
        """What a question that is put now comes behind. While all is told once more there is nothing to compare."""
        if self._link is None or not self._link.writer.has_told:
            return NO_DIGESTS
        return Digests(self._told.digest, self._link.writer.sources.digest)

    def on_up(self, connection: PeerConnection, up: LinkUp) -> None:
        self._newcomers.remove(connection)
        if self._link is None:
            self._begin(connection, up)
        else:
            silent_ns = self._link.session.options.interval_ns or SILENT_NS
            self._newcomers.judge(connection, self._link, silent_ns, lambda: self._begin(connection, up))

    def _begin(self, connection: PeerConnection, up: LinkUp) -> None:
        """It is the link from now on."""
        if not connection.is_open:
            return
        if self._link is not None:
            old = self._link
            old.read_rest()
            old.close()
            if self._link is old:
                self._on_down(old, "the companion has connected anew", "", LinkEnd.REMOTE)
        connection.admit(up)
        self._link = connection
        connection.on_behind = self._shell.report_busy
        self._watch.carries = connection.session.carries
        self._since_us = max(connection.session.own.since_us, up.hello.since_us)
        self._neighbour, self._has_told_own = up.hello.node_id, False
        extra = {"peer": address_text(connection.address), "dro": up.hello.name.decode(errors="replace")}
        is_initiator = isinstance(self._connector, Initiator)
        self._ctx.log.info(LogEvent.PEER_CONNECTED if is_initiator else LogEvent.PEER_ACCEPTED, extra=extra)
        ways, judge = self._ways, self._judge()
        self._offers = LinkSources(
            self._ctx, self._shell, connection.receiver, self._config.sourcemap_size, ways, judge, self._udp,
            self._held.sources,
        )  # fmt: skip
        self.sender.attach(connection.writer)
        self._held.on_up(up.hello.context_instance)
        if self._udp is None:
            self._on_working()
        elif not self._udp.connect(connection, up, self._offers, self):
            return
        self._unicast.writer = connection.writer
        self._told.capabilities3 = up.hello.capabilities3
        connection.writer.tell_all_interest(self._told.all(is_refresh=False))
        connection.writer.tell(self._tell_sources())
        self._arm_refresh()

    def _judge(self) -> Judge | None:
        return self._acl.may_enter if self._acl.judges_sources else None

    def _tell_sources(self) -> Iterator[bytes]:
        """Those that are offered already; data goes on when the companion knows them all."""
        yield from self._offered.all()
        self.sender.on_up()

    def _on_working(self) -> None:
        """All parts of the link work."""
        self._watch.on_up(self._ctx.loop.now_ns())
        self._on_changed()
        if isinstance(self._connector, Initiator):
            self._connector.on_up()
        self._told_up()

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        """BOS crosses no DRO."""

    def on_room(self, connection: PeerConnection) -> None:
        if connection is self._link:
            self.sender.on_room()

    def on_over(self, connection: PeerConnection, why: str, remedy: str, end: LinkEnd) -> None:
        was_greeted = not self._newcomers.remove(connection)
        if connection is self._link:
            self._on_down(connection, why, remedy, end)
        elif not was_greeted and isinstance(self._connector, Initiator):
            self._connector.failed(f"{why}; {remedy}" if remedy else why, end)
            return
        else:
            self._newcomers.refuse(connection, why, remedy, end)
        if isinstance(self._connector, Initiator) and not self._ctx.is_stopping:
            self._connector.on_over()

    def _on_down(self, connection: PeerConnection, why: str, remedy: str, end: LinkEnd) -> None:
        """Hold what was said over it."""
        extra = {"peer": address_text(connection.address), "interface": self._config.tcp.interface}
        self._ctx.log.info(LogEvent.PEER_LINK_LOST, extra=extra | {"reason": why, "remedy": remedy})
        offers = self._offers
        self._watch.on_down(self._ctx.loop.now_ns(), why, remedy, end)
        self._on_changed()
        if self._udp is not None:
            self._udp.close()
        connection.writer.control.move_to(self._ctx.counters)
        self._link, self._offers, self._neighbour = None, None, 0
        self._newcomers.on_link_over()
        self.sender.on_down()
        self._unicast.writer = None
        if self._refresh is not None:
            self._refresh.cancel()
        self._shell.report_up()
        self._held.on_down(offers)

    def on_effect(self, connection: PeerConnection, effect: LinkEffect) -> None:
        match effect:
            case Warned(text=text, remedy=remedy):
                extra = {"peer": address_text(connection.address), "reason": text, "remedy": remedy}
                self._ctx.log.warning(LogEvent.PEER_ODD, extra=extra)
            case RefreshNeeded(interest=interest, sources=sources):
                self._watch.repairs += 1
                self._ctx.limited(LogEvent.PEER_REPAIRED, extra={"interest": interest, "sources": sources})
                if interest:
                    connection.writer.tell_all_interest(self._told.all(is_refresh=True))
                if sources:
                    connection.writer.tell(self._offered.all())
            case SendCanary(message=message):
                self.sender.send_canary(message)
            case Carries():
                self._on_carries(effect)
            case _:
                pass

    def _on_carries(self, carries: Carries) -> None:
        """What canaries show: routes take the link, or do not any more."""
        self._watch.carries = carries.is_so
        extra = {"silent_ms": carries.silent_ns // NS_PER_MS}
        if carries.is_so:
            self._ctx.log.info(LogEvent.PEER_CARRIES, extra=extra)
        else:
            self._ctx.log.warning(LogEvent.PEER_DEGRADED, extra=extra | {"remedy": NO_ANSWER[1]})
        self._shell.report_up()

    def _arm_refresh(self) -> None:
        self._refresh = self._ctx.loop.call_later(REFRESH_NS, self._on_refresh)

    def _on_refresh(self) -> None:
        if isinstance(self._make_stream, PeerStreamMaker):
            self._make_stream.warn_of_expiry()
        self._tell_interest_again()
        self._arm_refresh()

    def _tell_interest_again(self) -> None:
        if self._link is not None:
            self._link.writer.tell_all_interest(self._told.all(is_refresh=True))

    # messages

    def on_message(self, connection: PeerConnection, message: Message, raw: bytes) -> None:
        if connection is not self._link or self._offers is None:
            return
        if self._heard.on_message(message):
            self._shell.act_soon()
        elif message.get(TopicSource) is not None:
            self._offers.on_message(message, connection.address)
        elif (info := message.get(RouteInfo)) is not None:
            if not self._neighbour and self._is_companion(message):
                self._neighbour = info.node_id
                self._told_up()
            self._shell.report_route_info(raw)
        else:
            self._unicast.on_message(raw, connection.address)
            return
        connection.writer.control.on_received(len(raw))

    def _is_companion(self, message: Message) -> bool:
        """Whether a DRO without a node id in HELLO describes itself, by name. Guess: without names the first does."""
        hello = self._link.session.hello if self._link is not None else None
        name = message.get(GatewayName)
        return hello is not None and (not hello.name or name is None or name.name == hello.name)

    def _told_up(self) -> None:
        """The companion is known, or all parts of the link work, or both."""
        hello = self._link.session.hello if self._link is not None else None
        if self._neighbour and self._watch.is_up and hello is not None:
            extra = {"dro": hello.name.decode(errors="replace"), "node_id": self._neighbour}
            self._ctx.log.info(LogEvent.PEER_LINK_UP, extra=extra)
        self._shell.report_up()

    # the link, as the shell sees it

    def take_interest(self) -> list[InterestEvent]:
        return self._heard.take_events()

    def perform(self, effect: ProxyEffect, now_ns: int) -> None:
        match effect:
            case OpenProxyReceiver(symbol=symbol, pattern=pattern, domains=domains):
                self._tell_change(symbol, pattern, domains, ())
            case UpdateProxyReceiver(symbol=symbol, pattern=pattern, added=added, removed=removed):
                self._tell_change(symbol, pattern, added, removed)
            case CloseProxyReceiver(symbol=symbol, pattern=pattern, domains=domains):
                self._tell_change(symbol, pattern, (), domains)
            case OpenProxySource(worker=worker, source=source):
                self.sources.open(worker, source)
            case FeedProxySource(worker=worker, source=source, is_beside=is_beside):
                self.sources.feed(worker, source, is_beside=is_beside)
            case UpdateProxySource(source=source):
                self.sources.advertise(source)
            case CloseProxySource(otid=otid):
                self.sources.close(otid)
            case DelayDeletion() | JoinKnownSource() | RecordKnownInterest() | CheckKnown() | ReviewSources():
                pass  # the companion tells everything anew by itself

    def _tell_change(self, symbol: bytes, pattern: int, added: tuple[int, ...], removed: tuple[int, ...]) -> None:
        messages = self._told.change((symbol, pattern), added, removed)
        if self._link is not None:
            self._link.writer.put_interest(messages)
        else:
            count_lost(self._ctx.counters, *messages)

    def together(self) -> AbstractContextManager[object]:
        return nullcontext()

    def can_deliver(self, now_ns: int) -> bool:
        return self.sender.is_up

    def send_pending(self, now_ns: int) -> None:
        self._unicast.send_pending()

    # routes

    def describe(self) -> PortalUp | PortalGone:
        if not (self._watch.is_up and self._watch.carries):
            return PortalGone(self._ctx.index)
        return PortalUp(self._ctx.index, NO_DOMAIN, self._config.cost, self._neighbour, since_us=self._since_us)

    def on_routes(self, reachable: set[int], now_ns: int) -> None:
        self._tell_interest_again()

    def on_origins(self, origins: tuple[Origin, ...]) -> None:
        """Ways from all domains to this DRO: what is advertised for the sources of the companion follows them."""
        if not origins:
            return  # no route enters or leaves here, so nothing is said about ways
        self._ways = Ways(self._config.cost, {o.domain_id: (o.hop_count, o.cost) for o in origins})
        if self._offers is not None:
            self._ctx.loop.run_in_slices(self._offers.set_ways(self._ways))

    def on_route_info(self, message: bytes) -> None:
        """The own comes first, for a companion that takes the first one that it hears for that of its neighbour."""
        info = None if self._has_told_own else lbmc.decode(message).get(RouteInfo)
        self._has_told_own = self._has_told_own or (info is not None and info.node_id == self._hello.node_id)
        if self._link is not None and self._has_told_own:
            self._link.writer.put_urgent(message)
        else:
            count_lost(self._ctx.counters, message)

    # the end

    def finals_pending(self) -> int:
        return 0

    def stop(self) -> int:
        had_sources = bool(self.sources) and self._link is not None
        self.sources.close_all()
        return STOP_GRACE_NS if had_sources else 0

    def close(self) -> None:
        self._connector.close()
        self._absence.close()
        self._held.close()
        if self._udp is not None:
            self._udp.close()
        self._newcomers.close()
        if self._link is not None:
            self._link.close()
        if self._watch.is_up:
            self._watch.on_down(self._ctx.loop.now_ns(), "the portal ends", "", LinkEnd.SHUTDOWN)
        self.refresh_gauges()

    def refresh_gauges(self) -> None:
        if self._udp is not None:
            self._udp.refresh_gauges()
        if self._link is not None:
            self._link.writer.control.move_to(self._ctx.counters)
        self._gauges.show(self._ctx.loop.now_ns(), int(time.time()), self._heard.kinds, len(self.sources))

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
        if "acl" in fields:
            self._take_acl(acl)
        else:
            self._acl.move_to(acl)
        if "cost" in fields:
            self._shell.report_up()  # the routes bring the new ways from all domains
        if {"keepalive", "canary"} & fields:
            self._options = options_of(config)
        self.sender.batching = batching_of(config)
        self._unicast.on_config(config)
        live.apply_common(fields, config, self.core, self._shell.egress)
        if fields:
            self._ctx.log.info(LogEvent.CHANGE_TAKEN_OVER, extra={"changed": sorted(fields)})
            self._shell.act()

    def _take_acl(self, acl: AclEnforcement) -> None:
        before, self._acl = self._acl, acl
        self.core.on_acl(acl, self._ctx.loop.now_ns())
        if self._offers is not None and not acl.lets_in_like(before):
            self._ctx.loop.run_in_slices(self._shell.acting(self._offers.set_judge(self._judge())))


def run_peer(ctx: WorkerContext, peer: PeerConfig, config: DroConfig) -> None:
    """Main function of the worker."""
    PeerPortal(ctx, peer, config)
    ctx.ready()
    ctx.run()
