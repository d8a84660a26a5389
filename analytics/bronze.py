"""Makes one row of what came in several: samples as they landed, each key once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from analytics.files import Part
from analytics.silver import HOUR_US

SCRAPED: Final = ("part-receive-", "part-scrape-", "part-compact-")
"""Files whose writers take what is scraped."""
Overlap = tuple[str, int, int]  # DRO, from, to (us)
_OVERLAP: Final = "of_dro string, hour long, first long, last long"


def overlaps(parts: Iterable[Part]) -> list[Overlap]:
    """Find the times of which more than one file of a DRO and day has samples that came from Prometheus."""
    found: list[Overlap] = []
    until: dict[tuple[str, str], int] = {}
    scraped = (part for part in parts if Path(part.path).name.startswith(SCRAPED))
    for part in sorted(scraped, key=lambda part: part.first_us):
        where = part.day, part.dro
        if part.first_us <= until.get(where, -1):
            found.append((part.dro, part.first_us, min(part.last_us, until[where])))
        until[where] = max(until.get(where, -1), part.last_us)
    return found


def merged(spark: SparkSession, samples: DataFrame, where: Iterable[Overlap], key: Iterable[str]) -> DataFrame:
    """Join the rows of one key that came in different files: a scrape may arrive in several requests.

    Rows that are written whole are left as they are: they repeat, and nothing is counted twice by that.
    """
    told = [
        (dro, hour, first, last) for dro, first, last in where for hour in range(first // HOUR_US, last // HOUR_US + 1)
    ]
    if not told:
        return samples
    here = F.broadcast(spark.createDataFrame(told, _OVERLAP))
    is_there = F.expr(f"""source = 'prometheus' AND dro = of_dro AND floor(unix_micros(ts) / {HOUR_US}) = hour
                          AND unix_micros(ts) BETWEEN first AND last""")
    keys = ["dro", "ts", *key]
    values = [f.name for f in samples.schema.fields if f.name not in keys and not isinstance(f.dataType, T.MapType)]
    parts = samples.join(here, is_there, "left_semi")
    return samples.join(here, is_there, "left_anti").unionByName(
        parts.groupBy(*keys).agg(*(F.max(name).alias(name) for name in values)), allowMissingColumns=True
    )


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
