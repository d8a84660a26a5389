"""Makes rows of what lasted for a while: outages of links and portals, restarts, settling, blocked sends; and what each
of them cost.

Times are those of samples: an outage begins with the first sample that shows it and ends with the first that does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from analytics.bronze import MINUTE_US, Ints, codes, counts, grouped

Event = Mapping[str, Any]
TIME: Final = pa.timestamp("us", tz="UTC")
_PLACE: Final = ("dro", "portal")

PAUSE_US: Final = 2 * MINUTE_US
"""Minutes without that part one episode of blocked sends from the next one."""
COSTS: Final = (
    "dropped_messages", "dropped_bytes", "dropped_messages_duplicate", "dropped_messages_not_operational",
    "receive_exception_messages_no_route", "link_lost_bytes", "udp_unrecovered_datagrams", "unrecoverable_datagrams",
)  # fmt: skip


def spans(rows: DataFrame, by: Sequence[str], values: Sequence[str]) -> DataFrame:
    """Join rows, one after another by time, that have the same values: `ts_first`, `ts_last` (us), `samples`."""
    order = f"PARTITION BY {', '.join(by)} ORDER BY ts_first, ts_last"
    told = f"struct({', '.join(values)})"
    return (
        rows.withColumn("differs", F.expr(f"int(NOT (lag({told}) OVER ({order}) <=> {told}))"))
        .withColumn("nth", F.expr(f"sum(differs) OVER ({order} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"))
        .groupBy(*by, "nth", *values)
        .agg(*map(F.expr, ("min(ts_first) AS ts_first", "max(ts_last) AS ts_last", "sum(samples) AS samples")))
        .drop("nth")
    )


def islands(rows: DataFrame, by: Sequence[str], pause_us: int) -> DataFrame:
    """Number rows with `begin_us`, `end_us` so that those that follow within a pause have the same `episode`."""
    order = f"PARTITION BY {', '.join(by)} ORDER BY begin_us, end_us"
    before = f"max(end_us) OVER ({order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    return rows.withColumn("is_new", F.expr(f"int(coalesce(begin_us - {before} > {pause_us}, true))")).withColumn(
        "episode", F.expr(f"sum(is_new) OVER ({order} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)")
    )


def blocked_episodes(losses: pa.Table) -> pa.Table:
    """Make a row for each time that a portal could not send, of minutes of losses: how long within, the fullest queue,
    what was dropped."""
    rows = losses.filter(pc.field("send_blocked_us") > 0)
    begin = codes(rows["ts_last"]) - codes(rows["interval_us"])
    rows = rows.append_column("begin_us", pa.array(begin))
    order, starts = grouped(rows, ("dro", "portal"))
    order = order[
        np.lexsort((codes(rows["ts_last"])[order], begin[order], *(codes(rows[k])[order] for k in _PLACE[::-1])))
    ]
    rows = rows.take(order)
    begin, end = codes(rows["begin_us"]), codes(rows["ts_last"])
    is_first = np.zeros(len(rows), bool)
    is_first[starts] = True
    so_far = np.concatenate([np.maximum.accumulate(part) for part in np.split(end, starts[1:])]) if len(starts) else end
    is_first[1:] |= begin[1:] - so_far[:-1] > PAUSE_US
    rows = rows.append_column("episode", pa.array(np.cumsum(is_first)))
    found = rows.group_by(["episode", "dro", "portal"], use_threads=False).aggregate([
        ("begin_us", "min"), ("ts_last", "max"), ("send_blocked_us", "sum"), ("send_queue_max_bytes_data", "max"),
        ("send_queue_limit_bytes_data", "max"), ("dropped_messages_would_block", "sum"),
    ])  # fmt: skip
    return pa.table({
        "dro": found["dro"], "portal": found["portal"], "begin": found["begin_us_min"].cast(TIME),
        "end": found["ts_last_max"].cast(TIME), "blocked_us": found["send_blocked_us_sum"],
        "queue_bytes": found["send_queue_max_bytes_data_max"],
        "queue_limit_bytes": found["send_queue_limit_bytes_data_max"],
        "dropped_messages": found["dropped_messages_would_block_sum"],
    })  # fmt: skip


def outages(portal_spans: DataFrame) -> DataFrame:
    """Make a row for each time that a portal was not up, of a run that went on: `begin_us`, `end_us`, `is_over`."""
    joined = spans(portal_spans, ("dro", "portal", "run"), ("up", "portal_type", "dro_id", "adjacent_dro_id"))
    order = "OVER (PARTITION BY dro, portal, run ORDER BY ts_first)"
    return (
        joined.selectExpr("*", f"lead(ts_first) {order} AS next_us", f"lag(ts_last) {order} AS before_us",
                          "max(adjacent_dro_id) OVER (PARTITION BY dro, portal, run) AS companion")
        .where("NOT up")
        .selectExpr("dro", "portal", "portal_type", "dro_id", "companion", "ts_first AS begin_us",
                    "coalesce(next_us, ts_last) AS end_us", "next_us IS NOT NULL AS is_over",
                    "before_us IS NULL AS is_start")
        .where("NOT is_start").drop("is_start")
    )  # fmt: skip


def settling(dro_spans: DataFrame) -> DataFrame:
    """Make a row for each time in which DROs had different topologies: it ends when all that are there agree."""
    told = spans(dro_spans.where("signature IS NOT NULL"), ("dro",), ("run", "signature"))
    order = "OVER (PARTITION BY dro ORDER BY ts_first)"
    spacing = "percentile_approx(nullif(ts_last - ts_first, 0) / nullif(samples - 1, 0), 0.5)"
    limit = f"greatest(3 * coalesce({spacing} OVER (PARTITION BY dro), 0), {MINUTE_US})"
    told = told.selectExpr("*", f"lead(ts_first) {order} AS next_us", f"{limit} AS limit_us").selectExpr(
        "*", "coalesce(next_us - ts_last > limit_us, true) AS goes"
    )
    begins = told.selectExpr("ts_first AS at", "signature", "1 AS step")
    ends = told.selectExpr("if(goes, ts_last, next_us) AS at", "signature", "-1 AS step")
    so_far = "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
    changes = (
        begins.unionByName(ends)
        .groupBy("at", "signature").agg(F.expr("sum(step) AS step"))
        .selectExpr("at", "step", f"sum(step) OVER (PARTITION BY signature ORDER BY at {so_far}) AS dros")
        .groupBy("at").agg(F.expr("sum(int(dros > 0) - int(dros - step > 0)) AS step"))
        .selectExpr("at AS ts_first", "at AS ts_last", "1L AS samples", "'' AS everywhere",
                    f"sum(step) OVER (ORDER BY at {so_far}) <= 1 AS agree")
    )  # fmt: skip
    states = spans(changes, ("everywhere",), ("agree",))
    return (
        states.selectExpr("agree", "ts_first AS begin_us", "lead(ts_first) OVER (ORDER BY ts_first) AS end_us")
        .where("NOT agree")
        .selectExpr("begin_us", "coalesce(end_us, begin_us) AS end_us", "end_us IS NOT NULL AS is_over")
    )  # fmt: skip


def restarts(dro_spans: DataFrame) -> DataFrame:
    """Make a row for each time that a DRO was not there between two runs."""
    runs = dro_spans.groupBy("dro", "run").agg(F.expr("min(ts_first) AS ts_first"), F.expr("max(ts_last) AS ts_last"))
    order = "OVER (PARTITION BY dro ORDER BY run)"
    return (
        runs.selectExpr("dro", "run", f"lag(ts_last) {order} AS begin_us")
        .where("begin_us IS NOT NULL")
        .selectExpr("dro", "least(begin_us, unix_micros(run)) AS begin_us", "unix_micros(run) AS end_us",
                    "true AS is_over")
    )  # fmt: skip


def topology_events(portal_spans: DataFrame, dro_spans: DataFrame) -> DataFrame:
    """Make one row for each outage of a link or portal, restart of a DRO, and time in which the DROs settled."""
    down = outages(portal_spans).withColumn(
        "of", F.expr("if(portal_type = 'peer' AND companion IS NOT NULL, concat(least(dro_id, companion), ' ',"
                     " greatest(dro_id, companion)), concat(dro, ' ', portal))")
    )  # fmt: skip
    links = (
        islands(down, ("of",), 0)
        .groupBy("of", "episode")
        .agg(*map(F.expr, (
            "if(max(portal_type) = 'peer', 'link down', 'portal down') AS kind", "min(begin_us) AS begin_us",
            "max(end_us) AS end_us", "bool_and(is_over) AS is_over",
            "array_sort(collect_set(struct(dro, portal))) AS ends",
        )))
        .drop("episode", "of")
    )  # fmt: skip
    started = restarts(dro_spans).selectExpr(
        "'DRO restart' AS kind", "begin_us", "end_us", "is_over", "array(struct(dro, '' AS portal)) AS ends"
    )
    settled = settling(dro_spans).selectExpr(
        "'settling' AS kind", "begin_us", "end_us", "is_over",
        "CAST(array() AS array<struct<dro: string, portal: string>>) AS ends",
    )  # fmt: skip
    return links.unionByName(started).unionByName(settled)


def costs(events: Sequence[Event], losses: pa.Table) -> dict[str, Ints]:
    """Add up what events cost in minutes of losses, for each event, by the names of costs: at the portals concerned, or
    everywhere where DROs settled, from the minute before one began until the minute after it ended."""
    at, values = codes(losses["minute"]), np.stack([counts(losses[name]) for name in COSTS], axis=1)
    dro, portal = (losses[name].to_numpy(zero_copy_only=False) for name in _PLACE)
    found = np.zeros((len(events), len(COSTS)), np.int64)
    for nth, event in enumerate(events):
        is_near = np.flatnonzero((at >= event["begin_us"] - MINUTE_US) & (at <= event["end_us"] + MINUTE_US))
        if event["kind"] == "settling":
            found[nth] = values[is_near].sum(axis=0)
        for end in event["ends"]:
            here = dro[is_near] == end["dro"]
            here &= (portal[is_near] == end["portal"]) | (end["portal"] == "")
            found[nth] += values[is_near[here]].sum(axis=0)
    return {name: found[:, nth] for nth, name in enumerate(COSTS)}
