"""The golden LBT-RM capture as plain numbers, read without any code under test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import unpack_from
from typing import NamedTuple

CAPTURE = Path(__file__).parents[1] / "golden" / "captures" / "um-lbtrm-single-source.pcap"
GROUP_PORT = 14400
NAK_PORT = 12090


class Packet(NamedTuple):
    """One LBT-RM packet. `sqns`: of a NAK or NCF; `sqn`: of DATA, lead of a session message."""

    at_ns: int
    kind: str  # data, rx, sm, nak, ncf
    sqn: int
    trail: int
    sqns: tuple[int, ...]
    reason: int
    payload: bytes


def _udp(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    pos = 24
    while pos < len(data):
        seconds, micros, length, _ = unpack_from("<IIII", data, pos)
        frame = data[pos + 16 : pos + 16 + length]
        pos += 16 + length
        if unpack_from("!H", frame, 12)[0] != 0x0800 or frame[23] != 17:
            continue
        udp = 14 + (frame[14] & 0x0F) * 4
        port, size = unpack_from("!HH", frame, udp + 2)
        yield seconds * 1_000_000_000 + micros * 1000, port, frame[udp + 8 : udp + size]


def packets() -> list[Packet]:
    """Every LBT-RM packet of the capture, times counted from its first frame of any kind."""
    found = []
    start = None
    for at_ns, port, udp in _udp(CAPTURE.read_bytes()):
        start = at_ns if start is None else start
        at = at_ns - start
        if port not in (GROUP_PORT, NAK_PORT):
            continue
        match udp[0]:
            case 0:
                sqn, trail, flags = unpack_from("!IIB", udp, 8)
                found.append(Packet(at, "rx" if flags & 0x20 else "data", sqn, trail, (), 0, udp))
            case 2:
                _, lead, trail = unpack_from("!III", udp, 8)
                found.append(Packet(at, "sm", lead, trail, (), 0, udp))
            case 3:
                count = unpack_from("!H", udp, 8)[0]
                found.append(Packet(at, "nak", 0, 0, unpack_from(f"!{count}I", udp, 12), 0, udp))
            case 4:
                trail, count, _, reason = unpack_from("!IHBB", udp, 8)
                sqns = unpack_from(f"!{count}I", udp, 16)
                found.append(Packet(at, "ncf", 0, trail, sqns, reason >> 4, udp))
    return found
