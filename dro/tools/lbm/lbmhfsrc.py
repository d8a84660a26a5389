"""`lbmhfsrc`: send messages under numbers of hot failover. Exit statuses and output: as `lbmsrc`.

Several of them send the same messages to one topic, from other hosts or over other networks: payload and number of a
message depend on its place alone.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from dro.standard_streams import open_standard_streams
from dro.tools.lbm import lbmsrc
from dro.tools.lbm.arguments import add_not_yet, count
from dro.tools.lbm.lbmsrc import SEND_TIMEOUT_S, SendingRun
from dro.tools.lbm.running import run_tool
from dro.um.blocking_api import BlockingContext, BlockingHFSource

PROG: Final = "lbmhfsrc"


class FailoverSourceOptions(lbmsrc.Options):
    first: int
    numbers: list[int] | None
    bits: int


def numbers(path: str) -> list[int]:
    """Read a file with a number on each line. Raises: ArgumentTypeError."""
    try:
        with open(path, encoding="ascii") as file:
            lines = [line.strip() for line in file]
    except (OSError, ValueError) as e:
        raise argparse.ArgumentTypeError(f"{path}: {e}; a file with a number on each line is needed") from e
    if wrong := [at for at, line in enumerate(lines, 1) if line and not line.isdecimal()]:
        raise argparse.ArgumentTypeError(f"{path}:{wrong[0]}: {lines[wrong[0] - 1][:40]!r} is no number")
    found = [int(line) for line in lines if line]
    if not found:
        raise argparse.ArgumentTypeError(f"{path} has no number")
    return found


def arguments() -> argparse.ArgumentParser:
    """The options, for the program and for shell completion."""
    parser = lbmsrc.sending_arguments(PROG, "Send messages to a topic under numbers of hot failover.")
    add = parser.add_argument
    add("-i", "--initial", dest="first", type=count, default=0, metavar="NUM", help="first number (default 0)")
    add("-t", "--tape", dest="numbers", type=numbers, metavar="FILE",
        help="numbers from a file, one on each line; as many messages are sent")  # fmt: skip
    add("-x", "--bits", type=int, choices=(32, 64), default=32, help="bits of a number (default 32)")
    add_not_yet(parser, ())
    return parser


def parse(argv: Sequence[str] | None) -> FailoverSourceOptions:
    """Options of the command line; ends the program for what they cannot be."""
    parser = arguments()
    options = parser.parse_args(argv, FailoverSourceOptions())
    lbmsrc.check(parser, options)
    if options.numbers is not None:
        options.messages = len(options.numbers)
    for number in options.numbers or (options.first,):
        if not 0 <= number < 1 << options.bits:
            parser.error(f"number {number} does not fit {options.bits} bits")
    return options


class FailoverSending(SendingRun[BlockingHFSource]):
    """A run of `lbmhfsrc`."""

    prog = PROG
    options: FailoverSourceOptions

    def open(self, context: BlockingContext) -> BlockingHFSource:
        return context.hf_source(self.options.topic, on_event=self.on_event)

    def number(self, index: int) -> int:
        options = self.options
        return (options.first + index) % (1 << options.bits) if options.numbers is None else options.numbers[index]

    def send(self, source: BlockingHFSource, payload: bytes, index: int) -> None:
        options = self.options
        source.send(
            payload, self.number(index), bits=options.bits, flush=False, block=not options.non_blocking,
            timeout=SEND_TIMEOUT_S, channel=options.channel,
        )  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status."""
    open_standard_streams()
    options = parse(argv)
    return run_tool(PROG, options, lambda stop: FailoverSending(options, stop, sys.stdout).run())


if __name__ == "__main__":
    sys.exit(main())
