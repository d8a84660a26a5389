"""Transport sessions of the sources of one context, of every kind: how many sources each has, and which of them linger.

Which session a new source gets is decided by the kind that the source's options name.
"""

from __future__ import annotations

from typing import Any

from dro.config.um.options import UmOptions
from dro.config.um.sets import ImmediateOptions, source_transport
from dro.errors import ResourceError
from dro.transport.kept_senders import Runs
from dro.transport.kind import SenderEvents, SenderPool, SessionHost
from dro.transport.registry import KINDS, immediate_kind
from dro.transport.session import OnClient, SenderTransport, SessionCounts


class SourceSessions:
    """Opens, shares and closes the sender sessions of one context."""

    def __init__(self, host: SessionHost, *, on_client: OnClient, sm_before_data: bool) -> None:
        events = SenderEvents(on_client, self._on_closed)
        self.filters = host.filters
        self._loop = host.loop
        self._pools = {name: kind.senders(host, events, sm_before_data) for name, kind in KINDS.items()}
        self._users: dict[SenderTransport, tuple[SenderPool[Any], int]] = {}
        self._lingering: set[SenderTransport] = set()
        self._past = SessionCounts()  # of sessions that have ended

    def senders(self) -> list[SenderTransport]:
        """Sessions that have sources."""
        return list(self._users)

    def sessions(self) -> list[SenderTransport]:
        """List all sessions, also those that only repair what they had sent."""
        return [*self._users, *self._lingering]

    def acquire(self, options: UmOptions, former: int = 0) -> SenderTransport:
        """The session for a new source with these options. Raises: ResourceError naming the option to change.

        `former`: transport index of the session that it had in the former incarnation of this process.
        """
        transport = source_transport(options)
        pool = self._pools.get(transport)
        if pool is None:
            usable = " or ".join(sorted(self._pools, reverse=True))
            raise ResourceError(f"transport {transport} is not supported yet", remedy=f"use {usable} as transport")
        sender = pool.acquire(options, former)
        _, users = self._users.get(sender, (pool, 0))
        self._users[sender] = (pool, users + 1)
        return sender

    def sent_before(self, sender: SenderTransport, topic_index: int) -> Runs:
        """Return what the former incarnation sent on that topic index of a session that goes on."""
        pool, _ = self._users[sender]
        before = pool.sent_before.get(sender.transport_index)
        return [] if before is None else before.of(topic_index)

    def forget_former(self) -> None:
        """Forget what the former incarnation has left and no source has asked for."""
        for pool in self._pools.values():
            pool.forget_waiting()

    def open_immediate(self, o: ImmediateOptions) -> SenderTransport:
        """A session for multicast immediate messages, to be released like those of sources. Raises: ResourceError."""
        name, sessions = immediate_kind()
        pool = self._pools[name]
        sender = sessions.open(pool, o)
        self._users[sender] = (pool, 1)
        return sender

    def release(self, sender: SenderTransport, linger_ns: int) -> None:
        """A source left its session; with the last one the session ends, after lingering for late repairs."""
        pool, users = self._users.get(sender, (None, 0))
        if pool is None:
            return
        if users > 1:
            self._users[sender] = (pool, users - 1)
            return
        del self._users[sender]
        pool.forget(sender)
        self._lingering.add(sender)
        sender.close(linger_ns, self._loop.now_ns())

    def close(self) -> None:
        """End every session at once."""
        for sender, (pool, _) in self._users.items():
            pool.forget(sender)
        for sender in self.sessions():
            sender.close(0, self._loop.now_ns())
        self._users.clear()

    def counts(self) -> SessionCounts:
        """Add up the counts of all sessions since the start."""
        return sum((sender.counts() for sender in self.sessions()), self._past)

    def _on_closed(self, sender: SenderTransport) -> None:
        self._lingering.discard(sender)
        self._past += sender.counts()
