"""Common to the datagram transports LBT-RM and LBT-RU: drop reasons, the option chain, lists of sqns.

A datagram that cannot be used raises `TransportDecodeError`, whose `reason` names the receiver statistic that counts
the drop (`dgrams_dropped_*`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Final

from dro.errors import DecodeError, LocalProtocolError
from dro.wire.cursor import pack


class DropReason(Enum):
    """Why a datagram was dropped before its session was looked up; the value is the statistic's suffix."""

    SIZE = "size"
    VERSION = "version"
    TYPE = "type"
    HEADER = "hdr"
    OTHER = "other"


class TransportDecodeError(DecodeError):
    """A datagram that must be dropped and counted under `reason`."""

    def __init__(self, reason: DropReason, where: str, why: str, offset: int = -1) -> None:
        super().__init__(where, why, offset)
        self.reason = reason


def packet_type(
    name: str, sizes: Mapping[int, int], least: int, data: bytes | bytearray | memoryview, accept: Container[int]
) -> int:
    """The low four bits of the first byte, after the checks for size, version and type.

    `sizes`: of the fixed part, by type; `least`: of any header. Raises: TransportDecodeError.
    """
    size = least if len(data) < least else sizes.get(data[0] & 0x0F, least)
    if len(data) < size:
        raise TransportDecodeError(DropReason.SIZE, name, f"needs {size} bytes, has {len(data)}", len(data))
    version, kind = data[0] >> 4, data[0] & 0x0F
    if version:
        raise TransportDecodeError(DropReason.VERSION, f"{name}.version", f"{version} is not known", 0)
    if kind not in sizes or kind not in accept:
        raise TransportDecodeError(DropReason.TYPE, f"{name}.type", f"{kind} is not expected", 0)
    return kind


# why a NAK is not answered by a retransmission; 4 to 15 are unassigned
NCF_DO_NOT_RETRY: Final = 0
NCF_IGNORED: Final = 1
NCF_RX_DELAY: Final = 2
NCF_SHED: Final = 3

SELECTIVE: Final = 0  # format of a NAK or NCF list: each entry is one sqn
PARITY: Final = 1

OPTION_HEAD: Final = Struct("!BBH")  # kind of the following option, length of this one, flags
OPTION_IGNORE: Final = 0x8000
OPTION_BODY_MAX: Final = 0xFF - OPTION_HEAD.size


@dataclass(frozen=True, slots=True)
class TransportOption:
    """One option of a chain; its kind stands in its predecessor (the packet header for the first)."""

    kind: int  # never 0, which ends the chain
    body: bytes = b""
    flags: int = 0


def read_options(where: str, data: bytes, pos: int, kind: int) -> tuple[tuple[TransportOption, ...], int]:
    """The chain at `pos` whose first option is of `kind`, and the offset behind it.

    Raises: TransportDecodeError (HEADER) on a length below 4 or past the end; the chain always ends, since every
    option moves on by at least 4 bytes.
    """
    options: list[TransportOption] = []
    while kind:
        if len(data) - pos < OPTION_HEAD.size:
            raise TransportDecodeError(DropReason.HEADER, f"{where}.option", "the chain runs past the datagram", pos)
        successor, length, flags = OPTION_HEAD.unpack_from(data, pos)
        if length < OPTION_HEAD.size or length > len(data) - pos:
            why = f"option of {length} bytes, {len(data) - pos} left"
            raise TransportDecodeError(DropReason.HEADER, f"{where}.option", why, pos)
        options.append(TransportOption(kind, data[pos + OPTION_HEAD.size : pos + length], flags))
        kind, pos = successor, pos + length
    return tuple(options), pos


def write_options(options: tuple[TransportOption, ...]) -> tuple[int, bytes]:
    """The kind of the first option (0 for none) and the bytes of the chain. Raises: LocalProtocolError."""
    kinds = [*(option.kind for option in options), 0]
    if 0 in kinds[:-1]:
        raise LocalProtocolError("an option of kind 0 would end the chain")
    chain = b"".join(
        pack(OPTION_HEAD, successor, OPTION_HEAD.size + len(option.body), option.flags) + option.body
        for option, successor in zip(options, kinds[1:], strict=True)
    )
    return kinds[0], chain


def read_sqns(where: str, data: bytes, pos: int, count: int) -> tuple[int, ...]:
    """`count` sqns at `pos`. Raises: TransportDecodeError (SIZE) when the datagram is shorter."""
    if count * 4 > len(data) - pos:
        raise TransportDecodeError(DropReason.SIZE, where, f"{count} sqns, room for {(len(data) - pos) // 4}", pos)
    sqns: tuple[int, ...] = Struct(f"!{count}I").unpack_from(data, pos)
    return sqns


def write_sqns(sqns: tuple[int, ...]) -> bytes:
    return pack(Struct(f"!{len(sqns)}I"), *sqns)
