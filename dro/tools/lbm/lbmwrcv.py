"""`lbmwrcv`: receive all topics that match a pattern. Exit statuses and the last line: `dro.tools.lbm.receiving`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from dro.standard_streams import open_standard_streams
from dro.tools.lbm import receiving
from dro.tools.lbm.receiving import AnyReceiver, Callbacks
from dro.um.blocking_api import BlockingContext

PROG: Final = "lbmwrcv"


def open_receiver(context: BlockingContext, pattern: str, callbacks: Callbacks) -> AnyReceiver:
    return context.wildcard_receiver(pattern, **callbacks)


def arguments() -> argparse.ArgumentParser:
    return receiving.arguments(PROG, "Receive all topics in which a pattern occurs.", "pattern")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status."""
    open_standard_streams()
    options = arguments().parse_args(argv, receiving.ReceivingOptions())
    return receiving.run(PROG, options, open_receiver)


if __name__ == "__main__":
    sys.exit(main())
