"""`python -m tests.fuzz`: mutated inputs for every decoder and every core that takes packets, on all processors.

    python -m tests.fuzz [--minutes 5] [--seed N] [--jobs N] [--targets NAME ...] [--folder build/fuzz] [FILE ...]

Each process has its own random numbers, from the seed, which is printed, and gives each target in turn a second. An
input that raises what it must not, takes too long, ends the process or never comes back is a finding: a file in a
folder named as its target. Files that are named are run once more instead, with what comes of each; one that stays in
`tests/golden/fuzz` is tried by the ordinary tests. `totals.json` adds up all runs in a folder.
"""

from __future__ import annotations

import argparse
import itertools
import json
import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from random import Random, randrange
from typing import Final

from tests.fuzz.table import TARGETS
from tests.fuzz.target import ROOT, Count, Finding, Run, Target, execute

TURN_S: Final = 1.0
HANGS_S: Final = 60.0
MEMORY_BYTES: Final = 4 << 30
INPUT_MAX: Final = 1 << 22


class Current:
    """The input that a process has under way, where its parent finds it when the process is gone."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, INPUT_MAX + 8)

    def note(self, data: bytes) -> None:
        size = min(len(data), INPUT_MAX)
        self._memory[:4] = size.to_bytes(4, "big")
        self._memory[8 : 8 + size] = data[:size]

    def begin(self, number: int) -> None:
        """The target that comes now, by its place in the list."""
        self._memory[4:8] = number.to_bytes(4, "big")

    def read(self) -> tuple[int, bytes]:
        size = int.from_bytes(self._memory[:4], "big")
        return int.from_bytes(self._memory[4:8], "big"), self._memory[8 : 8 + size]


@dataclass
class Worker:
    process: ForkProcess
    reports: Connection
    current: Current
    heard_s: float


def work(targets: Sequence[Target], seed: str, first: int, current: Current, reports: Connection) -> None:
    """Turn after turn, until the parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    runs = [Run(target, Random(f"{seed} {target.name}"), current.note) for target in targets]
    for number in itertools.islice(itertools.cycle(range(len(runs))), first, None):
        current.begin(number)
        run = runs[number]
        done = run.go_on(seconds=TURN_S)
        found = [run.found[key] for key in list(run.found) if run.found[key].data]
        reports.send((run.target.name, done, found))


class Fuzzing:
    """Workers, and what they report."""

    def __init__(self, targets: Sequence[Target], seed: int, folder: Path) -> None:
        self.targets, self.folder, self._seed = targets, folder, seed
        self.counts = {target.name: Count() for target in targets}
        self.found: dict[tuple[str, str], Path] = {}
        self._serial = itertools.count()

    def run(self, seconds: float, jobs: int) -> None:
        end_s = time.monotonic() + seconds
        workers = [self._start(job * len(self.targets) // jobs) for job in range(jobs)]
        try:
            while (left_s := end_s - time.monotonic()) > 0:
                wait([worker.reports for worker in workers], min(left_s, 1.0))
                for place, worker in enumerate(workers):
                    if not self._look(worker):
                        workers[place] = self._start(worker.current.read()[0] + 1)
        except KeyboardInterrupt:
            print("\ninterrupted")
        finally:
            for worker in workers:
                worker.process.kill()
                worker.process.join()

    def _start(self, first: int) -> Worker:
        here, there = get_context("fork").Pipe(duplex=False)
        current = Current()
        seed = f"{self._seed} {next(self._serial)}"
        process = get_context("fork").Process(
            target=work, args=(self.targets, seed, first, current, there), daemon=True
        )
        process.start()
        there.close()
        return Worker(process, here, current, time.monotonic())

    def _look(self, worker: Worker) -> bool:
        """Take what a worker has reported; False when it has ended, or is stuck and was ended."""
        try:
            while worker.reports.poll():
                name, done, found = worker.reports.recv()
                worker.heard_s = time.monotonic()
                self.counts[name].add(done)
                for finding in found:
                    self._note(finding)
        except EOFError:
            worker.process.join()
            self._note(self._last(worker, f"the process ended with {worker.process.exitcode}"))
            return False
        if time.monotonic() - worker.heard_s < HANGS_S:
            return True
        worker.process.kill()
        worker.process.join()
        self._note(self._last(worker, f"nothing came of it in {HANGS_S:.0f} s"))
        return False

    def _last(self, worker: Worker, what: str) -> Finding:
        number, data = worker.current.read()
        return Finding(self.targets[number].name, data, what, f"{what}\n")

    def _note(self, finding: Finding) -> None:
        if (finding.target, finding.key) in self.found:
            return
        path = self.found[finding.target, finding.key] = finding.write(self.folder)
        print(f"\n{finding.target}: {finding.key}\n{finding.text}run it again: python -m tests.fuzz {path}", flush=True)

    def report(self) -> None:
        """Print what was done in this run, and add it to the totals."""
        kept = self.folder / "totals.json"
        totals = json.loads(kept.read_text()) if kept.exists() else {}
        print(f"{'target':24}{'executions':>12}{'per second':>12}{'taken':>8}{'kinds':>7}{'in all runs':>14}")
        for name, count in self.counts.items():
            total = Count(**totals[name]) if name in totals else Count()
            total.add(count)
            totals[name] = asdict(total)
            rate = count.executions / count.seconds if count.seconds else 0
            taken = count.taken / count.executions if count.executions else 0
            print(f"{name:24}{count.executions:12}{rate:12.0f}{taken:8.0%}{count.signs:7}{total.executions:14}")
        done, ever = (sum(c.executions for c in self.counts.values()), sum(t["executions"] for t in totals.values()))
        seconds = sum(count.seconds for count in self.counts.values())
        print(f"{'total':24}{done:12}{done / seconds if seconds else 0:12.0f}{'':15}{ever:14}")
        print(f"findings: {len(self.found)}")
        self.folder.mkdir(parents=True, exist_ok=True)
        unnamed = kept.with_suffix(f".{os.getpid()}")
        unnamed.write_text(json.dumps(totals, indent=1))
        unnamed.rename(kept)


def run_again(files: Sequence[Path]) -> int:
    """Say what comes of each; its folder is named as its target."""
    bad = 0
    for path in files:
        sign, is_taken, finding = execute(TARGETS[path.parent.name], path.read_bytes())
        bad += finding is not None
        print(
            f"{path}: {'taken' if is_taken else 'refused'}, {sign}" if finding is None else f"{path}:\n{finding.text}"
        )
    return 1 if bad else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--minutes", type=float, default=5, help="how long (default 5)")
    parser.add_argument("--seed", type=int, help="of the random numbers (default: another one each time)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: all cores)")
    parser.add_argument("--targets", nargs="+", choices=sorted(TARGETS), metavar="NAME", help="these alone")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/fuzz", help="where findings and totals go")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="findings to run again instead")
    given = parser.parse_args(arguments)
    if given.files:
        return run_again(given.files)
    seed = given.seed if given.seed is not None else randrange(1 << 32)
    print(f"seed {seed}, {given.jobs} processes, {given.minutes:g} minutes", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    fuzzing = Fuzzing([TARGETS[name] for name in given.targets or TARGETS], seed, given.folder)
    fuzzing.run(60 * given.minutes, given.jobs)
    fuzzing.report()
    return 1 if fuzzing.found else 0


if __name__ == "__main__":
    sys.exit(main())
