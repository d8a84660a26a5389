"""User, group and pid file of a real DRO: shown from /proc, for every process, also for one that was restarted."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.host.run_dirs import SHARED_MEMORY
from tests.rigs.circumstances import Step, as_user
from tests.rigs.dro_run import is_running
from tests.rigs.loaded import Loaded, run
from tests.rigs.site import ROOT, Site
from tests.rigs.waiting import wait_until

UID, GID = 54321, 54322

as_root = pytest.mark.netns  # the mark for what needs root


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that another user can read."""
    path = Path(tempfile.mkdtemp(prefix="dro-t-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def site(folder: Path) -> Iterator[Site]:
    made = Site(folder, 2)
    yield made
    made.close()


def daemon_xml(site: Site, more: str) -> Path:
    """Add elements behind the name."""
    path = site.folder / "dro.xml"
    path.write_text(path.read_text().replace("</name>", f"</name>{more}", 1))
    return path


def credentials(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {name: " ".join(fields[name].split()) for name in ("Uid", "Gid", "Groups", "CapEff", "CapPrm", "CapInh")}


def expected(uid: int, gid: int) -> dict[str, str]:
    none = "0" * 16
    ids = {"Uid": " ".join([str(uid)] * 4), "Gid": " ".join([str(gid)] * 4), "Groups": ""}
    return ids | {"CapEff": none, "CapPrm": none, "CapInh": none}


def all_processes(site: Site) -> dict[str, dict[str, str]]:
    return {name: credentials(pid) for name, pid in {"tnwgd": site.pid, **site.workers()}.items()}


@as_root
def test_every_process_becomes_that_user_for_good(site: Site) -> None:
    """Also one that was restarted; files in /proc, in shared memory and in the run directory belong to the user."""
    pid_dir = site.folder / "pid"
    pid_dir.mkdir()
    os.chown(pid_dir, UID, GID)
    pid_file = f"{pid_dir}/dro.pid"
    daemon_xml(site, f"<uid>{UID}</uid><gid>{GID}</gid><pidfile>{pid_file}</pidfile>")
    site.start()
    wanted = {name: expected(UID, GID) for name in ("tnwgd", "route-manager", "P1", "P2")}
    assert all_processes(site) == wanted
    for pid in (site.pid, *site.workers().values()):
        owner = Path(f"/proc/{pid}/environ").stat()  # belongs to root unless the process may be traced by its user
        assert (owner.st_uid, owner.st_gid) == (UID, GID)
    assert Path(pid_file).read_text() == f"{site.pid}\n"
    ours = [path for base in (Path("/tmp"), SHARED_MEMORY) for path in base.glob(f"dro-{site.name}-{site.pid}-*")]
    assert len(ours) == 2
    for path in (Path(pid_file), *ours, *(entry for directory in ours for entry in directory.iterdir())):
        assert (path.stat().st_uid, path.stat().st_gid) == (UID, GID), path
    for name in ("P1", "route-manager"):
        killed = site.kill(name)
        site.wait(lambda name=name, killed=killed: site.workers().get(name, killed) != killed, "it is restarted")  # type: ignore[misc]
    site.wait(lambda: site.log.count("worker ready") >= 5, "both are back")
    assert all_processes(site) == wanted
    daemon = site.pid
    assert site.stop() == 0
    assert site.leftovers(daemon) == []
    assert list(pid_dir.iterdir()) == []


@as_root
def test_a_pid_file_that_cannot_be_removed_is_emptied(site: Site) -> None:
    """Its directory belongs to root. The next start takes it over."""
    pid_dir = site.folder / "pid"
    pid_dir.mkdir()
    path = pid_dir / "dro.pid"
    daemon_xml(site, f"<uid>{UID}</uid><gid>{GID}</gid><pidfile>{path}</pidfile>")
    for _ in range(2):
        site.start()
        assert path.read_text() == f"{site.pid}\n"
        assert site.stop() == 0
        assert path.read_text() == ""


@as_root
def test_what_a_killed_dro_of_that_user_left_is_swept_by_root(site: Site) -> None:
    daemon_xml(site, f"<uid>{UID}</uid><gid>{GID}</gid>")
    site.start()
    killed, workers = site.pid, site.workers()
    os.kill(killed, signal.SIGKILL)
    assert site.daemon is not None
    site.daemon.wait()
    site.daemon = None
    wait_until(lambda: not any(map(is_running, workers.values())), "its workers end")
    assert len(site.leftovers(killed)) == 2
    site.start()
    assert site.leftovers(killed) == []
    last = site.pid
    assert site.stop() == 0
    assert site.leftovers(last) == []


@as_root
def test_what_comes_later_works_as_that_user(site: Site) -> None:
    """A reload, a worker that is restarted, and a log that is rolled; only the files have to be readable."""
    logs = site.folder / "logs"
    logs.mkdir()
    os.chown(logs, UID, GID)
    path = daemon_xml(site, f"<uid>{UID}</uid><gid>{GID}</gid>")
    path.write_text(path.read_text().replace('<log type="console"/>', f'<log type="file">{logs}/dro.log</log>'))
    log = logs / "dro.log"
    with (site.folder / "out").open("wb") as out:
        argv = [sys.executable, "-m", "supervisor.main", str(path)]
        site.daemon = Loaded(argv, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
    site.wait(lambda: log.exists() and "has started" in log.read_text(), "it runs")
    assert (log.stat().st_uid, log.stat().st_gid) == (UID, GID)
    log.rename(logs / "dro.log.old")  # as logrotate does
    killed = site.kill("P1")
    site.wait(lambda: log.exists() and "worker ready worker=P1" in log.read_text(), "a log of the user's own")
    assert (log.stat().st_uid, site.worker("P1") != killed) == (UID, True)

    def reload(user: int) -> subprocess.CompletedProcess[str]:
        (run_dir,) = Path("/tmp").glob(f"dro-{site.name}-{site.pid}-*")
        argv = [sys.executable, "-m", "supervisor.tools.ctl.main", "--run-dir", str(run_dir), "reload", "-v"]
        return run(argv, cwd=ROOT, timeout=60, preexec_fn=as_user(user, GID))

    text = path.read_text()
    path.write_text(text.replace("<domain-id>1</domain-id>", "<domain-id>1</domain-id><cost>7</cost>"))
    done = reload(UID)
    assert done.returncode == 0, done
    assert "cost: 1 -> 7" in done.stdout
    assert reload(UID + 5).returncode == 3  # another user does not even reach the socket
    path.chmod(0o600)
    denied = reload(UID)
    assert denied.returncode == 1
    assert "Permission denied" in denied.stderr
    assert site.stop() == 0


@as_root
def test_a_file_that_the_user_cannot_read_is_named_at_the_start(site: Site) -> None:
    daemon_xml(site, f"<uid>{UID}</uid><gid>{GID}</gid>")
    site.config(2).chmod(0o600)
    site.start()
    (line,) = [line for line in site.log.splitlines() if "a reload will fail" in line]
    assert str(site.config(2)) in line
    assert site.stop() == 0


@as_root
def test_a_user_without_a_group_gets_the_group_of_the_password_database(site: Site) -> None:
    nobody = pwd.getpwnam("nobody")
    daemon_xml(site, f"<uid>{nobody.pw_uid}</uid>")
    site.start()
    assert credentials(site.pid) == expected(nobody.pw_uid, nobody.pw_gid)
    assert site.stop() == 0


@as_root
def test_a_group_alone_leaves_the_user_and_takes_the_other_groups(site: Site) -> None:
    daemon_xml(site, f"<gid>{GID}</gid>")
    site.start()
    for found in all_processes(site).values():
        assert (found["Uid"], found["Gid"], found["Groups"]) == ("0 0 0 0", " ".join([str(GID)] * 4), "")
    assert site.stop() == 0


def refused(path: Path, *before: str, prepare: Step | None = None) -> str:
    done = run([*before, sys.executable, "-m", "supervisor.main", str(path)], cwd=ROOT, timeout=60, preexec_fn=prepare)
    assert done.returncode == 1, done
    assert "Traceback" not in done.stdout + done.stderr
    assert "worker started" not in done.stdout + done.stderr
    return done.stdout + done.stderr


@as_root
def test_who_cannot_become_somebody_else_does_not_start(site: Site) -> None:
    path = daemon_xml(site, f"\n<uid>{UID}</uid>\n<gid>{GID}</gid>")
    line = path.read_text().splitlines().index(f"<uid>{UID}</uid>") + 1
    said = refused(path, prepare=as_user(65534, 65534))
    assert f"{path}:{line}: <uid>: only root can become user {UID} and group {GID}; this is user 65534" in said
    assert "start as root" in said
    assert "CAP_SETUID" in refused(path, "setpriv", "--bounding-set", "-setuid", "--inh-caps", "-setuid")
    assert "exist in the user namespace" in refused(path, "unshare", "--user", "--map-root-user")
    path.write_text(path.read_text().replace(f"<gid>{GID}</gid>", ""))
    assert f"{path}:{line}: <uid>: user {UID} has no entry in the password database" in refused(path)


@as_root
def test_a_user_that_the_dro_is_already_needs_no_root(site: Site) -> None:
    daemon_xml(site, "<uid>65534</uid><gid>65534</gid>")
    (site.folder / "tnwgd.log").touch()
    with (site.folder / "tnwgd.log").open("ab") as log:
        site.daemon = Loaded(
            [sys.executable, "-m", "supervisor.main", str(site.folder / "dro.xml")],
            cwd=ROOT, stdout=log, stderr=log, start_new_session=True, preexec_fn=as_user(65534, 65534),
        )  # fmt: skip
    site.wait(lambda: "has started" in site.log, "it runs")
    assert credentials(site.pid) == expected(65534, 65534)
    assert site.stop() == 0
