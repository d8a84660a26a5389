"""Descriptors: what is written is read, and nothing that is read reaches past its chunk."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.transport.runs import KIND_CONTROL, KIND_DATA, KIND_TSNI, Run, RunTable
from portals.datapath import descriptor

u32 = st.integers(0, 0xFFFFFFFF)


class Descriptor(NamedTuple):
    """What is encoded, with its rows as runs."""

    position: int
    size: int
    runs: tuple[Run, ...]


def encode(made: Descriptor) -> bytes:
    table = RunTable()
    for run in made.runs:
        table.add_run(run)
    return descriptor.encode(made.position, made.size, table)


def decode(frame: bytes) -> Descriptor:
    table = RunTable()
    position, size = descriptor.decode(frame, table)
    return Descriptor(position, size, tuple(table))


@st.composite
def chunks(draw: st.DrawFn) -> Descriptor:
    """Runs that lie one behind the other, with gaps, as an ingress makes them."""
    runs = []
    at = 0
    for _ in range(draw(st.integers(1, 6))):
        handle, first = draw(u32), draw(u32)
        kind = draw(st.sampled_from([KIND_DATA, KIND_DATA, KIND_TSNI, KIND_CONTROL]))
        if kind == KIND_TSNI:
            runs.append(Run(handle, first, 1, 0, 0, 0, 0, 0, kind))
            continue
        fragments = 1 if kind == KIND_CONTROL else draw(st.integers(1, 5000))
        length, headroom = draw(st.integers(12, 65535)), draw(st.integers(0, 255))
        stride = length + headroom + draw(st.integers(0, 100))
        at += draw(st.integers(0, 100)) + headroom
        runs.append(Run(handle, first, fragments, at, length, stride, headroom, draw(st.integers(0, 255)), kind))
        at += (fragments - 1) * stride + length
    return Descriptor(draw(st.integers(0, (1 << 64) - 1)), at + draw(st.integers(0, 100)), tuple(runs))


@given(made=chunks().filter(lambda d: d.size < 1 << 32))
def test_what_is_written_is_read(made: Descriptor) -> None:
    frame = encode(made)
    assert decode(frame) == made
    if made.runs:
        for cut in (0, 1, 15, 16, len(frame) - 1):
            with pytest.raises(DecodeError):
                decode(frame[:cut])
    with pytest.raises(DecodeError):
        decode(frame + b"\0")


def assert_sound(found: Descriptor) -> None:
    for run in found.runs:
        assert run.fragments >= 1
        if run.kind == KIND_TSNI:
            assert (run.fragments, run.length) == (1, 0)
            continue
        assert run.offset >= run.headroom
        assert run.fragments == 1 or run.stride >= run.length + run.headroom
        assert run.offset + (run.fragments - 1) * run.stride + run.length <= found.size


@given(frame=st.binary(max_size=200))
def test_arbitrary_bytes_are_a_decode_error_or_sound(frame: bytes) -> None:
    try:
        found = decode(frame)
    except DecodeError:
        return
    assert_sound(found)


@given(
    made=chunks().filter(lambda d: bool(d.runs) and d.size < 1 << 32),
    flips=st.lists(st.tuples(st.integers(8, 400), st.integers(1, 255)), min_size=1, max_size=3),
)
def test_damaged_descriptors_are_a_decode_error_or_sound(made: Descriptor, flips: list[tuple[int, int]]) -> None:
    frame = bytearray(encode(made))
    for at, mask in flips:
        frame[at % len(frame)] ^= mask
    try:
        found = decode(bytes(frame))
    except DecodeError:
        return
    assert_sound(found)


DATA = Run(1, 0, 2, 20, 100, 120, 20, 0, KIND_DATA)


@pytest.mark.parametrize(
    ("run", "size"),
    [
        (DATA, 239),
        (DATA._replace(fragments=0), 240),
        (DATA._replace(offset=19), 240),
        (DATA._replace(stride=119), 240),
        (DATA._replace(stride=0, fragments=0xFFFFFFFF), 240),
        (DATA._replace(stride=0xFFFFFFFF, fragments=0x80000001), 240),
        (DATA._replace(stride=0xFFFFFFFF, fragments=0xFFFFFFFF), 240),
        (DATA._replace(stride=0xFFFFFFFF, fragments=0xFFFFFFFF, offset=0xFFFFFFFF, length=0xFFFFFFFF), 0xFFFFFFFF),
        (DATA._replace(length=11), 240),
        (DATA._replace(kind=3), 240),
        (DATA._replace(kind=KIND_CONTROL, length=3, stride=23), 240),
        (DATA._replace(kind=KIND_CONTROL), 240),
        (DATA._replace(kind=KIND_TSNI), 240),
        (Run(1, 0, 2, 0, 0, 0, 0, 0, KIND_TSNI), 0),
    ],
)
def test_runs_that_no_ingress_makes_are_refused(run: Run, size: int) -> None:
    with pytest.raises(DecodeError):
        decode(encode(Descriptor(0, size, (run,))))


def test_the_smallest_runs_are_accepted() -> None:
    runs = (DATA, DATA._replace(offset=240 - 12, length=12, fragments=1, headroom=0, stride=0))
    assert decode(encode(Descriptor(7, 240, runs))).runs == runs
