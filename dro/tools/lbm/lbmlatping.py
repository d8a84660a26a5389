"""`lbmlatping`: measure round trips to `lbmlatpong`, over any transport and any network.

Sends `TOPIC.ping`, receives `TOPIC.pong`, one message at a time. Exit status: 0 all came back; 1 some were lost; 2
wrong usage; 3 the system refused something; 130, 143 ended early by SIGINT, SIGTERM. The last line of output is
`lbmlatping: N round trips, L lost, min A, median B, 90% C, 99% D, 99.9% E, max F us`.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from struct import Struct
from typing import Final, TextIO

from dro.standard_streams import open_standard_streams
from dro.tools.lbm import lines
from dro.tools.lbm.arguments import count, positive, seconds
from dro.tools.lbm.ending import EXIT_BAD, EXIT_OK, EndRequest, signal_status
from dro.tools.lbm.lbmlatpong import PING, PONG, LatencyOptions, latency_arguments
from dro.tools.lbm.running import load_config, run_tool
from dro.um.blocking_api import BlockingContext, BlockingSource
from dro.um.message.events import Data, Event

PROG: Final = "lbmlatping"
_HEAD: Final = Struct("!8sQ")  # which run, number of the message
_SHARES: Final = ((0.0, "min"), (0.5, "median"), (0.9, "90%"), (0.99, "99%"), (0.999, "99.9%"), (1.0, "max"))
_KNOCK_S: Final = 0.1  # between messages that look for the other end


class _PingOptions(LatencyOptions):
    length: int
    pause_us: float
    warm_up: int
    messages: int
    timeout: float


def length(text: str) -> int:
    """A payload length with room for the number. Raises: ArgumentTypeError."""
    value = count(text)
    if not _HEAD.size <= value <= 1 << 28:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length of {_HEAD.size} bytes or more")
    return value


def microseconds(text: str) -> float:
    """A duration; the value is in seconds. Raises: ArgumentTypeError."""
    return seconds(text) / 1e6


def arguments() -> argparse.ArgumentParser:
    """The options, for the program and for shell completion."""
    parser = latency_arguments(PROG, "Measure round trips to lbmlatpong.")
    add = parser.add_argument
    add("-l", "--length", type=length, default=25, metavar="NUM", help="payload bytes (default 25)")
    add("-P", "--pause", dest="pause_us", type=microseconds, default=0.0, metavar="USEC",
        help="wait so long between messages")  # fmt: skip
    add("-i", "--ignore", dest="warm_up", type=count, default=1000, metavar="NUM",
        help="round trips that come first and are not measured (default 1000)")  # fmt: skip
    add("-M", "--messages", type=positive, default=10_000, metavar="NUM", help="how many to measure (default 10000)")
    add("--timeout", type=seconds, default=1.0, metavar="SEC", help="what takes longer is lost (default 1)")
    return parser


def summary(trips_ns: list[int], lost: int) -> str:
    """Percentiles of round trips, by the nearest rank."""
    ordered = sorted(trips_ns)
    last = len(ordered) - 1
    figures = [f"{name} {ordered[round(share * last)] / 1000:.1f}" for share, name in _SHARES] if ordered else []
    return ", ".join([f"{PROG}: {len(ordered)} round trips, {lost} lost", *figures]) + (" us" if figures else "")


class _Pinging:
    """One run. Times of arrival are taken on the thread of the context."""

    def __init__(self, options: _PingOptions, stop: EndRequest, out: TextIO) -> None:
        self._options = options
        self._stop = stop
        self._out = out
        self._run = os.urandom(8)
        self._awaited = -1
        self._arrived_ns = 0
        self._trips_ns: list[int] = []
        self._lost = 0

    def run(self) -> int:
        options, topic = self._options, self._options.topic
        config = load_config(options, options.rate)
        self._stop.hold()
        with BlockingContext(config, PROG) as context:
            receiver = context.receiver(PONG.format(topic), on_event=self._on_event)
            source = context.source(PING.format(topic))
            self._out.write(f"[{lines.name(source.topic)}][{lines.name(source.source_string)}], source created\n")
            self._out.flush()
            self._measure(source)
            source.close()
            receiver.close()
        self._out.write(summary(self._trips_ns, self._lost) + "\n")
        if len(self._trips_ns) + self._lost < options.messages:
            return signal_status(self._stop.signal)
        return EXIT_BAD if self._lost else EXIT_OK

    def _measure(self, source: BlockingSource) -> None:
        options, stop = self._options, self._stop
        knocks = 0
        while self._trip(source, knocks, _KNOCK_S) is None:  # nobody is there yet
            knocks += 1
            if stop.signal:
                return
        first = knocks + 1 + options.warm_up
        for number in range(knocks + 1, first + options.messages):
            took_ns = self._trip(source, number, options.timeout)
            if stop.signal:
                return
            if number >= first:
                if took_ns is None:
                    self._lost += 1
                else:
                    self._trips_ns.append(took_ns)
            if options.pause_us and stop.wait(options.pause_us):
                return

    def _trip(self, source: BlockingSource, number: int, timeout_s: float) -> int | None:
        """Send a message and wait for it to come back: ns, or None."""
        payload = _HEAD.pack(self._run, number).ljust(self._options.length, b"\0")
        self._arrived_ns = 0
        self._awaited = number
        sent_ns = time.perf_counter_ns()
        try:
            source.send(payload, timeout=timeout_s)
        except TimeoutError:
            return None
        end_s = time.monotonic() + timeout_s
        while not self._arrived_ns and (left := end_s - time.monotonic()) > 0 and not self._stop.signal:
            self._stop.wait_wake(left)
        return self._arrived_ns - sent_ns if self._arrived_ns else None

    def _on_event(self, event: Event) -> None:
        if not isinstance(event, Data) or len(event.data) < _HEAD.size:
            return
        run, number = _HEAD.unpack_from(event.data)
        if run == self._run and number == self._awaited:
            self._arrived_ns = time.perf_counter_ns()
            self._stop.wake()


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status."""
    open_standard_streams()
    options = arguments().parse_args(argv, _PingOptions())
    return run_tool(PROG, options, lambda stop: _Pinging(options, stop, sys.stdout).run())


if __name__ == "__main__":
    sys.exit(main())
