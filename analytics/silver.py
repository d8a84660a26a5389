"""Makes exact differences of samples: how much each counter of a portal grew in each minute.

A counter never falls within its scope: one run of a DRO (`run`) and one counter page (`page`) of a portal, or of a pair
of them. So the highest value of a minute is its last, however often, late or out of order its samples came, and the
growth of a minute is that value less the highest before it. The sum over all minutes is the last value less the first,
whatever the clock did. What a DRO counts as a whole has an empty portal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.sums import Kept

PORTAL: Final = ("dro", "portal", "run", "page")
PAIR: Final = ("dro", "portal", "to_portal", "run", "page")
ABOUT: Final = ("portal_type", "domain_id", "adjacent_dro_id", "dro_id", "cost")
SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US
LIMIT: Final = f"3 * greatest(spacing_us, {SECOND_US})"
"""Microseconds without a sample that are a gap: three sampling intervals."""


def minutes(samples: DataFrame, scope: Sequence[str], kept: Kept, width_us: int = MINUTE_US) -> DataFrame:
    """Make a row for each scope and minute, or step of another width: `minute` is its first one since 1970.

    `ts_first`, `ts_last` (us), `samples`, `up_samples`; the counters and gauges as they were last, some gauges as they
    were highest; `clock_us`: what the clock showed when the host was started, which differs after it was set.
    """
    last = [*ABOUT, *kept.last]
    sums = (f"max({name}) AS {name}" for name in (*kept.counters, *kept.highest))
    minute = f"floor(unix_micros(ts) / {width_us}) * {width_us // MINUTE_US} AS minute"
    return (
        samples.groupBy(*scope, F.expr(minute))
        .agg(*map(F.expr, (
            "min(unix_micros(ts)) AS ts_first", "max(unix_micros(ts)) AS ts_last", "count(1) AS samples",
            "count_if(up) AS up_samples", "max(unix_micros(ts) - seq) AS clock_us",
            f"max_by(struct({', '.join(last)}), ts) AS last", *sums,
        )))
        .selectExpr(*scope, "minute", "ts_first", "ts_last", "samples", "up_samples", "clock_us",
                    *(f"last.{name}" for name in last), *kept.counters, *kept.highest)
    )  # fmt: skip


def runs(rows: DataFrame) -> DataFrame:
    """Make a row for each run of a DRO: its first sample (us), and how far its samples are from one another (us)."""
    spacing = "percentile_approx(nullif(ts_last - ts_first, 0) / nullif(samples - 1, 0), 0.5)"  # without repeats
    return rows.groupBy("dro", "run").agg(
        F.min("ts_first").alias("run_first"), F.expr(f"coalesce({spacing}, {MINUTE_US})").alias("spacing_us")
    )


def openings(minutes_: DataFrame, seeds: DataFrame | None, scope: Sequence[str]) -> DataFrame:
    """Scopes that counted already when they were sampled first, and when that was (us): where their growth begins.

    Others have begun at 0: the first sample came soon after the start of the run, or its DRO was sampled before.
    """
    rows = minutes_ if seeds is None else minutes_.unionByName(seeds, allowMissingColumns=True)
    return (
        rows.groupBy(*scope).agg(F.min("ts_first").alias("opening"))
        .join(F.broadcast(runs(rows)), ["dro", "run"])
        .where(f"opening = run_first AND opening - unix_micros(run) > {LIMIT}")
        .select(*scope, "opening")
    )  # fmt: skip


def deltas(minutes_: DataFrame, seeds: DataFrame | None, scope: Sequence[str], counters: Sequence[str]) -> DataFrame:
    """The counters of `minutes` as growth since the row before, or since 0, with `interval_us`, and `is_first`,
    `is_gap` (more than three sampling intervals without one), `is_clock_step` (it was set by more than a second).

    `seeds`: rows from before, of which nothing is given back.
    """
    rows = minutes_.withColumn("is_seed", F.lit(False))
    if seeds is not None:
        rows = rows.unionByName(seeds.withColumn("is_seed", F.lit(True)), allowMissingColumns=True)
    order = f"PARTITION BY {', '.join(scope)} ORDER BY minute, NOT is_seed"
    before = f"OVER ({order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    others = [name for name in minutes_.columns if name not in (*counters, "clock_us")]
    return (
        rows.join(F.broadcast(runs(rows)), ["dro", "run"])
        .selectExpr(
            *others, "is_seed",
            *(f"greatest({name} - coalesce(max({name}) {before}, 0L), 0L) AS {name}" for name in counters),
            f"greatest(ts_last - coalesce(max(ts_last) {before}, unix_micros(run)), 0L) AS interval_us",
            f"max(ts_last) {before} IS NULL AS is_first",
            f"coalesce(ts_first - max(ts_last) {before} > {LIMIT}, false) AS is_gap",
            f"coalesce(abs(clock_us - lag(clock_us) OVER ({order})) > {SECOND_US}, false) AS is_clock_step",
        )
        .where("NOT is_seed").drop("is_seed")
    )  # fmt: skip


def last_values(
    minutes_: DataFrame, seeds: DataFrame | None, days: DataFrame, scope: Sequence[str], counters: Sequence[str]
) -> DataFrame:
    """A row for each scope and day with the highest values so far: the seeds of what follows.

    `days`: `dro`, `day` (text) of all that are wanted. What was not sampled on a day is carried on to the next one, as
    long as the run is the DRO's last.
    """
    rows = with_day(minutes_).select("day", *scope, "minute", "ts_first", "ts_last", "clock_us", *counters)
    if seeds is not None:
        rows = rows.unionByName(with_day(seeds), allowMissingColumns=True)
    kept = (f"max({name}) AS {name}" for name in ("minute", "ts_last", *counters))
    of_day = rows.groupBy("day", *scope).agg(
        *map(F.expr, ("min(ts_first) AS ts_first", "max_by(clock_us, minute) AS clock_us", *kept))
    )
    newest = f"OVER (PARTITION BY {scope[0]}, day)"
    return (
        of_day.withColumnRenamed("day", "from_day").join(F.broadcast(days), "dro").where("from_day <= day")
        .groupBy("day", *scope)
        .agg(*map(F.expr, (
            "min(ts_first) AS ts_first", "max_by(clock_us, minute) AS clock_us", "max(from_day) AS from_day",
            *(f"max({name}) AS {name}" for name in ("minute", "ts_last", *counters)),
        )))
        .withColumn("newest", F.expr(f"max(run) {newest}"))
        .where("from_day = day OR run = newest").drop("from_day", "newest")
    )  # fmt: skip


def with_day(rows: DataFrame) -> DataFrame:
    """Add the day of UTC, as text, that a minute is in."""
    return rows.withColumn("day", F.expr(f"date_format(timestamp_micros(minute * {MINUTE_US}), 'yyyy-MM-dd')"))


def spans(rows: DataFrame, by: Sequence[str], values: Sequence[str]) -> DataFrame:
    """Join rows, one after another by time, that have the same values: `ts_first`, `ts_last` (us), `samples`."""
    order = f"PARTITION BY {', '.join(by)} ORDER BY ts_first, ts_last"
    told = f"struct({', '.join(values)})"
    return (
        rows.withColumn("differs", F.expr(f"int(NOT (lag({told}) OVER ({order}) <=> {told}))"))
        .withColumn("nth", F.expr(f"sum(differs) OVER ({order} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"))
        .groupBy(*by, "nth", *values)
        .agg(*map(F.expr, ("min(ts_first) AS ts_first", "max(ts_last) AS ts_last", "sum(samples) AS samples")))
        .drop("nth")
    )
