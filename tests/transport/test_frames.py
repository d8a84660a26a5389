"""What leaves of a table: every message once, in order, in as few datagrams as the limit allows."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from dro.transport.frames import (
    TRAIN_BYTES,
    drop_first,
    in_stream,
    keep_first,
    lay_out,
    trains_of,
    write_topics,
)
from dro.transport.runs import KIND_CONTROL, KIND_DATA, KIND_TSNI, Run, RunTable
from dro.wire.lbmc import message as lbmc

HEADER = 20
Made = tuple[bytearray, RunTable, list[tuple[bytes, int]]]


@st.composite
def made(draw: st.DrawFn) -> Made:
    """A buffer, a table of runs in it, and each message as it should leave, with its user data."""
    buffer, table, messages = bytearray(), RunTable(), list[tuple[bytes, int]]()
    for number in range(draw(st.integers(1, 12))):
        topic, sqn = 7000 + number, draw(st.sampled_from([0, 5, 0xFFFFFFFE]))
        kind = draw(st.sampled_from([KIND_DATA, KIND_DATA, KIND_DATA, KIND_CONTROL, KIND_TSNI]))
        buffer += bytes(draw(st.integers(0, 40)))
        if kind == KIND_TSNI:
            table.add_run(Run(topic, sqn, 1, 0, 0, 0, 0, 0, kind))
            messages.append((lbmc.encode(lbmc.tsni_message([(topic, sqn)])), 0))
        elif kind == KIND_CONTROL:
            table.add_run(Run(topic, 0, 1, len(buffer), 12, 12, 0, 0x65, kind))
            buffer += bytes.fromhex("0865000cff08000000000063")
            messages.append((bytes.fromhex("0865000cff080000") + topic.to_bytes(4, "big"), 0))
        else:
            count, size, gap = (
                draw(st.integers(1, 6)),
                draw(st.sampled_from([12, 40, 300, 900])),
                draw(st.integers(0, 9)),
            )
            table.add_run(Run(topic, sqn, count, len(buffer), size, size + gap, 0, 0, kind))
            for i in range(count):
                message = lbmc.HEADER.pack(0, 0, size, 99, sqn + i & 0xFFFFFFFF) + bytes([number]) * (size - 12)
                buffer += message + bytes(gap)
                messages.append((message[:4] + topic.to_bytes(4, "big") + message[8:], size - 12))
    return buffer, table, messages


@given(scene=made(), most=st.sampled_from([0, 32, 100, 700, 2048, 8192]))
def test_datagrams_have_all_messages_in_order_and_no_room_for_the_next_one(scene: Made, most: int) -> None:
    buffer, table, messages = scene
    write_topics(buffer, table)
    datagrams = lay_out(buffer, table, HEADER, most)
    at, rest = 0, list(messages)
    columns = zip(datagrams.sizes, datagrams.fragments, datagrams.payloads, strict=True)
    for number, (size, fragments, payload) in enumerate(columns):
        datagram = bytes(datagrams.buffer[at : at + size])
        mine, rest = rest[:fragments], rest[fragments:]
        assert datagram == bytes(HEADER) + b"".join(message for message, _ in mine)
        assert payload == sum(user for _, user in mine)
        assert fragments == 1 or size <= most
        if number + 1 < len(datagrams.sizes):
            assert size + len(rest[0][0]) > most
        at += size
    assert (at, rest) == (len(datagrams.buffer), [])


@given(scene=made())
def test_a_stream_has_all_messages_back_to_back(scene: Made) -> None:
    buffer, table, messages = scene
    write_topics(buffer, table)
    stream, ends = in_stream(buffer, table)
    begins = [0, *ends[:-1]]
    assert [stream[begin:end] for begin, end in zip(begins, ends, strict=True)] == [message for message, _ in messages]
    assert ends[-1] == len(stream)


@given(scene=made(), share=st.floats(0, 1), fits=st.sampled_from([0, 1, 2]))
def test_a_table_is_divided_between_any_two_fragments(scene: Made, share: float, fits: int) -> None:
    buffer, table, messages = scene
    write_topics(buffer, table)
    first = round(share * table.fragments())
    rest = keep_first(table, first)
    kept = [message for message, _ in messages[:first]]
    assert (table.fragments(), rest.fragments()) == (first, len(messages) - first)
    if table.rows:
        assert in_stream(buffer, table)[0] == b"".join(kept)
        drop_first(table, min(fits, first))
        if table.rows:
            assert in_stream(buffer, table)[0] == b"".join(kept[min(fits, first) :])
    if rest.rows:
        assert in_stream(buffer, rest)[0] == b"".join(message for message, _ in messages[first:])


@given(
    sizes=st.lists(st.sampled_from([20, 600, 40_000]), min_size=1, max_size=9),
    segment_max=st.sampled_from([0, 599, 600, 65_000]),
    train_max=st.sampled_from([1, 2, 16]),
)
def test_equal_neighbours_are_trains_as_long_as_may_be(sizes: list[int], segment_max: int, train_max: int) -> None:
    entries = trains_of(sizes, segment_max, train_max)
    end = 0
    for at, nbytes, _ in entries:
        assert at == end
        end += nbytes
    trains = [[segment] * (nbytes // segment) if segment else [nbytes] for _, nbytes, segment in entries]
    assert [size for train in trains for size in train] == sizes
    for train, (_, nbytes, segment) in zip(trains, entries, strict=True):
        assert len(train) <= train_max
        assert segment == 0 or (segment <= segment_max and len(train) > 1 and nbytes <= TRAIN_BYTES)
    for one, two in pairwise(trains):
        size = one[0]
        may_grow = len(one) < train_max and size <= segment_max and (len(one) + 1) * size <= TRAIN_BYTES
        assert two[0] != size or not may_grow
