"""Makes the silver tables of a DRO, one day after the other: exact growth by minute, what was up, how each day ended.

The growth of a minute is the highest value of a counter less the highest before it. So the sum over all minutes is the
last value less the first, whatever the clock did. What a DRO counts as a whole has an empty portal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analytics.bronze import (
    ABOUT,
    HOUR_US,
    KEY_TYPES,
    MINUTE_US,
    NO_PAGE,
    PAIR,
    PORTAL,
    SECOND_US,
    DaySamples,
    Ints,
    Scope,
    begins,
    codes,
    counts,
    grouped,
    samples_of,
    spans_of,
)  # fmt: skip
from analytics.files import ARROW, BROKEN, HistoryError, Part, replacing
from analytics.sums import SummedColumns

_PORTAL: Final = Scope(PORTAL)
_PAIR: Final = Scope(PAIR, HOUR_US)
GROWN: Final = (("minute", "end", _PORTAL, ("portal", "dro")), ("pair", "pair_end", _PAIR, ("pair",)))
"""Tables of growth, those of where a day has ended, and what they are made of."""
SPANS: Final[Mapping[str, tuple[Sequence[str], Sequence[str]]]] = {
    "portal": (("portal", "run"), ("up", "portal_type", "dro_id", "adjacent_dro_id")),
    "dro": ((), ("run", "signature", "graph_version", "network_dros", "config_loaded")),
}
"""Names what is joined as long as it stays the same: by which columns, and its values; the first one is known."""
_TIMES: Final = ("minute", "ts_first", "ts_last", "clock_us")
_NO_CLOCK: Final = -1
PART: Final = "part.parquet"
MOST_PER_S: Final = 1 << 40
"""Growth in a second of which no portal is capable: such a value is none of a counter."""
LIMIT: Final = 3
"""Sampling intervals without a sample that are a gap."""
Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Day:
    """Tells what one day is made of: its files by table, and the day of this DRO before it, if there is one."""

    day: str
    before: str
    parts: Mapping[str, Sequence[Part]]


@dataclass(frozen=True, slots=True)
class Work:
    """Tells a task what to make: days of one DRO, in their order."""

    history: Path
    dro: str
    days: Sequence[Day]
    kept: Mapping[str, SummedColumns]


@dataclass(slots=True)
class Made:
    """Tells what a task has made: the columns of each table, how each day has ended (a text that changes when that
    does), what it left out, and what ended it, if so."""

    schemas: dict[str, pa.Schema] = field(default_factory=dict)
    ends: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Seed:
    """Holds what a scope had counted when it was sampled last; times are microseconds."""

    minute: int
    ts_first: int
    ts_last: int
    clock_us: int
    counters: Mapping[str, int]


Seeds = dict[Key, Seed]


def make(work: Work) -> Made:
    """Make the silver tables of days; what is wrong with the disk is told, not raised."""
    made = Made()
    ends: dict[str, Seeds] = {}
    day_done = ""
    try:
        for day in work.days:
            to = _Writer(work, day.day, made)
            if day_done != day.before or not day_done:
                ends = {end: seeds_of(work, day.before, end, scope) for _, end, scope, _ in GROWN}
            _make_day(work, day, ends, to)
            made.ends[day.day] = hashlib.sha256(repr(ends).encode()).hexdigest()[:32]
            day_done = day.day
    except OSError as e:
        made.error = f"{e.filename or work.history}: {e.strerror}; nothing is lost: mend it, and run it again"
    except HistoryError as e:
        made.error = str(e)
    return made


def _make_day(work: Work, day: Day, ends: dict[str, Seeds], to: _Writer) -> None:
    dros = samples_of(day.parts["dro"], "dro", _PORTAL, work.kept["dro"], None, to.on_bad)
    found = {"dro": dros}
    runs = spans_of(dros.rows, "run")
    for table, scope in (("portal", _PORTAL), ("pair", _PAIR)):
        found[table] = samples_of(day.parts[table], table, scope, work.kept[table], runs, to.on_bad)
    for name, end, scope, tables in GROWN:
        if name == "minute" or len(found["pair"].rows) or ends[end]:
            growth = Growth(scope, [(found[table], work.kept[table]) for table in tables], ends[end])
            to.write(name, growth.grown)
            to.write(end, growth.end_rows())
            ends[end] = growth.end
    for table, (by, values) in SPANS.items():
        to.write(f"{table}_span", spans(found[table].rows, by, values))


class _Writer:
    """Writes the files of one DRO and day."""

    def __init__(self, work: Work, day: str, made: Made) -> None:
        self._work, self._day, self._made = work, day, made
        self.on_bad: Final[Callable[[str], object]] = made.left_out.append

    def write(self, table: str, rows: pa.Table) -> None:
        """Put rows in the place of those that are there. Raises: OSError."""
        path = place(self._work.history, table, self._day, self._work.dro) / PART
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            pq.write_table(rows, file, compression="zstd", store_schema=False)
        self._made.schemas[table] = rows.schema


def place(history: Path, table: str, day: str, dro: str) -> Path:
    """Name the directory of a DRO and a day in a silver table."""
    name = "".join(char if ord(char) > 127 else quote(char, safe="") for char in dro)  # Spark reads %XX as Latin-1
    return history / "silver" / table / f"day={day}" / f"dro={name.replace('__HIVE', '%5F_HIVE')}"


def made_days(history: Path, table: str = "end") -> set[tuple[str, str]]:
    """Find the days and DROs that a table has."""
    return {
        (path.parent.parent.name.removeprefix("day="), unquote(path.parent.name.removeprefix("dro=")))
        for path in (history / "silver" / table).glob(f"day=*/dro=*/{PART}")
    }


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
    made |= {name: pa.array(value) for name, value in _sums(kept, samples.counted.values).items()}
    return pa.table(made)


def ends_of(starts: Ints, rows: int) -> Ints:
    """Find where each group of rows ends: where the next one begins."""
    return np.append(starts[1:], rows)[: len(starts)]


def _each(of: np.ufunc, values: Ints, starts: Ints) -> Ints:
    found: Ints = of.reduceat(values, starts) if len(starts) else values
    return found


def _sums(kept: SummedColumns, values: Ints) -> dict[str, Ints]:
    """Add up raw counters: the highest value of a sum is the sum of the highest ones."""
    at = {name: nth for nth, name in enumerate(dict.fromkeys(n for names in kept.counters.values() for n in names))}
    return {name: values[:, [at[part] for part in parts]].sum(axis=1) for name, parts in kept.counters.items()}


class Growth:
    """Finds how much each scope has grown in each step, and where it stands at the end of the day.

    `grown`: rows of `steps` with counters as growth since the row before, or since 0, with `interval_us`, and
    `is_first`, `is_gap` (three sampling intervals without one), `is_clock_step` (it was set by more than a second).
    `end`: the seeds of the next day.
    """

    def __init__(self, scope: Scope, parts: Sequence[tuple[DaySamples, SummedColumns]], seeds: Seeds) -> None:
        self._scope, self._seeds = scope, seeds
        self._run = scope.key.index("run")
        names = [name for _, kept in parts for name in kept.counters]
        self._counters = list(dict.fromkeys([*names, *(name for seed in seeds.values() for name in seed.counters)]))
        rows = pa.concat_tables([steps(samples, scope, kept) for samples, kept in parts], promote_options="default")
        self._rows = rows.take(grouped(rows, (*scope.key, "minute"))[0])
        self._begun: Seeds = {}
        for samples, kept in parts:
            keys, sums = samples.begun.keys, _sums(kept, samples.begun.values)
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
        values = np.stack([counts(rows[n]) if n in rows.column_names else nothing for n in self._counters], axis=1)
        growth = np.zeros_like(values)
        minute, first, last, clock = (codes(rows[name]) for name in _TIMES)
        interval, marks = nothing, {name: np.zeros(size, bool) for name in ("is_first", "is_gap", "is_clock_step")}
        limits = self._limits(first, last)
        starts = begins(*(codes(rows[name]) for name in self._scope.key))
        for key, begin, end in zip(_keys(rows.take(starts), self._scope), starts, ends_of(starts, size), strict=True):
            here, run = slice(begin, end), key[self._run]
            run_first, limit = limits[run]
            seed = self._seed(key)
            if seed is None and self._begun[key].ts_last == run_first > run + limit:  # it had counted before
                seed = self._begun[key]
            base = np.array([seed.counters.get(name, 0) if seed else 0 for name in self._counters])
            highest = np.maximum.accumulate(np.vstack([base, values[here]]))
            growth[here] = np.maximum(values[here] - highest[:-1], 0)
            before = np.append(seed.ts_last if seed else run, np.maximum.accumulate(last[here])[:-1])
            if seed:
                before = np.maximum(before, seed.ts_last)
                marks["is_gap"][begin] = first[begin] - before[0] > limit
            interval[here] = np.maximum(last[here] - before, 0)
            most = np.maximum(interval[here] // SECOND_US, 60) * MOST_PER_S
            growth[here] = np.where(growth[here] > most[:, None], 0, growth[here])
            marks["is_first"][begin] = not seed
            marks["is_gap"][begin + 1 : end] = first[begin + 1 : end] - before[1:] > limit
            set_from = np.append(seed.clock_us if seed else _NO_CLOCK, clock[begin : end - 1])
            is_known = (set_from != _NO_CLOCK) & (clock[here] != _NO_CLOCK)
            marks["is_clock_step"][here] = is_known & (abs(clock[here] - set_from) > SECOND_US)
            self.end[key] = Seed(
                int(minute[end - 1]), int(min(first[begin], seed.ts_first if seed else first[begin])),
                int(max(last[here].max(), seed.ts_last if seed else 0)),
                int(clock[end - 1]), dict(zip(self._counters, highest[-1].tolist(), strict=True)),
            )  # fmt: skip
        others = {n: rows[n] for n in rows.column_names if n != "clock_us" and n not in set(self._counters)}
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

    def _limits(self, first: Ints, last: Ints) -> dict[int, tuple[int, float]]:
        """Find for each run when it was sampled first (us), and how many microseconds without a sample are a gap."""
        run, samples = codes(self._rows["run"]), codes(self._rows["samples"])
        found: dict[int, tuple[int, float]] = {}
        for one in np.unique(run):
            seeds = [seed.ts_first for key, seed in self._seeds.items() if key[self._run] == one]
            several = (run == one) & (samples > 1) & (last > first)
            spacing = np.sort((last - first)[several] / (samples - 1)[several])
            middle = spacing[(len(spacing) - 1) // 2] if len(spacing) else MINUTE_US
            found[int(one)] = min([int(first[run == one].min()), *seeds]), LIMIT * max(float(middle), SECOND_US)
        return found

    def end_rows(self) -> pa.Table:
        """Give the seeds of the next day as rows."""
        types = {name: KEY_TYPES[name] for name in self._scope.key}
        made = {
            name: pa.array([key[nth] for key in self.end], pa.int64() if of == "time" else ARROW[of]).cast(ARROW[of])
            for nth, (name, of) in enumerate(types.items())
        }
        made |= {name: pa.array([getattr(seed, name) for seed in self.end.values()], pa.int64()) for name in _TIMES}
        for name in self._counters:
            made[name] = pa.array([seed.counters.get(name, 0) for seed in self.end.values()], pa.int64())
        return pa.table(made)


def _keys(rows: pa.Table, scope: Scope) -> list[Key]:
    """Give the values of a scope; a run as microseconds."""
    columns = [rows[name].cast(pa.int64()) if name == "run" else rows[name] for name in scope.key]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def seeds_of(work: Work, day: str, table: str, scope: Scope) -> Seeds:
    """Read what a day has left, if it was made. Raises: HistoryError."""
    path = place(work.history, table, day, work.dro) / PART
    if not day or not path.exists():
        return {}
    try:
        with pq.ParquetFile(path) as file:
            rows = file.read()
    except BROKEN as e:
        what = f"{path}: it cannot be read ({str(e).splitlines()[0]})"
        raise HistoryError(f"{what}; remove {work.history}/silver and gold, and run it again") from e
    counters = [name for name in rows.column_names if name not in (*scope.key, *_TIMES)]
    times = rows.select(_TIMES).to_pylist()
    sums = rows.select(counters).to_pylist()
    return {
        key: Seed(**told, counters=counted) for key, told, counted in zip(_keys(rows, scope), times, sums, strict=True)
    }


def spans(rows: pa.Table, by: Sequence[str], values: Sequence[str]) -> pa.Table:
    """Join rows, one after another by time, that have the same values: `ts_first`, `ts_last` (us), `samples`."""
    rows = rows.filter(rows[values[0]].is_valid())
    rows = rows.take(grouped(rows, (*by, "ts"))[0])
    starts = begins(*(codes(rows[name]) for name in dict.fromkeys((*by, *values))))
    ends = ends_of(starts, len(rows))
    ts = codes(rows["ts"])
    found = rows.take(starts).select(list(dict.fromkeys((*by, *values))))
    told = {"ts_first": ts[starts], "ts_last": ts[ends - 1], "samples": ends - starts}
    for name, column in told.items():
        found = found.append_column(name, pa.array(column))
    return found
