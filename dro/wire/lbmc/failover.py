"""Application headers with a public number and a body that is not: the channel, and the hot failover number.

Elements of an APPHDR_CHAIN. No state. Source: wire notes LBMC, 5.1 (types 1 and 2). Guess: both bodies are ours.

    channel number   u32
    hot failover     u8 flags, u8 generation, u16 reserved, then u32 or u64 number; without a number: a reset alone

The generation counts the resets of one source, modulo 256: so the sources of a topic need not be told of each other's
resets, and a reset that is lost is known from the next message.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

from dro.errors import DecodeError, LocalProtocolError
from dro.wire.lbmc.data_blocks import AppHdrType, ChainElement

IS_OPTIONAL: Final = 0x01
_HEAD: Final = Struct("!BBH")
_NUMBERS: Final = {4: 32, 8: 64}
CHANNEL_MAX: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class HotFailover:
    """The place of a message in the streams of all sources of its topic. `number` None: numbers begin anew."""

    number: int | None
    bits: int = 32  # of the number: 32 or 64
    is_optional: bool = False
    generation: int = 0  # resets of this source so far, modulo 256


def failover_element(failover: HotFailover) -> ChainElement:
    """Raises: LocalProtocolError for a number that its bits do not hold."""
    flags = IS_OPTIONAL if failover.is_optional else 0
    head = _HEAD.pack(flags, failover.generation & 0xFF, 0)
    number, bits = failover.number, failover.bits
    if number is None:
        return ChainElement(AppHdrType.HOT_FAILOVER_SQN, head)
    if bits not in _NUMBERS.values() or not 0 <= number < 1 << bits:
        raise LocalProtocolError(f"hot failover number {number} does not fit {bits} bits")
    return ChainElement(AppHdrType.HOT_FAILOVER_SQN, head + number.to_bytes(bits // 8, "big"))


def read_failover(data: bytes) -> HotFailover:
    """Read the body of an element. Raises: DecodeError."""
    if len(data) < _HEAD.size:
        raise DecodeError("lbmc.hot_failover", f"needs {_HEAD.size} bytes, has {len(data)}", len(data))
    flags, generation, _ = _HEAD.unpack_from(data)
    is_optional = bool(flags & IS_OPTIONAL)
    size = len(data) - _HEAD.size
    if not size:
        return HotFailover(None, 32, is_optional, generation)
    if size not in _NUMBERS:
        raise DecodeError("lbmc.hot_failover", f"number of {size} bytes", _HEAD.size)
    return HotFailover(int.from_bytes(data[_HEAD.size :], "big"), _NUMBERS[size], is_optional, generation)


def channel_element(channel: int) -> ChainElement:
    """Raises: LocalProtocolError for a number that is not of 32 bits."""
    if not 0 <= channel <= CHANNEL_MAX:
        raise LocalProtocolError(f"channel {channel}, numbers are 0 to {CHANNEL_MAX}")
    return ChainElement(AppHdrType.CHANNEL_NUMBER, channel.to_bytes(4, "big"))


def read_channel(data: bytes) -> int:
    """Read the body of an element. Raises: DecodeError."""
    if len(data) < 4:
        raise DecodeError("lbmc.channel", f"needs 4 bytes, has {len(data)}", len(data))
    return int.from_bytes(data[:4], "big")
