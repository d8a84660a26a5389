"""Topic resolution over TCP in captures: frames found in a stream, and printed as fields.

Names and forms are those of the standard dissector; where that one is wrong (S1, S3 and S5 of wire notes LBMSRS), this
one is not.

A capture may begin in the middle of a frame or lack bytes. Then frames are looked for by their headers, and nothing is
returned until a chain of them is found that meets the end of a segment. One `SrsStream` per direction; memory is at
most one frame.
"""

from __future__ import annotations

from typing import Final

from dro.dissect.fields import FieldList
from dro.dissect.lbmcstream import StreamPiece
from dro.dissect.spec import Layout, compile_spec
from dro.dissect.tcpstream import Closed, Missing, Opened, Piece
from dro.errors import DecodeError
from dro.wire.srs import rsocket
from dro.wire.srs.messages import MessageId, decode
from dro.wire.srs.rsocket import FRAME_MAX_BYTES, LENGTH_BYTES, FrameType

_HEADER: Final = compile_spec("lbmsrs.rsocket", "frame_len:d3 stream_id:d4 _:d2[^rsocket.frame_type=fc00:d2]")
_HEADER_BYTES: Final = 6
_TYPES: Final = frozenset(FrameType)
_METADATA_FLAG: Final = 0x100
_RESUME_FLAG: Final = 0x80
_COMMON: Final = "^rsocket.flags.ignore=200,^rsocket.flags.metadata=100"
_FLAGS: Final[dict[int, Layout]] = {
    kind: compile_spec(
        "lbmsrs.rsocket", f"_:d2[{','.join((_COMMON, *(f'^rsocket.flags.{one}' for one in own.split())))}]"
    )
    for kind, own in {
        FrameType.SETUP: "resume=80 lease=40",
        FrameType.KEEPALIVE: "respond=80",
        FrameType.REQUEST_RESPONSE: "follows=80",
        FrameType.REQUEST_FNF: "follows=80",
        FrameType.REQUEST_STREAM: "follows=80",
        FrameType.REQUEST_CHANNEL: "follows=80 complete=40",
        FrameType.PAYLOAD: "follows=80 complete=40 next=20",
        FrameType.REQUEST_N: "",
        FrameType.CANCEL: "",
        FrameType.ERROR: "",
        FrameType.LEASE: "",
        FrameType.METADATA_PUSH: "",
        FrameType.RESUME: "",
        FrameType.RESUME_OK: "",
        FrameType.EXT: "",
    }.items()
}
_FIXED: Final[dict[int, Layout]] = {
    FrameType.KEEPALIVE: compile_spec("lbmsrs.rsocket", "keepalive_last_received_position:d8"),
    FrameType.REQUEST_STREAM: compile_spec("lbmsrs.rsocket", "request_n:d4"),
    FrameType.REQUEST_CHANNEL: compile_spec("lbmsrs.rsocket", "request_n:d4"),
    FrameType.REQUEST_N: compile_spec("lbmsrs.rsocket", "request_n:d4"),
    FrameType.ERROR: compile_spec("lbmsrs.rsocket", "error_code:d4"),
    FrameType.SETUP: compile_spec(
        "lbmsrs.rsocket", "version.major:d2 version.minor:d2 keepalive.interval:d4 max_lifetime:d4"
    ),
}
_WITH_MESSAGES: Final = (
    FrameType.REQUEST_RESPONSE, FrameType.REQUEST_FNF, FrameType.REQUEST_STREAM, FrameType.REQUEST_CHANNEL,
    FrameType.PAYLOAD,
)  # fmt: skip
_INTEREST: Final = "domain_id:d4 context_instance:b8 context_type:d1 version:d4 version_flags:d4 reserved:d4"
_MESSAGES: Final[dict[int, tuple[str, tuple[str, ...], str]]] = {  # name, the strings behind an OTID if any, the rest
    MessageId.REGISTRATION_REQUEST: (
        "registration_request", (),
        "app_type:d1 client_addr:ip client_port:d2 session_id:d4 host_id:d4 protocol_version:d1 interest_mode:d1 "
        "local_domain_id:d4",
    ),
    MessageId.REGISTRATION_RESPONSE: (
        "registration_response", (), "client_id:d8 local_domain_id:d4 protocol_version:d1"
    ),
    MessageId.STREAM_REQUEST: ("stream_req", (), "unused:d1"),
    MessageId.SOURCE_INFO: (
        "sir", ("topic", "source"),
        "host_id:d4 topic_idx:d4 functionality_flags:d4 request_ip:ip request_port:d2 domain_id:d4 encryption:d1 "
        "compression:d1 ulb_src_id:d4 ulb_queue_id:d4 ulb_reg_id:d8 context_instance:b8 context_type:d1 version:d4 "
        "version_flags:d4 ttl:d2 cost:i4",
    ),
    MessageId.SOURCE_DELETE: ("sdr", ("topic",), ""),
    MessageId.RECEIVER_INFO: ("rir", ("topic",), _INTEREST),
    MessageId.RECEIVER_DELETE: ("rdr", ("topic",), _INTEREST),
    MessageId.RECEIVER_END: ("rer", ("topic",), _INTEREST),
    MessageId.WILDCARD_INFO: ("wir", ("pattern",), _INTEREST),
    MessageId.WILDCARD_DELETE: ("wdr", ("pattern",), _INTEREST),
    MessageId.WILDCARD_END: ("wer", ("pattern",), _INTEREST),
    MessageId.SOURCE_LEAVE: (
        "sli", ("topic", "source"), "context_instance:b8 context_type:d1 version:d4 version_flags:d4 reserved:d4"
    ),
}  # fmt: skip
_WITH_OTID: Final = (MessageId.SOURCE_INFO, MessageId.SOURCE_DELETE, MessageId.SOURCE_LEAVE)
_LAYOUTS: Final[dict[int, Layout]] = {
    kind: compile_spec(f"lbmsrs.{name}", rest) for kind, (name, _, rest) in _MESSAGES.items()
}
_ID: Final = compile_spec("lbmsrs", "message_id:d2")
_OTIDS: Final[dict[int, Layout]] = {
    kind: compile_spec(f"lbmsrs.{_MESSAGES[kind][0]}", "otid:b32") for kind in _WITH_OTID
}
_TEXT: Final = compile_spec("", "-1")


def lbmsrs_fields(data: bytes, out: FieldList) -> None:
    """Print whole frames with their lengths, one behind the other. Raises: DecodeError at the first fault."""
    pos = 0
    while pos < len(data):
        if len(data) - pos < LENGTH_BYTES:
            raise DecodeError("frame", f"{len(data) - pos} bytes are no frame", pos)
        end = pos + LENGTH_BYTES + int.from_bytes(data[pos : pos + LENGTH_BYTES], "big")
        if end > len(data):
            raise DecodeError("frame", f"{end - len(data)} bytes are missing", pos)
        _print_frame(data, pos, end, out)
        pos = end


def _print_frame(data: bytes, pos: int, end: int, out: FieldList) -> None:
    at = _HEADER.print_fields(data, pos, pos, end, out)
    word = int.from_bytes(data[at - 2 : at], "big")
    kind, flags = word >> 10, word & 0x3FF
    if kind in _FLAGS:
        _FLAGS[kind].print_fields(data, at - 2, at - 2, end, out)
    frame = rsocket.decode(data[pos + LENGTH_BYTES : end])
    if kind in _FIXED:
        at = _FIXED[kind].print_fields(data, pos, at, end, out)
    if kind == FrameType.SETUP:
        at = _print_setup(data, at, end, is_resumed=bool(flags & _RESUME_FLAG), out=out)
    if kind in _WITH_MESSAGES and flags & _METADATA_FLAG:
        size = int.from_bytes(data[at : at + LENGTH_BYTES], "big")
        out.add("lbmsrs.rsocket.metadata_len", str(size))
        at += LENGTH_BYTES + size
    if kind in _WITH_MESSAGES and at < end and not getattr(frame, "follows", False):
        _print_messages(data, at, end, out)


def _print_setup(data: bytes, at: int, end: int, *, is_resumed: bool, out: FieldList) -> int:
    parts = ([("resume.token.len", "resume.token", 2)] if is_resumed else []) + [
        ("mdata_mime_length", "mdata_mime_type", 1),
        ("data_mime_length", "data_mime_type", 1),
    ]
    for length, text, size in parts:
        count = int.from_bytes(data[at : at + size], "big")
        out.add(f"lbmsrs.rsocket.{length}", str(count))
        compile_spec("lbmsrs.rsocket", f"{text}:t*").print_fields(data, at, at + size, at + size + count, out)
        at += size + count
    return at


def _print_messages(data: bytes, pos: int, end: int, out: FieldList) -> None:
    start = pos
    while pos < end:
        at = _ID.print_fields(data, pos, pos, end, out)
        kind = int.from_bytes(data[pos:at], "big")
        if kind not in _MESSAGES:
            break
        name, strings, _ = _MESSAGES[kind]
        if kind in _WITH_OTID:
            at = _OTIDS[kind].print_fields(data, pos, at, end, out)
        for text in strings:
            at = _print_text(data, at, end, f"lbmsrs.{name}.{text}", out)
        pos = _LAYOUTS[kind].print_fields(data, pos, at, end, out)
    decode(data[start:end])


def _print_text(data: bytes, at: int, end: int, name: str, out: FieldList) -> int:
    _TEXT.print_fields(data, at, at, end, out)
    count = data[at]
    stop = at + 1 + count
    if stop > end:
        raise DecodeError(name, f"needs {count} bytes, {end - at - 1} left", at)
    out.add(f"{name}_len", str(count))
    prefix, _, last = name.rpartition(".")
    compile_spec(prefix, f"{last}:t*").print_fields(data, at, at + 1, stop, out)
    return stop


# streams


class SrsStream:
    """One direction of a connection."""

    __slots__ = ("_buffer", "_is_framed", "_lost")

    is_foreign = False  # only a rule or the port says that a stream is one of these

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._is_framed = False
        self._lost = 0

    def on_piece(self, piece: Piece) -> StreamPiece | None:
        """Whole frames with their lengths that the piece completes, or what is wrong; None when it completes none."""
        match piece:
            case Opened():
                self._buffer.clear()
                self._is_framed, self._lost = True, 0
                return None
            case Missing(count):
                held = len(self._buffer)
                self._buffer.clear()
                self._is_framed = False
                self._lose(-1 if count < 0 else count + held)
                return None
            case Closed():
                held, is_framed = len(self._buffer), self._is_framed
                self._buffer.clear()
                self._is_framed = False
                error = DecodeError("frame", f"the stream ends {held} bytes into a frame")
                return self._run(b"", error) if held and is_framed else None
            case _:
                return self._on_bytes(piece)

    def _lose(self, count: int) -> None:
        self._lost = -1 if count < 0 or self._lost < 0 else self._lost + count

    def _on_bytes(self, data: bytes) -> StreamPiece | None:
        if not self._is_framed:
            start = next((at for at in range(len(data)) if _is_chain(data, at)), -1)
            if start < 0:
                self._lose(len(data))
                return None
            self._lose(start)
            data = data[start:]
            self._is_framed = True
        buffer = self._buffer
        buffer += data
        pos = 0
        while len(buffer) - pos >= LENGTH_BYTES:
            size = int.from_bytes(buffer[pos : pos + LENGTH_BYTES], "big")
            if not _HEADER_BYTES <= size <= FRAME_MAX_BYTES:
                whole = bytes(buffer[:pos])
                buffer.clear()
                self._is_framed = False
                return self._run(whole, DecodeError("frame.length", f"a frame of {size} bytes", pos))
            if len(buffer) - pos < LENGTH_BYTES + size:
                break
            pos += LENGTH_BYTES + size
        whole = bytes(buffer[:pos])
        del buffer[:pos]
        return self._run(whole, None) if whole else None

    def _run(self, whole: bytes, error: DecodeError | None) -> StreamPiece:
        lost, self._lost = self._lost, 0
        return StreamPiece(whole, lost, error)


def _is_chain(data: bytes, pos: int) -> bool:
    """Say whether believable frames begin there, one after the other to the end of the data."""
    start = pos
    while len(data) - pos >= LENGTH_BYTES + _HEADER_BYTES:
        size = int.from_bytes(data[pos : pos + LENGTH_BYTES], "big")
        at = pos + LENGTH_BYTES
        if not _HEADER_BYTES <= size <= FRAME_MAX_BYTES or data[at] >> 7 or data[at + 4] >> 2 not in _TYPES:
            return False
        pos = at + size
    return start < pos == len(data)
