"""What a worker's shell answers to its parent, and how its process ends."""

from __future__ import annotations

import ctypes
import errno
import functools
import gc
import logging
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from dro.bus.actor import FORK_MASK, WorkerContext, WorkerIdentity, poll_ns, run_worker
from dro.bus.control import ControlSocket, control_pair
from dro.bus.counters import CounterPage
from dro.bus.kept_bytes import KeptBytes
from dro.bus.messages import (
    PARENT_MESSAGES,
    WORKER_REPORTS,
    Drain,
    Drained,
    ListRows,
    ParentMessage,
    PeerDown,
    PeerRemoved,
    PeerStuck,
    PeerUp,
    Ping,
    Pong,
    Ready,
    Reconfigure,
    Reconfigured,
    Role,
    Rows,
    SetLog,
    StartFailed,
    Stop,
    Stopped,
    WorkerReport,
)
from dro.clock import ms
from dro.errors import LocalProtocolError, ResourceError
from dro.log import setup as logs
from dro.log.events import LogEvent
from dro.log.handler import Settings
from dro.log.limits import REPORT_NS
from dro.loop import Loop
from dro.os_errors import remedy_of
from tests.fakes.clock import SteppedClock

Until = Callable[[Callable[[], bool]], None]


def identity(run_dir: Path) -> WorkerIdentity:
    counters = run_dir / "counters"
    CounterPage.create(counters).close()
    return WorkerIdentity(
        "P",
        1,
        1,
        Role.ENDPOINT,
        run_dir,
        run_dir / "ring",
        counters,
        parent_pid=os.getpid(),
        dro_node_id=7,
        kept=KeptBytes(),
        kept_dir=run_dir,
    )


@dataclass
class Shell:
    """A worker's shell, and its parent's end of the control socket. `alarms`: what was asked of the kernel, seconds."""

    worker: WorkerContext
    parent: ControlSocket[ParentMessage, WorkerReport]
    heard: list[WorkerReport]
    alarms: list[float]


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
def shell(loop: Loop, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    alarms: list[float] = []

    def setitimer(which: int, seconds: float) -> None:  # a real alarm would end this process
        assert which == signal.ITIMER_REAL
        alarms.append(seconds)

    monkeypatch.setattr("signal.setitimer", setitimer)
    mine, other = control_pair()
    heard: list[WorkerReport] = []
    parent = ControlSocket[ParentMessage, WorkerReport](
        loop, mine, PARENT_MESSAGES, WORKER_REPORTS, heard.append, lambda: None
    )
    worker = WorkerContext(identity(run_dir), other, loop, logging.getLogger("tests"))
    yield Shell(worker, parent, heard, alarms)
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
    clock.time_ns += 2 * REPORT_NS
    shell.parent.send(Ping(1))
    until(lambda: bool(shell.heard))
    told = [(record.msg, record.__dict__["line"]) for record in caplog.records]
    assert told.count((LogEvent.LINES_REPEATED, LogEvent.SOURCE_HOPS)) == 1
    assert {event for event, _ in told} == {LogEvent.LINES_REPEATED}, "of loggers of other tests, too"


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


def test_a_change_that_cannot_be_read_changes_nothing(
    shell: Shell, until: Until, run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shell.parent.send(Reconfigure(6, f"{run_dir}/none"))
    until(lambda: bool(shell.heard))
    problem = f"[Errno 2] No such file or directory: '{run_dir}/none'"
    assert shell.heard == [Reconfigured(6, problem)]
    assert [(r.levelname, r.msg, r.__dict__["reason"]) for r in caplog.records] == [
        ("ERROR", LogEvent.CHANGE_NOT_TAKEN_OVER, problem)
    ]


def test_a_worker_is_what_it_was_made_as(shell: Shell, run_dir: Path) -> None:
    w = shell.worker
    assert (w.name, w.index, w.incarnation, w.role, w.run_dir) == ("P", 1, 1, Role.ENDPOINT, run_dir)
    assert (w.identity.dro_node_id, w.counters.path) == (7, run_dir / "counters")
    assert (w.is_ready, w.is_stopping, w.ring, w.peers) == (False, False, None, {})


def sibling(incarnation: int, ring: str = "", name: str = "Q") -> PeerUp:
    return PeerUp(2, incarnation, name, Role.PEER, ring, "ipc:///nowhere/c")


def test_siblings_come_and_go(shell: Shell, until: Until) -> None:
    w = shell.worker
    seen: list[object] = []

    def note(message: object) -> None:
        seen.append((message, w.name_of(2), w.channels.send_ctl(2, b"x")))

    w.on_peer_up = w.on_peer_down = w.on_peer_removed = note
    sent: list[ParentMessage] = [
        PeerDown(2, 4), sibling(5), sibling(6, name="R"), PeerRemoved(2, 5), PeerDown(2, 6), PeerDown(2, 6), sibling(7),
        PeerRemoved(2, 8), PeerRemoved(2, 8), sibling(9), PeerRemoved(2, 9),
    ]  # fmt: skip
    for message in (*sent, Ping(1)):
        shell.parent.send(message)
    until(lambda: shell.heard == [Pong(1)])
    gone = ("worker 2", False)
    assert seen == [
        (sibling(5), "Q", True), (PeerDown(2, 5), *gone), (sibling(6, name="R"), "R", True),
        (PeerRemoved(2, 5), "R", True), (PeerDown(2, 6), *gone), (sibling(7), "Q", True), (PeerDown(2, 7), *gone),
        (PeerRemoved(2, 8), *gone), (PeerRemoved(2, 8), *gone), (sibling(9), "Q", True), (PeerDown(2, 9), *gone),
        (PeerRemoved(2, 9), *gone),
    ]  # fmt: skip
    assert w.peers == {}


def test_a_worker_that_cares_for_nothing_lives_on(shell: Shell, until: Until, run_dir: Path) -> None:
    (run_dir / "new").write_bytes(pickle.dumps(1))
    for message in (sibling(5), PeerRemoved(2, 5), Reconfigure(3, f"{run_dir}/new"), ListRows(4, "topics", "", 0)):
        shell.parent.send(message)
    until(lambda: len(shell.heard) == 2)
    assert shell.heard == [Reconfigured(3, ""), Rows(4, "[]", 0, "P lists no topics")]


def test_a_list_is_answered_by_the_worker(shell: Shell, until: Until) -> None:
    shell.worker.on_list = lambda q: Rows(q.serial, f"[{q.cursor}]", 9, q.text)
    shell.parent.send(ListRows(4, "topics", "abc", 8))
    until(lambda: bool(shell.heard))
    assert shell.heard == [Rows(4, "[8]", 9, "abc")]


def test_ready_says_where_the_worker_is_found(
    shell: Shell, until: Until, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    w = shell.worker
    ring = w.create_ring(1)
    assert (w.ring, ring.path, ring.incarnation, ring.capacity) == (ring, run_dir / "ring", 1, 4096)
    with pytest.raises(LocalProtocolError, match="one ring"):
        w.create_ring(1)
    calls: list[str] = []
    for name in ("collect", "freeze"):
        monkeypatch.setattr(gc, name, functools.partial(calls.append, name))
    w.ready()
    assert calls == ["freeze"], "what a worker has at its start is not looked through again and again"
    assert w.is_ready is True
    with pytest.raises(LocalProtocolError, match="ready once"):
        w.ready()
    until(lambda: bool(shell.heard))
    assert shell.heard == [Ready(1, f"{run_dir}/ring", f"ipc://{run_dir}/w1.1.ctl")]
    reader = w.open_ring(sibling(1, f"{run_dir}/ring"))
    assert (reader.path, reader.incarnation) == (ring.path, 1)
    reader.close()
    ring.close()


def test_a_worker_without_a_ring_is_ready_too(shell: Shell, until: Until, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "freeze", lambda: None)
    shell.worker.ready()
    until(lambda: bool(shell.heard))
    assert isinstance(shell.heard[0], Ready)
    assert shell.heard[0].ring == ""
    with pytest.raises(LocalProtocolError, match="before it is ready"):
        shell.worker.create_ring(1)
    with pytest.raises(ResourceError, match="Q has no fragment ring"):
        shell.worker.open_ring(sibling(5))


@pytest.mark.parametrize("is_given_up", [True, False])
def test_a_stuck_sibling_is_told_to_the_parent(
    shell: Shell, until: Until, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, is_given_up: bool
) -> None:
    monkeypatch.setattr("dro.bus.channel.CTL_HWM", 3)
    shell.parent.send(sibling(5))
    until(lambda: bool(shell.worker.peers))
    if is_given_up:
        shell.worker.channels.give_up(2)
        shell.worker.channels.give_up(2)
        shell.worker.channels.give_up(77)
    while shell.worker.channels.send_ctl(2, b"x"):
        pass
    until(lambda: bool(shell.heard))
    assert shell.heard == [PeerStuck(2, 5)]
    assert [(r.levelname, r.msg, r.__dict__["worker"], r.__dict__["incarnation"]) for r in caplog.records] == [
        ("ERROR", LogEvent.SIBLING_STUCK, 2, 5)
    ]


@pytest.mark.parametrize("problem", [None, ResourceError("the disk is full", remedy="make room")])
def test_the_log_goes_where_the_parent_says(
    shell: Shell, until: Until, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    problem: ResourceError | None,
) -> None:  # fmt: skip
    applied: list[Settings] = []

    def apply(new: Settings) -> None:
        applied.append(new)
        if problem is not None:
            raise problem

    monkeypatch.setattr(logs, "apply", apply)
    message = SetLog("file", "/tmp/l", "daily", 5, logging.DEBUG, True, True)
    shell.parent.send(message)
    until(lambda: bool(applied))
    assert applied == [replace(logs.settings(), **asdict(message))]
    told = [(r.levelname, r.msg, r.__dict__["reason"], r.__dict__["remedy"]) for r in caplog.records]
    assert told == ([("ERROR", LogEvent.LOG_UNCHANGED, "the disk is full", "make room")] if problem else [])


def test_a_signal_stops_it(shell: Shell, until: Until) -> None:
    stops: list[bool] = []
    shell.worker.on_stop = lambda: stops.append(shell.worker.is_stopping)
    shell.worker.on_signal(signal.SIGTERM, None)
    assert not shell.worker.is_stopping
    until(lambda: shell.worker.is_stopping)
    assert (stops, shell.alarms) == ([True], [5.5])


@pytest.mark.parametrize("again", ["signal", "time"])
def test_a_worker_that_stops_has_its_grace_period(
    shell: Shell, until: Until, loop: Loop, clock: SteppedClock, again: str
) -> None:
    stops: list[int] = []
    w = shell.worker
    w.on_stop = lambda: stops.append(1)
    w.on_drain = stops.append
    for message in (Stop(2000), Stop(1), Drain(3000), Ping(1)):  # only the first of them matters
        shell.parent.send(message)
    until(lambda: bool(shell.heard))
    assert (stops, shell.alarms, w.is_stopping) == ([1], [4.0], True)
    loop.call_later(ms(1999), lambda: stops.append(2))
    if again == "signal":
        w.on_signal(signal.SIGINT, None)
    else:
        clock.time_ns += ms(2000)
    w.run()
    assert stops == ([1] if again == "signal" else [1, 2])
    w.run()  # returns at once


def test_a_worker_that_hands_over_ends_with_its_turn_and_says_no_goodbye(shell: Shell, loop: Loop) -> None:
    stops: list[str] = []
    w = shell.worker
    w.on_stop = lambda: stops.append("goodbye")
    shell.parent.send(Stop(700, hands_over=True))
    shell.parent.send(Ping(1))
    loop.call_soon(lambda: loop.at_turn_end(lambda: stops.append("end of the turn")))
    w.run()
    assert (stops, shell.alarms, w.is_stopping) == (["end of the turn"], [2.7], True)


def test_a_worker_with_nothing_to_say_goodbye_to_ends_at_once(shell: Shell) -> None:
    shell.worker.stop(700)
    shell.worker.run()
    assert shell.alarms == [2.7]


@pytest.mark.parametrize("was_stopping", [False, True])
def test_a_worker_without_a_parent_has_a_second(
    shell: Shell, until: Until, caplog: pytest.LogCaptureFixture, clock: SteppedClock, was_stopping: bool
) -> None:
    stops: list[int] = []
    w = shell.worker
    w.on_stop = lambda: stops.append(1)
    if was_stopping:
        w.stop(5000)
    shell.parent.close()
    until(lambda: bool(caplog.records))
    assert [(r.levelname, r.msg) for r in caplog.records] == [("ERROR", LogEvent.PARENT_GONE)]
    assert (stops, shell.alarms) == ([1], [7.0, 3.0] if was_stopping else [3.0])
    clock.time_ns += ms(1000)
    w.run()


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


def out_of_files_later(worker: WorkerContext) -> None:
    worker.ready()
    out_of_files(worker)


def stopped_by_a_signal(worker: WorkerContext) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    worker.run()


def out_of_order(_: WorkerContext) -> None:
    raise OSError(errno.EIO, "Input/output error")


def looks_around(worker: WorkerContext) -> None:
    """Ends well only where everything is as a worker shall find it."""
    assert Path("/proc/self/comm").read_text() == "P\n"
    assert Path("/proc/self/cmdline").read_bytes().startswith(b"tnwgd: P")
    logs.finish = lambda: worker.log.error("the log is finished")
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGINT) == worker.on_signal
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & FORK_MASK
    pdeathsig = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(pdeathsig))
    assert pdeathsig.value == signal.SIGTERM
    assert worker.log is logging.getLogger("dro")


@pytest.mark.parametrize(
    ("main", "status", "report", "logged"),
    [
        (lambda _: None, 0, Stopped(), []),
        (looks_around, 0, Stopped(), ["the log is finished"]),
        (stopped_by_a_signal, 0, Stopped(), []),
        (cannot_start, 3, StartFailed("no port is free", "free one"), ["worker cannot run"]),
        (out_of_files, 3, StartFailed("Too many open files", remedy_of(errno.EMFILE)), ["worker cannot run"]),
        (out_of_files_later, 3, Ready, ["worker cannot run"]),
        (out_of_order, 70, None, ["worker failed", "OSError: [Errno 5] Input/output error"]),
        (lambda _: 1 // 0, 70, None, ["worker failed", "ZeroDivisionError: integer division or modulo by zero"]),
    ],
)
def test_the_exit_status_of_a_worker_and_its_last_word(
    main: Callable[[WorkerContext], object],
    status: int,
    report: WorkerReport | type | None,
    logged: list[str],
    run_dir: Path,
) -> None:
    ended, words, lines = life_of_a_worker(main, run_dir)
    assert ended == status
    if isinstance(report, type):
        assert [type(word) for word in words] == [report]
    else:
        assert words == ([] if report is None else [report])
    assert [line for line in lines if line in (lines[0], lines[-1])] == logged


@pytest.mark.parametrize("guard", ["end_with", "require_files", "require_threads"])
def test_a_worker_that_a_guard_refuses_does_not_begin(
    guard: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.EIO, "no")

    monkeypatch.setattr(f"dro.bus.actor.{guard}", refuse)
    assert life_of_a_worker(cannot_start, run_dir) == (
        3,
        [StartFailed("no", remedy_of(errno.EIO))],
        ["worker cannot run"],
    )


def life_of_a_worker(
    main: Callable[[WorkerContext], object], run_dir: Path
) -> tuple[int, list[WorkerReport], list[str]]:
    """Exit status, what it said to its parent, and the lines of its log."""
    log = logging.getLogger("dro")
    log.addHandler(handler := logging.FileHandler(run_dir / "log"))
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
    log.removeHandler(handler)
    handler.close()
    words = []
    while packet := mine.recv(65536):
        words.append(WORKER_REPORTS.decode(packet))
    mine.close()
    return os.waitstatus_to_exitcode(ended), words, (run_dir / "log").read_text().splitlines()


@pytest.mark.parametrize(("text", "ns"), [(None, 0), ("0", 0), ("50", 50_000), ("1000000", 1_000_000_000)])
def test_how_long_a_worker_polls(monkeypatch: pytest.MonkeyPatch, text: str | None, ns: int) -> None:
    monkeypatch.delenv("DRO_POLL_US", raising=False)
    if text is not None:
        monkeypatch.setenv("DRO_POLL_US", text)
    assert poll_ns() == ns


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1000001", "50us"])
def test_a_poll_time_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DRO_POLL_US", text)
    with pytest.raises(ResourceError) as e:
        poll_ns()
    assert e.value.what == f"DRO_POLL_US is {text!r}"
    assert e.value.remedy == "it is a whole number of microseconds, at most 1000000"
