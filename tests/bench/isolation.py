"""What a frozen portal and a receiver that stops reading do to the other flows: latencies with and without them.

A DRO with four portals: messages from TRD 1 go to TRD 2 (portal frozen by SIGSTOP), TRD 3, and TRD 4 over TCP (one
receiver stopped); a second topic goes to TRD 4 on a session of its own. First the highest rate of this configuration
is found (closed loop), then half of it is sent, undisturbed and disturbed in turn. Prints percentiles, drops by portal
and reason, and the memory of every process.

`--jumps N` and `--mutated N` measure instead what strangers do to mixed traffic of `--rate` messages a second on a
direct link: a source beside it whose sqns jump N times by 60,000, two jumps a second; N mutated packets, 1,000 a
second, to all ports of both sides, over LBT-RM and over TCP. Each beside the same time without them. Nothing may be
lost; a mutated advertisement may be one of another source, on the same session, whose messages then come as well.
`--names N`: N new names, 15,000 a second, asked for on one side and advertised on the other; nothing may be lost. Then
one forged message with a topic sqn far ahead on a session of the load: how long until all topics flow.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from dro.metrics.slots import Slot, WorkerSlot
from tests.bench.cost_unit import memory_bytes
from tests.bench.generators import percentile
from tests.bench.mix import settled
from tests.bench.traffic import generator
from tests.bench.traffic.strangers import NAMES, Jumper, Mutants, NewNames, forge
from tests.bench.traffic.workload import Contestant, Workload
from tests.bench.traffic.workload import running as running_load
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


JUMP = 60_000
JUMPS_PER_S = 2
MUTATED_PER_S = 1000
NAMES_PER_S = 15_000
NAMES_MIB = 1024
TOPICS = 50


@dataclass(frozen=True)
class Beside:
    """A flow beside strangers, or without them: first the time in which they were there, then until nothing came."""

    what: str
    sent: int
    lost: int
    again: int
    latency_us: dict[str, float]
    longest_turn_ms: dict[str, float]  # of each portal since its start, of processor time
    longest_wall_ms: dict[str, float]
    bad: dict[str, int]  # packets that were counted as malformed
    ended: list[str]  # workers
    problems: list[str]


def beside(who: Contestant, what: str, count: int, per_second: int, act: Callable[[int], object] | None) -> Beside:
    """Act so many times at that pace, or only wait for as long."""
    assert who.site is not None
    load, workers = who.load, who.site.workers()
    load.tell("pause")
    base = settled(load)
    with who.site.books() as books:
        bad = {n: books[n, Slot.BAD_DATAGRAMS] for n in books.pages}
        load.tell("reset", "resume")
        began, done = time.monotonic(), 0
        while done < count:
            while done < min(count, int((time.monotonic() - began) * per_second)):
                if act is not None:
                    act(done)
                done += 1
            who.step()
            time.sleep(0.001)
        time.sleep(0.5)  # of what came last
        found = load.counts()
        load.tell("pause")
        end = settled(load)
        turns = {
            n: (books[n, WorkerSlot.LONGEST_TURN_CPU_US] / 1000, books[n, WorkerSlot.LONGEST_TURN_US] / 1000)
            for n in bad
        }
        return Beside(
            what,
            end.sent - base.sent,
            (end.sent - base.sent) - (end.received[0] - base.received[0]) + (end.again - base.again),
            end.again - base.again,
            found.latency_us,
            {f"P{n}": cpu for n, (cpu, _) in turns.items()},
            {f"P{n}": wall for n, (_, wall) in turns.items()},
            {f"P{n}": books[n, Slot.BAD_DATAGRAMS] - bad[n] for n in bad},
            [name for name, pid in who.site.workers().items() if workers.get(name) != pid],
            books.problems(),
        )


@contextmanager
def running_beside(folder: Path, transport: str, rate: int) -> Iterator[Contestant]:
    """A direct link with mixed traffic of 50 topics on two sessions."""
    workload = Workload("mixed", transport, topics=TOPICS, sessions=2, rate=rate, window=1 << 30, has_books=True)
    with generator.built() as program, running_load(program, folder, workload) as who:
        yield who


def jumps(who: Contestant, count: int) -> list[Beside]:
    assert who.site is not None
    found = [beside(who, "alone", count, JUMPS_PER_S, None)]
    with closing(Jumper(who)) as jumper, who.site.books() as books:
        taken, deadline = books[1, Slot.TOPIC_RCVD], time.monotonic() + 10
        while books[1, Slot.TOPIC_RCVD] == taken:
            assert time.monotonic() < deadline, who.site.logs
            jumper.step()
            who.step()
            jumper.send()
            time.sleep(0.05)
        lost = books[1, Slot.UNRECOVERABLE]
        found.append(beside(who, f"{count} jumps of {JUMP}", count, JUMPS_PER_S, lambda _: jumper.send(JUMP)))
        print(f"  datagrams given up meanwhile: {books[1, Slot.UNRECOVERABLE] - lost}, NAKs {books[1, Slot.NAKS_SENT]}")
    return found


def mutated(who: Contestant, count: int, *, is_tcp: bool) -> list[Beside]:
    found = [beside(who, "alone", count, MUTATED_PER_S, None)]
    who.load.tell("resume")
    with closing(Mutants(who, random.Random(7), is_tcp=is_tcp)) as mutants:

        def act(nth: int) -> None:
            mutants.step()
            mutants.send(nth)

        found.append(beside(who, f"{count} mutated packets", count, MUTATED_PER_S, act))
    return found


def new_names(who: Contestant, count: int) -> list[Beside]:
    """Raises: AssertionError when a worker has taken more than `NAMES_MIB` for them."""
    assert who.site is not None
    datagrams = count // NAMES
    found = [beside(who, "alone", datagrams, NAMES_PER_S // NAMES, None)]
    before = {name: memory_bytes(pid) for name, pid in who.site.workers().items()}
    with closing(NewNames(who)) as names, who.site.books() as books:
        left_out = (Slot.SOURCES_LIMITED, Slot.SOURCES_FULL, Slot.INTEREST_LIMITED, Slot.INTEREST_FULL)
        known = sum(books.total(slot) for slot in left_out)
        found.append(beside(who, f"{count} new names", datagrams, NAMES_PER_S // NAMES, names.send))
        known = count - (sum(books.total(slot) for slot in left_out) - known)
    grown = {name: (memory_bytes(pid) - before.get(name, 0)) >> 20 for name, pid in who.site.workers().items()}
    print(f"  names that were taken: {known}   memory grown by {grown} MiB")
    assert max(grown.values()) < NAMES_MIB, grown
    return found


def seconds_after_a_forged_sqn(who: Contestant, topics: int) -> float:
    """Until messages of all topics have come again."""
    who.load.tell("resume")
    forge(who)
    began = time.monotonic()
    who.load.tell("mark")
    while who.load.counts().topics < topics:
        assert time.monotonic() < began + 60, "it goes on without a topic"
        who.step()
        time.sleep(0.002)
    return time.monotonic() - began


def show_beside(transport: str, one: Beside) -> None:
    print(
        f"  {transport:6} {one.what:24} {one.sent} sent, lost {one.lost}, twice {one.again}   us {one.latency_us}   "
        f"longest turn {one.longest_turn_ms} ms of CPU, "
        f"{one.longest_wall_ms} ms in all   malformed {one.bad}   {one.ended or 'none'} ended   "
        f"{one.problems or 'books balance'}",
        flush=True,
    )


def beside_strangers(arguments: argparse.Namespace) -> int:
    if not generator.is_possible():
        print(f"isolation: {generator.COMPILER} is not installed, so there is no load generator: nothing is measured")
        return 0
    found: list[tuple[str, Beside]] = []
    with tempfile.TemporaryDirectory(prefix="dro-isolation-") as name:
        if arguments.jumps:
            with running_beside(Path(name) / "jumps", "lbtrm", arguments.rate) as who:
                found += [("LBT-RM", one) for one in jumps(who, arguments.jumps)]
        if arguments.names:
            with running_beside(Path(name) / "names", "lbtrm", arguments.rate) as who:
                found += [("LBT-RM", one) for one in new_names(who, arguments.names)]
                print(f"  all topics flow {seconds_after_a_forged_sqn(who, TOPICS):.2f} s after a forged topic sqn")
        for transport, label in (("lbtrm", "LBT-RM"), ("tcp", "TCP")) if arguments.mutated else ():
            with running_beside(Path(name) / transport, transport, arguments.rate) as who:
                found += [(label, one) for one in mutated(who, arguments.mutated, is_tcp=transport == "tcp")]
    for label, one in found:
        show_beside(label, one)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps([{"transport": label} | asdict(one) for label, one in found], indent=1))
    return 1 if any(one.lost or one.ended or one.problems for _, one in found) else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="isolation", description=__doc__.split("\n")[0])
    parser.add_argument("--payload", type=int, default=512, help="bytes (default 512)")
    parser.add_argument("--seconds", type=float, default=4, help="length of each measurement (default 4)")
    parser.add_argument("--rounds", type=int, default=2, help="times undisturbed and disturbed (default 2)")
    parser.add_argument("--json", type=Path, default=Path("build/isolation.json"), help="where the figures go")
    parser.add_argument("--jumps", type=int, default=0, help="strangers: so many jumps of 60,000 sqns")
    parser.add_argument(
        "--mutated", type=int, default=0, help="strangers: so many mutated packets, over each transport"
    )
    parser.add_argument("--names", type=int, default=0, help="strangers: so many new names, and a forged topic sqn")
    parser.add_argument("--rate", type=int, default=500, help="messages per second beside strangers (default 500)")
    arguments = parser.parse_args()
    if arguments.jumps or arguments.mutated or arguments.names:
        return beside_strangers(arguments)
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
