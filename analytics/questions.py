"""The questions that are asked of gold tables: each a function from frames to a frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

Gold = Callable[[str], DataFrame]
"""A gold table by its name, of the days and DROs that were asked for."""


@dataclass(frozen=True, slots=True)
class Question:
    """`answer`: from the gold tables to rows in the order in which they are shown."""

    name: str
    asks: str
    answer: Callable[[Gold], DataFrame]


def busiest_portal(gold: Gold) -> DataFrame:
    """For each DRO and hour the portal with the most bytes in both directions."""
    bytes_ = F.col("received_bytes") + F.col("sent_bytes")
    rank = Window.partitionBy("dro", "hour").orderBy(F.desc("bytes"), "portal")
    return (
        gold("portal_hour")
        .select("hour", "dro", "portal", bytes_.alias("bytes"), (bytes_ / 3600).alias("bytes_per_s"))
        .withColumn("rank", F.row_number().over(rank))
        .where("rank = 1").drop("rank").orderBy("hour", "dro")
    )  # fmt: skip


QUESTIONS: Final[Mapping[str, Question]] = {
    one.name: one for one in (Question("busiest-portal", "Which portal is busiest in each hour?", busiest_portal),)
}
