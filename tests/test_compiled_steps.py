"""The compiled steps of the data path and their plain form: which one runs, and that they do the same."""

from __future__ import annotations

import importlib.machinery
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from dro.compiled_steps import STEPS, VIEWS, PlainSteps, form, is_current

ROOT = Path(__file__).parents[1]
SUFFIX = importlib.machinery.EXTENSION_SUFFIXES[0]


def run(*command: str, pure: bool, timeout_s: float = 300) -> str:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("DRO_PURE", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, text=True, capture_output=True, timeout=timeout_s,
        env=env | ({"DRO_PURE": "1"} if pure else {}),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def compiled() -> bool:
    return all((ROOT / f"{name.replace('.', '/')}{SUFFIX}").exists() for name in STEPS)


needs_compiled = pytest.mark.skipif(
    not compiled() and not (shutil.which("gcc") and Path(sysconfig.get_paths()["include"], "Python.h").exists()),
    reason="no C compiler or no header files of Python: the steps run as plain Python",
)


def test_every_module_with_types_for_the_compiler_is_a_step() -> None:
    typed = [
        path.relative_to(ROOT)
        for package in ("dro", "portals", "router")
        for path in (ROOT / package).rglob("*.pxd")
        if path.name != "system_calls.pxd"  # C for the steps
    ]
    assert sorted(".".join(path.with_suffix("").parts) for path in typed) == sorted(STEPS)


@needs_compiled
def test_where_there_is_a_compiler_the_compiled_form_runs() -> None:
    assert run("-c", LOADED, pure=False).split() == ["compiled"]
    assert run("-c", LOADED, pure=True) == "plain Python\n"


LOADED = f"import {', '.join(STEPS)}; from dro.compiled_steps import form; print(form())"


@needs_compiled
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_both_forms_make_the_same_of_random_batches(seed: int) -> None:
    plain, other = (run("-m", "tests.rigs.steps", str(seed), pure=pure) for pure in (True, False))
    assert plain.removeprefix("plain Python ") == other.removeprefix("compiled ")
    assert len(plain.removeprefix("plain Python ")) == 65


@needs_compiled
def test_messages_pass_through_all_steps_in_the_plain_form_too() -> None:
    """In the compiled form the suite runs these; both forms are the same lines."""
    network = "tests/network/test_delivery.py::test_everything_is_heard_once_and_in_order[pair-DROs]"
    tests = ["tests/transport/test_lbtrm.py", network]
    said = run("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *tests, pure=True)
    assert " passed" in said.splitlines()[-1]


def test_one_step_that_is_not_compiled_or_has_changed_makes_all_of_them_plain(tmp_path: Path) -> None:
    for name in STEPS:
        source = tmp_path / f"{name.replace('.', '/')}.py"
        source.parent.mkdir(parents=True, exist_ok=True)
        source.touch()
        os.utime(source, (1000, 1000))
        assert not is_current(tmp_path)
        source.with_suffix(SUFFIX).touch()
    assert not is_current(tmp_path), "without what they share"
    (tmp_path / f"{VIEWS.replace('.', '/')}{SUFFIX}").touch()
    assert is_current(tmp_path)
    os.utime(source, (1 << 32, 1 << 32))
    assert not is_current(tmp_path)
    spec = PlainSteps().find_spec(STEPS[-1], [str(source.parent)])
    assert spec is not None
    assert spec.origin == str(source)
    assert PlainSteps().find_spec("dro.sqn", [str(tmp_path)]) is None, "no step"


def test_in_an_installation_a_library_may_be_older_than_its_source(tmp_path: Path) -> None:
    """As pip leaves them: it writes files by name, and the list of them at the end."""
    for name in (*STEPS, VIEWS):
        source = tmp_path / f"{name.replace('.', '/')}.py"
        source.parent.mkdir(parents=True, exist_ok=True)
        for number, path in enumerate((source.with_suffix(SUFFIX), source)):
            path.touch()
            os.utime(path, (1000 + number, 1000 + number))
    assert not is_current(tmp_path)
    record = tmp_path / "open_dro-1.0.dist-info/RECORD"
    record.parent.mkdir()
    record.touch()
    os.utime(record, (1002, 1002))
    assert is_current(tmp_path)
    os.utime(tmp_path / "dro/timers.py", (1003, 1003))
    assert not is_current(tmp_path), "changed after it was installed"


def test_the_form_is_plain_if_any_step_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(STEPS):
        module = type(sys)(name)
        module.__file__ = f"/x/{number}{SUFFIX}"
        monkeypatch.setitem(sys.modules, name, module)
    assert form() == "compiled"
    monkeypatch.setattr(sys.modules[STEPS[2]], "__file__", "/x/2.py")
    assert form() == "plain Python"
