"""Checks a history by its own samples: sums of gold, what has samples, how new they are, clocks that were set.

What a portal has counted on a day is, for each of its counter pages, the highest value of the day less the highest one
before. It is found here from the files alone, by other means than those of gold.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from analytics.bronze import DAY_US, MINUTE_US, SECOND_US
from analytics.questions import Gold
from analytics.store.files import BROKEN, Part, opened, parts_of, without_replaced
from analytics.store.objects import ObjectStore
from analytics.sums import kept_of

CHECKED: Final = ("received_messages", "received_bytes", "forwarded_messages", "sent_messages", "sent_bytes",
                  "dropped_messages", "dropped_bytes")  # fmt: skip
_SCOPE: Final = ("portal", "run", "page")
FRESH_S: Final = 3600.0
AHEAD_S: Final = 60.0
"""How far the clock of a DRO may be ahead."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Tells what was checked of a DRO and a day (or of all days), whether it is right (unknown: None), and what was
    found."""

    check: str
    dro: str
    day: str
    is_right: bool | None
    what: str

    def row(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Counted:
    """Holds what a counter page had when it was sampled first on a day (`ts`, microseconds), and at most."""

    ts: int
    first: Mapping[str, int]
    most: Mapping[str, int]


Scopes = Mapping[tuple[str, int, int], _Counted]


def counted(store: ObjectStore, parts: Sequence[Part]) -> Scopes | None:
    """Find what the files of a day of a DRO have, by counter page; None where samples do not say which one."""
    found = []
    for file in without_replaced(opened(store, parts, "portal", lambda *_: None)):
        sums = {name: kept_of("portal", file.columns).counters[name] for name in CHECKED}
        there = set(file.file.schema_arrow.names)
        wanted = sorted({"ts", *_SCOPE, *(raw for names in sums.values() for raw in names)} & there)
        try:
            rows = file.file.read(wanted, use_threads=False)
        except BROKEN:  # the job has said so
            continue
        if not {"ts", *_SCOPE} <= there or any(rows[name].null_count for name in _SCOPE):
            return None
        columns = {
            name: rows[name].cast(pa.int64()) if name in ("run", "ts") else rows[name] for name in ("ts", *_SCOPE)
        }
        raw = {name: pc.fill_null(rows[name], 0) for name in wanted if name not in columns}
        found.append(pa.table(columns | raw))
    if not found:
        return {}
    rows = pa.concat_tables(found, promote_options="default").sort_by("ts")
    day = int(pc.strptime(parts[0].day, format="%Y-%m-%d", unit="us").cast(pa.int64()).as_py())
    rows = rows.filter((pc.field("ts") >= day) & (pc.field("ts") < day + DAY_US))
    raw_names = [name for name in rows.column_names if name not in ("ts", *_SCOPE)]
    wanted_sums = [("ts", "min"), *((name, how) for name in raw_names for how in ("first", "max"))]
    told = rows.group_by(list(_SCOPE), use_threads=False).aggregate(wanted_sums).to_pylist()
    sums = {name: [raw for raw in kept_of("portal", {}).counters[name] if raw in raw_names] for name in CHECKED}

    def added(row: Mapping[str, Any], how: str) -> dict[str, int]:
        return {name: sum(row[f"{raw}_{how}"] or 0 for raw in names) for name, names in sums.items()}

    return {
        (row["portal"], row["run"], row["page"]): _Counted(row["ts_min"], added(row, "first"), added(row, "max"))
        for row in told
    }


def growth(days: Iterable[tuple[str, Scopes | None]]) -> Iterator[tuple[str, dict[str, dict[str, tuple[int, int]]]]]:
    """Find for each day of a DRO what each portal counted at least and at most; not of days whose start is unknown. The
    two differ where a page was sampled for the first time long after its DRO was started."""
    known: dict[tuple[str, int, int], dict[str, int]] = {}
    is_first = True
    for day, scopes in days:
        if scopes is None:
            known, is_first = {}, True
            continue
        grown: dict[str, dict[str, tuple[int, int]]] = defaultdict(lambda: dict.fromkeys(CHECKED, (0, 0)))
        is_begun = True
        for (portal, run, page), of in scopes.items():
            before = known.get((portal, run, page))
            is_new = of.ts - run <= MINUTE_US
            is_begun &= before is not None or is_new or not is_first
            for name in CHECKED:
                low = before[name] if before else 0 if is_new else of.first[name]
                high = before[name] if before else 0
                least, most = grown[portal][name]
                grown[portal][name] = least + max(of.most[name] - low, 0), most + max(of.most[name] - high, 0)
            known[portal, run, page] = {name: max(of.most[name], (before or of.most)[name]) for name in CHECKED}
        if is_begun:
            yield day, grown
        is_first = False


def sums(
    spark: SparkSession, history: ObjectStore, gold: Gold, last: str, dros: Collection[str] = ()
) -> Iterator[CheckResult]:
    """Compare the sums of days with the samples, as far as those are there. `last`: the day (YYYY-MM-DD) up to which
    samples have to be in gold, from the first one that is; `dros`: which, all of them if none is named."""
    told = gold("day").where("portal <> ''").select("day", "dro", "portal", *CHECKED).collect()
    asked = {(row["day"], row["dro"]) for row in told}
    by_day: dict[tuple[str, str], list[Part]] = defaultdict(list)
    for part in parts_of(history, "portal"):
        by_day[part.dro, part.day].append(part)
    first = min((day for day, _ in asked), default=last)
    for dro, day in sorted(by_day):
        is_asked = first <= day <= last and (dro in dros or not dros)
        if is_asked and (day, dro) not in asked and (what := _lacking(history, by_day[dro, day])):
            yield CheckResult("sums", dro, day, False, what)
    works = [(dro, day, parts) for (dro, day), parts in sorted(by_day.items()) if (day, dro) in asked]
    do = F.udf(lambda nth: pickle.dumps(counted(history, works[nth][2])), T.BinaryType(), useArrow=False)
    made = spark.range(0, len(works), 1, max(len(works), 1)).select("id", do("id").alias("made")).collect()
    found = {row["id"]: pickle.loads(row["made"]) for row in made}
    in_gold: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    for row in told:
        in_gold[row["dro"], row["day"]][row["portal"]] = row
    for dro, of_dro in groupby(enumerate(works), key=lambda one: one[1][0]):
        checked = {}
        numbered = list(of_dro)
        for day, grown in growth((work[1], found[nth]) for nth, work in numbered):
            wrong = []
            for portal, row in sorted(in_gold[dro, day].items()):
                for name in CHECKED:
                    least, most = grown.get(portal, {}).get(name, (0, 0))
                    if not least <= row[name] <= most:
                        samples = f"{least:,}" if least == most else f"{least:,} to {most:,}"
                        wrong.append(f"{portal} {name}: gold has {row[name]:,}, samples {samples}")
            checked[day] = CheckResult("sums", dro, day, not wrong, "; ".join(wrong) or "as the samples")
        for _, (_, day, _) in numbered:
            nothing = "not checked: the samples before it, or the pages of its portals, are not there"
            yield checked.get(day, CheckResult("sums", dro, day, None, nothing))


def _lacking(store: ObjectStore, parts: Sequence[Part]) -> str:
    """Say why gold lacks a day; nothing where its files have no samples."""
    bad: list[str] = []
    files = opened(store, parts, "portal", lambda what, _: bad.append(what))
    if bad or not any(file.file.metadata.num_rows for file in files):
        return "; ".join(bad)
    return "there are samples, and no sums: run tnwgd-aggregate"


def coverage(gold: Gold, lacks: Iterable[str]) -> Iterator[CheckResult]:
    """Tell gaps of each day, and days that are not there (`lacks`)."""
    yield from (CheckResult("coverage", "", "", False, line) for line in lacks if "has no samples" in line)
    rows = gold("day").groupBy("dro", "day").agg(F.max("gaps").alias("gaps"), F.max("clock_steps").alias("steps"))
    for row in rows.orderBy("dro", "day").collect():
        yield CheckResult("coverage", row["dro"], row["day"], not row["gaps"], f"{row['gaps']} gaps")
        yield CheckResult("clock", row["dro"], row["day"], not row["steps"], f"set {row['steps']} times")


def freshness(gold: Gold, now_us: int, fresh_s: float) -> Iterator[CheckResult]:
    """Tell how old the last sample of each DRO is."""
    for row in gold("portal_span").groupBy("dro").agg(F.max("ts_last").alias("last")).orderBy("dro").collect():
        age_s = (now_us - row["last"]) / SECOND_US
        when = f"{age_s:,.0f} s old" if age_s >= 0 else f"{-age_s:,.0f} s ahead of the clock here"
        yield CheckResult("freshness", row["dro"], "", -AHEAD_S <= age_s <= fresh_s, f"the last sample is {when}")
