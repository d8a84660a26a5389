"""Headers of LBT-RM datagrams that are sent one after the other.

Pure, and the reference for its compiled form. Wire layout: protocol notes, LBT-RM section.
"""

from __future__ import annotations

from collections.abc import Sequence

from dro.sqn import MASK
from dro.transport.runs import write_u32
from dro.wire.lbtrm import FLAG_UCAST_NAKS

_FLAGS, _MASK = FLAG_UCAST_NAKS, MASK  # plain integers in the compiled form


def write_headers(
    buffer: bytearray | memoryview, offsets: Sequence[int], key: int, sqn: int, trail: int, tgsz: int, symbols: int
) -> None:
    """Write the header of a DATA datagram at each of `offsets`: numbers from `sqn` on.

    `key`: NAK port << 32 | session id. `symbols`: mask of the FEC symbol in the sqn.
    """
    view = buffer
    for at in offsets:
        write_u32(view, at, key >> 32)
        write_u32(view, at + 4, key & _MASK)
        write_u32(view, at + 8, sqn)
        write_u32(view, at + 12, trail)
        write_u32(view, at + 16, _FLAGS << 24 | tgsz << 16 | sqn & symbols)
        sqn = sqn + 1 & _MASK
