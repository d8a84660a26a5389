"""Joins Parquet files of a history to one that names those that it stands for: as long as they are there too, readers
leave them out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analytics.store.files import BROKEN
from analytics.store.objects import ObjectStore, StoredObject, first_line
from supervisor.history.tables import META

REPLACES: Final = "open_dro.replaces"
SCRAPED: Final = "prometheus"
Filters = list[tuple[str, str, list[str]]]
KEY: Final = ("ts", "run", "seq", "source")
MUCH: Final = 4 << 20
"""Bytes of files that are joined at a time, more of them some portals, workers, ... after others: in memory rows take
twenty times as much."""


class UnreadableRowsError(Exception):
    """Tells that the rows of a file cannot be read."""

    def __init__(self, file: StoredObject, why: str) -> None:
        super().__init__(why)
        self.file = file


def join(
    store: ObjectStore,
    to: str,
    files: Iterable[StoredObject],
    on_bad: Callable[[str], object],
    *,
    of: str = "",
    at_least: int = 2,
) -> int:
    """Join the files whose names begin with `of` to one, which names them and is named `to` and by them, and remove
    them. `files`: all that may stand for each other; how many of them are left. `on_bad` is told of those that stay as
    they are. Raises: OSError; all rows are in one or the other."""
    found = _joinable(store, files, on_bad)
    wanted = {file: schema for file, schema in found.items() if file.name.startswith(of)}
    while len(wanted) >= at_least:
        names = [file.name for file in wanted]
        schema, told = _joint_schema(list(wanted.values()), names), hashlib.sha256("\n".join(names).encode())
        try:
            store.put_rows(f"{to}{told.hexdigest()[:24]}.parquet", schema, _pieces(store, list(wanted), schema))
            store.remove(file.path for file in wanted)
        except UnreadableRowsError as e:
            on_bad(f"{store.shown(e.file.path)}: its rows cannot be read ({e}); it is left as it is")
            del wanted[e.file]
        except FileNotFoundError:  # another program has joined it
            break
        else:
            return len(found) - len(wanted) + 1
    return len(found)


def _joinable(
    store: ObjectStore, files: Iterable[StoredObject], on_bad: Callable[[str], object]
) -> dict[StoredObject, pa.Schema]:
    """Look into files: those that can be joined, with their schemas. `on_bad` is told of others. Removes those that
    another one stands for, since a crash came before. Raises: OSError."""
    schemas: dict[StoredObject, pa.Schema] = {}
    for file in files:
        try:
            schema = pq.read_schema(store.open(file.path))
        except FileNotFoundError:  # another program has joined it
            continue
        except (OSError, pa.ArrowException) as e:
            on_bad(f"{store.shown(file.path)}: no whole Parquet file ({first_line(e)}); it is left as it is")
            continue
        if META.encode() in (schema.metadata or {}):
            schemas[file] = schema
        else:
            on_bad(f"{store.shown(file.path)}: no file of a history; it is left as it is")
    stale = {name for schema in schemas.values() for name in _replaced(schema.metadata)}
    gone = [file for file in schemas if file.name in stale]
    store.remove(file.path for file in gone)
    return {file: schema for file, schema in schemas.items() if file not in gone}


def _replaced(metadata: Mapping[bytes, bytes] | None) -> list[str]:
    """Name the files that a file stands for."""
    names: list[str] = json.loads((metadata or {}).get(REPLACES.encode(), b"[]"))
    return names


def _joint_schema(schemas: Sequence[pa.Schema], names: Sequence[str]) -> pa.Schema:
    """Collect all columns that one of the files has, and what they mean."""
    columns: dict[str, Any] = {}
    about: dict[str, Any] = {}
    for schema in schemas:
        about = json.loads(schema.metadata[META.encode()])
        columns.update(about["columns"])
    told = {META: json.dumps({**about, "columns": columns}, separators=(",", ":")), REPLACES: json.dumps(names)}
    return pa.unify_schemas(schemas, promote_options="default").with_metadata(told)


def _pieces(store: ObjectStore, files: Sequence[StoredObject], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield all rows, by their key and in order of time, each once; some portals, workers, ... at a time."""
    key = json.loads(schema.metadata[META.encode()]).get("key", [])
    first = next((name for name in key if pa.types.is_string(schema.field(name).type)), None)
    times = -(-sum(file.size for file in files) // MUCH)
    pieces: list[Filters | None] = [None]
    if first is not None and times > 1:
        found = [_rows(store, file, columns=[first])[first].unique() for file in files]
        values = sorted({value for column in found for value in column.to_pylist() if value is not None})
        each = -(-len(values) // times)
        pieces = [[(first, "in", values[at : at + each])] for at in range(0, len(values), each)]
    for wanted in pieces:
        parts = [_rows(store, file, filters=wanted) for file in files]
        rows = pa.concat_tables([pa.unify_schemas([schema]).empty_table(), *parts], promote_options="default")
        rows = rows.select(schema.names)
        is_scraped = pc.fill_null(pc.equal(rows["source"], SCRAPED), False)
        whole = _once(rows.filter(pc.invert(is_scraped)), [n for n in (*KEY, *key, "page") if n in schema.names])
        rows = pa.concat_tables([whole, _merged(rows.filter(is_scraped), ["ts", *key])])
        order = [(name, "ascending") for name in (*key, "ts")]
        yield rows.take(pc.sort_indices(rows, sort_keys=order)).replace_schema_metadata(schema.metadata)


def _rows(
    store: ObjectStore, file: StoredObject, columns: Sequence[str] | None = None, filters: Filters | None = None
) -> pa.Table:
    """Read a file. Raises: FileNotFoundError, UnreadableRowsError."""
    try:
        return pq.read_table(store.open(file.path), columns=columns, filters=filters)
    except FileNotFoundError:
        raise
    except BROKEN as e:
        raise UnreadableRowsError(file, first_line(e)) from e


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
