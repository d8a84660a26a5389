"""Classic pcap files as UDP datagrams: enough to replay a capture and to make one for a dissector.

It knows Ethernet frames that carry unfragmented IPv4 UDP and skips everything else. It shares no code with the
program under test, so it can stand as the other side in a test.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ETHERNET: Final = 1
ETHERTYPE_IPV4: Final = 0x0800
IPPROTO_UDP: Final = 17
NS_PER_TICK: Final = {0xA1B2C3D4: 1000, 0xA1B23C4D: 1}  # magic number: microsecond and nanosecond files


@dataclass(frozen=True, slots=True)
class Datagram:
    """One UDP datagram of a capture; `frame` counts from 1 as dissectors do, `time_ns` since the first frame."""

    frame: int
    time_ns: int
    src: str
    sport: int
    dst: str
    dport: int
    payload: bytes
    ttl: int = 16


def read_frames(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Frame number, time in ns since the epoch, bytes. A last record that is cut short ends the file."""
    data = path.read_bytes()
    order, tick = _byte_order(data)
    (linktype,) = struct.unpack_from(order + "I", data, 20)
    if linktype != ETHERNET:
        raise ValueError(f"{path}: link type {linktype}, only Ethernet is read")
    record = struct.Struct(order + "IIII")
    at, frame = 24, 0
    while at + record.size <= len(data):
        seconds, fraction, kept, _ = record.unpack_from(data, at)
        at += record.size
        if at + kept > len(data):
            return
        frame += 1
        yield frame, seconds * 1_000_000_000 + fraction * tick, data[at : at + kept]
        at += kept


def _byte_order(data: bytes) -> tuple[str, int]:
    for order in "<>":
        if len(data) >= 24 and (tick := NS_PER_TICK.get(struct.unpack_from(order + "I", data)[0])):
            return order, tick
    raise ValueError("not a classic pcap file")


def read_udp(path: Path) -> list[Datagram]:
    """The UDP datagrams of a pcap file in order."""
    found: list[Datagram] = []
    start_ns = -1
    for frame, time_ns, data in read_frames(path):
        if start_ns < 0:
            start_ns = time_ns
        if len(data) < 42 or struct.unpack_from("!H", data, 12)[0] != ETHERTYPE_IPV4:
            continue
        ip = 14
        udp = ip + (data[ip] & 15) * 4
        fragment = struct.unpack_from("!H", data, ip + 6)[0] & 0x3FFF
        if data[ip + 9] != IPPROTO_UDP or fragment:
            continue
        sport, dport, length = struct.unpack_from("!HHH", data, udp)
        src, dst = socket.inet_ntoa(data[ip + 12 : ip + 16]), socket.inet_ntoa(data[ip + 16 : ip + 20])
        payload = data[udp + 8 : udp + length]
        found.append(Datagram(frame, time_ns - start_ns, src, sport, dst, dport, payload, data[ip + 8]))
    return found


def write_udp(path: Path, datagrams: Iterable[Datagram]) -> None:
    """Write datagrams as an Ethernet capture with valid IPv4 headers and no UDP checksum."""
    with path.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, ETHERNET))
        for d in datagrams:
            frame = _ethernet(d)
            out.write(struct.pack("<IIII", d.time_ns // 10**9, d.time_ns % 10**9, len(frame), len(frame)) + frame)


def _ethernet(d: Datagram) -> bytes:
    udp = struct.pack("!HHHH", d.sport, d.dport, 8 + len(d.payload), 0) + d.payload
    addresses = socket.inet_aton(d.src) + socket.inet_aton(d.dst)
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(udp), d.frame & 0xFFFF, 0x4000, d.ttl, IPPROTO_UDP, 0) + addresses
    total = sum(struct.unpack("!10H", ip))
    total = (total & 0xFFFF) + (total >> 16)
    checksum = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    ip = ip[:10] + struct.pack("!H", checksum) + ip[12:]
    return bytes(6) + b"\x02\0\0\0\0\x01" + struct.pack("!H", ETHERTYPE_IPV4) + ip + udp
