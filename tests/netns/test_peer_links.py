"""Three real DROs joined by peer links, on the loopback interface of one namespace: processes die, messages go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dro.loop import Loop
from tests.fakes.um_contexts import turn_until
from tests.rigs.netns.capture import judge, ports
from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.namespace import ip
from tests.rigs.netns.process import Process
from tests.rigs.network import Application, Plan
from tests.rigs.site import PORTS_PER_TRD

pytestmark = [pytest.mark.netns, pytest.mark.tshark]

SOUTH, NORTH = b"south", b"north"
COST = "<cost>20</cost>"
"""Of the link between A and C: the way between TRDs 1 and 3 is that by B."""


@dataclass
class Dros:
    """A `tnwgd` for each DRO of a plan, and applications in this process."""

    plan: Plan
    host: Host
    loop: Loop
    processes: dict[str, Process] = field(default_factory=dict)
    _applications: list[Application] = field(default_factory=list)

    def application(self, trd: int) -> Application:
        made = Application(self, trd)  # type: ignore[arg-type]  # has a plan and a loop
        self._applications.append(made)
        return made

    def close(self) -> None:
        """Close the applications, of a test that has failed too: what is left open would fail the next one."""
        for application in self._applications:
            application.context.close()

    def start(self, name: str) -> None:
        self.processes[name] = self.host.start_python("-m", "supervisor.main", str(self.plan.file(name)), name=name)

    def workers(self, name: str) -> dict[str, int]:
        pid = self.processes[name].pid
        found: dict[str, int] = {}
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
                found[Path(f"/proc/{child}/comm").read_text().strip()] = int(child)
        return found

    def kill(self, name: str) -> None:
        """All processes of a DRO."""
        pids = [*self.workers(name).values(), self.processes.pop(name).pid]
        for pid in reversed(pids):
            os.kill(pid, signal.SIGKILL)

    def decoding(self) -> Iterator[str]:
        for nth, _ in enumerate(self.plan.trds):
            base = self.plan.base + nth * PORTS_PER_TRD
            yield ports("udp", base, "lbmr")
            yield ports("tcp", base + 1, "lbttcp", base + 19)
            yield ports("udp", base + 20, "lbtrm", base + 43)
            yield ports("tcp", base + 44, "lbttcp", base + 63)
        links = self.plan.base + len(self.plan.trds) * PORTS_PER_TRD
        if self.plan.links:
            yield ports("tcp", links, "lbttcp", links + len(self.plan.links) - 1)


@contextmanager
def dros_of(net: Net, plan: Plan) -> Iterator[Dros]:
    host = net.host("all", {})
    ip("link set lo multicast on", "route add 224.0.0.0/4 dev lo", namespace=host.namespace)
    with host.inside():
        loop = Loop()
        dros = Dros(plan, host, loop)
        try:
            yield dros
        finally:
            dros.close()
            loop.close()
            plan.close()


class Flow:
    """A message every few milliseconds from `sender` to `receiver`."""

    def __init__(self, dros: Dros, topic: bytes, sender: Application, receiver: Application) -> None:
        self._loop = dros.loop
        self.sender, self.receiver = sender, receiver
        self.source = sender.source(topic)
        receiver.context.want_topic(topic)
        self._next_ns = 0

    def go_on(self) -> None:
        if self._loop.now_ns() >= self._next_ns:
            self._next_ns = self._loop.now_ns() + 3_000_000
            self.sender.send(self.source)

    @property
    def behind(self) -> int:
        return self.sender.sent(self.source) - 1 - self.receiver.last_sqn()


class Flows:
    """Between TRDs 1 and 3, both ways."""

    def __init__(self, dros: Dros) -> None:
        self._loop = dros.loop
        self.ends = [dros.application(trd) for trd in (1, 3)]
        self.all = [Flow(dros, SOUTH, *self.ends), Flow(dros, NORTH, *reversed(self.ends))]

    def until(self, holds: Callable[[], bool]) -> None:
        def look() -> bool:
            for flow in self.all:
                flow.go_on()
            return holds()

        turn_until(self._loop, look)

    def again(self) -> None:
        """Fifty messages in a row arrive, both ways."""
        self.until(lambda: all(flow.receiver.last_sqn() >= 0 and flow.behind <= 3 for flow in self.all))
        edges = [flow.sender.sent(flow.source) + 50 for flow in self.all]
        self.until(lambda: all(f.receiver.last_sqn() >= edge for f, edge in zip(self.all, edges, strict=True)))

    def got(self) -> list[list[int]]:
        return [flow.receiver.got(flow.source) for flow in self.all]

    def close(self) -> None:
        for application in self.ends:
            application.context.close()


def triangle(folder: Path) -> Plan:
    return Plan(
        folder, {"A": [1, "B", "C"], "B": [2, "A", "C"], "C": [3, "A", "B"]}, portal_xml={"A-C": COST, "C-A": COST}
    )


def test_a_triangle_of_processes_in_which_one_after_the_other_is_killed(net: Net, tmp_path: Path) -> None:
    with dros_of(net, triangle(tmp_path)) as dros:
        capture = net.start_capture(dros.host.namespace, "lo", "lo", "")
        for name in "ABC":
            dros.start(name)
        flows = Flows(dros)
        flows.again()
        before = dros.workers("B")
        assert {"B-A", "B-C", "B-2"} <= before.keys()
        os.kill(before["B-A"], signal.SIGKILL)
        flows.until(lambda: dros.workers("B").get("B-A", before["B-A"]) != before["B-A"])
        flows.again()
        dros.kill("B")
        flows.until(lambda: all(flow.behind > 0 for flow in flows.all))
        flows.again()
        dros.start("B")
        dros.processes["B"].wait_output("route recalculation took|routes calculated", 20)
        flows.again()
        for got in flows.got():
            assert got == sorted(set(got)), "nothing twice, nothing out of order"
        flows.close()
        for process in dros.processes.values():
            process.signal(signal.SIGTERM)
        assert [process.wait(20) for process in dros.processes.values()] == [0, 0, 0]
        verdict = judge(capture.stop(), dros.decoding())
    verdict.assert_clean({"lbttcp": 500, "lbtrm.data": 500, "lbmr.interest": 2, "lbmr.domain_route": 2})


def test_a_dro_that_is_drained_leaves_and_no_message_is_lost(net: Net, tmp_path: Path) -> None:
    """All flows go by B; the other way is there, and dearer. TRD 2 has no other way."""
    with dros_of(net, triangle(tmp_path)) as dros:
        capture = net.start_capture(dros.host.namespace, "lo", "lo", "")
        for name in "ABC":
            dros.start(name)
        flows = Flows(dros)
        flows.until(lambda: "routes=6" in dros.processes["B"].stdout)  # of all pairs: before that A and C need no B
        flows.again()
        firsts = [flow.sender.sent(flow.source) for flow in flows.all]
        order = dros.host.start_python(
            "-m", "supervisor.tools.ctl.main", "drain", "--all", "--limit", "30", "--dro", str(dros.processes["B"].pid)
        )
        flows.until(lambda: order.returncode is not None)
        assert order.wait(1) == 0, order.stderr
        assert "drained B-2, B-A, B-C; the DRO ends" in order.stdout
        assert "had no other way than through this DRO" in order.stderr
        left = dros.processes.pop("B")
        flows.until(lambda: left.returncode is not None)
        assert left.wait(1) == 0
        flows.again()
        for got, first, flow in zip(flows.got(), firsts, flows.all, strict=True):
            numbers = [number for number in got if number >= first]
            assert numbers[:-10] == list(range(first, first + len(numbers)))[:-10], flow.source.topic
        flows.close()
        for process in dros.processes.values():
            process.signal(signal.SIGTERM)
        assert [process.wait(20) for process in dros.processes.values()] == [0, 0]
        verdict = judge(capture.stop(), dros.decoding())
    verdict.assert_clean({"lbttcp": 500, "lbtrm.data": 500})
