"""A history is checked by its own samples: what differs is named by day, DRO and portal, and is an exit status."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from analytics.aggregate import aggregate
from analytics.report import main as report
from analytics.store.objects import ObjectStore
from analytics.views import tables_of
from tests.analytics.coming import Coming, gold
from tests.analytics.scenes import Scene
from tests.builders.histories import write

pytestmark = pytest.mark.timeout(300)


def checked(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, list[dict[str, Any]]]:
    """The exit status and what was checked."""
    capsys.readouterr()
    status = report(["check", "--history", str(folder), "--json", *more])
    return status, json.loads(capsys.readouterr().out)


def with_one_more(path: Path, name: str) -> tuple[str, str]:
    """Let the first row of a table's file have one more; its portal and DRO."""
    rows = pq.ParquetFile(path).read()
    rows = rows.filter(pc.not_equal(rows["portal"], "")).sort_by("portal")
    first = pa.array([1] + [0] * (len(rows) - 1), pa.int64())
    at = rows.column_names.index(name)
    pq.write_table(rows.set_column(at, name, pc.add(rows[name], first)), path)
    return rows["portal"][0].as_py(), rows["dro"][0].as_py()


def write_rows_of(path: Path, count: int) -> None:
    """Write a file again, with its first rows alone."""
    file = pq.ParquetFile(path)
    pq.write_table(file.read()[:count].replace_schema_metadata(file.metadata.metadata), path)


def test_sums_of_gold_are_those_of_the_samples_and_what_differs_is_named(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(seed=11, days=2.4, step_s=30, dros=2)
    for table, rows in scene.tables.items():
        write(tmp_path, table, rows)
    write(tmp_path, "portal", scene.late, "late")
    aggregate(spark, ObjectStore(str(tmp_path)))
    status, rows = checked(tmp_path, capsys)
    told = Counter((row["check"], row["is_right"]) for row in rows)
    assert told["sums", True] >= 4
    assert not told["sums", False], [row for row in rows if row["check"] == "sums" and row["is_right"] is False]
    assert told["coverage", False], "the scene has gaps"
    assert told["clock", False], "and clocks that were set"
    assert (status, told["freshness", False]) == (1, 2), "it is of 2024"
    assert [row["what"] for row in rows if row["check"] == "sums"].count("as the samples") >= 4
    status, rows = checked(tmp_path, capsys, "--fresh", str(time.time() * 2), "--from", "2030-01-01")
    assert (status, [row["what"] for row in rows]) == (0, [])
    write(tmp_path, "portal", [dict(scene.tables["portal"][-1], dro="New")], "new")
    status, rows = checked(tmp_path, capsys)
    [wrong] = [row for row in rows if row["check"] == "sums" and row["is_right"] is False]
    assert (wrong["dro"], wrong["what"]) == ("New", "there are samples, and no sums: run tnwgd-aggregate")
    [new] = tmp_path.glob("table=portal/*/dro=New/*")
    write_rows_of(new, 0)
    _, rows = checked(tmp_path, capsys)
    assert not [row for row in rows if row["dro"] == "New"], "no rows are no samples"
    new.write_bytes(b"torn")
    _, rows = checked(tmp_path, capsys)
    [wrong] = [row for row in rows if row["dro"] == "New"]
    assert wrong["what"].startswith(f"{new}: no whole Parquet file (")
    status, rows = checked(tmp_path, capsys, "--to", "2024-02-29")
    assert not [row for row in rows if row["check"] == "sums" and row["is_right"] is False]
    next(tmp_path.glob("table=portal/*/dro=New/*")).unlink()
    [path] = tmp_path.glob("gold/day/day=2024-03-01/*.parquet")
    portal, dro = with_one_more(path, "sent_messages")
    status, rows = checked(tmp_path, capsys)
    [wrong] = [row for row in rows if row["check"] == "sums" and row["is_right"] is False]
    assert (wrong["dro"], wrong["day"]) == (dro, "2024-03-01")
    assert wrong["what"].startswith(f"{portal} sent_messages: gold has ")
    assert ", samples " in wrong["what"]


def test_what_lasts_longer_is_the_same_when_files_come_one_after_another(spark: SparkSession, tmp_path: Path) -> None:
    coming = Coming(random.Random(8), 5, days=3.3)
    for nth in range(5):
        for name in ("whole", "parts"):
            coming.write(tmp_path / name, nth)
        aggregate(spark, ObjectStore(str(tmp_path / "parts")))
    aggregate(spark, ObjectStore(str(tmp_path / "whole")))
    whole = gold(tmp_path / "whole")
    assert len(whole["topology_event"]) > 5
    assert len(whole["blocked_episode"]) > 50
    assert gold(tmp_path / "parts") == whole


def test_what_is_old_is_removed_and_not_made_again(spark: SparkSession, tmp_path: Path) -> None:
    coming = Coming(random.Random(4), 2)
    store = ObjectStore(str(tmp_path))
    for nth in range(2):
        coming.write(tmp_path, nth)
    aggregate(spark, store, keeps_minutes=True)
    before = gold(tmp_path)
    days = {row["day"] for row in tables_of(spark, store)("day").select("day").distinct().collect()}
    assert len(days) == 3
    last = max(days)
    assert aggregate(spark, store, first=last).partitions == 0
    for folder in ("gold", "silver"):
        left = {path.parent.name for path in tmp_path.glob(f"{folder}/*/day=*/*")}
        assert left - {f"day={last}"} == ({sorted(f"day={day}" for day in days)[1]} if folder == "silver" else set())
    assert not list(tmp_path.glob(f"silver/minute/day={sorted(days)[1]}"))
    after = gold(tmp_path)
    for table in ("hour", "day", "loss_minute"):
        assert after[table] == [row for row in before[table] if row.startswith(last)]
    assert all(row.startswith("lasting") for row in after["topology_event"])
    assert len(after["blocked_episode"]) < len(before["blocked_episode"])
    assert aggregate(spark, store, first=last).partitions == 0
    aggregate(spark, store, keeps_minutes=True)
    assert gold(tmp_path) == before, "what was removed is made again when it is wanted"
    assert aggregate(spark, store, first="2100-01-01").partitions == 0
    assert gold(tmp_path) == {}
    assert not list(tmp_path.glob("gold/**/*.parquet"))
    aggregate(spark, store, keeps_minutes=True)
    assert gold(tmp_path) == before
