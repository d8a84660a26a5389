"""One connection of a context to an SRS: setup, registration, the stream of records, keepalives.

State: what the connection has come to, what is to be written, records that wait for room. Owned by the service client.

    connected    SETUP and the registration request at once
    registered   the response has come: the stream is asked for, and records are sent
    over         an error frame, a frame that cannot be read, or silence for the lifetime: the owner closes it

Source: wire notes LBMSRS, sections 2 and 4. Guess: the times of keepalive and lifetime, and that the stream ids of a
client are 1, 3, 5, as in RSocket.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

from dro.clock import ms, s
from dro.errors import DecodeError
from dro.wire.srs import rsocket
from dro.wire.srs.messages import (
    RegistrationRequest,
    RegistrationResponse,
    SrsRecord,
    StreamRequest,
    decode_lenient,
    encode,
    pack_records,
)

KEEPALIVE_NS: Final = s(2)
LIFETIME_NS: Final = s(6)
"""A connection that was silent for so long is over."""
BATCH_BYTES: Final = 16 << 10
OUTPUT_BYTES: Final = 64 << 10
"""Records wait while more than that is to be written."""
OUTPUT_MAX_BYTES: Final = 4 << 20
"""More is written for no SRS, such as answers to keepalives that it does not take."""
REGISTRATION_STREAM: Final = 1
RECORD_STREAM: Final = 3


@dataclass(frozen=True, slots=True)
class Registered:
    """The SRS has taken the context. `domain_id` 0: it does not know the TRD's."""

    domain_id: int


@dataclass(frozen=True, slots=True)
class Told:
    """Records in their order."""

    records: tuple[SrsRecord, ...]


@dataclass(frozen=True, slots=True)
class Extension:
    """An extension frame."""

    kind: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Something in a frame could not be read; what stood before it was."""

    error: DecodeError


LinkEvent: TypeAlias = Registered | Told | Extension | Unreadable


class LinkFault(Exception):  # its text is for the log
    """The connection has to be closed."""


class ServiceLink:
    """See the module text. Times are ns of the owner's clock."""

    def __init__(self, registration: RegistrationRequest, now_ns: int) -> None:
        self._splitter = rsocket.FrameSplitter()
        self._joiner = rsocket.FragmentJoiner()
        self._output = bytearray()
        self._waiting: dict[Hashable, tuple[bool, bytes]] = {}  # is extension, record; the latest of each key
        self._streams = itertools.count(RECORD_STREAM + 2, 2)
        self._opened_ns = self._heard_ns = self._kept_ns = now_ns
        self.is_registered = False
        setup = rsocket.SetupFrame(KEEPALIVE_NS // ms(1), LIFETIME_NS // ms(1))
        request = rsocket.RequestFrame(REGISTRATION_STREAM, rsocket.FrameType.REQUEST_RESPONSE, encode(registration))
        self._put(setup)
        self._put(request)

    # output

    @property
    def output(self) -> bytearray:
        """Return what is to be written; the owner takes off the front what it has written."""
        if self.is_registered and self._waiting and len(self._output) < OUTPUT_BYTES:
            self._fill()
        return self._output

    def tell(self, key: Hashable, record: bytes, *, is_extension: bool = False) -> None:
        """Send a record, or the data of an extension, when there is room; of one key only the latest."""
        self._waiting.pop(key, None)
        self._waiting[key] = (is_extension, record)

    def _fill(self) -> None:
        records: list[bytes] = []
        size = 0
        while self._waiting and len(self._output) + size < OUTPUT_BYTES:
            key = next(iter(self._waiting))
            is_extension, record = self._waiting.pop(key)
            if is_extension:
                self._send_records(records)
                records, size = [], 0
                self._output += record
            else:
                records.append(record)
                size += len(record)
        self._send_records(records)

    def _send_records(self, records: Iterable[bytes]) -> None:
        for batch in pack_records(records, BATCH_BYTES):
            stream_id = next(self._streams) & 0x7FFFFFFF
            self._put(rsocket.RequestFrame(stream_id, rsocket.FrameType.REQUEST_FNF, batch))

    def _put(self, frame: rsocket.Frame) -> None:
        self._output += rsocket.encode(frame)

    # input

    def on_bytes(self, data: bytes | memoryview, now_ns: int) -> Iterator[LinkEvent]:
        """Take what the SRS has sent, as the result is gone through. Raises: LinkFault."""
        self._heard_ns = now_ns
        self._splitter.feed(data)
        try:
            while (raw := self._splitter.next_frame()) is not None:
                frame = self._joiner.join(rsocket.decode(raw))
                if frame is not None:
                    yield from self._on_frame(frame)
        except DecodeError as e:
            raise LinkFault(f"a frame cannot be read: {e}") from e
        if len(self._output) > OUTPUT_MAX_BYTES:
            raise LinkFault("it asks for answers and does not take them")

    def _on_frame(self, frame: rsocket.Frame) -> Iterator[LinkEvent]:
        match frame:
            case rsocket.KeepaliveFrame(responds=True, data=data):
                self._put(rsocket.KeepaliveFrame(False, 0, data))
            case rsocket.PayloadFrame(data=data) if data:
                yield from self._on_messages(data)
            case rsocket.ErrorFrame(stream_id=stream_id, code=code, text=text):
                where = "the connection" if not stream_id else f"stream {stream_id}"
                raise LinkFault(f"error {code:#x} on {where}: {text[:200].decode('utf-8', 'replace')}")
            case rsocket.ExtFrame(kind=kind, data=data):
                yield Extension(kind, data)
            case _:
                pass

    def _on_messages(self, data: bytes) -> Iterator[LinkEvent]:
        messages, trouble = decode_lenient(data)
        records: list[SrsRecord] = []
        for message in messages:
            match message:
                case RegistrationResponse(domain_id=domain_id):
                    if not self.is_registered:
                        self.is_registered = True
                        kind, n = rsocket.FrameType.REQUEST_STREAM, rsocket.UNBOUNDED_N
                        self._put(rsocket.RequestFrame(RECORD_STREAM, kind, encode(StreamRequest()), n))
                        yield Registered(domain_id)
                case RegistrationRequest() | StreamRequest():
                    pass  # of clients
                case _:
                    records.append(message)
        if records and not self.is_registered:
            raise LinkFault("it tells records before it registers the context")
        if records:
            yield Told(tuple(records))
        if trouble is not None:
            yield Unreadable(trouble)

    # time

    def next_deadline(self) -> int:
        until_ns = self._heard_ns if self.is_registered else self._opened_ns
        return min(self._kept_ns + KEEPALIVE_NS, until_ns + LIFETIME_NS)

    def on_timer(self, now_ns: int) -> str:
        """Send a keepalive when it is due; returns why the connection is to be closed, or nothing."""
        if not self.is_registered and now_ns - self._opened_ns >= LIFETIME_NS:
            return f"no registration within {LIFETIME_NS // s(1)} s"
        if now_ns - self._heard_ns >= LIFETIME_NS:
            return f"nothing came for {LIFETIME_NS // s(1)} s"
        if now_ns - self._kept_ns >= KEEPALIVE_NS:
            self._kept_ns = now_ns
            self._put(rsocket.KeepaliveFrame(True))
        return ""
