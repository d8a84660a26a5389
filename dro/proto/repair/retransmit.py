"""The transmission window and the answers to NAKs: shared by LBT-RM and LBT-RU.

`TransmissionWindow` knows which datagrams can still be sent again and where their bytes are; it holds references to the
buffers they were sent from, and copies only what would retain a much larger buffer. `Retransmitter` decides the answer
to a NAK: a retransmission now, one later, or an NCF.

Both count datagrams by index: a plain int that starts at the first sqn and never wraps; sqn = index mod 2^32.

Source: UM Concepts, "NAK suppression" and "transmission window"; UM Configuration Guide,
`transport_lbtrm_transmission_window_*`, `_ignore_interval`; a UM 6.14 capture for NCFs.
"""

from __future__ import annotations

import contextlib
import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Final, NamedTuple

from dro.errors import LocalProtocolError
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.effects import Buffer, Retransmit, RetransmitStats, SendNcf
from dro.sqn import HALF, MASK
from dro.state import StateLayout
from dro.wire.transport import NCF_DO_NOT_RETRY, NCF_IGNORED, NCF_RX_DELAY, NCF_SHED

OVERHEAD_BYTES: Final = 64
"""Bookkeeping per datagram that `window_limit` counts on top of the datagram. Guess: UM's figure is not public."""

COMPACT_AT: Final = 1024
ARENA_BYTES: Final = 65536
COPY_BELOW_BYTES: Final = 2048
"""Runs of fewer bytes are copied together: single small datagrams then cost their bytes and no objects of their own."""
COPY_BELOW_SHARE: Final = 4
"""A run that fills less than this fraction of its buffer is copied, so that it does not keep the rest alive."""


class Chunk(NamedTuple):
    """Where datagrams lie: the i-th is `buffer[offset + i * stride :][:length]`, headers included."""

    buffer: Buffer
    offset: int
    stride: int
    length: int


_RunState = tuple[int, int, int, Sequence[int], Sequence[int], bytes]
"""Datagrams, `payload_bytes`, the length of each, `ends` and `paid` (as in `_Run`), their bytes."""


@dataclass(slots=True, eq=False)
class _Run:
    """Datagrams that entered the window together; `payload_bytes` and `memory_bytes` are those of each.

    With `ends` they differ: number i ends at `ends[i]` of the chunk's buffer, and up to it there are `paid[i]` bytes of
    payload.
    """

    start: int
    datagrams: int
    payload_bytes: int
    memory_bytes: int
    chunk: Chunk
    ends: Sequence[int] = ()
    paid: Sequence[int] = ()

    def memory_before(self, at: int) -> int:
        """Return the memory of the first `at`, bytes."""
        return self.ends[at - 1] + at * OVERHEAD_BYTES if at else 0

    def kept_from(self, index: int) -> _RunState:
        """Return what there is from datagram `index` on, with its bytes together."""
        at = index - self.start
        buffer, offset, stride, length = self.chunk
        if self.ends:
            begin, paid = (self.ends[at - 1], self.paid[at - 1]) if at else (0, 0)
            ends, sums = [end - begin for end in self.ends[at:]], [nbytes - paid for nbytes in self.paid[at:]]
            return len(ends), 0, 0, ends, sums, bytes(buffer[begin : self.ends[-1]])
        starts = [offset + i * stride for i in range(at, self.datagrams)]
        data = b"".join([buffer[start : start + length] for start in starts])
        return len(starts), self.payload_bytes, length, (), (), data


class TransmissionWindow:
    """Sent datagrams, oldest at `trail_index`, the newest before `next_index`.

    Bounded by payload (`size_bytes`) and, if not 0, by memory (`limit_bytes`); the newest datagram is always kept.
    A run costs one entry, however many datagrams it holds; a buffer is let go when the last of its run has left.
    Small runs are copied together into arenas and become one run while their lengths stay the same.

    What lies in a log leaves, whatever the bounds say, when the log needs the memory (`leave_logged`).
    """

    __slots__ = (
        "_adopted_to",
        "_arena",
        "_arena_run",
        "_arena_used",
        "_find_adopted",
        "_head",
        "_limit_bytes",
        "_logged_to",
        "_runs",
        "_size_bytes",
        "_starts",
        "memory_bytes",
        "next_index",
        "payload_bytes",
        "trail_index",
    )

    def __init__(self, size_bytes: int, limit_bytes: int, first_index: int) -> None:
        self._size_bytes = size_bytes
        self._limit_bytes = limit_bytes
        self._starts: list[int] = []
        self._runs: list[_Run | None] = []
        self._head = 0  # runs before it have left
        self._arena = bytearray()
        self._arena_used = 0
        self._arena_run: _Run | None = None  # the newest run, when it lies in the arena
        self.next_index = first_index
        self.trail_index = first_index
        self.payload_bytes = 0
        self.memory_bytes = 0
        self._adopted_to = first_index  # datagrams before it lie elsewhere
        self._logged_to = first_index  # datagrams before it lie in a log
        self._find_adopted: Callable[[int], tuple[Buffer, int, int] | None] = lambda _: None

    def __len__(self) -> int:
        return self.next_index - self.trail_index

    def append(self, count: int, payload_bytes: int, chunk: Chunk) -> None:
        """Take in `count` datagrams of `payload_bytes` each; the oldest leave to make room."""
        start = self.next_index
        length = chunk.length
        memory_bytes, nbytes = length + OVERHEAD_BYTES, count * length
        if nbytes >= COPY_BELOW_BYTES and nbytes * COPY_BELOW_SHARE >= len(chunk.buffer):
            self._starts.append(start)
            self._runs.append(_Run(start, count, payload_bytes, memory_bytes, chunk))
            self._arena_run = None
        else:
            self._append_copy(count, payload_bytes, chunk)
        self.next_index = start + count
        self.payload_bytes += count * payload_bytes
        self.memory_bytes += count * memory_bytes
        self._trim()

    def append_mixed(self, ends: Sequence[int], payloads: Sequence[int], buffer: Buffer) -> None:
        """Take in datagrams of any lengths that fill `buffer`: number i up to `ends[i]`, with `payloads[i]`."""
        nbytes, count = ends[-1], len(ends)
        if count == 1 or nbytes < COPY_BELOW_BYTES:
            start = 0
            for end, payload_bytes in zip(ends, payloads, strict=True):
                length = end - start
                self.append(1, payload_bytes, Chunk(buffer, start, length, length))
                start = end
            return
        self._starts.append(self.next_index)
        paid = [*accumulate(payloads)]
        self._runs.append(_Run(self.next_index, count, 0, 0, Chunk(buffer, 0, 0, 0), ends, paid))
        self._arena_run = None
        self.next_index += count
        self.payload_bytes += paid[-1]
        self.memory_bytes += nbytes + count * OVERHEAD_BYTES
        self._trim()

    def adopt(self, count: int, find: Callable[[int], tuple[Buffer, int, int] | None]) -> None:
        """Let the window begin with `count` logged datagrams, the first to leave; `find` says by sqn where they lie."""
        self._adopted_to = self._logged_to = self.next_index
        self._find_adopted = find
        self.trail_index = self.next_index - count

    def leave_adopted(self) -> None:
        """Let go of all that was adopted."""
        self.trail_index = max(self.trail_index, self._adopted_to)

    def leave_logged(self, index: int, is_all_logged: bool) -> None:
        """Let go of what lies in the log before that datagram; `is_all_logged`: all that there is now lies in it."""
        if is_all_logged:
            self._logged_to = self.next_index
        index = min(index, self._logged_to)
        if self.trail_index < self._adopted_to:
            self.trail_index = max(self.trail_index, min(index, self._adopted_to))
        while self.trail_index < index:
            run = self._oldest()
            self._leave(run, min(run.start + run.datagrams, index) - self.trail_index)

    def _append_copy(self, count: int, payload_bytes: int, chunk: Chunk) -> None:
        buffer, offset, stride, length = chunk
        nbytes = count * length
        at = self._arena_used
        if at + nbytes > len(self._arena):
            self._arena = bytearray(max(ARENA_BYTES, nbytes))
            at = 0
        arena = self._arena
        self._arena_used = at + nbytes
        if stride == length:
            arena[at : at + nbytes] = buffer[offset : offset + nbytes]
        else:
            for i in range(count):
                source = offset + i * stride
                arena[at + i * length : at + (i + 1) * length] = buffer[source : source + length]
        last = self._arena_run
        if last is not None and last.payload_bytes == payload_bytes and last.chunk.length == length and at:
            last.datagrams += count
            return
        self._starts.append(self.next_index)
        self._arena_run = _Run(
            self.next_index, count, payload_bytes, length + OVERHEAD_BYTES, Chunk(arena, at, length, length)
        )
        self._runs.append(self._arena_run)

    def _trim(self) -> None:
        newest = self.next_index - 1
        while self.trail_index < newest:
            over = self.payload_bytes - self._size_bytes
            over_memory = self.memory_bytes - self._limit_bytes if self._limit_bytes else 0
            if over <= 0 and over_memory <= 0:
                break
            if self.trail_index < self._adopted_to:
                self.trail_index = self._adopted_to
                continue
            run = self._oldest()
            most = min(run.start + run.datagrams, newest) - self.trail_index
            if run.ends:
                at = self.trail_index - run.start
                paid = run.paid[at - 1] if at else 0
                leaving = bisect_left(run.paid, paid + over, at) + 1 - at if over > 0 else 1
                if over_memory > 0:
                    reached = run.memory_before(at) + over_memory
                    found = bisect_left(range(run.datagrams + 1), reached, at, key=run.memory_before)
                    leaving = max(leaving, found - at)
            else:
                leaving = max(
                    -(-over // run.payload_bytes) if run.payload_bytes else 1,
                    -(-over_memory // run.memory_bytes),
                    1,
                )
            self._leave(run, min(leaving, most))

    def _oldest(self) -> _Run:
        """Return the run at the trail."""
        run = self._runs[self._head]
        if run is None:
            raise LocalProtocolError("transmission window: trail in a run that has left")
        return run

    def _leave(self, run: _Run, leaving: int) -> None:
        """Let go of that many datagrams of the oldest run, and of the run when they are its last."""
        if run.ends:
            at = self.trail_index - run.start
            self.payload_bytes -= run.paid[at + leaving - 1] - (run.paid[at - 1] if at else 0)
            self.memory_bytes -= run.memory_before(at + leaving) - run.memory_before(at)
        else:
            self.payload_bytes -= leaving * run.payload_bytes
            self.memory_bytes -= leaving * run.memory_bytes
        self.trail_index += leaving
        if self.trail_index == run.start + run.datagrams:
            if run is self._arena_run:
                self._arena_run = None
            self._runs[self._head] = None
            self._head += 1
            if self._head > COMPACT_AT:
                del self._runs[: self._head]
                del self._starts[: self._head]
                self._head = 0

    def clear(self) -> None:
        """Let go of everything."""
        self._starts, self._runs, self._head = [], [], 0
        self._arena, self._arena_used, self._arena_run = bytearray(), 0, None
        self.trail_index = self.next_index
        self.payload_bytes = self.memory_bytes = 0

    def find(self, index: int) -> tuple[Buffer, int, int]:
        """(buffer, offset, length) of a datagram in the window.

        Raises: LookupError for what was adopted and is not there; all that was adopted has left then.
        """
        if self.trail_index <= index < self._adopted_to:
            if (found := self._find_adopted(index & MASK)) is None:
                self.trail_index = self._adopted_to
                raise LookupError(index)
            return found
        run = self._runs[bisect_right(self._starts, index, self._head) - 1]
        if run is None or not self.trail_index <= index < self.next_index:
            raise LocalProtocolError("transmission window: asked for a datagram that it does not hold")
        chunk = run.chunk
        if run.ends:
            at = index - run.start
            start = run.ends[at - 1] if at else 0
            return chunk.buffer, start, run.ends[at] - start
        return chunk.buffer, chunk.offset + (index - run.start) * chunk.stride, chunk.length

    @property
    def _content(self) -> list[_RunState]:
        return [run.kept_from(max(run.start, self.trail_index)) for run in self._runs[self._head :] if run is not None]

    @_content.setter
    def _content(self, content: Sequence[_RunState]) -> None:
        start = trail_index = self.next_index - sum([datagrams for datagrams, *_ in content])
        runs: list[_Run | None] = []
        for datagrams, payload_bytes, length, ends, paid, data in content:
            size = ends[-1] if ends else datagrams * length
            if datagrams < 1 or len(data) != size or (ends and not len(ends) == len(paid) == datagrams):
                raise ValueError("datagrams do not fill their buffer")
            memory_bytes = 0 if ends else length + OVERHEAD_BYTES
            runs.append(_Run(start, datagrams, payload_bytes, memory_bytes, Chunk(data, 0, length, length), ends, paid))
            start += datagrams
        self.clear()
        self.trail_index = trail_index
        self._runs, self._starts = runs, [run.start for run in runs if run is not None]
        for datagrams, payload_bytes, _, _, paid, data in content:
            self.payload_bytes += paid[-1] if paid else datagrams * payload_bytes
            self.memory_bytes += len(data) + datagrams * OVERHEAD_BYTES


StateLayout(TransmissionWindow, 1, next_index=int, _content=list[_RunState])


class Retransmitter:
    """Answers NAKs out of a window, within the retransmission limit.

    `queue_bytes` bounds what waits for the limit. Guess: what the limit carries in one second; the real bound is not
    public. With `charge_data` a retransmission also uses the data credit, without being held back by it (LBT-RM).
    """

    __slots__ = (
        "_data_limiter",
        "_ignore_ns",
        "_limiter",
        "_max_ncfs",
        "_queue",
        "_queue_bytes",
        "_queue_limit",
        "_queued",
        "_recent",
        "_window",
        "stats",
        "wake_ns",
    )

    def __init__(
        self,
        window: TransmissionWindow,
        limiter: RateLimiter,
        data_limiter: RateLimiter | None,
        *,
        ignore_ns: int,
        queue_bytes: int,
        max_ncfs_per_packet: int,
        stats: RetransmitStats,
    ) -> None:
        self._window = window
        self._limiter = limiter
        self._data_limiter = data_limiter
        self._ignore_ns = ignore_ns
        self._queue_limit = queue_bytes
        self._max_ncfs = max_ncfs_per_packet
        self.stats = stats
        self._recent: dict[int, tuple[int, bool]] = {}
        """Within the ignore interval: index -> (when sent again, has a rejection been told)."""
        self._queue: list[int] = []  # heap of indexes that wait for credit
        self._queued: dict[int, int] = {}  # index -> length
        self._queue_bytes = 0
        self.wake_ns: int | None = None

    def another(self) -> Retransmitter:
        """Return one with the same window and limits, for a receiver that gets repairs of its own."""
        return Retransmitter(
            self._window, self._limiter, self._data_limiter, ignore_ns=self._ignore_ns,
            queue_bytes=self._queue_limit, max_ncfs_per_packet=self._max_ncfs, stats=self.stats,
        )  # fmt: skip

    @property
    def waiting_count(self) -> int:
        """Retransmissions that wait for the limit (`rctlr_rx_msgs`)."""
        return len(self._queue)

    def on_nak(self, sqns: Iterable[int], now_ns: int) -> list[Retransmit | SendNcf]:
        """One NAK packet. Returns the retransmissions, then at most one reason's NCFs after the other."""
        window, stats = self._window, self.stats
        effects: list[Retransmit | SendNcf] = self.drain(now_ns) if self._queue else []
        self._forget_old(now_ns)
        refused: dict[int, list[int]] = {}
        next_index = window.next_index
        next_sqn = next_index & MASK
        indexes = []
        for sqn in sqns:
            stats.naks_rcved += 1
            behind = (next_sqn - sqn) & MASK
            if 0 < behind < HALF:  # else newer than the lead: nobody could have missed it yet
                indexes.append(next_index - behind)
        stats.nak_pckts_rcved += 1
        indexes.sort()
        for index in indexes:
            reason = self._on_asked(index, now_ns, effects)
            if reason is not None:
                refused.setdefault(reason, []).append(index & MASK)
        most = self._max_ncfs
        for reason, named in sorted(refused.items()):
            effects += [SendNcf(reason, tuple(named[at : at + most]), now_ns) for at in range(0, len(named), most)]
        return effects

    def _on_asked(self, index: int, now_ns: int, effects: list[Retransmit | SendNcf]) -> int | None:
        """Retransmit `index` now or later, or return the reason of the NCF that it gets, None for no NCF."""
        window, stats = self._window, self.stats
        if index < window.trail_index:
            return NCF_DO_NOT_RETRY
        recent = self._recent.get(index)
        if recent is not None:
            stats.naks_ignored += 1
            if recent[1]:
                return None
            self._recent[index] = (recent[0], True)
            return NCF_IGNORED
        if index in self._queued:
            return None
        try:
            buffer, offset, length = window.find(index)
        except LookupError:
            return NCF_DO_NOT_RETRY
        if not self._queue and self._limiter.take(length, now_ns, self):
            effects.append(self._send(index, buffer, offset, length, now_ns))
            return None
        if self._queue_bytes + length > self._queue_limit and self._queue:
            stats.naks_shed += 1
            return NCF_SHED
        heapq.heappush(self._queue, index)
        self._queued[index] = length
        self._queue_bytes += length
        head = self._queue[0]
        if head == index:
            self.wake_ns = self._limiter.hold(self, length, now_ns)
        stats.naks_rx_delay_ignored += 1
        return NCF_RX_DELAY

    def drain(self, now_ns: int) -> list[Retransmit | SendNcf]:
        """Send what waits, oldest first, as far as the limit allows. What has left the window meanwhile is dropped."""
        window, queue = self._window, self._queue
        effects: list[Retransmit | SendNcf] = []
        while queue:
            index = queue[0]
            length = self._queued[index]
            if index >= window.trail_index:
                if not self._limiter.take(length, now_ns, self):
                    self.wake_ns = self._limiter.hold(self, length, now_ns)
                    return effects
                with contextlib.suppress(LookupError):
                    effects.append(self._send(index, *window.find(index), now_ns))
            heapq.heappop(queue)
            del self._queued[index]
            self._queue_bytes -= length
        self.wake_ns = None
        self._limiter.release(self)
        return effects

    def _send(self, index: int, buffer: Buffer, offset: int, length: int, now_ns: int) -> Retransmit:
        if self._data_limiter is not None:
            self._data_limiter.charge(length, now_ns)
        self._recent[index] = (now_ns, False)
        self.stats.rxs_sent += 1
        self.stats.rx_bytes_sent += length
        return Retransmit(index & MASK, buffer, offset, length, now_ns)

    def on_send_failed(self, sqn: int, length: int) -> None:
        """A retransmission of `length` bytes did not leave: the next NAK for it is served, however soon it comes."""
        next_index = self._window.next_index
        self._recent.pop(next_index - ((next_index - sqn) & MASK), None)
        self.stats.rxs_sent -= 1
        self.stats.rx_bytes_sent -= length

    def _forget_old(self, now_ns: int) -> None:
        """Forget retransmissions past the ignore interval: they entered in order of time, so these are in front."""
        recent = self._recent
        for index in [*takewhile(lambda index: now_ns - recent[index][0] >= self._ignore_ns, recent)]:
            del recent[index]

    def close(self) -> None:
        self._queue.clear()
        self.wake_ns = None
        self._limiter.release(self)


StateLayout(
    Retransmitter,
    1,
    _recent=dict[int, tuple[int, bool]],
    _queue=list[int],
    _queued=dict[int, int],
    _queue_bytes=int,
    wake_ns=int | None,
)
