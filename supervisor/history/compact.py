"""Joins the small files of past days into one for each table, day and DRO, and removes days that are too old or too
much.

A joined file names in its metadata what it stands for: as long as those files are there too, readers leave them out.
So a crash at any point loses and doubles nothing, and the next run goes on.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

from dro.errors import ResourceError
from dro.os_errors import remedy_of
from supervisor.history.parquet import join, joinable

PREFIX: Final = "part-compact-"

_DAY: Final = re.compile(r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])")
KEPT_FROM: Final = "kept-from"
"""A file with the first day of the history: what comes late for a day before it is left out."""


@dataclass(slots=True)
class Compacted:
    """Counts what was done."""

    files_before: int = 0
    files_after: int = 0
    days_removed: int = 0
    bytes_removed: int = 0


def compact(
    folder: Path,
    today: date,
    keep_days: int = 0,
    keep_bytes: int = 0,
    on_bad: Callable[[str], object] = lambda what: None,
) -> Compacted:
    """Remove days before the last `keep_days`, and the oldest until there are `keep_bytes` at most (0: no limit); then
    join the files of days before `today`. `on_bad` is told of files that are left as they are. Raises: ResourceError.
    """
    if not folder.is_dir():
        raise ResourceError(f"{folder}: no directory of a history", remedy="name that of `tnwgd --history`")
    done = Compacted()
    try:
        _remove(folder, today, keep_days, keep_bytes, done)
        for where in sorted(folder.glob("table=*/day=*/dro=*")):
            if where.parent.name.removeprefix("day=") < today.isoformat():
                _join(where, done, on_bad)
    except OSError as e:
        reason = e.strerror or str(e)
        raise ResourceError(f"cannot compact {e.filename or folder}: {reason}", remedy=remedy_of(e.errno)) from e
    return done


def _remove(folder: Path, today: date, keep_days: int, keep_bytes: int, done: Compacted) -> None:
    """Remove whole days of all tables, the oldest first; never today."""
    sizes: dict[str, int] = {}
    for path in folder.glob("table=*/day=*/dro=*/*.parquet"):
        day = path.parent.parent.name.removeprefix("day=")
        if not _DAY.fullmatch(day) or day > today.isoformat():  # of no day that has come
            continue
        sizes[day] = sizes.get(day, 0) + path.stat().st_size
    gone: list[str] = []
    for day in sorted(sizes):
        is_old = keep_days > 0 and (today - date.fromisoformat(day)).days >= keep_days
        is_much = keep_bytes > 0 and sum(sizes.values()) - sum(sizes[old] for old in gone) > keep_bytes
        if day < today.isoformat() and (is_old or is_much):
            gone.append(day)
    if gone:
        first = min((day for day in sizes if day not in gone), default=today.isoformat())
        unnamed = folder / f".{KEPT_FROM}"
        unnamed.write_text(f"{first}\n")
        unnamed.rename(folder / KEPT_FROM)
    for day in gone:
        for where in folder.glob(f"table=*/day={day}"):
            shutil.rmtree(where)
        done.days_removed += 1
        done.bytes_removed += sizes[day]


def _join(where: Path, done: Compacted, on_bad: Callable[[str], object]) -> None:
    """Join the files of one table, day and DRO. Raises: OSError."""
    paths = sorted(path for path in where.glob("*.parquet") if not path.name.startswith("."))
    done.files_before += len(paths)
    schemas = joinable(paths, on_bad)
    done.files_after += min(len(schemas), 1)
    if len(schemas) > 1:
        names = [path.name for path in schemas]
        told = hashlib.sha256("\n".join(names).encode()).hexdigest()[:24]
        join(schemas, where / f"{PREFIX}{told}.parquet")
