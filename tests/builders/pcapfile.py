"""Capture files made by hand: frames of UDP, TCP and IP fragments, written as pcap or pcapng."""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack

MAC = bytes.fromhex("01005e000001020000000001")
SYN, FIN, RST, ACK = 2, 1, 4, 16


def ip(text: str) -> int:
    a, b, c, d = map(int, text.split("."))
    return a << 24 | b << 16 | c << 8 | d


def ipv4(src: str, dst: str, protocol: int, body: bytes, *, ident: int = 1, frag: int = 0) -> bytes:
    return (
        pack("!BBHHHBBH", 0x45, 0, 20 + len(body), ident, frag, 16, protocol, 0) + pack("!II", ip(src), ip(dst)) + body
    )


def udp_body(sport: int, dport: int, payload: bytes) -> bytes:
    return pack("!HHHH", sport, dport, 8 + len(payload), 0) + payload


def udp(src: str, sport: int, dst: str, dport: int, payload: bytes) -> bytes:
    """An Ethernet frame."""
    return MAC + b"\x08\x00" + ipv4(src, dst, 17, udp_body(sport, dport, payload))


def tcp(
    src: str, sport: int, dst: str, dport: int, seq: int, payload: bytes = b"", flags: int = ACK, ack: int = 0
) -> bytes:
    body = pack("!HHIIBBHHH", sport, dport, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, 0x50, flags, 8192, 0, 0) + payload
    return MAC + b"\x08\x00" + ipv4(src, dst, 6, body)


def pcap(
    frames: Iterable[bytes], *, order: str = "<", ns: bool = False, link: int = 1, start_ns: int = 1_000_000_000
) -> bytes:
    """A classic file; frames come one millisecond apart."""
    out = pack(order + "IHHiIII", 0xA1B23C4D if ns else 0xA1B2C3D4, 2, 4, 0, 0, 262144, link)
    time_ns = start_ns
    for frame in frames:
        seconds, rest = divmod(time_ns, 10**9)
        out += pack(order + "IIII", seconds, rest if ns else rest // 1000, len(frame), len(frame)) + frame
        time_ns += 1_000_000
    return out


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    total = 12 + len(body) + -len(body) % 4
    return pack(order + "II", kind, total) + body + bytes(-len(body) % 4) + pack(order + "I", total)


def section(order: str = "<") -> bytes:
    return block(0x0A0D0D0A, pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(link: int = 1, *, order: str = "<", snap: int = 0, tsresol: int | None = None, offset: int = 0) -> bytes:
    body = pack(order + "HHI", link, 0, snap)
    if tsresol is not None:
        body += pack(order + "HHB3x", 9, 1, tsresol)
    if offset:
        body += pack(order + "HHq", 14, 8, offset)
    return block(1, body + pack(order + "HH", 0, 0), order)


def enhanced(frame: bytes, ticks: int = 0, *, order: str = "<", index: int = 0) -> bytes:
    head = pack(order + "IIIII", index, ticks >> 32, ticks & 0xFFFFFFFF, len(frame), len(frame))
    return block(6, head + frame, order)
