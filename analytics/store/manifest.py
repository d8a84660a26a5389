"""Remembers what the tables of a history are made of: an object for each day, and one for what lasts longer.

A manifest is written once, whole, under the next number of its name; the highest number that is whole is the one that
holds. So tables change at once, in any store, and what a killed job has left belongs to none.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from analytics.store.errors import HistoryError
from analytics.store.files import ARROW, READERS
from analytics.store.objects import ObjectStore, StoredObject, first_line, unique

FOLDER: Final = "gold/manifest"
VERSION: Final = 1
LASTING: Final = "lasting"
ATTEMPTS: Final = 5
CLAIMS: Final = "gold/claims"
CLAIM_S: Final = 60.0
"""How long a job in a store without locks keeps others out after it was killed."""
TYPES: Final = {**ARROW, "double": pa.float64(), "int": pa.int32()}
_NAMES: Final = {of: name for name, of in TYPES.items()}


@dataclass(frozen=True, slots=True)
class TableFile:
    """The rows of a table: where they are (nowhere when there are none), and the types of its columns."""

    path: str
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DroDay:
    """Tells what a day of a DRO was made of, as texts that change when that does, and where its record is."""

    files: str
    before: str = ""
    end: str = ""
    record: str = ""
    merged: tuple[str, ...] = ()


@dataclass(slots=True)
class Manifest:
    """Tells of a day its DROs and tables; `days`, of what lasts longer: the files of each day that it was made of."""

    number: int = 0
    dros: dict[str, DroDay] = field(default_factory=dict)
    tables: dict[str, TableFile] = field(default_factory=dict)
    days: dict[str, list[str]] = field(default_factory=dict)


def columns_of(rows: pa.Schema) -> dict[str, str]:
    """Name the types of columns; those that are none of ours by what Arrow calls them."""
    return {one.name: _NAMES.get(one.type, str(one.type)) for one in rows}


class Manifests:
    """All manifests of a history, as they are in its store; those who write them are `alone`."""

    def __init__(self, store: ObjectStore, check: Callable[[], None] = lambda: None) -> None:
        """Read them. `check` raises when they must not be written. Raises: HistoryError."""
        self._store, self._check = store, check
        self._there: dict[str, list[int]] = {}
        self.of: dict[str, Manifest] = {}
        for _ in range(ATTEMPTS):
            try:
                self._look()
                return
            except FileNotFoundError:  # there is a newer one meanwhile
                continue
        raise HistoryError(f"{store.shown(FOLDER)}: it changes all the time; run it again")

    def _look(self) -> None:
        found: dict[str, list[tuple[int, StoredObject]]] = {}
        for one in self._store.objects(FOLDER):
            name, _, number = one.name.removesuffix(".json").rpartition(".")
            if number.isdigit():
                found.setdefault(name, []).append((int(number), one))
        with ThreadPoolExecutor(READERS) as pool:  # each is a question to another machine, if the store is there
            self.of = dict(zip(found, pool.map(self._newest, found.values()), strict=True))
        self._there = {name: [number for number, _ in of] for name, of in found.items()}

    def _newest(self, numbered: Sequence[tuple[int, StoredObject]]) -> Manifest:
        by_number = [one for _, one in sorted(numbered, key=lambda of: of[0], reverse=True)]
        for one in by_number:
            if (found := _read(self._store, one)) is not None:
                return found
        what = f"{self._store.shown(by_number[0].path)} is broken"
        raise HistoryError(f"{what}: remove silver and gold, and all tables are made anew")

    def put(self, name: str, made: Manifest) -> None:
        """Let a manifest hold from now on. Raises: HistoryError."""
        self._check()
        numbers = self._there.setdefault(name, [])
        made.number = max(numbers, default=0) + 1
        told = {
            "version": VERSION, "days": made.days,
            "dros": {dro: list(asdict(of).values()) for dro, of in made.dros.items()},
            "tables": {table: asdict(of) for table, of in made.tables.items()},
        }  # fmt: skip
        content = json.dumps(told, separators=(",", ":")).encode()
        path = f"{FOLDER}/{name}.{made.number}.json"
        self._store.put(path, content + b"\n" + hashlib.sha256(content).hexdigest().encode() + b"\n")
        self._store.remove(f"{FOLDER}/{name}.{number}.json" for number in numbers)
        self._there[name] = [made.number]
        self.of[name] = made

    def remove(self, name: str) -> None:
        """Let none of a name hold any longer. Raises: OSError."""
        self._check()
        del self.of[name]
        self._store.remove(f"{FOLDER}/{name}.{number}.json" for number in sorted(self._there.pop(name)))

    def days(self) -> dict[str, Manifest]:
        """Give those of days, in their order."""
        return {name: of for name, of in sorted(self.of.items()) if name != LASTING}


@lru_cache(maxsize=8192)
def _read(store: ObjectStore, one: StoredObject) -> Manifest | None:
    """Read a manifest, unless it was read as it is: who looks again and again asks for the new ones. None: torn."""
    content, _, checksum = store.read(one.path).strip().rpartition(b"\n")
    if hashlib.sha256(content).hexdigest().encode() != checksum:
        return None
    return _manifest(int(one.name.split(".")[-2]), content, store.shown(one.path))


def _manifest(number: int, content: bytes, path: str) -> Manifest:
    told: dict[str, Any] = json.loads(content)
    if told["version"] > VERSION:
        raise HistoryError(f"{path} is of a newer release: install that one")
    return Manifest(
        number,
        {dro: DroDay(files, before, end, record, tuple(merged)) for dro, (files, before, end, record, merged)
         in told["dros"].items()},
        {table: TableFile(**of) for table, of in told["tables"].items()},
        told["days"],
    )  # fmt: skip


def read_rows(store: ObjectStore, path: str) -> pa.Table:
    """Read a file of a table that was made. Raises: OSError, HistoryError: it is broken or gone."""
    try:
        content = store.read(path)
    except FileNotFoundError as e:
        raise HistoryError(f"{store.shown(path)}: the tables were made anew meanwhile; run it again") from e
    try:
        return pq.ParquetFile(pa.BufferReader(content)).read()
    except (OSError, pa.ArrowException) as e:
        what = f"{store.shown(path)}: it cannot be read ({first_line(e)})"
        raise HistoryError(f"{what}; remove silver and gold of the history, and run tnwgd-aggregate again") from e


@contextmanager
def alone(store: ObjectStore) -> Iterator[Callable[[], None]]:
    """Keep other jobs out; gives what raises when that is no longer sure. Raises: HistoryError."""
    if (folder := store.folder) is None:
        with _claimed(store) as check:
            yield check
        return
    (folder / "gold").mkdir(exist_ok=True)
    lock = os.open(folder / "gold/.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lambda: None
    except BlockingIOError:
        raise HistoryError(f"{store.shown('gold')}: another run makes these tables; wait for its end") from None
    finally:
        os.close(lock)


@contextmanager
def _claimed(store: ObjectStore) -> Iterator[Callable[[], None]]:
    """Put a claim beside those of others, renewed as long as the job goes on. Who finds another one that is not old
    withdraws: of two that come at once at least one sees the other."""
    content = f"{socket.gethostname()} {os.getpid()}".encode()
    mine, is_over, renewed = f"{CLAIMS}/{unique('claim', content)}", threading.Event(), time.monotonic()
    store.put(mine, content)

    def renew() -> None:
        nonlocal renewed
        while not is_over.wait(CLAIM_S / 4):
            with suppress(OSError):
                begin = time.monotonic()
                store.put(mine, content)
                renewed = begin

    def check() -> None:
        if time.monotonic() - renewed > CLAIM_S / 2:
            raise HistoryError(f"{store.shown(mine)} could not be renewed: nothing is lost, run it again")

    thread = threading.Thread(target=renew, daemon=True)
    try:
        found = {one.path: one.mtime_ns / 1e9 for one in store.objects(CLAIMS)}
        now = found.pop(mine, max(found.values(), default=0.0))  # by the clock of the store
        if others := [path for path, at in found.items() if now - at < CLAIM_S]:
            raise HistoryError(
                f"{store.shown(others[0])}: another run makes these tables, or was killed: wait for its end, or"
                f" {CLAIM_S:g} s"
            )
        store.remove(found)
        thread.start()
        yield check
    finally:
        is_over.set()
        if thread.ident:
            thread.join()
        with suppress(OSError):  # it gets old by itself
            store.remove([mine])
