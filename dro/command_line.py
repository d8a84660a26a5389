"""Common to the command lines of all programs: one line for a wrong argument, and `--version`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NoReturn

from dro.standard_streams import output_lost, say

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

EXIT_USAGE: Final = 2
DISTRIBUTION: Final = "open-dro"
_WRONG_CHOICE: Final = re.compile(r"(.*invalid choice: ('.*')) \(choose from (.*)\)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and ends with the status for wrong usage."""

    status_of_lost_output = 1

    def error(self, message: str) -> NoReturn:
        """Write the message and its remedy, and end the program. Instead of many choices, name the nearest."""
        if wrong := _WRONG_CHOICE.fullmatch(message):
            known = re.findall(r"[^\s,']+", wrong[3])
            if near := get_close_matches(wrong[2].strip("'"), known, n=1):
                message = f"{wrong[1]}; did you mean {near[0]}?"
        remedy = "" if "; " in message else f"; try {self.prog} --help"
        self.exit(EXIT_USAGE, f"{self.prog}: {message}{remedy}\n")

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        if file is None:
            self.put(self.format_help())
        else:
            super().print_help(file)

    def put(self, text: str) -> None:
        """Write to standard output, or end the program with the reason why not."""
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError as e:
            if (error := output_lost(e)) is not None:
                say(sys.stderr, f"{self.prog}: {error}\n")
                self.exit(self.status_of_lost_output)


class _Version(argparse.Action):
    """Looks the version up when it is asked for, which takes time."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        assert isinstance(parser, Parser)
        problem = conflicting_distribution()
        parser.put(f"{parser.prog} {version()}\n" + (f"{problem}; {CONFLICT_REMEDY}\n" if problem else ""))
        parser.exit()


def add_version(parser: Parser) -> None:
    """`--version`: name of the program, and the version of what is installed."""
    parser.add_argument(
        "--version", action=_Version, nargs=0, default=argparse.SUPPRESS, help="print the version and exit"
    )


def version() -> str:
    """Find the version of the installed package; a source tree that is not installed has none."""
    return version_of(DISTRIBUTION) or "unknown (not installed)"


CONFLICT_REMEDY: Final = "install open-dro into an environment of its own"


def conflicting_distribution() -> str:
    """Return what is wrong when another distribution with a package `supervisor` is installed; else empty."""
    found = version_of("supervisor")
    return found and f"the distribution supervisor {found} is installed here: it overwrites files of this program"


def version_of(distribution: str) -> str:
    """Empty when it is not installed."""
    from importlib import metadata  # which takes long, and most runs need no version

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
