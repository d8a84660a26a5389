"""A hub with many neighbours is killed and started again: how fast, and how hard, everything comes back.

`python -m tests.bench.hub --neighbours 50`: a DRO with a link to each of its neighbours, which have a TRD each; a topic
from TRD 1 is wanted in all others, one from the last TRD in TRD 1. All processes of the hub are killed, and it is
started again, with default timers. Prints how long it takes until all links are up and all flows are back, the most
handshakes at the hub in a second, the most records of topic resolution that a DRO sent in a TRD in a second, the
longest loop turns of the hub since it was started, and the log lines of that time. Writes JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Final, cast

from dro.clock import NS_PER_S, ms
from dro.loop import Loop
from tests.bench.dros import MANAGER, Daemons, Meter, tr_group, worst
from tests.rigs.loaded import Loaded
from tests.rigs.netns.examples import Flow, Network, Station
from tests.rigs.network import Plan

HUB: Final = "Z"  # the neighbours connect to it
ACCEPTED: Final = "accepted the companion"
BATCH: Final = 5
BETWEEN_S: Final = 1.0  # batches that start
INTERVAL_NS: Final = 20 * NS_PER_S // 1000
DOWN_S: Final = 3.0
AFTER_S: Final = 10.0
LIMIT_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Result:
    """Seconds are from the start of the hub, but for `silence_s`."""

    neighbours: int
    links_s: float
    flows_s: float
    silence_s: float  # from the kill until the last flow was back
    handshakes: int
    peak_handshakes: int  # in a second
    peak_records: int  # of the DRO in one TRD
    peak_records_all: int
    turn_at_start: tuple[str, float, float]  # the longest until all links were up
    longest_turn: tuple[str, float, float]
    manager_turn_ms: float
    hub_lines: int
    most_lines: int  # of a neighbour
    hub_cpu_s: float


def written(folder: Path, neighbours: int) -> Plan:
    names = [f"N{n:03}" for n in range(1, neighbours + 1)]
    dros: dict[str, list[int | str]] = {name: [trd, HUB] for trd, name in enumerate(names, 1)}
    plan = Plan(folder, dros | {HUB: list[int | str](names)}, peer_xml="", daemon="")
    for dro in plan.dros:
        path = plan.file(dro)
        path.write_text(path.read_text().replace(' reconnect-interval="1000"', ""))
    return plan


def peak_of(log: str, text: str) -> tuple[int, int]:
    """How many lines have that text, and the most of them within a second by the clock."""
    seconds = re.findall(rf"^\[([^.\]]+)[^\n]*{re.escape(text)}", log, re.MULTILINE)
    return len(seconds), max(Counter(seconds).values(), default=0)


class Scene:
    """The DROs, a context in each TRD, and two flows."""

    def __init__(self, stack: ExitStack, daemons: Daemons) -> None:
        self.daemons = daemons
        plan = daemons.plan
        self.loop = Loop()
        stack.callback(self.loop.close)
        self.meters = [Meter(*tr_group(plan, trd)) for trd in plan.trds]
        network = cast(Network, SimpleNamespace(loop=self.loop, example=plan))
        stations = [Station(network, trd) for trd in plan.trds]
        for meter in self.meters:
            stack.callback(meter.close)
        for station in stations:
            stack.callback(station.context.close)
        for station in stations[1:]:
            station.context.want_topic(b"out")
        stations[0].context.want_topic(b"back")
        self.flows = [Flow(b"out", stations[0], stations[1:]), Flow(b"back", stations[-1], stations[:1])]

    def until(self, holds: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                return False
            for flow in self.flows:
                flow.go_on(INTERVAL_NS)
            self.loop.run_once(ms(5))
            for meter in self.meters:
                meter.step()
        return True

    def run(self, seconds: float) -> None:
        self.until(lambda: False, seconds)

    def arrives(self) -> Callable[[], bool]:
        """Whether each receiver has got something that is sent from now on."""
        firsts = [flow.sent for flow in self.flows]

        def all_did() -> bool:
            return all(
                receiver.got[flow.topic][-1:] >= [first]
                for flow, first in zip(self.flows, firsts, strict=True)
                for receiver in flow.receivers
            )

        return all_did

    def peaks(self) -> tuple[int, int]:
        """The most records in a TRD in a second, and in all of them, since the last call."""
        counted = [meter.take() for meter in self.meters]
        total: Counter[int] = Counter()
        for counter in counted:
            total.update(counter)
        return max((max(c.values(), default=0) for c in counted), default=0), max(total.values(), default=0)


def measure(neighbours: int) -> Result:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dro-hub-")))
        daemons = stack.enter_context(Daemons(written(folder, neighbours), Loaded))
        scene = Scene(stack, daemons)
        began = time.monotonic()
        for nth, name in enumerate([HUB, *(name for name in daemons.plan.dros if name != HUB)]):
            daemons.start(name)
            if nth % BATCH == 0:
                scene.run(BETWEEN_S)
        if not scene.until(scene.arrives(), LIMIT_S):
            raise TimeoutError("not all flows came up at first")
        print(f"{neighbours} neighbours; first start, all flows up: {time.monotonic() - began:.1f} s", flush=True)
        scene.run(AFTER_S)
        first, first_all = scene.peaks()
        print(f"records of topic resolution in a second meanwhile: {first} in one TRD, {first_all} in all", flush=True)
        return restart(scene, neighbours)


def restart(scene: Scene, neighbours: int) -> Result:
    daemons, log = scene.daemons, scene.daemons.log_of(HUB)
    killed = time.monotonic()
    daemons.kill(HUB)
    scene.run(DOWN_S)
    before = {name: lines_of(daemons.log_of(name)) for name in daemons.plan.dros}
    old = len(log.read_text())
    scene.peaks()
    began = time.monotonic()
    daemons.start(HUB)
    scene.until(lambda: log.read_text()[old:].count(ACCEPTED) >= neighbours, LIMIT_S)
    links_s = time.monotonic() - began
    at_start = worst([daemons.look(HUB)])
    if not scene.until(scene.arrives(), LIMIT_S):
        print("not all flows are back")
    flows_s, silence_s = time.monotonic() - began, time.monotonic() - killed
    scene.run(AFTER_S)
    peak, peak_all = scene.peaks()
    workers = daemons.look(HUB)
    handshakes, peak_handshakes = peak_of(log.read_text()[old:], ACCEPTED)
    grown = {name: lines_of(daemons.log_of(name)) - count for name, count in before.items()}
    return Result(
        neighbours, round(links_s, 2), round(flows_s, 2), round(silence_s, 2), handshakes, peak_handshakes, peak,
        peak_all, at_start, worst([workers]), workers[MANAGER].turn_cpu_ms, grown.pop(HUB), max(grown.values()),
        round(sum(w.cpu_ns for w in workers.values()) / NS_PER_S, 2),
    )  # fmt: skip


def lines_of(path: Path) -> int:
    return path.read_text().count("\n")


def show(result: Result) -> None:
    (at_who, at_cpu, at_wall), (who, cpu, wall) = result.turn_at_start, result.longest_turn
    print(
        f"hub killed and started after {DOWN_S:.0f} s: all links up {result.links_s:.1f} s after its start, "
        f"all flows back {result.flows_s:.1f} s, {result.silence_s:.1f} s after the kill\n"
        f"handshakes at the hub: {result.handshakes}, {result.peak_handshakes} in a second at most\n"
        f"records of topic resolution in a second: {result.peak_records} in one TRD, {result.peak_records_all} in all\n"
        f"longest turn in the hub, CPU/clock ms: {at_cpu:.0f}/{at_wall:.0f} ({at_who}) until all links were up, "
        f"{cpu:.0f}/{wall:.0f} ({who}) in all, {result.manager_turn_ms:.0f} at the route manager\n"
        f"CPU of the hub: {result.hub_cpu_s:.1f} s; log lines: {result.hub_lines} at the hub, {result.most_lines} at a "
        f"neighbour at most",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="hub", description=__doc__.split("\n")[0])
    parser.add_argument("--neighbours", type=int, nargs="+", default=[50], help="default 50")
    parser.add_argument("--json", type=Path, default=Path("build/hub.json"), help="where the figures go")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    results = []
    for neighbours in arguments.neighbours:
        results.append(measure(neighbours))
        show(results[-1])
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"cpus": os.cpu_count(), "results": [asdict(r) for r in results]}, indent=1))
    print(f"figures in {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
