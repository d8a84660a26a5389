"""A simulated peer portal's side of its link: the host of the link's core, over a pipe.

The pipe stands for TCP: what is sent arrives in order, after a delay; a broken one is noticed at both ends, one that
swallows everything at none.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Final

from dro.bus.messages import PortalGone, PortalUp
from dro.clock import ms, s
from dro.config.dro_xml.model import EndpointConfig, PeerConfig
from dro.proto.peerlink.messages import Hello
from dro.proto.peerlink.session import CloseLink, LinkEnd, LinkUp, SendControl
from dro.proto.peerlink.sources import SentSources, SourceMessage, source_message
from dro.wire.source_string import TcpAddress
from portals.decisions.effects import FeedProxySource
from portals.peer import link_effects as do
from portals.peer.link_core import LinkCore
from portals.peer.link_host import LinkHost
from portals.peer.newcomers import Connection
from portals.peer.options import CANARY_BYTES
from supervisor.tools.simulate.clock import SimClock
from supervisor.tools.simulate.messages import Sent
from supervisor.tools.simulate.portal import Proxy, SimPortal

DELAY_NS: Final = ms(1)
REFUSED_NS: Final = ms(1)
CONNECT_TIMEOUT_NS: Final = s(10)
ADDRESS: Final = TcpAddress(0x7F000001, 0, 0)
"""Is the address of every companion."""
Datum = tuple[int, Sent]
"""Number of a source, and a message of it."""


class Wire:
    """Between two hosts, for all connections of a peer link."""

    def __init__(self, clock: SimClock, name: str) -> None:
        self.clock, self.name = clock, name
        self.ends: list[PeerEnd] = []
        self.is_up = True
        self.is_silent = False
        """One that is not up says nothing: what is sent waits, as TCP repeats it, until it is up again."""
        self.messages = 0
        """Control messages."""
        self._pipes: list[Pipe] = []

    def other(self, end: PeerEnd) -> PeerEnd:
        """The companion's, as it is now."""
        return next(other for other in self.ends if other.is_initiator != end.is_initiator)

    def cut(self, *, is_silent: bool) -> None:
        self.is_up, self.is_silent = False, is_silent
        if not is_silent:
            self.break_all()

    def mend(self) -> None:
        self.is_up = True
        for pipe in self._pipes:
            pipe.send_held()

    def break_all(self) -> None:
        pipes, self._pipes = self._pipes, []
        for pipe in pipes:
            pipe.reset()

    def connect(self, initiator: PeerEnd) -> None:
        """The initiator is told by `on_connected` or `on_failed`."""
        if not self.is_up and self.is_silent:
            self.clock.after(CONNECT_TIMEOUT_NS, initiator.on_failed)
        else:
            self.clock.after(REFUSED_NS, partial(self._answer, initiator))

    def _answer(self, initiator: PeerEnd) -> None:
        acceptors = [end for end in self.ends if not end.is_initiator and end.portal.is_alive]
        if not self.is_up or not acceptors or not initiator.portal.is_alive:
            initiator.on_failed()
            return
        pipe = Pipe(self, initiator, acceptors[-1])
        self._pipes = [*(old for old in self._pipes if old.is_open), pipe]
        for end in pipe.ends:
            end.on_connected(pipe)


class Pipe:
    """One connection."""

    def __init__(self, wire: Wire, one: PeerEnd, other: PeerEnd) -> None:
        self._wire, self.ends = wire, (one, other)
        self.is_open = True
        self._held: list[tuple[PeerEnd, bytes | Datum]] = []

    def send(self, by: PeerEnd, message: bytes | Datum) -> None:
        to = self.ends[self.ends[0] is by]
        if self._wire.is_up:
            self._wire.messages += isinstance(message, bytes)
            self._wire.clock.after(DELAY_NS, partial(self._arrive, to, message))
        elif self.is_open:
            self._held.append((to, message))

    def send_held(self) -> None:
        held, self._held = self._held, []
        for to, message in held:
            self._wire.clock.after(DELAY_NS, partial(self._arrive, to, message))

    def _arrive(self, to: PeerEnd, message: bytes | Datum) -> None:
        if self.is_open and to.portal.is_alive:
            to.on_received(self, message)

    def close(self, by: PeerEnd) -> None:
        """The other end notices, if anything comes through."""
        if self.is_open and self._wire.is_up:
            self._wire.clock.after(DELAY_NS, partial(self.ends[self.ends[0] is by].on_broken, self))
        self._wire.clock.after(DELAY_NS, self._close)

    def _close(self) -> None:
        self.is_open = False

    def reset(self) -> None:
        """Both ends notice."""
        if self.is_open:
            self.is_open = False
            for end in self.ends:
                end.on_broken(self)


class Dialogue:
    """The dialogue of one connection, with a timer of its own."""

    def __init__(self, end: PeerEnd, pipe: Pipe, known: Connection) -> None:
        self._end, self._pipe = end, pipe
        self.number, self.session = known.number, known.session

    def next_deadline(self) -> int | None:
        return self.session.next_deadline() if self._end.is_talking(self._pipe) else None

    def on_timer(self, now_ns: int) -> None:
        self.session.on_timer(now_ns)
        self._end.talk(self._pipe)


class PeerEnd(LinkHost):
    """Implements `portals.decisions.engine.EngineLink`, and is the host of `LinkCore`."""

    def __init__(self, portal: SimPortal, config: PeerConfig, wire: Wire, rng: Random) -> None:
        self.portal, self._wire = portal, wire
        self._told = SentSources()
        link = LinkCore(
            config, portal.acl, worker=portal.worker, dro_name=portal.dro.name.encode(), node_id=portal.dro.node_id,
            instance=rng.randbytes(8), padding=rng.randbytes(CANARY_BYTES), draw=rng.randrange,
            now_ns=portal.clock.now_ns, sent_sources=lambda: self._told,
        )  # fmt: skip
        super().__init__(link)
        self.is_initiator = self.link.connecting is not None
        self._known: dict[Pipe, Dialogue] = {}
        self._pipes: dict[int, Pipe] = {}  # by number
        self._handles: dict[tuple[int, int], int] = {}  # of joined sources, by connection and number
        self._numbers: dict[bytes, int] = {}  # of proxy sources

    def start(self) -> None:
        self._wire.ends = [end for end in self._wire.ends if end.is_initiator != self.is_initiator]
        self._wire.ends.append(self)

    def on_killed(self) -> None:
        for pipe in [*self._known]:
            pipe.close(self)

    @property
    def _pipe(self) -> Pipe | None:
        return self._pipes.get(self.link.link.number) if self.link.link is not None else None

    # connections

    def on_connected(self, pipe: Pipe) -> None:
        now_ns = self.portal.clock.now_ns
        known = self.link.open(ADDRESS, now_ns // 1000, now_ns, _as_it_is)
        self._known[pipe], self._pipes[known.number] = Dialogue(self, pipe, known), pipe
        known.session.on_connected(now_ns)
        self.talk(pipe)
        self._follow()

    def on_failed(self) -> None:
        if self.portal.is_alive:
            self.link.on_failed("nobody answers", LinkEnd.ERROR, self.portal.clock.now_ns)
            self._follow()

    def on_broken(self, pipe: Pipe) -> None:
        if self.portal.is_alive:
            self._over(pipe, "the connection broke", "", LinkEnd.ERROR)

    def _over(self, pipe: Pipe, why: str, remedy: str, end: LinkEnd) -> None:
        if (known := self._known.pop(pipe, None)) is not None:
            self.link.on_over(known.number, why, remedy, end, self.portal.clock.now_ns)
            self._follow()

    def talk(self, pipe: Pipe) -> None:
        """Perform what the dialogue of a connection asks for."""
        known = self._known.get(pipe)
        for effect in known.session.take_effects() if known is not None else ():
            assert known is not None
            match effect:
                case SendControl(message=message):
                    pipe.send(self, message)
                case LinkUp():
                    self.link.on_up(known.number, effect, self.portal.clock.now_ns)
                case CloseLink():
                    pipe.close(self)
                    self._over(pipe, effect.text, effect.remedy, effect.end)
                    return
                case _:
                    self.link.on_effect(known.number, effect)
            self._follow()
        if known is not None:
            self.portal.clock.arm(known)

    def is_talking(self, pipe: Pipe) -> bool:
        return pipe in self._known and self.portal.is_alive

    def on_received(self, pipe: Pipe, message: bytes | Datum) -> None:
        known, now_ns = self._known.get(pipe), self.portal.clock.now_ns
        if known is None:
            return
        known.session.on_received(now_ns)
        if isinstance(message, bytes):
            rest = known.session.on_message(message, now_ns)
            self.talk(pipe)
            if rest is not None and pipe in self._known:
                self.link.on_message(known.number, rest, message)
                self._follow()
        elif pipe is self._pipe and (handle := self._handles.get((known.number, message[0]))) is not None:
            self.portal.on_data(handle, message[1])

    # what the core of the link asks for

    def _act_soon(self) -> None:
        self.portal.act_soon()

    def _carry_out_one(self, effect: do.LinkCoreEffect) -> None:
        own = self.portal.core.own
        match effect:
            case do.SendUrgent(message=message) | do.SendInOrder(message=message):
                self._send(message)
            case do.SendInterest() | do.SendAllInterest() | do.SendAllSources():
                for message in effect.messages:
                    self._send(message)
            case do.AddSource(connection=connection, record=record, hop_count=hop_count, cost=cost, before=before):
                advertised = hop_count, cost, record.options
                if before is None:
                    handle = own.add(record.otid, record.topic, record.domain_id, *advertised)
                else:
                    handle = self._handles.pop(before)
                    own.change(handle, *advertised)
                self._handles[connection, record.srcidx] = handle
            case do.ChangeSource(connection=connection, record=record, hop_count=hop_count, cost=cost):
                own.change(self._handles[connection, record.srcidx], hop_count, cost, record.options)
            case do.RemoveSource(connection=connection, number=number):
                self.portal.end_source(self._handles.pop((connection, number)))
            case do.OpenProxy(worker=worker, source=seen, record=record):
                self.portal.feed(seen.otid, seen.topic, worker, seen.handle)
                self._numbers[seen.otid] = record.srcidx
                self._send(source_message(record))
            case FeedProxySource(worker=worker, source=seen):
                self.portal.feed(seen.otid, seen.topic, worker, seen.handle)
            case do.CloseProxy(otid=otid, end=end):
                self.portal.end_proxy(otid)
                del self._numbers[otid]
                self._send(end)
            case PortalUp() | PortalGone():
                self.portal.report(effect)
            case do.ReportRouteInfo(message=message):
                self.portal.report_route_info(message)
            case do.RunSteps(steps=steps):
                self.portal.run_in_slices(self._step_by_step(steps))
            case do.CompanionAway():
                self.portal.core.forget_routes(self.portal.clock.now_ns)
            case do.ConnectToCompanion():
                self._wire.connect(self)
            case do.Log(event=event):
                self.portal.counts[event.name] += 1
            case do.LinkChanged() | do.CountLost():
                pass
            case _:
                self._change_connection(effect)

    def _change_connection(self, effect: do.ConnectionEffect) -> None:
        if isinstance(effect, do.Forget):
            self._pipes.pop(effect.connection, None)
            return
        pipe = self._pipes.get(effect.connection)
        if pipe is None or pipe not in self._known:
            return
        match effect:
            case do.Admit():
                self._told = SentSources()
                if greeting := self._known[pipe].session.take_hello():
                    pipe.send(self, greeting)
                    self.portal.clock.arm(self._known[pipe])
            case do.Ask():
                self._known[pipe].session.ask(self.portal.clock.now_ns)
                self.talk(pipe)
            case do.RefuseConnection():
                pipe.close(self)
                del self._known[pipe], self._pipes[effect.connection]
            case do.EndConnection(why=why, remedy=remedy, end=end):
                pipe.close(self)
                self._over(pipe, why, remedy, end)
            case do.LinkDown():
                pass  # nothing waits here

    def _send(self, message: bytes | Datum) -> None:
        if (pipe := self._pipe) is not None:
            if isinstance(message, SourceMessage):
                self._told.on_handed_over(message)
            pipe.send(self, message)
            self._known[pipe].session.on_sent(self.portal.clock.now_ns)

    # the link, as the engine sees it

    def send_pending(self, now_ns: int) -> None:
        """All was sent already."""

    def next_deadline(self) -> int | None:
        return self.link.next_deadline()

    def on_timer(self, now_ns: int) -> None:
        self.link.on_timer(now_ns)
        self._carry_out()

    def on_config(self, config: EndpointConfig | PeerConfig) -> None:
        assert isinstance(config, PeerConfig)
        self.link.on_config(config, self.portal.acl)
        self._carry_out()

    def send(self, proxy: Proxy, sent: Sent) -> None:
        if self._pipe is None:
            self.portal.counts["sent"] -= 1
            self.portal.counts["dropped: no link"] += 1
        else:
            self._send((self._numbers[proxy.otid], sent))


def _as_it_is(own: Hello) -> Hello:
    return own
