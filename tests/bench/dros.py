"""DROs of a network for benches: real daemons on loopback, their processes from outside, and what passes in their TRDs.

`Daemons` starts and ends what a `tests.rigs.network.Plan` has written. `Meter` listens to the topic resolution of a TRD
and counts records in each second.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from dro.bus.messages import ROUTE_MANAGER
from dro.errors import DecodeError, ResourceError
from dro.metrics.slots import DROP_SLOTS, Slot, WorkerSlot
from dro.transport import sockets
from dro.transport.sockets import OS_SOCKETS
from dro.wire.lbmr import packet as lbmr
from tests.bench.churn import Process
from tests.bench.cost_unit import cpu_ns
from tests.rigs.books import page_of
from tests.rigs.network import Plan
from tests.rigs.site import PORTS_PER_TRD, ROOT

MANAGER: Final = "route-manager"
BUFFER: Final = 16 << 20
TERM_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Worker:
    """A process of a DRO at one moment. Turns are the longest since its start, by processor time and by the clock."""

    pid: int
    cpu_ns: int
    memory_bytes: int
    turn_cpu_ms: float
    turn_ms: float
    dropped: dict[str, int]  # fragments ever, by reason


class Daemons:
    """By name of the DRO. `close` ends them all."""

    def __init__(self, plan: Plan, popen: Any = subprocess.Popen) -> None:  # noqa: ANN401  as `Site.POPEN`
        self.plan = plan
        self._popen = popen
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        deadline = time.monotonic() + TERM_S
        for process in self._running.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.plan.close()

    def log_of(self, name: str) -> Path:
        return self.plan.folder / f"{name}.log"

    def start(self, name: str) -> None:
        with self.log_of(name).open("ab") as log:
            self._running[name] = self._popen(
                [sys.executable, "-m", "supervisor.main", str(self.plan.file(name))],
                cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    @property
    def names(self) -> list[str]:
        """Of those that run."""
        return [*self._running]

    def pid(self, name: str) -> int:
        process = self._running[name]
        if process.poll() is not None:
            raise RuntimeError(f"{name} has ended\n{self.log_of(name).read_text()[-6000:]}")
        return process.pid

    def kill(self, name: str) -> None:
        """All its processes, as `kill -9` does."""
        process = self._running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def reload(self, name: str, text: str) -> None:
        self.plan.file(name).write_text(text)
        os.kill(self.pid(name), signal.SIGHUP)

    def pids(self, name: str) -> dict[str, int]:
        """By worker."""
        pid = self.pid(name)
        found: dict[str, int] = {}
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
                found[Path(f"/proc/{child}/comm").read_text().strip()] = int(child)
        return {worker: found[worker] for worker in (*self._portals(name), MANAGER) if worker in found}

    def _portals(self, name: str) -> list[str]:
        return [f"{name}-{port}" for port in self.plan.dros[name]]

    def look(self, name: str) -> dict[str, Worker]:
        """All workers of a DRO."""
        number = {portal: n for n, portal in enumerate(self._portals(name), 1)} | {MANAGER: ROUTE_MANAGER}
        found = {}
        for worker, pid in self.pids(name).items():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, IndexError, ValueError, ResourceError):
                with page_of(self.pid(name), number[worker]) as page:
                    turn_cpu_us, turn_us = page[WorkerSlot.LONGEST_TURN_CPU_US], page[WorkerSlot.LONGEST_TURN_US]
                    dropped = {reason: page[slot] for reason, slot in DROP_SLOTS.items() if worker != MANAGER}
                memory = Process.of(pid).memory_bytes
                found[worker] = Worker(pid, cpu_ns(pid), memory, turn_cpu_us / 1000, turn_us / 1000, dropped)
        return found

    def gauge(self, name: str, port: int | str, slot: Slot) -> int:
        """Of the portal that leads there; 0 while it starts."""
        number = [*self.plan.dros[name]].index(port) + 1
        try:
            with page_of(self.pid(name), number) as page:
                return page[slot]
        except (ValueError, ResourceError):
            return 0


def worst(looks: Iterable[dict[str, Worker]]) -> tuple[str, float, float]:
    """The worker with the longest turn by processor time."""
    return max(((n, w.turn_cpu_ms, w.turn_ms) for look in looks for n, w in look.items()), key=lambda one: one[1])


def dropped_by(looks: Iterable[dict[str, Worker]]) -> Counter[str]:
    """Fragments ever, by worker and reason."""
    found: Counter[str] = Counter()
    for look in looks:
        for name, worker in look.items():
            found.update({f"{name} {reason}": count for reason, count in worker.dropped.items()})
    return found


def records_of(datagram: bytes) -> int:
    """How many records a datagram of topic resolution has, as far as it can be read."""
    if len(datagram) >= 4 and not datagram[0] & 0x07:
        return datagram[1] + int.from_bytes(datagram[2:4], "big")
    try:
        body = lbmr.decode(datagram).body
    except DecodeError:
        return 0
    return len(body.records) if isinstance(body, lbmr.TopicManagement) else 1


def is_from_dro(datagram: bytes) -> bool:
    try:
        options = lbmr.decode(datagram).options
    except DecodeError:
        return False
    return options is not None and options.is_from_dro


class Meter:
    """Listens to the topic resolution of one TRD; `step` has to be called often."""

    def __init__(self, group: str, port: int, applications: Iterable[tuple[str, int]] | None = None) -> None:
        """`applications`: addresses whose datagrams do not count; None: known by what they say, which takes longer."""
        self._others = None if applications is None else set(applications)
        self._receiver = OS_SOCKETS.multicast_receiver(
            sockets.ip_number(group), port, "127.0.0.1", buffer_bytes=BUFFER, option="the group of the bench"
        )
        self._by_second: Counter[int] = Counter()

    def close(self) -> None:
        self._receiver.close()

    def step(self) -> None:
        second = int(time.monotonic())
        while True:
            try:
                data, sender = self._receiver.recvfrom(65536)
            except BlockingIOError:
                return
            if is_from_dro(data) if self._others is None else sender not in self._others:
                self._by_second[second] += records_of(data)

    def take(self) -> Counter[int]:
        """Records by second since the last call."""
        counted, self._by_second = self._by_second, Counter()
        return counted

    def take_peak(self) -> int:
        """The most records in a second since the last call."""
        return max(self.take().values(), default=0)


def tr_group(plan: Plan, trd: int) -> tuple[str, int]:
    """Group and port of topic resolution there."""
    base = plan.base + plan.trds.index(trd) * PORTS_PER_TRD
    return f"{net_of(plan, trd)}.1", base


def net_of(plan: Plan, trd: int) -> str:
    """The first three numbers of its multicast groups."""
    base = plan.base + plan.trds.index(trd) * PORTS_PER_TRD
    return f"239.{193 + base // 256 % 62}.{base % 256}"
