"""LZ4 frames that have no end, as on a compressed peer link: what is given is decoded block by block.

Public frame format: a descriptor, then blocks of at most 64 KiB with their sizes. A block that refers to the 64 KiB
before it is linked. Nothing but one decoded block, and what has come of the next, is ever held: the blocks are decoded
here one at a time, as the decoder of the library for whole frames loses memory at each broken one.

Source: wire-peerlink.md, section 15. Guess: checksums are read over, as TCP and TLS have their own; whatever would need
more memory (larger blocks, a declared size, a dictionary), and an end of the frame, are errors.
"""

from __future__ import annotations

import struct
from typing import Final

from lz4.block import LZ4BlockError, decompress

from dro.errors import DecodeError

BLOCK_MAX: Final = 65_536
_MAGIC: Final = 0x184D2204
_DESCRIPTOR: Final = struct.Struct("<IBBB")  # magic, flags, block size, checksum of the header
_SIZE: Final = struct.Struct("<I")
_VERSION_MASK, _VERSION = 0b1100_0000, 0b0100_0000
_INDEPENDENT, _BLOCK_CHECKSUM = 0b10_0000, 0b1_0000
_UNWANTED: Final = 0b1011  # a declared size, a reserved bit, a dictionary
_64_KIB: Final = 0x40
_STORED: Final = 0x8000_0000
_CHECKSUM_BYTES: Final = 4
_HISTORY_MAX: Final = 4 * BLOCK_MAX  # shortened to one block when it has grown to this


class FrameReader:
    """One frame: `feed` it when `read_into` has left room in its view."""

    def __init__(self) -> None:
        self._input = bytearray()
        self._block = memoryview(b"")  # decoded, and not yet taken
        self._history: bytearray | None = None  # what linked blocks refer to
        self._trailer: int | None = None  # bytes behind each block; None: no descriptor has come
        self.is_broken = False

    def feed(self, data: bytes | memoryview) -> None:
        self._input += data

    def read_into(self, view: memoryview) -> int:
        """Decode into `view`; how many bytes came, fewer than fit when more has to be fed.

        Raises: DecodeError when what was fed is no such frame, once all that is before that has been taken.
        """
        done = 0
        try:
            while done < len(view) and (self._block or self._next_block()):
                part = self._block[: len(view) - done]
                view[done : done + len(part)] = part
                self._block = self._block[len(part) :]
                done += len(part)
        except DecodeError:
            self.is_broken = True
            if not done:
                raise
        return done

    def _next_block(self) -> bool:
        """Decode blocks up to one that is not empty; False when it is not there yet."""
        if self._trailer is None:
            if len(self._input) < _DESCRIPTOR.size:
                return False
            self._trailer = self._read_descriptor()
        pos = 0
        while not self._block and len(self._input) >= pos + _SIZE.size:
            (word,) = _SIZE.unpack_from(self._input, pos)
            size = word & ~_STORED
            if not size:
                raise DecodeError("lz4 frame", "it ends")
            if size > BLOCK_MAX:
                raise DecodeError("lz4 frame", f"a block of {size} bytes")
            begin = pos + _SIZE.size
            if len(self._input) < begin + size + self._trailer:
                break
            self._block = memoryview(self._decode(begin, size, is_stored=bool(word & _STORED)))
            pos = begin + size + self._trailer
        del self._input[:pos]
        return bool(self._block)

    def _read_descriptor(self) -> int:
        magic, flags, block, _ = _DESCRIPTOR.unpack_from(self._input)
        if magic != _MAGIC or flags & _VERSION_MASK != _VERSION:
            raise DecodeError("lz4 frame", "it does not begin as one")
        if flags & _UNWANTED or block != _64_KIB:
            raise DecodeError("lz4 frame", f"not of linked blocks of 64 KiB: {flags:#04x} {block:#04x}")
        del self._input[: _DESCRIPTOR.size]
        self._history = None if flags & _INDEPENDENT else bytearray()
        return _CHECKSUM_BYTES if flags & _BLOCK_CHECKSUM else 0

    def _decode(self, begin: int, size: int, *, is_stored: bool) -> bytes:
        history = self._history
        with memoryview(self._input) as all_input, all_input[begin : begin + size] as source:
            if is_stored:
                made = bytes(source)
            else:
                try:
                    made = self._decompress(source, history or b"")
                except LZ4BlockError as e:
                    raise DecodeError("lz4 frame", "a block that does not decode") from e
        if history is not None:
            if len(history) > _HISTORY_MAX:
                del history[:-BLOCK_MAX]
            history += made
        return made

    @staticmethod
    def _decompress(source: memoryview, history: bytes | bytearray) -> bytes:
        with memoryview(history) as whole, whole[-BLOCK_MAX:] as before:
            return decompress(source, uncompressed_size=BLOCK_MAX, dict=before)
