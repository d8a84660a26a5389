"""What a starter leaves behind harms no DRO: ignored signals, alarms, pipes, and a working directory that goes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from dro.errors import DroError
from dro.um.blocking_api import BlockingContext
from dro.um.message.client_config import Config
from supervisor.admin.client import Client, find_dro
from supervisor.admin.status import DroStatus
from tests.rigs.site import ROOT, Site

pytestmark = pytest.mark.slow

ALARM_S: Final = 3
OURS: Final = (signal.SIGCHLD, signal.SIGALRM, signal.SIGQUIT)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, 2)
    yield made
    made.close()


def start(site: Site, file: str, **options: Any) -> None:  # noqa: ANN401 - as in the library
    """Start the daemon of a site by a starter of its own; returns when it runs."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (site.folder / "tnwgd.log").open("ab") as log:
        site.daemon = subprocess.Popen(
            [sys.executable, "-m", "supervisor.main", file], stdout=log, stderr=log, env=environment, **options
        )
    site.wait(lambda: "has started" in site.log, "it runs")


def process_age(pid: int) -> float:
    """Seconds since the start of a process."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def takes_signals(pid: int) -> bool:
    masks = re.findall(r"^Sig(?:Ign|Blk):\t(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return len(masks) == 2 and not any(int(mask, 16) >> number - 1 & 1 for mask in masks for number in OURS)


def comes_back(site: Site, portal: str) -> None:
    pid = site.kill(portal)
    site.wait(lambda: site.workers().get(portal, pid) != pid, f"the next {portal}")


def test_what_the_starter_has_set_does_not_outlive_the_start(site: Site) -> None:
    """A portal that dies comes back, no alarm ends the DRO, and who waits for the end of a pipe gets it."""
    reading, writing = os.pipe()

    def set_up() -> None:
        for number in OURS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, OURS)
        signal.setitimer(signal.ITIMER_REAL, ALARM_S)

    try:
        with (site.folder / "kept").open("w") as lock:
            fds = (writing, lock.fileno())
            start(site, str(site.folder / "dro.xml"), cwd=ROOT, pass_fds=fds, preexec_fn=set_up)
        os.close(writing)
        os.set_blocking(reading, False)
        assert os.read(reading, 1) == b"", "its end"
    finally:
        os.close(reading)
    held = {os.readlink(fd) for fd in Path(f"/proc/{site.pid}/fd").iterdir()}
    assert str(site.folder / "kept") in held, "a file may be the lock of who started it"
    comes_back(site, "P1")
    site.wait(lambda: process_age(site.pid) > ALARM_S, "the time of the alarm")
    comes_back(site, "P2")
    for pid in (site.pid, *site.workers().values()):
        site.wait(
            partial(takes_signals, pid), "signals are neither ignored nor blocked, as they are at a thread's start"
        )
    assert site.stop() == 0


@pytest.mark.parametrize("shown", [lambda folder: "dro.xml", lambda folder: str(folder / "dro.xml")])
def test_the_folder_of_the_start_goes_and_comes_back(site: Site, shown: Callable[[Path], str]) -> None:
    folder = site.folder / "start"
    folder.mkdir()
    for path in (site.folder / "dro.xml", site.config(1), site.config(2)):
        shutil.copy(path, folder)
    start(site, shown(folder), cwd=folder)
    shutil.move(folder, gone := site.folder / "gone")
    shutil.copytree(gone, site.folder / "copy")
    shutil.rmtree(gone)
    comes_back(site, "P1")
    with Client(find_dro(str(site.pid))) as client:
        assert client.request("status")["config_file"] == str(folder / "dro.xml")
        with pytest.raises(DroError, match=f"{folder}/dro.xml: cannot read"):
            client.request("reload")
        site.wait(lambda: client.request("status")["is_running"], "it goes on")
        shutil.move(site.folder / "copy", folder)
        client.request("reload")
    comes_back(site, "P2")
    assert "Traceback" not in site.log
    assert "a fault of" not in site.log
    assert site.stop() == 0


@pytest.mark.parametrize("what", ["run", "shm", "one socket"])
def test_files_that_are_removed_are_told_of_and_portals_come_back(site: Site, what: str) -> None:
    """A logout removes them: nothing was said, no tool found the DRO, and a portal that died never came back."""
    site.start()
    with Client(find_dro(str(site.pid))) as client:
        status = client.ask(DroStatus, "status")
    folder = Path(status.shm if what == "shm" else status.run_dir)
    if what == "one socket":
        next(folder.glob("w1.*.ctl")).unlink()
    else:
        shutil.rmtree(folder)
    site.wait(lambda: "files of this DRO were removed" in site.log, "it is told")
    lives = site.workers()
    with Client(find_dro(str(site.pid))) as client:
        troubles = {worker.name: worker.state for worker in client.ask(DroStatus, "status").workers}
        assert troubles == {"route-manager": "degraded", "P1": "degraded", "P2": "degraded"}
        site.kill("P1")
        site.wait(lambda: lives.items().isdisjoint(site.workers().items()) and len(site.workers()) == 3, "new lives")

        def is_whole() -> bool:
            return {worker.state for worker in client.ask(DroStatus, "status").workers} == {"ready"}

        site.wait(is_whole, "all are ready, and in no trouble")
    with (
        BlockingContext(Config.load(site.config(1))) as first,
        BlockingContext(Config.load(site.config(2))) as second,
        second.receiver("t") as receiver,
        first.source("t") as source,
    ):
        heard: set[str] = set()

        def flows() -> bool:
            source.send(b"over both")  # again and again: the portal may have to join the source first
            with contextlib.suppress(TimeoutError):
                heard.add(type(receiver.get(timeout=0.2)).__name__)
            return "Data" in heard

        site.wait(flows, "a message over both portals", 60)
    running = site.pid
    assert "Traceback" not in site.log
    assert site.stop() == 0
    assert site.leftovers(running) == []


def _link(path: Path) -> None:
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    ("put", "is_in_the_way"),
    [
        pytest.param(lambda path: None, False, id="nothing"),
        pytest.param(lambda path: path.write_text("garbage"), False, id="file"),
        pytest.param(_link, False, id="link"),
        pytest.param(Path.mkdir, True, id="directory"),
    ],
)
def test_what_lies_at_the_place_of_the_admin_socket_makes_way(
    site: Site, put: Callable[[Path], object], is_in_the_way: bool
) -> None:
    """Workers have their files, so they are in no trouble. Before, what was there instead was not seen."""
    site.start()
    with Client(find_dro(str(site.pid))) as client:
        socket = Path(client.ask(DroStatus, "status").run_dir) / "admin"
    socket.unlink()
    put(socket)
    if is_in_the_way:
        site.wait(lambda: "files of this DRO cannot be made anew" in site.log, "it is told")
        socket.rmdir()
    site.wait(socket.is_socket, "a socket again")
    with Client(find_dro(str(site.pid))) as client:
        assert {worker.state for worker in client.ask(DroStatus, "status").workers} == {"ready"}
    first = next(line for line in site.log.splitlines() if "files of this DRO were removed" in line)
    assert "THROTTLED" not in first
    assert site.stop() == 0
