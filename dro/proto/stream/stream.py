"""The policy of one originating source (topic and OTID) as its receivers see it: a stream.

Its delivery controller is kept when the source moves to another transport session, so nothing is delivered twice or out
of order. Called by the message level of a context; never by a DRO, which forwards in arrival order.

    bound            stream made, or taken up again                          `SourceChange`
    first activity   the session is the live one                             `SessionBegan`
    fragments        through the controller; then `on_run`, which gives up what a takeover or all planes have passed
    unbound, ended   the stream waits a while for another session            `SessionEnded`, `SourceChange`
    unbound, else    the stream is dropped: nobody listens any more          `SourceChange`

With hotlinks several sessions carry a stream side by side (`planes`): it has the source string of its origin, and a
`SourceChange` for the first session and the last one only.

Source: client library notes, sections 1, 3 and 4. Guess: a stream without a session is kept for `PARK_NS`; what its
controller holds is then dropped without a report, as UM does at the end of a session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from dro.clock import s
from dro.errors import DecodeError
from dro.proto.context.sources import BoundSource
from dro.proto.delivery.config import DeliveryConfig
from dro.proto.delivery.order import DeliveryController
from dro.proto.stream.asks import NOTHING, RecoveryConfig
from dro.proto.stream.planes import Planes
from dro.proto.stream.recovery import Recovery
from dro.state import Outside, Same, StateLayout
from dro.timers import Calendar, Due
from dro.wire import otid as otid_codec
from dro.wire.source_string import IpcAddress, format_source

PARK_NS: Final = s(60)
PARKED_MAX: Final = 1024

Carrier: TypeAlias = "BoundSource[SourceStream]"
"""A source on one session that carries a stream."""


@dataclass(frozen=True, slots=True)
class SourceChange:
    """A source was found and joined, or is gone."""

    source: str
    added: bool


@dataclass(frozen=True, slots=True)
class SessionBegan:
    """First activity on a session (BOS). `proxy_source`: its source string, if it differs with hotlinks."""

    source: str
    proxy_source: str


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """A session ended (EOS), perhaps without having begun."""

    source: str
    proxy_source: str


StreamEvent: TypeAlias = SourceChange | SessionBegan | SessionEnded


@dataclass(slots=True, eq=False)
class _Takeover:
    """A session that has begun to carry a source which others carried before: where, once that is known."""

    session: Carrier
    first_sqn: int | None = None
    mark: int | None = None  # the place of the session that was reached then


@dataclass(slots=True, eq=False)
class SourceStream(Due):
    """One originating source of one topic. What is given up or delivered at last is in the events of the controller."""

    topic: bytes
    otid: bytes
    controller: DeliveryController
    recovery: Recovery
    planes: Planes | None
    source: str
    due: list[SourceStream]  # those that the calendar has found due
    sessions: dict[Carrier, bool] = field(default_factory=dict)  # those that carry it: whether there was activity
    live: Carrier | None = None  # the one whose source string is current
    takeover: _Takeover | None = None
    events: list[StreamEvent] = field(default_factory=list)

    def on_due(self) -> None:
        self.due.append(self)

    def take_events(self) -> list[StreamEvent]:
        """Return what happened to the sessions since the last call, in order; the controller's events come after."""
        events, self.events = self.events, []
        return events

    def names(self, session: Carrier) -> tuple[str, str]:
        """Return the source string, and with hotlinks that of the session, if it is another."""
        text = _string(session)
        return (text, "") if self.planes is None else (self.source, text if text != self.source else "")

    def known(self) -> list[StreamEvent]:
        """List the events that tell a newcomer of the sessions."""
        events: list[StreamEvent] = []
        for session, has_begun in self.sessions.items():
            source, proxy_source = self.names(session)
            if self.planes is None or not events:
                events.append(SourceChange(source, added=True))
            if has_begun:
                events.append(SessionBegan(source, proxy_source))
        return events

    def on_bound(self, session: Carrier) -> None:
        self.sessions[session] = False
        session.user = self
        self.source = self.source or _string(session)
        if self.planes is None or len(self.sessions) == 1:
            self.events.append(SourceChange(self.names(session)[0], added=True))

    def on_began(self, session: Carrier) -> None:
        """Make the session, which is active, the live one from now on."""
        if session not in self.sessions:
            return
        self.live = session
        if self.planes is None:
            self.source = _string(session)
        if not self.sessions[session]:
            self.sessions[session] = True
            if self.controller.expected is not None and self.planes is None:
                self.takeover = _Takeover(session)
            self.events.append(SessionBegan(*self.names(session)))

    def on_unbound(self, session: Carrier, *, has_ended: bool) -> None:
        del self.sessions[session]
        session.user = None
        if self.live is session:
            self.live = None
        names = self.names(session)
        if has_ended:
            self.events.append(SessionEnded(*names))
        if self.planes is None or not self.sessions:
            self.events.append(SourceChange(names[0], added=False))
        if self.planes is not None:
            self.planes.forget(session)
            self._settle_planes(self.planes)
        if self.takeover is not None and self.takeover.session is session:
            self.takeover = None
        self._finish_takeover()

    def on_run(self, session: Carrier, first_sqn: int, count: int) -> None:
        """Follow fragments that the controller was given; not needed without `takeover` and `planes`."""
        takeover = self.takeover
        if takeover is not None:
            if takeover.first_sqn is None and self.live is takeover.session:
                takeover.first_sqn, takeover.mark = first_sqn, session.transport.mark()
            self._finish_takeover()
        if self.planes is not None:
            self.planes.on_run(session, first_sqn, count)
            self._settle_planes(self.planes)

    def on_tsni(self, session: Carrier, sqn: int, now_ns: int) -> None:
        """Note that the source says on this session that `sqn` is its newest topic sqn."""
        self.recovery.on_tsni(sqn, now_ns)
        if self.planes is not None:
            self.planes.on_run(session, sqn, 1)
            self._settle_planes(self.planes)

    def next_deadline(self) -> int | None:
        due = (self.controller.next_deadline(), self.recovery.next_deadline())
        return min((one for one in due if one is not None), default=None)

    def _settle_planes(self, planes: Planes) -> None:
        """Give up what no session can supply any more."""
        if self.controller.is_waiting and (sqn := planes.passed(self.sessions)) is not None:
            self.controller.on_replaced(sqn)

    def _finish_takeover(self) -> None:
        """Give up what nobody can repair: the other sessions are gone, and the new one has all since it began."""
        takeover = self.takeover
        if takeover is None or takeover.first_sqn is None or len(self.sessions) > 1:
            return
        if takeover.session.transport.is_whole(takeover.mark):
            self.takeover = None
            self.controller.on_replaced(takeover.first_sqn)


class SourceStreams:
    """All streams of one context; of those that wait for another session, the oldest leaves when they are too many."""

    def __init__(self) -> None:
        self._by_topic: dict[bytes, dict[bytes, SourceStream]] = {}  # and by OTID
        self._parked: dict[SourceStream, int] = {}  # without a session, oldest first: until when
        self._calendar = Calendar()
        self._due: list[SourceStream] = []
        self.on_dropped: Callable[[SourceStream], object] = lambda _: None

    def of_topic(self, topic: bytes) -> list[SourceStream]:
        return list(self._by_topic.get(topic, {}).values())

    def all(self) -> list[SourceStream]:
        return [stream for streams in self._by_topic.values() for stream in streams.values()]

    def on_bound(
        self,
        session: Carrier,
        options: DeliveryConfig,
        now_ns: int,
        *,
        use_hotlink: bool,
        recovery: RecoveryConfig = NOTHING,
    ) -> SourceStream:
        """Find the stream of a source that was joined, or make it with these options.

        `options`: as for a session that does not tell how long it tries to repair.
        """
        options = replace(options, recovers=recovery.otr is not None)
        streams = self._by_topic.setdefault(session.topic, {})
        stream = streams.get(session.otid)
        if stream is None:
            controller, planes, origin = _new_stream(session, options, use_hotlink=use_hotlink)
            asker = Recovery(controller, recovery, now_ns)
            stream = SourceStream(session.topic, session.otid, controller, asker, planes, origin, self._due)
            streams[session.otid] = stream
        self._parked.pop(stream, None)
        stream.on_bound(session)
        return stream

    def on_unbound(self, session: Carrier, *, ended: bool, now_ns: int) -> SourceStream | None:
        """Take a session from its stream, which waits for another one if this one has ended."""
        stream = session.user
        if stream is None:
            return None
        has_ended = ended and session.transport.was_connected
        stream.on_unbound(session, has_ended=has_ended)
        if not stream.sessions:
            if has_ended:
                self._park(stream, now_ns)
            else:
                self._drop(stream)
        return stream

    def forget_parked(self, topic: bytes) -> None:
        """Drop the streams of a topic that have no session: who listens later starts anew."""
        for stream in self.of_topic(topic):
            if stream in self._parked:
                self._drop(stream)

    def set_due(self, stream: SourceStream) -> None:
        """Note when something is to be given up or asked for; after each input while something is missing."""
        self._calendar.set(stream, stream.next_deadline())

    def next_deadline(self) -> int | None:
        deadlines = (self._calendar.next_deadline(), next(iter(self._parked.values()), None))
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def on_timer(self, now_ns: int) -> list[SourceStream]:
        """Give up what is due, and forget the streams that stayed away; returns those whose controller was told."""
        while self._parked and next(iter(self._parked.values())) <= now_ns:
            self._drop(next(iter(self._parked)))
        self._calendar.run_due(now_ns)
        due = self._due.copy()
        self._due.clear()
        for stream in due:
            stream.controller.on_timer(now_ns)
            stream.recovery.on_timer(now_ns)
        return due

    def close(self) -> None:
        """Forget everything, without an event."""
        for stream in self.all():
            for session in stream.sessions:
                session.user = None  # each knows the other
            self._drop(stream)

    def _park(self, stream: SourceStream, now_ns: int) -> None:
        """Keep a stream without a session for a while."""
        if len(self._parked) >= PARKED_MAX:
            self._drop(next(iter(self._parked)))
        self._parked[stream] = now_ns + PARK_NS

    def _drop(self, stream: SourceStream) -> None:
        """Forget a stream; what its controller holds is not delivered."""
        stream.controller.on_end()
        stream.recovery.close()
        self.on_dropped(stream)
        self._calendar.set(stream, None)
        self._parked.pop(stream, None)
        streams = self._by_topic[stream.topic]
        del streams[stream.otid]
        if not streams:
            del self._by_topic[stream.topic]


def _string(session: Carrier) -> str:
    return format_source(session.address, session.topic_index)


def _new_stream(
    first: Carrier, options: DeliveryConfig, *, use_hotlink: bool
) -> tuple[DeliveryController, Planes | None, str]:
    """Make controller, planes and source string by what is known of the first session."""
    cost = first.tir.options.cost if first.tir.options is not None else None
    if isinstance(first.address, IpcAddress):
        options = replace(options, dro_loss_recovery_timeout_ns=options.ipc_dro_loss_recovery_timeout_ns)
    config = replace(
        options,
        generation_interval_ns=first.transport.generation_ns or options.generation_interval_ns,
        immediate=first.transport.is_in_order,
        from_dro=cost is not None and cost.hop_count > 0,
    )
    if not use_hotlink:
        return DeliveryController(config), None, ""
    try:
        origin = str(otid_codec.decode(first.otid))
    except DecodeError:
        origin = _string(first)
    planes = Planes(config, options.generation_interval_ns)
    return DeliveryController(planes.config), planes, origin


StateLayout(_Takeover, 1, session=Outside, first_sqn=int | None, mark=int | None)
StateLayout(
    SourceStream,
    2,
    controller=Same,
    recovery=Same,
    source=str,
    sessions=dict[Outside, bool],
    live=Outside | None,
    takeover=_Takeover | None,
    events=list[StreamEvent],
)
