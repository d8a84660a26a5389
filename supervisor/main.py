"""The entry of `tnwgd`. It takes care of signals before it loads the program, which is most of what a start takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dro.streams import open_standard_streams
from supervisor.early import EarlySignals


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    open_standard_streams()
    signals = EarlySignals()
    try:
        from supervisor.command import command

        return command(sys.argv[1:] if argv is None else argv, signals)
    finally:
        signals.undo()


if __name__ == "__main__":
    sys.exit(main())
