"""Reads and writes the objects of a history, on this machine's disks or by URI in another store (S3, HDFS, ...)."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit, urlunsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

ROW_GROUP: Final = 16_384
"""Rows that a row group has at least, but the last one."""
_WITH_BUCKETS: Final = ("s3", "gcs", "abfs")
_NUMBERS: Final = (pa.int64(), pa.timestamp("us", tz="UTC"))


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object: its path within the store, its size in bytes, and when it was written."""

    path: str
    size: int
    mtime_ns: int

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class ObjectStore:
    """A directory, or what a URI names. Its objects are each whole or not there. Paths are relative.

    Methods raise OSError, which names the object.
    """

    address: str

    @cached_property
    def _found(self) -> tuple[fs.FileSystem, str]:
        try:
            if not self.address:
                raise OSError(errno.EINVAL, "no directory and no URI was named")
            if "://" not in self.address:
                return fs.LocalFileSystem(), str(Path(self.address).absolute())
            files, base = fs.FileSystem.from_uri(self.address)
            if not base.strip("/"):
                raise OSError(errno.EINVAL, "the URI names no bucket or directory")
            return files, base
        except (pa.ArrowException, OSError, ValueError) as e:
            what = getattr(e, "strerror", "") or first_line(e)
            raise OSError(errno.EINVAL, f"no store that can be used: {what}", self.shown()) from e

    def __reduce__(self) -> tuple[type[ObjectStore], tuple[str]]:
        return ObjectStore, (self.address,)  # a connection is of one process

    @property
    def folder(self) -> Path | None:
        """The directory, on this machine's disks."""
        files, base = self._found
        return Path(base) if isinstance(files, fs.LocalFileSystem) else None

    def shown(self, path: str = "") -> str:
        """Name an object for a person: without the password of a URI."""
        base, parts = self.address or "''", urlsplit(self.address)
        if "://" in base and parts.netloc:
            base = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))
        return f"{base.rstrip('/')}/{path}" if path else base

    def is_there(self) -> bool:
        """Tell whether the directory, or any object, is there."""
        files, base = self._found
        with self._named(""):
            return bool(files.get_file_info(base).type == fs.FileType.Directory)

    def check(self) -> None:
        """Raise OSError where there is no bucket of that name; of a store that does not answer that is not known."""
        files, base = self._found
        bucket, is_there = base.strip("/").partition("/")[0], True
        if files.type_name in _WITH_BUCKETS:
            with suppress(OSError):
                is_there = files.get_file_info(bucket).type != fs.FileType.NotFound
        if not is_there:
            raise OSError(errno.ENOENT, f"there is no bucket {bucket}", self.shown())

    def objects(self, folder: str) -> Iterator[StoredObject]:
        """Find all that lie in a folder or deeper, but those whose names begin with a point."""
        files, base = self._found
        with self._named(folder):
            found = files.get_file_info(fs.FileSelector(f"{base}/{folder}", allow_not_found=True, recursive=True))
        for one in sorted(found, key=lambda one: one.path):
            if one.base_name[:1] != "." and (one.type == fs.FileType.File or one.base_name.endswith(".parquet")):
                yield StoredObject(one.path[len(base) + 1 :], one.size or 0, one.mtime_ns or 0)

    def open(self, path: str) -> pa.NativeFile:
        """Open an object to read it, at any place."""
        files, base = self._found
        with self._named(path):
            return files.open_input_file(f"{base}/{path}")

    def read(self, path: str) -> bytes:
        """Read an object."""
        with self.open(path) as file, self._named(path):
            return bytes(file.read())

    def put(self, path: str, content: bytes | pa.Buffer) -> None:
        """Write an object; it is there when it is whole and on the disk."""
        files, base = self._found
        with self._named(path):
            if isinstance(files, fs.LocalFileSystem):
                _put_file(Path(base) / path, content)
            else:
                with files.open_output_stream(f"{base}/{path}") as to:
                    to.write(content)

    def put_rows(self, path: str, schema: pa.Schema, contents: Iterable[pa.Table], compression: str = "zstd") -> None:
        """Write a Parquet file of tables that have the schema."""
        to = pa.BufferOutputStream()
        write_parquet(to, schema, contents, compression)
        self.put(path, to.getvalue())

    def remove(self, paths: Iterable[str]) -> None:
        """Remove objects, as far as they are there."""
        files, base = self._found
        for path in paths:
            with self._named(path):
                try:
                    files.delete_file(f"{base}/{path}")
                except FileNotFoundError:
                    continue

    def remove_folder(self, path: str) -> None:
        """Remove all that lies in a folder, and itself, if it is there."""
        files, base = self._found
        with self._named(path):
            if files.get_file_info(f"{base}/{path}").type == fs.FileType.Directory:
                files.delete_dir(f"{base}/{path}")

    @contextmanager
    def _named(self, path: str) -> Iterator[None]:
        """Say of what fails which object it was."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as e:
            raise OSError(e.errno or errno.EIO, e.strerror or first_line(e), self.shown(path)) from e


def write_parquet(
    to: pa.NativeFile | str, schema: pa.Schema, contents: Iterable[pa.Table], compression: str = "zstd"
) -> None:
    """Write tables as Parquet: whole numbers and times as differences, texts by number."""
    maps = [field.name for field in schema if pa.types.is_map(field.type)]
    form = {
        "compression": compression, "store_schema": False,
        "write_statistics": ["ts"],  # with 300 columns, what a file says of each is most of it
        "use_dictionary": [
            *(field.name for field in schema if field.type == pa.string()), *(f"{name}.key_value.key" for name in maps)
        ],
        "column_encoding": {field.name: "DELTA_BINARY_PACKED" for field in schema if field.type in _NUMBERS},
    }  # fmt: skip
    with pq.ParquetWriter(to, schema.remove_metadata(), **form) as writer:
        writer.add_key_value_metadata(schema.metadata or {})
        for rows in _gathered(contents):
            writer.write_table(rows)


def _gathered(contents: Iterable[pa.Table]) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    for content in contents:
        waiting.append(content)
        if sum(map(len, waiting)) >= ROW_GROUP:
            yield pa.concat_tables(waiting).combine_chunks()
            waiting.clear()
    if waiting:
        yield pa.concat_tables(waiting).combine_chunks()


def unique(prefix: str, content: bytes = b"") -> str:
    """Name an object by what it has and when it was made: no two have the same name."""
    told = f"{time.time_ns()} {os.getpid()} ".encode()
    return f"{prefix}-{hashlib.sha256(told + content).hexdigest()[:20]}"


def first_line(error: Exception) -> str:
    """Give the first line of what an error says, or its type."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def sync(folder: Path) -> None:
    """Put the names in a directory on the disk. Raises: OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _put_file(path: Path, content: bytes | pa.Buffer) -> None:
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
    sync(path.parent)
