"""Frames of RSocket 1.0 over TCP, as far as topic resolution over TCP uses them.

Each frame has a length of 3 bytes in front, which does not count itself. `FrameSplitter` takes the bytes of one
direction in any portions; `FragmentJoiner` puts a message together that came in several frames. Both are bounded, and
allocate for what has come, never for what a length says. Metadata is skipped: nobody knows any that matters here.

Source: wire notes LBMSRS section 2; RSocket protocol 1.0, "Framing" and "Frame types".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from struct import Struct
from typing import Final, TypeAlias

from dro.errors import DecodeError
from dro.wire.cursor import Reader
from dro.wire.lbmr.tlv import fits

LENGTH_BYTES: Final = 3
FRAME_LENGTH_MAX: Final = 0xFFFFFF
FRAME_MAX_BYTES: Final = 1 << 20
"""Largest frame that is taken unless a user says otherwise. Guess: batches of UM stay far below."""
JOINED_MAX_BYTES: Final = 1 << 21
UNBOUNDED_N: Final = 0x7FFFFFFF
"""A request for frames without an end."""

_IGNORE: Final = 0x200
_METADATA: Final = 0x100
_FOLLOWS: Final = 0x80  # of a request or payload
_RESPOND: Final = 0x80  # of a keepalive
_RESUME: Final = 0x80  # of a setup
_COMPLETE: Final = 0x40
_NEXT: Final = 0x20
_TYPE_SHIFT: Final = 10
_FLAGS: Final = 0x3FF
_ID_MAX: Final = 0x7FFFFFFF
_POSITION_MAX: Final = (1 << 63) - 1
_HEADER: Final = Struct("!IH")
_SETUP: Final = Struct("!HHII")
_POSITION: Final = Struct("!Q")
_HELD_COST: Final = 256  # bytes that count for an unfinished message besides its own


class FrameType(IntEnum):
    SETUP = 0x01
    LEASE = 0x02
    KEEPALIVE = 0x03
    REQUEST_RESPONSE = 0x04
    REQUEST_FNF = 0x05
    REQUEST_STREAM = 0x06
    REQUEST_CHANNEL = 0x07
    REQUEST_N = 0x08
    CANCEL = 0x09
    PAYLOAD = 0x0A
    ERROR = 0x0B
    METADATA_PUSH = 0x0C
    RESUME = 0x0D
    RESUME_OK = 0x0E
    EXT = 0x3F


class ErrorCode(IntEnum):
    INVALID_SETUP = 0x001
    UNSUPPORTED_SETUP = 0x002
    REJECTED_SETUP = 0x003
    REJECTED_RESUME = 0x004
    CONNECTION_ERROR = 0x101
    CONNECTION_CLOSE = 0x102
    APPLICATION_ERROR = 0x201
    REJECTED = 0x202
    CANCELED = 0x203
    INVALID = 0x204


@dataclass(frozen=True, slots=True)
class SetupFrame:
    """The first frame of a client. A connection on which nothing came for `lifetime_ms` is over."""

    keepalive_ms: int
    lifetime_ms: int
    metadata_mime: bytes = b"application/octet-stream"
    data_mime: bytes = b"application/octet-stream"
    data: bytes = b""
    major: int = 1
    minor: int = 0
    resume_token: bytes | None = None


@dataclass(frozen=True, slots=True)
class KeepaliveFrame:
    """A sign of life; `responds` asks for one in return, which carries the same data."""

    responds: bool
    position: int = 0
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class RequestFrame:
    """A request of `kind` REQUEST_RESPONSE, REQUEST_FNF or REQUEST_STREAM. `initial_n` counts for a stream only."""

    stream_id: int
    kind: FrameType
    data: bytes
    initial_n: int = 0
    follows: bool = False


@dataclass(frozen=True, slots=True)
class RequestNFrame:
    """Credit: so many more PAYLOAD frames may come on a stream."""

    stream_id: int
    n: int


@dataclass(frozen=True, slots=True)
class CancelFrame:
    """The end of a stream, by who asked for it."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class PayloadFrame:
    """Data on a stream (`is_next`), its end (`is_complete`), or both; `follows`: the next frame goes on with it."""

    stream_id: int
    data: bytes
    is_next: bool = True
    is_complete: bool = False
    follows: bool = False


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """The end of a stream, or of the connection for stream 0, and why."""

    stream_id: int
    code: int
    text: bytes = b""


@dataclass(frozen=True, slots=True)
class ExtFrame:
    """An extension. Who does not know the type passes over it if `is_ignorable`."""

    kind: int
    data: bytes
    is_ignorable: bool = True
    stream_id: int = 0


@dataclass(frozen=True, slots=True)
class OtherFrame:
    """A frame of a type that is not used here, as it came. `flags` are the low 10 bits."""

    stream_id: int
    kind: int
    flags: int
    body: bytes

    @property
    def is_ignorable(self) -> bool:
        return bool(self.flags & _IGNORE)


Frame: TypeAlias = (
    SetupFrame
    | KeepaliveFrame
    | RequestFrame
    | RequestNFrame
    | CancelFrame
    | PayloadFrame
    | ErrorFrame
    | ExtFrame
    | OtherFrame
)
_REQUESTS: Final = (FrameType.REQUEST_RESPONSE, FrameType.REQUEST_FNF, FrameType.REQUEST_STREAM)
_OF_CONNECTION: Final = (FrameType.SETUP, FrameType.KEEPALIVE)
_KNOWN: Final = (
    *_OF_CONNECTION, *_REQUESTS, FrameType.REQUEST_N, FrameType.CANCEL, FrameType.PAYLOAD, FrameType.ERROR,
    FrameType.EXT,
)  # fmt: skip


def decode(data: bytes) -> Frame:
    """One frame, without its length. Raises: DecodeError, nothing else."""
    r = Reader(data)
    stream_id, word = r.unpack("frame", _HEADER)
    kind, flags = word >> _TYPE_SHIFT, word & _FLAGS
    if stream_id > _ID_MAX:
        raise DecodeError("frame.stream_id", f"stream {stream_id:#x}", 0)
    if kind in _OF_CONNECTION and stream_id:
        raise DecodeError("frame.stream_id", f"{FrameType(kind).name} on stream {stream_id}", 0)
    follows = bool(flags & _FOLLOWS)
    match kind:
        case FrameType.SETUP:
            return _read_setup(r, flags)
        case FrameType.KEEPALIVE:
            position: int = r.unpack("keepalive", _POSITION)[0]
            return KeepaliveFrame(bool(flags & _RESPOND), position & _POSITION_MAX, _rest(r))
        case FrameType.REQUEST_RESPONSE | FrameType.REQUEST_FNF:
            _skip_metadata(r, flags)
            return RequestFrame(stream_id, FrameType(kind), _rest(r), 0, follows)
        case FrameType.REQUEST_STREAM:
            n = r.u32("request.initial_n")
            _skip_metadata(r, flags)
            return RequestFrame(stream_id, FrameType.REQUEST_STREAM, _rest(r), n, follows)
        case FrameType.REQUEST_N:
            return RequestNFrame(stream_id, r.u32("request_n"))
        case FrameType.CANCEL:
            return CancelFrame(stream_id)
        case FrameType.PAYLOAD:
            _skip_metadata(r, flags)
            return PayloadFrame(stream_id, _rest(r), bool(flags & _NEXT), bool(flags & _COMPLETE), follows)
        case FrameType.ERROR:
            return ErrorFrame(stream_id, r.u32("error.code"), _rest(r))
        case FrameType.EXT:
            ext = r.u32("ext.type")
            _skip_metadata(r, flags)
            return ExtFrame(ext, _rest(r), bool(flags & _IGNORE), stream_id)
    return OtherFrame(stream_id, kind, flags, _rest(r))


def _read_setup(r: Reader, flags: int) -> SetupFrame:
    major, minor, keepalive_ms, lifetime_ms = r.unpack("setup", _SETUP)
    token = r.take("setup.token", r.u16("setup.token")) if flags & _RESUME else None
    metadata_mime = r.take("setup.metadata_mime", r.u8("setup.metadata_mime"))
    data_mime = r.take("setup.data_mime", r.u8("setup.data_mime"))
    _skip_metadata(r, flags)
    return SetupFrame(keepalive_ms, lifetime_ms, metadata_mime, data_mime, _rest(r), major, minor, token)


def _skip_metadata(r: Reader, flags: int) -> None:
    if flags & _METADATA:
        size = int.from_bytes(r.take("frame.metadata", LENGTH_BYTES), "big")
        r.take("frame.metadata", size)


def _rest(r: Reader) -> bytes:
    return r.take("frame", r.left)


def encode(frame: Frame) -> bytes:
    """One frame with its length in front. Raises: DecodeError for a value that does not fit its field."""
    match frame:
        case SetupFrame():
            return _write_setup(frame)
        case KeepaliveFrame(responds, position, data):
            if not 0 <= position <= _POSITION_MAX:
                raise DecodeError("keepalive.position", f"{position} does not fit")
            return _framed(0, FrameType.KEEPALIVE, _RESPOND * responds, _POSITION.pack(position), data)
        case RequestFrame(stream_id, kind, data, n, follows):
            if kind not in _REQUESTS:
                raise DecodeError("request", f"{kind!r} is no request that is used")
            head = _u32("request.initial_n", n) if kind is FrameType.REQUEST_STREAM else b""
            return _framed(stream_id, kind, _FOLLOWS * follows, head, data)
        case RequestNFrame(stream_id, n):
            return _framed(stream_id, FrameType.REQUEST_N, 0, _u32("request_n", n))
        case CancelFrame(stream_id):
            return _framed(stream_id, FrameType.CANCEL, 0)
        case PayloadFrame(stream_id, data, is_next, is_complete, follows):
            flags = _NEXT * is_next | _COMPLETE * is_complete | _FOLLOWS * follows
            return _framed(stream_id, FrameType.PAYLOAD, flags, data)
        case ErrorFrame(stream_id, code, text):
            return _framed(stream_id, FrameType.ERROR, 0, _u32("error.code", code), text)
        case ExtFrame(kind, data, is_ignorable, stream_id):
            return _framed(stream_id, FrameType.EXT, _IGNORE * is_ignorable, _u32("ext.type", kind), data)
        case OtherFrame(stream_id, kind, flags, body):
            if kind in _KNOWN or not 0 <= kind <= FrameType.EXT or not 0 <= flags <= _FLAGS:
                raise DecodeError("frame.type", f"type {kind} with flags {flags:#x}")
            return _framed(stream_id, kind, flags, body)


@fits("setup")
def _write_setup(frame: SetupFrame) -> bytes:
    token = frame.resume_token
    if max(len(frame.metadata_mime), len(frame.data_mime)) > 0xFF or len(token or b"") > 0xFFFF:
        raise DecodeError("setup", "a MIME type or token is too long")
    parts = [_SETUP.pack(frame.major, frame.minor, frame.keepalive_ms, frame.lifetime_ms)]
    if token is not None:
        parts += len(token).to_bytes(2, "big"), token
    for mime in (frame.metadata_mime, frame.data_mime):
        parts += bytes((len(mime),)), mime
    return _framed(0, FrameType.SETUP, 0 if token is None else _RESUME, *parts, frame.data)


def _u32(where: str, value: int) -> bytes:
    if not 0 <= value <= 0xFFFFFFFF:
        raise DecodeError(where, f"{value} does not fit")
    return value.to_bytes(4, "big")


def _framed(stream_id: int, kind: int, flags: int, *parts: bytes) -> bytes:
    size = _HEADER.size + sum(map(len, parts))
    if size > FRAME_LENGTH_MAX or not 0 <= stream_id <= _ID_MAX:
        raise DecodeError("frame", f"{size} bytes on stream {stream_id}")
    header = _HEADER.pack(stream_id, kind << _TYPE_SHIFT | flags)
    return b"".join((size.to_bytes(LENGTH_BYTES, "big"), header, *parts))


class FrameSplitter:
    """Bytes of one direction of a connection in, frames without their lengths out."""

    __slots__ = ("_buffer", "_pos", "max_bytes")

    def __init__(self, max_bytes: int = FRAME_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._buffer = bytearray()
        self._pos = 0

    def __len__(self) -> int:
        """Bytes that wait for the rest of their frame, or to be taken."""
        return len(self._buffer) - self._pos

    def feed(self, data: bytes | memoryview) -> None:
        if self._pos:
            del self._buffer[: self._pos]
            self._pos = 0
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """The next whole frame for `decode`, None until there is one. Raises: DecodeError when it is too long."""
        buffer, pos = self._buffer, self._pos
        if len(buffer) - pos < LENGTH_BYTES:
            return None
        size = int.from_bytes(buffer[pos : pos + LENGTH_BYTES], "big")
        if not _HEADER.size <= size <= self.max_bytes:
            raise DecodeError("frame.length", f"{size} bytes, {_HEADER.size} to {self.max_bytes} are taken")
        end = pos + LENGTH_BYTES + size
        if len(buffer) < end:
            return None
        self._pos = end
        return bytes(buffer[pos + LENGTH_BYTES : end])


class FragmentJoiner:
    """Puts requests and payloads together that came in several frames (`follows`); all other frames pass."""

    __slots__ = ("_max_bytes", "_parts", "held_bytes")

    def __init__(self, max_bytes: int = JOINED_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self.held_bytes = 0
        self._parts: dict[int, tuple[RequestFrame | PayloadFrame, list[bytes]]] = {}  # by stream

    def join(self, frame: Frame) -> Frame | None:
        """The frame, or what it completes; None while more follows. Raises: DecodeError beyond the limit."""
        if isinstance(frame, CancelFrame | ErrorFrame):
            self._drop(frame.stream_id)
            return frame
        if not isinstance(frame, RequestFrame | PayloadFrame):
            return frame
        held = self._parts.get(frame.stream_id)
        if held is None and not frame.follows:
            return frame
        if held is not None and isinstance(frame, RequestFrame):
            self._drop(frame.stream_id)
            raise DecodeError("frame.follows", f"a request within another one on stream {frame.stream_id}")
        if held is None:
            held = self._parts[frame.stream_id] = (frame, [])
        held[1].append(frame.data)
        self.held_bytes += len(frame.data) + _HELD_COST
        if self.held_bytes > self._max_bytes:
            raise DecodeError("frame.follows", f"more than {self._max_bytes} bytes in unfinished messages")
        if frame.follows:
            return None
        first, parts = held
        self._drop(frame.stream_id)
        data = b"".join(parts)
        if isinstance(first, RequestFrame):
            return replace(first, data=data, follows=False)
        assert isinstance(frame, PayloadFrame)  # one that begins with a payload goes on with payloads
        return replace(frame, data=data)

    def _drop(self, stream_id: int) -> None:
        held = self._parts.pop(stream_id, None)
        if held is not None:
            self.held_bytes -= sum(len(part) + _HELD_COST for part in held[1])
