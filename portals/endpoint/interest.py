"""The interest of one TRD, as an endpoint portal hears it, and what the portal announces there for other domains.

Combines the cores of `dro.proto.interest`: local interest, from every TQR that is heard, with its use queries
(`tqr_use_query`); remote interest with its expiry (`remote_domains`); the interest and domain routes announced
to the TRD, and the requests at start (`announced`). Sans-IO like them: packets and time in, datagrams and events out.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from dro.clock import ms, s
from dro.config.dro_xml.model import AnnouncementConfig, EndpointConfig, RateLimit, RemoteInterestConfig, UseQueryConfig
from dro.metrics.slots import Slot
from dro.proto.interest.announced import DomainRouteSender, InitialRequest, InterestSender, IntervalOptions
from dro.proto.interest.events import InterestEvent, Symbol
from dro.proto.interest.remote_domains import RemoteInterest, RemoteInterestOptions
from dro.proto.interest.tqr_use_query import LocalInterest, UseQueryOptions
from dro.proto.resolver.record_queue import Rate
from dro.wire.lbmr import packet as lbmr
from portals.decisions.effects import (
    CheckKnown,
    CloseProxyReceiver,
    OpenProxyReceiver,
    ProxyEffect,
    RecordKnownInterest,
    UpdateProxyReceiver,
)
from portals.decisions.messages import PATTERN_NONE, PATTERN_PCRE, PATTERN_REGEX


def _rate(limit: RateLimit) -> Rate:
    return Rate(limit.bps, limit.objects_per_second)


def _use_query(config: UseQueryConfig) -> UseQueryOptions:
    return UseQueryOptions(ms(config.timeout_ms), config.max, ms(config.periodic_interval_ms))


def _intervals(config: AnnouncementConfig) -> IntervalOptions:
    return IntervalOptions(ms(config.min_interval_ms), ms(config.max_interval_ms))


def _remote(config: RemoteInterestConfig) -> RemoteInterestOptions:
    return RemoteInterestOptions(ms(config.check_interval_ms), config.max, ms(config.timeout_ms))


class TrdInterest:
    """See the module text."""

    def __init__(
        self,
        config: EndpointConfig,
        packet_options: lbmr.PacketOptions,
        datagram_max_bytes: int,
        request_address: tuple[int, int],
        rng: random.Random,
        now_ns: int,
    ) -> None:
        """`request_address` (IPv4, port) is where unicast traffic for other domains goes; `rng` spreads periods."""
        tr = config.topic_resolution
        self._domain = config.domain_id
        self._options = packet_options
        self._max_bytes = datagram_max_bytes
        self._request_address = request_address
        self._local = LocalInterest(
            _use_query(tr.topic_use_query),
            _use_query(tr.pattern_use_query),
            rate=_rate(tr.topic_use_query.rate_limit),
            pattern_rate=_rate(tr.pattern_use_query.rate_limit),
            jitter=rng.randrange,
        )
        self._remote_topics = RemoteInterest(_remote(config.remote_topic), own_domain_id=config.domain_id)
        self._remote_patterns = RemoteInterest(
            _remote(config.remote_pattern), own_domain_id=config.domain_id, is_for_patterns=True
        )
        self._sender = InterestSender(
            _intervals(tr.remote_topic_interest),
            _intervals(tr.remote_pattern_interest),
            rate=_rate(tr.remote_topic_interest.rate_limit),
            pattern_rate=_rate(tr.remote_pattern_interest.rate_limit),
        )
        self._routes = DomainRouteSender(_intervals(tr.domain_route), rate=_rate(tr.domain_route.rate_limit))
        self._initial = InitialRequest(
            now_ns, ms(tr.initial_request.periodic_interval_ms), s(tr.initial_request.duration_s)
        )
        self._cores = (self._local, self._remote_topics, self._remote_patterns, self._sender, self._routes)
        self._pending: list[bytes] = []

    # input

    def on_config(self, config: EndpointConfig, now_ns: int) -> None:
        """Other timers and limits: `<topic-resolution>`, `<remote-topic>` and `<remote-pattern>`."""
        tr = config.topic_resolution
        topics, patterns = tr.topic_use_query, tr.pattern_use_query
        self._local.set_options(
            _use_query(topics), _use_query(patterns), (_rate(topics.rate_limit), _rate(patterns.rate_limit)), now_ns
        )
        self._remote_topics.set_options(_remote(config.remote_topic), now_ns)
        self._remote_patterns.set_options(_remote(config.remote_pattern), now_ns)
        remote_topics, remote_patterns = tr.remote_topic_interest, tr.remote_pattern_interest
        rates = (_rate(remote_topics.rate_limit), _rate(remote_patterns.rate_limit))
        self._sender.set_options(_intervals(remote_topics), _intervals(remote_patterns), rates, now_ns)
        self._routes.set_options(_intervals(tr.domain_route), _rate(tr.domain_route.rate_limit), now_ns)
        request = tr.initial_request
        self._initial.set_options(ms(request.periodic_interval_ms), s(request.duration_s), now_ns)

    def on_daemon_back(self, now_ns: int) -> None:
        """Ask and tell everything anew, as after a start: all resolver daemons were silent."""
        self._initial.restart(now_ns)
        self._sender.tell_all(now_ns)

    def on_packet(self, packet: lbmr.Packet, sender_ip: int, now_ns: int) -> None:
        """A packet of another context of the TRD."""
        match packet.body:
            case lbmr.TnwgInterest():
                self._remote_topics.on_packet(packet, now_ns, sender_ip)
                self._remote_patterns.on_packet(packet, now_ns, sender_ip)
            case lbmr.TopicResolutionRequest(flags=flags):
                if flags & lbmr.RequestFlag.DRO_REMOTE_INTEREST:
                    self._sender.tell_all(now_ns)
            case _:
                self._local.on_packet(packet, now_ns, sender_ip)

    def on_wanted(self, symbol: bytes, pattern: int, added: Iterable[int], removed: Iterable[int], now_ns: int) -> None:
        """Domains on whose behalf this portal wants, or no longer wants, a topic or pattern from its TRD."""
        for domain_id in added:
            self._sender.want((symbol, pattern), domain_id, now_ns)
        for domain_id in removed:
            self._sender.unwant((symbol, pattern), domain_id, now_ns)

    def perform(self, effect: ProxyEffect, now_ns: int) -> None:
        """Announce what proxy receivers want, and take and check what was known; what concerns sources is ignored."""
        match effect:
            case OpenProxyReceiver(symbol=symbol, pattern=pattern, domains=domains):
                self.on_wanted(symbol, pattern, domains, (), now_ns)
            case UpdateProxyReceiver(symbol=symbol, pattern=pattern, added=added, removed=removed):
                self.on_wanted(symbol, pattern, added, removed, now_ns)
            case CloseProxyReceiver(symbol=symbol, pattern=pattern, domains=domains):
                self.on_wanted(symbol, pattern, (), domains, now_ns)
            case RecordKnownInterest(symbol=symbol, pattern=pattern, domain_id=domain_id):
                self.take_known((symbol, pattern), domain_id, now_ns)
            case CheckKnown():
                self._local.check_known(now_ns)
            case _:
                pass

    def take_known(self, symbol: Symbol, domain_id: int, now_ns: int) -> None:
        """What an older incarnation of this portal had recorded holds until its time is over, or it is asked."""
        if domain_id == self._domain:
            self._local.take_known(symbol, now_ns)
        elif symbol[1] == PATTERN_NONE:
            self._remote_topics.take_known(symbol, domain_id, now_ns)
        else:
            self._remote_patterns.take_known(symbol, domain_id, now_ns)

    def on_routes(self, reachable: set[int], now_ns: int) -> None:
        """The domains that the TRD reaches through this portal."""
        self._routes.set_domains(reachable - {self._domain}, now_ns)

    # time

    def next_deadline(self) -> int | None:
        deadlines = [core.next_deadline() for core in (*self._cores, self._initial)]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def on_timer(self, now_ns: int) -> None:
        for core in self._cores:
            core.on_timer(now_ns)
        request = self._initial.on_timer(now_ns)
        if request is not None:
            self._pending.append(lbmr.encode(lbmr.Packet(lbmr.VERSION, self._options, request)))

    # output

    def take_datagrams(self, now_ns: int) -> list[bytes]:
        """Finished datagrams for the TRD."""
        out, self._pending = self._pending, []
        if tmrs := self._local.take_outgoing():
            out += lbmr.pack_tmrs(tmrs, self._options, self._max_bytes)
        if records := self._sender.take_outgoing():
            out += lbmr.pack_interest(records, self._options, self._max_bytes)
        if domains := self._routes.take_outgoing():
            ip, port = self._request_address
            out += lbmr.pack_domain_routes(ip, port, 0, domains, self._options, self._max_bytes)
        return out

    def take_events(self) -> list[InterestEvent]:
        tables = (self._local, self._remote_topics, self._remote_patterns)
        return [event for table in tables for event in table.take_events()]

    def counts(self) -> dict[Slot, int]:
        """Count for the gauges of the portal's page; costs the same however much interest there is."""
        local, remote = self._local.kinds, self._remote_patterns.kinds
        return {
            Slot.LOCAL_TOPICS: local[PATTERN_NONE],
            Slot.LOCAL_PCRE: local[PATTERN_PCRE],
            Slot.LOCAL_REGEX: local[PATTERN_REGEX],
            Slot.REMOTE_TOPICS: self._remote_topics.kinds[PATTERN_NONE],
            Slot.REMOTE_PCRE: remote[PATTERN_PCRE],
            Slot.REMOTE_REGEX: remote[PATTERN_REGEX],
        }

    def left_out(self) -> dict[Slot, int]:
        """Return what was not taken from strangers since the start."""
        tables = (self._local, self._remote_topics, self._remote_patterns)
        return {
            Slot.INTEREST_LIMITED: sum(table.limited for table in tables),
            Slot.INTEREST_FULL: sum(table.refused for table in tables),
        }
