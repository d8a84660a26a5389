"""Small files become one, days that are too old go, and nothing is lost or there twice wherever it stops."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analytics.store.files import opened, parts_of, without_replaced
from analytics.store.objects import ObjectStore
from dro.errors import ResourceError
from supervisor.history.compact import Compacted, compact
from tests.builders.histories import START_S, write

TODAY: Final = date(2024, 3, 2)
DAY_S: Final = 86_400


def row(dro: str, at_s: int, portal: str = "P", source: str = "pages", **cells: object) -> dict[str, Any]:
    ts = (START_S + at_s) * 1_000_000
    return {"dro": dro, "ts": ts, "run": START_S * 1_000_000, "source": source, "portal": portal, "page": 1, **cells}


def read(folder: Path, table: str = "portal") -> list[dict[str, Any]]:
    """The rows as Spark's job gets them, in order, without what is unknown."""
    store = ObjectStore(str(folder))
    by_day = [list(of) for _, of in groupby(parts_of(store, table), key=lambda part: (part.day, part.dro))]
    found = [one for parts in by_day for one in without_replaced(opened(store, parts, table, pytest.fail))]
    rows = [row for one in found for row in one.file.read().to_pylist()]
    plain = [{name: value for name, value in row.items() if value is not None} for row in rows]
    return sorted(plain, key=lambda row: (row["ts"], row["portal"]))


def three_files(folder: Path) -> None:
    """Two whole rows, one of them twice; a scrape that came in two files; events; and rows of today."""
    write(folder, "portal", [row("D", 0, sent=1), row("D", 10, sent=2), row("D", 10, "Q", sent=5)], "1")
    write(folder, "portal", [row("D", 10, sent=2), row("D", 20, source="prometheus", sent=3)], "2")
    write(folder, "portal", [row("D", 20, source="prometheus", sent_bytes=30), row("D", 2 * DAY_S, sent=9)], "3")
    for name in ("1", "2"):
        event = {"serial": 1, "event": "e", "fields": {"a": "b"}}
        write(folder, "event", [{**row("D", 0), **event, "source": "pages"}], name)


def test_rows_are_there_once_and_a_scrape_is_one_row(tmp_path: Path) -> None:
    three_files(tmp_path)
    done = compact(tmp_path, TODAY)
    assert (done.files_before, done.files_after) == (5, 2)
    rows = read(tmp_path)
    assert [(r["portal"], r["sent"]) for r in rows] == [("P", 1), ("P", 2), ("Q", 5), ("P", 3), ("P", 9)]
    assert rows[3]["sent_bytes"] == 30
    assert len(list(tmp_path.glob("table=event/*/*/*.parquet"))) == 1
    [event] = pq.read_table(next(tmp_path.glob("table=event/*/*/*.parquet")), partitioning=None).to_pylist()
    assert event["fields"] == [("a", "b")]
    assert compact(tmp_path, TODAY) == Compacted(2, 2, 0, 0), "there is nothing left to do"


def test_what_a_newer_release_added_stays(tmp_path: Path) -> None:
    write(tmp_path, "portal", [row("D", 0, sent=1)], "1")
    old = next(tmp_path.glob("table=portal/*/*/*.parquet"))
    table = pq.read_table(old, partitioning=None)
    pq.write_table(table.drop_columns(["sent"]), old)
    write(tmp_path, "portal", [row("D", 10, sent=2)], "2")
    compact(tmp_path, TODAY)
    assert [r.get("sent") for r in read(tmp_path)] == [None, 2]


def test_a_crash_at_any_point_loses_and_doubles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crash(BaseException):
        pass

    reached = True
    nth = 0
    while reached:
        folder = tmp_path / str(nth)
        three_files(folder)
        expected = [(r["ts"], r["portal"], r["sent"]) for r in read(folder) if "sent" in r]
        left = [nth]
        reached = False

        def crashing(call: Callable[..., Any], left: list[int] = left) -> Callable[..., Any]:
            def called(*given: Any, **named: Any) -> Any:  # noqa: ANN401
                nonlocal reached
                if not left[0]:
                    reached = True
                    raise Crash
                left[0] -= 1
                return call(*given, **named)

            return called

        with monkeypatch.context() as patch, contextlib.suppress(Crash):
            for name in ("fsync", "rename", "unlink"):
                patch.setattr(os, name, crashing(getattr(os, name)))
            compact(folder, TODAY)
        assert {*expected} == {(r["ts"], r["portal"], r["sent"]) for r in read(folder) if "sent" in r}, nth
        compact(folder, TODAY)
        assert [*dict.fromkeys(expected)] == [(r["ts"], r["portal"], r["sent"]) for r in read(folder)], nth
        assert len(list(folder.glob("table=portal/day=2024-02-29/*/*.parquet"))) == 1
        nth += 1
    assert nth > 6


def test_old_days_go_and_what_comes_late_for_them_is_left_out(tmp_path: Path) -> None:
    for day in range(4):
        write(tmp_path, "portal", [row("D", day * DAY_S, sent=day)], "1")
    compact(tmp_path, date(2024, 3, 3), keep_days=2)
    assert [r["sent"] for r in read(tmp_path)] == [2, 3]
    write(tmp_path, "portal", [row("D", 5, sent=7)], "late")
    assert [r["sent"] for r in read(tmp_path)] == [2, 3]
    size = sum(path.stat().st_size for path in tmp_path.glob("table=portal/day=2024-03-03/*/*"))
    done = compact(tmp_path, date(2024, 3, 3), keep_bytes=size)
    assert [r["sent"] for r in read(tmp_path)] == [3], "today stays whatever it takes"
    assert done.days_removed == 2, "and what came late is gone"


def test_days_that_have_not_come_or_are_none_stay_and_hide_nothing(tmp_path: Path) -> None:
    write(tmp_path, "portal", [row("D", day * DAY_S, sent=day) for day in (0, 2)], "1")
    for name in ("foo", "9999-12-31", "2024-13-45"):
        where = tmp_path / f"table=portal/day={name}/dro=D"
        where.mkdir(parents=True)
        (where / "part-1.parquet").write_bytes(b"")
    compact(tmp_path, date(2024, 3, 3), keep_days=1)
    assert (tmp_path / "kept-from").read_text() == "2024-03-03\n"
    assert (tmp_path / "table=portal/day=9999-12-31/dro=D/part-1.parquet").exists()


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"nothing: no directory of a history"):
        compact(tmp_path / "nothing", date(2024, 3, 3))


def test_torn_and_foreign_files_stay_and_are_named(tmp_path: Path) -> None:
    three_files(tmp_path)
    torn = next(tmp_path.glob("table=portal/day=2024-02-29/*/part-1.parquet"))
    torn.write_bytes(torn.read_bytes()[:-9])
    foreign = torn.with_name("foreign.parquet")
    pq.write_table(pa.table({"a": [1]}), foreign)
    bad: list[str] = []
    compact(tmp_path, TODAY, on_bad=bad.append)
    assert sorted(line.partition(": ")[0] for line in bad) == sorted(map(str, (torn, foreign)))
    assert torn.exists()
    assert foreign.exists()


def test_a_file_whose_rows_cannot_be_read_stays_and_the_others_are_joined(tmp_path: Path) -> None:
    three_files(tmp_path)
    torn = next(tmp_path.glob("table=portal/day=2024-02-29/*/part-1.parquet"))
    content = torn.read_bytes()
    end = len(content) - 8 - int.from_bytes(content[-8:-4], "little")  # of the rows
    torn.write_bytes(content[:4] + bytes(b ^ 0xFF for b in content[4:end]) + content[end:])
    bad: list[str] = []
    done = compact(tmp_path, TODAY, on_bad=bad.append)
    assert [line.partition(" (")[0] for line in bad] == [f"{torn}: its rows cannot be read"]
    assert sorted(path.name[:12] for path in torn.parent.iterdir()) == ["part-1.parqu", "part-compact"]
    assert done.files_after == 3


def test_a_disk_that_is_full_is_named_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    three_files(tmp_path)
    before = read(tmp_path)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ResourceError, match="No space left on device"):
            compact(tmp_path, TODAY)
    assert read(tmp_path) == before
    assert not [path for path in tmp_path.rglob(".*") if path.is_file()]
