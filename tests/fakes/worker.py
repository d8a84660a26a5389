"""A worker's context without a process, a bus and siblings: keeps what it is told to send and to report."""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from dro.bus.actor import WorkerContext
from dro.bus.counters import CounterPage
from dro.bus.kept_bytes import KeptBytes
from dro.bus.kept_sockets import NO_SOCKETS
from dro.bus.messages import PeerUp, Role, WorkerReport
from dro.kept.store import NOTHING_KEPT
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.shared_memory.ring import RingReader, RingWriter

_OF_EVERY_RECORD = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}
Told = tuple[str, LogEvent, dict[str, object]]


@dataclass
class FakeIdentity:
    counters_path: Path
    dro_node_id: int = 1 << 63 | 5


def _close_if_left(descriptor: int, path: Path) -> None:
    """Close the descriptor of a ring that nobody closed, as the end of a process does."""
    with contextlib.suppress(OSError):
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(path)):
            os.close(descriptor)


class FakeChannels:
    """Keeps control messages by receiver."""

    def __init__(self) -> None:
        self.on_ctl: Callable[[int, bytes], object] = lambda *_: None
        self.sent: list[tuple[int, bytes]] = []
        self.given_up: list[int] = []

    def give_up(self, worker: int) -> None:
        self.given_up.append(worker)

    def send_ctl(self, worker: int, frame: bytes) -> None:
        self.sent.append((worker, frame))

    def wake(self, worker: int) -> None:
        """Who shares the loop is awake."""


class FakeWorker:
    """What `WorkerContext` is to a worker of its own process. Callbacks of the worker are in `told`, by name."""

    def __init__(self, loop: Loop, folder: Path, index: int, name: str, role: Role = Role.ENDPOINT) -> None:
        self.identity = FakeIdentity(folder / f"{name}.page")
        self.index = index
        self.incarnation = 1
        self.name = name
        self.role = role
        self.folder = folder
        self.loop = loop
        self.log = logging.getLogger(f"fake_worker.{name}")
        self.limited = LimitedLogger(self.log, loop.now_ns).event
        self.channels = FakeChannels()
        self.kept = KeptBytes()
        self.kept_state = NOTHING_KEPT
        self.kept_sockets = NO_SOCKETS
        self.goes_on = False
        self.kept_dir = folder / f"{name}.kept"
        self.kept_dir.mkdir(exist_ok=True)
        self.counters = CounterPage.create(self.identity.counters_path)
        self.peers: dict[int, PeerUp] = {}
        self.is_stopping = self.is_ready = False
        self.reports: list[WorkerReport] = []
        self.answers: list[str] = []  # to orders to drain
        self.ends: list[str] = []  # ready, run, finish: the calls so far
        self.rings: list[RingReader] = []  # of siblings, as they were opened
        self.told: dict[str, Callable[..., object]] = {}

    @property
    def ctx(self) -> WorkerContext:
        return cast(WorkerContext, self)

    def hear_parent(self) -> None:
        pass

    def former_ring(self, incarnation: int) -> RingReader | None:
        return None

    def create_ring(self, capacity: int) -> RingWriter:
        path = self.folder / f"{self.name}.ring"
        ring = RingWriter.create(path, capacity, 1)
        weakref.finalize(self, _close_if_left, ring._fd, path)
        return ring

    def open_ring(self, peer: PeerUp) -> RingReader:
        self.rings.append(RingReader.open(self.folder / f"{peer.name}.ring", 1))
        return self.rings[-1]

    def former_sibling_rings(self, worker: int, first: int) -> list[RingReader]:
        return []

    def forget_sibling_ring(self, worker: int, incarnation: int) -> None:
        pass

    def forget_former_rings(self) -> None:
        pass

    def __setattr__(self, name: str, value: object) -> None:
        """`on_peer_up` and its like: keep the callback."""
        if name.startswith("on_") and callable(value):
            self.told[name] = value
        else:
            super().__setattr__(name, value)

    def name_of(self, worker: int) -> str:
        peer = self.peers.get(worker)
        return f"worker {worker}" if peer is None else peer.name

    def report(self, message: WorkerReport) -> None:
        self.reports.append(message)

    def drained(self, waiting: str) -> None:
        self.answers.append(waiting)

    def ready(self) -> None:
        self.is_ready = True
        self.ends.append("ready")

    def run(self) -> None:
        self.ends.append("run")

    def finish(self) -> None:
        self.ends.append("finish")


def logged(caplog: pytest.LogCaptureFixture) -> list[Told]:
    """Level, event and fields of every line so far, which are forgotten then."""
    lines = [(r.levelname, r.msg, {k: v for k, v in vars(r).items() if k not in _OF_EVERY_RECORD})
             for r in caplog.records]  # fmt: skip
    caplog.clear()
    return cast("list[Told]", lines)
