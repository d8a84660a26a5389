"""RSocket frames: the published example, round trips, portions, fragments, and bytes from strangers."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.errors import DecodeError
from dro.wire.srs import rsocket
from dro.wire.srs.rsocket import (
    CancelFrame,
    ErrorCode,
    ErrorFrame,
    ExtFrame,
    FragmentJoiner,
    Frame,
    FrameSplitter,
    FrameType,
    KeepaliveFrame,
    OtherFrame,
    PayloadFrame,
    RequestFrame,
    RequestNFrame,
    SetupFrame,
)
from tests.builders.srs_records import client_frames, server_frames

FRAMES: Final[tuple[Frame, ...]] = (
    *client_frames(),
    *server_frames(),
    SetupFrame(1, 2, b"", b"x", b"data", 2, 3, b"token"),
    RequestNFrame(3, 8),
    CancelFrame(3),
    PayloadFrame(3, b"", is_next=False, is_complete=True),
    PayloadFrame(3, b"part", follows=True),
    ErrorFrame(0, ErrorCode.CONNECTION_ERROR, b"why"),
    ExtFrame(0x1234, b"data"),
    ExtFrame(0x1234, b"data", is_ignorable=False, stream_id=9),
    OtherFrame(0, FrameType.LEASE, 0x200, b"12345678"),
    OtherFrame(7, FrameType.REQUEST_CHANNEL, 0xC0, b"\0\0\0\1data"),
)


def split(data: bytes, portion: int, **limits: int) -> list[bytes]:
    splitter, found = FrameSplitter(**limits), []
    for at in range(0, len(data), portion):
        splitter.feed(data[at : at + portion])
        while (frame := splitter.next_frame()) is not None:
            found.append(frame)
    assert not len(splitter)
    return found


def test_the_published_keepalive() -> None:
    raw = bytes.fromhex("00000e 00000000 0c80 0000000000000000")
    assert rsocket.encode(KeepaliveFrame(True)) == raw
    assert rsocket.decode(raw[3:]) == KeepaliveFrame(True)


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_is_read_as_it_was_written_and_never_in_part(frame: Frame) -> None:
    raw = rsocket.encode(frame)
    assert rsocket.decode(raw[3:]) == frame
    fixed = len(raw) - 3 - len(getattr(frame, "data", getattr(frame, "text", getattr(frame, "body", b""))))
    for size in range(fixed):
        with pytest.raises(DecodeError):
            rsocket.decode(raw[3 : 3 + size])


@pytest.mark.parametrize("portion", [1, 2, 7, 100_000])
def test_a_stream_is_split_whatever_the_portions(portion: int) -> None:
    raws = [rsocket.encode(frame) for frame in FRAMES]
    assert split(b"".join(raws), portion) == [raw[3:] for raw in raws]


def test_a_length_alone_brings_nothing_and_one_beyond_the_limit_is_refused() -> None:
    splitter = FrameSplitter(max_bytes=100)
    splitter.feed(bytes.fromhex("000064"))
    assert splitter.next_frame() is None
    assert len(splitter) == 3
    for length in ("000065", "ffffff", "000005", "000000"):
        splitter = FrameSplitter(max_bytes=100)
        splitter.feed(bytes.fromhex(length))
        with pytest.raises(DecodeError, match=r"frame\.length"):
            splitter.next_frame()


def test_metadata_is_passed_over() -> None:
    body = bytes.fromhex("00000003 2920 000004 6d657461 6f6b")
    assert rsocket.decode(body) == PayloadFrame(3, b"ok")
    with pytest.raises(DecodeError, match="metadata"):
        rsocket.decode(bytes.fromhex("00000003 2920 ffffff 6d657461"))


def test_fragments_are_joined_by_stream() -> None:
    joiner = FragmentJoiner()
    first = RequestFrame(5, FrameType.REQUEST_FNF, b"a", follows=True)
    assert joiner.join(first) is None
    assert joiner.join(PayloadFrame(7, b"x", follows=True)) is None
    assert joiner.join(PayloadFrame(5, b"b", follows=True)) is None
    assert joiner.join(KeepaliveFrame(True)) == KeepaliveFrame(True)
    assert joiner.join(PayloadFrame(5, b"c")) == RequestFrame(5, FrameType.REQUEST_FNF, b"abc")
    assert joiner.join(PayloadFrame(7, b"y", is_complete=True)) == PayloadFrame(7, b"xy", is_complete=True)
    assert joiner.join(PayloadFrame(5, b"alone")) == PayloadFrame(5, b"alone")


def test_fragments_of_a_canceled_stream_are_forgotten_and_all_are_bounded() -> None:
    joiner = FragmentJoiner(max_bytes=2000)
    for _ in range(100):
        assert joiner.join(PayloadFrame(5, b"x" * 1000, follows=True)) is None
        assert joiner.join(CancelFrame(5)) == CancelFrame(5)
    for stream_id in range(1, 8):
        joiner.join(PayloadFrame(stream_id, b"", follows=True))
    with pytest.raises(DecodeError, match="2000 bytes"):
        joiner.join(PayloadFrame(8, b"", follows=True))


def test_a_request_does_not_go_on_with_a_request() -> None:
    joiner = FragmentJoiner()
    joiner.join(RequestFrame(5, FrameType.REQUEST_FNF, b"a", follows=True))
    with pytest.raises(DecodeError, match="within another"):
        joiner.join(RequestFrame(5, FrameType.REQUEST_FNF, b"b"))


@pytest.mark.parametrize(
    "frame",
    [
        KeepaliveFrame(True, 1 << 63),
        RequestFrame(1 << 31, FrameType.REQUEST_FNF, b""),
        RequestFrame(1, FrameType.LEASE, b""),
        RequestNFrame(1, 1 << 32),
        SetupFrame(1 << 32, 1),
        SetupFrame(1, 1, b"x" * 256),
        PayloadFrame(1, bytes(1 << 24)),
        OtherFrame(1, FrameType.PAYLOAD, 0, b""),
        OtherFrame(1, 0x40, 0, b""),
    ],
)
def test_what_does_not_fit_is_refused(frame: Frame) -> None:
    with pytest.raises(DecodeError):
        rsocket.encode(frame)


@pytest.mark.parametrize("text", ["00000001 0400 0001", "80000001 2800", "00000001 0c80 0000000000000000"])
def test_frames_on_streams_that_they_cannot_be_on(text: str) -> None:
    with pytest.raises(DecodeError, match="stream"):
        rsocket.decode(bytes.fromhex(text))


@given(st.binary(max_size=64))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        frame = rsocket.decode(data)
    except DecodeError:
        return
    assert rsocket.decode(rsocket.encode(frame)[3:]) == frame
