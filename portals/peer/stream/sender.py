"""The data of a peer link as a transport session: fragments of all sources, in batches.

A batch leaves when it has `min-length` bytes, is as old as `batch-interval`, before a control message, and with
`<smart-batch>` at the end of every turn. A link that is down takes nothing, so data waits for a moment, up to
`<max-queue>`. Batches that had not been begun when it went down are kept, and leave first when it is up again; with a
companion that confirms data, so are those that it has not confirmed, and ends of sources keep their place behind them
(`dro.proto.peerlink.resume`).

Source: DRO guide, `<batching>`, `<smart-batch>`, `<max-datagram>`; forwarding notes, section 20.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dro.loop import Loop
from dro.proto.peerlink.messages import SourceEnd
from dro.proto.peerlink.resume import LinkPiece, ProgressKind, SentData, progress
from dro.proto.peerlink.sources import SourceMessage, source_message
from dro.samples import Samples
from dro.timers import Timer
from dro.transport.kept_senders import Runs
from dro.transport.runs import RunTable
from dro.transport.session import SessionCounts, SourceSessionStatistics
from dro.transport.stream import nothing
from dro.wire.source_string import TcpAddress, format_source
from portals.peer.options import Batching
from portals.peer.stream.link_frames import FRAGMENT_MAX, for_link, renumber
from portals.peer.stream.link_log import LinkLog
from portals.peer.stream.writer import LinkWriter

NO_ADDRESS: Final = TcpAddress(0, 0, 0)


@dataclass(slots=True)
class LinkCounters:
    """What the link has sent; a batch is what was written at once."""

    msgs_sent: int = 0
    bytes_sent: int = 0
    lost_bytes: int = 0
    """That may not have arrived when a connection ended, or were kept then and not sent in the end."""
    batch_bytes: Samples = field(default_factory=Samples)
    batch_messages: Samples = field(default_factory=Samples)

    def on_batch(self, messages: int, nbytes: int) -> None:
        self.batch_messages.add(messages)
        self.batch_bytes.add(nbytes)


class LinkSender:
    """Implements `dro.transport.session.SenderTransport`; topic indexes are numbers of sources."""

    header_bytes = 0
    """In front of the messages of a batch."""
    transport_index = 0
    is_read_on = True
    is_flushing = False
    fragment_max_bytes = FRAGMENT_MAX
    datagram_max_bytes = FRAGMENT_MAX

    def __init__(self, loop: Loop, batching: Batching) -> None:
        self.address = NO_ADDRESS
        self.on_unblocked: Callable[[], object] | None = None
        self.packs_all = False
        self.is_up = False
        """The other side knows all sources that there are."""
        self.topics: dict[int, int] = {}
        """By number of the source: its topic index where it originates."""
        self.counters = LinkCounters()
        self.batching = batching
        self._loop = loop
        self._writer: LinkWriter | None = None
        self._batch = bytearray()
        self._messages = 0  # in the batch
        self._cuts: list[int] = []  # where packets begin in the batch, but for the first
        self._kept: deque[LinkPiece] = deque()
        self.sent = SentData(packet_header=self.header_bytes)
        self.number_of: Callable[[bytes], int | None] = lambda _: None
        """Under which number a source is offered now."""
        self._companion = b""  # that confirms data
        self._is_told = self._has_got = False
        self._renumbered: dict[int, int] = {}  # sources that were offered anew while there was no link
        self._timer: Timer | None = None
        self._log: LinkLog | None = None  # while the companion confirms data
        self._kept_log: LinkLog | None = None
        self._on_log_lost: Callable[[], object] = nothing
        self.sent_before: dict[int, Runs] = {}
        """By number of the source: what the process before had taken, and siblings may give once more."""

    def keep_in(self, log: LinkLog, companion: bytes, on_lost: Callable[[], object]) -> None:
        """Log all data from now on, and go on with what is there for that companion. `on_lost`: it is logged no more.

        Raises: DecodeError.
        """
        if companion:
            position, pieces = log.pieces()
            self.sent_before = log.sent_before()
            self.sent.go_on(log.confirmed, position, log.end, pieces)
            self._kept = deque(pieces)
            self._log = log
        else:
            log.restart(0)
        self._companion, self._kept_log, self._on_log_lost = companion, log, on_lost
        self.sent.is_logged = bool(companion)

    def attach(self, writer: LinkWriter, companion: bytes = b"") -> None:
        """Take over the connection that is up now. `companion`: the context instance of one that confirms data."""
        self._writer = writer
        self._is_told = self._has_got = False
        if companion != self._companion:
            self._companion = companion
            self.sent.restart()
            self._log = self._kept_log if companion else None
            self.sent.is_logged = self._log is not None
            if self._kept_log is not None:
                self._kept_log.restart(0)
            for piece in self._kept:
                self._note(lambda log, piece=piece: log.note_piece(piece))  # type: ignore[misc]

    def _note(self, write: Callable[[LinkLog], bool]) -> None:
        """Log something of what is sent to a companion that confirms data."""
        if self._log is not None and not write(self._log):
            self._lose_log()

    def _lose_log(self) -> None:
        """Keep what is sent from now on in this process alone."""
        self._log = self._kept_log = None
        self.sent.is_logged = False
        self._on_log_lost()

    @property
    def resumes(self) -> bool:
        """The companion confirms data."""
        return bool(self._companion)

    def on_up(self) -> None:
        """All sources have been told."""
        self._is_told = True
        self._begin()

    def on_got(self, position: int) -> str:
        """The companion has all data before that position. Returns what is wrong about that."""
        if self._has_got:
            wrong = self.sent.on_got(position)
            if not wrong and self._log is not None:
                self._log.confirm(position)
            return wrong
        wrong, kept = self.sent.resume(position, list(self._kept))
        if not wrong:
            if self._log is not None:
                self._log.confirm(position)
            self._kept = deque(kept)
            self._has_got = True
            self._begin()
        return wrong

    def _begin(self) -> None:
        """Send data once the companion knows all sources, and has said where to go on."""
        if self._writer is None or self.is_up or not self._is_told or (self.resumes and not self._has_got):
            return
        if self.resumes:
            for piece in self._kept:
                if isinstance(piece, SourceMessage):
                    self._revive(piece, self._writer)
            self._writer.put(progress(ProgressKind.BEGINS, self.sent.end))
        self.is_up = True
        self.on_room()

    def _revive(self, end: SourceMessage, writer: LinkWriter) -> None:
        """Tell once more of a source that has ended behind data that is to be sent again, or use its new number."""
        number = self.number_of(end.record.otid)
        if number is None:
            writer.put(source_message(end.record))
        elif number != end.record.srcidx:
            self._renumbered[end.record.srcidx] = number

    def on_room(self) -> None:
        """The link takes data again."""
        while self._kept and self._has_room:
            piece = self._kept.popleft()
            if isinstance(piece, SourceMessage):
                self._send_in_order(piece)
                continue
            if self._renumbered:
                renumber(*piece, self.header_bytes, self._renumbered)
            self._hand_over(*piece)
        if not self._kept:
            self._renumbered.clear()
        if self.is_up and self.on_unblocked is not None:
            self.on_unblocked()

    def is_heard(self, since_ns: int, now_ns: int) -> bool:
        return self.is_up

    def on_down(self) -> None:
        """The writer is closed: keep what it had not begun, what may not have arrived, and the batch."""
        unsent = self._unsent()
        if self._log is not None:
            self._take_back(self._log)
            unsent = []
        elif self.resumes:
            unsent = self.sent.take_back(unsent)
        if self.resumes:
            self.counters.lost_bytes += self._writer.lost_unicast if self._writer is not None else 0
        elif self._writer is not None:
            self.counters.lost_bytes += self._writer.lost
        self._kept.extendleft(reversed(unsent))
        self.end_batch(self._keep)
        self.is_up, self._writer = False, None

    def _take_back(self, log: LinkLog) -> None:
        """Keep what the log has that is not confirmed, the batch as well."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._batch, self._cuts, self._messages = bytearray(), [], 0
        position, pieces = log.pieces()
        self.sent.go_back(position, pieces)
        self._kept = deque(pieces)

    def _unsent(self) -> list[LinkPiece]:
        return [(batch, [len(batch)]) for batch in self._writer.unsent] if self._writer is not None else []

    def _keep(self, batch: bytearray, ends: list[int]) -> None:
        self._kept.append((batch, ends))

    def throw_away(self) -> None:
        """What was kept is of no more use."""
        self.counters.lost_bytes += self.kept_bytes
        self.sent.give_up(self._kept)
        self._kept.clear()
        if self._log is not None:
            self._log.restart(self.sent.end)

    @property
    def kept_bytes(self) -> int:
        """Add up the batches that wait for the next link."""
        return sum([len(piece[0]) for piece in self._kept if not isinstance(piece, SourceMessage)])

    @property
    def is_blocked(self) -> bool:
        return bool(self._kept) or not self._has_room

    @property
    def _has_room(self) -> bool:
        """The connection takes data."""
        return self._writer is not None and self.is_up and self._writer.has_room

    @property
    def most_bytes(self) -> int:
        """Return the size of the largest batch."""
        return self.batching.max_bytes

    @property
    def held_bytes(self) -> int:
        """Return what the batch has that the next message may join."""
        return len(self._batch)

    # sending

    def send_batch(self, buffer: bytearray, table: RunTable, now_ns: int) -> int:
        if self.is_blocked:
            return 0
        fragments, nbytes = table.total()
        held, most = self.held_bytes, self.most_bytes
        data, cuts, counts = for_link(buffer, table, self.topics, held, most, self.header_bytes)
        if self._log is not None and not self._log.note(data, cuts, begins=not held):
            self._lose_log()
        self._put(data, cuts, [*counts, fragments])
        self.counters.msgs_sent += fragments
        self.counters.bytes_sent += nbytes
        table.rows = 0
        return fragments

    def _put(self, data: bytearray, cuts: list[int], counts: list[int]) -> None:
        self._add(data, cuts, counts)
        if len(self._batch) >= self.batching.min_bytes:
            self.end_batch()
        elif self._batch and self._timer is None and not self.packs_all:
            self._timer = self._loop.call_later(self.batching.interval_ns, self._on_timer)

    def _add(self, data: bytearray, cuts: list[int], counts: list[int]) -> None:
        """Add messages; a batch ends at each of `cuts`; `counts`: messages up to there, and in all."""
        begin = before = 0
        for cut, count in zip(cuts, counts, strict=False):
            self._join(data, begin, cut, count - before)
            self.end_batch()
            begin, before = cut, count
        self._join(data, begin, len(data), counts[-1] - before)

    def _join(self, data: bytearray, begin: int, end: int, messages: int) -> None:
        self._messages += messages
        if self._batch:
            self._batch += memoryview(data)[begin:end]
        elif begin == 0 and end == len(data):
            self._batch = data
        else:
            self._batch = data[begin:end]

    def end_batch(self, hand_over: Callable[[bytearray, list[int]], None] | None = None) -> None:
        """Hand over what is in the batch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._batch and self._writer is not None:
            self.counters.on_batch(self._messages, len(self._batch))
            (hand_over or self._hand_over)(self._batch, [*self._cuts, len(self._batch)])
            self._batch, self._cuts, self._messages = bytearray(), [], 0

    def _hand_over(self, batch: bytearray, ends: list[int]) -> None:
        assert self._writer is not None
        self._writer.put(batch)
        if self._companion:
            self.sent.put((batch, ends))

    def _on_timer(self) -> None:
        self._timer = None
        self.end_batch()

    def flush(self) -> None:
        if self.packs_all:
            self.end_batch()

    def send_control(self, message: bytes) -> bool:
        """Send a message about a source, behind the data given before. False: the link is down, it is lost."""
        is_behind = bool(self._kept) and self.resumes and isinstance(message, SourceMessage)
        if is_behind and (self.is_up or _is_end(message)):  # else it is told with all others
            assert isinstance(message, SourceMessage)
            self._kept.append(message)
            is_taken = True
        else:
            is_taken = self._send_in_order(message)
        if is_taken and isinstance(message, SourceMessage) and _is_end(message):
            self._note(lambda log: log.note_end(message))
        return is_taken

    def _send_in_order(self, message: bytes) -> bool:
        is_taken = self._send(message)
        if is_taken and self._companion and isinstance(message, SourceMessage) and _is_end(message):
            self.sent.put(message)
        return is_taken

    def _send(self, message: bytes) -> bool:
        self.end_batch()
        return self._writer is not None and self._writer.put(message)

    def send_canary(self, message: bytes) -> None:
        """The way of the data; one that finds no room is lost."""
        if not self.is_blocked:
            self._send(message)

    def send_message(self, message: bytes, now_ns: int, payload_bytes: int = 0) -> bool:
        if self.is_blocked:
            return False
        self._send(message)
        return True

    def send_packed(self, messages: Sequence[bytes], payload_bytes: int, now_ns: int) -> int:
        return sum([self.send_message(message, now_ns) for message in messages])

    # what it has sent

    def settling(self, now_ns: int, linger_ns: int, *, is_last: bool) -> Callable[[int], bool]:
        """On a link all that was taken arrives, as long as the link is up."""
        self.end_batch()
        writer = self._writer
        if writer is None:
            return lambda _: True
        marks: list[int] = []

        def is_settled(_: int) -> bool:
            if not marks and not self._kept:
                marks.append(writer.given)
            return bool(marks) and writer.taken >= marks[0] and not (is_last and writer.backlog())

        is_settled(0)
        return is_settled

    def close(self, linger_ns: int, now_ns: int) -> None:
        self.end_batch()

    def counts(self) -> SessionCounts:
        return SessionCounts()

    def statistics(self) -> SourceSessionStatistics:
        return SourceSessionStatistics(format_source(self.address), self.counters)


def _is_end(message: bytes) -> bool:
    return isinstance(message, SourceMessage) and isinstance(message.about, SourceEnd)
