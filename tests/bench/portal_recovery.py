"""Kills portals of a loaded three-portal DRO and reports how long they took to forward again.

Three flows of 100 topics go round the DRO: TRD 1 to 2, 2 to 3, 3 to 1. A kill of portal P<n> therefore hits one flow
at its ingress and one at its egress, and must not be noticed by the third. Recovery time: from the kill to the first
message at the receiver that was sent after the kill, which only the new incarnation can have forwarded; also given
for the last of the 100 topics. Every DRO serves `--per-dro` kills in turn.

`--mixed` kills the portals of a direct link under the mixed traffic of `tests.bench.mix` instead: ingress, egress, and
at times both. Each message that was sent must reach the receiver once, and the books must have it so.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from dro.metrics.slots import Slot
from dro.wire.source_string import TcpAddress
from tests.bench.traffic import generator
from tests.bench.traffic.generator import Counts
from tests.bench.traffic.resolution import Seeker
from tests.bench.traffic.workload import Contestant, Workload, connect_sink
from tests.bench.traffic.workload import running as running_load
from tests.rigs.books import Books
from tests.rigs.flow import BURSTS, DUPLICATES, WRONG
from tests.rigs.ring import TRDS, WORKERS, Ring
from tests.rigs.site import Site, drained, running


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


@dataclass(frozen=True)
class MixedKill:
    """One kill under mixed traffic; times in ms."""

    workers: str
    first: float
    all_topics: float
    sent: int  # messages from the kill until all topics were back
    taken: int  # by ingress portals meanwhile
    dropped: dict[str, int]  # by the egress portal meanwhile, by reason


MIXED_TURNS = (("P1",), ("P2",), ("P1",), ("P2",), ("P1", "P2"))


class MixedLink:
    """A direct link under mixed traffic; the sink follows the egress portal to its new sessions."""

    def __init__(self, who: Contestant) -> None:
        assert who.site is not None
        self.load = who.load
        self.site = who.site
        self._who = who
        (self._seeker,) = [end for end in who.ends if isinstance(end, Seeker)]
        self._heard = self._sessions()

    def _sessions(self) -> set[TcpAddress]:
        found = {tir.transport for tir in self._seeker.found.values()}
        return {address for address in found if isinstance(address, TcpAddress)}

    def wait(self, holds: Callable[[], object], what: str, seconds: float = 30) -> float:
        """Until it holds; how long that took, ms."""
        began = time.monotonic()
        while not holds():
            self._who.step()
            for address in self._sessions() - self._heard:
                if connect_sink(self.load, address):
                    self._heard.add(address)
            time.sleep(0.002)
            if time.monotonic() - began > seconds:
                raise AssertionError(f"not within {seconds} s: {what}; {self.load.counts()}\n{self.site.logs}")
        return (time.monotonic() - began) * 1000

    def kill(self, books: Books, workers: tuple[str, ...], topics: int) -> MixedKill:
        load = self.load
        sent, taken, dropped = load.counts().sent, books[1, Slot.TOPIC_RCVD], books.dropped(2)
        for worker in workers:
            self.site.kill(worker)
        load.tell("mark")
        first = self.wait(lambda: load.counts().topics, "a first message")
        rest = self.wait(lambda: load.counts().topics >= topics, "messages of all topics")
        now = books.dropped(2)
        return MixedKill(
            "+".join(workers), first, first + rest, load.counts().sent - sent, books[1, Slot.TOPIC_RCVD] - taken,
            {why: now[why] - dropped[why] for why in now if now[why] != dropped[why]},
        )  # fmt: skip

    def pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self.wait(lambda: time.monotonic() > until, "time passes")

    def settle(self, books: Books) -> Counts:
        """Stop sending; the counts when nothing is on its way any more."""
        self.load.tell("pause")
        self.wait(lambda: drained(books), "books")
        before, counts = None, self.load.counts()
        while before != counts:
            self.pause(0.7)  # repairs between source and ingress portal, egress portal and sink
            before, counts = counts, self.load.counts()
        return counts


def unaccounted(books: Books, counts: Counts) -> list[str]:
    """What does not balance from source to sink of a direct link on which portals were killed: nothing is lost."""
    found = books.problems()
    sent = books[2, Slot.SENT]
    (pair,) = [pair for pair in books.pairs() if (pair.ingress, pair.egress) == (1, 2)]
    arrived = counts.received[0] - counts.again
    if counts.again or counts.duplicates:
        found.append(f"{counts.again} messages and {counts.duplicates} datagrams arrived twice")
    announced = pair.handed - books[2, Slot.DROPPED_DUP]  # what was announced and not noted is announced again
    if not counts.sent == announced == sent == arrived:
        found.append(f"{counts.sent} sent, {announced} announced, {sent} sent on, {arrived} arrived")
    return found


def kill_mixed(arguments: argparse.Namespace) -> tuple[list[MixedKill], list[str]]:
    workload = Workload(
        "mixed", arguments.transport, arguments.topics, rate=arguments.rate, window=1 << 30, has_books=True
    )
    kills: list[MixedKill] = []
    problems: list[str] = []
    with generator.built() as program, tempfile.TemporaryDirectory(prefix="dro-kills-") as name:
        while len(kills) < arguments.kills:
            with running_load(program, Path(name) / str(len(kills)), workload) as who:
                link = MixedLink(who)
                with link.site.books() as books:
                    link.load.tell("resume")
                    link.pause(0.5)
                    for _ in range(min(arguments.per_dro, arguments.kills - len(kills))):
                        one = link.kill(books, arguments.killed[len(kills) % len(arguments.killed)], arguments.topics)
                        kills.append(one)
                        print(f"{len(kills):3} {one}", flush=True)
                        link.pause(arguments.pause * (0.5 + random.random()))
                    counts = link.settle(books)
                    problems += unaccounted(books, counts)
                    drops = {why: n for why, n in books.dropped(2).items() if n}
                    print(
                        f"    {counts.sent} sent, {books[1, Slot.TOPIC_RCVD]} taken in, {books[2, Slot.SENT]} sent on, "
                        f"{counts.received[0]} arrived, dropped {drops}, given up {books[1, Slot.UNRECOVERABLE]}, "
                        f"datagrams lost behind the DRO {counts.gone}: {problems or 'all in the books'}",
                        flush=True,
                    )
    return kills, problems


def quantile(values: list[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * fraction))]


def show(what: str, values: list[float]) -> None:
    print(
        f"  {what:<34} min {min(values):7.1f}  median {quantile(values, 0.5):7.1f}  p90 {quantile(values, 0.9):7.1f}  "
        f"max {max(values):7.1f} ms"
    )


def show_mixed(kills: list[MixedKill]) -> None:
    print()
    for workers in dict.fromkeys(one.workers for one in kills):
        these = [one for one in kills if one.workers == workers]
        show(f"{workers}, first message", [one.first for one in these])
        show(f"{workers}, all topics", [one.all_topics for one in these])
        reasons = {why for one in these for why in one.dropped}
        most = ", ".join(f"{why} {max(one.dropped.get(why, 0) for one in these)}" for why in sorted(reasons))
        print(f"  {workers}, {len(these)} kills: dropped by one kill at most: {most or 'nothing'}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="kills", description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--per-dro", type=int, default=10)
    parser.add_argument("--topics", type=int, default=100, help="of each flow (default 100)")
    parser.add_argument("--rate", type=int, default=0, help="messages per second of each flow (default 1000, 10000)")
    parser.add_argument("--pause", type=float, default=2, help="mean time between two kills, s (default 2)")
    parser.add_argument("--json", type=Path, default=Path("build/kills.json"), help="where the figures go")
    parser.add_argument("--mixed", action="store_true", help="one flow of mixed traffic on a direct link")
    parser.add_argument(
        "--killed", type=lambda names: tuple(names.split("+")), nargs="+", default=MIXED_TURNS, metavar="P1+P2",
        help="portals that are killed under mixed traffic, in turn (default P1 P2 P1 P2 P1+P2)",
    )  # fmt: skip
    parser.add_argument("--transport", default="lbtrm", choices=["lbtrm", "tcp"], help="of mixed traffic")
    arguments = parser.parse_args()
    arguments.rate = arguments.rate or (10_000 if arguments.mixed else 1000)
    if arguments.mixed:
        if not generator.is_possible():
            print(f"kills: {generator.COMPILER} is not installed, so there is no load generator: nothing is measured")
            return 0
        mixed, problems = kill_mixed(arguments)
        show_mixed(mixed)
        return report(arguments.json, mixed, problems)
    return kill_ring(arguments)


def kill_ring(arguments: argparse.Namespace) -> int:
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
    return report(arguments.json, kills, problems)


def report(path: Path, kills: list[Kill] | list[MixedKill], problems: list[str]) -> int:
    print("  books balance" if not problems else "\n".join(problems))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"kills": [asdict(one) for one in kills], "problems": problems}, indent=1))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
