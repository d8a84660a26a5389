"""Each attack of a stranger in a TRD and of a hostile companion beside a flow: nothing lost, nothing grows or stops."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from dro.bus.cycle_search import own_bytes
from supervisor.tools.ctl.main import main
from tests.rigs.effort import IS_LONG
from tests.rigs.flow import DUPLICATES, MISSING, RECEIVED, Board
from tests.rigs.liars import Liar
from tests.rigs.loaded import Loaded
from tests.rigs.network import Plan
from tests.rigs.site import ROOT
from tests.rigs.waiting import wait_until

SECONDS: Final = 60 if IS_LONG else 0.7
"""Of each attack."""
RATE: Final = 1000
GROWN: Final = 200 << 20
NAMES_GROWN: Final = 1 << 30
"""For the topics that are asked for, which are bounded by number: at the most a site of 131,072 topics."""
LINES: Final = 1000
DROS: Final = ("A", "B", "C")

pytestmark = pytest.mark.slow


class Chain:
    """Three DROs with default timers, and a flow from TRD 1 to TRD 3. TRD 2 and a companion of B are the attacker's."""

    def __init__(self, folder: Path) -> None:
        self.plan = Plan(folder, {"A": [1, "B"], "A2": ["B"], "B": [2, "A", "A2", "C"], "C": [3, "B"]}, daemon="")
        self.flow = Board.create(folder, "flow", 10)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in DROS:
            self._start(name, "supervisor.main", str(self.plan.file(name)))
        self._start(
            "send", "tests.rigs.flow", str(self.plan.config(1)), "--send", str(self.flow.path), "--rate", str(RATE)
        )
        self._start("receive", "tests.rigs.flow", str(self.plan.config(3)), "--receive", str(self.flow.path))

    def _start(self, name: str, *words: str) -> None:
        with self.log(name).open("wb") as log:
            self.processes[name] = Loaded([sys.executable, "-m", *words], cwd=ROOT, stdout=log, stderr=log)

    def log(self, name: str) -> Path:
        return self.plan.folder / f"{name}.log"

    def logs(self) -> str:
        return "\n".join(f"{name}:\n{self.log(name).read_text()[-3000:]}" for name in self.processes)

    def lines(self) -> int:
        return sum(self.log(name).read_text().count("\n") for name in DROS)

    def pids(self) -> list[int]:
        """Of all workers."""
        children = (Path(f"/proc/{pid}/task/{pid}/children") for pid in (self.processes[n].pid for n in DROS))
        return [int(pid) for path in children for pid in path.read_text().split()]

    def close(self) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
        self.plan.close()


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    made = Chain(tmp_path)
    try:
        wait_until(lambda: made.flow.is_flowing, "a flow", 90, made.logs)
        yield made
    finally:
        made.close()


def routes_of(chain: Chain, capsys: pytest.CaptureFixture[str]) -> list[Any]:
    """Of all DROs, between the domains that there are."""
    found: list[Any] = []
    for name in DROS:
        capsys.readouterr()
        assert main(["routes", "--dro", f"{name}{chain.plan.base}", "--json", "--limit", "100000"]) == 0
        rows = json.loads(capsys.readouterr().out)["routes"]
        found += sorted((name, *map(str, row.values())) for row in rows)
    return found


def has_received(flow: Board, count: int) -> bool:
    return flow[RECEIVED] >= count


def test_attacks_beside_a_flow_cost_it_nothing(chain: Chain, capsys: pytest.CaptureFixture[str]) -> None:
    wait_until(lambda: len(routes_of(chain, capsys)) >= 14, "routes between all", 60, chain.logs)
    routes, pids = routes_of(chain, capsys), chain.pids()
    flow = chain.flow
    liar = Liar(chain.plan, "B", 2, "A2")
    report: list[str] = []
    with contextlib.closing(liar):
        for name, rate, attack in liar.attacks():
            before, missing, again, lines = flow[RECEIVED], flow[MISSING], flow[DUPLICATES], chain.lines()
            memory = sum(map(own_bytes, pids))
            began, done = time.monotonic(), 0
            while (spent := time.monotonic() - began) < SECONDS:
                while done < spent * rate:
                    attack(done)
                    done += 1
                time.sleep(0.002)
            wait_until(partial(has_received, flow, before + int(SECONDS * RATE * 0.9)), "the flow", 60, chain.logs)
            grown = (sum(map(own_bytes, chain.pids())) - memory) >> 20
            report.append(
                f"{name}: {done} times, {flow[RECEIVED] - before} received, {flow[MISSING] - missing} lost, "
                f"{flow[DUPLICATES] - again} twice, {grown} MiB, {chain.lines() - lines} lines"
            )
            assert chain.pids() == pids, "\n".join([*report, chain.logs()])
            assert (flow[MISSING], flow[DUPLICATES]) == (0, 0), "\n".join([*report, chain.logs()])
            assert grown < (NAMES_GROWN if name == "new names" else GROWN) >> 20, report
            assert chain.lines() - lines < LINES, "\n".join([*report, chain.logs()])
        (chain.plan.folder / "report.txt").write_text("\n".join(report))
    wait_until(lambda: routes_of(chain, capsys) == routes, "the same routes", 60, chain.logs)
