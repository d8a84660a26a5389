"""Mutants are judged in copies by tests that pass there without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutation.__main__ import failing_without, judge
from tests.mutation.mutate import Mutant, mutants_of

PRODUCT = "def twice(n: int) -> int:\n    return 2 * n\n"
TESTS = """\
from product import twice

def test_it_is_twice(): assert twice(2) == 4
def test_nothing(): twice(2)
def test_what_is_not_here(): raise OSError
"""
NAMES = ["test_it.py::test_what_is_not_here", "test_it.py::test_nothing", "test_it.py::test_it_is_twice"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "product.py").write_text(PRODUCT)
    (tmp_path / "test_it.py").write_text(TESTS)
    return tmp_path


def mutant(after: str) -> Mutant:
    (found,) = [one for one in mutants_of(PRODUCT) if one.after == after]
    return found


def test_what_fails_without_a_mutant_is_named_and_notices_none(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing = failing_without(tree, NAMES)
    assert failing == NAMES[:1]
    assert capsys.readouterr().out == f"left out, since it fails in a copy without any mutant: {NAMES[0]}\n"
    verdict = judge(tree, "product.py", mutant("2 // n"), NAMES, failing, 60)
    assert (verdict.outcome, verdict.by) == ("killed", NAMES[2])
    assert judge(tree, "product.py", mutant("2 // n"), NAMES[:2], failing, 60).outcome == "lived"
    assert judge(tree, "product.py", mutant("2 // n"), NAMES[:1], failing, 60).outcome == "lived"
    assert (tree / "product.py").read_text() == PRODUCT
