"""Which unicast messages were seen before."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from dro.clock import s
from dro.proto.unicast.streams import FORGET_NS, WINDOW, SeenStreams

ONE, TWO = (b"instance", 1), (b"instance", 2)


@given(st.lists(st.integers(-WINDOW // 2, WINDOW // 2 - 1), max_size=300), st.integers(0, 0xFFFFFFFF))
@example([WINDOW // 2 - 1, -WINDOW // 2, -WINDOW // 2], 0)
def test_within_the_window_each_number_is_new_once(offsets: list[int], first: int) -> None:
    seen = SeenStreams()
    known: set[int] = set()
    for offset in offsets:
        assert seen.is_new(ONE, (first + offset) & 0xFFFFFFFF, 0) is (offset not in known)
        known.add(offset)


def test_streams_do_not_disturb_each_other() -> None:
    seen = SeenStreams()
    assert [seen.is_new(stream, 7, 0) for stream in (ONE, TWO, ONE, TWO)] == [True, True, False, False]


def test_what_is_below_the_window_counts_as_seen() -> None:
    seen = SeenStreams()
    seen.is_new(ONE, 0, 0)
    assert seen.is_new(ONE, WINDOW + 4, 0)
    assert not seen.is_new(ONE, 4, 0)
    assert seen.is_new(ONE, 5, 0)


def test_a_stream_without_anything_new_is_forgotten_so_that_it_can_begin_anew() -> None:
    seen = SeenStreams()
    seen.is_new(ONE, 5000, 0)
    for at in range(0, FORGET_NS, s(1)):
        assert not seen.is_new(ONE, 0, at)
    assert seen.is_new(ONE, 0, FORGET_NS)
    seen.forget_old(2 * FORGET_NS - 1)
    assert len(seen) == 1
    seen.forget_old(2 * FORGET_NS)
    assert len(seen) == 0


def test_the_stream_silent_for_longest_gives_way() -> None:
    seen = SeenStreams(streams_max=2)
    for stream in (ONE, TWO):
        seen.is_new(stream, 1, 0)
    seen.is_new(ONE, 2, 0)
    seen.is_new((b"another!", 1), 1, 0)
    assert len(seen) == 2
    assert not seen.is_new(ONE, 1, 0)
    assert seen.is_new(TWO, 1, 0)
