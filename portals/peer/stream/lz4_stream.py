"""LZ4 as a stream: the same bytes as those of the stream below it, compressed, from some point of a connection on.

In each direction one LZ4 frame begins there that lasts as long as the connection (`dro.wire.lz4_frame`). All that was
taken by one call can be decoded at the other end at once, so a caller gives whole batches.

Source: DRO guide, element `compression`; wire-peerlink.md, section 15.
"""

from __future__ import annotations

import contextlib
import errno
from collections import deque
from collections.abc import Sequence
from typing import Final

from lz4.frame import BLOCKSIZE_MAX64KB, LZ4FrameCompressor

from dro.errors import DecodeError
from dro.loop import Loop
from dro.transport.stream import NO_EVENTS, ByteStream, Piece, StreamEvents, joined, nothing
from dro.wire.lz4_frame import FrameReader

TAKEN_MAX: Final = 256 * 1024
"""Of one call, so that what waits here in compressed form stays small."""
_READ_BYTES: Final = 64 * 1024
_MARKS: Final = 256


class Lz4Stream:
    """Around a stream that is open; `start` takes its events over."""

    def __init__(self, loop: Loop, inner: ByteStream, *, leftover: bytes = b"", unsent: bytes = b"") -> None:
        """`leftover`: what was read from `inner` already, behind its plain part. `unsent`: what is to leave plain."""
        self._loop = loop
        self._inner = inner
        self._frame = FrameReader()
        self._frame.feed(leftover)
        self._scratch = memoryview(bytearray(_READ_BYTES))
        self._failure: OSError | None = None
        self._has_more = False  # a reader would get something, or the failure
        self._is_closed = False
        self._compressor = LZ4FrameCompressor(block_size=BLOCKSIZE_MAX64KB, block_linked=True, auto_flush=True)
        self._out = memoryview(unsent + self._compressor.begin())
        self._taken = self._reached = 0  # bytes ever before compression, that were taken and that have arrived
        self._given = len(self._out)  # bytes ever for the stream below
        self._marks: deque[tuple[int, int]] = deque()  # of what may not have arrived: both, behind each call
        self._trim_at = _MARKS

    def start(self, events: StreamEvents) -> None:
        """`on_open` comes from within."""
        self._events = events
        self._inner.take_over(StreamEvents(nothing, nothing, self._on_readable, self._on_writable))
        self._loop.call_soon(self._read_ahead)
        with contextlib.suppress(OSError):  # it blocks and will be writable, or broke, which the reader finds out
            self._push()
        events.on_open()

    def take_over(self, events: StreamEvents) -> None:
        self._events = events

    # in

    def _read_ahead(self) -> None:
        """Read what was left over or is held by the stream below, as it makes no descriptor readable."""
        if not self._is_closed and self._on_readable():
            self._loop.call_soon(self._read_ahead)

    def _on_readable(self) -> bool:
        return self._events.on_readable() is True or (self._has_more and not self._is_closed)

    def read_into(self, view: memoryview) -> int:
        """Read as every stream does; what is no LZ4 is an OSError whose `strerror` says so."""
        self._has_more = False
        done = self._read(view)
        self._has_more = done == len(view) or self._failure is not None or self._frame.is_broken
        return done

    def _read(self, view: memoryview) -> int:
        if self._failure is not None:
            raise self._failure
        done = 0
        try:
            done = self._frame.read_into(view)
            while done < len(view):
                count = self._inner.read_into(self._scratch)
                if not count:
                    return done
                self._frame.feed(self._scratch[:count])
                done += self._frame.read_into(view[done:])
                if count < len(self._scratch):
                    break
        except BlockingIOError:
            pass
        except DecodeError as e:
            why = f"what the companion sends is not the compressed stream that it announced: {e}"
            self._fail(OSError(errno.EBADMSG, why), done)
        except OSError as e:
            self._fail(e, done)
        if not done:
            raise BlockingIOError
        return done

    def _fail(self, error: OSError, done: int) -> None:
        """Raise `error`, unless something was read before it; then the next call does."""
        self._failure = error
        if not done:
            raise error

    # out

    def send_pieces(self, pieces: Sequence[Piece]) -> int:
        """Takes nothing while compressed bytes wait for the stream below; `TAKEN_MAX` at most."""
        if self._out:
            self._push()
        taken = joined(pieces, TAKEN_MAX)
        self._out = memoryview(self._compressor.compress(taken))
        self._taken += len(taken)
        self._given += len(self._out)
        self._marks.append((self._given, self._taken))
        if len(self._marks) >= self._trim_at:
            self.backlog()
            self._trim_at = _MARKS + 2 * len(self._marks)
        with contextlib.suppress(BlockingIOError):
            self._push()
        return len(taken)

    def _push(self) -> None:
        while self._out:
            self._out = self._out[self._inner.send_pieces((self._out,)) :]

    def _on_writable(self) -> None:
        try:
            self._push()
        except BlockingIOError:
            return
        except OSError:
            self._out = memoryview(b"")  # the reader finds out
        self._events.on_writable()

    def backlog(self) -> int:
        """Count bytes before compression; a block arrives as a whole."""
        arrived = self._given - len(self._out) - self._inner.backlog()
        while self._marks and self._marks[0][0] <= arrived:
            self._reached = self._marks.popleft()[1]
        return self._taken - self._reached

    @property
    def holds(self) -> int:
        """Compressed bytes."""
        return len(self._out) + self._inner.holds

    def close(self) -> None:
        self._is_closed = True
        self._inner.close()
        self._events, self._failure = NO_EVENTS, None  # an exception refers to where it was raised, and so to this
