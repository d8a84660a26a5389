"""LBMC framing of a captured TCP direction, which survives holes and a start in mid-stream.

On a live connection framing is trivial and a bad length ends it. A capture may begin in the middle of a message or lack
bytes. When a hole lies inside a message whose length is known, framing resumes exactly after that message; otherwise
messages are searched for by their structure, and nothing is returned until they are found. One `LbmcStream` per
direction; memory is at most one message.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from dro.dissect.tcpstream import Closed, Missing, Opened, Piece
from dro.errors import DecodeError
from dro.wire.lbmc.codes import (
    END_DATA,
    END_NONE,
    FULL_HEADER_SIZE,
    FULL_HEADER_TYPES,
    MINIMAL_HEADER_SIZE,
    UNDERSTOOD_CODES,
    MessageType,
)

_SEARCH_LIMIT: Final = 1 << 20  # bytes looked through before a stream that nobody named is taken for something else
_CHAIN: Final = 3  # headers in a row that make a place in mid-stream believable
_MIN_LENGTH: Final = {
    int(kind): FULL_HEADER_SIZE if kind in FULL_HEADER_TYPES else MINIMAL_HEADER_SIZE for kind in MessageType
}
_FIRST_CODES: Final = UNDERSTOOD_CODES | {END_DATA, END_NONE}


@dataclass(frozen=True, slots=True)
class StreamPiece:
    """Whole messages end to end, or an error. `lost` bytes of the stream are missing just before it (-1: unknown)."""

    data: bytes
    lost: int = 0
    error: DecodeError | None = None


class _State(Enum):
    FRESH = "fresh"  # the connection's first byte comes next, and it may turn out not to be LBMC
    FRAMED = "framed"
    LOOKING = "looking"  # no idea where messages begin
    FOREIGN = "foreign"  # not LBMC: TLS, compressed, another program


class LbmcStream:
    """One direction of a connection. `is_named` means that the user or an advertisement said that it is LBMC."""

    __slots__ = ("_buffer", "_is_untouched", "_looked", "_lost", "_skip", "_state", "is_named")

    def __init__(self, *, is_named: bool) -> None:
        self.is_named = is_named
        self._state = _State.LOOKING
        self._is_untouched = True  # no byte has come yet
        self._buffer = bytearray()
        self._skip = 0  # bytes of a broken message that are still to come
        self._lost = 0
        self._looked = 0

    @property
    def is_foreign(self) -> bool:
        return self._state is _State.FOREIGN

    def on_piece(self, piece: Piece) -> StreamPiece | None:
        """Whole messages that the piece completes, or what is wrong; None when it completes none."""
        match piece:
            case Opened():
                self._buffer.clear()
                self._skip = self._lost = self._looked = 0
                self._state = _State.FRESH
                return None
            case Missing(count):
                self._on_missing(count)
                return None
            case Closed():
                return self._on_closed()
            case _:
                return self._on_bytes(piece)

    def _on_missing(self, count: int) -> None:
        if self._state is _State.FOREIGN or (self._is_untouched and count < 0):
            return
        self._lost = -1 if count < 0 or self._lost < 0 else self._lost + count
        held = len(self._buffer)
        if count >= 0 and self._state is _State.FRAMED and (self._skip >= count > 0):
            self._skip -= count
            return
        if count >= 0 and self._state is _State.FRAMED and not self._skip and held >= MINIMAL_HEADER_SIZE:
            rest = int.from_bytes(self._buffer[2:4], "big") - held - count
            if rest >= 0:
                self._buffer.clear()
                self._skip = rest
                return
        self._buffer.clear()
        self._skip = 0
        self._state = _State.LOOKING

    def _on_closed(self) -> StreamPiece | None:
        held = len(self._buffer)
        framed = self._state is _State.FRAMED
        self._buffer.clear()
        self._skip = 0
        self._state = _State.LOOKING if self._state is not _State.FOREIGN else _State.FOREIGN
        if held and framed:
            return self._run(b"", DecodeError("lbttcp", f"the stream ends {held} bytes into a message"))
        return None

    def _on_bytes(self, data: bytes) -> StreamPiece | None:
        if self._state is _State.FOREIGN:
            return None
        if self._skip:
            step = min(self._skip, len(data))
            self._skip -= step
            data = data[step:]
            if not data:
                return None
        untouched, self._is_untouched = self._is_untouched, False
        if self._state is _State.LOOKING:
            start = find_messages(data)
            if start < 0 and untouched and self._may_begin(data):
                start = 0
            if start < 0:
                self._looked += len(data)
                if self._lost >= 0:
                    self._lost += len(data)
                if self._looked > _SEARCH_LIMIT and not self.is_named:
                    self._state = _State.FOREIGN
                return None
            if start and self._lost >= 0:
                self._lost += start
            data = data[start:]
            self._state = _State.FRAMED
        buffer = self._buffer
        buffer += data
        if self._state is _State.FRESH:
            if not self.is_named and (buffer[0] >> 4 or (buffer[0] & 0x0F) not in _MIN_LENGTH):
                self._state = _State.FOREIGN
                buffer.clear()
                return None
            self._state = _State.FRAMED
        end, why = _walk(buffer)
        whole = bytes(buffer[:end])
        if why is not None:
            buffer.clear()
            self._state = _State.LOOKING
            return self._run(whole, DecodeError("lbttcp", why, end))
        del buffer[:end]
        return self._run(whole, None) if whole else None

    def _may_begin(self, data: bytes) -> bool:
        """Say whether the first bytes of a capture without the connection's start look like the head of one message.

        A length that no message can have counts too when it is not 0 and the stream is named: then it is an error.
        """
        least = _MIN_LENGTH.get(data[0])
        if least is None or (len(data) > 1 and data[1] not in _FIRST_CODES):
            return False
        if len(data) < MINIMAL_HEADER_SIZE:
            return True
        length = data[2] << 8 | data[3]
        return length >= least or (self.is_named and length > 0)

    def _run(self, whole: bytes, error: DecodeError | None) -> StreamPiece:
        lost, self._lost, self._looked = self._lost, 0, 0
        return StreamPiece(whole, lost, error)


def _walk(buffer: bytearray) -> tuple[int, str | None]:
    """Find the end of the last whole message, and what is wrong with the header there, if anything."""
    pos = 0
    size = len(buffer)
    while size - pos >= MINIMAL_HEADER_SIZE:
        first = buffer[pos]
        length = buffer[pos + 2] << 8 | buffer[pos + 3]
        least = _MIN_LENGTH.get(first & 0x0F)
        if first >> 4:
            return pos, f"message version {first >> 4}"
        if least is None:
            return pos, f"unknown message type {first & 0x0F}"
        if length < least:
            return pos, f"message length {length}, at least {least} is possible"
        if length > size - pos:
            break
        pos += length
    return pos, None


def find_messages(data: bytes) -> int:
    """Find where messages begin in a piece of a stream that starts anywhere; -1 when nowhere believable.

    Believable is a chain of headers that meets the end of `data`, or `_CHAIN` of them in a row.
    """
    size = len(data)
    for start in range(size - MINIMAL_HEADER_SIZE + 1):
        if data[start] in _MIN_LENGTH and _is_chain(data, start, size):
            return start
    return -1


def _is_chain(data: bytes, pos: int, size: int) -> bool:
    count = 0
    while size - pos >= MINIMAL_HEADER_SIZE:
        least = _MIN_LENGTH.get(data[pos])
        length = data[pos + 2] << 8 | data[pos + 3]
        if least is None or length < least or data[pos + 1] not in _FIRST_CODES:
            return False
        count += 1
        if count >= _CHAIN:
            return True
        pos += length
    return count > 0 and pos == size
