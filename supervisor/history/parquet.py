"""Writes Parquet files of a history, and joins several to one that names those that it stands for: as long as they are
there too, readers leave them out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from supervisor.history.tables import META

REPLACES: Final = "open_dro.replaces"
SCRAPED: Final = "prometheus"
KEY: Final = ("ts", "run", "seq", "source")
MUCH: Final = 32 << 20
"""Bytes of files of which the rows of one portal, worker, ... are joined at a time."""
ROW_GROUP: Final = 65_536
"""Rows that a row group has at least, but the last one."""


def write_tables(path: Path, schema: pa.Schema, contents: Iterable[pa.Table], *, is_large: bool = False) -> None:
    """Write a Parquet file that has its name when it is whole and on the disk. Raises: OSError."""
    unnamed = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unnamed.open("wb") as file:
            with pq.ParquetWriter(file, schema.remove_metadata(), **_form(schema, is_large)) as to:
                to.add_key_value_metadata(schema.metadata)
                for content in _gathered(contents):
                    to.write_table(content)
            file.flush()
            os.fsync(file.fileno())
        unnamed.rename(path)
    except OSError:
        unnamed.unlink(missing_ok=True)
        raise
    sync(path.parent)


def _gathered(contents: Iterable[pa.Table]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    for content in contents:
        waiting.append(content)
        if sum(map(len, waiting)) >= ROW_GROUP:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting.clear()
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def sync(folder: Path) -> None:
    """Put the names in a directory on the disk. Raises: OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _form(schema: pa.Schema, is_large: bool) -> Mapping[str, Any]:
    """Choose how columns are written, for `ParquetWriter`: whole numbers and times as differences, texts by number."""
    numbers = [field.name for field in schema if pa.types.is_int64(field.type) or pa.types.is_timestamp(field.type)]
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    maps = [field.name for field in schema if pa.types.is_map(field.type)]
    return {
        "compression": "zstd" if is_large else "lz4",  # which is read twice as fast, where columns are short
        "use_dictionary": [*texts, *(f"{name}.key_value.key" for name in maps)],
        "column_encoding": dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
        "write_statistics": ["ts"],  # with 300 columns, what a file says of each is most of it
        "store_schema": False,
    }


def join(schemas: Mapping[Path, pa.Schema], to: Path) -> None:
    """Join files to one, which names them, and remove them. Raises: OSError; all rows are in one or the other."""
    schema = _joint_schema(list(schemas.values()), [path.name for path in schemas])
    write_tables(to, schema, _pieces(list(schemas), schema), is_large=True)
    for path in schemas:
        path.unlink(missing_ok=True)


def joinable(paths: Iterable[Path], on_bad: Callable[[str], object]) -> dict[Path, pa.Schema]:
    """Look into files: those that can be joined, with their schemas. `on_bad` is told of others. Removes those that
    another one stands for, since a crash came before. Raises: OSError."""
    schemas: dict[Path, pa.Schema] = {}
    for path in paths:
        try:
            schema = pq.read_schema(path)
        except FileNotFoundError:  # another program has joined it
            continue
        except (OSError, pa.ArrowException) as e:
            on_bad(f"{path}: no whole Parquet file ({str(e).splitlines()[0]}); it is left as it is")
            continue
        if META.encode() in (schema.metadata or {}):
            schemas[path] = schema
        else:
            on_bad(f"{path}: no file of a history; it is left as it is")
    stale = {name for schema in schemas.values() for name in _replaced(schema.metadata)}
    for path in [path for path in schemas if path.name in stale]:
        path.unlink(missing_ok=True)
        del schemas[path]
    return schemas


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


def _pieces(paths: Sequence[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield all rows, by their key and in order of time, each once; a portal, worker, ... at a time."""
    key = json.loads(schema.metadata[META.encode()]).get("key", [])
    first = next((name for name in key if pa.types.is_string(schema.field(name).type)), None)
    if first is None or sum(path.stat().st_size for path in paths) < MUCH:
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
