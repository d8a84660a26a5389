"""Run `tnwgd-aggregate`: make silver and gold tables from the samples of a history, those whose files changed alone.

DIR/silver/record/day=<day>/dro=<dro>      what was read of a day of a DRO, and where the next day begins
DIR/silver/<table>/day=<day>/dro=<dro>     samples of several files of a day that goes on
DIR/gold/<table>/day=<day>                 sums by hour and day, losses, what was up
DIR/gold/<table>                           what lasts longer than a day
DIR/gold/manifest                          which of these files hold, and what they were made of
"""

from __future__ import annotations

import argparse
import hashlib
import pickle
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain, groupby, pairwise
from typing import Final, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from analytics import episodes, lasting
from analytics.session import positive, run, whole
from analytics.silver import TABLES, Day, MadeDay, Work, make
from analytics.store.errors import HistoryError, of_store
from analytics.store.files import Part, parts_of
from analytics.store.manifest import LASTING, DroDay, Manifest, Manifests, TableFile, alone, columns_of, read_rows
from analytics.store.objects import ObjectStore, unique
from analytics.store.records import ADDED, added_tables
from analytics.views import tables_of

CHUNK: Final = 200
"""Days of DROs that one job takes at most, unless one day has more."""
WRITERS: Final = 4
EARLIER: Final = "gold/state.json"
LASTING_OF: Final = ("loss_minute", "portal_span", "dro_span")
"""Tables of days that those of what lasts longer are made of."""
Partition = tuple[str, str]  # day, DRO


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Tells what a run has made anew: days of DROs, days of gold; and files that were left out."""

    partitions: int
    days: int
    left_out: tuple[str, ...]


def prints_of(parts: Iterable[Part]) -> dict[Partition, str]:
    """Make for each day and DRO a text that changes when one of its files does."""
    found: dict[Partition, list[str]] = defaultdict(list)
    for part in parts:
        found[part.day, part.dro].append(f"{part.path}:{part.size}:{part.mtime_ns}")
    return {where: hashlib.sha256("\n".join(sorted(files)).encode()).hexdigest()[:32] for where, files in found.items()}


class _Days:
    """The days of all DROs: their files, what was made of them, and which have to be made."""

    def __init__(self, store: ObjectStore, manifests: Manifests, first: str = "") -> None:
        """`first`: the day before which no tables are made; where it begins, the last day of each DRO before tells."""
        self.manifests, self.first = manifests, first
        self.left_out: list[str] = []
        found = {table: parts_of(store, table, lambda what, _: self.left_out.append(what)) for table in TABLES}
        self._parts: dict[Partition, dict[str, list[Part]]] = defaultdict(lambda: {table: [] for table in TABLES})
        last_before: dict[str, str] = defaultdict(str)
        for part in chain(*found.values()):
            last_before[part.dro] = max(last_before[part.dro], part.day if part.day < first else "")
        for table, parts in found.items():
            for part in parts:
                if part.day >= first or part.day == last_before[part.dro]:
                    self._parts[part.day, part.dro][table].append(part)
        self._files = prints_of(part for of in self._parts.values() for part in chain(*of.values()))
        made = {(day, dro): of.files for day, manifest in manifests.days().items() for dro, of in manifest.dros.items()}
        by_dro: dict[str, list[str]] = defaultdict(list)
        for day, dro in sorted({*self._files, *made}):
            is_end_alone = (day, dro) not in self._files and not made[day, dro]
            if not (is_end_alone and by_dro[dro]):  # else the days that it ends are there again
                by_dro[dro].append(day)
        self._before = {(day, dro): (earlier, dro) for dro, of in by_dro.items() for earlier, day in pairwise(of)}
        self._last = {dro: of[-1] for dro, of in by_dro.items()}

    def known(self, where: Partition | None) -> DroDay:
        """Give what was made of a day of a DRO."""
        found = self.manifests.of.get(where[0]) if where else None
        return found.dros.get(where[1], DroDay("")) if found and where else DroDay("")

    def touched(self) -> set[Partition]:
        """Find the days whose files have changed, or the end of the day before them."""
        found = set()
        for where, files in self._files.items():
            known, before = self.known(where), self._before.get(where)
            if where[0] < self.first and known.record:
                continue
            # where the day before was removed, it has ended as it had
            if known.files != files or (before and known.before != self.known(before).end):
                found.add(where)
        return found

    def works(self, store: ObjectStore, chunk: Iterable[Partition], keeps_minutes: bool) -> list[Work]:
        """Share out days: those of a DRO are one work, since a day begins where the one before has ended."""
        of_dro: dict[str, list[Day]] = defaultdict(list)
        for where in sorted(chunk):
            day, dro = where
            known, earlier = self.known(where), self.known(self._before.get(where))
            record = known.record if known.files else ""  # else only how it ended is known
            of_dro[dro].append(Day(day, self._parts[where], record, earlier.record, day == self._last[dro]))
        return [Work(store, dro, days, keeps_minutes) for dro, days in of_dro.items()]

    def remade(self, made: MadeDay) -> DroDay:
        """Tell what a day of a DRO is made of from now on; nothing where files are to come, or tables not wanted."""
        if made.day < self.first:
            return DroDay("", made.begun, made.end, made.record)
        files = "" if made.is_to_come else self._files[made.day, made.dro]
        return DroDay(files, made.begun, made.end, made.record, tuple(made.merged))


def aggregate(
    spark: SparkSession,
    history: ObjectStore,
    on_progress: Callable[[int, int], object] = lambda n, of: None,
    *,
    keeps_minutes: bool = False,
    first: str = "",
) -> RunSummary:
    """Bring silver and gold up to date. `on_progress`: days of DROs done, and of how many. `first`:
    the day (YYYY-MM-DD) before which tables are removed. Raises: HistoryError."""
    try:
        if not history.is_there():
            raise HistoryError(f"{history.shown()}: no directory of a history")
        with suppress(FileNotFoundError):
            history.read(EARLIER)
            what = f"{history.shown(EARLIER)}: the tables are of an earlier state of this program"
            raise HistoryError(f"{what}; move silver and gold away, and all days that have samples are made anew")
        with alone(history) as check:
            manifests = Manifests(history, check)
            _remove(history, manifests, first)
            return _aggregate(spark, history, _Days(history, manifests, first), on_progress, keeps_minutes)
    except OSError as e:
        raise of_store(e) from e


def _aggregate(
    spark: SparkSession,
    store: ObjectStore,
    days: _Days,
    on_progress: Callable[[int, int], object],
    keeps_minutes: bool,
) -> RunSummary:
    left_out, done = days.left_out, set[Partition]()
    changed: list[Partition] = []
    while touched := days.touched() - done:
        chunk = _chunk(touched)
        by_day: dict[str, list[MadeDay]] = defaultdict(list)
        for made in _made(spark, days.works(store, chunk, keeps_minutes)):
            left_out += made.left_out
            if made.error:
                raise HistoryError(made.error)
            by_day[made.day].append(made)
            changed += [(made.day, made.dro)] if made.tables and made.day >= days.first else []
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(partial(_commit, store, days), by_day.values()))
        done |= chunk
        on_progress(len(done), len(done) + len(touched - chunk))
    _lasting(spark, store, days.manifests)
    return RunSummary(len(changed), len({day for day, _ in changed}), tuple(left_out))


def _remove(store: ObjectStore, manifests: Manifests, first: str) -> None:
    """Remove the tables of days before the first that is kept; what lasted longer is then made of the others. With the
    last one that goes stays where the counters of each DRO ended."""
    gone = [day for day in manifests.days() if day < first]
    if not any(manifests.of[day].tables for day in gone):
        return
    ends = {dro: replace(of, files="", merged=()) for day in gone for dro, of in manifests.of[day].dros.items()}
    manifests.put(gone[-1], Manifest(0, ends))
    for day in gone[:-1]:
        manifests.remove(day)
    kept = {of.record for of in ends.values()}
    for one in store.objects("gold"):
        if "/day=" in one.path and one.path.split("/day=")[1] < first:
            store.remove_folder(one.path.rpartition("/")[0])
    for one in store.objects("silver"):
        folder, of_dro = one.path.split("/dro=")[0], one.path.rpartition("/")[0]
        if folder.rpartition("/day=")[2] < first and one.path not in kept:
            store.remove_folder(of_dro if any(path.startswith(f"{folder}/") for path in kept) else folder)


def _chunk(touched: Iterable[Partition]) -> set[Partition]:
    """Choose the first days, as many as are worth a job."""
    found: set[Partition] = set()
    for _, of_day in groupby(sorted(touched), key=lambda where: where[0]):
        more = set(of_day)
        if found and len(found) + len(more) > CHUNK:
            break
        found |= more
    return found


def _made(spark: SparkSession, works: Sequence[Work]) -> Iterator[MadeDay]:
    """Do works, each in a task of Spark."""

    do = F.udf(lambda nth: pickle.dumps(make(works[nth])), T.BinaryType(), useArrow=False)
    for row in spark.range(0, len(works), 1, len(works)).select(do("id").alias("made")).collect():
        yield from pickle.loads(row["made"])


def _commit(store: ObjectStore, days: _Days, made: Sequence[MadeDay]) -> None:
    """Put what was made of a day in the place of what there was of the same DROs, and remove that."""
    day = made[0].day
    before = days.manifests.of.get(day, Manifest())
    now = Manifest(0, dict(before.dros), dict(before.tables))
    for one in made:
        now.dros[one.dro] = days.remade(one)
    changed = {one.dro: one.tables for one in made if one.tables and day >= days.first}
    rows: dict[str, list[pa.Table]] = defaultdict(list)
    for dro, path in changed.items():
        for table, found in added_tables(store, path).items():
            rows[table].append(found.append_column("dro", pa.repeat(dro, len(found))))
    for table, parts in rows.items():
        now.tables[table] = _table_of_day(store, f"gold/{table}/day={day}", before.tables.get(table), parts, changed)
    days.manifests.put(day, now)
    held = {of.path for of in now.tables.values()}
    held |= {path for of in now.dros.values() for path in (of.record, *of.merged)}
    folders = {f"gold/{table}/day={day}" for table in now.tables}
    folders |= {f"silver/{table}/day={day}" for table in (*TABLES, "record", "minute")}
    store.remove(one.path for folder in folders for one in store.objects(folder) if one.path not in held)
    store.remove_folder(f"silver/{ADDED}/day={day}")


def _table_of_day(
    store: ObjectStore, folder: str, before: TableFile | None, parts: Iterable[pa.Table], changed: Iterable[str]
) -> TableFile:
    """Write a table of a day: `parts`, and of the one before the rows of DROs that have not changed."""
    parts = list(parts)
    if before and before.path:
        parts.append(_without(read_rows(store, before.path), changed))
    rows = pa.concat_tables(parts, promote_options="default").combine_chunks()
    columns = {**(before.columns if before else {}), **columns_of(rows.schema)}
    return TableFile(_put(store, folder, rows), columns)


def _without(rows: pa.Table, dros: Iterable[str]) -> pa.Table:
    return rows.filter(pc.invert(pc.is_in(rows["dro"], pa.array(list(dros), pa.string()))))


def _put(store: ObjectStore, folder: str, rows: pa.Table) -> str:
    """Write rows to a file of a name that no other one has; where it is. No rows need none."""
    if not len(rows):
        return ""
    path = f"{folder}/{unique('part', folder.encode())}.parquet"
    store.put_rows(path, rows.schema, [rows])
    return path


def _lasting(spark: SparkSession, store: ObjectStore, manifests: Manifests) -> None:
    """Make the tables of what lasts longer than a day, where days have changed: events of the times that portals and
    DROs were up, which are few, and what they cost of the minutes of losses near them alone."""
    paths = {day: [of.tables[name].path for name in LASTING_OF] for day, of in manifests.days().items() if of.tables}
    before = manifests.of.get(LASTING, Manifest())
    if paths == before.days:
        return
    if not paths:  # all days were removed
        manifests.remove(LASTING)
        store.remove(of.path for of in before.tables.values() if of.path)
        return
    touched = {day for day in paths.keys() | before.days.keys() if paths.get(day) != before.days.get(day)}
    tables = tables_of(spark, store)
    events = episodes.topology_events(tables("portal_span"), tables("dro_span")).toArrow()

    def old(table: str) -> pa.Table | None:
        file = before.tables.get(table)
        return read_rows(store, file.path) if file and file.path else None

    def losses(day: str) -> pa.Table:
        file = manifests.of[day].tables["loss_minute"] if day in paths else None
        return read_rows(store, file.path) if file and file.path else pa.table({})

    made = {
        "topology_event": lasting.with_costs(events, old("topology_event"), touched, losses),
        "blocked_episode": lasting.blocked(old("blocked_episode"), touched, sorted(paths), losses),
    }
    found = {name: TableFile(_put(store, f"gold/{name}", rows), columns_of(rows.schema)) for name, rows in made.items()}
    manifests.put(LASTING, Manifest(0, {}, found, paths))
    held = {of.path for of in found.values()}
    store.remove(one.path for table in made for one in store.objects(f"gold/{table}") if one.path not in held)


def follow(
    once: Callable[[], RunSummary],
    every_s: float,
    on_done: Callable[[RunSummary], object],
    pause: Callable[[float], object] = time.sleep,
) -> NoReturn:
    """Aggregate again and again, in one session, until `pause` raises; `on_done` is told of what is new.
    Raises: HistoryError."""
    left_out: tuple[str, ...] = ()
    while True:
        done = once()
        if done.partitions or done.left_out != left_out:
            on_done(done)
        left_out = done.left_out
        pause(every_s)


def _show_progress(done: int, of: int) -> None:
    print(f"{done} of {of} days of DROs", file=sys.stderr)


def arguments() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(prog="tnwgd-aggregate", description="Aggregate the history of DROs with Spark.")
    parser.add_argument(
        "--history", metavar="DIR", type=ObjectStore, required=True, help="directory or URI of the history"
    )
    parser.add_argument("--follow", metavar="SECONDS", type=positive, default=0.0,
                        help="go on whenever there are new files, looking so often")  # fmt: skip
    parser.add_argument("--keep-days", metavar="N", type=whole, default=0,
                        help="remove tables of days before the last N (samples: tnwgd-history compact)")  # fmt: skip
    parser.add_argument("--minutes", action="store_true", help="keep what was counted in each minute as a table, too")
    parser.add_argument("--master", default="", help="of Spark (default local[*], or what spark-submit says)")
    return parser


def main(given: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit status."""
    options = arguments().parse_args(given)

    def once(spark: SparkSession, on_progress: Callable[[int, int], object] = lambda n, of: None) -> RunSummary:
        kept = datetime.now(UTC).date() - timedelta(days=options.keep_days - 1) if options.keep_days else ""
        return aggregate(spark, options.history, on_progress, keeps_minutes=options.minutes, first=str(kept))

    def work(spark: SparkSession) -> int:
        if options.follow:
            follow(partial(once, spark), options.follow, lambda done: _print(done, f"{datetime.now(UTC):%F %T} "))
        done = once(spark, _show_progress)
        _print(done)
        return 1 if done.left_out else 0

    return run("tnwgd-aggregate", options.master, work, "the next run goes on where it was")


def _print(done: RunSummary, at: str = "") -> None:
    for line in done.left_out:
        print(f"tnwgd-aggregate: {line}", file=sys.stderr)
    print(f"{at}{done.partitions} days of DROs aggregated, {done.days} days of gold", flush=True)


if __name__ == "__main__":
    sys.exit(main())
