"""LBT-TCP framing: any split of a stream, bounded memory, streams that cannot be trusted."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.wire import lbmc
from dro.wire.lbttcp import Framer, FramingError, frame_walk

ONE: Final = lbmc.encode(lbmc.data_message(1, 0, b"one"))
TWO: Final = lbmc.encode(lbmc.tsni_message([(1, 0)]))
THREE: Final = lbmc.encode(lbmc.data_message(2, 7, bytes(500)))
EOT: Final = bytes.fromhex("01000004")

BAD: Final = {
    "length 0": "00000000",
    "length 3": "08ff0003",
    "length 4 of a data message": "00000004",
    "length 11 of a data message": "0000000b",
    "length 11 of a retransmission": "0a00000b",
    "length 11 of a proactive retransmission": "0200000b",
    "unknown type": "03000010",
    "version 1": "10000010",
}


def test_whole_messages_come_out_as_they_went_in() -> None:
    assert Framer().feed(ONE + TWO + THREE + EOT) == [ONE, TWO, THREE, EOT]


def test_one_byte_at_a_time() -> None:
    framer = Framer()
    stream = ONE + TWO + THREE
    assert [frame for i in range(len(stream)) for frame in framer.feed(stream[i : i + 1])] == [ONE, TWO, THREE]


def test_the_beginning_of_a_message_waits() -> None:
    framer = Framer()
    assert framer.feed(ONE + TWO[:5]) == [ONE]
    assert framer.pending == 5
    assert framer.feed(b"") == []
    assert framer.feed(memoryview(TWO)[5:]) == [TWO]
    assert framer.pending == 0


def test_the_largest_message_is_whole() -> None:
    largest = lbmc.encode(lbmc.data_message(1, 0, bytes(65535 - 12)))
    framer = Framer()
    assert framer.feed(largest[:-1]) == []
    assert framer.feed(largest[-1:] + ONE) == [largest, ONE]


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_a_header_that_cannot_be_right_ends_the_stream(text: str) -> None:
    framer = Framer()
    assert framer.feed(ONE) == [ONE]
    with pytest.raises(FramingError) as caught:
        framer.feed(TWO + bytes.fromhex(text))
    assert caught.value.frames == [TWO]
    assert caught.value.offset == len(ONE + TWO)
    assert framer.pending == 0
    with pytest.raises(FramingError) as again:
        framer.feed(ONE)
    assert again.value.frames == []
    assert again.value.offset == len(ONE + TWO)


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_frame_walk_stops_before_the_fault_and_then_raises(text: str) -> None:
    buf = memoryview(b"??" + ONE + bytes.fromhex(text))
    assert frame_walk(buf, 2, len(buf)) == ([(2, len(ONE))], len(ONE))
    with pytest.raises(DecodeError):
        frame_walk(buf, 2 + len(ONE), len(buf))


def test_frame_walk_leaves_the_beginning_of_a_message() -> None:
    buf = ONE + TWO + THREE[:-1]
    assert frame_walk(buf, 0, len(buf)) == ([(0, len(ONE)), (len(ONE), len(TWO))], len(ONE + TWO))
    assert frame_walk(buf, len(ONE), len(ONE) + 3) == ([], 0)
    assert frame_walk(b"", 0, 0) == ([], 0)


messages = st.lists(
    st.one_of(
        st.builds(lambda i, p: lbmc.encode(lbmc.data_message(i, i, p)), st.integers(0, 9), st.binary(max_size=60)),
        st.just(TWO),
        st.just(EOT),
    ),
    max_size=8,
)


@given(messages, st.lists(st.integers(0, 600), max_size=12))
def test_any_split_gives_the_same_messages(frames: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(frames)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    framer = Framer()
    pieces = [stream[a:b] for a, b in pairwise(edges)]
    assert [frame for piece in pieces for frame in framer.feed(piece)] == frames


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_arbitrary_bytes_raise_nothing_but_framing_errors_and_are_not_kept(chunks: list[bytes]) -> None:
    framer = Framer()
    out = b""
    for chunk in chunks:
        try:
            out += b"".join(framer.feed(chunk))
        except FramingError as e:
            out += b"".join(e.frames)
            break
        assert framer.pending <= 65535
    assert b"".join(chunks).startswith(out)
