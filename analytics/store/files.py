"""Finds the files of a history and what their columns mean; leaves out, and names, what cannot be read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from analytics.store.errors import HistoryError
from analytics.store.objects import ObjectStore, first_line

VERSION: Final = 1
"""The newest layout that is understood."""
META: Final = b"open_dro.history"
REPLACES: Final = b"open_dro.replaces"
ARROW: Final[Mapping[str, pa.DataType]] = {
    "time": pa.timestamp("us", tz="UTC"), "long": pa.int64(), "string": pa.string(), "bool": pa.bool_(),
    "map": pa.map_(pa.string(), pa.string()), "figures": pa.map_(pa.string(), pa.int64()),
}  # fmt: skip
"""Maps the types of columns to those in files."""
OnBad = Callable[[str, bool], object]
"""Is told of a file that is left out: which and why, and whether it may be read another time."""
KEPT_FROM: Final = "kept-from"
"""A file with the first day that is kept, where days were removed."""
READERS: Final = 8
SMALL: Final = 1 << 18
"""Bytes of a file that is read at once."""
END: Final = 1 << 16
"""Bytes at the end of a file that tell whether it is another one of the same name and size."""
BROKEN: Final = (OSError, pa.ArrowException, ValueError, LookupError, ArithmeticError, MemoryError)
"""Lists what readers of Parquet raise when the bytes of a file were changed."""


@dataclass(frozen=True, slots=True)
class Part:
    """A Parquet file of one table, one day and one DRO."""

    path: str  # within the store
    day: str  # YYYY-MM-DD, of UTC
    dro: str
    size: int
    mtime_ns: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


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
class ReadableFile:
    """A file that was opened: what its columns mean, the names of files that it stands for, and what tells it from
    another one of its name and size."""

    part: Part
    file: pq.ParquetFile
    columns: Mapping[str, FileColumn]
    replaces: frozenset[str]
    digest: str


def parts_of(store: ObjectStore, table: str, on_bad: OnBad = lambda *_: None) -> list[Part]:
    """Find all files of a table. Raises: HistoryError when there is no such directory."""
    if not store.is_there():
        raise HistoryError(f"{store.shown()}: no directory of a history")
    try:
        first = store.read(KEPT_FROM).decode().strip()
    except FileNotFoundError:
        first = ""
    found = []
    for one in store.objects(f"table={table}"):
        match one.path.split("/"):
            case [_, day, dro, _] if _is_day(day) and dro.startswith("dro=") and one.name.endswith(".parquet"):
                day, dro = day.removeprefix("day="), unquote(dro.removeprefix("dro="))
                if day >= first:  # of a day that was removed as a whole there is only what came late
                    found.append(Part(one.path, day, dro, one.size, one.mtime_ns))
            case _ if one.name.endswith(".parquet"):
                where = "not in table=TABLE/day=YYYY-MM-DD/dro=NAME"
                on_bad(f"{store.shown(one.path)}: {where}; it is left out", False)
    return found


def _is_day(name: str) -> bool:
    try:
        return name == f"day={date.fromisoformat(name.removeprefix('day='))}"
    except ValueError:
        return False


def opened(store: ObjectStore, parts: Iterable[Part], table: str, on_bad: OnBad) -> list[ReadableFile]:
    """Look into files. What retention has removed meanwhile is not there. Raises: OSError, as `leave_out`."""
    parts = list(parts)
    with ThreadPoolExecutor(READERS) as pool:  # who waits for another machine waits for several answers at once
        each = map if store.folder is not None else pool.map
        looked = list(each(lambda part: _look(store, part, table), parts))
    good = []
    for part, found in zip(parts, looked, strict=True):
        match found:
            case Exception() | str():
                leave_out(store, part.path, found, on_bad)
            case ReadableFile():
                good.append(found)
    return good


def leave_out(
    store: ObjectStore, path: str, why: Exception | str, on_bad: OnBad, what: str = "no whole Parquet file"
) -> None:
    """Tell that a file is left out: for good where its bytes are wrong, and until the next time where they do not come.
    Raises: OSError, of a store that is no disk: it gives other files as little."""
    if isinstance(why, OSError) and not (store.folder is not None and (store.folder / path).is_dir()):
        try:
            store.read(path)
        except FileNotFoundError:
            return
        except OSError as e:
            if store.folder is None:
                raise
            on_bad(f"{store.shown(path)}: {e.strerror}; it is left out until it can be read", True)
            return
    if isinstance(why, Exception):
        why = f"{what} ({first_line(why)})"
    on_bad(f"{store.shown(path)}: {why}; it is left out", False)


def _look(store: ObjectStore, part: Part, table: str) -> ReadableFile | Exception | str | None:
    """Read the columns of a file, or find what is wrong with it."""
    try:
        source = store.open(part.path)
        source.seek(max(0, part.size - SMALL))
        content = source.read()
        digest = hashlib.sha256(content[-END:]).hexdigest()[:16]
        file = pq.ParquetFile(source if part.size > SMALL else pa.BufferReader(content))
        has: Mapping[str, pa.DataType] = {one.name: one.type for one in file.schema_arrow}
        metadata: Mapping[bytes, bytes] = file.metadata.metadata or {}
    except FileNotFoundError:
        return None
    except BROKEN as e:
        return e
    if META not in metadata:
        return "no file of a history"
    try:
        version, of_table, columns = _described(metadata[META])
        replaces = frozenset(str(name) for name in json.loads(metadata.get(REPLACES, b"[]")))
    except (ValueError, LookupError, TypeError, AttributeError):
        return "what it says of its columns cannot be read"
    if version > VERSION:
        return f"it has layout {version}, and this release knows layout {VERSION}: install a newer one"
    if of_table != table:
        return f"it is of the table {of_table}"
    for name, column in columns.items():
        if has.get(name) != ARROW[column.type]:
            found = str(has.get(name, "not there"))
            return f"its column {name} is {found}, and should be {ARROW[column.type]}"
    return ReadableFile(part, file, columns, replaces, digest)


@lru_cache(maxsize=256)
def _described(meta: bytes) -> tuple[int, str, Mapping[str, FileColumn]]:
    """Read what a file says of itself: the version of its layout, its table, its columns."""
    about: dict[str, Any] = json.loads(meta)
    columns = {}
    for name, of in about["columns"].items() if about["version"] <= VERSION else ():
        columns[name] = FileColumn(name, **of)
        ARROW[columns[name].type]  # else a LookupError
    return about["version"], about["table"], columns


def columns_of(file: pq.ParquetFile) -> Mapping[str, FileColumn]:
    """Find what the columns of a file mean that was written with `description`. Raises: LookupError, ValueError."""
    return _described(file.metadata.metadata[META])[2]


def description(table: str, columns: Mapping[str, FileColumn]) -> dict[bytes, bytes]:
    """Give the metadata that say what columns mean."""
    told = {name: {k: v for k, v in asdict(column).items() if v and k != "name"} for name, column in columns.items()}
    return {META: json.dumps({"version": VERSION, "table": table, "columns": told}, separators=(",", ":")).encode()}


def without_replaced(files: Sequence[ReadableFile]) -> list[ReadableFile]:
    """Leave out the files that another one stands for: both are there after a crash."""
    stale = {name for file in files for name in file.replaces}
    return [file for file in files if file.part.name not in stale]
