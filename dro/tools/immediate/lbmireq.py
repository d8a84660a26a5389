"""`lbmireq`: send immediate requests, and print the responses. Exit statuses: `dro.tools.immediate.requesting`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from dro.standard_streams import open_standard_streams
from dro.tools.immediate import requesting
from dro.tools.immediate.requesting import Ask, RequestingOptions
from dro.um.blocking_api import BlockingContext

PROG: Final = "lbmireq"


def arguments() -> argparse.ArgumentParser:
    """The options, for the program and for shell completion."""
    parser = requesting.arguments(PROG, "Send immediate requests, and print the responses.")
    requesting.add_target(parser)
    requesting.add_queue(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status."""
    open_standard_streams()
    parser = arguments()
    options = parser.parse_args(argv, RequestingOptions())
    requesting.check_target(parser, options.target)
    topic, target = options.topic, options.target

    def open_ask(context: BlockingContext) -> Ask:
        if target is None:
            return lambda data, on_response: context.mim_request(data, topic, on_response=on_response)
        return lambda data, on_response: context.uim_request(target, data, topic, on_response=on_response)

    return requesting.run(PROG, options, open_ask)


if __name__ == "__main__":
    sys.exit(main())
