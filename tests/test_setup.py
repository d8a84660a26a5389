"""What is compiled at the set-up: with a count, once, anew where it was cut off, and not at all without a compiler."""

from __future__ import annotations

import runpy
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from setuptools import Distribution, Extension

from tests.test_layers import ROOT

MODULE = "#include <Python.h>\nPyMODINIT_FUNC PyInit_tiny(void) { return NULL; }\n"


@pytest.fixture(scope="module")
def packaging() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "setup.py"), run_name="setup")


def test_without_a_compiler_it_is_said_what_is_missing_and_nothing_is_compiled(
    packaging: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "no-such-cc -pthread")
    assert packaging["steps"]() == []
    shown = capsys.readouterr().out
    assert shown == "not compiled, so the router runs in plain Python, which is slower: no C compiler (no-such-cc)\n"
    monkeypatch.setattr(sysconfig, "get_path", lambda name: "/nowhere")
    assert packaging["missing"]() == "C compiler (no-such-cc) and no /nowhere/Python.h (package python3-dev)"


def test_packages_alone_are_installed_without_looking_for_a_compiler(
    packaging: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DRO_STEPS", "none")
    monkeypatch.setenv("CC", "no-such-cc")
    assert packaging["steps"]() == []
    assert capsys.readouterr().out == ""


def test_what_the_linker_did_not_finish_is_made_anew_and_the_rest_once(
    packaging: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if packaging["missing"]():
        pytest.skip(f"no {packaging['missing']()}")
    monkeypatch.chdir(tmp_path)
    Path("tiny.c").write_text(MODULE)

    def build() -> str:
        command = packaging["BuildSteps"](Distribution({"ext_modules": [Extension("tiny", ["tiny.c"])]}))
        command.ensure_finalized()
        command.run()
        return capsys.readouterr().out

    said = "compiled 1 of 1: tiny\n"
    assert said in build()
    [library] = Path("build").glob("lib*/tiny*.so")
    size, made_ns = library.stat().st_size, library.stat().st_mtime_ns
    assert said not in build()
    assert library.stat().st_mtime_ns == made_ns
    library.write_bytes(library.read_bytes()[:100])  # by a linker that was killed
    [mark] = Path("build").glob("temp*/tiny.whole")
    mark.unlink()
    assert said in build()
    assert library.stat().st_size == size
