"""Fragments of one source and topic joined into messages: in topic order, or in the order in which they arrive.

State: the fragments of incomplete messages. Called by `dro.proto.delivery.order` alone. A fragment is identified by its
FRAG block `(first_sqn, offset, total)`. The total length is untrusted, so nothing is allocated by it: fragments are
kept as they arrive and joined once their sum equals it.

Source: UM documentation as collected for "fragmentation, reassembly"; a message whose fragment is lost is never
delivered. Guess: fragments of a message have consecutive sqns in the order of their offsets, as sources send them;
anything else is malformed and the message is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from dro.sqn import MASK, add, ahead
from dro.state import StateLayout
from dro.wire.lbmc.headers import MessageHeaders

Payload: TypeAlias = bytes | memoryview
Frag: TypeAlias = tuple[int, int, int]  # first sqn, offset in bytes, total length in bytes

PIECE_BYTES: Final = 256  # about what a piece takes in memory, beside its data
PARTIALS_MAX: Final = 1024  # messages under way at once for one source and topic in arrival order


@dataclass(frozen=True, slots=True)
class Delivered:
    """A whole message, or one fragment of it where fragments are asked for."""

    sqn: int  # of the last fragment
    first_sqn: int
    payload: Payload
    flags: int  # of the caller, ORed over the fragments
    fragment: Frag | None = None
    headers: MessageHeaders | None = None  # of the first fragment


class Refusal(Enum):
    """Why a fragment brought no message forward."""

    MALFORMED = "fragment outside its message, or out of step with the others"
    TOO_LONG = "message longer than the receiver takes"
    ORPHAN = "fragment of a message of which a part is lost"


Outcome: TypeAlias = Delivered | Refusal | None


def whole(
    sqn: int, frag: Frag | None, payload: Payload, flags: int, headers: MessageHeaders | None
) -> Delivered | None:
    """The message if this one fragment is all of it."""
    if frag is None or (frag[1] == 0 and frag[2] == len(payload) and frag[0] == sqn):
        return Delivered(sqn, sqn, payload, flags, None, headers)
    return None


def is_sound(sqn: int, frag: Frag, length: int) -> bool:
    """Whether a FRAG block can be true at all: inside its message, and the first sqn at offset 0 and only there."""
    first, offset, total = frag
    return length > 0 and offset + length <= total and (offset == 0) == (first == sqn) and ahead(sqn, first) >= 0


class InOrderReassembly:
    """At most one message under way; every fragment is given in topic order, every loss in between is told."""

    __slots__ = ("_first", "_flags", "_have", "_headers", "_max", "_next", "_pieces", "_refused", "_total")

    def __init__(self, message_max_bytes: int) -> None:
        self._max = message_max_bytes
        self._pieces: list[bytes] = []
        self._first = self._next = self._total = self._have = self._flags = 0
        self._headers: MessageHeaders | None = None
        self._refused: int | None = None  # first sqn of the message last refused: one refusal each

    @property
    def is_idle(self) -> bool:
        """Whether nothing is under way, so that a whole message changes nothing here."""
        return not self._pieces

    @property
    def held_bytes(self) -> int:
        return self._have

    def take(
        self, sqn: int, frag: Frag | None, payload: Payload, flags: int, headers: MessageHeaders | None = None
    ) -> Outcome:
        """The next fragment in order.

        Outcome: the message that it completes, None if more is needed, a Refusal if its message cannot be had.
        """
        message = whole(sqn, frag, payload, flags, headers)
        if message is not None or frag is None:
            self.drop()
            return message
        first, offset, total = frag
        if not is_sound(sqn, frag, len(payload)):
            return self._refuse(first, Refusal.MALFORMED)
        if offset == 0:
            self.drop()
            if total > self._max:
                return self._refuse(first, Refusal.TOO_LONG)
            self._first, self._total, self._next, self._headers = first, total, sqn, headers
        elif not self._pieces or first != self._first:
            self.drop()
            return Refusal.ORPHAN
        elif sqn != self._next or offset != self._have or total != self._total:
            return self._refuse(first, Refusal.MALFORMED)
        self._pieces.append(bytes(payload))
        self._have += len(payload)
        self._flags |= flags
        self._next = add(sqn, 1)
        if self._have < total:
            return None
        message = Delivered(sqn, first, b"".join(self._pieces), self._flags, None, self._headers)
        self.drop()
        return message

    def on_lost(self, sqn: int) -> None:
        """The fragment after the last one is lost; what is under way cannot be completed."""
        self.drop()

    def drop(self) -> None:
        if self._pieces:
            self._pieces = []
            self._have = self._flags = 0
            self._headers = None

    def _refuse(self, first: int, why: Refusal) -> Refusal:
        self.drop()
        if self._refused == first:
            return Refusal.ORPHAN
        self._refused = first
        return why


@dataclass(slots=True)
class _Partial:
    total: int
    pieces: dict[int, tuple[int, bytes]]  # offset -> sqn, bytes
    have: int = 0
    flags: int = 0
    headers: MessageHeaders | None = None
    extra: int = 0  # bytes beside the data


class ArrivalReassembly:
    """Messages under way in any order, keyed by their first sqn; complete ones are handed out at once."""

    __slots__ = ("_extra", "_have", "_lost_through", "_max", "_partials", "_refused")

    def __init__(self, message_max_bytes: int) -> None:
        self._max = message_max_bytes
        self._partials: dict[int, _Partial] = {}
        self._have = self._extra = 0
        self._lost_through: int | None = None  # newest sqn that was given up
        self._refused: int | None = None

    @property
    def is_idle(self) -> bool:
        return not self._partials

    @property
    def held_bytes(self) -> int:
        """Count what is held, as it takes memory, about."""
        return self._have + self._extra

    def take(
        self, sqn: int, frag: Frag | None, payload: Payload, flags: int, headers: MessageHeaders | None = None
    ) -> Outcome:
        """A fragment that was not there before. Outcome as in order; bounded in messages and in bytes under way."""
        message = whole(sqn, frag, payload, flags, headers)
        if message is not None or frag is None:
            return message
        first, offset, total = frag
        if not is_sound(sqn, frag, len(payload)):
            return self._refuse(first, Refusal.MALFORMED)
        if total > self._max:
            return self._refuse(first, Refusal.TOO_LONG)
        if self._lost_through is not None and ahead(first, self._lost_through) <= 0 < ahead(sqn, self._lost_through):
            return Refusal.ORPHAN
        partial = self._partials.get(first)
        if partial is None:
            if first == self._refused:
                return Refusal.ORPHAN
            self._make_room()
            partial = self._partials[first] = _Partial(total, {})
        elif offset in partial.pieces and partial.pieces[offset][0] == sqn:
            return Refusal.ORPHAN  # a repeat from before the first fragment, where sqns are not followed
        elif partial.total != total or offset in partial.pieces:
            return self._refuse(first, Refusal.MALFORMED)
        partial.pieces[offset] = (sqn, bytes(payload))
        partial.have += len(payload)
        partial.flags |= flags
        extra = PIECE_BYTES
        if not offset:
            partial.headers = headers
            extra += 0 if headers is None else headers.size
        partial.extra += extra
        self._extra += extra
        self._have += len(payload)
        if partial.have < total:
            while self._have > self._max:
                self._forget(next(iter(self._partials)))
            return None
        self._forget(first)
        return self._join(first, partial) or self._refuse(first, Refusal.MALFORMED)

    def on_lost(self, sqn: int) -> None:
        """`sqn` is given up and all before it are settled: whatever began at or before it misses a piece."""
        if self._lost_through is None or ahead(sqn, self._lost_through) > 0:
            self._lost_through = sqn
        for first in [first for first in self._partials if ahead(first, sqn) <= 0]:
            self._forget(first)

    def drop(self) -> None:
        self._partials.clear()
        self._have = self._extra = 0

    def _join(self, first: int, partial: _Partial) -> Delivered | None:
        at = 0
        parts: Sequence[tuple[int, tuple[int, bytes]]] = sorted(partial.pieces.items())
        for index, (offset, (sqn, piece)) in enumerate(parts):
            if offset != at or sqn != (first + index) & MASK:
                return None
            at += len(piece)
        data = b"".join(piece for _, (_, piece) in parts)
        return Delivered(parts[-1][1][0], first, data, partial.flags, None, partial.headers)

    def _make_room(self) -> None:
        if len(self._partials) >= PARTIALS_MAX:
            self._forget(next(iter(self._partials)))

    def _forget(self, first: int) -> None:
        partial = self._partials.pop(first, None)
        if partial is not None:
            self._have -= partial.have
            self._extra -= partial.extra

    def _refuse(self, first: int, why: Refusal) -> Refusal:
        self._forget(first)
        if self._refused == first:
            return Refusal.ORPHAN
        self._refused = first
        return why


StateLayout(
    InOrderReassembly,
    1,
    _pieces=list[bytes],
    _first=int,
    _next=int,
    _total=int,
    _have=int,
    _flags=int,
    _headers=MessageHeaders | None,
    _refused=int | None,
)
StateLayout(
    ArrivalReassembly,
    1,
    _partials=dict[int, _Partial],
    _have=int,
    _extra=int,
    _lost_through=int | None,
    _refused=int | None,
)
