"""Sources that a context has found and joined: which are bound, when one is left, which DROs are dead.

State: the bound sources, those of each topic and of each session, those that have sent a final advertisement, and the
DROs that were heard. Called by the engine with the events of the resolver; asks for what `effects` lists.

    resolver says         what is done                                       effect
    source found          joins its session, or uses the joined one          JoinSession, Bound
    source switched       joins the new one, then leaves the old one         JoinSession, Bound, Unbound(old, ended)
    source gone           leaves, when what was sent before has been read    Unbound(ended)
    source refused        leaves at once                                     Unbound
    (session ended)       informs the resolver, which may find another one   Unbound(ended)
    (not wanted any more) leaves                                             Unbound

Source: topic resolution notes, 4.1; DRO forwarding notes, 17.3 and 22. Guess: how a dead DRO is recognised, see
`replace_dead`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

from dro.clock import ms
from dro.errors import DecodeError
from dro.proto.context.dro_watch import SILENT_NS, DroWatch
from dro.proto.context.effects import (
    Bound,
    Changed,
    ContextEffect,
    IndexTaken,
    JoinSession,
    LeaveSession,
    ProxyLeft,
    Unbound,
)
from dro.proto.context.sources import BoundSource, SessionView
from dro.proto.resolver.core import Resolver
from dro.proto.resolver.events import FoundSource
from dro.state import Outside, Same, StateLayout
from dro.table import Table
from dro.timers import Calendar, Due
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import TransportAddress

ENDING_QUIET_NS: Final = ms(10)
"""A session that says nothing for so long, in two looks, has said everything that came before a final advertisement."""
ENDING_MAX_NS: Final = ms(250)

BoundKey = tuple[bytes, TransportAddress, int]  # topic, session, topic index


@dataclass(slots=True, eq=False)
class _Ending(Due):
    """A bound source that has sent a final advertisement: it is left when its session is quiet, or at a deadline."""

    owner: BoundSources
    bound: BoundSource[Any]
    deadline_ns: int
    seen_ns: int | None = field(default=None, init=False)  # when the session was active last, as of the last look

    def on_due(self) -> None:
        self.owner.look_at(self)


class BoundSources:
    """All bound sources of one context. `now_ns` is set by the engine before it calls anything else."""

    __slots__ = (
        "_bound", "_by_session", "_by_topic", "_calendar", "_dros", "_effects", "_ended", "_ending", "_is_wanted",
        "_resolver", "_unchecked", "now_ns",
    )  # fmt: skip

    def __init__(
        self, resolver: Resolver, is_wanted: Callable[[bytes], bool], calendar: Calendar, effects: list[ContextEffect]
    ) -> None:
        self.now_ns = 0
        self._resolver = resolver
        self._is_wanted = is_wanted
        self._calendar = calendar
        self._effects = effects
        self._bound: Table[BoundKey, BoundSource[Any]] = Table()
        self._ending: Table[BoundKey, _Ending] = Table()
        self._by_topic: Table[bytes, dict[bytes, list[BoundSource[Any]]]] = Table()  # topic -> OTID -> sessions of it
        self._by_session: dict[SessionView, dict[int, BoundSource[Any]]] = {}  # by topic index
        self._ended: deque[BoundSource[Any]] = deque()  # of sessions that have ended, still to be left
        self._unchecked: deque[bytes] = deque()  # topics, still to be left if nobody wants them
        self._dros = DroWatch()

    @property
    def sources(self) -> list[BoundSource[Any]]:
        return list(self._bound.values())

    def find(self, key: BoundKey) -> BoundSource[Any] | None:
        return self._bound.get(key)

    def topics(self) -> set[bytes]:
        """Topics with a joined source."""
        return set(self._by_topic)

    def has_topic(self, topic: bytes) -> bool:
        """Say whether a source of the topic is joined."""
        return topic in self._by_topic

    def clear(self) -> None:
        """Forget everything, and ask for nothing."""
        for ending in self._ending.values():
            self._calendar.set(ending, None)
        for part in (self._bound, self._ending, self._by_topic, self._by_session, self._ended, self._unchecked):
            part.clear()

    # what the resolver says

    def on_found(self, source: FoundSource, *, is_known: bool = False) -> None:
        """`is_known`: join it even if it is not wanted yet."""
        key = _key(source)
        self._go_on(key)
        if key not in self._bound and (is_known or self._is_wanted(source.topic)):
            self._effects.append(JoinSession(source, is_known))

    def on_joined(self, source: FoundSource, session: SessionView) -> None:
        """The host has joined the session of a source that was found."""
        if source.topic_index in self._by_session.get(session, {}):
            self._effects.append(IndexTaken(source))
            return
        bound: BoundSource[Any] = BoundSource(
            source.topic,
            source.otid,
            source.topic_index,
            session,
            source.tir,
            source.from_dro,
            source_id=source.source_id,
            source_ip=source.source_ip,
        )
        self._add(bound)
        self._effects.append(Bound(bound))

    def _add(self, bound: BoundSource[Any]) -> None:
        self._bound[_key_of(bound)] = bound
        self._by_session.setdefault(bound.transport, {})[bound.topic_index] = bound
        self._by_topic.setdefault(bound.topic, {}).setdefault(bound.otid, []).append(bound)

    def on_switched(self, old: FoundSource, new: FoundSource) -> None:
        self.on_found(new)
        self.on_gone(old, again=True)

    def on_changed(self, source: FoundSource) -> None:
        """The source is advertised with other attributes."""
        bound = self._bound.get(_key(source))
        if bound is not None:
            bound.tir, bound.is_from_dro = source.tir, source.from_dro
            bound.source_id, bound.source_ip = source.source_id, source.source_ip
            self._effects.append(Changed(bound))

    def on_refused(self, source: FoundSource) -> None:
        if (bound := self._bound.get(_key(source))) is not None:
            self._unbind(bound, ended=False)

    def on_gone(self, source: FoundSource, *, again: bool = False) -> None:
        """Wait for a quiet moment: a final advertisement comes by another socket than data that was sent before it.

        Where another session of the same source has been joined, stay on both for a while: the new one begins somewhere
        in the middle, and the old one, which a DRO feeds a little longer, may be behind it. What comes twice counts
        once. `again`: the time begins anew.
        """
        key = _key(source)
        bound = self._bound.get(key)
        if bound is None or (key in self._ending and not again):
            return
        self._go_on(key)
        ending = self._ending[key] = _Ending(self, bound, self.now_ns + ENDING_MAX_NS)
        self._calendar.set(ending, self.now_ns + ENDING_QUIET_NS)

    def _go_on(self, key: BoundKey) -> None:
        """Keep a source that is advertised again: it does not end."""
        if (ending := self._ending.pop(key, None)) is not None:
            self._calendar.set(ending, None)

    def look_at(self, ending: _Ending) -> None:
        """Leave the source if its session was quiet since the last look or the time is over; else look later."""
        bound, seen_ns = ending.bound, ending.bound.transport.active_ns
        if ending.seen_ns is not None and (ending.seen_ns == seen_ns or self.now_ns >= ending.deadline_ns):
            self._unbind(bound, ended=True)
            return
        ending.seen_ns = seen_ns
        is_alone = len(self._by_topic[bound.topic][bound.otid]) == 1
        # what lies in a socket by now is read before the next look
        self._calendar.set(ending, self.now_ns + ENDING_QUIET_NS if is_alone else ending.deadline_ns)

    # leaving

    def leave_unwanted(self, topic: bytes) -> None:
        """Leave the sources of a topic if nobody wants it any more."""
        if not self._is_wanted(topic):
            for bound in [b for sessions in self._by_topic.get(topic, {}).values() for b in sessions]:
                self._unbind(bound, ended=False)

    def leave_all_unwanted(self) -> None:
        """`leave_unwanted` for everything, in slices."""
        self._unchecked.extend(self._by_topic)
        self._calendar.run_in_slices(self._check_all(), self.now_ns)

    def _check_all(self) -> Iterator[None]:
        while self._unchecked:
            topic = self._unchecked.popleft()
            if not self._is_wanted(topic):
                self._resolver.leave_topic(topic)
                self.leave_unwanted(topic)
            yield

    def leave_in_slices(self, topics: Iterator[bytes]) -> None:
        """`leave_unwanted` for topics which the iterator takes from a pattern one by one."""
        self._calendar.run_in_slices(map(self.leave_unwanted, topics), self.now_ns)

    def on_session_ended(self, session: SessionView) -> None:
        """The session ended by itself: its sources too, in slices."""
        self._ended.extend(self._by_session.get(session, {}).values())
        self._calendar.run_in_slices(self._end_all(), self.now_ns)

    def _end_all(self) -> Iterator[None]:
        while self._ended:
            self._end(self._ended.popleft())
            yield

    def _unbind(self, bound: BoundSource[Any], *, ended: bool) -> None:
        key = _key_of(bound)
        del self._bound[key]
        self._go_on(key)
        by_otid = self._by_topic[bound.topic]
        sessions = by_otid[bound.otid]
        sessions.remove(bound)
        if not sessions:
            del by_otid[bound.otid]
            if not by_otid:
                del self._by_topic[bound.topic]
        others = self._by_session[bound.transport]
        del others[bound.topic_index]
        if not others:
            del self._by_session[bound.transport]
            self._effects.append(LeaveSession(bound.transport))
        self._effects.append(Unbound(bound, ended))

    def _end(self, bound: BoundSource[Any]) -> None:
        """End a source if it is bound still; tell the resolver, unless the end came from there."""
        key = _key_of(bound)
        if self._bound.get(key) is not bound:
            return
        is_known_gone = key in self._ending
        self._unbind(bound, ended=True)
        if not is_known_gone:
            self._resolver.on_source_ended(*key, self.now_ns)

    # DROs that died

    def on_dro_packet(self, ip: int, source_id: bytes | None = None) -> None:
        """A DRO said something on the TR channel that names no source."""
        self._dros.on_packet(ip, source_id, self.now_ns)

    def replace_dead(self, tirs: tuple[lbmr.Tir, ...], options: lbmr.PacketOptions | None, ip: int) -> None:
        """Leave a proxy's session when another session of the same source is advertised and the proxy's DRO is dead.

        Dead is: a DRO context that offers the source at the same cost and with the same hotlink index appeared at the
        same address and the old one was not heard since (the DRO was restarted), or the session has been silent for
        `SILENT_NS`. Where a session with idle sources says nothing (TCP), the DRO's host must be silent as well.
        """
        from_dro = options is not None and options.is_from_dro
        source_id = options.source_id if options is not None else None
        if from_dro:
            self._dros.on_packet(ip, source_id, self.now_ns)
        for tir in tirs:
            if tir.is_final or tir.otid is None or not (sessions := self._by_topic.get(tir.topic, {}).get(tir.otid)):
                continue
            for bound in list(sessions):
                if bound.address == tir.transport or not bound.is_from_dro or bound.source_id == source_id:
                    continue
                is_twin = from_dro and bound.source_ip == ip and _offer(bound.tir) == _offer(tir)
                is_restarted = is_twin and self._dros.has_succeeded(source_id, bound.source_id)
                if is_restarted or self._is_silent(bound):
                    self._effects.append(ProxyLeft(bound))
                    self._end(bound)

    def _is_silent(self, bound: BoundSource[Any]) -> bool:
        if self.now_ns - bound.transport.active_ns <= SILENT_NS:
            return False
        return bound.transport.shows_life or self._dros.is_host_silent(bound.source_ip, self.now_ns)

    # the state, see `dro.state`

    @property
    def records(self) -> list[BoundRecord]:
        return [_record(bound, self._ending.get(key)) for key, bound in self._bound.items()]

    @records.setter
    def records(self, records: list[BoundRecord]) -> None:
        self.clear()
        for record in records:
            bound = record.source()
            if _key_of(bound) in self._bound or bound.topic_index in self._by_session.get(bound.transport, {}):
                raise ValueError("two sources in one place")
            self._add(bound)
            if record.ending is not None:
                deadline_ns, seen_ns, due_ns = record.ending
                ending = self._ending[_key_of(bound)] = _Ending(self, bound, deadline_ns)
                ending.seen_ns = seen_ns
                self._calendar.set(ending, due_ns)

    @property
    def ended(self) -> list[int]:
        """Places in `records` of sources that are still to be left, as their session has ended."""
        places = {id(bound): place for place, bound in enumerate(self._bound.values())}
        return [places[id(bound)] for bound in self._ended if id(bound) in places]

    @ended.setter
    def ended(self, places: list[int]) -> None:
        sources = self.sources
        self._ended.extend(sources[place] for place in places)
        if places:
            self._calendar.resume(self._end_all())

    @property
    def unchecked(self) -> list[bytes]:
        return list(self._unchecked)

    @unchecked.setter
    def unchecked(self, topics: list[bytes]) -> None:
        self._unchecked.extend(topics)
        if topics:
            self._calendar.resume(self._check_all())


@dataclass(frozen=True, slots=True)
class BoundRecord:
    """A bound source as part of a state; `tir` as in a packet; `ending`: until when, last seen, next look."""

    topic: bytes
    otid: bytes
    topic_index: int
    transport: Outside
    tir: bytes
    is_from_dro: bool
    source_id: bytes | None
    source_ip: int
    ending: tuple[int, int | None, int | None] | None

    def source(self) -> BoundSource[Any]:
        """Make the source. Raises: ValueError."""
        try:
            body = lbmr.decode(self.tir).body
        except DecodeError as e:
            raise ValueError(str(e)) from e
        if not isinstance(body, lbmr.Queries) or len(body.tirs) != 1:
            raise ValueError("no advertisement")
        session = cast(SessionView, self.transport)
        return BoundSource(
            self.topic, self.otid, self.topic_index, session, body.tirs[0], self.is_from_dro,
            source_id=self.source_id, source_ip=self.source_ip,
        )  # fmt: skip


def _record(bound: BoundSource[Any], ending: _Ending | None) -> BoundRecord:
    return BoundRecord(
        bound.topic,
        bound.otid,
        bound.topic_index,
        cast(Outside, bound.transport),
        lbmr.encode(lbmr.Packet(lbmr.VERSION, None, lbmr.Queries(tirs=(bound.tir,)))),
        bound.is_from_dro,
        bound.source_id,
        bound.source_ip,
        None if ending is None else (ending.deadline_ns, ending.seen_ns, ending.due_ns),
    )


StateLayout(BoundSources, 1, now_ns=int, records=list[BoundRecord], ended=list[int], unchecked=list[bytes], _dros=Same)


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
