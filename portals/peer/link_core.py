"""The link of a peer portal to the companion portal of another DRO: which connection is the link, and what is told.

State: connections with their dialogues, the link among them, what the companion wants and offers, and what it was told.
When the link goes down, what the companion wants and offers is held for a while (`dro.proto.peerlink.hold`), and what
is offered to it keeps its numbers. Knows no socket, no clock, no bus: a host (`portals.peer.process.portal`, or
`supervisor.tools.simulate.peer`) calls `on_...` with the time and carries out what `take_effects` returns, in order.

Source: peer link notes; DRO guide, chapters 2.1, 3.1.3 and 5.4.3; forwarding notes, sections 5 and 21.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from dro.bus.messages import Origin, PortalGone, PortalUp
from dro.clock import NS_PER_MS, ms, s
from dro.config.dro_xml.model import PeerConfig
from dro.log.events import LogEvent
from dro.proto.peerlink.connecting import InitiatorCore
from dro.proto.peerlink.hold import LinkHold
from dro.proto.peerlink.interest import HeardInterest
from dro.proto.peerlink.messages import (
    COMPRESSION_LZ4,
    NO_DIGESTS,
    Digests,
    Hello,
)
from dro.proto.peerlink.session import (
    DataPathState,
    LinkEffect,
    LinkEnd,
    LinkSession,
    LinkUp,
    RefreshNeeded,
    RttStatistics,
    SendCanary,
    Warned,
)
from dro.proto.peerlink.sources import SentSources, SourceNumbers
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.dro_blocks import CAPABILITY3_PCRE, CAPABILITY3_REGEX, GatewayName, RouteInfo, TopicSource
from dro.wire.lbmc.message import Message
from dro.wire.source_string import TcpAddress, address_text
from portals.decisions.acl_enforcement import AclEnforcement
from portals.decisions.messages import SourceSeen
from portals.peer import link_effects as do
from portals.peer.announcements import Announcements
from portals.peer.link_sources import FORMER_CONNECTION, NO_ADDRESS, DomainCosts, JoinFilter, LateData, LinkSources
from portals.peer.link_watch import NO_ANSWER, LinkWatch
from portals.peer.newcomers import Connection, Newcomers
from portals.peer.options import address_of, fast_of, options_of

REFRESH_NS: Final = s(60)
NO_DOMAIN: Final = 0
SILENT_NS: Final = s(5)
"""Without keepalives: after so long another DRO may take the place of one that says nothing."""


class LinkCore:
    """See the module text."""

    def __init__(
        self,
        config: PeerConfig,
        acl: AclEnforcement,
        *,
        worker: int,
        dro_name: bytes,
        node_id: int,
        instance: bytes,
        padding: bytes,
        draw: Callable[[int], int],
        now_ns: int,
        sent_sources: Callable[[], SentSources | None],
        late: LateData | None = None,
        companion: bytes = b"",
        numbers: SourceNumbers | None = None,
    ) -> None:
        """`instance`: of the portal, 8 bytes by chance; `padding`: of canaries. `draw(n)`: a random number below n.

        `sent_sources`: what the link has been told of sources; None while all is told once more. `companion`: the
        instance of the one whose link the process before had, which this one goes on with. `numbers`: of sources.
        """
        self.config = config
        self._acl = acl
        self._worker = worker
        self._padding = padding
        self._sent_sources = sent_sources
        self._late = late
        self._effects: list[do.LinkCoreEffect] = []
        self._ask = self._effects.append
        self.hello = Hello(
            dro_name,
            instance,
            capabilities3=CAPABILITY3_PCRE | CAPABILITY3_REGEX,
            compression=(COMPRESSION_LZ4,) if config.tcp.compression else (),
            has_digests=True,
            has_canaries=True,
            node_id=node_id,
        )
        self.announced = announced = Announcements(self._ask, numbers)
        self.offered, self.told, self.perform = announced.offered, announced.told, announced.perform
        self.heard = HeardInterest()
        self.rtt = RttStatistics()
        self.costs = DomainCosts(config.cost)
        to = config.tcp.initiator
        self.connecting = None
        if to is not None:
            self.connecting = InitiatorCore(ms(to.reconnect_interval_ms), now_ns, draw, had_link=bool(companion))
        self.watch = LinkWatch(now_ns, is_initiator=to is not None, address=address_of(config.tcp))
        self.newcomers = Newcomers(self.watch, self._ask, self._close)
        self._connections: dict[int, Connection] = {}
        self._number = 0  # of the newest
        self.link: Connection | None = None
        self.offers: LinkSources | None = None
        """Holds what the companion offers."""
        self._next: tuple[Connection, LinkUp] | None = None  # takes the place of the link when that is closed
        self.neighbour = 0
        """Node id of the companion's DRO, once it is known."""
        self._since_us = 0  # when the initiator began to connect
        self._has_told_own = False  # the companion knows this DRO
        self._refresh_ns: int | None = None
        self._hold = LinkHold()
        self._held: list[LinkSources] = []  # of connections before
        self._former: LinkSources | None = None  # of the process before
        self._instance = companion  # of the one that was there last
        self._is_away = True
        if companion:
            self._hold.on_down(now_ns)

    def take_effects(self) -> list[do.LinkCoreEffect]:
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    def _close(self, number: int) -> None:
        self._connections.pop(number, None)
        self._ask(do.RefuseConnection(number))

    # connections

    def open(
        self, address: TcpAddress, since_us: int, now_ns: int, complete_hello: Callable[[Hello], Hello]
    ) -> Connection:
        """Take in a connection; the host runs its dialogue. `since_us`: when the initiator began to connect.

        `complete_hello`: adds what HELLO says of this connection alone.
        """
        own = replace(self.hello, since_us=since_us if self.connecting is not None else 0, fast_ms=fast_of(self.config))
        session = LinkSession(
            complete_hello(own),
            options_of(self.config, self._padding),
            now_ns,
            rtt=self.rtt,
            told=self._digests_sent,
            recorded=lambda: Digests(self.heard.digest, self.offers.digest if self.offers is not None else None),
            waits=self.link is not None and self.connecting is None,
        )
        self._number += 1
        connection = self._connections[self._number] = Connection(self._number, address, session)
        self.newcomers.add(connection)
        return connection

    def _digests_sent(self) -> Digests:
        """Digest what was told before a question that is put now. None while all is told once more."""
        sources = self._sent_sources() if self.link is not None else None
        return NO_DIGESTS if sources is None else Digests(self.told.digest, sources.digest)

    def on_up(self, number: int, up: LinkUp, now_ns: int) -> None:
        """Both sides of the connection have said who they are."""
        self.newcomers.remove(number)
        connection, link = self._connections.get(number), self.link
        if connection is None:
            return
        if link is not None:
            silent_ns = link.session.options.interval_ns or SILENT_NS
            self.newcomers.judge(connection, up, link, silent_ns, now_ns)
        else:
            self._begin(connection, up, now_ns)

    def _begin(self, connection: Connection, up: LinkUp, now_ns: int) -> None:
        """Make the connection the link from now on, or as soon as the one before is closed."""
        if connection.number not in self._connections:
            return
        if self.link is not None:
            self._next = connection, up
            self._ask(do.EndConnection(self.link.number, "the companion has connected anew", "", LinkEnd.REMOTE))
            return
        self.link, self.announced.is_linked = connection, True
        self.watch.carries = connection.session.carries
        self._since_us = max(connection.session.own.since_us, up.hello.since_us)
        self.neighbour, self._has_told_own = up.hello.node_id, False
        event = LogEvent.PEER_CONNECTED if self.connecting is not None else LogEvent.PEER_ACCEPTED
        self._ask(do.Log(event, {"peer": address_text(connection.address), "dro": _name(up.hello)}))
        self.offers = LinkSources(
            connection.number, connection.address, self.config.sourcemap_size, self.costs, self._join_filter,
            self._ask, self._late, self._held,
        )  # fmt: skip
        if up.hello.context_instance != self._instance:  # not to be fed with what it does not want
            self._end_hold()
        self._is_away = False
        self._instance = up.hello.context_instance
        self._hold.on_up(now_ns, self._left)
        self._ask(do.Admit(connection.number, up))
        if self.config.udp is None:
            self.on_working(now_ns)
        self.told.capabilities3 = up.hello.capabilities3
        self._ask(do.SendAllInterest(self.told.all(is_refresh=False)))
        self._ask(do.SendAllSources(self.offered.all(), is_first=True))
        self._refresh_ns = now_ns + REFRESH_NS

    @property
    def _join_filter(self) -> JoinFilter | None:
        return self._acl.may_enter if self._acl.judges_sources else None

    def on_working(self, now_ns: int) -> None:
        """All parts of the link work."""
        if self.link is None:
            return
        self.watch.on_up(now_ns)
        self._ask(do.LinkChanged(is_up=True))
        if self.connecting is not None:
            self.connecting.on_up(now_ns)
        self._report_up()

    def _report_up(self) -> None:
        """Report that the companion is known, or all parts of the link work, or both."""
        hello = self.link.session.hello if self.link is not None else None
        if self.neighbour and self.watch.is_up and hello is not None:
            self._ask(do.Log(LogEvent.PEER_LINK_UP, {"dro": _name(hello), "node_id": self.neighbour}))
        self._ask(self.describe())

    def on_failed(self, why: str, end: LinkEnd, now_ns: int) -> None:
        """No connection was made; once is logged, and then what follows at a limited rate."""
        self.watch.on_attempt_failed(end)
        self.watch.on_failed(why)
        tcp = self.config.tcp
        fields = {"peer": address_of(tcp), "interface": tcp.interface, "error": why}
        self._ask(do.Log(LogEvent.PEER_CONNECT_FAILED, fields, is_limited=True))
        if self.connecting is not None:
            self.connecting.on_over(now_ns)

    def on_over(self, number: int, why: str, remedy: str, end: LinkEnd, now_ns: int) -> None:
        """A connection is over."""
        connection = self._connections.pop(number, None)
        if connection is None:
            return
        is_unknown = self.newcomers.remove(number)
        if is_unknown and self.connecting is not None:
            self.on_failed(f"{why}; {remedy}" if remedy else why, end, now_ns)
        else:
            if connection is self.link:
                self._on_down(connection, why, remedy, end, now_ns)
            else:
                self.newcomers.refuse(connection.address, why, remedy, end)
            if self.connecting is not None:
                self.connecting.on_over(now_ns)
        self._ask(do.Forget(number))

    def _on_down(self, link: Connection, why: str, remedy: str, end: LinkEnd, now_ns: int) -> None:
        """Hold what was said over it."""
        fields = {"peer": address_text(link.address), "interface": self.config.tcp.interface}
        self._ask(do.Log(LogEvent.PEER_LINK_LOST, fields | {"reason": why, "remedy": remedy}))
        offers = self.offers
        self.watch.on_down(now_ns, why, remedy, end)
        self._ask(do.LinkChanged(is_up=False))
        self._ask(do.LinkDown(link.number))
        self.link, self.offers, self.neighbour, self._refresh_ns = None, None, 0, None
        self.announced.is_linked = False
        self._ask(self.describe())
        if offers is not None:
            self._held.append(offers)
        self._is_away = True
        self.heard.on_down()
        self._hold.on_down(now_ns)
        successor, self._next = self._next, None
        if successor is not None:
            self._begin(*successor, now_ns)
        if (claimant := self.newcomers.take_claimant(is_free=self.link is None)) is not None:
            self._begin(*claimant, now_ns)

    # what is held of a link that was lost: proxies stay, and data waits in the queue

    @property
    def _left(self) -> int:
        return self.heard.held + sum([sources.left for sources in self._held])

    def join_known(self, source: SourceSeen) -> None:
        """Hold a source that the process before this one had over the link, and go on to give it to whom it gave it."""
        if not (self._hold.is_on and self._is_away):
            return  # the companion offers what it has
        if self._former is None:
            self._former = LinkSources(
                FORMER_CONNECTION, NO_ADDRESS, self.config.sourcemap_size, self.costs, None, self._ask, None, ()
            )
            self._held.append(self._former)
        self._former.hold(source)

    def on_drain(self) -> None:
        """Do not wait for a companion that is away."""
        if self._is_away:
            self._end_hold()

    def _end_hold(self) -> None:
        if self._hold.is_on:
            self._hold.end()
            self._lose()

    def _lose(self) -> None:
        """Drop all that is held: what was not confirmed goes."""
        held = self._held.copy()
        self._held.clear()
        if self._is_away:
            self._ask(do.CompanionAway())
        for sources in held:
            self._ask(do.RunSteps(sources.remove_all()))
        self._ask(do.RunSteps(self.heard.lose()))

    # the dialogue of the link

    def on_effect(self, number: int, effect: LinkEffect) -> None:
        """Take what the dialogue of a connection has led to, beside its own messages."""
        connection = self._connections.get(number)
        if connection is None:
            return
        match effect:
            case Warned(text=text, remedy=remedy):
                peer = address_text(connection.address)
                self._ask(do.Log(LogEvent.PEER_ODD, {"peer": peer, "reason": text, "remedy": remedy}))
            case RefreshNeeded(interest=interest, sources=sources):
                self.watch.repairs += 1
                fields = {"interest": interest, "sources": sources}
                self._ask(do.Log(LogEvent.PEER_REPAIRED, fields, is_limited=True))
                if interest:
                    self.announced.repeat_interest()
                if sources:
                    self._ask(do.SendAllSources(self.offered.all(), is_first=False))
            case SendCanary(message=message):
                self._ask(do.SendInOrder(message, may_be_lost=True))
            case DataPathState():
                self._on_carries(effect)
            case _:
                pass

    def _on_carries(self, carries: DataPathState) -> None:
        """Follow what canaries show: routes take the link, or do not any more."""
        self.watch.carries = carries.is_so
        fields: dict[str, object] = {"silent_ms": carries.silent_ns // NS_PER_MS}
        if carries.is_so:
            self._ask(do.Log(LogEvent.PEER_CARRIES, fields))
        else:
            self._ask(do.Log(LogEvent.PEER_DEGRADED, fields | {"remedy": NO_ANSWER[1]}))
        self._ask(self.describe())

    def on_message(self, number: int, message: Message, raw: bytes) -> bool:
        """Take a message of the link that is neither data nor part of the dialogue; False: it is for others."""
        if self.link is None or number != self.link.number or self.offers is None:
            return True
        if self.heard.on_message(message):
            pass
        elif message.get(TopicSource) is not None:
            self.offers.on_message(message)
        elif (info := message.get(RouteInfo)) is not None:
            if not self.neighbour and self._is_companion(self.link, message):
                self.neighbour = info.node_id
                self._report_up()
            self._ask(do.ReportRouteInfo(raw))
        else:
            return False
        return True

    @staticmethod
    def _is_companion(link: Connection, message: Message) -> bool:
        """Say whether a DRO with no node id in HELLO describes itself, by name. Guess: without names the first does."""
        hello, name = link.session.hello, message.get(GatewayName)
        return hello is not None and (not hello.name or name is None or name.name == hello.name)

    # routes

    def describe(self) -> PortalUp | PortalGone:
        """The portal, for the route manager."""
        if not (self.watch.is_up and self.watch.carries):
            return PortalGone(self._worker)
        return PortalUp(self._worker, NO_DOMAIN, self.config.cost, self.neighbour, since_us=self._since_us)

    def on_routes(self) -> None:
        """Other domains can be reached, perhaps."""
        self.announced.repeat_interest()

    def on_origins(self, origins: tuple[Origin, ...]) -> None:
        """Take the paths from all domains to this DRO: what is advertised for the sources of the companion follows
        them."""
        if not origins:
            return  # no route enters or leaves here, so nothing is said about paths
        self.costs = DomainCosts(self.config.cost, {o.domain_id: (o.hop_count, o.cost) for o in origins})
        if self.offers is not None:
            self._ask(do.RunSteps(self.offers.set_costs(self.costs)))

    def on_route_info(self, message: bytes) -> None:
        """The own comes first, for a companion that takes the first one that it hears for that of its neighbour."""
        info = None if self._has_told_own else lbmc.decode(message).get(RouteInfo)
        self._has_told_own = self._has_told_own or (info is not None and info.node_id == self.hello.node_id)
        is_told = self.link is not None and self._has_told_own
        self._ask(do.SendUrgent(message) if is_told else do.CountLost((message,)))

    def on_stop(self, now_ns: int) -> None:
        """The portal ends, and the link with it."""
        if self.watch.is_up:
            self.watch.on_down(now_ns, "the portal ends", "", LinkEnd.SHUTDOWN)

    # changes of the configuration

    def on_config(self, config: PeerConfig, acl: AclEnforcement) -> None:
        """Take over a changed one; connections keep the keepalives that they began with."""
        before, self._acl = self._acl, acl
        is_cost_new = config.cost != self.config.cost
        self.config = config
        if is_cost_new:
            self._ask(self.describe())  # the routes bring the new paths from all domains
        if self.offers is not None and acl is not before and not acl.lets_in_like(before):
            self._ask(do.RunSteps(self.offers.set_filter(self._join_filter)))

    # time

    def next_deadline(self) -> int | None:
        deadlines = (
            self.connecting.next_deadline() if self.connecting is not None else None,
            self._refresh_ns,
            self._hold.next_deadline(),
            self.newcomers.next_deadline(),
            self.watch.next_deadline(),
        )
        return min((at for at in deadlines if at is not None), default=None)

    def on_timer(self, now_ns: int) -> None:
        if self.connecting is not None and _is_due(self.connecting.next_deadline(), now_ns):
            self.connecting.on_attempt()
            self._ask(do.ConnectToCompanion())
        if _is_due(self._refresh_ns, now_ns):
            self._refresh_ns = now_ns + REFRESH_NS
            self.announced.repeat_interest()
        if self._hold.on_timer(now_ns, self._left):
            self._lose()
        if (taken := self.newcomers.on_timer(now_ns, self.link)) is not None:
            self._begin(*taken, now_ns)
        if (absence := self.watch.on_timer(now_ns)) is not None:
            fields = {"waiting_s": absence.waiting_s, "reason": absence.reason, "remedy": absence.remedy}
            self._ask(do.Log(LogEvent.PEER_ABSENT, fields))


def _is_due(deadline_ns: int | None, now_ns: int) -> bool:
    return deadline_ns is not None and deadline_ns <= now_ns


def _name(hello: Hello) -> str:
    return hello.name.decode(errors="replace")
