"""What a frozen portal and a receiver that stops reading do to the other flows: latencies with and without them.

A DRO with four portals: messages from TRD 1 go to TRD 2 (portal frozen by SIGSTOP), TRD 3, and TRD 4 over TCP (one
receiver stopped); a second topic goes to TRD 4 on a session of its own. First the highest rate of this configuration
is found (closed loop), then half of it is sent, undisturbed and disturbed in turn. Prints percentiles, drops by portal
and reason, and the memory of every process.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench.cost_unit import memory_bytes
from tests.bench.generators import percentile
from tests.rigs.flow import DUPLICATES, LATE, MISSING, RECEIVED, Board
from tests.rigs.site import running
from tests.rigs.star import Star, star_site

WINDOW_BYTES = 300_000  # on the way in the closed loop: less than the queues and socket buffers hold
OTHER_SHARE = 10  # the second topic has a tenth of the rate of the first


@dataclass(frozen=True)
class Phase:
    """Figures of one flow in one phase."""

    flow: str
    disturbed: bool
    per_second: float
    p50_us: float
    p99_us: float
    p999_us: float
    missing: int
    reordered: int
    duplicates: int


@contextmanager
def running_star(rate: int, payload: int) -> Iterator[Star]:
    with tempfile.TemporaryDirectory(prefix="dro-isolation-") as name, running(star_site(Path(name))) as site:
        window = max(32, WINDOW_BYTES // payload)
        yield Star(site, rate=rate, other_rate=max(100, rate // OTHER_SHARE), payload=payload, window=window)


def highest_rate(payload: int, seconds: float) -> float:
    """Messages per second that the receiver in TRD 3 gets without a gap while all portals work."""
    with running_star(0, payload) as star:
        time.sleep(1)
        received, began = star.shared[RECEIVED], time.monotonic()
        time.sleep(seconds)
        return (star.shared[RECEIVED] - received) / (time.monotonic() - began)


def measure(star: Star, seconds: float, *, disturbed: bool) -> list[Phase]:
    healthy: dict[str, Board] = {"TRD 1 to 3, LBT-RM": star.shared, "TRD 1 to 4, TCP": star.other}
    before = {flow: [board[cell] for cell in (RECEIVED, LATE, DUPLICATES)] for flow, board in healthy.items()}
    for board in healthy.values():
        board.take_latencies()
    began = time.monotonic()
    time.sleep(seconds)
    span = time.monotonic() - began
    found = []
    for flow, board in healthy.items():
        latencies = board.latencies_us()
        received, late, duplicates = before[flow]
        found.append(
            Phase(
                flow,
                disturbed,
                (board[RECEIVED] - received) / span,
                percentile(latencies, 0.5),
                percentile(latencies, 0.99),
                percentile(latencies, 0.999),
                board[MISSING],
                board[LATE] - late,
                board[DUPLICATES] - duplicates,
            )
        )
    return found


def show(phase: Phase) -> None:
    print(
        f"  {phase.flow:<18} {'disturbed' if phase.disturbed else 'undisturbed':<12} {phase.per_second:>8.0f}/s"
        f"   p50 {phase.p50_us:>7.0f}  p99 {phase.p99_us:>7.0f}  p99.9 {phase.p999_us:>7.0f} us"
        f"   missing {phase.missing}  reordered {phase.reordered}  duplicates {phase.duplicates}",
        flush=True,
    )


def memory_mib(star: Star) -> dict[str, float]:
    return {name: round(memory_bytes(pid) / 2**20, 1) for name, pid in sorted(star.site.workers().items())}


def main() -> None:
    parser = argparse.ArgumentParser(prog="isolation", description=__doc__.split("\n")[0])
    parser.add_argument("--payload", type=int, default=512, help="bytes (default 512)")
    parser.add_argument("--seconds", type=float, default=4, help="length of each measurement (default 4)")
    parser.add_argument("--rounds", type=int, default=2, help="times undisturbed and disturbed (default 2)")
    parser.add_argument("--json", type=Path, default=Path("build/isolation.json"), help="where the figures go")
    arguments = parser.parse_args()
    top = highest_rate(arguments.payload, arguments.seconds)
    print(f"{arguments.payload} bytes: at most {top:.0f} messages per second to three portals; half of it is sent")
    phases: list[Phase] = []
    with running_star(int(top / 2), arguments.payload) as star:
        memory = {"before": memory_mib(star)}
        for _ in range(arguments.rounds):
            phases += measure(star, arguments.seconds, disturbed=False)
            star.disturb()
            phases += measure(star, arguments.seconds, disturbed=True)
            star.release()
            star.wait_flowing_again()
            for phase in phases[-4:]:
                show(phase)
        memory["after"] = memory_mib(star)
        star.settle()
        with star.site.books() as books:
            drops = {f"P{n}": {why: count for why, count in books.dropped(n).items() if count} for n in books.pages}
            problems = books.problems()
    for portal, reasons in drops.items():
        print(f"  {portal}: dropped {reasons or 'nothing'}   memory {memory['before'][portal]} MiB, "
              f"at the end {memory['after'][portal]} MiB")  # fmt: skip
    print(f"  missed by those that failed: {star.behind_frozen[MISSING]} behind P2, {star.behind_slow[MISSING]} on TCP")
    print("  books balance" if not problems else "\n".join(problems))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    figures = {"maximum": top, "phases": [asdict(phase) for phase in phases], "drops": drops, "memory_mib": memory}
    arguments.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
