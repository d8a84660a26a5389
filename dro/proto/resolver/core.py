"""Topic resolution of one context on one channel: packets and time in, datagrams and events out.

State: the domain id of the TRD, the two sides of the context (`sources`, `receivers`), the queues (`output`). Sans I/O:
the owner decodes datagrams, calls one of the inputs with the time, then drains `take_outgoing()` and `take_events()`,
and sleeps until `next_deadline()`. Its owner is the engine of a context (`dro.proto.context`), one for both contexts of
an endpoint portal; how a DRO handles queries and interest records is not decided here.

Source: UM documentation of UDP topic resolution, real capture. Guess: a domain id of 0 in a packet means "not known"
and is never a mismatch; packets without a source id are taken for an application's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from dro.clock import NS_PER_MS, NS_PER_S
from dro.proto.resolver.cache import TopicCache
from dro.proto.resolver.events import (
    DomainIdLearned,
    DomainMismatch,
    DomainRoute,
    ResolverEvent,
)
from dro.proto.resolver.joining import Carries, Judge, Near
from dro.proto.resolver.output import Channel, ResolverOutput, ResolverRates
from dro.proto.resolver.receivers import ReceiverSide
from dro.proto.resolver.record_queue import Rate
from dro.proto.resolver.schedule import AdvertisingOptions, QueryOptions, WildcardQueryOptions
from dro.proto.resolver.source_advertisements import Matcher, PatternCompiler, SourceSide
from dro.proto.resolver.told_domains import CHANGE_NS, ToldDomains
from dro.table import Table
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import TransportAddress

DATAGRAM_MAX_BYTES: Final = 8192
NO_RATES: Final = ResolverRates()
ADVERTISING: Final = AdvertisingOptions()
QUERY: Final = QueryOptions()
WILDCARD_QUERY: Final = WildcardQueryOptions()
NO_LIMITS: Final = ResolverRates(*(Rate(),) * 5)
HOUR_NS: Final = 3600 * NS_PER_S
ADVERTISED_ONCE: Final = AdvertisingOptions(minimum_initial_interval_ns=0, sustain_interval_ns=0)
GRID_NS: Final = 100 * NS_PER_MS  # ticks repeat so often at the latest


@lru_cache(maxsize=256)
def asked_once(options: QueryOptions) -> QueryOptions:
    """Options for one query, where all hear it and keep it."""
    return replace(
        options, minimum_initial_interval_ns=HOUR_NS, maximum_initial_interval_ns=HOUR_NS,
        minimum_initial_duration_ns=1, sustain_interval_ns=0, source_threshold=QUERY.source_threshold,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ResolverConfig:
    """One context on the channel.

    `domain_id`: configured, for a DRO; 0 for contexts that learn it. `domain_propagation_ns`: whom to believe and when
    to tell, `resolver_domain_id_active_propagation_timeout`: 0 DROs only, -1 everybody, n: tell while a DRO was heard
    within n. `answers_use_queries`: False for proxies, which are no receivers of the TRD.
    `cache_max`: sources that are remembered, wanted or not; 0: any number.
    `tells_once`: what is sent is kept for all (topic resolution over TCP alone), so nothing is repeated or limited.
    `hears_itself`: receivers of this context find its own sources, as those of applications do and proxies must not.
    """

    source_id: bytes
    source_type: int = lbmr.SenderType.APPLICATION
    domain_id: int = 0
    domain_propagation_ns: int = 0
    answers_use_queries: bool = True
    hears_itself: bool = False
    tells_once: bool = False
    datagram_max_bytes: int = DATAGRAM_MAX_BYTES
    cache_max: int = 524_288
    rates: ResolverRates = NO_RATES


@dataclass(frozen=True, slots=True)
class SourceAd:
    """A source to advertise. `tir`: as it shall appear, its ttl aside; an application's needs no domain id."""

    tir: lbmr.Tir
    options: AdvertisingOptions = ADVERTISING


def _no_patterns(pattern: bytes, pattern_type: int) -> Matcher | None:
    return None


class Resolver:
    """The TR channel of one context.

    `compile_pattern` makes a matcher of a pattern that others ask for. `jitter(ns)` gives a time in [0, ns) that moves
    the origin of the ticks, so that contexts of one host do not send in step; without it ticks lie at multiples.
    """

    def __init__(
        self,
        config: ResolverConfig,
        start_ns: int = 0,
        *,
        compile_pattern: PatternCompiler = _no_patterns,
        jitter: Callable[[int], int] | None = None,
    ) -> None:
        self._config = config
        self._is_dro = config.source_type == lbmr.SenderType.DRO
        grid_ns = jitter(GRID_NS) if jitter is not None else 0
        self._tells_once = config.tells_once
        output = ResolverOutput(NO_LIMITS if config.tells_once else config.rates, config.datagram_max_bytes)
        self._channel = Channel(output, grid_ns, start_ns, config.domain_id)
        self._sources = SourceSide(self._channel, compile_pattern, adds_domain=not self._is_dro)
        self._receivers = ReceiverSide(self._channel, TopicCache(config.cache_max), leaves_matched=config.tells_once)
        self._dro_heard_ns: int | None = None
        self._told = ToldDomains()
        self._look_ns: int | None = None  # when to look whether DROs have given the domain another id
        self._own_tirs: Table[int, lbmr.Tir] = Table()  # of own sources, when this context hears itself

    # ------------------------------------------------------------------------------------------------ own objects

    @property
    def domain_id(self) -> int:
        """Return the domain id of the TRD; 0 while it is not known."""
        return self._channel.domain_id

    @property
    def cache(self) -> TopicCache:
        """All sources heard; to be read only."""
        return self._receivers.cache

    @property
    def finals_pending(self) -> int:
        """Sources whose final advertisements are not all out: a reason to keep the context a little longer."""
        return self._sources.finals_pending

    def add_source(self, ad: SourceAd, now_ns: int) -> int:
        """Advertise a source; gives its handle. Raises: DecodeError for a TIR that cannot be written."""
        self._channel.now_ns = now_ns
        handle = self._sources.add(ad.tir, ADVERTISED_ONCE if self._tells_once else ad.options)
        self._on_own_advertisement(handle, ad.tir)
        return handle

    def update_source(self, handle: int, tir: lbmr.Tir, now_ns: int) -> None:
        """Advertise the same source with other attributes, once at once. Raises: DecodeError."""
        self._channel.now_ns = now_ns
        self._sources.update(handle, tir)
        self._on_own_advertisement(handle, tir)

    def remove_source(self, handle: int, now_ns: int, *, final: bool = False) -> None:
        """Stop advertising; `final`: say so on the channel."""
        self._channel.now_ns = now_ns
        self._sources.remove(handle, final=final or self._tells_once)
        tir = self._own_tirs.pop(handle, None)
        if tir is not None:
            last = (tir.options or lbmr.TirOptions()).replacing(lbmr.Cost(hop_count=0, cost=lbmr.FINAL_COST))
            self._on_tirs((replace(tir, options=last),), 0, False, self._config.source_id)

    def _on_own_advertisement(self, handle: int, tir: lbmr.Tir) -> None:
        """Give the own receivers the advertisements of own sources, as own packets are not heard."""
        if self._config.hears_itself:
            self._own_tirs[handle] = tir
            self._on_tirs((tir,), 0, False, self._config.source_id)

    def add_receiver(self, topic: bytes, now_ns: int, options: QueryOptions = QUERY) -> None:
        """One more receiver of a topic; several count as one on the channel. Raises: DecodeError.

        Sources already joined for the topic are not told again.
        """
        self._channel.now_ns = now_ns
        self._receivers.add_receiver(topic, asked_once(options) if self._tells_once else options)

    def remove_receiver(self, topic: bytes, now_ns: int) -> None:
        self._channel.now_ns = now_ns
        self._receivers.remove_receiver(topic)

    def add_wildcard(
        self,
        pattern: bytes,
        pattern_type: int,
        matcher: Matcher,
        now_ns: int,
        options: WildcardQueryOptions = WILDCARD_QUERY,
        query_options: QueryOptions = QUERY,
    ) -> int:
        """A wildcard receiver; gives its handle. `query_options` are for the topics it finds. Raises: DecodeError."""
        self._channel.now_ns = now_ns
        if self._tells_once:
            options = replace(options, minimum_interval_ns=HOUR_NS, maximum_interval_ns=HOUR_NS, minimum_duration_ns=1)
            query_options = asked_once(query_options)
        return self._receivers.add_wildcard(pattern, pattern_type, matcher, options, query_options)

    def remove_wildcard(self, handle: int, now_ns: int) -> Iterator[bytes]:
        """Remove a receiver; its topics are let go one by one, as the result is gone through."""
        self._channel.now_ns = now_ns
        return self._receivers.remove_wildcard(handle)

    # ------------------------------------------------------------------------------------------------ inputs

    def on_packet(self, packet: lbmr.Packet, source_ip: int, now_ns: int) -> bool:
        """One decoded datagram of another context of the channel; `source_ip` is the address that it came from.

        False: one of another domain; a DRO portal must not take interest from it either.
        """
        self._channel.now_ns = now_ns
        options = packet.options
        source_id = options.source_id if options else None
        from_dro = options is not None and options.is_from_dro
        if options is not None and not self._accept_domain(options.local_domain or 0, from_dro, source_ip):
            return False
        match packet.body:
            case lbmr.Queries(tqrs, tirs):
                self._sources.on_topic_queries(dict.fromkeys(tqrs))
                self._on_tirs(tirs, source_ip, from_dro, source_id)
            case lbmr.WildcardQueries(patterns, tirs):
                self._sources.on_pattern_queries(dict.fromkeys(patterns))
                self._on_tirs(tirs, source_ip, from_dro, source_id)
            case lbmr.TopicManagement(records):
                if self._config.answers_use_queries:
                    self._receivers.on_use_queries(records)
            case lbmr.TopicResolutionRequest(flags):
                self._on_request(flags)
            case lbmr.RemoteDomainRoute(address=ip, port=port, domains=domains):
                self._channel.events.append(DomainRoute(domains, ip, port))
            case _:
                pass
        return True

    def tell_all(self, now_ns: int) -> None:
        """Advertise, and query for, everything once more: nobody may have heard it."""
        self._channel.now_ns = now_ns
        self._on_request(lbmr.RequestFlag.ADVERTISEMENT | lbmr.RequestFlag.QUERY | lbmr.RequestFlag.WILDCARD_QUERY)

    def on_source_ended(self, topic: bytes, address: TransportAddress, topic_index: int, now_ns: int) -> None:
        """A source that was joined has ended on its transport, or could not be joined.

        One query goes out at once; another session of the same source is joined if it was heard a moment ago, or with
        its next advertisement.
        """
        self._channel.now_ns = now_ns
        self._receivers.on_end((topic, address, topic_index))

    def join_known(
        self, tir: lbmr.Tir, *, source_ip: int, from_dro: bool, source_id: bytes | None, now_ns: int
    ) -> None:
        """Join a source that an older incarnation had joined, as if it was advertised now, wanted or not yet."""
        self._channel.now_ns = now_ns
        self._receivers.join_known(tir, source_ip=source_ip, from_dro=from_dro, source_id=source_id)

    def leave_topic(self, topic: bytes) -> None:
        """Nothing of a topic that nobody wants is joined any more."""
        self._receivers.cache.leave_topic(topic)

    def set_near(self, is_near: Near) -> None:
        """Set what says which sessions can be joined from here at all, before anything is heard."""
        self._receivers.joining.is_near = is_near

    def set_judge(self, judge: Judge | None, now_ns: int, carries: Carries | None = None) -> None:
        """Set who says which sources may and shall be joined; what is joined and known already is judged anew."""
        self._channel.now_ns = now_ns
        self._receivers.joining.set_judge(judge, carries)

    def next_deadline(self) -> int | None:
        waiting = self._channel.output.next_deadline(self._channel.now_ns)
        times = (self._channel.calendar.next_deadline(), waiting, self._look_ns)
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

    def on_timer(self, now_ns: int) -> None:
        self._channel.now_ns = now_ns
        if self._look_ns is not None and now_ns >= self._look_ns:
            self._look_at_domain()
        self._channel.calendar.run_due(now_ns)

    def take_outgoing(self) -> list[bytes]:
        """Datagrams to send now, as of the time of the last input; the rest waits for the rate limits."""
        return self._channel.output.take(self._channel.now_ns, self.packet_options())

    def take_events(self) -> list[ResolverEvent]:
        events = self._channel.events.copy()
        self._channel.events.clear()
        return events

    def packet_options(self) -> lbmr.PacketOptions:
        """Return what every packet of this context carries, at the time of the last input."""
        config = self._config
        domain_id = self._channel.domain_id
        if not self._is_dro and config.domain_propagation_ns > 0:
            heard_ns = self._dro_heard_ns
            if heard_ns is None or self._channel.now_ns - heard_ns > config.domain_propagation_ns:
                domain_id = 0
        return lbmr.standard_options(config.source_id, config.source_type, domain_id)

    # ------------------------------------------------------------------------------------------------ inside

    def _accept_domain(self, domain_id: int, from_dro: bool, source_ip: int) -> bool:
        """Learn the TRD's domain id from a packet; False when the packet belongs to another domain."""
        if domain_id == 0:
            return True
        learns = from_dro and not self._config.domain_id
        if learns:
            self._told.hear(source_ip, domain_id, self._channel.now_ns)
        if self._channel.domain_id == 0:
            if from_dro or self._config.domain_propagation_ns != 0:
                self._channel.domain_id = domain_id
                self._channel.events.append(DomainIdLearned(domain_id))
        elif domain_id != self._channel.domain_id:
            if learns and self._look_ns is None:
                self._look_ns = self._channel.now_ns + CHANGE_NS + 1
            self._channel.events.append(DomainMismatch(domain_id, source_ip))
            return False
        if from_dro:
            self._dro_heard_ns = self._channel.now_ns
        return True

    def _look_at_domain(self) -> None:
        """Learn the domain id anew when the DROs of the TRD have another one now."""
        self._look_ns = None
        known = self._channel.domain_id
        if self._told.latest != known and self._told.is_gone(known, self._channel.now_ns):
            self._channel.domain_id = self._told.latest
            self._sources.on_domain()
            self._channel.events.append(DomainIdLearned(self._told.latest))

    def _on_tirs(self, tirs: tuple[lbmr.Tir, ...], source_ip: int, from_dro: bool, source_id: bytes | None) -> None:
        for tir in tirs:
            self._receivers.on_advertisement(tir, source_ip=source_ip, from_dro=from_dro, source_id=source_id)

    def _on_request(self, flags: int) -> None:
        if flags & lbmr.RequestFlag.ADVERTISEMENT:
            self._sources.on_request()
        if flags & lbmr.RequestFlag.QUERY:
            self._receivers.on_query_request()
        if flags & lbmr.RequestFlag.WILDCARD_QUERY:
            self._receivers.on_wildcard_request()
