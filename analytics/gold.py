"""Makes the tables that questions are asked of: sums by hour and day of portals, DROs, links and pairs of domains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.bronze import ABOUT, HOUR_US, MINUTE_US
from analytics.sums import HIGHEST, LAST

STEPS: Final = {"hour": HOUR_US, "day": 24 * HOUR_US}
_LAST: Final = tuple(name for names in LAST.values() for name in names)
_HIGHEST: Final = tuple(name for names in HIGHEST.values() for name in names)
_ROLLED: Final = ("covered_us", "gaps", "clock_steps", "busiest_minute_bytes", "sent_bytes_p95")
_NO_SUMS: Final = {
    "dro", "portal", "to_portal", "run", "page", "day", "minute", "ts_first", "ts_last", "is_first", "is_gap",
    "is_clock_step", "interval_us", "hour", *ABOUT, *_LAST, *_HIGHEST, *_ROLLED,
}  # fmt: skip
FROM_LINK: Final = ("dro", "portal", "cost")
SUMS_OF_LINK: Final = (
    "covered_us", "samples", "up_samples", "sent_messages", "sent_bytes", "sent_bytes_p95", "received_messages",
    "received_bytes", "dropped_messages", "dropped_bytes", "dropped_messages_duplicate", "link_lost_bytes", "connects",
    "disconnects", "udp_sent_datagrams", "udp_lost_datagrams", "udp_unrecovered_datagrams",
    "udp_retransmitted_datagrams", "send_blocked_us", "rtt_samples", "rtt_us_sum",
)  # fmt: skip
LOSSES: Final = ("dropped_messages", "dropped_bytes", "receive_exception_messages", "unrecoverable_datagrams",
                 "udp_unrecovered_datagrams", "link_lost_bytes", "send_blocked_us", "restarts")  # fmt: skip


def sums(rows: DataFrame) -> list[str]:
    """Name the columns that are added up: counters."""
    return [name for name in rows.columns if name not in _NO_SUMS]


def rolled(minutes: DataFrame, keys: Sequence[str], step: str) -> DataFrame:
    """Add up minutes by hour or day: `covered_us` (how much of it has samples), `gaps`, `clock_steps`, counters; gauges
    as they were last or highest; the bytes of the busiest minute, and what 95 % of the minutes do not exceed."""
    last = [name for name in (*ABOUT, *_LAST, "minute") if name in minutes.columns]
    begin = f"timestamp_micros(floor(minute * {MINUTE_US} / {STEPS[step]}) * {STEPS[step]}) AS {step}"
    more = ["sum(interval_us) AS covered_us", "count_if(is_gap) AS gaps", "count_if(is_clock_step) AS clock_steps"]
    if "received_bytes" in minutes.columns:
        more += [
            "max(received_bytes + sent_bytes) AS busiest_minute_bytes",
            "percentile(sent_bytes, 0.95) AS sent_bytes_p95",
        ]
    return (
        minutes.groupBy(*keys, F.expr(begin))
        .agg(*map(F.expr, (
            f"max_by(struct({', '.join(last)}), ts_last) AS last", *more,
            *(f"max({name}) AS {name}" for name in _HIGHEST if name in minutes.columns),
            *(f"sum({name}) AS {name}" for name in sums(minutes)),
        )))
        .select("*", "last.*").drop("last", "minute")
    )  # fmt: skip


def dros(portals: DataFrame, step: str) -> DataFrame:
    """Add up the portals of each DRO, and what it counts as a whole."""
    return portals.groupBy(*dict.fromkeys(("day", "dro", step))).agg(
        *map(F.expr, (
            "max(dro_id) AS dro_id", "count_if(portal <> '') AS portals",
            *(f"max({name}) AS {name}" for name in ("covered_us", "gaps", "clock_steps", *_HIGHEST)),
            *(f"sum({name}) AS {name}" for name in (*_LAST, *sums(portals)) if name not in ("samples", "up_samples")),
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


def domains(pairs: DataFrame, portals: DataFrame, step: str) -> DataFrame:
    """Add up what portals handed to one another by what they lead to: `from_` and `to_`, each a domain id or the node
    id of a companion."""
    leads = portals.where("portal <> ''").select("dro", step, "portal", "domain_id", "adjacent_dro_id")
    for end, portal in (("from", "portal"), ("to", "to_portal")):
        told = leads.selectExpr(
            "dro", step, f"portal AS {portal}", f"domain_id AS {end}_domain_id", f"adjacent_dro_id AS {end}_dro_id"
        )
        pairs = pairs.join(told, ["dro", step, portal], "left")
    keys = ("dro", step, "from_domain_id", "from_dro_id", "to_domain_id", "to_dro_id")
    names = [name for name in sums(pairs) if name not in (*keys, "samples", "up_samples")]
    return pairs.groupBy(*keys).agg(*(F.expr(f"sum({name}) AS {name}") for name in names))


def by_day(hours: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Add up the sums of hours."""
    names = [name for name in sums(hours) if name not in keys]
    return hours.groupBy("day", *keys).agg(*(F.expr(f"sum({name}) AS {name}") for name in names))


def losses(minutes: DataFrame) -> DataFrame:
    """Keep the minutes in which a portal lost something, was blocked or started anew."""
    by_reason = [name for name in minutes.columns if name.startswith(("dropped_messages_", "receive_exception_mess"))]
    names = dict.fromkeys((*LOSSES, *by_reason, *_HIGHEST))
    told = f"timestamp_micros(minute * {MINUTE_US}) AS minute"
    return minutes.where(" + ".join(LOSSES) + " > 0 AND portal <> ''").selectExpr(
        "dro", "portal", told, "ts_last", "interval_us", *names
    )
