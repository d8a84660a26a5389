"""The data of a peer link as a transport session: fragments of all sources, in batches.

A batch leaves when it has `min-length` bytes, is as old as `batch-interval`, before a control message, and with
`<smart-batch>` at the end of every turn. A link that is down takes nothing, so data waits for a moment, up to
`<max-queue>`. Batches that had not been begun when it went down are kept, and leave first when it is up again.

Source: DRO guide, `<batching>`, `<smart-batch>`, `<max-datagram>`; forwarding notes, section 20.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from dro.loop import Loop
from dro.samples import Samples
from dro.timers import Timer
from dro.transport.runs import RunTable
from dro.transport.session import SessionCounts, SourceSessionStatistics
from dro.wire.source_string import TcpAddress, format_source
from portals.peer.options import Batching
from portals.peer.stream.link_frames import FRAGMENT_MAX, for_link
from portals.peer.stream.writer import LinkWriter

Packets = tuple[bytearray, list[int]]
"""A batch, and where its packets end."""
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
        self._kept: list[Packets] = []
        self._timer: Timer | None = None

    def attach(self, writer: LinkWriter) -> None:
        """Take over the connection that is up now."""
        self._writer = writer

    def on_up(self) -> None:
        self.is_up = True
        self.on_room()

    def on_room(self) -> None:
        """The link takes data again."""
        if self._kept and not self.is_blocked:
            kept, self._kept = self._kept, []
            for batch, ends in kept:
                self._hand_over(batch, ends)
        if self.is_up and self.on_unblocked is not None:
            self.on_unblocked()

    def is_heard(self, since_ns: int, now_ns: int) -> bool:
        return self.is_up

    def on_down(self) -> None:
        """The writer is closed: keep what it had not begun, and the batch."""
        if self._writer is not None:
            self.counters.lost_bytes += self._writer.lost
        self._kept += self._unsent()
        self.end_batch(self._keep)
        self.is_up, self._writer = False, None

    def _unsent(self) -> list[Packets]:
        return [(batch, [len(batch)]) for batch in self._writer.unsent] if self._writer is not None else []

    def _keep(self, batch: bytearray, ends: list[int]) -> None:
        self._kept.append((batch, ends))

    def throw_away(self) -> None:
        """What was kept is of no more use."""
        self.counters.lost_bytes += self.kept_bytes
        self._kept = []

    @property
    def kept_bytes(self) -> int:
        """Add up the batches that wait for the next link."""
        return sum([len(batch) for batch, _ in self._kept])

    @property
    def is_blocked(self) -> bool:
        return self._writer is None or not (self.is_up and self._writer.has_room)

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

    def _on_timer(self) -> None:
        self._timer = None
        self.end_batch()

    def flush(self) -> None:
        if self.packs_all:
            self.end_batch()

    def send_control(self, message: bytes) -> bool:
        """Send a message about a source, behind the data given before. False: the link is down, it is lost."""
        return self._send(message)

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
        mark = writer.given
        return lambda _: writer.taken >= mark and not (is_last and writer.backlog())

    def close(self, linger_ns: int, now_ns: int) -> None:
        self.end_batch()

    def counts(self) -> SessionCounts:
        return SessionCounts()

    def statistics(self) -> SourceSessionStatistics:
        return SourceSessionStatistics(format_source(self.address), self.counters)
