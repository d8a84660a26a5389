"""A made history is what it says, the same for the same seed, and adds up when it is aggregated."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from analytics.generate import main
from supervisor.history.tables import schema_of


@pytest.mark.parametrize("table", ["portal", "dro"])
def test_its_files_have_the_columns_of_this_release(table: str) -> None:
    kept = pq.read_schema(str(files("analytics").joinpath(f"data/{table}.parquet")))
    assert kept.equals(schema_of(table), check_metadata=True), "run `python -m tests.builders.history_columns`"


def rows(folder: Path) -> dict[str, list[object]]:
    paths = sorted(folder.glob("table=portal/*/*/*.parquet"))
    columns = ["ts", "run", "portal", "sent", "rtt", "rtt_14", "up"]
    tables = {str(path.relative_to(folder)): pq.ParquetFile(path).read(columns) for path in paths}
    return {name: table.to_pylist() for name, table in tables.items()}


def test_the_same_seed_makes_the_same_and_counters_never_fall(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--rows", "3000", "--dros", "2", "--portals", "3", "--interval", "600"]
    for name, seed in (("one", "5"), ("same", "5"), ("other", "6")):
        assert main([*given, "--history", str(tmp_path / name), "--seed", seed]) == 0
        assert "2 DROs, 4 days" in capsys.readouterr().out
    one = rows(tmp_path / "one")
    assert one == rows(tmp_path / "same")
    assert one != rows(tmp_path / "other")
    last: dict[tuple[object, ...], dict[str, int]] = {}
    for name in sorted(one, key=lambda name: name.split("/")[1:]):
        for row in one[name]:
            assert isinstance(row, dict)
            key = (name.split("/")[2], row["portal"], row["run"])
            known = last.get(key, {"sent": 0, "rtt": 0, "rtt_14": 0})
            last[key] = {column: row[column] for column in known}
            assert all(row[column] >= known[column] for column in known), (key, row)
            assert row["rtt"] <= row["rtt_14"]
    assert main([*given, "--history", str(tmp_path / "one")]) == 1
    assert "is no empty directory: name another one" in capsys.readouterr().err
