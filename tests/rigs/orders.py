"""An operator's orders to a running `tnwgd`, given with the real `tnwgdctl`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Final, cast

from tests.rigs.loaded import Loaded, run

ROOT: Final = Path(__file__).parents[2]
LONGEST_S: Final = 200


def tnwgdctl(pid: int, *words: str) -> subprocess.CompletedProcess[str]:
    """Run to its end, whatever that is."""
    command = [sys.executable, "-m", "supervisor.tools.ctl.main", *words, "--dro", str(pid)]
    return run(command, cwd=ROOT, timeout=LONGEST_S)


def begin(pid: int, *words: str) -> subprocess.Popen[str]:
    """Start it and go on."""
    command = [sys.executable, "-m", "supervisor.tools.ctl.main", *words, "--dro", str(pid), "--json"]
    return Loaded(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def order(pid: int, *words: str) -> dict[str, object]:
    """Its JSON answer. Raises: AssertionError when it fails."""
    done = tnwgdctl(pid, *words, "--json")
    assert done.returncode == 0, f"tnwgdctl {' '.join(words)}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return cast(dict[str, object], json.loads(done.stdout))
