"""Remembers what the tables of a history are made of: an object for each day, and one for what lasts longer.

A manifest is written once, whole, under the next number of its name; the highest number that is whole is the one that
holds. So tables change at once, in any store, and what a killed job has left belongs to none.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa

from analytics.errors import HistoryError
from analytics.files import ARROW
from analytics.stores import Store

FOLDER: Final = "gold/manifest"
VERSION: Final = 1
LASTING: Final = "lasting"
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

    def __init__(self, store: Store) -> None:
        """Read them. Raises: HistoryError."""
        self._store = store
        self._there: dict[str, list[int]] = {}
        for one in store.objects(FOLDER):
            name, _, number = one.name.removesuffix(".json").rpartition(".")
            if number.isdigit():
                self._there.setdefault(name, []).append(int(number))
        self.of: dict[str, Manifest] = {}
        for name, numbers in self._there.items():
            if (found := self._newest(name, numbers)) is not None:
                self.of[name] = found

    def _newest(self, name: str, numbers: list[int]) -> Manifest | None:
        for number in sorted(numbers, reverse=True):
            path = f"{FOLDER}/{name}.{number}.json"
            try:
                content, _, checksum = self._store.read(path).strip().rpartition(b"\n")
            except FileNotFoundError:  # there is a newer one
                continue
            if hashlib.sha256(content).hexdigest().encode() == checksum:
                return _manifest(number, content, self._store.shown(path))
        if numbers:
            raise HistoryError(
                f"{self._store.shown(f'{FOLDER}/{name}.{max(numbers)}.json')} is broken: remove silver and gold, and"
                " all tables are made anew"
            )
        return None

    def put(self, name: str, made: Manifest) -> None:
        """Let a manifest hold from now on. Raises: HistoryError."""
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

    def days(self) -> dict[str, Manifest]:
        """Give those of days, in their order."""
        return {name: of for name, of in sorted(self.of.items()) if name != LASTING}


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


@contextmanager
def alone(store: Store) -> Iterator[None]:
    """Keep other jobs out. Raises: HistoryError."""
    folder = store.folder
    assert folder is not None
    (folder / "gold").mkdir(exist_ok=True)
    lock = os.open(folder / "gold/.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise HistoryError(f"{store.shown('gold')}: another run makes these tables; wait for its end") from None
    finally:
        os.close(lock)
