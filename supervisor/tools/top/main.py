"""`tnwgd-top`: watch one DRO on a terminal.

Exit status: 0 ended by `q` or Ctrl-C, 1 failed, 2 wrong arguments, 3 no DRO to look at.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from rich.console import Console

from dro.command_line import Parser, add_version
from dro.errors import DroError
from dro.log.lines import printable
from dro.standard_streams import open_standard_streams, output_lost, say
from supervisor.admin.client import UnreachableError
from supervisor.tools.top.figures import DroFigures, Figures
from supervisor.tools.top.looker import Looker
from supervisor.tools.top.picture import Look, picture
from supervisor.tools.top.places import choose
from supervisor.tools.top.screen import Screen

PROGRAM: Final = "tnwgd-top"
EXIT_OK, EXIT_FAILED, EXIT_UNREACHABLE = 0, 1, 3
INTERVAL_S: Final = 1.0
LEAST_S, MOST_S = 0.1, 3600.0
WIDTH: Final = 160
"""Of what goes to a file or another program, unless COLUMNS says so."""


def _interval(text: str) -> float:
    try:
        value = float(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from e
    if not LEAST_S <= value <= MOST_S:
        raise argparse.ArgumentTypeError(f"has to be from {LEAST_S:g} to {MOST_S:g} seconds")
    return value


def _named(text: str) -> str:
    """Refuse an empty name, which would count as none: in a script it is a variable that is not set."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; name a DRO, or leave it out when only one runs")
    return text


def arguments() -> argparse.ArgumentParser:
    parser = Parser(
        prog=PROGRAM,
        description="Watch a DRO: portals, processes and problems; also one whose parent does not answer or is dead.",
        epilog="Keys: q quit, s sort, p pause, t totals or rates. "
        "Exit status: 0 ended by q or Ctrl-C, 1 failed, 2 wrong arguments, 3 no DRO to look at.",
    )
    add_version(parser)
    which = parser.add_argument_group("which DRO, when there are several")
    which.add_argument(
        "--dro", metavar="NAME", type=_named, help="name of the DRO or its beginning, or the process id of its tnwgd"
    )
    which.add_argument("--run-dir", metavar="DIR", type=_named, help="its run directory")
    which.add_argument(
        "--shm", metavar="DIR", type=_named,
        help="its directory in shared memory, also of a dead DRO; or where such directories are (default /dev/shm)",
    )  # fmt: skip
    parser.add_argument(
        "-i", "--interval", metavar="SECONDS", type=_interval, default=INTERVAL_S,
        help=f"between two looks (default {INTERVAL_S:g})",
    )  # fmt: skip
    parser.add_argument("--once", action="store_true", help="print one picture, after two looks, and end")
    parser.add_argument("--json", action="store_true", help="with --once: as one JSON object")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    open_standard_streams()
    parser = arguments()
    args = parser.parse_args(argv)
    if args.json and not args.once:
        parser.error("--json goes with --once")
    try:
        with contextlib.closing(Looker(choose(args.dro, args.run_dir, args.shm))) as looker:
            return _show(looker, args)
    except DroError as e:
        say(sys.stderr, f"{PROGRAM}: {printable(str(e))}\n")
        return EXIT_UNREACHABLE if isinstance(e, UnreachableError) else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_OK
    except OSError as e:
        if (lost := output_lost(e)) is not None:
            say(sys.stderr, f"{PROGRAM}: {lost}\n")
        return EXIT_FAILED


def _show(looker: Looker, args: argparse.Namespace) -> int:
    console = Console(highlight=False)
    if args.once or not sys.stdout.isatty() or console.is_dumb_terminal:
        _put(_second_look(looker, args.interval), console, as_json=args.json)
        return EXIT_OK
    ended_by = Screen(looker, console, args.interval).run()
    if ended_by not in (None, signal.SIGINT):  # as if nobody had caught it
        signal.signal(ended_by, signal.SIG_DFL)
        os.kill(os.getpid(), ended_by)
    return EXIT_OK


def _second_look(looker: Looker, interval_s: float) -> DroFigures:
    figures = Figures()
    figures.take(looker.look())
    time.sleep(interval_s)
    return figures.take(looker.look())


def _put(view: DroFigures, console: Console, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(asdict(view)) + "\n")
    else:
        width = console.width if sys.stdout.isatty() else shutil.get_terminal_size((WIDTH, 0)).columns
        plain = Console(width=width, highlight=False, force_terminal=False, color_system=None)
        with plain.capture() as drawn:
            plain.print(picture(view, Look(has_keys=False), width))
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in drawn.get().splitlines()))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
