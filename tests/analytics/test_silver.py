"""Growth by minute is exact, however samples come: late, twice, in parts, a few at a time."""

from __future__ import annotations

import errno
import itertools
import json
import os
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import analytics.aggregate
import analytics.bronze
import analytics.store.manifest
from analytics.aggregate import RunSummary
from analytics.bronze import SampleFile
from analytics.silver import make
from analytics.store.errors import HistoryError
from analytics.store.files import META
from analytics.store.manifest import Manifests, alone
from analytics.store.objects import ObjectStore
from supervisor.history.compact import compact
from tests.analytics.coming import Coming, gold
from tests.analytics.oracle import SUMS, Oracle
from tests.analytics.scenes import Row, Scene
from tests.builders.histories import START_S, write
from tests.rigs.effort import IS_LONG

DAY_US: Final = 86_400_000_000
KEYS: Final = ("dro", "ts", "portal")
CASES: Final = 200 if IS_LONG else 4


LASTING: Final = analytics.aggregate._lasting
HERE: Final[Any] = None
"""No Spark: works are done here."""


@pytest.fixture(scope="module", autouse=True)
def _without_spark() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analytics.aggregate, "_lasting", lambda *_: None)
        patch.setattr(analytics.aggregate, "_made", lambda _, works: (day for work in works for day in make(work)))
        yield


def aggregate(folder: Path) -> RunSummary:
    return analytics.aggregate.aggregate(HERE, ObjectStore(str(folder)), keeps_minutes=True)


def aggregated(folder: Path) -> int:
    """Bring silver up to date; how many days of DROs were made."""
    return aggregate(folder).partitions


def grown(folder: Path, names: Iterable[str]) -> dict[tuple[str, str, int], Counter[str]]:
    """Sums of what silver has, by DRO, portal and minute."""
    found: dict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)
    for path in folder.glob("silver/minute/*/*/*.parquet"):
        dro = unquote(path.parent.name.removeprefix("dro="))
        for row in pq.ParquetFile(path).read().to_pylist():
            found[dro, row["portal"], row["minute"]].update({name: row.get(name) or 0 for name in names})
    return found


def in_parts(chance: random.Random, row: Row) -> list[Row]:
    """Split a sample as a scrape does that arrives in two requests."""
    row = {**row, "source": "prometheus"}
    names = [name for name in row if name not in KEYS]
    first = set(chance.sample(names, len(names) // 2))
    return [{name: value for name, value in row.items() if name in KEYS or (name in first) is is_first}
            for is_first in (True, False)]  # fmt: skip


@settings(max_examples=CASES, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 32), pieces=st.integers(1, 3), chunk=st.sampled_from((1, 3, 200)))
def test_growth_is_that_of_plain_python(seed: int, pieces: int, chunk: int) -> None:
    chance = random.Random(seed)
    scene = Scene(seed=seed, days=1.6, step_s=1800, dros=1)
    came: list[list[tuple[str, Row]]] = [[] for _ in range(pieces)]
    for row in scene.rows():
        is_split = chance.random() < 0.1
        for part in in_parts(chance, row) if is_split else [row]:
            chance.choice(came).append(("portal", part))
    for row in scene.tables["dro"]:  # they tell the runs
        came[0].append(("dro", row))
    with TemporaryDirectory() as made, pytest.MonkeyPatch.context() as patch:
        folder = Path(made)
        patch.setattr(analytics.aggregate, "CHUNK", chunk)
        for nth, rows in enumerate(came):
            for table in ("portal", "dro"):
                write(folder, table, [row for of_table, row in rows if of_table == table], str(nth))
            aggregated(folder)
        names = (*SUMS, "samples", "up_samples", "interval_us")
        told = grown(folder, names)
        assert aggregated(folder) == 0
    oracle = Oracle(scene.rows(), scene.tables["dro"])
    wanted: dict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)
    for minute in oracle.minutes:
        wanted[minute["dro"], minute["portal"], minute["minute"]].update(
            {name: minute[name] for name in SUMS}
            | {"samples": minute["count"], "up_samples": minute["ups"], "interval_us": minute["interval_us"]}
        )
    assert told.keys() == wanted.keys()
    for key, sums in wanted.items():
        assert [(n, told[key][n]) for n in names] == [(n, sums[n]) for n in names], key


@settings(max_examples=CASES, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 32), count=st.integers(2, 6))
def test_gold_of_files_that_come_one_after_another_is_that_of_all_at_once(seed: int, count: int) -> None:
    chance = random.Random(seed)
    coming = Coming(chance, count)
    with TemporaryDirectory() as made:
        whole, parts = Path(made) / "whole", Path(made) / "parts"
        for nth in range(count):
            coming.write(whole, nth)
            coming.write(parts, nth)
            if chance.random() < 0.3:
                compact(parts, chance.choice((date(2024, 3, 1), date(2024, 4, 1))))
            if chance.random() < 0.8 or nth == count - 1:
                aggregate(parts)
        aggregate(whole)
        assert gold(parts) == gold(whole)


def sample(day: int, value: int, portal: str = "P", page: int = 1, minute: int = 0) -> Row:
    ts = START_S * 1_000_000 + day * DAY_US + minute * 60_000_000
    return {"dro": "A", "ts": ts, "run": START_S * 1_000_000 - 1_000_000, "seq": ts, "source": "pages", "up": True,
            "portal": portal, "page": page, "sent": value}  # fmt: skip


def sent(folder: Path) -> dict[tuple[str, int], int]:
    """Add up what was sent, by portal and day."""
    found: Counter[tuple[str, int]] = Counter()
    for (_, portal, minute), sums in grown(folder, ["sent_messages"]).items():
        found[portal, (minute - START_S // 60) // 1440] += sums["sent_messages"]
    return {key: value for key, value in found.items() if value}


def test_what_comes_late_changes_days_that_it_reaches_and_no_others(tmp_path: Path) -> None:
    write(tmp_path, "portal", [sample(day, 10 + day, portal) for day in range(4) for portal in ("P", "Q")
                               if (day, portal) != (1, "Q")])  # fmt: skip
    assert aggregated(tmp_path) == 4
    assert sent(tmp_path) == {
        ("P", 0): 10,
        ("P", 1): 1,
        ("P", 2): 1,
        ("P", 3): 1,
        ("Q", 0): 10,
        ("Q", 2): 2,
        ("Q", 3): 1,
    }
    write(tmp_path, "portal", [sample(0, 11, "Q", minute=5)], "late")  # a portal that has no sample on the next day
    assert aggregated(tmp_path) == 3
    assert sent(tmp_path)["Q", 0] == 11
    assert sent(tmp_path)["Q", 2] == 1
    write(tmp_path, "portal", [sample(1, 11, "P", minute=5)], "late")
    assert aggregated(tmp_path) == 2
    assert sum(sent(tmp_path).values()) == 26


def test_a_run_that_ends_early_leaves_no_day_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analytics.aggregate, "CHUNK", 1)
    write(tmp_path, "portal", [sample(day, 10 * (day + 1)) for day in range(3)])
    assert aggregated(tmp_path) == 3
    write(tmp_path, "portal", [sample(0, 15, minute=5)], "late")
    put, left = ObjectStore.put, [12]

    def ends(store: ObjectStore, path: str, content: bytes) -> None:  # on the second day
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        put(store, path, content)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "put", ends)
        with pytest.raises(KeyboardInterrupt):
            aggregated(tmp_path)
    assert sent(tmp_path) != {("P", 0): 15, ("P", 1): 5, ("P", 2): 10}
    aggregated(tmp_path)
    assert sent(tmp_path) == {("P", 0): 15, ("P", 1): 5, ("P", 2): 10}
    of_days = [path.parent for path in tmp_path.glob("gold/hour/*/*")]
    assert len(of_days) == len(set(of_days)) == 3, "nothing is left of the run that ended early"


def test_a_run_that_ends_before_what_lasts_longer_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "portal", [sample(0, 4)])
    monkeypatch.setattr(analytics.aggregate, "_lasting", LASTING)

    def ends(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(analytics.aggregate, "tables_of", ends)
    with pytest.raises(KeyboardInterrupt):
        aggregated(tmp_path)
    with pytest.raises(KeyboardInterrupt):  # although no file has changed
        aggregated(tmp_path)


class Reads:
    """Counts what is read of files: by the names of those that the daemons wrote."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        add = analytics.bronze._Reader.add

        def added(reader: Any, source: SampleFile) -> None:  # noqa: ANN401  a private class
            if not source.is_merged:
                self.names.append(Path(source.path).name)
            add(reader, source)

        patch.setattr(analytics.bronze._Reader, "add", added)


def test_a_new_file_is_read_alone_and_a_joined_one_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for nth in range(3):
        write(tmp_path, "portal", [sample(0, 10 + nth, minute=nth)], str(nth))
    assert aggregated(tmp_path) == 1
    reads = Reads(monkeypatch)
    write(tmp_path, "portal", [sample(0, 19, minute=7)], "new")
    assert aggregated(tmp_path) == 1
    assert reads.names == ["part-new.parquet"]
    before = grown(tmp_path, ["sent_messages", "samples"])
    assert sum(sums["sent_messages"] for sums in before.values()) == 19
    compact(tmp_path, date(2024, 3, 2))
    files = sorted(path for path in tmp_path.glob("gold/*/*/*"))
    aggregated(tmp_path)
    assert reads.names == ["part-new.parquet"]
    assert sorted(path for path in tmp_path.glob("gold/*/*/*")) == files, "no table was written"
    write(tmp_path, "portal", [sample(0, 23, minute=9)], "late")
    aggregated(tmp_path)
    assert "part-new.parquet" not in reads.names[1:]
    assert sent(tmp_path) == {("P", 0): 23}


def test_what_is_no_longer_there_or_another_is_not_counted(tmp_path: Path) -> None:
    for name, value in (("one", 4), ("other", 9)):
        write(tmp_path, "portal", [sample(0, value, minute=value - 4)], name)
    aggregated(tmp_path)
    write(tmp_path, "portal", [sample(0, 7, minute=9)], "other")
    aggregated(tmp_path)
    assert sent(tmp_path) == {("P", 0): 7}
    next(tmp_path.glob("table=portal/*/*/part-other.parquet")).unlink()
    aggregated(tmp_path)
    assert sent(tmp_path) == {("P", 0): 4}


def test_a_file_whose_bytes_do_not_come_is_read_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("one", 4), ("other", 9)):
        write(tmp_path, "portal", [sample(0, value, minute=value - 4)], name)
    [path] = tmp_path.glob("table=portal/*/*/part-other.parquet")
    opens = ObjectStore.open

    def fails(store: ObjectStore, path: str) -> pa.NativeFile:
        if path.endswith("part-other.parquet"):
            raise OSError(errno.EIO, "Input/output error", store.shown(path))
        return opens(store, path)

    with monkeypatch.context() as patch:
        patch.setattr(ObjectStore, "open", fails)
        for _ in range(2):
            done = aggregate(tmp_path)
            assert done.left_out == (f"{path}: Input/output error; it is left out until it can be read",)
            assert sent(tmp_path) == {("P", 0): 4}
    assert aggregate(tmp_path) == RunSummary(1, 1, ())
    assert sent(tmp_path) == {("P", 0): 9}
    assert aggregate(tmp_path) == RunSummary(0, 0, ())


def test_counters_go_on_over_days_that_were_removed_also_of_dros_that_were_not_always_there(
    tmp_path: Path,
) -> None:
    def by_first(first: str) -> None:
        analytics.aggregate.aggregate(HERE, ObjectStore(str(tmp_path)), keeps_minutes=True, first=first)

    write(tmp_path, "portal", [sample(0, 4)], "0")
    write(tmp_path, "portal", [{**sample(day, day), "dro": "B"} for day in range(3)], "b")
    aggregated(tmp_path)
    by_first("2024-03-02")
    assert sent(tmp_path) == {("P", 2): 1}
    write(tmp_path, "portal", [sample(2, 9)], "2")
    by_first("2024-03-02")
    assert sent(tmp_path) == {("P", 2): 1 + 5}
    aggregated(tmp_path)
    assert sent(tmp_path) == {("P", 0): 4, ("P", 1): 1, ("P", 2): 6}
    hours = {row for row in gold(tmp_path)["hour"] if row.startswith("2024-03-02")}
    for folder in ("silver", "gold"):
        shutil.rmtree(tmp_path / folder)
    by_first("2024-03-02")
    assert {*gold(tmp_path)["hour"]} == hours, "the day before is read to know where it begins"
    by_first("2024-03-02")
    assert {*gold(tmp_path)["hour"]} == hours
    aggregated(tmp_path)
    write(tmp_path, "portal", [sample(0, 6, minute=5)], "late")
    aggregated(tmp_path)
    assert sent(tmp_path) == {("P", 0): 6, ("P", 1): 1, ("P", 2): 4}


def test_files_that_were_copied_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("one", 4), ("other", 9)):
        write(tmp_path, "portal", [sample(0, value, minute=value - 4)], name)
    aggregated(tmp_path)
    reads = Reads(monkeypatch)
    for path in tmp_path.glob("table=portal/*/*/*"):
        os.utime(path, (1, 1))
    aggregated(tmp_path)
    assert reads.names == []


def test_a_counter_that_newer_files_lack_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analytics.aggregate, "CHUNK", 1)
    for day, value in enumerate((5, None, 7)):
        write(tmp_path, "portal", [sample(day, day) | ({} if value is None else {"dropped_dup": value})])
    assert aggregated(tmp_path) == 3
    names = ["dropped_messages_duplicate"]
    assert sum(sums[names[0]] for sums in grown(tmp_path, names).values()) == 7


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "portal", [sample(0, 1)])

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("analytics.store.objects.os.fsync", full)
        with pytest.raises(HistoryError, match=r"silver/.*: No space left on device; nothing"):
            aggregated(tmp_path)
    assert not list(tmp_path.rglob(".part*"))
    assert aggregated(tmp_path) == 1


def without_time(rows: pa.Table) -> pa.Table:
    return rows.drop_columns("ts")


def with_text(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.column_names.index("sent"), "sent", rows["sent"].cast(pa.string()))


def with_unknown_time(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.column_names.index("ts"), "ts", pa.nulls(len(rows), rows["ts"].type))


@pytest.mark.parametrize(
    ("change", "why"),
    [(without_time, "has no column ts"), (with_text, "column sent is string"), (with_unknown_time, "without a time")],
)
def test_a_file_that_does_not_say_what_it_has_costs_itself(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], why: str
) -> None:
    for name, value in (("good", 4), ("bad", 9)):
        write(tmp_path, "portal", [sample(0, value)], name)
    [path] = tmp_path.glob("table=portal/*/*/part-bad.parquet")
    about = json.loads(pq.read_metadata(path).metadata[META]) | {"columns": {}}
    rows = change(pq.ParquetFile(path).read())
    pq.write_table(rows.replace_schema_metadata({META: json.dumps(about)}), path)
    [line] = aggregate(tmp_path).left_out
    assert line.startswith(f"{path}: its rows cannot be read (it")
    assert why in line
    assert sent(tmp_path) == {("P", 0): 4}


def test_no_change_of_bytes_costs_more_than_the_file(tmp_path: Path) -> None:
    for name, value in (("good", 4), ("bad", 4)):
        write(tmp_path, "portal", [sample(0, value)], name)
    [path] = tmp_path.glob("table=portal/*/*/part-bad.parquet")
    whole, chance = path.read_bytes(), random.Random(2)
    for _ in range(12):
        changed = bytearray(whole)
        for at in (chance.randrange(len(whole) // 2), chance.randrange(len(whole))):
            changed[at] ^= chance.randint(1, 255)
        path.write_bytes(changed)
        aggregated(tmp_path)
        assert ("P", 0) in sent(tmp_path)


def test_a_record_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write(tmp_path, "portal", [sample(0, 4)])
    aggregated(tmp_path)
    [path] = tmp_path.glob("silver/record/*/*/*")
    path.write_text("no record")
    write(tmp_path, "portal", [sample(1, 5)])
    with pytest.raises(HistoryError, match=f"^{path}: it cannot be read .* remove silver and gold of the history, and"):
        aggregated(tmp_path)


def test_merged_samples_that_cannot_be_read_are_made_anew(tmp_path: Path) -> None:
    for name, value in (("one", 4), ("other", 9)):
        write(tmp_path, "portal", [sample(0, value, minute=value - 4)], name)
    aggregated(tmp_path)
    [path] = tmp_path.glob("silver/portal/*/*/*")
    for content in (b"no Parquet", path.read_bytes()[: len(path.read_bytes()) // 3] + bytes(99) + path.read_bytes()):
        [path] = tmp_path.glob("silver/portal/*/*/*")
        path.write_bytes(content)
        write(tmp_path, "portal", [sample(0, 9 + len(content) % 7, minute=11)], f"new-{len(content)}")
        aggregated(tmp_path)
        assert sent(tmp_path)["P", 0] >= 9


def test_a_day_without_rows_that_can_be_read_costs_no_other_dro(tmp_path: Path) -> None:
    write(tmp_path, "portal", [sample(0, 4), {**sample(0, 3), "dro": "B"}])
    [path] = tmp_path.glob("table=portal/*/dro=B/*.parquet")
    path.write_bytes(path.read_bytes()[:-9])
    done = aggregate(tmp_path)
    assert (done.partitions, len(done.left_out)) == (2, 1)
    assert sent(tmp_path) == {("P", 0): 4}


def test_samples_without_a_page_go_on_with_that_of_their_portal(tmp_path: Path) -> None:
    whole = [sample(day, 1000 + 10 * day + minute, minute=minute) for day in range(3) for minute in (0, 5)]
    for row in (*whole[1:2], *whole[4:]):  # the last of a day, and all of another
        del row["page"]
    write(tmp_path, "portal", whole)
    aggregated(tmp_path)
    assert sum(sent(tmp_path).values()) == 1025


def test_gaps_are_those_of_the_interval_also_when_it_is_longer_than_a_minute(tmp_path: Path) -> None:
    times = [0, 10, 20, 30, 80, 90]
    write(tmp_path, "portal", [sample(0, 5 + at, minute=at) for at in times])
    aggregated(tmp_path)
    assert [key[2] - START_S // 60 for key, sums in grown(tmp_path, ["is_gap"]).items() if sums["is_gap"]] == [80]


def test_what_no_counter_can_grow_is_not_added(tmp_path: Path) -> None:
    write(tmp_path, "portal", [sample(0, value, minute=nth) for nth, value in enumerate((5, 7, (1 << 63) - 1))])
    aggregated(tmp_path)
    assert sent(tmp_path) == {("P", 0): 7}


def test_silver_that_was_removed_is_named(tmp_path: Path) -> None:
    write(tmp_path, "portal", [sample(day, 4 + day) for day in range(2)])
    aggregated(tmp_path)
    shutil.rmtree(tmp_path / "silver")
    assert aggregated(tmp_path) == 0
    write(tmp_path, "portal", [sample(2, 9)])
    with pytest.raises(HistoryError, match=r"cannot be read .* remove silver and gold of the history"):
        aggregated(tmp_path)
    shutil.rmtree(tmp_path / "gold")
    assert aggregated(tmp_path) == 3
    assert sum(sent(tmp_path).values()) == 9


def test_a_second_run_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "portal", [sample(0, 4)])
    aggregated(tmp_path)
    wanted = pytest.raises(HistoryError, match="gold: another run makes these tables; wait for its end")
    with alone(ObjectStore(str(tmp_path))), wanted:
        aggregated(tmp_path)
    assert aggregated(tmp_path) == 0


def test_a_manifest_that_is_torn_gives_way_to_the_one_before_or_is_named(tmp_path: Path) -> None:
    write(tmp_path, "portal", [sample(0, 4)])
    aggregated(tmp_path)
    [path] = tmp_path.glob("gold/manifest/2024*")
    path.with_name("2024-02-29.2.json").write_bytes(path.read_bytes()[:-9])
    assert aggregated(tmp_path) == 0
    path.write_text("{}")
    with pytest.raises(HistoryError, match=r"2024-02-29.2.json is broken: remove silver and gold, and all tables are"):
        aggregated(tmp_path)


def test_who_reads_while_a_job_commits_sees_one_state_or_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "portal", [sample(0, 4)])
    aggregated(tmp_path)
    read, calls = ObjectStore.read, itertools.count()

    def meanwhile(store: ObjectStore, path: str) -> bytes:
        if next(calls) == 0:
            write(tmp_path, "portal", [sample(0, 9, minute=5)], "late")
            aggregated(tmp_path)
        return read(store, path)

    monkeypatch.setattr(ObjectStore, "read", meanwhile)
    analytics.store.manifest._read.cache_clear()
    found = Manifests(ObjectStore(str(tmp_path)))
    assert [of.number for of in found.days().values()] == [2]
    assert (tmp_path / found.of["2024-02-29"].tables["hour"].path).exists()


def test_tables_of_an_earlier_layout_are_left_as_they_are(tmp_path: Path) -> None:
    write(tmp_path, "portal", [sample(0, 4)])
    (tmp_path / "gold").mkdir()
    (tmp_path / "gold/state.json").write_text("{}")
    with pytest.raises(
        HistoryError, match=r"gold/state.json: the tables are of an earlier state .* move silver and gold"
    ):
        aggregated(tmp_path)
    assert [path.name for path in tmp_path.glob("gold/*")] == ["state.json"]
