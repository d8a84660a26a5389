"""Run `tnwgd-aggregate`: make silver and gold tables from the samples of a history, those whose files changed alone.

DIR/silver/<table>/day=<day>/dro=<dro>     growth of each counter by minute; what was up; where the next day begins
DIR/gold/<table>/day=<day>                 sums by hour and day
DIR/gold/<table>                           what lasts longer than a day
DIR/gold/state.json                        which files these were made of
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_schema

from analytics import episodes, gold
from analytics.files import Contents, HistoryError, Part, contents, parts_of, replace_text
from analytics.schemas import add_schema, schema_of
from analytics.session import positive, run
from analytics.silver import PART, Day, Work, made_days, make
from analytics.sums import kept_of
from analytics.views import Tables, tables_of

CHUNK: Final = 200
"""Days of DROs that one job takes at most, unless one day has more."""
WRITERS: Final = 4
TABLES: Final = ("portal", "dro", "pair")
Partition = tuple[str, str]  # day, DRO
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Tells what a run has made: partitions of silver and days of gold, and files that were left out."""

    partitions: int
    days: int
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Print:
    """Identifies what a day of a DRO was made of, and what it has left to the next one."""

    files: str
    before: str = ""
    end: str = ""


class State:
    """Remembers what a history's tables were made of."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "gold/state.json"
        self.prints: dict[Partition, Print] = {}
        self.is_lasting_due = False  # days were made, and not yet what lasts longer
        if self._path.exists():
            try:
                told = json.loads(self._path.read_text())
                self.is_lasting_due = bool(told["is_lasting_due"])
                prints = told["prints"].items()
                self.prints = {(day, dro): Print(*of) for day, dros in prints for dro, of in dros.items()}
            except (ValueError, LookupError, TypeError, AttributeError):
                raise HistoryError(f"{self._path} is broken: remove it, and all tables are made anew") from None

    def touched(self, files: Mapping[Partition, str], before: Mapping[Partition, Partition]) -> set[Partition]:
        """Find the days whose files have changed, or the end of the day before them."""
        nothing = Print("")
        found = set()
        for where, of in files.items():
            known = self.prints.get(where, nothing)
            begun = self.prints.get(before[where], nothing).end if where in before else ""
            if known.files != of or known.before != begun:
                found.add(where)
        return found

    def save(self) -> None:
        prints: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
        for (day, dro), found in sorted(self.prints.items()):
            prints[day][dro] = astuple(found)
        replace_text(self._path, json.dumps({"is_lasting_due": self.is_lasting_due, "prints": prints}))


def prints_of(parts: Iterable[Part]) -> dict[Partition, str]:
    """Make for each day and DRO a text that changes when one of its files does."""
    found: dict[Partition, list[str]] = defaultdict(list)
    for part in parts:
        found[part.day, part.dro].append(f"{Path(part.path).name}:{part.size}:{part.mtime_ns}")
    return {where: hashlib.sha256("\n".join(sorted(files)).encode()).hexdigest()[:32] for where, files in found.items()}


def aggregate(
    spark: SparkSession, history: Path, on_progress: Callable[[int, int], object] = lambda n, of: None
) -> RunSummary:
    """Bring silver and gold up to date. `on_progress`: partitions done, and of how many. Raises: HistoryError."""
    if not history.is_dir():
        raise HistoryError(f"{history}: no directory of a history")
    with _alone(history / "gold"):
        return _aggregate(spark, history, on_progress)


@contextmanager
def _alone(gold: Path) -> Iterator[None]:
    """Keep other runs out, and remove what one that was killed has left. Raises: HistoryError."""
    gold.mkdir(exist_ok=True)
    lock = os.open(gold / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in gold.glob("*/.spark-staging-*"):
            shutil.rmtree(left)
        for left in gold.with_name("silver").glob(f"*/*/*/.{PART}.*"):
            left.unlink()
        yield
    except BlockingIOError:
        raise HistoryError(f"{gold}: another run makes these tables; wait for its end") from None
    finally:
        os.close(lock)


def _aggregate(spark: SparkSession, history: Path, on_progress: Callable[[int, int], object]) -> RunSummary:
    left_out: list[str] = []
    parts = {table: parts_of(history, table) for table in TABLES}
    files = prints_of(part for of_table in parts.values() for part in of_table)
    state = State(history)
    made = made_days(history)
    before = _days_before({*files, *made})
    for where in files.keys() - (made & made_days(history, "minute")):  # it was removed
        state.prints.pop(where, None)
    done: list[Partition] = []
    while touched := state.touched(files, before):
        chunk = _chunk(touched)
        here = {table: [p for p in of_table if (p.day, p.dro) in chunk] for table, of_table in parts.items()}
        found = {table: contents(of_table, table, left_out.append) for table, of_table in here.items()}
        ends = _silver(spark, history, _works(history, chunk, found, before), left_out.append)
        _gold(spark, history, {day for day, _ in chunk})
        state.prints |= {where: Print(files[where], end=ends[where]) for where in chunk}
        for where in chunk & before.keys():
            begun = state.prints.get(before[where], Print("")).end
            state.prints[where] = replace(state.prints[where], before=begun)
        state.is_lasting_due = True
        state.save()
        done += chunk
        on_progress(len(done), len(done) + len(touched - chunk))
    if state.is_lasting_due:
        _lasting(tables_of(spark, history), history)
        state.is_lasting_due = False
        state.save()
    return RunSummary(len(done), len({day for day, _ in done}), tuple(left_out))


def _days_before(there: Iterable[Partition]) -> dict[Partition, Partition]:
    """Find for each day of a DRO the one before it."""
    days: dict[str, list[str]] = defaultdict(list)
    for day, dro in sorted(there):
        days[dro].append(day)
    return {(day, dro): (earlier, dro) for dro, of in days.items() for earlier, day in pairwise(of)}


def _chunk(touched: Iterable[Partition]) -> set[Partition]:
    """Choose the first days, as many as are worth a job."""
    found: set[Partition] = set()
    for _, of_day in groupby(sorted(touched), key=lambda where: where[0]):
        more = set(of_day)
        if found and len(found) + len(more) > CHUNK:
            break
        found |= more
    return found


def _works(
    history: Path, chunk: Iterable[Partition], found: Mapping[str, Contents], before: Mapping[Partition, Partition]
) -> list[Work]:
    """Share out days of DROs: those of a DRO are one work, since a day begins where the one before has ended."""
    parts: dict[tuple[str, str, str], list[Part]] = defaultdict(list)
    for table, of_table in found.items():
        for part in of_table.parts:
            parts[part.day, part.dro, table].append(part)
    of_dro: dict[str, list[Day]] = defaultdict(list)
    for day, dro in sorted(chunk):
        earlier, _ = before.get((day, dro), ("", dro))
        of_dro[dro].append(Day(day, earlier, {table: parts[day, dro, table] for table in TABLES}))
    kept = {table: kept_of(table, of_table.columns) for table, of_table in found.items()}
    return [Work(history.absolute(), dro, of, kept) for dro, of in of_dro.items()]


def _silver(
    spark: SparkSession, history: Path, works: Sequence[Work], on_bad: Callable[[str], object]
) -> dict[Partition, str]:
    """Make silver tables, a task for each work; prints of how the days have ended. Raises: HistoryError."""
    ends: dict[Partition, str] = {}
    for work, made in zip(works, spark.sparkContext.parallelize(works, len(works)).map(make).collect(), strict=True):
        for line in made.left_out:
            on_bad(line)
        if made.error:
            raise HistoryError(made.error)
        for table, columns in made.schemas.items():
            schema = T.StructType(from_arrow_schema(columns).fields)
            add_schema(history / "silver" / table, schema.add("day", T.StringType()).add("dro", T.StringType()))
        ends |= {(day, work.dro): end for day, end in made.ends.items()}
    return ends


def _gold(spark: SparkSession, history: Path, days: Iterable[str]) -> None:
    """Make hours and days of the days."""
    minutes, pairs = (_of_days(spark, history / "silver" / name, days) for name in ("minute", "pair"))
    if minutes is None:
        return
    made = [(gold.losses(minutes), "loss_minute", "minute")]
    made += [(gold.rolled(minutes, ("dro", "portal"), step), step, step) for step in gold.STEPS]
    if pairs is not None:
        handed = gold.rolled(pairs, ("dro", "portal", "to_portal"), "hour")
        leads = gold.rolled(minutes, ("dro", "portal"), "hour")
        made.append((gold.domains(handed, leads, "hour"), "domain_hour", "hour"))
    _at_once(lambda one: _write(one[0], history / "gold" / one[1], one[2]), made)


def _lasting(tables: Tables, history: Path) -> None:
    """Make the tables of what lasts longer than a day, from the small ones of all days."""
    losses = tables("loss_minute")
    made = {
        "blocked_episode": episodes.blocked_episodes(losses),
        "topology_event": episodes.topology_events(tables("portal_span"), tables("dro_span"), losses),
    }
    _at_once(lambda one: _replace(one[1], history / "gold" / one[0], ()), made.items())


def _at_once(write: Callable[[_T], object], tables: Iterable[_T]) -> None:
    """Write several tables at the same time: most of the time of a small one is Spark's planning."""
    with ThreadPoolExecutor(WRITERS) as pool:
        for done in [pool.submit(write, one) for one in tables]:
            done.result()


def _of_days(spark: SparkSession, base: Path, days: Iterable[str]) -> DataFrame | None:
    return _read(spark, base, [path for day in sorted(days) if (path := base / f"day={day}").exists()])


def _read(spark: SparkSession, base: Path, paths: Sequence[Path]) -> DataFrame | None:
    if not paths:
        return None
    return spark.read.schema(schema_of(base)).option("basePath", str(base)).parquet(*map(str, paths))


def _write(rows: DataFrame, base: Path, step: str) -> None:
    """Write rows by the days of their steps."""
    _replace(rows.withColumn("day", F.date_format(step, "yyyy-MM-dd")), base)


def _replace(frame: DataFrame, base: Path, by: Sequence[str] = ("day",)) -> None:
    """Write partitions in the place of those that are there, or without `by` the whole table."""
    if by:
        writer = frame.repartition(*by).write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy(*by).parquet(str(base))
    else:
        frame.coalesce(1).write.mode("overwrite").parquet(str(base))
    add_schema(base, frame.schema)


def follow(
    spark: SparkSession,
    history: Path,
    every_s: float,
    on_done: Callable[[RunSummary], object],
    is_endless: bool = True,
) -> None:
    """Bring silver and gold up to date whenever there are new files, until the query is stopped; or once.

    Spark's Structured Streaming watches the files; each of its batches does what a run does. Raises: HistoryError.
    """
    where = history / "table=portal"
    if not where.is_dir():
        raise HistoryError(f"{where} is not there yet: begin when the first samples are written")
    files = spark.readStream.schema("ts timestamp, day string, dro string").parquet(str(where))

    def made(_batch: DataFrame, _number: int) -> None:
        on_done(aggregate(spark, history))

    started = files.writeStream.foreachBatch(made).option("checkpointLocation", str(history / "gold/.followed"))
    every = {"processingTime": f"{every_s} seconds"} if is_endless else {"availableNow": True}
    started.trigger(**every).start().awaitTermination()


def _show_progress(done: int, of: int) -> None:
    print(f"{done} of {of} days of DROs", file=sys.stderr)


def arguments() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(prog="tnwgd-aggregate", description="Aggregate the history of DROs with Spark.")
    parser.add_argument("--history", metavar="DIR", type=Path, required=True, help="directory of the history")
    parser.add_argument("--follow", metavar="SECONDS", type=positive, default=0.0,
                        help="go on whenever there are new files, looking so often")  # fmt: skip
    parser.add_argument("--master", default="", help="of Spark (default local[*], or what spark-submit says)")
    return parser


def main(given: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit status."""
    options = arguments().parse_args(given)

    def work(spark: SparkSession) -> int:
        if options.follow:
            follow(spark, options.history, options.follow, _print)
            return 0
        done = aggregate(spark, options.history, _show_progress)
        _print(done)
        return 1 if done.left_out else 0

    return run("tnwgd-aggregate", options.master, work)


def _print(done: RunSummary) -> None:
    for line in done.left_out:
        print(f"tnwgd-aggregate: {line}", file=sys.stderr)
    print(f"{done.partitions} days of DROs aggregated, {done.days} days of gold", flush=True)


if __name__ == "__main__":
    sys.exit(main())
