"""Common part of `lbmreq` and `lbmireq`: everything but the way that their requests go.

Exit status: 0 all was sent; 1 a request without a response; 2 wrong usage; 3 the system refused something, or nobody is
there; 130, 143 ended early by SIGINT, SIGTERM. The last line of output is `PROG: sent N requests, received M responses,
B bytes`.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable
from typing import TextIO

from dro.command_line import Parser
from dro.tools.lbm import lines
from dro.tools.lbm.arguments import (
    CommonOptions,
    Setting,
    add_not_yet,
    at_most,
    new_parser,
    positive,
    rates,
    seconds,
)
from dro.tools.lbm.ending import EXIT_BAD, EXIT_OK, EndRequest, signal_status
from dro.tools.lbm.output import HeldOutput
from dro.tools.lbm.running import load_config, run_tool
from dro.um.blocking_api import BlockingContext, BlockingRequest
from dro.um.message.events import ResponseMsg, UsageError
from dro.um.message.requests import OnResponse
from dro.um.message.unicast import UNICAST_MAX_BYTES, parse_target

_POLL_S = 0.1
TARGET = "TCP:[DOMAIN:]IP:PORT"


class RequestingOptions(CommonOptions):
    topic: str | None
    target: str | None
    delay: float
    length: int
    linger: float
    patience: float
    rate: tuple[Setting, ...]
    requests: int
    queue: bool


def payload(number: int, length: int) -> bytes:
    """Make the data of message number n: readable, and padded with blanks."""
    return (b"message %d" % number).ljust(length)[:length]


def add_sending(parser: Parser, rate_flags: tuple[str, ...]) -> None:
    """Add the options of all that send."""
    add = parser.add_argument
    add("-d", "--delay", type=seconds, default=1.0, metavar="SEC", help="wait before the first message (default 1)")
    add("-l", "--length", type=at_most(UNICAST_MAX_BYTES), default=25, metavar="NUM", help="payload bytes (default 25)")
    add("-L", "--linger", type=seconds, default=1.0, metavar="SEC", help="wait after the last message (default 1)")
    add(*rate_flags, dest="rate", type=rates, default=(), metavar="[UM]DATA[/RETR]",
        help="LBT-RM, or LBT-RU with U, with these limits in bits per second, such as M10m/5m")  # fmt: skip


def add_target(parser: Parser) -> None:
    """Add where immediate messages go."""
    parser.add_argument("topic", nargs="?", help="topic that the messages carry")
    parser.add_argument(
        "-T", "--target", metavar="TARGET",
        help=f"send by unicast to {TARGET}; else by multicast to all",
    )  # fmt: skip


def check_target(parser: argparse.ArgumentParser, target: str | None) -> None:
    """End the program for what is no target; source strings are known to those alone who receive the source."""
    try:
        if target is not None:
            parse_target(target)
    except UsageError as e:
        parser.error(f"-T: {e}")


def arguments(prog: str, description: str) -> Parser:
    """Make the options that both have, all but topic and target."""
    parser = new_parser(prog, description)
    parser.epilog = "Exit status 1: a request had no response."
    add = parser.add_argument
    add("-P", "--pause", dest="patience", type=seconds, default=5.0, metavar="SEC",
        help="wait so long for the responses to each request (default 5)")  # fmt: skip
    add("-R", "--requests", type=positive, default=10_000_000, metavar="NUM", help="how many (default 10000000)")
    add_sending(parser, ("-r", "--rate"))
    add_not_yet(parser, ())
    return parser


Ask = Callable[[bytes, OnResponse | None], BlockingRequest]


class Requesting:
    """One run: requests one after the other, and the lines about their responses."""

    def __init__(self, prog: str, options: RequestingOptions, stop: EndRequest, out: TextIO) -> None:
        self._prog, self._options, self._stop = prog, options, stop
        self._out = HeldOutput(out)
        self._sent = self._received = self._received_bytes = 0
        self._is_unanswered = False
        self._failure: OSError | None = None

    def run(self, open_ask: Callable[[BlockingContext], Ask]) -> int:
        options = self._options
        config = load_config(options, options.rate)
        self._stop.hold()
        with BlockingContext(config, self._prog) as context:
            ask = open_ask(context)
            self._out.begin(f"{self._prog}: responses go to {context.request_address or 'nobody'}\n")
            try:
                if not self._stop.wait(options.delay):
                    self._ask_all(ask)
                    self._stop.wait(options.linger)
            finally:
                last = (
                    f"{self._prog}: sent {self._sent} requests, received {self._received} responses, "
                    f"{self._received_bytes} bytes\n"
                )
                if self._failure is None:
                    self._say(last)
        if self._failure is not None:
            raise self._failure
        if self._stop.signal and self._sent < options.requests:
            return signal_status(self._stop.signal)
        return EXIT_BAD if self._is_unanswered else EXIT_OK

    def _ask_all(self, ask: Ask) -> None:
        for number in range(self._options.requests):
            if self._stop.signal:
                return
            before = self._received
            self._ask(ask, payload(number, self._options.length))
            if self._received == before and not self._stop.signal:
                self._is_unanswered = self._failure is None

    def _ask(self, ask: Ask, data: bytes) -> None:
        """Send one request, and wait for its responses. Raises: ResourceError when it cannot be sent."""
        options = self._options
        end_s = time.monotonic() + options.patience
        with ask(data, None if options.queue else self._on_response) as request:
            self._say(f"Request {self._sent}, {len(data)} bytes\n")
            self._sent += 1
            if not options.queue:
                self._stop.wait_until(end_s)
                with contextlib.suppress(TimeoutError):
                    request.get(0)  # nothing but a failure
            while options.queue and not self._stop.signal and (left_s := end_s - time.monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    self._on_response(request.get(min(left_s, _POLL_S)))

    def _on_response(self, response: ResponseMsg) -> None:
        self._received += 1
        self._received_bytes += len(response.data)
        text = f"Response [{lines.name(response.source)}], {len(response.data)} bytes\n"
        try:
            self._say(text + (lines.ascii_line(response.data) if self._options.verbose else ""))
        except OSError as e:  # nobody reads any more: the main thread ends the program
            self._failure = e
            self._stop.request()

    def _say(self, line: str) -> None:
        self._out.write(line)
        self._out.flush()


def add_queue(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-q", "--eventq", dest="queue", action="store_true",
                        help="take responses on the main thread, from a queue")  # fmt: skip


def run(prog: str, options: RequestingOptions, open_ask: Callable[[BlockingContext], Ask]) -> int:
    """Run a requesting tool to its end. Returns the exit status."""
    return run_tool(prog, options, lambda stop: Requesting(prog, options, stop, sys.stdout).run(open_ask))
