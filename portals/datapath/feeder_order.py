"""The order of a source over a change of its feeder: what the new one brings too early is held back.

A route that moves to a faster way lets fragments overtake those that are still on the slower one. While the feeder
before goes on beside the new one, rows of the new one that begin beyond the next sqn are therefore held back, so that
the one before fills the gap. They are released, in their order and as if they came then, when

    the gap is closed
    the one before is past it       what is missing was lost on its way
    the one before has ended        its way is cut, or was kept for long enough (`FeederEnded`)
    it has brought nothing for `QUIET_NS`, or `LONGEST_NS` are over, or `<max-queue>` is full

After one of the last two nothing is held back before the next change. What comes late then is sent late, which is
something for receivers that put topic sqns in order. What is held back counts as queued, in private copies. Pure but
for the clock; the timer is that of `portals.datapath.egress`.

Guess: `LONGEST_NS` is for how long the feeder before is kept, `portals.decisions.routes.HELD_NS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dro.clock import ms, s
from dro.sqn import MASK, ahead
from dro.transport.runs import KIND_CONTROL, KIND_DATA, KIND_SHIFT, KIND_TSNI, ROW, RunTable
from portals.datapath.descriptor import JOIN_BELOW
from portals.datapath.max_queue import MaxQueue
from portals.datapath.outgoing import Feeder, ProxySource, Waiting

QUIET_NS: Final = ms(400)
LONGEST_NS: Final = s(2)
AT_ONCE: Final = 128
"""Proxy sources whose time is over; the others wait for the next call."""
ROWS_OF_PART: Final = 16


class HeldBack:
    """Keeps what is held back of one proxy source, in order of arrival, while its feeder before fills the gap.

    `first`: the sqn where the gap ends.
    """

    __slots__ = ("feeder", "first", "has_tsni", "heard_ns", "is_over", "parts", "until_ns")

    def __init__(self, feeder: Feeder, first: int, now_ns: int) -> None:
        self.feeder = feeder
        self.first = first
        self.heard_ns = now_ns  # when the feeder before brought something last
        self.until_ns = now_ns + LONGEST_NS
        self.has_tsni = False
        self.is_over = False
        self.parts: list[Waiting] = []

    def add(self, worker: int, buffer: bytearray, table: RunTable, row: int) -> None:
        """Copy a row and its fragments; a steady stream stays one row."""
        handle, sqn, fragments, offset, length, stride, shape = ROW.unpack_from(table.words, row * ROW.size)
        part = self.parts[-1] if self.parts else None
        if part is None or part.worker != worker or not part.table.room or len(part.buffer) >= JOIN_BELOW:
            part = Waiting(worker, bytearray(), RunTable(ROWS_OF_PART), 0)
            self.parts.append(part)
        part.table.put(handle, sqn, fragments, len(part.buffer), length, length, shape & ~0xFF)
        if length:  # a TSNI has no bytes
            view = memoryview(buffer)
            for at in range(offset, offset + fragments * stride, stride):
                part.buffer += view[at : at + length]
        part.nbytes += fragments * length

    @property
    def due_ns(self) -> int:
        return min(self.heard_ns + QUIET_NS, self.until_ns)


class FeederOrder:
    """See the module text."""

    def __init__(self, queue: MaxQueue, now_ns: Callable[[], int]) -> None:
        self._queue = queue
        self._now_ns = now_ns
        self.held: dict[ProxySource, HeldBack] = {}

    def keeps(self, proxy: ProxySource, worker: int, buffer: bytearray, table: RunTable, row: int) -> bool:
        """Hold a row back that is not the next one of its source; whether it is held back."""
        handle, sqn, fragments, _, length, _, shape = ROW.unpack_from(table.words, row * ROW.size)
        held, next_sqn = self.held.get(proxy), proxy.window.next_sqn
        feeder, kind, nbytes = (worker, handle), shape >> KIND_SHIFT, fragments * length
        first = sqn + (kind == KIND_TSNI) & MASK
        is_beyond = kind != KIND_CONTROL and next_sqn >= 0 and ahead(first, next_sqn) > 0
        is_too_much = self._queue.nbytes + nbytes > self._queue.limit_bytes
        if held is None:
            if not (proxy.before_goes_on and is_beyond and feeder == proxy.feeder):
                return False
            if is_too_much:
                proxy.before_goes_on = False
                return False
            held = self.held[proxy] = HeldBack(feeder, first, self._now_ns())
        elif feeder == held.feeder:
            if kind == KIND_DATA and not is_beyond:
                return False
            if is_too_much or (kind == KIND_TSNI and held.has_tsni):  # TSNIs count no bytes; one is enough
                held.is_over, proxy.before_goes_on = True, False
        elif is_beyond and ahead(first, held.first) >= 0:
            held.is_over = True
        else:
            return False
        held.has_tsni |= kind == KIND_TSNI
        held.add(worker, buffer, table, row)
        self._queue.count(worker, fragments, nbytes)
        return True

    def is_over(self, proxy: ProxySource, feeder: Feeder) -> bool:
        """Say whether what is held back of it is to be released, now that a batch of that feeder has been sent."""
        if (held := self.held.get(proxy)) is None:
            return False
        if feeder != held.feeder:
            held.heard_ns = self._now_ns()
        return held.is_over or ahead(proxy.window.next_sqn, held.first) >= 0

    def take(self, proxy: ProxySource) -> list[Waiting]:
        """Take out what is held back of it; it is not queued any more."""
        held = self.held.pop(proxy, None)
        parts = [] if held is None else held.parts
        for part in parts:
            self._queue.count(part.worker, -part.table.fragments(), -part.nbytes)
        return parts

    def due(self) -> list[ProxySource]:
        """Some of those that have waited for long enough; nothing more is held back of them."""
        now_ns = self._now_ns()
        found = [proxy for proxy, held in self.held.items() if held.due_ns <= now_ns][:AT_ONCE]
        for proxy in found:
            proxy.before_goes_on = False
        return found

    def next_deadline(self) -> int | None:
        return min((held.due_ns for held in self.held.values()), default=None)
