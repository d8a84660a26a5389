"""Connections to the request ports of others: what waits for them, and how long they live.

State: for each address the messages that wait, and whether the connection is being made, open, or rests after it could
not be made. The shell (`dro.um.fragment.unicast_sender`) owns the sockets and reports their events.

    state       event                     next        effects
    -           message                   CONNECTING  Connect
    CONNECTING  open                      OPEN        Write, when something waits
    CONNECTING  lost, time is over        RESTING     Close; what waits has failed
    OPEN        message, writable         OPEN        Write
    OPEN        idle for `idle_ns`        -           Close
    OPEN        lost, time is over        -           Close; what waits has failed
    RESTING     message                   RESTING     it has failed
    RESTING     `REST_NS` are over        -

Every message has exactly one outcome, which its sender is told. Source: UM Configuration Guide,
`response_tcp_deletion_timeout`, `response_session_maximum_buffer`; UM Concepts, "Unicast Immediate Messaging": a
connection is used in one direction. Guess: the rest after a failure; a connection that is not made within
`PROGRESS_NS`, or takes nothing of what waits for so long, has failed; a message that is larger than the buffer is taken
when nothing else waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Final

from dro.clock import ms, s

Target = tuple[int, int]
"""Address (u32) and port."""

CONNECTIONS_MAX: Final = 1024
REST_NS: Final = ms(500)
PROGRESS_NS: Final = s(10)
CHECK_NS: Final = s(1)
CHECK_LEAST_NS: Final = ms(10)
PIECES_MAX: Final = 64


class Outcome(Enum):
    """What has become of a message. That it was sent does not say that it arrived."""

    SENT = "sent"
    FULL = "full"  # too much waits for that address, or there are too many addresses
    FAILED = "failed"  # the connection could not be made, or broke
    DOWN = "down"  # there is no link to the other DRO
    TOO_LARGE = "too large"  # for the session; not of unicast messages


OnOutcome = Callable[[Outcome], object]


@dataclass(frozen=True, slots=True)
class ConnectTarget:
    target: Target


@dataclass(frozen=True, slots=True)
class CloseTarget:
    """Close the connection or the attempt; fine when there is none any more."""

    target: Target


@dataclass(frozen=True, slots=True)
class Write:
    """`pieces` has what the connection can be given."""

    target: Target


Effect = ConnectTarget | CloseTarget | Write


class ConnectionState(Enum):
    CONNECTING = "connecting"
    OPEN = "open"
    RESTING = "resting"


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`buffer_bytes`: what may wait for one address."""

    idle_ns: int
    buffer_bytes: int
    connections_max: int = CONNECTIONS_MAX


@dataclass(slots=True)
class _Connection:
    active_ns: int  # the last message or progress
    state: ConnectionState = ConnectionState.CONNECTING
    is_blocked: bool = False
    waiting: deque[tuple[bytes, OnOutcome]] = field(default_factory=deque)
    waiting_bytes: int = 0
    taken: int = 0  # bytes of the first message that are on their way


class Connections:
    """See the module text."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._connections: dict[Target, _Connection] = {}  # the one unused for longest first
        self._check_ns: int | None = None
        self._effects: list[Effect] = []

    def __len__(self) -> int:
        return len(self._connections)

    def send(self, target: Target, message: bytes, on_outcome: OnOutcome, now_ns: int) -> None:
        """Send it in order with the others for that address; `on_outcome` is called once, from here or later."""
        connection = self._connections.get(target)
        if connection is None:
            if not self._has_room():
                on_outcome(Outcome.FULL)
                return
            connection = self._connections[target] = _Connection(now_ns)
            self._effects.append(ConnectTarget(target))
            if self._check_ns is None:
                self._check_ns = now_ns + self._check_interval()
        if connection.state is ConnectionState.RESTING:
            on_outcome(Outcome.FAILED)
            return
        if self.would_refuse(target, len(message)):
            on_outcome(Outcome.FULL)
            return
        if not connection.waiting:
            self._used(target, connection, now_ns)
            if connection.state is ConnectionState.OPEN and not connection.is_blocked:
                self._effects.append(Write(target))
        connection.waiting.append((message, on_outcome))
        connection.waiting_bytes += len(message)

    def would_refuse(self, target: Target, size: int) -> bool:
        """Whether too much waits for an address to take a message of this size now."""
        connection = self._connections.get(target)
        if connection is None or not connection.waiting:
            return False
        return connection.waiting_bytes + size > self._limits.buffer_bytes

    def _has_room(self) -> bool:
        if len(self._connections) < self._limits.connections_max:
            return True
        for target, connection in self._connections.items():
            if not connection.waiting:
                self._end(target, connection)
                return True
        return False

    def _used(self, target: Target, connection: _Connection, now_ns: int) -> None:
        connection.active_ns = now_ns
        self._connections[target] = self._connections.pop(target)

    # what the shell reports

    def on_open(self, target: Target, now_ns: int) -> None:
        connection = self._connections.get(target)
        if connection is not None and connection.state is ConnectionState.CONNECTING:
            connection.state = ConnectionState.OPEN
            connection.active_ns = now_ns
            if connection.waiting:
                self._effects.append(Write(target))

    def on_writable(self, target: Target) -> None:
        """Write on after `on_blocked`: it takes more now."""
        connection = self._connections.get(target)
        if connection is not None and connection.is_blocked:
            connection.is_blocked = False
            if connection.waiting:
                self._effects.append(Write(target))

    def on_blocked(self, target: Target) -> None:
        if (connection := self._connections.get(target)) is not None:
            connection.is_blocked = True

    def on_lost(self, target: Target, now_ns: int) -> None:
        """The connection was refused or has ended."""
        connection = self._connections.get(target)
        if connection is not None and connection.state is not ConnectionState.RESTING:
            self._fail(target, connection, now_ns)

    def pieces(self, target: Target) -> list[bytes | memoryview]:
        """Return what to write now, a bounded part of what waits; empty when there is nothing."""
        connection = self._connections.get(target)
        if connection is None or connection.state is not ConnectionState.OPEN or connection.is_blocked:
            return []
        pieces: list[bytes | memoryview] = [message for message, _ in islice(connection.waiting, PIECES_MAX)]
        if connection.taken:
            pieces[0] = memoryview(pieces[0])[connection.taken :]
        return pieces

    def on_taken(self, target: Target, count: int, now_ns: int) -> None:
        """The connection has taken so many bytes of `pieces`."""
        connection = self._connections[target]
        self._used(target, connection, now_ns)
        connection.taken += count
        told: list[OnOutcome] = []
        while connection.waiting and connection.taken >= len(connection.waiting[0][0]):
            message, on_outcome = connection.waiting.popleft()
            connection.taken -= len(message)
            connection.waiting_bytes -= len(message)
            told.append(on_outcome)
        for on_outcome in told:
            on_outcome(Outcome.SENT)

    def close(self) -> None:
        """Close all; what waits has failed."""
        while self._connections:
            self._end(*next(iter(self._connections.items())))
        self._check_ns = None

    # time

    def next_deadline(self) -> int | None:
        return self._check_ns

    def on_timer(self, now_ns: int) -> None:
        if self._check_ns is None or now_ns < self._check_ns:
            return
        for target, connection in list(self._connections.items()):
            silent_ns = now_ns - connection.active_ns
            if connection.state is ConnectionState.RESTING:
                if silent_ns >= REST_NS:
                    del self._connections[target]
            elif connection.waiting or connection.state is ConnectionState.CONNECTING:
                if silent_ns >= PROGRESS_NS:
                    self._fail(target, connection, now_ns)
            elif silent_ns >= self._limits.idle_ns:
                self._end(target, connection)
        self._check_ns = now_ns + self._check_interval() if self._connections else None

    def _check_interval(self) -> int:
        return min(CHECK_NS, max(self._limits.idle_ns, CHECK_LEAST_NS))

    def _fail(self, target: Target, connection: _Connection, now_ns: int) -> None:
        rests = connection.state is ConnectionState.CONNECTING
        self._end(target, connection, _Connection(now_ns, ConnectionState.RESTING) if rests else None)

    def _end(self, target: Target, connection: _Connection, successor: _Connection | None = None) -> None:
        del self._connections[target]
        if successor is not None:
            self._connections[target] = successor
        if connection.state is not ConnectionState.RESTING:
            self._effects.append(CloseTarget(target))
        waiting, connection.waiting = connection.waiting, deque()
        for _, on_outcome in waiting:  # who may send again from within
            on_outcome(Outcome.FAILED)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects
