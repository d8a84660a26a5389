"""Each question is answered as plain Python answers it, from samples with everything that goes wrong."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from analytics.aggregate import RunSummary, aggregate, follow
from analytics.page import text
from analytics.questions import QUESTIONS, unseen
from analytics.report import gold_of
from analytics.report import main as report
from analytics.session import prepare
from analytics.store.errors import HistoryError
from analytics.store.files import META
from analytics.store.objects import ObjectStore
from analytics.views import tables_of
from tests.analytics.oracle import Oracle
from tests.analytics.scenes import US, Row, Scene
from tests.builders.histories import write
from tests.rigs.browser import PHONE, asked_hosts, be_a_phone, log_of, made_options, set_scheme, started, violations
from tests.rigs.effort import IS_LONG

pytestmark = pytest.mark.timeout(900)  # Spark compiles its plans anew, which takes a minute on a busy machine
ASKED: Final[Mapping[str, Callable[[Oracle], list[Row]]]] = {
    "busiest-portal": Oracle.busiest_portal, "drop-ratio": Oracle.drop_ratio, "rtt": Oracle.rtt,
    "asymmetry": Oracle.asymmetry, "blocked": Oracle.blocked, "duplicates": Oracle.duplicates,
    "udp-recovery": Oracle.udp_recovery, "interest-growth": Oracle.interest_growth, "balance": Oracle.balance,
    "outage-cost": Oracle.outage_cost, "route-flaps": Oracle.route_flaps, "settling": Oracle.settling_times,
    "idle-portals": Oracle.idle_portals,
}  # fmt: skip
CRASHES: Final = (3, 6) if IS_LONG else (6,)
"""Writes of the job in this process (tasks of Spark have others), in the first day and in the second."""
SEEDS: Final = (7, 11, 12) if IS_LONG else (7,)
BACK_S: Final = 1_729_989_000
"""In the first of the two hours from 2 to 3 of 27 October 2024 in Berlin, at half past."""
SHOTS: Final = os.environ.get("DRO_SCREENSHOTS", "")
OPTIONS: Final = argparse.Namespace(start=None, end=None, dro=None, line_rate=1e6)


class CrashError(Exception):
    """Stands for the end of the process at this point."""


class EndError(Exception):
    """Ends what would go on for ever."""


@contextlib.contextmanager
def crash_after(writes: int) -> Iterator[None]:
    """Let a job write so many objects, and end where it begins the next one."""
    left = itertools.count(writes, -1)
    with pytest.MonkeyPatch.context() as patch:

        def replaced(*given: Any) -> None:  # noqa: ANN401  whatever it takes
            if next(left) <= 0:
                raise CrashError
            put(*given)

        put = ObjectStore.put
        patch.setattr(ObjectStore, "put", replaced)
        yield


def once(_seconds: float) -> None:
    raise EndError


def as_of_another_release(path: Path) -> None:
    """Write a file again with a column that this release does not know."""
    rows = pq.ParquetFile(path).read()
    about = json.loads(rows.schema.metadata[META])
    about["columns"]["once"] = {"type": "long", "kind": "counter", "metric": "dro_portal_once_total"}
    rows = rows.append_column("once", pa.array([7] * len(rows), pa.int64()))
    pq.write_table(rows.replace_schema_metadata({META: json.dumps(about)}), path)


def with_broken_rows(folder: Path) -> Path:
    """Copy the last file of portals, and break the middle of the copy."""
    path = max(folder.glob("table=portal/*/*/*.parquet"))
    content = bytearray(path.read_bytes())
    content[4 : len(content) // 4] = bytes(len(content) // 4 - 4)
    broken = path.with_name("part-broken.parquet")
    broken.write_bytes(content)
    return broken


@pytest.fixture(scope="module", params=SEEDS)
def scene(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> tuple[Path, Scene]:
    """Follow a history with everything that goes wrong, after jobs that did not come to their end.

    In a long run its late rows come after the others were aggregated.
    """
    folder = tmp_path_factory.mktemp("history")
    scene = Scene(seed=request.param)
    done: list[RunSummary] = []
    for table, rows in scene.tables.items():
        write(folder, table, rows)
    broken = with_broken_rows(folder)
    as_of_another_release(min(folder.glob("table=portal/*/*/*.parquet")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analytics.aggregate.CHUNK", 1)  # each day begins where the one before was written to have ended
        for writes in CRASHES:
            with crash_after(writes), pytest.raises(CrashError):
                aggregate(spark, ObjectStore(str(folder)))
        if IS_LONG:
            done.append(aggregate(spark, ObjectStore(str(folder))))
        write(folder, "portal", scene.late, "late")
        with pytest.raises(EndError):
            follow(lambda: aggregate(spark, ObjectStore(str(folder))), 1, done.append, pause=once)
    assert all(one.partitions for one in done)
    [line] = {line for one in done for line in one.left_out}
    assert line.startswith(f"{broken}: its rows cannot be read (")
    return folder, scene


@pytest.mark.parametrize("name", ASKED)
def test_an_answer_is_that_of_plain_python(name: str, scene: tuple[Path, Scene], spark: SparkSession) -> None:
    folder, made = scene
    wanted = ASKED[name](Oracle(made.rows(), made.tables["dro"]))
    assert wanted, "the scene has something to ask for"
    told = QUESTIONS[name].answer(gold_of(spark, ObjectStore(str(folder)), OPTIONS)).select(*wanted[0])
    assert same([row.asDict() for row in told.collect()], wanted) == ""


def test_what_went_between_portals_is_added_up_by_what_they_lead_to(
    scene: tuple[Path, Scene], spark: SparkSession
) -> None:
    folder, made = scene
    scopes: dict[tuple[str, int, int], list[Row]] = {}
    first: dict[tuple[str, int], int] = {}
    for row in made.tables["pair"]:
        scopes.setdefault((row["dro"], row["run"], row["page"]), []).append(row)
        first[row["dro"], row["run"]] = min(row["ts"], first.get((row["dro"], row["run"]), row["ts"]))
    wanted = 0
    for (dro, run, _), found in scopes.items():
        begin = min(found, key=lambda row: row["ts"])
        has_counted = begin["ts"] == first[dro, run] and begin["ts"] - run > Oracle.limit_us
        wanted += max(row["handed"] for row in found) - (begin["handed"] if has_counted else 0)
    rows = gold_of(spark, ObjectStore(str(folder)), OPTIONS)("domain_day").collect()
    assert sum(row["handed"] for row in rows) == wanted
    assert {(row["from_domain_id"] is None, row["to_dro_id"] is None) for row in rows} == {(False, False)}


def test_nothing_is_made_anew_when_nothing_has_changed(scene: tuple[Path, Scene], spark: SparkSession) -> None:
    assert aggregate(spark, ObjectStore(str(scene[0]))) == RunSummary(0, 0, ())


def test_a_report_says_what_it_could_not_see(
    scene: tuple[Path, Scene], spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = scene
    assert report(["balance", "--history", str(folder), "--csv"]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tnwgd-report: not seen: ")]
    rows = gold_of(spark, ObjectStore(str(folder)), OPTIONS)("day").where("gaps > 0").select("dro").distinct().collect()
    assert rows, "the scene has gaps"
    assert {row["dro"] for row in rows} == {
        line.split(": ")[2].split(" has ")[0] for line in lines if " gaps: " in line
    }
    whole = tables_of(spark, ObjectStore(str(folder)))
    without = whole("day").where("NOT (dro LIKE '%.0' AND day = '2024-03-01')")
    lacks = unseen(lambda name: without if name == "day" else whole(name))
    assert [line for line in lacks if line.endswith("has no samples of 1 of 2 days (2024-03-01 to 2024-03-01)")]


def test_a_session_of_others_is_given_what_days_need(scene: tuple[Path, Scene], spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    tables_of(spark, ObjectStore(str(scene[0])))
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"

    class Refusing:
        conf = argparse.Namespace(get=lambda _: "CET", set=refuse)

    with pytest.raises(HistoryError, match=r"does not take .*timeZone=UTC, without which days are wrong"):
        prepare(Refusing())  # type: ignore[arg-type]


def test_a_dro_and_a_place_that_are_not_there_are_named(
    scene: tuple[Path, Scene], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = str(scene[0])
    assert report(["balance", "--history", history, "--dro", "NONE"]) == 1
    assert capsys.readouterr().err.startswith(f"tnwgd-report: {history}: no DRO NONE; there are DR")
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit, match="2"):
        report(["balance", "--history", history, "--html", str(file)])
    assert f"--html {file}: File exists: name a directory that can be written" in capsys.readouterr().err


def refuse(name: str, _value: str) -> None:
    raise AnalysisException(f"{name} is static")


def same(told: Iterable[Row], wanted: Iterable[Row]) -> str:
    """Say the first rows that differ, in whatever order they are."""
    mine, theirs = (sorted((plain(row) for row in rows), key=repr) for rows in (told, wanted))
    for one, other in zip(mine, theirs, strict=False):
        if one.keys() != other.keys() or any(not near(one[name], other[name]) for name in one):
            return f"{one} is not {other}"
    return "" if len(mine) == len(theirs) else f"{len(mine)} rows, not {len(theirs)}: {mine[-1]}, {theirs[-1]}"


def plain(row: Row) -> Row:
    """Times as microseconds, and values that count as equal at the end, where they do not lead the order."""
    found = {name: round(v.timestamp() * US) if isinstance(v, datetime) else v
             for name, v in row.items()}  # fmt: skip
    return dict(sorted(found.items(), key=lambda item: isinstance(item[1], float)))


def near(one: object, other: object) -> bool:
    if isinstance(one, float) or isinstance(other, float):
        if not isinstance(one, int | float) or not isinstance(other, int | float):
            return False
        return abs(one - other) <= 1e-9 * max(1, abs(one), abs(other))
    return one == other


def test_times_are_those_of_utc_wherever_the_machine_is(
    scene: tuple[Path, Scene], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []
    for zone in ("UTC", "Asia/Kolkata", "America/New_York"):
        monkeypatch.setenv("TZ", zone)
        time.tzset()
        assert report(["outage-cost", "--history", str(scene[0]), "--json"]) == 0
        told.append(json.loads(capsys.readouterr().out))
    monkeypatch.undo()
    time.tzset()
    assert told[0] == told[1] == told[2]
    assert told[0][0]["begin"].endswith("+00:00")


def test_the_hour_that_a_clock_shows_twice_is_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    hours = [datetime.fromtimestamp(BACK_S + hour * 3600) for hour in (0, 1)]
    assert hours[0].replace(fold=0) == hours[1].replace(fold=0)
    told = [text(hour) for hour in hours]
    monkeypatch.undo()
    time.tzset()
    assert told == ["2024-10-27 00:30:00", "2024-10-27 01:30:00"]


@pytest.mark.slow
@pytest.mark.chromium
def test_the_page_of_all_answers_is_for_everyone_and_asks_nobody(
    scene: tuple[Path, Scene], spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = scene
    assert report(["all", "--history", str(folder), "--html", str(tmp_path / "out")]) == 0
    page = tmp_path / "out/index.html"
    assert capsys.readouterr().out == f"{page}\n"
    with contextlib.contextmanager(started)(made_options()) as browser:
        browser.set_script_timeout(120)
        for scheme in ("light", "dark"):
            set_scheme(browser, scheme)
            browser.get(page.as_uri())
            browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
            assert violations(browser, *(["color-contrast"] if scheme == "dark" else [])) == [], scheme
            if SHOTS:
                browser.save_screenshot(str(Path(SHOTS) / f"history-{scheme}.png"))
        widths = browser.execute_script("return [...document.images].map(i => i.naturalWidth)")
        assert len(widths) >= 10
        assert all(widths)
        assert browser.execute_script("return document.querySelectorAll('section h2').length") == len(QUESTIONS) + 1
        be_a_phone(browser)
        browser.get(page.as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") <= PHONE
        assert log_of(browser, "browser") == []
        assert asked_hosts(browser) == set()
