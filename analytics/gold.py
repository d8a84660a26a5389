"""Makes the tables that questions are asked of: sums by hour and day of portals, DROs, links and pairs of domains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.rolled import sums
from analytics.sums import HIGHEST, LAST

_OF_SAMPLES: Final = ("samples", "up_samples")
_LAST: Final = tuple(name for names in LAST.values() for name in names)
_HIGHEST: Final = tuple(name for names in HIGHEST.values() for name in names)
FROM_LINK: Final = ("dro", "portal", "cost")
SUMS_OF_LINK: Final = (
    "covered_us", "samples", "up_samples", "sent_messages", "sent_bytes", "sent_bytes_p95", "received_messages",
    "received_bytes", "dropped_messages", "dropped_bytes", "dropped_messages_duplicate", "link_lost_bytes", "connects",
    "disconnects", "udp_sent_datagrams", "udp_lost_datagrams", "udp_unrecovered_datagrams",
    "udp_retransmitted_datagrams", "send_blocked_us", "rtt_samples", "rtt_us_sum",
)  # fmt: skip


def dros(portals: DataFrame, step: str) -> DataFrame:
    """Add up the portals of each DRO, and what it counts as a whole."""
    return portals.groupBy(*dict.fromkeys(("day", "dro", step))).agg(
        *map(F.expr, (
            "max(dro_id) AS dro_id", "count_if(portal <> '') AS portals",
            *(f"max({name}) AS {name}" for name in ("covered_us", "gaps", "clock_steps", *_HIGHEST)),
            *(f"sum({name}) AS {name}" for name in (*_LAST, *sums(portals.columns)) if name not in _OF_SAMPLES),
        ))
    )  # fmt: skip


def links(portals: DataFrame, step: str) -> DataFrame:
    """Put both ends of each link into one row: `a_` is the one of the lower node id, `b_` the other one.

    A portal that has never heard of its companion is a link with one end.
    """
    buckets = [name for name in portals.columns if name.startswith("rtt_us_le_")]
    names = (*FROM_LINK, *SUMS_OF_LINK, *buckets)
    other = "coalesce(adjacent_dro_id, concat('of ', portal))"
    return (
        portals.where("portal_type = 'peer'")
        .selectExpr("*", f"least(dro_id, {other}) AS a_id", f"greatest(dro_id, {other}) AS b_id")
        .groupBy(*dict.fromkeys(("day", step, "a_id", "b_id")))
        .agg(
            *(F.expr(f"max({name}) FILTER (WHERE dro_id = a_id) AS a_{name}") for name in names),
            *(F.expr(f"max({name}) FILTER (WHERE dro_id = b_id) AS b_{name}") for name in names),
        )
    )


def by_day(hours: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Add up the sums of hours."""
    names = [name for name in sums(hours.columns) if name not in keys]
    return hours.groupBy("day", *keys).agg(*(F.expr(f"sum({name}) AS {name}") for name in names))
