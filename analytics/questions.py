"""Answers the questions that are asked of gold tables: each by a function from frames to a frame."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics.bronze import DAY_US

Gold = Callable[[str], DataFrame]
"""A gold table by its name, of the days and DROs that were asked for."""
QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
FLAP: Final = "INTERVAL 10 MINUTES"
"""Between two outages of a link that are a flap."""
UNEVEN: Final = 0.8
MUCH: Final = 1e9
IDLE_BYTES: Final = 1_000_000
WHAT: Final = "array_join(transform(ends, e -> trim(concat(e.dro, ' ', e.portal))), ', ')"
ENDS: Final = ("a_dro", "a_portal", "b_dro", "b_portal")


@dataclass(frozen=True, slots=True)
class Chart:
    """How an answer is drawn: a line for each value of `series` over `x`, or a bar for each `x`. A row of a line has
    another point where `to` names two more columns."""

    x: str
    y: str
    series: Sequence[str] = ()
    kind: str = "line"
    to: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """`answer`: from the gold tables to rows in the order in which they are shown."""

    name: str
    asks: str
    answer: Callable[[Gold], DataFrame]
    chart: Chart | None = None


def quantile(buckets: Mapping[float, str], q: float) -> str:
    """Give SQL for a quantile of a histogram, as Prometheus estimates it: within a bucket values are spread evenly.

    `buckets`: by their upper bounds, the columns or sums of what is up to it; the last bound is infinite. In the unit
    of the bounds; null where nothing was counted.
    """
    bounds = sorted(buckets)
    all_ = buckets[bounds[-1]]
    rank = f"({q}D * {all_})"
    text, low, below = "CASE", 0.0, "0"
    for bound in bounds[:-1]:
        here = buckets[bound]
        text += f" WHEN {here} >= {rank} THEN {low}D + ({bound - low}D) * ({rank} - {below}) / ({here} - {below})"
        low, below = bound, here
    return f"if({all_} > 0, {text} ELSE {low}D END, NULL)"


def buckets_of(rows: DataFrame, prefix: str, sql: str = "{}") -> dict[float, str]:
    """Find the buckets of a histogram among the columns by their bounds, each as `sql` of it."""
    found = [name for name in rows.columns if name.startswith(f"{prefix}_le_")]
    return {float(name.rpartition("_")[2]): sql.format(name) for name in found}


def busiest_portal(gold: Gold) -> DataFrame:
    """For each DRO and hour the portal with the most bytes in both directions."""
    return (
        gold("portal_hour")
        .selectExpr("hour", "dro", "portal", "received_bytes + sent_bytes AS bytes", "busiest_minute_bytes")
        .selectExpr("*", "row_number() OVER (PARTITION BY dro, hour ORDER BY bytes DESC, portal) AS rank")
        .where("rank = 1")
        .selectExpr("hour", "dro", "portal", "bytes", "bytes / 3600 AS bytes_per_s",
                    "busiest_minute_bytes / 60 AS busiest_minute_bytes_per_s")
        .orderBy("hour", "dro")
    )  # fmt: skip


def drop_ratio(gold: Gold) -> DataFrame:
    """By portal and day, the dropped share of what was forwarded, without duplicates; over seven days; its slope."""
    days = gold("portal_day")
    reasons = [name for name in days.columns if name.startswith("dropped_messages_") and "duplicate" not in name]
    by = "PARTITION BY dro, portal ORDER BY unix_date(to_date(day))"
    return (
        days.selectExpr("dro", "portal", "day", "dropped_messages - dropped_messages_duplicate AS dropped",
                        "forwarded_messages AS forwarded", *reasons)
        .selectExpr("dro", "portal", "day", "dropped", "forwarded", "dropped / nullif(forwarded, 0) AS ratio", *reasons)
        .selectExpr("dro", "portal", "day", "dropped", "forwarded", "ratio",
                    f"avg(ratio) OVER ({by} RANGE BETWEEN 6 PRECEDING AND CURRENT ROW) AS mean_7_days",
                    f"regr_slope(ratio, unix_date(to_date(day))) OVER ({by} RANGE BETWEEN 29 PRECEDING AND CURRENT ROW)"
                    " AS slope", *reasons)
        .orderBy("day", "dro", "portal")
    )  # fmt: skip


def rtt(gold: Gold) -> DataFrame:
    """By link and day, percentiles of the round-trip time, as each end has measured it (microseconds)."""
    days = gold("link_day")
    told = [
        f"{quantile(buckets_of(days, f'{end}_rtt_us'), q)} AS {end}_{name}"
        for end in "ab" for name, q in QUANTILES.items()
    ]  # fmt: skip
    return (
        days.where("coalesce(a_rtt_samples, 0) + coalesce(b_rtt_samples, 0) > 0")
        .selectExpr("day", *ENDS, "a_rtt_samples", "b_rtt_samples", *told)
        .orderBy("day", *ENDS)
    )


def route_flaps(gold: Gold) -> DataFrame:
    """By week and what it was, how often links, portals and DROs went, and came back and went again soon after."""
    order = "PARTITION BY kind, ends ORDER BY begin"
    return (
        gold("topology_event").where("kind <> 'settling'")
        .selectExpr("*", f"coalesce(begin - lag(end) OVER ({order}) <= {FLAP}, false) AS is_flap")
        .selectExpr("date(date_trunc('week', begin)) AS week", "kind",
                    f"{WHAT} AS what", "duration_us", "is_flap")
        .groupBy("week", "kind", "what")
        .agg(*_sql("count(1) AS events", "count_if(is_flap) AS flaps", "sum(duration_us) AS duration_us"))
        .orderBy("week", F.desc("events"), "kind", "what")
    )  # fmt: skip


def interest_growth(gold: Gold) -> DataFrame:
    """By portal and day, topics and patterns of interest, their growth over 7, 30 and 90 days, and the churn."""
    return gold("interest_growth").orderBy("day", "dro", "portal", "scope")


def link_capacity(gold: Gold) -> DataFrame:
    """By end of a link, when its busiest minutes reach four fifths of what it takes."""
    return gold("forecast").orderBy(F.asc_nulls_last("full_on"), "dro", "portal")


def asymmetry(gold: Gold) -> DataFrame:
    """By link and day, what each end sent; uneven when one of them sent more than nine tenths of a gigabyte or more."""
    return (
        gold("link_day").selectExpr("day", *ENDS, "coalesce(a_sent_bytes, 0L) AS a_bytes",
                                    "coalesce(b_sent_bytes, 0L) AS b_bytes")
        .where("a_bytes + b_bytes > 0")
        .selectExpr("*", "(a_bytes - b_bytes) / (a_bytes + b_bytes) AS ratio")
        .selectExpr("*", f"abs(ratio) > {UNEVEN} AND a_bytes + b_bytes > {MUCH} AS is_uneven")
        .orderBy("day", *ENDS)
    )  # fmt: skip


def blocked(gold: Gold) -> DataFrame:
    """The times in which a portal could not send: how long, how full its queue was, what was dropped."""
    return (
        gold("blocked_episode")
        .selectExpr("dro", "portal", "begin", "end", "blocked_us",
                    "queue_bytes / nullif(queue_limit_bytes, 0) AS queue_full", "dropped_messages")
        .orderBy("begin", "dro", "portal")
    )  # fmt: skip


def duplicates(gold: Gold) -> DataFrame:
    """By portal and day, the share of duplicates in what came to be sent: what redundant paths cost."""
    return (
        gold("portal_day")
        .where("dropped_messages_duplicate > 0")
        .selectExpr("day", "dro", "portal", "dropped_messages_duplicate AS duplicates", "sent_messages AS sent",
                    "dropped_messages_duplicate / (dropped_messages_duplicate + sent_messages) AS ratio")
        .orderBy("day", F.desc("ratio"), "dro", "portal")
    )  # fmt: skip


def settling(gold: Gold) -> DataFrame:
    """By what happened in it, how long the network had different topologies, and what was lost meanwhile."""
    events = gold("topology_event")
    causes = events.where("kind <> 'settling'").selectExpr("kind AS cause", "begin AS cause_begin", "end AS cause_end")
    near = "cause_begin <= end + INTERVAL 1 MINUTE AND cause_end >= begin - INTERVAL 1 MINUTE"
    caused = (
        events.where("kind = 'settling'").join(causes, F.expr(near), "left")
        .groupBy("begin", "duration_us", "receive_exception_messages_no_route", "dropped_messages_not_operational")
        .agg(F.expr("coalesce(nullif(array_join(array_sort(collect_set(cause)), ', '), ''), 'unknown') AS cause"))
    )  # fmt: skip
    return (
        caused.groupBy("cause")
        .agg(*_sql(
            "count(1) AS times", *(f"percentile(duration_us, {q}) AS {name}" for name, q in QUANTILES.items()),
            "max(duration_us) AS longest", "sum(receive_exception_messages_no_route) AS no_route",
            "sum(dropped_messages_not_operational) AS not_operational",
        ))
        .orderBy(F.desc("times"), "cause")
    )  # fmt: skip


def outage_cost(gold: Gold) -> DataFrame:
    """For each outage of a link or portal and each restart of a DRO what it cost, the dearest first."""
    return (
        gold("topology_event").where("kind <> 'settling'")
        .selectExpr("begin", "kind", f"{WHAT} AS what",
                    "duration_us", "is_over", "dropped_messages - dropped_messages_duplicate AS dropped_messages",
                    "dropped_bytes", "receive_exception_messages_no_route AS no_route", "link_lost_bytes")
        .orderBy(F.desc("dropped_messages"), F.desc("duration_us"), "begin", "what")
    )  # fmt: skip


def balance(gold: Gold) -> DataFrame:
    """By DRO, its load in 95 % of the hours beside that of the others (standard scores), and what grows with it."""
    hours = gold("dro_hour").selectExpr(
        "dro", "hour", "received_messages AS messages", "received_bytes + sent_bytes AS bytes",
        "proxy_receivers + proxy_sources AS proxies", "cpu_us / nullif(covered_us, 0) AS cpu", "resident_bytes",
        "forward_latency_us_sum / nullif(forward_latency_us_le_inf, 0) AS latency_us",
    )  # fmt: skip
    measures = ("messages", "bytes", "proxies", "cpu", "resident_bytes")
    of_dro = hours.groupBy("dro").agg(
        *_sql(*(f"percentile({name}, 0.95) AS {name}" for name in measures),
              "corr(messages, latency_us) AS latency_follows_messages")
    )  # fmt: skip
    score = "({0} - avg({0}) OVER ()) / nullif(stddev_pop({0}) OVER (), 0)"
    return of_dro.selectExpr(
        "dro", *measures, *(f"{score.format(name)} AS {name}_score" for name in measures), "latency_follows_messages"
    ).orderBy(F.desc("bytes"), "dro")


def udp_recovery(gold: Gold) -> DataFrame:
    """By end of a link and day, datagrams lost on UDP and what of them came back."""
    ends = gold("portal_day").where("udp_lost_datagrams > 0")
    return ends.selectExpr(
        "day", "dro", "portal", "udp_received_datagrams AS received", "udp_lost_datagrams AS lost",
        "udp_unrecovered_datagrams AS unrecovered", "1 - udp_unrecovered_datagrams / udp_lost_datagrams AS recovered",
        "udp_lost_datagrams / (udp_received_datagrams + udp_lost_datagrams) AS loss",
        "received_bytes * 1e6 / nullif(covered_us, 0) AS bytes_per_s",
    ).orderBy("day", "dro", "portal")  # fmt: skip


def idle_portals(gold: Gold) -> DataFrame:
    """Portals that carried less than a megabyte, or had no receiver, or proxies without traffic, in all the days."""
    totals = gold("portal_day").groupBy("dro", "portal").agg(*_sql(
        "count(1) AS days", "sum(received_bytes + sent_bytes) AS bytes",
        "max(receiver_topics + receiver_patterns) AS receivers", "max(proxy_receivers + proxy_sources) AS proxies",
        "max(portal_type) AS portal_type",
    ))  # fmt: skip
    return (
        totals.selectExpr("dro", "portal", "days", "bytes", "receivers", "proxies",
                          f"bytes < {IDLE_BYTES} AS carries_nothing",
                          "portal_type = 'endpoint' AND receivers = 0 AS serves_nobody",
                          "bytes = 0 AND proxies > 0 AS has_idle_proxies")
        .where("carries_nothing OR serves_nobody OR has_idle_proxies")
        .orderBy("dro", "portal")
    )  # fmt: skip


def configuration_changes(gold: Gold) -> DataFrame:
    """For each change of a configuration what differs in the seven days after it from those before; `change`: by which
    share of what it was."""
    change = F.expr("IF(differs, difference / nullif(mean_before, 0), NULL)")
    return (
        gold("configuration_change")
        .withColumn("change", change)
        .orderBy(F.desc("differs"), "at", "dro", "portal", "measure")
    )


def anomalies(gold: Gold) -> DataFrame:
    """Hours of portals that are unlike the same hour of the four weeks before: by how many standard deviations."""
    deviations = F.expr("abs(value - usual) / greatest(deviation, 1)")
    return gold("anomaly").withColumn("deviations", deviations).orderBy(F.desc("deviations"), "hour", "dro", "portal")


def unseen(gold: Gold) -> list[str]:
    """Say what the days that were asked for do not show: days and times of DROs without samples."""
    told = gold("day").groupBy("dro", "day").agg(*_sql("max(covered_us) AS covered_us", "max(gaps) AS gaps"))
    rows = told.groupBy("dro").agg(*_sql(
        "array_sort(collect_set(day)) AS days", "sum(covered_us) AS covered_us", "sum(gaps) AS gaps"
    )).orderBy("dro").collect()  # fmt: skip
    everywhere = sorted({day for row in rows for day in row["days"]})
    if not everywhere:
        return ["no DRO has samples of these days"]
    first, last = date.fromisoformat(everywhere[0]), date.fromisoformat(everywhere[-1])
    days = [(first + timedelta(days=nth)).isoformat() for nth in range((last - first).days + 1)]
    found = []
    for row in rows:
        lacks = [day for day in days if day not in row["days"]]
        if lacks:
            found.append(f"{row['dro']} has no samples of {len(lacks)} of {len(days)} days ({lacks[0]} to {lacks[-1]})")
        if row["gaps"]:
            share = row["covered_us"] / (len(row["days"]) * DAY_US)
            found.append(f"{row['dro']} has {row['gaps']} gaps: samples cover {share:.2%} of its days")
    return found


def totals(gold: Gold) -> dict[str, Any]:
    """Add up everything, for the head of a page."""
    days = gold("portal_day")
    return days.agg(*_sql(
        "count(DISTINCT day) AS days", "min(day) AS first_day", "max(day) AS last_day", "count(DISTINCT dro) AS dros",
        "count(DISTINCT dro, portal) AS portals", "sum(received_messages) AS received",
        "sum(dropped_messages - dropped_messages_duplicate) AS dropped",
        "sum(up_samples) / nullif(sum(samples), 0) AS up",
    )).collect()[0].asDict()  # fmt: skip


def _sql(*texts: str) -> list[Column]:
    return [F.expr(text) for text in texts]


QUESTIONS: Final[Mapping[str, Question]] = {
    one.name: one
    for one in (
        Question("busiest-portal", "Which portal is busiest in each hour?", busiest_portal,
                 Chart("hour", "bytes_per_s", ("dro", "portal"))),
        Question("drop-ratio", "How does the share of dropped messages develop?", drop_ratio,
                 Chart("day", "ratio", ("dro", "portal"))),
        Question("rtt", "What are the round-trip times of each link by day?", rtt, Chart("day", "a_p99", ENDS)),
        Question("route-flaps", "How often do routes flap by week, and who causes it?", route_flaps,
                 Chart("week", "events", ("what",), "bar")),
        Question("interest-growth", "How does the interest in topics grow?", interest_growth,
                 Chart("day", "interest", ("dro", "portal", "scope"))),
        Question("link-capacity", "When will a link be full?", link_capacity,
                 Chart("measured_on", "bytes_per_s", ("dro", "portal"), to=("full_on", "full_bytes_per_s"))),
        Question("asymmetry", "Are links used in one direction alone?", asymmetry, Chart("day", "ratio", ENDS)),
        Question("blocked", "When could portals not send, for how long, and how bad was it?", blocked,
                 Chart("begin", "blocked_us", ("dro", "portal"), "bar")),
        Question("duplicates", "What is sent twice, and which redundant paths cost it?", duplicates,
                 Chart("day", "ratio", ("dro", "portal"))),
        Question("settling", "How long does the network need to settle after a change?", settling,
                 Chart("cause", "p95", (), "bar")),
        Question("outage-cost", "What did each outage cost?", outage_cost,
                 Chart("begin", "dropped_messages", ("what",), "bar")),
        Question("balance", "Is the load even over all DROs, and which one is next to be relieved?", balance,
                 Chart("dro", "bytes", (), "bar")),
        Question("udp-recovery", "Does what is lost on UDP links come back?", udp_recovery,
                 Chart("day", "recovered", ("dro", "portal"))),
        Question("idle-portals", "Which portals carry nothing or serve nobody?", idle_portals,
                 Chart("portal", "proxies", ("dro", "portal"), "bar")),
        Question("configuration-changes", "Which changes of configuration changed behaviour?", configuration_changes,
                 Chart("at", "change", ("dro", "portal", "measure"), "bar")),
        Question("anomalies", "Which hours are unlike those of the weeks before?", anomalies,
                 Chart("hour", "deviations", ("dro", "portal", "measure"), "bar")),
    )
}  # fmt: skip
