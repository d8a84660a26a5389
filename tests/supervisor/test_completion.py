"""Shell completion: the files are those of the parsers, and a real bash completes with them."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

from deploy.completion.generate import FILE_NAMES, HERE, main, scripts

ROOT = Path(__file__).parents[2]
WORDS = """\
cd "$1"; source "$2"; shift 2
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
[[ $(complete -p "$1") =~ -F\\ ([^ ]+) ]] && "${BASH_REMATCH[1]}" "$1" "${!#}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_the_files_are_those_of_the_parsers() -> None:
    there = {str(path.relative_to(HERE)): path.read_text() for path in HERE.glob("*/*") if path.suffix != ".pyc"}
    assert there == scripts(), "run: make completion"


def test_every_console_script_has_its_files() -> None:
    names = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(scripts()) == {pattern.format(name) for name in names for pattern in FILE_NAMES.values()}


def test_they_can_be_written_elsewhere(tmp_path: Path) -> None:
    assert main([str(tmp_path)]) == 0
    assert (tmp_path / "zsh" / "_tnwgd").read_text() == scripts()["zsh/_tnwgd"]


@pytest.mark.parametrize(
    ("line", "offered", "never"),
    [
        ("tnwgd ", {"init", "my.xml"}, {"--validate"}),
        ("tnwgd i", {"init"}, {"my.xml"}),
        ("tnwgd --val", {"--validate"}, {"--version"}),
        ("tnwgd -v my.xml ", {"my.xml"}, set()),
        ("tnwgd init ", {"direct", "peer"}, {"my.xml"}),
        ("tnwgd init direct --trd", {"--trd1", "--trd2"}, {"--trd"}),
        ("tnwgd init peer --output ", {"my.xml"}, {"--force"}),
        ("tnwgdctl st", {"status"}, {"my.xml"}),
        ("tnwgdctl portal re", {"restart", "resume", "remove"}, {"reload", "my.xml"}),
        ("tnwgdctl reload --c", {"--confirm"}, {"--no-wait"}),
        ("tnwgdctl diff ", {"my.xml"}, {"reload"}),
        ("tnwgdctl status --", {"--json", "--run-dir", "--dro"}, {"status"}),
        ("lbmsrc --", {"--length", "--config"}, {"--late-join", "--monitor-ctx"}),
        ("lbmsrc -c ", {"my.xml"}, set()),
        ("lbmrcv --ver", {"--verify", "--verbose"}, {"--msgs"}),
        ("lbmwrcv --ord", {"--orderchecks"}, {"--verify"}),
        ("umdump --proto lb", {"lbmr", "lbtrm"}, {"my.xml"}),
        ("umdump ", {"my.xml"}, set()),
    ],
)
def test_bash_completes(line: str, offered: set[str], never: set[str], tmp_path: Path) -> None:
    (tmp_path / "my.xml").touch()
    words = line.split(" ")
    command = ["bash", "--norc", "-c", WORDS, "bash", str(tmp_path), str(HERE / "bash" / words[0]), *words]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    got = set(answer.stdout.split("\n"))
    assert offered <= got, answer.stderr
    assert not never & got
