"""A source in TRD 1, receivers in the other TRDs, and the DROs of a `DemoLayout` between them.

While messages flow through a triangle, the link between the DRO of TRD 1 and that of TRD 3 is cut and mended. In TRDs
without multicast there are daemons of topic resolution; one of several may end, and messages go on.
"""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from supervisor.samples.processes import Processes
from supervisor.tools.demo import history
from supervisor.tools.demo.arrivals import Arrivals, exit_status
from supervisor.tools.demo.flow import (
    PATTERN,
    RESOLVED_S,
    SETTLE_S,
    TOPIC,
    DemoSource,
    send_until,
    wait_arrived,
)
from supervisor.tools.demo.local_dro import (
    ended,
    run_name,
    running,
    running_tnwgd,
    tnwgdctl,
    web_addresses,
    workers_of,
    write_configuration,
)
from supervisor.tools.demo.network import STEP_LIMIT_S, DemoLayout, DemoNetwork
from supervisor.tools.demo.prometheus import running_prometheus
from supervisor.tools.demo.repairs import REPAIR, Answering, RepairRequester
from supervisor.tools.demo.resolvers import metrics_address
from supervisor.tools.demo.screen import LATENCY_HEAD, REDRAW_S, CounterRates, Picture, latency_cells

LATE_S: Final = 2
"""Messages of so many seconds may wait before it is said."""
SHORTEST_S: Final = 5.0
"""A demonstration that ends sooner cuts no link."""
CUT_AT, MEND_AT = 0.15, 0.5  # of the time that it lasts
ENDLESS_S: Final = 30.0  # between the cuts of one that lasts until it is stopped
PATIENCE: Final = ("receiver", "transport_lbtrm_nak_generation_interval", 1000)
"""How long, in ms, a receiver of an application holds back what follows a gap. The DROs keep the default."""
Daemons = Mapping[str, subprocess.Popen[bytes]]  # by the names of their DROs, or of resolvers


def log_of(dro: str) -> str:
    return f"tnwgd-{dro.lower()}.log"


class Timetable:
    """When the link is cut and mended: once, or again and again."""

    def __init__(self, seconds: float) -> None:
        self._period_s = seconds or ENDLESS_S
        self._is_endless = not seconds
        self._cuts = self._mends = 0
        self._is_idle = 0 < seconds < SHORTEST_S

    def act(self, elapsed_s: float, network: DemoNetwork) -> None:
        if self._is_idle or (self._cuts and self._cuts == self._mends and not self._is_endless):
            return
        at = elapsed_s / self._period_s
        if self._cuts == self._mends:
            if at >= self._cuts + CUT_AT and network.is_whole:
                self._cuts += 1
                network.cut()
        elif at >= self._mends + MEND_AT:
            self._mends += 1
            network.mend()


class DemoScreen:
    """Shows the network: a picture on a terminal, elsewhere a line each second."""

    def __init__(
        self,
        network: DemoNetwork,
        daemons: Daemons,
        ports: Mapping[str, int],
        folder: Path,
        notes: Sequence[str] = (),
        rate: int = 500,
        resolvers: Daemons | None = None,
    ) -> None:
        """`notes`: lines for the end of the picture; `rate`: messages a second that are sent."""
        self._rate = rate
        self._network = network
        self._notes = notes
        self._daemons = daemons
        self._resolvers = resolvers or {}
        self._ports = ports
        self._targets = web_addresses(ports)
        self._folder = folder
        self._picture = Picture() if sys.stdout.isatty() else None
        self._next_line_s = 0.0
        self._rates = CounterRates()
        self._figures = Processes()

    def show(self, elapsed_s: float, sent: int, arrivals: list[Arrivals], *, last: bool = False) -> None:
        rates = self._rates.of({"": sent} | {a.name: a.received for a in arrivals})
        if self._picture is not None:
            self._picture.draw([*self._lines(elapsed_s, sent, arrivals, rates)])
        elif elapsed_s >= self._next_line_s or last:
            self._next_line_s = elapsed_s + 1
            parts = [
                f"TRD {trd} received {a.received} by {self._path(trd)}, missing {len(a.missing())}, "
                f"repaired {a.repaired}, p99 {a.percentile_us(0.99):.0f} us"
                for trd, a in zip(self._network.layout.receiving, arrivals, strict=True)
            ]
            print(f"{elapsed_s:6.1f} s  sent {sent}  {'  '.join(parts)}  ({self._now(sent, arrivals)})", flush=True)

    def _now(self, sent: int, arrivals: list[Arrivals]) -> str:
        """Say what happens now, and which receivers lack more than what was sent in the last two seconds or so."""
        late = {trd: sent - a.received for trd, a in zip(self._network.layout.receiving, arrivals, strict=True)}
        waiting = [f"{count} messages wait for TRD {trd}" for trd, count in late.items() if count > LATE_S * self._rate]
        return "; ".join([self._network.now, *waiting])

    def _path(self, trd: int) -> str:
        return "-".join(self._network.view.dros_to.get(trd, ())) or "?"

    def _lines(self, elapsed_s: float, sent: int, arrivals: list[Arrivals], rates: dict[str, float]) -> Iterator[str]:
        layout = self._network.layout
        yield f"open DRO demonstration: {layout.title}, {elapsed_s:.0f} s   (Ctrl-C stops)"
        yield f"  now: {self._now(sent, arrivals)}"
        yield ""
        yield f"  {'':15}{'messages':>8}{'per s':>6}{'missing':>8}{'repaired':>9}{'dup':>4}{LATENCY_HEAD}"
        yield f"  {'source, TRD 1':15}{sent:>8}{rates['']:>6.0f}"
        for a in arrivals:
            counted = f"{a.received:>8}{rates[a.name]:>6.0f}{len(a.missing()):>8}{a.repaired:>9}{a.duplicates:>4}"
            yield f"  {a.name:15}{counted}{latency_cells(a)}"
        yield ""
        if layout.links:
            yield f"  {'link':15}{'state':>9}{'cost':>7}{'messages':>10}{'per s':>7}  address"
            for link, port in zip(self._network.view.links, self._ports.values(), strict=False):
                state = f"{'up' if link.is_up else 'cut':>9}{link.cost:>7}{link.messages:>10}{link.per_s:>7.0f}"
                yield f"  {link.name:15}{state}  127.0.0.1:{port}"
            dros_to = "   ".join(f"to TRD {trd}  TRD1-{self._path(trd)}-TRD{trd}" for trd in layout.dros_to)
            yield from (f"  path of the messages  {dros_to}", "")
        yield from self._process_lines()
        yield from self._resolver_lines()
        yield ""
        for trd, source in {trd: a.source for trd, a in zip(layout.receiving, arrivals, strict=True)}.items():
            yield f"  TRD {trd} source {source or '(not yet)'}"
        yield from (f"  {note}" for note in self._notes)
        first = next(iter(layout.files))
        yield f"  try    {tnwgdctl()} --dro {first}-{run_name()} portals"
        if self._resolvers:
            name, process = next(iter(self._resolvers.items()))
            yield f"  try    kill {process.pid}: {name} ends, and messages go on"
        yield f"  files  {self._folder}"

    def _process_lines(self) -> Iterator[str]:
        """Write a line for each DRO, or of a single one for each process."""
        groups = [(f"{name}-{run_name()}", daemon.pid, workers_of(daemon.pid, self._figures), f"http://{target}")
                  for (name, daemon), target in zip(self._daemons.items(), self._targets, strict=True)]  # fmt: skip
        is_single = len(groups) == 1
        count: str | int = "" if is_single else "processes"
        what = "process" if is_single else "DRO"
        yield f"  {what:15}{'pid':>8}{count:>10}{'CPU s':>8}{'memory MiB':>11}  web monitor"
        if is_single:
            [(_, _, workers, address)] = groups
            groups = [(worker.name, worker.pid, [worker], "") for worker in workers]
            groups[0] = (*groups[0][:3], address)
        for name, pid, workers, address in groups:
            cpu_s = sum(worker.figures.cpu_s for worker in workers)
            memory_mib = sum(worker.figures.resident_bytes for worker in workers) / 2**20
            count = "" if is_single else len(workers)
            yield f"  {name:15}{pid:>8}{count:>10}{cpu_s:>8.2f}{memory_mib:>11.1f}  {address}".rstrip()

    def _resolver_lines(self) -> Iterator[str]:
        """Write a line for each daemon of topic resolution, and what all of them count."""
        for one in self._network.layout.resolvers if self._resolvers else ():
            pid = self._resolvers[one.name].pid
            use = workers_of(pid, self._figures)[:1]
            cpu_s, memory_mib = sum(u.figures.cpu_s for u in use), sum(u.figures.resident_bytes for u in use) / 2**20
            shown = f"{one.name:15}{pid:>8}{len(use):>10}{cpu_s:>8.2f}{memory_mib:>11.1f}"
            yield f"  {shown}  {metrics_address(one, self._ports)}"
        if seen := self._network.view.resolvers:
            yield f"  clients  {'  '.join(f'{name} {n.clients} (told {n.told})' for name, n in seen.items())}"


def run(
    layout: DemoLayout, folder: Path, stop: threading.Event, seconds: float, rate: int, *, is_monitored: bool = False,
    kept: Path | None = None,
) -> int:  # fmt: skip
    """Returns the exit status. `seconds` 0: until stopped. `is_monitored`: with Prometheus, if it is there. `kept`: the
    directory of a history, which is aggregated and shown at the end."""
    messages, more = 0, history.arguments(kept) if kept else ()
    others = ("prometheus",) if is_monitored else ()
    ports = write_configuration(folder, layout, others)
    targets, notes = web_addresses(ports), list[str]()
    is_over = threading.Event()
    with contextlib.ExitStack() as stack:
        resolvers = {
            one.name: stack.enter_context(
                running(folder, f"supervisor.resolvers.{one.program}", f"{one.name}.log", one.arguments(ports))
            )
            for one in layout.resolvers
        }
        processes = {
            name: stack.enter_context(running_tnwgd(folder, file, log_of(name), more))
            for name, file in layout.files.items()
        }
        pids = {name: process.pid for name, process in processes.items()}
        network = DemoNetwork(pids, folder, is_over, layout, STEP_LIMIT_S if seconds else math.inf, ports)
        stack.callback(network.join)
        stack.callback(is_over.set)
        network.start()
        if is_monitored:
            notes.append(stack.enter_context(running_prometheus(folder, targets, ports["prometheus"], stop)))
        for name, target in zip(layout.files, targets, strict=True):
            print(f"web monitor of {name}: http://{target}, metrics at /metrics", flush=True)
        for one in layout.resolvers:
            print(f"metrics of {one.name}: {metrics_address(one, ports)}/metrics", flush=True)
        for note in notes:
            print(note, flush=True)
        demonstration = Demonstration(folder, processes, resolvers, network, stop)
        screen = DemoScreen(network, processes, ports, folder, notes, rate, resolvers)
        status = demonstration.run(screen, seconds, rate)
        if kept and not status:
            messages = history.counted(process.pid for process in processes.values())
    return history.report(kept, messages) if kept and not status else status


class Demonstration:
    """Applications around the DROs."""

    def __init__(
        self, folder: Path, daemons: Daemons, resolvers: Daemons, network: DemoNetwork, stop: threading.Event
    ) -> None:
        self._folder = folder
        self._daemons = daemons
        self._started = {f"{name}.log": (name, process) for name, process in resolvers.items()}
        self._started |= {log_of(name): (f"tnwgd of {name}", process) for name, process in daemons.items()}
        self._network = network
        self._stop = stop
        exact, pattern = network.layout.receiving
        self._arrivals = [Arrivals(f"receiver, TRD {exact}"), Arrivals(f"wildcard, TRD {pattern}")]

    def run(self, screen: DemoScreen, seconds: float, rate: int) -> int:
        pids = ", ".join(str(process.pid) for process in self._daemons.values())
        print(f"tnwgd runs as process {pids}; waiting for links and routes")
        if not self._wait(lambda: self._network.is_whole):
            return self._give_up("the DROs did not find each other")
        with contextlib.ExitStack() as stack:
            contexts = {
                trd: stack.enter_context(BlockingContext(Config.load(self._folder / f"trd{trd}.cfg").with_(*PATIENCE)))
                for trd in self._network.layout.trds
            }
            return self._run(contexts, screen, seconds, rate)

    def _run(self, contexts: Mapping[int, BlockingContext], screen: DemoScreen, seconds: float, rate: int) -> int:
        arrivals, network = self._arrivals, self._network
        exact, pattern = (contexts[trd] for trd in network.layout.receiving)
        answering = Answering()
        asked = contexts[1].receiver(REPAIR, on_event=answering.on_event)
        both = zip((exact, pattern), arrivals, strict=True)
        askers = [RepairRequester(context, a) for context, a in both if network.layout.links]  # else nothing is lost
        receiver = exact.receiver(TOPIC, on_event=arrivals[0].on_event)
        wildcard = pattern.wildcard_receiver(PATTERN, on_event=arrivals[1].on_event)
        source = contexts[1].source(TOPIC)
        print("waiting for the receivers to find the source")
        if not self._wait(lambda: bool(receiver.sources and wildcard.topics and len(asked.sources) == len(askers))):
            return self._give_up("the receivers did not find the source")
        self._stop.wait(SETTLE_S)
        sender = DemoSource(source, rate)
        timetable = Timetable(seconds)
        next_redraw = 0.0

        def each_turn() -> bool:
            nonlocal next_redraw
            answering.turn(sender)
            for asker in askers:
                asker.turn()
            if network.layout.detour:
                timetable.act(sender.elapsed_s, network)
            if sender.elapsed_s >= next_redraw:
                next_redraw += REDRAW_S
                screen.show(sender.elapsed_s, sender.sent, arrivals)
            return (
                not ended({log_of(name): process for name, process in self._daemons.items()}, self._folder)
                and not network.error
            )

        def is_over() -> bool:
            return 0 < seconds <= sender.elapsed_s and network.is_whole

        if not send_until(is_over, sender, self._stop, each_turn):
            if network.error:
                return self._give_up(network.error)
            self._sum_up(sender.sent)
            return 1

        def repair() -> None:
            answering.turn(sender)
            for asker in askers:
                asker.turn(sender.sent)

        wait_arrived(lambda: all(a.received >= sender.sent for a in arrivals), repair)
        screen.show(sender.elapsed_s, sender.sent, arrivals, last=True)
        return self._sum_up(sender.sent)

    def _sum_up(self, sent: int) -> int:
        arrivals = self._arrivals
        received = min(a.received for a in arrivals)
        print(
            f"demo: sent {sent}, received {received}, lost {sent - received}, "
            f"duplicates {sum(a.duplicates for a in arrivals)}, repaired {sum(a.repaired for a in arrivals)}"
        )
        return exit_status(sent, arrivals)

    def _wait(self, is_true: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + RESOLVED_S
        while time.monotonic() < deadline and not self._stop.is_set() and not self._network.error:
            if is_true():
                return True
            if any(process.poll() is not None for _, process in self._started.values()):
                return False
            self._stop.wait(0.05)
        return False

    def _give_up(self, why: str) -> int:
        if self._stop.is_set():
            print("demo: stopped before the first message")
            return 1
        for log in self._started:
            sys.stdout.write(self._folder.joinpath(log).read_text())
        ended = [f"{name} ended" for name, process in self._started.values() if process.poll() is not None]
        print(f"demo: {'; '.join(dict.fromkeys(filter(None, (why, *ended, self._network.error))))}")
        return 1
