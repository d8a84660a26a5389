"""What a transport session sends of a run table: topic indexes, and how fragments share datagrams or a stream.

Pure, and the reference for its compiled form. Nothing here knows a transport's header but its size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from dro.sqn import MASK
from dro.transport.runs import (
    FRAGMENTS,
    HEAD_SHIFT,
    HEADER_BYTES,
    KIND_CONTROL,
    KIND_SHIFT,
    KIND_TSNI,
    LENGTH,
    OFFSET,
    SHAPE,
    SQN,
    STRIDE,
    WORDS,
    RunTable,
    set_topic_index,
    write_u32,
)
from dro.wire.lbmc import message as lbmc

TRAIN_BYTES: Final = 65000
# plain integers in the compiled form
_WORDS, _SQN, _FRAGMENTS, _OFFSET, _LENGTH, _STRIDE, _SHAPE = WORDS, SQN, FRAGMENTS, OFFSET, LENGTH, STRIDE, SHAPE
_DATA_BELOW, _HEADER, _TRAIN_BYTES = 1 << KIND_SHIFT, HEADER_BYTES, TRAIN_BYTES


def write_topics(buffer: bytearray, table: RunTable) -> None:
    """Write the first word of each row into the fragments of the row, wherever their kind has it."""
    cells, view = table.cells, buffer
    for nth in range(table.rows):
        row = nth * _WORDS
        shape, offset, stride = cells[row + _SHAPE], cells[row + _OFFSET], cells[row + _STRIDE]
        if shape < _DATA_BELOW:
            at = offset + 4
            for _ in range(cells[row + _FRAGMENTS]):
                write_u32(view, at, cells[row])
                at += stride
        elif shape >> KIND_SHIFT == KIND_CONTROL:
            set_topic_index(buffer, offset, cells[row + _LENGTH], shape >> HEAD_SHIFT & 0xFF, cells[row])


class Datagrams(NamedTuple):
    """Datagrams that lie in `buffer` back to back, each with room for a transport's header in front.

    `sizes` with that header; `fragments` in each; `payloads`: bytes of user data in each.
    """

    buffer: bytearray | memoryview
    sizes: list[int]
    fragments: list[int]
    payloads: list[int]


def lay_out(
    buffer: bytearray,
    table: RunTable,
    header: int,
    most: int,
    reserve: Callable[[int, int], memoryview | None] | None = None,
) -> Datagrams:
    """Copy the fragments of the table into datagrams, and write the topic indexes of their rows.

    Fragments share a datagram of up to `most` bytes; a larger one is alone. `reserve` gets how many bytes and datagrams
    there may be, and says where to put them, if it can.
    """
    sizes: list[int] = []
    fragments: list[int] = []
    payloads: list[int] = []
    others = _other_messages(buffer, table) if table.has_other_than_data() else {}
    count, nbytes = table.total()
    if others:
        nbytes += sum(map(len, others.values()))
    nbytes += count * header
    made: bytearray | memoryview | None = None if reserve is None else reserve(nbytes, count)
    if made is None:
        made = bytearray(nbytes)
    words, source, out = table.cells, buffer, made
    size, held, payload, to = most, 0, 0, 0
    for nth in range(table.rows):
        row = nth * _WORDS
        topic, offset, length = words[row], words[row + _OFFSET], words[row + _LENGTH]
        is_data = words[row + _SHAPE] < _DATA_BELOW
        if not is_data:
            length = len(others[row])
        for _ in range(words[row + _FRAGMENTS]):
            if size + length > most:
                if held:
                    sizes.append(size)
                    fragments.append(held)
                    payloads.append(payload)
                to += header
                size, held, payload = header, 0, 0
            if is_data:
                out[to : to + length] = source[offset : offset + length]
                out[to + 4], out[to + 5] = topic >> 24, topic >> 16 & 0xFF
                out[to + 6], out[to + 7] = topic >> 8 & 0xFF, topic & 0xFF
                offset += words[row + _STRIDE]
                payload += length - _HEADER
            else:
                made[to : to + length] = others[row]
            to += length
            size += length
            held += 1
    sizes.append(size)
    fragments.append(held)
    payloads.append(payload)
    out = None  # type: ignore[assignment]
    if type(made) is bytearray:
        del made[to:]
    else:
        made = made[:to]
    return Datagrams(made, sizes, fragments, payloads)


def _other_messages(buffer: bytearray, table: RunTable) -> dict[int, bytes]:
    """Collect the messages of rows that are no data, with their topic indexes, by where the row begins."""
    found: dict[int, bytes] = {}
    for number, run in enumerate(table):
        if run.kind == KIND_TSNI:
            found[number * WORDS] = lbmc.encode(lbmc.tsni_message([(run.topic_index, run.first_sqn)]))
        elif run.kind == KIND_CONTROL:
            set_topic_index(buffer, run.offset, run.length, run.next_header, run.topic_index)
            found[number * WORDS] = bytes(buffer[run.offset : run.offset + run.length])
    return found


def in_stream(buffer: bytearray, table: RunTable) -> tuple[bytes, list[int]]:
    """The fragments of the table, whose topic indexes are written, back to back, and where each ends."""
    view, words = memoryview(buffer), table.cells
    pieces: list[memoryview | bytes] = []
    ends: list[int] = []
    end = 0
    for nth in range(table.rows):
        row = nth * _WORDS
        offset, length = words[row + _OFFSET], words[row + _LENGTH]
        message = b""
        if words[row + _SHAPE] >> KIND_SHIFT == KIND_TSNI:
            message = lbmc.encode(lbmc.tsni_message([(words[row], words[row + _SQN])]))
            length = len(message)
        elif words[row + _FRAGMENTS] > 1 and words[row + _STRIDE] == length:
            pieces.append(view[offset : offset + words[row + _FRAGMENTS] * length])
            ends += range(end + length, end + words[row + _FRAGMENTS] * length + 1, length)
            end = ends[-1]
            continue
        for _ in range(words[row + _FRAGMENTS]):
            pieces.append(message or view[offset : offset + length])
            offset += words[row + _STRIDE]
            end += length
            ends.append(end)
    return b"".join(pieces), ends


def trains_of(sizes: list[int], segment_max: int, train_max: int) -> list[tuple[int, int, int]]:
    """Datagrams that lie back to back, as (offset, bytes, bytes of a segment or 0): equal ones that follow each other
    are a train of `train_max` at most, if they have no more than `segment_max` bytes."""
    entries: list[tuple[int, int, int]] = []
    at, end, number, count = 0, 0, 0, len(sizes)
    while number < count:
        size = sizes[number]
        many = min(train_max, _TRAIN_BYTES // size) if size <= segment_max else 1
        first, end = number, at + size
        number += 1
        while number < count and number - first < many and sizes[number] == size:
            end += size
            number += 1
        entries.append((at, end - at, size if number - first > 1 else 0))
        at = end
    return entries


def drop_first(table: RunTable, fragments: int) -> None:
    """Take so many fragments off the front of the table."""
    words = table.words
    at = 0
    while fragments:
        count = words[at + FRAGMENTS]
        if count > fragments:
            words[at + FRAGMENTS] = count - fragments
            words[at + OFFSET] += fragments * words[at + STRIDE]
            words[at + SQN] = words[at + SQN] + fragments & MASK
            break
        fragments -= count
        at += WORDS
    end = table.rows * WORDS
    if at == end:
        table.rows = 0
    elif at:
        words[: end - at] = words[at:end]
        table.rows -= at // WORDS


def keep_first(table: RunTable, fragments: int) -> RunTable:
    """Keep so many fragments from the front of the table; returns the others."""
    rest = RunTable(table.rows)
    rest.rows = table.rows
    rest.tobytes()[:] = table.tobytes()
    if fragments:
        drop_first(rest, fragments)
    rows = table.rows - rest.rows
    if part := fragments - sum(table.column(FRAGMENTS)[:rows]):
        table.words[rows * WORDS + FRAGMENTS] = part
        rows += 1
    table.rows = rows
    return rest
