"""From a captured frame to a UDP datagram or TCP segment: link layers, IPv4, IP fragments.

Ultra Messaging is IPv4 only, so everything else is counted by name in `Decapsulator.other` and skipped. The only state
is the table of incomplete datagrams; it is bounded in number, and a datagram cannot be larger than IPv4 allows.
Checksums are not verified: network cards fill them in after the capture point.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from struct import Struct
from typing import Final, NamedTuple

from dro.clock import NS_PER_S
from dro.dissect.pcap import (
    LINK_ETHERNET,
    LINK_IPV4,
    LINK_IPV6,
    LINK_LOOP,
    LINK_NULL,
    LINK_RAW,
    LINK_RAW_OLD,
    LINK_SLL,
    LINK_SLL2,
    Frame,
)

UDP: Final = 17
TCP: Final = 6

FIN: Final = 0x01
SYN: Final = 0x02
RST: Final = 0x04
ACK: Final = 0x10

MAX_PENDING: Final = 256  # datagrams waiting for fragments
FRAGMENT_TIMEOUT_NS: Final = 30 * NS_PER_S  # an IP identification may come round again after that
_MAX_PIECES: Final = 8192  # pieces of one datagram: 65535 bytes in units of 8
_MAX_TAGS: Final = 4

_IP: Final = Struct("!BBHHHBBHII")
_UDP: Final = Struct("!HHHH")
_TCP: Final = Struct("!HHIIBB")
_TAGS: Final = (0x8100, 0x88A8, 0x9100)
_ETHERTYPES: Final = {0x0806: "arp", 0x86DD: "ipv6", 0x88CC: "lldp"}
_IP_PROTOCOLS: Final = {1: "icmp", 2: "igmp", 41: "ipv6", 47: "gre", 50: "esp", 89: "ospf", 103: "pim", 132: "sctp"}


class Segment(NamedTuple):
    """A UDP datagram or TCP segment. `payload` may be short by `cut` bytes when the capture kept less than came."""

    frame: int
    time_ns: int
    protocol: int  # UDP or TCP
    src: int
    sport: int
    dst: int
    dport: int
    payload: bytes
    cut: int
    seq: int  # TCP only, as are the next two
    ack: int
    flags: int


@dataclass(slots=True)
class _Pending:
    since_ns: int
    pieces: dict[int, bytes] = field(default_factory=dict)
    total: int = -1  # known once the last fragment has come
    held: int = 0


class Decapsulator:
    """Takes frames, gives segments; `other` counts what was no UDP or TCP over IPv4, by name."""

    def __init__(self) -> None:
        self.other: Counter[str] = Counter()
        self.fragments_incomplete = 0
        self.reassembled = 0
        self._pending: OrderedDict[tuple[int, int, int, int], _Pending] = OrderedDict()

    @property
    def fragments_waiting(self) -> int:
        return len(self._pending)

    def segment(self, frame: Frame) -> Segment | None:
        """The segment that this frame carries or completes; None when it does neither."""
        data = frame.data
        if frame.link == LINK_ETHERNET and data[12:14] == b"\x08\x00":
            start = 14
        else:
            start = self._ip_offset(frame.link, data)
            if start < 0:
                return None
        if len(data) - start < 20:
            self.other["bad ip"] += 1
            return None
        vhl, _tos, total, ident, frag, _ttl, protocol, _sum, src, dst = _IP.unpack_from(data, start)
        header = (vhl & 0x0F) * 4
        if vhl >> 4 != 4:
            self.other["ipv6" if vhl >> 4 == 6 else "bad ip"] += 1
            return None
        if total == 0:  # left empty by cards that cut segments themselves
            total = frame.wire_len - start
        if header < 20 or total < header:
            self.other["bad ip"] += 1
            return None
        if protocol != UDP and protocol != TCP:
            self.other[_IP_PROTOCOLS.get(protocol, "other ip")] += 1
            return None
        body = data[start + header : start + total]
        cut = total - header - len(body)
        if frag & 0x3FFF:
            whole = self._fragment(frame.time_ns, (src, dst, protocol, ident), frag, body, cut)
            if whole is None:
                return None
            body, cut = whole, 0
        if protocol == UDP:
            if len(body) < 8:
                self.other["bad udp"] += 1
                return None
            sport, dport, length, _sum = _UDP.unpack_from(body)
            if length == 0:
                length = len(body) + cut
            if length < 8 or length > len(body) + cut:
                self.other["bad udp"] += 1
                return None
            payload = body[8:length]
            return Segment(
                frame.number, frame.time_ns, UDP, src, sport, dst, dport, payload, length - 8 - len(payload), 0, 0, 0
            )
        if len(body) < 20:
            self.other["bad tcp"] += 1
            return None
        sport, dport, seq, ack, offset, flags = _TCP.unpack_from(body)
        offset = (offset >> 4) * 4
        if offset < 20 or offset > len(body) + cut:
            self.other["bad tcp"] += 1
            return None
        payload = body[offset:]
        cut -= max(0, offset - len(body))
        return Segment(frame.number, frame.time_ns, TCP, src, sport, dst, dport, payload, cut, seq, ack, flags)

    def _ip_offset(self, link: int, data: bytes) -> int:
        """Find where the IPv4 header starts, or -1 after counting what the frame is instead."""
        if link == LINK_ETHERNET:
            return self._ethertype(data, 12)
        if link in (LINK_RAW, LINK_IPV4, *LINK_RAW_OLD):
            return 0
        if link == LINK_SLL:
            return self._ethertype(data, 14)
        if link == LINK_SLL2:
            return self._ethertype(data, 0, 20)
        if link in (LINK_NULL, LINK_LOOP):
            # the address family is in the order of the capturing host, network order for LOOP; AF_INET is 2 everywhere
            if data[:4] in (b"\x02\0\0\0", b"\0\0\0\x02"):
                return 4
            self.other["other link"] += 1
            return -1
        self.other["ipv6" if link == LINK_IPV6 else "other link"] += 1
        return -1

    def _ethertype(self, data: bytes, at: int, payload: int = -1) -> int:
        payload = at + 2 if payload < 0 else payload
        kind = int.from_bytes(data[at : at + 2], "big")
        tags = 0
        while kind in _TAGS and tags < _MAX_TAGS:
            kind = int.from_bytes(data[payload + 2 : payload + 4], "big")
            payload += 4
            tags += 1
        if kind == 0x0800:
            return payload
        self.other[_ETHERTYPES.get(kind, "other ethernet")] += 1
        return -1

    def _fragment(self, now_ns: int, key: tuple[int, int, int, int], frag: int, body: bytes, cut: int) -> bytes | None:
        """Add a fragment; the last one missing gives the whole datagram. The first copy of a byte wins."""
        offset = (frag & 0x1FFF) * 8
        more = bool(frag & 0x2000)
        if cut or offset + len(body) > 65535 or (more and len(body) % 8) or not body:
            self.other["bad fragment"] += 1
            return None
        entry = self._pending.get(key)
        if entry is not None and now_ns - entry.since_ns > FRAGMENT_TIMEOUT_NS:
            del self._pending[key]
            self.fragments_incomplete += 1
            entry = None
        if entry is None:
            while len(self._pending) >= MAX_PENDING:
                self._pending.popitem(last=False)
                self.fragments_incomplete += 1
            entry = self._pending[key] = _Pending(now_ns)
        beyond = 0 <= entry.total < offset + len(body)
        if offset not in entry.pieces and not beyond and len(entry.pieces) < _MAX_PIECES:
            entry.pieces[offset] = body
            entry.held += len(body)
        if not more:
            entry.total = offset + len(body)
        if entry.total < 0 or entry.held < entry.total:
            return None
        whole = _join(entry.pieces, entry.total)
        if whole is not None:
            del self._pending[key]
            self.reassembled += 1
        return whole


def _join(pieces: dict[int, bytes], total: int) -> bytes | None:
    out = bytearray()
    for offset in sorted(pieces):
        if offset > len(out):
            return None
        out += pieces[offset][len(out) - offset :]
    return bytes(out[:total]) if len(out) >= total else None
