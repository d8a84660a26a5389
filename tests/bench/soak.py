"""Full load for minutes, and whether any process grows: `python -m tests.bench.soak --seconds 600`.

A direct link carries as many messages as it can without loss (see `tests.bench.generators`). Every five seconds the
memory of every process is read: what it owns (heap and the pages of its rings that it has touched), and its fair share
of everything. After the warm-up it is flat when a straight line through the samples rises less than 1 MiB per minute.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, linear_regression
from typing import Final

from tests.bench.cost_unit import memory_bytes
from tests.bench.generators import BOUND, PAUSE, RECEIVED, SENT, Board, Sender, SendPlan, receive, spawn
from tests.bench.throughput import children, wait_for
from tests.rigs.site import Site, drained, running

SAMPLE_S: Final = 5.0
WARM_UP_S: Final = 30.0
MINUTE_S: Final = 60.0
FLAT_MIB_PER_MINUTE: Final = 1.0
MIB: Final = 1 << 20
DRAINED_S: Final = 15.0
FREE: Final = "context transport_lbtrm_data_rate_limit 0\ncontext transport_lbtrm_retransmit_rate_limit 0\n"


@dataclass(frozen=True)
class Sample:
    """One process at one time. Sizes in MiB."""

    at_s: float
    own: float
    share: float
    fds: int


@dataclass
class Trend:
    """What the samples of one process say, after the warm-up. Sizes in MiB."""

    first_minute: float
    last_minute: float
    share_first_minute: float
    share_last_minute: float
    per_minute: float
    fds: tuple[int, int]

    @property
    def is_flat(self) -> bool:
        return self.per_minute < FLAT_MIB_PER_MINUTE

    @classmethod
    def of(cls, samples: Sequence[Sample], warm_up_s: float) -> Trend:
        """At least two samples must lie after the warm-up."""
        warm = [sample for sample in samples if sample.at_s >= warm_up_s]
        first = [sample for sample in warm if sample.at_s < warm[0].at_s + MINUTE_S]
        last = [sample for sample in warm if sample.at_s > warm[-1].at_s - MINUTE_S]
        slope = linear_regression([sample.at_s for sample in warm], [sample.own for sample in warm]).slope
        return cls(
            round(fmean(sample.own for sample in first), 2),
            round(fmean(sample.own for sample in last), 2),
            round(fmean(sample.share for sample in first), 2),
            round(fmean(sample.share for sample in last), 2),
            round(slope * MINUTE_S, 3),
            (warm[0].fds, warm[-1].fds),
        )


@dataclass
class Report:
    """The whole run."""

    transport: str
    payload_bytes: int
    seconds: float
    messages: int
    lost: int
    drops: dict[str, int]
    unaccounted: list[str]
    trends: dict[str, Trend]
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        found = [f"{who}: {t.per_minute} MiB per minute" for who, t in self.trends.items() if not t.is_flat]
        found += [
            f"{who}: descriptors {t.fds[0]} -> {t.fds[1]}" for who, t in self.trends.items() if t.fds[0] < t.fds[1]
        ]
        return found + ([f"{self.lost} messages lost"] if self.lost else []) + self.unaccounted


def sample(pid: int, at_s: float) -> Sample:
    status = Path(f"/proc/{pid}/status").read_text()
    own = sum(int(status.partition(name)[2].split()[0]) for name in ("RssAnon:", "RssShmem:")) / 1024
    return Sample(round(at_s, 1), own, memory_bytes(pid) / MIB, len(os.listdir(f"/proc/{pid}/fd")))


def soak(folder: Path, plan: SendPlan, seconds: float, warm_up_s: float) -> Report:
    """Load a DRO of its own for so long, from the first message on."""
    board = Board()
    cells = board.cells
    pids: dict[str, int] = {}
    site = Site(folder, 2, transports={1: plan.transport, 2: plan.transport}, um={1: FREE, 2: FREE})
    with running(site), children(pids, board), site.books() as books:
        pids["receiver"] = spawn(lambda: receive(str(site.config(2)), board, with_latency=False))
        pids["sender"] = spawn(lambda: Sender(str(site.config(1)), board, plan).run())
        wait_for(lambda: cells[BOUND] and cells[RECEIVED] > 100, "the flow")
        processes = {"tnwgd": site.pid} | site.workers() | pids
        samples: dict[str, list[Sample]] = {who: [] for who in processes}
        began, first = time.monotonic(), cells[RECEIVED]
        count, span = 0, 0.0
        while span < seconds:
            time.sleep(min(SAMPLE_S, seconds - span))
            before, span = count, time.monotonic() - began
            count = cells[RECEIVED] - first
            for who, pid in processes.items():
                samples[who].append(sample(pid, span))
            shown = "  ".join(f"{who} {found[-1].own:.1f}" for who, found in samples.items())
            print(f"{span:6.0f} s {count - before:>9} messages  MiB: {shown}", flush=True)
            if count == before:
                raise SystemExit(f"soak: nothing arrives any more\n{site.logs}")
        cells[PAUSE] = 1
        deadline = time.monotonic() + DRAINED_S
        while (cells[RECEIVED] < cells[SENT] or not drained(books)) and time.monotonic() < deadline:
            time.sleep(0.02)
        drops = {why: n for k in site.trds for why, n in books.dropped(k).items() if n}
        return Report(
            plan.transport,
            plan.payload_bytes,
            round(span, 1),
            count,
            max(0, cells[SENT] - cells[RECEIVED]),
            drops,
            books.problems(),
            {who: Trend.of(found, warm_up_s) for who, found in samples.items()},
            samples,
        )


def show(report: Report) -> None:
    rate = report.messages / report.seconds
    print(
        f"\n{report.transport}, {report.payload_bytes} bytes: {report.messages} messages in {report.seconds:.0f} s, "
        f"{rate:.0f}/s, lost {report.lost}, drops {report.drops or 'none'}"
    )
    print(f"{'MiB':16}{'own: first min':>16}{'last min':>10}{'per min':>9}{'share: first':>14}{'last':>8}{'fds':>10}")
    for who, t in report.trends.items():
        print(
            f"{who:16}{t.first_minute:>16.1f}{t.last_minute:>10.1f}{t.per_minute:>9.3f}{t.share_first_minute:>14.1f}"
            f"{t.share_last_minute:>8.1f}{t.fds[0]:>5} {t.fds[1]:>4}  {'flat' if t.is_flat else 'GROWS'}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=600, help="length of the load (default 600)")
    parser.add_argument("--warm-up", type=float, default=WARM_UP_S, help="seconds that the trend leaves out")
    parser.add_argument("--size", type=int, default=512, help="payload bytes (default 512)")
    parser.add_argument("--transport", default="lbtrm", choices=["lbtrm", "tcp"])
    parser.add_argument("--json", type=Path, default=Path("build/soak.json"), help="where the figures go")
    arguments = parser.parse_args()
    if arguments.seconds < arguments.warm_up + 2 * SAMPLE_S:
        parser.error(f"--seconds must be {2 * SAMPLE_S:.0f} more than --warm-up")
    # in flight: less than what socket buffers and the portal's queue hold, enough to keep batches full
    window = max(48, min(512, 700_000 // arguments.size))
    plan = SendPlan(arguments.size, window=window, transport=arguments.transport)
    with tempfile.TemporaryDirectory(prefix="dro-soak-") as name:
        report = soak(Path(name), plan, arguments.seconds, arguments.warm_up)
    show(report)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(asdict(report) | {"problems": report.problems}, indent=1))
    for problem in report.problems:
        print(f"soak: {problem}")
    print(f"soak: {'not flat or not sound' if report.problems else 'flat, nothing lost'}; figures in {arguments.json}")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
