"""`lbmhfrcv`: receive a topic from all sources of hot failover. Exit statuses and output: `dro.tools.lbm.receiving`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final

from dro.standard_streams import open_standard_streams
from dro.tools.lbm import receiving
from dro.tools.lbm.arguments import milliseconds
from dro.tools.lbm.receiving import AnyReceiver, Callbacks
from dro.um.blocking_api import BlockingContext
from dro.um.message.events import Data, Event

PROG: Final = "lbmhfrcv"


class FailoverReceivingOptions(receiving.ReceivingOptions):
    pause: float
    failover = True


def arguments() -> argparse.ArgumentParser:
    parser = receiving.arguments(PROG, "Receive a topic from all sources of hot failover, each number once.", "topic")
    parser.add_argument("-d", "--delay", dest="pause", type=milliseconds, default=0.0, metavar="MSEC",
                        help="sleep so long with each message")  # fmt: skip
    return parser


def opener(pause: float) -> receiving.Opener:
    def open_receiver(context: BlockingContext, topic: str, callbacks: Callbacks) -> AnyReceiver:
        on_event = callbacks["on_event"]
        if on_event is not None and pause:
            on_event = _slowed(on_event, pause)
        return context.hf_receiver(topic, on_event=on_event, on_source=callbacks["on_source"])

    return open_receiver


def _slowed(on_event: Callable[[Event], object], pause: float) -> Callable[[Event], object]:
    def slowly(event: Event) -> None:
        on_event(event)
        if isinstance(event, Data):
            time.sleep(pause)

    return slowly


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status."""
    open_standard_streams()
    options = arguments().parse_args(argv, FailoverReceivingOptions())
    return receiving.run(PROG, options, opener(options.pause))


if __name__ == "__main__":
    sys.exit(main())
