"""Makes the tables of a history from the metric tables: their columns, and Parquet schemas that carry what they mean.

A row of `portal` is one portal at one time, and so on. Readers need nothing but the files: under the key `META` of its
metadata each has the metric, the labels and the unit of its columns.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Final

from dro.metrics.slots import PairSlot
from dro.metrics.table import PORTAL, PREFIX, ROUTE_MANAGER, WORKER, Row, rows

if TYPE_CHECKING:
    import pyarrow as pa

NEEDS: Final = "it needs what `pip install open-dro[history]` or the Debian package open-dro-history installs"
VERSION: Final = 1
"""Numbers the layout; readers refuse files of a higher one."""
META: Final = "open_dro.history"
KEY, TEXT, COUNTER, GAUGE, SAMPLE, BUCKET = "key", "text", "counter", "gauge", "sample", "bucket"
TIME, LONG, STRING, BOOL, MAP, FIGURES = "time", "long", "string", "bool", "map", "figures"
PAIR: Final = "pair"


@dataclass(frozen=True, slots=True)
class HistoryColumn:
    """One column. `labels` are those of the metric by type of portal, or under an empty name."""

    name: str
    type: str
    kind: str = TEXT
    help: str = ""
    metric: str = ""
    unit: str = ""
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    le: int = 0  # upper bound of a bucket in its unit; 0 of the last, which has all values


@dataclass(frozen=True, slots=True)
class HistoryTable:
    """`key` tells its rows apart, within a DRO and its time."""

    name: str
    columns: tuple[HistoryColumn, ...]
    key: tuple[str, ...] = ()
    cells: tuple[tuple[str, tuple[int, ...], bool], ...] = ()
    """Columns that come from a page: the cells that are added up, and whether 0 means that there is no value."""

    def of_page(self, values: Sequence[int]) -> dict[str, int]:
        """The columns of one page, from its general slots, or of a block about a sibling."""
        return {
            name: min(value, MAX_LONG)
            for name, slots, may_lack in self.cells
            if (value := sum([values[slot] for slot in slots])) or not may_lack
        }


MAX_LONG: Final = (1 << 63) - 1

_TIMES: Final = (
    HistoryColumn("ts", TIME, KEY, "when the sample was taken, by the clock of who took it"),
    HistoryColumn("run", TIME, KEY, "when the DRO was started; its counters began at 0"),
    HistoryColumn("seq", LONG, KEY, "microseconds since the start of the host, which no setting of the clock changes"),
    HistoryColumn("source", STRING, KEY, "who took it: pages, prometheus or import"),
)
_PORTAL: Final = (
    HistoryColumn("portal", STRING, KEY, "its name"),
    HistoryColumn("portal_type", STRING, TEXT, "endpoint or peer"),
    HistoryColumn("page", LONG, KEY, "another one when a portal of that name was taken out and added again"),
    HistoryColumn("dro_id", STRING, TEXT, "node id of the DRO"),
    HistoryColumn("domain_id", LONG, TEXT, "TRD of an endpoint"),
    HistoryColumn("adjacent_dro_id", STRING, TEXT, "node id of the companion of a peer portal, once it is known"),
    HistoryColumn("cost", LONG, GAUGE, "configured"),
    HistoryColumn("up", BOOL, GAUGE, "the portal works and, of a peer portal, its link is up"),
    HistoryColumn("state", STRING, TEXT, "of its process"),
    HistoryColumn("restarts", LONG, COUNTER, "processes after the first"),
)
_DRO: Final = (
    HistoryColumn("dro_id", STRING, TEXT, "node id"),
    HistoryColumn("version", STRING, TEXT, "what runs"),
    HistoryColumn("up", BOOL, GAUGE, "all portals have been ready and the DRO does not stop"),
    HistoryColumn("config_loaded", TIME, TEXT, "when the configuration was read"),
    HistoryColumn("cpu_us", LONG, COUNTER, "processor time of all processes", unit="us"),
    HistoryColumn("resident_bytes", LONG, GAUGE, "memory of all processes"),
)
_WORKER: Final = (
    HistoryColumn("worker", STRING, KEY, "its name"),
    HistoryColumn("role", STRING, TEXT, "endpoint, peer, route manager, ..."),
    HistoryColumn("pid", LONG, TEXT, "of the process; 0 while there is none"),
    HistoryColumn("state", STRING, TEXT, "of the process"),
    HistoryColumn("restarts", LONG, COUNTER, "processes after the first"),
    HistoryColumn("cpu_us", LONG, COUNTER, "processor time of the process and those before it", unit="us"),
    HistoryColumn("resident_bytes", LONG, GAUGE, "memory"),
)
_PAIR: Final = (
    HistoryColumn("portal", STRING, KEY, "that received"),
    HistoryColumn("to_portal", STRING, KEY, "that sends"),
    HistoryColumn("page", LONG, KEY, "of the portal that received"),
)
_OTHER: Final = (
    HistoryColumn("other_dro", STRING, KEY, "name, or node id"),
    HistoryColumn("other_dro_id", STRING, TEXT, "node id"),
    HistoryColumn("link_version", LONG, GAUGE, "version of its link state"),
    HistoryColumn("signature", LONG, GAUGE, "of the topology as it sees it"),
    HistoryColumn("adjacent_type", STRING, KEY, "trd or dro"),
    HistoryColumn("adjacent_id", STRING, KEY, "domain id or node id of what it has a portal to"),
    HistoryColumn("cost", LONG, GAUGE, "of that portal"),
)
_EVENT: Final = (
    HistoryColumn("serial", LONG, KEY, "grows with each event of a history"),
    HistoryColumn("severity", STRING, TEXT, "of the log line"),
    HistoryColumn("event", STRING, TEXT, "id of the log line"),
    HistoryColumn("name", STRING, TEXT, "of the event"),
    HistoryColumn("worker", STRING, TEXT, "that said it"),
    HistoryColumn("category", STRING, TEXT, "topology, interest, drops, blocked, configuration, portal or other"),
    HistoryColumn("text", STRING, TEXT, "as it was logged"),
    HistoryColumn("fields", MAP, TEXT, "of the log line, by name"),
)
_LIBRARY: Final = (
    HistoryColumn("application", STRING, KEY, "id of who sent it"),
    HistoryColumn("pid", LONG, KEY, "of its process"),
    HistoryColumn("object_id", LONG, KEY, "of the context, session or queue in the process"),
    HistoryColumn("kind", STRING, KEY, "context, source_transport, receiver_transport or event_queue"),
    HistoryColumn("session", STRING, KEY, "source string of a transport session"),
    HistoryColumn("portal", STRING, TEXT, "whose context it is"),
    HistoryColumn("figures", FIGURES, TEXT, "what the UM library has counted, by the names of its fields"),
)


@cache
def tables() -> Mapping[str, HistoryTable]:
    """All tables by name."""
    portal, cells = _of_pages(PORTAL)
    routes, route_cells = _of_pages(ROUTE_MANAGER)
    worker, worker_cells = _of_pages(WORKER)
    pair = tuple(
        HistoryColumn(slot.name.lower(), LONG, COUNTER if "QUEUED" not in slot.name else GAUGE) for slot in PairSlot
    )
    pair_cells = tuple((slot.name.lower(), (int(slot),), False) for slot in PairSlot)
    found = (
        HistoryTable("portal", (*_TIMES, *_PORTAL, *portal), ("portal",), cells),
        HistoryTable("dro", (*_TIMES, *_DRO, *routes), (), route_cells),
        HistoryTable("worker", (*_TIMES, *_WORKER, *worker), ("worker",), worker_cells),
        HistoryTable(PAIR, (*_TIMES, *_PAIR, *pair), ("portal", "to_portal"), pair_cells),
        HistoryTable("other", (*_TIMES, *_OTHER), ("other_dro", "adjacent_type", "adjacent_id")),
        HistoryTable("event", (*_TIMES, *_EVENT), ("serial",)),
        HistoryTable("library", (*_TIMES, *_LIBRARY), ("application", "pid", "object_id", "kind", "session")),
    )
    return {table.name: table for table in found}


def _of_pages(table: str) -> tuple[tuple[HistoryColumn, ...], tuple[tuple[str, tuple[int, ...], bool], ...]]:
    columns, cells = [], []
    helps = {row.metric: row.help for row in reversed(rows(table)) if row.help}
    for row in rows(table):
        for column, slots in _columns(table, row, helps.get(row.metric, "")):
            columns.append(column)
            cells.append((column.name, slots, row.kind == SAMPLE))
    return tuple(columns), tuple(cells)


def _columns(table: str, row: Row, words: str) -> Iterator[tuple[HistoryColumn, tuple[int, ...]]]:
    labels = {kind: dict(some) for kind, some in row.labels.items() if some is not None}
    slots = list(row.slots.items())

    def column(name: str, kind: str, metric: str, le: int = 0) -> HistoryColumn:
        return HistoryColumn(name.lower(), LONG, kind, words, f"{PREFIX[table]}{metric}", row.unit, labels, le)

    match row.kind:
        case "sum":
            return
        case "sized":
            for (name, slot), unit in zip(slots, ("messages", "bytes"), strict=True):
                yield column(name, COUNTER, f"{row.metric}_{unit}_total"), (slot,)
        case "histogram":
            *buckets, (total, total_slot) = slots
            for at, (name, _) in enumerate(buckets):
                le = int(row.parts[at]) if at < len(row.parts) else 0
                yield column(name, BUCKET, f"{row.metric}_bucket", le), tuple(slot for _, slot in buckets[: at + 1])
            yield column(total, COUNTER, f"{row.metric}_sum"), (total_slot,)
        case kind:
            yield column(row.name, kind, row.metric), (row.slot,)


def told_columns(rows: pa.Table) -> pa.Table:
    """Leave out the columns that tell nothing, and what is said of them: counters that are all 0 or unknown, and what
    else is all unknown, but keys. Readers take such a counter for 0, and anything else for unknown."""
    import pyarrow.compute as pc

    about = json.loads(rows.schema.metadata[META.encode()])
    for name, column in about["columns"].copy().items():
        is_counted = column["kind"] in (COUNTER, BUCKET)
        if column["kind"] != KEY and not (
            pc.max(rows[name]).as_py() if is_counted else rows[name].null_count < len(rows)
        ):
            del about["columns"][name]
    told = {META: json.dumps(about, separators=(",", ":"))}
    return rows.select(list(about["columns"])).replace_schema_metadata(told)


@cache
def schema_of(table: str) -> pa.Schema:
    """The Parquet schema of a table. The DRO and the day are in the path of a file."""
    import pyarrow as pa

    types = {TIME: pa.timestamp("us", tz="UTC"), LONG: pa.int64(), STRING: pa.string(), BOOL: pa.bool_(),
             MAP: pa.map_(pa.string(), pa.string()), FIGURES: pa.map_(pa.string(), pa.int64())}  # fmt: skip
    columns = tables()[table].columns
    about = {
        "version": VERSION,
        "table": table,
        "key": tables()[table].key,
        "columns": {
            column.name: {k: v for k, v in asdict(column).items() if v and k not in ("name", "help")}
            for column in columns
        },
    }
    fields = [pa.field(column.name, types[column.type]) for column in columns]
    return pa.schema(fields, metadata={META: json.dumps(about, separators=(",", ":"))})
