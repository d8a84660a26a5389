"""Growth by minute is exact, however samples come: late, twice, in parts, a few at a time."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import analytics.aggregate
from analytics.files import META, HistoryError
from analytics.silver import made_days, place
from tests.analytics.oracle import SUMS, Oracle
from tests.analytics.scenes import Row, Scene
from tests.builders.histories import START_S, write
from tests.rigs.effort import IS_LONG

DAY_US: Final = 86_400_000_000
KEYS: Final = ("dro", "ts", "portal")
CASES: Final = 200 if IS_LONG else 4


class Tasks:
    """Does here what Spark does elsewhere."""

    def __init__(self, given: Iterable[Any]) -> None:
        self._given = given

    def map(self, do: Callable[[Any], Any]) -> Tasks:
        return Tasks(map(do, self._given))

    def collect(self) -> list[Any]:
        return list(self._given)


HERE: Final[Any] = SimpleNamespace(sparkContext=SimpleNamespace(parallelize=lambda works, _: Tasks(works)))


@pytest.fixture(scope="module", autouse=True)
def _silver_alone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_gold", "_lasting", "tables_of"):
            patch.setattr(analytics.aggregate, name, lambda *_: None)
        yield


def aggregated(folder: Path) -> int:
    """Bring silver up to date; how many days of DROs were made."""
    return analytics.aggregate.aggregate(HERE, folder).partitions


def grown(folder: Path, names: Iterable[str]) -> dict[tuple[str, str, int], Counter[str]]:
    """Sums of what silver has, by DRO, portal and minute."""
    found: dict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)
    for day, dro in made_days(folder):
        for row in pq.ParquetFile(place(folder, "minute", day, dro) / "part.parquet").read().to_pylist():
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
    days = iter("1")
    with monkeypatch.context() as patch:
        patch.setattr(analytics.aggregate, "_gold", lambda *_: next(days))
        with pytest.raises(StopIteration):  # on the second day
            aggregated(tmp_path)
    aggregated(tmp_path)
    assert sent(tmp_path) == {("P", 0): 15, ("P", 1): 5, ("P", 2): 10}


def test_a_run_that_ends_before_what_lasts_longer_is_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "portal", [sample(0, 4)])
    calls: list[str] = []

    def made(*_: object) -> None:
        calls.append("made")
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(analytics.aggregate, "_lasting", made)
    with pytest.raises(KeyboardInterrupt):
        aggregated(tmp_path)
    assert [aggregated(tmp_path), aggregated(tmp_path)] == [0, 0]
    assert len(calls) == 2


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
        patch.setattr("analytics.silver.pq.write_table", full)
        with pytest.raises(HistoryError, match=r"minute/.*: No space left on device; nothing"):
            aggregated(tmp_path)
    assert aggregated(tmp_path) == 1


def without_time(rows: pa.Table) -> pa.Table:
    return rows.drop_columns("ts")


def with_text(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.column_names.index("sent"), "sent", rows["sent"].cast(pa.string()))


@pytest.mark.parametrize(("change", "why"), [(without_time, "has no column ts"), (with_text, "column sent is string")])
def test_a_file_that_does_not_say_what_it_has_costs_itself(
    tmp_path: Path, change: Callable[[pa.Table], pa.Table], why: str
) -> None:
    for name, value in (("good", 4), ("bad", 9)):
        write(tmp_path, "portal", [sample(0, value)], name)
    [path] = tmp_path.glob("table=portal/*/*/part-bad.parquet")
    about = json.loads(pq.read_metadata(path).metadata[META]) | {"columns": {}}
    rows = change(pq.ParquetFile(path).read())
    pq.write_table(rows.replace_schema_metadata({META: json.dumps(about)}), path)
    [line] = analytics.aggregate.aggregate(HERE, tmp_path).left_out
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
        for at in (chance.randrange(len(whole) - 20_000), chance.randrange(len(whole))):
            changed[at] ^= chance.randint(1, 255)
        path.write_bytes(changed)
        assert aggregated(tmp_path) == 1
        assert ("P", 0) in sent(tmp_path)


def test_an_end_of_a_day_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write(tmp_path, "portal", [sample(0, 4)])
    aggregated(tmp_path)
    [path] = tmp_path.glob("silver/end/*/*/part.parquet")
    path.write_text("no Parquet")
    write(tmp_path, "portal", [sample(1, 5)])
    with pytest.raises(
        HistoryError, match=rf"^{path}: it cannot be read .* remove .*/silver and gold, and run it again$"
    ):
        aggregated(tmp_path)


def test_a_day_without_rows_that_can_be_read_costs_no_other_dro(tmp_path: Path) -> None:
    write(tmp_path, "portal", [sample(0, 4), {**sample(0, 3), "dro": "B"}])
    [path] = tmp_path.glob("table=portal/*/dro=B/*.parquet")
    path.write_bytes(path.read_bytes()[:-9])
    done = analytics.aggregate.aggregate(HERE, tmp_path)
    assert (done.partitions, len(done.left_out)) == (2, 1)
    assert sent(tmp_path) == {("P", 0): 4}


def test_samples_without_a_page_go_on_with_that_of_their_portal(tmp_path: Path) -> None:
    whole = [sample(day, 1000 + 10 * day + minute, minute=minute) for day in range(3) for minute in (0, 5)]
    for row in (*whole[1:2], *whole[4:]):  # the last of a day, and all of another
        del row["page"]
    write(tmp_path, "portal", whole)
    aggregated(tmp_path)
    assert sum(sent(tmp_path).values()) == 1025


def test_what_no_counter_can_grow_is_not_added(tmp_path: Path) -> None:
    write(tmp_path, "portal", [sample(0, value, minute=nth) for nth, value in enumerate((5, 7, (1 << 63) - 1))])
    aggregated(tmp_path)
    assert sent(tmp_path) == {("P", 0): 7}


def test_silver_that_was_removed_is_made_anew(tmp_path: Path) -> None:
    write(tmp_path, "portal", [sample(day, 4 + day) for day in range(2)])
    aggregated(tmp_path)
    shutil.rmtree(tmp_path / "silver/minute")
    assert aggregated(tmp_path) == 2
    assert sum(sent(tmp_path).values()) == 5


def test_a_second_run_is_refused_and_what_a_killed_one_left_is_removed(tmp_path: Path) -> None:
    write(tmp_path, "portal", [sample(0, 4)])
    aggregated(tmp_path)
    left = tmp_path / "gold/hour/.spark-staging-1"
    left.mkdir(parents=True)
    with analytics.aggregate._alone(tmp_path / "gold"):
        assert not left.exists()
        with pytest.raises(HistoryError, match="gold: another run makes these tables; wait for its end"):
            aggregated(tmp_path)
    assert aggregated(tmp_path) == 0


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"is_lasting_due": false, "prints": {"2024-02-29": {"A": [1, 2, 3, 4]}}}']
)
def test_a_torn_state_is_named(tmp_path: Path, content: str) -> None:
    write(tmp_path, "portal", [sample(0, 4)])
    (tmp_path / "gold").mkdir()
    state = tmp_path / "gold/state.json"
    state.write_text(content)
    with pytest.raises(HistoryError, match=f"^{state} is broken: remove it, and all tables are made anew$"):
        aggregated(tmp_path)
