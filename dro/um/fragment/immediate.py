"""Multicast immediate messages of one context: what it sends to the group of its TRD, and what it hears there.

Nothing is heard before `listen`, nor while `mim_incoming_address` is 0.0.0.0, as it is by default. A context does not
hear itself. A session to send on is opened with the first message and closed when none has been sent for
`mim_src_deletion_timeout`; messages that the rate limit holds back wait, up to `queue_max_bytes` of them.

Source: forwarding notes, section 12; client library notes, section 9. Guess: a message is one datagram.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from dro.clock import ms
from dro.config.um.sets import ImmediateOptions
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.proto.unicast.connections import OnOutcome, Outcome
from dro.timers import Timer
from dro.transport.kind import ImmediateListener, OnImmediate, SessionHost
from dro.transport.registry import immediate_kind
from dro.transport.session import ReceiverTransport, SenderTransport, SessionCounts
from dro.um.fragment.source_sessions import SourceSessions
from dro.wire.source_string import TransportAddress

QUEUE_MAX_BYTES: Final = 1_100_000
"""Room for a message of a million bytes in pieces."""
DELETION_LEAST_NS: Final = ms(10)
NO_GROUP: Final = "0.0.0.0"

limited = LimitedLogger(logging.getLogger(__name__)).event


class ImmediateMessages:
    """See the module text."""

    def __init__(self, host: SessionHost, pools: SourceSessions) -> None:
        self.queue_max_bytes = QUEUE_MAX_BYTES
        self.ignored: ImmediateMessages = self
        """The sessions of that context are not heard."""
        self._host = host
        self._loop = host.loop
        self._pools = pools
        self._options = o = ImmediateOptions.of(host.options)
        self._deletion_ns = max(o.deletion_ns, DELETION_LEAST_NS)
        self._sender: SenderTransport | None = None
        self._sent_ns = 0
        self._idle: Timer | None = None
        self._queue: deque[tuple[bytes, OnOutcome]] = deque()
        self._queued_bytes = 0
        self._receiver: ImmediateListener | None = None

    def listen(self, on_message: OnImmediate) -> None:
        """Hear the group from now on, if there is one; to be called once. Raises: ResourceError."""
        if self._options.incoming_address != NO_GROUP:
            is_own = lambda address: self.ignored.is_own(address)  # noqa: E731
            _, sessions = immediate_kind()
            self._receiver = sessions.listen(self._host, self._options, on_message, is_own)

    def is_own(self, address: TransportAddress) -> bool:
        return self._sender is not None and self._sender.address == address

    # sending

    @property
    def room_bytes(self) -> int:
        """Return how much more may wait."""
        return self.queue_max_bytes - self._queued_bytes

    def session(self) -> SenderTransport:
        """The one that is sent on, opened now if there is none. Raises: ResourceError."""
        sender = self._sender
        if sender is None:
            sender = self._sender = self._pools.open_immediate(self._options)
            sender.on_unblocked = self._drain
            self._sent_ns = self._loop.now_ns()
            self._watch()
        return sender

    def send(self, message: bytes, on_outcome: OnOutcome) -> None:
        """Send one LBMC message; `on_outcome` is called once with what has become of it."""
        try:
            sender = self.session()
        except ResourceError as e:
            limited(LogEvent.IMMEDIATE_NO_SESSION, extra={"error": str(e)})
            on_outcome(Outcome.FAILED)
            return
        if len(message) > sender.fragment_max_bytes:
            on_outcome(Outcome.TOO_LARGE)
        elif not self._queue and self._send_now(sender, message):
            on_outcome(Outcome.SENT)
        elif self._queued_bytes + len(message) > self.queue_max_bytes:
            on_outcome(Outcome.FULL)
        else:
            self._queue.append((message, on_outcome))
            self._queued_bytes += len(message)

    def _send_now(self, sender: SenderTransport, message: bytes) -> bool:
        now_ns = self._loop.now_ns()
        if not sender.send_message(message, now_ns, len(message)):
            return False
        self._sent_ns = now_ns
        return True

    def _drain(self) -> None:
        while self._queue and self._sender is not None:
            message, on_outcome = self._queue[0]
            if not self._send_now(self._sender, message):
                return
            self._queue.popleft()
            self._queued_bytes -= len(message)
            on_outcome(Outcome.SENT)

    def _watch(self) -> None:
        self._idle = self._loop.call_at(self._sent_ns + self._deletion_ns, self._on_idle)

    def _on_idle(self) -> None:
        now_ns = self._loop.now_ns()
        if self._queue:
            self._sent_ns = now_ns
        if now_ns < self._sent_ns + self._deletion_ns:
            self._watch()
        elif self._sender is not None:
            self._pools.release(self._sender, self._options.generation_ns)
            self._sender = None

    # the end

    def heard(self) -> Sequence[ReceiverTransport]:
        """Sessions of others that are heard now."""
        return () if self._receiver is None else self._receiver.sessions()

    def counts(self) -> SessionCounts:
        return SessionCounts() if self._receiver is None else self._receiver.counts()

    def close(self) -> None:
        """What waits is told as failed; the session is closed with those of the sources."""
        if self._idle is not None:
            self._idle.cancel()
        queue, self._queue = self._queue, deque()
        for _, on_outcome in queue:
            on_outcome(Outcome.FAILED)
        if self._receiver is not None:
            self._receiver.close()
