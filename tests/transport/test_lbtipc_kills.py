"""LBT-IPC while readers and sources are killed: nobody hangs, nothing wrong or doubled comes, and nothing is left."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pytest

from dro.clock import ms
from dro.config.um.options import UmOptions
from dro.loop import Loop
from dro.transport import mmsg
from dro.transport.kind import SenderEvents, SessionHost
from dro.transport.lbtipc.kind import IpcReceivers, IpcSenders
from dro.transport.lbtipc.sender import IpcSender
from dro.transport.runs import Run
from dro.transport.session import ReceiverTransport
from dro.wire.lbmc.message import HEADER
from dro.wire.source_string import IpcAddress
from tests.fakes.runs import RunSink

PATIENCE_S: Final = 60
READERS: Final = 3
LAST, WRONG, DOUBLED, MISSING, LOST = range(5)  # cells of a process
_fork = multiprocessing.get_context("fork")


def payload(sqn: int) -> bytes:
    return sqn.to_bytes(8, "big") * (1 + sqn * 37 % 1500)


class CheckingSink(RunSink):
    """Notes in a page that other processes see what came."""

    def __init__(self, cells: Any) -> None:  # noqa: ANN401  a memoryview of u64
        self.cells = cells
        self.last = -1

    def on_runs(self, transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        for run in runs:
            for number in range(run.fragments):
                at = run.offset + number * run.stride
                sqn = run.first_sqn + number
                self.cells[WRONG] += view[at + HEADER.size : at + run.length] != payload(sqn)
                self.cells[DOUBLED] += sqn <= self.last
                self.cells[MISSING] += max(0, sqn - self.last - 1) if self.last >= 0 else 0
                self.last = self.cells[LAST] = sqn

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        pass

    def on_ended(self, transport: ReceiverTransport, now_ns: int) -> None:
        pass


def run_source(cells: Any, behavior: str, told: Connection) -> None:  # noqa: ANN401
    """Send numbers until it is killed."""
    loop, parent = Loop(), os.getppid()
    options = UmOptions({
        ("source", "transport_lbtipc_behavior"): behavior,
        ("source", "transport_lbtipc_transmission_window_size"): 1 << 20,
    })  # fmt: skip
    host = SessionHost(loop, options, mmsg.DatagramBatch(), random.Random())
    sender = IpcSenders(host, SenderEvents(lambda *_: None, lambda _: None), False).acquire(options)
    assert isinstance(sender, IpcSender)
    told.send(sender.address)
    sqn = 0
    while os.getppid() == parent:
        for _ in range(20):
            body = payload(sqn)
            message = HEADER.pack(0, 0, HEADER.size + len(body), 7, sqn) + body
            if not sender.send_message(message, loop.now_ns()):
                break
            cells[LAST] = sqn
            sqn += 1
        loop.run_once(ms(1))


def run_reader(cells: Any, address: IpcAddress) -> None:  # noqa: ANN401
    """Read until it is killed."""
    loop, parent = Loop(), os.getppid()
    host = SessionHost(loop, UmOptions(), mmsg.DatagramBatch(), random.Random())
    sink = CheckingSink(cells)
    session = IpcReceivers(host, sink, sink.on_ended).join(address, UmOptions(), loop.now_ns())
    while os.getppid() == parent:
        loop.run_once(ms(50))
        cells[LOST] = session.lost


class Killing:
    """One source with its readers, and all that they have told."""

    def __init__(self, behavior: str) -> None:
        self.behavior = behavior
        self.source: multiprocessing.process.BaseProcess
        self.source_cells: Any
        self.readers: list[tuple[multiprocessing.process.BaseProcess, Any]] = []
        self.received = 0
        self.lost = 0
        self.address: IpcAddress

    def start_source(self) -> None:
        self.source_cells = memoryview(mmap.mmap(-1, 4096)).cast("Q")
        here, there = _fork.Pipe()
        self.source = _fork.Process(target=run_source, args=(self.source_cells, self.behavior, there), daemon=True)
        self.source.start()
        assert here.poll(PATIENCE_S), "the source has no session"
        self.address = here.recv()
        here.close()
        there.close()
        for _ in range(READERS):
            self.start_reader()

    def start_reader(self) -> None:
        cells = memoryview(mmap.mmap(-1, 4096)).cast("Q")
        process = _fork.Process(target=run_reader, args=(cells, self.address), daemon=True)
        process.start()
        self.readers.append((process, cells))

    def wait_all_at(self, sqn: int) -> None:
        until(lambda: all(cells[LAST] >= sqn for _, cells in self.readers), self.told)

    def told(self) -> str:
        return f"source at {self.source_cells[LAST]}, readers at {[cells[LAST] for _, cells in self.readers]}"

    def kill_reader(self, which: int) -> None:
        process, cells = self.readers.pop(which)
        process.kill()
        process.join(PATIENCE_S)
        self.check(cells)

    def check(self, cells: Any) -> None:  # noqa: ANN401
        assert (cells[WRONG], cells[DOUBLED]) == (0, 0)
        if self.behavior == "receiver_paced":
            assert (cells[MISSING], cells[LOST]) == (0, 0)
        self.received += cells[LAST]
        self.lost += cells[LOST]

    def kill_source(self) -> None:
        """What was sent is read to its end by all who had joined."""
        self.wait_all_at(1)
        self.source.kill()
        self.source.join(PATIENCE_S)
        self.wait_all_at(self.source_cells[LAST])
        while self.readers:
            self.kill_reader(0)

    def close(self) -> None:
        for process in [self.source, *(process for process, _ in self.readers)]:
            process.kill()
            process.join(PATIENCE_S)


def until(holds: Callable[[], bool], told: Callable[[], str]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, told()
        os.sched_yield()


def left_over() -> set[str]:
    """Files in shared memory, and local sockets, of LBT-IPC."""
    with open("/proc/net/unix", encoding="ascii", errors="replace") as file:
        sockets = {word for line in file for word in line.split()[7:] if "LBTIPC_" in word}
    return sockets | {path.name for path in Path("/dev/shm").iterdir() if "LBTIPC" in path.name.upper()}


@pytest.fixture
def killing(request: pytest.FixtureRequest) -> Iterator[Killing]:
    made = Killing(request.param)
    yield made
    made.close()


@pytest.mark.slow
@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("killing", ["source_paced", "receiver_paced"], indirect=True)
def test_readers_and_sources_are_killed_again_and_again(killing: Killing, kills: int) -> None:
    rng = random.Random(kills)
    names = set()
    killing.start_source()
    for _ in range(kills):
        names.add(f"@LBTIPC_{killing.address.session_id:x}_{killing.address.transport_id}")
        if rng.random() < 0.7:
            killing.kill_reader(rng.randrange(READERS))
            killing.start_reader()
            killing.wait_all_at(killing.source_cells[LAST])
        else:
            killing.kill_source()
            killing.start_source()
    killing.kill_source()
    assert len(names) > 2
    assert killing.received > 100 * kills
    assert not names & left_over()
