"""`tnwgd -f` on a terminal: when the command ends and how, and what the daemon keeps of the terminal: nothing."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from supervisor.host.pidfile import take_pid_file
from tests.rigs.circumstances import on_terminal
from tests.rigs.dro_run import is_running
from tests.rigs.loaded import Loaded
from tests.rigs.site import ROOT, Site
from tests.rigs.waiting import wait_until


class Terminal:
    """A command on a terminal of its own, and what it shows there."""

    def __init__(self, *argv: str, cwd: Path = ROOT, stdout: IO[bytes] | None = None) -> None:
        self._ours, theirs = pty.openpty()
        self.process: subprocess.Popen[bytes] = Loaded(
            argv, cwd=cwd, stdin=theirs, stdout=stdout or theirs, stderr=theirs, start_new_session=True,
            preexec_fn=on_terminal(os.ttyname(theirs)),
        )  # fmt: skip
        os.close(theirs)
        self.shown = ""
        os.set_blocking(self._ours, False)

    def look(self) -> str:
        """Everything that was shown so far."""
        try:
            while part := os.read(self._ours, 65536):
                self.shown += part.decode()
        except OSError:
            pass  # nothing now, or nobody has the terminal any more
        return self.shown

    def is_left(self) -> bool:
        """Whether no process has the terminal open any more."""
        try:
            self.shown += os.read(self._ours, 65536).decode()
        except BlockingIOError:
            return False
        except OSError:
            return True
        return False

    def wait(self, seconds: float = 60) -> int:
        def has_ended() -> bool:
            self.look()  # else it may wait for room
            return self.process.poll() is not None

        wait_until(has_ended, "the command ends", seconds, self.look)
        self.look()
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


class Detached:
    """A site whose daemon is started with -f; the pid file says who it is."""

    def __init__(self, folder: Path) -> None:
        self.site = Site(folder, 2)
        self.folder = folder
        self.pid_file = folder / "dro.pid"
        self.config = folder / "dro.xml"
        text = self.config.read_text().replace("<log ", f"<pidfile>{self.pid_file}</pidfile><log ")
        self.config.write_text(text)
        self.terminals: list[Terminal] = []

    def start(self, cwd: Path = ROOT, stdout: IO[bytes] | None = None) -> Terminal:
        argv = (sys.executable, "-m", "supervisor.main", "-f", str(self.config))
        self.terminals.append(Terminal(*argv, cwd=cwd, stdout=stdout))
        return self.terminals[-1]

    @property
    def pid(self) -> int:
        return int(self.pid_file.read_text())

    def stop(self) -> None:
        pid = self.pid
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not is_running(pid), "the daemon ends")
        wait_until(lambda: not self.pid_file.exists(), "the pid file is gone")

    def close(self) -> None:
        if self.pid_file.exists() and is_running(self.pid):
            os.kill(self.pid, signal.SIGKILL)
        for terminal in self.terminals:
            terminal.close()
        self.site.close()


@pytest.fixture
def detached(tmp_path: Path) -> Iterator[Detached]:
    made = Detached(tmp_path)
    yield made
    made.close()


def links(pid: int) -> dict[int, str]:
    return {fd: os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1, 2)}


def test_the_command_ends_when_the_dro_runs(detached: Detached, tmp_path: Path) -> None:
    terminal = detached.start(cwd=tmp_path)
    assert terminal.wait() == 0
    assert "has started" in terminal.shown
    assert "the console log ends here" in terminal.shown
    pid = detached.pid
    assert is_running(pid)
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    parent, session, terminal_number = int(stat[1]), int(stat[3]), int(stat[4])
    assert terminal_number == 0
    assert session not in (pid, os.getsid(0), terminal.process.pid)  # its own, which it does not lead
    assert parent != terminal.process.pid
    assert os.readlink(f"/proc/{pid}/cwd") == str(tmp_path)
    wait_until(terminal.is_left, "nobody has the terminal open")
    workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert len(workers) == 3
    for member in (pid, *map(int, workers)):
        assert links(member)[0] == "/dev/null"
        assert not any(link.startswith(("/dev/pts", "/dev/tty")) for link in links(member).values())
    detached.stop()


def test_a_log_in_a_file_goes_on(detached: Detached, tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as out:
        terminal = detached.start(stdout=out)
        assert terminal.wait() == 0
    assert terminal.shown == ""
    log = tmp_path / "out"
    assert "has started" in log.read_text()
    assert "the console log ends here" not in log.read_text()
    detached.stop()
    assert "DRO stopped" in log.read_text()


@pytest.mark.parametrize("kind", ["console", "file"])
def test_a_dro_that_cannot_start_says_why_on_the_terminal(detached: Detached, tmp_path: Path, kind: str) -> None:
    if kind == "file":
        text = detached.config.read_text().replace(
            '<log type="console"/>', f'<log type="file">{tmp_path}/dro.log</log>'
        )
        detached.config.write_text(text)
    trd1 = detached.site.config(1)
    port = detached.site.port(1) + 1
    trd1.write_text(re.sub(r"(request_tcp_port_high) \d+", rf"\1 {port}", trd1.read_text()))
    with socket.create_server(("127.0.0.1", port)):
        terminal = detached.start()
        assert terminal.wait() == 1
    assert "in use" in terminal.shown
    assert "request_tcp_port" in terminal.shown
    assert "Traceback" not in terminal.shown
    assert not detached.pid_file.exists()


def test_a_configuration_that_cannot_be_read_ends_it_before(detached: Detached) -> None:
    detached.config.write_text("<tnw-gateway")
    terminal = detached.start()
    assert terminal.wait() == 1
    assert f"{detached.config}:1: not well-formed XML" in terminal.shown


def test_a_log_that_cannot_be_opened_ends_it(detached: Detached, tmp_path: Path) -> None:
    text = detached.config.read_text().replace('<log type="console"/>', f'<log type="file">{tmp_path}/none/x.log</log>')
    detached.config.write_text(text)
    terminal = detached.start()
    assert terminal.wait() == 1
    assert terminal.shown.count("No such file or directory") == 1
    assert "none/x.log" in terminal.shown


def paused_in_the_start(detached: Detached) -> tuple[Terminal, int]:
    """The daemon waits for the lock of a pid file, whose holder is dead and whose heir lives."""
    read, write = os.pipe()
    holder = os.fork()
    if holder == 0:
        os.close(write)
        taken = take_pid_file(detached.pid_file)
        if os.fork() == 0:
            os.read(read, 1)
            taken.close()
        os._exit(0)
    os.waitpid(holder, 0)
    os.close(read)
    return detached.start(cwd=detached.folder), write


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_passes_a_signal_on(detached: Detached, number: int) -> None:
    terminal, write = paused_in_the_start(detached)
    try:
        wait_until(lambda: "configuration read" in terminal.look(), "it starts", 30, terminal.look)
        terminal.process.send_signal(number)
        assert terminal.wait() == 1
        assert "stopped before the DRO ran" in terminal.shown
    finally:
        os.close(write)


def test_a_daemon_that_is_killed_in_its_start_is_a_failure(detached: Detached) -> None:
    terminal, write = paused_in_the_start(detached)
    try:
        wait_until(lambda: "configuration read" in terminal.look(), "it starts", 30, terminal.look)
        (daemon,) = members_at(detached.folder, terminal.process.pid)
        os.kill(daemon, signal.SIGKILL)
        assert terminal.wait() == 1
        assert "the detached process ended before the DRO ran" in terminal.shown
    finally:
        os.close(write)


def members_at(folder: Path, but: int) -> list[int]:
    """Processes that work in that folder, except one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != but:
            try:
                if os.readlink(entry / "cwd") == str(folder):
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def test_the_daemon_survives_the_end_of_the_terminal(detached: Detached) -> None:
    terminal = detached.start()
    assert terminal.wait() == 0
    terminal.close()
    detached.terminals.remove(terminal)
    pid = detached.pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    killed = children.read_text().split()[1]
    os.kill(int(killed), signal.SIGKILL)
    wait_until(lambda: len(now := children.read_text().split()) == 3 and killed not in now, "it is restarted")
    assert is_running(pid)
    detached.stop()
