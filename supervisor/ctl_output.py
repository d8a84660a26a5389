"""What the commands of `tnwgdctl` share: exit statuses, tables for people, JSON for programs."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from typing import Any, Final

from dro.log import printable
from supervisor.ctl_client import Client, find_dro
from supervisor.records import Record, to_json

MAX_SECONDS: Final = 3600
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_UNREACHABLE: Final = 3
EXIT_INTERRUPTED: Final = 130

Commands = Any
"""What `ArgumentParser.add_subparsers` returns; its type has no public name."""


def connect(args: argparse.Namespace) -> Client:
    """To the DRO that `--dro` and `--run-dir` mean. Raises: UnreachableError."""
    return Client(find_dro(args.dro, args.run_dir))


def put(text: str) -> None:
    """One or more lines for people; what came from elsewhere cannot move the cursor."""
    sys.stdout.write("\n".join(printable(line) for line in text.splitlines()) + "\n")
    sys.stdout.flush()


def put_json(answer: Record | dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer if isinstance(answer, dict) else to_json(answer)) + "\n")
    sys.stdout.flush()


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, gap: int = 2) -> str:
    """Aligned columns: numbers to the right, the rest to the left; columns that are empty everywhere are left out."""
    shown = [i for i in range(len(head)) if any(row[i] for row in rows)]
    lines = [[head[i] for i in shown], *([row[i] for i in shown] for row in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(shown))]
    is_number = [all(_is_number(row[i]) for row in rows if row[i]) for i in shown]

    def joined(line: Sequence[str]) -> str:
        cells = (
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, is_number, strict=True)
        )
        return (" " * gap).join(cells).rstrip()

    return "\n".join(map(joined, lines))


def wide_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; where it is wider than the terminal, a paragraph for each row instead."""
    text = table(head, rows)
    if not sys.stdout.isatty() or max(map(len, text.splitlines())) <= shutil.get_terminal_size().columns:
        return text
    paragraphs = []
    for row in rows:
        named = [f"  {title.lower()} {cell}" for title, cell in zip(head[1:], row[1:], strict=True) if cell]
        paragraphs.append("\n".join([row[0], *named]))
    return "\n".join(paragraphs)


def redraw(text: str) -> None:
    """On a terminal in the place of what was there, elsewhere below it."""
    if sys.stdout.isatty():
        sys.stdout.write("\x1b[H\x1b[J")
    put(text)


def seconds(text: str) -> float:
    """Of an argument: a finite number that is not negative."""
    value = float(text)
    if not 0 <= value <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"has to be from 0 to {MAX_SECONDS}")
    return value


def _is_number(text: str) -> bool:
    return text[:1].isdigit()


def duration(seconds: float) -> str:
    """As `3d 4h`, `5h 02m`, `7m 31s` or `12s`."""
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d {hours}h"
    if hours:
        return f"{hours}h {minutes:02}m"
    return f"{minutes}m {whole % 60:02}s" if minutes else f"{whole}s"
