"""The source side of one LBT-TCP session: data queued for each connected receiver, and the handling of slow ones.

`TcpSourceCore` takes whole LBMC messages in batches and keeps, per client, references to the bytes that its socket has
not accepted yet. The shell writes `pending` to the non-blocking socket and reports with `on_written`.

Messages are never truncated: only whole messages that have not been started are discarded for a slow receiver; a
message that was sent in part is always completed. With a filter (`dro.proto.tcp.filters`) a client gets the topics that
it has asked for; what it does not get takes none of its room.

Source: UM Configuration Guide, `transport_tcp_multiple_receiver_behavior`, `transport_session_maximum_buffer`,
`transport_tcp_multiple_receiver_send_order`, `transport_tcp_use_session_id`; UM Concepts, "LBT-TCP".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Final

from dro.errors import LocalProtocolError
from dro.proto.tcp.filters import Selection, SessionFilter
from dro.state import Same, StateLayout

Buffer = bytes | bytearray | memoryview

MAX_IOV: Final = 64

_BatchState = tuple[Sequence[int], bytes]
"""Where each message ends, the messages; from the oldest that a client has yet to get."""
_PieceState = tuple[int, int, int, int]
"""The place of its batch, `first`, `last` and `start` there (as in `_Piece`)."""
_ClientState = tuple[int, int, Buffer | None, list[_PieceState], int, list[int]]
"""Name, `discarded`, `partial` and `pieces` (as in `_Client`), number and topics in the filter."""


class SlowReceiver(Enum):
    """`transport_tcp_multiple_receiver_behavior`; the values are the option's."""

    NORMAL = "normal"  # the slowest receiver sets the pace
    SOURCE_PACED = "source_paced"  # sending never blocks, messages for a slow receiver are discarded
    BOUNDED_LATENCY = "bounded_latency"  # the fastest receiver sets the pace, the others lose messages


@dataclass(frozen=True, slots=True)
class TcpSourceConfig:
    """Source options. `session_id` 0: sessions are not checked. `max_clients` is ours, against a flood of connects.

    `max_buffer_bytes` holds for the sum over all receivers (`normal`) or for each (the other behaviours).
    """

    behavior: SlowReceiver = SlowReceiver.NORMAL
    max_buffer_bytes: int = 65536
    session_id: int = 0
    random_order: bool = False
    max_clients: int = 1024


@dataclass(frozen=True, slots=True)
class Connected:
    """A receiver has joined; it gets what is sent from now on."""

    client: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A receiver is gone, whoever ended it."""

    client: int
    at_ns: int


class CloseReason(Enum):
    SESSION_ID = "session id"  # it wants another session
    BAD_INPUT = "bad input"  # its bytes are no LBMC messages
    TOO_MANY = "too many"  # `max_clients`


@dataclass(frozen=True, slots=True)
class CloseClient:
    """Close this connection; the core has forgotten it."""

    client: int
    reason: CloseReason
    at_ns: int


@dataclass(frozen=True, slots=True)
class Discarded:
    """So many messages were removed for a slow receiver."""

    client: int
    messages: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Wakeup:
    """A send had been refused; there is room again."""

    at_ns: int


TcpSourceEvent = Connected | Disconnected | CloseClient | Discarded | Wakeup


@dataclass(slots=True)
class TcpSourceStats:
    """`num_clients` and `bytes_buffered` are those of the C API; the rest is ours."""

    num_clients: int = 0
    bytes_buffered: int = 0
    msgs_sent: int = 0
    bytes_sent: int = 0
    msgs_discarded: int = 0


@dataclass(slots=True, eq=False)
class _Piece:
    """Messages of one batch that a client has yet to get: those from `first` on, bytes from `start` on.

    `ends` (shared by all clients) holds where each message ends in `view`; `start` is where message `first` starts.
    """

    view: memoryview
    ends: Sequence[int]
    first: int
    last: int  # one past the last message
    start: int

    @property
    def end(self) -> int:
        return self.ends[self.last - 1]


class _Client:
    """What one receiver's socket has not taken yet: the rest of a message that it has begun, then whole messages."""

    __slots__ = ("discarded", "nbytes", "number", "partial", "pieces", "wanted")

    def __init__(self) -> None:
        self.number = 0  # in the filter
        self.wanted: set[int] | None = None  # topics of the filter, None without one
        self.partial: memoryview | None = None
        self.pieces: deque[_Piece] = deque()
        self.nbytes = 0
        self.discarded = 0  # messages

    def append(self, piece: _Piece) -> None:
        self.pieces.append(piece)
        self.nbytes += piece.end - piece.start

    def discard_for(self, wanted: int, most: int) -> int:
        """Remove the oldest whole messages until `wanted` more bytes keep within `most`; returns how many went."""
        discarded = 0
        pieces = self.pieces
        while pieces and self.nbytes + wanted > most:
            piece = pieces[0]
            over = self.nbytes + wanted - most
            index = min(bisect_left(piece.ends, piece.start + over, piece.first, piece.last), piece.last - 1)
            end = piece.ends[index]
            discarded += index + 1 - piece.first
            self.nbytes -= end - piece.start
            piece.first, piece.start = index + 1, end
            if piece.first == piece.last:
                pieces.popleft()
        return discarded

    def written(self, count: int) -> None:
        self.nbytes -= count
        partial = self.partial
        if partial is not None:
            if count < len(partial):
                self.partial = partial[count:]
                return
            count -= len(partial)
            self.partial = None
        pieces = self.pieces
        while count:
            piece = pieces[0]
            size = piece.end - piece.start
            if count >= size:
                count -= size
                pieces.popleft()
                continue
            position = piece.start + count
            index = bisect_right(piece.ends, position, piece.first, piece.last)  # the message that `position` is in
            begins = piece.ends[index - 1] if index > piece.first else piece.start
            end = piece.ends[index]
            if position > begins:
                self.partial = piece.view[position:end]
                piece.first, piece.start = index + 1, end
                if piece.first == piece.last:
                    pieces.popleft()
            else:
                piece.first, piece.start = index, begins
            return

    def pending(self, most: int) -> list[memoryview]:
        views = [] if self.partial is None else [self.partial]
        return views + [piece.view[piece.start : piece.end] for piece in islice(self.pieces, most - len(views))]


class TcpSourceCore:
    """One session and its receivers. Clients are named by any int that the shell chooses (a descriptor, say).

    A client with nothing pending counts as one that takes what it is given: it is charged only with what its socket
    refused. Guess: a message larger than the whole buffer is accepted when nothing waits, so it can go at all.
    """

    __slots__ = ("_cfg", "_clients", "_events", "_filter", "_refused", "_rng", "has_events", "stats")

    def __init__(self, cfg: TcpSourceConfig, rng: Callable[[], float], filtering: SessionFilter | None = None) -> None:
        self._cfg = cfg
        self._rng = rng
        self._filter = filtering
        self._clients: dict[int, _Client] = {}
        self._events: list[TcpSourceEvent] = []
        self._refused = 0  # size of the message that was refused last; 0 when none is waited for
        self.has_events = False
        self.stats = TcpSourceStats()

    # clients

    def on_connected(self, client: int, now_ns: int) -> bool:
        """A connection was accepted; an offer to filter may be pending. False: there are too many, close it."""
        if client in self._clients:
            raise LocalProtocolError(f"TCP source: client {client} is connected already")
        if len(self._clients) >= self._cfg.max_clients:
            self._emit(CloseClient(client, CloseReason.TOO_MANY, now_ns))
            return False
        made = self._clients[client] = _Client()
        self.stats.num_clients += 1
        if self._filter is not None:
            made.number, offer = self._filter.on_connected()
            made.wanted = self._filter.wanted[made.number]
            made.append(_Piece(memoryview(offer), (len(offer),), 0, 1, 0))
            self.stats.bytes_buffered += len(offer)
        self._emit(Connected(client, now_ns))
        return True

    def go_on(self, client: int, missing: bytes) -> None:
        """Let a client that has just connected get these bytes first: the rest of what another process sent to it."""
        if missing:
            self._clients[client].partial = memoryview(missing)
            self._clients[client].nbytes += len(missing)
            self.stats.bytes_buffered += len(missing)

    def on_disconnected(self, client: int, now_ns: int) -> None:
        """EOF, error, or keepalive failure. A client that the core closed itself may be reported again."""
        gone = self._clients.pop(client, None)
        if gone is None:
            return
        self.stats.num_clients -= 1
        self.stats.bytes_buffered -= gone.nbytes
        if self._filter is not None:
            self._filter.on_disconnected(gone.number)
        self._emit(Disconnected(client, now_ns))
        self._wake(now_ns)

    def on_session_id(self, client: int, session_id: int, now_ns: int) -> bool:
        """The receiver's TCP_SID message. False: it means another session and is being closed."""
        own = self._cfg.session_id
        if own in (0, session_id) or client not in self._clients:
            return True
        self._close(client, CloseReason.SESSION_ID, now_ns)
        return False

    def on_bad_input(self, client: int, now_ns: int) -> None:
        """What the receiver sent cannot be split into messages."""
        if client in self._clients:
            self._close(client, CloseReason.BAD_INPUT, now_ns)

    def _close(self, client: int, reason: CloseReason, now_ns: int) -> None:
        self._emit(CloseClient(client, reason, now_ns))
        self.on_disconnected(client, now_ns)

    # sending

    def send(self, message: Buffer, now_ns: int) -> bool:
        """Send one message; False is would-block."""
        return self.send_run(message, 0, (len(message),), now_ns) == 1

    def send_run(self, buffer: Buffer, start: int, ends: Sequence[int], now_ns: int) -> int:
        """Send the messages that lie back to back in `buffer` from `start`; `ends` are their end offsets, ascending.

        Returns how many were accepted; the rest would block, and a `Wakeup` follows. The buffer is kept by
        reference until every client has it: it must not change. Write to the sockets after each call: a batch is
        accepted only as far as the session buffer goes, even when every client keeps up.
        """
        if not ends:
            return 0
        accepted = self._room(start, ends)
        if accepted < len(ends):
            self._refused = ends[accepted] - (ends[accepted - 1] if accepted else start)
        if not accepted:
            return 0
        taken, nbytes = accepted, ends[accepted - 1] - start
        view = memoryview(buffer)
        most = self._cfg.max_buffer_bytes
        stats = self.stats
        stats.msgs_sent += accepted
        stats.bytes_sent += nbytes
        chosen = None if self._filter is None else Selection(view, start, ends[:accepted])
        for name, client in self._clients.items():
            if chosen is not None and client.wanted is not None:
                view, start, ends, accepted = chosen.of(client.wanted)
                if not accepted:
                    continue
                nbytes = ends[-1] - start
            first = 0
            if client.nbytes + nbytes > most:  # in `normal` only one message, behind nothing
                first = self._make_room(name, client, start, ends[:accepted], now_ns)
            begin = ends[first - 1] if first else start
            client.append(_Piece(view, ends, first, accepted, begin))
            stats.bytes_buffered += ends[accepted - 1] - begin
        return taken

    def _make_room(self, name: int, client: _Client, start: int, ends: Sequence[int], now_ns: int) -> int:
        """Discard the oldest whole messages of a slow client; returns how many of the new ones go as well.

        The new ones suffer only behind a message that has been begun, and the last of them never does.
        """
        nbytes, most = ends[-1] - start, self._cfg.max_buffer_bytes
        before = client.nbytes
        discarded = client.discard_for(nbytes, most)
        self.stats.bytes_buffered += client.nbytes - before
        over = client.nbytes + nbytes - most
        skipped = min(bisect_left(ends, start + over) + 1, len(ends) - 1) if over > 0 else 0
        if discarded + skipped:
            self.stats.msgs_discarded += discarded + skipped
            client.discarded += discarded + skipped
            self._emit(Discarded(name, discarded + skipped, now_ns))
        return skipped

    def _room(self, start: int, ends: Sequence[int]) -> int:
        """Return how many of these messages may be taken now."""
        if not self._clients:
            return len(ends)
        most = self._cfg.max_buffer_bytes
        match self._cfg.behavior:
            case SlowReceiver.NORMAL:
                waiting = sum(1 for client in self._clients.values() if client.nbytes)
                if waiting:
                    return bisect_right(ends, start + (most - self.stats.bytes_buffered) // waiting)
            case SlowReceiver.BOUNDED_LATENCY:
                # who has asked for nothing is no fast receiver
                least = min((c.nbytes for c in self._clients.values() if c.wanted != set()), default=0)
                if least:
                    return bisect_right(ends, start + most - least)
            case SlowReceiver.SOURCE_PACED:
                pass
        return max(1, bisect_right(ends, start + most))

    def send_order(self) -> list[int]:
        """The clients in the order in which this datagram is to be written to them."""
        order = list(self._clients)
        if self._cfg.random_order:
            for i in range(len(order) - 1, 0, -1):
                j = int(self._rng() * (i + 1))
                order[i], order[j] = order[j], order[i]
        return order

    def pending(self, client: int, most: int = MAX_IOV) -> list[memoryview]:
        """Return what to write to this client next, at most `most` buffers. Empty when there is nothing."""
        return self._clients[client].pending(most) if client in self._clients else []

    def pending_bytes(self, client: int) -> int:
        return self._clients[client].nbytes if client in self._clients else 0

    def discarded(self, client: int) -> int:
        """Messages that were removed for this client, which is connected."""
        return self._clients[client].discarded

    def mark(self) -> list[tuple[int, _Client, _Piece]]:
        """The end of what each client has pending now; for `has_passed`."""
        return [(name, client, client.pieces[-1]) for name, client in self._clients.items() if client.pieces]

    def has_passed(self, mark: list[tuple[int, _Client, _Piece]]) -> bool:
        """Say whether all clients still there took what they had pending at the mark, its last message begun at least.

        A piece is what a client got by one call of `send_run`.
        """
        return all(self._clients.get(name) is not client or piece not in client.pieces for name, client, piece in mark)

    def on_written(self, client: int, nbytes: int, now_ns: int) -> None:
        """The socket took the first `nbytes` of what is pending."""
        state = self._clients.get(client)
        if state is None or not nbytes:
            return
        if nbytes > state.nbytes:
            raise LocalProtocolError(f"TCP source: {nbytes} bytes written, {state.nbytes} were pending")
        state.written(nbytes)
        self.stats.bytes_buffered -= nbytes
        if self._refused:
            self._wake(now_ns)

    @property
    def is_heard(self) -> bool:
        """Whether there is a receiver that gets anything."""
        return bool(self._clients) if self._filter is None else self._filter.is_heard

    # events

    def take_events(self) -> list[TcpSourceEvent]:
        events, self._events = self._events, []
        self.has_events = False
        return events

    def _emit(self, event: TcpSourceEvent) -> None:
        self._events.append(event)
        self.has_events = True

    def _wake(self, now_ns: int) -> None:
        if self._refused and self._room(0, (self._refused,)):
            self._refused = 0
            self._emit(Wakeup(now_ns))

    @property
    def _state(self) -> tuple[list[_BatchState], list[_ClientState]]:
        """Messages that the clients have yet to get; those that several wait for are there once."""
        waiting: dict[int, list[_Piece]] = {}
        for client in self._clients.values():
            for piece in client.pieces:
                waiting.setdefault(id(piece.view), []).append(piece)
        batches: list[_BatchState] = []
        states: dict[_Piece, _PieceState] = {}
        for pieces in waiting.values():
            first, start = min((piece.first, piece.start) for piece in pieces)
            ends = pieces[0].ends[first : max(piece.last for piece in pieces)]
            for piece in pieces:
                states[piece] = (len(batches), piece.first - first, piece.last - first, piece.start - start)
            batches.append(([end - start for end in ends], bytes(pieces[0].view[start : ends[-1]])))
        return batches, [
            (
                name, client.discarded, client.partial, [states[piece] for piece in client.pieces], client.number,
                sorted(client.wanted or ()),
            )
            for name, client in self._clients.items()
        ]  # fmt: skip

    @_state.setter
    def _state(self, state: tuple[list[_BatchState], list[_ClientState]]) -> None:
        batches = [(memoryview(data), ends) for ends, data in state[0]]
        if any(list(ends) != sorted(ends) or ends[-1] != len(view) for view, ends in batches):
            raise ValueError("messages do not fill their buffer")
        clients = {}
        for name, discarded, partial, pieces, number, wanted in state[1]:
            client = clients[name] = _Client()
            if self._filter is not None:
                client.number, client.wanted = number, set(wanted)
            client.discarded = discarded
            if partial is not None:
                client.partial = memoryview(partial)
                client.nbytes = len(partial)
            for batch, first, last, start in pieces:
                view, ends = batches[batch]
                if not (0 <= first < last <= len(ends) and 0 <= start <= ends[first]):
                    raise ValueError(f"client {name} waits for messages that are not there")
                client.append(_Piece(view, ends, first, last, start))
        self._clients = clients
        if self._filter is not None:
            self._filter.wanted = {c.number: c.wanted for c in clients.values() if c.wanted is not None}


StateLayout(
    TcpSourceCore,
    2,
    _state=tuple[list[_BatchState], list[_ClientState]],
    _events=list[TcpSourceEvent],
    _refused=int,
    has_events=bool,
    stats=Same,
)
