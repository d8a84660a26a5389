"""Names what is kept of the columns of samples: sums of counters over labels, and gauges.

A sum of counters is a counter. Its name is that of the metric without prefix and `_total`, with times in microseconds:
`received_messages`, `dropped_messages_would_block`, `send_blocked_us`. Buckets of histograms have their bound in the
name: `rtt_us_le_100`, `rtt_us_le_inf`. Raw samples have all counters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import as_file, files
from typing import Final

import pyarrow.parquet as pq

from analytics.store.files import META, FileColumn

PREFIXES: Final = ("dro_portal_", "dro_")
COUNTER, GAUGE, BUCKET = "counter", "gauge", "bucket"
COUNTERS: Final[Mapping[str, Sequence[str]]] = {
    "portal": (
        "restarts", "received_messages", "received_bytes", "forwarded_messages", "forwarded_bytes", "sent_messages",
        "sent_bytes", "dropped_messages", "dropped_messages_duplicate", "dropped_messages_not_operational",
        "dropped_messages_would_block", "dropped_bytes", "receive_exception_messages",
        "receive_exception_messages_no_route", "unrecoverable_datagrams", "socket_drops", "bad_datagrams",
        "retransmitted_datagrams", "link_lost_bytes", "udp_sent_datagrams", "udp_received_datagrams",
        "udp_lost_datagrams", "udp_unrecovered_datagrams", "udp_retransmitted_datagrams", "connects", "disconnects",
        "connect_failures", "send_blocked_episodes", "send_blocked_us", "interest_changes", "interest_changes_add",
        "interest_changes_remove", "rtt_samples", "rtt_us_sum", "forward_latency_us_sum",
    ),
    "dro": ("cpu_us", "route_recalculations"),
    "pair": ("handed", "handed_bytes", "refused", "refused_bytes", "sent", "sent_bytes"),
}  # fmt: skip
BY_LABEL: Final = {
    "dropped_messages": "reason", "receive_exception_messages": "reason", "interest_changes": "change",
    "interest_topics": "scope", "interest_patterns": "scope", "send_queue_bytes": "queue",
    "send_queue_max_bytes": "queue", "send_queue_limit_bytes": "queue",
}  # fmt: skip
"""Names what is also kept by a label; counters for each value that there is."""
LAST: Final[Mapping[str, Sequence[str]]] = {
    "portal": (
        "interest_topics_local", "interest_topics_remote", "interest_patterns_local", "interest_patterns_remote",
        "receiver_topics", "receiver_patterns", "proxy_receivers", "proxy_sources",
    ),
}  # fmt: skip
"""Gauges whose last value counts."""
HIGHEST: Final[Mapping[str, Sequence[str]]] = {
    "portal": ("send_queue_bytes_data", "send_queue_max_bytes_data", "send_queue_limit_bytes_data"),
    "dro": ("resident_bytes",),
}
"""Gauges whose highest value counts."""


@dataclass(slots=True)
class SummedColumns:
    """For each name the columns that are added up: counters, gauges by their last value, by their highest."""

    counters: dict[str, list[str]] = field(default_factory=dict)
    last: dict[str, list[str]] = field(default_factory=dict)
    highest: dict[str, list[str]] = field(default_factory=dict)


@cache
def columns_of_release(table: str) -> Mapping[str, FileColumn]:
    """Give the columns that this release writes, of the tables that have many; files may have fewer, and others."""
    if table not in HIGHEST:
        return {}
    with as_file(files("analytics").joinpath(f"data/{table}.parquet")) as path:
        about = json.loads(pq.read_schema(path).metadata[META])
    return {name: FileColumn(name, **of) for name, of in about["columns"].items()}


def kept_of(table: str, columns: Mapping[str, FileColumn]) -> SummedColumns:
    """Find the columns of each sum. A counter that no file has is always 0, a gauge is unknown."""
    columns = {**columns_of_release(table), **columns}
    made: list[dict[str, list[str]]] = [{name: [] for name in of.get(table, ())} for of in (COUNTERS, LAST, HIGHEST)]
    kept = SummedColumns(*made)
    counters = kept.counters
    for column in columns.values():
        name = _plain(column)
        value = column.label(BY_LABEL.get(name, ""))
        if column.kind == BUCKET:
            counters[f"{name.removesuffix('_bucket')}_le_{column.le or 'inf'}"] = [column.name]
        elif column.kind == COUNTER and name in counters:
            counters[name].append(column.name)
            if value:
                counters.setdefault(f"{name}_{value}", []).append(column.name)
        elif column.kind == GAUGE:
            for gauges in (kept.last, kept.highest):
                if (by := f"{name}_{value}" if value else name) in gauges:
                    gauges[by].append(column.name)
    return kept


def _plain(column: FileColumn) -> str:
    name = column.metric or column.name
    for prefix in PREFIXES:
        name = name.removeprefix(prefix)
    name = name.removesuffix("_total")
    return name.replace("_seconds", "_us") if column.unit == "us" else name
