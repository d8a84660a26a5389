"""`make changed`: a change selects the tests that import it, through other modules too, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import changed as changed_tests
from tests.changed import main, reached_tests

FILES = {
    "dro/low.py": "TABLE = 'table.csv'",
    "dro/high.py": "from dro import low",
    "dro/other.py": "",
    "dro/data/table.csv": "a,b",
    "tests/fakes/wire.py": "def f():\n    from dro.high import x",
    "tests/a/conftest.py": "",
    "tests/a/test_high.py": "from tests.fakes.wire import f",
    "tests/a/test_low.py": "import dro.low",
    "tests/b/test_other.py": "from dro.other import x",
}


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("dro/low.py", ["tests/a/test_high.py", "tests/a/test_low.py"]),
        ("dro/high.py", ["tests/a/test_high.py"]),
        ("tests/fakes/wire.py", ["tests/a/test_high.py"]),
        ("tests/b/test_other.py", ["tests/b/test_other.py"]),
        ("dro/data/table.csv", ["tests/a/test_high.py", "tests/a/test_low.py"]),
        ("tests/a/conftest.py", ["tests/a/test_high.py", "tests/a/test_low.py"]),
        ("README.md", []),
        ("dro/removed.py", []),
    ],
)
def test_what_a_change_selects(tmp_path: Path, changed: str, tests: list[str]) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert reached_tests([changed], tmp_path) == tests


def test_a_base_that_is_no_commit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("no/such/commit") == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "no such commit, or none of this history: 'no/such/commit'; give BASE=...\n")


def test_no_difference_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(changed_tests, "changed_files", lambda base: [])
    assert main() == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("\n", "no test is reached by what differs from main\n")
