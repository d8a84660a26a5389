"""A file that cannot be read is named, with what is wrong, and costs nothing but itself."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analytics.store.files import META, REPLACES, VERSION, opened, parts_of
from analytics.store.objects import ObjectStore
from tests.builders.histories import START_S, write

ROW: Final = {"dro": "A", "ts": START_S * 1_000_000, "portal": "P", "sent": 1}


def with_metadata(path: Path, change: Callable[[dict[str, Any]], object], replaces: bytes = b"[]") -> None:
    """Write the file again, with something else about itself."""
    rows = pq.ParquetFile(path).read()
    about = json.loads(pq.read_metadata(path).metadata[META])
    change(about)
    pq.write_table(rows.replace_schema_metadata({META: json.dumps(about), REPLACES: replaces}), path)


def with_type(path: Path, name: str, kind: pa.DataType) -> None:
    """Write the file again with another type of a column."""
    rows = pq.ParquetFile(path).read()
    at = rows.column_names.index(name)
    rows = rows.set_column(at, name, rows.column(name).cast(kind))
    pq.write_table(rows.replace_schema_metadata({META: pq.read_metadata(path).metadata[META]}), path)


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def read(folder: Path, on_bad: Callable[[str], object]) -> list[str]:
    """Look into all files; the names of those that can be read."""
    store, told = ObjectStore(str(folder)), lambda what, _: on_bad(what)
    return [file.part.name for file in opened(store, parts_of(store, "portal", told), "portal", told)]


BROKEN: Final[dict[str, tuple[Callable[[Path], object], str]]] = {
    "empty": (lambda path: path.write_bytes(b""), "no whole Parquet file"),
    "torn": (lambda path: path.write_bytes(path.read_bytes()[:-9]), "no whole Parquet file"),
    "text": (lambda path: path.write_text("no Parquet at all"), "no whole Parquet file"),
    "directory": (as_directory, "no whole Parquet file"),
    "foreign": (lambda path: pq.write_table(pa.table({"ts": [1]}), path), "no file of a history"),
    "newer": (lambda path: with_metadata(path, lambda of: of.update(version=VERSION + 1)), "install a newer one"),
    "of another table": (lambda path: with_metadata(path, lambda of: of.update(table="dro")), "of the table dro"),
    "version as text": (lambda path: with_metadata(path, lambda of: of.update(version="1")), "cannot be read"),
    "no columns": (lambda path: with_metadata(path, lambda of: of.pop("columns")), "cannot be read"),
    "columns in a list": (lambda path: with_metadata(path, lambda of: of.update(columns=[])), "cannot be read"),
    "unknown type": (
        lambda path: with_metadata(path, lambda of: of["columns"]["sent"].update(type="word")), "cannot be read",
    ),
    "what it replaces": (lambda path: with_metadata(path, lambda of: None, b"7"), "cannot be read"),
    "text for a number": (lambda path: with_type(path, "sent", pa.string()), "sent is string, and should be int64"),
    "other times": (lambda path: with_type(path, "ts", pa.timestamp("ms")), "ts is timestamp[ms]"),
    "a column less": (
        lambda path: with_metadata(path, lambda of: of["columns"].update(more={"type": "long", "kind": "counter"})),
        "more is not there",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_named_and_the_others_are_read(name: str, tmp_path: Path) -> None:
    for part in ("good", "bad"):
        write(tmp_path, "portal", [ROW], part)
    [path] = tmp_path.glob("table=portal/*/*/part-bad.parquet")
    change, why = BROKEN[name]
    change(path)
    said: list[str] = []
    found = read(tmp_path, said.append)
    [line] = said
    assert line.startswith(f"{path}: ")
    assert why in line
    assert line.endswith("; it is left out")
    assert found == ["part-good.parquet"]


STRAY: Final = ("day=notaday/dro=A", "day=2024-02-31/dro=A", "day=2024-02-29/A", ".", "day=2024-02-29")


@pytest.mark.parametrize("where", STRAY)
def test_a_file_that_is_not_in_its_place_is_named_and_the_others_are_read(where: str, tmp_path: Path) -> None:
    write(tmp_path, "portal", [ROW], "good")
    [path] = tmp_path.glob("table=portal/*/*/part-good.parquet")
    stray = tmp_path / "table=portal" / where / "part-stray.parquet"
    stray.parent.mkdir(parents=True, exist_ok=True)
    stray.write_bytes(path.read_bytes())
    said: list[str] = []
    assert read(tmp_path, said.append) == ["part-good.parquet"]
    assert said == [f"{stray}: not in table=TABLE/day=YYYY-MM-DD/dro=NAME; it is left out"]


def test_no_change_of_a_byte_breaks_more_than_the_file(tmp_path: Path) -> None:
    for part in ("good", "bad"):
        write(tmp_path, "portal", [ROW], part)
    [path] = tmp_path.glob("table=portal/*/*/part-bad.parquet")
    whole = path.read_bytes()
    chance = random.Random(1)
    for _ in range(60):
        changed = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            changed[-chance.randint(1, len(whole))] = chance.randrange(256)
        path.write_bytes(changed)
        assert "part-good.parquet" in read(tmp_path, lambda line: None)


def test_an_object_that_cannot_be_written_leaves_the_earlier_one_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ObjectStore(str(tmp_path))
    store.put("state", b"one")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("analytics.store.objects.os.fsync", full)
    with pytest.raises(OSError, match="No space left on device") as refused:
        store.put("state", b"two")
    assert refused.value.filename == f"{tmp_path}/state"
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("state", "one")]
