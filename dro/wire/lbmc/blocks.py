"""Any LBMC block, by its code: to its record and back.

A code without a record (forwarded without decoding, or without public definition) is kept as `RawBlock`.
"""

from __future__ import annotations

from dro.errors import LocalProtocolError
from dro.wire.lbmc import data_blocks, dro_blocks, ume_blocks  # noqa: F401  # they fill the table
from dro.wire.lbmc.block import BLOCK_RECORDS, Block, RawBlock
from dro.wire.lbmc.codes import BLOCK_MAX

AnyBlock = Block | RawBlock


def read_block(code: int, data: bytes, pos: int, size: int) -> AnyBlock:
    """The block of `code`, `size` bytes at `pos`, which the caller has found to lie within `data`.

    Raises: DecodeError when the block is shorter than its layout or contradicts itself.
    """
    kind = BLOCK_RECORDS.get(code)
    return RawBlock(code, data[pos + 2 : pos + size]) if kind is None else kind.read(data, pos, size)


def write_block(block: AnyBlock, successor: int) -> bytes:
    """The block with its two leading bytes. Raises: LocalProtocolError when it does not fit 255 bytes."""
    body = block.body()
    size = 2 + len(body)
    if size > BLOCK_MAX:
        raise LocalProtocolError(f"block {block.code:#04x}: {size} bytes, at most {BLOCK_MAX} fit")
    return bytes((successor, size)) + body
