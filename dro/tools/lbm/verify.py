"""Verifiable payloads: `lbmsrc -V` makes them, `lbmrcv -V` checks each one by its bytes only.

Layout, big endian: length of the whole payload (4 bytes), CRC-32 of everything that follows (4), sequence number of the
sender (8), body. The body is a stretch of a fixed pseudo-random table, and the sequence number says where in the table
it starts, so the body of another message is detected even if its checksum is valid.
"""

from __future__ import annotations

import zlib
from enum import Enum
from functools import lru_cache
from hashlib import shake_128
from struct import Struct
from typing import Final, NamedTuple

_HEAD: Final = Struct("!IIQ")
_LENGTH_AND_CRC: Final = Struct("!II")
MIN_BYTES: Final = _HEAD.size
MAX_BYTES: Final = 0xFFFF_FFFF
_LENGTH_AND_CRC_BYTES: Final = _LENGTH_AND_CRC.size
_TABLE_BYTES: Final = 1 << 16
_STEP: Final = 40_503  # odd, so 65536 sequence numbers in a row have 65536 different bodies
_TABLE: Final = shake_128(b"open DRO verifiable payload").digest(_TABLE_BYTES)


class PayloadFault(Enum):
    """What is wrong with a payload, in the words that the tools print."""

    TOO_SHORT = "too short"
    WRONG_LENGTH = "wrong length"
    WRONG_CHECKSUM = "wrong checksum"
    WRONG_BODY = "wrong body"


class PayloadVerdict(NamedTuple):
    """`sequence` is the sender's number, -1 when the payload is too damaged to tell."""

    sequence: int
    fault: PayloadFault | None


@lru_cache(maxsize=8)
def _stretch(length: int) -> bytes:
    """Repeat the table until every body of that length can be cut out of it."""
    return _TABLE * (length // _TABLE_BYTES + 2)


def _body(sequence: int, length: int) -> bytes:
    start = sequence * _STEP % _TABLE_BYTES
    return _stretch(length // _TABLE_BYTES * _TABLE_BYTES)[start : start + length]


def make(sequence: int, length: int) -> bytes:
    """A payload of exactly `length` bytes. Raises: ValueError outside MIN_BYTES..MAX_BYTES or a 64-bit sequence."""
    if not MIN_BYTES <= length <= MAX_BYTES:
        raise ValueError(f"a verifiable payload has {MIN_BYTES} to {MAX_BYTES} bytes, not {length}")
    if not 0 <= sequence < 1 << 64:
        raise ValueError(f"sequence {sequence} does not fit 64 bits")
    covered = sequence.to_bytes(8, "big") + _body(sequence, length - MIN_BYTES)
    return _LENGTH_AND_CRC.pack(length, zlib.crc32(covered)) + covered


def check(payload: bytes) -> PayloadVerdict:
    """Whether a payload is as it was made. Takes any bytes, raises nothing."""
    if len(payload) < MIN_BYTES:
        return PayloadVerdict(-1, PayloadFault.TOO_SHORT)
    length, crc, sequence = _HEAD.unpack_from(payload)
    if length != len(payload):
        return PayloadVerdict(-1, PayloadFault.WRONG_LENGTH)
    if crc != zlib.crc32(memoryview(payload)[_LENGTH_AND_CRC_BYTES:]):
        return PayloadVerdict(-1, PayloadFault.WRONG_CHECKSUM)
    if payload[MIN_BYTES:] != _body(sequence, length - MIN_BYTES):
        return PayloadVerdict(sequence, PayloadFault.WRONG_BODY)
    return PayloadVerdict(sequence, None)
