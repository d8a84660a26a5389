"""A server of topic resolution over TCP on a clock that is stepped, and clients that keep what they were told."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dro.clock import NS_PER_S
from dro.proto.srs.server import SrsNoteKind, SrsServer
from dro.proto.srs.settings import SrsSettings
from dro.wire.srs import messages, rsocket
from dro.wire.srs.messages import (
    InterestInfo,
    InterestMode,
    MessageId,
    RegistrationRequest,
    RegistrationResponse,
    SourceDelete,
    SourceInfo,
    SourceLeave,
    SrsRecord,
    StreamRequest,
)
from dro.wire.srs.rsocket import (
    UNBOUNDED_N,
    ErrorFrame,
    ExtFrame,
    Frame,
    FrameSplitter,
    FrameType,
    KeepaliveFrame,
    PayloadFrame,
    RequestFrame,
    SetupFrame,
)

LIFETIME_MS: Final = 3000
STREAM: Final = 3


class SrsSite:
    """A server and its clients; everything that can be sent is sent when a client is asked or time passes."""

    def __init__(self, settings: SrsSettings | None = None) -> None:
        self.now_ns = 10 * NS_PER_S
        self.server = SrsServer(settings or SrsSettings(), self.now_ns)
        self.clients: list[FakeSrsClient] = []

    def settle(self) -> None:
        """Let the server work, and write as long as there is anything."""
        for _ in range(1_000_000):
            self.server.work(self.now_ns)
            for connection in self.server.take_ready():
                for client in self.clients:
                    if client.connection is connection and not client.is_slow:
                        client.read()
            if not self.server.has_work and not self.server._account.ready:
                return
        raise AssertionError("the server does not come to rest")

    def wait(self, seconds: float) -> None:
        """Pass time from one deadline to the next."""
        end_ns = self.now_ns + int(seconds * NS_PER_S)
        while (due_ns := self.server.next_deadline()) <= end_ns:
            self.now_ns = max(self.now_ns, due_ns)
            self.server.on_timer(self.now_ns)
            for client in self.clients:
                if client.keeps_alive and not client.is_closed:
                    client.send(KeepaliveFrame(False))
            self.settle()
        self.now_ns = end_ns

    def client(self, number: int = 1, mode: int = InterestMode.FILTER, **options: int) -> FakeSrsClient:
        """A client that has registered and opened its stream."""
        client = FakeSrsClient(self, number, mode, **options)
        client.register()
        client.open_stream()
        self.settle()
        return client

    def notes(self, kind: SrsNoteKind) -> list[str]:
        return [note.text for note in self.server.take_notes() if note.kind is kind]


class FakeSrsClient:
    """One client; `records` and `frames` are what it was sent."""

    def __init__(
        self,
        site: SrsSite,
        number: int,
        mode: int = InterestMode.FILTER,
        *,
        application_type: int = 0,
        domain_id: int = 0,
    ) -> None:
        self.site = site
        self.registration = RegistrationRequest(
            application_type, 0x0A000000 + number, 14391, number, 1, mode, domain_id
        )
        self.instance = number.to_bytes(8, "big")
        self.keeps_alive = True
        self.is_slow = False
        self.records: list[SrsRecord] = []
        self.frames: list[Frame] = []
        site.clients.append(self)
        self.connect()

    def connect(self) -> None:
        """Begin anew, as a program does that has lost its connection."""
        self._splitter = FrameSplitter()
        self.is_closed = False
        connection = self.site.server.connect(f"client {self.registration.session_id}", self.site.now_ns)
        assert connection is not None
        self.connection = connection

    def send(self, *frames: Frame) -> None:
        if not self.is_closed:
            raw = b"".join(map(rsocket.encode, frames))
            self.site.server.on_bytes(self.connection, raw, self.site.now_ns)

    def register(self) -> None:
        request = messages.encode(self.registration)
        self.send(SetupFrame(500, LIFETIME_MS), RequestFrame(1, FrameType.REQUEST_RESPONSE, request))

    def open_stream(self, n: int = UNBOUNDED_N) -> None:
        self.send(RequestFrame(STREAM, FrameType.REQUEST_STREAM, messages.encode(StreamRequest()), n))

    def tell(self, *records: SrsRecord) -> None:
        """Tell records in batches, and let the server work on them."""
        for batch in messages.pack_records(records, 30_000):
            self.send(RequestFrame(5, FrameType.REQUEST_FNF, batch))
        self.site.settle()

    def want(self, *topics: bytes, domain_id: int = 0) -> None:
        self.tell(*(self.interest(MessageId.RECEIVER_INFO, topic, domain_id) for topic in topics))

    def want_pattern(self, *patterns: bytes, domain_id: int = 0) -> None:
        self.tell(*(self.interest(MessageId.WILDCARD_INFO, pattern, domain_id) for pattern in patterns))

    def want_no_more(self, topic: bytes, domain_id: int = 0) -> None:
        self.tell(self.interest(MessageId.RECEIVER_DELETE, topic, domain_id))

    def interest(self, kind: int, name: bytes, domain_id: int = 0) -> InterestInfo:
        return InterestInfo(kind, name, domain_id, self.instance)

    def lose(self) -> None:
        """Cut the connection."""
        self.is_closed = True
        self.site.server.on_closed(self.connection)
        self.site.settle()

    def read(self) -> None:
        """Take what waits, and close as the shell does."""
        server, now_ns = self.site.server, self.site.now_ns
        while (pending := self.connection.pending()) and not self.is_closed:
            self._splitter.feed(pending)
            server.on_sent(self.connection, len(pending), now_ns)
        while (raw := self._splitter.next_frame()) is not None:
            frame = rsocket.decode(raw)
            self.frames.append(frame)
            if isinstance(frame, PayloadFrame) and frame.stream_id == STREAM:
                self.records += _records(frame.data)
        if self.connection.is_closing and not self.is_closed:
            self.is_closed = True
            server.on_closed(self.connection)

    def take(self) -> list[SrsRecord]:
        """Return what has come since the last time."""
        self.site.settle()
        taken, self.records = self.records, []
        return taken

    def take_topics(self) -> list[bytes]:
        """Return the topics of the sources that were told as there."""
        return [one.topic for one in self.take() if isinstance(one, SourceInfo) and not one.is_end]

    @property
    def response(self) -> RegistrationResponse:
        """The last answer to a registration."""
        answers = [messages.decode(f.data)[0] for f in self.frames if isinstance(f, PayloadFrame) and f.stream_id == 1]
        assert isinstance(answers[-1], RegistrationResponse)
        return answers[-1]

    @property
    def errors(self) -> list[bytes]:
        return [frame.text for frame in self.frames if isinstance(frame, ErrorFrame)]

    def extensions(self, kind: int) -> list[bytes]:
        return [frame.data for frame in self.frames if isinstance(frame, ExtFrame) and frame.kind == kind]


def _records(data: bytes) -> list[SrsRecord]:
    """Return the records of a batch, which has nothing else."""
    found = messages.decode(data)
    return [one for one in found if isinstance(one, SourceInfo | SourceDelete | InterestInfo | SourceLeave)]


def source(topic: bytes, number: int = 1, *, ip: int = 0x0A000001, cost: int = 0) -> SourceInfo:
    """A source; `number` makes its OTID, `ip` its address alone."""
    otid = number.to_bytes(32, "big")
    address = f"TCP:10.0.0.{ip & 255}:14371[{number}]".encode()
    return SourceInfo(otid, topic, address, number, cost=cost)


def deletions(records: Iterable[SrsRecord]) -> list[bytes]:
    """The topics of the sources that were told as gone by SDR."""
    return [one.topic for one in records if isinstance(one, SourceDelete)]


def kinds(records: Iterable[SrsRecord]) -> list[tuple[int, bytes, int]]:
    """Kind, name and domain of records of interest."""
    return [(one.kind, one.name, one.domain_id) for one in records if isinstance(one, InterestInfo)]
