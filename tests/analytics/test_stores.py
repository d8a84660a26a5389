"""A history in a store that is no disk: the same tables, whole at any time, made by one job at a time."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import analytics.aggregate
import analytics.store.manifest
from analytics.aggregate import RunSummary, aggregate
from analytics.report import main as report
from analytics.silver import make
from analytics.store.errors import HistoryError
from analytics.store.manifest import CLAIMS, alone
from analytics.store.objects import ObjectStore
from analytics.views import DAILY, LASTS, tables_of
from tests.analytics.coming import gold
from tests.analytics.scenes import Scene
from tests.builders.histories import write
from tests.rigs.object_store import bucket, upload

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with bucket() as made:
        yield made


@pytest.fixture
def store(uri: str, request: pytest.FixtureRequest) -> ObjectStore:
    return ObjectStore(uri.replace("/history", f"/{request.node.name[:20]}"))


def rows(spark: SparkSession, store: ObjectStore) -> dict[str, list[str]]:
    """All rows of all tables, in an order of their own."""
    tables = tables_of(spark, store)
    found = {name: tables(name) for name in (*DAILY, *LASTS)}
    return {name: sorted(str(sorted(row.asDict().items())) for row in frame.collect()) for name, frame in found.items()}


def test_tables_are_those_of_a_disk_wherever_the_store_fails(
    spark: SparkSession,
    store: ObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scene = Scene(seed=3, days=1.2, step_s=900, dros=2)
    for table, of_table in scene.tables.items():
        write(tmp_path, table, of_table)
    here = ObjectStore(str(tmp_path))
    assert aggregate(spark, here).partitions > 2
    upload(tmp_path, store.address)
    put = ObjectStore.put
    for writes in (3, 12, 1):
        left = itertools.count(writes, -1)

        def fails(to: ObjectStore, path: str, content: Any, left: Iterator[int] = left) -> None:  # noqa: ANN401  bytes
            if not path.startswith(CLAIMS) and next(left) <= 0:
                raise HistoryError(f"{to.shown(path)}: it does not answer")
            put(to, path, content)

        with monkeypatch.context() as patch:
            patch.setattr(ObjectStore, "put", fails)
            with pytest.raises(HistoryError, match=r"^s3://bucket-.*: it does not answer$"):
                aggregate(spark, store)
    aggregate(spark, store)
    assert aggregate(spark, store) == RunSummary(0, 0, ())
    assert rows(spark, store) == rows(spark, here)
    assert report(["balance", "--history", store.address, "--csv"]) == 0
    assert report(["balance", "--history", str(tmp_path), "--csv"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(lines) // 2] == lines[len(lines) // 2 :]
    assert len(lines) > 4


def test_a_store_that_goes_away_leaves_no_file_out(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analytics.aggregate, "_lasting", lambda *_: None)
    monkeypatch.setattr(analytics.aggregate, "_made", lambda _, works: (day for work in works for day in make(work)))
    scene = Scene(seed=5, days=1.2, step_s=900, dros=1)
    for table, of_table in scene.tables.items():
        write(tmp_path, table, of_table)
    no_spark: Any = None
    assert aggregate(no_spark, ObjectStore(str(tmp_path))).partitions == 2
    upload(tmp_path, store.address)
    opens = ObjectStore.open
    for reads in range(12):
        left = itertools.count(reads, -1)

        def fails(of: ObjectStore, path: str, left: Iterator[int] = left) -> pa.NativeFile:
            if next(left) <= 0:
                raise OSError(errno.EIO, "it does not answer", of.shown(path))
            return opens(of, path)

        with monkeypatch.context() as patch:
            patch.setattr(ObjectStore, "open", fails)
            with pytest.raises(HistoryError, match=r"^s3://bucket-.*: it does not answer; nothing is lost"):
                aggregate(no_spark, store)
    done = aggregate(no_spark, store)
    assert (done.left_out, gold(store)) == ((), gold(tmp_path))
    late = [{**row, "ts": row["ts"] + 1} for row in scene.tables["portal"][:9]]
    write(tmp_path, "portal", late, "late")
    upload(tmp_path, store.address)

    def no_table(of: ObjectStore, path: str) -> pa.NativeFile:
        if path.startswith(("gold/hour", "silver/record")):
            raise OSError(errno.EIO, "it does not answer", of.shown(path))
        return opens(of, path)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "open", no_table)
        with pytest.raises(HistoryError, match=r"^s3://bucket-.*: it does not answer; nothing is lost"):
            aggregate(no_spark, store)


def test_of_two_jobs_one_goes_on(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = pytest.raises(HistoryError, match=r"^s3://bucket-.*/claim-.*: another run makes these tables, or was")
    with alone(store) as check:
        check()
        with refused, alone(store):
            pass
    assert list(store.objects(CLAIMS)) == []
    store.put(f"{CLAIMS}/claim-of-one-that-was-killed", b"")
    with refused, alone(store):
        pass
    monkeypatch.setattr(analytics.store.manifest, "CLAIM_S", -1.0)
    with alone(store) as check, pytest.raises(HistoryError, match="could not be renewed: nothing is lost"):
        check()
    assert list(store.objects(CLAIMS)) == []


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("gopher://x/y", "gopher://x/y: no store that can be used: Unrecognized filesystem type"),
        (
            "s3://nobody:secret@bucket/none?endpoint_override=127.0.0.1%3A1&scheme=http",
            "s3://bucket/none: When getting",
        ),
        ("/nowhere/at/all", "/nowhere/at/all: no directory of a history"),
    ],
)
def test_a_store_that_cannot_be_used_is_named_without_its_password(address: str, says: str) -> None:
    with pytest.raises(HistoryError) as refused:
        aggregate(None, ObjectStore(address))  # type: ignore[arg-type]
    assert str(refused.value).startswith(says)
    assert "secret" not in str(refused.value)
