"""A capture with its LBT-TCP streams cut anew, one LBMC message in a segment, for dissectors.

The standard dissector finds message borders only while it sees each message header in one piece: when a segment ends
within the first four bytes of a message (every sixth megabyte or so of mixed sizes), or when the kernel sends a
segment twice, it takes what follows for headers. So before a capture is judged its streams are put in order here, by
code that shares nothing with the program under test, and written out with the same bytes in other segments.

Only the borders are looked at. A stream that cannot be split (a length below four) goes on byte by byte as it is, so
whatever is wrong in it stays visible; so do frames of other protocols. Bare acknowledgements are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import BinaryIO, Final

_FILE_HEADER: Final = 24
_RECORD: Final = Struct("<IIII")
_LITTLE_MAGICS: Final = (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1")
_ETHERNET: Final = 14
_IPV4: Final = b"\x08\x00"
_TCP: Final = 6
_FIN, _SYN, _RST = 0x01, 0x02, 0x04
_SEQ: Final = Struct("!I")
_PORTS: Final = Struct("!HH")
_LBMC: Final = Struct("!2xH")
_SEGMENT_MAX: Final = 60_000
_WORD: Final = 0xFFFFFFFF
_RULE: Final = re.compile(r"tcp\.port==(\d+)(?:-(\d+))?,lbttcp")

Record = tuple[int, int, int, int]


@dataclass
class _Stream:
    """One direction of a connection."""

    next_seq: int | None = None  # of the first byte that has not come
    early: dict[int, bytes] = field(default_factory=dict)  # segments beyond it
    kept: bytearray = field(default_factory=bytearray)  # in order, not written yet
    is_opaque: bool = False  # cannot be split

    def take(self, seq: int, payload: bytes) -> None:
        if self.next_seq is None:
            self.next_seq = seq
        self.early[seq] = max(self.early.get(seq, b""), payload, key=len)
        while True:
            for start, piece in sorted(self.early.items(), key=lambda item: self._ahead(item[0])):
                skip = -self._ahead(start)
                if skip < 0:
                    continue
                del self.early[start]
                if skip < len(piece):
                    self.kept += piece[skip:]
                    self.next_seq = (self.next_seq + len(piece) - skip) & _WORD
                    break
            else:
                return

    def _ahead(self, seq: int) -> int:
        assert self.next_seq is not None
        distance = (seq - self.next_seq) & _WORD
        return distance - (1 << 32) if distance > 1 << 31 else distance

    def pieces(self, *, all_of_it: bool) -> Iterator[tuple[int, bytes]]:
        """(seq, bytes) of each complete message, or of everything that is there."""
        assert self.next_seq is not None
        kept = self.kept
        seq = (self.next_seq - len(kept)) & _WORD
        at = 0
        while len(kept) - at >= _LBMC.size and not self.is_opaque:
            length = _LBMC.unpack_from(kept, at)[0]
            if length < _LBMC.size:
                self.is_opaque = True
            elif len(kept) - at >= length:
                yield (seq + at) & _WORD, bytes(kept[at : at + length])
                at += length
            else:
                break
        if (self.is_opaque or all_of_it) and at < len(kept):
            yield (seq + at) & _WORD, bytes(kept[at:])
            at = len(kept)
        del kept[:at]


def tcp_at(frame: bytes, ports: list[range]) -> int | None:
    """Where the TCP header of a frame on one of the ports begins; None for every other frame."""
    if len(frame) < _ETHERNET + 40 or frame[12:14] != _IPV4 or frame[_ETHERNET + 9] != _TCP:
        return None
    tcp = _ETHERNET + (frame[_ETHERNET] & 0xF) * 4
    own = _PORTS.unpack_from(frame, tcp)
    return tcp if any(port in known for port in own for known in ports) else None


class _Cutter:
    def __init__(self, out: BinaryIO, ports: list[range]) -> None:
        self._out = out
        self._ports = ports
        self._streams: dict[bytes, _Stream] = {}
        self._last: dict[bytes, tuple[Record, bytes]] = {}  # a frame of each stream, for what is left at the end

    def frame(self, record: Record, frame: bytes) -> None:
        tcp = tcp_at(frame, self._ports)
        if tcp is None:
            self._out.write(_RECORD.pack(*record) + frame)
            return
        flags = frame[tcp + 13]
        data = tcp + (frame[tcp + 12] >> 4) * 4
        seq = _SEQ.unpack_from(frame, tcp + 4)[0]
        total = int.from_bytes(frame[_ETHERNET + 2 : _ETHERNET + 4], "big")
        payload = frame[data : _ETHERNET + total]
        key = frame[_ETHERNET + 12 : _ETHERNET + 20] + frame[tcp : tcp + 4]
        if flags & _SYN:
            self._streams[key] = _Stream((seq + 1) & _WORD)
            self._write(record, frame, tcp, data, seq, b"", flags)
            return
        stream = self._streams.setdefault(key, _Stream())
        if payload:
            stream.take(seq, payload)
            self._last[key] = (record, frame)
        is_last = bool(flags & (_FIN | _RST))
        if payload or is_last:
            self._write_pieces(record, frame, stream, all_of_it=is_last)
        if is_last:
            self._write(record, frame, tcp, data, (seq + len(payload)) & _WORD, b"", flags)

    def end(self) -> None:
        for key, (record, frame) in self._last.items():
            self._write_pieces(record, frame, self._streams[key], all_of_it=True)

    def _write_pieces(self, record: Record, frame: bytes, stream: _Stream, *, all_of_it: bool) -> None:
        if stream.next_seq is None:
            return
        tcp = _ETHERNET + (frame[_ETHERNET] & 0xF) * 4
        data = tcp + (frame[tcp + 12] >> 4) * 4
        flags = frame[tcp + 13] & ~(_FIN | _RST)
        for seq, piece in stream.pieces(all_of_it=all_of_it):
            for at in range(0, len(piece), _SEGMENT_MAX):
                part = piece[at : at + _SEGMENT_MAX]
                self._write(record, frame, tcp, data, (seq + at) & _WORD, part, flags)

    def _write(self, record: Record, frame: bytes, tcp: int, data: int, seq: int, payload: bytes, flags: int) -> None:
        head = bytearray(frame[:data])
        head[_ETHERNET + 2 : _ETHERNET + 4] = (data - _ETHERNET + len(payload)).to_bytes(2, "big")
        head[_ETHERNET + 10 : _ETHERNET + 12] = b"\x00\x00"
        _SEQ.pack_into(head, tcp + 4, seq)
        head[tcp + 13] = flags
        head[tcp + 16 : tcp + 18] = b"\x00\x00"
        size = len(head) + len(payload)
        self._out.write(_RECORD.pack(record[0], record[1], size, size) + head + payload)


def tcp_ports(rules: Iterable[str]) -> list[range]:
    """The ports that decode-as rules give to LBT-TCP."""
    found = (_RULE.fullmatch(rule) for rule in rules)
    return [range(int(match[1]), int(match[2] or match[1]) + 1) for match in found if match]


def cut_anew(pcap: Path, to: Path, ports: list[range]) -> Path:
    """Write the capture (classic pcap, Ethernet) with its streams cut anew to `to`, and return that.

    Without frames on `ports` nothing is written, and `pcap` returned.
    """
    raw = pcap.read_bytes()
    if raw[:4] not in _LITTLE_MAGICS:
        raise ValueError(f"{pcap} is no little-endian pcap file")
    frames = list(_records(raw))
    if not any(tcp_at(frame, ports) for _, frame in frames):
        return pcap
    with to.open("wb") as out:
        out.write(raw[:_FILE_HEADER])
        cutter = _Cutter(out, ports)
        for record, frame in frames:
            cutter.frame(record, frame)
        cutter.end()
    return to


def joined(pcaps: Iterable[Path], to: Path) -> tuple[Path, list[int]]:
    """Write captures of one format to `to`, one after the other. Returns `to`, and where each begins, from 1."""
    firsts: list[int] = []
    number = 1
    with to.open("wb") as out:
        for pcap in pcaps:
            raw = pcap.read_bytes()
            out.write(raw[_FILE_HEADER if firsts else 0 :])
            firsts.append(number)
            number += sum(1 for _ in _records(raw))
    return to, firsts


def _records(raw: bytes) -> Iterator[tuple[Record, bytes]]:
    at = _FILE_HEADER
    while at + _RECORD.size <= len(raw):
        record = _RECORD.unpack_from(raw, at)
        at += _RECORD.size
        yield record, raw[at : at + record[2]]
        at += record[2]
