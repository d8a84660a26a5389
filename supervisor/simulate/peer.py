"""A simulated peer portal's side of its link: the real dialogue, connecting, interest and sources, over a pipe.

The pipe stands for TCP: what is sent arrives in order, after a delay; a broken one is noticed at both ends, one that
swallows everything at none.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import Final

from dro.bus.messages import PortalGone, PortalUp, RouteTable
from dro.clock import ms, s
from dro.config.dro_xml.model import PeerConfig
from dro.proto.interest.events import InterestEvent
from dro.proto.peerlink.connecting import Claim, InitiatorCore, claim_of
from dro.proto.peerlink.hold import LinkHold
from dro.proto.peerlink.interest import HeardInterest, ToldInterest
from dro.proto.peerlink.messages import Digests, Hello, SourceEnd, SourceRecord, read_source
from dro.proto.peerlink.session import CloseLink, LinkOptions, LinkSession, LinkUp, RefreshNeeded, SendControl
from dro.proto.peerlink.sources import (
    HeardSources,
    OfferedSources,
    SourceMessage,
    ToldSources,
    Verdict,
    source_message,
)
from dro.wire.lbmc.dro_blocks import CAPABILITY3_PCRE, CAPABILITY3_REGEX, RouteInfo, TopicSource
from dro.wire.lbmc.message import Message
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
from portals.decisions.messages import SourceSeen
from supervisor.simulate.clock import Clock
from supervisor.simulate.messages import Sent
from supervisor.simulate.portal import Proxy, SimPortal

DELAY_NS: Final = ms(1)
REFUSED_NS: Final = ms(1)
CONNECT_TIMEOUT_NS: Final = s(10)
REFRESH_NS: Final = s(60)
Datum = tuple[int, Sent]
"""Number of a source, and a message of it."""


class Wire:
    """Between two hosts, for all connections of a peer link."""

    def __init__(self, clock: Clock, name: str) -> None:
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


class PeerEnd:
    """Implements `LinkEnd`."""

    def __init__(self, portal: SimPortal, config: PeerConfig, wire: Wire, rng: Random) -> None:
        self.portal, self._config, self._wire, self._rng = portal, config, wire, rng
        self.is_initiator = config.tcp.initiator is not None
        self._offered, self._told, self._heard = OfferedSources(), ToldInterest(), HeardInterest()
        self._told_sources = ToldSources()
        self._numbers: dict[bytes, int] = {}  # of proxy sources
        self._pipe: Pipe | None = None  # whose dialogue is up
        self._sessions: dict[Pipe, LinkSession] = {}
        self._offers: HeardSources | None = None
        self._handles: dict[int, int] = {}  # of joined sources, by their numbers
        self._hold = LinkHold()
        self._held: dict[bytes, tuple[SourceRecord, int]] = {}  # by OTID: those of a link before, and their handles
        self._ways: dict[int, tuple[int, int]] = {}
        self._neighbour = self._since_us = 0
        self._refresh_ns: int | None = None
        alive, fast = config.keepalive, config.fast_keepalive
        self._options = LinkOptions(ms(alive.interval_ms), ms(alive.timeout_ms), alive.only_when_idle)
        self._hello = Hello(
            portal.dro.name.encode(), rng.randbytes(8), capabilities3=CAPABILITY3_PCRE | CAPABILITY3_REGEX,
            node_id=portal.dro.node_id, has_digests=True,
            fast_ms=(fast.interval_ms, fast.timeout_ms) if fast is not None else None,
        )  # fmt: skip
        to = config.tcp.initiator
        interval_ns = ms(to.reconnect_interval_ms) if to is not None else 0
        self._connecting = InitiatorCore(interval_ns, portal.clock.now_ns, rng.randrange) if to is not None else None

    def start(self) -> None:
        self._wire.ends = [end for end in self._wire.ends if end.is_initiator != self.is_initiator]
        self._wire.ends.append(self)

    def on_killed(self) -> None:
        for pipe in [*self._sessions]:
            pipe.close(self)

    # connections

    def on_connected(self, pipe: Pipe) -> None:
        now_ns = self.portal.clock.now_ns
        session = LinkSession(
            replace(self._hello, since_us=now_ns // 1000 if self.is_initiator else 0),
            self._options,
            now_ns,
            told=lambda: Digests(self._told.digest, self._told_sources.digest),
            recorded=lambda: Digests(self._heard.digest, self._offers.digest if self._offers is not None else None),
        )
        self._sessions[pipe] = session
        session.on_connected(now_ns)
        self._perform_dialogue(pipe)

    def on_failed(self) -> None:
        if self.portal.is_alive and self._connecting is not None:
            self._connecting.on_over(self.portal.clock.now_ns)
            self.portal.clock.arm(self.portal)

    def on_broken(self, pipe: Pipe) -> None:
        if self.portal.is_alive and pipe in self._sessions:
            self._over(pipe)

    def _over(self, pipe: Pipe) -> None:
        del self._sessions[pipe]
        if pipe is self._pipe:
            self._on_down()
        if self._connecting is not None:
            self._connecting.on_over(self.portal.clock.now_ns)
        self.portal.act()

    def _on_down(self) -> None:
        offered = self._offers.all() if self._offers is not None else ()
        self._held |= {source.otid: (source, self._handles[source.srcidx]) for source in offered}
        self._handles.clear()
        self._pipe, self._offers, self._neighbour, self._refresh_ns = None, None, 0, None
        self.portal.report_up()
        self._heard.on_down()
        self._hold.on_down(self.portal.clock.now_ns)
        self.portal.act()

    @property
    def _left(self) -> int:
        return self._heard.held + len(self._held)

    def _on_hold_over(self) -> None:
        for _, handle in self._held.values():
            self.portal.end_source(handle)
        self._held.clear()
        if self._pipe is None:
            self.portal.core.forget_routes(self.portal.clock.now_ns)
        for _ in self._heard.lose():
            pass
        self.portal.act()

    def _close(self, pipe: Pipe) -> None:
        pipe.close(self)
        self._over(pipe)

    def _perform_dialogue(self, pipe: Pipe) -> None:
        session = self._sessions.get(pipe)
        for effect in session.take_effects() if session is not None else ():
            match effect:
                case SendControl(message=message):
                    pipe.send(self, message)
                case LinkUp():
                    self._on_up(pipe, effect.hello)
                case CloseLink():
                    self._close(pipe)
                    return
                case RefreshNeeded(interest=interest, sources=sources):
                    self.portal.counts["refreshed"] += 1
                    for message in self._told.all(is_refresh=True) if interest else ():
                        pipe.send(self, message)
                    for message in self._offered.all() if sources else ():
                        self._send(message)
                case _:
                    pass
        self.portal.clock.arm(self.portal)

    def _on_up(self, pipe: Pipe, hello: Hello) -> None:
        session, now_ns = self._sessions[pipe], self.portal.clock.now_ns
        if (old := self._pipe) is not None:
            claim = claim_of(session, self._sessions[old], now_ns, self._options.interval_ns or s(5))
            if claim not in (Claim.REPLACES, Claim.ASKS):  # who asks has lost the old one: nobody takes names here
                self._close(pipe)
                return
            del self._sessions[old]
            old.close(self)
            self._on_down()
        self._pipe, self._offers = pipe, HeardSources(self._config.sourcemap_size)
        self._since_us = max(session.own.since_us, hello.since_us)
        self._neighbour = hello.node_id
        if self._connecting is not None:
            self._connecting.on_up(now_ns)
        self._hold.on_up(now_ns, self._left)
        self._told.capabilities3 = hello.capabilities3
        self.portal.report_up()
        self._told_sources = ToldSources()
        for message in (*self._told.all(is_refresh=False), *self._offered.all()):
            self._send(message)
        self._refresh_ns = now_ns + REFRESH_NS

    def on_received(self, pipe: Pipe, message: bytes | Datum) -> None:
        session = self._sessions.get(pipe)
        if session is None:
            return
        now_ns = self.portal.clock.now_ns
        session.on_received(now_ns)
        if isinstance(message, bytes):
            rest = session.on_message(message, now_ns)
            self._perform_dialogue(pipe)
            if rest is not None and pipe is self._pipe:
                self._on_message(rest, message)
        elif pipe is self._pipe and (handle := self._handles.get(message[0])) is not None:
            self.portal.on_data(handle, message[1])

    def _on_message(self, message: Message, raw: bytes) -> None:
        assert self._offers is not None
        if self._heard.on_message(message):
            self.portal.take_interest()
        elif message.get(TopicSource) is not None:
            about = read_source(message)
            if isinstance(about, SourceEnd):
                if self._offers.on_end(about) is not None:
                    self._remove(about.srcidx)
            else:
                self._on_source(self._offers, about)
            self.portal.act()
        elif message.get(RouteInfo) is not None:
            self.portal.report_route_info(raw)

    # sources of the companion

    def _on_source(self, offers: HeardSources, record: SourceRecord) -> None:
        verdict, gone = offers.on_source(record)
        if verdict is not Verdict.TAKEN:
            self.portal.counts[f"source ignored: {verdict.value}"] += 1
            return
        for other in gone:
            self._remove(other.srcidx)
        self._put(record)

    def _put(self, record: SourceRecord) -> None:
        own, known = self.portal.core.own, self._handles.get(record.srcidx)
        way = self._ways.get(record.domain_id, (1, self.portal.cost))
        held, before = self._held.get(record.otid, (None, 0))
        if known is not None:
            own.change(known, *way, record.options)
        elif held is not None and (held.topic, held.domain_id) == (record.topic, record.domain_id):
            del self._held[record.otid]
            self._handles[record.srcidx] = before
            own.change(before, *way, record.options)
        else:
            self._handles[record.srcidx] = own.add(record.otid, record.topic, record.domain_id, *way, record.options)

    def _remove(self, number: int) -> None:
        if (handle := self._handles.pop(number, None)) is not None:
            self.portal.end_source(handle)

    # what the portal asks

    def take_interest(self) -> list[InterestEvent]:
        return self._heard.take_events()

    def flush(self) -> None:
        """All was sent already."""

    def next_deadline(self) -> int | None:
        connecting = self._connecting.next_deadline() if self._connecting is not None else None
        others = connecting, self._refresh_ns, self._hold.next_deadline()
        deadlines = [session.next_deadline() for session in self._sessions.values()]
        return min((at for at in (*deadlines, *others) if at is not None), default=None)

    def on_timer(self, now_ns: int) -> None:
        due_ns = self._connecting.next_deadline() if self._connecting is not None else None
        if self._connecting is not None and due_ns is not None and due_ns <= now_ns:
            self._connecting.on_attempt()
            self._wire.connect(self)
        if self._refresh_ns is not None and self._refresh_ns <= now_ns:
            self._refresh_ns = now_ns + REFRESH_NS
            self._tell_again()
        if self._hold.on_timer(now_ns, self._left):
            self._on_hold_over()
        for pipe, session in [*self._sessions.items()]:
            session.on_timer(now_ns)
            self._perform_dialogue(pipe)

    def _tell_again(self) -> None:
        if self._pipe is not None:
            for message in self._told.all(is_refresh=True):
                self._pipe.send(self, message)

    def describe(self) -> PortalUp | PortalGone:
        if self._pipe is None:
            return PortalGone(self.portal.worker)
        return PortalUp(self.portal.worker, 0, self.portal.cost, self._neighbour, since_us=self._since_us)

    def on_cost(self) -> None:
        """The routes bring the new ways."""

    def on_routes(self, table: RouteTable) -> None:
        self._tell_again()
        if not table.origins:
            return
        self._ways = {o.domain_id: (o.hop_count, o.cost) for o in table.origins}
        for record in self._offers.all() if self._offers is not None else ():
            self._put(record)

    def send_route_info(self, message: bytes) -> None:
        self._send(message)

    def _send(self, message: bytes | Datum) -> None:
        if self._pipe is not None:
            if isinstance(message, SourceMessage):
                self._told_sources.on_handed_over(message)
            self._pipe.send(self, message)
            self._sessions[self._pipe].on_sent(self.portal.clock.now_ns)

    def perform(self, effect: ProxyEffect) -> None:
        match effect:
            case OpenProxyReceiver(symbol=symbol, pattern=pattern, domains=domains):
                self._tell_change((symbol, pattern), domains, ())
            case UpdateProxyReceiver(symbol=symbol, pattern=pattern, added=added, removed=removed):
                self._tell_change((symbol, pattern), added, removed)
            case CloseProxyReceiver(symbol=symbol, pattern=pattern, domains=domains):
                self._tell_change((symbol, pattern), (), domains)
            case OpenProxySource(worker=worker, source=seen) | FeedProxySource(worker=worker, source=seen):
                self.portal.feed(seen.otid, seen.topic, worker, seen.handle)
                self._offer(seen)
            case UpdateProxySource(source=seen):
                self._offer(seen)
            case CloseProxySource(otid=otid):
                self.portal.end_proxy(otid)
                if self._numbers.pop(otid, None) is not None:
                    self._send(self._offered.end(otid))
            case DelayDeletion() | JoinKnownSource() | RecordKnownInterest() | CheckKnown() | ReviewSources():
                pass  # the companion tells everything anew by itself

    def _tell_change(self, symbol: tuple[bytes, int], added: tuple[int, ...], removed: tuple[int, ...]) -> None:
        for message in self._told.change(symbol, added, removed):
            self._send(message)

    def _offer(self, seen: SourceSeen) -> None:
        record = SourceRecord(0, seen.domain_id, seen.topic, seen.otid, 0, options=seen.pass_through)
        told = self._offered.change(record) if seen.otid in self._numbers else self._offered.offer(record)
        if told is not None:
            self._numbers[seen.otid] = told.srcidx
            self._send(source_message(told))

    def send(self, proxy: Proxy, sent: Sent) -> None:
        if self._pipe is None:
            self.portal.counts["sent"] -= 1
            self.portal.counts["dropped: no link"] += 1
        else:
            self._send((self._numbers[proxy.otid], sent))
