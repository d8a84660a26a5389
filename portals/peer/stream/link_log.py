"""The data of a peer link in shared memory, from when it is taken until the companion has confirmed it.

What the next connection sends again is read from here, be it of this process or of the next one: data as it was laid
out for batches or packets, and ends of sources in their place. Records begin with a position, of the first byte of the
stream or the first packet, as `dro.proto.peerlink.resume` counts; the mark of the log is what has been confirmed. A
packet may go on in the next record, until another one begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Final

from dro.errors import DecodeError
from dro.kept.log import LogRecord, SharedLog
from dro.kept.store import Kept, TurnNumber
from dro.proto.peerlink.messages import SourceRecord, read_source, source
from dro.proto.peerlink.resume import LinkPiece
from dro.proto.peerlink.sources import SourceMessage, end_message
from dro.sqn import MASK
from dro.transport.kept_senders import Runs
from dro.transport.runs import HEADER_BYTES, MINIMAL_BYTES, TYPE_MESSAGE, u32
from dro.wire.lbmc import message as lbmc
from portals.peer.stream.link_frames import SRCIDX_BYTES

_ROW: Final = b"link-log"
_FILE: Final = "link"
LEAST_BYTES: Final = 1 << 20
_PART_BYTES: Final = 64 << 10  # of a record of a stream, about
_DATA, _END = 0, 1  # what a record of one piece is, as its payload
_MESSAGE_BYTES: Final = HEADER_BYTES + SRCIDX_BYTES
_BATCH_PACKETS: Final = 64


class LinkLog:
    """See the module text."""

    def __init__(self, log: SharedLog, turn: TurnNumber, packet_header: int) -> None:
        """`packet_header`: in front of the messages of each packet; 0 for a stream."""
        self._log = log
        self._turn = turn
        self._header = packet_header

    @classmethod
    def open(cls, kept: Kept, capacity: int, packet_header: int) -> LinkLog | None:
        """Open what the former process has left, or an empty one; None without memory for it."""
        rows, folder = kept.rows, kept.folder
        if rows is None or folder is None:
            return None
        for _ in range(2):
            row = rows.row(_ROW, b"")
            log = (
                SharedLog.open(folder / _FILE, max(capacity, LEAST_BYTES), row, kept.turn) if row is not None else None
            )
            if log is not None:
                return cls(log, kept.turn, packet_header)
            rows.free(_ROW, b"")  # what was left cannot be read
        return None

    @property
    def goes_on(self) -> bool:
        """Whether the former process has left it."""
        return self._log.goes_on

    @property
    def end(self) -> int:
        """The position behind all that it has."""
        return self._log.after

    @property
    def confirmed(self) -> int:
        return self._log.mark

    def restart(self, position: int) -> None:
        """Keep nothing of what was before; the next data has that position."""
        self._log.begin(position, position)

    def confirm(self, position: int) -> None:
        """All before it is needed no more."""
        self._log.set_mark(position)

    def note(self, data: bytearray, cuts: Sequence[int], *, begins: bool) -> bool:
        """Log data before it leaves; False: there is no room.

        `cuts`: as those of `for_link`; `begins`: in a new packet.
        """
        if self._header:
            return self._note_packets(data, cuts, begins=begins)
        view, begin = memoryview(data), 0
        ends = [*cuts, len(data)] if len(data) > _PART_BYTES else [len(data)]
        for end in ends:
            first, size = self._log.after, end - begin
            if size and not self._log.append(first, 1, size, _DATA, view[begin:end], first + size):
                return False
            begin = end
        return True

    def _note_packets(self, data: bytearray, cuts: Sequence[int], *, begins: bool) -> bool:
        view, first = memoryview(data), int(begins)
        marks = [0, *cuts, len(data)]
        if len(marks) > 2 and not marks[1]:
            del marks[0]
            first = 1
        for at in range(0, len(marks) - 1, _BATCH_PACKETS):
            some = marks[at : at + _BATCH_PACKETS + 1]
            base, begun = some[0], [1] * (len(some) - 1)
            begun[0] = first
            after = self._log.after
            ends = [end - base for end in some[1:]]
            if not self._log.append_mixed(after, ends, begun, view[base : some[-1]], after + sum(begun)):
                return False
            first = 1
        return True

    def note_end(self, end: SourceMessage) -> bool:
        """Log that a source has ended behind all that was noted; False: there is no room."""
        record, at = source(end.record), self._log.after
        return self._log.append(at, 1, len(record), _END, memoryview(record), at)

    def note_piece(self, piece: LinkPiece) -> bool:
        """Log what waits for a connection."""
        if isinstance(piece, SourceMessage):
            return self.note_end(piece)
        return self.note(piece[0], piece[1][:-1], begins=True)

    # what is there

    def pieces(self) -> tuple[int, list[LinkPiece]]:
        """Read what is not confirmed: the position of the first, and the pieces. Raises: DecodeError."""
        found: list[LogRecord] = []
        first, mark = self._log.after, self._log.mark
        for record in self._log.newest_first():
            if first <= mark:
                break
            found.append(record)
            first = record.first
        return first, [*self._read(reversed(found))]

    def _read(self, records: Iterable[LogRecord]) -> Iterator[LinkPiece]:
        """Make pieces of records, oldest first. A packet that begins in none of them is left out."""
        batch, ends = bytearray(), list[int]()
        for record in records:
            is_end = bool(record.size) and record.payload == _END
            goes_on = not record.size and not record.paid[0]
            if batch and (is_end or (len(batch) >= _PART_BYTES and not goes_on)):
                yield batch, ends
                batch, ends = bytearray(), []
            if is_end:
                yield _end_of(record)
            elif record.size:
                batch += record.data
                ends = [len(batch)]
            else:
                for begins, piece in _packets(record):
                    if begins:
                        ends.append(0)
                    if ends:
                        batch += piece
                        ends[-1] = len(batch)
        if batch:
            yield batch, ends

    def sent_before(self) -> dict[int, Runs]:
        """Find what was taken in the turn that the former process has not finished, by number of the source.

        Siblings give it once more. Raises: DecodeError.
        """
        found: dict[int, Runs] = {}
        records = takewhile(lambda record: record.turn > self._turn.former, self._log.newest_first())
        for record in reversed([*records]):
            if record.size and record.payload == _DATA:
                _note_messages(record.data, 0, found)
            elif not record.size:
                for begins, piece in _packets(record):
                    _note_messages(piece, self._header if begins else 0, found)
        return found


def _packets(record: LogRecord) -> Iterator[tuple[bool, memoryview]]:
    """Yield the parts of packets that a record has, and whether each begins its packet."""
    begun = 0
    for number in range(record.pieces):
        begin, end = record.place(number)
        before, begun = begun, record.paid[number]
        yield begun > before, record.data[begin:end]


def _end_of(record: LogRecord) -> SourceMessage:
    about = read_source(lbmc.decode(bytes(record.data)))
    if not isinstance(about, SourceRecord):
        raise DecodeError("link log", "a record of no source")
    return end_message(about)


def _note_messages(data: memoryview, at: int, found: dict[int, Runs]) -> None:
    """Add runs of messages that lie back to back from `at` on."""
    while at + _MESSAGE_BYTES <= len(data):
        kind, length = data[at], data[at + 2] << 8 | data[at + 3]
        if kind == TYPE_MESSAGE and data[at + HEADER_BYTES + 1] == SRCIDX_BYTES:
            sqn, number = u32(data, at + 8), u32(data, at + 20)
            runs = found.setdefault(number, [])
            if runs and runs[-1][0] + runs[-1][1] & MASK == sqn:
                runs[-1] = runs[-1][0], runs[-1][1] + 1
            else:
                runs.append((sqn, 1))
        if length < MINIMAL_BYTES:
            raise DecodeError("link log", f"a message of {length} bytes")
        at += length
