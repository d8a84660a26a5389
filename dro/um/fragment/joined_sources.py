"""Sources of other contexts as a context has them: their sessions are joined, and their fragments go to the sink."""

from __future__ import annotations

from collections.abc import Callable

from dro.config.um.options import UmOptions
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.proto.context import effects as do
from dro.proto.context.sources import SessionView
from dro.proto.resolver.events import FoundSource
from dro.transport.kind import SessionHost
from dro.transport.session import FragmentSink, ReceiverTransport
from dro.um.fragment.receiver_sessions import ReceiverSessions
from dro.um.fragment.resolution import TopicResolution, source_field
from dro.wire.source_string import SmxAddress


class JoinedSources:
    """Carries out what the engine asks for about sources that were found."""

    def __init__(
        self,
        host: SessionHost,
        resolution: TopicResolution,
        sink: FragmentSink,
        options_of: Callable[[bytes], UmOptions | None],
    ) -> None:
        """`options_of` a topic: those of its first receiver; None for those of the context."""
        self._loop: Loop = host.loop
        self._resolution = resolution
        self._sink = sink
        self._options_of = options_of
        self.sessions = ReceiverSessions(host, sink, self._on_session_ended)

    def perform(self, effect: do.JoinSession | do.LeaveSession | do.Bound | do.Unbound) -> None:
        match effect:
            case do.JoinSession(source=source):
                self._join(source)
            case do.LeaveSession(session=session):
                self.sessions.leave(_transport(session))
            case do.Bound(source=bound):
                _transport(bound.transport).add_source(bound)
                self._sink.on_bound(bound, self._loop.now_ns())
            case do.Unbound(source=bound, ended=ended):
                _transport(bound.transport).remove_source(bound)
                self._sink.on_unbound(bound, ended=ended, now_ns=self._loop.now_ns())

    def _join(self, source: FoundSource) -> None:
        now_ns, engine, faults = self._loop.now_ns(), self._resolution.engine, self._resolution.faults
        try:
            session = self.sessions.join(source.address, now_ns, self._options_of(source.topic))
        except ResourceError as e:
            faults.event(LogEvent.SESSION_NOT_JOINED, extra=source_field(source) | {"error": str(e)})
            engine.on_not_joined(source, now_ns)
            return
        if session is None:
            engine.stats.sessions_unsupported += 1
            faults.event(LogEvent.SOURCE_TRANSPORT, extra=source_field(source) | _reason(source))
        else:
            engine.on_joined(source, session)

    def _on_session_ended(self, session: ReceiverTransport, now_ns: int) -> None:
        self._resolution.engine.on_session_ended(session, now_ns)
        self._resolution.pump()


def _reason(source: FoundSource) -> dict[str, str]:
    """Say why sessions of that kind are not joined, where there is more to say."""
    if not isinstance(source.address, SmxAddress):
        return {}
    return {"reason": "the layout of its memory is not public, and none of our applications sends by it"}


def _transport(session: SessionView) -> ReceiverTransport:
    """Return the session as what it is in a process."""
    assert isinstance(session, ReceiverTransport)
    return session
