"""Addresses of transport sessions, and the source strings that name them in logs, statistics and the API.

Applications and operators see a source string, `LBTRM:10.29.4.121:12090:f9d74f3e:239.101.3.10:14400[7]`; a TIR carries
the records defined here; `lbmr` and `otid` use them. Source: wire notes LBMR section 5 and transport behaviour section
15; real capture section 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, Final, TypeAlias


class TransportCode(IntEnum):
    """Transport types of a TIR and of an OTID."""

    TCP = 0x00
    LBTRU = 0x01
    TCP6 = 0x02
    SMX = 0x04
    LBTRM = 0x10
    PGM = 0x11
    RDMA = 0x20
    IPC = 0x40


@dataclass(frozen=True, slots=True, weakref_slot=True)
class TcpAddress:
    """A TCP session. `session_id` 0 means that the source uses none; `long_form` writes it to the wire all the same."""

    CODE: ClassVar[int] = TransportCode.TCP
    ip: int
    port: int
    session_id: int = 0
    long_form: bool = field(default=False, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class LbtruAddress:
    """An LBT-RU session. `session_id` and `long_form` as for TCP."""

    CODE: ClassVar[int] = TransportCode.LBTRU
    ip: int
    port: int
    session_id: int = 0
    long_form: bool = field(default=False, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class LbtrmAddress:
    """An LBT-RM session. `nak_port` is the source's unicast port, not the UDP source port of its datagrams."""

    CODE: ClassVar[int] = TransportCode.LBTRM
    ip: int
    group: int
    session_id: int
    dport: int
    nak_port: int


@dataclass(frozen=True, slots=True, weakref_slot=True)
class IpcAddress:
    """A shared memory session of LBT-IPC. `host_id` is 0 when it came from a source string, which has none."""

    CODE: ClassVar[int] = TransportCode.IPC
    host_id: int
    session_id: int
    transport_id: int


@dataclass(frozen=True, slots=True, weakref_slot=True)
class SmxAddress:
    """A shared memory session of LBT-SMX; fields as for LBT-IPC."""

    CODE: ClassVar[int] = TransportCode.SMX
    host_id: int
    session_id: int
    transport_id: int


@dataclass(frozen=True, slots=True, weakref_slot=True)
class RdmaAddress:
    """An LBT-RDMA session."""

    CODE: ClassVar[int] = TransportCode.RDMA
    ip: int
    port: int
    session_id: int


@dataclass(frozen=True, slots=True, weakref_slot=True)
class UnknownTransport:
    """A transport whose layout is not known (IPv6 TCP, PGM, or newer): carried along, never joined."""

    code: int
    body: bytes


TransportAddress: TypeAlias = (
    TcpAddress | LbtruAddress | LbtrmAddress | IpcAddress | SmxAddress | RdmaAddress | UnknownTransport
)
"""The transport part of a TIR. IPv4 addresses are u32 ints, 10.0.0.1 being 0x0a000001."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class SourceString:
    """What a source string says. `topic_index` is None where a session is meant rather than one source of it."""

    address: TransportAddress
    topic_index: int | None = None


def ip_text(ip: int) -> str:
    """A u32 as dotted IPv4."""
    return f"{ip >> 24 & 255}.{ip >> 16 & 255}.{ip >> 8 & 255}.{ip & 255}"


def address_text(address: TcpAddress) -> str:
    """Address and port."""
    return f"{ip_text(address.ip)}:{address.port}"


def format_source(address: TransportAddress, topic_index: int | None = None) -> str:
    """The canonical source string; without `topic_index` the string of the session.

    Session id 0 is left out for TCP and LBT-RU. A transport that is not known becomes `UNKNOWN:code:body`, in hex.
    """
    suffix = "" if topic_index is None else f"[{topic_index}]"
    match address:
        case TcpAddress(ip, port, session):
            text = f"TCP:{ip_text(ip)}:{port}" + (f":{session:08x}" if session else "")
        case LbtruAddress(ip, port, session):
            text = f"LBT-RU:{ip_text(ip)}:{port}" + (f":{session:08x}" if session else "")
        case LbtrmAddress(ip, group, session, dport, nak_port):
            text = f"LBTRM:{ip_text(ip)}:{nak_port}:{session:08x}:{ip_text(group)}:{dport}"
        case IpcAddress(_, session, transport_id):
            text = f"LBT-IPC:{session:08x}:{transport_id}"
        case SmxAddress(_, session, transport_id):
            text = f"LBT-SMX:{session:08x}:{transport_id}"
        case RdmaAddress(ip, port, session):
            text = f"LBT-RDMA:{ip_text(ip)}:{port}:{session:08x}"
        case UnknownTransport(code, body):
            text = f"UNKNOWN:{code:02x}:{body.hex()}"
    return text + suffix


_NUMBER: Final = r"(\d{1,10})"
_IP: Final = r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})"
_HEX: Final = r"([0-9a-fA-F]{1,8})"
_FORMS: Final = re.compile(
    rf"(?:(?P<stream>TCP|LBT-RU|LBT-RDMA):{_IP}:{_NUMBER}(?::{_HEX})?"
    rf"|(?P<rm>LBTRM):{_IP}:{_NUMBER}:{_HEX}:{_IP}:{_NUMBER}"
    rf"|(?P<memory>LBT-IPC|LBT-SMX):{_HEX}:{_NUMBER})(?:\[{_NUMBER}\])?"
)
_STREAMS: Final[dict[str, type[TcpAddress] | type[LbtruAddress] | type[RdmaAddress]]] = {
    "TCP": TcpAddress,
    "LBT-RU": LbtruAddress,
    "LBT-RDMA": RdmaAddress,
}


def parse_source(text: str, host_id: int = 0) -> SourceString:
    """Read a source string; `host_id` is that of a session in shared memory, which the string has not.

    Raises: ValueError for a text that is none, or a number out of range.
    """
    found = _FORMS.fullmatch(text)
    if found is None:
        raise ValueError(f"{text[:80]!r} is no source string")
    groups = found.groups()
    index = None if groups[-1] is None else _within(groups[-1], 32)
    address: TransportAddress
    if kind := found["stream"]:
        address = _STREAMS[kind](_ip(groups[1:5]), _within(groups[5], 16), int(groups[6] or "0", 16))
    elif found["rm"]:
        _, *ip, nak_port, session = groups[7:14]
        group, dport = groups[14:18], groups[18]
        address = LbtrmAddress(
            _ip(ip), _ip(group), int(session, 16), _within(dport, 16), _within(nak_port, 16)
        )  # fmt: skip
    else:
        make = IpcAddress if found["memory"] == "LBT-IPC" else SmxAddress
        address = make(host_id, int(groups[20], 16), _within(groups[21], 16))
    return SourceString(address, index)


def _within(digits: str, bits: int) -> int:
    value = int(digits)
    if value >> bits:
        raise ValueError(f"{digits} does not fit into {bits} bits")
    return value


def _ip(parts: Iterable[str]) -> int:
    value = 0
    for part in parts:
        value = value << 8 | _within(part, 8)
    return value
