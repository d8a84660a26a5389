"""LBT-RM for multicast immediate messages: sessions that nobody advertises, on a group that all contexts share.

A sender has a session of its own kind of options. A receiver joins every session of the group as soon as data of it
comes, and forgets it when it has been silent for the activity timeout. How many sessions there are is bounded, and so
is how many begin in a second. Source: DRO guide 4.2.5; UM Concepts, "Multicast Immediate Messaging"; forwarding notes,
section 12. Guess: the limits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from dro.config.um.sets import ImmediateOptions, LbtrmReceiverOptions
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.proto.new_entries import NewEntryLimiter, NewEntryRate
from dro.proto.repair.loss import LossConfig
from dro.proto.repair.receiver import ReceiverSession
from dro.transport import sockets
from dro.transport.datagrams.receiver import NAK_OVERHEAD_BYTES, DatagramReceiver
from dro.transport.kind import OnImmediate, SessionHost
from dro.transport.lbtrm.receiver import LbtrmGroup
from dro.transport.runs import KIND_DATA, RunTable
from dro.transport.session import ReceiverTransport, SessionCounts
from dro.wire.source_string import LbtrmAddress, TransportAddress

SESSIONS_MAX: Final = 1024
NEW_SESSIONS: Final = NewEntryRate(in_all=200, of_one=100)

limited = LimitedLogger(logging.getLogger(__name__)).event


class ImmediateReceiver:
    """All sessions of one group; implements `SessionSink` and `ImmediateListener`."""

    def __init__(
        self,
        host: SessionHost,
        o: ImmediateOptions,
        on_message: OnImmediate,
        is_own: Callable[[TransportAddress], bool],
    ) -> None:
        """`is_own`: a session that is not listened to. Raises: ResourceError."""
        rm = LbtrmReceiverOptions.of(host.options)
        most = max(1, (rm.datagram_max_bytes - NAK_OVERHEAD_BYTES) // 4)
        self._config = o.fill(LossConfig, max_naks_per_packet=most)
        self._host = host
        self._on_message = on_message
        self._is_own = is_own
        self._newcomers = NewEntryLimiter(NEW_SESSIONS)
        self._sessions: dict[TransportAddress, DatagramReceiver] = {}
        self._past = SessionCounts()  # of sessions that have ended
        self._nak_socket = host.sockets.nak_socket(rm.interface)
        try:
            self._group = LbtrmGroup(
                host,
                sockets.ip_number(o.incoming_address),
                o.incoming_port,
                rm.interface,
                buffer_bytes=rm.receive_buffer_bytes,
                nak_socket=self._nak_socket,
                on_empty=lambda _: None,
                on_stranger=self._on_stranger,
            )
        except ResourceError:
            self._nak_socket.close()
            raise

    def __len__(self) -> int:
        return len(self._sessions)

    def _on_stranger(self, address: LbtrmAddress) -> None:
        if self._is_own(address):
            return
        now_ns = self._host.loop.now_ns()
        if len(self._sessions) >= SESSIONS_MAX or not self._newcomers.admit(address.ip, now_ns):
            limited(LogEvent.IMMEDIATE_SENDERS, extra={"from": sockets.ip_text(address.ip), "limit": SESSIONS_MAX})
            return
        core = ReceiverSession(self._config, self._host.rng.random, now_ns)
        self._sessions[address] = self._group.join(address, core, self, self._on_ended)

    def _on_ended(self, session: ReceiverTransport, now_ns: int) -> None:
        del self._sessions[session.address]
        self._past += session.counts()

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        """Nobody is told: immediate messages have no beginning and no end."""

    def on_fragments(self, view: memoryview, parts: Sequence[tuple[ReceiverTransport, RunTable]], now_ns: int) -> None:
        for transport, table in parts:
            for run in table:
                if run.kind == KIND_DATA:
                    for at in range(run.offset, run.offset + run.fragments * run.stride, run.stride):
                        self._on_message(bytes(view[at : at + run.length]), transport.address)

    def sessions(self) -> Sequence[ReceiverTransport]:
        return list(self._sessions.values())

    def counts(self) -> SessionCounts:
        return sum((session.counts() for session in self._sessions.values()), self._past + self._group.counts())

    def close(self) -> None:
        self._sessions.clear()
        self._group.close()
        self._nak_socket.close()
