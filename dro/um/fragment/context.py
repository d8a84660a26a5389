"""One UM context at fragment level: topic resolution, joined sessions, own sources. No asyncio, no threads.

A host of `dro.proto.context`: it gives its engine a channel (`resolution`) and joins the sessions that the engine asks
for. It owns the request port, the sessions that it has joined and those that its sources send on. A portal has two of
these with one topic resolution, the message level of the client library one. Received fragments go to a `FragmentSink`.

Source: client library notes, sections 1 and 2.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Final

from dro.config.um.options import UmOptions
from dro.errors import ResourceError
from dro.kept.store import NOTHING_KEPT, Kept
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.proto.context import effects as do
from dro.proto.context.bound import BoundKey
from dro.proto.context.own import OwnSources
from dro.proto.context.sources import BoundSource
from dro.proto.resolver import events as ev
from dro.proto.resolver.core import Resolver
from dro.proto.resolver.joining import Carries, Judge
from dro.proto.resolver.source_advertisements import Matcher
from dro.proto.tcp.filters import requests_in
from dro.proto.unicast.connections import OnOutcome
from dro.transport import mmsg
from dro.transport.kind import SessionHost
from dro.transport.registry import is_near
from dro.transport.session import FragmentSink, OnClient, SessionCounts
from dro.transport.sockets import OS_SOCKETS, Sockets, ip_text
from dro.um.fragment.immediate import ImmediateMessages
from dro.um.fragment.joined_sources import JoinedSources
from dro.um.fragment.options import (
    ObjectOptions,
    query_options,
    wildcard_options,
    with_interface,
)
from dro.um.fragment.own_source import ContextSources, FormerPlace, FragmentSource
from dro.um.fragment.request_port import OnUnicast, Sender
from dro.um.fragment.resolution import USUAL, ContextSettings, TopicResolution, open_resolution
from dro.um.fragment.source_sessions import SourceSessions
from dro.um.fragment.unicast_ports import UnicastPorts
from dro.um.fragment.unicast_sender import ignore_outcome
from dro.wire.lbmr import packet as lbmr

DRO: Final = lbmr.SenderType.DRO


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
        settings: ContextSettings = USUAL,
        rng: random.Random | None = None,
        resolution: TopicResolution | None = None,
        sockets: Sockets = OS_SOCKETS,
        kept: Kept = NOTHING_KEPT,
    ) -> None:
        """`sink` is called from the loop only. `resolution`: that of another context of the TRD, which owns it.

        `kept`: sessions go on with what those of the former process left there.
        """
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
        self._uses_hotlinks = settings.source_type != DRO
        self._objects = ObjectOptions(options)
        rng = rng or random.Random()
        self.context_id = rng.getrandbits(32)
        batch = mmsg.DatagramBatch()
        self._owns_resolution = resolution is None
        self.resolution = resolution or open_resolution(
            loop, options, settings, rng, batch, sockets, self._perform, lambda *packet: self.on_tr_packet(*packet)
        )
        self.engine = self.resolution.engine
        self.engine.resolver.set_near(is_near)
        self.stats = self.engine.stats
        channel = self.resolution.channel
        own_address = ip_text(channel.local_address) if channel.is_relayed else ""
        host = SessionHost(loop, options, batch, rng, sockets, own_address, self.send_unicast, kept=kept)
        self._filters = host.filters
        try:
            self._sources = JoinedSources(host, self.resolution, sink, self._objects.by_topic.get)
            self.joined = self._sources.sessions
            self.pools = SourceSessions(
                host, on_client=lambda *of: self.on_client(*of), sm_before_data=settings.sm_before_data
            )
            self.immediate = ImmediateMessages(host, self.pools)
            """Multicast immediate messages."""
            self.unicast = UnicastPorts(loop, options, channel.local_address, self._on_unicast, sockets)
            self._filters.request_address = self.request_address
        except ResourceError:
            self._close_resolution()
            raise
        if self._owns_resolution:
            self.resolution.request_address = self.request_address
        own = OwnSources(
            self.engine.resolver,
            context_id=self.context_id,
            first_index=rng.getrandbits(32),
            request_address=self.request_address,
        )
        self.own = ContextSources(loop, self.resolution, self.pools, own)

    # what it is

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
        return self.unicast.address

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
        own = SessionCounts(bad=self.unicast.broken)
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
        return len(self.own)

    @property
    def topic_count(self) -> int:
        """Topics that receivers want, those that patterns found included."""
        return len(self.engine.wanted.all_topics())

    @property
    def unresolved_topic_count(self) -> int:
        """Wanted topics without a joined source."""
        return len(self.engine.wanted.named_topics() - self.engine.bound.topics())

    def count_topics(self) -> Iterator[tuple[int, int]]:
        """Count in steps both of these; the last of what it yields is the result."""
        return self.engine.wanted.count(self.engine.bound.has_topic)

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
        """Want it once less; the last time, leave its sources."""
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

    def _perform(self, effect: do.ContextEffect) -> None:
        match effect:
            case do.JoinSession() | do.LeaveSession() | do.Bound() | do.Unbound():
                self._sources.perform(effect)
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

    # own sources

    def open_source(
        self,
        topic: bytes,
        *,
        options: UmOptions | None = None,
        otid: bytes | None = None,
        tir_options: Iterable[lbmr.TirOption] = (),
        is_silent: bool = False,
        former: FormerPlace | None = None,
    ) -> FragmentSource:
        """See `ContextSources.open`."""
        return self.own.open(
            topic, self._objects.merged(options), otid, tuple(tir_options), is_silent=is_silent, former=former
        )

    def send_unicast(self, ip: int, port: int, message: bytes, on_outcome: OnOutcome = ignore_outcome) -> None:
        """Send an LBMC message to a request port; `on_outcome` is called once with what has become of it."""
        self.unicast.send(ip, port, message, on_outcome)

    def _on_unicast(self, message: bytes, sender: Sender) -> None:
        """Take requests to filter, and hand on all others."""
        if requests := requests_in(message):
            refused = self._filters.on_requests(requests)
            if not refused:
                return
            peer = f"{ip_text(sender[0])}:{sender[1]}"
            self.resolution.faults.event(LogEvent.FILTER_REQUEST_REFUSED, extra={"peer": peer, "reason": refused})
        self.on_unicast(message, sender)

    # the TR channel

    @property
    def packet_options(self) -> lbmr.PacketOptions:
        """The five standard options of every packet that this context sends."""
        return self.resolver.packet_options()

    def together(self) -> AbstractContextManager[None]:
        """See `TopicResolution.together`."""
        return self.resolution.together()

    # the end

    def close(self) -> None:
        """End everything at once; what may still be sent without waiting, is sent. Nothing more reaches the sink."""
        if self._is_closed:
            return
        self._is_closed = True
        self.own.stop_advertising()
        self._close_resolution()
        self.joined.close()
        self.immediate.close()
        self.pools.close()
        self.unicast.close()

    def _close_resolution(self) -> None:
        if self._owns_resolution:
            self.resolution.close()

    @property
    def is_closed(self) -> bool:
        return self._is_closed
