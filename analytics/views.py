"""Gives the gold tables by name: those that are kept as files, and those that are made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type

from analytics import gold, trends
from analytics.session import prepare
from analytics.store.errors import HistoryError, of_store
from analytics.store.manifest import TYPES, Manifests, read_rows
from analytics.store.objects import ObjectStore

Tables = Callable[[str], DataFrame]
LINE_RATE: Final = 125_000_000.0
"""Bytes a second that a link takes, unless said otherwise: 1 Gbit/s."""
_DOMAINS: Final = ("dro", "from_domain_id", "from_dro_id", "to_domain_id", "to_dro_id")
DAILY: Final = ("hour", "day", "loss_minute", "domain_hour", "portal_span", "dro_span")
LASTS: Final = ("topology_event", "blocked_episode")
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
_ENDS: Final = T.ArrayType(
    T.StructType([T.StructField("dro", T.StringType()), T.StructField("portal", T.StringType())])
)


def tables_of(spark: SparkSession, history: ObjectStore, line_rate: float = LINE_RATE) -> Tables:
    """Give the tables of a history as they are now. Raises, when asked for one: HistoryError, it was never made, or
    there is none of that name."""
    prepare(spark)
    try:
        manifests = Manifests(history)
    except OSError as e:
        raise of_store(e) from e

    def table(name: str) -> DataFrame:
        if (make := MADE.get(name)) is not None:
            return make(table, line_rate)
        if name not in (*DAILY, *LASTS):
            raise HistoryError(f"no table {name}: there are {', '.join(sorted([*MADE, *DAILY, *LASTS]))}")
        found = [of.tables[name] for of in manifests.of.values() if name in of.tables]
        if not found:
            raise HistoryError(
                f"{history.shown(f'gold/{name}')} is not there: run `tnwgd-aggregate --history {history.shown()}` first"
            )
        columns = {column: kind for one in found for column, kind in one.columns.items()}
        schema = T.StructType([T.StructField(column, _type(kind)) for column, kind in columns.items()])
        return _rows(spark, history, name, schema, [one.path for one in found if one.path], name in DAILY)

    return table


def _type(kind: str) -> T.DataType:
    return from_arrow_type(TYPES[kind]) if kind in TYPES else _ENDS


def _rows(
    spark: SparkSession, store: ObjectStore, name: str, schema: T.StructType, paths: list[str], is_daily: bool
) -> DataFrame:
    """Read files, by Spark where it sees the same disks, otherwise here."""
    with_day = T.StructType([*schema.fields, *([T.StructField("day", T.StringType())] if is_daily else [])])
    if not paths:
        return spark.createDataFrame([], with_day)
    if store.folder is not None:
        reader = spark.read.schema(with_day).option("ignoreMissingFiles", "false")
        reader = reader.option("basePath", str(store.folder / f"gold/{name}"))
        return reader.parquet(*(str(store.folder / path) for path in paths))
    parts = []
    for path in paths:
        rows = read_rows(store, path)
        if is_daily:
            rows = rows.append_column("day", pa.repeat(path.split("day=")[1].split("/")[0], len(rows)))
        parts.append(rows)
    return spark.createDataFrame(
        pa.concat_tables(parts, promote_options="default").select(with_day.fieldNames()), with_day
    )
