"""What a worker's shell answers to its parent, and how its process ends."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from dro.bus.actor import EXIT_OK, EXIT_START_FAILED, FORK_MASK, WorkerContext, WorkerIdentity, run_worker
from dro.bus.control import ControlSocket, control_pair
from dro.bus.counters import CounterPage
from dro.bus.messages import (
    PARENT_MESSAGES,
    WORKER_REPORTS,
    Drain,
    Drained,
    ParentMessage,
    Ping,
    Pong,
    Reconfigure,
    Reconfigured,
    Role,
    StartFailed,
    Stopped,
    WorkerReport,
)
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.log.limits import REPORT_NS
from dro.loop import Loop
from dro.os_errors import remedy_of
from tests.fakes.clock import SteppedClock

Until = Callable[[Callable[[], bool]], None]


def identity(run_dir: Path) -> WorkerIdentity:
    counters = run_dir / "counters"
    CounterPage.create(counters).close()
    return WorkerIdentity(
        "P", 1, 1, Role.ENDPOINT, run_dir, run_dir / "ring", counters, parent_pid=os.getpid(), dro_node_id=7
    )


@dataclass
class Shell:
    """A worker's shell, and its parent's end of the control socket."""

    worker: WorkerContext
    parent: ControlSocket[ParentMessage, WorkerReport]
    heard: list[WorkerReport]


@pytest.fixture
def clock() -> SteppedClock:
    return SteppedClock()


@pytest.fixture
def loop(clock: SteppedClock) -> Iterator[Loop]:
    made = Loop(clock)
    yield made
    made.close()


@pytest.fixture
def until(loop: Loop) -> Until:
    """Turn the loop until something holds; what is on its way comes without any time."""

    def turn(holds: Callable[[], bool]) -> None:
        for _ in range(100):
            if holds():
                return
            loop.run_once(0)
        raise AssertionError("did not happen")

    return turn


@pytest.fixture
def shell(loop: Loop, run_dir: Path) -> Iterator[Shell]:
    mine, other = control_pair()
    heard: list[WorkerReport] = []
    parent = ControlSocket[ParentMessage, WorkerReport](
        loop, mine, PARENT_MESSAGES, WORKER_REPORTS, heard.append, lambda: None
    )
    worker = WorkerContext(identity(run_dir), other, loop, logging.getLogger("tests"))
    yield Shell(worker, parent, heard)
    worker.close()
    parent.close()


def test_a_ping_is_answered_with_its_number(shell: Shell, until: Until) -> None:
    shell.parent.send(Ping(41))
    until(lambda: bool(shell.heard))
    assert shell.heard == [Pong(41)]


def test_what_was_left_out_of_the_log_is_told_with_the_next_ping(
    shell: Shell, clock: SteppedClock, until: Until, caplog: pytest.LogCaptureFixture
) -> None:
    while shell.worker.limited(LogEvent.SOURCE_HOPS, {"topic": "AAA"}):
        pass
    caplog.clear()
    clock.time_ns += REPORT_NS
    shell.parent.send(Ping(1))
    until(lambda: bool(shell.heard))
    assert [(record.msg, record.__dict__["line"]) for record in caplog.records] == [
        (LogEvent.LINES_REPEATED, LogEvent.SOURCE_HOPS)
    ]


@pytest.mark.parametrize("problem", ["", "port 14371 is taken"])
def test_a_change_is_answered_with_what_stands_in_its_way(
    shell: Shell, until: Until, run_dir: Path, problem: str
) -> None:
    taken: list[object] = []

    def on_reconfigure(new: object) -> None:
        taken.append(new)
        if problem:
            raise ResourceError(problem)

    shell.worker.on_reconfigure = on_reconfigure
    path = run_dir / "new"
    path.write_bytes(pickle.dumps(["what is new"]))
    shell.parent.send(Reconfigure(5, str(path)))
    until(lambda: bool(shell.heard))
    assert (taken, shell.heard) == ([["what is new"]], [Reconfigured(5, problem)])


def test_a_signal_stops_it(shell: Shell, until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.setitimer", lambda which, seconds: None)  # its alarm would end this process
    shell.worker.on_signal(signal.SIGTERM, None)
    assert not shell.worker.is_stopping
    until(lambda: shell.worker.is_stopping)


def test_a_worker_with_nothing_to_drain_is_drained_at_once(shell: Shell, until: Until) -> None:
    shell.parent.send(Drain(3000))
    until(lambda: bool(shell.heard))
    assert shell.heard == [Drained("")]


def test_a_drain_is_over_when_the_worker_says_so(shell: Shell, until: Until) -> None:
    limits: list[int] = []
    shell.worker.on_drain = limits.append
    shell.parent.send(Drain(3000))
    shell.parent.send(Ping(1))
    until(lambda: bool(shell.heard))
    assert (limits, shell.heard) == ([3000], [Pong(1)])
    shell.worker.drained("2 sources")
    until(lambda: len(shell.heard) == 2)
    assert shell.heard[1] == Drained("2 sources")


def cannot_start(_: WorkerContext) -> None:
    raise ResourceError("no port is free", remedy="free one")


def out_of_files(_: WorkerContext) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def stopped_by_a_signal(_: WorkerContext) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.parametrize(
    ("main", "status", "report"),
    [
        (lambda _: None, EXIT_OK, Stopped()),
        (stopped_by_a_signal, EXIT_OK, Stopped()),
        (cannot_start, EXIT_START_FAILED, StartFailed("no port is free", "free one")),
        (out_of_files, EXIT_START_FAILED, StartFailed("Too many open files", remedy_of(errno.EMFILE))),
    ],
)
def test_the_exit_status_of_a_worker_and_its_last_word(
    main: Callable[[WorkerContext], object], status: int, report: WorkerReport, run_dir: Path
) -> None:
    mine, other = control_pair()
    named = identity(run_dir)
    signal.pthread_sigmask(signal.SIG_BLOCK, FORK_MASK)
    try:
        pid = os.fork()
        if not pid:
            run_worker(named, other, main)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORK_MASK)
    other.close()
    _, ended = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(ended) == status
    assert WORKER_REPORTS.decode(mine.recv(65536)) == report
    mine.close()
