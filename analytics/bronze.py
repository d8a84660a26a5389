"""Reads the samples of a DRO and a day: each once, and counters as the highest value of each step of time.

A scrape may arrive in several requests, and what was written twice is read twice. So all but the counters is put
together by scope and time, and the last value that is known holds. A counter never falls within its scope (one run of a
DRO, and one counter page of a portal or of a pair of them): its highest value in a step is its last, however often,
late or out of order its samples came, and whatever was read before or after.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from analytics.store.files import ARROW, BROKEN
from analytics.sums import SummedColumns

Ints = NDArray[np.int64]
PORTAL: Final = ("portal", "run", "page")
PAIR: Final = ("portal", "to_portal", "run", "page")
SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US
ABOUT: Final[Mapping[str, str]] = {
    "portal_type": "string", "domain_id": "long", "adjacent_dro_id": "string", "dro_id": "string", "cost": "long"
}  # fmt: skip
PLAIN: Final[Mapping[str, Mapping[str, str]]] = {
    "portal": {**ABOUT, "up": "bool"},
    "dro": {
        "dro_id": "string", "up": "bool", "config_loaded": "time", "signature": "long", "graph_version": "long",
        "network_dros": "long",
    },
    "pair": {},
}  # fmt: skip
"""Names what is kept of each sample beside its times, its scope and its gauges, with the types of `ARROW`."""
KEY_TYPES: Final[Mapping[str, str]] = {
    "portal": "string", "to_portal": "string", "run": "time", "page": "long", "ts": "time", "seq": "long"
}  # fmt: skip
BATCH: Final = 65_536
"""Rows that are read at a time."""
NO_PAGE: Final = -1


@dataclass(frozen=True, slots=True)
class Scope:
    """Names what tells rows of a table apart, beside their time; `width_us`: of a step."""

    key: Sequence[str]
    width_us: int = MINUTE_US


@dataclass(frozen=True, slots=True)
class Highest:
    """Holds counters (by the names of columns) as they were highest, for each row of `keys`."""

    keys: pa.Table
    values: Mapping[str, Ints]


@dataclass(frozen=True, slots=True)
class DaySamples:
    """Holds the samples of a table, a DRO and a day: `rows` in order of scope and time, with gauges.

    `counted`: by scope and `step` (of which `width_us` are one, since 1970). `begun`: by scope, at its first sample.
    `is_whole`: all came with their scope, so that what comes later changes no row of these.
    """

    rows: pa.Table
    counted: Highest
    begun: Highest
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Span:
    """Tells since when samples had a value (us): that of a run, or of a page."""

    first: int
    value: int


def codes(column: pa.ChunkedArray | pa.Array) -> Ints:
    """Give numbers in the order of the values, which are the same for equal ones; -1 for those that are unknown."""
    values = _whole(column)
    if not pa.types.is_string(values.type):
        found: Ints = values.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        return found
    told = values.dictionary_encode()
    ranks = np.append(pc.rank(told.dictionary).to_numpy().astype(np.int64), -1)
    ranked: Ints = ranks[told.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
    return ranked


def counts(column: pa.ChunkedArray | pa.Array) -> Ints:
    """Give the values of a counter; what is unknown is 0."""
    values = _whole(column)
    known = values.fill_null(0) if values.null_count else values
    found: Ints = known.to_numpy(zero_copy_only=False)
    return found


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def grouped(rows: pa.Table, by: Iterable[str]) -> tuple[Ints, Ints]:
    """Order rows by columns: which row comes at each place, and where each other value begins."""
    keys = [codes(rows[name]) for name in by]
    order = np.lexsort(keys[::-1])
    return order, begins(*(key[order] for key in keys))


def taken(rows: pa.Table, order: Ints) -> pa.Table:
    """Put rows into an order, which most of them are in."""
    return rows if bool((order[1:] > order[:-1]).all()) and len(order) == len(rows) else rows.take(order)


def begins(*keys: Ints) -> Ints:
    """Find where a row differs from the one before in one of the columns."""
    is_new = np.ones(len(keys[0]), bool)
    is_new[1:] = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return np.flatnonzero(is_new)


@dataclass(frozen=True, slots=True)
class SampleFile:
    """A file to read: what was written, or (`is_merged`) what `merged` made, which has sums of gauges."""

    path: str
    file: pq.ParquetFile
    is_merged: bool = False


def samples_of(
    sources: Sequence[SampleFile],
    day: str,
    table: str,
    scope: Scope,
    kept: SummedColumns,
    runs: Sequence[Span] | None,
    on_bad: Callable[[str, Exception], object],
) -> DaySamples:
    """Read the files of a table, a DRO and a day. `on_bad` is told of each that is left out: which, and why.

    `runs`: those of the DRO, for samples that came without; what none of them has is of a run of 1970. When they are
    not known, such samples are not taken.
    """
    reader = _Reader(day, table, scope, kept, runs, {})
    bad = _added(reader, sources)
    if reader.lacks_pages and (pages := _pages_of(sources)):
        reader = _Reader(day, table, scope, kept, runs, pages)
        bad = _added(reader, sources)
    for path, error in bad:
        on_bad(path, error)
    return reader.samples()


def _added(reader: _Reader, sources: Iterable[SampleFile]) -> list[tuple[str, Exception]]:
    """Take files; those that cannot be read, and why."""
    bad: list[tuple[str, Exception]] = []
    for source in sources:
        try:
            reader.add(source)
        except FileNotFoundError:  # retention has removed it
            pass
        except BROKEN as e:
            bad.append((source.path, e))
    return bad


def spans_of(samples: pa.Table, name: str) -> list[Span]:
    """Find when each value of a column was there, in the order of the values."""
    ts, values = codes(samples["ts"]), codes(samples[name])
    return [Span(int(ts[values == one].min()), int(one)) for one in np.unique(values)]


def _pages_of(sources: Iterable[SampleFile]) -> dict[str, list[Span]]:
    """Find when each page of a portal was there."""
    found = []
    for source in sources:
        with contextlib.suppress(*BROKEN):
            found.append(source.file.read(columns=["portal", "ts", "page"], use_threads=False))
    found = [rows for rows in found if len(rows.column_names) == 3]
    if not found:
        return {}
    rows = pa.concat_tables(found, promote_options="default").drop_null()
    return {
        name: spans_of(rows.filter(pc.equal(rows["portal"], name)), "page")
        for name in rows["portal"].unique().to_pylist()
    }


class _Reader:
    """Reads files of one table, so many rows at a time that a file of few rows costs little."""

    def __init__(
        self,
        day: str,
        table: str,
        scope: Scope,
        kept: SummedColumns,
        runs: Sequence[Span] | None,
        pages: Mapping[str, Sequence[Span]],
    ) -> None:
        self._table, self._scope, self._runs, self._pages = table, scope, runs, pages
        self._begin = int(np.datetime64(day, "us").astype(np.int64))
        self._raw = list(dict.fromkeys(name for names in kept.counters.values() for name in names))
        self._gauges = {**kept.last, **kept.highest}
        self._plain = {**PLAIN[table], **{name: KEY_TYPES[name] for name in ("ts", "seq")}}
        parts = [name for names in self._gauges.values() for name in names]
        plain = {**self._plain, **{name: KEY_TYPES[name] for name in scope.key}}
        self._wanted = {
            name: ARROW[of]
            for name, of in {**dict.fromkeys([*self._raw, *parts, *self._gauges], "long"), **plain}.items()
        }
        self._needed = {"ts"} if table == "dro" else {"ts", *scope.key} - {"run", "page"}
        types = {name: KEY_TYPES[name] for name in scope.key} | self._plain | dict.fromkeys(self._gauges, "long")
        self._nothing = pa.schema({name: ARROW[of] for name, of in types.items()}.items()).empty_table()
        self._reduced: list[DaySamples] = []
        self._waiting: list[pa.Table] = []
        self._is_whole = True
        self.lacks_pages = False

    def add(self, source: SampleFile) -> None:
        """Take a file, all of it or nothing. Raises: one of BROKEN."""
        reduced: list[DaySamples] = []
        waiting: list[pa.Table] = []
        names = self._columns(source.file.schema_arrow)
        for batch in source.file.iter_batches(BATCH, columns=names, use_threads=False):
            waiting.append(self._scoped(batch))
            self._reduce(waiting, reduced, source.is_merged)
        if source.is_merged:
            self._reduce(waiting, reduced, True, at_least=1)
        self._reduced += reduced
        self._waiting += waiting
        self._reduce(self._waiting, self._reduced)

    def _columns(self, there: pa.Schema) -> list[str]:
        """Choose the columns of a file. Raises: ArrowInvalid."""
        if lacks := self._needed - set(there.names):
            raise pa.ArrowInvalid(f"it has no column {min(lacks)}")
        found = [field for field in there if field.name in self._wanted]
        for field in found:
            if field.type != self._wanted[field.name]:
                raise pa.ArrowInvalid(f"its column {field.name} is {field.type}")
        return [field.name for field in found]

    def samples(self) -> DaySamples:
        """Put together what was taken."""
        self._reduce(self._waiting, self._reduced, at_least=1)
        key = self._scope.key
        rows = pa.concat_tables([self._nothing, *(one.rows for one in self._reduced)])
        return DaySamples(
            _each_once(rows, (*key, "ts")),
            _joined([one.counted for one in self._reduced], (*key, "step")),
            _first(_joined([one.begun for one in self._reduced], (*key, "ts")), key),
            self._is_whole,
        )

    def _reduce(
        self, waiting: list[pa.Table], reduced: list[DaySamples], is_merged: bool = False, at_least: int = BATCH
    ) -> None:
        if sum(map(len, waiting)) >= at_least:
            rows = pa.concat_tables(waiting, promote_options="default").combine_chunks()
            reduced.append(self._samples(rows, is_merged))
            waiting.clear()

    def _scoped(self, batch: pa.RecordBatch) -> pa.Table:
        """Fill in the scope of rows that came without, and leave out those of another day, which that day has. Raises:
        ArrowInvalid."""
        rows = pa.Table.from_batches([batch])
        if rows["ts"].null_count:
            raise pa.ArrowInvalid("it has rows without a time")
        if self._table == "dro":
            rows = _with(rows, "portal", pa.repeat(pa.scalar(""), len(rows)))
            rows = _with(rows, "page", pa.repeat(pa.scalar(NO_PAGE, pa.int64()), len(rows)))
        page, run = _column(rows, "page", pa.int64()), _column(rows, "run", ARROW["time"])
        self.lacks_pages |= page.null_count > 0
        self._is_whole &= page.null_count == run.null_count == 0
        for portal, spans in self._pages.items():
            page = _filled(page, rows, spans, pc.equal(rows["portal"], portal).to_numpy())
        if self._runs is not None:
            run = _filled(run, rows, self._runs, True).fill_null(0)
        rows = _with(_with(rows, "page", page.fill_null(NO_PAGE)), "run", run)
        ts = codes(rows["ts"])
        is_ours = (ts >= self._begin) & (ts < self._begin + DAY_US)
        for name in self._scope.key:
            is_ours &= rows[name].is_valid().to_numpy()
        return rows if is_ours.all() else rows.filter(pa.array(is_ours))

    def _samples(self, rows: pa.Table, is_merged: bool) -> DaySamples:
        empty = self._nothing
        made = {name: _sum(rows, [name] if is_merged else parts) for name, parts in self._gauges.items()}
        for name in empty.column_names:
            if name not in made:
                made[name] = _column(rows, name, empty.schema.field(name).type)
        plain = pa.table({name: made[name] for name in empty.column_names}, schema=empty.schema)
        keys = plain.select([*self._scope.key, "ts"]).append_column(
            "step", pa.array(codes(plain["ts"]) // self._scope.width_us)
        )
        there = set(rows.column_names)
        counters = {name: counts(rows[name]) for name in self._raw if name in there}
        order, starts = grouped(keys, (*self._scope.key, "step"))
        is_in_order = bool((order[1:] > order[:-1]).all())
        values = {
            name: np.maximum.reduceat(column if is_in_order else column[order], starts)
            for name, column in counters.items()
        }
        counted = Highest(keys.take(order[starts]).drop_columns("ts"), values)
        at = _at_first(keys, self._scope.key)
        begun = Highest(keys.take(at).drop_columns("step"), {name: column[at] for name, column in counters.items()})
        return DaySamples(plain, counted, begun)


def merged(samples: DaySamples, scope: Scope) -> pa.Table:
    """Make rows that give the same samples when they are read as a file: with counters where a step has its last sample
    and where a scope has its first, and sums of gauges."""
    rows = samples.rows
    ts = codes(rows["ts"])
    keys = [codes(rows[name]) for name in scope.key]
    first = begins(*keys)
    last = np.append(begins(*keys, ts // scope.width_us)[1:], len(rows)) - 1
    is_told = np.zeros(len(rows), bool)
    is_told[first] = is_told[last] = True
    for name in sorted({*samples.counted.values, *samples.begun.values}):
        values = np.zeros(len(rows), np.int64)
        values[first] = _of(samples.begun, name)
        values[last] = np.maximum(values[last], _of(samples.counted, name))
        rows = rows.append_column(name, pa.array(values, mask=~is_told))
    return rows


def _of(counted: Highest, name: str) -> Ints:
    return counted.values.get(name, np.zeros(len(counted.keys), np.int64))


def _filled(column: pa.Array, rows: pa.Table, spans: Iterable[Span], where: NDArray[np.bool_] | bool) -> pa.Array:
    """Fill in what is unknown with the value that was there at that time, or before, or first."""
    if not column.null_count:
        return column
    ts, found = codes(rows["ts"]), codes(column).copy()
    lacks = (found < 0) & where
    for nth, span in enumerate(sorted(spans, key=lambda span: span.first)):
        found[lacks & ((ts >= span.first) | (nth == 0))] = span.value
    return pa.array(found, mask=found < 0).cast(column.type)


def _at_first(keys: pa.Table, scope: Sequence[str]) -> Ints:
    """Find the rows that are the first of their scope, which may have come in parts."""
    order, starts = grouped(keys, scope)
    ts = codes(keys["ts"])[order]
    first = np.minimum.reduceat(ts, starts)
    found: Ints = order[ts == np.repeat(first, np.diff(starts, append=len(ts)))]
    return found


def _first(begun: Highest, scope: Sequence[str]) -> Highest:
    if not len(begun.keys):
        return begun
    at = _at_first(begun.keys, scope)
    return Highest(begun.keys.take(at), {name: column[at] for name, column in begun.values.items()})


def _joined(parts: Sequence[Highest], key: Sequence[str]) -> Highest:
    """Make one row of those with the same key."""
    if not parts:
        return Highest(pa.table({name: pa.array([], pa.int64()) for name in key}), {})
    keys = pa.concat_tables([one.keys for one in parts])
    order, starts = grouped(keys, key)
    values = {}
    for name in dict.fromkeys(name for one in parts for name in one.values):
        values[name] = np.maximum.reduceat(np.concatenate([_of(one, name) for one in parts])[order], starts)
    return Highest(keys.take(order[starts]), values)


def _each_once(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Order rows by their key; those that have the same one are one row, with the last values that are known."""
    order, starts = grouped(rows, key)
    rows = taken(rows, order)
    if len(starts) == len(rows):
        return rows
    place = np.arange(len(rows))
    made = {}
    for name in rows.column_names:
        known = rows[name].is_valid().to_numpy()
        last = np.maximum.reduceat(np.where(known, place, -1), starts)
        made[name] = rows[name].take(pa.array(last, mask=last < 0))
    return pa.table(made, schema=rows.schema)


def _with(rows: pa.Table, name: str, column: pa.Array) -> pa.Table:
    at = rows.schema.get_field_index(name)
    return rows.append_column(name, column) if at < 0 else rows.set_column(at, name, column)


def _column(rows: pa.Table, name: str, of: pa.DataType) -> pa.Array:
    """Give a column of that type, unknown where a file has none."""
    return _whole(rows[name]) if name in rows.column_names else pa.nulls(len(rows), of)


def _sum(rows: pa.Table, parts: Sequence[str]) -> pa.Array:
    """Add up gauges; unknown where all of them are."""
    found = [_column(rows, name, pa.int64()) for name in parts] or [pa.nulls(len(rows), pa.int64())]
    total = reduce(pc.add, (one.fill_null(0) for one in found))
    return pc.if_else(reduce(pc.or_, (one.is_valid() for one in found)), total, pa.scalar(None, pa.int64()))
