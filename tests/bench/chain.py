"""What many topics cost in a chain of three DROs: the time to resolve them, memory, idle CPU, changes of the routes.

`python -m tests.bench.chain --topics 1000 10000`: DROs A, B and C, each with a TRD; sources of half of the topics in
TRD 1 with receivers in TRD 3, the other half in the opposite direction, by B, as the link between A and C costs more.
Then that link becomes the cheaper one by a reload, and the dearer one again; B is killed and started again. Messages on
all topics in turn, in an order drawn by chance, show when flows are back: "last lost" is when, after the begin of the
step, the last message was sent that did not arrive. Prints the time of each step, the CPU time of each DRO, the longest
loop turn of any worker since its start, and the most records of topic resolution that DROs sent in a second in each
TRD; memory per topic of each portal; CPU at rest. Writes JSON.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dro.metrics.slots import Slot
from dro.transport.sockets import ip_number
from dro.wire.source_string import LbtrmAddress, TransportAddress
from tests.bench.dros import Daemons, Meter, Worker, dropped_by, net_of, tr_group, worst
from tests.bench.scale import ASK_S, PAYLOAD, PORTAL_XML, measure_all, operators_options, parser_of
from tests.bench.traffic.generator import Load
from tests.bench.traffic.resolution import STEP_S, Channel, Origin, Seeker, Topic
from tests.bench.traffic.workload import DATA_PORT, GROUP_LOW, NAK_PORTS, UNLIMITED, Workload, describe_source
from tests.rigs.network import Plan
from tests.rigs.waiting import wait_until

SESSIONS: Final = 5
OWN_GROUPS: Final = 100  # last number of the first data group of the applications
OWN_NAK_PORTS: Final = 17  # of the ports for NAKs, the first of the applications
DEAR, CHEAP = "<cost>20</cost>", "<cost>1</cost>"
ROUTES: Final = "route recalculation took"
ENDS: Final = ((1, 3), (3, 1))
SETTLE_S: Final = 3.0
IN_FLIGHT_S: Final = 0.5
LIMIT_S: Final = 60.0
LIMIT_EACH_S: Final = 0.005
"""For each topic: how long to wait for the end of a step."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step; turns are those of the worker with the longest one, since its start."""

    what: str
    seconds: float
    lost: int  # messages, as far as those of no topic came twice
    lost_s: float
    missing: int
    cpu_s: dict[str, float]
    longest_turn: tuple[str, float, float]
    peak_records: dict[int, int]  # in a second, by TRD
    handshakes: int
    dropped: dict[str, int]  # fragments, by worker and reason


class Way:
    """Sources in one TRD, receivers of their topics in another."""

    def __init__(self, stack: ExitStack, program: Path, plan: Plan, ends: tuple[int, int], count: int, rate: int,
                 per_s: int) -> None:  # fmt: skip
        begin, end = ends
        workload = Workload(
            "chain", topics=count, sessions=SESSIONS, sizes=(PAYLOAD,), rate=rate, window=1 << 30, is_packed=True
        )
        self.count = count
        self.load = stack.enter_context(Load(program))
        self.load.set(in_order=True)
        sessions = _sessions(plan, begin)
        first = random.randrange(1 << 30)
        topics = [
            Topic(b"way%d.%06d" % (begin, n), sessions[n % SESSIONS], first + n // SESSIONS) for n in range(count)
        ]
        describe_source(self.load, workload, sessions, random.sample(topics, count))
        self.load.tell("sink")
        for n in range(SESSIONS):
            self.load.tell(f"join {net_of(plan, end)}.{GROUP_LOW + n} {tr_group(plan, end)[1] + DATA_PORT}")
        channels = [Channel(*tr_group(plan, trd), trd) for trd in ends]
        for channel in channels:
            stack.callback(channel.close)
        self.addresses = [channel.address for channel in channels]
        self.origin = Origin(channels[0], topics, per_s)
        self.seeker = Seeker(channels[1], [topic.name for topic in topics])

    def step(self) -> None:
        self.origin.step()
        self.seeker.step()


def _sessions(plan: Plan, trd: int) -> list[TransportAddress]:
    """Beside those of the portal."""
    net, base, ip = net_of(plan, trd), tr_group(plan, trd)[1], ip_number("127.0.0.1")
    return [
        LbtrmAddress(
            ip, ip_number(f"{net}.{OWN_GROUPS + n}"), random.randrange(1, 1 << 32), base + DATA_PORT,
            base + NAK_PORTS + OWN_NAK_PORTS + n,
        )
        for n in range(SESSIONS)
    ]  # fmt: skip


def written(folder: Path, per_s: int) -> Plan:
    """The files of the three DROs."""
    dros: dict[str, list[int | str]] = {"A": [1, "B", "C"], "B": [2, "A", "C"], "C": [3, "A", "B"]}
    xml = dict.fromkeys(("A-C", "C-A"), DEAR) | {
        f"{dro}-{trd}": PORTAL_XML for dro, trd in zip("ABC", (1, 2, 3), strict=True)
    }
    plan = Plan(folder, dros, portal_xml=xml, peer_xml="", daemon="", um=UNLIMITED + operators_options(per_s))
    for trd in plan.trds:
        base = tr_group(plan, trd)[1]
        with plan.config(trd).open("a") as f:
            f.write(
                f"context transport_lbtrm_multicast_address_high {net_of(plan, trd)}.{GROUP_LOW + SESSIONS - 1}\n"
                f"context transport_lbtrm_source_port_high {base + NAK_PORTS + OWN_NAK_PORTS - 1}\n"
                "source implicit_batching_minimum_length 2048\n"
            )
    return plan


class Scene:
    """The chain, both ways, and the clock of the steps."""

    def __init__(self, daemons: Daemons, ways: Sequence[Way], meters: dict[int, Meter]) -> None:
        self.daemons, self.ways, self.meters = daemons, ways, meters
        self.topics = sum(way.count for way in ways)
        self.steps: list[Step] = []
        self._asks_at = 0.0

    def wait(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Keep all ends going until `holds`, at most that long; whether it came to hold."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                return False
            for way in self.ways:
                way.step()
            for meter in self.meters.values():
                meter.step()
            time.sleep(STEP_S)
        return True

    def tell(self, *orders: str) -> None:
        for way in self.ways:
            way.load.tell(*orders)

    def missing(self) -> int:
        """Topics of which nothing has arrived since the mark."""
        return sum(way.count - way.load.counts().topics for way in self.ways)

    def unfound(self) -> int:
        """Asks again from time to time for what is not found, as receivers do."""
        if time.monotonic() >= self._asks_at:
            self._asks_at = time.monotonic() + ASK_S
            for way in self.ways:
                way.seeker.query()
        return sum(len(way.seeker.wanted) - len(way.seeker.found) for way in self.ways)

    def in_b(self) -> int:
        """Proxy sources of the portals of B that lead to A and C."""
        return sum(self.daemons.gauge("B", port, Slot.PROXY_SOURCES) for port in ("A", "C"))

    def balance(self) -> int:
        """Messages that were sent and have not come."""
        counts = [way.load.counts() for way in self.ways]
        return sum(one.sent - sum(one.received) for one in counts)

    def look(self) -> dict[str, dict[str, Worker]]:
        return {name: self.daemons.look(name) for name in self.daemons.names}

    def _handshakes(self) -> int:
        return sum(self.daemons.log_of(name).read_text().count("accepted the companion") for name in "ABC")

    @contextmanager
    def step(self, what: str, missing: Callable[[], int]) -> Iterator[None]:
        before, handshakes, balance = self.look(), self._handshakes(), self.balance()
        for meter in self.meters.values():
            meter.take_peak()
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        self.wait(lambda: False, IN_FLIGHT_S)
        after = self.look()
        used = {}
        for name, workers in after.items():
            old = {worker.pid: worker.cpu_ns for worker in before.get(name, {}).values()}
            used[name] = round(sum(w.cpu_ns - old.get(w.pid, 0) for w in workers.values()) / 1e9, 2)
        lost_s = max(way.load.counts().lost_ns for way in self.ways) / 1e9 - began
        done = Step(
            what, round(seconds, 2), max(0, self.balance() - balance), max(0.0, round(lost_s, 2)), missing(), used,
            worst(after.values()),
            {trd: meter.take_peak() for trd, meter in self.meters.items()}, self._handshakes() - handshakes,
            dict(dropped_by(after.values()) - dropped_by(before.values())),
        )  # fmt: skip
        self.steps.append(done)
        show(done)

    def flow(self, what: str, change: Callable[[], object], holds: Callable[[], bool], seconds: float) -> None:
        """A change, after which messages of all topics arrive again and `holds`."""
        with self.step(what, self.missing):
            change()
            self.tell("mark")
            if self.wait(holds, seconds):
                self.tell("mark")
                self.wait(lambda: self.missing() <= 0, seconds)
        self.wait(lambda: False, SETTLE_S)

    def rest(self, seconds: float) -> dict[str, float]:
        """CPU of each worker while nothing happens, % of one processor."""
        self.tell("pause")
        self.wait(lambda: False, SETTLE_S)
        before, began = self.look(), time.monotonic()
        self.wait(lambda: False, seconds)
        passed_ns = (time.monotonic() - began) * 1e9
        after = self.look()
        self.tell("resume")
        return {
            f"{name}: {worker}": round((now.cpu_ns - before[name][worker].cpu_ns) / passed_ns * 100, 2)
            for name, workers in after.items()
            for worker, now in workers.items()
        }

    def memory(self) -> dict[str, int]:
        looks = self.look()
        return {f"{n}: {worker}": now.memory_bytes for n, workers in looks.items() for worker, now in workers.items()}


def show(step: Step) -> None:
    used = "".join(f"{step.cpu_s.get(name, 0):>8.2f}" for name in "ABC")
    who, cpu, wall = step.longest_turn
    peaks = "".join(f"{peak:>8}" for peak in step.peak_records.values())
    missing = f"   not within the time: {step.missing}" if step.missing else ""
    print(
        f"{step.what:44}{step.seconds:>8.2f}{step.lost:>7}{step.lost_s:>10.2f}{used}"
        f"{f'{who} {cpu:.0f}/{wall:.0f}':>24}{peaks}{step.handshakes:>6}{missing}",
        flush=True,
    )
    if step.dropped:
        print("      dropped: " + ", ".join(f"{who} {count}" for who, count in step.dropped.items()), flush=True)


def run(scene: Scene, rest_s: float, limit_s: float, *, has_changes: bool) -> dict[str, object]:
    daemons = scene.daemons
    texts = {name: daemons.plan.file(name).read_text() for name in "AC"}

    def set_cost(cost: str) -> None:
        for name, text in texts.items():
            daemons.reload(name, text.replace(DEAR, cost))

    print(f"\n{scene.topics} topics")
    print(
        f"{'':44}{'s':>8}{'lost':>7}{'last lost':>10}{'CPU s A':>8}{'B':>8}{'C':>8}{'longest turn, ms':>24}"
        f"{'TRD 1':>8}{'2':>8}{'3':>8}{'links':>6}"
    )
    empty = scene.memory()
    with scene.step("resolve: from the first query to the last TIR", scene.unfound):
        for way in scene.ways:
            way.origin.advertise()
        scene.wait(lambda: scene.unfound() <= 0, limit_s)
    scene.tell("start", "resume")
    scene.flow("first message of every topic", lambda: None, lambda: True, limit_s)
    full = scene.memory()
    resting = scene.rest(rest_s)
    if has_changes:
        scene.flow("link A-C cheaper: all by it", lambda: set_cost(CHEAP), lambda: scene.in_b() == 0, limit_s)
        scene.flow("dearer again: all by B", lambda: set_cost(DEAR), lambda: scene.in_b() == scene.topics, limit_s)
        scene.flow("kill -9 of B: all by A-C", lambda: daemons.kill("B"), lambda: scene.missing() <= 0, limit_s)
        scene.flow("B started: all by B", lambda: daemons.start("B"), lambda: scene.in_b() == scene.topics, limit_s)
    per_topic = {name: round((full[name] - empty[name]) / scene.topics) for name in full}
    print("bytes per topic: " + "  ".join(f"{name} {size}" for name, size in per_topic.items()))
    print("CPU at rest, %: " + "  ".join(f"{name} {share:.1f}" for name, share in resting.items()))
    return {"memory_empty": empty, "memory_full": full, "bytes_per_topic": per_topic, "rest_percent": resting}


def measure(
    program: Path, topics: int, rate: int, per_s: int, rest_s: float, *, has_changes: bool
) -> dict[str, object]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dro-chain-")))
        daemons = stack.enter_context(Daemons(written(folder, per_s)))
        plan = daemons.plan
        began = time.monotonic()
        for name in plan.dros:
            daemons.start(name)
        ways = [Way(stack, program, plan, ends, topics // 2, rate // 2, per_s) for ends in ENDS]
        applications = [address for way in ways for address in way.addresses]
        meters = {trd: Meter(*tr_group(plan, trd), applications) for trd in plan.trds}
        for meter in meters.values():
            stack.callback(meter.close)
        scene = Scene(daemons, ways, meters)
        wait_until(lambda: all(knows_all(daemons.log_of(name).read_text()) for name in plan.dros), "routes", 60)
        print(f"start of the DROs, with routes to all TRDs: {time.monotonic() - began:.1f} s")
        found = run(scene, rest_s, LIMIT_S + topics * LIMIT_EACH_S, has_changes=has_changes)
        lines = {name: daemons.log_of(name).read_text().count("\n") for name in plan.dros}
        print(f"log lines: {lines}")
        return {"topics": topics, "steps": [asdict(step) for step in scene.steps], "log_lines": lines} | found


def knows_all(log: str) -> bool:
    """The routes that were calculated last lead to all TRDs, those of the DRO among them."""
    found = re.findall(rf"{ROUTES}.* routes=(\d+)", log)
    return bool(found) and int(found[-1]) >= 3


def main() -> int:
    parser = parser_of("chain", __doc__)
    parser.add_argument("--rest", type=float, default=10.0, help="seconds for which the CPU at rest is measured")
    parser.add_argument("--no-changes", action="store_true", help="end when all is resolved and has rested")
    arguments = parser.parse_args()

    def measured(program: Path, topics: int, rate: int) -> dict[str, object]:
        has_changes = not arguments.no_changes
        return measure(program, topics, rate, arguments.per_second, arguments.rest, has_changes=has_changes)

    measure_all("chain", arguments, measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
