"""What the guide to migration says to type works, and does what it says."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import PIPE, Popen

import pytest

from supervisor.main import main
from tests.builders.guide_blocks import blocks
from tests.network.plans import PAIR
from tests.rigs.loaded import Loaded
from tests.rigs.network import Plan

GUIDE = "migration.md"
PROGRAMS = {"tnwgd": "supervisor.main", "tnwgdctl": "supervisor.tools.ctl.main"}


@pytest.mark.slow
def test_a_configuration_is_checked_as_the_guide_says(tmp_path: Path) -> None:
    plan = Plan(tmp_path, PAIR)
    for dro, name in (("A", "west"), ("B", "east")):
        plan.file(dro).rename(tmp_path / f"{name}.xml")
    (script,) = blocks(GUIDE, "Check a configuration", "sh")
    out = ""
    try:
        for line in script.splitlines():
            command, _, file = line.partition(" > ")
            program, *arguments = command.split()
            started: Popen[bytes] = Loaded(
                [sys.executable, "-m", PROGRAMS[program], *arguments], cwd=tmp_path, stdout=PIPE, stderr=PIPE
            )
            answer, told = (text.decode() for text in started.communicate(timeout=240))
            assert started.returncode == 0, (line, answer, told)
            out += told if file else answer + told
            if file:
                (tmp_path / file).write_text(answer)
    finally:
        plan.close()
    assert "west.xml: no errors\n" in out
    assert "all that must hold did" in out
    assert "<tnw-gateway" in (tmp_path / "west.effective.xml").read_text()


def test_the_move_by_costs_loses_nothing_in_the_simulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (network,), (script,) = (blocks(GUIDE, "Beside each other, by costs", kind) for kind in ("json", "text"))
    (tmp_path / "network.json").write_text(network)
    (tmp_path / "move").write_text(script)
    assert main(["simulate", "--script", str(tmp_path / "move"), str(tmp_path / "network.json")]) == 0
    out = capsys.readouterr().out
    table = out.partition("repeated  what\n")[2].partition("\n\n")[0].splitlines()
    columns = [line.split() for line in table]
    assert len(columns) == 8
    assert {row[3] for row in columns} == {"0"}, "lost"
    assert "NEW/N1 NEW/N2" in out
