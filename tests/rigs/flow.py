"""Flows of numbered, stamped messages between processes, and the books that sender and receiver keep about them.

Run as a program: `python -m tests.rigs.flow CONFIG [--send BOARD --rate N ...] [--receive BOARD]...` is one client
context in one TRD, at the fragment level of the library. A board is a file in shared memory that sender, receiver
and test look at together; a flow has `topics` topics, `<prefix>.0` and so on, each numbered by its topic sqn.

The receiver counts per topic: from the first fragment that it gets on, none may be missing and none may come twice.
"""

from __future__ import annotations

import argparse
import mmap
import time
from pathlib import Path
from struct import Struct
from typing import Any, Final

from dro.clock import NS_PER_S
from dro.loop import Loop
from dro.proto.context.sources import BoundSource
from dro.transport.runs import KIND_DATA, Run
from dro.transport.session import ReceiverTransport
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.own_source import FragmentSource
from dro.um.message.client_config import Config
from dro.wire.lbmc.message import HEADER as _LBMC
from tests.fakes.runs import RunSink, send_run

HEADER: Final = 12
HEADROOM: Final = 20
BATCH: Final = 64
_CONTENT: Final = Struct("!QII")  # monotonic clock in ns, topic number, topic sqn
MIN_PAYLOAD: Final = _CONTENT.size
TURN_NS: Final = 500_000
KNOCK_NS: Final = 10_000_000

# cells of a board, u64 each
(
    TOPICS,
    STOP,
    SENT,
    RECEIVED,
    BOUND,
    HEARD,
    MISSING,
    LATE,
    DUPLICATES,
    WRONG,
    MARK,
    FIRST,
    TAKE,
    TAKEN,
    PAUSE,
    BURSTS,
    PAUSED,
) = range(17)
"""Totals. MARK: a time that the test sets; FIRST: arrival of the first message sent after it. TAKE: latencies are to
be recorded; TAKEN: how many were. PAUSE: the sender is to send nothing; PAUSED: it has seen that, and SENT is final.
HEARD: topics of which something has come."""
PER_TOPIC: Final = 64
"""Then come, for each topic, the cells below."""
T_SENT, T_FIRST, T_NEXT, T_MISSING, T_AFTER = range(5)
"""T_SENT: next sqn of the sender; T_FIRST, T_NEXT: of the receiver; T_AFTER: arrival of the first after MARK."""
TOPIC_CELLS: Final = 5
MAX_LATENCIES: Final = 1 << 20


class Board:
    """The shared counters of one flow, or of one more receiver of it."""

    def __init__(self, path: Path, label: str, topics: int, area: mmap.mmap) -> None:
        self.path = path
        self.label = label
        self.prefix = label.partition("@")[0]
        self.topics = topics
        self._area = area
        self.cells = memoryview(area).cast("Q")
        self.samples = PER_TOPIC + topics * TOPIC_CELLS

    @classmethod
    def create(cls, folder: Path, label: str, topics: int) -> Board:
        """`label`: the prefix of the topics, with `@` and a name behind it for a further receiver of that flow."""
        path = folder / f"{label}.board"
        size = 8 * (PER_TOPIC + topics * TOPIC_CELLS + MAX_LATENCIES)
        with path.open("w+b") as file:
            file.truncate(size)
            area = mmap.mmap(file.fileno(), size)
        board = cls(path, label, topics, area)
        board.cells[TOPICS] = topics
        return board

    @classmethod
    def open(cls, path: Path) -> Board:
        with path.open("r+b") as file:
            area = mmap.mmap(file.fileno(), 0)
        topics = int.from_bytes(area[:8], "little")
        return cls(path, path.stem, topics, area)

    def names(self) -> list[bytes]:
        return [f"{self.prefix}.{n}".encode() for n in range(self.topics)]

    def __getitem__(self, cell: int) -> int:
        return self.cells[cell]

    def __setitem__(self, cell: int, value: int) -> None:
        self.cells[cell] = value

    def topic(self, number: int, cell: int) -> int:
        return self.cells[PER_TOPIC + number * TOPIC_CELLS + cell]

    def all_of(self, cell: int) -> list[int]:
        return [self.topic(n, cell) for n in range(self.topics)]

    # what tests ask

    @property
    def is_flowing(self) -> bool:
        """Something of every topic has come."""
        return self[HEARD] == self.topics

    @property
    def is_complete(self) -> bool:
        """All that was sent since the first message of each topic has come."""
        return self[MISSING] == 0 and self.is_caught_up(self)

    def is_caught_up(self, sent: Board) -> bool:
        """The last message of each topic has come, as the board of the sender has it."""
        return self.all_of(T_NEXT) == sent.all_of(T_SENT)

    def mark(self) -> int:
        """Begin to look for the first message that is sent after now; the time."""
        now_ns = time.monotonic_ns()
        self[FIRST] = 0
        self[MARK] = now_ns
        return now_ns

    def after_mark(self) -> list[int]:
        """For each topic the time from the mark to the first message sent after it, ns; -1 while none came."""
        mark = self[MARK]
        return [at - mark if at > mark else -1 for at in self.all_of(T_AFTER)]

    def take_latencies(self) -> None:
        self[TAKEN] = 0
        self[TAKE] = 1

    def latencies_us(self) -> list[float]:
        """Of what came since `take_latencies`, sorted: one for each run of messages, that of its oldest."""
        self[TAKE] = 0
        count = min(self[TAKEN], MAX_LATENCIES)
        return sorted(ns / 1000 for ns in self.cells[self.samples : self.samples + count])

    def story(self) -> str:
        """All totals, for the message of an assertion."""
        names = ("sent", "received", "bound", "heard", "missing", "late", "duplicates", "wrong")
        values = [f"{name} {self[cell]}" for name, cell in zip(names, range(SENT, WRONG + 1), strict=True)]
        behind = [
            (n, self.topic(n, T_FIRST), self.topic(n, T_NEXT), self.topic(n, T_SENT), self.topic(n, T_MISSING))
            for n in range(self.topics)
            if self.topic(n, T_NEXT) != self.topic(n, T_SENT) or self.topic(n, T_MISSING)
        ]
        return f"{self.label}: {', '.join(values)}; topics (first, next, sent, missing) {behind[:10]}"


class Receiver(RunSink):
    """The sink of a client context: keeps the books of the flows that it wants."""

    def __init__(self, boards: list[Board]) -> None:
        self._numbers = {name: (board, n) for board in boards for n, name in enumerate(board.names())}
        self._missing: dict[bytes, set[int]] = {name: set() for name in self._numbers}

    def topics(self) -> list[bytes]:
        return list(self._numbers)

    def on_bound(self, source: BoundSource[Any], now_ns: int) -> None:
        self._numbers[source.topic][0].cells[BOUND] += 1

    def on_unbound(self, source: BoundSource[Any], *, ended: bool, now_ns: int) -> None:
        self._numbers[source.topic][0].cells[BOUND] -= 1

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        pass

    def on_runs(self, transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        now_ns = time.monotonic_ns()
        for run in runs:
            source = transport.sources.get(run.topic_index)
            if source is not None and run.kind == KIND_DATA:
                self._on_run(source.topic, view, run, now_ns)

    def _on_run(self, name: bytes, view: memoryview, run: Run, now_ns: int) -> None:
        board, number = self._numbers[name]
        cells = board.cells
        at = PER_TOPIC + number * TOPIC_CELLS
        first, count = run.first_sqn, run.fragments
        if not cells[HEARD] or not cells[at + T_NEXT]:
            cells[HEARD] += 1
            cells[at + T_FIRST] = cells[at + T_NEXT] = first
        cells[RECEIVED] += count
        expected = cells[at + T_NEXT]
        if first == expected:
            cells[at + T_NEXT] = first + count
        else:
            self._on_unexpected(board, at, self._missing[name], first, count)
        content = run.offset + HEADER
        stamp, topic, sqn = _CONTENT.unpack_from(view, content)
        if topic != number or sqn != first:
            cells[WRONG] += 1
        if cells[TAKE]:
            taken = cells[TAKEN]
            if taken < MAX_LATENCIES:
                cells[board.samples + taken] = max(0, now_ns - stamp)
                cells[TAKEN] = taken + 1
        mark = cells[MARK]
        if mark and cells[at + T_AFTER] < mark:
            stamp = _CONTENT.unpack_from(view, content + (count - 1) * run.stride)[0]
            if stamp > mark:
                cells[at + T_AFTER] = now_ns
                if not cells[FIRST]:
                    cells[FIRST] = now_ns

    @staticmethod
    def _on_unexpected(board: Board, at: int, missing: set[int], first: int, count: int) -> None:
        cells = board.cells
        before = len(missing)
        expected = cells[at + T_NEXT]
        if first > expected:
            missing.update(range(expected, first))
            cells[BURSTS] += 1
            cells[at + T_NEXT] = first + count
        else:
            for sqn in range(first, first + count):
                if sqn >= cells[at + T_NEXT]:
                    cells[at + T_NEXT] = sqn + 1
                elif sqn in missing:
                    missing.remove(sqn)
                    cells[LATE] += 1
                else:
                    cells[DUPLICATES] += 1
        cells[at + T_MISSING] = len(missing)
        cells[MISSING] = cells[MISSING] + len(missing) - before


class Sender:
    """Sends one flow: `rate` messages a second over all topics, or as many as `window` on their way allows."""

    def __init__(self, context: FragmentContext, board: Board, payload: int, rate: int, window: int) -> None:
        self._board = board
        self._rate = rate
        self._window = window
        self._sources: list[FragmentSource] = [context.open_source(name) for name in board.names()]
        self._length = HEADER + max(payload, MIN_PAYLOAD)
        self._size = self._length + HEADROOM
        self._next = [1] * board.topics
        for n in range(board.topics):
            board.cells[PER_TOPIC + n * TOPIC_CELLS + T_SENT] = 1
        self._began_ns = time.monotonic_ns()
        self._sent = 0
        self._before = 0  # sent before anything was received
        self._turn = 0

    def on_turn(self) -> bool:
        """Send what is due; False when there was nothing."""
        cells = self._board.cells
        now_ns = time.monotonic_ns()
        cells[PAUSED] = cells[PAUSE]
        if cells[PAUSED] or cells[STOP]:
            self._began_ns, self._sent = now_ns, 0
            return False
        if self._rate:
            due = (now_ns - self._began_ns) * self._rate // NS_PER_S - self._sent
            if due > self._rate // 5 + 1:  # the machine paused: what was missed is not sent later
                self._began_ns, self._sent, due = now_ns, 0, 1
        elif cells[RECEIVED]:
            due = self._window - (cells[SENT] - self._before - cells[RECEIVED])
        else:  # nobody may listen yet, and a window of lost messages would never open again
            due = int(now_ns - self._began_ns >= KNOCK_NS)
            self._began_ns += KNOCK_NS * due
            self._before = cells[SENT] + due
        if due <= 0:
            return False
        topics = self._board.topics
        share = min(BATCH, max(1, due // topics))
        for _ in range(topics):
            if due <= 0:
                break
            taken = self._send(self._turn, min(share, due), now_ns)
            self._turn = (self._turn + 1) % topics
            self._sent += taken
            due -= share
        return True

    def _send(self, number: int, count: int, now_ns: int) -> int:
        size, length, first = self._size, self._length, self._next[number]
        buffer = bytearray(count * size)
        for i in range(count):
            at = i * size + HEADROOM
            _LBMC.pack_into(buffer, at, 0, 0, length, 0, first + i)
            _CONTENT.pack_into(buffer, at + HEADER, now_ns, number, first + i)
        run = Run(0, first, count, HEADROOM, length, size, HEADROOM, 0, KIND_DATA)
        source = self._sources[number]
        taken = send_run(source.transport, buffer, run, 0, source.topic_index, now_ns)
        self._next[number] += taken
        cells = self._board.cells
        cells[PER_TOPIC + number * TOPIC_CELLS + T_SENT] = self._next[number]
        cells[SENT] += taken
        return taken


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--send", type=Path)
    parser.add_argument("--receive", type=Path, action="append", default=[])
    parser.add_argument("--payload", type=int, default=64)
    parser.add_argument("--rate", type=int, default=0)
    parser.add_argument("--window", type=int, default=0)
    arguments = parser.parse_args()
    boards = [Board.open(path) for path in arguments.receive]
    loop = Loop()
    receiver = Receiver(boards)
    context = FragmentContext(Config.load(arguments.config).options, loop, sink=receiver)
    for topic in receiver.topics():
        context.want_topic(topic)
    sending = Board.open(arguments.send) if arguments.send else None
    sender = Sender(context, sending, arguments.payload, arguments.rate, arguments.window) if sending else None
    while True:
        busy = sender.on_turn() if sender is not None else False
        if busy:
            loop.run_once(0)
        loop.run_once(TURN_NS if sender is not None else 50_000_000)


if __name__ == "__main__":
    main()
