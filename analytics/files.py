"""Finds the files of a history and what their columns mean; leaves out, and names, what cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

VERSION: Final = 1
"""The newest layout that is understood."""
META: Final = b"open_dro.history"
READERS: Final = 16


@dataclass(frozen=True, slots=True)
class Part:
    """A Parquet file of one table, one day and one DRO."""

    path: str
    day: str  # YYYY-MM-DD, of UTC
    dro: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Column:
    """Tells what a column means; see `docs/history.md`."""

    name: str
    type: str
    kind: str
    metric: str = ""
    unit: str = ""
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    le: int = 0
    help: str = ""

    def label(self, name: str) -> str:
        """Its label of that name, on portals of any type."""
        return next((labels[name] for labels in self.labels.values() if name in labels), "")


@dataclass(frozen=True, slots=True)
class Contents:
    """The readable files of a table, and all columns that one of them has."""

    parts: tuple[Part, ...]
    columns: Mapping[str, Column]


class HistoryError(Exception):
    """Says what is wrong with a history as a whole."""


def parts_of(history: Path, table: str) -> list[Part]:
    """All files of a table that have their names. Raises: HistoryError when there is no such directory."""
    if not history.is_dir():
        raise HistoryError(f"{history}: no directory of a history")
    found = []
    for path in sorted((history / f"table={table}").glob("day=*/dro=*/*.parquet")):
        if not path.name.startswith("."):
            told = path.stat()
            dro = unquote(path.parent.name.removeprefix("dro="))
            day = path.parent.parent.name.removeprefix("day=")
            found.append(Part(str(path), day, dro, told.st_size, told.st_mtime_ns))
    return found


def contents(parts: Iterable[Part], table: str, on_bad: Callable[[str], object]) -> Contents:
    """Look into all files. `on_bad` is told of each that is left out: which, and why."""
    parts = list(parts)
    with ThreadPoolExecutor(READERS) as pool:
        looked = list(pool.map(lambda part: _look(part, table), parts))
    good, columns = [], {}
    for part, found in zip(parts, looked, strict=True):
        if isinstance(found, str):
            on_bad(f"{part.path}: {found}; it is left out")
            continue
        good.append(part)
        columns.update(found)
    return Contents(tuple(good), columns)


def _look(part: Part, table: str) -> dict[str, Column] | str:
    """The columns of a file, or what is wrong with it."""
    try:
        metadata: Mapping[bytes, bytes] = pq.read_metadata(part.path).metadata or {}
    except (OSError, pa.ArrowException) as e:
        return f"no whole Parquet file ({str(e).splitlines()[0]})"
    if META not in metadata:
        return "no file of a history"
    about: dict[str, Any] = json.loads(metadata[META])
    if about["version"] > VERSION:
        return f"it has layout {about['version']}, and this release knows layout {VERSION}: install a newer one"
    if about["table"] != table:
        return f"it is of the table {about['table']}"
    return {name: Column(name, **told) for name, told in about["columns"].items()}
