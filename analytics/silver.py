"""Makes exact differences of samples: how much each counter of a portal grew in each minute.

A counter never falls within its scope: one run of a DRO (`run`) and one counter page (`page`). So the highest value of
a minute is its last, however often, late or out of order its samples came, and the growth of a minute is that value
less the highest before it. The sum over all minutes is the last value less the first, whatever the clock did.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

SCOPE: Final = ("dro", "portal", "run", "page")
ABOUT: Final = ("portal_type", "domain_id", "adjacent_dro_id", "dro_id")
SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
LIMIT: Final = f"3 * greatest(spacing_us, {SECOND_US})"
"""Microseconds without a sample that are a gap: three sampling intervals."""


def minutes(samples: DataFrame, counters: Sequence[str]) -> DataFrame:
    """A row for each scope and minute: `ts_first`, `ts_last` (us), `samples`, and the counters as they were last."""
    about = [f"max({name}) AS {name}" for name in (*ABOUT, *counters)]
    grouped = samples.groupBy(*SCOPE, F.expr(f"floor(unix_micros(ts) / {MINUTE_US})").alias("minute"))
    return grouped.agg(
        *map(
            F.expr,
            ("min(unix_micros(ts)) AS ts_first", "max(unix_micros(ts)) AS ts_last", "count(1) AS samples", *about),
        )
    )


def runs(rows: DataFrame) -> DataFrame:
    """Make a row for each run of a DRO: its first sample (us), and how far its samples are from one another (us)."""
    spacing = "percentile_approx((ts_last - ts_first) / (samples - 1), 0.5) FILTER (WHERE samples > 1)"
    return rows.groupBy("dro", "run").agg(
        F.min("ts_first").alias("run_first"), F.expr(f"coalesce({spacing}, {MINUTE_US})").alias("spacing_us")
    )


def openings(minutes_: DataFrame, seeds: DataFrame | None) -> DataFrame:
    """Scopes that counted already when they were sampled first, and when that was (us): where their growth begins.

    Others have begun at 0: the first sample came soon after the start of the run, or its DRO was sampled before.
    """
    rows = minutes_ if seeds is None else minutes_.unionByName(seeds, allowMissingColumns=True)
    return (
        rows.groupBy(*SCOPE).agg(F.min("ts_first").alias("opening"))
        .join(F.broadcast(runs(rows)), ["dro", "run"])
        .where(f"opening = run_first AND opening - unix_micros(run) > {LIMIT}")
        .select(*SCOPE, "opening")
    )  # fmt: skip


def deltas(minutes_: DataFrame, seeds: DataFrame | None, counters: Sequence[str]) -> DataFrame:
    """The counters of `minutes` as growth since the row before, or since 0, with `interval_us`, `is_first`, `is_gap`.

    `seeds`: rows from before, of which nothing is given back.
    """
    rows = minutes_.withColumn("is_seed", F.lit(False))
    if seeds is not None:
        rows = rows.unionByName(seeds.withColumn("is_seed", F.lit(True)), allowMissingColumns=True)
    scope = f"PARTITION BY {', '.join(SCOPE)} ORDER BY minute, NOT is_seed"
    before = f"OVER ({scope} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    others = [name for name in minutes_.columns if name not in counters]
    return (
        rows.join(F.broadcast(runs(rows)), ["dro", "run"])
        .selectExpr(
            *others, "is_seed",
            *(f"greatest({name} - coalesce(max({name}) {before}, 0L), 0L) AS {name}" for name in counters),
            f"greatest(ts_last - coalesce(max(ts_last) {before}, unix_micros(run)), 0L) AS interval_us",
            f"max(ts_last) {before} IS NULL AS is_first",
            f"coalesce(ts_first - max(ts_last) {before} > {LIMIT}, false) AS is_gap",
        )
        .where("NOT is_seed").drop("is_seed")
    )  # fmt: skip


def last_values(minutes_: DataFrame, counters: Sequence[str]) -> DataFrame:
    """A row for each scope and day with the highest values so far: the seeds of what follows."""
    kept = (f"max({name}) AS {name}" for name in ("minute", "ts_last", *counters))
    return minutes_.groupBy("day", *SCOPE).agg(*map(F.expr, ("min(ts_first) AS ts_first", *kept)))


def with_runs(samples: DataFrame, dros: DataFrame) -> DataFrame:
    """Fill in the run of samples that came without: it is that of the DRO's own samples around that time, or none
    that is known, which began in 1970."""
    known = (
        dros.where("run is not null")
        .groupBy("dro", F.col("run").alias("dro_run"))
        .agg(F.min("ts").alias("first"), F.max("ts").alias("last"))
    )
    joined = samples.join(
        F.broadcast(known.withColumnRenamed("dro", "of_dro")),
        F.col("run").isNull() & (F.col("dro") == F.col("of_dro")) & F.col("ts").between(F.col("first"), F.col("last")),
        "left",
    )
    run = F.coalesce("run", "dro_run", F.timestamp_seconds(F.lit(0)))
    return joined.withColumn("run", run).drop("of_dro", "dro_run", "first", "last")
