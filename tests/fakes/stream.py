"""A `ByteStream` in memory that takes as much as it is told to."""

from __future__ import annotations

from collections.abc import Sequence

from dro.transport.stream import Piece, StreamEvents


class FakeStream:
    """`written` is what was taken; `room`: how many bytes are taken before it blocks, None for any number."""

    def __init__(self, room: int | None = None) -> None:
        self.room = room
        self.written = bytearray()
        self.to_read = bytearray()
        self.is_at_end = False
        self.is_closed = False
        self.is_broken = False
        self.unacknowledged = 0
        self.events: StreamEvents | None = None

    def start(self, events: StreamEvents) -> None:
        self.events = events
        events.on_open()

    def take_over(self, events: StreamEvents) -> None:
        self.events = events

    def read_into(self, view: memoryview) -> int:
        if not self.to_read and not self.is_at_end:
            raise BlockingIOError
        count = min(len(view), len(self.to_read))
        view[:count] = self.to_read[:count]
        del self.to_read[:count]
        return count

    def send_pieces(self, pieces: Sequence[Piece]) -> int:
        if self.is_broken:
            raise ConnectionResetError
        data = b"".join(pieces)
        if self.room is not None:
            data = data[: self.room]
            self.room -= len(data)
        if not data:
            raise BlockingIOError
        self.written += data
        return len(data)

    def backlog(self) -> int:
        return self.unacknowledged

    @property
    def holds(self) -> int:
        return 0

    def close(self) -> None:
        self.is_closed = True
