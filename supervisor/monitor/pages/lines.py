"""The counters of a process as the lines of a page: grouped, named as in the guide, in columns.

Source: DRO guide, 5.4.2 and 5.4.3; names and columns are those of the metric table.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from dro.metrics.slots import Slot
from dro.metrics.table import HISTOGRAM, PORTAL, PREFIX, Metric, metrics
from supervisor.admin.status import PortalStatus

_GROUPS: Final = (
    ("Interest and proxies", "interest proxy receiver acl reports"),
    ("Topic resolution", "resolver"),
    ("Receive statistics", "received receive unwanted bad unrecoverable socket naks flows left batches_received runs"),
    ("Send statistics", "forwarded sent dropped generated send batch batches trains retransmitted unsent discarded"),
    ("Link", "link reconnects rtt last_keepalive connects connect_failures disconnects disconnected keepalives"),
    ("UDP of the link", "udp"),
)
OTHER: Final = "Other"
NOT_YET: Final = "none yet"
BYTES, MAXIMUM, LIMIT = "Bytes", "Maximum (bytes)", "Limit (bytes)"
"""Heads of what may stand beside the value of a line."""
_COUNTED: Final = re.compile(
    "microseconds|times that|topics and patterns|sequence numbers|topics|patterns|fragments|messages|msgs/|requests|"
    "datagrams|packets|bytes|sources|receivers|batches|rows|links|changes|attempts|samples|keepalives|naks|ncfs|"
    "daemons|srses|records|connections"
)
_UNITS: Final = {
    "microseconds": "µs", "msgs/": "messages", "times that": "times", "naks": "NAKs", "ncfs": "NCFs", "srses": "SRSes",
}  # fmt: skip
"""Where it is not the word that was found."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line: the wording of the guide, or of the table where the guide has none; `values` are its columns, messages
    before bytes, current before maximum; `names` are those of the cells, in the same order. `unit`: of the first value;
    empty where `shown` has it."""

    title: str
    names: list[str]
    values: list[int]
    shown: list[str]
    metric: str
    help: str
    is_guide: bool
    is_drop: bool
    unit: str

    @property
    def is_zero(self) -> bool:
        """Whether there is nothing to be seen."""
        return not any(self.values)

    @property
    def more(self) -> dict[str, tuple[str, str]]:
        """Find what stands beside the first value: names and texts by head."""
        heads = (MAXIMUM, LIMIT) if self.unit == "bytes" else (BYTES,)
        return dict(zip(heads, zip(self.names[1:], self.shown[1:], strict=True), strict=False))

    @property
    def text(self) -> str:
        """Write all values with their units."""
        units = [self.unit, *["bytes"] * (len(self.shown) - 1)]
        pairs = zip(self.shown, units, strict=True)
        return ", ".join(shown if shown == NOT_YET else f"{shown} {unit}".rstrip() for shown, unit in pairs)


@dataclass(frozen=True, slots=True)
class Group:
    """Lines under one head."""

    title: str
    lines: list[Line]

    @property
    def heads(self) -> list[str]:
        """List the columns that a line has anything in, beside its first value."""
        return [head for head in (BYTES, MAXIMUM, LIMIT) if any(head in line.more for line in self.lines)]


def portal_groups(portal: PortalStatus) -> list[Group]:
    """Make the lines of all counters of a portal."""
    return groups(metrics(PORTAL, portal.kind), {int(slot): portal[slot] for slot in Slot})


def groups(table: Iterable[Metric], cells: Mapping[int, int]) -> list[Group]:
    """Make the lines of the metrics of one table; `cells` by slot. Metrics of one title share a line."""
    found: dict[str, dict[str, list[Metric]]] = {title: {} for title in (*dict(_GROUPS), OTHER)}
    for metric in table:
        found[_group_of(metric)].setdefault(metric.title, []).append(metric)
    return [
        Group(title, [_line(name, parts, cells) for name, parts in lines.items()])
        for title, lines in found.items()
        if lines
    ]


def _group_of(metric: Metric) -> str:
    name = metric.name.removeprefix("dro_portal_")
    fits = [
        (len(prefix), title)
        for title, prefixes in _GROUPS
        for prefix in prefixes.split()
        if name == prefix or name.startswith(f"{prefix}_")
    ]
    return max(fits)[1] if fits else OTHER


def _line(title: str, parts: list[Metric], cells: Mapping[int, int]) -> Line:
    parts = sorted(parts, key=lambda part: "bytes" in part.name)
    first = parts[0]
    is_drop = "_dropped_" in first.name or "_receive_exception_" in first.name
    if first.kind == HISTOGRAM:
        counts = [cells[slot] for slot in first.slots[:-1]]
        spread = _spread(first, counts)
        return Line(title, [first.row], [sum(counts)], [spread], first.name, first.help, False, is_drop, "")
    values = [sum(cells[slot] for slot in part.slots) for part in parts]
    shown = [_shown(part, value) for part, value in zip(parts, values, strict=True)]
    names = [part.row for part in parts]
    return Line(title, names, values, shown, first.name, first.help, _is_guide(first), is_drop, _unit(first))


def _unit(metric: Metric) -> str:
    """Find the word for what is counted in the title, or in the name of the metric where the title has none."""
    found = _COUNTED.search(f"{metric.title.lower()} {metric.name}")
    return _UNITS.get(found[0], found[0]) if found is not None else ""


def _is_guide(metric: Metric) -> bool:
    """Say whether it is of the guide: of portals, by a protobuf field; titles of ours begin with a small letter."""
    return bool(metric.field) or (not metric.name.startswith(PREFIX[PORTAL]) and metric.title[:1].isupper())


def _spread(metric: Metric, counts: list[int]) -> str:
    """Find the bounds that half and 99 % of the values stay below."""
    total = sum(counts)
    if not total:
        return NOT_YET
    sums = list(accumulate(counts))
    bounds = [f"{bound * 1000:g} ms" for bound in metric.bounds]
    half, most = (
        next((b for b, below in zip(bounds, sums, strict=False) if below >= total * part), f"above {bounds[-1]}")
        for part in (0.5, 0.99)
    )
    return f"{total:,} samples; half up to {half}, 99 % up to {most}"


def _shown(metric: Metric, value: int) -> str:
    if metric.may_lack and not value:
        return NOT_YET
    if metric.name.endswith("timestamp_seconds"):
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value)) if value else NOT_YET
    if metric.name == "dro_topology_signature":
        return f"{value:08x}"
    if metric.scale != 1 and "microseconds" not in metric.title:
        return f"{value * metric.scale:.6f} seconds"
    return f"{value:,}"
