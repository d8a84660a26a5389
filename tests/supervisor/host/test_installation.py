"""Another distribution with a package `supervisor` in the same environment does not go unnoticed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from dro.command_line import conflicting_distribution
from supervisor.tools.doctor import host as doctor_host
from supervisor.tools.doctor.check import Status
from tests.rigs.site import ROOT, Site


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """A folder in which it is installed."""
    info = tmp_path / "supervisor-4.2.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: supervisor\nVersion: 4.2.5\n")
    return tmp_path


def test_the_version_and_the_start_name_it(other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(other))
    argv = [sys.executable, "-m", "supervisor.main", "--version"]
    shown = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "the distribution supervisor 4.2.5 is installed here" in shown
    with closing(Site(tmp_path, 2)) as site:
        site.start()
        (line,) = [line for line in site.log.splitlines() if "the package supervisor is shared" in line]
        assert "[warning]" in line
        assert "supervisor 4.2.5" in line


def test_the_doctor_fails(other: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (conflicting_distribution(), list(doctor_host.installation())) == ("", [])
    monkeypatch.syspath_prepend(other)
    (check,) = doctor_host.installation()
    assert (check.status, "supervisor 4.2.5" in check.what) == (Status.FAIL, True)
