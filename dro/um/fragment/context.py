"""One UM context at fragment level: topic resolution, joined sessions, own sources. No asyncio, no threads.

Owns the sockets of the TR channel, the request port, the sessions that it has joined and those that its sources send
on. A portal has two of these, the message level of the client library one. Received fragments go to a `FragmentSink`.

    what receivers want, by `want_topic` and `want_pattern`     dro.um.fragment.wanted
    sources that were found: joined, left, taken for dead       dro.um.fragment.bindings
    sources of our own                                          dro.um.fragment.own_sources

Source: client library notes, sections 1 and 2.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dro.config.um.options import UmOptions
from dro.config.um.sets import RequestOptions, ResolverOptions, TlsOptions
from dro.errors import DecodeError, ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.patterns import Pattern, PatternError
from dro.proto.context.sources import BoundSource
from dro.proto.resolver import events as ev
from dro.proto.resolver.core import Resolver
from dro.proto.resolver.joining import Carries, Judge
from dro.proto.resolver.source_advertisements import Matcher
from dro.proto.unicast.connections import OnOutcome
from dro.timers import Timer
from dro.transport import mmsg, sockets
from dro.transport.kind import SessionHost
from dro.transport.session import FragmentSink, OnClient, SenderTransport, SessionCounts
from dro.transport.tls import stream_maker
from dro.um.fragment.bindings import Bindings, BoundKey, ContextStats
from dro.um.fragment.immediate import ImmediateMessages
from dro.um.fragment.options import resolver_config, with_interface
from dro.um.fragment.own_sources import FragmentSource, OwnSources
from dro.um.fragment.receiver_sessions import ReceiverSessions
from dro.um.fragment.request_port import OnUnicast, RequestPort
from dro.um.fragment.source_sessions import SourceSessions
from dro.um.fragment.tr_channel import TrChannel
from dro.um.fragment.unicast_sender import UnicastSender, ignore_outcome
from dro.um.fragment.wanted import WantedTopics
from dro.wire.lbmr import packet as lbmr

log = logging.getLogger(__name__)

OPTIONS_MAX_BYTES: Final = 64  # more than the standard options of a packet take
LOG_KINDS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """What a context is, besides its options.

    `domain_id`: of the TRD when it is configured (a DRO's), 0 to learn it. `sm_before_data`: LBT-RM sources send
    session messages before their first data. `hears_sources` False: the context has sources only, and looks at no
    packet that merely advertises.
    """

    name: str = ""
    source_type: int = lbmr.SenderType.APPLICATION
    domain_id: int = 0
    sm_before_data: bool = False
    hears_sources: bool = True


def _nothing(*_: object) -> None:
    pass


class FragmentContext:
    """See the module text. Raises on creation: ResourceError naming the option that cannot be satisfied."""

    def __init__(
        self,
        options: UmOptions,
        loop: Loop,
        *,
        sink: FragmentSink,
        settings: ContextSettings = ContextSettings(),  # frozen
        rng: random.Random | None = None,
    ) -> None:
        """`sink` is called from the loop only."""
        self.name = settings.name
        self.options = options = with_interface(options)
        self.stats = ContextStats()
        self.ignore_source_ids: set[bytes] = set()
        self.on_tr_packet: Callable[[lbmr.Packet, int, int], object] = _nothing
        self.on_domain_route: Callable[[tuple[int, ...], int, int], object] = _nothing
        self.on_topic_matched: Callable[[bytes, int, bytes], object] = _nothing
        """(pattern, pattern type, topic): a pattern has found a topic."""
        self.on_topic_unmatched: Callable[[bytes, int, bytes], object] = _nothing
        self.on_no_source: Callable[[bytes], object] = _nothing
        self.on_client: OnClient = _nothing
        self.on_source_changed: Callable[[BoundSource[Any]], object] = _nothing
        """A bound source is advertised with other attributes than before."""
        self.on_unicast: OnUnicast = _nothing
        """A message has come to the request port."""
        self._loop = loop
        rng = rng or random.Random()
        self.context_instance = rng.randbytes(8)
        self.context_id = rng.getrandbits(32)
        self._hears_sources = settings.hears_sources
        self._batch = mmsg.DatagramBatch()
        self._faults = LimitedLogger(log, loop.now_ns)
        o = ResolverOptions.of(options)
        self._resolver = Resolver(
            resolver_config(o, self.context_instance, settings.source_type, settings.domain_id),
            loop.now_ns(),
            compile_pattern=self._compile,
            jitter=lambda ns: rng.randrange(ns),
        )
        self._own_tail = b""
        self._set_options()
        self.channel = TrChannel(loop, o, self._batch, self._on_datagrams)
        self._request: RequestPort | None = None
        try:
            request = RequestOptions.of(options)
            tls = TlsOptions.of(options)
            if request.bind:
                maker = partial(stream_maker, tls, is_server=True)
                self._request = RequestPort(loop, request, self.channel.local_address, self._on_unicast, maker)
            self.unicast_limit_bytes = request.response_buffer_bytes
            self._unicast = UnicastSender(loop, request, partial(stream_maker, tls, is_server=False))
            host = SessionHost(loop, options, self._batch, rng)
            self.joined = ReceiverSessions(host, sink, lambda *ended: self._bindings.on_session_ended(*ended))
            self.pools = SourceSessions(host, on_client=self._on_client, sm_before_data=settings.sm_before_data)
            self.immediate = ImmediateMessages(host, self.pools)
            """Multicast immediate messages."""
        except ResourceError:
            self.channel.close()
            if self._request is not None:
                self._request.close()
            raise
        self._timer: Timer | None = None
        self._is_pumping = False
        self._acts_soon = False
        self._together = 0
        self._is_closed = False
        is_dro = settings.source_type == lbmr.SenderType.DRO
        self._wanted = WantedTopics(self._resolver, options, uses_hotlinks=not is_dro)
        self._bindings = Bindings(
            loop, sink, self._resolver, self._wanted, self.joined, self.stats, self._faults, self._pump
        )
        self._own = OwnSources(
            loop,
            self._resolver,
            self.pools,
            context_id=self.context_id,
            first_index=rng.getrandbits(32),
            request_address=self.request_address,
            pump=self._pump,
        )

    # what it is

    @property
    def domain_id(self) -> int:
        """Return the domain id of the TRD, configured or learnt; 0 while it is not known."""
        return self._resolver.domain_id

    @property
    def request_address(self) -> tuple[int, int]:
        """Address (u32) and port for unicast immediate messages; (0, 0) without a request port."""
        return self._request.address if self._request is not None else (0, 0)

    @property
    def resolver(self) -> Resolver:
        """Topic resolution of this context; to be read only."""
        return self._resolver

    @property
    def finals_pending(self) -> int:
        """Closed sources whose final advertisements are not all out: a reason to close the context a little later."""
        return self._resolver.finals_pending

    def counts(self) -> SessionCounts:
        """Return what the context and all its sessions have counted since the start."""
        broken = self._request.broken if self._request is not None else 0
        bad = self.stats.tr_dgrams_dropped_malformed + broken
        own = SessionCounts(bad=bad, socket_drops=self.channel.socket_drops())
        return self.joined.counts() + self.pools.counts() + self.immediate.counts() + own

    @property
    def bound_sources(self) -> list[BoundSource[Any]]:
        return self._bindings.sources

    def bound_source(self, key: BoundKey) -> BoundSource[Any] | None:
        return self._bindings.find(key)

    @property
    def source_count(self) -> int:
        """Open sources of ours."""
        return len(self._own)

    @property
    def topic_count(self) -> int:
        """Topics that receivers want, those that patterns found included."""
        return len(self._wanted.all_topics())

    @property
    def unresolved_topic_count(self) -> int:
        """Wanted topics without a joined source."""
        return len(self._wanted.named_topics() - self._bindings.topics())

    # wanted topics

    def want_topic(self, topic: bytes, options: UmOptions | None = None) -> None:
        """Join every source of the topic from now on. Options are those of the first who wants it.

        Raises: DecodeError when it cannot be a topic name.
        """
        self._wanted.add_topic(topic, options, self._loop.now_ns())
        self._pump()

    def unwant_topic(self, topic: bytes) -> None:
        now_ns = self._loop.now_ns()
        self._bindings.leave_unwanted(self._wanted.remove_topic(topic, now_ns), now_ns)
        self._pump()

    def want_pattern(
        self, pattern: bytes, pattern_type: int, matcher: Matcher, options: UmOptions | None = None
    ) -> None:
        """Join every source whose topic matches. Raises: DecodeError when it cannot be sent as a pattern."""
        self._wanted.add_pattern((pattern, pattern_type), matcher, options, self._loop.now_ns())
        self._pump()

    def unwant_pattern(self, pattern: bytes, pattern_type: int) -> None:
        self._bindings.leave_pattern(self._wanted.remove_pattern((pattern, pattern_type), self._loop.now_ns()))
        self._pump()

    def matched_topics(self, pattern: bytes, pattern_type: int) -> frozenset[bytes]:
        """Topics that a wanted pattern has found."""
        return self._wanted.topics_of((pattern, pattern_type))

    def join_known(self, tir: lbmr.Tir, *, source_ip: int, is_from_dro: bool, source_id: bytes | None) -> None:
        """Join a source as an older incarnation had it joined, if the judge accepts it, wanted or not yet."""
        now_ns = self._loop.now_ns()
        self._resolver.join_known(tir, source_ip=source_ip, from_dro=is_from_dro, source_id=source_id, now_ns=now_ns)
        self._pump()

    def leave_unwanted(self) -> None:
        """Leave, in slices, known sources that nobody has come to want."""
        self._bindings.leave_all_unwanted()

    def set_judge(self, judge: Judge | None, carries: Carries | None = None) -> None:
        """Join only what `judge` accepts, by topic and session, and of that what `carries` names, by OTID and domain;
        what is joined now is judged as well."""
        self._resolver.set_judge(judge, self._loop.now_ns(), carries)
        self._pump()

    # own sources

    def open_source(
        self,
        topic: bytes,
        *,
        options: UmOptions | None = None,
        otid: bytes | None = None,
        tir_options: Iterable[lbmr.TirOption] = (),
        is_silent: bool = False,
    ) -> FragmentSource:
        """See `OwnSources.open`."""
        source = self._own.open(topic, self._wanted.merged(options), otid, tuple(tir_options), is_silent=is_silent)
        self._pump()
        return source

    @property
    def has_silent_sources(self) -> bool:
        """Sources that were opened silently, and wait for `advertise_silent`."""
        return self._own.has_silent

    def advertise_silent(self) -> DecodeError | None:
        """See `OwnSources.advertise_silent`."""
        trouble = self._own.advertise_silent()
        self._pump()
        return trouble

    def _on_client(self, sender: SenderTransport, client: str, connected: bool) -> None:
        self.on_client(sender, client, connected)

    # unicast immediate messages

    def _on_unicast(self, message: bytes, sender: tuple[int, int]) -> None:
        self.on_unicast(message, sender)

    def send_unicast(self, ip: int, port: int, message: bytes, on_outcome: OnOutcome = ignore_outcome) -> None:
        """Send an LBMC message to a request port; `on_outcome` is called once with what has become of it."""
        self._unicast.send(ip, port, message, on_outcome)

    # the TR channel

    @property
    def packet_options(self) -> lbmr.PacketOptions:
        """The five standard options of every packet that this context sends."""
        return self._resolver.packet_options()

    def send_tr(self, datagrams: Iterable[bytes]) -> None:
        """Send finished LBMR datagrams."""
        if not self._is_closed:
            self.channel.send(datagrams)

    def _set_options(self) -> None:
        self._own_tail = lbmr.encode(lbmr.Packet(1, self.packet_options, lbmr.ReceiverAlive()))[lbmr.HEADER_SIZE :]

    def _on_datagrams(self, datagrams: Iterator[tuple[bytes, int]], now_ns: int) -> None:
        for datagram, sender_ip in datagrams:
            with self.together():
                self._on_datagram(datagram, sender_ip, now_ns)

    def _on_datagram(self, datagram: bytes, sender_ip: int, now_ns: int) -> None:
        if self._is_closed or datagram.endswith(self._own_tail) or self._is_ignored(datagram):
            self.stats.tr_dgrams_dropped_own += 1
            return
        if not self._hears_sources and lbmr.only_advertises(datagram):
            return
        packet, trouble = lbmr.decode_lenient(datagram)
        if trouble is not None:
            self._on_malformed(trouble, sender_ip, now_ns)
        if packet is None:
            return
        options = packet.options
        source_id = options.source_id if options is not None else None
        if source_id is not None and (source_id == self.context_instance or source_id in self.ignore_source_ids):
            self.stats.tr_dgrams_dropped_own += 1
            return
        domain = (options.local_domain if options is not None else None) or 0
        self._resolver.on_packet(packet, sender_ip, now_ns)
        self._pump()
        if domain and self.domain_id and domain != self.domain_id:
            self.stats.tr_dgrams_dropped_domain += 1
            return
        if isinstance(packet.body, lbmr.Queries | lbmr.WildcardQueries) and packet.body.tirs:
            self._bindings.replace_dead(packet.body.tirs, options, sender_ip, now_ns)
        elif options is not None and options.is_from_dro:
            self._bindings.on_dro_packet(sender_ip, now_ns)
        self.on_tr_packet(packet, sender_ip, now_ns)

    def _is_ignored(self, datagram: bytes) -> bool:
        """Look for a sender to ignore without decoding: its id stands in the options, at the end."""
        tail = datagram[-OPTIONS_MAX_BYTES:]
        return any(source_id in tail for source_id in self.ignore_source_ids)

    def _on_malformed(self, trouble: DecodeError, sender_ip: int, now_ns: int) -> None:
        stats = self.stats
        stats.tr_dgrams_dropped_malformed += 1
        reasons = stats.malformed
        where = trouble.where if trouble.where in reasons or len(reasons) < LOG_KINDS_MAX else "other"
        reasons[where] = reasons.get(where, 0) + 1
        self._faults.event(
            LogEvent.TR_MALFORMED,
            extra={"from": sockets.ip_text(sender_ip), "error": trouble, "dropped": stats.tr_dgrams_dropped_malformed},
        )

    def _compile(self, pattern: bytes, pattern_type: int) -> Matcher | None:
        try:
            return Pattern(pattern, pattern_type, self.on_pattern_limit)
        except PatternError:
            return None  # the resolver tells it as an event

    def on_pattern_limit(self, pattern: bytes) -> None:
        """A search for the pattern was given up."""
        self._faults.event(LogEvent.PATTERN_LIMIT, extra={"pattern": pattern})

    # the resolver

    @contextmanager
    def together(self) -> Iterator[None]:
        """Send what is wanted and opened within together at the end, in few datagrams; found sources come then."""
        self._together += 1
        try:
            yield
        finally:
            self._together -= 1
            self._pump()

    def _pump(self) -> None:
        """Carry out what the resolver asks for until it asks for nothing more, send, set the timer."""
        if self._is_pumping or self._together or self._is_closed:
            return
        self._is_pumping = True
        resolver = self._resolver
        try:
            while events := resolver.take_events():
                for event in events:
                    self._on_event(event)
        finally:
            self._is_pumping = False
        self.channel.send(resolver.take_outgoing())
        deadline = resolver.next_deadline()
        if deadline is not None and deadline <= self._loop.now_ns():
            if not self._acts_soon:  # more than the resolver does at once: the rest in the next turn
                self._acts_soon = True
                self._loop.call_soon(self._on_soon)
            return
        timer = self._timer
        if timer is not None and timer.is_pending:
            if timer.when_ns == deadline:
                return
            timer.cancel()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._on_timer)

    def _on_soon(self) -> None:
        self._acts_soon = False
        self._on_timer()

    def _on_timer(self) -> None:
        self._resolver.on_timer(self._loop.now_ns())
        self._pump()

    def _on_event(self, event: ev.ResolverEvent) -> None:
        now_ns = self._loop.now_ns()
        match event:
            case ev.SourceFound(source=source, is_known=is_known):
                self._bindings.on_found(source, now_ns, is_known=is_known)
            case ev.SourceSwitched(old=old, new=new):
                self._bindings.on_switched(old, new, now_ns)
            case ev.SourceChanged(source=source):
                bound = self._bindings.on_changed(source)
                if bound is not None:
                    self.on_source_changed(bound)
            case ev.SourceRefused(source=source):
                self._bindings.on_refused(source, now_ns)
            case ev.SourceFinal(source=source):
                self._bindings.on_gone(source, now_ns)
            case ev.TopicMatched(wildcard=handle, topic=topic):
                key = self._wanted.on_matched(handle, topic)
                if key is not None:
                    self.on_topic_matched(*key, topic)
            case ev.TopicUnmatched(wildcard=handle, topic=topic):
                key = self._wanted.on_unmatched(handle, topic)
                if key is not None:
                    self._bindings.leave_unwanted((topic,), now_ns)
                    self.on_topic_unmatched(*key, topic)
            case ev.NoSource(topic=topic):
                self.on_no_source(topic)
            case ev.DomainIdLearned(domain_id=domain_id):
                self._set_options()
                log.info(LogEvent.DOMAIN_DISCOVERED, extra={"context": self.name, "domain_id": domain_id})
            case ev.DomainRoute(domains=domains, ip=ip, port=port):
                self.on_domain_route(domains, ip, port)
            case ev.DomainMismatch(domain_id=other, source_ip=ip):
                self._faults.event(
                    LogEvent.FOREIGN_DOMAIN,
                    extra={"from": sockets.ip_text(ip), "domain_id": other, "own": self.domain_id},
                )
            case ev.OtidMismatch(topic=topic):
                self._faults.event(LogEvent.SOURCE_OTHER_OTID, extra={"topic": topic})
            case ev.BadPattern(pattern=pattern):
                self._faults.event(LogEvent.QUERY_PATTERN_BAD, extra={"pattern": pattern})

    # the end

    def close(self) -> None:
        """End everything at once; what may still be sent without waiting, is sent. Nothing more reaches the sink."""
        if self._is_closed:
            return
        now_ns = self._loop.now_ns()
        self._own.remove_all(now_ns)
        self._wanted.remove_all(now_ns)
        self._resolver.on_timer(now_ns)
        self.channel.send(self._resolver.take_outgoing())
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.joined.close()
        self.immediate.close()
        self.pools.close()
        self.channel.close()
        if self._request is not None:
            self._request.close()
        self._unicast.close()
        self._bindings.clear()

    @property
    def is_closed(self) -> bool:
        return self._is_closed
