"""Writes `docs/metrics.md`, the reference of all metrics, from their tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from dro.metrics.table import ENDPOINT, PEER, PORTAL, ROUTE_MANAGER, WORKER, Metric, metrics

INTRODUCTION: Final = """\
# Metrics

Made by `python -m supervisor.samples.reference > docs/metrics.md` from the tables in `dro/metrics/data`.

Where `<web-monitor>` is configured, the DRO serves ([monitor.md](monitor.md))

| path | content |
|---|---|
| `/metrics` | what is below, for the whole DRO and each portal, as Prometheus text or OpenMetrics |
| `/metrics/workers` | processor time, memory, restarts, turns of the loop of each process |
| `/metrics/topics` | `dro_topic_fragments_total` by `portal` and `topic`, when `DRO_TOPIC_METRICS=N` allows N of them |
| `/healthz` | 200 while the parent answers, otherwise 503 and the reason |
| `/readyz` | 200 while all portals and the route manager work, otherwise 503 and the reasons |

All series have the label `dro`, those of portals also `portal` and `portal_type` (`endpoint`, `peer`). The set of
series follows from the configuration alone: it is the same before the first message, through restarts of processes and
until the DRO has ended. The exceptions are `dro_other_*` and the label `adjacent_dro_id` of `dro_portal_info`, which
other DROs tell. Counters never fall while the DRO runs. A gauge that has no sample yet is NaN. In each answer

```
forwarded = sent + dropped (by reason) + queued
```

holds for each portal and traffic, in messages and in bytes. Fragments count as messages, and so does what tells the
sequence numbers of a source (TSNI), with no bytes. Sums over `traffic` or `reason` are meaningful, as subsets
(requests) have metrics of their own.

Beside the tables there are `dro_build_info`, `dro_info` (label `dro_id`), `dro_start_time_seconds`, `dro_up`,
`dro_config_load_timestamp_seconds`, `dro_portal_info`, `dro_portal_cost`, `dro_portal_index` (another one when the
portal was taken out and added again: its counters began anew), `dro_portal_up`, `dro_portal_restarts_total`,
`dro_portal_state` (one series for each `state`, 1 for the one of now), of other DROs `dro_other_info`,
`dro_other_version`, `dro_other_topology_signature`, `dro_other_last_activity_timestamp_seconds`,
`dro_other_portal_cost`, and the usual `process_*` for all processes together; on `/metrics/workers`
`dro_worker_cpu_seconds_total`, `dro_worker_resident_memory_bytes`, `dro_worker_threads`, `dro_worker_open_fds`,
`dro_worker_restarts_total`, `dro_worker_uptime_seconds`, `dro_worker_up`, `dro_worker_state`, and
`dro_monitor_clients_dropped_total` by `reason`. `dro_build_info` has in `revision` what the environment variable
`DRO_REVISION` holds.
"""


def reference() -> str:
    """The whole file."""
    parts = [
        INTRODUCTION,
        _section("Endpoint portals", metrics(PORTAL, ENDPOINT)),
        _section("Peer portals", metrics(PORTAL, PEER)),
        _section("Route manager", metrics(ROUTE_MANAGER)),
        _section("Processes", metrics(WORKER)),
    ]
    return "\n".join(parts)


def _section(title: str, found: Iterable[Metric]) -> str:
    return "\n".join([f"## {title}", "", "| metric | type | labels | meaning | name in JSON |", "|---|---|---|---|---|",
                      *_lines(found), ""])  # fmt: skip


def _lines(found: Iterable[Metric]) -> Iterator[str]:
    for metric in found:
        labels = ", ".join(f"`{name}={value}`" for name, value in metric.labels)
        meaning = metric.title if metric.column == 1 else f"{metric.title} (bytes)"
        yield f"| `{metric.name}` | {metric.kind} | {labels} | {meaning} | `{metric.row}` |"


if __name__ == "__main__":
    print(reference(), end="")
