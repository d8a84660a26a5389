"""The entry point of `tnwgd`. It handles signals before it loads the program, which takes most of the start.

A SIGHUP must not end a starting DRO: it is blocked by the first statement, so nothing but the module `signal` is loaded
before. Until then, while the interpreter starts, it has the effect set by the caller.
"""

import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: "Sequence[str] | None" = None) -> int:
    """The exit status."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    from dro.standard_streams import open_standard_streams
    from supervisor.host.early_signals import EarlySignals

    open_standard_streams()
    signals = EarlySignals(mask)
    try:
        from supervisor.start.command_line import command

        return command(sys.argv[1:] if argv is None else argv, signals)
    finally:
        signals.undo()


if __name__ == "__main__":
    sys.exit(main())
