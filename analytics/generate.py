"""Run `tnwgd-history-generate`: make a history by chance, as networks make them, for trials and for measurements.

Traffic follows the hours and days of the week; there are bursts with drops and blocked sends, outages and flaps of
links, restarts of DROs, gaps and clocks that are set. The same seed makes the same history. DROs stand in a ring; each
has two peer portals, and endpoint portals. A task of Spark writes the files of one DRO and day.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from importlib.resources import as_file, files
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from analytics.session import run

FIRST_DAY: Final = date(2024, 1, 1)
DAY_S: Final = 86_400
US: Final = 1_000_000
DAY_MESSAGES: Final = 40_000_000
"""Messages that a portal receives on an ordinary day."""
BYTES: Final = 400
"""Size of a message, in the middle."""
RESTART, OUTAGE, FLAPPING, GAP, CLOCK, BURST = 0.03, 0.05, 0.02, 0.05, 0.02, 0.3
"""Chance on a day of a DRO."""
RTT_BOUNDS: Final = (100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
                     2_500_000)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GeneratorPlan:
    """Says what is made: `dros` with `portals` each, for `days`, a sample every `interval_s`."""

    folder: str
    seed: int
    dros: int
    portals: int
    days: int
    interval_s: int

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
    shares = today.shares()
    steps = [step for step in range(plan.steps) if step not in today.gap]
    before, run_us = _counted_before(plan, dro, day)  # in days of traffic
    restart = today.restart.start if today.restart and day else None
    midnight_us = _midnight_us(day)
    ts, run, counted, seq = [], [], [], []
    for step in steps:
        at_us = midnight_us + step * plan.interval_s * US
        is_new = restart is not None and step >= restart
        ts.append(at_us + (today.clock_us if step in today.clock else 0))
        run.append(midnight_us + restart * plan.interval_s * US - US if is_new and restart is not None else run_us)
        seq.append(at_us - _midnight_us(0))
        counted.append((shares[step] - shares[restart]) * today.growth if is_new and restart is not None
                       else before + shares[step] * today.growth)  # fmt: skip
    base: dict[str, Sequence[Any]] = {"ts": ts, "run": run, "seq": seq, "source": ["generated"] * len(steps)}
    is_down = [step in today.outage or (step in today.flapping and step % 4 < 2) for step in steps]
    portals = [
        _table("portal", {**base, **_portal(plan, dro, nth, counted, is_down, today)}, len(steps))
        for nth in range(plan.portals)
    ]
    dros = _table("dro", {
        **base, "dro_id": str(dro + 1), "up": True, "cpu_us": [int(c * 2e9) for c in counted],
        "resident_bytes": 400 << 20, "signature": [2 if down else 1 for down in is_down],
        "graph_version": [1 + down for down in is_down], "network_dros": plan.dros, "config_loaded": run,
    }, len(steps))  # fmt: skip
    name = f"day={FIRST_DAY + timedelta(days=day)}/dro=DRO-{dro + 1}/part-generated.parquet"
    for table, parts in (("portal", portals), ("dro", [dros])):
        path = Path(plan.folder) / f"table={table}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        unnamed = path.with_name(f".{path.name}.{os.getpid()}")
        with pq.ParquetWriter(unnamed, parts[0].schema.remove_metadata(), compression="zstd", store_schema=False,
                              write_statistics=["ts"]) as to:  # fmt: skip
            to.add_key_value_metadata(parts[0].schema.metadata)
            for part in parts:
                to.write_table(part)
        unnamed.rename(path)
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
    plan: GeneratorPlan, dro: int, nth: int, counted: Sequence[float], is_down: Sequence[bool], today: _Day
) -> dict[str, Any]:
    """Make the columns of one portal: the first two are peer portals of a ring."""
    scale = DAY_MESSAGES * (0.2 + random.Random(f"{plan.seed} {dro} {nth}").random())
    messages = [int(value * scale) for value in counted]
    bursts = [500 * int(value + nth / 10) for value in counted]  # one for each day of traffic
    row: dict[str, Any] = {
        "portal": f"P{nth + 1}", "page": nth + 1, "dro_id": str(dro + 1), "cost": 1, "up": True,
        "topic_rcvd": messages, "topic_rcvd_bytes": [n * BYTES for n in messages],
        "forwarded": messages, "forwarded_bytes": [n * BYTES for n in messages],
        "sent": [int(n * 0.98) for n in messages], "sent_bytes": [int(n * 0.98) * BYTES for n in messages],
        "dropped_blocked": bursts, "send_blocked_us": [n * 50 for n in bursts],
        "local_topics": 200 + int(50 * today.growth), "local_pcre": 2, "local_regex": 0,
        "queued_bytes_max": [n % 1_000_000 for n in bursts], "queue_limit": 1_000_000, "receiver_topics": 100,
        "proxy_receivers": 50, "proxy_sources": 50,
    }  # fmt: skip
    if nth < 2:
        other = (dro + (1 if nth == 0 else -1)) % plan.dros
        samples = [n // 10_000 for n in messages]
        cumulative = [1 - math.exp(-bound / 900) for bound in RTT_BOUNDS]
        row |= {f"rtt_{at}" if at else "rtt": [int(n * share) for n in samples] for at, share in enumerate(cumulative)}
        row |= {
            "portal_type": "peer", "adjacent_dro_id": str(other + 1), "up": [not down for down in is_down],
            f"rtt_{len(RTT_BOUNDS)}": samples, "rtt_samples": samples, "rtt_sum": [n * 900 for n in samples],
            "udp_rcvd": messages, "udp_lost": [n // 50_000 for n in messages],
            "udp_unrecovered_window": [n // 5_000_000 for n in messages],
        }  # fmt: skip
    else:
        row |= {"portal_type": "endpoint", "domain_id": dro * 100 + nth, "dropped_dup": [n // 1000 for n in messages]}
    return row


def _table(name: str, columns: dict[str, Any], rows: int) -> pa.Table:
    """Make a table with all its columns; those of which nothing is said are 0 or unknown."""
    with as_file(files("analytics").joinpath(f"data/{name}.parquet")) as path:
        schema = pq.read_schema(path)
    arrays = []
    for field in schema:
        value = columns.get(field.name, 0 if pa.types.is_int64(field.type) else None)
        arrays.append(pa.array(value, field.type) if isinstance(value, list)
                      else pa.repeat(pa.scalar(value, field.type), rows))  # fmt: skip
    return pa.Table.from_arrays(arrays, schema=schema)


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
                max(1, -(-options.rows // a_day)), options.interval)  # fmt: skip
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

    def whole(text: str) -> int:
        if text.isdigit() and int(text) > 0:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")

    parser = argparse.ArgumentParser(prog="tnwgd-history-generate", description="Make a history of DROs by chance.")
    parser.add_argument("--history", metavar="DIR", type=Path, required=True, help="an empty directory, or a new one")
    parser.add_argument("--rows", metavar="N", type=whole, default=1_000_000, help="rows of portals (default 1000000)")
    parser.add_argument("--seed", metavar="S", type=int, default=1, help="the same makes the same history")
    parser.add_argument("--dros", metavar="N", type=whole, default=4, help="DROs (default 4)")
    parser.add_argument("--portals", metavar="N", type=whole, default=8, help="portals of each (default 8)")
    parser.add_argument("--interval", metavar="SECONDS", type=whole, default=10, help="between samples (default 10)")
    parser.add_argument("--master", default="", help="of Spark (default local[*], or what spark-submit says)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
