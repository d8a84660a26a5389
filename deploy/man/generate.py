"""Manual pages of the console scripts, made from their argument parsers.

`python -m deploy.man.generate [FOLDER]` writes `man1/NAME.1` for each script, and for `tnwgd init` and `tnwgd
simulate`, beside this file unless told otherwise. `NAME.sections` beside this file has what the parser of NAME does not
say, in the form of argparse-manpage. The date is that of SOURCE_DATE_EPOCH, where it is set.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from argparse_manpage.manpage import Manpage

import supervisor.tools.init.main
import supervisor.tools.simulate.main
from deploy.parsers import parsers, write

HERE: Final = Path(__file__).parent
_STATUS: Final = re.compile(r"\bexit status: ", re.IGNORECASE)


def _name_of(parser: argparse.ArgumentParser) -> str:
    return parser.prog.replace(" ", "-")


def _page(parser: argparse.ArgumentParser, version: str) -> str:
    program = parser.prog
    name = _name_of(parser)
    sections = HERE / f"{name}.sections"
    notes, *statuses = _STATUS.split(parser.epilog or "", maxsplit=1)
    parser.epilog = notes.strip() or None
    about = {"project_name": "open DRO", "version": version, "manual_title": "open DRO"}
    about |= {"description": (parser.description or "").rstrip(".")}
    page = Manpage(parser, about | ({"include": sections} if sections.exists() else {}))
    page.prog = name
    page.synopsis = [program, *page.synopsis[len(program.split()) :]]
    if not page.get_extra_section("see also"):
        if statuses:
            page.add_section("exit status", "=", page.format_text(statuses[0]))
        page.add_section("see also", "=", ".BR tnwgd (1)")
    return _folded(str(page))


def _folded(text: str) -> str:
    """Break lines where a reader of the source wants them; the page itself is filled anyway."""
    lines = []
    for line in text.split("\n"):
        if line.startswith(".TH"):
            lines.append(line.replace(r"\-", "-"))
        elif line.startswith((".", " ")):
            lines.append(line)
        else:
            wrapped = textwrap.wrap(line, 79, break_long_words=False, break_on_hyphens=False) or [line]
            lines += [rf"\&{part}" if part.startswith(".") else part for part in wrapped]  # else it were a request
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """All pages by name of their file."""
    version = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    made = [*parsers().values(), supervisor.tools.init.main.arguments(), supervisor.tools.simulate.main.arguments()]
    return {f"man1/{_name_of(parser)}.1": _page(parser, version) for parser in made}


def main(argv: Sequence[str]) -> int:
    return write(argv, "Write the manual pages of all console scripts.", HERE, pages)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
