"""Datagrams of the UDP part of a peer link: packets of LBT-RU, compressed and sealed as the two DROs have agreed.

With compression each packet has a form and its length in front; with TLS the whole is sealed by AES-256-GCM, under the
key that its sender told inside TLS, with a counter that is never repeated. Keys, salts and packets are injected.

Source: wire-peerlink.md, section 15.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from lz4.block import LZ4BlockError, compress, decompress

KEY_BYTES: Final = 32
SALT_BYTES: Final = 4
TAG_BYTES: Final = 16
WINDOW: Final = 4096
"""How far behind the highest counter a datagram may be."""
_PREFIX: Final = struct.Struct("!B3xQ")
_SEALED: Final = 1
_COUNTER: Final = struct.Struct("!Q")
_FORM: Final = struct.Struct("!BBH")  # form, 0, length of the packet
_STORED, _LZ4 = 0, 1
SEAL_BYTES: Final = _PREFIX.size + TAG_BYTES
FORM_BYTES: Final = _FORM.size


class DatagramDrop(Enum):
    """Why a datagram of the companion was not taken."""

    LAYOUT = "layout"  # short, or with other constants
    FORGED = "forged"  # changed on its way, or under another key
    REPLAYED = "replayed"
    LATE = "late"  # further behind than `WINDOW`
    COMPRESSION = "compression"  # does not decode, or not to its length


@dataclass(frozen=True, slots=True)
class DatagramKey:
    """Key of one direction of one connection."""

    key: bytes
    salt: bytes

    def nonce(self, counter: int) -> bytes:
        return self.salt + _COUNTER.pack(counter)


class DatagramWriter:
    """What this side sends. A packet is at most 65535 bytes; `overhead` bytes at most are added to it."""

    def __init__(self, *, compresses: bool, key: DatagramKey | None) -> None:
        self._compresses = compresses
        self._key = key
        self._cipher = AESGCM(key.key) if key is not None else None
        self._counter = 0
        self.overhead = FORM_BYTES * compresses + (SEAL_BYTES if key is not None else 0)

    def write(self, packet: bytes) -> bytes:
        body = _compressed(packet) if self._compresses else packet
        if self._cipher is None or self._key is None:
            return body
        self._counter += 1
        prefix = _PREFIX.pack(_SEALED, self._counter)
        return prefix + self._cipher.encrypt(self._key.nonce(self._counter), body, prefix)


def _compressed(packet: bytes) -> bytes:
    made = compress(packet, store_size=False)
    is_smaller = len(made) < len(packet)
    return _FORM.pack(_LZ4 if is_smaller else _STORED, 0, len(packet)) + (made if is_smaller else packet)


class DatagramReader:
    """What the companion sends; `drops` counts what was not taken, by reason."""

    def __init__(self, *, is_compressed: bool, key: DatagramKey | None) -> None:
        self._is_compressed = is_compressed
        self._key = key
        self._cipher = AESGCM(key.key) if key is not None else None
        self._highest = 0
        self._seen = 1  # a bit for each counter, the lowest is that of `_highest`
        self.drops: Counter[DatagramDrop] = Counter()

    def read(self, datagram: bytes) -> bytes | DatagramDrop:
        """The packet, or why there is none."""
        found = self._open(datagram)
        if isinstance(found, bytes) and self._is_compressed:
            found = _expanded(found)
        if isinstance(found, DatagramDrop):
            self.drops[found] += 1
        return found

    def _open(self, datagram: bytes) -> bytes | DatagramDrop:
        if self._cipher is None or self._key is None:
            return datagram
        if len(datagram) < SEAL_BYTES:
            return DatagramDrop.LAYOUT
        prefix = datagram[: _PREFIX.size]
        form, counter = _PREFIX.unpack(prefix)
        if _PREFIX.pack(form, counter) != prefix or form != _SEALED or not counter:
            return DatagramDrop.LAYOUT
        behind = self._highest - counter
        if behind > WINDOW:
            return DatagramDrop.LATE
        if behind >= 0 and self._seen >> behind & 1:
            return DatagramDrop.REPLAYED
        try:
            body = self._cipher.decrypt(self._key.nonce(counter), datagram[_PREFIX.size :], prefix)
        except InvalidTag:
            return DatagramDrop.FORGED
        self._note(behind)
        return body

    def _note(self, behind: int) -> None:
        if behind >= 0:
            self._seen |= 1 << behind
            return
        self._highest -= behind
        self._seen = (self._seen << -behind | 1) & ((1 << WINDOW + 1) - 1) if -behind <= WINDOW else 1


def _expanded(body: bytes) -> bytes | DatagramDrop:
    if len(body) < _FORM.size:
        return DatagramDrop.LAYOUT
    form, zero, length = _FORM.unpack_from(body)
    packet = body[_FORM.size :]
    if zero or form not in (_STORED, _LZ4):
        return DatagramDrop.LAYOUT
    if form == _LZ4:
        try:
            packet = decompress(packet, uncompressed_size=length)
        except LZ4BlockError:
            return DatagramDrop.COMPRESSION
    return packet if len(packet) == length else DatagramDrop.COMPRESSION
