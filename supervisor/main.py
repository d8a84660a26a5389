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
    given = sys.argv[1:] if argv is None else argv
    if len(given) > 1 and given[0] in ("--take-over", "--upgrade-check") and given[1].isdecimal():
        from supervisor.start.take_over import check, take_over

        fd = int(given[1])
        return take_over(fd) if given[0] == "--take-over" else check(fd)  # signals wait until the DRO is taken over
    from dro.standard_streams import open_standard_streams
    from supervisor.host.early_signals import EarlySignals

    open_standard_streams()
    signals = EarlySignals(mask)
    try:
        from supervisor.start.command_line import command

        return command(given, signals)
    finally:
        signals.undo()


if __name__ == "__main__":
    sys.exit(main())
