"""Manual pages: each program has one, man reads it without a warning, and it says what the parser says."""

from __future__ import annotations

import argparse
import runpy
import subprocess
import tomllib
from pathlib import Path

import pytest

from deploy.man.generate import main, pages
from deploy.parsers import parsers, with_commands

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All pages, written to a folder."""
    folder = tmp_path_factory.mktemp("man")
    assert main([str(folder)]) == 0
    return folder


def rendered(page: Path) -> tuple[str, str]:
    """What man shows of a page, and what it warns of."""
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "100", "MAN_KEEP_FORMATTING": ""}
    command = ["man", "--warnings", "--no-hyphenation", "--local-file", str(page)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return done.stdout, done.stderr


def test_every_console_script_has_its_page() -> None:
    names = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"])
    assert {Path(name).stem for name in pages()} == names | {"tnwgd-init", "tnwgd-simulate"}
    assert names == set(parsers())


def test_the_pages_go_into_the_wheel(made: Path) -> None:
    packaging = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")
    packaging["man_pages"].__globals__["MAN"] = made / "none"
    assert packaging["man_pages"]() == []
    packaging["man_pages"].__globals__["MAN"] = made / "man1"
    ((folder, names),) = packaging["man_pages"]()
    assert (folder, {Path(name).name for name in names}) == ("share/man/man1", {Path(name).name for name in pages()})
    assert "deploy/man/man1/" in (ROOT / ".gitignore").read_text().split()


@pytest.mark.man
@pytest.mark.parametrize("name", sorted(pages()))
def test_man_shows_every_option(name: str, made: Path) -> None:
    text, warnings = rendered(made / name)
    assert warnings == ""
    parser = parsers().get(Path(name).stem)
    actions = [action for one in with_commands(parser) for action in one._actions] if parser else []
    shown = {option for action in actions if action.help != argparse.SUPPRESS for option in action.option_strings}
    assert {option for option in shown if option not in text} <= {"-h", "--help"}
    assert "SEE ALSO" in text


@pytest.mark.man
def test_the_page_of_the_daemon_has_what_its_help_has_not(made: Path) -> None:
    text, _ = rendered(made / "man1/tnwgd.1")
    for words in ("EXIT STATUS", "SIGHUP", "XDG_RUNTIME_DIR", "/etc/open-dro/NAME.xml", "tnwgd-simulate(1)"):
        assert words in text
