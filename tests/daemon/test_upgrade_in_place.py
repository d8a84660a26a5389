"""`tnwgdctl upgrade` of a DRO under load: to another version, and to versions that fail in every step."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.rigs import other_program
from tests.rigs.going_on import order_meanwhile
from tests.rigs.orders import begin, order, tnwgdctl
from tests.rigs.other_program import NEXT_VERSION, VERSION, SiteOfItsOwn, make_program, overwrite
from tests.rigs.site import Site, running

pytestmark = pytest.mark.slow


BAD = "does not run: P2 does not like the new version; take the old one"
DYING = "does not go on running: killed by SIGSEGV; see the log"


def status(site: Site) -> dict[str, Any]:
    return order(site.pid, "status")


def ended(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=120)
    return process.returncode


def versions(site: Site) -> set[str]:
    found = status(site)
    assert all(worker["state"] == "ready" for worker in found["workers"]), found
    return {found["version"], *(worker["version"] for worker in found["workers"])}


@pytest.mark.parametrize("transport", ["lbtrm", pytest.param("tcp", marks=pytest.mark.long)])
def test_a_dro_moves_to_another_version_and_back_and_receivers_do_not_notice(tmp_path: Path, transport: str) -> None:
    def upgrade(site: Site) -> None:
        before, pids = status(site), site.workers()
        assert order(site.pid, "upgrade", "--to", str(make_program(tmp_path)))["version"] == VERSION
        after = status(site)
        assert versions(site) == {VERSION}
        assert pids.keys() == site.workers().keys()
        assert not set(pids.values()) & set(site.workers().values())
        for name in ("pid", "node_id", "start_s", "config_file", "run_dir", "shm", "routes"):
            assert before[name] == after[name], name
        assert after["change"] == ""
        assert after["uptime_s"] > before["uptime_s"]
        other = make_program(tmp_path, version=NEXT_VERSION)
        assert order(site.pid, "upgrade", "--to", str(other))["version"] == NEXT_VERSION
        assert versions(site) == {NEXT_VERSION}

    assert order_meanwhile(tmp_path, transport, upgrade).problems == []


@pytest.mark.parametrize(
    ("transport", "fault", "why"),
    [
        pytest.param("lbtrm", other_program.BAD_PORTAL, BAD, id="lbtrm"),
        pytest.param("tcp", other_program.BAD_PORTAL, BAD, id="tcp", marks=pytest.mark.long),
        pytest.param("lbtrm", other_program.DYING_PORTAL, DYING, id="dies-later"),
    ],
)
def test_an_upgrade_that_fails_at_a_portal_goes_back_and_nothing_is_lost(
    tmp_path: Path, transport: str, fault: str, why: str
) -> None:
    def upgrade(site: Site) -> None:
        before = versions(site)
        done = tnwgdctl(site.pid, "upgrade", "--to", str(make_program(tmp_path, fault)))
        assert done.returncode == 1
        assert f"P2 of the new version {why}" in done.stderr
        assert versions(site) == before
        assert status(site)["change"] == ""
        assert "upgrade has failed" in site.log
        order(site.pid, "portal", "restart", "P1")

    assert order_meanwhile(tmp_path, transport, upgrade).problems == []


def test_an_upgrade_that_fails_at_a_portal_goes_back_when_what_was_left_of_the_former_version_is_killed(
    tmp_path: Path,
) -> None:
    """The portal is away until the program was executed again; the others lose nothing."""

    def upgrade(site: Site) -> None:
        before = versions(site)
        first = begin(site.pid, "upgrade", "--to", str(make_program(tmp_path, other_program.SLOWLY_BAD_PORTAL)))
        with first:
            site.wait(lambda: "upgrade begins" in site.log, "the exec")
            site.wait(lambda: "DRO is taken over" in site.log, "the other program")
            site.kill("tnwgd-former")
            assert ended(first) == 1
        assert versions(site) == before
        assert "cannot start a process worker=P2" in site.log

    problems = order_meanwhile(tmp_path, "lbtrm", upgrade).problems
    assert problems == [problem for problem in problems if problem.startswith("TRD 2")]
    assert all(problem.endswith(" 0 doubled, 0 out of order") for problem in problems), problems


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (other_program.LAYOUT, f"version {VERSION} cannot take over: versions"),
        (
            other_program.MUTE,
            "the program does not start, or is too old to take over: SystemExit: no module named anything",
        ),
        (other_program.CANNOT_ADOPT, f"{VERSION} cannot take over: no room for it"),
    ],
    ids=["layout", "mute", "cannot-adopt"],
)
def test_a_version_that_cannot_take_over_changes_nothing(tmp_path: Path, fault: str, why: str) -> None:
    def upgrade(site: Site) -> None:
        before, pids = versions(site), site.workers()
        done = tnwgdctl(site.pid, "upgrade", "--to", str(make_program(tmp_path, fault)))
        assert done.returncode == 1
        assert why in done.stderr
        assert (versions(site), site.workers()) == (before, pids)

    assert order_meanwhile(tmp_path, "lbtrm", upgrade).problems == []


def test_what_an_upgrade_refuses(tmp_path: Path) -> None:
    with running(SiteOfItsOwn(tmp_path, 2)) as site:
        config = site.folder / "dro.xml"
        text = config.read_text()
        pids = site.workers()

        def refused(*words: str) -> str:
            done = tnwgdctl(site.pid, "upgrade", *words)
            assert done.returncode == 1, done
            return done.stderr

        assert "is no program that this user can run" in refused("--to", str(tmp_path / "nothing"))
        config.write_text(text.replace("<name>P1</name>", "<name>P1</name>\n      <cost>7</cost>"))
        assert "is not what is in force: P1 would be changed; tnwgdctl reload first" in refused()
        config.write_text(text)
        order(site.pid, "portal", "pause", "P2")
        first = begin(site.pid, "upgrade", "--to", str(make_program(tmp_path)))
        site.wait(lambda: "command=upgrade uid" in site.log.rpartition('command="portal pause"')[2], "the order")
        assert "the configuration is being changed: upgrade" in refused()
        assert ended(first) == 0
        assert {worker["name"]: worker["state"] for worker in status(site)["workers"]}["P2"] == "paused"
        order(site.pid, "portal", "resume", "P2")
        assert versions(site) == {VERSION}
        assert pids["P1"] != site.worker("P1")


@pytest.mark.parametrize("who", ["the DRO", "P1"])
def test_who_ends_while_the_process_becomes_the_other_program(tmp_path: Path, who: str) -> None:
    """A worker that dies is started anew; the DRO that is told to stop ends in good order."""
    with running(SiteOfItsOwn(tmp_path, 2)) as site:
        first = begin(site.pid, "upgrade", "--to", str(make_program(tmp_path)))
        site.wait(lambda: "upgrade begins" in site.log, "the exec")
        site.wait(lambda: b"--take-over" in Path(f"/proc/{site.pid}/cmdline").read_bytes(), "the other program")
        if who == "the DRO":
            pid = site.pid
            os.kill(pid, signal.SIGTERM)
            assert site.daemon is not None
            assert site.daemon.wait(60) == 0
            site.daemon = None
            assert site.leftovers(pid) == []
            ended(first)
        else:
            site.kill(who)
            assert ended(first) == 0
            assert versions(site) == {VERSION}
            assert 'worker=P1 incarnation=2 cause="killed by SIGKILL"' in site.log


def test_a_program_that_was_overwritten_is_no_way_back_and_the_next_upgrade_mends_all(tmp_path: Path) -> None:
    with running(SiteOfItsOwn(tmp_path, 3)) as site:
        python = make_program(tmp_path)
        order(site.pid, "upgrade", "--to", str(python))
        overwrite(python, other_program.BAD_PORTAL)
        done = tnwgdctl(site.pid, "upgrade")
        assert done.returncode == 1
        assert "P2 does not like the new version; the former program is not there any more" in done.stderr
        found = status(site)
        assert (found["version"], found["change"]) == (NEXT_VERSION, "")
        states = {worker["name"]: (worker["version"], worker["state"]) for worker in found["workers"]}
        former = (VERSION, "ready")
        assert (states["P1"], states["P2"], states["P3"]) == ((NEXT_VERSION, "ready"), former, former)
        overwrite(python)
        order(site.pid, "upgrade")
        assert versions(site) == {NEXT_VERSION}
