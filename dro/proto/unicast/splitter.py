"""A stream of bytes as LBMC messages: what a request port reads from one connection.

State: the bytes that came and were not handed on yet, which are less than a message once `next_message` has returned
None. Source: wire notes LBMC, section 2 (messages end to end, at most 65,535 bytes each).
"""

from __future__ import annotations

from dro.errors import DecodeError
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MINIMAL_HEADER_SIZE


class MessageSplitter:
    """The bytes of one connection. After a DecodeError nothing more can be had from it."""

    __slots__ = ("_data", "_pos")

    def __init__(self) -> None:
        self._data = b""
        self._pos = 0

    def __len__(self) -> int:
        """Bytes that are held."""
        return len(self._data) - self._pos

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        self._data = b"".join((memoryview(self._data)[self._pos :], data))
        self._pos = 0

    def has_message(self) -> bool:
        """Whether `next_message` has something to say, a message or an error."""
        length = self._length()
        return length is not None and (length < self._least() or length <= len(self))

    def next_message(self) -> bytes | None:
        """The next whole message; None until more has come. Raises: DecodeError when what follows is no message."""
        length = self._length()
        if length is None:
            return None
        if length < self._least():
            raise DecodeError("lbmc.header", f"type {self._data[self._pos]:#04x} with {length} bytes")
        if length > len(self):
            return None
        begin = self._pos
        self._pos += length
        return self._data[begin : self._pos]

    def _length(self) -> int | None:
        if len(self) < MINIMAL_HEADER_SIZE:
            return None
        return self._data[self._pos + 2] << 8 | self._data[self._pos + 3]

    def _least(self) -> int:
        return lbmc.header_size(self._data[self._pos])
