"""A portal decides the same in the process and in the simulator: what `tests/portals/scripts` says, line by line."""

from __future__ import annotations

from difflib import unified_diff
from pathlib import Path

import pytest

from tests.rigs.portal_hosts.play import PROCESS, SIMULATED, written_anew
from tests.rigs.portal_hosts.script import SCRIPTS


@pytest.mark.parametrize("host", [PROCESS, SIMULATED], ids=["process", "simulated"])
@pytest.mark.parametrize("script", sorted(SCRIPTS.glob("*.txt")), ids=lambda script: script.stem)
def test_cores_ask_for_what_the_script_says(script: Path, host: int) -> None:
    """`python -m tests.portals.scripts` writes a script anew; what has changed then are decisions."""
    lines = script.read_text().splitlines(), written_anew(script, host).splitlines()
    assert [*unified_diff(*lines, "written", "played", lineterm="", n=1)] == []
