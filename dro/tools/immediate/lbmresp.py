"""`lbmresp`: answer the requests on a topic, and those without a topic to this context.

Exit status: 0 it ended by SIGINT, SIGTERM or with the sources (`-E`); 2 wrong usage; 3 the system refused something.
The last line of output is `lbmresp: answered N requests, sent M responses`. With `-f` nothing is answered here: the
bytes of each response object are sent on another topic, where another lbmresp answers in its place.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final, TextIO

from dro.errors import DecodeError, DroError
from dro.standard_streams import open_standard_streams
from dro.tools.immediate.requesting import payload
from dro.tools.lbm import lines
from dro.tools.lbm.arguments import CommonOptions, add_not_yet, at_most, count, new_parser
from dro.tools.lbm.ending import EXIT_OK, EndRequest
from dro.tools.lbm.output import HeldOutput
from dro.tools.lbm.running import load_config, run_tool
from dro.um.blocking_api import BlockingContext, BlockingSource
from dro.um.message.events import EOS, Data, Event, RequestMsg, Responding
from dro.um.message.requests import Response
from dro.um.message.unicast import UNICAST_MAX_BYTES

PROG: Final = "lbmresp"


class RespondingOptions(CommonOptions):
    topic: str
    exit_at_eos: bool
    length: int
    responses: int
    silent: bool
    forward: str | None


def arguments() -> argparse.ArgumentParser:
    """The options, for the program and for shell completion."""
    parser = new_parser(PROG, "Answer the requests on a topic, and those without a topic to this context.")
    add = parser.add_argument
    add("topic", help="topic to receive")
    add("-E", "--exit", dest="exit_at_eos", action="store_true", help="end when all sources have ended")
    add("-f", "--forward", metavar="TOPIC", help="let the lbmresp that receives this topic answer")
    add(
        "-l",
        "--length",
        type=at_most(UNICAST_MAX_BYTES),
        default=25,
        metavar="NUM",
        help="bytes of a response (default 25)",
    )
    add("-r", "--responses", type=count, default=1, metavar="NUM", help="responses to each request (default 1)")
    add("-s", "--silent", action="store_true", help="print no line for each request")
    add_not_yet(parser, ())
    return parser


class RequestAnswering:
    """One run."""

    def __init__(self, options: RespondingOptions, stop: EndRequest, out: TextIO) -> None:
        self._options, self._stop = options, stop
        self._out = HeldOutput(out)
        self._answered = self._responses = 0
        self._live: set[str] = set()
        self._context: BlockingContext | None = None
        self._forward: BlockingSource | None = None
        self._failure: DroError | OSError | None = None

    def run(self) -> int:
        options = self._options
        config = load_config(options, ())
        self._stop.hold()
        with BlockingContext(config, PROG) as context:
            self._context = context
            if options.forward is not None:
                self._forward = context.source(options.forward)
            context.on_immediate = self._on_event
            context.receiver(options.topic, on_event=self._on_event, on_source=self._on_source)
            address = context.request_address or "none"
            self._out.begin(f"{PROG}: receiving [{lines.name(options.topic)}], request address {address}\n")
            self._stop.wait_until(float("inf"))
        self._out.write(f"{PROG}: answered {self._answered} requests, sent {self._responses} responses\n")
        self._out.flush()
        if self._failure is not None:
            raise self._failure
        return EXIT_OK

    def _on_source(self, topic: str, source: str, added: bool) -> None:
        if added:
            self._live.add(source)
        else:
            self._live.discard(source)

    def _on_event(self, event: Event) -> None:
        try:
            self._take(event)
        except (DroError, OSError) as e:
            self._failure = self._failure or e
            self._stop.request()

    def _take(self, event: Event) -> None:
        match event:
            case RequestMsg():
                self._tell("Request ", event)
                self._answer(event.response)
            case Data():
                self._on_forwarded(event)
            case EOS(source=source):
                self._live.discard(source)
                if self._options.exit_at_eos and not self._live:
                    self._stop.request()
            case _:
                pass

    def _on_forwarded(self, event: Data) -> None:
        """Answer a request that another lbmresp has passed on; other messages are ignored."""
        assert self._context is not None
        try:
            response = Response.deserialize(self._context, event.data)
        except DecodeError:
            return
        self._tell("Forwarded request ", event)
        self._answer(response)

    def _answer(self, response: Responding) -> None:
        self._answered += 1
        if self._forward is not None:
            self._forward.send(response.serialize(), block=False)
            return
        for number in range(self._options.responses):
            response.send(payload(number, self._options.length))
            self._responses += 1

    def _tell(self, what: str, event: Data) -> None:
        if not self._options.silent:
            self._out.write(what + lines.data_line(event.topic, event.source, event.sqn, len(event.data), event.flags))
            if self._options.verbose:
                self._out.write(lines.ascii_line(event.data))
            self._out.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status."""
    open_standard_streams()
    options = arguments().parse_args(argv, RespondingOptions())
    return run_tool(PROG, options, lambda stop: RequestAnswering(options, stop, sys.stdout).run())


if __name__ == "__main__":
    sys.exit(main())
