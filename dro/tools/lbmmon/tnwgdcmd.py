"""`tnwgdcmd`: send control requests to the daemon statistics of a DRO, and print its answers.

Exit status: 0 each answer begins with OK; 1 another answer; 2 wrong usage; 3 no answer, or the system
refused something. Source: DRO guide, 8.3.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from typing import Final

from dro.errors import ResourceError
from dro.lbmmon.control import MonitorCommand, encode_command
from dro.standard_streams import open_standard_streams
from dro.tools.lbm.arguments import CommonOptions, new_parser, seconds
from dro.tools.lbm.ending import EXIT_BAD, EXIT_OK
from dro.tools.lbm.running import load_config, run_tool
from dro.tools.text import shown
from dro.um.blocking_api import BlockingContext
from dro.um.message.events import UsageError

PROG: Final = "tnwgdcmd"
OK: Final = "OK"
COMMANDS: Final = ("SNAP", "SAMPLE", "SET_INTERVAL", "CLEAR_INTERVAL")
NODE_TYPES: Final = ("ALL_NODES", "CONTEXT", "SOURCE", "RECEIVER", "EVENT_QUEUE", "GATEWAY")


class CommandOptions(CommonOptions):
    target: str
    timeout_s: float
    is_to_monitor: bool
    node_type: str
    application: str
    words: list[str]


def arguments() -> argparse.ArgumentParser:
    parser = new_parser(PROG, "Send control requests to the daemon statistics of a DRO.")
    parser.epilog = (
        "Exit status: 0 each answer begins with OK; 1 another answer; 2 wrong usage; 3 no answer, or the system refused"
        " something."
    )
    add = parser.add_argument
    add("-T", "--target", required=True, metavar="TCP:[DOMAIN:]IP:PORT", help="request port of the daemon statistics")
    add("--timeout", dest="timeout_s", type=seconds, default=5.0, metavar="SEC",
        help="how long to wait for each answer (default %(default)g)")  # fmt: skip
    add("--monitor", dest="is_to_monitor", action="store_true",
        help="send SNAP, SAMPLE, SET_INTERVAL N or CLEAR_INTERVAL to the statistics context of <monitor>")  # fmt: skip
    add("--node-type", default="ALL_NODES", metavar="TYPE", choices=NODE_TYPES,
        help="with --monitor: what it is for, of %(choices)s (default %(default)s)")  # fmt: skip
    add("--application", default="", metavar="ID", help="with --monitor: what has this application id alone")
    add("words", nargs="*", metavar="REQUEST",
        help="request, such as version or snap ri; without one, each line of standard input is one")  # fmt: skip
    return parser


def _requests(words: Sequence[str]) -> Iterable[str]:
    if words:
        return [" ".join(words)]
    return (line.strip() for line in sys.stdin if line.strip())


def _request(options: CommandOptions, text: str) -> bytes:
    """Make the request of a text. Raises: UsageError."""
    if not options.is_to_monitor:
        return text.encode(errors="surrogateescape")
    command, _, data = text.partition(" ")
    if command not in COMMANDS:
        raise UsageError(f"{command[:40]!r} is none of {', '.join(COMMANDS)}")
    return encode_command(MonitorCommand(command, options.node_type, options.application, data.strip()))


def _run(options: CommandOptions) -> int:
    status = EXIT_OK
    with BlockingContext(load_config(options, ())) as context:
        for text in _requests(options.words):
            try:
                response = context.request(options.target, _request(options, text), options.timeout_s)
            except TimeoutError as e:
                remedy = "see that <daemon-monitor> of the DRO allows requests, and that this is its request port"
                raise ResourceError(str(e), remedy=remedy) from e
            answer = response.rstrip(b"\0").decode(errors="replace")
            sys.stdout.write(f"{shown(answer)}\n")
            sys.stdout.flush()
            if not answer.startswith(OK):
                status = EXIT_BAD
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status."""
    open_standard_streams()
    options = arguments().parse_args(argv, CommandOptions())
    return run_tool(PROG, options, lambda _: _run(options))


if __name__ == "__main__":
    sys.exit(main())
