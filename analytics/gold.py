"""Makes the tables that questions are asked of, from minutes: sums by hour and day, and what they are of."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.silver import ABOUT, MINUTE_US

HOUR_US: Final = 60 * MINUTE_US
PORTAL: Final = ("dro", "portal")
_NO_SUMS: Final = {"dro", "portal", "run", "page", "day", "minute", "samples", "ts_first", "ts_last", "is_first",
                   "is_gap", "interval_us", *ABOUT}  # fmt: skip


def portal_hours(silver: DataFrame) -> DataFrame:
    """A row for each portal and hour."""
    hour = F.timestamp_micros(F.floor(F.col("minute") * MINUTE_US / HOUR_US).cast("long") * HOUR_US)
    return silver.groupBy(*PORTAL, hour.alias("hour")).agg(
        *(F.max(name).alias(name) for name in ABOUT),
        *map(F.expr, ("sum(interval_us) AS covered_us", "count_if(is_gap) AS gaps")),
        *(F.expr(f"sum({name}) AS {name}") for name in silver.columns if name not in _NO_SUMS),
    )
