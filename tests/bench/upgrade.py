"""Replaces a DRO under load, in the ways of docs/upgrade.md, and reports what each loses.

One flow from TRD 1 to TRD 2 over LBT-RM or TCP. `beside`: the next release is started as a second, costlier DRO of the
same TRDs, and the old one is drained. `another way`: A and C are joined by B and by a costlier link; B is drained,
started again, and the flow is back. `restart`: a DRO that stands alone is stopped and started at once. `portal`: its
egress portal is restarted, clean. `go on`: likewise, and the next process goes on. `in place`: `tnwgdctl upgrade`. Each
DRO has default timers unless `--quick` is given.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.rigs.flow import DUPLICATES, PAUSE, PAUSED, RECEIVED, SENT, Board
from tests.rigs.loaded import Loaded
from tests.rigs.network import QUICK, Plan
from tests.rigs.orders import order
from tests.rigs.site import ROOT
from tests.rigs.waiting import wait_until

SETTLED_S: Final = 2.0
"""Without anything new, after the source has paused: what has not come by then is lost."""
LOOK_S: Final = 0.002


@dataclass(frozen=True)
class Outcome:
    """Tells what became of a flow while a DRO was replaced."""

    way: str
    transport: str
    sent: int
    lost: int
    again: int
    pause_s: float
    """Longest time in which nothing came."""
    took_s: float

    def __str__(self) -> str:
        return (
            f"{self.way:<12} {self.transport:<6} {self.sent:>8} sent {self.lost:>6} lost {self.again:>4} twice "
            f"{self.pause_s:>7.2f} s longest pause {self.took_s:>6.1f} s in all"
        )


class Network:
    """Real DROs of a plan, and one flow from TRD 1 to TRD 2."""

    def __init__(self, plan: Plan, topics: int, rate: int) -> None:
        self.plan = plan
        self.dros: dict[str, subprocess.Popen[bytes]] = {}
        self.flow = Board.create(plan.folder, "flow", topics)
        self._clients = [
            self._run(f"client{trd}", "tests.rigs.flow", str(plan.config(trd)), *map(str, words))
            for trd, words in ((1, ("--send", self.flow.path, "--rate", rate)), (2, ("--receive", self.flow.path)))
        ]

    def _run(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.plan.folder / f"{name}.log").open("ab") as log:
            return Loaded([sys.executable, "-m", *words], cwd=ROOT, stdout=log, stderr=log, start_new_session=True)

    def log(self, name: str) -> str:
        return (self.plan.folder / f"{name}.log").read_text()

    def start(self, *names: str) -> None:
        began = {name: self.log(name).count("has started") if name in self.dros else 0 for name in names}
        for name in names:
            self.dros[name] = self._run(name, "supervisor.main", str(self.plan.file(name)))
        for name in names:
            wait_until(lambda n=name: self.log(n).count("has started") > began[n], f"{name} runs", 60)  # type: ignore[misc]

    def order(self, name: str, *words: str) -> None:
        order(self.dros[name].pid, *words)

    def has_routes(self, name: str, count: int) -> bool:
        return len(order(self.dros[name].pid, "routes")["routes"]) >= count  # type: ignore[arg-type]

    def knows(self, name: str, other: str) -> bool:
        known = order(self.dros[name].pid, "topology")["dros"]
        return any(dro["dro"].startswith(other) and dro["agrees"] for dro in known)  # type: ignore[attr-defined]

    def leave(self, name: str) -> None:
        """Drain that DRO, and wait for its end."""
        self.order(name, "drain", "--all", "--limit", "60")
        assert self.dros[name].wait(60) == 0, self.log(name)

    def wait_flowing(self) -> None:
        self.flow.mark()
        wait_until(lambda: min(self.flow.after_mark()) >= 0, "all topics flow", 120, self.flow.story)

    def measure(self, way: str, transport: str, replace: Callable[[], object]) -> Outcome:
        """Measure what the flow loses while `replace` does that; every topic flows before, and again at the end."""
        self.wait_flowing()
        self._pause()
        flow = self.flow
        before = [flow[cell] for cell in (SENT, RECEIVED, DUPLICATES)]
        longest, is_over = 0.0, threading.Event()

        def look() -> None:
            nonlocal longest
            count, since = flow[RECEIVED], time.monotonic()
            while not is_over.wait(LOOK_S):
                if flow[RECEIVED] != count:
                    count, since = flow[RECEIVED], time.monotonic()
                longest = max(longest, time.monotonic() - since)

        flow[PAUSE] = 0
        self.wait_flowing()
        began = time.monotonic()
        looker = threading.Thread(target=look)
        looker.start()
        try:
            replace()
            self.wait_flowing()
            took = time.monotonic() - began
        finally:
            is_over.set()
            looker.join()
        self._pause()
        sent, received, again = (flow[c] - b for c, b in zip((SENT, RECEIVED, DUPLICATES), before, strict=True))
        return Outcome(way, transport, sent, sent - (received - again), again, longest, took)

    def _pause(self) -> None:
        """Let nothing be sent, and wait until nothing comes any more."""
        flow = self.flow
        flow[PAUSE] = 1
        wait_until(lambda: flow[PAUSED], "the pause")
        count, since = flow[RECEIVED], time.monotonic()

        def is_still() -> bool:
            nonlocal count, since
            if flow[RECEIVED] != count:
                count, since = flow[RECEIVED], time.monotonic()
            return time.monotonic() - since > SETTLED_S

        wait_until(is_still, "nothing on its way", 60)

    def close(self) -> None:
        running = [*self.dros.values(), *self._clients]
        for process in running:
            process.send_signal(signal.SIGTERM)
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()


@contextlib.contextmanager
def network(
    folder: Path, dros: dict[str, list[int | str]], transport: str, rate: int, topics: int, *, is_quick: bool
) -> Iterator[Network]:
    """The plan, where the link between A and C, and the portals of NEW, cost more than the others."""
    costly = dict.fromkeys(("A-C", "C-A", "NEW-1", "NEW-2"), "<cost>20</cost>")
    plan = Plan(folder, dros, transport=transport, portal_xml=costly, daemon=QUICK if is_quick else "")
    with contextlib.closing(plan):
        made = Network(plan, topics, rate)
        try:
            yield made
        finally:
            made.close()


def beside(folder: Path, transport: str, rate: int, topics: int, *, is_quick: bool) -> Outcome:
    """Start the next release beside a DRO that stands alone, and drain that."""
    with network(folder, {"OLD": [1, 2], "NEW": [1, 2]}, transport, rate, topics, is_quick=is_quick) as net:
        net.start("OLD")

        def replace() -> None:
            net.start("NEW")
            for one, other in (("OLD", "NEW"), ("NEW", "OLD")):
                wait_until(lambda a=one, b=other: net.knows(a, b), f"{one} knows {other}", 60)  # type: ignore[misc]
            net.leave("OLD")

        return net.measure("beside", transport, replace)


def another_way(folder: Path, transport: str, rate: int, topics: int, *, is_quick: bool) -> Outcome:
    """Drain the DRO in the middle of a network with another way, and start it again."""
    dros: dict[str, list[int | str]] = {"A": [1, "B", "C"], "B": ["A", "C"], "C": [2, "A", "B"]}
    with network(folder, dros, transport, rate, topics, is_quick=is_quick) as net:
        net.start("A", "B", "C")
        wait_until(lambda: net.has_routes("B", 2), "routes through B", 60)

        def replace() -> None:
            net.leave("B")
            net.start("B")
            wait_until(lambda: net.has_routes("B", 2), "routes through B again", 60)

        return net.measure("another way", transport, replace)


def restart(folder: Path, transport: str, rate: int, topics: int, *, is_quick: bool) -> Outcome:
    """Stop a DRO that stands alone in good order, and start it at once."""
    with network(folder, {"OLD": [1, 2]}, transport, rate, topics, is_quick=is_quick) as net:
        net.start("OLD")

        def replace() -> None:
            net.dros["OLD"].send_signal(signal.SIGTERM)
            assert net.dros["OLD"].wait(30) == 0
            net.start("OLD")

        return net.measure("restart", transport, replace)


def portal(folder: Path, transport: str, rate: int, topics: int, *, is_quick: bool) -> Outcome:
    """Restart the egress portal of a DRO."""
    with network(folder, {"OLD": [1, 2]}, transport, rate, topics, is_quick=is_quick) as net:
        net.start("OLD")
        return net.measure("portal", transport, lambda: net.order("OLD", "portal", "restart", "OLD-2", "--clean"))


def in_place(folder: Path, transport: str, rate: int, topics: int, *, is_quick: bool) -> Outcome:
    """Move a DRO to the version that it has, as to any other one."""
    with network(folder, {"OLD": [1, 2]}, transport, rate, topics, is_quick=is_quick) as net:
        net.start("OLD")
        return net.measure("in place", transport, lambda: net.order("OLD", "upgrade", "--to", sys.executable))


def go_on(folder: Path, transport: str, rate: int, topics: int, *, is_quick: bool) -> Outcome:
    """Restart the egress portal of a DRO so that it goes on."""
    with network(folder, {"OLD": [1, 2]}, transport, rate, topics, is_quick=is_quick) as net:
        net.start("OLD")
        return net.measure("go on", transport, lambda: net.order("OLD", "portal", "restart", "OLD-2"))


WAYS: Final = {
    "in-place": in_place,
    "beside": beside,
    "another-way": another_way,
    "restart": restart,
    "portal": portal,
    "go-on": go_on,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--transports", nargs="+", choices=("lbtrm", "tcp"), default=["lbtrm", "tcp"])
    parser.add_argument("--rate", type=int, default=1000, help="messages a second over all topics (default 1000)")
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--quick", action="store_true", help="short intervals of route information")
    args = parser.parse_args()
    for way in args.ways:
        for transport in args.transports:
            with tempfile.TemporaryDirectory(prefix="dro-upgrade-") as folder:
                print(WAYS[way](Path(folder), transport, args.rate, args.topics, is_quick=args.quick), flush=True)


if __name__ == "__main__":
    main()
