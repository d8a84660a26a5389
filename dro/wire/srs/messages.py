"""Messages of topic resolution over TCP (SRS), the data of RSocket frames: bytes to frozen records and back.

Registration and stream request stand alone in a frame; records are batched, one after the other, without a length of
their own. Therefore an unknown record ends the reading of its frame, and what stands before it is kept.

    records, trouble = decode_lenient(frame.data)
    frames = pack_records(records, max_bytes)

Source: wire notes LBMSRS sections 3 and 6. Guess: the domain id of a registration response has 4 bytes and the version
one (S1); lengths of strings count a NUL (S2), which is stripped when it is there and always written, unless it is what
makes a string too long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Any, Final, TypeAlias

from dro.errors import DecodeError
from dro.wire.cursor import U16, Reader
from dro.wire.lbmr.tlv import NAME_MAX, fits, strip_counted
from dro.wire.otid import OTID_SIZE

SRS_PORT: Final = 27000
VERSION: Final = 1
END_COST: Final = -1
"""The cost that makes a source record the end of the source."""
EXT_LBMR: Final = 0x44524F01
"""Extended type of our own: the data is one datagram of topic resolution over UDP."""
EXT_DOMAIN: Final = 0x44524F02
"""Extended type of our own: the data is the domain id of the TRD, 4 bytes, when a SRS learns it."""


class MessageId(IntEnum):
    REGISTRATION_REQUEST = 1
    REGISTRATION_RESPONSE = 2
    STREAM_REQUEST = 3
    SOURCE_INFO = 4
    SOURCE_DELETE = 5
    RECEIVER_INFO = 6
    RECEIVER_DELETE = 7
    RECEIVER_END = 8
    WILDCARD_INFO = 9
    WILDCARD_DELETE = 10
    WILDCARD_END = 11
    SOURCE_LEAVE = 12


class ApplicationType(IntEnum):
    """What a client is, and the context that a record is about."""

    APPLICATION = 0
    DRO = 1
    STORE = 2


class InterestMode(IntEnum):
    FLOOD = 0
    FILTER = 1
    FLOOD_AND_FORWARD = 2
    FILTER_AND_FORWARD = 3

    @property
    def filters(self) -> bool:
        return self in (InterestMode.FILTER, InterestMode.FILTER_AND_FORWARD)

    @property
    def forwards(self) -> bool:
        """Whether the client is told the interest of others."""
        return self in (InterestMode.FLOOD_AND_FORWARD, InterestMode.FILTER_AND_FORWARD)


@dataclass(frozen=True, slots=True)
class RegistrationRequest:
    """Who a client is. `interest_mode` is an `InterestMode`, or a number that is not known."""

    application_type: int
    client_ip: int
    client_port: int
    session_id: int
    host_id: int
    interest_mode: int = InterestMode.FILTER
    domain_id: int = 0
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class RegistrationResponse:
    """The answer: the client's number, and the domain id of the TRD, 0 while it is not known."""

    client_id: int
    domain_id: int = 0
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class StreamRequest:
    """Opens the stream on which a client is sent records."""


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """SIR: a source, or with the cost -1 its end. `source` is a source string, as bytes."""

    otid: bytes
    topic: bytes
    source: bytes
    topic_index: int
    host_id: int = 0
    functionality: int = 0
    request_ip: int = 0
    request_port: int = 0
    domain_id: int = 0
    encryption: int = 0
    compression: int = 0
    ulb_source_id: int = 0
    ulb_queue_id: int = 0
    ulb_registration_id: int = 0
    context_instance: bytes = bytes(8)
    context_type: int = ApplicationType.APPLICATION
    version: int = VERSION
    version_flags: int = 0
    ttl: int = 0
    cost: int = 0

    @property
    def is_end(self) -> bool:
        return self.cost == END_COST


@dataclass(frozen=True, slots=True)
class SourceDelete:
    """SDR: a source is gone."""

    otid: bytes
    topic: bytes


@dataclass(frozen=True, slots=True)
class InterestInfo:
    """RIR, RDR and RER of a topic, WIR, WDR and WER of a PCRE pattern. `kind` is RECEIVER_INFO to WILDCARD_END."""

    kind: int
    name: bytes
    domain_id: int = 0
    context_instance: bytes = bytes(8)
    context_type: int = ApplicationType.APPLICATION
    version: int = VERSION
    version_flags: int = 0
    reserved: int = 0

    @property
    def is_pattern(self) -> bool:
        return self.kind >= MessageId.WILDCARD_INFO

    @property
    def is_wanted(self) -> bool:
        """Whether the record says that there is interest; else it says that there is none any more."""
        return self.kind in (MessageId.RECEIVER_INFO, MessageId.WILDCARD_INFO)


@dataclass(frozen=True, slots=True)
class SourceLeave:
    """SLI: a receiver has left a source."""

    otid: bytes
    topic: bytes
    source: bytes
    context_instance: bytes = bytes(8)
    context_type: int = ApplicationType.APPLICATION
    version: int = VERSION
    version_flags: int = 0
    reserved: int = 0


SrsRecord: TypeAlias = SourceInfo | SourceDelete | InterestInfo | SourceLeave
SrsMessage: TypeAlias = RegistrationRequest | RegistrationResponse | StreamRequest | SrsRecord

_REQUEST: Final = Struct("!BIHIIBBI")
_RESPONSE: Final = Struct("!QIB")
_SOURCE: Final = Struct("!IIIIHIBBIIQ8sBIIHi")  # behind the source string
_INTEREST: Final = Struct("!I8sBIII")
_LEAVE: Final = Struct("!8sBIII")


def decode_lenient(data: bytes) -> tuple[tuple[SrsMessage, ...], DecodeError | None]:
    """Return the messages of a frame up to the first that cannot be read, and what is wrong with that one."""
    r = Reader(data)
    messages: list[SrsMessage] = []
    try:
        while r.left or not messages:
            at = r.pos
            kind = r.u16("message.id")
            read = _READERS.get(kind)
            if read is None or (at and kind <= MessageId.STREAM_REQUEST):
                raise DecodeError("message.id", f"message {kind} is not known here", at)
            messages.append(read(r, kind))
            if kind <= MessageId.STREAM_REQUEST and r.left:
                messages.clear()
                raise r.fail("message", f"{r.left} bytes behind message {kind}, which stands alone")
    except DecodeError as e:
        return tuple(messages), e
    return tuple(messages), None


def decode(data: bytes) -> tuple[SrsMessage, ...]:
    """The messages of a frame. Raises: DecodeError, nothing else."""
    messages, trouble = decode_lenient(data)
    if trouble is not None:
        raise trouble
    return messages


def _read_text(r: Reader, where: str) -> bytes:
    at = r.pos
    text = strip_counted(r.take(where, r.u8(where)))
    if b"\0" in text:
        raise DecodeError(where, "a NUL inside", at)
    return text


def _read_request(r: Reader, _: int) -> RegistrationRequest:
    kind, ip, port, session, host, version, mode, domain = r.unpack("registration", _REQUEST)
    return RegistrationRequest(kind, ip, port, session, host, mode, domain, version)


def _read_response(r: Reader, _: int) -> RegistrationResponse:
    return RegistrationResponse(*r.unpack("registration", _RESPONSE))


def _read_stream_request(r: Reader, _: int) -> StreamRequest:
    r.u8("stream_request")
    return StreamRequest()


def _read_source(r: Reader, _: int) -> SourceInfo:
    otid = r.take("sir.otid", OTID_SIZE)
    topic, source = _read_text(r, "sir.topic"), _read_text(r, "sir.source")
    host_id, index, *rest = r.unpack("sir", _SOURCE)
    return SourceInfo(otid, topic, source, index, host_id, *rest)


def _read_delete(r: Reader, _: int) -> SourceDelete:
    return SourceDelete(r.take("sdr.otid", OTID_SIZE), _read_text(r, "sdr.topic"))


def _read_interest(r: Reader, kind: int) -> InterestInfo:
    return InterestInfo(kind, _read_text(r, "interest.name"), *r.unpack("interest", _INTEREST))


def _read_leave(r: Reader, _: int) -> SourceLeave:
    otid = r.take("sli.otid", OTID_SIZE)
    topic, source = _read_text(r, "sli.topic"), _read_text(r, "sli.source")
    return SourceLeave(otid, topic, source, *r.unpack("sli", _LEAVE))


_READERS: Final[dict[int, Callable[[Reader, int], SrsMessage]]] = {
    MessageId.REGISTRATION_REQUEST: _read_request,
    MessageId.REGISTRATION_RESPONSE: _read_response,
    MessageId.STREAM_REQUEST: _read_stream_request,
    MessageId.SOURCE_INFO: _read_source,
    MessageId.SOURCE_DELETE: _read_delete,
    **dict.fromkeys(range(MessageId.RECEIVER_INFO, MessageId.SOURCE_LEAVE), _read_interest),
    MessageId.SOURCE_LEAVE: _read_leave,
}


@fits("message")
def encode(message: SrsMessage) -> bytes:
    """One message. Raises: DecodeError for a value that does not fit its field."""
    match message:
        case SourceInfo():
            return b"".join((
                U16.pack(MessageId.SOURCE_INFO), _exact("sir.otid", message.otid, OTID_SIZE),
                _text("sir.topic", message.topic), _text("sir.source", message.source), _write_tail(message),
            ))  # fmt: skip
        case SourceDelete(otid, topic):
            fixed = U16.pack(MessageId.SOURCE_DELETE) + _exact("sdr.otid", otid, OTID_SIZE)
            return fixed + _text("sdr.topic", topic)
        case InterestInfo(kind, name, domain_id, instance):
            if not MessageId.RECEIVER_INFO <= kind <= MessageId.WILDCARD_END:
                raise DecodeError("interest", f"message {kind} is none of interest")
            tail = (message.context_type, message.version, message.version_flags, message.reserved)
            fixed = _INTEREST.pack(domain_id, _exact("interest.context", instance, 8), *tail)
            return U16.pack(kind) + _text("interest.name", name) + fixed
        case SourceLeave(otid, topic, source, instance):
            tail = (message.context_type, message.version, message.version_flags, message.reserved)
            return b"".join((
                U16.pack(MessageId.SOURCE_LEAVE), _exact("sli.otid", otid, OTID_SIZE), _text("sli.topic", topic),
                _text("sli.source", source), _LEAVE.pack(_exact("sli.context", instance, 8), *tail),
            ))  # fmt: skip
        case RegistrationRequest(kind, ip, port, session, host, mode, domain, version):
            fixed = _REQUEST.pack(kind, ip, port, session, host, version, mode, domain)
            return U16.pack(MessageId.REGISTRATION_REQUEST) + fixed
        case RegistrationResponse(client_id, domain_id, version):
            return U16.pack(MessageId.REGISTRATION_RESPONSE) + _RESPONSE.pack(client_id, domain_id, version)
        case StreamRequest():
            return U16.pack(MessageId.STREAM_REQUEST) + b"\0"


def _write_tail(sir: SourceInfo) -> bytes:
    values: tuple[Any, ...] = (
        sir.host_id, sir.topic_index, sir.functionality, sir.request_ip, sir.request_port, sir.domain_id,
        sir.encryption, sir.compression, sir.ulb_source_id, sir.ulb_queue_id, sir.ulb_registration_id,
        _exact("sir.context", sir.context_instance, 8), sir.context_type, sir.version, sir.version_flags, sir.ttl,
        sir.cost,
    )  # fmt: skip
    return _SOURCE.pack(*values)


def _exact(where: str, raw: bytes, size: int) -> bytes:
    if len(raw) != size:
        raise DecodeError(where, f"{len(raw)} bytes instead of {size}")
    return raw


def _text(where: str, text: bytes) -> bytes:
    if len(text) > NAME_MAX or b"\0" in text:
        raise DecodeError(where, f"a string has at most {NAME_MAX} bytes and no NUL")
    counted = text + b"\0" if len(text) < NAME_MAX else text
    return bytes((len(counted),)) + counted


def pack_records(records: Iterable[SrsRecord | bytes], max_bytes: int) -> list[bytes]:
    """Batches in the order given, each of `max_bytes` at most or of one record; some may be written already.

    Raises: DecodeError for a record that cannot be written.
    """
    batches: list[bytes] = []
    batch: list[bytes] = []
    size = 0
    for record in records:
        raw = record if isinstance(record, bytes) else encode(record)
        if batch and size + len(raw) > max_bytes:
            batches.append(b"".join(batch))
            batch, size = [], 0
        batch.append(raw)
        size += len(raw)
    if batch:
        batches.append(b"".join(batch))
    return batches
