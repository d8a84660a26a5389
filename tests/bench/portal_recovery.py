"""Kills portals of a loaded three-portal DRO and reports how long they took to forward again.

Three flows of 100 topics go round the DRO: TRD 1 to 2, 2 to 3, 3 to 1. A kill of portal P<n> therefore hits one flow
at its ingress and one at its egress, and must not be noticed by the third. Recovery time: from the kill to the first
message at the receiver that was sent after the kill, which only the new incarnation can have forwarded; also given
for the last of the 100 topics. Every DRO serves `--per-dro` kills in turn.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.rigs.flow import BURSTS, DUPLICATES, WRONG
from tests.rigs.ring import TRDS, WORKERS, Ring
from tests.rigs.site import Site, running


@dataclass(frozen=True)
class Kill:
    """What one kill did; times in ms."""

    worker: str
    ingress_first: float
    ingress_all: float
    egress_first: float
    egress_all: float
    cpu: float  # of the new process until then
    waited: float  # that it was ready to run until then, but the machine did something else
    others_bursts: int
    others_duplicates: int


def kill(ring: Ring, worker: str) -> Kill:
    """Kill it and wait until everything flows again."""
    site = ring.site
    into, out, other = ring.entering(worker), ring.leaving(worker), ring.past(worker)
    bursts, duplicates = other[BURSTS], other[DUPLICATES]
    site.kill(worker)
    into.mark()
    out.mark()
    ring.wait(lambda: min(into.after_mark()) >= 0 and min(out.after_mark()) >= 0, f"{worker} forwards again", 30)
    entering, leaving = into.after_mark(), out.after_mark()
    return Kill(
        worker,
        min(entering) / 1e6,
        max(entering) / 1e6,
        min(leaving) / 1e6,
        max(leaving) / 1e6,
        *_schedule_ms(site.worker(worker)),
        other[BURSTS] - bursts,
        other[DUPLICATES] - duplicates,
    )


def _schedule_ms(pid: int) -> tuple[float, float]:
    """CPU time and waiting time of the main thread."""
    ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(ran) / 1e6, int(waited) / 1e6


@contextmanager
def loaded_ring(topics: int, rate: int) -> Iterator[Ring]:
    with tempfile.TemporaryDirectory(prefix="dro-kills-") as name, running(Site(Path(name), TRDS)) as site:
        yield Ring(site, topics, rate)


def quantile(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]


def show(what: str, values: list[float]) -> None:
    print(
        f"  {what:<34} min {min(values):7.1f}  median {quantile(values, 0.5):7.1f}  p90 {quantile(values, 0.9):7.1f}  "
        f"max {max(values):7.1f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="kills", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--per-dro", type=int, default=10)
    parser.add_argument("--topics", type=int, default=100, help="of each of the three flows (default 100)")
    parser.add_argument("--rate", type=int, default=1000, help="messages per second of each flow (default 1000)")
    parser.add_argument("--pause", type=float, default=2, help="mean time between two kills, s (default 2)")
    parser.add_argument("--json", type=Path, default=Path("build/kills.json"), help="where the figures go")
    arguments = parser.parse_args()
    kills: list[Kill] = []
    problems: list[str] = []
    while len(kills) < arguments.kills:
        with loaded_ring(arguments.topics, arguments.rate) as loaded:
            for nth in range(min(arguments.per_dro, arguments.kills - len(kills))):
                one = kill(loaded, WORKERS[nth % len(WORKERS)])
                kills.append(one)
                print(
                    f"{len(kills):3} {one.worker}"
                    f"  as ingress {one.ingress_first:6.1f} (all {one.ingress_all:6.1f})"
                    f"  as egress {one.egress_first:6.1f} (all {one.egress_all:6.1f}) ms"
                    f"  CPU {one.cpu:5.1f} waited {one.waited:5.1f}"
                    f"  others: gaps {one.others_bursts} duplicates {one.others_duplicates}",
                    flush=True,
                )
                time.sleep(arguments.pause * (0.5 + random.random()))  # kills at any phase of the timers
            loaded.settle()
            with loaded.site.books() as books:
                problems += books.problems()
            problems += [flow.story() for flow in loaded.flows.values() if flow[DUPLICATES] or flow[WRONG]]
    print()
    show("killed ingress, first message", [one.ingress_first for one in kills])
    show("killed ingress, all topics", [one.ingress_all for one in kills])
    show("killed egress, first message", [one.egress_first for one in kills])
    show("killed egress, all topics", [one.egress_all for one in kills])
    print(
        f"  the third flow: {sum(k.others_bursts for k in kills)} gaps, {sum(k.others_duplicates for k in kills)} dup"
    )
    print("  books balance" if not problems else "\n".join(problems))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"kills": [asdict(one) for one in kills], "problems": problems}, indent=1))


if __name__ == "__main__":
    main()
