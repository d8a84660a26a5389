"""Common to the commands of `tnwgdctl`: exit statuses, tables for people, JSON for programs."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

from dro.bus.codec import Record
from dro.log.lines import printable
from dro.standard_streams import output_lost
from supervisor.admin.client import Client, find_dro

MAX_SECONDS: Final = 3600
MAX_DIGITS: Final = 20
NAME_MAX_BYTES: Final = 255
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_UNREACHABLE: Final = 3
EXIT_INTERRUPTED: Final = 130
NONE: Final = "-"
"""In the place of a number that a row has none of."""

Commands = Any
"""What `ArgumentParser.add_subparsers` returns; its type has no public name."""


def connect(args: argparse.Namespace) -> Client:
    """Connect to the DRO that `--dro` and `--run-dir` mean. Raises: UnreachableError."""
    return Client(find_dro(args.dro, args.run_dir, is_whole=args.is_whole))


def put(text: str) -> bool:
    """One or more lines for people; what came from elsewhere cannot move the cursor. False: nobody reads any more."""
    return _write("".join(f"{printable(line)}\n" for line in text.removesuffix("\n").split("\n")) if text else "")


def put_json(answer: Record | dict[str, Any]) -> bool:
    """False: nobody reads any more."""
    return _write(json.dumps(answer if isinstance(answer, dict) else asdict(answer)) + "\n")


def put_answer(args: argparse.Namespace, answer: Record | dict[str, Any], text: str) -> bool:
    """`answer` for programs, or `text` for people, as `--json` says."""
    return put_json(answer) if args.json else put(text)


def _write(text: str) -> bool:
    """Write text; a reader that has enough does not change the exit status. Raises: OSError for any other failure."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError as e:
        output_lost(e)
        return False
    return True


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Aligned columns: numbers to the right, the rest to the left; columns that are empty everywhere are left out."""
    columns = []
    for title, *cells in zip(head, *map(_cells, rows), strict=True):
        if any(cells):
            width = max(map(len, (title, *cells)))
            align = str.rjust if all(_is_number(cell) for cell in cells if cell) else str.ljust
            columns.append([align(cell, width) for cell in (title, *cells)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*columns, strict=True))


def _cells(row: Sequence[object]) -> list[str]:
    """Make cells printable: names of topics come from the network, and a line break in one begins no row."""
    return [printable(",".join(map(str, cell)) if isinstance(cell, tuple) else str(cell)) for cell in row]


def wide_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table; where it is wider than the terminal, a paragraph for each row instead."""
    text = table(head, rows)
    if not sys.stdout.isatty() or max(map(len, text.splitlines()), default=0) <= shutil.get_terminal_size().columns:
        return text
    paragraphs = []
    for row in map(_cells, rows):
        named = [f"  {title.lower()} {cell}" for title, cell in zip(head[1:], row[1:], strict=True) if cell]
        paragraphs.append("\n".join([row[0], *named]))
    return "\n".join(paragraphs)


def redraw(text: str) -> bool:
    """Print on a terminal in the place of what was there, elsewhere below it. False: nobody reads any more."""
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[H\x1b[J")
    return put(text)


def seconds(text: str, least: float = 0.0) -> float:
    """Read an argument that is a number of seconds, an hour at most."""
    value = number_of_seconds(text)
    if not least <= value <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"has to be from {least:g} to {MAX_SECONDS} seconds")
    return value


def number_of_seconds(text: str) -> float:
    """Read an argument that is any number."""
    try:
        return float(text)
    except ValueError as e:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from e


def positive(text: str) -> int:
    """Read an argument that is a whole number above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("has to be 1 or more")
    return number


def whole(text: str, least: int, most: int) -> int:
    """Read an argument that is a whole number within limits."""
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"has to be a whole number from {least} to {most}")
    return int(text)


def topic(text: str) -> str:
    """Read an argument that is the name of a topic, or a part of one."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as e:
        raise argparse.ArgumentTypeError("is not UTF-8; write the part of the name that is") from e
    if size > NAME_MAX_BYTES:
        raise argparse.ArgumentTypeError(f"has {size} bytes; names of topics have at most {NAME_MAX_BYTES}")
    return text


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text == NONE
