"""One UM context at fragment level: topic resolution, joined sessions, own sources. No asyncio, no threads.

Owns the sockets of the TR channel, the request port, the sessions that it has joined and those that its sources send
on. A portal has two of these, the message level of the client library one. What is heard goes to a `FragmentSink`;
what is wanted comes in by `want_topic` and `want_pattern`, counted by reference.

    resolver says         the context does                                   the sink is told
    source found          joins its session, or uses the joined one          on_bound
    source switched       joins the new one, then leaves the old one         on_bound(new), on_unbound(old, ended)
    source gone           leaves, when what was sent before has been read    on_unbound(ended)
    source refused        leaves at once                                     on_unbound
    (session ended)       tells the resolver, which may find another way     on_unbound(ended)
    (nobody wants it)     leaves                                             on_unbound

Source: client library notes, sections 1 and 2; topic resolution notes, 4.1; DRO forwarding notes, 17.3 and 22. Guess:
how a dead DRO is recognised, see `_replace_dead`.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from dro.clock import ms
from dro.config.options import UmOptions
from dro.config.um_sets import AdvertisingOptions, QueryOptions, RequestOptions, ResolverOptions
from dro.config.um_sets import WildcardOptions as WildcardSet
from dro.errors import DecodeError, ResourceError
from dro.log import LimitedLogger
from dro.loop import Loop
from dro.proto import resolver_events as ev
from dro.proto.resolver import Judge, Matcher, Resolver, SourceAd
from dro.proto.resolver_events import FoundSource
from dro.timers import Timer
from dro.um import mmsg, sockets
from dro.um.context_options import (
    advertising_options,
    query_options,
    resolver_config,
    wildcard_options,
    with_interface,
)
from dro.um.counts import SessionCounts
from dro.um.dro_watch import SILENT_NS, DroWatch
from dro.um.joined import Joined
from dro.um.patterns import PatternError, compile_pattern
from dro.um.pools import TCP_LINGER_NS, Sender, SourcePools
from dro.um.request_port import RequestPort
from dro.um.session import BoundSource, FragmentSink, ReceiverTransport, SenderTransport
from dro.um.tcp_io import TcpSender
from dro.um.tr_channel import TrChannel
from dro.wire import lbmc, lbmr, otid
from dro.wire.lbmr_options import TIR_OPTIONS
from dro.wire.source_string import LbtrmAddress, TransportAddress, format_source

log = logging.getLogger(__name__)
events = LimitedLogger.of_events(log)

ENDING_QUIET_NS: Final = ms(10)
"""A session that says nothing for so long, in two looks, has said everything that came before a final advertisement."""
ENDING_MAX_NS: Final = ms(250)
OPTIONS_MAX_BYTES: Final = 64  # more than the standard options of a packet take
LOG_KINDS_MAX: Final = 256
MERGED_MAX: Final = 256

BoundKey = tuple[bytes, TransportAddress, int]  # topic, session, topic index


@dataclass(slots=True)
class ContextStats:
    """Counts of one context, under the names of the C API where it has them."""

    tr_dgrams_dropped_malformed: int = 0
    tr_dgrams_dropped_own: int = 0
    tr_dgrams_dropped_domain: int = 0
    malformed: dict[str, int] = field(default_factory=dict)
    """Malformed datagrams of the channel by the field that was wrong."""
    sessions_unsupported: int = 0
    sessions_failed: int = 0
    sources_replaced: int = 0


@dataclass(slots=True)
class _Pattern:
    handle: int
    users: int
    topics: set[bytes] = field(default_factory=set)


class FragmentSource:
    """One source of ours: a topic on a transport session, advertised until closed."""

    def __init__(
        self, core: ContextCore, topic: bytes, transport: Sender, topic_index: int, source_otid: bytes
    ) -> None:
        self.topic = topic
        self.transport: SenderTransport = transport
        self.topic_index = topic_index
        self.otid = source_otid
        self._core = core
        self._sender = transport
        self._is_closed = False

    @property
    def source_string(self) -> str:
        return format_source(self.transport.address, self.topic_index)

    def send_tsni(self, sqn: int, now_ns: int) -> bool:
        """Tell receivers the last topic sqn sent; False when the session is blocked."""
        return self.transport.send_message(lbmc.encode(lbmc.tsni_message([(self.topic_index, sqn)])), now_ns)

    def update(self, tir_options: Iterable[lbmr.TirOption]) -> None:
        """Advertise with these extra options from now on, at once if they differ. Raises: DecodeError."""
        if not self._is_closed:
            self._core.update_source(self, tuple(tir_options))

    def close(self, *, final: bool, linger_ns: int) -> None:
        """Stop advertising, with final advertisements or in silence, and leave the session.

        The session goes on repairing for `linger_ns` after its last data when this was its last source.
        """
        if not self._is_closed:
            self._is_closed = True
            self._core.close_source(self, final=final, linger_ns=linger_ns)

    @property
    def sender(self) -> Sender:
        """The transport session, with all that its kind has."""
        return self._sender


class ContextCore:
    """See the module text. Raises on creation: ResourceError naming the option that cannot be satisfied."""

    def __init__(
        self,
        options: UmOptions,
        loop: Loop,
        *,
        sink: FragmentSink,
        source_type: int = lbmr.SenderType.APPLICATION,
        domain_id: int = 0,
        rng: random.Random | None = None,
        name: str = "",
        sm_before_data: bool = False,
        hears_sources: bool = True,
    ) -> None:
        """`domain_id`: of the TRD when it is configured (a DRO's); 0 to learn it. `sink` is told from the loop only.

        `hears_sources` False: the context has sources only, and looks at no packet that merely advertises.
        """
        self.name = name
        self.options = options = with_interface(options)
        self.stats = ContextStats()
        self.ignore_source_ids: set[bytes] = set()
        self.on_tr_packet: Callable[[lbmr.Packet, int, int], object] | None = None
        self.on_domain_route: Callable[[tuple[int, ...], int, int], object] | None = None
        self.on_topic_matched: Callable[[bytes, int, bytes], object] | None = None
        """(pattern, pattern type, topic): a pattern has found a topic."""
        self.on_topic_unmatched: Callable[[bytes, int, bytes], object] | None = None
        self.on_no_source: Callable[[bytes], object] | None = None
        self.on_client: Callable[[SenderTransport, str, bool], object] | None = None
        """(session, client address, connected): a receiver of a TCP session of ours."""
        self.on_source_changed: Callable[[BoundSource], object] | None = None
        """A bound source is advertised with other attributes than before."""
        self._loop = loop
        self._sink = sink
        rng = rng or random.Random()
        self.context_instance = rng.randbytes(8)
        self.context_id = rng.getrandbits(32)
        self._hears_sources = hears_sources
        self._next_index = rng.getrandbits(32)
        self._batch = mmsg.DatagramBatch()
        self._faults = LimitedLogger(log, loop.now_ns)
        o = ResolverOptions.of(options)
        self._resolver = Resolver(
            resolver_config(o, self.context_instance, source_type, domain_id),
            loop.now_ns(),
            compile_pattern=self._compile,
            jitter=lambda ns: rng.randrange(ns),
        )
        self._own_tail = b""
        self._set_options()
        self.channel = TrChannel(loop, o, self._batch, self._on_datagrams)
        self._request: RequestPort | None = None
        try:
            self._request = self._open_request_port(RequestOptions.of(options))
            self.joined = Joined(loop, options, self._batch, rng, sink, self._on_session_ended)
            self.pools = SourcePools(
                loop, options, self._batch, rng, on_client=self._on_client, sm_before_data=sm_before_data
            )
        except ResourceError:
            self.channel.close()
            if self._request is not None:
                self._request.close()
            raise
        self._timer: Timer | None = None
        self._is_pumping = False
        self._together = 0
        self._is_closed = False
        self._topics: dict[bytes, int] = {}
        self._topic_options: dict[bytes, UmOptions] = {}
        self._merged: dict[UmOptions, UmOptions] = {}  # options of objects -> those with the context's
        self._patterns: dict[tuple[bytes, int], _Pattern] = {}
        self._pattern_keys: dict[int, tuple[bytes, int]] = {}
        self._bound: dict[BoundKey, BoundSource] = {}
        self._ending: set[BoundKey] = set()  # bound sources that have sent a final advertisement
        self._ways: dict[tuple[bytes, bytes], dict[BoundKey, BoundSource]] = {}  # topic, OTID
        self._sources: dict[FragmentSource, tuple[int, tuple[lbmr.TirOption, ...], UmOptions]] = {}
        self._dros = DroWatch()

    def _open_request_port(self, o: RequestOptions) -> RequestPort | None:
        if not o.bind:
            return None
        return RequestPort(self._loop, o, self.channel.local_address)

    # what it is

    @property
    def domain_id(self) -> int:
        """Of the TRD, configured or learnt; 0 while it is not known."""
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
        """What the context and all its sessions have counted since the start."""
        total = self.joined.counts()
        total.add(self.pools.counts())
        total.bad += self.stats.tr_dgrams_dropped_malformed
        return total

    @property
    def bound_sources(self) -> list[BoundSource]:
        return list(self._bound.values())

    @property
    def source_count(self) -> int:
        """Open sources of ours."""
        return len(self._sources)

    @property
    def topic_count(self) -> int:
        """Topics that receivers want, those that patterns found included."""
        return len(self._topics.keys() | {topic for p in self._patterns.values() for topic in p.topics})

    @property
    def unresolved_topic_count(self) -> int:
        """Wanted topics without a joined source."""
        return len(self._topics.keys() - {topic for topic, _ in self._ways})

    # wanted topics

    def want_topic(self, topic: bytes, options: UmOptions | None = None) -> None:
        """Join every source of the topic from now on. Options are those of the first who wants it.

        Raises: DecodeError when it cannot be a topic name.
        """
        count = self._topics.get(topic, 0)
        if not count:
            chosen = self._with(options)
            self._resolver.add_receiver(topic, self._loop.now_ns(), query_options(QueryOptions.of(chosen)))
            self._topic_options[topic] = chosen
        self._topics[topic] = count + 1
        self._pump()

    def unwant_topic(self, topic: bytes) -> None:
        count = self._topics[topic] - 1
        if count:
            self._topics[topic] = count
            return
        del self._topics[topic]
        self._topic_options.pop(topic, None)
        now_ns = self._loop.now_ns()
        self._resolver.remove_receiver(topic, now_ns)
        self._unbind_unwanted(topic, now_ns)
        self._pump()

    def want_pattern(
        self, pattern: bytes, pattern_type: int, matcher: Matcher, options: UmOptions | None = None
    ) -> None:
        """Join every source whose topic matches. Raises: DecodeError when it cannot be sent as a pattern."""
        key = (pattern, pattern_type)
        known = self._patterns.get(key)
        if known is not None:
            known.users += 1
            return
        chosen = self._with(options)
        handle = self._resolver.add_wildcard(
            pattern,
            pattern_type,
            matcher,
            self._loop.now_ns(),
            wildcard_options(WildcardSet.of(chosen)),
            query_options(QueryOptions.of(chosen)),
        )
        self._patterns[key] = _Pattern(handle, 1)
        self._pattern_keys[handle] = key
        self._pump()

    def unwant_pattern(self, pattern: bytes, pattern_type: int) -> None:
        key = (pattern, pattern_type)
        known = self._patterns[key]
        known.users -= 1
        if known.users:
            return
        del self._patterns[key]
        del self._pattern_keys[known.handle]
        now_ns = self._loop.now_ns()
        self._resolver.remove_wildcard(known.handle, now_ns)
        for topic in known.topics:
            self._unbind_unwanted(topic, now_ns)
        self._pump()

    def matched_topics(self, pattern: bytes, pattern_type: int) -> frozenset[bytes]:
        """Topics that a wanted pattern has found."""
        known = self._patterns.get((pattern, pattern_type))
        return frozenset(known.topics) if known is not None else frozenset()

    def _with(self, options: UmOptions | None) -> UmOptions:
        """The options of this context, overwritten by those of one object; equal ones are one object."""
        if options is None or not options.explicit:
            return self.options
        merged = self._merged.get(options)
        if merged is None:
            if len(self._merged) >= MERGED_MAX:
                self._merged.clear()
            merged = self._merged[options] = self.options.merged(options)
        return merged

    def set_judge(self, judge: Judge | None) -> None:
        """Join only what `judge` accepts, by topic and session; what is joined now is judged as well."""
        self._resolver.set_judge(judge, self._loop.now_ns())
        self._pump()

    def _is_wanted(self, topic: bytes) -> bool:
        return topic in self._topics or any(topic in p.topics for p in self._patterns.values())

    def _unbind_unwanted(self, topic: bytes, now_ns: int) -> None:
        if self._is_wanted(topic):
            return
        for bound in [b for b in self._bound.values() if b.topic == topic]:
            self._unbind(bound, ended=False, now_ns=now_ns)

    # own sources

    def open_source(
        self,
        topic: bytes,
        *,
        options: UmOptions | None = None,
        otid: bytes | None = None,
        tir_options: Iterable[lbmr.TirOption] = (),
    ) -> FragmentSource:
        """A source on a session of the pool. `otid`: the origin's, for a proxy source; else one is made.

        `tir_options` are advertised beside OTID and request address; an `ExtendedFunctionality` among them replaces
        the own one. Raises: ResourceError naming the option, DecodeError when it cannot be advertised.
        """
        chosen = self._with(options)
        transport = self.pools.acquire(chosen)
        index = self._next_index
        self._next_index = (index + 1) & 0xFFFFFFFF
        try:
            own = otid if otid is not None else self._make_otid(transport, index)
            source = FragmentSource(self, topic, transport, index, own)
            extra = tuple(tir_options)
            ad = SourceAd(self._tir(source, extra), advertising_options(AdvertisingOptions.of(chosen)))
            handle = self._resolver.add_source(ad, self._loop.now_ns())
        except DecodeError:
            self.pools.release(transport, 0)
            raise
        self._sources[source] = (handle, extra, chosen)
        self._pump()
        return source

    def _make_otid(self, transport: Sender, topic_index: int) -> bytes:
        return otid.encode(transport.address, topic_index, self.context_id, transport.transport_index)

    def _tir(self, source: FragmentSource, extra: tuple[lbmr.TirOption, ...]) -> lbmr.Tir:
        items: list[lbmr.TirOption] = [lbmr.OtidOption(source.otid)]
        if not any(isinstance(item, lbmr.ExtendedFunctionality) for item in extra):
            ip, port = self.request_address
            items.append(lbmr.ExtendedFunctionality(port=port, ip=ip))
        items += [item for item in extra if not isinstance(item, lbmr.OtidOption)]
        items.sort(key=TIR_OPTIONS.code)  # UM writes them in ascending order; the sort keeps that of equals
        options = lbmr.TirOptions(tuple(items))
        return lbmr.Tir(source.topic, source.transport.address, lbmr.TIR_TTL, source.topic_index, options)

    def update_source(self, source: FragmentSource, extra: tuple[lbmr.TirOption, ...]) -> None:
        """For `FragmentSource.update`."""
        handle, before, chosen = self._sources[source]
        if extra == before:
            return
        self._resolver.update_source(handle, self._tir(source, extra), self._loop.now_ns())
        self._sources[source] = (handle, extra, chosen)
        self._pump()

    def close_source(self, source: FragmentSource, *, final: bool, linger_ns: int) -> None:
        """For `FragmentSource.close`."""
        found_source = self._sources.pop(source, None)
        if found_source is None:
            return
        self._resolver.remove_source(found_source[0], self._loop.now_ns(), final=final)
        if isinstance(source.sender, TcpSender):
            linger_ns = min(max(linger_ns, 0), TCP_LINGER_NS) if linger_ns else 0
        self.pools.release(source.sender, linger_ns)
        self._pump()

    def _on_client(self, sender: Sender, client: str, connected: bool) -> None:
        if self.on_client is not None:
            self.on_client(sender, client, connected)

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

    def _on_datagrams(self, datagrams: list[tuple[bytes, int]], now_ns: int) -> None:
        with self.together():
            for datagram, sender_ip in datagrams:
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
            self._replace_dead(packet.body.tirs, options, sender_ip, now_ns)
        elif options is not None and options.is_from_dro:
            self._dros.on_packet(sender_ip, None, now_ns)
        if self.on_tr_packet is not None:
            self.on_tr_packet(packet, sender_ip, now_ns)

    def _is_ignored(self, datagram: bytes) -> bool:
        """Look for the sender without decoding: its id stands in the options, at the end."""
        tail = datagram[-OPTIONS_MAX_BYTES:]
        return any(source_id in tail for source_id in self.ignore_source_ids)

    def _on_malformed(self, trouble: DecodeError, sender_ip: int, now_ns: int) -> None:
        stats = self.stats
        stats.tr_dgrams_dropped_malformed += 1
        reasons = stats.malformed
        where = trouble.where if trouble.where in reasons or len(reasons) < LOG_KINDS_MAX else "other"
        reasons[where] = reasons.get(where, 0) + 1
        self._faults.limited(
            "malformed",
            "malformed TR datagram dropped",
            extra={"from": sockets.ip_text(sender_ip), "error": trouble, "dropped": stats.tr_dgrams_dropped_malformed},
        )

    @staticmethod
    def _compile(pattern: bytes, pattern_type: int) -> Matcher | None:
        try:
            return compile_pattern(pattern, pattern_type)
        except PatternError:
            return None  # the resolver tells it as an event

    # the resolver

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is wanted and opened within goes out together at its end, in few datagrams; found sources come then."""
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
        timer = self._timer
        if timer is not None and timer.is_pending:
            if timer.when_ns == deadline:
                return
            timer.cancel()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._resolver.on_timer(self._loop.now_ns())
        self._pump()

    def _on_event(self, event: ev.ResolverEvent) -> None:
        now_ns = self._loop.now_ns()
        match event:
            case ev.SourceFound(source=source):
                self._bind(source, now_ns)
            case ev.SourceSwitched(old=old, new=new):
                self._bind(new, now_ns)
                if (bound := self._bound.get(_key(old))) is not None:
                    self._unbind(bound, ended=True, now_ns=now_ns)
            case ev.SourceChanged(source=source):
                if (bound := self._bound.get(_key(source))) is not None:
                    bound.tir, bound.is_from_dro = source.tir, source.from_dro
                    bound.source_id, bound.source_ip = source.source_id, source.source_ip
                    if self.on_source_changed is not None:
                        self.on_source_changed(bound)
            case ev.SourceRefused(source=source):
                if (bound := self._bound.get(_key(source))) is not None:
                    self._unbind(bound, ended=False, now_ns=now_ns)
            case ev.SourceGone(source=source):
                if (bound := self._bound.get(_key(source))) is not None and _key(source) not in self._ending:
                    self._end_soon(bound, now_ns)
            case ev.TopicMatched(wildcard=handle, topic=topic):
                self._on_matched(handle, topic)
            case ev.TopicUnmatched(wildcard=handle, topic=topic):
                self._on_unmatched(handle, topic, now_ns)
            case ev.NoSource(topic=topic):
                if self.on_no_source is not None:
                    self.on_no_source(topic)
            case ev.DomainIdLearned(domain_id=domain_id):
                self._set_options()
                log.info("domain id discovered", extra={"context": self.name, "domain_id": domain_id})
            case ev.DomainRoute(domains=domains, ip=ip, port=port):
                if self.on_domain_route is not None:
                    self.on_domain_route(domains, ip, port)
            case ev.DomainMismatch(domain_id=other, source_ip=ip):
                self._faults.limited(
                    "domain",
                    "TR packet of another domain dropped",
                    extra={"from": sockets.ip_text(ip), "domain_id": other, "own": self.domain_id},
                )
            case ev.OtidMismatch(topic=topic):
                self._faults.limited("otid", "source ignored: known under another OTID", extra={"topic": topic})
            case ev.BadPattern(pattern=pattern):
                self._faults.limited("pattern", "wildcard query ignored: bad pattern", extra={"pattern": pattern})

    def _on_matched(self, handle: int, topic: bytes) -> None:
        key = self._pattern_keys.get(handle)
        if key is not None:
            self._patterns[key].topics.add(topic)
            if self.on_topic_matched is not None:
                self.on_topic_matched(*key, topic)

    def _on_unmatched(self, handle: int, topic: bytes, now_ns: int) -> None:
        key = self._pattern_keys.get(handle)
        if key is not None:
            self._patterns[key].topics.discard(topic)
            self._unbind_unwanted(topic, now_ns)
            if self.on_topic_unmatched is not None:
                self.on_topic_unmatched(*key, topic)

    # binding

    def _bind(self, source: FoundSource, now_ns: int) -> None:
        key = _key(source)
        self._ending.discard(key)  # an advertisement again: it goes on
        if key in self._bound or not self._is_wanted(source.topic):
            return
        try:
            transport = self.joined.join(source.address, now_ns, self._topic_options.get(source.topic))
        except ResourceError as e:
            self.stats.sessions_failed += 1
            self._faults.limited("join", "session cannot be joined", extra={"source": _text(source), "error": str(e)})
            self._resolver.on_source_ended(source.topic, source.address, source.topic_index, now_ns)
            return
        if transport is None:
            self.stats.sessions_unsupported += 1
            self._faults.limited(
                "transport", "source ignored: its transport is not supported", extra={"source": _text(source)}
            )
            return
        if source.topic_index in transport.sources:
            self._faults.limited(
                "index", "source ignored: its topic index is another topic's", extra={"source": _text(source)}
            )
            return
        bound = BoundSource(
            source.topic,
            source.otid,
            source.topic_index,
            transport,
            source.tir,
            source.from_dro,
            source_id=source.source_id,
            source_ip=source.source_ip,
        )
        transport.sources[source.topic_index] = bound
        self._bound[key] = bound
        self._ways.setdefault((source.topic, source.otid), {})[key] = bound
        self._sink.on_bound(bound, now_ns)

    def _unbind(self, bound: BoundSource, *, ended: bool, now_ns: int) -> None:
        key = _key_of(bound)
        if self._bound.pop(key, None) is None:
            return
        self._ending.discard(key)
        ways = self._ways[bound.topic, bound.otid]
        del ways[key]
        if not ways:
            del self._ways[bound.topic, bound.otid]
        transport = bound.transport
        if transport.sources.get(bound.topic_index) is bound:
            del transport.sources[bound.topic_index]
        if not transport.sources:
            transport.leave()
        self._sink.on_unbound(bound, ended=ended, now_ns=now_ns)

    def _on_session_ended(self, transport: ReceiverTransport, now_ns: int) -> None:
        for bound in list(transport.sources.values()):
            self._end(bound, now_ns)
        self._pump()

    def _end(self, bound: BoundSource, now_ns: int) -> None:
        is_known_gone = _key_of(bound) in self._ending
        self._unbind(bound, ended=True, now_ns=now_ns)
        if not is_known_gone:
            self._resolver.on_source_ended(bound.topic, bound.address, bound.topic_index, now_ns)

    def _end_soon(self, bound: BoundSource, now_ns: int) -> None:
        """A final advertisement comes by another socket than data that was sent before it: wait for a quiet moment."""
        key = _key_of(bound)
        self._ending.add(key)
        deadline_ns = now_ns + ENDING_MAX_NS

        def is_waiting() -> bool:
            return self._bound.get(key) is bound and key in self._ending and not self._is_closed

        def look() -> None:
            if is_waiting():
                # timers come before descriptors in a turn; what lies in a socket by now is read before the next one
                seen_ns = self.joined.active_ns(bound.transport)
                self._loop.call_later(ENDING_QUIET_NS, lambda: decide(seen_ns))

        def decide(seen_ns: int) -> None:
            if not is_waiting():
                return
            if self.joined.active_ns(bound.transport) != seen_ns and self._loop.now_ns() < deadline_ns:
                look()
            else:
                self._unbind(bound, ended=True, now_ns=self._loop.now_ns())
                self._pump()

        self._loop.call_later(ENDING_QUIET_NS, look)

    # DROs that died

    def _replace_dead(
        self, tirs: tuple[lbmr.Tir, ...], options: lbmr.PacketOptions | None, ip: int, now_ns: int
    ) -> None:
        """Leave a proxy's session when another way to the same source is advertised and the proxy's DRO is dead.

        Dead is: a DRO context that offers the source at the same cost appeared at the same address and the old one
        was not heard since (the DRO was restarted), or the session has been silent for `SILENT_NS`. TCP sources may be
        idle for long, so there the DRO's host must be silent as well.
        """
        from_dro = options is not None and options.is_from_dro
        source_id = options.source_id if options is not None else None
        if from_dro:
            self._dros.on_packet(ip, source_id, now_ns)
        for tir in tirs:
            if tir.is_final or tir.otid is None or not (ways := self._ways.get((tir.topic, tir.otid))):
                continue
            for bound in list(ways.values()):
                if bound.address == tir.transport or not bound.is_from_dro or bound.source_id == source_id:
                    continue
                is_twin = from_dro and bound.source_ip == ip and _cost(bound.tir) == _cost(tir)
                is_restarted = is_twin and self._dros.has_succeeded(source_id, bound.source_id)
                if is_restarted or self._is_silent(bound, now_ns):
                    self.stats.sources_replaced += 1
                    events.told(
                        "proxy source left: its DRO is gone, another way is advertised",
                        {"topic": bound.topic, "source": format_source(bound.address, bound.topic_index)},
                    )
                    self._end(bound, now_ns)
        self._pump()

    def _is_silent(self, bound: BoundSource, now_ns: int) -> bool:
        if now_ns - self.joined.active_ns(bound.transport) <= SILENT_NS:
            return False
        return isinstance(bound.address, LbtrmAddress) or self._dros.is_host_silent(bound.source_ip, now_ns)

    # the end

    def close(self) -> None:
        """End everything at once; what may still be sent without waiting, is sent. Nothing more reaches the sink."""
        if self._is_closed:
            return
        now_ns = self._loop.now_ns()
        for handle, _, _ in self._sources.values():
            self._resolver.remove_source(handle, now_ns)
        for topic in self._topics:
            self._resolver.remove_receiver(topic, now_ns)
        for pattern in self._patterns.values():
            self._resolver.remove_wildcard(pattern.handle, now_ns)
        self._resolver.on_timer(now_ns)
        self.channel.send(self._resolver.take_outgoing())
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._sources.clear()
        self.joined.close()
        self.pools.close()
        self.channel.close()
        if self._request is not None:
            self._request.close()
        self._bound.clear()
        self._ending.clear()
        self._ways.clear()

    @property
    def is_closed(self) -> bool:
        return self._is_closed


def _key(source: FoundSource) -> BoundKey:
    return source.topic, source.address, source.topic_index


def _key_of(bound: BoundSource) -> BoundKey:
    return bound.topic, bound.address, bound.topic_index


def _text(source: FoundSource) -> str:
    return format_source(source.address, source.topic_index)


def _cost(tir: lbmr.Tir) -> tuple[int, int]:
    cost = tir.options.cost if tir.options is not None else None
    return (cost.cost, cost.hop_count) if cost is not None else (0, 0)
