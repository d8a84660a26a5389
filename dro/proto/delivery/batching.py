"""Implicit batching: small LBMC messages are collected and share a datagram.

State: the pending batch. One per transport session of a source context; messages of several topics may share a batch.
Immediate messages and responses are never batched.

    before adding a message that does not fit   flush what waits
    after adding, length >= minimum, or flush   flush
    otherwise                                   flush at the interval after the first message of the batch

Lengths are those of LBMC messages, headers included; room is the datagram without the transport's header.
Source: UM documentation, "implicit batching". Guess: the minimum length is reached, not exceeded (two texts differ).
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from dro.clock import NS_PER_MS

INTERVAL_MIN_NS: Final = 3 * NS_PER_MS  # the least that the option takes

T = TypeVar("T")


class ImplicitBatch(Generic[T]):
    """Collects items of any kind by their length; each method returns the datagrams that are due, in order."""

    __slots__ = ("_deadline_ns", "_interval_ns", "_items", "_length", "_minimum", "_room")

    def __init__(self, room_bytes: int, minimum_bytes: int = 2048, interval_ns: int = 200 * NS_PER_MS) -> None:
        self._room = room_bytes
        self._minimum = minimum_bytes
        self._interval_ns = max(interval_ns, INTERVAL_MIN_NS)
        self._items: list[T] = []
        self._length = 0
        self._deadline_ns = 0

    @property
    def is_empty(self) -> bool:
        return not self._items

    def add(self, item: T, length: int, now_ns: int, *, flush: bool = False) -> list[list[T]]:
        """Add one message of `length` bytes. Messages that wait always leave before it or with it."""
        due: list[list[T]] = []
        if self._items and self._length + length > self._room:
            due.append(self._take())
        if not self._items:
            self._deadline_ns = now_ns + self._interval_ns
        self._items.append(item)
        self._length += length
        if flush or self._length >= self._minimum:
            due.append(self._take())
        return due

    def flush(self) -> list[list[T]]:
        """Return what waits, now."""
        return [self._take()] if self._items else []

    def next_deadline(self) -> int | None:
        return self._deadline_ns if self._items else None

    def on_timer(self, now_ns: int) -> list[list[T]]:
        return self.flush() if self._items and self._deadline_ns <= now_ns else []

    def _take(self) -> list[T]:
        items, self._items, self._length = self._items, [], 0
        return items
