"""Two DROs that want the same run directory or the same pid file, and what a DRO says at its start."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.loaded import Loaded, run
from tests.rigs.site import ROOT, Site


@pytest.fixture
def run_dir() -> Iterator[Path]:
    """A directory that is there; short, as sockets live in it."""
    with tempfile.TemporaryDirectory(prefix="dro-t-") as path:
        yield Path(path)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, 2)
    xml = tmp_path / "dro.xml"
    xml.write_text(xml.read_text().replace("<log ", f"<pidfile>{tmp_path}/dro.pid</pidfile><log "))
    yield made
    made.close()


def start(site: Site, *options: str) -> None:
    with (site.folder / "tnwgd.log").open("ab") as log:
        site.daemon = Loaded(
            [sys.executable, "-m", "supervisor.main", *options, str(site.folder / "dro.xml")],
            cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    began = site.log.count("has started")
    site.wait(lambda: site.log.count("has started") > began, "it runs")


def refused(site: Site, *options: str) -> str:
    """What a DRO with the same places says, from another file and under another name."""
    other = site.folder / "other.xml"
    other.write_text((site.folder / "dro.xml").read_text().replace(site.name, f"{site.name}b"))
    argv = [sys.executable, "-m", "supervisor.main", *options, str(other)]
    done = run(argv, cwd=ROOT, timeout=120)
    assert done.returncode == 1, done
    (line,) = [line for line in done.stdout.splitlines() if "DRO cannot start" in line]
    return line


def test_a_second_dro_with_the_same_run_directory_is_refused(site: Site, run_dir: Path) -> None:
    start(site, "--run-dir", str(run_dir))
    files = {path.name for path in run_dir.iterdir()}
    assert {"lock", "admin"} < files
    workers = site.workers()
    line = refused(site, "--run-dir", str(run_dir))
    assert f"the run directory {run_dir} is that of a running DRO (process {site.pid})" in line
    assert "stop that one first" in line
    other = refused(site)  # elsewhere, but with the same pid file
    assert f"the pid file {site.folder}/dro.pid is that of the running DRO with process id {site.pid}" in other
    assert {path.name for path in run_dir.iterdir()} == files
    assert (site.folder / "dro.pid").read_text() == f"{site.pid}\n"
    assert site.workers() == workers
    argv = [sys.executable, "-m", "supervisor.tools.ctl.main", "--run-dir", str(run_dir), "status"]
    status = run(argv, cwd=ROOT, timeout=120)
    assert status.returncode == 0, status
    assert f"pid {site.pid}" in status.stdout
    assert site.stop() == 0
    assert list(run_dir.iterdir()) == []
    assert not (site.folder / "dro.pid").exists()


def test_the_run_directory_of_a_killed_dro_is_taken_over(site: Site, run_dir: Path) -> None:
    """At once: the workers of the killed one are waited for."""
    start(site, "--run-dir", str(run_dir))
    killed = site.pid
    os.kill(killed, signal.SIGKILL)
    assert site.daemon is not None
    site.daemon.wait()
    start(site, "--run-dir", str(run_dir))
    assert (site.folder / "dro.pid").read_text() == f"{site.pid}\n"
    assert site.leftovers(killed) == []
    assert site.stop() == 0
    assert list(run_dir.iterdir()) == []


def test_what_it_says_at_the_start(site: Site) -> None:
    start(site)
    log = site.log
    xml = site.folder / "dro.xml"
    assert re.search(rf"\[information\] Gwd-7136-1: .*version=\S+ config={re.escape(str(xml))}", log)
    assert re.search(r'Gwd-7136-2: .*python="CPython 3\.\S+" machine=\S+ pyzmq=\S+ .*pcre2=\S+', log)
    assert re.search(r"configuration read portals=2 um_files=2 ", log)
    for trd in site.trds:
        found = re.search(rf"portal configured portal=P{trd} domain={trd} cost=1 lbm_config=(\S+)", log)
        assert found is not None
        assert os.path.samefile(found[1], site.config(trd))
    assert re.search(rf"Gwd-7122-1: Gateway named \[{site.name}\] with node id: [0-9]+ has started", log)
    assert site.stop() == 0
