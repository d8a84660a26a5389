"""Breaks a triangle of real DROs under load, with default timers or the fast ones: how long receivers heard nothing.

DROs A, B and C have TRDs 1, 2 and 3. Five topics go from TRD 1 to TRD 3 and five the other way, by B, as the link
between A and C costs more, `--rate` messages a second in all. Each fault has a network of its own and lasts for 26 s,
flapping aside, or 8 s with the fast profile; what is killed in a DRO is started again by it. Silence: the longest time
without a message of a topic, of all topics; `expected` is what `SUMS` adds up from the default options. `--fault none`
shows whether the rate arrives at all: that is how the highest one is found.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from dro.clock import NS_PER_MS
from tests.netns.test_peer_links import Dros, dros_of
from tests.rigs.loaded import prepare
from tests.rigs.netns.examples import CALCULATED, Flow, Network, Station
from tests.rigs.netns.harness import Net
from tests.rigs.netns.namespace import command
from tests.rigs.network import Plan

TOPICS: Final = 5
RATE: Final = 6000
PATIENCE_NS: Final = 90 * 10**9
BEHIND_NS: Final = 20 * NS_PER_MS
"""Messages that are due for longer, as this process had no turn, are not sent at all."""
PROFILES: Final = {"default": (26.0, 14.0), "fast": (8.0, 6.0)}
"""Seconds of a fault, and after it."""
FAST: Final = ("<extensions><fast-recalculation/></extensions>", "<fast-keepalive/><canary/>")
FLAPS: Final = 5
LARGE: Final = 400
CHECK, PROPAGATION, TIMEOUT, BACKOFF, KEEPALIVE, DELETION = 0.75, 1.0, 4.0, 5.0, 15.0, 1.0
"""Defaults, seconds: route-info check, propagation and timeout; backoff; keepalive timeout; source-deletion-delay."""
CLOSED: Final = (BACKOFF, BACKOFF + CHECK + PROPAGATION + DELETION)
SILENT: Final = (KEEPALIVE + CLOSED[0], KEEPALIVE + CLOSED[1])
UNHEARD: Final = (TIMEOUT + BACKOFF, TIMEOUT + CHECK + BACKOFF + CHECK + DELETION)
NOTHING: Final = (0.0, DELETION)
STARTED_AGAIN: Final = (0.0, CLOSED[1])
"""The DRO starts what was killed at once; at worst the way is another one meanwhile."""
SUMS: Final[dict[str, tuple[float, float]]] = {
    "peer TCP cut": CLOSED,
    "peer black hole": SILENT,
    "endpoint portal killed": STARTED_AGAIN,
    "peer portal killed": STARTED_AGAIN,
    "route manager killed": NOTHING,
    "DRO killed": CLOSED,
    "DRO frozen and resumed": UNHEARD,
    "link flapping": CLOSED,  # the initiator tries again when it is over
    "loss of 20 % one way": NOTHING,
    "only large packets lost": SILENT,
}


class Triangle:
    """The network and its traffic."""

    def __init__(self, dros: Dros, rate: int, fault_s: float) -> None:
        self.dros, self.loop = dros, dros.loop
        self.interval_ns = 2 * TOPICS * 1_000_000_000 // rate
        self.fault_s = fault_s
        self._due_ns = 0
        station = cast(Network, SimpleNamespace(loop=dros.loop, example=dros.plan))
        self.ends = {trd: Station(station, trd) for trd in (1, 3)}
        self.flows = []
        for nth in range(TOPICS):
            for sender, receiver in ((1, 3), (3, 1)):
                topic = b"%d-%d.%d" % (sender, receiver, nth)
                self.ends[receiver].context.want_topic(topic)
                self.flows.append(Flow(topic, self.ends[sender], [self.ends[receiver]]))
        self.silence_s = dict.fromkeys(range(len(self.flows)), 0.0)
        self._heard = dict.fromkeys(range(len(self.flows)), (0, 0))

    def until(self, holds: Callable[[], bool]) -> None:
        deadline_ns = self.loop.now_ns() + PATIENCE_NS
        while not holds():
            now_ns = self.loop.now_ns()
            assert now_ns < deadline_ns, "nothing came in time"
            self._due_ns = max(self._due_ns, now_ns - BEHIND_NS)
            while self._due_ns <= now_ns:
                for flow in self.flows:
                    flow.send()
                self._due_ns += self.interval_ns
            for nth, flow in enumerate(self.flows):
                self._listen(nth, flow)
            self.loop.run_once(NS_PER_MS)

    def _listen(self, nth: int, flow: Flow) -> None:
        count, now_ns = len(flow.receivers[0].got[flow.topic]), self.loop.now_ns()
        before, at_ns = self._heard[nth]
        self.silence_s[nth] = max(self.silence_s[nth], (now_ns - at_ns) / 1e9 if at_ns else 0.0)
        if count != before or not at_ns:
            self._heard[nth] = count, now_ns

    def run(self, seconds: float) -> None:
        end_ns = self.loop.now_ns() + int(seconds * 1e9)
        self.until(lambda: self.loop.now_ns() >= end_ns)

    def begin(self) -> None:
        """Forget what was before."""
        self._heard = dict.fromkeys(self._heard, (0, 0))
        self.silence_s = dict.fromkeys(self.silence_s, 0.0)

    @contextlib.contextmanager
    def ruled(self, verdict: str, ways: tuple[str, ...] = ("sport", "dport")) -> Iterator[None]:
        """What becomes of the packets of the link between A and B."""
        port = self.dros.plan.link_port("A", "B")
        lines = ["add table ip fault", "add chain ip fault in { type filter hook input priority 0; }"]
        lines += [f"add rule ip fault in tcp {way} {port} {verdict}" for way in ways]
        nft = ["ip", "netns", "exec", self.dros.host.namespace, "nft"]
        command([*nft, "-f", "-"], "\n".join(lines) + "\n")
        try:
            yield
        finally:
            command([*nft, "delete", "table", "ip", "fault"])

    def kill(self, dro: str, worker: str) -> None:
        os.kill(self.dros.workers(dro)[worker], signal.SIGKILL)
        self.run(self.fault_s)

    def do(self, fault: str) -> None:
        reset = "tcp flags & rst == 0 reject with tcp reset"
        match fault:
            case "peer TCP cut":
                with self.ruled(reset):
                    self.run(self.fault_s)
            case "peer black hole":
                with self.ruled("drop"):
                    self.run(self.fault_s)
            case "endpoint portal killed":
                self.kill("A", "A-1")
            case "peer portal killed":
                self.kill("A", "A-B")
            case "route manager killed":
                self.kill("A", "route-manager")
            case "DRO killed":
                self.dros.kill("B")
                self.run(self.fault_s)
            case "DRO frozen and resumed":
                pid = self.dros.processes["B"].pid
                os.killpg(pid, signal.SIGSTOP)
                self.run(self.fault_s)
                os.killpg(pid, signal.SIGCONT)
            case "none":
                self.run(self.fault_s)
            case "link flapping":
                for _ in range(FLAPS):
                    with self.ruled(reset):
                        self.run(0.5)
                    self.run(0.5)
                self.run(self.fault_s)
            case "loss of 20 % one way":
                with self.ruled("numgen random mod 5 == 0 drop", ("dport",)):
                    self.run(self.fault_s)
            case "only large packets lost":
                with self.ruled(f"ip length > {LARGE} drop"):
                    self.run(self.fault_s)
            case _:
                raise ValueError(fault)


def written(folder: Path, profile: str) -> Plan:
    """The files, with default options but for the way of the traffic, and the profile."""
    xml = dict.fromkeys(("A-C", "C-A"), "<cost>20</cost>")
    dros: dict[str, list[int | str]] = {"A": [1, "B", "C"], "B": [2, "A", "C"], "C": [3, "A", "B"]}
    daemon, peer_xml = FAST if profile == "fast" else ("", "")
    plan = Plan(folder, dros, portal_xml=xml, peer_xml=peer_xml, daemon=daemon)
    for dro in dros:
        path = plan.file(dro)
        path.write_text(path.read_text().replace(' reconnect-interval="1000"', ""))
    return plan


def measured(fault: str, profile: str, rate: int) -> dict[str, Any]:
    """One fault in a network of its own."""
    fault_s, after_s = PROFILES[profile]
    with tempfile.TemporaryDirectory() as folder, Net(Path(folder)) as net:
        prepare()
        with dros_of(net, written(Path(folder), profile)) as dros:
            for name in "ABC":
                dros.start(name)
            triangle = Triangle(dros, rate, fault_s)
            for process in dros.processes.values():
                triangle.until(lambda process=process: CALCULATED in process.stdout)  # type: ignore[misc]
            triangle.until(lambda: all(flow.is_heard for flow in triangle.flows))
            triangle.run(8.0 + random.random())
            triangle.begin()
            firsts = [flow.sent for flow in triangle.flows]
            began_ns = dros.loop.now_ns()
            triangle.do(fault)
            per_s = sum(flow.sent for flow in triangle.flows) - sum(firsts)
            per_s = round(per_s * 1e9 / (dros.loop.now_ns() - began_ns))
            silence_s = max(triangle.silence_s.values())
            during = [flow.flows(flow.sent - 100, 1) for flow in triangle.flows]
            triangle.run(after_s)
            after = [flow.flows(flow.sent - 100, 1) for flow in triangle.flows]
            lost = sent = doubled = 0
            for flow, first in zip(triangle.flows, firsts, strict=True):
                got = flow.receivers[0].got[flow.topic]
                sent += flow.sent - first
                lost += len(set(range(first, got[-1])) - set(got))
                doubled += len(got) - len(set(got))
            for end in triangle.ends.values():
                end.context.close()
    return {
        "silence_s": silence_s, "recovered": all(during), "after": all(after), "sent": sent, "lost": lost,
        "duplicates": doubled, "sent_per_s": per_s,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Faults of a triangle of DROs, and what receivers notice.")
    parser.add_argument("--fault", choices=[*SUMS, "none"], help="one, as JSON; else all, as a table")
    parser.add_argument("--profile", choices=list(PROFILES), default="default")
    parser.add_argument("--rate", type=int, default=RATE, help=f"messages a second of all topics (default {RATE})")
    parser.add_argument("--jobs", type=int, default=2, help="networks at a time (default 2)")
    arguments = parser.parse_args()
    if arguments.fault:
        print(json.dumps(measured(arguments.fault, arguments.profile, arguments.rate)))
        return 0

    def run(fault: str) -> dict[str, Any]:
        argv = [sys.executable, "-m", "tests.bench.faults", "--fault", fault, "--profile", arguments.profile]
        argv += ["--rate", str(arguments.rate)]
        answer: dict[str, Any] = json.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True).stdout)
        return answer

    is_fast = arguments.profile == "fast"
    print(f"| fault | {'' if is_fast else 'expected, s | '}silence, s | flows again | sent | lost | duplicates |")
    print("|---|---|---|---|---|---|" + ("" if is_fast else "---|"))
    is_well = True
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for fault, found in zip(SUMS, pool.map(run, SUMS), strict=True):
            low, high = SUMS[fault]
            is_well &= not found["duplicates"]
            again = "yes" if found["recovered"] else "after its end" if found["after"] else "no"
            expected = "" if is_fast else f"{low:g} - {high:g} | "
            print(
                f"| {fault} | {expected}{found['silence_s']:.2f} | {again} | {found['sent']} "
                f"| {found['lost']} | {found['duplicates']} |",
                flush=True,
            )
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
