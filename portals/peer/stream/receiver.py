"""What comes over one connection of a peer link: data to the portal's data path, control messages to the portal.

The stream is split in place. Data is handed up in batches; before a control message everything that came before it is.
Control messages are worked off for a bounded time in each turn, so that a flood of them, or the first exchange of a
large network, lets the loop go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from dro.clock import ms
from dro.errors import DecodeError
from dro.transport.read_space import ReadSpace
from dro.transport.runs import MINIMAL_BYTES, TYPE_CONTROL
from dro.transport.session import ReceiverSessionStatistics, ReceiverTransport, SessionCounts, SessionSink
from dro.transport.stream import ByteStream
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import BlockType
from dro.wire.source_string import TcpAddress, format_source
from portals.peer.stream.link_frames import scan_link, take_topic_control

TURN_NS: Final = ms(3)
"""For control messages."""
_SRCIDX: Final = int(BlockType.SRCIDX)
OnMessage = Callable[[bytes], bool]
"""Gets each message that is no data or control of a source; False: the connection is to be read on no more."""


class LinkReceiver(ReceiverTransport):
    """One connection as a transport session; `sources` are by the number that the other side gave them."""

    is_in_order = True

    def __init__(self, address: TcpAddress, now_ns: int) -> None:
        super().__init__(address)
        self.peer = address
        self._active_ns = now_ns
        self.msgs_rcved = 0
        self.bytes_rcved = 0

    @property
    def active_ns(self) -> int:
        return self._active_ns

    def counts(self) -> SessionCounts:
        return SessionCounts()

    def statistics(self) -> ReceiverSessionStatistics:
        raise NotImplementedError(format_source(self.address))

    def leave(self) -> None:
        self.sources = {}


class LinkReader:
    """Splits the stream."""

    def __init__(self, receiver: LinkReceiver, sink: SessionSink, space: ReadSpace) -> None:
        self.receiver = receiver
        self.is_data_allowed = False
        self._sink = sink
        self._space = space
        self._begin = self._end = 0  # what of the space is not worked off, during a call of `read`
        self.unread = b""
        """What has been read and not worked off, between these calls."""
        self.is_behind = False
        """There was no time for some of the whole messages in that."""
        self.data_bytes = 0
        """Of messages of sources that were handed up."""

    def take_rest(self) -> bytes:
        """Return what has been read and not worked off; it is not there any more."""
        rest = self.unread + self._space.view[self._begin : self._end]
        self.unread = b""
        self._begin = self._end = 0
        self.is_behind = False
        return rest

    def read(self, stream: ByteStream, on_message: OnMessage, now_ns: int) -> bool:
        """Read once and work off what came; True when something is left to be done.

        Raises: EOFError at the end of the stream, OSError when it broke, DecodeError when it cannot be split.
        """
        space, kept, count = self._space, self.unread, 0
        was_behind = self.is_behind
        if was_behind:
            space.view[: len(kept)] = kept
        else:
            try:
                count = space.read(stream, kept)
            except BlockingIOError:
                return False
            if not count:
                raise EOFError
            self.receiver.bytes_rcved += count
        self.unread = b""
        self._begin, self._end = 0, len(kept) + count
        return self._work_off(on_message, now_ns) or was_behind or count == space.read_bytes

    def _work_off(self, on_message: OnMessage, now_ns: int) -> bool:
        try:
            return self._split(on_message, now_ns)
        except DecodeError:
            self._hand_up(now_ns)  # what came before it
            raise
        finally:
            self.unread = bytes(self._space.view[self._begin : self._end])
            self._begin = self._end = 0

    def _split(self, on_message: OnMessage, now_ns: int) -> bool:
        """Split what was read into messages; True when there was not enough time, and there is more."""
        self.is_behind = False
        view, table, end = self._space.view, self._space.table, self._end
        stop_ns = time.monotonic_ns() + TURN_NS
        while True:
            if self.is_data_allowed:
                begin = self._begin
                self._begin, messages = scan_link(view, begin, end, table)
                self.data_bytes += self._begin - begin
                self.receiver.msgs_rcved += messages
            pos = self._begin
            if end - pos < MINIMAL_BYTES:
                break
            kind, head, length = lbmc.MINIMAL.unpack_from(view, pos)
            if length < lbmc.header_size(kind):
                raise DecodeError("lbmc.header", f"type {kind:#04x} with {length} bytes")
            if pos + length > end:
                break
            if not table.room:
                self._hand_up(now_ns)
                continue
            if kind == TYPE_CONTROL and head == _SRCIDX and self.is_data_allowed:
                take_topic_control(view, pos, length, table)
                self._begin += length
                self.data_bytes += length
                continue
            self._hand_up(now_ns)
            self._begin += length
            if not on_message(bytes(view[pos : pos + length])):
                return False
            if time.monotonic_ns() >= stop_ns:
                self.is_behind = self._begin < end
                return self.is_behind
        self._hand_up(now_ns)
        return False

    def _hand_up(self, now_ns: int) -> None:
        space = self._space
        if space.table.rows:
            self._sink.on_fragments(space.view, [(self.receiver, space.table)], now_ns)
            space.table.clear()
