"""What many topics cost on a direct link: start, kills, changes, and the end of the interest.

`python -m tests.bench.scale --topics 1000`: a `tnwgd` with a portal in each of two TRDs, UM's default limits on topic
resolution; sources of all topics in TRD 1, receivers in TRD 2, a thin stream of messages on all topics in turn. Every
step ends when what it changes is complete as seen from outside: topics advertised, messages of every topic arriving,
gauges. Topics are sent on in an order drawn by chance, so that losses at any time tell of all of them: "last lost" is
when, after the begin of the step, the last message was sent that did not arrive; what is sent on any topic after that
does. Prints the time of each step, what the limits on topic resolution explain of it, CPU time of each portal, and the
longest loop turn of each worker since its start, in processor time and by the clock; memory per topic and CPU at rest.
Writes JSON. Applications send at most 10,000 records a second in each TRD, and answer as many queries as a context may.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from dro.bus.messages import ROUTE_MANAGER
from dro.metrics.slots import Slot, WorkerSlot
from tests.bench.churn import Process
from tests.bench.cost_unit import cpu_ns
from tests.bench.traffic import generator
from tests.bench.traffic.generator import Load
from tests.bench.traffic.resolution import RECORDS_PER_S, STEP_S, Channel, Origin, Seeker
from tests.bench.traffic.workload import Workload, addresses, describe_sink, describe_source, site_of, topics_of
from tests.rigs.books import books_of, page_of
from tests.rigs.site import Site

PORTALS: Final = ("P1", "P2")
WORKERS: Final = (*PORTALS, "route-manager")
DEFAULT_PER_S: Final = 1000  # `resolver_initial_advertisements_per_second` and `_queries_`, the limits that bind here
SUSTAINED_PER_S: Final = 1300  # advertisements of 96 bytes by `resolver_sustain_advertisement_bps`, 1,000,000
SESSIONS: Final = 5
ASK_S: Final = 5.0
PAYLOAD: Final = 64
REST_S: Final = 2.0
SETTLED_S: Final = 1.0
SETTLING_S: Final = 60.0
QUIET_SHARE: Final = 0.15  # of a processor
# What is silent is asked twice; unlimited, since the limits alone would take 500 topics a second.
PORTAL_XML: Final = """
      <topic-resolution>
        <topic-use-query timeout="1000" max="2"><rate-limit bps="0" objects-per-second="0"/></topic-use-query>
      </topic-resolution>"""
FEW_RECORDS: Final = """
source resolver_advertisement_minimum_initial_duration 1
receiver resolver_query_minimum_initial_duration 1
receiver resolution_number_of_sources_query_threshold 1
"""
REJECTED: Final = "[02468]$"  # half of the topics
ACL: Final = f"""
      <acl><inbound>
        <ace match="reject"><pcre-pattern>{REJECTED}</pcre-pattern></ace>
        <ace match="accept"><pcre-pattern>.</pcre-pattern></ace>
      </inbound></acl>"""


@dataclass(frozen=True, slots=True)
class Step:
    """One step; `None` where there is no such figure."""

    what: str
    seconds: float
    explained_s: float | None  # what the limits on topic resolution take
    cpu_s: dict[str, float]
    longest_turn_ms: dict[str, tuple[float, float]]  # processor time, and as the clock says; since the worker's start
    unseen: int = 0  # topics for which it did not end in time
    lost_s: float | None = None  # from the begin of the step until the last lost message was sent


class Scene:
    """The DRO, both ends of topic resolution, the stream, and the clock of the steps."""

    def __init__(
        self,
        site: Site,
        load: Load,
        origin: Origin,
        seeker: Seeker,
        *,
        rate: int,
        per_s: int,
        rest_after_s: float,
        only_kills: bool = False,
    ) -> None:
        self.site = site
        self.load = load
        self.origin = origin
        self.seeker = seeker
        self.rate = rate
        self.per_s = per_s
        self.rest_after_s = rest_after_s
        self.only_kills = only_kills
        self.topics = len(seeker.wanted)
        self.steps: list[Step] = []
        self._asks_at = 0.0
        self._is_marked = False

    def wait(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Keep both ends going until `holds`, at most that long; whether it came to hold."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                return False
            self.origin.step()
            self.seeker.step()
            time.sleep(STEP_S)
        return True

    @contextmanager
    def step(self, what: str, explained_s: float | None = None) -> Iterator[None]:
        """Time and CPU of what happens inside; a portal that returns has its CPU since its start."""
        before = {name: (pid, cpu_ns(pid)) for name, pid in self.site.workers().items()}
        began = time.monotonic()
        yield
        seconds = time.monotonic() - began
        used = {}
        for name, pid in self.site.workers().items():
            old_pid, old_ns = before.get(name, (0, 0))
            used[name] = round((cpu_ns(pid) - (old_ns if pid == old_pid else 0)) / 1e9, 3)
        turns = self._longest_turns_ms()
        done = Step(what, round(seconds, 3), explained_s, used, turns, self.unseen, self._lost_s(began))
        self.steps.append(done)
        show(done)

    def _lost_s(self, began: float) -> float | None:
        """Of messages sent since the step began; None when it did not wait for messages."""
        is_marked, self._is_marked = self._is_marked, False
        return max(0.0, round(self.load.counts().lost_ns / 1e9 - began, 3)) if is_marked else None

    unseen = 0

    def until(self, holds: Callable[[], bool], missing: Callable[[], int], seconds: float) -> None:
        self.unseen = 0 if self.wait(holds, seconds) else missing()

    def _longest_turns_ms(self) -> dict[str, tuple[float, float]]:
        with books_of(self.site.pid, len(self.site.trds)) as books, page_of(self.site.pid, ROUTE_MANAGER) as manager:
            pages = {"route-manager": manager} | {f"P{n}": page for n, page in books.pages.items()}
            return {
                n: (page[WorkerSlot.LONGEST_TURN_CPU_US] / 1000, page[WorkerSlot.LONGEST_TURN_US] / 1000)
                for n, page in pages.items()
            }

    def gauge(self, portal: int, slot: Slot) -> int:
        with books_of(self.site.pid, len(self.site.trds)) as books:
            return books[portal, slot]

    def wait_flowing(self, topics: int, seconds: float) -> None:
        """Until messages of so many topics have arrived since now."""
        self.load.tell("mark")
        self._is_marked = True
        self.until(lambda: self.missing(topics) <= 0, lambda: self.missing(topics), seconds)

    def has_found_all(self) -> bool:
        """Asks again from time to time for what is not found, as receivers do."""
        if time.monotonic() >= self._asks_at:
            self._asks_at = time.monotonic() + ASK_S
            self.seeker.query()
        return self.seeker.has_all

    def missing(self, topics: int) -> int:
        """Topics of which no message has arrived since the mark."""
        return topics - self.load.counts().topics

    def kill(self, name: str) -> None:
        """As `kill -9` does; returns when the worker is another process."""
        pid = self.site.kill(name)
        self.wait(lambda: self.site.workers().get(name, pid) != pid, 30)

    def reload(self, text: str) -> None:
        """By SIGHUP; returns when the log says that it is done."""
        (self.site.folder / "dro.xml").write_text(text)
        before = self.site.log.count("reload done")
        os.kill(self.site.pid, signal.SIGHUP)
        if not self.wait(lambda: self.site.log.count("reload done") > before, 30):
            raise RuntimeError(f"no reload\n{self.site.logs}")

    def settle(self) -> None:
        """Until the portals have done what followed from the step before, at most `SETTLING_S`."""
        deadline = time.monotonic() + SETTLING_S
        busy = 1.0
        while busy > QUIET_SHARE and time.monotonic() < deadline:
            before = [cpu_ns(self.site.worker(name)) for name in PORTALS]
            self.wait(lambda: False, SETTLED_S)
            used = [cpu_ns(self.site.worker(name)) for name in PORTALS]
            self.load.tell("pause")  # it has its share, too
            busy = max((b - a) / SETTLED_S / 1e9 for a, b in zip(before, used, strict=True))
        self.load.tell("resume")

    def rest(self, what: str) -> dict[str, float]:
        """CPU of each portal while nothing happens, % of one processor."""
        self.load.tell("pause")
        self.wait(lambda: False, self.rest_after_s)
        before = {name: cpu_ns(pid) for name, pid in self.site.workers().items()}
        self.wait(lambda: False, REST_S)
        pids = self.site.workers()
        found = {name: round((cpu_ns(pids[name]) - before[name]) / REST_S / 1e7, 2) for name in before}
        self.load.tell("resume")
        shares = "  ".join(f"{name} {share:.1f} %" for name, share in found.items())
        print(f"CPU at rest, {what}: {shares}", flush=True)
        return found

    def memory(self) -> dict[str, int]:
        return {name: Process.of(self.site.worker(name)).memory_bytes for name in PORTALS}


def show(step: Step) -> None:
    explained = "" if step.explained_s is None else f"{step.explained_s:.1f}"
    used = "".join(f"{step.cpu_s.get(name, 0):>9.2f}" for name in PORTALS)
    turns = "".join(f"{f'{cpu:.0f}/{wall:.0f}':>9}" for cpu, wall in map(step.longest_turn_ms.__getitem__, WORKERS))
    unseen = f"   not within the time: {step.unseen}" if step.unseen else ""
    lost = "" if step.lost_s is None else f"{step.lost_s:.2f}"
    print(f"{step.what:44}{step.seconds:>8.2f}{lost:>10}{explained:>10}{used}{turns}{unseen}", flush=True)


def run(scene: Scene) -> dict[str, object]:
    """All steps; what is not a step."""
    n, site = scene.topics, scene.site
    half = sum(name[-1:] in b"02468" for name in scene.seeker.wanted)

    def old() -> int:
        return n - len(scene.seeker.renewed)

    def too_many() -> int:
        return scene.gauge(2, Slot.PROXY_SOURCES) - (n - half)

    def left() -> int:
        egress = (Slot.LOCAL_TOPICS, Slot.PROXY_SOURCES)
        return scene.gauge(1, Slot.RECEIVER_TOPICS) + sum(scene.gauge(2, slot) for slot in egress)

    explained = round(n / scene.per_s, 2)  # one advertisement of each topic
    limit_s = 60 + 5 * explained
    turn_s = n / scene.rate  # the stream needs this long for a message on every topic
    text = (site.folder / "dro.xml").read_text()
    print(f"\n{n} topics; the stream sends on each of them once in {turn_s:.1f} s")
    head = "".join(f"{f'CPU s {name}':>9}" for name in PORTALS) + "".join(f"{f'ms {name[:5]}':>9}" for name in WORKERS)
    print(f"{'':44}{'s':>8}{'last lost':>10}{'limits':>10}{head}")
    empty = scene.memory()
    with scene.step("resolve: from the first query to the last TIR", explained):
        scene.origin.advertise()
        scene.until(scene.has_found_all, lambda: n - len(scene.seeker.found), limit_s)
    full = scene.memory()
    scene.load.tell("start", "resume")
    with scene.step("first message of every topic", turn_s):
        scene.wait_flowing(n, limit_s)
    resolved = scene.rest("resolved, no traffic")
    with scene.step("kill -9 of the ingress portal: all flows back", turn_s):
        scene.kill("P1")
        scene.wait_flowing(n, limit_s)
    scene.settle()
    began = time.monotonic()
    with scene.step("kill -9 of the egress portal: all flows back", turn_s):
        scene.kill("P2")
        scene.seeker.forget()
        scene.wait_flowing(n, limit_s)
    with scene.step("... and all topics advertised again", max(0.0, explained - (time.monotonic() - began))):
        scene.until(lambda: scene.seeker.has_all, lambda: n - len(scene.seeker.found), limit_s)
    if scene.only_kills:
        return {"memory_empty_bytes": empty, "memory_full_bytes": full, "rest_resolved_percent": resolved}
    scene.settle()
    scene.seeker.renewed.clear()
    anew_s = round(n / SUSTAINED_PER_S, 2)
    with scene.step("cost of a portal changed: advertised anew", anew_s):
        scene.reload(text.replace("<domain-id>1</domain-id>", "<domain-id>1</domain-id>\n<cost>7</cost>"))
        scene.until(lambda: old() == 0, old, limit_s + 2 * anew_s)
    costly = (site.folder / "dro.xml").read_text()
    with scene.step("list rejects half: their proxies are gone"):
        scene.reload(costly.replace("<lbm-config>trd1.cfg</lbm-config>", f"<lbm-config>trd1.cfg</lbm-config>{ACL}"))
        scene.until(lambda: too_many() == 0, too_many, limit_s)
    with scene.step("list taken back: all flows back", explained * half / n + turn_s):
        scene.reload(costly)
        scene.wait_flowing(n, limit_s)
    scene.load.tell("pause")
    with scene.step("receivers leave: no interest, no proxies", n / RECORDS_PER_S + 2.0):
        scene.seeker.leave()
        scene.until(lambda: left() == 0, left, limit_s + 4 * n / RECORDS_PER_S)
    gone = scene.rest("nothing wanted")
    per_topic = {name: round((full[name] - empty[name]) / n) for name in PORTALS}
    print("memory per topic: " + "  ".join(f"{name} {size} bytes" for name, size in per_topic.items()))
    left_over = scene.memory()
    return {
        "memory_empty_bytes": empty, "memory_full_bytes": full, "memory_left_bytes": left_over,
        "bytes_per_topic": per_topic, "rest_resolved_percent": resolved, "rest_empty_percent": gone,
    }  # fmt: skip


def operators_options(per_s: int) -> str:
    """What the operator of very many topics sets: higher limits, short first phases, no queries for what is found."""
    if per_s == DEFAULT_PER_S:
        return ""
    kinds = ("advertisement", "advertisements"), ("query", "queries")
    limits = "".join(
        f"context resolver_initial_{many}_per_second {per_s}\ncontext resolver_initial_{one}_bps {1000 * per_s}\n"
        for one, many in kinds
    )
    return limits + FEW_RECORDS


def measure(
    program: Path, topics: int, rate: int, per_s: int, rest_after_s: float, only_kills: bool
) -> dict[str, object]:
    workload = Workload(
        "scale", topics=topics, sessions=SESSIONS, sizes=(PAYLOAD,), rate=rate, window=1 << 30, is_packed=True
    )
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dro-scale-")))
        site = site_of(folder, workload, operators_options(per_s), PORTAL_XML)
        stack.callback(site.close)
        began = time.monotonic()
        site.start()
        print(f"start of the DRO, with routes: {time.monotonic() - began:.2f} s")
        load = stack.enter_context(Load(program))
        sessions = addresses(workload, site)
        made = topics_of(workload, sessions)
        load.set(in_order=True)
        describe_source(load, workload, sessions, random.sample(made, len(made)))
        describe_sink(load, site, 2, SESSIONS, sessions)
        channels = [Channel(f"{site.net(trd)}.1", site.port(trd), trd) for trd in site.trds]
        for channel in channels:
            stack.callback(channel.close)
        seeker = Seeker(channels[1], [topic.name for topic in made])
        origin = Origin(channels[0], made, per_s)
        scene = Scene(
            site, load, origin, seeker, rate=rate, per_s=per_s, rest_after_s=rest_after_s, only_kills=only_kills
        )
        rest = run(scene)
        with site.books() as books:
            problems = books.problems()
        print("books balance" if not problems else "\n".join(problems))
        return {"topics": topics, "steps": [asdict(step) for step in scene.steps], "problems": problems} | rest


def parser_of(bench: str, description: str) -> argparse.ArgumentParser:
    """Make the parser of a bench of many topics."""
    parser = argparse.ArgumentParser(prog=bench, description=description.split("\n")[0])
    parser.add_argument("--topics", type=int, nargs="+", default=[1000], help="default 1000")
    parser.add_argument("--rate", type=int, default=0, help="messages per second (default: a tenth of the topics)")
    parser.add_argument(
        "--per-second", type=int, default=DEFAULT_PER_S,
        help="limit on first advertisements and queries of each context (default: UM's); another one also "
        "shortens first phases, and ends queries for topics that are found",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, default=Path(f"build/{bench}.json"), help="where the figures go")
    return parser


def measure_all(
    bench: str, arguments: argparse.Namespace, measure: Callable[[Path, int, int], dict[str, object]]
) -> list[dict[str, object]]:
    """Measure each number of topics with the load generator, at its rate, and write the figures; none without it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was started is ended
    if not generator.is_possible():
        print(f"{bench}: {generator.COMPILER} is not installed, so there is no load generator: nothing is measured")
        return []
    with generator.built() as program:
        results = [measure(program, topics, arguments.rate or max(2000, topics // 10)) for topics in arguments.topics]
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"cpus": os.cpu_count(), "results": results}, indent=1))
    print(f"figures in {arguments.json}")
    return results


def main() -> int:
    parser = parser_of("scale", __doc__)
    parser.add_argument("--rest-after", type=float, default=0.5, help="seconds before the CPU at rest is measured")
    parser.add_argument("--only-kills", action="store_true", help="end after both kills")
    arguments = parser.parse_args()
    results = measure_all(
        "scale", arguments,
        lambda program, topics, rate: measure(
            program, topics, rate, arguments.per_second, arguments.rest_after, arguments.only_kills
        ),
    )  # fmt: skip
    return 1 if any(result["problems"] for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
