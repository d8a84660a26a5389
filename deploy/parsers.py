"""The argument parsers of the console scripts: shell completion and manual pages are made from them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import analytics.aggregate
import analytics.generate
import analytics.report
import supervisor.history.main
import supervisor.resolvers.lbmrd
import supervisor.resolvers.umsrs
import supervisor.start.command_line
import supervisor.tools.ctl.main
import supervisor.tools.top.main
from dro.tools.immediate import lbmimsg, lbmireq, lbmreq, lbmresp, lbmtrreq
from dro.tools.lbm import lbmrcv, lbmsrc, lbmwrcv
from dro.tools.lbm.arguments import is_not_yet
from dro.tools.lbmmon import lbmmon, tnwgdcmd, tnwgdmon
from dro.tools.umdump import main as umdump


def parsers() -> Mapping[str, argparse.ArgumentParser]:
    """Collect parsers by name of the console script, without options that a program refuses as not supported yet."""
    made = [
        supervisor.start.command_line.arguments(),
        supervisor.tools.ctl.main.arguments(),
        supervisor.tools.top.main.arguments(),
    ]
    made += [
        supervisor.history.main.arguments(),
        supervisor.resolvers.lbmrd.arguments(),
        supervisor.resolvers.umsrs.arguments(),
        analytics.aggregate.arguments(),
        analytics.report.arguments(),
        analytics.generate.arguments(),
    ]
    made += [tool.arguments() for tool in (lbmsrc, lbmrcv, lbmwrcv)]
    made += [tool.arguments() for tool in (lbmreq, lbmresp, lbmimsg, lbmireq, lbmtrreq)]
    made += [tool.arguments() for tool in (lbmmon, tnwgdmon, tnwgdcmd, umdump)]
    for parser in made:
        for action in (action for one in with_commands(parser) for action in one._actions if is_not_yet(action)):
            action.help = argparse.SUPPRESS
    return {parser.prog: parser for parser in made}


def with_commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from with_commands(below)


def write(argv: Sequence[str], description: str, default: Path, files: Callable[[], Mapping[str, str]]) -> int:
    """Write files by their names into the folder that the arguments name, or into `default`; the exit status."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, default=default, help=f"default: {default.name}")
    folder: Path = parser.parse_args(argv).folder
    for name, text in files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return 0
