"""`tnwgdctl`: inspect and change a running DRO through its admin socket.

Each command is a subparser whose `run` default takes the parsed arguments and returns the exit status. Modules of
commands offer `add_commands(commands, common)`; `common` has the options of every command.

Exit status: 0 done, 1 refused or failed, 2 wrong arguments, 3 no running DRO or none that answers, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from typing import Final

from dro.command_line import EXIT_USAGE, Parser, add_version
from dro.errors import DroError
from dro.log.lines import printable
from dro.standard_streams import open_standard_streams, output_lost, say
from supervisor.admin.client import CommandError, UnreachableError
from supervisor.admin.server import error_object
from supervisor.tools.ctl.output import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_UNREACHABLE

PROGRAM: Final = "tnwgdctl"
COMMANDS: Final = {
    "supervisor.tools.ctl.status": ("status",),
    "supervisor.tools.ctl.portals": ("portals", "drain", "portal"),
    "supervisor.tools.ctl.lists": ("topics", "sources", "interest", "proxies", "blocked", "losses", "routes"),
    "supervisor.tools.ctl.peers": ("peers",),
    "supervisor.tools.ctl.topology": ("topology", "path", "recalculate"),
    "supervisor.tools.ctl.reload": ("reload", "confirm", "rollback", "diff", "explain"),
    "supervisor.tools.ctl.upgrade": ("upgrade",),
    "supervisor.tools.ctl.doctor": ("doctor",),
}
"""Which module adds which commands, in the order of the help."""
CHANGING: Final = {"drain", "portal", "recalculate", "reload", "confirm", "rollback", "upgrade"}
"""Commands that take the whole name of a DRO: the one that is meant may not run, and another one begin so."""


class _Named(argparse.Action):
    """Refuses an empty name, which would count as none: in a script it is a variable that is not set."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        if not values:
            parser.error(f"{option_string} is empty; name a DRO, or leave it out when only one runs")
        setattr(namespace, self.dest, values)


def _common(*, is_top: bool) -> argparse.ArgumentParser:
    """Make options that stand before or behind the command; behind it without defaults, to keep those before."""
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    which = common.add_argument_group("which DRO, when several run on this host")
    which.add_argument(
        "--dro", metavar="NAME", action=_Named,
        help="name of the DRO, or the process id of its tnwgd; to look, the beginning of its name will do",
    )  # fmt: skip
    which.add_argument("--run-dir", metavar="DIR", action=_Named, help="its run directory")
    common.add_argument("--json", action="store_true", help="print the answer as one JSON object")
    if is_top:
        common.set_defaults(dro="", run_dir="", json=False)
    return common


def arguments(command: str = "") -> argparse.ArgumentParser:
    """The parser; for a known `command` with that one's module alone, since some take long to import."""
    common = _common(is_top=False)
    modules = [module for module, names in COMMANDS.items() if command in names] or list(COMMANDS)
    parser = Parser(
        prog=PROGRAM,
        parents=[_common(is_top=True)],
        description="Look at a running DRO and change it.",
        epilog="Exit status: 0 done, 1 refused or failed, 2 wrong arguments, 3 no running DRO.",
    )
    add_version(parser)
    commands = parser.add_subparsers(metavar="COMMAND", dest="word", required=True, title="commands")
    for module in modules:
        importlib.import_module(module).add_commands(commands, common)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    open_standard_streams()
    words = sys.argv[1:] if argv is None else list(argv)
    as_json = False
    try:
        if not words:
            arguments().print_help()
            return EXIT_USAGE
        args = arguments(words[0]).parse_args(words)
        as_json = args.json
        args.is_whole = args.word in CHANGING
        status = int(args.run(args))
        sys.stdout.flush()
    except UnreachableError as e:
        return _failed(e, EXIT_UNREACHABLE, as_json=as_json)
    except DroError as e:
        return _failed(e, EXIT_FAILED, as_json=as_json)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except OSError as e:
        lost = output_lost(e)
        return EXIT_FAILED if lost is None else _failed(lost, EXIT_FAILED)
    return status


def _failed(error: DroError, status: int, *, as_json: bool = False) -> int:
    """Say why on standard error, and with `as_json` on standard output as the object that the DRO would send."""
    for line in str(error).splitlines():
        say(sys.stderr, f"{PROGRAM}: {printable(line)}\n")
    if as_json:
        described = error.answer if isinstance(error, CommandError) else error_object(error)
        say(sys.stdout, json.dumps({"error": described}) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
