"""Joins the small files of past days into one for each table, day and DRO, and removes days that are too old or too
much.

A joined file names in its metadata what it stands for: as long as those files are there too, readers leave them out.
So a crash at any point loses and doubles nothing, and the next run goes on.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dro.errors import ResourceError
from dro.os_errors import remedy_of
from supervisor.history.store import write_tables
from supervisor.history.tables import META

PREFIX: Final = "part-compact-"
REPLACES: Final = "open_dro.replaces"
_DAY: Final = re.compile(r"\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])")
KEPT_FROM: Final = "kept-from"
"""A file with the first day of the history: what comes late for a day before it is left out."""
SCRAPED: Final = "prometheus"
KEY: Final = ("ts", "run", "seq", "source")


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
    schemas: dict[Path, pa.Schema] = {}
    for path in paths:
        try:
            schema = pq.read_schema(path)
        except (OSError, pa.ArrowException) as e:
            on_bad(f"{path}: no whole Parquet file ({str(e).splitlines()[0]}); it is left as it is")
            continue
        if META.encode() in (schema.metadata or {}):
            schemas[path] = schema
        else:
            on_bad(f"{path}: no file of a history; it is left as it is")
    stale = {name for schema in schemas.values() for name in replaced(schema.metadata)}
    for path in [path for path in schemas if path.name in stale]:  # a crash came before it was removed
        path.unlink()
        del schemas[path]
    done.files_after += min(len(schemas), 1)
    if len(schemas) > 1:
        names = [path.name for path in schemas]
        told = hashlib.sha256("\n".join(names).encode()).hexdigest()[:24]
        schema = _schema_of(list(schemas.values()), names)
        path = where / f"{PREFIX}{told}.parquet"
        write_tables(path, schema, _pieces(list(schemas), schema), is_large=True)
        for path in schemas:
            path.unlink()


def replaced(metadata: Mapping[bytes, bytes] | None) -> list[str]:
    """Name the files that a file stands for."""
    names: list[str] = json.loads((metadata or {}).get(REPLACES.encode(), b"[]"))
    return names


def _schema_of(schemas: Sequence[pa.Schema], names: Sequence[str]) -> pa.Schema:
    """Collect all columns that one of the files has, and what they mean."""
    columns: dict[str, Any] = {}
    about: dict[str, Any] = {}
    for schema in schemas:
        about = json.loads(schema.metadata[META.encode()])
        columns.update(about["columns"])
    told = {META: json.dumps({**about, "columns": columns}, separators=(",", ":")), REPLACES: json.dumps(names)}
    return pa.unify_schemas(schemas, promote_options="default").with_metadata(told)


def _pieces(paths: Sequence[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield all rows, by their key and in order of time, each once; a portal, worker, ... at a time."""
    key = json.loads(schema.metadata[META.encode()]).get("key", [])
    first = next((name for name in key if pa.types.is_string(schema.field(name).type)), None)
    if first is None:
        values: list[str | None] = [None]
    else:
        found = [pq.read_table(path, columns=[first], partitioning=None)[first].unique() for path in paths]
        values = sorted({value for column in found for value in column.to_pylist() if value is not None})
    for value in values:
        wanted = None if value is None else [(first, "=", value)]
        parts = [pq.read_table(path, filters=wanted, partitioning=None) for path in paths]
        rows = pa.concat_tables([pa.unify_schemas([schema]).empty_table(), *parts], promote_options="default")
        rows = rows.select(schema.names)
        is_scraped = pc.fill_null(pc.equal(rows["source"], SCRAPED), False)
        whole = _once(rows.filter(pc.invert(is_scraped)), [n for n in (*KEY, *key, "page") if n in schema.names])
        rows = pa.concat_tables([whole, _merged(rows.filter(is_scraped), ["ts", *key])])
        order = [(name, "ascending") for name in (*key, "ts")]
        yield rows.take(pc.sort_indices(rows, sort_keys=order)).replace_schema_metadata(schema.metadata)


def _numbered(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Count the rows of each key; where the first of them is."""
    keys = rows.select(key).append_column("row", pa.array(range(rows.num_rows), pa.int64()))
    return keys.group_by(key, use_threads=False).aggregate([("row", "count"), ("row", "min")])


def _once(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Take the first row of each key."""
    return rows.take(_numbered(rows, key)["row_min"])


def _merged(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Make one row of those with the same key: a scrape may have come in several requests."""
    told = _numbered(rows, key)
    if told.num_rows == rows.num_rows:
        return rows
    single = told.filter(pc.equal(told["row_count"], 1))["row_min"]
    is_single = pc.is_in(pa.array(range(rows.num_rows), pa.int64()), value_set=single)
    plain = [name for name in rows.column_names if name not in key]
    several = rows.filter(pc.invert(is_single))
    merged = several.group_by(key, use_threads=False).aggregate([(name, "max") for name in plain])
    merged = merged.rename_columns([name if name in key else name.removesuffix("_max") for name in merged.column_names])
    return pa.concat_tables([rows.take(single), merged.select(rows.column_names).cast(rows.schema)])
