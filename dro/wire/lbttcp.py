"""LBT-TCP framing: LBMC messages end to end on a byte stream, cut where their own length fields say.

There is no transport header, no banner, no separator; where a TCP segment begins or ends means nothing. The same
framing serves source transports, UIM connections and peer links. `Framer` collects bytes until a message is whole;
`frame_walk` finds whole messages in a buffer that the caller keeps.
"""

from __future__ import annotations

from dro.errors import DecodeError
from dro.wire.lbmc import Buffer, header_size
from dro.wire.lbmc_codes import MESSAGE_MAX, MINIMAL_HEADER_SIZE


class FramingError(DecodeError):
    """The stream cannot be trusted any more: close it. `frames` are the whole messages before the bad one."""

    def __init__(self, where: str, why: str, offset: int, frames: list[bytes]) -> None:
        super().__init__(where, why, offset)
        self.frames = frames


def frame_walk(buf: Buffer, pos: int, end: int) -> tuple[list[tuple[int, int]], int]:
    """Whole messages in `buf[pos:end]` as (offset, length), and how many bytes they take.

    What is left behind them is the beginning of a message. Raises: DecodeError on a length that cannot be right or a
    type or version that does not exist, when it is in the first message; else the walk stops before it, so that the
    sound ones are used first and the next call raises.
    """
    frames, used, error = _split(buf, pos, end)
    if error is not None and not frames:
        raise error
    return frames, used


class Framer:
    """Splits a byte stream into whole LBMC messages.

    Memory: never holds more than one incomplete message (65535 bytes at most) between calls.
    """

    __slots__ = ("_error", "_kept", "_passed")

    def __init__(self) -> None:
        self._kept = bytearray()
        self._passed = 0  # bytes of the stream before `_kept`
        self._error: DecodeError | None = None

    @property
    def pending(self) -> int:
        """Bytes kept of a message that is not whole yet."""
        return len(self._kept)

    def feed(self, data: Buffer) -> list[bytes]:
        """The messages that `data` completes, in order.

        Raises: FramingError (a DecodeError) as soon as a header that cannot be right has arrived; it carries the
        messages before it. After that every call raises.
        """
        if self._error is not None:
            raise self._failure(self._error, [])
        self._kept += data
        spans, used, self._error = _split(self._kept, 0, len(self._kept))
        with memoryview(self._kept) as view:
            frames = [bytes(view[at : at + length]) for at, length in spans]
        if self._error is not None:
            self._kept.clear()
            raise self._failure(self._error, frames)
        del self._kept[:used]
        self._passed += used
        return frames

    def _failure(self, error: DecodeError, frames: list[bytes]) -> FramingError:
        return FramingError(error.where, error.why, self._passed + error.offset, frames)


def _split(buf: Buffer, pos: int, end: int) -> tuple[list[tuple[int, int]], int, DecodeError | None]:
    frames: list[tuple[int, int]] = []
    at = pos
    while end - at >= MINIMAL_HEADER_SIZE:
        msglen = buf[at + 2] << 8 | buf[at + 3]
        if msglen < header_size(buf[at]):
            return frames, at - pos, _bad_frame(buf, at, msglen)
        if msglen > end - at:
            break
        frames.append((at, msglen))
        at += msglen
    return frames, at - pos, None


def _bad_frame(buf: Buffer, at: int, msglen: int) -> DecodeError:
    need = header_size(buf[at])
    if need > MESSAGE_MAX:
        return DecodeError("lbttcp.type", f"version {buf[at] >> 4}, type {buf[at] & 15:#x} is not known", at)
    return DecodeError("lbttcp.msglen", f"{msglen} bytes, the header alone has {need}", at)
