"""How another program is named, and how this one is run again."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dro.errors import RefusedError
from supervisor.upgrade.programs import command_of, own_command

RUN = ("-P", "-m", "supervisor.main")


def test_an_interpreter_or_the_folder_of_an_environment_is_named(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    assert command_of(str(tmp_path)) == command_of(str(python)) == (str(python), *RUN)


@pytest.mark.parametrize("place", ["relative/python", "{folder}", "{folder}/file", "{folder}/nothing"])
def test_what_is_no_program_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch(mode=0o600)
    with pytest.raises(RefusedError, match="is no program that this user can run"):
        command_of(place.format(folder=tmp_path))


@pytest.mark.parametrize(
    ("original", "arguments", "command"),
    [
        (["python3", "-m", "supervisor.main", "a.xml"], 1, ["-m", "supervisor.main"]),
        (["python3", "-P", "-m", "supervisor.main", "-f", "a.xml"], 2, ["-P", "-m", "supervisor.main"]),
        (["/opt/x/bin/python", "-sP", "/usr/bin/tnwgd", "a.xml"], 1, ["-sP", "/usr/bin/tnwgd"]),
        (["/opt/x/bin/python", "/usr/bin/tnwgd"], 0, ["/usr/bin/tnwgd"]),
    ],
)
def test_this_program_is_run_as_it_was(
    monkeypatch: pytest.MonkeyPatch, original: list[str], arguments: int, command: list[str]
) -> None:
    monkeypatch.setattr(sys, "orig_argv", original)
    monkeypatch.setattr(sys, "argv", ["program", *original[len(original) - arguments :]])
    assert own_command() == (sys.executable, *command)
