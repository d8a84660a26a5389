"""Several operators, a killer and a stranger at once, for a while: `python -m tests.bench.operators --seconds 60`.

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

from supervisor.ctl_client import Client, CommandError, UnreachableError, find_dro
from supervisor.status import DroStatus, WorkerStatus
from tests.fakes.dro_run import is_running
from tests.fakes.site import Site, running, wait_until

PORTALS: Final = ("P1", "P2", "P3")
ACTIONS: Final = ("restart", "pause", "resume", "drain", "add", "remove", "reload")
ANSWER_LIMIT_S: Final = 150.0
RIGHT_LIMIT_S: Final = 60.0
SHORT: Final = "receiver transport_lbtrm_nak_generation_interval 500\n"


class Yard:
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


def operate(yard: Yard, seed: int) -> None:
    rng = random.Random(seed)
    while yard.goes_on():
        action = rng.choice(ACTIONS)
        if action == "reload":
            yard.ask("reload")
            continue
        limit = {"limit_s": rng.choice((0, 0.2, 5))} if action in ("drain", "remove") else {}
        yard.ask(f"portal {action}", name=rng.choice(PORTALS), **limit)
        yard.ask("portals")


def harm(yard: Yard, seed: int) -> None:
    rng = random.Random(seed)
    while yard.goes_on():
        with contextlib.suppress(ProcessLookupError, KeyError, FileNotFoundError):
            victim = yard.site.worker(rng.choice((*PORTALS, "route-manager")))
            os.kill(victim, rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)))
            time.sleep(rng.random() * 1.5)
            os.kill(victim, signal.SIGCONT)
        time.sleep(rng.random())


def bother(yard: Yard, seed: int) -> None:
    rng = random.Random(seed)
    while yard.goes_on():
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(1)
            sock.connect(str(yard.run_dir / "admin"))
            sock.sendall(rng.randbytes(rng.randrange(300)) + rng.choice((b"", b"\n", b'{"command": "portals"}\n' * 50)))
        time.sleep(rng.random() / 20)


def put_right(yard: Yard) -> None:
    """All portals ready again, by orders alone."""
    deadline = time.monotonic() + RIGHT_LIMIT_S
    while time.monotonic() < deadline:
        workers = yard.workers()
        missing = [name for name in PORTALS if name not in workers]
        resting = [name for name, worker in workers.items() if worker.state in ("paused", "drained")]
        if not missing and all(worker.state == "ready" for worker in workers.values()):
            return
        for name in missing:
            yard.ask("portal add", name=name)
        for name in resting:
            yard.ask("portal resume", name=name)
        time.sleep(0.1)
    yard.problems.append(f"not ready in the end: {yard.status().workers}")


def run(seconds: float, operators: int, seed: int) -> tuple[Counter[str], list[str]]:
    """How orders were answered, and what went wrong."""
    with (
        tempfile.TemporaryDirectory(prefix="dro-o-") as name,
        running(Site(Path(name), 3, um=dict.fromkeys((1, 2, 3), SHORT))) as site,
    ):
        pid = site.pid
        yard = Yard(site, seconds)
        wait_until(lambda: yard.status().is_running, "a running DRO")
        work = [(operate, seed + n) for n in range(operators)] + [(harm, seed), (bother, seed)]
        threads = [threading.Thread(target=target, args=(yard, number)) for target, number in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        put_right(yard)
        pids = {worker.pid for worker in yard.status().workers}
        children = set(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
        if children - pids:
            yard.problems.append(f"processes too many: {children - pids}")
        descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        if descriptors > 40:
            yard.problems.append(f"{descriptors} descriptors in the parent")
        status = site.stop()
        if status:
            yard.problems.append(f"exit status {status}")
        if left := [p for p in pids if is_running(p)] + site.leftovers(pid):
            yard.problems.append(f"left: {left}")
        if "Traceback" in site.log:
            yard.problems.append(site.log[site.log.index("Traceback") - 500 :][:4000])
        return yard.answers, yard.problems


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
