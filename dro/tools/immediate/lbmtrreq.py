"""`lbmtrreq`: ask everybody in a TRD to advertise and to query at once.

Exit status: 0 all was sent; 2 wrong usage; 3 the system refused something; 130, 143 ended early by SIGINT, SIGTERM. The
last line of output is `lbmtrreq: sent N requests`. Guess: the defaults.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Final, TextIO

from dro.standard_streams import open_standard_streams
from dro.tools.lbm.arguments import CommonOptions, milliseconds, new_parser, seconds
from dro.tools.lbm.ending import EXIT_OK, EndRequest, signal_status
from dro.tools.lbm.running import load_config, run_tool
from dro.um.blocking_api import BlockingContext
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.extended import RequestFlag, TopicResolutionRequest

PROG: Final = "lbmtrreq"
_FLAGS: Final = (
    ("-a", "--adverts", RequestFlag.ADVERTISEMENT, "advertisements of sources"),
    ("-q", "--queries", RequestFlag.QUERY, "queries of receivers"),
    ("-w", "--wildcard", RequestFlag.WILDCARD_QUERY, "queries of wildcard receivers"),
    ("-A", "--ctx-ads", RequestFlag.CONTEXT_ADVERTISEMENT, "advertisements of contexts"),
    ("-Q", "--ctx-queries", RequestFlag.CONTEXT_QUERY, "queries for contexts"),
    ("-I", "--interest", RequestFlag.DRO_REMOTE_INTEREST, "interest and domain routes of DROs"),
)


LEAST_S: Final = 0.1


class TrOptions(CommonOptions):
    flags: list[int]
    interval: float
    duration: float
    linger: float


def arguments() -> argparse.ArgumentParser:
    """The options, for the program and for shell completion."""
    parser = new_parser(PROG, "Ask everybody in a TRD to advertise and to query at once.")
    add = parser.add_argument
    for short, long, flag, what in _FLAGS:
        add(short, long, dest="flags", action="append_const", const=int(flag), default=[], help=f"ask for {what}")
    add("-i", "--interval", type=milliseconds, default=1.0, metavar="MSEC", help="time between two (default 1000)")
    add("-d", "--duration", type=seconds, default=0.0, metavar="SEC", help="repeat for so long (default 0: send one)")
    add("-L", "--linger", type=seconds, default=1.0, metavar="SEC", help="wait after the last (default 1)")
    return parser


def parse(argv: Sequence[str] | None) -> TrOptions:
    """Options of the command line; ends the program for what they cannot be."""
    parser = arguments()
    options = parser.parse_args(argv, TrOptions())
    if not options.flags:
        parser.error(f"say what to ask for: {', '.join(short for short, *_ in _FLAGS)}")
    if options.interval < LEAST_S:
        parser.error(f"-i: everybody answers each request, so at least {LEAST_S * 1000:.0f} milliseconds")
    return options


def _run(options: TrOptions, stop: EndRequest, out: TextIO) -> int:
    flags = 0
    for flag in options.flags:
        flags |= flag
    sent = 0
    config = load_config(options, ())
    stop.hold()
    with BlockingContext(config, PROG) as context:
        end_s = time.monotonic() + options.duration
        while True:
            with context.lock:
                core = context.core.core
                packet = lbmr.Packet(lbmr.VERSION, core.packet_options, TopicResolutionRequest(flags))
                core.resolution.send([lbmr.encode(packet)])
            sent += 1
            if stop.wait(options.interval if options.duration else 0) or time.monotonic() >= end_s:
                break
        stop.wait(options.linger)
    out.write(f"{PROG}: sent {sent} requests\n")
    out.flush()
    return signal_status(stop.signal) if stop.signal and time.monotonic() < end_s else EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status."""
    open_standard_streams()
    options = parse(argv)
    return run_tool(PROG, options, lambda stop: _run(options, stop, sys.stdout))


if __name__ == "__main__":
    sys.exit(main())
