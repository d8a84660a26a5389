"""The metric tables: a row of a CSV file in `data` is a counter, a gauge or a histogram of a process's counter page.

From a row are made: the slot of the page (`dro.metrics.slots`), the Prometheus series, the line on the portal's web
page, the field of the JSON answers, the line of `docs/metrics.md`. To add one is a row here and the line that counts.

| column | meaning |
|---|---|
| slot | its place on the page; `sized` takes the next for its bytes, `histogram` one for each bucket and two more |
| name | of the slot in code; bytes are `NAME_BYTES` |
| kind | counter; sized: messages and their bytes; gauge; sample: a gauge, 0 before the first; histogram; sum of rows |
| metric | Prometheus name without prefix; of `sized` and `sum` also without `_messages_total` and `_bytes_total` |
| unit | us: the page has microseconds, everything else has seconds |
| endpoint, peer | labels on the portals of that type, or `-` if they have none of it; `labels` in the other tables |
| ..._title, ..._field | wording of the guide's page, and the field of the monitoring protobuf |
| title | wording of ours, where the guide has none |
| help | of the metric, in the first row that has it |
| parts | upper bounds of the buckets, or the summands of a sum |
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

PORTAL, ROUTE_MANAGER, WORKER = "portal", "route-manager", "worker"
ENDPOINT, PEER = "endpoint", "peer"
PORTAL_TYPES: Final = (ENDPOINT, PEER)
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
PREFIX: Final = {PORTAL: "dro_portal_", ROUTE_MANAGER: "dro_", WORKER: "dro_"}

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table, as it is there."""

    slot: int  # -1: none, it is a sum
    name: str
    kind: str
    metric: str
    unit: str
    labels: Mapping[str, Labels | None]  # by type of portal, or under ""
    titles: Mapping[str, str]
    fields: Mapping[str, str]
    help: str
    parts: tuple[str, ...]

    @property
    def slots(self) -> dict[str, int]:
        """Names and places of all cells that it takes."""
        match self.kind:
            case "sum":
                return {}
            case "sized":
                return {self.name: self.slot, f"{self.name}_BYTES": self.slot + 1}
            case "histogram":  # the last bucket is for what is above all bounds
                count = len(self.parts) + 1
                cells = {f"{self.name}_{at}": self.slot + at for at in range(1, count)}
                return {self.name: self.slot, **cells, f"{self.name}_SUM": self.slot + count}
            case _:
                return {self.name: self.slot}


@dataclass(frozen=True, slots=True)
class Metric:
    """One Prometheus series without its base labels, and where its value comes from."""

    name: str
    kind: str  # counter, gauge or histogram
    labels: Labels
    help: str
    row: str  # name of the row, which JSON answers use
    title: str  # of the line on the page
    column: int  # 1, or 2 for bytes
    field: str  # of the monitoring protobuf; empty if it has none
    slots: tuple[int, ...]  # added up; of a histogram its buckets and the sum of its values
    scale: float = 1  # from the page's unit to that of the metric
    bounds: tuple[float, ...] = ()  # of the buckets, in the unit of the metric
    may_lack: bool = False  # there is no value until there is a sample: the page has 0, and the series is NaN


@cache
def rows(table: str) -> tuple[Row, ...]:
    """All rows of one table, in order."""
    text = files("dro.metrics").joinpath("data", f"{table}.csv").read_text(encoding="utf-8")
    return tuple(_row(line) for line in csv.DictReader(text.splitlines()))


def _row(line: dict[str, str]) -> Row:
    columns = PORTAL_TYPES if ENDPOINT in line else ("",)
    labels = {kind: _labels(line[kind or "labels"]) for kind in columns}
    return Row(
        int(line["slot"] or -1), line["name"], line["kind"], line["metric"], line["unit"], labels,
        {kind: line.get(f"{kind}_title", "") or line["title"] for kind in columns},
        {kind: line.get(f"{kind}_field", "") for kind in columns},
        line["help"], tuple(line["parts"].split()),
    )  # fmt: skip


def _labels(text: str) -> Labels | None:
    if text == "-":
        return None
    return tuple((name, value) for name, _, value in (part.partition("=") for part in text.split()))


@cache
def metrics(table: str, portal_type: str = "") -> tuple[Metric, ...]:
    """The series of one kind of process, rows in order, messages before bytes."""
    return tuple(metric for row in rows(table) for metric in _metrics_of(table, row, portal_type))


def bounds_of(table: str, name: str) -> tuple[int, ...]:
    """Upper bounds of the buckets of the histogram of that name, in the unit of the page."""
    return next(tuple(map(int, row.parts)) for row in rows(table) if row.name == name)


@cache
def _helps(table: str) -> dict[str, str]:
    return {row.metric: row.help for row in reversed(rows(table)) if row.help}


def _metrics_of(table: str, row: Row, portal_type: str) -> Iterator[Metric]:
    labels = row.labels[portal_type]
    if labels is None:
        return
    base, text = PREFIX[table] + row.metric, _helps(table)[row.metric]
    title, field = row.titles[portal_type], row.fields[portal_type]
    scale = 1e-6 if row.unit == "us" else 1
    if row.kind in ("sized", "sum"):
        by_name = {name: cell for other in rows(table) for name, cell in other.slots.items()}
        parts = row.parts if row.kind == "sum" else (row.name,)
        for column, unit, suffix in ((1, "messages", ""), (2, "bytes", "_BYTES")):
            words = text if column == 1 else f"{text}; their bytes"
            yield Metric(
                f"{base}_{unit}_total", COUNTER, labels, words, row.name + suffix, title, column,
                field if column == 1 else bytes_field(field), tuple(by_name[name + suffix] for name in parts),
            )  # fmt: skip
        return
    kind = row.kind if row.kind in (COUNTER, HISTOGRAM) else GAUGE
    bounds = tuple(int(part) * scale for part in row.parts)
    yield Metric(
        base, kind, labels, text, row.name, title, 1, field, tuple(row.slots.values()), scale, bounds,
        may_lack=row.kind == "sample",
    )  # fmt: skip


def bytes_field(field: str) -> str:
    """The protobuf field of the bytes, from that of the messages: `fragments_sent` has `fragment_bytes_sent`."""
    found, count = re.subn(r"(fragment|msg)s(?=_|$)", r"\1_bytes", field)
    return found if count else field.replace("control_", "control_bytes_")


@dataclass(frozen=True, slots=True)
class Flow:
    """Names the rows of one traffic: what was forwarded is sent, dropped or queued."""

    traffic: str
    forwarded: str
    sent: str
    dropped: tuple[str, ...]
    queued: str  # empty: nothing waits


@cache
def flows(portal_type: str) -> tuple[Flow, ...]:
    """The send-side identities of a portal, one for each traffic that is forwarded to it."""
    by_metric: dict[tuple[str, str], list[str]] = {}
    for row in rows(PORTAL):
        labels = dict(row.labels[portal_type] or ())
        by_metric.setdefault((row.metric, labels.get("traffic") or labels.get("queue", "")), []).append(row.name)
    found = []
    for (metric, traffic), names in by_metric.items():
        if metric == "forwarded":
            queue = "data" if traffic == "transport_topic" else traffic
            queued = by_metric.get(("send_queue_messages", queue), [""])[0]
            dropped = tuple(by_metric.get(("dropped", traffic), ()))
            found.append(Flow(traffic, names[0], by_metric["sent", traffic][0], dropped, queued))
    return tuple(found)


@cache
def drop_reasons(traffic: tuple[str, ...], portal_type: str = ENDPOINT) -> dict[str, tuple[str, ...]]:
    """Reason -> rows that count what was dropped, or received and not passed on, for it."""
    found: dict[str, tuple[str, ...]] = {}
    for row in rows(PORTAL):
        labels = dict(row.labels[portal_type] or ())
        if row.metric in ("dropped", "receive_exception") and labels.get("traffic") in traffic:
            found[labels["reason"]] = (*found.get(labels["reason"], ()), row.name)
    return found
