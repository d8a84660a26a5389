"""Writes a history: rows go to a journal at once, and from there to Parquet files, a whole one at a time.

    DIR/journal/<writer>.<number>                 rows that are in no other file yet
    DIR/table=<table>/day=<day>/dro=<dro>/part-<writer>-<number>.parquet
    DIR/table=<table>/day=<day>/dro=<dro>/part-<writer>+<hash>.parquet       several of these
    DIR/table=<table>/day=<day>/dro=<dro>/part-<writer>++<hash>.parquet      all of a day that is over

A Parquet file gets its name when it is whole and on the disk, and its number is that of its journal, which goes last.
So a crash at any point leaves each row in one of the two, and what is written again gets the same name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

import msgpack
import pyarrow as pa

from analytics.store.objects import ObjectStore, StoredObject, sync
from dro.errors import ResourceError
from dro.os_errors import remedy_of
from supervisor.history.journal import MAX_RECORD, Journal, records
from supervisor.history.parquet import join
from supervisor.history.tables import FIGURES, MAP, schema_of, tables, told_columns

US_PER_S: Final = 1_000_000
Place = tuple[str, date, str]  # table, day, DRO
DroRow = Mapping[str, Any]
MAX_NAME: Final = 240
"""Bytes of a name, with what is there as `%XX`."""
ROLL_BYTES: Final = 8 << 20
ROLL_S: Final = 600.0
MANY: Final = 6
"""Files of a table, a day and a DRO that are joined: those of an hour."""


class Store:
    """The rows of one writer; there is no other one of its name. Times are microseconds since 1970.

    One thread may add and commit, and another one, for which a store may be slow, do all else.
    """

    def __init__(
        self,
        history: Path | str,
        writer: str,
        *,
        journal: Path | None = None,
        roll_s: float = ROLL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take over what a writer of that name has left. `history`: a directory or a URI; `journal`: a directory, which
        a URI needs. Raises: ResourceError."""
        self._objects: Final = ObjectStore(str(history))
        self._writer: Final = quote(writer, safe="")
        try:
            folder = self._objects.folder
        except OSError as e:
            raise ResourceError(f"cannot write the history at {e.filename}: {e.strerror}") from e
        if folder is None and journal is None:
            raise ResourceError(
                f"{self._objects.shown()} is no directory", remedy="name one for the journal, by --journal DIR"
            )
        self.shown: Final = self._objects.shown()
        self.is_remote: Final = folder is None
        self.journals: Final = journal or (folder or Path()) / "journal"
        self._roll_s, self._clock = roll_s, clock
        self._waiting: dict[str, list[DroRow]] = defaultdict(list)
        self._number = 0
        self._to_join: dict[str, Callable[[str], None]] = {}  # by folder
        self._begun: dict[tuple[str, str], date] = {}  # by table and DRO: the day before it is over, and joined
        self._turn = threading.Lock()  # of the journal
        self._journal: Journal | None = None
        self._began_s = 0.0
        self._is_full = False
        try:
            self.journals.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.journals / f"{self._writer}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as e:
            raise self._refusal(e, str(self.journals)) from e
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            os.close(self._lock)
            raise ResourceError(
                f"{self._objects.shown()}: another process writes this history as {writer}",
                remedy="end that one, or give each a directory or a name of its own",
            ) from e

    def check(self) -> None:
        """Look whether there is a bucket of that name, which may take seconds. Raises: ResourceError."""
        try:
            self._objects.check()
        except OSError as e:
            raise self._refusal(e) from e

    def add(self, table: str, dro: str, rows: Iterable[DroRow]) -> None:
        """Take rows of a DRO, to be written by the next `commit`."""
        self._waiting[table].extend({"dro": dro, **row} for row in rows)

    def forget(self) -> None:
        """Drop what was added since the last commit."""
        self._waiting.clear()

    def commit(self) -> None:
        """Put what was added on the disk, all or nothing. Raises: ResourceError; what was added is still there."""
        record = msgpack.packb(list(self._waiting.items()))
        if len(record) > MAX_RECORD:
            raise ResourceError(f"{len(record)} bytes are too much at a time", remedy=f"send {MAX_RECORD} at most")
        try:
            with self._turn:
                if self._journal is None:
                    self._number = max(self._number + 1, time.time_ns())
                    self._journal = Journal(self.journals / f"{self._writer}.{self._number}")
                    sync(self.journals)
                    self._began_s = self._clock()
                self._journal.append(record)
        except OSError as e:
            self._is_full = e.errno == errno.ENOSPC and self._has_own_disk()
            raise self._refusal(e, str(self.journals)) from e
        self._waiting.clear()

    def _has_own_disk(self) -> bool:
        folder = self._objects.folder
        return folder is None or folder.stat().st_dev != self.journals.stat().st_dev

    def tend(self) -> bool:
        """Write Parquet files when the journal is large or old enough, else join those of a folder that has many.
        Returns whether there was something to do. Raises: ResourceError; nothing is lost."""
        with self._turn:
            journal = self._journal
            is_due = self._is_full or (
                journal is not None and (journal.size >= ROLL_BYTES or self._clock() - self._began_s >= self._roll_s)
            )
        if is_due:
            return self.roll()
        if self._to_join:
            where = next(iter(self._to_join))
            try:
                self._to_join.pop(where)(where)
            except OSError as e:
                raise self._refusal(e, what="join files of") from e
            return True
        return False

    def roll(self) -> bool:
        """Write everything that was committed to Parquet files. Returns whether there was something. Raises:
        ResourceError; nothing is lost."""
        with self._turn:
            if self._journal is not None:
                self._journal.close()
                self._journal = None
            there = self.waiting()
            self._is_full = False
        try:
            for path in there:
                self._convert(path)
        except OSError as e:
            raise self._refusal(e) from e
        return bool(there)

    def waiting(self) -> list[Path]:
        """Find the journals whose rows are in no other file yet."""
        return [path for path in sorted(self.journals.glob(f"{self._writer}.*")) if path.suffix[1:].isdigit()]

    def close(self) -> None:
        """Roll, and let another writer of that name come. Raises: ResourceError."""
        try:
            self.roll()
        finally:
            os.close(self._lock)

    def _convert(self, path: Path) -> None:
        """Write the Parquet files of one journal, which goes after them. Raises: OSError."""
        merged = _merged(records(path))
        for place, rows in merged.items():
            table, _, _ = place
            write_rows(self._objects, f"{partition(*place)}/part-{path.name.replace('.', '-')}.parquet", table, rows)
        path.unlink()
        for table, day, dro in merged:
            self._to_join.setdefault(partition(table, day, dro), self._join_hour)
            before = day - timedelta(days=1)
            if (table, before, dro) not in merged and self._begun.get((table, dro), date.min) < day:
                self._to_join[partition(table, before, dro)] = self._join_day
                self._begun[table, dro] = day

    def _join_hour(self, where: str) -> None:
        """Join the small files of this writer when there are many: readers pay for each. Raises: OSError."""
        own, small = self._own(where), f"part-{self._writer}-"
        if sum(1 for file in own if file.name.startswith(small)) >= MANY:
            join(self._objects, f"{where}/part-{self._writer}+", own, lambda _: None, of=small, at_least=MANY)

    def _join_day(self, where: str) -> None:
        """Join the files of this writer of a day that is over. Raises: OSError."""
        join(self._objects, f"{where}/part-{self._writer}++", self._own(where), lambda _: None)

    def _refusal(self, error: OSError, where: str = "", what: str = "write") -> ResourceError:
        """Say what could not be written, and what to do; `where`, unless the error names it."""
        remedy = remedy_of(error.errno)
        if not where and self.is_remote:
            remedy = f"look at its address, keys and network; samples wait in {self.journals}"
        return ResourceError(
            f"cannot {what} the history at {error.filename or where or self._objects.shown()}: {error.strerror}",
            remedy=remedy,
        )

    def _own(self, where: str) -> list[StoredObject]:
        """Find the files of this writer in a folder."""
        is_own = re.compile(rf"part-{re.escape(self._writer)}(-\d+|\+.*)\.parquet").fullmatch
        return [file for file in self._objects.objects(where) if is_own(file.name)]


def fits(dro: str) -> bool:
    """Tell whether a directory can have the name of a DRO."""
    return len(quote(dro, safe="")) <= MAX_NAME


def partition(table: str, day: date, dro: str) -> str:
    """Name the directory of a table's files of a DRO and a day (UTC), within a history."""
    return f"table={table}/day={day.isoformat()}/dro={quote(dro, safe='')}"


def write_rows(store: ObjectStore, path: str, table: str, rows: list[dict[str, Any]]) -> None:
    """Write a Parquet file of rows that have the columns of the table, or some of them. Raises: OSError."""
    key = tables()[table].key
    for name in (column.name for column in tables()[table].columns if column.type in (MAP, FIGURES)):
        rows = [{**row, name: list(row[name].items())} for row in rows]
    rows.sort(key=lambda row: (*(str(row.get(name, "")) for name in key), row["ts"]))
    content = told_columns(pa.Table.from_pylist(rows, schema=schema_of(table)))
    store.put_rows(path, content.schema, [content], "lz4")  # read twice as fast as zstd, where columns are short


def _merged(journal: Iterable[bytes]) -> dict[Place, list[dict[str, Any]]]:
    """Merge a journal to rows by file. Parts of a row that came one by one are one row; the last value holds."""
    found: dict[Place, dict[tuple[Any, ...], dict[str, Any]]] = defaultdict(dict)
    runs: dict[tuple[str, int], int] = {}
    for record in journal:
        for table, rows in cast(list[tuple[str, list[dict[str, Any]]]], msgpack.unpackb(record)):
            key = tables()[table].key
            for row in rows:
                dro, ts = row.pop("dro"), row["ts"]
                day = datetime.fromtimestamp(ts / US_PER_S, UTC).date()
                found[table, day, dro].setdefault((ts, *(row.get(name) for name in key)), {}).update(row)
                if table == "dro" and row.get("run") is not None:
                    runs[dro, ts] = row["run"]
    for (_, _, dro), by_key in found.items():
        for row in by_key.values():
            if row.get("run") is None:
                row["run"] = runs.get((dro, row["ts"]))
    return {place: list(by_key.values()) for place, by_key in found.items()}
