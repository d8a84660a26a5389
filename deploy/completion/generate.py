"""Shell completion of the console scripts, made from their argument parsers.

`python -m deploy.completion.generate [FOLDER]` writes `bash/NAME`, `zsh/_NAME` and `fish/NAME.fish` for each script,
beside this file unless told otherwise.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import shtab

import supervisor.tools.init.main
import supervisor.tools.simulate.main
from deploy.parsers import parsers, with_commands, write

HERE: Final = Path(__file__).parent
FILE_NAMES: Final = {"bash": "bash/{}", "zsh": "zsh/_{}", "fish": "fish/{}.fish"}
_FILES: Final = re.compile(r"(FILE|CONFIG|OLD|FAULTS)\b")
_FOLDERS: Final = re.compile(r"DIR\b")


# What shtab cannot express: the first argument of tnwgd is a file or the name of a command. By shell: behind which line
# of its script for `tnwgd` another one goes.
_FILES_TOO: Final = {
    "bash": (("_shtab_tnwgd_pos_0_choices=(init simulate)", "_shtab_tnwgd_pos_0_COMPGEN=_shtab_compgen_files"),),
    "zsh": (
        ("  _describe 'tnwgd commands' _commands", "  _files"),
        (
            "        simulate) _arguments -C -s $_shtab_tnwgd_simulate_options ;;",
            "        *) _arguments -s ${(@)_shtab_tnwgd_options:#(:*|\\**)} '*:CONFIG:_files' ;;",
        ),
    ),
    "fish": (("complete -c tnwgd -f", "complete -c tnwgd -n _shtab_tnwgd_using -F"),),
}


def _with_commands(parser: argparse.ArgumentParser) -> None:
    """Make it as `tnwgd` understands its arguments, but for the files: see `_FILES_TOO`."""
    config = next(action for action in parser._actions if not action.option_strings)
    parser._remove_action(config)
    for group in parser._action_groups:
        if config in group._group_actions:
            group._group_actions.remove(config)
    first = parser.add_subparsers(metavar=str(config.metavar), help=config.help)
    commands = {
        "write a starter configuration": supervisor.tools.init.main.arguments(),
        "run a network of DROs on a fake clock": supervisor.tools.simulate.main.arguments(),
    }
    for what, command in commands.items():
        name = command.prog.split()[-1]
        first.add_parser(name, help=what, parents=[command], add_help=False, description=command.description)


def _with_files(script: str, shell: str) -> str:
    lines = script.split("\n")
    for line, more in _FILES_TOO[shell]:
        if lines.count(line) != 1:
            raise LookupError(f"another shtab? {line!r} stands {lines.count(line)} times in the script for {shell}")
        lines.insert(lines.index(line) + 1, more)
    return "\n".join(lines)


def _prepare(parser: argparse.ArgumentParser) -> None:
    """Mark for shtab, in this parser and those below it, what takes files."""
    for action in (action for one in with_commands(parser) for action in one._actions):
        shown = action.metavar if isinstance(action.metavar, str) else ""
        if isinstance(action, argparse._SubParsersAction):
            continue
        if _FILES.match(shown) or _FOLDERS.match(shown):
            action.complete = shtab.FILE if _FILES.match(shown) else shtab.DIRECTORY  # type: ignore[attr-defined]


def scripts() -> dict[str, str]:
    """All scripts by name of their file."""
    made = {}
    for name, parser in parsers().items():
        if name == "tnwgd":
            _with_commands(parser)
        _prepare(parser)
        for shell, file_name in FILE_NAMES.items():
            script = f"{shtab.complete(parser, shell).rstrip()}\n"
            made[file_name.format(name)] = _with_files(script, shell) if name == "tnwgd" else script
    return made


def main(argv: Sequence[str]) -> int:
    return write(argv, "Write the shell completion of all console scripts.", HERE, scripts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
