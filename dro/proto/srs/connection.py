"""One connection to a server of topic resolution over TCP: bytes that came, records and frames that wait to be sent.

Records that wait are shared with all other connections, and become batches when they are sent; credit of the client's
stream counts these. State: input that is not worked on yet, the queue of output, what is still to be told of the time
before (`walks`).
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from enum import Enum
from typing import Final

from dro.proto.srs.settings import SrsLimits
from dro.wire.srs import rsocket
from dro.wire.srs.rsocket import UNBOUNDED_N, FragmentJoiner, Frame, FrameSplitter, PayloadFrame

CHUNK_BYTES: Final = 64 * 1024
LOW_BYTES: Final = 64 * 1024
"""With less than this in the queue a client is told more of what was there before it came."""
INPUT_BYTES: Final = 64 * 1024
"""With as much unread, no more bytes are taken, unless they are needed for a frame."""


class SrsConnectionState(Enum):
    OPENED = "opened"
    SET_UP = "set up"
    REGISTERED = "registered"
    CLOSING = "closing"


class QueueAccount:
    """The bytes that all connections hold, and the connections that have got something to send."""

    __slots__ = ("input_bytes", "queued_bytes", "ready")

    def __init__(self) -> None:
        self.input_bytes = 0
        self.queued_bytes = 0
        self.ready: list[SrsConnection] = []


class SrsConnection:
    """A connection; `peer` is for logs."""

    __slots__ = (
        "_account", "_chunk", "_frames", "_input_bytes", "_is_records", "_joiner", "_limits", "_records",
        "_splitter", "credit", "drained_ns", "has_asked", "heard_ns", "is_lost", "is_ready", "job", "lifetime_ns",
        "opened_ns", "peer", "queued_bytes", "state", "stream_id", "walks", "why_closed",
    )  # fmt: skip

    def __init__(self, peer: str, limits: SrsLimits, account: QueueAccount, now_ns: int) -> None:
        self.peer = peer
        self.state = SrsConnectionState.OPENED
        self.lifetime_ns = 0
        self.opened_ns = self.heard_ns = self.drained_ns = now_ns
        self.stream_id: int | None = None
        self.credit = 0
        self.has_asked = False  # for its stream, which it may do once
        self.is_lost = False  # and what has come before is still worked on
        self.why_closed = ""
        self.job: Iterator[None] | None = None  # what has come last and is being worked on
        self.walks: OrderedDict[object, Iterator[bytes | None]] = OrderedDict()  # by what they are for
        self.is_ready = False
        self.queued_bytes = 0
        self._limits = limits
        self._account = account
        self._splitter = FrameSplitter(limits.unregistered_frame_bytes)
        self._input_bytes = 0
        self._joiner = FragmentJoiner(2 * limits.frame_bytes)
        self._frames: deque[bytes] = deque()
        self._records: deque[bytes] = deque()
        self._chunk = memoryview(b"")
        self._is_records = False  # the chunk

    @property
    def is_closing(self) -> bool:
        """Whether it is to be closed once what `pending` returns is written, or cannot be."""
        return self.state is SrsConnectionState.CLOSING

    # input

    @property
    def wants_bytes(self) -> bool:
        """Whether more may be read: not while a lot waits to be worked on."""
        return not self.is_closing and self.job is None and len(self._splitter) < INPUT_BYTES + self._limits.frame_bytes

    def on_registered(self) -> None:
        """Take frames of any size from now on."""
        self.state = SrsConnectionState.REGISTERED
        self._splitter.max_bytes = self._limits.frame_bytes

    def feed(self, data: bytes | memoryview) -> bool:
        """Take bytes; False when they are too many beside those of all others."""
        self._splitter.feed(data)
        self._count_input()
        return self._input_bytes <= INPUT_BYTES or self._account.input_bytes <= self._limits.inputs_bytes

    def next_frame(self) -> tuple[Frame | None, bool]:
        """The next frame, None for a part of one, and whether there was anything. Raises: DecodeError."""
        raw = self._splitter.next_frame()
        if raw is None:
            return None, False
        frame = self._joiner.join(rsocket.decode(raw))
        self._count_input()
        return frame, True

    def _count_input(self) -> None:
        before, self._input_bytes = self._input_bytes, len(self._splitter) + self._joiner.held_bytes
        self._account.input_bytes += self._input_bytes - before

    def forget(self) -> None:
        """Give back what is held, of a connection that is over."""
        self.drop_queue()
        self.job = None
        self._account.input_bytes -= self._input_bytes
        self._input_bytes = 0

    # output

    def push_frame(self, raw: bytes) -> bool:
        """Queue a frame, ahead of records; False when the queue is full."""
        self._frames.append(raw)
        return self._count(len(raw))

    def push_record(self, raw: bytes) -> bool:
        """Queue a record for the stream; False when the queue is full."""
        self._records.append(raw)
        return self._count(len(raw))

    def _count(self, size: int) -> bool:
        self.queued_bytes += size
        self._account.queued_bytes += size
        self.mark_ready()
        return self.has_room

    @property
    def has_room(self) -> bool:
        limits = self._limits
        return self.queued_bytes <= limits.queue_bytes and self._account.queued_bytes <= limits.queues_bytes

    def mark_ready(self) -> None:
        if not self.is_ready:
            self.is_ready = True
            self._account.ready.append(self)

    def pending(self) -> memoryview:
        """Return what is to be written next, empty when there is nothing, or no credit."""
        if not self._chunk:
            self._chunk = memoryview(self._next_chunk())
        return self._chunk

    def drop_queue(self) -> None:
        """Forget what waits, but for a frame of which a part is written."""
        self._frames.clear()
        self._records.clear()
        self.walks.clear()
        self._account.queued_bytes -= self.queued_bytes
        self.queued_bytes = 0

    def drop_records(self) -> None:
        """Forget the records that wait, of a stream that is over."""
        self._take(sum(map(len, self._records)))
        self._records.clear()

    def on_sent(self, count: int, now_ns: int) -> None:
        """Note what was written; frames alone count for nothing while records wait."""
        self._chunk = self._chunk[count:]
        if self._is_records or not self._records:
            self.drained_ns = now_ns

    @property
    def is_waiting(self) -> bool:
        """Whether anything has not been written."""
        return bool(self._chunk or self._frames or self._records)

    def _next_chunk(self) -> bytes:
        frames, records = self._frames, self._records
        parts: list[bytes] = []
        size = 0
        self._is_records = False
        if frames:
            while frames and size < CHUNK_BYTES:
                parts.append(frames.popleft())
                size += len(parts[-1])
            self._take(size)
            return b"".join(parts)
        if not records or not self.credit or self.stream_id is None:
            return b""
        self._is_records = True
        room = self._limits.batch_bytes
        while records and (not parts or size + len(records[0]) <= room):
            parts.append(records.popleft())
            size += len(parts[-1])
        self._take(size)
        if self.credit < UNBOUNDED_N:
            self.credit -= 1
        return rsocket.encode(PayloadFrame(self.stream_id, b"".join(parts)))

    def _take(self, size: int) -> None:
        self.queued_bytes -= size
        self._account.queued_bytes -= size
