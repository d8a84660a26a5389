"""The server of topic resolution over TCP (SRS), without sockets: bytes of connections in, bytes for them out.

The shell gives bytes to `on_bytes` while a connection `wants_bytes`, calls `work` until it returns False, writes what
`pending` of each connection of `take_ready` returns and reports it to `on_sent`, and closes a connection that
`is_closing` then. `work` does a small piece for one connection after another, so that a flood of names from one client
does not keep others waiting.

What a client has told outlives its connection, until the lifetimes are over or the client is back and does not tell it
again. What has no published message of SRS goes in extension frames, each with a datagram of topic resolution over UDP:
they are passed on to all others, and the last domain route of a client is kept for those that come later.

Guess: steps are told by their messages, whatever kind of request they come in; the registration response completes its
stream; a connection has one stream, and asks for it once; keepalives are answered and not sent; a source leave is
counted only.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from dro.clock import NS_PER_MS, NS_PER_S
from dro.errors import DecodeError
from dro.proto.srs.clients import SrsClients
from dro.proto.srs.connection import LOW_BYTES, QueueAccount, SrsConnection, SrsConnectionState
from dro.proto.srs.records import SrsRecords, Steps
from dro.proto.srs.settings import SrsSettings
from dro.proto.srs.tables import SrsClient
from dro.wire.lbmr import packet as lbmr
from dro.wire.srs import rsocket
from dro.wire.srs.messages import (
    EXT_DOMAIN,
    EXT_LBMR,
    ApplicationType,
    InterestInfo,
    RegistrationRequest,
    RegistrationResponse,
    SourceDelete,
    SourceInfo,
    SourceLeave,
    SrsMessage,
    StreamRequest,
    decode_lenient,
    encode,
)
from dro.wire.srs.rsocket import (
    UNBOUNDED_N,
    CancelFrame,
    ErrorCode,
    ErrorFrame,
    ExtFrame,
    Frame,
    FrameType,
    KeepaliveFrame,
    OtherFrame,
    PayloadFrame,
    RequestFrame,
    RequestNFrame,
    SetupFrame,
)

_STEPS: Final = 64  # of one connection, before the next one has its turn
_SWEEP_NS: Final = NS_PER_S // 2
_FEW: Final = 64
_DONE: Final = object()
_DATAGRAM_MAX: Final = 65507  # what UDP can carry
_FULL: Final = 9, 10  # of the bytes for records, from which lost clients make room


class SrsNoteKind(Enum):
    """Names what an operator may want to know."""

    REGISTERED = "registered"
    LOST = "lost"
    CLOSED = "closed"
    UNREADABLE = "unreadable"
    DOMAIN = "domain"


@dataclass(frozen=True, slots=True)
class SrsNote:
    """`who` is the peer, `text` why or what."""

    kind: SrsNoteKind
    who: str
    text: str


@dataclass(slots=True)
class SrsCounts:
    """Counts what has happened since the start."""

    connections: int = 0
    refused_connections: int = 0
    closed: dict[str, int] = field(default_factory=dict)  # by reason
    unreadable: int = 0
    records: int = 0
    source_leaves: int = 0
    domain_conflicts: int = 0
    relayed: int = 0
    unrelayed: int = 0  # datagrams beyond the rate of a client, or none


class SrsServer:
    """All connections and what their clients have told."""

    def __init__(self, settings: SrsSettings, now_ns: int) -> None:
        self._times = settings.times
        self._limits = settings.limits
        self._configured_domain_id = settings.domain_id
        self.domain_id = settings.domain_id
        self.counts = SrsCounts()
        self.records = SrsRecords(settings, self._on_overflow)
        self._account = QueueAccount()
        self._connections: dict[SrsConnection, None] = {}
        self._client_of: dict[SrsConnection, SrsClient] = {}
        self._busy: dict[SrsConnection, None] = {}
        self._chores: deque[Steps] = deque()
        self.clients = SrsClients(settings, self.records, self._chores)
        self._sweep_ns = now_ns + _SWEEP_NS
        self._now_ns = now_ns
        self._notes: list[SrsNote] = []

    # what the shell asks

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    @property
    def queued_bytes(self) -> int:
        return self._account.queued_bytes

    def take_ready(self) -> list[SrsConnection]:
        """Return the connections that have got something to write, or are to be closed."""
        ready, self._account.ready = self._account.ready, []
        for connection in ready:
            connection.is_ready = False
        return ready

    def take_notes(self) -> list[SrsNote]:
        notes, self._notes = self._notes, []
        return notes

    def _note(self, kind: SrsNoteKind, who: str, text: str) -> None:
        self._notes.append(SrsNote(kind, who, text))

    def next_deadline(self) -> int:
        """When `on_timer` is to be called, at the latest."""
        due_ns = self.clients.next_deadline()
        return self._sweep_ns if due_ns is None else min(due_ns, self._sweep_ns)

    # connections

    def connect(self, peer: str, now_ns: int) -> SrsConnection | None:
        """Take a connection; None when there are too many."""
        if len(self._connections) >= self._limits.connections:
            self.counts.refused_connections += 1
            return None
        self.counts.connections += 1
        connection = SrsConnection(peer, self._limits, self._account, now_ns)
        self._connections[connection] = None
        return connection

    def on_bytes(self, connection: SrsConnection, data: bytes | memoryview, now_ns: int) -> None:
        if connection.is_closing:
            return
        connection.heard_ns = now_ns
        self._busy[connection] = None
        if not connection.feed(data):
            self._close(connection, ErrorCode.CONNECTION_ERROR, "input", "too much in unfinished frames of all")

    def on_sent(self, connection: SrsConnection, count: int, now_ns: int) -> None:
        """Note that the first `count` bytes of `pending` were written."""
        connection.on_sent(count, now_ns)
        if connection.walks and connection.queued_bytes < LOW_BYTES:
            self._busy[connection] = None

    def on_closed(self, connection: SrsConnection) -> None:
        """Note that a connection is over; what came before is still worked on."""
        self._connections.pop(connection, None)
        if connection.is_closing:
            connection.forget()
            return
        connection.is_lost = True
        self.records.close_stream(connection)
        connection.stream_id = None
        self._busy[connection] = None

    def _close(self, connection: SrsConnection, code: ErrorCode, reason: str, text: str) -> None:
        """End a connection with an error; `reason` is for the counter."""
        if connection.is_closing:
            return
        self.counts.closed[reason] = self.counts.closed.get(reason, 0) + 1
        self._note(SrsNoteKind.CLOSED, connection.peer, text)
        self._detach(connection)
        connection.forget()
        connection.state = SrsConnectionState.CLOSING
        if not connection.is_lost:
            connection.push_frame(rsocket.encode(ErrorFrame(0, code, text.encode())))
        self._busy.pop(connection, None)

    def _on_overflow(self, connection: SrsConnection) -> None:
        if connection.queued_bytes <= self._limits.queue_bytes:  # it is all queues together
            connection = max(self._connections, key=lambda one: one.queued_bytes)
        self._close(connection, ErrorCode.CONNECTION_ERROR, "slow", "reads too slowly for what changes")

    def _detach(self, connection: SrsConnection) -> None:
        """Take the client from a connection that is over: its records stay for a while."""
        self.records.close_stream(connection)
        connection.stream_id = None
        client = self._client_of.pop(connection, None)
        if client is None or client.connection is not connection:
            return
        self._note(SrsNoteKind.LOST, connection.peer, f"client {client.number}")
        self.clients.lose(client, self._now_ns)

    # work

    def work(self, now_ns: int) -> bool:
        """Do a small piece of what there is to do; True when more is left."""
        self._now_ns = now_ns
        if self._chores:
            chore = self._chores.popleft()
            if all(next(chore, _DONE) is None for _ in range(_STEPS)):
                self._chores.append(chore)
        connection = next(iter(self._busy), None)
        if connection is not None:
            del self._busy[connection]
            if self._advance(connection):
                self._busy[connection] = None
        return self.has_work

    @property
    def has_work(self) -> bool:
        return bool(self._busy or self._chores)

    def _advance(self, connection: SrsConnection) -> bool:
        """Do some steps for a connection; True when more is left."""
        for _ in range(_STEPS):
            if connection.is_closing:
                return False
            if connection.job is not None:
                if next(connection.job, _DONE) is _DONE:
                    connection.job = None
                continue
            try:
                frame, has_come = connection.next_frame()
            except DecodeError as e:
                self.counts.unreadable += 1
                self._close(connection, ErrorCode.CONNECTION_ERROR, "unreadable", str(e))
                return False
            if not has_come:
                break
            if frame is not None:
                connection.job = self._on_frame(connection, frame)
        else:
            return True
        if connection.is_lost:
            self._detach(connection)
            connection.forget()
            return False
        return self._walk(connection)

    def _walk(self, connection: SrsConnection) -> bool:
        """Tell some of what was there before; True when more of it may be told."""
        walks = connection.walks
        for _ in range(_STEPS):
            if not walks or connection.queued_bytes >= LOW_BYTES:
                return False
            name, walk = next(iter(walks.items()))
            raw = next(walk, _DONE)
            if raw is _DONE:
                del walks[name]
            elif isinstance(raw, bytes):
                self.records.counts.told_records += 1
                connection.push_record(raw)
        return True

    def _on_frame(self, connection: SrsConnection, frame: Frame) -> Steps | None:
        """Take a frame; what is long to do is returned."""
        if connection.state is SrsConnectionState.OPENED and not isinstance(frame, SetupFrame):
            self._close(connection, ErrorCode.INVALID_SETUP, "setup", "the first frame is no SETUP")
            return None
        match frame:
            case SetupFrame():
                self._on_setup(connection, frame)
            case KeepaliveFrame(responds, _, data):
                if responds and not connection.push_frame(rsocket.encode(KeepaliveFrame(False, 0, data))):
                    self._on_overflow(connection)
            case RequestFrame(stream_id, kind, data, n):
                credit = n if kind is FrameType.REQUEST_STREAM else UNBOUNDED_N
                return self._on_messages(connection, data, stream_id, credit)
            case PayloadFrame(stream_id, data) if data:
                return self._on_messages(connection, data, stream_id, UNBOUNDED_N)
            case RequestNFrame(stream_id, n):
                if stream_id == connection.stream_id:
                    connection.credit = min(connection.credit + n, UNBOUNDED_N)
                    connection.mark_ready()
            case CancelFrame(stream_id):
                if stream_id == connection.stream_id:
                    self.records.close_stream(connection)
                    connection.stream_id = None
                    connection.drop_records()
            case ExtFrame(kind, data):
                return self._on_extension(connection, kind, data)
            case ErrorFrame(0, _, text):
                self._close(connection, ErrorCode.CONNECTION_CLOSE, "client", text.decode("utf-8", "backslashreplace"))
            case OtherFrame(kind=kind) if not frame.is_ignorable:
                self._close(connection, ErrorCode.CONNECTION_ERROR, "unknown", f"frame type {kind} is not served")
        return None

    def _on_setup(self, connection: SrsConnection, setup: SetupFrame) -> None:
        if connection.state is not SrsConnectionState.OPENED:
            self._close(connection, ErrorCode.INVALID_SETUP, "setup", "a second SETUP")
        elif setup.resume_token is not None or setup.major != 1:
            self._close(
                connection, ErrorCode.UNSUPPORTED_SETUP, "setup", "resumption and versions but 1 are not served"
            )
        else:
            connection.state = SrsConnectionState.SET_UP
            times = self._times
            asked_ns = setup.lifetime_ms * NS_PER_MS
            connection.lifetime_ns = min(max(asked_ns, times.lifetime_min_ns), times.lifetime_max_ns)

    # messages

    def _on_messages(self, connection: SrsConnection, data: bytes, stream_id: int, credit: int) -> Steps:
        messages, trouble = decode_lenient(data)
        if trouble is not None:
            self.counts.unreadable += 1
            self._note(SrsNoteKind.UNREADABLE, connection.peer, str(trouble))
        for message in messages:
            if isinstance(message, RegistrationRequest):
                self._on_registration(connection, message, stream_id)
            else:
                client = self._client_of.get(connection)
                if client is None:
                    self._close(connection, ErrorCode.CONNECTION_ERROR, "unregistered", "records before a registration")
                    return
                if isinstance(message, StreamRequest):
                    self._on_stream_request(client, connection, stream_id, credit)
                else:
                    yield from self._on_record(client, message)
            yield

    def _on_record(self, client: SrsClient, message: SrsMessage) -> Steps:
        self.counts.records += 1
        records = self.records
        match message:
            case SourceInfo() if not message.is_end:
                full, of = _FULL
                if not self._chores and records.record_bytes * of > self._limits.record_bytes * full:
                    self.clients.make_room()
                yield from records.on_source(client, message)
            case SourceInfo() | SourceDelete():
                yield from records.on_source_end(client, message, self._now_ns)
            case InterestInfo():
                act = records.on_interest if message.is_wanted else records.on_interest_end
                yield from act(client, message)
            case SourceLeave():
                self.counts.source_leaves += 1

    def _on_registration(self, connection: SrsConnection, request: RegistrationRequest, stream_id: int) -> None:
        if connection in self._client_of:
            self._close(connection, ErrorCode.CONNECTION_ERROR, "registration", "a second registration")
            return
        if not self._agrees_on_domain(connection, request):
            return
        before = self.clients.find(request)
        if before is not None and before.connection is not None:
            old, before.connection = before.connection, None
            self._close(old, ErrorCode.CONNECTION_CLOSE, "replaced", "the client has registered again")
        client = self.clients.register(request, connection, self._now_ns)
        if client is None:
            self._close(connection, ErrorCode.REJECTED_SETUP, "clients", "too many clients")
            return
        self._client_of[connection] = client
        connection.on_registered()
        self._note(SrsNoteKind.REGISTERED, connection.peer, f"client {client.number}")
        answer = encode(RegistrationResponse(client.number, self.domain_id))
        connection.push_frame(rsocket.encode(PayloadFrame(stream_id, answer, is_complete=True)))

    def _on_stream_request(self, client: SrsClient, connection: SrsConnection, stream_id: int, credit: int) -> None:
        if connection.has_asked:
            self._close(connection, ErrorCode.CONNECTION_ERROR, "stream", "a second stream request")
            return
        connection.has_asked = True
        connection.stream_id, connection.credit = stream_id, min(credit, UNBOUNDED_N)
        self.records.open_stream(client, connection)
        for raw in self.clients.routes(client):
            if not connection.push_frame(raw):
                self._on_overflow(connection)
                return

    # the domain

    def _agrees_on_domain(self, connection: SrsConnection, request: RegistrationRequest) -> bool:
        """Learn the domain id of the TRD from a DRO; False, and the connection ends, when it is another one."""
        if request.application_type != ApplicationType.DRO or request.domain_id in (0, self.domain_id):
            return True
        is_known = bool(self._configured_domain_id) or any(
            client.registration.application_type == ApplicationType.DRO and client.registration.domain_id
            for client in self._client_of.values()
        )
        if is_known:
            self.counts.domain_conflicts += 1
            text = f"this TRD has domain id {self.domain_id}, not {request.domain_id}"
            self._note(SrsNoteKind.DOMAIN, connection.peer, text)
            self._close(connection, ErrorCode.REJECTED_SETUP, "domain", text)
            return False
        self.domain_id = request.domain_id
        self._note(SrsNoteKind.DOMAIN, connection.peer, f"the domain id is {self.domain_id}")
        raw = rsocket.encode(ExtFrame(EXT_DOMAIN, self.domain_id.to_bytes(4, "big")))
        self._chores.append(self._pass_on(raw, None))
        return True

    # extensions

    def _on_extension(self, connection: SrsConnection, kind: int, data: bytes) -> Steps | None:
        client = self._client_of.get(connection)
        if kind != EXT_LBMR or client is None:
            return None
        packet, _ = lbmr.decode_lenient(data[:_DATAGRAM_MAX])
        if packet is None or len(data) > _DATAGRAM_MAX or not self._may_relay(client, len(data)):
            self.counts.unrelayed += 1
            return None
        raw = rsocket.encode(ExtFrame(EXT_LBMR, data))
        if isinstance(packet.body, lbmr.RemoteDomainRoute):
            self.clients.keep_route(client, raw, self._now_ns)
        self.counts.relayed += 1
        return self._pass_on(raw, connection)

    def _may_relay(self, client: SrsClient, size: int) -> bool:
        second = self._now_ns // NS_PER_S
        if second != client.relay_second:
            client.relay_second, client.relayed_bytes, client.relayed_datagrams = second, 0, 0
        client.relayed_bytes += size
        client.relayed_datagrams += 1
        limits = self._limits
        return client.relayed_bytes <= limits.relayed_bytes_s and client.relayed_datagrams <= limits.relayed_datagrams_s

    def _pass_on(self, raw: bytes, but: SrsConnection | None) -> Steps:
        for at, connection in enumerate(list(self._client_of)):
            if connection is not but and connection in self._client_of and not connection.push_frame(raw):
                self._on_overflow(connection)
            if at % _FEW == _FEW - 1:
                yield

    # time

    def on_timer(self, now_ns: int) -> None:
        """Begin what is due; `work` does it."""
        self._now_ns = now_ns
        self.clients.on_timer(now_ns)
        if now_ns >= self._sweep_ns:
            self._sweep_ns = now_ns + _SWEEP_NS
            for connection in list(self._connections):
                self._check(connection, now_ns)

    def _check(self, connection: SrsConnection, now_ns: int) -> None:
        times = self._times
        if connection.is_closing:
            return
        if connection.state is not SrsConnectionState.REGISTERED and now_ns - connection.opened_ns > times.half_open_ns:
            self._close(connection, ErrorCode.INVALID_SETUP, "half open", "no registration in time")
        elif connection.lifetime_ns and now_ns - connection.heard_ns > connection.lifetime_ns:
            self._close(connection, ErrorCode.CONNECTION_ERROR, "silent", "nothing was heard for its lifetime")
        elif not connection.is_waiting:
            connection.drained_ns = now_ns
        elif now_ns - connection.drained_ns > times.stall_ns:
            self._close(connection, ErrorCode.CONNECTION_ERROR, "stalled", "takes nothing of what waits for it")
