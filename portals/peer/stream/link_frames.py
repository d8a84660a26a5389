"""Fragments on a peer link: LBMC messages whose first block, SRCIDX, names the source.

Going out, the block is put into each message and the topic index becomes that of the originating session; coming in, it
is taken out in place, so that everything above a link sees the messages of an ordinary stream, with the number of the
source where they have the topic index. On UDP the messages lie behind the header of a packet of LBT-RU with a session
id and no other option. Pure, and the reference for its compiled form.

Wire layout: peer link notes, sections 3, 10 and 15.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from struct import Struct
from typing import Final

from dro.errors import DecodeError
from dro.sqn import MASK
from dro.transport.runs import (
    FRAGMENTS,
    HEAD_SHIFT,
    HEADER_BYTES,
    KIND_CONTROL,
    KIND_SHIFT,
    KIND_TSNI,
    LENGTH,
    MINIMAL_BYTES,
    OFFSET,
    ROW,
    SHAPE,
    STRIDE,
    TYPE_MESSAGE,
    WORDS,
    RunTable,
    set_topic_index,
    u32,
    write_u32,
)
from dro.transport.scan import Stream
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MESSAGE_MAX, BlockType
from dro.wire.lbmc.data_blocks import SrcIdx, Tsni, TsniRecord
from dro.wire.lbtru import OPTION_SID, PacketType

SRCIDX_BYTES: Final = 12
FRAGMENT_MAX: Final = MESSAGE_MAX - SRCIDX_BYTES
"""Of a message without the block."""
_SRCIDX: Final = int(BlockType.SRCIDX)
_MARK: Final = Struct("!BBH")
PACKET_HEADER: Final = 20
_PACKET: Final = Struct("!IIIQ")  # type, first option and flags; sqn; trail; the option
_PLAIN: Final = PacketType.DATA << 24 | OPTION_SID << 16
"""Data that is sent for the first time."""
_SID: Final = 8 << 16
"""The upper half of the option: the last one, of 8 bytes."""
# plain integers in the compiled form
_HEAD, _DATA_MARK = PACKET_HEADER, _PLAIN
_WORDS, _FRAGMENTS, _OFFSET, _LENGTH, _STRIDE, _SHAPE = WORDS, FRAGMENTS, OFFSET, LENGTH, STRIDE, SHAPE
_MESSAGE, _HEADER, _BLOCK_BYTES = TYPE_MESSAGE, HEADER_BYTES, SRCIDX_BYTES
_CODE, _LEAST, _DATA_BELOW = _SRCIDX, HEADER_BYTES + SRCIDX_BYTES, 1 << KIND_SHIFT


def scan_link(view: memoryview, pos: int, end: int, table: RunTable) -> tuple[int, int]:
    """Add the data messages from `pos` to `end` to the table; (where it stopped, how many there were).

    That is at a message that is no data of a source, is incomplete, or for which the table has no room. The messages
    are changed in place: what precedes each in `view` is no message any more.
    """
    messages = 0
    while end - pos >= _LEAST and table.rows < table.capacity:
        kind, head, length = view[pos], view[pos + 1], view[pos + 2] << 8 | view[pos + 3]
        if (
            kind != _MESSAGE
            or head != _CODE
            or length < _LEAST
            or pos + length > end
            or view[pos + _HEADER + 1] != _BLOCK_BYTES
        ):
            break
        begin = pos + _BLOCK_BYTES
        topic_index, sqn = u32(view, pos + 4), u32(view, pos + 8)
        head = view[begin]
        index = 0 if u32(view, pos + 16) else u32(view, pos + 20)
        view[begin], view[begin + 1] = kind, head
        view[begin + 2], view[begin + 3] = length - _BLOCK_BYTES >> 8, length - _BLOCK_BYTES & 0xFF
        write_u32(view, begin + 4, topic_index)
        write_u32(view, begin + 8, sqn)
        table.add(index, sqn, begin, length - _BLOCK_BYTES, _BLOCK_BYTES, head)
        messages += 1
        pos += length
    return pos, messages


def take_topic_control(view: memoryview, pos: int, length: int, table: RunTable) -> None:
    """Add one control message of a source, which begins with the block, to the table, which has room for it.

    Raises: DecodeError for a broken one. One that tells nothing of a topic is ignored.
    """
    message = lbmc.decode(bytes(view[pos : pos + length]))
    index, tsni = message.get(SrcIdx), message.get(Tsni)
    if index is None or view[pos + MINIMAL_BYTES + 1] != SRCIDX_BYTES:
        raise DecodeError("lbmc.srcidx", f"a message of {length} bytes does not begin with the block of {SRCIDX_BYTES}")
    source = index.source_index if index.source_index <= MASK else 0
    if tsni is not None:
        for record in tsni.records[:1]:
            table.put(source, record.sqn, 1, 0, 0, 0, KIND_TSNI << KIND_SHIFT)
        return
    if message.find(BlockType.TOPIC_IDX) is None:
        return
    head, begin = view[pos + MINIMAL_BYTES], pos + SRCIDX_BYTES
    _MARK.pack_into(view, begin, view[pos], head, length - SRCIDX_BYTES)
    shape = KIND_CONTROL << KIND_SHIFT | head << HEAD_SHIFT | SRCIDX_BYTES
    table.put(source, 0, 1, begin, length - SRCIDX_BYTES, length, shape)


def stream_key(session_id: int) -> int:
    """Return the key of the `Stream` of a session of datagrams."""
    return _SID << 32 | session_id


def scan_packets(
    view: memoryview, offsets: Sequence[int], lengths: Sequence[int], at: int, stream: Stream
) -> tuple[int, int]:
    """Take datagrams from number `at` on into the table of their session; (number of the one where it stopped, place).

    That is the count of datagrams when all were taken. With a place other than 0 that datagram is taken but for the
    messages from there on, which are no data; else it is not data in order of the session, or the table has no room.
    """
    count, table, key, expected = len(lengths), stream.table, stream.key, stream.expected
    if not stream.datagrams:
        stream.first = 0 if expected < 0 else expected
    while at < count:
        offset, length = offsets[at], lengths[at]
        if length < _HEAD:
            return at, 0
        mark, sqn, trail = u32(view, offset), u32(view, offset + 4), u32(view, offset + 8)
        found = u32(view, offset + 12)
        found = found << 32 | u32(view, offset + 16)
        if (
            mark != _DATA_MARK
            or found != key
            or sqn != stream.expected
            or (table.capacity - table.rows) * _LEAST < length
        ):
            return at, 0
        end = offset + length
        pos, messages = scan_link(view, offset + _HEAD, end, table)
        stream.datagrams += 1
        stream.nbytes += length
        stream.messages += messages
        stream.trail = trail
        stream.expected = sqn + 1 & MASK
        if pos != end:
            return at, pos
        at += 1
    return at, 0


def write_packets(buffer: bytearray, offsets: Sequence[int], session_id: int, sqn: int, trail: int) -> None:
    """Write the header of a data packet at each of `offsets`: numbers from `sqn` on."""
    pack, option = _PACKET.pack_into, _SID << 32 | session_id
    for at in offsets:
        pack(buffer, at, _PLAIN, sqn, trail, option)
        sqn = (sqn + 1) & MASK


def for_link(
    buffer: bytearray, table: RunTable, topics: dict[int, int], held: int, most: int, header: int = 0
) -> tuple[bytearray, list[int], list[int]]:
    """The messages of the table, each with its block, back to back; where in that a new batch begins, and behind how
    many messages.

    The first word of a row is the number of the source; `topics`: the topic index of each there where it originates. A
    batch has at most `most` bytes, of which the first has `held` already; a larger message is alone in one. Each that
    begins here has `header` free bytes in front, which count.
    """
    cuts: list[int] = []
    counts: list[int] = []
    size, to, number = held, 0, 0
    others = _control_messages(buffer, table, topics) if table.has_other_than_data() else {}
    count, nbytes = table.total()
    if others:
        nbytes += sum(map(len, others.values()))
    made = bytearray(nbytes + count * (SRCIDX_BYTES + header))
    cells, source, out = table.cells, buffer, made
    for nth in range(table.rows):
        row = nth * _WORDS
        index, offset, length = cells[row], cells[row + _OFFSET], cells[row + _LENGTH]
        is_data = cells[row + _SHAPE] < _DATA_BELOW
        topic, whole = topics[index], length + _BLOCK_BYTES
        if not is_data:
            whole = len(others[row])
        for _ in range(cells[row + _FRAGMENTS]):
            if size and size + whole > most:
                cuts.append(to)
                counts.append(number)
                size = 0
            if not size:
                to += header
                size = header
            if is_data:
                out[to], out[to + 1] = source[offset], _CODE
                out[to + 2], out[to + 3] = whole >> 8 & 0xFF, whole & 0xFF
                write_u32(out, to + 4, topic)
                out[to + 8 : to + 12] = source[offset + 8 : offset + 12]
                out[to + 12], out[to + 13] = source[offset + 1], _BLOCK_BYTES
                write_u32(out, to + 20, index)
                out[to + 24 : to + whole] = source[offset + 12 : offset + length]
                offset += cells[row + _STRIDE]
            else:
                made[to : to + whole] = others[row]
            to += whole
            size += whole
            number += 1
    out = None  # type: ignore[assignment]
    del made[to:]
    return made, cuts, counts


def renumber(batch: bytearray, ends: list[int], header: int, numbers: Mapping[int, int]) -> None:
    """Give sources in a batch of `for_link` other numbers. `ends`: of packets, each with `header` bytes in front."""
    begin = 0
    for end in ends:
        pos = begin + header
        while pos < end:
            is_data, length = batch[pos] == TYPE_MESSAGE, batch[pos + 2] << 8 | batch[pos + 3]
            at = pos + (HEADER_BYTES if is_data else MINIMAL_BYTES) + 8
            if batch[at - 7] == SRCIDX_BYTES and (number := numbers.get(u32(batch, at))) is not None:
                write_u32(batch, at, number)
            pos += length
        begin = end


def _control_messages(buffer: bytearray, table: RunTable, topics: dict[int, int]) -> dict[int, bytes]:
    """Collect the messages of rows that are no data, by where the row begins."""
    cells = table.words
    return {
        row: _control(buffer, table, row, topics[cells[row]])
        for row in range(0, table.rows * WORDS, WORDS)
        if cells[row + SHAPE] >= 1 << KIND_SHIFT
    }


def _control(buffer: bytearray, table: RunTable, row: int, topic: int) -> bytes:
    """Encode the message of a row that is no data."""
    index, sqn, _, offset, length, _, shape = ROW.unpack_from(table.words, 4 * row)
    if shape >> KIND_SHIFT == KIND_TSNI:
        record = TsniRecord(topic, sqn)
        return lbmc.encode(lbmc.control_message(SrcIdx(index), Tsni((record,))))
    set_topic_index(buffer, offset, length, shape >> HEAD_SHIFT & 0xFF, topic)
    message = lbmc.decode(bytes(buffer[offset : offset + length]))
    return lbmc.encode(replace(message, blocks=(SrcIdx(index), *message.blocks)))
