"""What a direct link carries, how fast, and what it costs. Prints a table and writes JSON.

For each payload size and transport: the highest loss-free throughput (closed loop), latency at 1000 messages per
second and at half of the maximum (open loop), CPU per message of every process, memory of every process. CPU is also
given in U, measured in the same run (see `tests.bench.cost_unit`).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from dro.metrics.slots import Slot
from supervisor.samples.processes import Processes
from supervisor.tools.demo import local_dro as demo
from tests.bench.cost_unit import cpu_ns, measure_u_ns, memory_bytes
from tests.bench.generators import (
    BOUND,
    MEASURING,
    PAUSE,
    RECEIVED,
    SENT,
    STOP,
    Board,
    Sender,
    SendPlan,
    percentile,
    receive,
    spawn,
)
from tests.rigs.books import books_of


@dataclass
class Run:
    """Figures of one load on one configuration."""

    messages: int
    seconds: float
    per_second: float
    megabytes_per_second: float
    lost: int
    cpu_us_per_message: dict[str, float]
    cpu_u_per_message: dict[str, float]
    busy: dict[str, float]
    memory_mib: dict[str, float]
    drops: dict[str, int]
    naks_answered: int
    latency_us: dict[str, float] = field(default_factory=dict)


ON_THE_WAY_BYTES: Final = {"lbtrm": 2_500_000, "tcp": 900_000}
"""Enough to keep batches full, and less than the socket buffers (8 MB for LBT-RM) or the portal's queue (1 MB) hold."""
UNLIMITED = """
context transport_lbtrm_data_rate_limit 100000000000
context transport_lbtrm_retransmit_rate_limit 50000000000
"""


def configure(folder: Path, transport: str, *, is_packed: bool) -> None:
    """Both TRDs on `transport`, and no rate limit: what is measured is the program.

    `is_packed`: source and egress portal fill datagrams up to UM's default of 2048 bytes; else a message is a datagram.
    """
    for trd in (1, 2):
        path = folder / f"trd{trd}.cfg"
        text = path.read_text().replace("source transport lbtrm", f"source transport {transport}")
        path.write_text(text + UNLIMITED + ("" if is_packed else "source implicit_batching_minimum_length 1\n"))


@contextmanager
def children(pids: dict[str, int], board: Board) -> Iterator[None]:
    try:
        yield
    finally:
        board.cells[STOP] = 1
        for pid in pids.values():
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline and os.waitpid(pid, os.WNOHANG) == (0, 0):
                time.sleep(0.01)
            else:
                if time.monotonic() >= deadline:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)


def wait_for(condition: object, what: str, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    assert callable(condition)
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"bench: {what} did not happen within {seconds} s")
        time.sleep(0.02)


def load(plan: SendPlan, *, seconds: float, u_ns: float, is_packed: bool) -> Run:
    """One load on a DRO of its own."""
    with tempfile.TemporaryDirectory(prefix="dro-bench-") as name:
        folder = Path(name)
        demo.write_configuration(folder)
        configure(folder, plan.transport, is_packed=is_packed)
        board = Board()
        cells = board.cells
        pids: dict[str, int] = {}
        with demo.running_tnwgd(folder) as tnwgd, children(pids, board):
            pids["receiver"] = spawn(lambda: receive(str(folder / "trd2.cfg"), board, with_latency=plan.stamped))
            pids["sender"] = spawn(lambda: Sender(str(folder / "trd1.cfg"), board, plan).run())
            wait_for(lambda: (cells[BOUND] and cells[RECEIVED] > 100) or tnwgd.poll() is not None, "the flow")
            if tnwgd.poll() is not None:
                raise SystemExit((folder / "tnwgd.log").read_text())
            processes = {w.name: w.pid for w in demo.workers_of(tnwgd.pid, Processes())} | pids
            time.sleep(0.5)
            cpu = {who: cpu_ns(pid) for who, pid in processes.items()}
            received, began = cells[RECEIVED], time.monotonic()
            cells[MEASURING] = 1
            time.sleep(seconds)
            span, count = time.monotonic() - began, cells[RECEIVED] - received
            cells[MEASURING] = 0
            used = {who: cpu_ns(pid) - cpu[who] for who, pid in processes.items()}
            memory = {who: memory_bytes(pid) / 2**20 for who, pid in processes.items()}
            latencies = board.latencies_us()
            cells[PAUSE] = 1
            deadline = time.monotonic() + 10
            while cells[RECEIVED] < (sent := cells[SENT]) and time.monotonic() < deadline:
                time.sleep(0.02)
            lost = max(0, sent - cells[RECEIVED])
            with books_of(tnwgd.pid, 2) as books:
                drops = {why: n for k in (1, 2) for why, n in books.dropped(k).items() if n}
                repairs = books.total(Slot.RETRANSMITTED)
    messages = max(count, 1)
    return Run(
        messages=count,
        seconds=round(span, 3),
        per_second=round(count / span, 1),
        megabytes_per_second=round(count / span * plan.payload_bytes / 1e6, 2),
        lost=lost,
        drops=drops,
        naks_answered=repairs,
        cpu_us_per_message={who: round(ns / messages / 1000, 3) for who, ns in used.items()},
        cpu_u_per_message={who: round(ns / messages / u_ns, 3) for who, ns in used.items()},
        busy={who: round(ns / span / 1e9, 3) for who, ns in used.items()},
        memory_mib={who: round(value, 1) for who, value in memory.items()},
        latency_us={
            "p50": round(percentile(latencies, 0.5), 1),
            "p99": round(percentile(latencies, 0.99), 1),
            "p99.9": round(percentile(latencies, 0.999), 1),
        }
        if plan.stamped
        else {},
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="throughput", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=4, help="length of each measurement (default 4)")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 512, 1400, 8000], help="payload bytes")
    parser.add_argument("--transports", nargs="+", default=["lbtrm", "tcp"], choices=["lbtrm", "tcp"])
    parser.add_argument(
        "--packed", action="store_true", help="several messages in a datagram, as UM's defaults have it"
    )
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), help="where the figures go")
    arguments = parser.parse_args()
    results: list[dict[str, object]] = []
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, Linux {platform.release()}"
    )
    for transport in arguments.transports:
        for size in arguments.sizes:
            u_ns = measure_u_ns()
            window = max(64, min(2048, ON_THE_WAY_BYTES[transport] // size))
            run = partial(load, seconds=arguments.seconds, u_ns=u_ns, is_packed=arguments.packed)
            top = run(SendPlan(size, window=window, transport=transport))
            half = int(top.per_second / 2)
            slow = run(SendPlan(size, rate=1000, transport=transport, stamped=True))
            busy = run(SendPlan(size, rate=half, transport=transport, stamped=True))
            results.append(
                {"transport": transport, "payload_bytes": size, "u_ns": round(u_ns), "window": window,
                 "maximum": asdict(top), "at_1000": asdict(slow), "at_half": asdict(busy)}
            )  # fmt: skip
            show(transport, size, u_ns, top, slow, busy)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps({"cpus": os.cpu_count(), "results": results}, indent=1))
    print(f"figures in {arguments.json}")


def show(transport: str, size: int, u_ns: float, top: Run, slow: Run, busy: Run) -> None:
    portals = [who for who in top.cpu_u_per_message if who.startswith("DEMO-")]
    both = sum(top.cpu_u_per_message[who] for who in portals)
    print(f"\n{transport} to {transport}, {size} bytes   (U = {u_ns / 1000:.2f} us)")
    print(
        f"  maximum      {top.per_second:>10.0f} msg/s {top.megabytes_per_second:>9.2f} MB/s   "
        f"lost {top.lost} {top.drops or ''}"
    )
    for what, run in (("at 1000/s", slow), ("at half", busy)):
        l = run.latency_us  # noqa: E741
        print(f"  {what:<12} {run.per_second:>10.0f} msg/s   latency us p50 {l['p50']:.0f}  p99 {l['p99']:.0f}  "
              f"p99.9 {l['p99.9']:.0f}   lost {run.lost} {run.drops or ''}")  # fmt: skip
    print(f"  both portals {both:>10.2f} U/msg")
    for who in top.cpu_us_per_message:
        print(
            f"    {who:<16} {top.cpu_us_per_message[who]:>8.2f} us/msg {top.cpu_u_per_message[who]:>7.2f} U/msg "
            f"{100 * top.busy[who]:>6.0f} % CPU {top.memory_mib[who]:>8.1f} MiB"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
