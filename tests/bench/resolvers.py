"""Very many topics resolved by multicast, by `lbmrd` and over TCP by `umsrs`: `python -m tests.bench.resolvers`.

Two contexts with UM's default options, in a process each, on loopback, without a DRO: one has the sources (on TCP), one
the receivers. They begin at once when both run. Reported for each way, one after the other in one run: the time until
every receiver has its source, the processor time of contexts and daemon until then and in the seconds after, and the
most memory that each process had.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from dro.loop import Loop
from dro.proto.context.sources import BoundSource
from dro.transport.session import ReceiverTransport
from dro.um.fragment.context import FragmentContext
from dro.um.message.client_config import Config
from tests.bench.cost_unit import cpu_ns
from tests.fakes.runs import RunSink
from tests.rigs.site import PORTS_PER_TRD, reserve_block, trd_text
from tests.rigs.waiting import wait_until

ROLES: Final = ("sources", "receivers")
WAYS: Final[dict[str, tuple[str, str]]] = {
    "multicast": ("", ""),
    "lbmrd": (
        "lbmrd",
        "context resolver_unicast_daemon 127.0.0.1:{port}\n"
        "context resolver_unicast_port_low {low}\ncontext resolver_unicast_port_high {high}\n",
    ),
    "SRS": ("umsrs", "context resolver_service 127.0.0.1:{port}\ncontext resolver_disable_udp_topic_resolution 1\n"),
}
"""The program of the daemon, and options of contexts."""
START_S: Final = 20.0
RESOLVED_S: Final = 300.0


class BenchContext(RunSink):
    """One context in its process, which obeys a pipe."""

    def __init__(self, config: Path, pipe: Connection) -> None:
        self.loop = Loop()
        self._pipe = pipe
        self._context = FragmentContext(Config.load(config).options, self.loop, sink=self)
        self._wanted: set[bytes] = set()
        self.loop.add_reader(pipe.fileno(), self._on_command)
        pipe.send("ready")

    def _on_command(self) -> None:
        role, count = self._pipe.recv()
        if role == "end":
            self._context.close()
            self.loop.call_soon(self.loop.stop)
            return
        topics = [b"bench.topic.%d" % n for n in range(count)]
        if role == "receivers":
            self._wanted.update(topics)
        self.loop.run_in_slices(self._make(role, topics))

    def _make(self, role: str, topics: list[bytes]) -> Iterator[None]:
        for topic in topics:
            if role == "sources":
                self._context.open_source(topic)
            else:
                self._context.want_topic(topic)
            yield

    def on_bound(self, source: BoundSource[Any], now_ns: int) -> None:
        self._wanted.discard(source.topic)
        if not self._wanted:
            self._pipe.send("resolved")

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        pass

    def on_unbound(self, source: BoundSource[Any], *, ended: bool, now_ns: int) -> None:
        self._wanted.add(source.topic)


def context_process(config: Path, pipe: Connection) -> None:
    BenchContext(config, pipe).loop.run()


@dataclass(frozen=True)
class Way:
    """What came of one way. CPU in seconds, memory in MiB, by process."""

    way: str
    topics: int
    seconds: float
    cpu_s: dict[str, float]
    cpu_after_s: dict[str, float]
    peak_mib: dict[str, float]


def peak_mib(pid: int) -> float:
    """The most memory that a process had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


@contextlib.contextmanager
def daemon_of(program: str, port: int, folder: Path) -> Iterator[dict[str, int]]:
    """The daemon's process id, by its name; none without a daemon."""
    if not program:
        yield {}
        return
    log = folder / f"{program}.log"
    command = [sys.executable, "-m", f"supervisor.resolvers.{program}", "-i", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen([*command, "-L", str(log)]) as process:
        try:
            wait_until(lambda: log.exists() and "daemon runs" in log.read_text(), f"{program} runs", START_S)
            yield {"daemon": process.pid}
        finally:
            process.terminate()


def measure(way: str, topics: int, after_s: float) -> Way:
    program, um = WAYS[way]
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dro-resolvers-")))
        base, guard = reserve_block(PORTS_PER_TRD)
        stack.enter_context(guard)
        config = folder / "um.cfg"
        trd = trd_text(f"239.{193 + base // 256 % 62}.{base % 256}", base, "tcp")
        config.write_text(trd + um.format(port=base + 23, low=base + 24, high=base + 28))
        pids = stack.enter_context(daemon_of(program, base + 23, folder))
        spawn = multiprocessing.get_context("spawn")
        pipes: dict[str, Connection] = {}
        for role in ROLES:
            pipes[role], theirs = spawn.Pipe()
            process = spawn.Process(target=context_process, args=(config, theirs), daemon=True)
            process.start()
            stack.callback(process.join, 20)
            stack.callback(pipes[role].send, ("end", 0))
            assert process.pid is not None
            pids[role] = process.pid
        for pipe in pipes.values():
            assert pipe.recv() == "ready"

        def used() -> dict[str, float]:
            return {name: cpu_ns(pid) / 1e9 for name, pid in pids.items()}

        before, began = used(), time.monotonic()
        for role, pipe in pipes.items():
            pipe.send((role, topics))
        if not pipes["receivers"].poll(RESOLVED_S):
            raise RuntimeError(f"{way}: not resolved in {RESOLVED_S} s")
        seconds, resolved = time.monotonic() - began, used()
        time.sleep(after_s)
        after = used()
        return Way(
            way,
            topics,
            round(seconds, 2),
            {name: round(resolved[name] - before[name], 2) for name in pids},
            {name: round(after[name] - resolved[name], 2) for name in pids},
            {name: round(peak_mib(pid), 1) for name, pid in pids.items()},
        )


def show(found: Way) -> None:
    for name in found.cpu_s:
        figures = found.cpu_s[name], found.cpu_after_s[name], found.peak_mib[name]
        print(
            f"{found.way:10}{found.seconds:>11.1f}  {name:10}" + "".join(f"{one:>16.1f}" for one in figures), flush=True
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="resolvers", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--topics", type=int, default=20_000, help="default %(default)s")
    parser.add_argument("--after", type=float, default=10.0, help="seconds that follow (default %(default)s)")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), help="default: all")
    parser.add_argument("--json", type=Path, default=Path("build/resolvers.json"), help="where the figures go")
    arguments = parser.parse_args()
    heads = ("CPU until then", f"in {arguments.after:g} s more", "peak, MiB")
    print(
        f"{arguments.topics} topics\n{'way':10}{'resolved, s':>11}  {'process':10}"
        + "".join(f"{one:>16}" for one in heads)
    )
    results = []
    for way in arguments.ways:
        results.append(measure(way, arguments.topics, arguments.after))
        show(results[-1])
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(
        json.dumps({"cpus": os.cpu_count(), "results": [asdict(one) for one in results]}, indent=1)
    )
    print(f"figures in {arguments.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
