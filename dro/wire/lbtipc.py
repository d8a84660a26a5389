"""Packets between a source and a receiver of LBT-IPC on one host, over a local socket that keeps packets whole.

The layout is this implementation's own: that of UM is not public. A byte says what a packet is; numbers are in native
order. A packet that begins a dialogue names the layout, and what lies behind that is read of the own layout only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final, TypeAlias

from dro.errors import DecodeError

LAYOUT: Final = 1
PACKET_MAX: Final = 64
WAKE: Final = b"w"
"""There is something new in the memory. Of several that wait, one is as good as all."""
NEW: Final = (1 << 64) - 1
"""In place of the number of a record: from the next one on."""
_MAGIC: Final = b"LIPC"
_HEAD: Final = Struct("=c4sH")
_HELLO: Final = Struct("=c4sHIQ")
_WELCOME: Final = Struct("=c4sHQ?")
_REFUSAL: Final = Struct("=c4sHB")
_POSITION: Final = Struct("=cQ")


class Refused(IntEnum):
    """Why a receiver cannot join."""

    FULL = 1
    LAYOUT = 2
    USER = 3
    SESSION = 4


@dataclass(frozen=True, slots=True)
class IpcHello:
    """A receiver wants to read a session from record number `at` on, or `NEW`."""

    session_id: int
    at: int = NEW


@dataclass(frozen=True, slots=True)
class IpcWelcome:
    """The descriptor of the memory comes with it. `at`: the number of the record to begin with."""

    at: int
    is_receiver_paced: bool


@dataclass(frozen=True, slots=True)
class IpcRefusal:
    reason: Refused


@dataclass(frozen=True, slots=True)
class IpcPosition:
    """The receiver has read what lies in front of that record."""

    at: int


@dataclass(frozen=True, slots=True)
class OtherLayout:
    """A packet of a layout that is not the own one."""

    layout: int


IpcPacket: TypeAlias = IpcHello | IpcWelcome | IpcRefusal | IpcPosition | OtherLayout


def encode(packet: IpcPacket, layout: int) -> bytes:
    """Make the bytes; `layout` is that of packet and memory."""
    match packet:
        case IpcHello(session_id, at):
            return _HELLO.pack(b"H", _MAGIC, layout, session_id, at)
        case IpcWelcome(at, is_receiver_paced):
            return _WELCOME.pack(b"A", _MAGIC, layout, at, is_receiver_paced)
        case IpcRefusal(reason):
            return _REFUSAL.pack(b"R", _MAGIC, layout, reason)
        case IpcPosition(at):
            return _POSITION.pack(b"P", at)
        case OtherLayout(other):
            return _HEAD.pack(b"H", _MAGIC, other)


def decode(data: bytes, layout: int) -> IpcPacket:
    """Read a packet that is no wake-up. A refusal has the same form in every layout. Raises: DecodeError."""
    kind = data[:1]
    if kind == b"P" and len(data) == _POSITION.size:
        return IpcPosition(_POSITION.unpack(data)[1])
    if len(data) < _HEAD.size:
        raise DecodeError("lbtipc", f"{len(data)} bytes")
    _, magic, found = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise DecodeError("lbtipc.magic", magic.hex())
    if kind == b"R" and len(data) == _REFUSAL.size and data[-1] in Refused.__members__.values():
        return IpcRefusal(Refused(data[-1]))
    if kind in (b"H", b"A") and found != layout:
        return OtherLayout(found)
    if kind == b"H" and len(data) == _HELLO.size:
        return IpcHello(*_HELLO.unpack(data)[3:])
    if kind == b"A" and len(data) == _WELCOME.size:
        return IpcWelcome(*_WELCOME.unpack(data)[3:])
    raise DecodeError("lbtipc", f"a packet {kind!r} of {len(data)} bytes")
