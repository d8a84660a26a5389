"""What the web monitor costs a pair of DROs: CPU and latency without it, with it, and with it under questions.

`python -m tests.bench.monitor`: three pairs of real `tnwgd` joined by a TCP link, all under the mixed traffic of
`tests.bench.mix` at a fixed rate: one without `<web-monitor>`, one whose monitors nobody asks, one whose monitors are
scraped once a second each, while a page is open that asks every two seconds and a stream of log events is read. They
are measured in turn, round by round. Then, under the same traffic, the monitors of the last pair are killed, stopped,
and flooded with requests: no message may be lost. Without gcc there is no load: it says so.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from tests.bench.cost_unit import measure_u_ns
from tests.bench.links import linked
from tests.bench.mix import Measured, measure, spread
from tests.bench.traffic import generator
from tests.bench.traffic.workload import Contestant, Workload
from tests.rigs.site import reserve_block

OFF, SILENT, ASKED = "no monitor", "nobody asks", "scraped, page open"
SCRAPE_S, PAGE_S = 1.0, 2.0  # the second as `live.js` has it
FLOOD: Final = 8  # connections to each monitor
MONITOR: Final = "monitor"
PARTS: Final = {"portals": ("in", "link", "out"), "parents": ("parent",), "monitors": (MONITOR,)}
"""Last words of the names of processes."""


@dataclass
class Asked:
    """How often the monitors were asked meanwhile, and how often there was no answer."""

    answers: int = 0
    failures: int = 0


class Questions:
    """Asks both monitors of a pair from threads of this process, until it is closed."""

    def __init__(self, webs: Sequence[str]) -> None:
        self.webs = webs
        self.count = Asked()
        self._is_over = threading.Event()
        self._threads: list[threading.Thread] = []

    def scrape_and_look(self) -> None:
        for web in self.webs:
            self._start(self._again, web, ("/metrics",), SCRAPE_S)
            self._start(self._again, web, ("/",), PAGE_S)
            self._start(self._read_stream, web)

    def flood(self) -> None:
        for web in self.webs:
            for _ in range(FLOOD):
                self._start(self._again, web, ("/metrics", "/", "/topology", "/v1/portals"), 0.0)

    def close(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        self._threads.append(threading.Thread(target=target, args=arguments))
        self._threads[-1].start()

    def _again(self, web: str, paths: Sequence[str], every_s: float) -> None:
        while not self._is_over.is_set():
            connection = http.client.HTTPConnection(web, timeout=2)
            with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
                while not self._is_over.is_set():
                    for path in paths:
                        self.count.failures += 1  # unless there is an answer
                        connection.request("GET", path)
                        connection.getresponse().read()
                        self.count.failures -= 1
                        self.count.answers += 1
                    self._is_over.wait(every_s)
            self._is_over.wait(0.1)

    def _read_stream(self, web: str) -> None:
        host, port = web.split(":")
        with socket.create_connection((host, int(port))) as sock:
            sock.settimeout(0.5)
            sock.sendall(f"GET /v1/events/stream HTTP/1.1\r\nHost: {web}\r\n\r\n".encode())
            while not self._is_over.is_set():
                with contextlib.suppress(TimeoutError):
                    sock.recv(65536)


@contextmanager
def pair(program: Path, folder: Path, workload: Workload, webs: Sequence[str]) -> Iterator[Contestant]:
    """Two DROs with a link; `webs`: where their monitors listen, if they have any. Their parents and monitors are among
    the processes."""
    with linked(program, folder, workload, "TCP", webs) as who:
        found = dict(who.processes)
        for dro, portal in (("A", "A link"), ("B", "B link")):
            found[f"{dro} parent"] = parent = parent_of(who.processes[portal])
            if webs:
                found[f"{dro} {MONITOR}"] = monitor_of(parent)
        yield replace(who, name=workload.name, processes=found)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def monitor_of(parent: int) -> int:
    """Its process of now. Raises: RuntimeError."""
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with contextlib.suppress(FileNotFoundError):
            if Path(f"/proc/{child}/comm").read_text().strip() == MONITOR:
                return int(child)
    raise RuntimeError("no monitor runs")


def cpu_ms(measured: Measured, part: str) -> float:
    """CPU per second of time of all processes of that part, ms."""
    each = [us for name, us in measured.us_by_process.items() if name.rpartition(" ")[2] in PARTS[part]]
    return sum(each) * measured.messages / measured.seconds / 1000


def with_questions(who: Contestant, seconds: float, webs: Sequence[str], ask: Callable[[Questions], None]) -> Measured:
    questions = Questions(webs)
    ask(questions)
    try:
        return measure(who, seconds)
    finally:
        questions.close()
        print(f"  {questions.count.answers} answers, {questions.count.failures} requests without one", flush=True)


def broken(who: Contestant, seconds: float, webs: Sequence[str]) -> dict[str, Measured]:
    """The same traffic while monitors are killed, while they stand still, and while they are flooded."""
    monitors = {name: pid for name, pid in who.processes.items() if name.endswith(MONITOR)}
    found = {"flooded": with_questions(who, seconds, webs, Questions.flood)}
    for pid in monitors.values():
        os.kill(pid, signal.SIGSTOP)
    found["stopped"] = measure(who, seconds)
    for pid in monitors.values():
        os.kill(pid, signal.SIGCONT)
    rest = replace(who, processes={name: pid for name, pid in who.processes.items() if name not in monitors})
    is_over = threading.Event()
    killer = threading.Thread(target=kill_again, args=(rest, is_over))
    killer.start()
    try:
        found["killed again and again"] = measure(rest, seconds)
    finally:
        is_over.set()
        killer.join()
    return found


def kill_again(who: Contestant, is_over: threading.Event) -> None:
    """Kill -9 to both monitors each time that they are there, about twice a second."""
    while not is_over.wait(0.5):
        for dro in "AB":
            with contextlib.suppress(RuntimeError, ProcessLookupError):
                os.kill(monitor_of(who.processes[f"{dro} parent"]), signal.SIGKILL)


def show(results: dict[str, list[Measured]]) -> dict[str, dict[str, float]]:
    """Print the table; its figures."""
    figures = {}
    print(f"\n{'CPU, ms per s':24}{'portals':>22}{'parents':>20}{'monitors':>22}{'p50':>8}{'p99 us':>8}{'lost':>6}")
    for name, rounds in results.items():
        parts = {part: [cpu_ms(one, part) for one in rounds] for part in PARTS}
        p50, p99 = (median(one.latency_us[p] for one in rounds) for p in ("p50", "p99"))
        lost = sum(one.lost for one in rounds)
        print(f"{name:24}" + f"{spread(parts['portals'], 1):>22}{spread(parts['parents'], 1):>20}"
              f"{spread(parts['monitors'], 1):>22}{p50:>8.0f}{p99:>8.0f}{lost:>6}")  # fmt: skip
        figures[name] = {part: median(each) for part, each in parts.items()} | {"p50": p50, "p99": p99, "lost": lost}
    return figures


def shares(results: dict[str, list[Measured]]) -> dict[str, list[float]]:
    """What parents and monitors take more than a pair without monitors, and portals, in % of its portals' CPU."""
    found = {}
    for name in (SILENT, ASKED):
        for part in ("beside", "portals"):
            parts = ("parents", "monitors") if part == "beside" else ("portals",)
            found[f"{name}, {part}"] = [
                100 * sum(cpu_ms(one, p) - cpu_ms(other, p) for p in parts) / cpu_ms(other, "portals")
                for one, other in zip(results[name], results[OFF], strict=True)
            ]
    return found


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="monitor", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="times each is measured (default 5)")
    parser.add_argument("--seconds", type=float, default=4, help="length of each measurement (default 4)")
    parser.add_argument("--rate", type=int, default=1000, help="messages per second (default 1000)")
    parser.add_argument("--json", type=Path, default=Path("build/monitor.json"), help="where the figures go")
    arguments = parser.parse_args(words)
    if not generator.is_possible():
        print(f"monitor: {generator.COMPILER} is not installed, so there is no load generator: nothing is measured")
        return 0
    u_ns = measure_u_ns()
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, U = {u_ns / 1000:.2f} us")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dro-monitor-")))
        program = stack.enter_context(generator.built())
        base, guard = reserve_block(4)
        stack.callback(guard.close)
        webs = {OFF: (), SILENT: (f"127.0.0.1:{base}", f"127.0.0.1:{base + 1}"),
                ASKED: (f"127.0.0.1:{base + 2}", f"127.0.0.1:{base + 3}")}  # fmt: skip
        pairs = {
            name: stack.enter_context(pair(program, folder / str(n), Workload(name, rate=arguments.rate), webs[name]))
            for n, name in enumerate(webs)
        }
        results: dict[str, list[Measured]] = {name: [] for name in pairs}
        for _ in range(arguments.rounds):
            for name, who in pairs.items():
                if name == ASKED:
                    results[name].append(with_questions(who, arguments.seconds, webs[name], Questions.scrape_and_look))
                else:
                    results[name].append(measure(who, arguments.seconds))
        faults = broken(pairs[ASKED], arguments.seconds, webs[ASKED])
    figures = show(results | {f"monitors {name}": [one] for name, one in faults.items()})
    print("\nmore than without a monitor, % of the CPU of its portals")
    for name, values in (compared := shares(results)).items():
        print(f"  {name:40}{spread(values, 1)}")
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    rounds = {name: [asdict(one) for one in each] for name, each in results.items()}
    arguments.json.write_text(
        json.dumps({"u_ns": round(u_ns), "figures": figures, "shares": compared, "rounds": rounds}, indent=1)
    )
    return 1 if any(one["lost"] for one in figures.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
