"""The record of what tests reach: lines are covered by few tests, and what a test starts counts as its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from tests import reached
from tests.reached import Reached, choose, digest, read_lines

DRO = "tests/daemon/test_whole.py::"
LINES = st.dictionaries(
    st.sampled_from(["dro.a", "dro.b"]),
    st.dictionaries(st.sampled_from(["x", "y", f"{DRO}v", f"{DRO}w"]), st.integers(0, 255)),
)


@hypothesis.given(LINES, st.integers(0, 3))
def test_the_chosen_run_every_line_that_any_test_runs(lines: dict[str, dict[str, int]], most: int) -> None:
    every, chosen = choose(lines, {}, most)
    assert len(every) <= most
    assert all(test.startswith(DRO) for test in every)
    for module, tests in lines.items():
        ran, covered = 0, 0
        for test, bits in tests.items():
            ran |= bits
            covered |= bits * (test in every or test in chosen[module])
        assert covered == ran
        assert all(tests[test] for test in chosen[module])


def test_the_cheapest_for_its_lines_is_chosen() -> None:
    whole = {f"{DRO}long": (1 << 40) - 1, f"{DRO}short": (1 << 39) - 1}
    lines = {"dro.a": whole, "dro.b": {"x": 0b111, "y": 0b1110, f"{DRO}long": 0b11}}
    seconds = {f"{DRO}long": 20.0, f"{DRO}short": 4.0, "x": 1.0, "y": 1.0}
    assert choose(lines, seconds, 1) == ([f"{DRO}short"], {"dro.a": [], "dro.b": ["x", "y"]})
    assert choose(lines, seconds | {f"{DRO}long": 4.0}, 1) == ([f"{DRO}long"], {"dro.a": [], "dro.b": ["y"]})


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = Reached("2026-01-02", frozenset(("tests/a.py",)), ("x",), {"dro.a": ("y", "x")}, {"dro.a": "12"})
    record.write(tmp_path / "record")
    read = Reached.read(tmp_path / "record")
    assert read.tests_of(["dro.a", "dro.unknown"]) == {"x", "y"}
    assert (read.date, read.modules, dict(read.digests)) == (record.date, record.modules, record.digests)


def test_a_record_that_is_old_is_said_to_be(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / f"{name}.py").write_text(name)
    record = Reached("2026-01-02", digests={name: digest(tmp_path, name) for name in "abcd"})
    (tmp_path / "a.py").write_text("other")
    assert record.age(tmp_path) == ""
    (tmp_path / "b.py").unlink()
    assert record.age(tmp_path) == "50% of the modules differ from the record of 2026-01-02: make reached"
    assert Reached().age(tmp_path) == "no record of what tests with processes reach: make reached"


def test_the_record_of_this_tree_is_there() -> None:
    record = Reached.read()
    assert 0 < len(record.every) <= reached.EVERY
    assert {test.partition("::")[0] for test in record.every} <= record.modules


TEST = """
import os, subprocess, sys
def test_fork():
    if not (pid := os.fork()):
        import product.forked
        os._exit(0)
    os.waitpid(pid, 0)
def test_program():
    subprocess.run([sys.executable, "-c", "import product.started"], check=True)
def test_neither():
    import product.imported
"""


@pytest.mark.slow
def test_a_fork_and_a_program_belong_to_their_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("forked", "started", "imported"):
        (tmp_path / "product").mkdir(exist_ok=True)
        (tmp_path / f"product/{name}.py").write_text("x = 1\n")
    (tmp_path / "test_it.py").write_text(TEST)
    (tmp_path / "rc").write_text(f"[run]\nparallel = true\nsource = product\ndata_file = {tmp_path}/data\n"
                                 "patch = subprocess, fork, _exit\n")  # fmt: skip
    environment = {
        "PYTHONPATH": f"{tmp_path}:{reached.ROOT}",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "",
    }
    command = [
        sys.executable,
        "-m",
        "coverage",
        "run",
        f"--rcfile={tmp_path}/rc",
        "-m",
        "pytest",
        "-p",
        "tests.reached",
    ]
    subprocess.run([*command, "test_it.py"], cwd=tmp_path, check=True, env=os.environ | environment)
    monkeypatch.setattr(reached, "ROOT", tmp_path)
    assert {module: list(tests) for module, tests in read_lines(tmp_path).items()} == {
        "product.forked": ["test_it.py::test_fork"],
        "product.imported": ["test_it.py::test_neither"],
        "product.started": ["test_it.py::test_program"],
    }
    seconds = json.loads(next(tmp_path.glob("seconds-*.json")).read_text())
    assert set(seconds) == {f"test_it.py::test_{name}" for name in ("fork", "program", "neither")}
