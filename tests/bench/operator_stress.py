"""Several operators, kills and garbage at once: `python -m tests.bench.operator_stress --seconds 60`.

Each operator gives random orders to random portals of a DRO with three of them; meanwhile workers are killed and
frozen, and garbage goes to the admin socket. Every order has to be answered within its limits, the DRO has to live, and
in the end everything can be put right: all portals ready, no process and no file too many.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Final

from supervisor.admin.client import Client, CommandError, UnreachableError, find_dro
from supervisor.admin.status import DroStatus, WorkerStatus
from tests.rigs.dro_run import is_running
from tests.rigs.site import Site, running
from tests.rigs.waiting import wait_until

PORTALS: Final = ("P1", "P2", "P3")
ACTIONS: Final = ("restart", "pause", "resume", "drain", "add", "remove", "reload")
ANSWER_LIMIT_S: Final = 150.0
RIGHT_LIMIT_S: Final = 60.0
SHORT: Final = "receiver transport_lbtrm_nak_generation_interval 500\n"


class StressRun:
    """What all threads share."""

    def __init__(self, site: Site, seconds: float) -> None:
        self.site = site
        self.run_dir = find_dro(str(site.pid))
        self.ends = time.monotonic() + seconds
        self.answers: Counter[str] = Counter()
        self.problems: list[str] = []

    def goes_on(self) -> bool:
        return time.monotonic() < self.ends and not self.problems

    def ask(self, command: str, **arguments: object) -> None:
        """Note how it was answered. Only an answer counts: a refusal is one."""
        try:
            with Client(self.run_dir) as client:
                client.request(command, within_s=ANSWER_LIMIT_S, **arguments)
            self.answers[f"{command}: done"] += 1
        except CommandError as e:
            self.answers[f"{command}: refused"] += 1
            if "internal error" in str(e):
                self.problems.append(f"{command}: {e}")
        except UnreachableError as e:
            self.problems.append(f"{command}: {e}")

    def status(self) -> DroStatus:
        with Client(self.run_dir) as client:
            return client.ask(DroStatus, "status")

    def workers(self) -> dict[str, WorkerStatus]:
        return {worker.name: worker for worker in self.status().workers}


def operate(stress: StressRun, seed: int) -> None:
    rng = random.Random(seed)
    while stress.goes_on():
        action = rng.choice(ACTIONS)
        if action == "reload":
            stress.ask("reload")
            continue
        limit = {"limit_s": rng.choice((0, 0.2, 5))} if action in ("drain", "remove") else {}
        stress.ask(f"portal {action}", name=rng.choice(PORTALS), **limit)
        stress.ask("portals")


def harm(stress: StressRun, seed: int) -> None:
    rng = random.Random(seed)
    while stress.goes_on():
        with contextlib.suppress(ProcessLookupError, KeyError, FileNotFoundError):
            victim = stress.site.worker(rng.choice((*PORTALS, "route-manager")))
            os.kill(victim, rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)))
            time.sleep(rng.random() * 1.5)
            os.kill(victim, signal.SIGCONT)
        time.sleep(rng.random())


def bother(stress: StressRun, seed: int) -> None:
    rng = random.Random(seed)
    while stress.goes_on():
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(1)
            sock.connect(str(stress.run_dir / "admin"))
            sock.sendall(rng.randbytes(rng.randrange(300)) + rng.choice((b"", b"\n", b'{"command": "portals"}\n' * 50)))
        time.sleep(rng.random() / 20)


def put_right(stress: StressRun) -> None:
    """All portals ready again, by orders alone."""
    deadline = time.monotonic() + RIGHT_LIMIT_S
    while time.monotonic() < deadline:
        workers = stress.workers()
        missing = [name for name in PORTALS if name not in workers]
        resting = [name for name, worker in workers.items() if worker.state in ("paused", "drained")]
        if not missing and all(worker.state == "ready" for worker in workers.values()):
            return
        for name in missing:
            stress.ask("portal add", name=name)
        for name in resting:
            stress.ask("portal resume", name=name)
        time.sleep(0.1)
    stress.problems.append(f"not ready in the end: {stress.status().workers}")


def run(seconds: float, operators: int, seed: int) -> tuple[Counter[str], list[str]]:
    """How orders were answered, and what went wrong."""
    with (
        tempfile.TemporaryDirectory(prefix="dro-o-") as name,
        running(Site(Path(name), 3, um=dict.fromkeys((1, 2, 3), SHORT))) as site,
    ):
        pid = site.pid
        stress = StressRun(site, seconds)
        wait_until(lambda: stress.status().is_running, "a running DRO")
        work = [(operate, seed + n) for n in range(operators)] + [(harm, seed), (bother, seed)]
        threads = [threading.Thread(target=target, args=(stress, number), daemon=True) for target, number in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        put_right(stress)
        pids = {worker.pid for worker in stress.status().workers}
        children = set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
        if children - pids:
            stress.problems.append(f"processes too many: {children - pids}")
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        if descriptors > 40:
            stress.problems.append(f"{descriptors} descriptors in the parent")
        status = site.stop()
        if status:
            stress.problems.append(f"exit status {status}")
        if left := [p for p in pids if is_running(p)] + site.leftovers(pid):
            stress.problems.append(f"left: {left}")
        if "Traceback" in site.log:
            stress.problems.append(site.log[site.log.index("Traceback") - 500 :][:4000])
        return stress.answers, stress.problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--operators", type=int, default=5)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    args = parser.parse_args()
    print(f"seed {args.seed}")
    answers, problems = run(args.seconds, args.operators, args.seed)
    for what, count in sorted(answers.items()):
        print(f"  {what:28}{count:>6}")
    print("\n".join(problems) if problems else "  all well")
    raise SystemExit(bool(problems))


if __name__ == "__main__":
    main()
