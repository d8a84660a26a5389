"""Remembers what was made of a day of a DRO: files that were read, where its counters ended, what it adds to gold."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa

from analytics.store.errors import HistoryError
from analytics.store.objects import ObjectStore, unique

ADDED: Final = "added"
"""A folder of what the days that are being made add to gold, until that has it."""
Key = tuple[Any, ...]
TIMES: Final = ("minute", "ts_first", "ts_last", "clock_us")


@dataclass(frozen=True, slots=True)
class Seed:
    """Holds what a scope had counted when it was sampled last; times are microseconds."""

    minute: int
    ts_first: int
    ts_last: int
    clock_us: int
    counters: Mapping[str, int]


Seeds = dict[Key, Seed]
Known = dict[str, list[Any]]  # by the name of a file its size, mtime_ns and digest


@dataclass(slots=True)
class DayRecord:
    """Remembers of a day of a DRO, by table, the files that were read and the one that has all of their samples (empty
    when they have to be read again); where what grows has ended; and how the day before had (a text).
    """

    files: dict[str, Known] = field(default_factory=dict)
    merged: dict[str, str] = field(default_factory=dict)
    ends: dict[str, Seeds] = field(default_factory=dict)
    begun: str = ""

    @classmethod
    def read(cls, store: ObjectStore, path: str) -> DayRecord:
        """Read one, or give an empty one for an empty path. Raises: OSError, HistoryError: it is broken or gone."""
        if not path:
            return cls()
        try:
            told = json.loads(zlib.decompress(store.read(path)))
            ends = {
                name: {
                    tuple(key): Seed(**dict(zip(TIMES, times, strict=True)), counters=of) for key, times, of in seeds
                }
                for name, seeds in told["ends"].items()
            }
            return cls(dict(told["files"]), dict(told["merged"]), ends, told["begun"])
        except (FileNotFoundError, ValueError, zlib.error, LookupError, TypeError, AttributeError) as e:
            what = f"{store.shown(path)}: it cannot be read ({e})"
            raise HistoryError(f"{what}; remove silver and gold of the history, and run it again") from e

    def write(self, store: ObjectStore, day: str, dro: str) -> str:
        """Write it; where it is."""
        ends = {
            name: [(key, [getattr(seed, time) for time in TIMES], seed.counters) for key, seed in seeds.items()]
            for name, seeds in self.ends.items()
        }
        told = {"files": self.files, "merged": self.merged, "ends": ends, "begun": self.begun}
        content = zlib.compress(json.dumps(told).encode())
        path = f"{folder_of('record', day, dro)}/{unique('record', content)}.json.z"
        store.put(path, content)
        return path

    def end(self) -> str:
        """Give a text that changes when an end does."""
        told = {
            name: sorted(
                (key, *(getattr(seed, time) for time in TIMES), sorted(seed.counters.items()))
                for key, seed in seeds.items()
            )
            for name, seeds in self.ends.items()
        }
        return hashlib.sha256(repr(told).encode()).hexdigest()[:32] if told else ""


def folder_of(table: str, day: str, dro: str) -> str:
    """Name the folder of a DRO and a day in a silver table."""
    name = "".join(char if ord(char) > 127 else quote(char, safe="") for char in dro)
    return f"silver/{table}/day={day}/dro={name}"


def packed(tables: Mapping[str, pa.Table]) -> bytes:
    """Put tables into bytes, which are few: what a day adds to gold may have many zeros."""
    found = {name: _stream(rows, "zstd") for name, rows in tables.items()}
    names, streams = pa.array(found, pa.string()), pa.array(found.values(), pa.binary())
    return _stream(pa.table({"name": names, "rows": streams}))


def added_tables(store: ObjectStore, path: str) -> dict[str, pa.Table]:
    """Read the rows that a day of a DRO adds to gold. Raises: OSError."""
    found = pa.ipc.open_stream(store.read(path)).read_all()
    streams = zip(found["name"].to_pylist(), found["rows"].to_pylist(), strict=True)
    return {name: pa.ipc.open_stream(rows).read_all() for name, rows in streams}


def _stream(rows: pa.Table, compression: str | None = None) -> bytes:
    to = pa.BufferOutputStream()
    with pa.ipc.new_stream(to, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(rows)
    return bytes(to.getvalue())
