"""A peer portal as a process: the shell of every portal, and the host of the core of its link.

Its state is sockets: connections by the numbers that the core gave them, the one that is the link, and joined sources
as the data path has them. What is decided about the link is in `portals.peer.link_core`.

Source: peer link notes; DRO guide, chapters 2.1, 3.1.3 and 5.4.3; forwarding notes, sections 5 and 21.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from dro.bus.actor import WorkerContext
from dro.bus.messages import PortalGone, PortalUp, Trouble
from dro.clock import ms
from dro.config.dro_xml.model import DroConfig, PeerConfig
from dro.devices.follower import DeviceFollower
from dro.log.events import LogEvent
from dro.proto.context.sources import BoundSource
from dro.proto.peerlink.messages import Hello
from dro.proto.peerlink.session import LinkEffect, LinkEnd, LinkUp
from dro.proto.peerlink.sources import SentSources
from dro.proto.unicast.connections import OnOutcome
from dro.transport.read_space import ReadSpace
from dro.transport.session import ReceiverTransport
from dro.transport.stream import ByteStream, PlainStream, StreamMaker
from dro.wire.lbmc.message import Message
from dro.wire.lbmr.packet import TIR_TTL, Tir, TirOptions
from dro.wire.source_string import TcpAddress
from portals.datapath.handover import ForwardEntry
from portals.decisions.acl_enforcement import AclEnforcement
from portals.decisions.core import PortalCore
from portals.decisions.effects import FeedProxySource
from portals.peer import link_effects as do
from portals.peer.datagrams.udp import UdpPart
from portals.peer.link_core import NO_DOMAIN, LinkCore
from portals.peer.link_host import LinkHost
from portals.peer.link_sources import FORMER_CONNECTION, NO_ADDRESS, LinkSources
from portals.peer.options import CANARY_BYTES, batching_of
from portals.peer.process.gauges import LinkGauges
from portals.peer.process.listing import PeerLists
from portals.peer.process.proxies import LinkProxySources
from portals.peer.process.returning import open_kept, open_when_known
from portals.peer.process.unicast import LinkUnicast
from portals.peer.stream.connection import PeerConnection
from portals.peer.stream.connector import Acceptor, Initiator
from portals.peer.stream.peer_tls import PeerStreamMaker
from portals.peer.stream.receiver import LinkReceiver
from portals.peer.stream.resumption import LinkResumption
from portals.peer.stream.sender import LinkSender
from portals.peer.stream.writer import count_lost
from portals.shell import live
from portals.shell.matchers import Matchers
from portals.shell.portal import PortalShell
from portals.shell.quiescence import SenderQuiescence

STOP_GRACE_NS: Final = ms(200)
"""How long a stopping portal waits for the companion to take what was said last."""


class PeerPortal(LinkHost):
    """Implements `portals.shell.link.Link` and `portals.peer.stream.connection.ConnectionOwner`."""

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
        self._udp = UdpPart(ctx, config, self._on_working, self._remove) if config.udp is not None else None
        self.sender = LinkSender(ctx.loop, batching_of(config)) if self._udp is None else self._udp.sender
        self.sender.sent.limit_bytes = config.max_queue_bytes
        self._kept = open_kept(ctx, self.sender, config.max_queue_bytes)
        self._gate = ctx.kept_state.gate
        self._resumption = LinkResumption(
            ctx, self.sender, self._kept, self._on_begins, by_packet=self._udp is not None
        )
        self._shell.egress.set_smart_batch(config.smart_batch)
        self._shell.ingress.counts_unknown = True
        # Bound here and no method: called for each batch, it would cost a Python call more.
        self.on_fragments = self._shell.ingress.on_fragments
        self.sources = LinkProxySources(ctx, config.sqn_window, self.sender, self._shell.egress)
        link = LinkCore(
            config,
            self._acl,
            worker=ctx.index,
            dro_name=dro.daemon.name.encode() or ctx.name.encode(),
            node_id=ctx.identity.dro_node_id,
            instance=self._kept.instance,
            padding=random.randbytes(CANARY_BYTES),
            draw=random.randrange,
            now_ns=ctx.loop.now_ns(),
            sent_sources=self._sent_sources,
            late=self._udp,
            companion=self._kept.companion,
            numbers=self._kept,
        )
        super().__init__(link)
        self._space = ReadSpace()  # of all connections
        self._connections: dict[int, PeerConnection] = {}
        self._receivers: dict[int, LinkReceiver] = {}  # of connections with joined sources
        self._make_stream: StreamMaker = PlainStream
        if config.tcp.tls is not None:
            self._make_stream = PeerStreamMaker(config.tcp.tls, is_server=link.connecting is None)
        self._gauges = LinkGauges(ctx.counters, link.rtt, link.watch, self.sender.counters)
        self._connector: Initiator | Acceptor
        if link.connecting is not None:
            self._connector = Initiator(ctx, config.tcp, self._make_stream, self._on_stream, self._on_failed)
        else:
            self._connector = Acceptor(ctx, config.tcp, self._make_stream, self._on_stream, link.watch)
        losses = self._udp.losses if self._udp is not None else None
        PeerLists(ctx, self.core, matchers, self.sources, self.sender, link, self._connector, self._make_stream,
                  self._connection, losses)  # fmt: skip
        self._unicast = LinkUnicast(ctx, config, self._shell, self)
        ctx.on_reconfigure = self._on_reconfigure
        self._shell.egress.is_operational = False
        self._shell.on_forwards_again = partial(open_when_known, ctx.loop, self._shell, self._gate)
        self._shell.start(self)
        ctx.on_drain = self._on_drain
        if not self._gate.is_open:
            self.core.assume_routes()
        if isinstance(self._connector, Acceptor):
            self._gate.when_open(self._connector.start)

    def addresses(self) -> set[str]:
        """The local addresses of the link: the configured interface, and the one that the connection has."""
        link = self.connection
        connected = {link.local_ip} if link is not None else set()
        return {self._config.tcp.interface} | connected

    def _connection(self, number: int | None) -> PeerConnection | None:
        return self._connections.get(number) if number is not None else None

    @property
    def connection(self) -> PeerConnection | None:
        """The one that is the link."""
        link = self.link.link
        return self._connections.get(link.number) if link is not None else None

    def _sent_sources(self) -> SentSources | None:
        link = self.connection
        return link.writer.sources if link is not None and link.writer.has_put_all else None

    # connections

    def _on_stream(self, stream: ByteStream, address: TcpAddress) -> None:
        known = self.link.open(address, time.time_ns() // 1000, self._ctx.loop.now_ns(), self._complete_hello)
        connection = PeerConnection(
            self._ctx.loop, stream, address, known.session, self, self, self._space, known.number
        )
        self._connections[known.number] = connection
        connection.start()
        self._follow()

    def _complete_hello(self, own: Hello) -> Hello:
        own = replace(own, resumes=self._resumption.is_offered)
        return self._udp.complete_hello(own) if self._udp is not None else own

    def _on_failed(self, why: str, end: LinkEnd) -> None:
        self.link.on_failed(why, end, self._ctx.loop.now_ns())
        self._follow()

    def on_up(self, connection: PeerConnection, up: LinkUp) -> None:
        self.link.on_up(connection.number, up, self._ctx.loop.now_ns())
        self._follow()

    def on_over(self, connection: PeerConnection, why: str, remedy: str, end: LinkEnd) -> None:
        self.link.on_over(connection.number, why, remedy, end, self._ctx.loop.now_ns())
        self._follow()

    def on_effect(self, connection: PeerConnection, effect: LinkEffect) -> None:
        self.link.on_effect(connection.number, effect)
        self._follow()

    def on_message(self, connection: PeerConnection, message: Message, raw: bytes) -> None:
        if self.link.on_message(connection.number, message, raw):
            connection.writer.control.on_received(len(raw))
            self._follow()
        else:
            self._unicast.on_message(raw, connection.address)

    def on_room(self, connection: PeerConnection) -> None:
        if connection is self.connection:
            self.sender.on_room()

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        """BOS crosses no DRO."""

    def _on_working(self) -> None:
        """Note that packets get through, both ways."""
        self.link.on_working(self._ctx.loop.now_ns())
        self._follow()

    def _remove(self, offers: LinkSources, number: int) -> None:
        """Remove a source that has lingered."""
        offers.remove(number)
        self._follow()

    # what the core of the link asks for

    def _act_soon(self) -> None:
        self._shell.act_soon()

    def _carry_out_one(self, effect: do.LinkCoreEffect) -> None:
        match effect:
            case do.AddSource() | do.ChangeSource() | do.RemoveSource():
                self._change_source(effect)
            case do.OpenProxy():
                self.sources.open(effect)
            case FeedProxySource():
                self.sources.feed(effect)
            case do.CloseProxy():
                self.sources.close(effect)
            case do.SendInOrder(message=message, may_be_lost=may_be_lost):
                (self.sender.send_canary if may_be_lost else self.sources.tell)(message)
            case do.CountLost(messages=messages):
                count_lost(self._ctx.counters, *messages)
            case do.SendUrgent() | do.SendInterest() | do.SendAllInterest() | do.SendAllSources():
                self._send(effect)
            case do.Log(event=event, fields=fields, is_limited=is_limited):
                if is_limited:
                    self._ctx.limited(event, extra=fields)
                else:
                    assert event.level is not None
                    self._ctx.log.log(event.level, event, extra=dict(fields))
            case PortalUp() | PortalGone():
                self._shell.report(effect)
            case do.ReportRouteInfo(message=message):
                self._shell.report_route_info(message)
            case do.RunSteps(steps=steps):
                self._ctx.loop.run_in_slices(self._step_by_step(steps))
            case do.CompanionAway():
                self._on_away()
            case do.LinkChanged(is_up=is_up):
                self._shell.egress.is_operational = is_up
            case do.ConnectToCompanion():
                assert isinstance(self._connector, Initiator)
                self._gate.when_open(self._connector.connect)
            case _:
                if (connection := self._connections.get(effect.connection)) is not None:
                    self._change_connection(connection, effect)

    def _send(self, effect: do.ToCompanion) -> None:
        if (link := self.connection) is None:
            return
        match effect:
            case do.SendUrgent(message=message):
                link.writer.put_urgent(message)
            case do.SendInterest(messages=changes):
                link.writer.put_interest(changes)
            case do.SendAllInterest(messages=messages):
                link.writer.put_all_interest(messages)
            case do.SendAllSources(messages=messages, is_first=is_first):
                link.writer.put_in_slices(self._first_sources(messages) if is_first else messages)

    def _first_sources(self, messages: Iterator[bytes]) -> Iterator[bytes]:
        """Pass the first messages of sources on; data goes on when the companion knows all sources."""
        yield from messages
        self.sender.on_up()

    def _change_connection(
        self,
        connection: PeerConnection,
        effect: do.ConnectionEffect,
    ) -> None:
        match effect:
            case do.Admit(up=up):
                self._admit(connection, up)
            case do.Ask():
                connection.ask()
            case do.RefuseConnection():
                connection.close()
                self._forget(connection.number)
            case do.Forget():
                self._forget(connection.number)
            case do.EndConnection(why=why, remedy=remedy, end=end):
                connection.read_rest()
                connection.end(why, remedy, end)
            case do.LinkDown():
                if self._udp is not None:
                    self._udp.close(resumes=self.sender.resumes)
                self._resumption.close()
                connection.writer.control.move_to(self._ctx.counters)
                self.sender.on_down()
                self._unicast.writer = None

    def _admit(self, connection: PeerConnection, up: LinkUp) -> None:
        connection.admit(up)
        self._receivers[connection.number] = connection.receiver
        connection.on_behind = self._shell.report_busy
        companion = up.hello.context_instance if connection.session.resumes else b""
        self.sender.attach(connection.writer, companion)
        self._resumption.on_link(companion)
        self._unicast.writer = connection.writer
        count, on_data = connection.data_bytes, self._resumption.on_data
        if self._udp is not None and self.link.offers is not None:
            datagrams = self._udp.connect(connection, up, self.link.offers, self)
            if datagrams is None:
                return
            count, datagrams.on_data = datagrams.handed_up, on_data
        else:
            connection.on_data = on_data
        if companion:
            self._resumption.admit(connection, count)

    def _on_begins(self, lacking: int) -> None:
        """Go on with the companion's data; so much of what came over connections before is missing."""
        if self._udp is not None:
            self._udp.on_resumed(is_whole=not lacking)

    def _forget(self, number: int) -> None:
        """Drop what a connection that is over still has."""
        self._connections.pop(number, None)
        receiver = self._receivers.get(number)
        if receiver is not None and not receiver.sources:
            del self._receivers[number]

    def _on_away(self) -> None:
        """Drop what waits: the next link goes on with nothing of this one."""
        if self._udp is not None:
            self._udp.on_away()
        self._shell.egress.drop_waiting()
        self.core.forget_routes(self._ctx.loop.now_ns())
        self.sender.throw_away()
        if self._shell.drain.is_draining:  # it decides nothing any more
            self._ctx.loop.run_in_slices(self.sources.drop_waiting())

    # sources of the companion, as the data path has them

    def _change_source(self, effect: do.SourceEffect) -> None:
        if effect.connection == FORMER_CONNECTION and FORMER_CONNECTION not in self._receivers:
            self._receivers[FORMER_CONNECTION] = LinkReceiver(NO_ADDRESS, self._ctx.loop.now_ns())
        receiver = self._receivers.get(effect.connection)
        if receiver is None:
            return
        match effect:
            case do.AddSource(record=record, hop_count=hop_count, cost=cost, before=before):
                tir = Tir(record.topic, receiver.address, TIR_TTL, record.topic_index, TirOptions(()))
                bound: BoundSource[ForwardEntry] = BoundSource(
                    record.topic, record.otid, record.srcidx, receiver, tir, is_from_dro=True
                )
                receiver.sources[record.srcidx] = bound
                if before is None:
                    self._shell.add_source(bound, record.domain_id, hop_count, cost, record.options)
                else:
                    self._shell.move_source(self._pop(*before), bound)
                    self._shell.change_source(bound, hop_count, cost, record.options)
                if self._udp is not None and effect.connection != FORMER_CONNECTION:
                    self._udp.on_source(record.srcidx)
            case do.ChangeSource(record=record, hop_count=hop_count, cost=cost):
                self._shell.change_source(receiver.sources[record.srcidx], hop_count, cost, record.options)
            case do.RemoveSource(connection=connection, number=number):
                self._shell.remove_source(self._pop(connection, number))

    def _pop(self, number: int, srcidx: int) -> BoundSource[Any]:
        bound = self._receivers[number].sources.pop(srcidx)
        if number not in self._connections:
            self._forget(number)
        return bound

    # the link, as the shell sees it

    def can_deliver(self, now_ns: int) -> bool:
        return self.sender.is_up

    def send_pending(self, now_ns: int) -> None:
        self._unicast.send_pending()

    def next_deadline(self) -> int | None:
        deadlines = (self.link.next_deadline(), self._unicast.next_deadline())
        return min((at for at in deadlines if at is not None), default=None)

    def on_timer(self, now_ns: int) -> None:
        self._unicast.on_timer(now_ns)
        self.link.on_timer(now_ns)
        self._carry_out()

    # messages without a source

    def send_unicast(self, domain_id: int, message: bytes, on_outcome: OnOutcome) -> None:
        self._unicast.send_unicast(domain_id, message, on_outcome)

    def on_context_info(self, worker: int, message: bytes) -> None:
        self._unicast.on_context_info(worker, message)

    def send_immediate(self, message: bytes, on_outcome: OnOutcome) -> None:
        self._unicast.send_immediate(message, on_outcome)

    # the end

    def quiescence(self, worker: int | None, now_ns: int) -> SenderQuiescence:
        return self.sources.quiescence(worker, now_ns)

    def _on_drain(self, limit_ms: int) -> None:
        self._shell.drain.on_drain(limit_ms)
        self.link.on_drain()
        self._follow()

    def finals_pending(self) -> int:
        return 0

    def stop(self) -> int:
        had_sources = bool(self.sources) and self.connection is not None
        self.link.announced.close_all()
        self._carry_out()
        return STOP_GRACE_NS if had_sources else 0

    def close(self) -> None:
        self._connector.close()
        if self._udp is not None:
            self._udp.close(resumes=False)
        for connection in self._connections.values():
            connection.close()
        self.link.on_stop(self._ctx.loop.now_ns())
        self.refresh_gauges()

    def refresh_gauges(self) -> None:
        if self._udp is not None:
            self._udp.refresh_gauges()
        if (link := self.connection) is not None:
            link.writer.control.move_to(self._ctx.counters)
        if isinstance(self._make_stream, PeerStreamMaker):
            self._make_stream.warn_of_expiry()
        self._gauges.show(self._ctx.loop.now_ns(), int(time.time()), self.link.heard.kinds, len(self.sources))

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
            self._acl = acl
            self.core.on_acl(acl, self._ctx.loop.now_ns())
        else:
            self._acl.move_to(acl)
        self.link.on_config(config, self._acl)
        self._carry_out()
        self.sender.batching = batching_of(config)
        self.sender.sent.limit_bytes = config.max_queue_bytes
        self._unicast.on_config(config)
        live.apply_common(fields, config, self.core, self._shell.egress)
        if fields:
            self._ctx.log.info(LogEvent.CHANGE_TAKEN_OVER, extra={"changed": sorted(fields)})
            self._shell.engine.act()


def run_peer(ctx: WorkerContext, peer: PeerConfig, config: DroConfig) -> None:
    """Main function of the worker."""
    portal = PeerPortal(ctx, peer, config)
    follower = DeviceFollower(ctx.loop, lambda reason: ctx.report(Trouble(reason)), portal.addresses)
    ctx.ready()
    ctx.run()
    follower.close()
