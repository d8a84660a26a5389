"""Reads and writes the objects of a history, on this machine's disks or by URI in another store (S3, HDFS, ...)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from analytics.errors import HistoryError, first_line


@dataclass(frozen=True, slots=True)
class Stored:
    """An object: its path within the store, its size in bytes, and when it was written."""

    path: str
    size: int
    mtime_ns: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Store:
    """A directory, or what a URI names. Its objects are written once, each whole or not there. Paths are relative."""

    address: str

    @cached_property
    def _found(self) -> tuple[fs.FileSystem, str]:
        try:
            if "://" not in self.address:
                return fs.LocalFileSystem(), str(Path(self.address).absolute())
            return fs.FileSystem.from_uri(self.address)  # type: ignore[no-any-return]
        except (pa.ArrowException, OSError, ValueError) as e:
            raise HistoryError(f"{self.shown()}: no store that can be used: {first_line(e)}") from e

    def __reduce__(self) -> tuple[type[Store], tuple[str]]:
        return Store, (self.address,)  # a connection is of one process

    @property
    def folder(self) -> Path | None:
        """The directory, on this machine's disks."""
        files, base = self._found
        return Path(base) if isinstance(files, fs.LocalFileSystem) else None

    def shown(self, path: str = "") -> str:
        """Name an object for a person: without the password of a URI."""
        base = self.address
        if "://" in base:
            parts = urlsplit(base)
            base = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
        return f"{base.rstrip('/')}/{path}" if path else base

    def there(self) -> bool:
        """Tell whether the directory, or any object, is there. Raises: HistoryError."""
        files, base = self._found
        with self._named(""):
            return bool(files.get_file_info(base).type == fs.FileType.Directory)

    def objects(self, folder: str) -> Iterator[Stored]:
        """Find all that lie in a folder or deeper, but those whose names begin with a point. Raises: HistoryError."""
        files, base = self._found
        with self._named(folder):
            found = files.get_file_info(fs.FileSelector(f"{base}/{folder}", allow_not_found=True, recursive=True))
        for one in sorted(found, key=lambda one: one.path):
            if one.base_name[:1] != "." and (one.type == fs.FileType.File or one.base_name.endswith(".parquet")):
                yield Stored(one.path[len(base) + 1 :], one.size or 0, one.mtime_ns or 0)

    def open(self, path: str) -> pa.NativeFile:
        """Open an object to read it, at any place. Raises: OSError."""
        files, base = self._found
        return files.open_input_file(f"{base}/{path}")

    def read(self, path: str) -> bytes:
        """Read an object. Raises: OSError."""
        with self.open(path) as file:
            return bytes(file.read())

    def put(self, path: str, content: bytes | memoryview | pa.Buffer) -> None:
        """Write an object; it is there when it is whole and on the disk. Raises: HistoryError."""
        files, base = self._found
        with self._named(path):
            if isinstance(files, fs.LocalFileSystem):
                _put_file(Path(base) / path, content)
            else:
                with files.open_output_stream(f"{base}/{path}") as to:
                    to.write(content)

    def put_rows(self, path: str, rows: pa.Table) -> None:
        """Write a Parquet file. Raises: HistoryError."""
        to = pa.BufferOutputStream()
        write_parquet(to, rows)
        self.put(path, to.getvalue())

    def remove(self, paths: Iterable[str]) -> None:
        """Remove objects, as far as they are there. Raises: HistoryError."""
        files, base = self._found
        for path in paths:
            with self._named(path):
                try:
                    files.delete_file(f"{base}/{path}")
                except FileNotFoundError:
                    continue

    @contextmanager
    def _named(self, path: str) -> Iterator[None]:
        """Say of what fails which object it was."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as e:
            reason = e.strerror or first_line(e)
            raise HistoryError(f"{self.shown(path)}: {reason}; nothing is lost: mend it, and run it again") from e


def read_rows(store: Store, path: str) -> pa.Table:
    """Read a file of a table that was made. Raises: HistoryError."""
    try:
        return pq.ParquetFile(store.open(path)).read()
    except FileNotFoundError as e:
        raise HistoryError(f"{store.shown(path)}: the tables were made anew meanwhile; run it again") from e
    except (OSError, pa.ArrowException) as e:
        what = f"{store.shown(path)}: it cannot be read ({first_line(e)})"
        raise HistoryError(f"{what}; remove silver and gold of the history, and run tnwgd-aggregate again") from e


def write_parquet(to: pa.NativeFile | str, rows: pa.Table, compression: str = "zstd") -> None:
    """Write whole numbers and times as differences, texts by number."""
    numbers = [field.name for field in rows.schema if field.type in (pa.int64(), pa.timestamp("us", tz="UTC"))]
    form = {
        "compression": compression, "store_schema": False, "write_statistics": ["ts"],
        "use_dictionary": [field.name for field in rows.schema if field.type == pa.string()],
        "column_encoding": dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
    }  # fmt: skip
    with pq.ParquetWriter(to, rows.schema.remove_metadata(), **form) as writer:
        writer.add_key_value_metadata(rows.schema.metadata or {})
        writer.write_table(rows)


def unique(prefix: str, content: bytes) -> str:
    """Name an object by what it has and when it was made: no two have the same name."""
    told = f"{datetime.now(UTC).timestamp()} {os.getpid()}".encode()
    return f"{prefix}-{hashlib.sha256(told + content).hexdigest()[:20]}"


def _put_file(path: Path, content: bytes | memoryview | pa.Buffer) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unnamed = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unnamed.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        unnamed.rename(path)
    except OSError:
        unnamed.unlink(missing_ok=True)
        raise
