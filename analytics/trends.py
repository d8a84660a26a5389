"""Makes what develops over weeks: growth of interest, hours unlike those before, capacity, changes of configuration."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.episodes import spans

WEEKS: Final = 4
"""Weeks before whose same hour an hour is compared with."""
FEW: Final = 3
"""Hours of them that there have to be."""
UNUSUAL: Final = 4.0
"""Standard deviations from their mean, and a fifth of it, that make an hour unusual."""
MEASURES: Final = ("received_bytes", "sent_bytes", "dropped_messages", "send_blocked_us")
BACK: Final = (7, 30, 90)
"""Days over which growth is told."""
AROUND: Final = 7
"""Days before and after a change that are compared."""
BAND: Final = 1.96
"""Standard deviations that 95 % of a normal distribution are within."""
FULL: Final = 0.8
"""Share of its capacity at which a link is full."""


def interest_growth(days: DataFrame) -> DataFrame:
    """Make a row for each portal, day and scope: topics and patterns, growth over 7, 30 and 90 days, the slope of 30
    days (a day), and how many were added or removed on that day."""
    scopes = "stack(2, 'local', interest_topics_local + interest_patterns_local,"
    scopes += " 'remote', interest_topics_remote + interest_patterns_remote) AS (scope, interest)"
    rows = (
        days.selectExpr("dro", "portal", "day", "unix_date(to_date(day)) AS nth", "interest_changes AS changes", scopes)
        .where("interest IS NOT NULL")
    )  # fmt: skip
    by = "PARTITION BY dro, portal, scope ORDER BY nth"
    grown = (f"interest - first(interest) OVER ({by} RANGE BETWEEN {n} PRECEDING AND {n} PRECEDING) AS over_{n}_days"
             for n in BACK)  # fmt: skip
    slope = f"regr_slope(interest, nth) OVER ({by} RANGE BETWEEN 29 PRECEDING AND CURRENT ROW) AS slope"
    return rows.selectExpr("dro", "portal", "scope", "day", "interest", "changes", *grown, slope)


def anomalies(hours: DataFrame) -> DataFrame:
    """Make a row for each hour and measure of a portal that is unlike the same hour of the four weeks before."""
    told = ", ".join(f"'{name}', {name}" for name in MEASURES)
    rows = hours.selectExpr(
        "dro", "portal", "hour", "unix_seconds(hour) AS s", f"stack({len(MEASURES)}, {told}) AS (measure, value)"
    )
    week = 7 * 24 * 3600
    window = (f"OVER (PARTITION BY dro, portal, measure, s % {week} ORDER BY s"
              f" RANGE BETWEEN {WEEKS * week} PRECEDING AND {week} PRECEDING)")  # fmt: skip
    return (
        rows.selectExpr("dro", "portal", "hour", "measure", "value", f"avg(value) {window} AS usual",
                        f"stddev_pop(value) {window} AS deviation", f"count(value) {window} AS weeks")
        .where(f"weeks >= {FEW} AND abs(value - usual) > greatest({UNUSUAL} * deviation, usual / 5)")
    )  # fmt: skip


def forecasts(days: DataFrame, bytes_per_s: float) -> DataFrame:
    """Make a row for each end of a link: the line through the busiest days of each week, and when it will be full.

    A day counts with what 95 % of its minutes do not exceed. `full_on` is null where traffic does not grow. `earliest`
    and `latest`: where the band of 95 % around the line gets there.
    """
    weeks = (
        days.where("portal_type = 'peer'")
        .selectExpr("dro", "portal", "unix_date(to_date(day)) AS nth", "sent_bytes_p95 / 60 AS rate")
        .selectExpr("*", "floor((nth + 3) / 7) AS week")
        .groupBy("dro", "portal", "week")
        .agg(*map(F.expr, ("max(rate) AS rate", "max_by(nth, rate) AS nth")))
    )
    lines = weeks.groupBy("dro", "portal").agg(*map(F.expr, (
        "count(1) AS weeks", "max(nth) AS last", "regr_slope(rate, nth) AS slope", "regr_intercept(rate, nth) AS base",
        "sqrt(greatest(regr_syy(rate, nth) * (1 - coalesce(regr_r2(rate, nth), 1)), 0) / greatest(count(1) - 2, 1))"
        " AS deviation", "max_by(rate, nth) AS rate",
    )))  # fmt: skip
    limit = FULL * bytes_per_s

    def on(shift: float) -> str:
        nth = f"({limit}D - base - {shift}D * deviation) / nullif(slope, 0)"
        return f"if(slope > 0 AND {nth} < 100000, date_from_unix_date(int(ceil(greatest({nth}, last)))), NULL)"

    return lines.where("weeks >= 3").selectExpr(
        "dro", "portal", "weeks", "rate AS bytes_per_s", "slope AS growth_per_day", f"{limit}D AS full_bytes_per_s",
        f"{on(0)} AS full_on", f"{on(BAND)} AS earliest", f"{on(-BAND)} AS latest",
        "date_from_unix_date(int(last)) AS measured_on",
    )  # fmt: skip


def configuration_changes(dro_spans: DataFrame) -> DataFrame:
    """Make a row for each time that a DRO read another configuration: after a reload, or with another start."""
    joined = spans(dro_spans.where("config_loaded IS NOT NULL"), ("dro",), ("config_loaded",))
    order = "OVER (PARTITION BY dro ORDER BY ts_first)"
    return (
        joined.selectExpr("dro", "config_loaded AS at", f"lag(config_loaded) {order} AS before")
        .where("before IS NOT NULL").select("dro", "at")
    )  # fmt: skip


def before_and_after(dro_spans: DataFrame, hours: DataFrame) -> DataFrame:
    """Compare the hours of seven days before a change of configuration with those after it: means, their difference,
    and the interval of 95 % that it is in; `differs` when that does not have 0."""
    told = ("'sent_bytes', double(sent_bytes), 'dropped_messages', double(dropped_messages),"
            " 'rtt_us', rtt_us_sum / nullif(rtt_samples, 0), 'send_blocked_us', double(send_blocked_us)")  # fmt: skip
    rows = hours.selectExpr("dro", "portal", "hour", f"stack(4, {told}) AS (measure, value)").where("value IS NOT NULL")
    near = f"hour BETWEEN date_trunc('hour', at) - INTERVAL {AROUND} DAYS AND at + INTERVAL {AROUND} DAYS"
    sides = (
        rows.join(configuration_changes(dro_spans), "dro").where(f"{near} AND hour <> date_trunc('hour', at)")
        .groupBy("dro", "portal", "at", "measure")
        .agg(*(F.expr(f"{how}(value) FILTER (WHERE hour {side} at) AS {name}_{when}")
               for side, when in (("<", "before"), (">", "after"))
               for how, name in (("avg", "mean"), ("var_samp", "variance"), ("count", "hours"))))
    )  # fmt: skip
    band = f"{BAND}D * sqrt(variance_before / hours_before + variance_after / hours_after)"
    return (
        sides.where("hours_before >= 2 AND hours_after >= 2")
        .selectExpr("dro", "portal", "at", "measure", "mean_before", "mean_after",
                    "mean_after - mean_before AS difference", f"{band} AS band")
        .selectExpr("dro", "portal", "at", "measure", "mean_before", "mean_after", "difference",
                    "difference - band AS low", "difference + band AS high", "abs(difference) > band AS differs")
    )  # fmt: skip
