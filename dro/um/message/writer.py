"""The sending half of a session at message level: implicit batching, and the queue while the session is blocked.

One `SessionWriter` per transport session; all sources of a context on that session share it, so their messages may
share datagrams and keep their order. A message is accepted completely or not at all: when the session blocks in the
middle of one, the rest is queued here and the next message is refused. Source: transport notes, section 10; client
library notes, section 2.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dro.config.um.sets import BatchingOptions
from dro.loop import Loop
from dro.proto.delivery.batching import ImplicitBatch
from dro.timers import Timer
from dro.transport.session import SenderTransport


class Piece(NamedTuple):
    """One LBMC message and how much of it is user data."""

    message: bytes
    payload_bytes: int


class SessionWriter:
    """`on_ready` callbacks of refused senders are called once each when the session takes messages again."""

    def __init__(self, loop: Loop, sender: SenderTransport, batching: BatchingOptions) -> None:
        self.sender = sender
        self.users = 0
        self.handed = 0
        """Times that the session was given something."""
        self._loop = loop
        self._batch: ImplicitBatch[Piece] = ImplicitBatch(
            sender.fragment_max_bytes, batching.minimum_length_bytes, batching.interval_ns
        )
        self._waiting: deque[Sequence[Piece]] = deque()
        self._on_ready: list[Callable[[], object]] = []
        self._timer: Timer | None = None
        sender.on_unblocked = self._on_unblocked

    @property
    def is_blocked(self) -> bool:
        """Would a message be refused now?"""
        return bool(self._waiting) or self.sender.is_blocked

    @property
    def is_idle(self) -> bool:
        """Has everything been handed to the session?"""
        return not self._waiting and self._batch.is_empty

    def call_when_ready(self, callback: Callable[[], object]) -> None:
        self._on_ready.append(callback)

    def send(self, pieces: Sequence[Piece], now_ns: int, *, flush: bool) -> None:
        """One message in its fragments; only while not blocked."""
        batch = self._batch
        if flush and batch.is_empty:
            for piece in pieces:
                self._put((piece,), now_ns)
            return
        last = len(pieces) - 1
        for at, piece in enumerate(pieces):
            for datagram in batch.add(piece, len(piece.message), now_ns, flush=flush and at == last):
                self._put(datagram, now_ns)
        self._arm()

    def flush(self, now_ns: int) -> None:
        """Send what waits for more messages."""
        for datagram in self._batch.flush():
            self._put(datagram, now_ns)
        self._arm()

    def new_group(self) -> ImplicitBatch[Piece]:
        """Make room for messages that the application groups: as many as fit share a datagram."""
        room = self.sender.fragment_max_bytes
        return ImplicitBatch(room, room)

    def send_group(self, datagrams: Sequence[Sequence[Piece]], now_ns: int) -> None:
        """Send what is together already, after what waits."""
        if datagrams:
            self.flush(now_ns)
        for datagram in datagrams:
            self._put(datagram, now_ns)

    def _arm(self) -> None:
        deadline = self._batch.next_deadline()
        timer = self._timer
        if timer is not None and timer.is_pending:
            if deadline is not None and deadline >= timer.when_ns:
                return
            if deadline is None:
                return  # it finds nothing then: cheaper than to set one for each batch
            timer.cancel()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        now_ns = self._loop.now_ns()
        for datagram in self._batch.on_timer(now_ns):
            self._put(datagram, now_ns)
        self._arm()

    def _put(self, datagram: Sequence[Piece], now_ns: int) -> None:
        left = datagram if self._waiting else self._transmit(datagram, now_ns)
        if left:
            self._waiting.append(left)

    def _transmit(self, datagram: Sequence[Piece], now_ns: int) -> Sequence[Piece]:
        """Give one datagram to the session; returns what it did not take."""
        self.handed += 1
        sender = self.sender
        if len(datagram) == 1:
            message, payload = datagram[0]
            return () if sender.send_message(message, now_ns, payload) else datagram
        payload = sum([piece.payload_bytes for piece in datagram])
        return datagram[sender.send_packed([piece.message for piece in datagram], payload, now_ns) :]

    def _on_unblocked(self) -> None:
        now_ns = self._loop.now_ns()
        waiting = self._waiting
        while waiting and not self.sender.is_blocked:
            left = self._transmit(waiting.popleft(), now_ns)
            if left:
                waiting.appendleft(left)
                return
        if not self.is_blocked:
            callbacks, self._on_ready = self._on_ready, []
            for callback in callbacks:
                callback()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.clear()
        self._on_ready.clear()
