"""Shell completion of the console scripts, made from their argument parsers.

`python -m deploy.completion.generate [FOLDER]` writes `bash/NAME`, `zsh/_NAME` and `fish/NAME.fish` for each script,
beside this file unless told otherwise. Options that a program refuses as not supported yet are not offered.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import shtab

import analytics.aggregate
import analytics.generate
import analytics.report
import supervisor.ctl.main
import supervisor.history.main
import supervisor.init.main
import supervisor.start.command_line
import supervisor.top.main
from dro.tools.lbm import lbmrcv, lbmsrc, lbmwrcv
from dro.tools.lbm.arguments import is_not_yet
from dro.tools.umdump import main as umdump

HERE: Final = Path(__file__).parent
FILE_NAMES: Final = {"bash": "bash/{}", "zsh": "zsh/_{}", "fish": "fish/{}.fish"}
_FILES: Final = re.compile(r"(FILE|CONFIG|OLD)\b")
_FOLDERS: Final = re.compile(r"DIR\b")


# What shtab cannot express: the first argument of tnwgd is a file or the word `init`. By shell: behind which line of
# its script for `tnwgd` another one goes.
_FILES_TOO: Final = {
    "bash": (("_shtab_tnwgd_pos_0_choices=(init)", "_shtab_tnwgd_pos_0_COMPGEN=_shtab_compgen_files"),),
    "zsh": (
        ("  _describe 'tnwgd commands' _commands", "  _files"),
        (
            "        init) _shtab_tnwgd_init ;;",
            "        *) _arguments -s ${(@)_shtab_tnwgd_options:#(:*|\\**)} '*:CONFIG:_files' ;;",
        ),
    ),
    "fish": (("complete -c tnwgd -f", "complete -c tnwgd -n _shtab_tnwgd_using -F"),),
}


def _tnwgd() -> argparse.ArgumentParser:
    """As `tnwgd` understands its arguments, but for the files: see `_FILES_TOO`."""
    parser = supervisor.start.command_line.arguments()
    config = next(action for action in parser._actions if not action.option_strings)
    parser._remove_action(config)
    for group in parser._action_groups:
        if config in group._group_actions:
            group._group_actions.remove(config)
    first = parser.add_subparsers(metavar=str(config.metavar), help=config.help)
    supervisor.init.main.describe(first.add_parser(supervisor.init.main.COMMAND, help="write a starter configuration"))
    return parser


def _with_files(script: str, shell: str) -> str:
    lines = script.split("\n")
    for line, more in _FILES_TOO[shell]:
        if lines.count(line) != 1:
            raise LookupError(f"another shtab? {line!r} stands {lines.count(line)} times in the script for {shell}")
        lines.insert(lines.index(line) + 1, more)
    return "\n".join(lines)


def parsers() -> Mapping[str, argparse.ArgumentParser]:
    """By name of the console script."""
    made = [_tnwgd(), supervisor.ctl.main.arguments(), supervisor.top.main.arguments()]
    made += [
        supervisor.history.main.arguments(),
        analytics.aggregate.arguments(),
        analytics.report.arguments(),
        analytics.generate.arguments(),
    ]
    made += [tool.arguments() for tool in (lbmsrc, lbmrcv, lbmwrcv, umdump)]
    return {parser.prog: parser for parser in made}


def _prepare(parser: argparse.ArgumentParser) -> None:
    """Tell shtab, in this parser and those below it, what takes files, and what to leave out."""
    for action in parser._actions:
        if is_not_yet(action):
            action.help = argparse.SUPPRESS
        shown = action.metavar if isinstance(action.metavar, str) else ""
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                _prepare(below)
        elif _FILES.match(shown) or _FOLDERS.match(shown):
            action.complete = shtab.FILE if _FILES.match(shown) else shtab.DIRECTORY  # type: ignore[attr-defined]


def scripts() -> dict[str, str]:
    """All scripts by name of their file."""
    made = {}
    for name, parser in parsers().items():
        _prepare(parser)
        for shell, file_name in FILE_NAMES.items():
            script = f"{shtab.complete(parser, shell).rstrip()}\n"
            made[file_name.format(name)] = _with_files(script, shell) if parser.prog == "tnwgd" else script
    return made


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description="Write the shell completion of all console scripts.")
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, default=HERE, help=f"default: {HERE.name}")
    folder: Path = parser.parse_args(argv).folder
    for name, text in scripts().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
