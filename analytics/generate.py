"""Run `tnwgd-history-generate`: make a history by chance, as networks make them, for trials and for measurements.

Traffic follows the hours and days of the week; there are bursts with drops and blocked sends, outages and flaps of
links, restarts of DROs, gaps and clocks that are set. The same seed makes the same history. DROs stand in a ring; each
has two peer portals, and endpoint portals. A task of Spark writes the files of one DRO and day.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from importlib.resources import as_file, files
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from analytics.session import run, whole
from analytics.store.files import META
from analytics.store.objects import write_parquet
from analytics.sums import BUCKET, COUNTER

FIRST_DAY: Final = date(2024, 1, 1)
DAY_S: Final = 86_400
US: Final = 1_000_000
DAY_MESSAGES: Final = 40_000_000
"""Messages that a portal receives on an ordinary day."""
BYTES: Final = 400
"""Size of a message, in the middle."""
COMPRESSIONS: Final = ("zstd", "lz4")
"""Names those of a file that was joined, and of one as a daemon leaves it."""
RESTART, OUTAGE, FLAPPING, GAP, CLOCK, BURST = 0.03, 0.05, 0.02, 0.05, 0.02, 0.3
"""Chance on a day of a DRO."""
RTT_BOUNDS: Final = (100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
                     2_500_000)  # fmt: skip
LATENCY_BOUNDS: Final = tuple(5 << at for at in range(16))
SHARES: Final[Mapping[str, Mapping[str, float]]] = {
    "portal": {
        "topic_rcvd": 1, "forwarded": 1, "sent": 0.98, "topic_req_rcvd": 0.02, "req_sent": 0.02, "control_rcvd": 0.03,
        "unicast_data_rcvd": 0.01, "unicast_control_rcvd": 1e-3, "unicast_forwarded": 0.01, "unicast_sent": 0.01,
        "gateway_control_rcvd": 4e-3, "gateway_control_sent": 4e-3, "immediate_topic_rcvd": 5e-3,
        "immediate_topic_forwarded": 5e-3, "immediate_topic_sent": 5e-3, "unknown_source": 1e-6, "dropped_error": 1e-8,
        "dropped_restart": 1e-6, "dropped_deleted": 1e-6, "unicast_data_no_stream": 1e-6, "batches_in": 0.2,
        "runs_in": 0.1, "trains_out": 0.3, "interest_topics_added": 1e-5, "interest_topics_removed": 1e-5,
    },
    "peer": {
        "udp_sent": 1, "udp_rcvd": 1, "udp_lost": 2e-5, "udp_unrecovered_window": 2e-7, "udp_retransmitted": 2e-5,
        "udp_naks_sent": 2e-5, "udp_naks_rcvd": 2e-5, "udp_nak_packets_sent": 1e-5, "udp_nak_packets_rcvd": 1e-5,
        "udp_duplicates": 1e-6, "link_batches": 0.1, "keepalives_sent": 1e-4, "dropped_not_operational": 1e-7,
    },
    "endpoint": {
        "dropped_dup": 1e-3, "naks_sent": 1e-5, "retransmitted": 1e-5, "unrecoverable": 1e-8, "socket_drops": 1e-7,
        "dropped_old": 1e-6,
    },
}  # fmt: skip
"""Counters of a loaded DRO, as shares of the messages that a portal receives."""
VARYING: Final = {
    "batch_max_messages": 60, "batch_mean_messages": 9, "link_batch_max_bytes": 8000, "link_batch_mean_bytes": 2000,
    "rtt_min_us": 300, "rtt_mean_us": 900, "rtt_max_us": 9000, "queued_bytes": 60_000, "queued": 150,
    "interest_recalculation_us": 9000, "proxy_recalculation_us": 900, "keepalive_answered_s": 5,
}  # fmt: skip
"""Gauges of a loaded DRO, and what they stay under."""
Floats = NDArray[np.float64]
Columns = dict[str, Any]
"""By the name of a column an array, or the value of all rows."""


@dataclass(frozen=True, slots=True)
class GeneratorPlan:
    """Says what is made: `dros` with `portals` each, for `days`, a sample every `interval_s`, in so many `files` a
    day."""

    folder: str
    seed: int
    dros: int
    portals: int
    days: int
    interval_s: int
    files: int

    @property
    def steps(self) -> int:
        return DAY_S // self.interval_s


class _Day:
    """The chances of one DRO on one day."""

    def __init__(self, plan: GeneratorPlan, dro: int, day: int) -> None:
        chance = self.chance = random.Random(f"{plan.seed} {dro} {day}")
        self._plan = plan
        weekday = (FIRST_DAY + timedelta(days=day)).weekday()
        self.growth = (0.35 if weekday > 4 else 1.0) * (1 + day / 1000)
        self.restart = self._window(RESTART, 1)
        self.outage = self._window(OUTAGE, plan.steps // 50)
        self.flapping = self._window(FLAPPING, plan.steps // 100)
        self.gap = self._window(GAP, plan.steps // 100)
        self.clock = self._window(CLOCK, plan.steps)[10:-10]  # the day stays the same
        self.burst = self._window(BURST, plan.steps // 100)
        self.clock_us = chance.choice((-30, -2, 3, 45)) * US

    def _window(self, likely: float, most: int) -> range:
        begin = self.chance.randrange(self._plan.steps)
        is_there = self.chance.random() < likely
        end = begin + 1 + self.chance.randrange(max(1, most))
        return range(begin, min(end, self._plan.steps)) if is_there else range(0)

    def shares(self) -> list[float]:
        """Return how much of the day's traffic has come by the end of each step."""
        steps = self._plan.steps
        noise = random.Random(self.chance.random())
        weights = [
            (1.05 + math.sin((step / steps - 0.3) * 2 * math.pi)) * noise.uniform(0.8, 1.2)
            * (6 if step in self.burst else 1)
            for step in range(steps)
        ]  # fmt: skip
        total = sum(weights)
        return [weight / total for weight in accumulate(weights)]


def _write(plan: GeneratorPlan, dro: int, day: int) -> int:
    """Write the files of one DRO and day; the rows of portals."""
    today = _Day(plan, dro, day)
    shares = np.array(today.shares())
    steps = np.array([step for step in range(plan.steps) if step not in today.gap], np.int64)
    before, run_us = _counted_before(plan, dro, day)  # in days of traffic
    restart = today.restart.start if today.restart and day else plan.steps
    midnight_us = _midnight_us(day)
    at_us = midnight_us + steps * plan.interval_s * US
    is_new = steps >= restart
    counted = (shares[steps] - np.where(is_new, shares[min(restart, plan.steps - 1)], 0)) * today.growth
    counted += np.where(is_new, 0.0, before)
    run = np.where(is_new, midnight_us + restart * plan.interval_s * US - US, run_us)
    base: Columns = {
        "ts": at_us + np.where(np.isin(steps, today.clock), today.clock_us, 0), "run": run,
        "seq": at_us - _midnight_us(0), "source": "generated",
    }  # fmt: skip
    is_down = np.isin(steps, today.outage) | (np.isin(steps, today.flapping) & (steps % 4 < 2))
    portals = [base | _portal(plan, dro, nth, counted, is_down, today) for nth in range(plan.portals)]
    dros: Columns = {
        **base, "dro_id": str(dro + 1), "up": True, "cpu_us": (counted * 2e9).astype(np.int64),
        "resident_bytes": 400 << 20, "signature": np.where(is_down, 2, 1), "graph_version": 1 + is_down,
        "network_dros": plan.dros, "config_loaded": run,
    }  # fmt: skip
    where = f"day={FIRST_DAY + timedelta(days=day)}/dro=DRO-{dro + 1}"
    for table, parts in (("portal", portals), ("dro", [dros])):
        rows = _table(table, parts, len(steps))
        folder = Path(plan.folder) / f"table={table}" / where
        folder.mkdir(parents=True, exist_ok=True)
        for nth in range(plan.files):
            begin, end = (np.searchsorted(steps, plan.steps * edge // plan.files) for edge in (nth, nth + 1))
            if begin < end:  # else a gap
                here = [rows.slice(portal * len(steps) + begin, end - begin) for portal in range(len(parts))]
                to = str(folder / f"part-generated-{nth}.parquet")
                write_parquet(to, rows.schema, [pa.concat_tables(here)], COMPRESSIONS[plan.files > 1])
    return len(steps) * plan.portals


def _counted_before(plan: GeneratorPlan, dro: int, day: int) -> tuple[float, int]:
    """Find what a portal has counted at midnight since its run began, in ordinary days, and when that was (us)."""
    total = 0.0
    for earlier in range(day - 1, -1, -1):
        told = _Day(plan, dro, earlier)
        if told.restart and earlier:
            at = told.restart.start
            total += told.growth * (1 - told.shares()[at])
            return total, _midnight_us(earlier) + at * plan.interval_s * US - US
        total += told.growth
    return total, _midnight_us(0) - US


def _portal(
    plan: GeneratorPlan, dro: int, nth: int, counted: Floats, is_down: NDArray[np.bool_], today: _Day
) -> Columns:
    """Make the columns of one portal, as one of a loaded DRO has them: the first two are peer portals of a ring."""
    chance = np.random.default_rng(today.chance.getrandbits(64))
    messages = counted * DAY_MESSAGES * (0.2 + random.Random(f"{plan.seed} {dro} {nth}").random())
    bursts = 500 * np.floor(counted + nth / 10).astype(np.int64)  # one for each day of traffic
    row: Columns = {
        "portal": f"P{nth + 1}", "page": nth + 1, "dro_id": str(dro + 1), "cost": 1, "up": True, "state": "up",
        "dropped_blocked": bursts, "send_blocked_us": bursts * 50, "local_pcre": 2, "local_regex": 0,
        "local_topics": 200 + int(50 * today.growth), "queue_limit": 1_000_000, "receiver_topics": 100,
        "proxy_receivers": 50, "proxy_sources": 50, "queued_bytes_max": bursts % 1_000_000,
    }  # fmt: skip
    shares = SHARES["portal"]
    if nth < 2:
        other = (dro + (1 if nth == 0 else -1)) % plan.dros
        row |= {"portal_type": "peer", "adjacent_dro_id": str(other + 1), "up": ~is_down, "link_up": ~is_down}
        row |= _histogram("rtt", RTT_BOUNDS, messages / 10_000, 900)
        row["rtt_samples"] = row["rtt_14"]
        shares = {**shares, **SHARES["peer"]}
    else:
        row |= {"portal_type": "endpoint", "domain_id": dro * 100 + nth}
        shares = {**shares, **SHARES["endpoint"]}
    row |= _histogram("forward_latency", LATENCY_BOUNDS, messages / 64, 60)
    for name, share in shares.items():
        row[name] = (messages * share).astype(np.int64)
        row[f"{name}_bytes"] = row[name] * BYTES
    for name, most in VARYING.items():
        row[name] = chance.integers(0, most, len(counted))
    return row


def _histogram(name: str, bounds: Sequence[int], samples: Floats, mean: int) -> Columns:
    """Make the buckets of a histogram whose values fall off by an exponential, and their sum."""
    shares = [*(1 - math.exp(-bound / mean) for bound in bounds), 1.0]
    buckets = {f"{name}_{at}" if at else name: (samples * share).astype(np.int64) for at, share in enumerate(shares)}
    return {**buckets, f"{name}_sum": (samples * mean).astype(np.int64)}


def _table(name: str, parts: Sequence[Columns], rows: int) -> pa.Table:
    """Make a table of parts with so many rows each; it has the columns of which one of them says something."""
    with as_file(files("analytics").joinpath(f"data/{name}.parquet")) as path:
        schema = pq.read_schema(path)
    fields = [field for field in schema if any(field.name in part for part in parts)]
    about = json.loads(schema.metadata[META])
    about["columns"] = {field.name: about["columns"][field.name] for field in fields}
    schema = pa.schema(fields, {META: json.dumps(about, separators=(",", ":"))})
    return pa.concat_tables([
        pa.Table.from_arrays([_array(part, field, about["columns"], rows) for field in fields], schema=schema)
        for part in parts
    ])  # fmt: skip


def _array(part: Columns, field: pa.Field, columns: Mapping[str, Mapping[str, Any]], rows: int) -> pa.Array:
    value = part.get(field.name, 0 if columns[field.name]["kind"] in (COUNTER, BUCKET) else None)
    if isinstance(value, np.ndarray):
        return pa.array(value).cast(field.type)
    return pa.repeat(pa.scalar(value, field.type), rows)


def _midnight_us(day: int) -> int:
    return ((FIRST_DAY - date(1970, 1, 1)).days + day) * DAY_S * US


def main(given: Sequence[str] | None = None) -> int:
    """Do what the command line says; the exit status."""
    parser = arguments()
    options = parser.parse_args(given)
    if options.interval > DAY_S:
        parser.error(f"--interval {options.interval}: a day has {DAY_S} seconds")
    a_day = options.dros * options.portals * (DAY_S // options.interval)
    plan = GeneratorPlan(str(options.history.resolve()), options.seed, options.dros, options.portals,
                max(1, -(-options.rows // a_day)), options.interval, options.files)  # fmt: skip
    if options.history.exists() and (not options.history.is_dir() or any(options.history.iterdir())):
        print(f"tnwgd-history-generate: {options.history} is no empty directory: name another one", file=sys.stderr)
        return 1

    def work(spark: SparkSession) -> int:
        options.history.mkdir(parents=True, exist_ok=True)
        where = [(dro, day) for day in range(plan.days) for dro in range(plan.dros)]
        tasks = spark.sparkContext.parallelize(where, min(len(where), 10_000))
        rows = tasks.map(lambda one: _write(plan, *one)).sum()
        print(f"{rows} rows of portals: {plan.dros} DROs, {plan.days} days in {options.history}")
        return 0

    return run("tnwgd-history-generate", options.master, work)


def arguments() -> argparse.ArgumentParser:
    """Make the parser of the command line."""
    parser = argparse.ArgumentParser(prog="tnwgd-history-generate", description="Make a history of DROs by chance.")
    parser.add_argument("--history", metavar="DIR", type=Path, required=True, help="an empty directory, or a new one")
    parser.add_argument("--rows", metavar="N", type=whole, default=1_000_000, help="rows of portals (default 1000000)")
    parser.add_argument("--seed", metavar="S", type=int, default=1, help="the same makes the same history")
    parser.add_argument("--dros", metavar="N", type=whole, default=4, help="DROs (default 4)")
    parser.add_argument("--portals", metavar="N", type=whole, default=8, help="portals of each (default 8)")
    parser.add_argument("--interval", metavar="SECONDS", type=whole, default=10, help="between samples (default 10)")
    parser.add_argument("--files", metavar="N", type=whole, default=1,
                        help="files a day of each DRO (default 1)")  # fmt: skip
    parser.add_argument("--master", default="", help="of Spark (default local[*], or what spark-submit says)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
