"""Gives the gold tables by name: those that are kept as files, and those that are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from analytics import gold, trends
from analytics.schemas import schema_of

Tables = Callable[[str], DataFrame]
LINE_RATE: Final = 125_000_000.0
"""Bytes a second that a link takes, unless said otherwise: 1 Gbit/s."""
_DOMAINS: Final = ("dro", "from_domain_id", "from_dro_id", "to_domain_id", "to_dro_id")
KEPT: Final[Mapping[str, str]] = {
    name: f"gold/{name}" for name in ("hour", "day", "loss_minute", "domain_hour", "topology_event", "blocked_episode")
} | {"portal_span": "silver/portal_span", "dro_span": "silver/dro_span"}
"""Directories of tables in a history."""
MADE: Final[Mapping[str, Callable[[Tables, float], DataFrame]]] = {
    "portal_hour": lambda of, _: of("hour").where("portal <> ''"),
    "portal_day": lambda of, _: of("day").where("portal <> ''"),
    "dro_hour": lambda of, _: gold.dros(of("hour"), "hour"),
    "dro_day": lambda of, _: gold.dros(of("day"), "day"),
    "link_hour": lambda of, _: gold.links(of("hour"), "hour"),
    "link_day": lambda of, _: gold.links(of("day"), "day"),
    "domain_day": lambda of, _: gold.by_day(of("domain_hour"), _DOMAINS),
    "interest_growth": lambda of, _: trends.interest_growth(of("portal_day")),
    "anomaly": lambda of, _: trends.anomalies(of("portal_hour")),
    "forecast": lambda of, rate: trends.forecasts(of("portal_day"), rate),
    "configuration_change": lambda of, _: trends.before_and_after(of("dro_span"), of("portal_hour")),
}


def tables_of(spark: SparkSession, history: Path, line_rate: float = LINE_RATE) -> Tables:
    """Give the tables of a history. Raises, when asked for one: HistoryError, it was never aggregated."""

    def table(name: str) -> DataFrame:
        if (make := MADE.get(name)) is not None:
            return make(table, line_rate)
        path = history / KEPT[name]
        return spark.read.schema(schema_of(path)).parquet(str(path))

    return table
