"""Capture files as a stream of frames: classic pcap and pcapng, both byte orders.

Reads forward only and holds one record at a time, so a pipe works like a file and memory does not grow with it.
Callers get frames up to the first byte that breaks the format and then one `DecodeError` whose `offset` is the
place in the file. Owns nothing but its position; called by `dro.dissect.capture`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import BinaryIO, Final, NamedTuple

from dro.clock import NS_PER_S
from dro.errors import DecodeError

MAX_RECORD: Final = 1 << 20  # bytes of one frame; capture tools stop at 256 KiB, so more means a broken file
_MAX_INTERFACES: Final = 1 << 16
_SKIP_STEP: Final = 1 << 16

LINK_NULL: Final = 0
LINK_ETHERNET: Final = 1
LINK_RAW_OLD: Final = (12, 14)
LINK_RAW: Final = 101
LINK_LOOP: Final = 108
LINK_SLL: Final = 113
LINK_IPV4: Final = 228
LINK_IPV6: Final = 229
LINK_SLL2: Final = 276

_IDB: Final = 1
_PB: Final = 2
_SPB: Final = 3
_EPB: Final = 6
_OPT_TSRESOL: Final = 9
_OPT_TSOFFSET: Final = 14

_CLASSIC: Final = {
    b"\xd4\xc3\xb2\xa1": ("<", 1000),
    b"\xa1\xb2\xc3\xd4": (">", 1000),
    b"\x4d\x3c\xb2\xa1": ("<", 1),
    b"\xa1\xb2\x3c\x4d": (">", 1),
}
_PACKED: Final = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"\xfd7zX": "xz", b"BZh": "bzip2"}


class Frame(NamedTuple):
    """One captured frame. A tuple, not a dataclass, because a million of them are made in a row."""

    number: int  # from 1, per file
    time_ns: int  # since the epoch; a pcapng simple packet has none and gets that of the frame before it
    link: int  # link type of its interface
    data: bytes  # what was kept, at most `wire_len`
    wire_len: int  # bytes on the wire


@dataclass(frozen=True, slots=True)
class _Interface:
    link: int
    snap_len: int
    unit: int  # time stamp ticks per second
    offset_s: int


class _Input:
    """A forward-only stream that knows its offset and never asks for more than `MAX_RECORD` at once."""

    __slots__ = ("_read", "pos")

    def __init__(self, stream: BinaryIO) -> None:
        self._read = stream.read
        self.pos = 0

    def take(self, where: str, count: int) -> bytes:
        """Exactly `count` bytes. Raises: DecodeError when the file ends first."""
        data = self._read(count)
        if len(data) != count:
            raise DecodeError(where, f"the file ends after {len(data)} of {count} bytes", self.pos)
        self.pos += count
        return data

    def take_or_end(self, where: str, count: int) -> bytes | None:
        """Like `take`, but None when not a single byte is left."""
        data = self._read(count)
        if not data:
            return None
        if len(data) != count:
            raise DecodeError(where, f"the file ends after {len(data)} of {count} bytes", self.pos)
        self.pos += count
        return data

    def skip(self, where: str, count: int) -> None:
        while count > 0:
            step = min(count, _SKIP_STEP)
            self.take(where, step)
            count -= step


def read_frames(stream: BinaryIO) -> Iterator[Frame]:
    """Frames of a capture in file order.

    Raises: DecodeError, after the frames that could be read; its `offset` is the byte of the broken record.
    """
    source = _Input(stream)
    magic = stream.read(4)
    source.pos = len(magic)
    if magic in _CLASSIC:
        order, scale = _CLASSIC[magic]
        yield from _classic(source, order, scale)
    elif magic == b"\x0a\x0d\x0d\x0a":
        yield from _pcapng(source)
    elif not magic:
        raise DecodeError("capture file", "the file is empty", 0)
    else:
        for head, name in _PACKED.items():
            if magic.startswith(head):
                raise DecodeError("capture file", f"packed with {name}, unpack it first", 0)
        raise DecodeError("capture file", "neither pcap nor pcapng (give a file of tcpdump or Wireshark)", 0)


def _classic(source: _Input, order: str, scale: int) -> Iterator[Frame]:
    header = Struct(order + "HHiIII").unpack(source.take("pcap header", 20))
    link = header[5] & 0xFFFF  # the high bits speak of check sums at the frame's end
    record = Struct(order + "IIII")
    size = record.size
    unpack = record.unpack
    number = 0
    while True:
        start = source.pos
        head = source.take_or_end("pcap record header", size)
        if head is None:
            return
        seconds, fraction, kept, wire_len = unpack(head)
        if kept > MAX_RECORD:
            raise DecodeError("pcap record", f"claims {kept} bytes, more than a frame can have", start)
        data = source.take("pcap record", kept)
        number += 1
        yield Frame(number, seconds * NS_PER_S + fraction * scale, link, data, max(wire_len, kept))


def _pcapng(source: _Input) -> Iterator[Frame]:
    """Yield the frames of sections in turn; a section may change the byte order and forgets the interfaces."""
    order = "<"
    interfaces: list[_Interface] = []
    number = 0
    time_ns = 0
    first = True
    while True:
        start = 0 if first else source.pos
        kind_bytes: bytes | None = b"\x0a\x0d\x0d\x0a" if first else source.take_or_end("pcapng block", 4)
        if kind_bytes is None:
            return
        first = False
        if kind_bytes == b"\x0a\x0d\x0d\x0a":
            order = _section(source, start)
            interfaces = []
            continue
        kind, total = Struct(order + "II").unpack(kind_bytes + source.take("pcapng block", 4))
        if total < 12 or total % 4:
            raise DecodeError("pcapng block", f"length {total} is not possible", start)
        if kind not in (_IDB, _PB, _SPB, _EPB):
            source.skip("pcapng block", total - 12)
            _check_trailer(source, order, total, start)
            continue
        if total > MAX_RECORD:
            raise DecodeError("pcapng block", f"claims {total} bytes, more than a frame can have", start)
        body = source.take("pcapng block", total - 12)
        _check_trailer(source, order, total, start)
        if kind == _IDB:
            if len(interfaces) >= _MAX_INTERFACES:
                raise DecodeError("pcapng interface", f"more than {_MAX_INTERFACES} interfaces", start)
            interfaces.append(_interface(body, order, start))
            continue
        number += 1
        frame = _packet(kind, body, order, interfaces, start, number, time_ns)
        time_ns = frame.time_ns
        yield frame


def _section(source: _Input, start: int) -> str:
    """Read the byte order of the section whose type was just read; leaves the input after the header block."""
    head = source.take("pcapng section", 8)
    if head[4:] == b"\x4d\x3c\x2b\x1a":
        order = "<"
    elif head[4:] == b"\x1a\x2b\x3c\x4d":
        order = ">"
    else:
        raise DecodeError("pcapng section", "no byte order mark", start)
    total: int = Struct(order + "I").unpack(head[:4])[0]
    if total < 28 or total % 4:
        raise DecodeError("pcapng section", f"length {total} is not possible", start)
    source.skip("pcapng section", total - 16)
    _check_trailer(source, order, total, start)
    return order


def _check_trailer(source: _Input, order: str, total: int, start: int) -> None:
    trailer: int = Struct(order + "I").unpack(source.take("pcapng block", 4))[0]
    if trailer != total:
        raise DecodeError("pcapng block", f"begins with length {total} and ends with {trailer}", start)


def _interface(body: bytes, order: str, start: int) -> _Interface:
    if len(body) < 8:
        raise DecodeError("pcapng interface", "shorter than its fixed part", start)
    link, _reserved, snap_len = Struct(order + "HHI").unpack_from(body)
    unit = 10**6
    offset_s = 0
    pos = 8
    option = Struct(order + "HH")
    while pos + 4 <= len(body):
        code, length = option.unpack_from(body, pos)
        pos += 4
        value = body[pos : pos + length]
        if code == 0 or len(value) != length:
            break
        if code == _OPT_TSRESOL and length == 1:
            exponent = value[0] & 0x7F
            unit = 1 << exponent if value[0] & 0x80 else 10**exponent
        elif code == _OPT_TSOFFSET and length == 8:
            offset_s = Struct(order + "q").unpack(value)[0]
        pos += length + (-length % 4)
    return _Interface(link, snap_len, unit, offset_s)


def _packet(
    kind: int, body: bytes, order: str, interfaces: list[_Interface], start: int, number: int, last_ns: int
) -> Frame:
    fixed = 4 if kind == _SPB else 20
    if len(body) < fixed:
        raise DecodeError("pcapng packet", "shorter than its fixed part", start)
    if kind == _EPB:
        index, high, low, kept, wire_len = Struct(order + "IIIII").unpack_from(body)
    elif kind == _PB:
        index, _drops, high, low, kept, wire_len = Struct(order + "HHIIII").unpack_from(body)
    else:
        index, high, low = 0, 0, 0
        wire_len = Struct(order + "I").unpack_from(body)[0]
        kept = min(wire_len, len(body) - 4)
    if index >= len(interfaces):
        raise DecodeError("pcapng packet", f"names interface {index}, which is not described", start)
    if kept > len(body) - fixed:
        raise DecodeError("pcapng packet", f"claims {kept} bytes in a block of {len(body)}", start)
    interface = interfaces[index]
    if kind == _SPB:
        if interface.snap_len:
            kept = min(kept, interface.snap_len)
        time_ns = last_ns
    else:
        time_ns = ((high << 32 | low) * NS_PER_S) // interface.unit + interface.offset_s * NS_PER_S
    return Frame(number, time_ns, interface.link, body[fixed : fixed + kept], max(wire_len, kept))
