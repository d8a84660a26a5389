"""Memory that streams of fragments are read into and split in: one is enough for all that are read by one loop.

Nothing is left in it between turns: what a read has brought and was not worked off, mostly the beginning of a message,
is kept by its stream, in as many bytes as it has. So a connection that says nothing costs no buffer.
"""

from __future__ import annotations

from typing import Final

from dro.transport.runs import RunTable
from dro.transport.stream import ByteStream
from dro.wire.lbmc.codes import MESSAGE_MAX

READ_BYTES: Final = 256 << 10


class ReadSpace:
    """`view` and `table` belong to who has called `read` last, until it returns to the loop."""

    def __init__(self, read_bytes: int = READ_BYTES) -> None:
        self.read_bytes = read_bytes
        """What comes at most of one read."""
        self.view = memoryview(bytearray(read_bytes + MESSAGE_MAX))
        self.table = RunTable()

    def read(self, stream: ByteStream, kept: bytes) -> int:
        """Put what was kept of the stream, and then what has come, into the view; how many bytes came.

        Raises: as `ByteStream.read_into`.
        """
        begin = len(kept)
        count = stream.read_into(self.view[begin : begin + self.read_bytes])
        self.view[:begin] = kept
        return count
