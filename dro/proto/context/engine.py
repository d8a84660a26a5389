"""All that one context of a TRD decides: what it asks for, which sources it joins and leaves, what it advertises.

Packets, sessions and time in; datagrams and what `effects` lists out. A host gives it sockets and a clock: the client
library and endpoint portals in a process (`dro.um.fragment`), the simulator without.

    what receivers want                                    `wanted`
    sources that were found: joined, left, taken for dead  `bound`
    queries, advertisements, and what was heard            `resolver`

Each input is followed by `take_effects` until there are none, then `resolver.take_outgoing` and `next_deadline`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from dro.proto.context.bound import BoundSources
from dro.proto.context.effects import ContextEffect, PatternKey, TopicFound, TopicLost
from dro.proto.context.sources import SessionView
from dro.proto.context.wanted import WantedTopics
from dro.proto.resolver import events as ev
from dro.proto.resolver.core import Resolver, ResolverConfig
from dro.proto.resolver.source_advertisements import PatternCompiler
from dro.timers import Calendar
from dro.wire.lbmr import packet as lbmr


@dataclass(frozen=True, slots=True)
class _Advertised:
    """Says what a packet advertised; it is looked at when the events that the packet caused are worked off."""

    tirs: tuple[lbmr.Tir, ...]
    options: lbmr.PacketOptions | None
    sender_ip: int


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


class ContextEngine:
    """See the module text. Times are ns of the host's clock."""

    def __init__(
        self,
        config: ResolverConfig,
        now_ns: int,
        *,
        compile_pattern: PatternCompiler,
        jitter: Callable[[int], int] | None = None,
    ) -> None:
        self.stats = ContextStats()
        self.resolver = Resolver(config, now_ns, compile_pattern=compile_pattern, jitter=jitter)
        self.wanted = WantedTopics(self.resolver)
        self.source_id = config.source_id
        self._events: deque[ev.ResolverEvent | _Advertised] = deque()
        self._effects: list[ContextEffect] = []
        self._calendar = Calendar()
        self.bound = BoundSources(self.resolver, self.wanted.is_wanted, self._calendar, self._effects)
        self.bound.now_ns = now_ns

    # inputs

    def on_packet(self, packet: lbmr.Packet, sender_ip: int, now_ns: int) -> bool:
        """A packet of the channel. False when nobody else takes anything from it: it is our own, or of another TRD."""
        self.bound.now_ns = now_ns
        options = packet.options
        if options is not None and options.source_id == self.source_id:
            self.stats.tr_dgrams_dropped_own += 1
            return False
        if not self.resolver.on_packet(packet, sender_ip, now_ns):
            self.stats.tr_dgrams_dropped_domain += 1
            return False
        if isinstance(packet.body, (lbmr.Queries, lbmr.WildcardQueries)) and packet.body.tirs:
            self._events.extend(self.resolver.take_events())
            self._events.append(_Advertised(packet.body.tirs, options, sender_ip))
        elif options is not None and options.is_from_dro:
            self.bound.on_dro_packet(sender_ip, options.source_id)
        return True

    def unwant_topic(self, topic: bytes, now_ns: int) -> bool:
        """Want it once less; True when no receiver of the topic is left."""
        self.bound.now_ns = now_ns
        is_last = self.wanted.remove_topic(topic, now_ns)
        if is_last:
            self.bound.leave_unwanted(topic)
        return is_last

    def unwant_pattern(self, key: PatternKey, now_ns: int) -> None:
        self.bound.now_ns = now_ns
        self.bound.leave_in_slices(self.wanted.remove_pattern(key, now_ns))

    def leave_unwanted(self, now_ns: int) -> None:
        """Leave, in slices, known sources that nobody has come to want."""
        self.bound.now_ns = now_ns
        self.bound.leave_all_unwanted()

    def on_joined(self, source: ev.FoundSource, session: SessionView) -> None:
        """Answer `JoinSession`; a host that has no such transport gives no answer."""
        self.bound.on_joined(source, session)

    def on_not_joined(self, source: ev.FoundSource, now_ns: int) -> None:
        """Answer `JoinSession` when no session can be had now; another advertisement asks again."""
        self.stats.sessions_failed += 1
        self.resolver.on_source_ended(source.topic, source.address, source.topic_index, now_ns)

    def on_session_ended(self, session: SessionView, now_ns: int) -> None:
        """A joined session has ended by itself."""
        self.bound.now_ns = now_ns
        self.bound.on_session_ended(session)

    def on_timer(self, now_ns: int) -> None:
        self.bound.now_ns = now_ns
        self._calendar.run_due(now_ns)
        self.resolver.on_timer(now_ns)

    def close(self, now_ns: int) -> list[bytes]:
        """End everything and ask for nothing; returns the last datagrams."""
        self.wanted.remove_all(now_ns)
        self.resolver.on_timer(now_ns)
        self.bound.clear()
        self.resolver.take_events()
        self._events.clear()
        self._effects.clear()
        return self.resolver.take_outgoing()

    # outputs

    def take_effects(self, now_ns: int) -> Iterator[ContextEffect]:
        """Take what is to be done now, one by one; the host may give input between two."""
        effects, events = self._effects, self._events
        while True:
            if effects:
                waiting = effects.copy()
                effects.clear()
                yield from waiting
            elif events:
                self.bound.now_ns = now_ns
                self._on_event(events.popleft())
            else:
                events.extend(self.resolver.take_events())
                if not events:
                    return

    def next_deadline(self) -> int | None:
        times = self.resolver.next_deadline(), self._calendar.next_deadline()
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

    # inside

    def _on_event(self, event: ev.ResolverEvent | _Advertised) -> None:
        bound = self.bound
        match event:
            case ev.SourceFound(source=source, is_known=is_known):
                bound.on_found(source, is_known=is_known)
            case ev.SourceSwitched(old=old, new=new):
                bound.on_switched(old, new)
            case ev.SourceChanged(source=source):
                bound.on_changed(source)
            case ev.SourceRefused(source=source):
                bound.on_refused(source)
            case ev.SourceFinal(source=source):
                bound.on_gone(source)
            case ev.TopicMatched(wildcard=handle, topic=topic):
                if (key := self.wanted.on_matched(handle, topic)) is not None:
                    self._effects.append(TopicFound(key, topic))
            case ev.TopicUnmatched(wildcard=handle, topic=topic):
                if (key := self.wanted.on_unmatched(handle, topic)) is not None:
                    bound.leave_unwanted(topic)
                    self._effects.append(TopicLost(key, topic))
            case _Advertised(tirs=tirs, options=options, sender_ip=sender_ip):
                bound.replace_dead(tirs, options, sender_ip)
            case _:
                self._effects.append(event)
