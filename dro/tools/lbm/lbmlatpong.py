"""`lbmlatpong`: send back what `lbmlatping` sends, as fast as it can.

Receives `TOPIC.ping` and sends `TOPIC.pong`. Exit status: 0 after `-r`; 2 wrong usage; 3 the system refused something;
130, 143 ended by SIGINT, SIGTERM. The last line of output is `lbmlatpong: returned N messages`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final, TextIO

from dro.standard_streams import open_standard_streams
from dro.tools.lbm import lines
from dro.tools.lbm.arguments import CommonOptions, Setting, new_parser, positive, rates
from dro.tools.lbm.ending import EXIT_OK, EndRequest, signal_status
from dro.tools.lbm.running import load_config, run_tool
from dro.um.blocking_api import BlockingContext, BlockingSource
from dro.um.message.events import Data, Event, WouldBlock

PROG: Final = "lbmlatpong"
TOPIC: Final = "lbmlat"
PING: Final = "{}.ping"
PONG: Final = "{}.pong"


class LatencyOptions(CommonOptions):
    topic: str
    rate: tuple[Setting, ...]


class _PongOptions(LatencyOptions):
    messages: int | None


def latency_arguments(prog: str, description: str) -> argparse.ArgumentParser:
    """Options of both ends."""
    parser = new_parser(prog, description)
    add = parser.add_argument
    add("topic", nargs="?", default=TOPIC, help=f"topic before .ping and .pong (default {TOPIC})")
    add("-R", "--rate", type=rates, default=(), metavar="[UM]DATA[/RETR]",
        help="use LBT-RM, or LBT-RU with U, with these limits in bits per second, such as M10m/5m")  # fmt: skip
    return parser


def arguments() -> argparse.ArgumentParser:
    """The options, for the program and for shell completion."""
    parser = latency_arguments(PROG, "Send back the messages of lbmlatping.")
    parser.add_argument("-r", "--msgs", dest="messages", type=positive, metavar="NUM", help="end after NUM messages")
    return parser


class _Returning:
    """One run. Messages are returned on the thread of the context."""

    def __init__(self, options: _PongOptions, stop: EndRequest, out: TextIO) -> None:
        self.returned = 0
        self._options = options
        self._stop = stop
        self._out = out
        self._source: BlockingSource | None = None

    def run(self) -> int:
        options, topic = self._options, self._options.topic
        config = load_config(options, options.rate)
        self._stop.hold()
        with BlockingContext(config, PROG) as context:
            self._source = context.source(PONG.format(topic))
            receiver = context.receiver(PING.format(topic), on_event=self._on_event)
            self._out.write(f"{PROG}: receiving [{lines.name(receiver.topic)}]\n")
            self._out.flush()
            while not self._stop.wait_until(float("inf")):
                pass
            receiver.close()
        self._out.write(f"{PROG}: returned {self.returned} messages\n")
        is_complete = self.returned == options.messages
        return EXIT_OK if is_complete or not self._stop.signal else signal_status(self._stop.signal)

    def _on_event(self, event: Event) -> None:
        if not isinstance(event, Data) or self._source is None or self.returned == self._options.messages:
            return
        try:
            self._source.send(event.data, block=False)
        except WouldBlock:
            return  # the other end takes it for lost
        self.returned += 1
        if self.returned == self._options.messages:
            self._stop.request()


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status."""
    open_standard_streams()
    options = arguments().parse_args(argv, _PongOptions())
    return run_tool(PROG, options, lambda stop: _Returning(options, stop, sys.stdout).run())


if __name__ == "__main__":
    sys.exit(main())
