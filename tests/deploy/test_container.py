"""The image: what can be checked of its file without an engine, and its health check beside a DRO that is process 1."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from deploy.container.health import ask
from tests.rigs.netns.harness import Host, Net
from tests.rigs.netns.process import Process

ROOT: Final = Path(__file__).parents[2]
FILE: Final = ROOT / "deploy/container/Containerfile"
TEXT: Final = FILE.read_text()
HEALTH: Final = str(ROOT / "deploy/container/health.py")
MONITOR: Final = "<web-monitor>*:15304</web-monitor>"
DRO: Final = """<?xml version="1.0"?>
<tnw-gateway version="1.0">
  <daemon><name>BOX</name><log type="console"/>{monitor}</daemon>
  <portals>
    <peer><name>P</name><single-tcp><acceptor><listen-port>26123</listen-port></acceptor></single-tcp></peer>
  </portals>
</tnw-gateway>
"""
BOX: Final = """
set -e
mount -t tmpfs -o size=64m,mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=0755 tmpfs /run
mount -o remount,bind,ro /
export XDG_RUNTIME_DIR=/run
exec "$@"
"""


def stage(name: str) -> str:
    """The lines of a stage."""
    return re.split(r"^FROM ", TEXT.partition(f" AS {name}\n")[2], flags=re.MULTILINE)[0]


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, "--no-color", FILE], capture_output=True, text=True, check=False)
    assert done.stdout + done.stderr == ""


def test_one_rule_alone_is_ignored() -> None:
    """Debian's archive has one version of each package: what names another one cannot be built."""
    assert set(re.findall(r"hadolint ignore=(\S+)", TEXT)) == {"DL3008"}


def test_the_context_has_what_the_wheel_is_made_of() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*", "nothing but what is named"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    files = {"pyproject.toml", "setup.py", project["project"]["readme"], *project["project"]["license-files"]}
    named = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert packages | files <= named
    assert {path for path in named if not (ROOT / path).exists()} == set()


def test_the_stage_that_runs_has_no_compiler() -> None:
    installed = re.findall(r"--no-install-recommends ([^\\\n]*)", stage("run"))
    assert installed == ["python3 tini "]
    assert "gcc" in stage("build")


@pytest.mark.parametrize("name", ["run", "debug"])
def test_the_user_at_the_end_is_not_root(name: str) -> None:
    assert re.findall(r"^USER (.*)$", stage(name), re.MULTILINE)[-1] == "10001:10001"


@dataclass
class Box:
    """Processes with a PID namespace, shared memory and a read-only root file system of their own."""

    host: Host
    process: Process

    @property
    def first(self) -> int:
        """Process 1, as it is called outside."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def health(self) -> subprocess.CompletedProcess[str]:
        enter = ["nsenter", f"--target={self.first}", "--pid", "--mount", "env", "XDG_RUNTIME_DIR=/run"]
        return self.host.run([*enter, sys.executable, HEALTH], check=False)

    def pid_of(self, name: str) -> int:
        children = Path(f"/proc/{self.first}/task/{self.first}/children").read_text().split()
        return next(int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == name)


@contextmanager
def box_of(net: Net, *command: str) -> Iterator[Box]:
    host = net.host("box", {})
    fresh = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", BOX, "sh")
    box = Box(host, host.start([*fresh, *command], "box", {"PYTHONDONTWRITEBYTECODE": "1"}, net.folder))
    yield box
    box.process.kill()


@contextmanager
def dro_of(net: Net, monitor: str) -> Iterator[Box]:
    """A DRO in a box, as process 1; it works."""
    (net.folder / "dro.xml").write_text(DRO.format(monitor=monitor))
    argv = (sys.executable, "-u", "-m", "supervisor.main", "dro.xml")
    with box_of(net, "env", f"PYTHONPATH={ROOT}", *argv) as box:
        box.process.wait_output("has started", 60)
        if monitor:
            box.process.wait_output("listens", 60)
        yield box


@pytest.mark.netns
def test_a_dro_with_a_monitor_is_asked_by_it_and_ends_as_process_1(net: Net) -> None:
    with dro_of(net, MONITOR) as box:
        done = box.health()
        assert done.stdout.startswith("healthy: http://127.0.0.1:15304/healthz: 200: ")
        assert done.returncode == 0
        os.kill(box.first, signal.SIGTERM)
        assert box.process.wait() == 0


@pytest.mark.netns
def test_a_monitor_that_hangs_is_told(net: Net) -> None:
    with dro_of(net, MONITOR) as box:
        os.kill(box.pid_of("monitor"), signal.SIGSTOP)
        done = box.health()
        assert done.stdout == "unhealthy: http://127.0.0.1:15304/healthz: no answer: timed out\n"
        assert done.returncode == 1


def test_what_is_no_answer_of_http_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, f"127.0.0.1:{server.getsockname()[1]}")
        with server.accept()[0] as connection:
            connection.recv(4096)
            connection.sendall(b"SSH-2.0-x\r\n")
        status, text = asked.result(10)
    assert (status, text.strip()) == (0, "SSH-2.0-x")


@pytest.mark.netns
def test_a_dro_without_a_monitor_is_asked_by_its_socket(net: Net) -> None:
    with dro_of(net, "") as box:
        done = box.health()
        assert done.stdout == (
            "healthy: the DRO answers on its admin socket; without <web-monitor> nothing else is asked\n"
        )
        assert done.returncode == 0


@pytest.mark.netns
def test_without_a_dro_nothing_is_healthy(net: Net) -> None:
    with box_of(net, "sh", "-c", "echo is up; exec sleep 1000") as box:
        box.process.wait_output("is up")
        done = box.health()
        assert done.stdout.startswith("unhealthy: no DRO of this user runs here")
        assert done.returncode == 1
