"""Run `tnwgd-aggregate`: make silver and gold tables from the samples of a history, those whose files changed alone.

DIR/silver/minute/day=<day>/dro=<dro>      growth of each counter of each portal by minute
DIR/silver/end/day=<day>/dro=<dro>         counters at the end of the day: where the next day begins
DIR/gold/<table>/day=<day>                 what questions are asked of
DIR/gold/state.json                        which files these were made of
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from analytics import gold, silver
from analytics.files import Contents, HistoryError, Part, contents, parts_of
from analytics.session import NoJavaError, spark_session
from analytics.sums import summed, sums_of

TYPES: Final[Mapping[str, T.DataType]] = {
    "time": T.TimestampType(), "long": T.LongType(), "string": T.StringType(), "bool": T.BooleanType(),
    "map": T.MapType(T.StringType(), T.StringType()),
}  # fmt: skip
CHUNK: Final = 200
"""Days of DROs that one job takes at most, unless one day has more."""
KEPT: Final = ("dro", "portal", "run", "coalesce(page, -1L) AS page", "ts", *silver.ABOUT)
TIMES: Final = {"ts": "time", "run": "time"}
Partition = tuple[str, str]  # day, DRO


def read(spark: SparkSession, found: Contents, columns: Sequence[str] | None = None) -> DataFrame:
    """The rows of files, those of different releases too: a column that a file lacks is null."""
    chosen = {name: column.type for name, column in found.columns.items() if columns is None or name in columns}
    schema = T.StructType([T.StructField(name, TYPES[of]) for name, of in (TIMES | chosen).items()])
    paths = [part.path for part in found.parts]
    if not paths:
        return spark.createDataFrame([], schema.add("day", T.StringType()).add("dro", T.StringType()))
    base = Path(paths[0]).parent.parent.parent
    return spark.read.schema(schema).option("basePath", str(base)).parquet(*paths)


@dataclass(frozen=True, slots=True)
class Done:
    """Tells what a run has made: partitions of silver and days of gold, and files that were left out."""

    partitions: int
    days: int
    left_out: tuple[str, ...]


class State:
    """Remembers which files a history's tables were made of, one print for each day and DRO."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "gold/state.json"
        self.prints: dict[Partition, str] = {}
        if self._path.exists():
            told = json.loads(self._path.read_text())
            self.prints = {(day, dro): found for day, dros in told["prints"].items() for dro, found in dros.items()}

    def save(self) -> None:
        prints: dict[str, dict[str, str]] = defaultdict(dict)
        for (day, dro), found in sorted(self.prints.items()):
            prints[day][dro] = found
        unnamed = self._path.with_name(f".state.{os.getpid()}")
        with unnamed.open("w") as file:
            json.dump({"prints": prints}, file)
            file.flush()
            os.fsync(file.fileno())
        unnamed.rename(self._path)


def prints_of(parts: Iterable[Part]) -> dict[Partition, str]:
    """For each day and DRO a text that changes when one of its files does."""
    found: dict[Partition, list[str]] = defaultdict(list)
    for part in parts:
        found[part.day, part.dro].append(f"{Path(part.path).name}:{part.size}:{part.mtime_ns}")
    return {where: hashlib.sha256("\n".join(sorted(files)).encode()).hexdigest()[:32] for where, files in found.items()}


def aggregate(
    spark: SparkSession, history: Path, on_progress: Callable[[int, int], object] = lambda n, of: None
) -> Done:
    """Bring silver and gold up to date. `on_progress`: partitions done, and of how many. Raises: HistoryError."""
    left_out: list[str] = []
    parts = {table: parts_of(history, table) for table in ("portal", "dro")}
    prints = prints_of(part for of_table in parts.values() for part in of_table)
    state = State(history)
    days: dict[str, list[str]] = defaultdict(list)
    for day, dro in sorted(prints):
        days[dro].append(day)
    touched = {where for where, found in prints.items() if state.prints.get(where) != found}
    for day, dro in sorted(touched):  # a day begins where the one before has ended
        touched |= {
            (later, dro) for later in days[dro] if later > day and later == min(d for d in days[dro] if d > day)
        }
    (history / "gold").mkdir(exist_ok=True)
    done = 0
    for chunk in _chunks(touched):
        here = {table: [p for p in of_table if (p.day, p.dro) in chunk] for table, of_table in parts.items()}
        found = {table: contents(of_table, table, left_out.append) for table, of_table in here.items()}
        if found["portal"].parts:
            _silver(spark, history, found, chunk, days)
            _gold(spark, history, sorted({day for day, _ in chunk}))
        state.prints.update({where: prints[where] for where in chunk})
        state.save()
        done += len(chunk)
        on_progress(done, len(touched))
    return Done(done, len({day for day, _ in touched}), tuple(left_out))


def _chunks(touched: Iterable[Partition]) -> list[set[Partition]]:
    """Days one after another, as many as are worth a job."""
    found: list[set[Partition]] = []
    by_day: dict[str, set[Partition]] = defaultdict(set)
    for where in touched:
        by_day[where[0]].add(where)
    for day in sorted(by_day):
        if not found or len(found[-1]) + len(by_day[day]) > CHUNK:
            found.append(set())
        found[-1] |= by_day[day]
    return found


def _silver(
    spark: SparkSession,
    history: Path,
    found: Mapping[str, Contents],
    chunk: set[Partition],
    days: Mapping[str, list[str]],
) -> None:
    sums = sums_of(found["portal"].columns)
    counters = list(sums)
    samples = silver.with_runs(read(spark, found["portal"]), read(spark, found["dro"], ("ts", "run")))
    samples = summed(samples, sums, KEPT)
    by_minute = silver.minutes(samples, counters).persist()
    before = {
        (max(earlier), dro) for day, dro in chunk
        if (earlier := [d for d in days[dro] if d < day]) and (max(earlier), dro) not in chunk
    }  # fmt: skip
    seeds = _partitions(spark, history / "silver/end", before)
    opened = F.broadcast(silver.openings(by_minute, seeds))
    at_opening = samples.join(opened, [*silver.SCOPE]).where("unix_micros(ts) = opening").drop("opening")
    begins = silver.minutes(at_opening, counters)
    seeds = begins if seeds is None else begins.unionByName(seeds, allowMissingColumns=True)
    grown = silver.deltas(by_minute, seeds, counters)
    _replace(_with_day(grown), history / "silver/minute")
    _replace(silver.last_values(_with_day(by_minute), counters), history / "silver/end")
    by_minute.unpersist()


def _gold(spark: SparkSession, history: Path, days: Sequence[str]) -> None:
    base = history / "silver/minute"
    paths = [str(base / f"day={day}") for day in days if (base / f"day={day}").exists()]
    if paths:
        minutes = spark.read.option("basePath", str(base)).option("mergeSchema", "true").parquet(*paths)
        hours = gold.portal_hours(minutes)
        hours = hours.withColumn("day", F.date_format("hour", "yyyy-MM-dd"))
        _replace(hours, history / "gold/portal_hour", ("day",))


def _partitions(spark: SparkSession, base: Path, wanted: Iterable[Partition]) -> DataFrame | None:
    paths = [path for day, dro in wanted if (path := base / f"day={day}/dro={quote(dro, safe='')}").exists()]
    if not paths:
        return None
    found = spark.read.option("basePath", str(base)).option("mergeSchema", "true").parquet(*map(str, paths))
    return found.drop("day")


def _with_day(frame: DataFrame) -> DataFrame:
    return frame.withColumn("day", F.date_format(F.timestamp_micros(F.col("minute") * silver.MINUTE_US), "yyyy-MM-dd"))


def _replace(frame: DataFrame, base: Path, by: Sequence[str] = ("day", "dro")) -> None:
    """Write partitions in the place of those that are there."""
    writer = frame.repartition(*by).write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
    writer.partitionBy(*by).parquet(str(base))


def _show_progress(done: int, of: int) -> None:
    print(f"{done} of {of} days of DROs", file=sys.stderr)


def arguments() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(prog="tnwgd-aggregate", description="Aggregate the history of DROs with Spark.")
    parser.add_argument("--history", metavar="DIR", type=Path, required=True, help="directory of the history")
    parser.add_argument("--master", default="", help="of Spark (default local[*], or what spark-submit says)")
    return parser


def main(given: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit status."""
    options = arguments().parse_args(given)
    try:
        with spark_session("tnwgd-aggregate", options.master) as spark:
            done = aggregate(spark, options.history, _show_progress)
    except (HistoryError, NoJavaError) as e:
        print(f"tnwgd-aggregate: {e}", file=sys.stderr)
        return 1
    for line in done.left_out:
        print(f"tnwgd-aggregate: {line}", file=sys.stderr)
    print(f"{done.partitions} days of DROs aggregated, {done.days} days of gold")
    return 1 if done.left_out else 0


if __name__ == "__main__":
    sys.exit(main())
