"""The originating transport id: 32 bytes that name one source, that is one topic on one transport session.

A DRO compares and copies the 32 bytes without decoding them; the originator of a source writes them, and tools convert
them to a source string. The LBT-RM layout is confirmed by a capture, the others by a public vendor tool. Source: wire
notes LBMR section 6 (option 0x08), real capture section 3.

Guess: the shared memory and datagram transports write the session id in the byte order of the little-endian hosts
that UM runs on, like LBT-RM in the capture, and LBT-IPC and LBT-SMX their transport id too; TCP alone is in network
order throughout. The tool prints the values so.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from struct import Struct
from typing import Final

from dro.errors import DecodeError
from dro.wire.source_string import (
    IpcAddress,
    LbtrmAddress,
    LbtruAddress,
    RdmaAddress,
    SmxAddress,
    SourceString,
    TcpAddress,
    TransportAddress,
    TransportCode,
    UnknownTransport,
    format_source,
)

OTID_SIZE: Final = 32
VERSION: Final = 1
"""Version 0 has no transport index; nothing else is known to differ."""

_TCP: Final = Struct("!BIHIIII8xB")
_LBTRM: Final = Struct("!BIHIH4sIII2xB")
_DATAGRAM: Final = Struct("!BIH4sIII8xB")  # LBT-RU and LBT-RDMA
_MEMORY: Final = Struct("!BI2s4sIII8xB")  # LBT-IPC and LBT-SMX


@dataclass(frozen=True, slots=True)
class Otid:
    """An OTID taken apart. `context_id` is the number UM logs at context creation, not the context instance."""

    address: TransportAddress
    topic_index: int
    context_id: int
    transport_index: int
    version: int = VERSION

    @property
    def transport_type(self) -> int:
        return self.address.code if isinstance(self.address, UnknownTransport) else self.address.CODE

    @property
    def source(self) -> SourceString:
        return SourceString(self.address, self.topic_index)

    def __str__(self) -> str:
        return format_source(self.address, self.topic_index)


def encode(address: TransportAddress, topic_index: int, context_id: int, transport_index: int) -> bytes:
    """The 32 bytes for a source of ours. Raises: DecodeError when a value does not fit or the transport is unknown."""
    ours = (topic_index, context_id, transport_index)
    try:
        match address:
            case TcpAddress(ip, port, session):
                return _TCP.pack(address.CODE, ip, port, *ours, session, VERSION)
            case LbtrmAddress(ip, group, session, dport, nak_port):
                return _LBTRM.pack(address.CODE, ip, nak_port, group, dport, _reversed(session, 4), *ours, VERSION)
            case LbtruAddress(ip, port, session) | RdmaAddress(ip, port, session):
                return _DATAGRAM.pack(address.CODE, ip, port, _reversed(session, 4), *ours, VERSION)
            case IpcAddress(host_id, session, transport_id) | SmxAddress(host_id, session, transport_id):
                return _MEMORY.pack(
                    address.CODE, host_id, _reversed(transport_id, 2), _reversed(session, 4), *ours, VERSION
                )
            case UnknownTransport(code):
                raise DecodeError("otid.transport", f"no layout for transport 0x{code:02x}")
    except (struct.error, OverflowError) as e:
        raise DecodeError("otid", "a value does not fit its field") from e


def decode(data: bytes) -> Otid:
    """Take 32 bytes apart; the transport index of version 0 reads as 0.

    Raises: DecodeError when they are not 32 or the transport has no known layout. Any 32 bytes may still serve as a
    key, so a DRO does not call this to accept an advertisement.
    """
    if len(data) != OTID_SIZE:
        raise DecodeError("otid", f"{len(data)} bytes instead of {OTID_SIZE}")
    address: TransportAddress
    match data[0]:
        case TransportCode.TCP:
            _, ip, port, topic, context, transport, session, version = _TCP.unpack(data)
            address = TcpAddress(ip, port, session)
        case TransportCode.LBTRM:
            _, ip, nak_port, group, dport, raw, topic, context, transport, version = _LBTRM.unpack(data)
            address = LbtrmAddress(ip, group, _number(raw), dport, nak_port)
        case TransportCode.LBTRU | TransportCode.RDMA as code:
            _, ip, port, raw, topic, context, transport, version = _DATAGRAM.unpack(data)
            made = LbtruAddress if code == TransportCode.LBTRU else RdmaAddress
            address = made(ip, port, _number(raw))
        case TransportCode.IPC | TransportCode.SMX as code:
            _, host_id, raw_id, raw, topic, context, transport, version = _MEMORY.unpack(data)
            shared = IpcAddress if code == TransportCode.IPC else SmxAddress
            address = shared(host_id, _number(raw), _number(raw_id))
        case code:
            raise DecodeError("otid.transport", f"no layout for transport 0x{code:02x}", 0)
    return Otid(address, topic, context, transport if version else 0, version)


def _reversed(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, "little")
