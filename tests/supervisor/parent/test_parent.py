"""The parent with real processes: introductions, restarts, ends."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import cast

import pytest

from dro.clock import s
from dro.log.events import LogEvent
from supervisor.parent.parent import EXIT_KILLED, Parent
from supervisor.parent.pings import HUNG_PINGS, PING_INTERVAL_NS
from tests.rigs.dro_run import FakeDro, is_running

Start = Callable[..., FakeDro]


def test_a_signal_that_comes_while_signals_are_looked_at_does_no_harm() -> None:
    """It changed the queue in the middle of an iteration, and a start ended with a traceback."""
    signals: deque[int] = deque()
    parent = cast("Parent[object]", SimpleNamespace(_signals=signals))

    def interrupt(_frame: FrameType, event: str, _arg: object) -> None:
        if event in ("call", "c_call"):
            signals.append(signal.SIGHUP)

    sys.setprofile(interrupt)
    try:
        found = Parent._has_stop_signal(parent)
    finally:
        sys.setprofile(None)
    assert signals
    assert not found
    signals.append(signal.SIGTERM)
    assert Parent._has_stop_signal(parent)


def test_a_turn_that_fails_ends_nothing_once_the_dro_runs() -> None:
    told: list[object] = []

    def fail() -> None:
        raise FileNotFoundError(2, "No such file or directory")

    def limited(event: LogEvent, extra: dict[str, str], key: object) -> None:
        told.append((event, extra["reason"].split("(/")[0]))

    parent = SimpleNamespace(loop=SimpleNamespace(run_once=fail), _started=True, is_stopping=False, _limited=limited)
    Parent._turn(cast("Parent[object]", parent))
    reason = "FileNotFoundError: [Errno 2] No such file or directory "
    assert told == [(LogEvent.PARENT_FAULT, reason)]
    for change in ({"_started": False}, {"is_stopping": True}):
        with pytest.raises(FileNotFoundError):
            Parent._turn(cast("Parent[object]", SimpleNamespace(**{**vars(parent), **change})))


def test_everybody_is_introduced_to_everybody(start: Start) -> None:
    dro = start("plain-0", "plain-1", "plain-2")
    ups = dro.wait_for("peer up", count=6)
    assert {(e["worker"], e["peer"]) for e in ups} == {(a, b) for a in dro.names for b in dro.names if a != b}
    assert {e["role"] for e in ups if e["peer"] == "plain-0"} == {"ROUTE_MANAGER"}
    assert {e["role"] for e in ups if e["peer"] == "plain-1"} == {"ENDPOINT"}
    for kind in ("ctl", "data", "mail"):
        assert len(dro.wait_for(kind, count=6)) == 6
    incarnation = dro.told("start", worker="plain-1")[0]["incarnation"]
    assert len(dro.told("ctl", text=f"hello from plain-1.{incarnation}")) == 2
    assert len(dro.told("data", text=f"bytes of plain-1.{incarnation}")) == 2
    assert len(dro.told("mail", peer=1, domain=1, text=f"mail of plain-1.{incarnation}")) == 2
    assert "has started" in dro.log
    dro.signal(signal.SIGTERM)
    assert dro.wait_exit() == 0
    assert len(dro.told("stop", strange=2)) == 3, "addressed data of a kind that nobody takes, of each sibling"
    assert dro.leftovers() == []
    assert not any(map(is_running, dro.pids()))


def test_a_killed_worker_comes_back_alone_with_its_counters(start: Start) -> None:
    dro = start("plain-0", "plain-1", "plain-2")
    dro.wait_for("data", count=6)
    first = dro.told("start", worker="plain-1")[0]
    began = time.monotonic()
    os.kill(first["pid"], signal.SIGKILL)
    second = dro.wait_for("ready", count=2, worker="plain-1")[1]
    assert time.monotonic() - began < 5  # well under a second on a quiet machine
    assert second["incarnation"] > max(e["incarnation"] for e in dro.told("ready", worker="plain-2"))
    assert second["greetings"] == 2
    for sibling in ("plain-0", "plain-2"):
        assert dro.wait_for("peer down", worker=sibling) == [
            e for e in dro.told("peer down", worker=sibling) if e["peer_incarnation"] == first["incarnation"]
        ]
        dro.wait_for("peer up", worker=sibling, peer="plain-1", peer_incarnation=second["incarnation"])
        dro.wait_for("ctl", worker=sibling, text=f"hello from plain-1.{second['incarnation']}")
        dro.wait_for("data", worker=sibling, text=f"bytes of plain-1.{second['incarnation']}")
        dro.wait_for("mail", worker=sibling, text=f"mail of plain-1.{second['incarnation']}")
        assert len(dro.told("start", worker=sibling)) == 1
    dro.wait_for("ctl", count=2, worker="plain-1", incarnation=second["incarnation"])
    rings = [path for path in dro.leftovers() if "ring.1." in path]
    assert rings == [str(p) for p in (dro.directory / "shm").rglob(f"ring.1.{second['incarnation']}")]
    assert 'cause="killed by SIGKILL"' in dro.log


def test_workers_end_when_the_parent_is_killed(start: Start) -> None:
    dro = start("plain-0", "plain-1", "slow-2")
    dro.wait_for("data", count=2)
    dro.wait_for("starting")
    dro.signal(signal.SIGKILL)
    dro.wait_exit()
    dro.wait_until(lambda: not any(map(is_running, dro.pids())))
    assert dro.leftovers() != []  # what the next start sweeps


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_group_stops_it_once(start: Start, number: int) -> None:
    dro = start("plain-0", "plain-1")
    dro.wait_for("data", count=2)
    os.killpg(dro.process.pid, number)
    assert dro.wait_exit() == 0
    assert len(dro.told("start")) == 2  # nobody was restarted on the way out
    assert dro.leftovers() == []


def test_it_stops_while_a_worker_is_starting(start: Start) -> None:
    dro = start("plain-0", "slow-1")
    dro.wait_for("starting")
    dro.signal(signal.SIGTERM)
    assert dro.wait_exit() == 0
    assert dro.leftovers() == []


def test_it_stops_while_a_worker_waits_for_its_restart(start: Start) -> None:
    dro = start("plain-0", "failing-1")
    dro.wait_until(lambda: dro.log.count("worker is restarted") >= 2)
    dro.signal(signal.SIGTERM)
    assert dro.wait_exit() == 0
    assert dro.leftovers() == []


@pytest.mark.parametrize("after_ms", [0, 40, 80, 120, 160, 240])
def test_it_stops_at_any_moment_after_its_start(start: Start, after_ms: int) -> None:
    dro = start("plain-0", "plain-1")
    dro.wait_until(lambda: "worker started" in dro.log)  # from here on there are handlers
    moment = time.monotonic() + after_ms / 1000
    dro.wait_until(lambda: time.monotonic() >= moment)
    dro.signal(signal.SIGINT)
    assert dro.wait_exit() == 0
    assert dro.leftovers() == []
    assert not any(map(is_running, dro.pids()))


@pytest.mark.parametrize("after_ms", range(0, 700, 50))
def test_nothing_is_left_even_when_it_is_stopped_before_it_knows(start: Start, after_ms: int) -> None:
    """From the very first instruction on: either the signal ends the program, or the program ends in good order."""
    dro = start("plain-0", "plain-1")
    moment = time.monotonic() + after_ms / 1000
    dro.wait_until(lambda: time.monotonic() >= moment)
    dro.signal(signal.SIGTERM)
    assert dro.wait_exit() in (0, -signal.SIGTERM)
    assert dro.leftovers() == []


def test_no_place_for_its_files_is_told(start: Start) -> None:
    dro = start("plain-0", without=("shm",))
    assert dro.wait_exit() == 1
    assert "DRO cannot start" in dro.log
    assert "check XDG_RUNTIME_DIR and /dev/shm" in dro.log
    assert dro.leftovers() == []


def test_a_worker_that_hears_nothing_is_killed_in_time(start: Start) -> None:
    dro = start("plain-0", "stubborn-1")
    dro.wait_for("ready", worker="stubborn-1")
    began = time.monotonic()
    dro.signal(signal.SIGTERM)
    assert dro.wait_exit() == EXIT_KILLED
    assert 3.5 < time.monotonic() - began < 8  # five are promised; the machine may be busy
    assert dro.leftovers() == []


def test_a_second_signal_hastens_the_end(start: Start) -> None:
    dro = start("plain-0", "stubborn-1")
    dro.wait_for("ready", worker="stubborn-1")
    began = time.monotonic()
    dro.signal(signal.SIGINT)
    dro.wait_for("stop", worker="plain-0")
    stopping = time.monotonic()
    dro.wait_until(lambda: time.monotonic() > stopping + 0.3)
    dro.signal(signal.SIGINT)
    assert dro.wait_exit() == 0
    assert time.monotonic() - began < 3.5
    assert "stopping at once" in dro.log
    assert dro.leftovers() == []


def test_a_signal_that_comes_twice_in_a_row_is_one(start: Start) -> None:
    """As from timeout(1), which signals first the program and then the group that it is in."""
    dro = start("plain-0", "plain-1")
    dro.wait_for("data", count=2)
    dro.signal(signal.SIGTERM)
    dro.wait_until(lambda: "Shutdown event detected" in dro.log)
    os.killpg(dro.process.pid, signal.SIGTERM)
    assert dro.wait_exit() == 0
    assert "killed" not in dro.log
    assert dro.leftovers() == []


def test_a_machine_that_refuses_is_told_and_ends_the_start(start: Start) -> None:
    dro = start("plain-0", "unbindable-1", "plain-2")
    assert dro.wait_exit() == 1
    assert "port 12345 is taken" in dro.log
    assert "change request_tcp_port_low" in dro.log
    assert dro.leftovers() == []
    assert not any(map(is_running, dro.pids()))


def test_once_it_ran_a_refusal_is_retried(start: Start) -> None:
    dro = start("plain-0", "later-1")
    dro.wait_for("peer up", count=2)  # it runs
    os.kill(dro.pid_of("later-1"), signal.SIGKILL)
    dro.wait_for("refused", worker="later-1")
    dro.wait_for("ready", count=2, worker="later-1")
    assert len(dro.told("start", worker="later-1")) == 3
    dro.signal(signal.SIGTERM)
    assert dro.wait_exit() == 0


def test_a_bug_is_logged_with_its_place_and_the_worker_restarted(start: Start) -> None:
    dro = start("plain-0", "failing-1")
    dro.wait_for("ready", worker="failing-1")
    assert len(dro.told("start", worker="failing-1")) == 3
    assert dro.log.count("RuntimeError: a bug") == 2
    assert 'cause="exit status 70"' in dro.log
    dro.signal(signal.SIGTERM)
    assert dro.wait_exit() == 0


def test_a_worker_that_is_asked_to_end_from_outside_comes_back(start: Start) -> None:
    dro = start("plain-0", "plain-1")
    dro.wait_for("data", count=2)
    os.kill(dro.pid_of("plain-1"), signal.SIGTERM)
    dro.wait_for("ready", count=2, worker="plain-1")
    assert len(dro.told("stop", worker="plain-1")) == 1
    assert 'cause="ended by itself"' in dro.log


def test_a_frozen_worker_is_noticed_and_continues(start: Start) -> None:
    dro = start("plain-0", "plain-1", ping_ms=300)
    dro.wait_for("data", count=2)
    pid = dro.pid_of("plain-1")
    os.kill(pid, signal.SIGSTOP)
    dro.wait_until(lambda: "worker does not answer worker=plain-1" in dro.log)
    os.kill(pid, signal.SIGCONT)
    dro.wait_until(lambda: "worker answers again worker=plain-1" in dro.log)
    assert len(dro.told("start")) == 2


def has_started_again(dro: FakeDro, name: str) -> bool:
    return len(dro.told("ready", worker=name)) == 2


def test_workers_that_hang_are_replaced(start: Start) -> None:
    """After half a minute; first of all the route manager, whose silence takes the DRO out of its network."""
    assert (s(1), 30) == (PING_INTERVAL_NS, HUNG_PINGS)
    dro = start("plain-0", "plain-1", "plain-2", ping_ms=200)
    dro.wait_for("data", count=6)
    for name in ("plain-0", "plain-1"):
        os.kill(dro.pid_of(name), signal.SIGSTOP)
    for name in ("plain-0", "plain-1"):
        dro.wait_until(partial(has_started_again, dro, name), 90)
        assert f"worker does not answer for too long, it is started anew worker={name}" in dro.log
    assert len(dro.told("ready", worker="plain-2")) == 1


def test_sighup_does_not_end_it(start: Start) -> None:
    dro = start("plain-0", "plain-1")
    dro.wait_for("data", count=2)
    dro.signal(signal.SIGHUP)
    dro.wait_until(lambda: "SIGHUP" in dro.log)
    dro.signal(signal.SIGTERM)
    assert dro.wait_exit() == 0


def test_processes_carry_their_names(start: Start) -> None:
    dro = start("plain-0", "plain-with-a-long-name")
    dro.wait_for("data", count=2)
    assert Path(f"/proc/{dro.process.pid}/comm").read_text() == "tnwgd\n"
    assert Path(f"/proc/{dro.pid_of('plain-0')}/comm").read_text() == "plain-0\n"
    assert Path(f"/proc/{dro.pid_of('plain-with-a-long-name')}/comm").read_text() == "plain-with-a-lo\n"


def test_a_worker_holds_no_control_socket_of_another(start: Start) -> None:
    """Else the end of the parent would not show: each child would keep the others' sockets open."""
    dro = start("plain-0", "plain-1", "plain-2")
    dro.wait_for("data", count=6)
    os.kill(dro.pid_of("plain-0"), signal.SIGKILL)  # its next life is forked when all others have sockets
    dro.wait_for("ready", count=2, worker="plain-0")

    def sockets(pid: int) -> set[str]:
        links = (os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir())
        return {link for link in links if link.startswith("socket:")}

    assert not sockets(dro.pid_of("plain-0")) & sockets(dro.process.pid)
