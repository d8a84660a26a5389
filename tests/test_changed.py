"""`make changed`: a change selects the tests that import it or are recorded as running it, and no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import changed as changed_tests
from tests.changed import Tree, main, reached_tests, reaches_delivery
from tests.lanes import LEFT_OUT
from tests.reached import Reached
from tests.rigs.project import ROOT, WITH_WORKERS, run

FILES = {
    "dro/low.py": "TABLE = 'table.csv'",
    "dro/high.py": "from dro import low",
    "dro/other.py": "",
    "dro/data/table.csv": "a,b",
    "deploy/man.py": "import dro.high",
    "tests/fakes/wire.py": "def f():\n    from dro.high import x",
    "tests/proto/conftest.py": "",
    "tests/proto/test_high.py": "from tests.fakes.wire import f",
    "tests/proto/test_low.py": "import dro.low",
    "tests/wire/test_other.py": "from dro.other import x",
    "tests/daemon/test_high.py": "import dro.high",
    "tests/daemon/test_whole.py": "from tests.rigs.site import run",
    "tests/daemon/test_new.py": "import dro.high",
    "tests/rigs/site.py": "import dro.other",
    "tests/deploy/test_man.py": "import deploy.man",
}
FAST_HIGH, FAST_LOW, FAST_OTHER = "tests/proto/test_high.py", "tests/proto/test_low.py", "tests/wire/test_other.py"
HIGH, WHOLE, NEW = "tests/daemon/test_high.py", "tests/daemon/test_whole.py", "tests/daemon/test_new.py"
DELIVERED = "tests/deploy/test_man.py"
SMOKE, OF_LOW = f"{WHOLE}::test_smoke", f"{WHOLE}::test_low[a-b]"
RECORD = Reached(
    "", frozenset((HIGH, WHOLE)), (SMOKE,), {"dro.low": (OF_LOW, f"{HIGH}::test_low"), "dro.high": (HIGH,)}
)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return Tree(tmp_path)


@pytest.mark.parametrize(
    ("changed", "tests"),
    [
        ("dro/low.py", [NEW, FAST_HIGH, FAST_LOW, f"{HIGH}::test_low", OF_LOW, SMOKE]),
        ("dro/data/table.csv", [NEW, FAST_HIGH, FAST_LOW, f"{HIGH}::test_low", OF_LOW, SMOKE]),
        ("dro/high.py", [HIGH, NEW, DELIVERED, FAST_HIGH, SMOKE]),
        ("dro/other.py", [WHOLE, FAST_OTHER]),
        ("tests/fakes/wire.py", [FAST_HIGH]),
        ("tests/rigs/site.py", [WHOLE]),
        (FAST_OTHER, [FAST_OTHER]),
        ("tests/proto/conftest.py", [FAST_HIGH, FAST_LOW]),
        ("deploy/man.py", [DELIVERED, SMOKE]),
        (DELIVERED, [DELIVERED]),
        ("README.md", []),
        ("dro/removed.py", []),
    ],
)
def test_what_a_change_selects(tree: Tree, changed: str, tests: list[str]) -> None:
    """Fast tests through all imports, others that import it by themselves, and those that are recorded."""
    assert reached_tests([changed], tree, RECORD) == tests


def test_without_a_record_imports_are_followed(tree: Tree) -> None:
    assert reached_tests(["dro/low.py"], tree, Reached()) == [HIGH, NEW, FAST_HIGH, FAST_LOW]


@pytest.mark.parametrize(
    ("changed", "is_reached"),
    [
        ("deploy/man.py", True), ("docs/new.md", True), ("pyproject.toml", True), (DELIVERED, True),
        ("dro/high.py", True), ("dro/low.py", False), ("dro/other.py", False), (FAST_HIGH, False), (WHOLE, False),
    ],
)  # fmt: skip
def test_what_reaches_the_delivery(tree: Tree, changed: str, is_reached: bool) -> None:
    """The delivery, its tests, and what it imports by itself reach it."""
    assert reaches_delivery([changed], tree.root) == is_reached


def test_a_base_that_is_no_commit_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("no/such/commit") == 1
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "no such commit, or none of this history: 'no/such/commit'; give BASE=...\n")


def test_no_difference_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(changed_tests, "changed_files", lambda base: [])
    monkeypatch.setattr(changed_tests, "EVERY", ())
    monkeypatch.setattr(Reached, "age", lambda reached: "")
    assert main() == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("\n", "no test is reached by what differs from main\n")


@pytest.mark.parametrize("options", [(), WITH_WORKERS])
@pytest.mark.parametrize(
    ("asked", "ci", "is_run"),
    [((), "", False), ((), "true", True), (("--lane", "delivery"), "", True), (("tests/deploy",), "", True)],
)
def test_the_delivery_is_left_out_of_a_whole_run_alone(
    tmp_path: Path, asked: tuple[str, ...], ci: str, is_run: bool, options: tuple[str, ...]
) -> None:
    """Nobody who asks for it, and no run in continuous integration, goes without."""
    files = {
        "tests/conftest.py": "import tests.lanes\ntests.lanes._delivers = lambda: False\n",
        "tests/proto/test_it.py": "def test_proto(): pass\n",
        "tests/deploy/test_it.py": "def test_deploy(): pass\n",
    }
    status, said = run(tmp_path, "tests.lanes", files, *asked, *options, "-q", "-rp", ci=ci)
    assert status == 0, said
    assert ("test_deploy" in said) == is_run
    assert ("test_proto" in said) == (not asked)
    assert (LEFT_OUT in said) == (not is_run)


@pytest.mark.parametrize("options", [(), WITH_WORKERS])
def test_a_whole_run_names_modules_that_need_less_than_their_lane_has(tmp_path: Path, options: tuple[str, ...]) -> None:
    files = {
        "tests/daemon/test_idle.py": "def test_it(): pass\n",
        "tests/netns/test_busy.py": "import subprocess\ndef test_it(): subprocess.run(['true'])\n",
        "tests/network/test_bound.py": "import socket\ndef test_it(): socket.socket().bind(('127.0.0.1', 0))\n",
        "tests/proto/test_fast.py": "def test_it(): pass\n",
    }
    status, said = run(tmp_path, "tests.lanes", files, *options, "-q", "-W", "ignore", ci="true")
    assert status == 0, said
    named = [line for line in said.splitlines() if "permits, and no more" in line]
    assert named == ["tests/daemon/test_idle.py does what the lane fast permits, and no more"]


def test_a_program_may_know_the_lanes_before_it_starts_pytest() -> None:
    """Import the lanes first, as the program of the mutants does."""
    script = "import sys, pytest, tests.lanes; sys.exit(pytest.main(['-q', '--collect-only', 'tests/test_table.py']))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
