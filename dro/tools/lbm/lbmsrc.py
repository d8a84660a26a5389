"""`lbmsrc`: send messages to one topic.

Exit status: 0 all was sent; 2 wrong usage; 3 the system refused something; 130, 143 ended early by SIGINT, SIGTERM.
The last line of output is `lbmsrc: sent N messages, M bytes, S s`. Options and output: `docs/tools.md`.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TextIO, TypeVar

from dro.command_line import Parser
from dro.standard_streams import open_standard_streams
from dro.tools.lbm import lines, verify
from dro.tools.lbm.arguments import (
    CommonOptions,
    NotYet,
    Setting,
    add_not_yet,
    at_most,
    count,
    milliseconds,
    new_parser,
    positive,
    rates,
    retention,
    seconds,
    source_datagram_max,
)
from dro.tools.lbm.ending import EXIT_OK, EndRequest, signal_status
from dro.tools.lbm.output import HeldOutput
from dro.tools.lbm.payloads import PayloadRecord
from dro.tools.lbm.running import Periods, load_config, run_tool
from dro.um.blocking_api import BlockingContext, BlockingSource
from dro.um.message.events import Connect, Disconnect, SourceEvent, WouldBlock
from dro.um.message.properties import CHANNEL_LAST

PROG: Final = "lbmsrc"
_LENGTH_MAX: Final = 1 << 28
_STEP: Final = 7919  # prime: lengths of a range are all used before the first comes again
SEND_TIMEOUT_S: Final = 0.2  # so long may a signal wait for a blocked session


class Lengths(NamedTuple):
    """Payload lengths of a run: one, or spread over a range in a fixed way."""

    low: int
    high: int

    def of(self, number: int) -> int:
        span = self.high - self.low + 1
        step = _STEP if span % _STEP else 1
        return self.low + number * step % span


def lengths(text: str) -> Lengths:
    """`NUM` or `MIN-MAX`. Raises: ArgumentTypeError."""
    low_text, dash, high_text = text.partition("-")
    try:
        low = count(low_text)
        high = count(high_text) if dash else low
    except argparse.ArgumentTypeError:
        low, high = 1, 0
    if not low <= high <= _LENGTH_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length such as 25 or 1-2000 (at most {_LENGTH_MAX} bytes)")
    return Lengths(low, high)


class Options(CommonOptions):
    topic: str
    delay: float
    lengths: Lengths
    linger: float
    messages: int
    non_blocking: bool
    pause: float
    rate: tuple[Setting, ...]
    retention: tuple[Setting, ...]
    datagram_max: tuple[Setting, ...]
    stats: float
    verifiable: bool
    wait_for_line: bool
    payload_sha256: bool
    channel: int | None


def arguments() -> argparse.ArgumentParser:
    """The options, for the program and for shell completion."""
    parser = sending_arguments(PROG, "Send messages to a topic.")
    add_not_yet(
        parser,
        (
            NotYet(("-f", "--failover"), "hot failover, see lbmhfsrc", takes_value=False),
            NotYet(("-i",), "first number of hot failover, see lbmhfsrc"),
            NotYet(("-t",), "file of numbers of hot failover, see lbmhfsrc"),
            NotYet(("-x",), "bits of numbers of hot failover, see lbmhfsrc"),
        ),
    )
    return parser


def sending_arguments(prog: str, description: str) -> Parser:
    """Options of all programs that send to one topic."""
    parser = new_parser(prog, description)
    add = parser.add_argument
    add("topic", help="topic to send to")
    add("-d", "--delay", type=seconds, default=1.0, metavar="SEC", help="wait before the first message (default 1)")
    add("-j", "--late-join", dest="retention", type=retention, default=(), metavar="BYTES",
        help="keep so many bytes of messages for receivers that come late or miss some")  # fmt: skip
    add("-l", "--length", dest="lengths", type=lengths, default=Lengths(25, 25), metavar="NUM",
        help="payload bytes, or MIN-MAX for lengths that change with every message (default 25)")  # fmt: skip
    add("-L", "--linger", type=seconds, default=5.0, metavar="SEC",
        help="go on repairing after the last message (default 5)")  # fmt: skip
    add("-M", "--messages", type=positive, default=10_000_000, metavar="NUM", help="how many (default 10000000)")
    add("-n", "--non-block", dest="non_blocking", action="store_true", help="non-blocking sends, with wake-ups")
    add("-P", "--pause", type=milliseconds, default=0.0, metavar="MSEC", help="send one message every MSEC")
    add("-R", "--rate", type=rates, default=(), metavar="[UM]DATA[/RETR]",
        help="use LBT-RM, or LBT-RU with U, with these limits in bits per second, such as M10m/5m")  # fmt: skip
    add("-G", "--source-datagram-max", dest="datagram_max", type=source_datagram_max, default=(), metavar="[UM]NUM",
        help="largest datagram, of LBT-RU with U, of LBT-RM with M, else of TCP")  # fmt: skip
    add("-s", "--statistics", dest="stats", type=seconds, default=0.0, metavar="SEC",
        help="print statistics of the session every SEC")  # fmt: skip
    add("-V", "--verifiable", action="store_true", help="payloads that a receiver can verify")
    add("--wait-for-line", action="store_true", help="begin when a line, or the end, of standard input was read")
    add("--payload-sha256", action="store_true", help="print a digest of all payloads before the last line")
    add("-N", "--channel", type=at_most(CHANNEL_LAST), metavar="NUM", help="send on a channel")
    return parser


def parse(argv: Sequence[str] | None) -> Options:
    """Options of the command line; ends the program for what they cannot be."""
    parser = arguments()
    options = parser.parse_args(argv, Options())
    check(parser, options)
    return options


def check(parser: argparse.ArgumentParser, options: Options) -> None:
    """End the program for options that contradict each other."""
    if options.verifiable and options.lengths.low < verify.MIN_BYTES:
        parser.error(f"-V needs room for a checksum; give -l {verify.MIN_BYTES} or more")


def payload_maker(options: Options) -> Callable[[int], bytes]:
    """Return what makes the payload of message number n: verifiable, or readable and padded with blanks."""
    of = options.lengths.of
    if options.verifiable:
        return lambda number: verify.make(number, of(number))
    return lambda number: (b"message %d" % number).ljust(of(number))[: of(number)]


class AnySource(Protocol):
    """A source, with or without numbers of hot failover."""

    @property
    def topic(self) -> str: ...

    @property
    def source_string(self) -> str: ...

    def flush(self) -> None: ...

    def close(self, *, wait: bool = True) -> None: ...


A = TypeVar("A", bound=AnySource)


class SendingRun(Generic[A]):
    """One run: the messages of one source and the lines about them."""

    prog = PROG

    def open(self, context: BlockingContext) -> A:
        """Open the source."""
        raise NotImplementedError

    def number(self, index: int) -> int:
        """Number the messages: the payload shows it."""
        return index

    def send(self, source: A, payload: bytes, index: int) -> None:
        """Send one message. Raises: WouldBlock, TimeoutError."""
        raise NotImplementedError

    def on_event(self, event: SourceEvent) -> None:
        """Print it on the thread of the context. Lost output is met by the main thread too, which ends the run."""
        with contextlib.suppress(OSError):
            match event:
                case Connect(client=client):
                    self._say(f"Receiver connect [{lines.name(client)}]\n")
                case Disconnect(client=client):
                    self._say(f"Receiver disconnect [{lines.name(client)}]\n")
                case _:
                    self._stop.wake()

    def __init__(self, options: Options, stop: EndRequest, out: TextIO) -> None:
        self.sent = 0
        self.sent_bytes = 0
        self.options = options
        self._stop = stop
        self._out = HeldOutput(out)
        self._record = PayloadRecord() if options.payload_sha256 else None
        self._began_s = self._ended_s = time.monotonic()

    def run(self) -> int:
        options = self.options
        config = load_config(options, (*options.rate, *options.datagram_max, *options.retention))
        self._stop.hold()
        with BlockingContext(config, self.prog) as context:
            source = self.open(context)
            self._out.begin(f"[{lines.name(source.topic)}][{lines.name(source.source_string)}], source created\n")
            if self._may_begin():
                self._send_all(context, source)
                source.flush()
                context.drain(lambda: bool(self._stop.signal))
                self._linger(context)
            source.close(wait=not self._stop.signal)
        if self._record is not None:
            self._out.write(f"{self.prog}: payload sha256 {self._record.sha256}\n")
        elapsed_s = self._ended_s - self._began_s
        self._say(f"{self.prog}: sent {self.sent} messages, {self.sent_bytes} bytes, {elapsed_s:.3f} s\n")
        is_complete = self.sent == options.messages
        return EXIT_OK if is_complete or not self._stop.signal else signal_status(self._stop.signal)

    def _may_begin(self) -> bool:
        if self.options.wait_for_line:
            fd = sys.stdin.fileno()
            while self._stop.wait_readable(fd):
                piece = os.read(fd, 4096)
                if not piece or b"\n" in piece:
                    return True
            return False
        return not self._stop.wait(self.options.delay)

    def _send_all(self, context: BlockingContext, source: A) -> None:
        options, stop = self.options, self._stop
        make, record, pause = payload_maker(options), self._record, options.pause
        now = time.monotonic()
        self._began_s = self._ended_s = due = now
        rate = Periods(now, 1.0 if options.verbose else 0.0)
        stats = Periods(now, options.stats)
        before = lines.LineTotals(now)
        for number in range(options.messages):
            payload = make(self.number(number))
            if not self._send(source, payload, number):
                return
            if record is not None:
                record.add(payload)
            self.sent += 1
            self.sent_bytes += len(payload)
            now = self._ended_s = time.monotonic()
            if rate.is_over(now):
                after = lines.LineTotals(now, self.sent, self.sent_bytes)
                part, before = after.since(before), after
                self._say(lines.rate_text(part.at_s, part.messages, part.data_bytes) + "\n")
            if stats.is_over(now):
                self._print_statistics(context)
            if pause and number + 1 < options.messages:
                due = max(due + pause, now)
                if stop.wait_until(due):
                    return

    def _send(self, source: A, payload: bytes, index: int) -> bool:
        """Send one message; False when a signal came first."""
        while not self._stop.signal:
            try:
                self.send(source, payload, index)
            except WouldBlock:
                self._stop.wait_wake(SEND_TIMEOUT_S)
            except TimeoutError:
                continue
            else:
                return True
        return False

    def _linger(self, context: BlockingContext) -> None:
        """Stay to repair what receivers miss. A signal ends this too."""
        period = self.options.stats
        end_s = time.monotonic() + self.options.linger
        while period and time.monotonic() + period < end_s:
            if self._stop.wait(period):
                return
            self._print_statistics(context)
        self._stop.wait_until(end_s)

    def _print_statistics(self, context: BlockingContext) -> None:
        for session in context.stats().sources:
            self._out.write(lines.counters_line("source", session.source, dataclasses.asdict(session.counters)))
        self._out.flush()

    def _say(self, line: str) -> None:
        self._out.write(line)
        self._out.flush()


class Sending(SendingRun[BlockingSource]):
    """A run of `lbmsrc`."""

    def open(self, context: BlockingContext) -> BlockingSource:
        return context.source(self.options.topic, on_event=self.on_event)

    def send(self, source: BlockingSource, payload: bytes, index: int) -> None:
        """Whether it waits for others is the configuration's business (implicit batching)."""
        options = self.options
        block = not options.non_blocking
        source.send(payload, flush=False, block=block, timeout=SEND_TIMEOUT_S, channel=options.channel)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status."""
    open_standard_streams()
    options = parse(argv)
    return run_tool(PROG, options, lambda stop: Sending(options, stop, sys.stdout).run())


if __name__ == "__main__":
    sys.exit(main())
