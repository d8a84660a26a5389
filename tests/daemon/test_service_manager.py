"""A DRO under a service manager: what it tells it, and how its log looks in the journal."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.loaded import Loaded
from tests.rigs.site import ROOT, Site
from tests.rigs.waiting import wait_until

WATCHDOG_US = 400_000


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, 2)
    yield made
    made.close()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with tempfile.TemporaryDirectory(prefix="dro-t-") as path, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(f"{path}/notify")
        made.settimeout(60)
        yield made


def start(site: Site, output: int, **variables: str) -> None:
    site.daemon = Loaded(
        [sys.executable, "-m", "supervisor.main", str(site.folder / "dro.xml")],
        cwd=ROOT, stdout=output, stderr=output, start_new_session=True, env=os.environ | variables,
    )  # fmt: skip


def test_ready_alive_and_stopping(site: Site, listener: socket.socket) -> None:
    with (site.folder / "tnwgd.log").open("ab") as log:
        start(site, log.fileno(), NOTIFY_SOCKET=listener.getsockname(), WATCHDOG_USEC=str(WATCHDOG_US))

    def take(until: str) -> list[str]:
        taken: list[str] = []
        while not taken or taken[-1] != until:
            taken += listener.recv(1024).decode().split("\n")
        return taken

    beginning = take(f"STATUS={site.name}: 2 portals run")
    assert "READY=1" in beginning
    assert "has started" in site.log
    assert take("WATCHDOG=1") == ["WATCHDOG=1"]
    assert take("WATCHDOG=1") == ["WATCHDOG=1"]
    assert site.daemon is not None
    site.daemon.send_signal(signal.SIGTERM)
    ending = take("STOPPING=1")
    assert set(ending[:-1]) <= {"WATCHDOG=1"}
    assert site.daemon.wait(30) == 0


def test_lines_in_the_journal_have_a_priority_and_no_time(site: Site) -> None:
    xml = site.folder / "dro.xml"
    xml.write_text(re.sub(r"<log .*?(/>|</log>)", '<log type="console"/>', xml.read_text(), flags=re.DOTALL))
    ours, theirs = socket.socketpair()
    status = os.fstat(theirs.fileno())
    shown = ""
    with ours, theirs:
        start(site, theirs.fileno(), JOURNAL_STREAM=f"{status.st_dev}:{status.st_ino}")
        ours.setblocking(False)

        def runs() -> bool:
            nonlocal shown
            with contextlib.suppress(BlockingIOError):
                shown += ours.recv(1 << 16).decode()
            return "has started" in shown

        wait_until(runs, "it runs", detail=lambda: shown)
        site.kill(next(name for name in site.workers() if name != "route-manager"))
        wait_until(lambda: runs() and "\n<3>" in shown, "the end of a portal is an error", detail=lambda: shown)
        assert site.stop() == 0
    lines = shown.splitlines()
    assert any(re.match(r"<6>Gwd-\d+-\d+: ", line) for line in lines)
    assert not re.search(r"^(<\d>)?\[\d{4}-", shown, re.MULTILINE)
