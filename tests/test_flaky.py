"""In continuous integration a test with processes that fails once runs again by itself; nothing else does."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.flaky import MOST, TIMES
from tests.rigs import project
from tests.rigs.project import WITH_WORKERS

PROCESSES: Final = "tests/daemon/test_of_luck.py"
FAST: Final = "tests/proto/test_of_luck.py"
ALWAYS: Final = "def test_luck(): assert 0, 'no luck at all'\n"
GOOD: Final = "def test_good(): pass\n"


def fails(*runs: int) -> str:
    """Write a test that fails in these runs of it, the first being 1, and counts them in a file."""
    return f"""
import pathlib
def test_luck():
    file = pathlib.Path(__file__).with_suffix(".runs")
    run = len(file.read_text()) + 1 if file.exists() else 1
    file.write_text("x" * run)
    assert run not in {runs}, f"bad luck in run {{run}}"
"""


def run(folder: Path, tests: Mapping[str, str], *options: str, ci: str = "true") -> tuple[int, str]:
    return project.run(folder, "tests.flaky", tests, "-q", *options, ci=ci)


def runs_of(folder: Path) -> int:
    return len((folder / PROCESSES).with_suffix(".runs").read_text())


@pytest.mark.parametrize("options", [(), WITH_WORKERS])
def test_one_failure_in_four_runs_is_flaky(tmp_path: Path, options: tuple[str, ...]) -> None:
    status, said = run(tmp_path, {PROCESSES: fails(1) + GOOD, FAST: GOOD}, *options)
    assert status == 0, said
    log = tmp_path / "build/flaky/1-tests-daemon-test_of_luck-py-test_luck.txt"
    assert said.splitlines()[-2] == (
        f"FLAKY {PROCESSES}::test_luck: failed once, passed {TIMES} times by itself; first failure: {log}"
    )
    assert "2 passed, 1 flaky" in said.splitlines()[-1]
    assert runs_of(tmp_path) == 1 + TIMES
    for text in (said, log.read_text()):
        assert "bad luck in run 1" in text
        assert "call began at " in text
        assert "/proc/loadavg: " in text
        assert f"{sys.executable} -m pytest" in text  # among the processes


def test_what_a_failed_test_left_open_does_not_fail_a_later_one(tmp_path: Path) -> None:
    """Also when it is collected only then, and when it hangs in what was raised while another error was handled."""
    left = """
import gc
def test_left():
    cycle = [open(__file__)]
    cycle.append(cycle)
    try:
        raise ValueError("the first")
    except ValueError:
        assert cycle == "the second"
def test_later(): gc.collect()
"""
    _, said = run(tmp_path, {FAST: left}, "-W", "error", "-p", "no:randomly", ci="")
    assert "1 failed, 1 passed" in said.splitlines()[-1], said


@pytest.mark.parametrize("again", [2, 3, 4])
def test_a_second_failure_fails_the_run(tmp_path: Path, again: int) -> None:
    status, said = run(tmp_path, {PROCESSES: fails(1, again), FAST: GOOD})
    assert status == 1, said
    assert f"FAILED {PROCESSES}::test_luck again, at attempt {again - 1} of {TIMES} by itself: " in said
    assert "FLAKY" not in said
    assert "1 failed, 1 passed" in said
    assert "bad luck in run 1" in said
    assert runs_of(tmp_path) == again


def test_a_failure_in_another_lane_fails_the_run(tmp_path: Path) -> None:
    status, said = run(tmp_path, {PROCESSES: fails(1), FAST: ALWAYS})
    assert status == 1, said
    assert f"FLAKY {PROCESSES}::test_luck" in said
    assert "1 failed, 1 flaky" in said
    assert "no luck at all" in said


def test_a_lane_without_processes_has_one_run(tmp_path: Path) -> None:
    status, said = run(tmp_path, {PROCESSES: GOOD, FAST: fails(1)})
    assert status == 1, said
    assert "FLAKY" not in said
    assert len((tmp_path / FAST).with_suffix(".runs").read_text()) == 1


def test_a_module_that_cannot_be_imported_fails_the_run(tmp_path: Path) -> None:
    status, said = run(tmp_path, {PROCESSES: fails(1), FAST: "import nothing_of_that_name"})
    assert status != 0, said
    assert "nothing_of_that_name" in said


@pytest.mark.parametrize("where", ["setup", "teardown", "end of the worker"])
def test_what_is_around_a_test_belongs_to_it(tmp_path: Path, where: str) -> None:
    """An error of a fixture, and the end of the process that runs the test, are failures like others."""
    text = fails(1).replace("def test_luck():", "def check():")
    text += {
        "setup": "import pytest\n@pytest.fixture\ndef wire(): check()\ndef test_luck(wire): pass\n",
        "teardown": "import pytest\n@pytest.fixture\ndef wire():\n    yield\n    check()\ndef test_luck(wire): pass\n",
        "end of the worker": "import os\ndef test_luck():\n    try: check()\n    except AssertionError: os._exit(3)\n",
    }[where]
    status, said = run(tmp_path, {PROCESSES: text, FAST: GOOD}, *WITH_WORKERS)
    assert status == 0, said
    assert f"FLAKY {PROCESSES}::test_luck" in said


def test_many_failures_are_no_bad_luck(tmp_path: Path) -> None:
    many = "".join(f"def test_luck_{nth}(): assert 0\n" for nth in range(MOST + 1))
    status, said = run(tmp_path, {PROCESSES: many})
    assert status == 1, said
    assert f"{MOST + 1} tests with processes failed: more than {MOST} do not run again" in said


@pytest.mark.parametrize("ci", ["", "false"])
def test_people_get_a_strict_run(tmp_path: Path, ci: str) -> None:
    status, said = run(tmp_path, {PROCESSES: fails(1)}, ci=ci)
    assert status == 1, said
    assert "/proc/loadavg: " in said
    assert runs_of(tmp_path) == 1
