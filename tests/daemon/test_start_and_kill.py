"""SIGTERM at every point of the start, and kill -9 at any moment: nobody and nothing is left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.rigs.dro_run import FakeDro, is_running
from tests.rigs.loaded import Loaded, run
from tests.rigs.site import ROOT, Site

POINTS = 50
ROUNDS = int(os.environ.get("DRO_ROUNDS", "8"))
STOPPED_S = 10.0  # twice what is promised: the machine may be busy

Start = Callable[..., FakeDro]


def lines_of(*argv: str, seconds: float) -> list[dict[str, Any]]:
    """What a program of `tests.fakes` prints."""
    done = run([sys.executable, "-m", *argv], cwd=ROOT, timeout=seconds)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_sigterm_at_fifty_points_of_the_start() -> None:
    """Before it has made anything it ends as any program does, afterwards in good order."""
    points = lines_of("tests.rigs.start_points", str(POINTS), seconds=240)
    assert len(points) == POINTS
    for point in points:
        assert point["status"] in (0, -signal.SIGTERM), point
        assert point["left"] == [], point
        assert point["took_s"] < STOPPED_S, point
    statuses = [point["status"] for point in points]
    assert statuses.count(0) >= POINTS // 3
    assert statuses.count(-signal.SIGTERM) >= POINTS // 3
    assert len({point["where"] for point in points}) >= POINTS // 3, "the points lie at many places"


def test_killed_dros_leave_nothing_to_their_successors() -> None:
    rounds = lines_of("tests.rigs.kill_rounds", str(ROUNDS), seconds=60 + 3 * ROUNDS)
    assert len(rounds) == ROUNDS
    for one in rounds:
        assert one["left"] == [], one
        assert one["stop_s"] < STOPPED_S, one


def test_a_worker_that_hears_nothing_ends_with_its_parent(start: Start) -> None:
    """It blocks every signal that asks politely."""
    dro = start("plain-0", "stubborn-1")
    dro.wait_for("ready", worker="stubborn-1")
    pid = dro.pid_of("stubborn-1")
    dro.signal(signal.SIGKILL)
    dro.wait_exit()
    dro.wait_until(lambda: not is_running(pid))
    dro.wait_until(lambda: not any(map(is_running, dro.pids())))


def test_a_hangup_while_it_starts_does_not_end_it(start: Start, tmp_path: Path) -> None:
    site = Site(tmp_path, 2)
    fifo = tmp_path / "dro.fifo"
    os.mkfifo(fifo)
    try:
        with (tmp_path / "tnwgd.log").open("wb") as log:
            argv = [sys.executable, "-m", "supervisor.main", str(fifo)]
            site.daemon = Loaded(argv, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        with fifo.open("w") as f:  # opens when the program reads its configuration
            site.daemon.send_signal(signal.SIGHUP)
            f.write((tmp_path / "dro.xml").read_text().replace(">trd", f">{tmp_path}/trd"))
        site.wait(lambda: "has started" in site.log, "it runs")
        assert site.stop() == 0
    finally:
        site.close()


def test_a_hangup_before_the_program_is_loaded_does_not_end_it(tmp_path: Path) -> None:
    """From the first module on; before that the interpreter is not there yet."""
    argv = [sys.executable, "-X", "importtime", "-m", "supervisor.main", str(tmp_path / "none.xml")]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.split("|")[-1].strip() == "dro":
                break
        process.send_signal(signal.SIGHUP)
        rest = process.stderr.read()
        assert "none.xml: cannot" in rest, "it got as far as its configuration"
        assert process.wait(20) == 1


def test_process_listings_tell_portals_apart(tmp_path: Path) -> None:
    class Executed(Site):
        POPEN: ClassVar[Any] = subprocess.Popen

    with closing(Executed(tmp_path, 2)) as site:
        site.start()
        shown = {name: Path(f"/proc/{pid}/cmdline").read_bytes() for name, pid in site.workers().items()}
        file = bytes(tmp_path / "dro.xml")[:20]
        for name, title in shown.items():
            assert title.startswith(f"tnwgd: {name} ".encode() + file)
        assert shown.keys() == {"route-manager", "P1", "P2"}
        assert Path(f"/proc/{site.pid}/cmdline").read_bytes().split(b"\0")[1:3] == [b"-m", b"supervisor.main"]


@pytest.fixture
def silent_server() -> Iterator[socket.socket]:
    """An HTTP server that accepts, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        yield server


def starting(config: Path, *before: str) -> subprocess.Popen[bytes]:
    argv = [*before, sys.executable, "-m", "supervisor.main", str(config)]
    return Loaded(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def including(tmp_path: Path, server: socket.socket) -> Path:
    port = server.getsockname()[1]
    path = tmp_path / "dro.xml"
    path.write_text(
        '<tnw-gateway version="1.0" xmlns:xi="http://www.w3.org/2001/XInclude"><daemon/><portals>'
        f'<xi:include href="http://127.0.0.1:{port}/portals.xml"/></portals></tnw-gateway>'
    )
    return path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_while_it_waits_for_a_server(tmp_path: Path, silent_server: socket.socket, number: int) -> None:
    with starting(including(tmp_path, silent_server)) as process:
        client, _ = silent_server.accept()
        began = time.monotonic()
        process.send_signal(number)
        assert process.wait(10) == -number
        assert time.monotonic() - began < STOPPED_S
        assert process.stdout is not None
        assert process.stdout.read() == b""
        client.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_while_the_program_is_loaded(tmp_path: Path, number: int) -> None:
    """Which is most of what a start takes; the interpreter tells which modules it has."""
    argv = [sys.executable, "-X", "importtime", "-m", "supervisor.main", str(tmp_path / "none.xml")]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "supervisor.host.early_signals" in line:
                break
        for line in process.stderr:  # not in the moment between that module and its use
            if "dro.config" in line:
                break
        process.send_signal(number)
        rest = process.stderr.read()
        assert process.wait(20) == -number
        assert "Traceback" not in rest


@pytest.mark.netns
def test_it_ends_also_as_the_first_process_of_a_container(tmp_path: Path, silent_server: socket.socket) -> None:
    """For which the kernel ignores signals without a handler."""
    fresh = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    with starting(including(tmp_path, silent_server), *fresh) as outside:
        client, _ = silent_server.accept()
        children = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGTERM)
        assert outside.wait(10) == 0
        client.close()


def test_the_place_of_a_killed_dro_is_waited_for(start: Start) -> None:
    """Its worker still ends and holds ports; the same name at once again must not find them taken."""
    first = start("plain-0", "stubborn-1")
    first.wait_for("ready", worker="stubborn-1")
    first.signal(signal.SIGKILL)
    first.wait_exit()
    orphan = first.pid_of("stubborn-1")
    again = FakeDro("plain-0", "plain-1", directory=first.directory)
    try:
        again.wait_until(lambda: "has started" in again.log)
        assert "waiting for the workers of a killed DRO to end" in again.log
        assert not is_running(orphan)
        again.signal(signal.SIGTERM)
        assert again.wait_exit() == 0
        assert again.leftovers() == []
    finally:
        again.process.kill()
        again.process.wait()


def test_the_wait_for_a_killed_dro_can_be_ended(start: Start) -> None:
    first = start("plain-0", "stubborn-1")
    first.wait_for("ready", worker="stubborn-1")
    orphan = first.pid_of("stubborn-1")
    os.kill(orphan, signal.SIGSTOP)  # it stays for as long as the test wants
    first.signal(signal.SIGKILL)
    first.wait_exit()
    again = FakeDro("plain-0", directory=first.directory)
    try:
        again.wait_until(lambda: "waiting for the workers" in again.log)
        again.signal(signal.SIGTERM)
        assert again.wait_exit() == 0
        assert "worker started" not in again.log
    finally:
        os.kill(orphan, signal.SIGKILL)
        again.process.kill()
        again.process.wait()
