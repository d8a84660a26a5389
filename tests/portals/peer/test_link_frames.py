"""Fragments on a peer link: what goes out comes in, and is what the wire notes say."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.transport.runs import KIND_CONTROL, KIND_DATA, KIND_TSNI, Run, RunTable
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import END_DATA, BlockType, MessageType
from dro.wire.lbmc.data_blocks import SrcIdx, TopicIdx
from dro.wire.lbmc.ume_blocks import Sri
from portals.peer.stream.link_frames import FRAGMENT_MAX, SRCIDX_BYTES, for_link, scan_link, take_topic_control

Source = tuple[int, int, int, bytes]  # number, topic index at the origin, sqn, payload
sources = st.lists(
    st.tuples(st.integers(1, 9), st.integers(0, 0xFFFFFFFF), st.integers(0, 0xFFFFFFFF), st.binary(max_size=60)),
    min_size=1,
    max_size=40,
)


def rows_of(messages: list[Source], spacing: int = 0) -> tuple[bytearray, RunTable, dict[int, int]]:
    """Messages as an ingress has put them into the ring: topic indexes are those of another session."""
    buffer, table = bytearray(), RunTable()
    for number, _, sqn, payload in messages:
        buffer += bytes(spacing)
        table.add(number, sqn, len(buffer), 12 + len(payload), 0, 0)
        buffer += lbmc.HEADER.pack(0, 0, 12 + len(payload), 0xDEAD, sqn) + payload
    return buffer, table, {number: topic for number, topic, _, _ in messages}


def fragments(view: bytes | bytearray | memoryview, table: RunTable) -> list[tuple[int, int, bytes]]:
    return [
        (run.topic_index, (run.first_sqn + i) & 0xFFFFFFFF, bytes(view[at : at + run.length]))
        for run in table
        for i in range(run.fragments)
        for at in [run.offset + i * run.stride]
    ]


@given(sources, st.integers(0, 20))
def test_what_goes_out_comes_in(messages: list[Source], spacing: int) -> None:
    buffer, table, topics = rows_of(messages, spacing)
    made, cuts, counts = for_link(buffer, table, topics, 0, 1 << 30)
    assert cuts == counts == []
    view = memoryview(made)
    heard = RunTable()
    assert scan_link(view, 0, len(view), heard) == (len(view), len(messages))
    expected = [
        (number, sqn, lbmc.HEADER.pack(0, 0, 12 + len(payload), topics[number], sqn) + payload)
        for number, _, sqn, payload in messages
    ]
    assert fragments(view, heard) == expected
    assert all(run.headroom == SRCIDX_BYTES and run.kind == KIND_DATA for run in heard)


@given(sources)
def test_every_message_on_the_link_decodes_with_its_block_first(messages: list[Source]) -> None:
    buffer, table, topics = rows_of(messages)
    made, _, _ = for_link(buffer, table, topics, 0, 1 << 30)
    at = 0
    for number, _, sqn, payload in messages:
        message = lbmc.decode(bytes(made), at)
        assert message.blocks == (SrcIdx(number),)
        assert (message.topic_index, message.sqn, message.payload) == (topics[number], sqn, payload)
        at += lbmc.MINIMAL.unpack_from(made, at)[2]
    assert at == len(made)


def test_a_steady_stream_stays_one_run() -> None:
    buffer, table, topics = rows_of([(3, 77, 100 + i, b"x" * 20) for i in range(50)])
    assert table.rows == 1
    made, _, _ = for_link(buffer, table, topics, 0, 1 << 30)
    heard = RunTable()
    scan_link(memoryview(made), 0, len(made), heard)
    assert heard.rows == 1


@given(sources, st.integers(0, 100), st.integers(30, 200))
def test_batches_are_cut_between_messages(messages: list[Source], held: int, most: int) -> None:
    buffer, table, topics = rows_of(messages)
    made, cuts, counts = for_link(buffer, table, topics, held, most)
    parts = [made[a:b] for a, b in zip([0, *cuts], [*cuts, len(made)], strict=True)]
    sizes = [len(part) for part in parts]
    sizes[0] += held if sizes[0] else 0
    before = 0
    for part, size, count in zip(parts, sizes, [*counts, len(messages)], strict=True):
        walked = list(lbmc.walk(part, 0, len(part)))
        assert sum(length for _, length in walked) == len(part)
        assert size <= most or len(walked) <= 1
        assert len(walked) == count - before
        before = count


def test_blocks_behind_the_number_are_kept() -> None:
    topic_name = lbmc.Message(MessageType.MESSAGE, 5, 6, (TopicIdx(1),), b"user", END_DATA)
    buffer = bytearray(lbmc.encode(topic_name))
    table = RunTable()
    table.add(2, 6, 0, len(buffer), 0, int(BlockType.TOPIC_IDX))
    made, _, _ = for_link(buffer, table, {2: 5}, 0, 1 << 30)
    assert lbmc.decode(bytes(made)).blocks == (SrcIdx(2), TopicIdx(1))
    heard = RunTable()
    scan_link(memoryview(made), 0, len(made), heard)
    ((_, _, message),) = fragments(made, heard)
    assert lbmc.decode(message) == topic_name


def test_tsni_and_sri_cross() -> None:
    control = lbmc.encode(lbmc.control_message(TopicIdx(0xDEAD), Sri(1, 2, 3)))
    buffer, table = bytearray(control), RunTable()
    table.add_run(Run(7, 41, 1, 0, 0, 0, 0, 0, KIND_TSNI))
    table.add_run(Run(7, 0, 1, 0, len(control), len(control), 0, control[1], KIND_CONTROL))
    made, _, _ = for_link(buffer, table, {7: 4711}, 0, 1 << 30)
    view, heard, at = memoryview(made), RunTable(), 0
    assert scan_link(view, 0, len(view), heard) == (0, 0)  # no data
    for _ in range(2):
        length = lbmc.MINIMAL.unpack_from(view, at)[2]
        assert isinstance(lbmc.decode(bytes(view), at).blocks[0], SrcIdx)
        take_topic_control(view, at, length, heard)
        at += length
    tsni, control_run = heard
    assert (tsni.kind, tsni.topic_index, tsni.first_sqn, tsni.fragments) == (KIND_TSNI, 7, 41, 1)
    assert (control_run.kind, control_run.topic_index) == (KIND_CONTROL, 7)
    stripped = lbmc.decode(bytes(view), control_run.offset)
    assert stripped.blocks == (TopicIdx(4711), Sri(1, 2, 3))


@pytest.mark.parametrize(
    "message",
    [
        lbmc.HEADER.pack(0, 0, 14, 1, 1) + b"ab",  # no number
        lbmc.HEADER.pack(0, 0x0E, 20, 1, 1) + bytes(8),  # too short for one
        lbmc.HEADER.pack(0, 0x0E, 28, 1, 1) + bytes([0, 16]) + bytes(14),  # the block has grown
        lbmc.HEADER.pack(0, 0x0E, 40, 1, 1) + bytes([0, 12]) + bytes(10),  # incomplete
        lbmc.MINIMAL.pack(8, 0xFF, 30) + bytes(26),  # control
    ],
)
def test_the_scan_stops_before_what_is_no_data_of_a_source(message: bytes) -> None:
    buffer, table, topics = rows_of([(1, 1, 1, b"before")])
    made, _, _ = for_link(buffer, table, topics, 0, 1 << 30)
    view, heard = memoryview(made + message), RunTable()
    assert scan_link(view, 0, len(view), heard) == (len(made), 1)


def test_a_number_beyond_32_bits_is_nobodys() -> None:
    data = bytearray(lbmc.encode(lbmc.Message(MessageType.MESSAGE, 1, 2, (SrcIdx(1 << 40 | 3),), b"x", END_DATA)))
    heard = RunTable()
    scan_link(memoryview(data), 0, len(data), heard)
    assert [run.topic_index for run in heard] == [0]


def test_the_scan_stops_when_the_table_is_full() -> None:
    buffer, table, topics = rows_of([(1 + i % 2, 1, i, b"x") for i in range(10)])
    made, _, _ = for_link(buffer, table, topics, 0, 1 << 30)
    heard = RunTable(4)
    pos, count = scan_link(memoryview(made), 0, len(made), heard)
    assert (count, heard.rows, pos) == (4, 4, 4 * len(made) // 10)


def test_the_largest_fragment_fits() -> None:
    buffer, table, topics = rows_of([(1, 2, 3, bytes(FRAGMENT_MAX - 12))])
    made, _, _ = for_link(buffer, table, topics, 0, 65500)
    assert lbmc.MINIMAL.unpack_from(made)[2] == len(made) == 0xFFFF


@given(st.binary(max_size=300), st.data())
def test_no_bytes_break_it(noise: bytes, data: st.DataObject) -> None:
    buffer, table, topics = rows_of([(1, 2, 3, b"sound")])
    made, _, _ = for_link(buffer, table, topics, 0, 1 << 30)
    cut = data.draw(st.integers(0, len(made)))
    view, heard = memoryview(bytearray(made[:cut] + noise)), RunTable()
    pos, _ = scan_link(view, 0, len(view), heard)
    assert 0 <= pos <= len(view)
    for run in heard:
        assert run.offset + run.fragments * run.stride - run.headroom <= pos
    if len(view) - pos >= 4 and view[pos] == 8:
        length = lbmc.MINIMAL.unpack_from(view, pos)[2]
        if 4 <= length <= len(view) - pos and view[pos + 1] == BlockType.SRCIDX:
            with contextlib.suppress(DecodeError):
                take_topic_control(view, pos, length, heard)
