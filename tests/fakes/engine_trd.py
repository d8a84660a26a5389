"""A TRD in simulated time: engines of contexts that hear each other at once, and sessions that are only told of.

What a context sends is decoded once and heard by all, itself too. A session that shows life says something every
`SAYS_NS` while its sender is there; what is sent on a session counts as heard by all who have joined it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from dro.clock import ms, s
from dro.proto.context import effects as do
from dro.proto.context.engine import ContextEngine
from dro.proto.context.own import OwnSource, OwnSources, TirItems
from dro.proto.context.sources import BoundSource
from dro.proto.resolver.core import QUERY, WILDCARD_QUERY, ResolverConfig
from dro.proto.resolver.events import FoundSource
from dro.proto.resolver.schedule import AdvertisingOptions, QueryOptions, WildcardQueryOptions
from dro.proto.resolver.source_advertisements import Matcher
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import LbtrmAddress, TcpAddress, TransportAddress
from tests.fakes.patterns import compile_pattern

E = TypeVar("E")
IP: Final = 0x0A000001
PCRE: Final = 1
SAYS_NS: Final = s(10)
USUAL: Final = AdvertisingOptions()
STRANGER: Final = lbmr.standard_options(b"stranger", 0, 0)


@dataclass(eq=False)
class HeardSession:
    """Implements `SessionView`: one that a context has joined. Nothing of it is ever missing."""

    trd: EngineTrd
    address: TransportAddress
    heard_ns: int
    generation_ns: int = 0
    was_connected: bool = True
    has_begun: bool = False

    @property
    def is_in_order(self) -> bool:
        return isinstance(self.address, TcpAddress)

    @property
    def shows_life(self) -> bool:
        return not self.is_in_order

    @property
    def active_ns(self) -> int:
        if not self.shows_life:
            return self.heard_ns
        until_ns = self.trd.silent_since.get(self.address, self.trd.now_ns)
        return self.heard_ns + max(0, until_ns - self.heard_ns) // SAYS_NS * SAYS_NS

    def mark(self) -> int | None:
        return None

    def is_whole(self, mark: int | None) -> bool:
        return True


@dataclass(eq=False)
class EngineTrd:
    """All contexts of the TRD. `sent`: every packet, with its sender (None: a stranger)."""

    is_stream: bool = False
    now_ns: int = s(1)
    contexts: list[EngineHost] = field(default_factory=list)
    sent: list[tuple[EngineHost | None, lbmr.Packet]] = field(default_factory=list)
    silent_since: dict[TransportAddress, int] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 1 << 32)))

    def context(self, *, source_type: int = 0, domain_id: int = 0, ip: int = IP, propagation_ns: int = 0) -> EngineHost:
        number = next(self.numbers)
        is_application = source_type != lbmr.SenderType.DRO
        config = ResolverConfig(
            number.to_bytes(8),
            source_type,
            domain_id=domain_id,
            domain_propagation_ns=propagation_ns,
            answers_use_queries=is_application,
            hears_itself=is_application,
        )
        made = EngineHost(self, config, number, ip)
        self.contexts.append(made)
        return made

    def dro(self, domain_id: int = 1, ip: int = IP) -> EngineHost:
        return self.context(source_type=lbmr.SenderType.DRO, domain_id=domain_id, ip=ip)

    def address(self) -> TransportAddress:
        """A session that nobody has had."""
        number = next(self.numbers)
        if self.is_stream:
            return TcpAddress(IP, 14371, number)
        return LbtrmAddress(IP, 0xEFC90009, number, 14400, 14390)

    # time

    def settle(self) -> None:
        """Let everybody do and say what is to be done now."""
        for _ in range(1000):
            if not sum([context.pump() for context in self.contexts]):
                return
        raise AssertionError("the TRD does not come to rest")

    def run(self, milliseconds: int) -> None:
        """Let so much time pass; what is due happens at its time."""
        until_ns = self.now_ns + ms(milliseconds)
        self.settle()
        while (due_ns := self._next_deadline()) is not None and due_ns <= until_ns:
            self.now_ns = max(self.now_ns, due_ns)
            for context in self.contexts:
                context.on_timer()
            self.settle()
        self.now_ns = until_ns

    def until(self, is_true: Callable[[], bool], *, limit_ms: int = 60_000) -> None:
        """Let time pass until something holds; fails after `limit_ms` of it."""
        for _ in range(0, limit_ms, 10):
            self.settle()
            if is_true():
                return
            self.run(10)
        raise AssertionError(f"not within {limit_ms} ms")

    def _next_deadline(self) -> int | None:
        times = [context.engine.next_deadline() for context in self.contexts]
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

    # packets

    def say(self, body: lbmr.Body, options: lbmr.PacketOptions = STRANGER, ip: int = IP) -> None:
        """Let a stranger say something."""
        self.spread(lbmr.Packet(lbmr.VERSION, options, body), None, ip)
        self.settle()

    def spread(self, packet: lbmr.Packet, sender: EngineHost | None, ip: int) -> None:
        self.sent.append((sender, packet))
        for context in list(self.contexts):
            context.hear(packet, ip)

    def take_sent(self, kind: type[E]) -> list[E]:
        """Bodies of a kind that were sent since the last call."""
        sent, self.sent = self.sent, []
        return [packet.body for _, packet in sent if isinstance(packet.body, kind)]

    # sessions

    def hear_on(self, address: TransportAddress) -> None:
        """Send something on a session."""
        for context in self.contexts:
            if address in context.sessions:
                context.sessions[address].heard_ns = self.now_ns

    def fall_silent(self, address: TransportAddress) -> None:
        """Nothing more is heard of the session."""
        self.silent_since.setdefault(address, self.now_ns)


class EngineHost:
    """Host of one engine. `done`: what the engine has asked for; `heard`: what others may take something from.

    `refused`: sessions that cannot be joined now; `unknown`: those of no transport that is known.
    """

    def __init__(self, trd: EngineTrd, config: ResolverConfig, number: int, ip: int) -> None:
        self.trd = trd
        self.ip = ip
        self.source_id = config.source_id
        self.engine = ContextEngine(config, trd.now_ns, compile_pattern=compile_pattern)
        self.own = OwnSources(self.engine.resolver, context_id=number, first_index=number << 8)
        self.address = trd.address()
        self.sessions: dict[TransportAddress, HeardSession] = {}
        self.refused: set[TransportAddress] = set()
        self.unknown: set[TransportAddress] = set()
        self.done: list[do.ContextEffect] = []
        self.heard: list[lbmr.Body] = []

    # what its user does

    def open(
        self, topic: bytes, *, otid: bytes | None = None, tir_items: TirItems = (), at: TransportAddress | None = None
    ) -> OwnSource:
        """Open a source, on the session of the context unless there is another."""
        now_ns = self.trd.now_ns
        return self.own.open(topic, (at or self.address, 7), USUAL, now_ns, source_otid=otid, tir_items=tir_items)

    def proxy(self, topic: bytes, otid: bytes, cost: int) -> OwnSource:
        return self.open(topic, otid=otid, tir_items=(lbmr.Cost(1, cost),))

    def end(self, source: OwnSource) -> None:
        """Close a source with final advertisements."""
        self.own.close(source, self.trd.now_ns, final=True)

    def want(self, topic: bytes, queries: QueryOptions = QUERY) -> None:
        self.engine.wanted.add_topic(topic, self.trd.now_ns, queries)

    def unwant(self, topic: bytes) -> bool:
        return self.engine.unwant_topic(topic, self.trd.now_ns)

    def want_pattern(self, pattern: bytes, queries: WildcardQueryOptions = WILDCARD_QUERY) -> None:
        matcher: Matcher | None = compile_pattern(pattern, PCRE)
        assert matcher is not None
        self.engine.wanted.add_pattern((pattern, PCRE), matcher, self.trd.now_ns, queries)

    def unwant_pattern(self, pattern: bytes) -> None:
        self.engine.unwant_pattern((pattern, PCRE), self.trd.now_ns)

    def session_ended(self, address: TransportAddress) -> None:
        """A joined session ends by itself."""
        self.engine.on_session_ended(self.sessions.pop(address), self.trd.now_ns)

    def close(self) -> None:
        """End at once, with what is said last."""
        self.own.remove_all(self.trd.now_ns)
        self._send(self.engine.close(self.trd.now_ns))
        self.vanish()

    def vanish(self) -> None:
        """Die without a word."""
        self.trd.contexts.remove(self)
        self.trd.fall_silent(self.address)

    # what the engine does

    def hear(self, packet: lbmr.Packet, ip: int) -> None:
        if self.engine.on_packet(packet, ip, self.trd.now_ns):
            self.heard.append(packet.body)

    def on_timer(self) -> None:
        due_ns = self.engine.next_deadline()
        if due_ns is not None and due_ns <= self.trd.now_ns:
            self.engine.on_timer(self.trd.now_ns)

    def pump(self) -> bool:
        """Carry out what the engine asks for and send; True when there was something."""
        before = len(self.done)
        for effect in self.engine.take_effects(self.trd.now_ns):
            self.done.append(effect)
            self._perform(effect)
        return self._send(self.engine.resolver.take_outgoing()) or len(self.done) > before

    def _perform(self, effect: do.ContextEffect) -> None:
        match effect:
            case do.JoinSession(source=source):
                self._join(source)
            case do.LeaveSession(session=session) if self.sessions.get(session.address) is session:
                del self.sessions[session.address]  # one that has ended was left by itself

    def _join(self, source: FoundSource) -> None:
        address = source.address
        if address in self.refused:
            self.engine.on_not_joined(source, self.trd.now_ns)
        elif address not in self.unknown:
            session = self.sessions.get(address) or HeardSession(self.trd, address, self.trd.now_ns)
            self.sessions[address] = session
            self.engine.on_joined(source, session)

    def _send(self, datagrams: list[bytes]) -> bool:
        for datagram in datagrams:
            self.trd.spread(lbmr.decode(datagram), self, self.ip)
        return bool(datagrams)

    # what was seen

    def of(self, kind: type[E]) -> list[E]:
        return [effect for effect in self.done if isinstance(effect, kind)]

    @property
    def bound(self) -> list[BoundSource[Any]]:
        """All that were ever bound."""
        return [effect.source for effect in self.of(do.Bound)]

    @property
    def unbound(self) -> list[tuple[BoundSource[Any], bool]]:
        return [(effect.source, effect.ended) for effect in self.of(do.Unbound)]

    @property
    def current(self) -> list[BoundSource[Any]]:
        return self.engine.bound.sources
