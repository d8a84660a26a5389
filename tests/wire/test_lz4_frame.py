"""Frames of the library are read as the library reads them, however they are cut; everything else is refused."""

from __future__ import annotations

import struct

import lz4.block
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lz4.frame import BLOCKSIZE_MAX64KB, LZ4FrameCompressor, compress, decompress

from dro.errors import DecodeError
from dro.wire.lz4_frame import BLOCK_MAX, FrameReader

HEADER = LZ4FrameCompressor(block_size=BLOCKSIZE_MAX64KB, block_linked=True, auto_flush=True).begin()
CONTENTS = st.lists(
    st.one_of(
        st.binary(max_size=300),
        st.builds(lambda piece, count: piece * count, st.binary(min_size=1, max_size=40), st.integers(1, 6000)),
    ),
    max_size=8,
)


def block(raw: bytes, *, is_stored: bool = False) -> bytes:
    return struct.pack("<I", len(raw) | (0x8000_0000 if is_stored else 0)) + raw


def read(frame: FrameReader, size: int) -> bytes:
    memory = bytearray(size)
    return bytes(memory[: frame.read_into(memoryview(memory))])


def read_all(data: bytes, piece: int, size: int) -> bytes:
    """Fed in pieces, taken by views of `size`."""
    frame, got = FrameReader(), b""
    for begin in range(0, len(data), piece):
        frame.feed(data[begin : begin + piece])
        while part := read(frame, size):
            got += part
    return got


@given(CONTENTS, st.integers(1, 70_000), st.integers(1, 70_000), st.booleans(), st.booleans())
def test_frames_of_the_library_are_read(
    contents: list[bytes], piece: int, size: int, is_linked: bool, has_checksums: bool
) -> None:
    content = b"".join(contents)
    whole = compress(
        content, block_size=BLOCKSIZE_MAX64KB, block_linked=is_linked, block_checksum=has_checksums, store_size=False
    )
    piece, size = max(piece, len(whole) // 500), max(size, len(content) // 500)
    assert read_all(whole[:-4], piece, size) == content


@given(CONTENTS)
def test_every_flush_can_be_read_at_once(contents: list[bytes]) -> None:
    writer = LZ4FrameCompressor(block_size=BLOCKSIZE_MAX64KB, block_linked=True, auto_flush=True)
    frame, sent = FrameReader(), writer.begin()
    frame.feed(sent)
    for content in contents:
        out = writer.compress(content)
        sent += out
        frame.feed(out)
        assert read(frame, len(content) + 1) == content
    assert decompress(sent + bytes(4)) == b"".join(contents)


def test_a_long_stream_keeps_little() -> None:
    writer = LZ4FrameCompressor(block_size=BLOCKSIZE_MAX64KB, block_linked=True, auto_flush=True)
    frame = FrameReader()
    frame.feed(writer.begin())
    for i in range(400):
        content = bytes([i % 251]) * 100 + b"of a long stream" * 500
        frame.feed(writer.compress(content))
        assert read(frame, 10_000) == content
    assert frame._history is not None
    assert len(frame._history) <= 5 * BLOCK_MAX
    assert frame._input == b""


def test_a_bomb_is_decoded_as_far_as_there_is_room() -> None:
    bomb = block(lz4.block.compress(bytes(BLOCK_MAX), store_size=False))
    frame = FrameReader()
    frame.feed(HEADER + bomb * 200)
    assert read(frame, 10) == bytes(10)
    assert len(frame._block) == BLOCK_MAX - 10
    assert len(frame._input) == len(bomb) * 199


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1", "it does not begin as one"),
        (bytes(7), "it does not begin as one"),
        (struct.pack("<I", 0x184D2A50) + bytes(9), "it does not begin as one"),  # one to be skipped
        (HEADER[:4] + b"\x40\x70\x00", "not of linked blocks of 64 KiB: 0x40 0x70"),  # blocks of 4 MiB
        (HEADER[:4] + b"\x48\x40\x00", "not of linked blocks of 64 KiB: 0x48"),
        (HEADER[:4] + b"\x41\x40\x00", "not of linked blocks of 64 KiB: 0x41"),
        (HEADER[:4] + b"\x80\x40\x00", "it does not begin as one"),
        (HEADER + bytes(4), "it ends"),
        (HEADER + struct.pack("<I", BLOCK_MAX + 1), "a block of 65537 bytes"),
        (HEADER + struct.pack("<I", 0xFFFF_FFFF), "a block of 2147483647 bytes"),
        (HEADER + block(b"\xff" * 30), "a block that does not decode"),
        (HEADER + block(lz4.block.compress(bytes(BLOCK_MAX + 1), store_size=False)), "a block that does not decode"),
        (HEADER + block(b"\x10a\x05\x00\x50abcde"), "a block that does not decode"),  # refers to what never was
    ],
)  # fmt: skip
def test_what_is_no_such_frame_is_refused(data: bytes, why: str) -> None:
    frame = FrameReader()
    frame.feed(data)
    with pytest.raises(DecodeError) as no:
        read(frame, 100)
    assert no.value.why.startswith(why)
    assert frame.is_broken


def test_what_is_before_a_broken_block_is_read_first() -> None:
    frame = FrameReader()
    frame.feed(HEADER + block(b"sound", is_stored=True) + block(b"", is_stored=True))
    assert (read(frame, 100), frame.is_broken) == (b"sound", True)
    with pytest.raises(DecodeError, match="it ends"):
        read(frame, 100)


@given(st.binary(max_size=400), st.booleans())
def test_any_bytes_are_refused_or_wait(data: bytes, has_header: bool) -> None:
    frame = FrameReader()
    frame.feed(HEADER + data if has_header else data)
    try:
        while read(frame, 1000):
            pass
    except DecodeError:
        assert frame.is_broken
