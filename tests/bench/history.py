"""Measures the aggregation of a history: seconds, rows a second and memory, beside another tree, and the same rows.

`python -m tests.bench.history --rows 1000000 10000000 --files 24 144 --before TREE`: makes histories as loaded DROs
write them, in so many files a day, aggregates each from nothing with `local[2]`, and the first once more with one more
file, and then after the files of all days were joined. `--before` does the first in another checkout, up to `--most`
rows from files as that one writes them (of all columns), and compares gold row by row. Of two sizes the fixed cost and
the rate are calculated. Memory: all processes, at their most. Prints a table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from supervisor.history.compact import compact

ROOT: Final = Path(__file__).parents[2]
LATER: Final = date(2100, 1, 1)
SAME: Final = {"hour": ("dro", "portal", "hour"), "day": ("dro", "portal", "day"),
               "loss_minute": ("dro", "portal", "minute")}  # fmt: skip
LASTING: Final = ("topology_event", "blocked_episode")
_WIDEN: Final = """
import sys
from pathlib import Path
import pyarrow as pa, pyarrow.parquet as pq
from supervisor.history.store import write_tables
from supervisor.history.tables import schema_of, tables
for path in Path(sys.argv[1]).glob("table=*/*/*/*.parquet"):
    rows = pq.ParquetFile(path).read()
    table = path.parts[-4].removeprefix("table=")
    schema, of = schema_of(table), {column.name: column.kind for column in tables()[table].columns}
    columns = [rows[field.name] if field.name in rows.column_names else
               pa.repeat(pa.scalar(0 if of[field.name] in ("counter", "bucket") else None, field.type), len(rows))
               for field in schema]
    write_tables(path, schema, [pa.table(columns, schema=schema)])
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """Tells what a run took: seconds, and the most memory of all its processes, in bytes."""

    seconds: float
    memory: int


def aggregated(tree: Path, folder: Path) -> Cost:
    """Aggregate a history by the program of a checkout. Raises: CalledProcessError."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "analytics.aggregate", "--history", str(folder), "--master", "local[2]"]
    process = subprocess.Popen(command, cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, start_new_session=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # fmt: skip
    most, is_over = [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.1):
            most[0] = max(most[0], _memory_of(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    _, said = process.communicate()
    is_over.set()
    watcher.join()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, stderr=said)
    return Cost(time.monotonic() - begin, most[0])


def _memory_of(session: int) -> int:
    """Add up what is resident of the processes of a session, with a page that several share counted once for each."""
    total = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            told = path.read_text().rpartition(")")[2].split()
            if int(told[3]) == session:
                total += int(told[21]) * 4096
        except OSError:
            continue
    return total


def made(folder: Path, rows: int, files: int) -> int:
    """Make a history; how many rows it has."""
    command = [sys.executable, "-m", "analytics.generate", "--history", str(folder), "--rows", str(rows),
               "--files", str(files), "--master", "local[2]"]  # fmt: skip
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return int(said.split()[0])


def without_tables(folder: Path) -> Path:
    """Remove what was made of a history."""
    for name in ("silver", "gold"):
        shutil.rmtree(folder / name, ignore_errors=True)
    return folder


def differs(one: Path, other: Path) -> str:
    """Say where the sums of two histories differ; empty when nowhere."""
    for table, keys in SAME.items():
        mine, theirs = (_ordered(folder / "gold" / table, keys) for folder in (one, other))
        if len(mine) != len(theirs):
            return f"{table}: {len(mine)} rows, and {len(theirs)}"
        for name in theirs.column_names:
            values = theirs[name].combine_chunks()
            if name not in mine.column_names:
                return f"{table}: {name} is not there"
            if not mine[name].combine_chunks().cast(values.type).equals(values):
                return f"{table}: {name} differs"
    for table in LASTING:
        mine, theirs = (_rows_of(folder / "gold" / table) for folder in (one, other))
        names = theirs[0].keys() if theirs else ()
        rows = [sorted(str([row[name] for name in names]) for row in of) for of in (mine, theirs)]
        if rows[0] != rows[1]:
            return f"{table}: {len(rows[0])} rows, and {len(rows[1])}"
    return ""


def _rows_of(folder: Path) -> list[dict[str, object]]:
    """Read a table; one without rows has no files."""
    return pq.read_table(folder).to_pylist() if folder.is_dir() else []


def _ordered(folder: Path, keys: Sequence[str]) -> pa.Table:
    rows = pq.read_table(folder)
    day = rows["day"].cast(pa.string()) if "day" in rows.column_names else None
    rows = rows if day is None else rows.set_column(rows.column_names.index("day"), "day", day)
    return rows.sort_by([(key, "ascending") for key in keys])


def _measured(folder: Path, files: int, rows: int, before: Path | None, most: int, is_whole: bool) -> dict[str, float]:
    """Measure one history; seconds of a run from nothing, by who did it."""
    found: dict[str, float] = {}
    count = made(folder, rows, files)

    def show(who: str, cost: Cost, of: int) -> None:
        print(f"{count:>12,} {files:>6} {who:40} {cost.seconds:8.1f} s {of / cost.seconds:12,.0f} rows/s"
              f" {cost.memory / 2**20:8,.0f} MiB", flush=True)  # fmt: skip

    cost = aggregated(ROOT, folder)
    found["now"] = cost.seconds
    show("from nothing", cost, count)
    if before is not None:
        other = folder.with_name(f"{folder.name}-before")
        shutil.copytree(folder, other)
        without_tables(other)
        is_widened = count <= most
        if is_widened:
            subprocess.run([sys.executable, "-c", _WIDEN, str(other)], cwd=before, check=True,
                           env={**os.environ, "PYTHONPATH": str(before)})  # fmt: skip
        cost = aggregated(before, other)
        found["before"] = cost.seconds
        show("before, its own files" if is_widened else "before, files as now", cost, count)
        print(f"{'':19} rows of gold: {differs(folder, other) or 'the same'}", flush=True)
        shutil.rmtree(other)
    if not is_whole:
        return found
    [*_, newest] = sorted(folder.glob("table=portal/day=*/dro=DRO-1/*.parquet"))
    shutil.copy(newest, newest.with_name("part-new.parquet"))
    show("one more file", aggregated(ROOT, folder), pq.read_metadata(newest).num_rows)
    compact(folder, LATER)
    show("all files joined", aggregated(ROOT, folder), count)
    show("joined, from nothing", aggregated(ROOT, without_tables(folder)), count)
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Measure all sizes; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--files", type=int, nargs="+", default=[24, 144])
    parser.add_argument("--before", type=Path, metavar="TREE", default=None)
    parser.add_argument("--most", type=int, default=2_000_000, help="rows that are written again as TREE writes them")
    options = parser.parse_args(given)
    for files in options.files:
        found = []
        for rows in options.rows:
            with tempfile.TemporaryDirectory(prefix="dro-bench-") as made_in:
                folder, is_whole = Path(made_in) / "history", rows == options.rows[0]
                found.append((rows, _measured(folder, files, rows, options.before, options.most, is_whole)))
        for who in found[0][1] if len(found) > 1 else ():
            (few, low), (many, high) = ((rows, of[who]) for rows, of in (found[0], found[-1]))
            rate = (many - few) / (high - low)
            print(f"{'':12} {files:>6} {who}: {low - few / rate:.1f} s, and {rate:,.0f} rows/s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
