"""Load for the benchmarks: a sending and a receiving process on the fragment level of the client library.

The sender hands whole runs to its transport session (with segmentation offload a datagram costs it a fraction of U)
and keeps a window of messages in flight that the receiver's count in shared memory opens again; so it finds the rate
that the path carries without loss. The receiver counts runs and looks at sqns and time stamps only. Both report their
own CPU time, which shows whether they were the bottleneck.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
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

TOPIC: Final = b"bench"
HEADER: Final = 12
HEADROOM: Final = 20
BATCH: Final = 64
_STAMP: Final = Struct("!Q")
# cells of the board, u64 each
RECEIVED, NEXT_SQN, GAPS, BOUND, STOP, SENT, LATENCIES, READY, PAUSE, MEASURING = range(10)
BOARD_CELLS: Final = 64
MAX_LATENCIES: Final = 1_000_000  # the newest
PROBED_NS: Final = 100_000_000  # for what is on its way
WAIT_S: Final = 0.00005  # of a sender without room; what epoll waits is at least a millisecond


class Board:
    """Counters that sender, receiver and driver share, in anonymous shared memory made before the fork."""

    def __init__(self) -> None:
        self._area = mmap.mmap(-1, 8 * (BOARD_CELLS + MAX_LATENCIES))
        self.cells = memoryview(self._area).cast("Q")

    def latencies_us(self) -> list[float]:
        count = min(self.cells[LATENCIES], MAX_LATENCIES)
        return sorted(value / 1000 for value in self.cells[BOARD_CELLS : BOARD_CELLS + count])


class CountingSink(RunSink):
    """Takes fragments; counts them and, when asked to, their latencies while `MEASURING` is set."""

    def __init__(self, board: Board, *, with_latency: bool) -> None:
        self._cells = board.cells
        self._with_latency = with_latency
        self._next = -1

    def on_bound(self, source: BoundSource[Any], now_ns: int) -> None:
        self._cells[BOUND] += 1

    def on_unbound(self, source: BoundSource[Any], *, ended: bool, now_ns: int) -> None:
        self._cells[BOUND] -= 1

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        pass

    def on_runs(self, transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        cells = self._cells
        for run in runs:
            if run.kind != KIND_DATA:
                continue
            cells[RECEIVED] += run.fragments
            if run.first_sqn != self._next and self._next >= 0:
                cells[GAPS] += 1  # loss, or a repair: the driver compares counts in the end
            self._next = run.first_sqn + run.fragments
            if self._with_latency and cells[MEASURING]:
                arrived_ns = time.monotonic_ns()
                for i in range(run.fragments):
                    sent_ns = _STAMP.unpack_from(view, run.offset + i * run.stride + HEADER)[0]
                    count = cells[LATENCIES]
                    cells[BOARD_CELLS + count % MAX_LATENCIES] = max(0, arrived_ns - sent_ns)
                    cells[LATENCIES] = count + 1


class NullSink(RunSink):
    """For a context that only sends."""

    def on_bound(self, source: BoundSource[Any], now_ns: int) -> None:
        pass

    def on_unbound(self, source: BoundSource[Any], *, ended: bool, now_ns: int) -> None:
        pass

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        pass

    def on_runs(self, transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        pass


def spawn(main: Callable[[], None]) -> int:
    """Run `main` in a forked child; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        main()
        os._exit(0)
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)


def receive(config: str, board: Board, *, with_latency: bool) -> None:
    """Body of the receiving process."""
    loop = Loop()
    context = FragmentContext(Config.load(config).options, loop, sink=CountingSink(board, with_latency=with_latency))
    context.want_topic(TOPIC)
    board.cells[READY] += 1
    while not board.cells[STOP]:
        loop.run_once(50_000_000)


@dataclass(frozen=True)
class SendPlan:
    """What to send. `rate` messages per second, 0: as fast as the window of messages in flight allows."""

    payload_bytes: int
    rate: int = 0
    window: int = 512
    transport: str = "lbtrm"
    stamped: bool = False


class Sender:
    """Body of the sending process: runs of equal messages, numbered like those of any source."""

    def __init__(self, config: str, board: Board, plan: SendPlan) -> None:
        self._cells = board.cells
        self._plan = plan
        self._loop = Loop()
        options = Config.load(config).options.with_("source", "transport", plan.transport)
        self._context = FragmentContext(options, self._loop, sink=NullSink())
        self._source: FragmentSource = self._context.open_source(TOPIC, options=options)
        self._sqn = 0
        self._unheard = 0
        self._length = HEADER + plan.payload_bytes
        self._headroom = HEADROOM if plan.transport == "lbtrm" else 0
        self._size = self._length + self._headroom
        self._next_tsni_ns = 0

    def run(self) -> None:
        cells, loop, plan = self._cells, self._loop, self._plan
        cells[READY] += 1
        while not cells[BOUND] and not cells[STOP]:
            loop.run_once(5_000_000)
        self._probe()
        began_ns, first = time.monotonic_ns(), self._sqn
        while not cells[STOP]:
            in_flight = self._sqn - self._unheard - cells[RECEIVED]
            if cells[PAUSE]:  # send no more, but repair and tell how far it was
                room = 0
            elif plan.rate:
                due = (time.monotonic_ns() - began_ns) * plan.rate // NS_PER_S + first - self._sqn
                if due > plan.rate // 5:  # the machine paused: do not send what was missed
                    began_ns += (due - 1) * NS_PER_S // plan.rate
                    due = 1
                room = min(due, BATCH)
            else:
                room = min(plan.window - in_flight, BATCH)
            sent = self._send(room) if room > 0 else 0
            loop.run_once(0)
            if not sent:  # the receiver's count is polled, which costs this process CPU and nobody else
                time.sleep(WAIT_S)
                if in_flight:
                    self._tail()

    def _probe(self) -> None:
        """Send single messages until one arrives: what is sent before the portals forward is for nobody."""
        cells, loop = self._cells, self._loop
        while not cells[RECEIVED] and not cells[STOP]:
            self._send(1)
            loop.run_once(5_000_000)
        settled_ns = time.monotonic_ns() + PROBED_NS
        while time.monotonic_ns() < settled_ns:
            loop.run_once(5_000_000)
        self._unheard = self._sqn - cells[RECEIVED]

    def _tail(self) -> None:
        now_ns = time.monotonic_ns()
        if now_ns > self._next_tsni_ns:
            self._next_tsni_ns = now_ns + 100_000_000
            self._source.send_tsni(self._sqn - 1 & 0xFFFFFFFF, now_ns)

    def _send(self, count: int) -> int:
        size, length, headroom = self._size, self._length, self._headroom
        buffer = bytearray(count * size)
        now_ns = time.monotonic_ns()
        for i in range(count):
            _LBMC.pack_into(buffer, i * size + headroom, 0, 0, length, 0, (self._sqn + i) & 0xFFFFFFFF)
            if self._plan.stamped:
                _STAMP.pack_into(buffer, i * size + headroom + HEADER, now_ns)
        run = Run(0, self._sqn & 0xFFFFFFFF, count, headroom, length, size, headroom, 0, KIND_DATA)
        taken = send_run(self._source.transport, buffer, run, 0, self._source.topic_index, now_ns)
        self._sqn += taken
        self._cells[SENT] = self._sqn - self._unheard
        return taken


def percentile(values: list[float], fraction: float) -> float:
    return values[min(len(values) - 1, int(len(values) * fraction))] if values else float("nan")
