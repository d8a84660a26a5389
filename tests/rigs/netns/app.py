"""An application of one TRD for network tests: a process with one UM context that obeys commands.

    app = App(host, config, board)
    app.receive(b"prices", cell=0)
    app.open("s", b"prices")
    app.send("s", 10_000, seed=7, cells=(0,))         # goes on by itself, as fast as the cells follow
    report = app.report()

The applications of a test share a `Board`. A receiver counts there what it was given in order, and a sender keeps no
more than a window of messages beyond the slowest of the receivers that it names; so a flow finds the pace of the
machine, and nothing is lost for want of end-to-end flow control, which UM does not have across a DRO. Before its first
message a sender repeats a probe until each of those receivers has seen it: a TCP session begins when a receiver has
connected, and nobody but the receiver knows that. Probes are no messages.

It works on the fragment level of the client library and puts the order together itself, so that what is checked does
not depend on the delivery of that library.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import multiprocessing
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, cast

from dro.clock import ms
from dro.loop import Loop
from dro.patterns import PCRE, Pattern
from dro.proto.context.sources import BoundSource
from dro.sqn import ahead
from dro.transport.lbtipc.memory import host_id
from dro.transport.runs import KIND_DATA, Run
from dro.transport.session import ReceiverTransport
from dro.um.fragment.context import FragmentContext
from dro.um.fragment.own_source import FragmentSource
from dro.um.message.client_config import Config
from dro.wire.lbmc.message import HEADER
from dro.wire.source_string import format_source
from tests.builders.um_options import with_all
from tests.fakes.runs import RunSink, send_run
from tests.rigs.netns.harness import Host
from tests.rigs.waiting import wait_until

HEADROOM: Final = 20
PROBE: Final = b"\xffprobe\xff of a session that begins\xff"
PROBE_NS: Final = ms(20)
POLL_NS: Final = ms(1)
ANSWER_S: Final = 20.0
BOUND_S: Final = 20.0
SENT_S: Final = 50.0
CELLS: Final = 256
ARRIVALS_MAX: Final = 20_000
_BLOCK: Final = 1 << 16


class Board:
    """Counters in memory that is shared by all processes forked later: messages in order, and probes, by cell."""

    def __init__(self) -> None:
        self._area = mmap.mmap(-1, 2 * 8 * CELLS)
        cells = memoryview(self._area).cast("Q")
        self.messages, self.probes = cells[:CELLS], cells[CELLS:]


class Payloads:
    """The messages of a sender: pseudo-random sizes and bytes, the same for the same seed."""

    def __init__(self, seed: int, smallest: int, largest: int) -> None:
        rng = random.Random(seed)
        self._block = rng.randbytes(_BLOCK + largest)
        self._rng = rng
        self._smallest, self._largest = smallest, largest

    def next(self) -> bytes:
        at = self._rng.randrange(_BLOCK)
        return self._block[at : at + self._rng.randint(self._smallest, self._largest)]


class Digest:
    """Of payloads in order, their borders included."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.messages = 0

    def add(self, payload: bytes) -> None:
        self._hash.update(len(payload).to_bytes(4, "big"))
        self._hash.update(payload)
        self.messages += 1

    def text(self) -> str:
        return self._hash.hexdigest()


@dataclass(frozen=True)
class Sent:
    """What a source has sent. `is_done`: all that was asked for."""

    topic: bytes
    otid: bytes
    source: str
    messages: int
    digest: str
    is_done: bool
    seconds: float


@dataclass
class Heard:
    """What came of one source, by whatever sessions. `missing` and `held` are sqns and fragments behind a gap now."""

    topic: bytes
    otid: bytes
    sources: list[str] = field(default_factory=list)  # every session that it was bound on
    bound: int = 0  # sessions that it is bound on now
    ended: int = 0  # times that it was ended by the other side
    ended_at: float = 0.0  # monotonic clock
    messages: int = 0
    digest: str = ""
    duplicates: int = 0
    held: int = 0
    missing: int = 0
    hops: int = -1  # of the latest advertisement; -1: no cost in it
    domain_id: int = 0


@dataclass(frozen=True)
class Report:
    sent: dict[str, Sent]
    heard: dict[bytes, Heard]  # by OTID
    unknown_topics: int  # fragments of topics that nobody here wanted

    def of_topic(self, topic: bytes) -> list[Heard]:
        return [heard for heard in self.heard.values() if heard.topic == topic]


class _Stream:
    """One source as it is heard: fragments into order by topic sqn."""

    def __init__(self, heard: Heard, count: Callable[[], object], probe: Callable[[], object]) -> None:
        self.heard = heard
        self._digest = Digest()
        self.arrivals: list[tuple[int, int]] = []  # topic sqn and bytes of each message, as they came
        self._next: int | None = None
        self._held: dict[int, bytes] = {}
        self._early: set[int] = set()  # lost probes before the first one heard, repaired behind it
        self._count, self._probe = count, probe

    def take(self, sqn: int, payload: bytes) -> None:
        if payload == PROBE:
            self._probe()
        elif len(self.arrivals) < ARRIVALS_MAX:
            self.arrivals.append((sqn, len(payload)))
        if self._next is None:
            self._next = self._first = sqn
        if self._is_early(sqn, payload):
            return
        distance = ahead(sqn, self._next)
        if distance < 0 or sqn in self._held:
            self.heard.duplicates += 1
            return
        self._held[sqn] = payload
        while (ready := self._held.pop(self._next, None)) is not None:
            self._next = (self._next + 1) & 0xFFFFFFFF
            if ready != PROBE:
                self._digest.add(ready)
                self._count()

    def _is_early(self, sqn: int, payload: bytes) -> bool:
        if payload != PROBE or ahead(sqn, self._first) >= 0 or sqn in self._early:
            return False
        self._early.add(sqn)
        return True

    def report(self) -> Heard:
        heard = self.heard
        heard.messages, heard.digest = self._digest.messages, self._digest.text()
        heard.held, heard.missing = len(self._held), 0
        if self._held and self._next is not None:
            start = self._next
            heard.missing = max(ahead(sqn, start) for sqn in self._held) + 1 - len(self._held)
        return heard


class _Flow:
    """One source of ours and what it sends."""

    def __init__(self, app: _Child, source: FragmentSource) -> None:
        self.source = source
        self._app = app
        self._sqn = 0
        self._digest = Digest()
        self._wanted = 0
        self._seconds = 0.0
        self._payload: bytes | None = None  # refused, to be sent next

    def start(self, count: int, payloads: Payloads, window: int, cells: tuple[int, ...], per_second: float) -> None:
        self._wanted += count
        self._payloads, self._window, self._cells = payloads, window, cells
        self._base = [self._app.board.messages[cell] for cell in cells]
        self._probes = [self._app.board.probes[cell] for cell in cells]
        self._before = self._digest.messages
        self._per_second = per_second
        self._next_probe_ns = 0
        self._began_ns: int | None = None
        self._pump()

    def stop(self) -> int:
        self._wanted = self._digest.messages
        return self._wanted

    @property
    def _is_heard(self) -> bool:
        probes = self._app.board.probes
        return all(probes[cell] > before for cell, before in zip(self._cells, self._probes, strict=True))

    @property
    def _in_flight(self) -> int:
        messages = self._app.board.messages
        sent = self._digest.messages - self._before
        return max((sent - messages[c] + b for c, b in zip(self._cells, self._base, strict=True)), default=0)

    def _pump(self) -> None:
        now_ns = self._app.loop.now_ns()
        if self._began_ns is None:
            if not self._is_heard:
                if now_ns >= self._next_probe_ns:
                    self._next_probe_ns = now_ns + PROBE_NS
                    self._put(PROBE, now_ns)
                self._app.loop.call_later(POLL_NS, self._pump)
                return
            self._began_ns = now_ns
        for _ in range(64):
            if self._digest.messages >= self._wanted:
                self._seconds = (now_ns - self._began_ns) / 1e9
                return
            if self._in_flight >= self._window or self._is_early(now_ns):
                break
            payload = self._payload if self._payload is not None else self._payloads.next()
            if not self._put(payload, now_ns):
                self._payload = payload
                break
            self._payload = None
            self._digest.add(payload)
        else:
            self._app.loop.call_soon(self._pump)
            return
        self._app.loop.call_later(POLL_NS, self._pump)

    def _is_early(self, now_ns: int) -> bool:
        sent = self._digest.messages - self._before
        return bool(self._per_second) and sent > (now_ns - cast(int, self._began_ns)) * self._per_second / 1e9

    def _put(self, payload: bytes, now_ns: int) -> bool:
        """Send one message in one fragment; False when the session is blocked."""
        length = HEADER.size + len(payload)
        buffer = bytearray(HEADROOM) + HEADER.pack(0, 0, length, self.source.topic_index, self._sqn) + payload
        run = Run(self.source.topic_index, self._sqn, 1, HEADROOM, length, HEADROOM + length, HEADROOM, 0, KIND_DATA)
        taken = send_run(self.source.transport, buffer, run, 0, self.source.topic_index, now_ns)
        self._sqn = (self._sqn + taken) & 0xFFFFFFFF
        return bool(taken)

    def report(self) -> Sent:
        return Sent(
            self.source.topic, self.source.otid, self.source.source_string, self._digest.messages,
            self._digest.text(), self._digest.messages == self._wanted, self._seconds,
        )  # fmt: skip


class _Child(RunSink):
    """The process. Implements `dro.transport.session.FragmentSink`."""

    def __init__(self, config: Path, pipe: Connection, board: Board) -> None:
        self.board = board
        self.loop = Loop()
        self._pipe = pipe
        self._options = Config.load(config).options
        self._context = FragmentContext(self._options, self.loop, sink=self)
        self._flows: dict[str, _Flow] = {}
        self._closed: dict[str, Sent] = {}
        self._streams: dict[bytes, _Stream] = {}
        self._cells: dict[bytes, int] = {}  # topic -> cell
        self._pattern_cell: int | None = None
        self._by_pattern: set[bytes] = set()
        self._unknown = 0
        self.loop.add_reader(pipe.fileno(), self._on_command)

    def run(self) -> None:
        self.loop.run()

    def _on_command(self) -> None:
        try:
            name, args = self._pipe.recv()
        except EOFError:
            self.loop.stop()
            return
        self._pipe.send(getattr(self, f"do_{name}")(*args))

    # commands

    def do_receive(self, topic: bytes, cell: int) -> None:
        self._cells[topic] = cell
        self._context.want_topic(topic)

    def do_unreceive(self, topic: bytes) -> None:
        self._context.unwant_topic(topic)

    def do_match(self, pattern: bytes, cell: int) -> None:
        self._pattern_cell = cell
        self._context.want_pattern(pattern, PCRE, Pattern(pattern, PCRE))

    def do_unmatch(self, pattern: bytes) -> None:
        self._context.unwant_pattern(pattern, PCRE)

    def do_open(self, name: str, topic: bytes, settings: Sequence[tuple[str, str, str]]) -> tuple[bytes, str]:
        source = self._context.open_source(topic, options=with_all(self._options, settings))
        self._flows[name] = _Flow(self, source)
        return source.otid, source.source_string

    def do_send(
        self, name: str, count: int, seed: int, sizes: tuple[int, int], window: int, cells: tuple[int, ...], rate: float
    ) -> None:
        self._flows[name].start(count, Payloads(seed, *sizes), window, cells, rate)

    def do_stop(self, name: str) -> int:
        return self._flows[name].stop()

    def do_close(self, name: str, final: bool) -> None:
        flow = self._flows.pop(name)
        self._closed[name] = flow.report()
        flow.source.close(final=final, linger_ns=ms(10_000))

    def do_report(self) -> Report:
        sent = self._closed | {name: flow.report() for name, flow in self._flows.items()}
        return Report(sent, {otid: stream.report() for otid, stream in self._streams.items()}, self._unknown)

    def do_arrivals(self, otid: bytes) -> list[tuple[int, int]]:
        return self._streams[otid].arrivals

    def do_end(self) -> None:
        """Orderly: what is told to the TRD at the end of a context is told."""
        self._context.close()
        self.loop.call_soon(self.loop.stop)

    # what the context hears

    def on_bound(self, source: BoundSource[Any], now_ns: int) -> None:
        stream = self._streams.get(source.otid)
        if stream is None:
            cell = self._cells.get(source.topic, self._pattern_cell)
            assert cell is not None
            stream = _Stream(
                Heard(source.topic, source.otid),
                lambda: self._add(self.board.messages, cell),
                lambda: self._add(self.board.probes, cell),
            )
            self._streams[source.otid] = stream
        source.user = stream
        heard = stream.heard
        heard.bound += 1
        heard.sources.append(format_source(source.address, source.topic_index))
        options = source.tir.options
        if options is not None:
            heard.hops = options.cost.hop_count if options.cost is not None else -1
            heard.domain_id = options.domain_id or 0

    @staticmethod
    def _add(cells: memoryview, cell: int) -> None:
        cells[cell] += 1

    def on_unbound(self, source: BoundSource[Any], *, ended: bool, now_ns: int) -> None:
        heard = cast(_Stream, source.user).heard
        heard.bound -= 1
        if ended:
            heard.ended += 1
            heard.ended_at = time.monotonic()

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        pass

    def on_runs(self, transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        for run in runs:
            bound = transport.sources.get(run.topic_index)
            if bound is None:
                self._unknown += run.fragments
                continue
            if run.kind != KIND_DATA:
                continue
            stream = cast(_Stream, bound.user)
            for i in range(run.fragments):
                at = run.offset + i * run.stride
                payload = bytes(view[at + HEADER.size : at + run.length])
                stream.take((run.first_sqn + i) & 0xFFFFFFFF, payload)


class App:
    """The test's end of an application."""

    def __init__(self, host: Host, config: Path, board: Board, name: str = "app") -> None:
        """Starts it on `host` with the UM options of `config`."""
        self._pipe, theirs = multiprocessing.Pipe()
        self._config, self._board = config, board

        def application() -> None:
            self._pipe.close()
            host_id.cache_clear()  # it may be that of the process of the test, which is on another host
            _Child(config, theirs, board).run()

        application.__name__ = name
        self._task = host.spawn(application)
        theirs.close()

    def _call(self, name: str, *args: object) -> object:
        with contextlib.suppress(BrokenPipeError):
            self._pipe.send((name, args))
        if not self._pipe.poll(ANSWER_S):
            raise TimeoutError(f"{self._task.name} does not answer {name}; {self._task.output_path.read_text()}")
        try:
            answer: object = self._pipe.recv()
            return answer
        except (EOFError, ConnectionResetError):
            self._task.result(5)  # raises what the application raised
            raise

    def receive(self, topic: bytes, *, cell: int) -> None:
        self._call("receive", topic, cell)

    def unreceive(self, topic: bytes) -> None:
        self._call("unreceive", topic)

    def match(self, pattern: bytes, *, cell: int) -> None:
        """A wildcard receiver (PCRE)."""
        self._call("match", pattern, cell)

    def unmatch(self, pattern: bytes) -> None:
        self._call("unmatch", pattern)

    def open(self, name: str, topic: bytes, *settings: tuple[str, str, str]) -> tuple[bytes, str]:
        """A source; returns its OTID and its source string. `settings`: (scope, option, value)."""
        return cast(tuple[bytes, str], self._call("open", name, topic, settings))

    def send(
        self, name: str, count: int, *, seed: int = 1, sizes: tuple[int, int] = (1, 7000), window: int = 128,
        cells: tuple[int, ...] = (), per_second: float = 0,
    ) -> None:  # fmt: skip
        """Begin to send; without `cells` the receivers are neither waited for nor followed."""
        self._call("send", name, count, seed, sizes, window, cells, per_second)

    def stop(self, name: str) -> int:
        """Send no more of what was begun; returns how many messages a source has sent in all."""
        return cast(int, self._call("stop", name))

    def close_source(self, name: str, *, final: bool) -> None:
        """`final`: with final advertisements."""
        self._call("close", name, final)

    def report(self) -> Report:
        return cast(Report, self._call("report"))

    def arrivals(self, otid: bytes) -> list[tuple[int, int]]:
        """(topic sqn, bytes) of the messages of a source, repeated ones too, in order of arrival."""
        return cast(list[tuple[int, int]], self._call("arrivals", otid))

    def end(self) -> None:
        """Close the context and wait for the end of the process."""
        self._call("end")
        self._task.result(ANSWER_S)
        self._pipe.close()

    def kill(self) -> None:
        self._task.kill()
        self._pipe.close()

    def wait_heard(self, topic: bytes, sources: int = 1, seconds: float = BOUND_S) -> list[Heard]:
        """The sources of a topic, when that many are bound; more are an error."""

        def found() -> list[Heard] | None:
            bound = [heard for heard in self.report().of_topic(topic) if heard.bound]
            return bound if len(bound) >= sources else None

        heard = wait_until(found, f"{sources} sources of {topic!r}", seconds, every_s=0.05)
        assert len(heard) == sources, heard
        return heard

    def wait_sent(self, name: str, seconds: float = SENT_S) -> Sent:
        """What a source has sent, when it is all."""

        def done() -> Sent | None:
            sent = self.report().sent[name]
            return sent if sent.is_done else None

        return wait_until(done, f"{name} has sent everything", seconds, every_s=0.05)


def wait_delivered(board: Board, cells: Mapping[int, int], seconds: float = SENT_S) -> None:
    """Until each cell has its count of messages in order."""

    def late() -> dict[int, tuple[int, int]]:
        return {c: (board.messages[c], wanted) for c, wanted in cells.items() if board.messages[c] < wanted}

    try:
        wait_until(lambda: not late(), "", seconds, every_s=0.05)
    except TimeoutError:
        raise AssertionError(f"not delivered within {seconds} s: (messages, wanted) by cell {late()}") from None


def assert_same(heard: Heard, sent: Sent) -> None:
    """All messages of a source were heard, once and in order."""
    assert (heard.topic, heard.otid) == (sent.topic, sent.otid)
    assert (heard.messages, heard.digest) == (sent.messages, sent.digest)
    assert (heard.duplicates, heard.held, heard.missing) == (0, 0, 0)
