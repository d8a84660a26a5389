"""One DRO per configuration file and per name on a host: what counts as the same, and what strangers can do."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from dro.errors import ResourceError
from supervisor.host import single_instance
from supervisor.host.single_instance import ClaimHolder, InstanceClaim, InstanceLocks, claims_of, holder_of
from tests.rigs.loaded import run
from tests.rigs.site import ROOT, Site

LOG = logging.getLogger("test")
ME = os.getuid()
STRANGER = ME + 4711


@pytest.fixture
def claim() -> InstanceClaim:
    return InstanceClaim(f"test {secrets.token_hex(8)}", "the thing")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, 2)
    yield made
    made.close()


def test_a_claim_is_held_by_one_process_until_it_lets_go(claim: InstanceClaim) -> None:
    with closing(InstanceLocks(LOG)) as first, closing(InstanceLocks(LOG)) as second:
        first.take([claim], {ME}, lambda: False)
        assert holder_of(claim) == ClaimHolder(os.getpid(), ME)
        with pytest.raises(ResourceError, match=f"the thing is in use: process {os.getpid()} runs that DRO"):
            second.take([claim], {ME}, lambda: False)
        first.close()
        assert holder_of(claim) is None
        second.take([claim], {ME}, lambda: False)
        assert holder_of(claim) is not None


def test_a_forked_process_that_lets_go_leaves_it_to_its_parent(claim: InstanceClaim) -> None:
    with closing(InstanceLocks(LOG)) as locks:
        locks.take([claim], {ME}, lambda: False)
        pid = os.fork()
        if pid == 0:
            locks.close()
            os._exit(0)
        os.waitpid(pid, 0)
        assert holder_of(claim) == ClaimHolder(os.getpid(), ME)


def test_workers_of_a_killed_parent_are_waited_for(claim: InstanceClaim, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is just being forked still has the socket; the process that took the claim has ended."""
    with closing(InstanceLocks(LOG)) as worker, closing(InstanceLocks(LOG)) as successor:
        worker.take([claim], {ME}, lambda: False)
        asked: list[int] = []

        def start_time_of(pid: int) -> None:
            asked.append(pid)
            if len(asked) == 3:
                worker.close()

        monkeypatch.setattr(single_instance, "start_time_of", start_time_of)
        successor.take([claim], {ME}, lambda: False)
        assert asked == [os.getpid()] * 3
        assert holder_of(claim) == ClaimHolder(os.getpid(), ME)
        with closing(InstanceLocks(LOG)) as cancelled:
            cancelled.take([claim], {ME}, lambda: True)


def test_a_killed_process_that_is_still_there_is_waited_for(claim: InstanceClaim) -> None:
    """It looks as ever until the system has ended it."""
    with closing(InstanceLocks(LOG)) as killed, closing(InstanceLocks(LOG)) as successor:
        killed.take([claim], {ME}, lambda: False)
        asked: list[int] = []

        def is_cancelled() -> bool:
            asked.append(1)
            if len(asked) == 3:
                killed.close()
            return False

        successor.take([claim], {ME}, is_cancelled)
        assert len(asked) == 3
        assert holder_of(claim) == ClaimHolder(os.getpid(), ME)


@pytest.mark.parametrize("listens", [True, False])
def test_a_stranger_keeps_no_dro_from_starting(
    claim: InstanceClaim, listens: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does a full queue, or a socket that does not even listen."""
    monkeypatch.setattr(single_instance, "holder_of", lambda _: ClaimHolder(1, STRANGER) if listens else None)
    with closing(InstanceLocks(LOG)) as locks, socket.socket(socket.AF_UNIX) as blocker:
        blocker.bind(claim.address)
        locks.take([claim], {ME}, lambda: False)
    assert "another user's process claims" in caplog.text


def test_a_socket_that_does_not_answer_is_no_dro(claim: InstanceClaim) -> None:
    with socket.socket(socket.AF_UNIX) as blocker, socket.socket(socket.AF_UNIX) as waiting:
        blocker.bind(claim.address)
        blocker.listen(0)
        waiting.connect(claim.address)
        assert holder_of(claim) == ClaimHolder(0, -1)


def test_a_file_is_the_same_by_any_way_and_after_an_edit(tmp_path: Path) -> None:
    path, link = tmp_path / "dro.xml", tmp_path / "link.xml"
    path.write_text("old")
    link.symlink_to(path)
    before = claims_of(str(path), "")
    assert claims_of(str(link), "") == claims_of(os.path.relpath(path), "") == before
    (tmp_path / "new").write_text("new")
    (tmp_path / "new").rename(path)
    assert claims_of(str(path), "") == before
    assert claims_of(str(tmp_path / "other.xml"), "") != before


def test_a_dro_without_a_name_has_only_its_file() -> None:
    assert [claim.what for claim in claims_of("/x.xml", "")] == ["the configuration file /x.xml"]
    assert [claim.what for claim in claims_of("/x.xml", "D")] == ["the configuration file /x.xml", "the DRO name D"]


def refused(site: Site, config: Path, *options: str) -> str:
    argv = [sys.executable, "-m", "supervisor.main", *options, str(config)]
    done = run(argv, cwd=ROOT, timeout=120)
    assert done.returncode == 1
    return done.stdout + done.stderr


def test_the_same_configuration_or_name_is_not_started_twice(site: Site) -> None:
    """Whatever else differs; the doctor sees both, and the end of the first makes room."""
    site.start()
    config = site.folder / "dro.xml"
    elsewhere = site.folder / "elsewhere.xml"
    elsewhere.write_text(config.read_text())
    by_name = f"the DRO name {site.name} is in use: process {site.pid} "
    by_file = f"the configuration file {config} is in use: process {site.pid} "
    assert by_file in refused(site, config, "--run-dir", str(site.folder / "run2"))
    assert by_name in refused(site, elsewhere)
    config.write_text(config.read_text().replace(site.name, f"{site.name}b"))
    assert by_file in refused(site, config)
    argv = [sys.executable, "-m", "supervisor.tools.ctl.main", "doctor", str(elsewhere)]
    doctor = run(argv, cwd=ROOT, timeout=120)
    assert f"fail  other DROs: {by_name}" in doctor.stdout
    assert doctor.returncode != 0
    assert site.daemon is not None
    site.daemon.kill()
    site.daemon.wait()
    site.start()
