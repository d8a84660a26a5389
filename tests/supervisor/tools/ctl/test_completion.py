"""Shell completion: the files are those of the parsers, and a real bash completes with them."""

from __future__ import annotations

import runpy
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.completion.generate import FILE_NAMES, main, scripts

ROOT = Path(__file__).parents[4]
WORDS = """\
cd "$1"; source "$2"; shift 2
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
[[ $(complete -p "$1") =~ -F\\ ([^ ]+) ]] && "${BASH_REMATCH[1]}" "$1" "${!#}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All scripts, written to a folder."""
    folder = tmp_path_factory.mktemp("completion")
    assert main([str(folder)]) == 0
    return folder


def test_every_console_script_has_its_files() -> None:
    names = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(scripts()) == {pattern.format(name) for name in names for pattern in FILE_NAMES.values()}


def test_what_was_made_goes_into_the_wheel(made: Path) -> None:
    packaging = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")
    completion: Callable[[], list[tuple[str, list[str]]]] = packaging["completion"]
    packaging["completion"].__globals__["MADE"] = made / "none"
    assert completion() == []
    packaging["completion"].__globals__["MADE"] = made
    packaged = {Path(name).name: folder for folder, names in completion() for name in names}
    assert packaged.keys() == {Path(name).name for name in scripts()}
    assert (packaged["tnwgd"], packaged["_tnwgd"], packaged["tnwgd.fish"]) == (
        "share/bash-completion/completions", "share/zsh/site-functions", "share/fish/vendor_completions.d",
    )  # fmt: skip


def test_the_text_is_not_kept_in_git() -> None:
    ignored = (ROOT / ".gitignore").read_text().split()
    assert {f"deploy/completion/{Path(pattern).parent}/" for pattern in FILE_NAMES.values()} <= set(ignored)


@pytest.mark.parametrize(
    ("line", "offered", "never"),
    [
        ("tnwgd ", {"init", "my.xml"}, {"--validate"}),
        ("tnwgd i", {"init"}, {"my.xml"}),
        ("tnwgd s", {"simulate"}, {"init"}),
        ("tnwgd simulate ", {"my.xml"}, {"init"}),
        ("tnwgd simulate --s", {"--script", "--seconds", "--seed"}, {"my.xml"}),
        ("tnwgd simulate --script ", {"my.xml"}, {"--seed"}),
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
        ("tnwgd-top --", {"--once", "--json", "--shm", "--dro"}, {"status"}),
        ("lbmsrc --", {"--length", "--config", "--late-join", "--channel"}, {"--monitor-ctx"}),
        ("lbmsrc -c ", {"my.xml"}, set()),
        ("lbmrcv --ver", {"--verify", "--verbose"}, {"--msgs"}),
        ("lbmwrcv --ord", {"--orderchecks"}, {"--verify"}),
        ("umdump --proto lb", {"lbmr", "lbtrm"}, {"my.xml"}),
        ("umdump ", {"my.xml"}, set()),
    ],
)
def test_bash_completes(line: str, offered: set[str], never: set[str], made: Path, tmp_path: Path) -> None:
    (tmp_path / "my.xml").touch()
    words = line.split(" ")
    command = ["bash", "--norc", "-c", WORDS, "bash", str(tmp_path), str(made / "bash" / words[0]), *words]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    got = set(answer.stdout.split("\n"))
    assert offered <= got, answer.stderr
    assert not never & got
