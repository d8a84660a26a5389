"""Thousands of connections of strangers to a running DRO: its processes have hardly more memory afterwards."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from dro.bus.cycle_search import own_bytes
from tests.network.test_fuzzed_links import greeting
from tests.rigs.loaded import Loaded
from tests.rigs.network import Plan
from tests.rigs.site import PORTS_PER_TRD, ROOT
from tests.rigs.waiting import wait_until

CONNECTIONS: Final = 2000
STAY: Final = 100
"""Connections that are open at the same time, of those that do not go away by themselves."""
GROWN: Final = 96 << 20

pytestmark = pytest.mark.slow


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[Plan]:
    made = Plan(tmp_path, {"A": [1, "B"], "B": [2, "A"]})
    yield made
    made.close()


@contextlib.contextmanager
def running(plan: Plan) -> Iterator[subprocess.Popen[bytes]]:
    """DRO B, whose peer portal listens."""
    log = plan.folder / "B.log"
    with log.open("wb") as file:
        process: subprocess.Popen[bytes] = Loaded(
            [sys.executable, "-m", "supervisor.main", str(plan.file("B"))], cwd=ROOT, stdout=file, stderr=file
        )
    try:
        wait_until(lambda: "has started" in log.read_text(), "the DRO runs", 60, log.read_text)
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


def processes_of(parent: int) -> list[int]:
    return [parent, *map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())]


def answers(port: int) -> bool:
    """All who came before have been accepted, and the next companion is greeted."""
    with socket.create_connection(("127.0.0.1", port), 10) as sock:
        sock.sendall(greeting(b"last"))
        with contextlib.suppress(OSError):  # there is a link already
            return bool(sock.recv(1))
    return False


def test_connections_that_say_anything_and_go_or_stay_leave_no_memory_behind(plan: Plan) -> None:
    draw = random.Random(1)
    link = plan.link_port("A", "B")
    base = plan.base + plan.trds.index(2) * PORTS_PER_TRD
    staying: deque[socket.socket] = deque()
    reached = 0
    with running(plan) as dro, contextlib.ExitStack() as stack:
        wait_until(lambda: answers(link), "the acceptor answers")
        pids = processes_of(dro.pid)
        assert len(pids) == 4
        before = {pid: own_bytes(pid) for pid in pids}
        for _ in range(CONNECTIONS):
            port = link if draw.randrange(10) else draw.randrange(base + 1, base + 20)  # else a request port
            said = draw.choice(
                (b"", greeting()[: draw.randrange(100)], draw.randbytes(5000), greeting(), greeting() + bytes(60_000))
            )
            sock = stack.enter_context(socket.socket())
            sock.settimeout(10)
            with contextlib.suppress(OSError):  # nobody listens there, or it was closed meanwhile
                sock.connect(("127.0.0.1", port))
                reached += 1
                sock.sendall(said)
            if draw.randrange(2):
                sock.close()
            else:
                staying.append(sock)
            if len(staying) > STAY:
                staying.popleft().close()
        wait_until(lambda: answers(link), "the acceptor answers")
        assert processes_of(dro.pid) == pids
        assert reached > CONNECTIONS * 0.8
        grown = {pid: own_bytes(pid) - before[pid] for pid in pids}
        assert sum(grown.values()) < GROWN, grown
