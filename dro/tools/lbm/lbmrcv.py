"""`lbmrcv`: receive the messages of one topic. Exit statuses and the last line: `dro.tools.lbm.receiving`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from dro.standard_streams import open_standard_streams
from dro.tools.lbm import receiving
from dro.tools.lbm.receiving import AnyReceiver, Callbacks
from dro.um.blocking_api import BlockingContext

PROG: Final = "lbmrcv"


def open_receiver(context: BlockingContext, topic: str, callbacks: Callbacks) -> AnyReceiver:
    on_event, on_messages = callbacks["on_event"], callbacks["on_messages"]
    return context.receiver(topic, on_event=on_event, on_messages=on_messages, on_source=callbacks["on_source"])


def open_failover(context: BlockingContext, topic: str, callbacks: Callbacks) -> AnyReceiver:
    return context.hf_receiver(topic, on_event=callbacks["on_event"], on_source=callbacks["on_source"])


def arguments() -> argparse.ArgumentParser:
    parser = receiving.arguments(PROG, "Receive the messages of a topic.", "topic")
    parser.add_argument("-f", "--failover", action="store_true", help="as lbmhfrcv: join the sources of hot failover")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status."""
    open_standard_streams()
    options = arguments().parse_args(argv, receiving.ReceivingOptions())
    return receiving.run(PROG, options, open_failover if options.failover else open_receiver)


if __name__ == "__main__":
    sys.exit(main())
