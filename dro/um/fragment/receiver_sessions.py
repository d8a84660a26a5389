"""Transport sessions that a context has joined, of every kind, by address.

Called by the context, which knows what sources are on a session; fragments go from the transports straight to the sink.

    join        by the kind of the address: opens or shares sockets, or connects
    leave       when nobody wants a source of the session any more
    ended       activity timeout or disconnect: `on_ended`, after the session has been taken out here

The counters of a session end with it, but those of a portal continue, so the final values of ended sessions are added
up here.
"""

from __future__ import annotations

from typing import Any

from dro.config.um.options import UmOptions
from dro.kept.store import RECEIVING
from dro.transport.kind import JoinedSessions, SessionHost
from dro.transport.registry import KINDS
from dro.transport.session import OnEnded, OnLost, ReceiverTransport, SessionCounts, SessionSink
from dro.wire.source_string import TransportAddress


class ReceiverSessions:
    """All joined sessions of one context."""

    def __init__(self, host: SessionHost, sink: SessionSink, on_ended: OnEnded) -> None:
        """`on_ended`: the session ended by itself and has been left."""
        self._options = host.options
        self._kept = host.kept
        self._on_left = on_ended
        self.kinds: dict[str, JoinedSessions[Any]] = {}
        """By name, as the option `transport` has it."""
        self._by_address: dict[type, JoinedSessions[Any]] = {}
        for name, kind in KINDS.items():
            self.kinds[name] = self._by_address[kind.address] = kind.receivers(host, sink, self._on_ended)
        self._sessions: dict[TransportAddress, ReceiverTransport] = {}
        self._past = SessionCounts()  # of sessions that were left
        self.on_lost: OnLost | None = None
        """Told of what sessions that are joined from now on give up."""

    def sessions(self) -> list[ReceiverTransport]:
        return list(self._sessions.values())

    def counts(self) -> SessionCounts:
        """Add up the counts of all sessions since the start."""
        of_sessions = sum((session.counts() for session in self._sessions.values()), self._past)
        return sum((kind.counts() for kind in self.kinds.values()), of_sessions)

    def join(
        self, address: TransportAddress, now_ns: int, options: UmOptions | None = None
    ) -> ReceiverTransport | None:
        """The session, joined now if it was not; None for a kind of transport that is not supported.

        Options are those of the first receiver of the session. Raises: ResourceError.
        """
        transport = self._sessions.get(address)
        if transport is None and (kind := self._by_address.get(type(address))) is not None:
            transport = self._sessions[address] = kind.join(address, options or self._options, now_ns)
            transport.on_lost = self.on_lost
        return transport

    def leave(self, transport: ReceiverTransport) -> None:
        """Nothing more is reported of it."""
        if self._sessions.get(transport.address) is transport:
            del self._sessions[transport.address]
            transport.leave()
            transport.sources.clear()  # each knows the other
            self._past += transport.counts()

    def _on_ended(self, transport: ReceiverTransport, now_ns: int) -> None:
        if self._sessions.get(transport.address) is transport:
            self.leave(transport)
            self._on_left(transport, now_ns)

    def forget_former(self) -> None:
        """Forget what the former process has left of sessions that are not joined by now."""
        kept = self._kept
        for name in kept.sockets.names():
            if name.startswith(RECEIVING):
                kept.sockets.drop(name)
        if kept.rows is not None:
            kept.rows.free_rest()

    def close(self) -> None:
        for transport in self.sessions():
            self.leave(transport)
        for kind in self.kinds.values():
            kind.close()
