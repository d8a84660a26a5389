"""The scan of received bytes: datagrams of a batch, or a piece of a stream, to run tables.

Pure, and the reference for its compiled form. What is not plain data in order of a joined session stops the scan: the
caller looks at that datagram by itself and goes on behind it. A transport says by a `DatagramHeader` where it has what.

Wire layout: protocol notes, LBMC framing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dro.errors import DecodeError
from dro.sqn import MASK
from dro.transport.runs import (
    FRAGMENTS,
    HEADER_BYTES,
    MINIMAL_BYTES,
    TYPE_MESSAGE,
    WORDS,
    RunTable,
    read_messages,
    u32,
)
from dro.wire.lbmc import message as lbmc

_IP_SHIFT: Final = 32
_MESSAGE, _HEADER_BYTES = TYPE_MESSAGE, HEADER_BYTES  # plain integers in the compiled form


class DatagramHeader:
    """What a transport has in front of the messages of a datagram: offsets in bytes of big-endian fields.

    `key_at`: 8 bytes that name the session. `mark_at`: `mark_bytes` (1 or 4) that are `mark` under `mark_mask` in plain
    data that is sent for the first time. `sqn_at`, `trail_at`: 4 bytes each. The first message follows after `size`.
    """

    __slots__ = (
        "key_at",
        "mark",
        "mark_at",
        "mark_bytes",
        "mark_mask",
        "size",
        "sqn_at",
        "trail_at",
    )

    def __init__(
        self,
        size: int,
        *,
        key_at: int,
        sqn_at: int,
        trail_at: int,
        mark_at: int,
        mark_bytes: int,
        mark_mask: int,
        mark: int,
    ) -> None:
        self.size = size
        self.key_at = key_at
        self.sqn_at = sqn_at
        self.trail_at = trail_at
        self.mark_at = mark_at
        self.mark_bytes = mark_bytes
        self.mark_mask = mark_mask
        self.mark = mark


class Stream:
    """What a scan knows of one joined session and finds of it in a batch.

    `sender`: raw socket address that its datagrams come from, 0 before the first; `only_from`: the only one, 0: any
    with that IPv4 address. `expected`: the sqn that comes next,
    -1 when there is none. `first` to `trail`: the datagrams in order that were found since `settle`.
    """

    __slots__ = (
        "datagrams",
        "expected",
        "first",
        "is_touched",
        "key",
        "messages",
        "nbytes",
        "only_from",
        "sender",
        "table",
        "trail",
    )

    def __init__(self, key: int, table: RunTable | None = None, only_from: int = 0) -> None:
        """`table` may be one without room, until there is something for it."""
        self.key = key
        self.only_from = only_from
        self.sender = 0
        self.expected = -1
        self.first = 0
        self.datagrams = 0
        self.nbytes = 0
        self.trail = 0
        self.messages = 0
        self.is_touched = False
        self.table = RunTable() if table is None else table


Streams = dict[tuple[int, int], Stream]
"""By session key and IPv4 address of the sender, as it lies in a raw socket address."""


def find(streams: Streams, key: int, sender: int) -> Stream | None:
    """Find the stream that a datagram is of, from that raw socket address."""
    stream = streams.get((key, sender >> _IP_SHIFT))
    if stream is None or (stream.only_from and stream.only_from != sender):
        return None
    stream.sender = sender
    return stream


def scan_datagrams(
    view: memoryview,
    offsets: Sequence[int],
    lengths: Sequence[int],
    senders: Sequence[int],
    at: int,
    streams: Streams,
    touched: list[Stream],
    header: DatagramHeader,
) -> int:
    """Take datagrams of a batch from number `at` on into the tables of their streams; returns where it stopped.

    That is the number of a datagram that is not data in order of one of `streams`, or is broken, or does not fit into
    the table; the number of datagrams when all were taken. Streams that got something are in `touched`, each once.
    """
    count = len(lengths)
    size, key_at, sqn_at, trail_at = header.size, header.key_at, header.sqn_at, header.trail_at
    mark_at, mark_bytes, mask, plain = header.mark_at, header.mark_bytes, header.mark_mask, header.mark
    least = size + _HEADER_BYTES
    stream: Stream | None = None
    while at < count:
        offset, length = offsets[at], lengths[at]
        if length < least:
            return at
        key = u32(view, offset + key_at)
        key = key << 32 | u32(view, offset + key_at + 4)
        sqn, trail = u32(view, offset + sqn_at), u32(view, offset + trail_at)
        mark = view[offset + mark_at] if mark_bytes == 1 else u32(view, offset + mark_at)
        begin = offset + size
        kind, head, message = view[begin], view[begin + 1], view[begin + 2] << 8 | view[begin + 3]
        topic_index, topic_sqn = u32(view, begin + 4), u32(view, begin + 8)
        sender = senders[at]
        if stream is None or key != stream.key or sender != stream.sender:
            stream = find(streams, key, sender)
            if stream is None:
                return at
        table = stream.table
        if sqn != stream.expected or mark & mask != plain or (table.capacity - table.rows) * 8 < length:
            return at
        if kind == _MESSAGE and message == length - size:
            table.add(topic_index, topic_sqn, offset + size, message, size, head)
            stream.messages += 1
        else:
            rows = table.rows
            fragments = table.words[rows * WORDS - WORDS + FRAGMENTS] if rows else 0
            try:
                stream.messages += read_messages(view, offset + size, offset + length, size, table)
            except DecodeError:
                table.rows = rows
                if rows:
                    table.words[rows * WORDS - WORDS + FRAGMENTS] = fragments
                return at
        if not stream.datagrams:
            stream.first = sqn
            if not stream.is_touched:
                stream.is_touched = True
                touched.append(stream)
        stream.datagrams += 1
        stream.nbytes += length
        stream.trail = trail
        stream.expected = sqn + 1 & MASK
        at += 1
    return at


class BadStream(Exception):
    """The stream cannot be split from `pos` on; `messages` sound ones lie before it."""

    def __init__(self, pos: int, messages: int, error: DecodeError) -> None:
        super().__init__(str(error))
        self.pos = pos
        self.messages = messages
        self.error = error


def scan_stream(view: memoryview, pos: int, end: int, table: RunTable) -> tuple[int, int]:
    """Add the messages from `pos` to `end` to the table; (where the next one begins, how many there were).

    That is the first incomplete one, or one for which the table has no room. Raises: BadStream when the bytes cannot
    be split further; the messages before that have been added.
    """
    messages, rows = 0, table.rows + table.room
    while end - pos >= MINIMAL_BYTES:
        kind, head, length = view[pos], view[pos + 1], view[pos + 2] << 8 | view[pos + 3]
        if length < (_HEADER_BYTES if kind == _MESSAGE else lbmc.header_size(kind)):
            raise BadStream(pos, messages, DecodeError("lbmc.header", f"type {kind:#04x} with {length} bytes", pos))
        if pos + length > end or (rows - table.rows) * 8 < length:
            break
        if kind == _MESSAGE:
            table.add(u32(view, pos + 4), u32(view, pos + 8), pos, length, 0, head)
        else:
            try:
                read_messages(view, pos, pos + length, 0, table)
            except DecodeError as e:
                raise BadStream(pos, messages, e) from e
        messages += 1
        pos += length
    return pos, messages
