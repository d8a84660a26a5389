"""Finds the files of a history and what their columns mean; leaves out, and names, what cannot be read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

VERSION: Final = 1
"""The newest layout that is understood."""
META: Final = b"open_dro.history"
REPLACES: Final = b"open_dro.replaces"
ARROW: Final[Mapping[str, pa.DataType]] = {
    "time": pa.timestamp("us", tz="UTC"), "long": pa.int64(), "string": pa.string(), "bool": pa.bool_(),
    "map": pa.map_(pa.string(), pa.string()), "figures": pa.map_(pa.string(), pa.int64()),
}  # fmt: skip
"""Maps the types of columns to those in files."""
KEPT_FROM: Final = "kept-from"
"""A file with the first day that is kept, where days were removed."""
READERS: Final = 16
BROKEN: Final = (OSError, pa.ArrowException, ValueError, LookupError, ArithmeticError, MemoryError)
"""Lists what readers of Parquet raise when the bytes of a file were changed."""


@dataclass(frozen=True, slots=True)
class Part:
    """A Parquet file of one table, one day and one DRO."""

    path: str
    day: str  # YYYY-MM-DD, of UTC
    dro: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class FileColumn:
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
        """Find the label of that name, on portals of any type."""
        return next((labels[name] for labels in self.labels.values() if name in labels), "")


@dataclass(frozen=True, slots=True)
class Contents:
    """The readable files of a table, and all columns that one of them has."""

    parts: tuple[Part, ...]
    columns: Mapping[str, FileColumn]


class HistoryError(Exception):
    """Says what is wrong with a history as a whole."""


def parts_of(history: Path, table: str) -> list[Part]:
    """All files of a table that have their names. Raises: HistoryError when there is no such directory."""
    if not history.is_dir():
        raise HistoryError(f"{history}: no directory of a history")
    kept = history / KEPT_FROM
    first = kept.read_text().strip() if kept.exists() else ""
    found = []
    for path in sorted((history / f"table={table}").glob("day=*/dro=*/*.parquet")):
        if not path.name.startswith("."):
            told = path.stat()
            dro = unquote(path.parent.name.removeprefix("dro="))
            day = path.parent.parent.name.removeprefix("day=")
            if day >= first:  # of a day that was removed as a whole there is only what came late
                found.append(Part(str(path), day, dro, told.st_size, told.st_mtime_ns))
    return found


def contents(parts: Iterable[Part], table: str, on_bad: Callable[[str], object]) -> Contents:
    """Look into all files. `on_bad` is told of each that is left out: which, and why."""
    parts = list(parts)
    with ThreadPoolExecutor(READERS) as pool:
        looked = list(pool.map(lambda part: _look(part, table), parts))
    good: list[Part] = []
    columns: dict[str, FileColumn] = {}
    stale: set[str] = set()  # what stands in another file as well, after a crash
    for part, found in zip(parts, looked, strict=True):
        if isinstance(found, str):
            on_bad(f"{part.path}: {found}; it is left out")
            continue
        good.append(part)
        columns.update(found.columns)
        stale |= {str(Path(part.path).with_name(name)) for name in found.replaces}
    return Contents(tuple(part for part in good if part.path not in stale), columns)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Write a file that takes the place of another one when it is whole and on the disk. Raises: OSError, which names
    it."""
    unnamed = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unnamed.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        unnamed.rename(path)
    except OSError as e:
        unnamed.unlink(missing_ok=True)
        raise OSError(e.errno, os.strerror(e.errno or 0), str(path)) from e


def replace_text(path: Path, text: str) -> None:
    """Put a text in the place of a file. Raises: OSError, which names it."""
    with replacing(path) as file:
        file.write(text.encode())


def unreadable(part: Part, error: Exception) -> str:
    """Say which file was left out, since its rows cannot be read."""
    return f"{part.path}: its rows cannot be read ({_first_line(error)}); it is left out"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


@dataclass(frozen=True, slots=True)
class _Found:
    columns: Mapping[str, FileColumn]
    replaces: Sequence[str]


def _look(part: Part, table: str) -> _Found | str:
    """Read the columns of a file, or say what is wrong with it."""
    try:
        told = pq.read_metadata(part.path)
        has = told.schema.to_arrow_schema()
        metadata: Mapping[bytes, bytes] = told.metadata or {}
    except BROKEN as e:
        return f"no whole Parquet file ({_first_line(e)})"
    if META not in metadata:
        return "no file of a history"
    try:
        about: dict[str, Any] = json.loads(metadata[META])
        if about["version"] > VERSION:
            return f"it has layout {about['version']}, and this release knows layout {VERSION}: install a newer one"
        if about["table"] != table:
            return f"it is of the table {about['table']}"
        columns = {name: FileColumn(name, **of) for name, of in about["columns"].items()}
        kinds = {name: ARROW[column.type] for name, column in columns.items()}
        replaces = [str(name) for name in json.loads(metadata.get(REPLACES, b"[]"))]
    except (ValueError, LookupError, TypeError, AttributeError):
        return "what it says of its columns cannot be read"
    for name, kind in kinds.items():
        if name not in has.names or has.field(name).type != kind:
            found = str(has.field(name).type) if name in has.names else "not there"
            return f"its column {name} is {found}, and should be {kind}"
    return _Found(columns, replaces)
