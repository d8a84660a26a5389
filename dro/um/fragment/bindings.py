"""Sources that a context has found and joined: which are bound, when one is left, which DROs are dead.

State: the bound sources, the sources of each topic with their sessions, those that have sent a final advertisement, and
the DROs that were heard. Called by the context with the events of the resolver; calls the sink.

    resolver says         what is done                                       call of the sink
    source found          joins its session, or uses the joined one          on_bound
    source switched       joins the new one, then leaves the old one         on_bound(new), on_unbound(old, ended)
    source gone           leaves, when what was sent before has been read    on_unbound(ended)
    source refused        leaves at once                                     on_unbound
    (session ended)       informs the resolver, which may find another one   on_unbound(ended)
    (not wanted any more) leaves                                             on_unbound

Source: topic resolution notes, 4.1; DRO forwarding notes, 17.3 and 22. Guess: how a dead DRO is recognised, see
`replace_dead`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from dro.clock import ms
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.context.sources import BoundSource
from dro.proto.resolver.core import Resolver
from dro.proto.resolver.events import FoundSource
from dro.table import Table
from dro.transport.session import FragmentSink, ReceiverTransport
from dro.um.fragment.dro_watch import SILENT_NS, DroWatch
from dro.um.fragment.receiver_sessions import ReceiverSessions
from dro.um.fragment.wanted import WantedTopics
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import TransportAddress, format_source

events = LimitedLogger.of_events(logging.getLogger(__name__))

ENDING_QUIET_NS: Final = ms(10)
"""A session that says nothing for so long, in two looks, has said everything that came before a final advertisement."""
ENDING_MAX_NS: Final = ms(250)

AT_ONCE: Final = 32
"""Sources of a session that ended, or topics of a pattern, that are left in one go."""

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


class Bindings:
    """All bound sources of one context."""

    def __init__(
        self,
        loop: Loop,
        sink: FragmentSink,
        resolver: Resolver,
        wanted: WantedTopics,
        joined: ReceiverSessions,
        stats: ContextStats,
        faults: LimitedLogger,
        pump: Callable[[], object],
    ) -> None:
        """`pump`: carry out what the resolver asks for, after something was told to it from here."""
        self._loop = loop
        self._sink = sink
        self._resolver = resolver
        self._wanted = wanted
        self._joined = joined
        self._stats = stats
        self._faults = faults
        self._pump = pump
        self._bound: Table[BoundKey, BoundSource[Any]] = Table()
        self._ending: Table[BoundKey, int] = Table()  # bound sources that have sent a final advertisement, until when
        self._by_topic: Table[bytes, dict[bytes, list[BoundSource[Any]]]] = Table()  # topic -> OTID -> sessions of it
        self._dros = DroWatch()

    @property
    def sources(self) -> list[BoundSource[Any]]:
        return list(self._bound.values())

    def find(self, key: BoundKey) -> BoundSource[Any] | None:
        return self._bound.get(key)

    def topics(self) -> set[bytes]:
        """Topics with a joined source."""
        return set(self._by_topic)

    def clear(self) -> None:
        """Forget everything, without a word to the sink."""
        for bound in self._bound.values():
            bound.transport.sources.clear()  # each knows the other
        self._bound.clear()
        self._by_topic.clear()

    # what the resolver says

    def on_found(self, source: FoundSource, now_ns: int, *, is_known: bool = False) -> None:
        """`is_known`: join it even if it is not wanted yet."""
        key = _key(source)
        self._ending.pop(key, None)  # an advertisement again: it goes on
        if key in self._bound or not (is_known or self._wanted.is_wanted(source.topic)):
            return
        stats = self._stats
        try:
            transport = self._joined.join(source.address, now_ns, self._wanted.options_of(source.topic))
        except ResourceError as e:
            stats.sessions_failed += 1
            self._faults.event(LogEvent.SESSION_NOT_JOINED, extra=_text(source) | {"error": str(e)})
            self._resolver.on_source_ended(source.topic, source.address, source.topic_index, now_ns)
            return
        if transport is None:
            stats.sessions_unsupported += 1
            self._faults.event(LogEvent.SOURCE_TRANSPORT, extra=_text(source))
            return
        if source.topic_index in transport.sources:
            self._faults.event(LogEvent.SOURCE_INDEX, extra=_text(source))
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
        self._by_topic.setdefault(source.topic, {}).setdefault(source.otid, []).append(bound)
        self._sink.on_bound(bound, now_ns)

    def on_switched(self, old: FoundSource, new: FoundSource, now_ns: int) -> None:
        self.on_found(new, now_ns)
        if (bound := self._bound.get(_key(old))) is not None:
            self._end_soon(bound, now_ns)

    def on_changed(self, source: FoundSource) -> BoundSource[Any] | None:
        """The source is advertised with other attributes; returns it when it is bound."""
        bound = self._bound.get(_key(source))
        if bound is not None:
            bound.tir, bound.is_from_dro = source.tir, source.from_dro
            bound.source_id, bound.source_ip = source.source_id, source.source_ip
        return bound

    def on_refused(self, source: FoundSource, now_ns: int) -> None:
        if (bound := self._bound.get(_key(source))) is not None:
            self._unbind(bound, ended=False, now_ns=now_ns)

    def on_gone(self, source: FoundSource, now_ns: int) -> None:
        if (bound := self._bound.get(_key(source))) is not None and _key(source) not in self._ending:
            self._end_soon(bound, now_ns)

    # leaving

    def leave_unwanted(self, topics: Iterable[bytes], now_ns: int) -> None:
        """Leave the sources of those of `topics` that nobody wants any more."""
        for topic in topics:
            if not self._wanted.is_wanted(topic):
                for bound in [b for sessions in self._by_topic.get(topic, {}).values() for b in sessions]:
                    self._unbind(bound, ended=False, now_ns=now_ns)

    def leave_all_unwanted(self) -> None:
        """`leave_unwanted` for everything, in slices."""
        self._in_slices(self._leave_all(self._unwanted()))

    def _unwanted(self) -> Iterator[bytes]:
        for topic in self._by_topic.snapshot():
            if not self._wanted.is_wanted(topic):
                self._resolver.leave_topic(topic)
            yield topic

    def on_session_ended(self, transport: ReceiverTransport, now_ns: int) -> None:
        self._in_slices(self._end_all(list(transport.sources.values())))

    def leave_pattern(self, topics: Iterator[bytes]) -> None:
        """`leave_unwanted` for the topics of a pattern, which the iterator takes from it one by one."""
        self._in_slices(self._leave_all(topics))

    def _in_slices(self, steps: Iterator[None]) -> None:
        """Do a few steps at once, and the rest beside other work."""
        for _ in range(AT_ONCE):
            if next(steps, self) is self:
                return
        self._loop.run_in_slices(steps)

    def _end_all(self, ended: list[BoundSource[Any]]) -> Iterator[None]:
        for number, bound in enumerate(ended, 1):
            if self._bound.get(_key_of(bound)) is bound:
                self._end(bound, self._loop.now_ns())
            if number % AT_ONCE == 0:
                self._pump()
            yield
        self._pump()

    def _leave_all(self, topics: Iterator[bytes]) -> Iterator[None]:
        for number, topic in enumerate(topics, 1):
            self.leave_unwanted((topic,), self._loop.now_ns())
            if number % AT_ONCE == 0:
                self._pump()
            yield
        self._pump()

    def _unbind(self, bound: BoundSource[Any], *, ended: bool, now_ns: int) -> None:
        key = _key_of(bound)
        if self._bound.pop(key, None) is None:
            return
        self._ending.pop(key, None)
        by_otid = self._by_topic[bound.topic]
        sessions = by_otid[bound.otid]
        sessions.remove(bound)
        if not sessions:
            del by_otid[bound.otid]
            if not by_otid:
                del self._by_topic[bound.topic]
        transport = bound.transport
        if transport.sources.get(bound.topic_index) is bound:
            del transport.sources[bound.topic_index]
        if not transport.sources:
            self._joined.leave(transport)
        self._sink.on_unbound(bound, ended=ended, now_ns=now_ns)

    def _end(self, bound: BoundSource[Any], now_ns: int) -> None:
        is_known_gone = _key_of(bound) in self._ending
        self._unbind(bound, ended=True, now_ns=now_ns)
        if not is_known_gone:
            self._resolver.on_source_ended(bound.topic, bound.address, bound.topic_index, now_ns)

    def _end_soon(self, bound: BoundSource[Any], now_ns: int) -> None:
        """Wait for a quiet moment: a final advertisement comes by another socket than data that was sent before it.

        Where another session of the same source has been joined, stay on both for a while: the new one begins somewhere
        in the middle, and the old one, which a DRO feeds a little longer, may be behind it. What comes twice counts
        once.
        """
        self._ending[_key_of(bound)] = deadline_ns = now_ns + ENDING_MAX_NS
        self._loop.call_later(ENDING_QUIET_NS, partial(self._look, bound, deadline_ns))

    def _is_ending(self, bound: BoundSource[Any], deadline_ns: int) -> bool:
        """Say whether it still ends; False also when it was advertised again, and ended again since."""
        key = _key_of(bound)
        return self._bound.get(key) is bound and self._ending.get(key) == deadline_ns

    def _look(self, bound: BoundSource[Any], deadline_ns: int) -> None:
        if not self._is_ending(bound, deadline_ns):
            return
        if len(self._by_topic[bound.topic][bound.otid]) > 1:
            self._loop.call_at(deadline_ns, partial(self._decide, bound, deadline_ns, bound.transport.active_ns))
        else:
            # timers come before descriptors in a turn; what lies in a socket by now is read before the next one
            seen_ns = bound.transport.active_ns
            self._loop.call_later(ENDING_QUIET_NS, partial(self._decide, bound, deadline_ns, seen_ns))

    def _decide(self, bound: BoundSource[Any], deadline_ns: int, seen_ns: int) -> None:
        if not self._is_ending(bound, deadline_ns):
            return
        if bound.transport.active_ns != seen_ns and self._loop.now_ns() < deadline_ns:
            self._look(bound, deadline_ns)
        else:
            self._unbind(bound, ended=True, now_ns=self._loop.now_ns())
            self._pump()

    # DROs that died

    def on_dro_packet(self, ip: int, now_ns: int) -> None:
        """A DRO said something on the TR channel that names no source."""
        self._dros.on_packet(ip, None, now_ns)

    def replace_dead(
        self, tirs: tuple[lbmr.Tir, ...], options: lbmr.PacketOptions | None, ip: int, now_ns: int
    ) -> None:
        """Leave a proxy's session when another session of the same source is advertised and the proxy's DRO is dead.

        Dead is: a DRO context that offers the source at the same cost and with the same hotlink index appeared at the
        same address and the old one was not heard since (the DRO was restarted), or the session has been silent for
        `SILENT_NS`. Where a session with idle sources says nothing (TCP), the DRO's host must be silent as well.
        """
        from_dro = options is not None and options.is_from_dro
        source_id = options.source_id if options is not None else None
        if from_dro:
            self._dros.on_packet(ip, source_id, now_ns)
        for tir in tirs:
            if tir.is_final or tir.otid is None or not (sessions := self._by_topic.get(tir.topic, {}).get(tir.otid)):
                continue
            for bound in list(sessions):
                if bound.address == tir.transport or not bound.is_from_dro or bound.source_id == source_id:
                    continue
                is_twin = from_dro and bound.source_ip == ip and _offer(bound.tir) == _offer(tir)
                is_restarted = is_twin and self._dros.has_succeeded(source_id, bound.source_id)
                if is_restarted or self._is_silent(bound, now_ns):
                    self._stats.sources_replaced += 1
                    events.event(
                        LogEvent.PROXY_SOURCE_LEFT,
                        {"topic": bound.topic, "source": format_source(bound.address, bound.topic_index)},
                    )
                    self._end(bound, now_ns)
        self._pump()

    def _is_silent(self, bound: BoundSource[Any], now_ns: int) -> bool:
        if now_ns - bound.transport.active_ns <= SILENT_NS:
            return False
        return bound.transport.shows_life or self._dros.is_host_silent(bound.source_ip, now_ns)


def _text(source: FoundSource) -> dict[str, object]:
    return {"source": format_source(source.address, source.topic_index)}


def _key(source: FoundSource) -> BoundKey:
    return source.topic, source.address, source.topic_index


def _key_of(bound: BoundSource[Any]) -> BoundKey:
    return bound.topic, bound.address, bound.topic_index


def _offer(tir: lbmr.Tir) -> tuple[int, int, int]:
    """Read cost, hop count and hotlink index."""
    options = tir.options
    cost = options.cost if options is not None else None
    index = options.hotlink_index if options is not None else 0
    return (cost.cost, cost.hop_count, index) if cost is not None else (0, 0, index)
