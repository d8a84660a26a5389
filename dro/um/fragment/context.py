"""One UM context at fragment level: topic resolution, joined sessions, own sources. No asyncio, no threads.

A host of `dro.proto.context`: it gives its engine a channel (`resolution`) and joins the sessions that the engine asks
for. It owns the request port, the sessions that it has joined and those that its sources send on. A portal has two of
these with one topic resolution, the message level of the client library one. Received fragments go to a `FragmentSink`.

Source: client library notes, sections 1 and 2.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from dro.config.um.options import UmOptions
from dro.config.um.sets import RequestOptions, ResolverOptions, TlsOptions
from dro.errors import DecodeError, ResourceError
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.proto.context import effects as do
from dro.proto.context.bound import BoundKey
from dro.proto.context.engine import ContextStats
from dro.proto.context.own import OwnSources
from dro.proto.context.sources import BoundSource, SessionView
from dro.proto.resolver import events as ev
from dro.proto.resolver.core import Resolver
from dro.proto.resolver.joining import Carries, Judge
from dro.proto.resolver.source_advertisements import Matcher
from dro.proto.unicast.connections import OnOutcome
from dro.transport import mmsg
from dro.transport.kind import SessionHost
from dro.transport.session import FragmentSink, OnClient, ReceiverTransport, SenderTransport, SessionCounts
from dro.transport.sockets import OS_SOCKETS, Sockets
from dro.transport.tls import stream_maker
from dro.um.fragment.immediate import ImmediateMessages
from dro.um.fragment.options import (
    ObjectOptions,
    advertising_options,
    query_options,
    resolver_config,
    wildcard_options,
    with_interface,
)
from dro.um.fragment.own_source import FragmentSource
from dro.um.fragment.receiver_sessions import ReceiverSessions
from dro.um.fragment.request_port import OnUnicast, RequestPort
from dro.um.fragment.resolution import TopicResolution, source_field
from dro.um.fragment.source_sessions import SourceSessions
from dro.um.fragment.unicast_sender import UnicastSender, ignore_outcome
from dro.wire.lbmr import packet as lbmr

DRO: Final = lbmr.SenderType.DRO


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """What a context is, besides its options.

    `domain_id`: of the TRD when it is configured (a DRO's), 0 to learn it. `sm_before_data`: LBT-RM sources send
    session messages before their first data. `sending`: the options of the context of the same TRD that has the
    sources, if it is another.
    """

    name: str = ""
    source_type: int = lbmr.SenderType.APPLICATION
    domain_id: int = 0
    sm_before_data: bool = False
    sending: UmOptions | None = None


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
        resolution: TopicResolution | None = None,
        sockets: Sockets = OS_SOCKETS,
    ) -> None:
        """`sink` is called from the loop only. `resolution`: that of another context of the TRD, which owns it."""
        self.name = settings.name
        self.options = options = with_interface(options)
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
        self._is_closed = False
        self._loop = loop
        self._sink = sink
        self._uses_hotlinks = settings.source_type != DRO
        self._objects = ObjectOptions(options)
        rng = rng or random.Random()
        self.context_id = rng.getrandbits(32)
        batch = mmsg.DatagramBatch()
        self._owns_resolution = resolution is None
        self.resolution = resolution or self._make_resolution(settings, rng, batch, sockets)
        self.engine = self.resolution.engine
        self._request: RequestPort | None = None
        try:
            request = RequestOptions.of(options)
            tls = TlsOptions.of(options)
            if request.bind:
                maker = partial(stream_maker, tls, is_server=True)
                address = self.resolution.channel.local_address
                self._request = RequestPort(loop, request, address, self._on_unicast, maker, sockets)
            self.unicast_limit_bytes = request.response_buffer_bytes
            self._unicast = UnicastSender(loop, request, partial(stream_maker, tls, is_server=False), sockets)
            host = SessionHost(loop, options, batch, rng, sockets)
            self.joined = ReceiverSessions(host, sink, self._on_session_ended)
            self.pools = SourceSessions(host, on_client=self._on_client, sm_before_data=settings.sm_before_data)
            self.immediate = ImmediateMessages(host, self.pools)
            """Multicast immediate messages."""
        except ResourceError:
            if self._owns_resolution:
                self.resolution.close()
            if self._request is not None:
                self._request.close()
            raise
        self._own = OwnSources(
            self.engine.resolver,
            context_id=self.context_id,
            first_index=rng.getrandbits(32),
            request_address=self.request_address,
        )

    def _make_resolution(
        self, settings: ContextSettings, rng: random.Random, batch: mmsg.DatagramBatch, sockets: Sockets
    ) -> TopicResolution:
        o = ResolverOptions.of(self.options)
        if settings.sending is not None:
            o = o.sending_as(ResolverOptions.of(settings.sending))
        return TopicResolution(
            self._loop,
            o,
            resolver_config(o, rng.randbytes(8), settings.source_type, settings.domain_id),
            name=settings.name,
            rng=rng,
            batch=batch,
            perform=self._perform,
            on_packet=lambda *packet: self.on_tr_packet(*packet),
            sockets=sockets,
        )

    # what it is

    @property
    def stats(self) -> ContextStats:
        return self.engine.stats

    @property
    def context_instance(self) -> bytes:
        """Names the sender in every packet of the channel."""
        return self.engine.source_id

    @property
    def domain_id(self) -> int:
        """Return the domain id of the TRD, configured or learnt; 0 while it is not known."""
        return self.resolver.domain_id

    @property
    def request_address(self) -> tuple[int, int]:
        """Address (u32) and port for unicast immediate messages; (0, 0) without a request port."""
        return self._request.address if self._request is not None else (0, 0)

    @property
    def resolver(self) -> Resolver:
        """Topic resolution of this context; to be read only."""
        return self.engine.resolver

    @property
    def finals_pending(self) -> int:
        """Closed sources whose final advertisements are not all out: a reason to close the context a little later."""
        return self.resolver.finals_pending

    def counts(self) -> SessionCounts:
        """Return what the context and all its sessions have counted since the start."""
        own = SessionCounts(bad=self._request.broken if self._request is not None else 0)
        if self._owns_resolution:
            drops = self.resolution.channel.socket_drops()
            own += SessionCounts(bad=self.stats.tr_dgrams_dropped_malformed, socket_drops=drops)
        return self.joined.counts() + self.pools.counts() + self.immediate.counts() + own

    @property
    def bound_sources(self) -> list[BoundSource[Any]]:
        return self.engine.bound.sources

    def bound_source(self, key: BoundKey) -> BoundSource[Any] | None:
        return self.engine.bound.find(key)

    @property
    def source_count(self) -> int:
        """Open sources of ours."""
        return len(self._own)

    @property
    def topic_count(self) -> int:
        """Topics that receivers want, those that patterns found included."""
        return len(self.engine.wanted.all_topics())

    @property
    def unresolved_topic_count(self) -> int:
        """Wanted topics without a joined source."""
        return len(self.engine.wanted.named_topics() - self.engine.bound.topics())

    # wanted topics

    def want_topic(self, topic: bytes, options: UmOptions | None = None) -> None:
        """Join every source of the topic from now on. Options are those of the first who wants it.

        Raises: DecodeError when it cannot be a topic name.
        """
        chosen = self._objects.merged(options)
        queries = query_options(chosen, uses_hotlinks=self._uses_hotlinks)
        if self.engine.wanted.add_topic(topic, self._loop.now_ns(), queries) and chosen is not self.options:
            self._objects.by_topic[topic] = chosen
        self.resolution.pump()

    def unwant_topic(self, topic: bytes) -> None:
        if self.engine.unwant_topic(topic, self._loop.now_ns()):
            self._objects.by_topic.pop(topic, None)
        self.resolution.pump()

    def want_pattern(
        self, pattern: bytes, pattern_type: int, matcher: Matcher, options: UmOptions | None = None
    ) -> None:
        """Join every source whose topic matches. Raises: DecodeError when it cannot be sent as a pattern."""
        chosen = self._objects.merged(options)
        queries = query_options(chosen, uses_hotlinks=self._uses_hotlinks)
        now_ns = self._loop.now_ns()
        self.engine.wanted.add_pattern((pattern, pattern_type), matcher, now_ns, wildcard_options(chosen), queries)
        self.resolution.pump()

    def unwant_pattern(self, pattern: bytes, pattern_type: int) -> None:
        self.engine.unwant_pattern((pattern, pattern_type), self._loop.now_ns())
        self.resolution.pump()

    def matched_topics(self, pattern: bytes, pattern_type: int) -> frozenset[bytes]:
        """Topics that a wanted pattern has found."""
        return self.engine.wanted.topics_of((pattern, pattern_type))

    def join_known(self, tir: lbmr.Tir, *, source_ip: int, is_from_dro: bool, source_id: bytes | None) -> None:
        """Rejoin a source of an earlier incarnation, if the judge accepts it, wanted or not yet."""
        now_ns = self._loop.now_ns()
        self.resolver.join_known(tir, source_ip=source_ip, from_dro=is_from_dro, source_id=source_id, now_ns=now_ns)
        self.resolution.pump()

    def leave_unwanted(self) -> None:
        """Leave, in slices, known sources that nobody has come to want."""
        self.engine.leave_unwanted(self._loop.now_ns())
        self.resolution.pump()

    def set_judge(self, judge: Judge | None, carries: Carries | None = None) -> None:
        """Join only what `judge` accepts, by topic and session, and of that what `carries` names, by OTID and domain;
        what is joined now is judged as well."""
        self.resolver.set_judge(judge, self._loop.now_ns(), carries)
        self.resolution.pump()

    # what the engine asks for

    def _perform(self, effect: do.ContextEffect) -> None:
        match effect:
            case do.Join(source=source):
                self._join(source)
            case do.Leave(session=session):
                self.joined.leave(_transport(session))
            case do.Bound(source=bound):
                _transport(bound.transport).sources[bound.topic_index] = bound
                self._sink.on_bound(bound, self._loop.now_ns())
            case do.Unbound(source=bound, ended=ended):
                sources = _transport(bound.transport).sources
                if sources.get(bound.topic_index) is bound:
                    del sources[bound.topic_index]
                self._sink.on_unbound(bound, ended=ended, now_ns=self._loop.now_ns())
            case do.Changed(source=bound):
                self.on_source_changed(bound)
            case do.TopicFound(pattern=key, topic=topic):
                self.on_topic_matched(*key, topic)
            case do.TopicLost(pattern=key, topic=topic):
                self.on_topic_unmatched(*key, topic)
            case ev.NoSource(topic=topic):
                self.on_no_source(topic)
            case ev.DomainRoute(domains=domains, ip=ip, port=port):
                self.on_domain_route(domains, ip, port)
            case _:
                self.resolution.tell(effect)

    def _join(self, source: ev.FoundSource) -> None:
        now_ns = self._loop.now_ns()
        try:
            session = self.joined.join(source.address, now_ns, self._objects.by_topic.get(source.topic))
        except ResourceError as e:
            extra = source_field(source) | {"error": str(e)}
            self.resolution.faults.event(LogEvent.SESSION_NOT_JOINED, extra=extra)
            self.engine.on_not_joined(source, now_ns)
            return
        if session is None:
            self.stats.sessions_unsupported += 1
            self.resolution.faults.event(LogEvent.SOURCE_TRANSPORT, extra=source_field(source))
        else:
            self.engine.on_joined(source, session)

    def _on_session_ended(self, session: ReceiverTransport, now_ns: int) -> None:
        self.engine.on_session_ended(session, now_ns)
        self.resolution.pump()

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
        """Open a source on a session of the pool; see `OwnSources.open`.

        Raises: ResourceError naming the option, DecodeError when it cannot be advertised.
        """
        chosen = self._objects.merged(options)
        transport = self.pools.acquire(chosen)
        try:
            own = self._own.open(
                topic,
                (transport.address, transport.transport_index),
                advertising_options(chosen),
                self._loop.now_ns(),
                source_otid=otid,
                tir_items=tuple(tir_options),
                is_silent=is_silent,
            )
        except DecodeError:
            self.pools.release(transport, 0)
            raise
        self.resolution.pump()
        return FragmentSource(self, self._own, own, transport)

    def now_ns(self) -> int:
        return self._loop.now_ns()

    def on_own_changed(self) -> None:
        """A source of ours is advertised otherwise."""
        self.resolution.pump()

    def on_own_closed(self, transport: SenderTransport, linger_ns: int) -> None:
        """A source of ours has left its session."""
        self.pools.release(transport, linger_ns)
        self.resolution.pump()

    @property
    def has_silent_sources(self) -> bool:
        """Sources that were opened silently, and wait for `advertise_silent`."""
        return self._own.has_silent

    def advertise_silent(self) -> DecodeError | None:
        """See `OwnSources.advertise_silent`."""
        trouble = self._own.advertise_silent(self._loop.now_ns())
        self.resolution.pump()
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
        return self.resolver.packet_options()

    def send_tr(self, datagrams: Iterable[bytes]) -> None:
        """Send finished LBMR datagrams."""
        self.resolution.send(datagrams)

    def together(self) -> AbstractContextManager[None]:
        """See `TopicResolution.together`."""
        return self.resolution.together()

    # the end

    def close(self) -> None:
        """End everything at once; what may still be sent without waiting, is sent. Nothing more reaches the sink."""
        if self._is_closed:
            return
        self._is_closed = True
        self._own.remove_all(self._loop.now_ns())
        if self._owns_resolution:
            self.resolution.close()
        self.joined.close()
        self.immediate.close()
        self.pools.close()
        if self._request is not None:
            self._request.close()
        self._unicast.close()

    @property
    def is_closed(self) -> bool:
        return self._is_closed


def _transport(session: SessionView) -> ReceiverTransport:
    """Return the session as what it is in a process."""
    assert isinstance(session, ReceiverTransport)
    return session
