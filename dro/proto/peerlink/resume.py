"""What both ends of a link know of each other's data over its connections, so that one that breaks loses nothing of it.

Data is numbered by position, from the first that one portal process sends to another one: in bytes of its messages as
they stand in the stream, before LZ4 and TLS, or with `<udp>` in datagrams. The receiver says up to where it has handed
data up (GOT): first of all on each connection, then while data comes. The sender keeps what is not confirmed, within
bounds, and says behind that first GOT, in the stream before its data, where it goes on (BEGINS).

Used when HELLO of both sides has it (subtype 0xF00F). Source: own design. Guess: all of it. A process is known by the
context instance in its HELLO, so who has restarted is sent nothing old.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

from dro.proto.peerlink.messages import RESUME, extension
from dro.proto.peerlink.sources import SourceMessage
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.dro_blocks import TnwgKeepalive

Packets = tuple[bytearray, list[int]]
"""A batch, and where its packets end."""
LinkPiece = Packets | SourceMessage
"""What is sent in order: a batch of data, or a message about a source."""
POSITION_MAX: Final = 1 << 62
PIECE_BYTES: Final = 200
"""What keeping a batch costs beside its bytes, about."""
_BODY: Final = Struct("!BQ")


class ProgressKind(IntEnum):
    """Says what a position is."""

    GOT = 1  # the sender of this message has handed up all before it
    BEGINS = 2  # the next data that it sends has that position


@dataclass(frozen=True, slots=True)
class Progress:
    """About the data of one direction."""

    kind: ProgressKind
    position: int


_ENCODED: Final = lbmc.encode(lbmc.control_message(TnwgKeepalive(0, 0, 0), *extension(RESUME, bytes(_BODY.size))))
_HEAD: Final = _ENCODED[: -_BODY.size]
_KINDS: Final = {int(kind): kind for kind in ProgressKind}


def progress(kind: ProgressKind, position: int) -> bytes:
    """Encode it: a keepalive that is neither query nor response, with the extension as its last block."""
    return _HEAD + _BODY.pack(kind, position)


def read_progress(message: bytes) -> Progress | None:
    """None for any other message. There is one layout, so a look at the beginning is enough."""
    if len(message) != len(_ENCODED) or not message.startswith(_HEAD):
        return None
    kind, position = _BODY.unpack_from(message, len(_HEAD))
    return Progress(_KINDS[kind], position) if kind in _KINDS else None


class ReceivedData:
    """Knows up to where the data of the companion has been handed up, over all connections to one process of it."""

    def __init__(self, companion: bytes = b"", position: int = 0) -> None:
        """`companion`, `position`: what the process before this one had come to, if it goes on."""
        self._companion = companion
        self._base = position
        self._count: Callable[[], int] = _zero  # what has been handed up from there on
        self._has_begun = False  # on this connection

    def on_connection(self, companion: bytes) -> None:
        """A connection to the process with that context instance is the link from now on."""
        if companion != self._companion:
            self._companion, self._base, self._count = companion, 0, _zero
        self._has_begun = False

    def on_down(self) -> None:
        """Nothing more comes over the connection."""
        self._base, self._count = self.position, _zero

    @property
    def position(self) -> int:
        return self._base + self._count()

    def on_begins(self, position: int, count: Callable[[], int]) -> str:
        """Begin at a position; `count`: how much has been handed up of the connection. Returns what is wrong."""
        if self._has_begun:
            return "its data begins twice"
        if not self.position <= position < POSITION_MAX:
            return f"its data begins at {position}, and {self.position} was confirmed"
        self._has_begun = True
        self._base, self._count = position, count
        return ""


def _zero() -> int:
    return 0


class SentData:
    """Keeps what was sent and is not confirmed: the newest of it, up to `limit_bytes`, unless others log it."""

    def __init__(self, *, packet_header: int = 0) -> None:
        """`packet_header`: of packets, which are what counts then."""
        self.limit_bytes = 0
        self.is_logged = False
        """All pieces are where they outlive the process, and come back by `go_back`."""
        self.end = 0
        """Position of what is put next."""
        self.lost = self.lost_bytes = 0
        """What was forgotten and would have been needed, in the end; units of positions, and bytes about."""
        self._packet_header = packet_header
        self._pieces: deque[tuple[int, LinkPiece]] = deque()  # and the position behind it
        self._bytes = 0
        self._confirmed = 0
        self._most = 0  # what was ever sent
        self._given_up = 0  # what is before it has been given up, and counted by who did that
        self._forgotten = self._forgotten_bytes = 0

    def restart(self) -> None:
        """Another process of the companion is there: nothing that was sent before concerns it."""
        self._pieces.clear()
        self._bytes = self.end = self._confirmed = self._most = self._given_up = 0

    def units(self, pieces: Iterable[LinkPiece]) -> int:
        """Measure pieces as positions do."""
        return sum([self._units(piece) for piece in pieces])

    def _units(self, piece: LinkPiece) -> int:
        if isinstance(piece, SourceMessage):
            return 0
        return len(piece[1]) if self._packet_header else piece[1][-1]

    def put(self, piece: LinkPiece) -> None:
        """Note what has been given to the stream, or the socket."""
        if isinstance(piece, SourceMessage) and self.end == self._confirmed:
            return  # there is nothing that it has to stay behind
        self.end += self._units(piece)
        self._most = max(self._most, self.end)
        if self.is_logged:
            return
        self._pieces.append((self.end, piece))
        self._bytes += _cost(piece)
        while self._bytes > self.limit_bytes and self._pieces:
            _, forgotten = self._pieces.popleft()
            self._bytes -= _cost(forgotten)
            if not isinstance(forgotten, SourceMessage):
                self._forgotten += self._units(forgotten)
                self._forgotten_bytes += len(forgotten[0])

    def on_got(self, position: int) -> str:
        """Forget what the companion has. Returns what is wrong."""
        if wrong := self._wrong(position):
            return wrong
        self._confirmed = position
        pieces = self._pieces
        while pieces and pieces[0][0] <= position:
            self._bytes -= _cost(pieces.popleft()[1])
        return ""

    def _wrong(self, position: int) -> str:
        if position < self._confirmed:
            return f"it takes back what it has confirmed: {position} after {self._confirmed}"
        return f"it confirms {position}, and {self._most} was sent" if position > self._most else ""

    def take_back(self, unsent: list[LinkPiece]) -> list[LinkPiece]:
        """The connection is over: return what is to be sent again, and put again then.

        `unsent`: what was given and has certainly not been sent, which is never forgotten.
        """
        pieces = [piece for _, piece in self._pieces]
        self._pieces.clear()
        self._bytes = 0
        if self.units(pieces) < self.units(unsent):
            pieces = unsent
        self.end -= self.units(pieces)
        return pieces

    def go_back(self, position: int, pieces: Iterable[LinkPiece]) -> None:
        """The connection is over: `pieces`, from that position on, are what the log has of what is to be sent again."""
        kept = [piece for piece in pieces if not isinstance(piece, SourceMessage)]
        self.end = position
        self._forgotten, self._forgotten_bytes = self.units(kept), sum([len(batch) for batch, _ in kept])

    def go_on(self, confirmed: int, position: int, end: int, pieces: Iterable[LinkPiece]) -> None:
        """Begin as the process before had left it. `end`: of what it may have sent; `confirmed`: or given up."""
        self._most, self._given_up = end, confirmed
        self.go_back(position, pieces)

    def give_up(self, pieces: Iterable[LinkPiece]) -> None:
        """What was taken back will not be sent: the next connection goes on behind it."""
        self.end += self.units(pieces)
        self._given_up = self.end

    def resume(self, position: int, pieces: list[LinkPiece]) -> tuple[str, list[LinkPiece]]:
        """The companion has all before `position`. Returns what is wrong, and what is left of what was taken back."""
        wrong = self._wrong(position)
        if wrong:
            return wrong, pieces
        if position < self.end:
            if (lost := self.end - max(position, self._given_up)) > 0:
                self.lost += lost
                self.lost_bytes += lost * self._forgotten_bytes // max(1, self._forgotten)
        else:
            left = self._without(pieces, position - self.end)
            if left is None:
                return f"it confirms {position}, which is within a message", pieces
            pieces, self.end = left, position
        self._confirmed = position
        return "", pieces

    def _without(self, pieces: list[LinkPiece], count: int) -> list[LinkPiece] | None:
        """Return the pieces but for the first `count` units. None: that is not between two messages."""
        rest = deque(pieces)
        while rest and (count or isinstance(rest[0], SourceMessage)):
            piece = rest.popleft()
            units = self._units(piece)
            if units > count and not isinstance(piece, SourceMessage):
                if (behind := self._behind(piece, count)) is None:
                    return None
                rest.appendleft(behind)
                units = count
            count -= units
        return list(rest)

    def _behind(self, piece: Packets, count: int) -> Packets | None:
        """Return the part of a batch behind its first `count` units."""
        batch, ends = piece
        if self._packet_header:
            begin = ends[count - 1]
            return batch[begin:], [end - begin for end in ends[count:]]
        at = 0
        while at < count:
            at += lbmc.MINIMAL.unpack_from(batch, at)[2]
        return (batch[at:], [len(batch) - at]) if at == count else None


def _cost(piece: LinkPiece) -> int:
    return PIECE_BYTES + len(piece if isinstance(piece, SourceMessage) else piece[0])
