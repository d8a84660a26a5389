"""Run `tnwgd-aggregate`: make silver and gold tables from the samples of a history, those whose files changed alone.

DIR/silver/<table>/day=<day>/dro=<dro>     growth of each counter by minute; what was up; where the next day begins
DIR/gold/<table>/day=<day>                 sums by hour and day
DIR/gold/<table>                           what lasts longer than a day
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import unquote

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from analytics import bronze, episodes, gold, silver
from analytics.files import Contents, HistoryError, Part, contents, parts_of, readable
from analytics.schemas import add_schema, schema_of
from analytics.session import positive, run
from analytics.sums import Kept, kept_of
from analytics.views import Tables, tables_of

TYPES: Final[Mapping[str, T.DataType]] = {
    "time": T.TimestampType(), "long": T.LongType(), "string": T.StringType(), "bool": T.BooleanType(),
    "map": T.MapType(T.StringType(), T.StringType()),
}  # fmt: skip
CHUNK: Final = 200
"""Days of DROs that one job takes at most, unless one day has more."""
WRITERS: Final = 4
TABLES: Final = ("portal", "dro", "pair")
_TIMES: Final[Mapping[str, str]] = {"ts": "time", "run": "time", "seq": "long", "source": "string"}
NEEDED: Final[Mapping[str, Mapping[str, str]]] = {
    "portal": {
        **_TIMES,
        "portal": "string", "page": "long", "portal_type": "string", "dro_id": "string", "domain_id": "long",
        "adjacent_dro_id": "string", "cost": "long", "up": "bool",
    },
    "dro": {
        **_TIMES,
        "dro_id": "string", "up": "bool", "config_loaded": "time", "signature": "long", "graph_version": "long",
        "network_dros": "long",
    },
    "pair": {**_TIMES, "portal": "string", "to_portal": "string", "page": "long"},
}  # fmt: skip
"""Columns that are there, whether files have them or not."""
Partition = tuple[str, str]  # day, DRO
_T = TypeVar("_T")


def read(spark: SparkSession, found: Contents, table: str) -> DataFrame:
    """The rows of files, those of different releases too: a column that a file lacks is null."""
    chosen = {name: column.type for name, column in found.columns.items()}
    schema = T.StructType([T.StructField(name, TYPES[of]) for name, of in {**NEEDED[table], **chosen}.items()])
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
    parts = {table: parts_of(history, table) for table in TABLES}
    prints = prints_of(part for of_table in parts.values() for part in of_table)
    state = State(history)
    days: dict[str, set[str]] = defaultdict(set)
    for day, dro in (*prints, *_made(history / "silver/end")):
        days[dro].add(day)
    touched = {where for where, found in prints.items() if state.prints.get(where) != found}
    for day, dro in sorted(touched):  # a day begins where the one before has ended
        later = min((d for d in days[dro] if d > day), default="")
        touched |= {(later, dro)} & prints.keys()
    (history / "gold").mkdir(exist_ok=True)
    done = 0
    for chunk in _chunks(touched):
        here = {table: [p for p in of_table if (p.day, p.dro) in chunk] for table, of_table in parts.items()}
        found = {table: contents(of_table, table, left_out.append) for table, of_table in here.items()}
        try:
            _Silver(spark, history, found, chunk, days).make()
        except (PySparkException, Py4JError):
            before = len(left_out)
            found = {table: readable(of_table, left_out.append) for table, of_table in found.items()}
            if len(left_out) == before:
                raise
            _Silver(spark, history, found, chunk, days).make()
        _gold(spark, history, {day for day, _ in chunk})
        state.prints.update({where: prints[where] for where in chunk})
        state.save()
        done += len(chunk)
        on_progress(done, len(touched))
    if touched:
        _lasting(tables_of(spark, history), history)
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


class _Silver:
    """Makes the silver tables of a chunk."""

    def __init__(
        self,
        spark: SparkSession,
        history: Path,
        found: Mapping[str, Contents],
        chunk: set[Partition],
        days: Mapping[str, set[str]],
    ) -> None:
        self._spark, self._history, self._found = spark, history, found
        self._days = spark.createDataFrame(sorted(chunk), "day string, dro string")
        self._before = {
            (max(earlier), dro) for day, dro in chunk
            if (earlier := [d for d in days[dro] if d < day]) and (max(earlier), dro) not in chunk
        }  # fmt: skip

    def make(self) -> None:
        """Make all of them."""
        dros = self._rows("dro", ())
        samples = {"dro": dros.withColumn("portal", F.lit("")).withColumn("page", F.lit(-1))}
        for table, key in (("portal", ("portal",)), ("pair", ("portal", "to_portal"))):
            rows = bronze.with_runs(self._rows(table, key), dros.select("dro", "run", "ts"))
            samples[table] = rows.withColumn("page", F.coalesce("page", F.lit(-1)))
        kept = {table: kept_of(table, self._found[table].columns) for table in TABLES}
        both = Kept(
            {**kept["portal"].counters, **kept["dro"].counters},
            kept["portal"].last,
            {**kept["portal"].highest, **kept["dro"].highest},
        )
        portals = _summed(samples["portal"], silver.PORTAL, kept["portal"])
        of_dro = _summed(samples["dro"], silver.PORTAL, kept["dro"])
        pairs = _summed(samples["pair"], silver.PAIR, kept["pair"])
        made: list[Callable[[], None]] = [
            lambda: self._grow("minute", portals.unionByName(of_dro, allowMissingColumns=True), silver.PORTAL, both)
        ]
        if self._found["pair"].parts:
            made.append(lambda: self._grow("pair", pairs, silver.PAIR, kept["pair"], silver.HOUR_US))
        told = ("unix_micros(ts) AS ts_first", "unix_micros(ts) AS ts_last", "1L AS samples")
        for table, by, values in (
            ("portal", ("dro", "portal", "run"), ("up", "portal_type", "dro_id", "adjacent_dro_id")),
            ("dro", ("dro",), ("run", "signature", "graph_version", "network_dros", "config_loaded")),
        ):
            rows = samples[table].where(f"{values[0]} IS NOT NULL").selectExpr("dro", *by[1:], *told, *values)
            day = rows.withColumn("minute", F.expr(f"ts_first DIV {silver.MINUTE_US}"))
            found = silver.spans(silver.with_day(day), ("day", *by), values)
            made.append(partial(_replace, found, self._history / f"silver/{table}_span"))
        _at_once(lambda make: make(), made)

    def _rows(self, table: str, key: Sequence[str]) -> DataFrame:
        found = self._found[table]
        rows = read(self._spark, found, table)
        rows = rows.where("date_format(ts, 'yyyy-MM-dd') = day")  # another one would replace what that day has
        return bronze.merged(self._spark, rows, bronze.overlaps(found.parts), key)

    def _grow(
        self, name: str, samples: DataFrame, scope: Sequence[str], kept: Kept, width_us: int = silver.MINUTE_US
    ) -> None:
        by_minute = silver.minutes(samples, scope, kept, width_us).persist()
        try:
            self._write_grown(name, samples, by_minute, scope, kept, width_us)
        finally:
            by_minute.unpersist()

    def _write_grown(
        self, name: str, samples: DataFrame, by_minute: DataFrame, scope: Sequence[str], kept: Kept, width_us: int
    ) -> None:
        counters = list(kept.counters)
        end = self._history / f"silver/{'end' if name == 'minute' else f'{name}_end'}"
        seeds = _partitions(self._spark, end, self._before)
        opened = F.broadcast(silver.openings(by_minute, seeds, scope))
        at_opening = samples.join(opened, [*scope]).where("unix_micros(ts) = opening").drop("opening")
        begins = silver.minutes(at_opening, scope, kept, width_us)
        before = begins if seeds is None else begins.unionByName(seeds, allowMissingColumns=True)
        grown = silver.deltas(by_minute, before, scope, counters)
        _replace(silver.with_day(grown), self._history / "silver" / name)
        _replace(silver.last_values(by_minute, seeds, self._days, scope, counters), end)


def _summed(samples: DataFrame, scope: Sequence[str], kept: Kept) -> DataFrame:
    """Select what minutes are made of; what a table does not have is unknown."""
    about = [
        name if name in samples.columns else f"CAST(NULL AS {of}) AS {name}"
        for name, of in zip(silver.ABOUT, ("string", "long", "string", "string", "long"), strict=True)
    ]
    more = ["up" if "up" in samples.columns else "CAST(NULL AS boolean) AS up"]
    return samples.selectExpr(*scope, "ts", "seq", *more, *about, *kept.expressions())


def _gold(spark: SparkSession, history: Path, days: Iterable[str]) -> None:
    """Make hours and days of the days."""
    minutes, pairs = (_of_days(spark, history / "silver" / name, days) for name in ("minute", "pair"))
    if minutes is None:
        return
    made = [(gold.losses(minutes), "loss_minute", "minute")]
    made += [(gold.rolled(minutes, ("dro", "portal"), step), step, step) for step in gold.STEPS]
    if pairs is not None:
        handed = gold.rolled(pairs, ("dro", "portal", "to_portal"), "hour").drop(*silver.ABOUT)
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


def _made(base: Path) -> dict[Partition, Path]:
    """Find the directories that a silver table has for days and DROs; Spark escapes some characters of names."""
    return {
        (path.parent.name.removeprefix("day="), unquote(path.name.removeprefix("dro="))): path
        for path in base.glob("day=*/dro=*")
    }


def _partitions(spark: SparkSession, base: Path, wanted: Iterable[Partition]) -> DataFrame | None:
    made = _made(base)
    found = _read(spark, base, [made[where] for where in wanted if where in made])
    return None if found is None else found.drop("day")


def _of_days(spark: SparkSession, base: Path, days: Iterable[str]) -> DataFrame | None:
    return _read(spark, base, [path for day in sorted(days) if (path := base / f"day={day}").exists()])


def _all(spark: SparkSession, base: Path) -> DataFrame | None:
    return _read(spark, base, sorted(base.glob("day=*")))


def _read(spark: SparkSession, base: Path, paths: Sequence[Path]) -> DataFrame | None:
    if not paths:
        return None
    return spark.read.schema(schema_of(base)).option("basePath", str(base)).parquet(*map(str, paths))


def _write(rows: DataFrame, base: Path, step: str) -> None:
    """Write rows by the days of their steps."""
    _replace(rows.withColumn("day", F.date_format(step, "yyyy-MM-dd")), base, ("day",))


def _replace(frame: DataFrame, base: Path, by: Sequence[str] = ("day", "dro")) -> None:
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
    on_done: Callable[[Done], object],
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


def _print(done: Done) -> None:
    for line in done.left_out:
        print(f"tnwgd-aggregate: {line}", file=sys.stderr)
    print(f"{done.partitions} days of DROs aggregated, {done.days} days of gold", flush=True)


if __name__ == "__main__":
    sys.exit(main())
