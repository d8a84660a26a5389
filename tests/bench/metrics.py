"""What a scrape costs the monitor: collecting the samples of a DRO, and writing their text.

`python -m tests.bench.metrics`: counter pages with figures in them, as the monitor finds them, and for each process the
files of this one in /proc. Prints medians in milliseconds: collecting; the text of series that were there at the scrape
before; the first text, which is also made when portals come or go; the text by the encoder of prometheus_client. Then,
in nanoseconds, what the calls take with which portals count, from Python: a step that is compiled takes less.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any, Final

from prometheus_client.exposition import choose_encoder

from dro.bus.counters import CounterPage
from supervisor.monitor.known.metrics import Metrics
from supervisor.samples.exposition import Families, Texts
from tests.builders.monitored import add_pages, known

ACCEPT: Final = {"text": "", "OpenMetrics": "application/openmetrics-text; version=1.0.0"}
CALLS: Final = 50_000
HEAD: Final = ("portals", "format", "series", "KiB", "collect", "text", "scrape", "first text", "library's")


class Registry:
    """As prometheus_client's encoder wants it."""

    def __init__(self, families: Families) -> None:
        self.collect: Callable[[], Iterable[Any]] = families.collect


def median_ms(work: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return median(times) * 1000


def measure(folder: Path, portals: int, accept: str, rounds: int) -> tuple[float, ...]:
    """The columns of `HEAD` behind the format."""
    add_pages(folder, portals)
    metrics, now, texts = Metrics("1.0", ""), known(folder, portals), Texts()
    families, encoder = metrics.of_dro(now), choose_encoder(accept)[0]
    body, _ = texts.encoded(families, accept)
    return (
        len(families.values),
        len(body) / 1024,
        median_ms(lambda: metrics.of_dro(now), rounds),
        median_ms(lambda: texts.encoded(families, accept), rounds),
        median_ms(lambda: texts.encoded(metrics.of_dro(now), accept), rounds),
        median_ms(lambda: Texts().encoded(families, accept), max(3, rounds // 10)),
        median_ms(lambda: encoder(Registry(families)), max(3, rounds // 10)),
    )


def counting_ns(folder: Path) -> dict[str, float]:
    """CPU time of one call, the least of several tries, without that of the loop around it."""
    page = CounterPage.create(folder / "counters")
    calls: dict[str, Callable[[], object]] = {
        "nothing": lambda: None,
        "add": lambda: page.add(5, 3),
        "add_sized": lambda: page.add_sized(6, 1, 100),
        "publish": page.publish,
    }
    found = {name: min(timeit.repeat(call, time.thread_time, repeat=7, number=CALLS)) for name, call in calls.items()}
    page.close()
    return {name: round(seconds / CALLS * 1e9, 1) for name, seconds in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="metrics", description=__doc__.split("\n")[0])
    parser.add_argument("--portals", type=int, nargs="+", default=[2, 20, 64])
    parser.add_argument("--rounds", type=int, default=100, help="times each is measured (default 100)")
    parser.add_argument("--json", type=Path, default=Path("build/metrics.json"), help="where the figures go")
    arguments = parser.parse_args()
    found = []
    print(("{:>12}" * len(HEAD)).format(*HEAD))
    for portals in arguments.portals:
        for label, accept in ACCEPT.items():
            with tempfile.TemporaryDirectory(prefix="dro-metrics-", dir="/dev/shm") as name:
                row = measure(Path(name), portals, accept, arguments.rounds)
            print(f"{portals:12}{label:>12}{row[0]:12}" + "".join(f"{value:12.1f}" for value in row[1:]), flush=True)
            found.append(dict(zip(HEAD, (portals, label, *row), strict=True)))
    with tempfile.TemporaryDirectory(prefix="dro-metrics-", dir="/dev/shm") as name:
        counting = counting_ns(Path(name))
    print(f"ns of a call: {counting}")
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"scrapes": found, "counting_ns": counting}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
