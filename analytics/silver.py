"""Makes what is kept of a DRO, one day after the other: its samples merged, growth by minute, where each day ends.

The growth of a minute is the highest value of a counter less the highest before it. So the sum over all minutes is the
last value less the first, whatever the clock did. What a DRO counts as a whole has an empty portal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from analytics import rolled
from analytics.bronze import (
    ABOUT,
    HOUR_US,
    MINUTE_US,
    NO_PAGE,
    PAIR,
    PORTAL,
    SECOND_US,
    DaySamples,
    Highest,
    Ints,
    SampleFile,
    Scope,
    Span,
    begins,
    codes,
    counts,
    grouped,
    merged,
    samples_of,
    spans_of,
    taken,
)  # fmt: skip
from analytics.store.errors import HistoryError, of_store
from analytics.store.files import (
    BROKEN,
    FileColumn,
    OnBad,
    Part,
    ReadableFile,
    columns_of,
    description,
    leave_out,
    opened,
    without_replaced,
)  # fmt: skip
from analytics.store.objects import ObjectStore, unique
from analytics.store.records import ADDED, TIMES, DayRecord, Key, Known, Seed, Seeds, folder_of, packed
from analytics.sums import SummedColumns, kept_of

TABLES: Final = ("dro", "portal", "pair")
SCOPES: Final[Mapping[str, Scope]] = {"dro": Scope(PORTAL), "portal": Scope(PORTAL), "pair": Scope(PAIR, HOUR_US)}
GROWN: Final[Mapping[str, Sequence[str]]] = {"minute": ("portal", "dro"), "pair": ("pair",)}
"""Names what grows, and the tables it is made of."""
SPANS: Final[Mapping[str, tuple[Sequence[str], Sequence[str]]]] = {
    "portal": (("portal", "run"), ("up", "portal_type", "dro_id", "adjacent_dro_id")),
    "dro": ((), ("run", "signature", "graph_version", "network_dros", "config_loaded")),
}
"""Names what is joined as long as it stays the same: by which columns, and its values; the first one is known."""
_NO_CLOCK: Final = -1
MOST_PER_S: Final = 1 << 40
"""Growth in a second of which no portal is capable: such a value is none of a counter."""
LIMIT: Final = 3
"""Sampling intervals without a sample that are a gap."""


@dataclass(frozen=True, slots=True)
class Day:
    """Tells what one day is made of: its files by table; the records of this day and of the one before, if there are;
    whether it is the last day of the DRO, of which more files come."""

    day: str
    parts: Mapping[str, Sequence[Part]]
    record: str = ""
    before: str = ""
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """Tells a task what to make: days of one DRO, in their order; whether their minutes are kept as a table."""

    store: ObjectStore
    dro: str
    days: Sequence[Day]
    keeps_minutes: bool = False


@dataclass(slots=True)
class MadeDay:
    """Tells what was made of a day: the paths of its record and of merged samples, how the day before and this one have
    ended (texts that change when that does), where its rows for gold are (nowhere when nothing changed), what was left
    out, whether some of that may be read another time, and what ended the work."""

    day: str
    dro: str
    record: str = ""
    merged: list[str] = field(default_factory=list)
    begun: str = ""
    end: str = ""
    tables: str = ""
    left_out: list[str] = field(default_factory=list)
    is_to_come: bool = False
    error: str = ""

    def leave_out(self, what: str, is_hindered: bool) -> None:
        """Note that a file was left out, perhaps until the next time."""
        self.left_out.append(what)
        self.is_to_come |= is_hindered


def make(work: Work) -> list[MadeDay]:
    """Make days; what is wrong with the store is told, not raised, and ends the work."""
    done: list[MadeDay] = []
    before: DayRecord | None = None
    for day in work.days:
        made = MadeDay(day.day, work.dro)
        done.append(made)
        try:
            if before is None:
                before = DayRecord.read(work.store, day.before)
            before = _make_day(work, day, before, made)
        except (HistoryError, OSError) as e:
            made.error = str(of_store(e) if isinstance(e, OSError) else e)
            break
    return done


@dataclass(slots=True)
class _Reading:
    """Tells what has to be read of a table: `base` has what was read before. `now`: files that are there, `columns`:
    theirs."""

    base: str
    more: list[ReadableFile]
    now: Known
    is_changed: bool
    columns: Mapping[str, FileColumn] = field(default_factory=dict)


def _reading(work: Work, day: Day, table: str, known: DayRecord, on_bad: OnBad) -> _Reading:
    """Find the files that bring something: none does that stands for files that were read, such as a joined one."""
    was, base = known.files.get(table, {}), known.merged.get(table, "")
    parts = {part.name: part for part in day.parts[table]}
    new = [part for part in parts.values() if was.get(part.name, [])[:2] != [part.size, part.mtime_ns]]
    files = without_replaced(opened(work.store, new, table, on_bad))
    told = {file.part.name: [file.part.size, file.part.mtime_ns, file.digest] for file in files}
    same = {name for name, of in told.items() if name in was and of[::2] == was[name][::2]}
    covered = {name for file in files for name in file.replaces}
    lost = (was.keys() - parts.keys() - covered) | (was.keys() & told.keys() - same)
    more = [
        file for file in files if file.part.name not in same and not (file.replaces and file.replaces <= was.keys())
    ]
    kept = {name: of for name, of in was.items() if name in parts and name not in covered and name not in lost}
    if lost or (base and not base.startswith("silver/") and base not in {part.path for part in parts.values()}):
        base = ""
    return _Reading(base, more, {**kept, **told}, bool(lost or more))


def _make_day(work: Work, day: Day, before: DayRecord, made: MadeDay) -> DayRecord:
    known, record = DayRecord.read(work.store, day.record), DayRecord(begun=before.end())
    on_bad = made.leave_out
    readings = {table: _reading(work, day, table, known, on_bad) for table in TABLES}
    if known.begun == record.begun and day.record and not any(reading.is_changed for reading in readings.values()):
        record.ends = known.ends
        record.merged = known.merged | {table: reading.base for table, reading in readings.items()}
        record.files = {table: reading.now for table, reading in readings.items()}
        return _written(work, day, record, made)
    found: dict[str, DaySamples] = {}
    kept: dict[str, SummedColumns] = {}
    for table, reading in readings.items():
        runs = None if table == "dro" else spans_of(found["dro"].rows, "run")
        found[table], kept[table] = _samples(work, day, table, reading, runs, on_bad)
        record.files[table] = reading.now
        record.merged[table] = _base_of(work, day, table, reading, found[table])
    grown: dict[str, Growth] = {}
    for name, tables in GROWN.items():
        seeds = before.ends.get(name, {})
        if name == "minute" or len(found["pair"].rows) or seeds:
            growth = Growth(SCOPES[tables[0]], [(found[table], kept[table]) for table in tables], seeds)
            grown[name], record.ends[name] = growth, growth.end
    added = rolled.tables({name: (growth.grown, growth.names) for name, growth in grown.items()})
    for table, (by, values) in SPANS.items():
        added[f"{table}_span"] = spans(found[table].rows, by, values)
    made.tables = f"{folder_of(ADDED, day.day, work.dro)}/{unique('added')}.arrow"
    work.store.put(made.tables, packed(added))
    if work.keeps_minutes:
        record.merged["minute"] = f"{folder_of('minute', day.day, work.dro)}/{unique('part')}.parquet"
        work.store.put_rows(record.merged["minute"], grown["minute"].grown.schema, [grown["minute"].grown])
    return _written(work, day, record, made)


def _written(work: Work, day: Day, record: DayRecord, made: MadeDay) -> DayRecord:
    made.record, made.begun, made.end = record.write(work.store, day.day, work.dro), record.begun, record.end()
    made.merged = [path for path in record.merged.values() if path.startswith("silver/")]
    return record


def _samples(
    work: Work, day: Day, table: str, reading: _Reading, runs: Sequence[Span] | None, on_bad: OnBad
) -> tuple[DaySamples, SummedColumns]:
    """Read what there is of a table, all of it where nothing has what was read before."""
    sources, columns = [], dict[str, FileColumn]()
    if reading.base:
        try:
            file = pq.ParquetFile(work.store.open(reading.base))
            columns |= columns_of(file)
            sources.append(SampleFile(reading.base, file, reading.base.startswith("silver/")))
        except BROKEN:
            reading.base = ""
    files = reading.more
    if not reading.base and len(files) < len(day.parts[table]):
        files = without_replaced(opened(work.store, day.parts[table], table, lambda *_: None))
    if not reading.base:
        reading.now = {file.part.name: [file.part.size, file.part.mtime_ns, file.digest] for file in files}
    for one in files:
        columns |= one.columns
    reading.columns, kept = columns, kept_of(table, columns)
    sources += [SampleFile(one.part.path, one.file) for one in files]

    bad: dict[str, Exception] = {}
    samples = samples_of(sources, day.day, table, SCOPES[table], kept, runs, bad.__setitem__)
    if reading.base in bad:
        reading.base = ""
        return _samples(work, day, table, reading, runs, on_bad)
    for path, error in bad.items():
        reading.now.pop(path.rpartition("/")[2], None)
        leave_out(work.store, path, error, on_bad, "its rows cannot be read")
    return samples, kept


def _base_of(work: Work, day: Day, table: str, reading: _Reading, samples: DaySamples) -> str:
    """Find the file that has all samples that were read, or make it while the day goes on."""
    if not samples.is_whole or not reading.now:
        return ""
    if len(reading.now) == 1:
        return next((part.path for part in day.parts[table] if part.name in reading.now), "")
    if not reading.is_changed:
        return reading.base
    if not day.goes_on:
        return ""
    rows = merged(samples, SCOPES[table])
    rows = rows.replace_schema_metadata(description(table, reading.columns))
    path = f"{folder_of(table, day.day, work.dro)}/{unique('part', reading.base.encode())}.parquet"
    work.store.put_rows(path, rows.schema, [rows])
    return path


def steps(samples: DaySamples, scope: Scope, kept: SummedColumns) -> pa.Table:
    """Make a row for each scope and step: `minute` is the first one of it since 1970.

    `ts_first`, `ts_last` (us), `samples`, `up_samples`; sums of counters and gauges as they were last, some as they
    were highest; `clock_us`: what the clock showed when the host was started, which differs after it was set.
    """
    rows = samples.rows
    ts, seq = codes(rows["ts"]), codes(rows["seq"])
    starts = begins(*(codes(rows[name]) for name in scope.key), ts // scope.width_us)
    ends = ends_of(starts, len(rows))
    last = rows.take(ends - 1)
    made = {name: last[name] for name in (*scope.key, *(n for n in (*ABOUT, *kept.last) if n in rows.column_names))}
    made["minute"] = pa.array(ts[starts] // scope.width_us * (scope.width_us // MINUTE_US))
    made["ts_first"], made["ts_last"] = pa.array(ts[starts]), pa.array(ts[ends - 1])
    made["samples"] = pa.array(ends - starts)
    if "up" in rows.column_names:
        made["up_samples"] = pa.array(_each(np.add, (codes(rows["up"]) == 1).astype(np.int64), starts))
    made["clock_us"] = pa.array(_each(np.maximum, np.where(seq < 0, _NO_CLOCK, ts - seq), starts))
    for name in kept.highest:
        highest = _each(np.maximum, codes(rows[name]), starts)
        made[name] = pa.array(highest, mask=highest < 0)
    made |= {name: pa.array(value) for name, value in _sums(kept, samples.counted).items()}
    return pa.table(made)


def ends_of(starts: Ints, rows: int) -> Ints:
    """Find where each group of rows ends: where the next one begins."""
    return np.append(starts[1:], rows)[: len(starts)]


def _each(of: np.ufunc, values: Ints, starts: Ints) -> Ints:
    found: Ints = of.reduceat(values, starts) if len(starts) else values
    return found


def _sums(kept: SummedColumns, highest: Highest) -> dict[str, Ints]:
    """Add up raw counters: the highest value of a sum is the sum of the highest ones."""
    nothing, values = np.zeros(len(highest.keys), np.int64), highest.values
    return {
        name: sum((values[part] for part in parts if part in values), nothing) for name, parts in kept.counters.items()
    }


class Growth:
    """Finds how much each scope has grown in each step, and where it stands at the end of the day.

    `grown`: rows of `steps` with counters (but those that have always been 0) as growth since the row before, or since
    0, with `interval_us`, and
    `is_first`, `is_gap` (three sampling intervals without one), `is_clock_step` (it was set by more than a second).
    `end`: the seeds of the next day.
    """

    def __init__(self, scope: Scope, parts: Sequence[tuple[DaySamples, SummedColumns]], seeds: Seeds) -> None:
        self._scope, self._seeds = scope, seeds
        self._run = scope.key.index("run")
        names = [name for _, kept in parts for name in kept.counters]
        self.names: Final = list(dict.fromkeys([*names, *(name for seed in seeds.values() for name in seed.counters)]))
        rows = pa.concat_tables([steps(samples, scope, kept) for samples, kept in parts], promote_options="default")
        self._rows = taken(rows, grouped(rows, (*scope.key, "minute"))[0])
        told = {name for seed in seeds.values() for name in seed.counters}
        told |= {name for name in {*self.names} & {*rows.column_names} if (pc.max(rows[name]).as_py() or 0) > 0}
        self._counters = [name for name in self.names if name in told]
        self._begun: Seeds = {}
        for samples, kept in parts:
            keys, sums = samples.begun.keys, _sums(kept, samples.begun)
            for nth, (key, at) in enumerate(zip(_keys(keys, scope), codes(keys["ts"]).tolist(), strict=True)):
                self._begun[key] = Seed(0, at, at, _NO_CLOCK, {name: int(of[nth]) for name, of in sums.items()})
        self.end: Final[Seeds] = {}
        self.grown: Final = self._grow()
        newest = max((key[self._run] for key in (*self.end, *seeds)), default=0)
        for key, seed in seeds.items():  # what was not sampled today goes on with its run
            if key[self._run] == newest:
                self.end.setdefault(key, seed)

    def _grow(self) -> pa.Table:
        rows, size = self._rows, len(self._rows)
        nothing = np.zeros(size, np.int64)
        there = set(rows.column_names)
        columns = [counts(rows[name]) if name in there else nothing for name in self._counters]
        values = np.stack(columns, axis=1) if columns else np.zeros((size, 0), np.int64)
        growth = np.zeros_like(values)
        minute, first, last, clock = (codes(rows[name]) for name in TIMES)
        interval, marks = nothing, {name: np.zeros(size, bool) for name in ("is_first", "is_gap", "is_clock_step")}
        limits = self._limits(first, last)
        starts = begins(*(codes(rows[name]) for name in self._scope.key))
        for key, begin, end in zip(_keys(rows.take(starts), self._scope), starts, ends_of(starts, size), strict=True):
            here, run = slice(begin, end), key[self._run]
            run_first, limit, pause = limits[run]
            seed = self._seed(key)
            if seed is None and self._begun[key].ts_last == run_first > run + limit:  # it had counted before
                seed = self._begun[key]
            base = np.array([seed.counters.get(name, 0) if seed else 0 for name in self._counters])
            highest = np.maximum.accumulate(np.vstack([base, values[here]]))
            growth[here] = np.maximum(values[here] - highest[:-1], 0)
            before = np.append(seed.ts_last if seed else run, np.maximum.accumulate(last[here])[:-1])
            if seed:
                before = np.maximum(before, seed.ts_last)
                marks["is_gap"][begin] = first[begin] - before[0] > pause
            interval[here] = np.maximum(last[here] - before, 0)
            most = np.maximum(interval[here] // SECOND_US, 60) * MOST_PER_S
            growth[here] = np.where(growth[here] > most[:, None], 0, growth[here])
            marks["is_first"][begin] = not seed
            marks["is_gap"][begin + 1 : end] = first[begin + 1 : end] - before[1:] > pause
            set_from = np.append(seed.clock_us if seed else _NO_CLOCK, clock[begin : end - 1])
            is_known = (set_from != _NO_CLOCK) & (clock[here] != _NO_CLOCK)
            marks["is_clock_step"][here] = is_known & (abs(clock[here] - set_from) > SECOND_US)
            self.end[key] = Seed(
                int(minute[end - 1]), int(min(first[begin], seed.ts_first if seed else first[begin])),
                int(max(last[here].max(), seed.ts_last if seed else 0)),
                int(clock[end - 1]),
                {name: value for name, value in zip(self._counters, highest[-1].tolist(), strict=True) if value},
            )  # fmt: skip
        counted = {"clock_us", *self.names}
        others = {name: rows[name] for name in rows.column_names if name not in counted}
        grown = {name: pa.array(growth[:, nth]) for nth, name in enumerate(self._counters)}
        return pa.table(
            others | grown | {"interval_us": pa.array(interval)} | {n: pa.array(m) for n, m in marks.items()}
        )

    def _seed(self, key: Key) -> Seed | None:
        """Find what a scope had counted, under no page where it is of before the page was known, or is no more."""
        if (seed := self._seeds.get(key)) is not None or not self._seeds:
            return seed
        page = self._scope.key.index("page")
        others = [
            (other[page], seed) for other, seed in self._seeds.items()
            if other[:page] == key[:page] and NO_PAGE in (other[page], key[page])
        ]  # fmt: skip
        return max(others, key=lambda of: of[0])[1] if others else None

    def _limits(self, first: Ints, last: Ints) -> dict[int, tuple[int, float, float]]:
        """Find for each run when it was sampled first (us), how long after its start its counters count as known, and
        how many microseconds without a sample are a gap: samples may be rarer than minutes."""
        run, samples = codes(self._rows["run"]), codes(self._rows["samples"])
        is_next = np.ones(len(run), bool)
        is_next[begins(*(codes(self._rows[name]) for name in self._scope.key))] = False
        since = np.diff(first, prepend=first[:1])
        found: dict[int, tuple[int, float, float]] = {}
        for one in np.unique(run):
            seeds = [seed.ts_first for key, seed in self._seeds.items() if key[self._run] == one]
            several = (run == one) & (samples > 1) & (last > first)
            often = _middle((last - first)[several] / (samples - 1)[several], MINUTE_US)
            pause = often if several.any() else max(MINUTE_US, _middle(since[(run == one) & is_next], MINUTE_US))
            begun = min([int(first[run == one].min()), *seeds])
            found[int(one)] = begun, LIMIT * max(often, SECOND_US), LIMIT * max(pause, SECOND_US)
        return found


def _middle(values: NDArray[Any], otherwise: float) -> float:
    return float(np.sort(values)[(len(values) - 1) // 2]) if len(values) else otherwise


def _keys(rows: pa.Table, scope: Scope) -> list[Key]:
    """Give the values of a scope; a run as microseconds."""
    columns = [rows[name].cast(pa.int64()) if name == "run" else rows[name] for name in scope.key]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def spans(rows: pa.Table, by: Sequence[str], values: Sequence[str]) -> pa.Table:
    """Join rows, one after another by time, that have the same values: `ts_first`, `ts_last` (us), `samples`."""
    rows = rows.filter(rows[values[0]].is_valid())
    rows = taken(rows, grouped(rows, (*by, "ts"))[0])
    starts = begins(*(codes(rows[name]) for name in dict.fromkeys((*by, *values))))
    ends = ends_of(starts, len(rows))
    ts = codes(rows["ts"])
    found = rows.take(starts).select(list(dict.fromkeys((*by, *values))))
    told = {"ts_first": ts[starts], "ts_last": ts[ends - 1], "samples": ends - starts}
    for name, column in told.items():
        found = found.append_column(name, pa.array(column))
    return found
