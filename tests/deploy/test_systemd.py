"""The units for systemd: that it takes them without a warning, and how much they may do."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.rigs.site import ROOT

UNITS = sorted(path for path in (ROOT / "deploy" / "systemd").iterdir() if path.is_file())
SERVICES = [path for path in UNITS if path.suffix == ".service"]
EXPOSURE_MAX = 3.0

pytestmark = pytest.mark.systemd


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for path in UNITS:
        (tmp_path / path.name).write_text(re.sub(r"=/usr/bin/(tnwgd|lbmrd|umsrs)\S*", "=/bin/true", path.read_text()))
    argv = ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("path", SERVICES, ids=lambda path: path.name)
def test_exposure(path: Path) -> None:
    argv = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    rating = re.search(r"Overall exposure level for \S+: (\d+\.\d)", done.stdout)
    assert rating is not None
    assert float(rating[1]) < EXPOSURE_MAX
    kind = "the units of the history" if path.stem.startswith("tnwgd-history") else path.name
    assert re.search(rf"`?{re.escape(kind)}`? {rating[1]}", (ROOT / "docs" / "systemd.md").read_text())
