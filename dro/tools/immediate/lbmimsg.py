"""`lbmimsg`: send immediate messages, to one context by unicast or to all by multicast.

Exit status: 0 all was sent; 2 wrong usage; 3 the system refused something, or nobody is there; 130, 143 ended early by
SIGINT, SIGTERM. The last line of output is `lbmimsg: sent N messages, B bytes, S s`.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Final, TextIO

from dro.standard_streams import open_standard_streams
from dro.tools.immediate.requesting import add_sending, add_target, check_target, payload
from dro.tools.lbm.arguments import CommonOptions, Setting, add_not_yet, milliseconds, new_parser, positive
from dro.tools.lbm.ending import EXIT_OK, EndRequest, signal_status
from dro.tools.lbm.output import HeldOutput
from dro.tools.lbm.running import load_config, run_tool
from dro.um.blocking_api import BlockingContext
from dro.um.message.events import WouldBlock

PROG: Final = "lbmimsg"
_RETRY_S: Final = 0.01


class MessageOptions(CommonOptions):
    topic: str | None
    target: str | None
    topicless: bool
    delay: float
    length: int
    linger: float
    messages: int
    topics: int
    pause: float
    rate: tuple[Setting, ...]


def arguments() -> argparse.ArgumentParser:
    """The options, for the program and for shell completion."""
    parser = new_parser(PROG, "Send immediate messages, to one context by unicast or to all by multicast.")
    add_target(parser)
    add = parser.add_argument
    add("-o", "--topicless", action="store_true", help="send without a topic")
    add("-M", "--messages", type=positive, default=10_000_000, metavar="NUM", help="how many (default 10000000)")
    add("-n", "--topics", type=positive, default=0, metavar="NUM", help="append 1 to NUM to the topic, in turn")
    add("-P", "--pause", type=milliseconds, default=0.0, metavar="MSEC", help="send one message every MSEC")
    add_sending(parser, ("-R", "--rate"))
    add_not_yet(parser, ())
    return parser


def parse(argv: Sequence[str] | None) -> MessageOptions:
    """Options of the command line; ends the program for what they cannot be."""
    parser = arguments()
    options = parser.parse_args(argv, MessageOptions())
    if options.topicless == (options.topic is not None):
        parser.error("give a topic, or -o for none")
    if options.topicless and options.topics:
        parser.error("-n needs a topic")
    check_target(parser, options.target)
    return options


class ImmediateSending:
    """One run."""

    def __init__(self, options: MessageOptions, stop: EndRequest, out: TextIO) -> None:
        self._options, self._stop = options, stop
        self._out = HeldOutput(out)
        self._sent = self._sent_bytes = 0

    def run(self) -> int:
        options = self._options
        config = load_config(options, options.rate)
        self._stop.hold()
        with BlockingContext(config, PROG) as context:
            self._out.begin(f"{PROG}: sending to {options.target or 'all'}\n")
            began_s = time.monotonic()
            try:
                if not self._stop.wait(options.delay):
                    began_s = time.monotonic()
                    self._send_all(context)
            finally:
                elapsed_s = time.monotonic() - began_s
                last = f"{PROG}: sent {self._sent} messages, {self._sent_bytes} bytes, {elapsed_s:.3f} s\n"
            self._stop.wait(options.linger)
        self._out.write(last)
        self._out.flush()
        if self._stop.signal and self._sent < options.messages:
            return signal_status(self._stop.signal)
        return EXIT_OK

    def _send_all(self, context: BlockingContext) -> None:
        options = self._options
        due_s = time.monotonic()
        while self._sent < options.messages and not self._stop.signal:
            data = payload(self._sent, options.length)
            topic = options.topic
            if topic is not None and options.topics:
                topic += str(self._sent % options.topics + 1)
            try:
                if options.target is not None:
                    context.uim(options.target, data, topic)
                else:
                    context.mim(data, topic)
            except WouldBlock:
                self._stop.wait(_RETRY_S)
                continue
            self._sent += 1
            self._sent_bytes += len(data)
            due_s += options.pause
            if options.pause:
                self._stop.wait_until(due_s)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status."""
    open_standard_streams()
    options = parse(argv)
    return run_tool(PROG, options, lambda stop: ImmediateSending(options, stop, sys.stdout).run())


if __name__ == "__main__":
    sys.exit(main())
