"""`lbmreq`: send requests on a topic, and print the responses. Exit statuses: `dro.tools.immediate.requesting`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from dro.standard_streams import open_standard_streams
from dro.tools.immediate import requesting
from dro.tools.immediate.requesting import Ask, RequestingOptions
from dro.um.blocking_api import BlockingContext

PROG: Final = "lbmreq"


def arguments() -> argparse.ArgumentParser:
    """The options, for the program and for shell completion."""
    parser = requesting.arguments(PROG, "Send requests on a topic, and print the responses.")
    parser.add_argument("topic", help="topic to send to")
    requesting.add_queue(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status."""
    open_standard_streams()
    options = arguments().parse_args(argv, RequestingOptions())
    assert options.topic is not None
    topic = options.topic

    def open_ask(context: BlockingContext) -> Ask:
        source = context.source(topic)
        return lambda data, on_response: source.request(data, on_response=on_response)

    return requesting.run(PROG, options, open_ask)


if __name__ == "__main__":
    sys.exit(main())
