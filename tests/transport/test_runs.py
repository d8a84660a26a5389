"""Runs against a naive walk: the same messages in the same order, every run within its buffer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.sqn import MASK
from dro.transport.runs import (
    KIND_CONTROL,
    KIND_DATA,
    KIND_TSNI,
    Run,
    RunTable,
    chain,
    has_block,
    read_messages,
    set_topic_index,
)
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.message import HEADER as LBMC

HEADROOM = 20


@dataclass(frozen=True)
class Found:
    """One message as the naive walk or an unfolded run has it."""

    kind: int
    topic: int
    sqn: int
    message: bytes
    head: int = 0


def naive(data: bytes) -> tuple[list[Found], int, bool]:
    """(what concerns topics, messages, is it sound) by the rules of `read_messages`, one message at a time."""
    found: list[Found] = []
    messages = pos = 0
    while len(data) - pos >= 4:
        kind, head, length = data[pos], data[pos + 1], int.from_bytes(data[pos + 2 : pos + 4], "big")
        message = data[pos : pos + length]
        if length < 4 or len(message) < length or kind not in (0, 1, 2, 8, 10):
            return found, messages, False
        if kind in (0, 2, 10):
            if length < 12:
                return found, messages, False
            topic, sqn = int.from_bytes(message[4:8], "big"), int.from_bytes(message[8:12], "big")
            found.append(Found(KIND_DATA, topic, sqn, message, head))
        elif kind == 8:
            try:
                blocks = [(code, message[at + 4 : at + size]) for code, at, size in chain(message, 4, length, head)]
            except DecodeError:
                return found, messages, False
            for code, body in blocks:
                if code == 0x20:
                    for i in range(0, len(body) - 7, 8):
                        pair = int.from_bytes(body[i : i + 4], "big"), int.from_bytes(body[i + 4 : i + 8], "big")
                        found.append(Found(KIND_TSNI, *pair, b""))
            topics = [body[:4] for code, body in blocks if code == 0x65 and len(body) >= 4]
            if topics:
                found.append(Found(KIND_CONTROL, int.from_bytes(topics[-1], "big"), 0, message, head))
        messages += 1
        pos += length
    return found, messages, True


def unfold(view: bytes, runs: list[Run], least: int = 0) -> list[Found]:
    """The messages of the runs; asserts that each lies in `view[least:]` with its headroom and overlaps no other."""
    found = []
    taken: list[tuple[int, int]] = []
    for run in runs:
        if run.kind == KIND_TSNI:
            assert (run.fragments, run.length) == (1, 0)
            found.append(Found(KIND_TSNI, run.topic_index, run.first_sqn, b""))
            continue
        assert run.fragments >= 1
        assert run.stride >= run.length + run.headroom
        for i in range(run.fragments):
            at = run.offset + i * run.stride
            begin, end = at - run.headroom, at + run.length
            assert least <= begin <= end <= len(view)
            taken.append((begin, end))
            sqn = (run.first_sqn + i) & MASK
            found.append(Found(run.kind, run.topic_index, sqn, bytes(view[at:end]), run.next_header))
    taken.sort()
    assert all(end <= begin for (_, end), (begin, _) in pairwise(taken))
    return found


def check(packet: bytes, headroom: int) -> None:
    data = packet[headroom:]
    expected, messages, is_sound = naive(data)
    builder = RunTable()
    if is_sound:
        assert read_messages(packet, headroom, len(packet), headroom, builder) == messages
    else:
        with pytest.raises(DecodeError):
            read_messages(packet, headroom, len(packet), headroom, builder)
    assert unfold(packet, builder.take()) == expected
    assert builder.take() == []


blocks = st.one_of(
    st.tuples(st.sampled_from([0x04, 0x20, 0x65, 0x66, 0x10]), st.binary(max_size=40)).map(
        lambda b: (b[0], bytes([len(b[1]) + 4, 0, 0]) + b[1])
    ),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=4).map(
        lambda pairs: (
            0x20,
            bytes([4 + 8 * len(pairs), 0, 0]) + b"".join(t.to_bytes(4, "big") + s.to_bytes(4, "big") for t, s in pairs),
        )
    ),
)


def with_chain(kind: int, fixed: bytes, chained: list[tuple[int, bytes]], payload: bytes) -> bytes:
    """A message whose header is `kind`, `fixed` and the blocks."""
    codes = [code for code, _ in chained] + [0]
    body = fixed + b"".join(bytes([codes[i + 1]]) + rest for i, (_, rest) in enumerate(chained)) + payload
    return bytes([kind, codes[0]]) + (len(body) + 4).to_bytes(2, "big") + body


data_messages = st.builds(
    lambda kind, topic, sqn, chained, payload: with_chain(
        kind, topic.to_bytes(4, "big") + (sqn & MASK).to_bytes(4, "big"), chained, payload
    ),
    st.sampled_from([0, 0, 0, 2, 10]),
    st.integers(0, 2),
    st.integers(-3, 6),
    st.lists(blocks, max_size=1),
    st.sampled_from([b"", b"x", b"yy", bytes(30)]),
)
streams = st.builds(
    lambda topic, first, count, size: b"".join(
        LBMC.pack(0, 0, 12 + size, topic, (first + i) & MASK) + bytes(size) for i in range(count)
    ),
    st.integers(0, 2),
    st.sampled_from([0, 5, MASK - 1]),
    st.integers(1, 9),
    st.integers(0, 3),
)
control_messages = st.builds(lambda chained: with_chain(8, b"", chained, b""), st.lists(blocks, max_size=4))
packets = st.lists(
    st.one_of(data_messages, streams, control_messages, st.just(bytes([1, 0, 0, 4])), st.binary(max_size=12)),
    max_size=12,
).map(b"".join)


@pytest.mark.parametrize(("second", "runs"), [(131, 2), (149, 2), (150, 1), (400, 1)])
def test_fragments_whose_headroom_lies_in_another_one_are_no_run(second: int, runs: int) -> None:
    builder = RunTable()
    builder.add(1, 5, 100, 30, HEADROOM, 0)
    builder.add(1, 6, second, 30, HEADROOM, 0)
    assert len(builder.take()) == runs


@given(data=st.binary(max_size=300), headroom=st.sampled_from([0, HEADROOM]))
def test_arbitrary_bytes_are_a_decode_error_or_what_a_naive_walk_finds(data: bytes, headroom: int) -> None:
    check(bytes(headroom) + data, headroom)


@given(data=packets, headroom=st.sampled_from([0, HEADROOM]))
@example(data=LBMC.pack(0, 0, 12, 1, MASK) + LBMC.pack(0, 0, 12, 1, 0), headroom=0)
def test_messages_come_out_as_a_naive_walk_finds_them(data: bytes, headroom: int) -> None:
    check(bytes(headroom) + data, headroom)


@given(data=packets, flips=st.lists(st.tuples(st.integers(0, 2000), st.integers(1, 255)), max_size=4))
def test_damaged_messages_are_a_decode_error_or_what_a_naive_walk_finds(
    data: bytes, flips: list[tuple[int, int]]
) -> None:
    damaged = bytearray(data)
    for at, mask in flips:
        if damaged:
            damaged[at % len(damaged)] ^= mask
    check(bytes(damaged), 0)


@given(
    datagrams=st.lists(packets, max_size=8),
    gaps=st.lists(st.sampled_from([0, 0, 0, 1, 500]), min_size=8, max_size=8),
    headroom=st.sampled_from([0, HEADROOM]),
)
def test_runs_go_across_the_datagrams_of_a_batch(datagrams: list[bytes], gaps: list[int], headroom: int) -> None:
    """Datagrams lie at growing offsets of one area, some back to back, some apart."""
    area = b""
    builder = RunTable()
    expected: list[Found] = []
    for datagram, gap in zip(datagrams, gaps, strict=False):
        start = len(area) + gap
        area += bytes(gap) + bytes(headroom) + datagram
        expected += naive(datagram)[0]
        try:
            read_messages(area, start + headroom, len(area), headroom, builder)
        except DecodeError:
            continue
    assert unfold(area, builder.take()) == expected


def test_a_steady_stream_is_one_run_across_datagrams_with_its_headroom() -> None:
    area = b"".join(bytes(HEADROOM) + LBMC.pack(0, 0, 20, 7, MASK - 3 + i & MASK) + bytes(8) for i in range(8))
    builder = RunTable()
    for i in range(8):
        read_messages(area, i * 40 + HEADROOM, (i + 1) * 40, HEADROOM, builder)
    assert builder.take() == [Run(7, MASK - 3, 8, HEADROOM, 20, 40, HEADROOM, 0, KIND_DATA)]


@given(
    counts=st.lists(st.integers(1, 5), min_size=1, max_size=8),
    breaks=st.lists(st.sampled_from(["", "", "", "sqn", "topic", "gap", "head", "length"]), min_size=8, max_size=8),
)
def test_runs_that_continue_each_other_become_one(counts: list[int], breaks: list[str]) -> None:
    """Runs and single fragments in any mixture are the same as the fragments one by one."""
    together, single = RunTable(), RunTable()
    offset, sqn, topic, head, length = 0, MASK - 2, 1, 0, 20
    for count, what in zip(counts, breaks, strict=False):
        offset += 7 if what == "gap" else 0
        sqn = (sqn + (what == "sqn")) & MASK
        topic += what == "topic"
        head ^= 0x66 * (what == "head")
        length += what == "length"
        together.add_run(Run(topic, sqn, count, offset, length, length, 0, head, KIND_DATA))
        for _ in range(count):
            single.add(topic, sqn, offset, length, 0, head)
            sqn, offset = (sqn + 1) & MASK, offset + length
    runs = together.take()
    area = bytes(offset)
    assert unfold(area, runs) == unfold(area, single.take())
    assert len(runs) == 1 + sum(what != "" for what in breaks[1 : len(counts)])


def test_a_block_is_found_in_the_chain_of_the_first_message_and_a_broken_chain_has_none() -> None:
    message = with_chain(0, bytes(8), [(0x66, bytes([4, 0, 0])), (0x04, bytes([8, 0, 0, 1, 2, 3, 4]))], b"data")
    run = Run(0, 0, 1, 0, len(message), len(message), 0, 0x66, KIND_DATA)
    assert has_block(message, run, 0x04)
    assert not has_block(message, run, 0x65)
    assert not has_block(message[:13] + b"\xff" + message[14:], run, 0x04)
    assert not has_block(lbmc.encode(lbmc.tsni_message([(1, 2)])), run._replace(next_header=0), 0x04)


def test_a_topic_index_is_set_in_every_block_that_has_room_for_one_and_nowhere_else() -> None:
    blocks = [
        (0x65, bytes([4, 0, 0])),
        (0x20, bytes([12, 0, 0]) + bytes(8)),
        (0x65, bytes([8, 0, 0]) + bytes(4)),
        (0x65, bytes([12, 0, 0]) + bytes(8)),
    ]
    message = b"front" + with_chain(8, b"", blocks, b"") + b"back"
    buffer = bytearray(message)
    set_topic_index(buffer, 5, len(message) - 9, 0x65, 0x01020304)
    expected = bytearray(message)
    for at in (5 + 4 + 4 + 12, 5 + 4 + 4 + 12 + 8):
        expected[at + 4 : at + 8] = bytes([1, 2, 3, 4])
    assert buffer == expected


@pytest.mark.parametrize(
    ("size", "end", "error"),
    [
        (4, 8, None),
        (8, 8, None),
        (3, 8, "lbmc.block: length 3 of block 0x66, 8 bytes left at byte 2"),
        (9, 8, "lbmc.block: length 9 of block 0x66, 8 bytes left at byte 2"),
        (0, 3, None),  # no room for a block: the chain is over
    ],
)
def test_a_block_is_as_long_as_it_says_and_within_its_message(size: int, end: int, error: str | None) -> None:
    area = b"??" + bytes([0xFF, size]) + bytes(12)
    if error is None:
        expected = [(0x66, 2, size)] if end >= 4 else []
        assert list(chain(area, 2, 2 + end, 0x66)) == expected
    else:
        with pytest.raises(DecodeError, match=error):
            list(chain(area, 2, 2 + end, 0x66))
    assert list(chain(area, 2, 2 + end, 0)) == list(chain(area, 2, 2 + end, 0xFF)) == []


@pytest.mark.parametrize("records", [0, 1, 3])
@pytest.mark.parametrize("rest", [0, 7])
def test_each_whole_record_of_a_tsni_is_told_and_a_topic_index_needs_four_bytes(records: int, rest: int) -> None:
    pairs = [(7 + number, 40 + number) for number in range(records)]
    body = b"".join(topic.to_bytes(4, "big") + sqn.to_bytes(4, "big") for topic, sqn in pairs) + bytes(rest)
    message = with_chain(
        8, b"", [(0x65, bytes([7, 0, 0]) + bytes(3)), (0x20, bytes([4 + len(body), 0, 0]) + body)], b""
    )
    out = RunTable()
    assert read_messages(b"!" + message, 1, 1 + len(message), 0, out) == 1
    assert out.take() == [Run(topic, sqn, 1, 0, 0, 0, 0, 0, KIND_TSNI) for topic, sqn in pairs]


@pytest.mark.parametrize("stray", [0, 1, 3])
def test_what_a_packet_holds_is_counted_and_stray_bytes_at_its_end_are_not(stray: int) -> None:
    topic_idx = with_chain(8, b"", [(0x65, bytes([8, 0, 0]) + (99).to_bytes(4, "big"))], b"")
    packet = LBMC.pack(0, 0, 14, 1, 5) + b"xx" + bytes([1, 0, 0, 4]) + topic_idx + LBMC.pack(0, 0, 12, 1, 6)
    out = RunTable()
    assert read_messages(packet + bytes([0, 0, 0])[:stray], 0, len(packet) + stray, 0, out) == 4
    assert out.take() == [
        Run(1, 5, 1, 0, 14, 14, 0, 0, KIND_DATA),
        Run(99, 0, 1, 18, 12, 12, 0, 0x65, KIND_CONTROL),
        Run(1, 6, 1, 30, 12, 12, 0, 0, KIND_DATA),
    ]


@pytest.mark.parametrize(
    ("packet", "error"),
    [
        (bytes([0, 0, 0, 3]), "lbmc.msglen: 3 bytes declared, 4 left at byte 2"),
        (bytes([0, 0, 0, 13]) + bytes(8), "lbmc.msglen: 13 bytes declared, 12 left at byte 2"),
        (bytes([0, 0, 0, 11]) + bytes(8), "lbmc"),
        (bytes([3, 0, 0, 12]) + bytes(8), "lbmc"),
    ],
)
def test_a_bad_length_or_type_is_named_with_its_place(packet: bytes, error: str) -> None:
    with pytest.raises(DecodeError, match=error):
        read_messages(b"??" + packet, 2, 2 + len(packet), 0, RunTable())
