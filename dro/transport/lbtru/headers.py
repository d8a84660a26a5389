"""Headers of LBT-RU datagrams that are sent one after the other.

Pure, and the reference for its compiled form. Wire layout: protocol notes, LBT-RU section.
"""

from __future__ import annotations

from collections.abc import Sequence

from dro.sqn import MASK
from dro.transport.runs import write_u32
from dro.wire.lbtru import OPTION_SID

HEADER_BYTES = 12
SID_BYTES = 8
_MASK, _SID_NEXT, _SID_HEAD = MASK, OPTION_SID << 16, SID_BYTES << 16  # plain integers in the compiled form


def write_headers(
    buffer: bytearray | memoryview, offsets: Sequence[int], session_id: int, sqn: int, trail: int
) -> None:
    """Write the header of a DATA datagram at each of `offsets`: numbers from `sqn` on. 0: without a session id."""
    view = buffer
    for at in offsets:
        write_u32(view, at, _SID_NEXT if session_id else 0)
        write_u32(view, at + 4, sqn)
        write_u32(view, at + 8, trail)
        if session_id:
            write_u32(view, at + 12, _SID_HEAD)
            write_u32(view, at + 16, session_id)
        sqn = sqn + 1 & _MASK
