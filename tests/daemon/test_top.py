"""`tnwgd-top` on a real DRO: live on a terminal, when the parent hangs or is killed, and for scripts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from supervisor.admin.client import Client, find_dro
from supervisor.admin.last_status import FILE_NAME, read_last_status
from supervisor.admin.status import DroStatus, PortalsStatus
from supervisor.host.run_dirs import SHARED_MEMORY, start_time_of
from supervisor.tools.top.main import EXIT_OK, EXIT_UNREACHABLE, main
from tests.rigs.flow import Board
from tests.rigs.site import Site, running
from tests.rigs.terminal import TerminalProgram
from tests.rigs.waiting import wait_until

TOP = ("-m", "supervisor.tools.top.main")
RATE = 200


@contextmanager
def flowing(folder: Path) -> Iterator[Site]:
    """`flow.0` goes from TRD 1 to TRD 2."""
    with running(Site(folder, 2)) as made:
        flow = Board.create(folder, "flow", 1)
        made.python(
            "-m", "tests.rigs.flow", str(made.config(1)), "--send", str(flow.path), "--rate", str(RATE), name="send"
        )
        made.python("-m", "tests.rigs.flow", str(made.config(2)), "--receive", str(flow.path), name="receive")
        made.wait(lambda: flow.is_flowing, "a flow")
        made.wait(lambda: _states(made) == {"ready"}, "the file beside the pages")
        yield made


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A DRO of a test that ends it."""
    with flowing(tmp_path) as made:
        yield made


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One DRO for all tests that leave it as it was."""
    with flowing(tmp_path_factory.mktemp("lasting")) as made:
        yield made


def shm_of(site: Site) -> Path:
    return SHARED_MEMORY / f"dro-{site.name}-{site.pid}-{start_time_of(site.pid)}"


def _states(site: Site) -> set[str]:
    last = read_last_status(shm_of(site))
    return {worker.state for worker in last.status.workers} if last is not None else set()


@pytest.fixture
def terminals() -> Iterator[list[TerminalProgram]]:
    """Closed at the end."""
    opened: list[TerminalProgram] = []
    yield opened
    for terminal in opened:
        terminal.close()


def watch(site: Site, terminals: list[TerminalProgram], columns: int = 80, lines: int = 24) -> TerminalProgram:
    terminal = TerminalProgram(*TOP, "--dro", str(site.pid), "--interval", "0.3", columns=columns, lines=lines)
    terminals.append(terminal)
    return terminal


def flows(terminal: TerminalProgram) -> None:
    """P1 receives and P2 sends, at about the rate of the source."""

    def rates() -> bool:
        rows = {line.split()[0]: line.split() for line in terminal.screen[:8] if line[:2] in ("P1", "P2")}
        try:
            return float(rows["P1"][2]) > RATE / 4 and float(rows["P2"][3 if len(rows["P2"]) < 9 else 4]) > RATE / 4
        except (KeyError, ValueError, IndexError):
            return False

    wait_until(rates, "rates on the screen", 30, lambda: "\n".join(terminal.screen))


def test_numbers_are_seen_and_q_ends_it(lasting: Site, terminals: list[TerminalProgram]) -> None:
    terminal = watch(lasting, terminals)
    assert "running" in terminal.wait_for(r"answer \d+\.\d s old")
    flows(terminal)
    assert all(len(line) <= 80 for line in terminal.screen)
    assert terminal.wait_for(r"^route-manager +ready +\d+")
    terminal.press("s")
    terminal.wait_for("sort: received")
    terminal.resize(60, 20)
    terminal.wait_for(r"^PORTAL +STATE +RCVD/s +SENT/s +DROP/s")
    assert all(len(line) <= 60 for line in terminal.screen)
    assert len(terminal.screen) <= 20
    terminal.press("t")
    terminal.wait_for(r"^PORTAL +STATE +RCVD +SENT +DROP")
    terminal.press("q")
    assert terminal.wait_end() == EXIT_OK
    terminal.wait_restored()


def test_a_killed_parent_is_said_to_be_dead_and_its_counters_stay(site: Site, terminals: list[TerminalProgram]) -> None:
    terminal = watch(site, terminals)
    flows(terminal)
    pid = site.pid
    os.kill(pid, signal.SIGKILL)
    # unless another DRO starts just then and removes what it left
    terminal.wait_for(rf"the parent \(pid {pid}\) (is dead|has ended and its files have been removed); these are its")
    assert terminal.wait_for(r"^dead, started")
    received = terminal.wait_for(r"^P1 +dead").split()[2]
    assert float(received.removesuffix("k")) > 0
    terminal.press("\x03")
    assert terminal.wait_end() == EXIT_OK
    terminal.wait_restored()


def test_a_dro_that_ends_in_good_order_is_said_to_have_ended(site: Site, terminals: list[TerminalProgram]) -> None:
    terminal = watch(site, terminals, columns=120)
    flows(terminal)
    pid = site.pid
    assert site.stop() == 0
    terminal.wait_for(rf"the parent \(pid {pid}\) has ended and its files have been removed; these are its last")
    assert terminal.wait_for(r"^P1 +(dead|ended) +\d")
    terminal.press("q")
    assert terminal.wait_end() == EXIT_OK
    terminal.wait_restored()


def test_rates_go_on_while_the_parent_is_stopped(lasting: Site, terminals: list[TerminalProgram]) -> None:
    terminal = watch(lasting, terminals, columns=160)
    flows(terminal)
    os.kill(lasting.pid, signal.SIGSTOP)
    try:
        terminal.wait_for(rf"the parent \(pid {lasting.pid}\) does not answer for \d+s; a signal has stopped it")
        flows(terminal)
        terminal.wait_for(r"^tnwgd +stopped")
        late = watch(lasting, terminals, columns=160)  # which never had an answer
        flows(late)
        late.wait_for(rf"the parent \(pid {lasting.pid}\) does not answer for \d+s")
    finally:
        os.kill(lasting.pid, signal.SIGCONT)
    for one in (terminal, late):
        one.wait_for(r"^running, .*, answer \d\.\d s old")
    terminal.wait_for(r"the parent .* does not answer for \d+s")  # among the problems, with its time
    terminal.process.terminate()
    assert terminal.wait_end() == -signal.SIGTERM
    terminal.wait_restored()


def once(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(["--once", "--interval", "0.5", *words]) == EXIT_OK
    return capsys.readouterr().out


def test_scripts_get_one_picture_or_json(lasting: Site, capsys: pytest.CaptureFixture[str]) -> None:
    text = once(capsys, "--dro", lasting.name)
    assert text.startswith(f"{lasting.name}  open-dro ")
    assert "\x1b" not in text
    assert "quit" not in text
    view: dict[str, Any] = json.loads(once(capsys, "--dro", str(lasting.pid), "--json"))
    with Client(find_dro(str(lasting.pid))) as client:
        status = client.ask(DroStatus, "status")
    assert (view["head"]["node_id"], view["head"]["routes"]) == (status.node_id, status.routes)
    p1, p2 = view["portals"]
    assert (p1["name"], p2["name"]) == ("P1", "P2")
    assert p1["received"]["per_s"] == pytest.approx(RATE, rel=0.6)
    assert p2["sent"]["per_s"] == pytest.approx(RATE, rel=0.6)
    assert {p["name"]: p["pid"] for p in view["processes"]} == {"tnwgd": lasting.pid} | lasting.workers()
    assert all(p["memory_bytes"] > 1 << 20 for p in view["processes"])


def test_what_a_dead_dro_left_can_be_looked_at(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a copy: any other DRO that starts removes what a dead one left."""
    found = site.workers()
    for pid in (site.pid, *found.values()):
        os.kill(pid, signal.SIGSTOP)
    kept = tmp_path / shm_of(site).name
    shutil.copytree(shm_of(site), kept, symlinks=True, ignore=shutil.ignore_patterns("ring.*"))
    for pid in found.values():
        os.kill(pid, signal.SIGCONT)
    os.kill(site.pid, signal.SIGCONT)
    with Client(find_dro(str(site.pid))) as client:
        later = {p.name: p for p in client.ask(PortalsStatus, "portals").portals}
    pid = site.pid
    os.kill(pid, signal.SIGKILL)
    assert site.daemon is not None
    site.daemon.wait()
    for words in (["--shm", str(kept)], ["--shm", str(tmp_path)], ["--shm", str(tmp_path), "--dro", site.name]):
        view = json.loads(once(capsys, *words, "--json"))
        assert view["head"]["notice"] == f"the parent (pid {pid}) is dead; these are its last values"
        counters = {p["name"]: p for p in view["portals"]}
        assert 0 < counters["P1"]["received"]["total"] <= later["P1"].counters["TOPIC_RCVD"]
        assert 0 < counters["P2"]["sent"]["total"] <= later["P2"].counters["SENT"]
        assert {p["state"] for p in view["processes"]} == {"dead"}
    (kept / FILE_NAME).unlink()
    assert main(["--once", "--shm", str(kept)]) == EXIT_UNREACHABLE
    assert "no file that says what its portals are" in capsys.readouterr().err


def test_without_a_terminal_it_prints_once(lasting: Site) -> None:
    command = [sys.executable, *TOP, "--run-dir", str(find_dro(str(lasting.pid))), "--interval", "0.2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (EXIT_OK, "")
    assert done.stdout.startswith(f"{lasting.name}  open-dro ")
