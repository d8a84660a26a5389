"""Topic resolution in one TRD: the engine of a context, on a real channel and the clock of a loop.

Owns the TR channel and the timer. Every datagram is decoded here, once; what it causes is carried out by `perform`, and
`on_packet` gets what others may take something from. Both contexts of an endpoint portal have the one of the receiving
context. Source: client library notes, section 2.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dro.config.um.options import UmOptions
from dro.config.um.sets import ResolverOptions, ResolverServiceOptions, UnicastResolverOptions
from dro.errors import DecodeError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.patterns import Pattern, PatternError
from dro.proto.context import effects as do
from dro.proto.context.engine import ContextEngine
from dro.proto.context.host import ContextHost
from dro.proto.resolver import events as ev
from dro.proto.resolver.core import ResolverConfig
from dro.proto.resolver.source_advertisements import Matcher
from dro.proto.resolver_service.client import ServiceClient
from dro.timers import Timer
from dro.transport import mmsg
from dro.transport.sockets import ANY, Sockets, ip_text
from dro.um.fragment.options import resolver_config
from dro.um.fragment.relayed_senders import RelayedSenders
from dro.um.fragment.service_links import ServiceLinks
from dro.um.fragment.tr_channel import MulticastChannel, NoChannel, ResolverServer, TrChannel
from dro.um.fragment.unicast_channel import UnicastChannel
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import format_source
from dro.wire.srs.messages import InterestMode, RegistrationRequest

log = logging.getLogger(__name__)
seen = LimitedLogger.of_events(log)

LOG_KINDS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """Says what a context is, besides its options.

    `domain_id`: of the TRD when it is configured (a DRO's), 0 to learn it. `sm_before_data`: LBT-RM sources send
    session messages before their first data. `sending`: the options of the context of the same TRD that has the
    sources, if it is another.
    """

    name: str = ""
    source_type: int = lbmr.SenderType.APPLICATION
    domain_id: int = 0
    sm_before_data: bool = False
    sending: UmOptions | None = None


USUAL: Final = ContextSettings()


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """`unknown_senders`: datagrams dropped because their sender is no daemon; `malformed`: of records of SRSes."""

    unknown_senders: int
    malformed: int
    connects: int  # connections made to SRSes


def _nothing() -> None:
    pass


class TopicResolution(ContextHost):
    """See the module text. Raises on creation: ResourceError naming the option that cannot be satisfied."""

    def __init__(
        self,
        loop: Loop,
        options: ResolverOptions,
        unicast: UnicastResolverOptions,
        service: ResolverServiceOptions,
        config: ResolverConfig,
        *,
        name: str,
        rng: random.Random,
        batch: mmsg.DatagramBatch,
        perform: Callable[[do.ContextEffect], object],
        on_packet: Callable[[lbmr.Packet, int, int], object],
        sockets: Sockets,
    ) -> None:
        self.faults = LimitedLogger(log, loop.now_ns)
        super().__init__(
            ContextEngine(config, loop.now_ns(), compile_pattern=self.compile, jitter=lambda ns: rng.randrange(ns))
        )
        self._perform = perform
        self._name = name
        self._loop = loop
        self._on_packet = on_packet
        self._own_tail = b""
        self._set_options()
        self.on_daemon_back: Callable[[], object] = _nothing
        """All resolver daemons were silent, and one is heard again: nobody may know what was said meanwhile."""
        self._relayed = RelayedSenders()
        self.request_address = (0, 0)
        """Address and port of the context's request port, when that is open."""
        self.channel: TrChannel
        if service.is_udp_off:
            towards = service.services[0].address if service.services else ANY
            self.channel = NoChannel(loop, batch, self._on_datagrams, towards)
        elif unicast.daemons:
            self.channel = UnicastChannel(
                loop, unicast, batch, self._on_datagrams, sockets,
                keepalive=self._keepalive, on_daemon_back=self._on_daemon_back, rng=rng,
            )  # fmt: skip
        else:
            self.channel = MulticastChannel(loop, options, batch, self._on_datagrams, sockets)
        self._services: ServiceLinks | None = None
        if service.services:
            client = ServiceClient(
                config.source_id, config.source_type, config.domain_id, loop.now_ns(),
                filters=service.interest_mode != "flood",
            )  # fmt: skip
            self._client = client
            self._services = ServiceLinks(
                loop, service.services, client, sockets, rng=rng,
                registration=lambda: self._registration(config, service), on_packet=self._on_service_packet,
            )  # fmt: skip
        self._timer: Timer | None = None
        self._acts_soon = False

    # the channel

    def servers(self) -> list[ResolverServer]:
        """List the resolver daemons and SRSes of the context, and which of them answer."""
        return self.channel.servers() + (self._services.servers() if self._services is not None else [])

    def server_counts(self) -> ServerCounts:
        """Return what was counted about servers since the start."""
        links = self._services
        malformed, connects = (links.malformed, self._client.connects) if links is not None else (0, 0)
        return ServerCounts(self.channel.unexpected, malformed, connects)

    def send(self, datagrams: Iterable[bytes]) -> None:
        """Send finished LBMR datagrams."""
        if not self.is_closed:
            self._send(list(datagrams))

    def _send(self, datagrams: list[bytes]) -> None:
        self.channel.send(datagrams)
        if self._services is not None and datagrams:
            self._services.send(datagrams)

    def _registration(self, config: ResolverConfig, service: ResolverServiceOptions) -> RegistrationRequest:
        ip, port = self.request_address
        forwards = 2 if config.source_type == lbmr.SenderType.DRO else 0
        mode = (InterestMode.FLOOD if service.interest_mode == "flood" else InterestMode.FILTER) + forwards
        session_id = int.from_bytes(config.source_id[:4], "big")
        domain_id = self.engine.resolver.domain_id
        ip = ip or self.channel.local_address
        return RegistrationRequest(config.source_type, ip, port, session_id, 0, mode, domain_id)

    def _set_options(self) -> None:
        options = self.engine.resolver.packet_options()
        self._own_tail = lbmr.encode(lbmr.Packet(1, options, lbmr.ReceiverAlive()))[lbmr.HEADER_SIZE :]

    def _keepalive(self) -> bytes:
        return lbmr.encode(lbmr.Packet(lbmr.VERSION, self.engine.resolver.packet_options(), lbmr.ReceiverAlive()))

    def _on_daemon_back(self) -> None:
        if not self.is_closed:
            self.engine.resolver.tell_all(self._loop.now_ns())
            self.on_daemon_back()
            self.pump()

    def _on_datagrams(self, datagrams: Iterator[tuple[bytes, int]], now_ns: int) -> None:
        for datagram, sender_ip in datagrams:
            with self.together():
                self._on_datagram(datagram, sender_ip, now_ns)

    def _on_datagram(self, datagram: bytes, sender_ip: int, now_ns: int) -> None:
        if self.is_closed:
            return
        if datagram.endswith(self._own_tail):  # multicast that comes back, not worth to be decoded
            self.engine.stats.tr_dgrams_dropped_own += 1
            return
        packet, trouble = lbmr.decode_lenient(datagram)
        if trouble is not None:
            self._on_malformed(trouble, sender_ip)
        if packet is not None:
            if self.channel.is_relayed:
                sender_ip = self._relayed.address_of(packet, sender_ip)
            self._on_whole_packet(packet, sender_ip, now_ns)

    def _on_service_packet(self, packet: lbmr.Packet, srs_ip: int, now_ns: int) -> None:
        if not self.is_closed:
            with self.together():
                self._on_whole_packet(packet, self._relayed.address_of(packet, srs_ip), now_ns)

    def _on_whole_packet(self, packet: lbmr.Packet, sender_ip: int, now_ns: int) -> None:
        if self.engine.on_packet(packet, sender_ip, now_ns):
            self._on_packet(packet, sender_ip, now_ns)

    def _on_malformed(self, trouble: DecodeError, sender_ip: int) -> None:
        stats = self.engine.stats
        stats.tr_dgrams_dropped_malformed += 1
        reasons = stats.malformed
        where = trouble.where if trouble.where in reasons or len(reasons) < LOG_KINDS_MAX else "other"
        reasons[where] = reasons.get(where, 0) + 1
        self.faults.event(
            LogEvent.TR_MALFORMED,
            extra={"from": ip_text(sender_ip), "error": trouble, "dropped": stats.tr_dgrams_dropped_malformed},
        )

    def compile(self, pattern: bytes, pattern_type: int) -> Matcher | None:
        """Compile a pattern that others ask for; None for one that cannot be used, which the resolver tells."""
        try:
            return Pattern(pattern, pattern_type, self.on_pattern_limit)
        except PatternError:
            return None

    def on_pattern_limit(self, pattern: bytes) -> None:
        """A search for the pattern was given up."""
        self.faults.event(LogEvent.PATTERN_LIMIT, extra={"pattern": pattern})

    # the engine

    def now_ns(self) -> int:
        return self._loop.now_ns()

    def perform(self, effect: do.ContextEffect) -> None:
        self._perform(effect)

    def on_pumped(self) -> None:
        engine = self.engine
        self._send(engine.resolver.take_outgoing())
        deadline = engine.next_deadline()
        if deadline is not None and deadline <= self._loop.now_ns():
            if not self._acts_soon:  # more than the engine does at once: the rest in the next turn
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
        self.engine.on_timer(self._loop.now_ns())
        self.pump()

    def tell(self, effect: do.Note) -> None:
        """Log what is only to be told."""
        match effect:
            case do.ProxyLeft(source=source):
                self.engine.stats.sources_replaced += 1
                text = format_source(source.address, source.topic_index)
                seen.event(LogEvent.PROXY_SOURCE_LEFT, {"topic": source.topic, "source": text})
            case do.IndexTaken(source=found):
                self.faults.event(LogEvent.SOURCE_INDEX, extra=source_field(found))
            case ev.DomainIdLearned(domain_id=domain_id):
                self._set_options()
                if self._services is not None:
                    self._client.set_domain(domain_id)
                log.info(LogEvent.DOMAIN_DISCOVERED, extra={"context": self._name, "domain_id": domain_id})
            case ev.DomainMismatch(domain_id=other, source_ip=ip):
                own = self.engine.resolver.domain_id
                extra = {"from": ip_text(ip), "domain_id": other, "own": own}
                self.faults.event(LogEvent.FOREIGN_DOMAIN, extra=extra)
            case ev.OtidMismatch(topic=topic):
                self.faults.event(LogEvent.SOURCE_OTHER_OTID, extra={"topic": topic})
            case ev.BadPattern(pattern=pattern):
                self.faults.event(LogEvent.QUERY_PATTERN_BAD, extra={"pattern": pattern})
            case _:
                pass  # its owner does something about it

    def close(self) -> None:
        """End it at once; what may still be sent without waiting, is sent."""
        if self.is_closed:
            return
        self._send(self.engine.close(self._loop.now_ns()))
        self.is_closed = True
        if self._services is not None:
            self._services.close()
        if self._timer is not None:
            self._timer.cancel()
        self.channel.close()


def source_field(source: ev.FoundSource) -> dict[str, object]:
    """Return the field of a log line that names a source."""
    return {"source": format_source(source.address, source.topic_index)}


def open_resolution(
    loop: Loop,
    options: UmOptions,
    settings: ContextSettings,
    rng: random.Random,
    batch: mmsg.DatagramBatch,
    sockets: Sockets,
    perform: Callable[[do.ContextEffect], object],
    on_packet: Callable[[lbmr.Packet, int, int], object],
) -> TopicResolution:
    """Open the topic resolution of a context with these options. Raises: ResourceError."""
    o = ResolverOptions.of(options)
    if settings.sending is not None:
        o = o.sending_as(ResolverOptions.of(settings.sending))
    service = ResolverServiceOptions.of(options)
    tells_once = service.is_udp_off and bool(service.services)
    if service.is_udp_off and not service.services:
        remedy = "list an SRS in resolver_service, or set resolver_disable_udp_topic_resolution to 0"
        log.warning(LogEvent.TR_OFF, extra={"remedy": remedy})
    config = resolver_config(o, rng.randbytes(8), settings.source_type, settings.domain_id, tells_once=tells_once)
    return TopicResolution(
        loop, o, UnicastResolverOptions.of(options), service, config,
        name=settings.name, rng=rng, batch=batch, sockets=sockets, perform=perform, on_packet=on_packet,
    )  # fmt: skip
