"""Sources, receivers and patterns that come and go through a DRO, and what is left of them.

`python -m tests.bench.churn`: a `tnwgd` between two TRDs, an application in each. In waves, sources appear in TRD 1, a
receiver and a pattern for each of them in TRD 2; when every proxy exists and a message of every source has arrived, all
are deleted, in one of three orders, and the next wave begins when the DRO has none of them any more. Seen from outside:
gauges of the counter pages, memory and descriptors of every process. Seen from inside: how many objects each process
holds before and after.

The base is taken after a small wave, so that what is made once (a socket, a cache) belongs to it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from statistics import fmean
from typing import Final

from dro.metrics.slots import Slot
from dro.proto.resolver.source_advertisements import PATTERNS_MAX
from tests.rigs import census
from tests.rigs.application import Application
from tests.rigs.books import Books
from tests.rigs.census import Census
from tests.rigs.site import Site

FIRST_WAVE: Final = 10  # objects of each kind before the base is taken
WAIT_S: Final = 60.0
ARRIVED_S: Final = 3.0
RESTED_S: Final = 2.5  # longer than final advertisements take and sessions linger
SETTLED_S: Final = 20.0
SEND_ROUNDS: Final = 10
GAUGES: Final = (
    Slot.LOCAL_TOPICS,
    Slot.LOCAL_PCRE,
    Slot.REMOTE_TOPICS,
    Slot.REMOTE_PCRE,
    Slot.PROXY_RECEIVERS,
    Slot.RECEIVER_TOPICS,
    Slot.RECEIVER_PCRE,
    Slot.PROXY_SOURCES,
)
# of queries that a resolver has seen, at most PATTERNS_MAX
KEPT: Final = ("dro.patterns.Pattern", "dro.proto.resolver.source_advertisements._Pattern")
LAZY: Final = "dro.timers.Timer"  # cancelled timers are swept when they are many
LAZY_MAX: Final = 500
OBJECTS_MAX: Final = 20  # of the project's classes more than at the base, in a whole run
FEW_WAVES: Final = 6
GROWTH_MAX: Final = 6 << 20  # bytes, after the first of a few waves: what the allocator does not give back
DRIFT_MAX: Final = 3 << 20  # bytes, from the middle third of many waves to the last
CACHED: Final = 1100  # objects of each kind after which every bounded cache is full
BLOCKS_MAX: Final = 3000  # blocks of memory more than when the caches were full

QUICK_PORTAL: Final = """
      <source-deletion-delay>200</source-deletion-delay>
      <topic-resolution>
        <topic-use-query timeout="300" max="2"><rate-limit bps="0" objects-per-second="0"/></topic-use-query>
        <pattern-use-query timeout="300" max="2"><rate-limit bps="0" objects-per-second="0"/></pattern-use-query>
      </topic-resolution>"""
QUICK_UM: Final = """\
receiver transport_lbtrm_nak_generation_interval 1000
context resolver_initial_advertisement_bps 0
context resolver_initial_advertisements_per_second 0
context resolver_sustain_advertisement_bps 0
context resolver_initial_query_bps 0
context resolver_initial_queries_per_second 0
context resolver_wildcard_query_bps 0
"""


class Order(Enum):
    """Who goes first at the end of a wave."""

    RECEIVERS = 0
    SOURCES = 1
    TOGETHER = 2


@dataclass(frozen=True)
class Process:
    """One process from outside. `memory_bytes` is its own: shared pages and files are other people's business."""

    memory_bytes: int
    fds: int

    @classmethod
    def of(cls, pid: int) -> Process:
        status = Path(f"/proc/{pid}/status").read_text()
        own = int(status.partition("RssAnon:")[2].split()[0]) * 1024
        return cls(own, len(os.listdir(f"/proc/{pid}/fd")))


@dataclass
class Report:
    """Before, at the peak, after; by process, and by portal for gauges."""

    objects: int
    alive: int
    seconds: float = 0.0
    messages: int = 0
    before: dict[str, Process] = field(default_factory=dict)
    peak: dict[str, Process] = field(default_factory=dict)
    waves: list[dict[str, Process]] = field(default_factory=list)
    after: dict[str, Process] = field(default_factory=dict)
    census_before: dict[str, Census] = field(default_factory=dict)
    census_peak: dict[str, Census] = field(default_factory=dict)
    census_full: dict[str, Census] = field(default_factory=dict)
    """After a third of the waves, when that is enough to fill every bounded cache."""
    census_after: dict[str, Census] = field(default_factory=dict)
    gauges_peak: dict[str, list[int]] = field(default_factory=dict)
    gauges_after: dict[str, list[int]] = field(default_factory=dict)

    def growth(self, who: str) -> int:
        """Bytes that a process gained: of many waves from the middle third to the last, of few since the first."""
        memory = [wave[who].memory_bytes for wave in self.waves]
        if len(memory) < FEW_WAVES:
            return self.after[who].memory_bytes - memory[0]
        third = len(memory) // 3
        return int(fmean(memory[-third:]) - fmean(memory[third:-third]))

    def left_over(self, who: str) -> dict[str, int]:
        """Classes of which there are more objects than at the base."""
        before = self.census_before[who].ours
        more = {kind: n - before.get(kind, 0) for kind, n in self.census_after[who].ours.items()}
        return {kind: n for kind, n in sorted(more.items(), key=lambda item: -item[1]) if n > 0}

    def problems(self) -> list[str]:
        """What did not return to the base."""
        found = []
        for portal, values in self.gauges_after.items():
            found += [f"{portal}: {slot.name} {n}" for slot, n in zip(GAUGES, values, strict=True) if n]
        for who, process in self.after.items():
            if process.fds > self.before[who].fds:
                found.append(f"{who}: {process.fds} descriptors, {self.before[who].fds} at the base")
            growth = self.growth(who)
            if growth > (GROWTH_MAX if len(self.waves) < FEW_WAVES else DRIFT_MAX):
                found.append(f"{who}: memory grew by {growth / 2**20:.1f} MiB")
        for who, full in self.census_full.items():
            if (more := self.census_after[who].blocks - full.blocks) > BLOCKS_MAX:
                found.append(f"{who}: {more} blocks of memory more than after a third of the waves")
        for who in self.census_after:
            left = self.left_over(who)
            lazy, kept = left.pop(LAZY, 0), {name: left.pop(name, 0) for name in KEPT}
            if sum(left.values()) > OBJECTS_MAX or lazy > LAZY_MAX or max(kept.values()) > PATTERNS_MAX:
                found.append(f"{who}: objects left over: {left | {LAZY: lazy} | kept}")
        return found


class ChurnSite(Site):
    """A DRO between two TRDs that counts its objects, with short delays. The rest is made by `running`."""

    PROGRAM = "tests.rigs.census"
    books_open: Books
    sources: Application
    receivers: Application

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 2, portal_xml={1: QUICK_PORTAL, 2: QUICK_PORTAL}, um={1: QUICK_UM, 2: QUICK_UM})

    def processes(self) -> dict[str, int]:
        """Process ids of the DRO, its parent first."""
        return {"tnwgd": self.pid} | self.workers()

    @property
    def applications(self) -> dict[str, Application]:
        return {"sources": self.sources, "receivers": self.receivers}

    @property
    def logs(self) -> str:
        """What to show when something does not happen: gauges, applications, the end of the log."""
        gauges = {trd: dict(zip([slot.name for slot in GAUGES], self.gauges(trd), strict=True)) for trd in self.trds}
        states = {name: app.state() for name, app in self.applications.items()}
        return f"{gauges}\n{states}\n{super().logs}"

    def gauges(self, trd: int) -> list[int]:
        return [self.books_open[trd, slot] for slot in GAUGES]

    def is_idle(self) -> bool:
        """Nothing of any wave is left that can be seen from outside."""
        return (
            not any(self.gauges(1) + self.gauges(2))
            and self.receivers.state()["bound"] == 0
            and self.sources.state()["finals"] == 0
        )

    def measure(self) -> dict[str, Process]:
        pids = self.processes() | {name: app.pid for name, app in self.applications.items()}
        return {who: Process.of(pid) for who, pid in pids.items()}

    def census(self) -> dict[str, Census]:
        found = {who: census.ask(self.folder, pid) for who, pid in self.processes().items()}
        return found | {who: app.census() for who, app in self.applications.items()}


@contextmanager
def running(folder: Path) -> Iterator[ChurnSite]:
    """The DRO and an application in each of its TRDs."""
    with ExitStack() as stack:
        site = ChurnSite(folder)
        stack.callback(site.close)
        site.start()
        site.books_open = stack.enter_context(site.books())
        site.sources = stack.enter_context(Application(site.config(1)))
        site.receivers = stack.enter_context(Application(site.config(2)))
        yield site


def wave(site: ChurnSite, number: int, count: int, order: Order, at_peak: Callable[[], object] = lambda: None) -> int:
    """Make `count` of each kind, see them all work, delete them; returns how many messages were sent."""
    names = [f"churn.{number}.{k}" for k in range(count)]
    patterns = [rf"^churn\.{number}\.{k}$" for k in range(count)]
    makers: list[tuple[Application, str, list[str]]] = [
        (site.sources, "add_sources", names),
        (site.receivers, "add_receivers", names),
        (site.receivers, "add_patterns", patterns),
    ]
    for application, command, what in makers[number % 3 :] + makers[: number % 3]:
        application.tell(command, what)

    def are_all_there() -> bool:
        here, there = site.gauges(1), site.gauges(2)
        return (
            here[GAUGES.index(Slot.PROXY_RECEIVERS)] == 2 * count
            and there[GAUGES.index(Slot.LOCAL_TOPICS)] == count
            and there[GAUGES.index(Slot.LOCAL_PCRE)] == count
            and there[GAUGES.index(Slot.PROXY_SOURCES)] == count
            and site.receivers.state()["bound"] == count
        )

    site.wait(are_all_there, f"wave {number}: all proxies")
    sent = _send(site, count)
    at_peak()
    if order is Order.RECEIVERS:
        site.receivers.tell("remove_receivers", names)
        site.receivers.tell("remove_patterns", patterns)
        site.wait(lambda: not any(site.gauges(2)), f"wave {number}: proxies gone after the receivers")
        site.sources.tell("remove_sources", names)
    elif order is Order.SOURCES:
        site.sources.tell("remove_sources", names)
        site.wait(lambda: not site.receivers.state()["bound"], f"wave {number}: proxies gone after the sources")
        site.receivers.tell("remove_patterns", patterns)
        site.receivers.tell("remove_receivers", names)
    else:
        site.receivers.tell("remove_receivers", names)
        site.sources.tell("remove_sources", names)
        site.receivers.tell("remove_patterns", patterns)
    site.wait(site.is_idle, f"wave {number}: nothing left")
    return sent


def _send(site: ChurnSite, count: int) -> int:
    """A message on every source, again while some do not arrive: a TCP session has receivers once it is connected."""
    sent = 0
    for _ in range(SEND_ROUNDS):
        before = site.receivers.state()["received"]
        site.sources.tell("send")
        sent += count
        deadline = time.monotonic() + ARRIVED_S
        while time.monotonic() < deadline:
            if site.receivers.state()["received"] >= before + 2 * count:  # by topic and by pattern
                return sent
            time.sleep(0.02)
    raise TimeoutError(f"messages of {count} sources do not arrive\n{site.logs}")


def churn(site: ChurnSite, objects: int, alive: int, say: Callable[[str], object] = lambda _: None) -> Report:
    """`objects` of each kind come and go, `alive` at a time."""
    report = Report(objects, alive)
    wave(site, 0, min(FIRST_WAVE, alive), Order.TOGETHER)
    _rest(site)
    report.before = site.measure()
    report.census_before = site.census()
    began = time.monotonic()
    is_counted = False

    def at_peak() -> None:
        nonlocal is_counted
        _raise(report.peak, site.measure())
        for name, portal in (("TRD 1", 1), ("TRD 2", 2)):
            known = report.gauges_peak.get(name, [0] * len(GAUGES))
            report.gauges_peak[name] = [max(pair) for pair in zip(known, site.gauges(portal), strict=True)]
        if not is_counted:
            is_counted = True
            report.census_peak = site.census()

    done = number = 0
    while done < objects:
        number += 1
        count = min(alive, objects - done)
        report.messages += wave(site, number, count, list(Order)[number % 3], at_peak)
        done += count
        report.waves.append(site.measure())
        if not report.census_full and done >= max(CACHED, objects // 3):
            _rest(site)
            report.census_full = site.census()
        memory = "  ".join(f"{who} {p.memory_bytes / 2**20:.1f}" for who, p in report.waves[-1].items())
        say(f"{done:>6} of each came and went, {time.monotonic() - began:.0f} s; MiB: {memory}")
    report.seconds = round(time.monotonic() - began, 1)
    deadline = time.monotonic() + SETTLED_S
    while True:  # final advertisements and lingering sessions take their time
        report.after = site.measure()
        report.gauges_after = {"TRD 1": site.gauges(1), "TRD 2": site.gauges(2)}
        report.census_after = site.census()
        if not report.problems() or time.monotonic() > deadline:
            return report
        time.sleep(0.5)


def _rest(site: ChurnSite) -> None:
    """Wait until neither descriptors nor objects have changed for a while: what lingered is gone."""
    known: object = None
    since = time.monotonic()
    while time.monotonic() < since + RESTED_S:
        now = ({who: p.fds for who, p in site.measure().items()}, {w: c.total_ours for w, c in site.census().items()})
        if now != known:
            known, since = now, time.monotonic()
        time.sleep(0.2)


def _raise(peak: dict[str, Process], now: dict[str, Process]) -> None:
    for who, process in now.items():
        known = peak.get(who, process)
        peak[who] = Process(max(known.memory_bytes, process.memory_bytes), max(known.fds, process.fds))


def table(report: Report) -> Iterable[str]:
    yield (
        f"{report.objects} sources, receivers and patterns each, {report.alive} alive at a time, "
        f"{report.messages} messages, {report.seconds:.0f} s"
    )
    yield f"{'':14}{'memory, MiB':^40}{'descriptors':^21}{'own objects':^24}{'blocks of memory':^24}"
    yield (
        f"{'process':14}{'base':>8}{'wave 1':>8}{'peak':>8}{'after':>8}{'growth':>8}"
        f"{'base':>7}{'peak':>7}{'after':>7}{'base':>8}{'peak':>8}{'after':>8}"
        f"{'base':>8}{'third':>8}{'after':>8}"
    )
    for who, after in report.after.items():
        before, peak, first = report.before[who], report.peak[who], report.waves[0][who]
        memory = [p.memory_bytes / 2**20 for p in (before, first, peak, after)]
        objects = [c[who].total_ours for c in (report.census_before, report.census_peak, report.census_after)]
        full = report.census_full.get(who, report.census_before[who])
        objects += [c.blocks for c in (report.census_before[who], full, report.census_after[who])]
        yield (
            f"{who:14}" + "".join(f"{m:>8.1f}" for m in memory) + f"{report.growth(who) / 2**20:>8.2f}"
            f"{before.fds:>7}{peak.fds:>7}{after.fds:>7}" + "".join(f"{n:>8}" for n in objects)
        )
    for portal, values in report.gauges_after.items():
        peaks = report.gauges_peak[portal]
        yield f"{portal}: " + ", ".join(
            f"{slot.name} {top} -> {n}" for slot, top, n in zip(GAUGES, peaks, values, strict=True) if top or n
        )
    for who in report.census_after:
        if left := report.left_over(who):
            yield f"{who} holds more: " + ", ".join(f"{kind} +{n}" for kind, n in left.items())


def main() -> int:
    parser = argparse.ArgumentParser(prog="churn", description=__doc__.split("\n")[0])
    parser.add_argument("--objects", type=int, default=10_000, help="sources, receivers and patterns, of each")
    parser.add_argument("--alive", type=int, default=500, help="of each kind at a time (default 500)")
    parser.add_argument("--json", type=Path, default=Path("build/churn.json"), help="where the figures go")
    arguments = parser.parse_args()
    if not 0 < arguments.alive <= arguments.objects:
        parser.error("--alive must lie between 1 and --objects")
    with tempfile.TemporaryDirectory(prefix="dro-churn-") as name, running(Path(name)) as site:
        report = churn(site, arguments.objects, arguments.alive, lambda line: print(line, flush=True))
    print("\n".join(table(report)))
    problems = report.problems()
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(asdict(report) | {"problems": problems}, indent=1))
    for problem in problems:
        print(f"churn: {problem}")
    print(f"churn: {'not everything' if problems else 'everything'} returned to the base; figures in {arguments.json}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
