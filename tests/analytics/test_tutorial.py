"""The tutorial is true to the letter: its commands run in order, as a newcomer gives them, and print what it shows.

It lies here for the Spark session that the tests of this folder share: the programs of `analytics` run in it. All
others run in a shell, in namespaces of their own, so that the fixed ports and names of the tutorial meet nobody else's.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
TUTORIAL: Final = (ROOT / "docs/tutorial.md").read_text()
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
APART: Final = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
ALONE: Final = "mount -t tmpfs tmpfs /dev/shm && ip link set lo up && "
DONE: Final = "--- done"


def steps() -> Iterator[tuple[str, str]]:
    """Commands of the tutorial with the output that it shows, and its pages, as commands that fetch them."""
    for block, page in re.findall(r"```console\n(.*?)```|<(http://[^>]+)>", TUTORIAL, re.DOTALL):
        if page:
            yield f"curl -fsS -o /dev/null '{page}'", ""
        yield from re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE)


def matcher(shown: str) -> re.Pattern[str]:
    """Make a pattern of output that is shown so: `...` is anything in a line, and as a line any lines."""
    lines = [
        r"(?:.*\n)*" if line == "..." else ".*".join(map(re.escape, blanks(line).split("..."))) + r"\n"
        for line in shown.splitlines()
    ]
    return re.compile("".join(lines))


def blanks(line: str) -> str:
    """A line whose columns are one blank apart, however wide they are."""
    return re.sub(" +", " ", line.rstrip())


class Shell:
    """A shell with what a newcomer has after step 1."""

    def __init__(self, folder: Path) -> None:
        argv = ["bash"]
        for rights in ([], ["--user", "--map-root-user"]):
            apart = ["unshare", *rights, *APART, "sh", "-c"]
            if subprocess.run([*apart, f"{ALONE} true"], capture_output=True, check=False).returncode == 0:
                argv = [*apart, f"{ALONE} exec bash"]
                break
        self._run = tempfile.TemporaryDirectory(prefix="dro-t-")  # short: sockets live in it
        env = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_RUNTIME_DIR": self._run.name,
        }
        self._bash = subprocess.Popen(
            argv, cwd=folder, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.run("set -m")  # each command is a job with a process group of its own, as on a terminal

    def run(self, command: str) -> str:
        """Run a command to its end; what it printed."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._bash.stdin.write(f'{command}\necho "{DONE}"\n')
        self._bash.stdin.flush()
        lines: list[str] = []
        for line in self._bash.stdout:
            if line.startswith(DONE):
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"the shell has ended: {command}\n{''.join(lines)}")

    def close(self) -> None:
        """End it and what it runs, also when a command of it goes on for ever."""
        try:
            self._bash.communicate("kill $(jobs -p) 2> /dev/null; wait\n", timeout=60)
        except subprocess.TimeoutExpired:
            self._bash.kill()
            self._bash.communicate()
        self._run.cleanup()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    one = Shell(tmp_path)
    yield one
    one.close()


def analyse(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return what a program of `analytics` prints, run in this process; Spark has been started in another directory."""
    program, *arguments = shlex.split(command)
    arguments = [str(folder / one) if (folder / one).exists() else one for one in arguments]
    module, _, function = PROJECT["scripts"][program].partition(":")
    assert getattr(importlib.import_module(module), function)(arguments) == 0
    captured = capsys.readouterr()
    return captured.err + captured.out


@pytest.mark.slow
@pytest.mark.timeout(600)  # thirty programs one after another; a busy machine is five times as slow
@pytest.mark.usefixtures("spark")
def test_every_command_prints_what_the_tutorial_shows(
    tmp_path: Path, shell: Shell, capsys: pytest.CaptureFixture[str]
) -> None:
    of_analytics = [name for name, entry in PROJECT["scripts"].items() if entry.startswith("analytics.")]
    for command, shown in steps():
        is_of_analytics = command.split()[0] in of_analytics
        printed = analyse(command, tmp_path, capsys) if is_of_analytics else shell.run(command)
        printed = "".join(f"{blanks(line)}\n" for line in printed.splitlines())
        assert matcher(shown).fullmatch(printed), f"$ {command}\n{printed}--- is not:\n{shown}"


def test_what_is_installed_first_is_there_to_install() -> None:
    """The other blocks need a package index; they name no extra that is not there."""
    wanted = re.findall(r"^make .*venv EXTRAS=(\w+)$", TUTORIAL, re.MULTILINE)
    assert wanted == ["history", "analytics"]
    assert set(wanted) <= PROJECT["optional-dependencies"].keys()
