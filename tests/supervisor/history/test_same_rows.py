"""A sample of a DRO gives the same rows by its counter pages and by what Prometheus scrapes of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from supervisor.history.sampler import Sampler
from supervisor.history.series import BadSampleError, SeriesRows
from supervisor.history.store import Store
from supervisor.history.tables import META, tables
from supervisor.monitor.known.metrics import Metrics
from supervisor.samples.exposition import Texts
from tests.builders.monitored import add_pages, known

TS_US = 1_700_000_100_000_000
BY_HOW = {"ts", "seq", "source"}
NOT_IN_METRICS = {"pid", "dro_id", "version", "role", "cpu_us", "resident_bytes"}


@pytest.fixture
def scraped(tmp_path: Path) -> SeriesRows:
    """Everything that `/metrics` and `/metrics/workers` say of a DRO with six portals."""
    add_pages(tmp_path, 6)
    metrics, rows = Metrics("1.0", "r"), SeriesRows()
    for families in (metrics.of_dro(known(tmp_path, 6)), metrics.of_workers(known(tmp_path, 6), {})):
        text, _ = Texts().encoded(families, "text/plain")
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                labels = (*sample.labels.items(), ("instance", "127.0.0.1:15305"), ("job", "dro"))
                rows.add((("__name__", sample.name), *labels), TS_US, sample.value)
    return rows


def sampled(folder: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    store = Store(folder / "history", "A")
    sampler = Sampler(store)
    sampler.add(known(folder, 6))
    store.commit()
    store.close()
    for path in sorted((folder / "history").glob("table=*/day=*/dro=A/*.parquet")):
        assert META.encode() in pq.read_metadata(path).metadata
        yield path.parts[-4].removeprefix("table="), pq.ParquetFile(path).read().to_pylist()


def test_pages_and_prometheus_give_the_same_rows(tmp_path: Path, scraped: SeriesRows) -> None:
    by_scrape = {table: rows for table, dro, rows in scraped.take() if dro == "A"}
    by_pages: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for table, rows in sampled(tmp_path):
        by_pages[table] += rows
    assert set(by_pages) >= {"portal", "worker", "dro", "other"}
    compared = 0
    for table in ("portal", "worker", "dro", "other"):
        key = tables()[table].key
        zeros = [row for row in by_pages[table] if row["seq"] is None]  # where the counters began
        assert len(zeros) == (6 if table == "portal" else 0)
        pages = {tuple(row[k] for k in key): row for row in by_pages[table] if row["seq"] is not None}
        if table == "other":  # what is known of a DRO, and of its portals, are series of their own
            pages = {k: row for k, row in pages.items() if row["adjacent_id"]}
        for row in by_scrape[table]:
            place = tuple(row.get(k) for k in key)
            if place not in pages:
                assert table == "other"
                continue
            for name, value in row.items():
                if name not in BY_HOW | NOT_IN_METRICS:
                    page = pages[place].get(name, 0)  # columns that tell nothing are left out
                    assert (int(page.timestamp() * 1e6) if hasattr(page, "timestamp") else page) == value, (table, name)
                    compared += 1
            own = {name for name, cells, _ in tables()[table].cells}
            missing = {name for name in own if pages[place].get(name) is not None} - set(row)
            labels = {column.name: column.labels for column in tables()[table].columns}
            kind = row.get("portal_type", "")
            assert [name for name in missing if kind in labels[name]] == [], "a cell that has no series"
    assert compared > 6 * 200
    assert scraped.foreign == {}


@pytest.mark.parametrize(
    ("value", "ts_us", "why"),
    [(-1.0, TS_US, "negative"), (float("inf"), TS_US, "finite"), (1.0, 10**18, "ahead"), (1.0, -5, "century")],
)
def test_what_cannot_be_right_is_refused_by_name(value: float, ts_us: int, why: str) -> None:
    rows = SeriesRows()
    series = (("__name__", "dro_portal_sent_messages_total"), ("dro", "A"), ("portal", "P1"),
              ("portal_type", "peer"), ("traffic", "data"))  # fmt: skip
    with pytest.raises(BadSampleError, match=f"dro_portal_sent_messages_total.*portal='P1'.*{why}"):
        rows.add(series, ts_us, value)
    assert list(rows.take()) == []
    rows.add(series, TS_US, float("nan"))  # the series has ended
    assert list(rows.take()) == []


@pytest.mark.parametrize(
    "labels",
    [{"__name__": "up", "job": "dro"}, {"__name__": "dro_portal_up"}, {"__name__": "dro_new_total", "dro": "A"}],
)
def test_series_of_others_are_counted_and_left_out(labels: dict[str, str]) -> None:
    rows = SeriesRows()
    rows.add(tuple(labels.items()), TS_US, 1.0)
    rows.add(tuple(labels.items()), TS_US + 1, 1.0)
    assert (rows.foreign, list(rows.take())) == ({labels["__name__"]: 2}, [])


def test_what_could_not_be_kept_is_told_with_the_next_sample(tmp_path: Path) -> None:
    """Above all that the counters of a portal began at 0."""
    add_pages(tmp_path, 2)
    store = Store(tmp_path / "history", "A")
    sampler = Sampler(store)
    for is_kept in (False, False, True, True):
        sampler.add(known(tmp_path, 2))
        if is_kept:
            store.commit()
            sampler.on_kept()
        else:
            store.forget()  # the disk is full
    store.close()
    paths = (tmp_path / "history").glob("table=portal/day=*/dro=A/*.parquet")
    rows = [row for path in paths for row in pq.ParquetFile(path).read().to_pylist()]
    assert sorted((row["portal"], row["seq"] is None) for row in rows) == [
        ("P1", False), ("P1", False), ("P1", True), ("P2", False), ("P2", False), ("P2", True),
    ]  # fmt: skip
