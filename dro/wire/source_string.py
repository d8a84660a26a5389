"""Addresses of transport sessions, and the source strings that name them in logs, statistics and the API.

A source string is what applications and operators see, `LBTRM:10.29.4.121:12090:f9d74f3e:239.101.3.10:14400[7]`; the
records here are what a TIR carries. Both directions are pure functions; `lbmr` and `otid` use the records.
Source: wire notes LBMR section 5 and transport behaviour section 15; real capture section 5.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, Final, TypeAlias

from dro.errors import DecodeError


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


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A TCP session. `session_id` 0 means that the source uses none; `long_form` writes it to the wire all the same."""

    CODE: ClassVar[int] = TransportCode.TCP
    ip: int
    port: int
    session_id: int = 0
    long_form: bool = field(default=False, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class LbtruAddress:
    """An LBT-RU session. `session_id` and `long_form` as for TCP."""

    CODE: ClassVar[int] = TransportCode.LBTRU
    ip: int
    port: int
    session_id: int = 0
    long_form: bool = field(default=False, compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class LbtrmAddress:
    """An LBT-RM session. `nak_port` is the source's unicast port, not the UDP source port of its datagrams."""

    CODE: ClassVar[int] = TransportCode.LBTRM
    ip: int
    group: int
    session_id: int
    dport: int
    nak_port: int


@dataclass(frozen=True, slots=True)
class IpcAddress:
    """A shared memory session of LBT-IPC. `host_id` is 0 when it came from a source string, which has none."""

    CODE: ClassVar[int] = TransportCode.IPC
    host_id: int
    session_id: int
    transport_id: int


@dataclass(frozen=True, slots=True)
class SmxAddress:
    """A shared memory session of LBT-SMX; fields as for LBT-IPC."""

    CODE: ClassVar[int] = TransportCode.SMX
    host_id: int
    session_id: int
    transport_id: int


@dataclass(frozen=True, slots=True)
class RdmaAddress:
    """An LBT-RDMA session."""

    CODE: ClassVar[int] = TransportCode.RDMA
    ip: int
    port: int
    session_id: int


@dataclass(frozen=True, slots=True)
class UnknownTransport:
    """A transport whose layout is not known (IPv6 TCP, PGM, or newer): carried along, never joined."""

    code: int
    body: bytes


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """The source string `BROKER`; it occurs in text only, never in a TIR."""


TransportAddress: TypeAlias = (
    TcpAddress | LbtruAddress | LbtrmAddress | IpcAddress | SmxAddress | RdmaAddress | UnknownTransport
)
"""The transport part of a TIR. IPv4 addresses are u32 ints, 10.0.0.1 being 0x0a000001."""


@dataclass(frozen=True, slots=True)
class SourceString:
    """A source string taken apart. `topic_index` is None where a session is meant rather than one source of it."""

    address: TransportAddress | BrokerAddress
    topic_index: int | None = None


U16_MAX: Final = 0xFFFF
U32_MAX: Final = 0xFFFFFFFF
_DECIMAL: Final = re.compile(r"[0-9]{1,10}")
_SESSION: Final = re.compile(r"[0-9a-fA-F]{1,8}")
_IP: Final = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})")
_MAX_TEXT: Final = 256  # the longest valid string has 64 characters; a longer text is not worth splitting


def ip_text(ip: int) -> str:
    """A u32 as dotted IPv4."""
    return f"{ip >> 24 & 255}.{ip >> 16 & 255}.{ip >> 8 & 255}.{ip & 255}"


def parse_ip(text: str, where: str = "ip") -> int:
    """Dotted IPv4 as a u32. Raises: DecodeError naming `where`."""
    match = _IP.fullmatch(text)
    if match is None or any(int(octet) > 255 for octet in match.groups()):
        raise DecodeError(where, f"{text!r} is not an IPv4 address")
    a, b, c, d = map(int, match.groups())
    return a << 24 | b << 16 | c << 8 | d


def format_source(address: TransportAddress | BrokerAddress, topic_index: int | None = None) -> str:
    """The canonical source string; without `topic_index` the string of the session.

    Session id 0 is left out for TCP and LBT-RU. A transport that is not known becomes `UNKNOWN:code:body`, in hex,
    which is for logs only: it cannot be parsed.
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
        case BrokerAddress():
            text = "BROKER"
        case UnknownTransport(code, body):
            text = f"UNKNOWN:{code:02x}:{body.hex()}"
    return text + suffix


def parse_source(text: str) -> SourceString:
    """Take a source string apart; the kind is read in any letter case, a session id with 1 to 8 hex digits.

    Raises: DecodeError, `where` naming the part (`source.port`).
    """
    if len(text) > _MAX_TEXT:
        raise DecodeError("source", f"longer than {_MAX_TEXT} characters")
    topic_index = None
    if text.endswith("]"):
        text, bracket, index = text[:-1].rpartition("[")
        if not bracket:
            raise DecodeError("source.topic_index", "']' without '['")
        topic_index = _number("source.topic_index", index, U32_MAX)
    kind, *parts = text.split(":")
    return SourceString(_parse_address(kind.upper(), parts), topic_index)


def _parse_address(kind: str, parts: list[str]) -> TransportAddress | BrokerAddress:
    match kind, parts:
        case "TCP", [ip, port]:
            return TcpAddress(parse_ip(ip, "source.ip"), _port(port))
        case "TCP", [ip, port, session]:
            return TcpAddress(parse_ip(ip, "source.ip"), _port(port), _session(session))
        case "LBT-RU", [ip, port]:
            return LbtruAddress(parse_ip(ip, "source.ip"), _port(port))
        case "LBT-RU", [ip, port, session]:
            return LbtruAddress(parse_ip(ip, "source.ip"), _port(port), _session(session))
        case "LBTRM", [ip, nak_port, session, group, dport]:
            return LbtrmAddress(
                parse_ip(ip, "source.ip"), _group(group), _session(session), _port(dport), _port(nak_port)
            )
        case "LBT-IPC", [session, transport_id]:
            return IpcAddress(0, _session(session), _transport_id(transport_id))
        case "LBT-SMX", [session, transport_id]:
            return SmxAddress(0, _session(session), _transport_id(transport_id))
        case "LBT-RDMA", [ip, port, session]:
            return RdmaAddress(parse_ip(ip, "source.ip"), _port(port), _session(session))
        case "BROKER", []:
            return BrokerAddress()
        case (("TCP" | "LBT-RU" | "LBTRM" | "LBT-IPC" | "LBT-SMX" | "LBT-RDMA" | "BROKER"), _):
            raise DecodeError("source", f"{kind} does not have {len(parts)} parts after the kind")
        case _:
            raise DecodeError("source.kind", f"{kind!r} is not a transport")


def _number(where: str, text: str, maximum: int) -> int:
    if _DECIMAL.fullmatch(text) is None or int(text) > maximum:
        raise DecodeError(where, f"{text!r} is not a number from 0 to {maximum}")
    return int(text)


def _port(text: str) -> int:
    return _number("source.port", text, U16_MAX)


def _transport_id(text: str) -> int:
    return _number("source.transport_id", text, U16_MAX)


def _session(text: str) -> int:
    if _SESSION.fullmatch(text) is None:
        raise DecodeError("source.session_id", f"{text!r} is not 1 to 8 hex digits")
    return int(text, 16)


def _group(text: str) -> int:
    group = parse_ip(text, "source.group")
    if group >> 28 != 0xE:
        raise DecodeError("source.group", f"{text} is not a multicast group")
    return group
