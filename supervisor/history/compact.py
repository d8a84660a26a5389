"""Joins the small files of past days into one for each table, day and DRO, and removes days that are too old or too
much.

A joined file names in its metadata what it stands for: as long as those files are there too, readers leave them out.
So a crash at any point loses and doubles nothing, and the next run goes on.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

from analytics.store.objects import ObjectStore, StoredObject
from dro.errors import ResourceError
from dro.os_errors import remedy_of
from supervisor.history.parquet import join

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
    history: Path | str,
    today: date,
    keep_days: int = 0,
    keep_bytes: int = 0,
    on_bad: Callable[[str], object] = lambda what: None,
) -> Compacted:
    """Remove days before the last `keep_days`, and the oldest until there are `keep_bytes` at most (0: no limit); then
    join the files of days before `today`. `history`: a directory or a URI. `on_bad` is told of files that are left as
    they are. Raises: ResourceError.
    """
    done, store = Compacted(), ObjectStore(str(history))
    try:
        if not store.is_there():
            raise ResourceError(f"{store.shown()}: no directory of a history", remedy="name that of `tnwgd --history`")
        found = [file for file in store.objects("") if file.path.startswith("table=")]
        gone = _remove(store, found, today, (keep_days, keep_bytes), done)
        by_folder: dict[str, list[StoredObject]] = defaultdict(list)
        for file in found:
            match file.path.split("/"):
                case [_, day, _, name] if name.endswith(".parquet") and day[4:] < today.isoformat():
                    if day[4:] not in gone:
                        by_folder[file.path.rpartition("/")[0]].append(file)
        for where, files in by_folder.items():
            done.files_before += len(files)
            done.files_after += join(store, f"{where}/{PREFIX}", files, on_bad)
    except OSError as e:
        what = f"cannot compact {e.filename or store.shown()}: {e.strerror or e}"
        raise ResourceError(what, remedy=remedy_of(e.errno)) from e
    return done


def _remove(
    store: ObjectStore,
    found: Sequence[StoredObject],
    today: date,
    keep: tuple[int, int],
    done: Compacted,
) -> set[str]:
    """Remove whole days of all tables, the oldest first; never today. Returns those days."""
    keep_days, keep_bytes = keep
    sizes: dict[str, int] = {}
    for file in found:
        day = file.path.split("/")[1].removeprefix("day=")
        if _DAY.fullmatch(day) and day <= today.isoformat():  # else of no day that has come
            sizes[day] = sizes.get(day, 0) + file.size
    gone: list[str] = []
    for day in sorted(sizes):
        is_old = keep_days > 0 and (today - date.fromisoformat(day)).days >= keep_days
        is_much = keep_bytes > 0 and sum(sizes.values()) - sum(sizes[old] for old in gone) > keep_bytes
        if day < today.isoformat() and (is_old or is_much):
            gone.append(day)
    if gone:
        first = min((day for day in sizes if day not in gone), default=today.isoformat())
        store.put(KEPT_FROM, f"{first}\n".encode())
    for day in gone:
        for table in {file.path.split("/")[0] for file in found}:
            store.remove_folder(f"{table}/day={day}")
        done.days_removed += 1
        done.bytes_removed += sizes[day]
    return set(gone)
