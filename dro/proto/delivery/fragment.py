"""Cutting a message into fragments that fit a datagram.

No state. Called by the client library's source for messages that do not fit; a DRO never fragments or reassembles.

    datagram  = transport header + LBMC header (12) [+ FRAG block (16)] [+ further blocks] + payload
    fragment k of a message with topic sqn n: sqn n + k, FRAG (first sqn n, offset, total length)

All fragments but the last are full. Source: UM documentation, "datagram size, fragmentation". Guess: the real LBMC
header is counted; the size that UM reserves for its largest header without dynamic fragmentation reduction is not
public. Guess: a source leaves room for the largest transport header whatever its own transport has, because with one
datagram size for all transports, as is advised, a fragment from TCP must fit the LBT-RM datagram of a proxy source.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dro.sqn import add
from dro.wire.lbmc.message import FRAG_HEADER, HEADER
from dro.wire.lbtrm import DATA_HEADER

LBMC_HEADER_BYTES: Final = HEADER.size
FRAG_BLOCK_BYTES: Final = FRAG_HEADER.size - HEADER.size
TRANSPORT_HEADER_MAX_BYTES: Final = DATA_HEADER
"""LBT-RM data; LBT-RU data with its session id."""
UDP_MAX_BYTES: Final = 65507


@dataclass(frozen=True, slots=True)
class Fragment:
    """One piece of a message, with what its FRAG block says; `total` in bytes."""

    sqn: int
    first_sqn: int
    offset: int
    total: int
    piece: memoryview


def message_limit(datagram_max_bytes: int) -> int:
    """Bytes of the largest LBMC message that fits a datagram of this size on every transport."""
    return min(datagram_max_bytes, UDP_MAX_BYTES) - TRANSPORT_HEADER_MAX_BYTES


def split(payload: bytes | memoryview, room: int) -> Iterator[tuple[int, memoryview]]:
    """Pieces of at most `room` bytes with their offsets; views of `payload`, nothing is copied.

    An empty payload is one empty piece. Raises: ValueError if `room` is not positive.
    """
    if room <= 0:
        raise ValueError(f"no room for payload in a datagram ({room} bytes)")
    view = memoryview(payload)
    for offset in range(0, max(len(view), 1), room):
        yield offset, view[offset : offset + room]


def fragments(payload: bytes | memoryview, first_sqn: int, room: int) -> list[Fragment]:
    """All fragments of a message that begins at topic sqn `first_sqn`.

    `room`: payload bytes of one fragment.
    """
    total = len(payload)
    return [
        Fragment(add(first_sqn, index), first_sqn, offset, total, piece)
        for index, (offset, piece) in enumerate(split(payload, room))
    ]
