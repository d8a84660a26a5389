"""Names the sums that are kept of a portal's counters: metrics over all their labels, and some of them by reason.

A sum of counters is a counter. Its name is that of the metric without prefix and `_total`: `received_messages`,
`dropped_messages`, `dropped_messages_would_block`; the buckets of histograms stay what they are. Raw samples have
all counters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame

from analytics.files import Column

PREFIX: Final = "dro_portal_"
COUNTER, BUCKET = "counter", "bucket"
KEPT: Final = (
    "restarts", "received_messages", "received_bytes", "forwarded_messages", "forwarded_bytes", "sent_messages",
    "sent_bytes", "dropped_messages", "dropped_bytes", "receive_exception_messages", "unrecoverable_datagrams",
    "socket_drops", "bad_datagrams", "retransmitted_datagrams", "link_lost_bytes", "udp_sent_datagrams",
    "udp_received_datagrams", "udp_lost_datagrams", "udp_unrecovered_datagrams", "udp_retransmitted_datagrams",
    "connects", "disconnects", "connect_failures", "send_blocked_episodes", "send_blocked_seconds",
    "interest_changes", "rtt_samples", "rtt_seconds_sum", "forward_latency_seconds_sum",
)  # fmt: skip
BY_REASON: Final = ("dropped_messages", "receive_exception_messages")


def sums_of(columns: Mapping[str, Column]) -> dict[str, list[str]]:
    """For each sum the columns that are added up; none of a metric that no file has."""
    found: dict[str, list[str]] = {name: [] for name in KEPT}
    for column in columns.values():
        metric = column.metric.removeprefix(PREFIX).removesuffix("_total")
        if column.kind == BUCKET:
            found[column.name] = [column.name]
        elif column.kind == COUNTER and (metric or column.name) in KEPT:
            found[metric or column.name].append(column.name)
            if metric in BY_REASON:
                found.setdefault(f"{metric}_{column.label('reason')}", []).append(column.name)
    return found


def summed(samples: DataFrame, sums: Mapping[str, Sequence[str]], kept: Sequence[str]) -> DataFrame:
    """The columns `kept`, and the sums in the place of the counters; a counter that is not there is 0."""
    added = (
        " + ".join([f"coalesce({part}, 0L)" for part in parts] or ["0L"]) + f" AS {name}"
        for name, parts in sums.items()
    )
    return samples.selectExpr(*kept, *added)
