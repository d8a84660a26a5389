"""What waits for the stream of a peer link: batches of data and control messages, whole and in order.

Urgent messages (keepalive, routes, interest) go before everything that has not been begun. All that is given within a
turn of the loop is written at its end. Long sequences of control messages are made one by one, while there is room;
changes of interest wait behind those about interest. Batches of data are bytearrays, other messages bytes. A message
counts as sent once it has been begun.

Source: forwarding notes, sections 19 (8.) and 20.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from dro.bus.counters import CounterPage
from dro.loop import Loop
from dro.metrics.slots import Slot
from dro.proto.peerlink.sources import SentSources, SourceMessage
from dro.proto.unicast.connections import OnOutcome, Outcome
from dro.transport.stream import ByteStream, Piece, nothing

ROOM_BYTES: Final = 256 << 10
"""More than this is not queued here; data then waits in the queue of `<max-queue>`."""
URGENT_MAX: Final = 8 << 20
"""More control messages than that do not wait: whoever lets so many wait reads nothing, and the link ends."""
_PIECES: Final = 64  # in a write
_ALL_MAX: Final = 2  # one that is being told, and one that waits


@dataclass(slots=True)
class ControlCounts:
    """Counts control messages of a connection, both ways, since they were taken last."""

    received: int = 0
    received_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0
    lost: int = 0  # waited when the connection ended
    lost_bytes: int = 0

    def on_received(self, nbytes: int) -> None:
        self.received += 1
        self.received_bytes += nbytes

    def on_sent(self, nbytes: int) -> None:
        self.sent += 1
        self.sent_bytes += nbytes

    def on_lost(self, nbytes: int) -> None:
        self.lost += 1
        self.lost_bytes += nbytes

    def move_to(self, page: CounterPage) -> None:
        """Add them to the page of the portal, and begin anew."""
        page.add_sized(Slot.GATEWAY_CONTROL_RCVD, self.received, self.received_bytes)
        page.add_sized(Slot.GATEWAY_CONTROL_SENT, self.sent, self.sent_bytes)
        page.add_sized(Slot.GATEWAY_CONTROL_NOT_OPERATIONAL, self.lost, self.lost_bytes)
        self.received = self.received_bytes = self.sent = self.sent_bytes = self.lost = self.lost_bytes = 0


def count_lost(page: CounterPage, *messages: bytes) -> None:
    """Control messages for which there is no connection."""
    page.add_sized(Slot.GATEWAY_CONTROL_NOT_OPERATIONAL, len(messages), sum(map(len, messages)))


class _Unicast(bytes):
    """A piece that counts as a unicast message while it waits."""

    on_outcome: OnOutcome


class LinkWriter:
    """Writes to one connection. The stream changes where compression begins; what waits then is taken out before."""

    def __init__(self, loop: Loop, on_room: Callable[[], object], on_lost: Callable[[], object]) -> None:
        """`on_room`: there is room again after there was none, or the link is up; `on_lost`: the stream broke."""
        self._loop = loop
        self._on_room = on_room
        self._on_lost = on_lost
        self._stream: ByteStream | None = None
        self._urgent: deque[Piece] = deque()
        self._pieces: deque[Piece] = deque()
        self._is_begun = False  # the first piece was written in part
        self._was_full = False
        self._is_waiting = False  # for the stream to be writable
        self._stuck_ns = 0  # since when it takes nothing, and `written` then
        self._stuck_at = -1
        self._in_slices: deque[Iterator[bytes]] = deque()
        self._interest: deque[tuple[Iterator[bytes], bool]] = deque()  # whether it is all that there is
        self._all_interest = 0  # of these, all that there is
        self._is_too_late = False  # more waits than may
        self._is_putting = False
        self._slices_end = 0  # `given` once all of what was told last had been put
        self.sources = SentSources()
        """By what the stream has taken, or has begun to take: nothing gets before that any more."""
        self.waiting = 0
        """Bytes."""
        self.waiting_unicast = 0
        self.control = ControlCounts()
        self.written = 0
        """Bytes ever that the stream has taken."""
        self.error = ""
        """Why the stream broke."""
        self.unsent: list[bytearray] = []
        """Batches of data that waited whole when it was closed."""
        self.lost = 0
        """Bytes that were begun by then and may not have reached the other machine, and those of unicast messages."""
        self.lost_unicast = 0
        """Bytes of these."""
        self.given = 0
        """Bytes ever, of pieces in order."""
        self.wrote_ns = 0
        """When such a piece was written last."""

    @property
    def is_open(self) -> bool:
        return self._stream is not None

    @property
    def has_room(self) -> bool:
        return self._stream is not None and self.waiting < ROOM_BYTES

    def open(self, stream: ByteStream) -> None:
        self._stream = stream
        self._is_waiting = False
        self._on_room()

    def close(self) -> None:
        """Nothing can be written any more, and nothing is reported."""
        if self._stream is not None:
            begun = self._pieces.popleft() if self._is_begun else b""
            self.unsent = [piece for piece in self._pieces if isinstance(piece, bytearray)]
            self.lost_unicast = self.waiting_unicast
            self.lost = len(begun) + self.waiting_unicast + self._stream.backlog()
            for message in (*self._urgent, *self._pieces):
                if isinstance(message, _Unicast):
                    message.on_outcome(Outcome.DOWN)
                elif isinstance(message, bytes):
                    self.control.on_lost(len(message))
        self._forget()
        self._on_room = self._on_lost = nothing  # they refer to the connection, which has this

    def _forget(self) -> None:
        """Forget what waits, and the stream."""
        self._stream = None
        self._urgent.clear()
        self._pieces.clear()
        self._in_slices.clear()
        self._interest.clear()
        self._all_interest = 0
        self._is_begun = False
        self.waiting = self.waiting_unicast = 0

    def take_waiting(self) -> bytes:
        """Return what waits; it is not written here any more."""
        begun = [self._pieces.popleft()] if self._is_begun else []
        waiting = b"".join((*begun, *self._urgent, *self._pieces))
        for piece in (*self._urgent, *self._pieces):
            self._on_begun(piece)
        self._forget()
        return waiting

    # what is to be written

    def put(self, piece: Piece) -> bool:
        """Put a piece behind all that was put before. False: there is no stream, it is thrown away."""
        if self._stream is None:
            return False
        self.given += len(piece)
        self._add(self._pieces, piece)
        return True

    def put_unicast(self, message: bytes, on_outcome: OnOutcome) -> None:
        """Take a unicast message as `put` does; until it is begun it waits, and then its sender is told."""
        piece = _Unicast(message)
        piece.on_outcome = on_outcome
        if self.put(piece):
            self.waiting_unicast += len(message)
        else:
            on_outcome(Outcome.DOWN)

    def put_urgent(self, message: bytes) -> None:
        if self._stream is None or self._is_too_late:
            self.control.on_lost(len(message))
            return
        self._add(self._urgent, message)
        if self.waiting - self.waiting_unicast > URGENT_MAX:
            self._is_too_late = True
            self.error = f"the companion does not read: {self.waiting} bytes wait for it"
            self._loop.at_turn_end(self._give_up)

    def _give_up(self) -> None:
        self._on_lost()

    def _add(self, pieces: deque[Piece], piece: Piece) -> None:
        pieces.append(piece)
        self.waiting += len(piece)
        self._was_full |= self.waiting >= ROOM_BYTES
        if not self._is_waiting:
            self._loop.at_turn_end(self.write)

    def put_in_slices(self, messages: Iterator[bytes]) -> None:
        """Put each of these, in slices of turns and while there is room."""
        if self._stream is not None:
            self._in_slices.append(messages)
            self._go_on_putting()

    def put_all_interest(self, messages: Iterator[bytes]) -> None:
        """Do as `put_in_slices`, and urgently. Nothing, when the same waits to be begun: it is made as things are
        then."""
        if self._stream is not None and self._all_interest < _ALL_MAX:
            self._all_interest += 1
            self._interest.append((messages, True))
            self._go_on_putting()

    def put_interest(self, messages: Sequence[bytes]) -> None:
        """A change: urgent, and behind all that was told about interest before."""
        if self._interest:
            self._interest.append((iter(messages), False))
            return
        for message in messages:
            self.put_urgent(message)

    @property
    def has_put_all(self) -> bool:
        """The stream has taken all that was to be told in slices."""
        return not (self._interest or self._in_slices) and self.taken >= self._slices_end

    def _go_on_putting(self) -> None:
        if (self._interest or self._in_slices) and not self._is_putting:
            self._is_putting = True
            self._loop.run_in_slices(self._put_steps())

    def _put_steps(self) -> Iterator[None]:
        while (self._interest or self._in_slices) and self.has_room:
            messages, is_all = self._interest[0] if self._interest else (self._in_slices[0], False)
            message = next(messages, None)
            if message is not None:
                if self._interest:
                    self.put_urgent(message)
                else:
                    self.put(message)
            elif self._interest:
                self._interest.popleft()
                self._all_interest -= is_all
            else:
                self._in_slices.popleft()
                self._slices_end = self.given
            yield
        self._is_putting = False

    # writing

    def write(self) -> None:
        """What the stream takes."""
        stream = self._stream
        if stream is None or self._is_waiting:
            return
        try:
            while self._urgent or self._pieces:
                if self._pieces:
                    self.wrote_ns = self._loop.now_ns()
                self._drop(stream.send_pieces(self._first_pieces()))
        except BlockingIOError:
            self._is_waiting = True
            if self._stuck_at != self.written:
                self._stuck_at, self._stuck_ns = self.written, self._loop.now_ns()
        except OSError as e:
            self.error = e.strerror or str(e)
            self._on_lost()
            return
        if not self.has_room:
            return
        if self._was_full:
            self._was_full = False
            self._on_room()
        self._go_on_putting()

    def _first_pieces(self) -> list[Piece]:
        if not self._urgent:
            return list(islice(self._pieces, _PIECES))
        begun = [self._pieces[0]] if self._is_begun else []
        return [*begun, *islice(self._urgent, _PIECES)]

    def _drop(self, count: int) -> None:
        """Drop so many bytes that were taken, of the pieces as `_first_pieces` has them."""
        self.waiting -= count
        self.written += count
        while count:
            pieces = self._urgent if self._urgent and not self._is_begun else self._pieces
            piece = pieces[0]
            self._on_begun(piece)
            if count < len(piece):
                if pieces is self._urgent:  # it goes on before all others
                    self._pieces.appendleft(self._urgent.popleft())
                self._pieces[0] = memoryview(piece)[count:]
                self._is_begun = True
                return
            pieces.popleft()
            count -= len(piece)
            if pieces is self._pieces:
                self._is_begun = False

    def _on_begun(self, piece: Piece) -> None:
        """Note that a piece has begun: nothing gets before it any more. The rest of a piece is none of bytes."""
        if isinstance(piece, _Unicast):
            self.waiting_unicast -= len(piece)
            piece.on_outcome(Outcome.SENT)
        elif isinstance(piece, bytes):
            self.control.on_sent(len(piece))
            if isinstance(piece, SourceMessage):
                self.sources.on_handed_over(piece)

    @property
    def stuck_ns(self) -> int | None:
        """Since when the stream has taken nothing of what waits; None while it takes it."""
        return self._stuck_ns if self._is_waiting and self.waiting else None

    def on_writable(self) -> None:
        self._is_waiting = False
        self.write()

    # what was written

    @property
    def taken(self) -> int:
        """Bytes ever, of pieces in order, that the stream has taken."""
        return self.given - self.waiting

    def backlog(self) -> int:
        """Bytes that have not reached the other machine."""
        return 0 if self._stream is None else self.waiting + self._stream.backlog()
