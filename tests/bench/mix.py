"""What mixed traffic costs on a direct link, beside a naive forwarder and a pair of NATS servers in the same run.

`python -m tests.bench.mix`: a real `tnwgd` under mixed traffic (by default 100 topics on 5 sessions, sizes drawn from
64, 64, 64, 200, 200, 512 and 1400 bytes) and one under a steady stream (one topic, one size), on LBT-RM and on TCP; the
naive forwarder and the NATS servers get the nearest single size. All are started once and measured in turn, round by
round, in a closed loop. What counts is CPU time per message of those that forward: other load on the machine and the
generator change messages per second, but hardly that. Prints medians with the least and the greatest of the rounds,
and writes JSON. LBT-RU and LBT-IPC are measured beside TCP in a TRD between two DROs (`--between`). `--loss` adds the
same traffic with losses before and behind the DRO, `--before` a DRO of an earlier state, `--poll` one whose workers
poll; with `--rate 1000` latencies are compared as well. Without gcc there is no load, without nats-server no pair: it
says so and goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from dro.metrics.slots import Slot
from tests.bench.cost_unit import cpu_ns, measure_u_ns
from tests.bench.traffic import generator, peers
from tests.bench.traffic.between import LABELS, between
from tests.bench.traffic.generator import Counts, Load
from tests.bench.traffic.workload import SESSIONS_MAX, SIZES, WINDOW, Contestant, Workload, running

WARM_UP_S: Final = 0.3
ASLEEP_MIN: Final = 0.02
"""A generator thread that sleeps less of its time may be what limits the rate."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One contestant in one round."""

    contestant: str
    messages: int  # that reached the slowest receiver
    seconds: float
    per_second: float
    us_per_message: float  # CPU of all that forward
    us_by_process: dict[str, float]
    busy: dict[str, float]  # share of the time on a CPU: processes that forward, threads of the generator
    asleep: dict[str, float]  # share of the time in which they had nothing to do; of processes the busiest thread
    lost: int  # messages
    duplicates: int
    latency_us: dict[str, float]  # of the measured time alone; in a closed loop mostly the length of the queue
    naks: int
    repaired: int
    omitted: int


def _threads(who: Contestant) -> dict[str, tuple[int, int]]:
    """CPU time and time of waiting for a CPU, ns: threads of the generator, busiest threads of what forwards."""
    found = who.load.threads()
    for name, pid in who.processes.items():
        stats = [(task / "schedstat").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
        found[name] = max((int(cpu), int(waited)) for cpu, waited, _ in stats)
    return found


def settled(load: Load) -> Counts:
    """The counts when nothing more arrives."""
    deadline = time.monotonic() + generator.SETTLED_S
    while True:
        counts = load.counts()
        if min(counts.received) + counts.written_off >= counts.sent or time.monotonic() > deadline:
            return counts
        time.sleep(0.05)


def measure(who: Contestant, seconds: float) -> Measured:
    who.load.tell("resume")
    time.sleep(WARM_UP_S)
    who.load.tell("pause")
    base = settled(who.load)
    who.load.tell("resume")
    time.sleep(WARM_UP_S / 3)
    before = who.load.counts()
    began, cpu, threads = time.monotonic_ns(), {n: cpu_ns(p) for n, p in who.processes.items()}, _threads(who)
    who.load.tell("reset")
    time.sleep(seconds)
    after = who.load.counts()
    span = time.monotonic_ns() - began
    used = {name: cpu_ns(pid) - cpu[name] for name, pid in who.processes.items()}
    since = {name: (c - threads[name][0], w - threads[name][1]) for name, (c, w) in _threads(who).items()}
    who.load.tell("pause")
    end = settled(who.load)
    messages = max(1, min(after.received) - min(before.received))
    return Measured(
        contestant=who.name,
        messages=messages,
        seconds=round(span / 1e9, 3),
        per_second=round(messages / span * 1e9, 1),
        us_per_message=round(sum(used.values()) / messages / 1000, 3),
        us_by_process={name: round(ns / messages / 1000, 3) for name, ns in used.items()},
        busy={name: round(c / span, 3) for name, (c, _) in since.items()},
        asleep={name: round(max(0.0, 1 - (c + w) / span), 3) for name, (c, w) in since.items()},
        lost=sum(end.sent - base.sent - (e - b) for e, b in zip(end.received, base.received, strict=True)),
        duplicates=end.duplicates - base.duplicates,
        latency_us=after.latency_us,
        naks=end.naks - base.naks,
        repaired=end.repaired - base.repaired,
        omitted=end.omitted - base.omitted,
    )


def spread(values: Sequence[float], digits: int = 2) -> str:
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})"


def show(results: dict[str, list[Measured]]) -> None:
    print(
        f"\n{'':28}{'CPU us per message':>24}  {'by process':34}{'messages/s':>11}{'p50/p99 us':>15}   "
        "asleep, % of time"
    )
    for name, rounds in results.items():
        each = "  ".join(
            f"{process} {median(r.us_by_process[process] for r in rounds):.2f}" for process in rounds[0].us_by_process
        )
        asleep = {who: median(r.asleep[who] for r in rounds) for who in rounds[0].asleep}
        p50, p99 = (median(r.latency_us[p] for r in rounds) for p in ("p50", "p99"))
        print(
            f"{name:28}{spread([r.us_per_message for r in rounds]):>24}  {each:34}"
            f"{median(r.per_second for r in rounds):>11.0f}{f'{p50:.0f}/{p99:.0f}':>15}   "
            + " ".join(f"{who} {100 * share:.0f}" for who, share in sorted(asleep.items()))
        )
        notes = {
            "messages lost": sum(r.lost for r in rounds),
            "datagrams heard twice": sum(r.duplicates for r in rounds),
            "kept back": sum(r.omitted for r in rounds),
            "sent again": sum(r.repaired for r in rounds),
            "asked for by the receivers": sum(r.naks for r in rounds),
        }
        if any(notes.values()):
            print(f"{'':28}" + ", ".join(f"{what} {n}" for what, n in notes.items() if n))
        limits = [who for who, share in asleep.items() if who.startswith(("source", "sink")) and share < ASLEEP_MIN]
        if limits:
            print(f"{'':28}the generator may be the limit of messages/s: {', '.join(limits)} never slept")


Figure = Callable[[Measured], float]
FIGURES: Final[dict[str, Figure]] = {
    "CPU per message": lambda measured: measured.us_per_message,
    "latency p50": lambda measured: measured.latency_us["p50"],
    "latency p99": lambda measured: measured.latency_us["p99"],
}


def ratios(results: dict[str, list[Measured]], figure: Figure) -> dict[str, list[float]]:
    """Round by round."""
    found = {}
    names = list(results)

    def first(*words: str) -> str | None:
        return next((name for name in names if all(word in name for word in words)), None)

    for upper, lower in (
        (("mixed", "LBT-RM"), ("naive",)),
        (("mixed", "LBT-RM"), ("NATS",)),
        (("mixed", "TCP"), ("NATS",)),
        (("steady", "LBT-RM"), ("naive",)),
        (("steady", "TCP"), ("NATS",)),
        (("mixed", "LBT-RM"), ("steady", "LBT-RM")),
        (("mixed", "TCP"), ("steady", "TCP")),
        (("mixed", "LBT-RM", "losses"), ("mixed", "LBT-RM")),
        (("steady", "LBT-RM", "losses"), ("steady", "LBT-RM")),
        (("mixed", "LBT-RM"), ("mixed", "LBT-RM", "before")),
        (("steady", "LBT-RM"), ("steady", "LBT-RM", "before")),
        (("mixed", "TCP"), ("mixed", "TCP", "before")),
        (("steady", "TCP"), ("steady", "TCP", "before")),
        (("mixed", "by LBT-RU"), ("mixed", "by TCP")),
        (("mixed", "by LBT-IPC"), ("mixed", "by TCP")),
        (("mixed", "LBT-RM", "polling"), ("NATS",)),
        (("mixed", "TCP", "polling"), ("NATS",)),
    ):
        a, b = first(*upper), first(*lower)
        if a and b:
            pairs = zip(results[a], results[b], strict=True)
            found[f"{a} / {b}"] = [round(figure(x) / max(1e-9, figure(y)), 3) for x, y in pairs]
    return found


def balance(who: Contestant) -> dict[str, object]:
    """Drops of every portal, datagrams that it gave up, and what does not balance."""
    assert who.site is not None
    with who.site.books() as books:
        drops = {f"P{n}": {why: count for why, count in books.dropped(n).items() if count} for n in books.pages}
        given_up = {f"P{n}": books[n, Slot.UNRECOVERABLE] for n in books.pages if books[n, Slot.UNRECOVERABLE]}
        drops = {name: reasons for name, reasons in drops.items() if reasons}
        return {"drops": drops, "given up": given_up, "problems": books.problems()}


def contestants(arguments: argparse.Namespace, stack: ExitStack, program: Path, folder: Path) -> list[Contestant]:
    """In the order in which they take turns."""
    found = []
    for transport in arguments.transports:
        mixed = workload_of(arguments, transport)
        loads = [mixed] if arguments.mixed_only else [mixed, mixed.steady(arguments.steady_size)]
        if transport == "lbtrm" and arguments.loss:
            loads += [replace(load, name=f"{load.name}, losses", loss=arguments.loss / 100) for load in loads]
        if arguments.before:
            loads += [replace(load, name=f"{load.name}, before", tree=arguments.before) for load in loads]
        if arguments.poll:
            loads.append(replace(mixed, name=f"{mixed.name}, polling", poll_us=arguments.poll))
        for nth, workload in enumerate(loads):
            where = folder / f"{transport}{nth}"
            found.append(stack.enter_context(running(program, where, workload)))
            if nth == 0 and not arguments.no_peers:
                peer = peers.naive_forwarder if transport == "lbtrm" else peers.nats_pair
                if transport == "tcp" and peers.find_nats() is None:
                    print("mix: nats-server is not installed, so there is no NATS leaf pair")
                    continue
                found.append(stack.enter_context(peer(program, folder, arguments.window or WINDOW)))
                found[-1].load.set(rate=arguments.rate)
    for transport in arguments.between:
        workload = workload_of(arguments, "tcp")
        found.append(stack.enter_context(between(program, folder / f"between-{transport}", workload, transport)))
    return found


def workload_of(arguments: argparse.Namespace, transport: str) -> Workload:
    label = Workload("", transport).label
    return Workload(
        f"mixed {label}", transport, arguments.topics, arguments.sessions, arguments.hosts, tuple(arguments.sizes),
        0.0, arguments.egress, arguments.receivers, arguments.large / 100, arguments.large_bytes,
        is_packed=arguments.packed, rate=arguments.rate, window=arguments.window,
    )  # fmt: skip


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mix", description=__doc__.split("\n")[0])
    option: Callable[..., object] = parser.add_argument
    option("--rounds", type=int, default=5, help="times each is measured (default 5)")
    option("--seconds", type=float, default=2, help="length of each measurement (default 2)")
    option("--transports", nargs="*", default=["lbtrm", "tcp"], choices=["lbtrm", "tcp"])
    option("--between", nargs="*", default=["tcp", "lbtru", "lbtipc"], choices=list(LABELS),
           help="transports of a TRD between two DROs, with TCP before and behind them")  # fmt: skip
    option("--topics", type=int, default=100)
    option("--sessions", type=int, default=5, help="groups or TCP ports of a host, and of each egress portal")
    option("--hosts", type=int, default=1, help="source hosts, each with its sessions on the same groups")
    option("--sizes", type=int, nargs="+", default=list(SIZES), help="payload bytes, drawn by chance")
    option("--loss", type=float, default=0, help="LBT-RM: %% of datagrams lost before the DRO, and behind it")
    option("--egress", type=int, default=1, help="egress portals that want everything")
    option("--receivers", type=int, default=1, help="receivers at each of them")
    option("--large", type=float, default=0, help="%% of messages that are large and fragmented")
    option("--large-bytes", type=int, default=30_000)
    option("--packed", action="store_true", help="the LBT-RM source batches implicitly: 2048 bytes or 200 ms")
    option("--rate", type=int, default=0, help="messages per second for all (default: closed loop)")
    option("--window", type=int, default=0, help=f"messages on their way at most (default {WINDOW}, fewer large ones)")
    option("--steady-size", type=int, default=512, help="payload bytes of the steady stream (default 512)")
    option("--mixed-only", action="store_true", help="without the steady stream")
    option("--before", type=Path, help="a tree of an earlier state, with its .venv: its DRO under the same traffic")
    option("--poll", type=int, default=0, help="also DROs whose workers poll so long before they sleep, microseconds")
    option("--no-peers", action="store_true", help="without naive forwarder and NATS")
    option("--json", type=Path, default=Path("build/mix.json"), help="where the figures go")
    arguments = parser.parse_args(words)
    if not 1 <= arguments.sessions <= SESSIONS_MAX or min(arguments.sizes) < 20 or max(arguments.sizes) > 8000:
        parser.error(f"sessions: 1 to {SESSIONS_MAX}; sizes: 20 to 8000")
    return arguments


def main(words: Sequence[str] | None = None) -> int:
    arguments = parse(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    if not generator.is_possible():
        print(f"mix: {generator.COMPILER} is not installed, so there is no load generator: nothing is measured")
        return 0
    u_ns = measure_u_ns()
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, U = {u_ns / 1000:.2f} us")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dro-mix-")))
        program = stack.enter_context(generator.built())
        found = contestants(arguments, stack, program, folder)
        results: dict[str, list[Measured]] = {who.name: [] for who in found}
        for nth in range(arguments.rounds):
            for who in found:
                results[who.name].append(measure(who, arguments.seconds))
            line = "  ".join(f"{name} {rounds[-1].us_per_message:.2f}" for name, rounds in results.items())
            print(f"round {nth + 1}, us per message: {line}", flush=True)
        books = {who.name: balance(who) for who in found if who.site is not None}
    show(results)
    compared = {what: ratios(results, FIGURES[what]) for what in (FIGURES if arguments.rate else list(FIGURES)[:1])}
    for what, found_ratios in compared.items():
        print(f"\nratios of {what}")
        for name, values in found_ratios.items():
            print(f"  {name:58}{spread(values)}")
    problems = [f"{name}: {book}" for name, book in books.items() if any(book.values())]
    print("\n".join(problems) or ("books balance, no drops" if books else "no books were kept"))
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    figures = {
        "cpus": os.cpu_count(), "u_ns": round(u_ns),
        "parameters": {k: str(v) if isinstance(v, Path) else v for k, v in vars(arguments).items()},
        "rounds": {name: [asdict(r) for r in rounds] for name, rounds in results.items()},
        "ratios": compared, "books": books,
    }  # fmt: skip
    arguments.json.write_text(json.dumps(figures, indent=1))
    print(f"figures in {arguments.json}")
    return 1 if any(book["problems"] for book in books.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
