"""The scan of received bytes: datagrams of a batch, or a piece of a stream, to run tables.

Pure, and the reference for its compiled form. What is not plain data in order of a joined session stops the scan: the
caller looks at that datagram by itself and goes on behind it. A transport says by a `DatagramHeader` where it has what.

Wire layout: protocol notes, LBMC framing.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from operator import eq, itemgetter, sub
from struct import Struct
from typing import Final

from dro.errors import DecodeError
from dro.sqn import MASK
from dro.um.transport.runs import (
    COMPILED,
    FRAGMENTS,
    HEAD_SHIFT,
    HEADER_BYTES,
    LENGTH,
    MINIMAL_BYTES,
    OFFSET,
    SHAPE,
    SQN,
    STRIDE,
    TYPE_MESSAGE,
    WORDS,
    RunTable,
    read_messages,
    u32,
)
from dro.wire.lbmc import message as lbmc

_IP_SHIFT: Final = 32
_COLUMNS_PAY_AT: Final = 4  # datagrams
_MESSAGE, _HEADER_BYTES = TYPE_MESSAGE, HEADER_BYTES  # plain integers in the compiled form

PROBE_FIRST: Final = 16  # messages that are looked at together; twice as many each time it was a stream
PROBE_MOST: Final = 4096
PROBE_LEAST: Final = 4


class DatagramHeader:
    """What a transport has in front of the messages of a datagram: offsets in bytes of big-endian fields.

    `key_at`: 8 bytes that name the session. `mark_at`: `mark_bytes` (1 or 4) that are `mark` under `mark_mask` in plain
    data that is sent for the first time. `sqn_at`, `trail_at`: 4 bytes each. The first message follows after `size`.
    """

    __slots__ = (
        "fields",
        "key_at",
        "mark",
        "mark_at",
        "mark_bytes",
        "mark_mask",
        "order",
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
        # for the plain form: key, sqn, trail, mark, and the fields of the first message
        mark_field = "B" if mark_bytes == 1 else "I"
        places = sorted([(key_at, "Q", 0), (sqn_at, "I", 1), (trail_at, "I", 2), (mark_at, mark_field, 3)])
        layout, end = "!", 0
        for at, field, _ in places:
            layout += f"{at - end}x{field}"
            end = at + Struct(f"!{field}").size
        self.fields = Struct(f"{layout}{size - end}xBBHII")
        found = [number for _, _, number in places]
        self.order = None if found == [0, 1, 2, 3] else itemgetter(*map(found.index, range(4)), *range(4, 9))


class Stream:
    """What a scan knows of one joined session and finds of it in a batch.

    `sender`: raw socket address that its datagrams come from, 0 before the first. `expected`: the sqn that comes next,
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
        "sender",
        "table",
        "trail",
    )

    def __init__(self, key: int, table: RunTable | None = None) -> None:
        """`table` may be one without room, until there is something for it."""
        self.key = key
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
    stream = streams.get((key, sender >> _IP_SHIFT))
    if stream is not None:
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
    unpack, order = header.fields.unpack_from, header.order
    stream: Stream | None = None
    while at < count:
        offset, length = offsets[at], lengths[at]
        if length < least:
            return at
        if COMPILED:
            key = u32(view, offset + key_at)
            key = key << 32 | u32(view, offset + key_at + 4)
            sqn, trail = u32(view, offset + sqn_at), u32(view, offset + trail_at)
            mark = view[offset + mark_at] if mark_bytes == 1 else u32(view, offset + mark_at)
            begin = offset + size
            kind, head, message = view[begin], view[begin + 1], view[begin + 2] << 8 | view[begin + 3]
            topic_index, topic_sqn = u32(view, begin + 4), u32(view, begin + 8)
        else:
            found = unpack(view, offset)
            key, sqn, trail, mark, kind, head, message, topic_index, topic_sqn = order(found) if order else found
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


@lru_cache(maxsize=256)
def _columns(fields: str, stride: int) -> Struct:
    return Struct(f"{fields}{stride - Struct(fields).size}x")


def scan_slots(
    view: memoryview,
    stride: int,
    lengths: list[int],
    sender: int,
    streams: Streams,
    touched: list[Stream],
    header: DatagramHeader,
) -> bool:
    """Do as `scan_datagrams` for a batch of one session in order, one message in each datagram, `stride` bytes apart.
    from the start of `view`; False, with nothing done, when it is none. It works on columns, which plain Python does
    much faster.
    """
    n, size = len(lengths), header.size
    least = size + HEADER_BYTES
    if COMPILED or n < _COLUMNS_PAY_AT or stride < least or min(lengths) < least:
        return False
    columns = tuple(zip(*_columns(header.fields.format, stride).iter_unpack(view[: n * stride]), strict=True))
    if header.order is not None:
        columns = header.order(columns)
    keys, sqns, trails, marks, kinds, heads, messages, topics, topic_sqns = columns
    stream = find(streams, keys[0], sender)
    first = sqns[0]
    if (
        stream is None
        or stream.expected != first
        or not stream.table.capacity
        or keys.count(keys[0]) != n
        or sqns != tuple(range(first, first + n))
        or marks.count(marks[0]) != n
        or marks[0] & header.mark_mask != header.mark
        or kinds.count(TYPE_MESSAGE) != n
    ):
        return False
    table = stream.table
    topic, topic_first, length = topics[0], topic_sqns[0], messages[0]
    if lengths.count(length + size) == n and messages.count(length) == n:
        is_mixed = False
        if (
            topics.count(topic) == n
            and heads.count(heads[0]) == n
            and topic_sqns == tuple(range(topic_first, topic_first + n))
        ):
            shape = heads[0] << HEAD_SHIFT | size
            table.put(topic, topic_first, n, size, length, stride if n > 1 else length + size, shape)
            _took(stream, first, n, sum(lengths), trails[-1], touched)
            return True
    else:
        is_mixed = True
    if is_mixed and list(map(sub, lengths, messages)).count(size) != n:
        return False
    if any(map(eq, topics, topics[1:])):  # some follow each other, and may be one run
        offset = size
        for topic, sqn, length, head in zip(topics, topic_sqns, messages, heads, strict=True):
            table.add(topic, sqn, offset, length, size, head)
            offset += stride
    else:
        words, end = table.words, n * WORDS
        words[0:end:WORDS] = array("I", topics)
        words[SQN:end:WORDS] = array("I", topic_sqns)
        words[FRAGMENTS:end:WORDS] = array("I", [1]) * n
        words[OFFSET:end:WORDS] = array("I", range(size, size + n * stride, stride))
        words[LENGTH:end:WORDS] = array("I", messages)
        words[STRIDE:end:WORDS] = array("I", lengths)
        words[SHAPE:end:WORDS] = array("I", [head << HEAD_SHIFT | size for head in heads])
        table.rows = n
    _took(stream, first, n, sum(lengths), trails[-1], touched)
    return True


def _took(stream: Stream, first: int, n: int, nbytes: int, trail: int, touched: list[Stream]) -> None:
    stream.first, stream.datagrams, stream.nbytes, stream.trail = first, n, nbytes, trail
    stream.messages += n
    stream.expected = first + n & MASK
    stream.is_touched = True
    touched.append(stream)


class BadStream(Exception):
    """The stream cannot be split from `pos` on; `messages` sound ones lie before it."""

    def __init__(self, pos: int, messages: int, error: DecodeError) -> None:
        super().__init__(str(error))
        self.pos = pos
        self.messages = messages
        self.error = error


@lru_cache(maxsize=256)
def _message_columns(length: int) -> Struct:
    """Headers of LBMC messages of `length` bytes that lie back to back."""
    return Struct(f"{lbmc.HEADER.format}{length - HEADER_BYTES}x")


def scan_stream(view: memoryview, pos: int, end: int, table: RunTable) -> tuple[int, int]:
    """Add the messages from `pos` to `end` to the table; (where the next one begins, how many there were).

    That is the first incomplete one, or one for which the table has no room. Raises: BadStream when the bytes cannot
    be split further; the messages before that have been added.
    """
    messages, rows = 0, table.rows + table.room
    probe, careful = PROBE_FIRST, pos  # up to `careful` messages are looked at one by one
    while end - pos >= MINIMAL_BYTES:
        if COMPILED:
            kind, head, length = view[pos], view[pos + 1], view[pos + 2] << 8 | view[pos + 3]
        else:
            kind, head, length = lbmc.MINIMAL.unpack_from(view, pos)
        if length < (_HEADER_BYTES if kind == _MESSAGE else lbmc.header_size(kind)):
            raise BadStream(pos, messages, DecodeError("lbmc.header", f"type {kind:#04x} with {length} bytes", pos))
        if pos + length > end or (rows - table.rows) * 8 < length:
            break
        if kind == _MESSAGE:
            if COMPILED:
                topic_index, sqn = u32(view, pos + 4), u32(view, pos + 8)
            else:
                count = min((end - pos) // length, probe)
                if pos >= careful and count >= PROBE_LEAST:
                    if _take_equal(view, pos, count, head, length, table):
                        pos += count * length
                        messages += count
                        probe = min(2 * probe, PROBE_MOST)
                        continue
                    careful, probe = pos + count * length, PROBE_FIRST
                _, _, _, topic_index, sqn = lbmc.HEADER.unpack_from(view, pos)
            table.add(topic_index, sqn, pos, length, 0, head)
        else:
            try:
                read_messages(view, pos, pos + length, 0, table)
            except DecodeError as e:
                raise BadStream(pos, messages, e) from e
        messages += 1
        pos += length
    return pos, messages


def _take_equal(view: memoryview, pos: int, count: int, head: int, length: int, table: RunTable) -> bool:
    """Take `count` messages from `pos` as one run; False, with nothing done, when they are none."""
    stream = view[pos : pos + count * length]
    kinds, heads, lengths, topics, sqns = zip(*_message_columns(length).iter_unpack(stream), strict=True)
    first = sqns[0]
    if (
        lengths.count(length) != count
        or kinds.count(TYPE_MESSAGE) != count
        or heads.count(head) != count
        or topics.count(topics[0]) != count
        or sqns != tuple(range(first, first + count))
    ):
        return False
    table.put(topics[0], first, count, pos, length, length, head << HEAD_SHIFT)
    return True
