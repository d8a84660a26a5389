"""`lbmmon`: print the statistics that UM applications and DROs publish.

Exit status: 0 as many packets as asked for were printed; 2 wrong usage; 3 the system refused something; 130, 143 ended
by SIGINT, SIGTERM. Options and output: `docs/tools.md`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from dro.standard_streams import open_standard_streams
from dro.tools.lbm.arguments import CommonOptions, new_parser, positive
from dro.tools.lbm.ending import EXIT_OK, EndRequest, signal_status
from dro.tools.lbm.running import run_tool
from dro.tools.lbmmon.listening import StatisticsListener
from dro.tools.lbmmon.options import FORMATS, TRANSPORTS, place_of, separator_of
from dro.tools.lbmmon.printing import Printer

PROG: Final = "lbmmon"


class MonitorOptions(CommonOptions):
    transport: str
    transport_opts: str
    format: str
    format_opts: str
    json: bool
    packets: int | None


def arguments() -> argparse.ArgumentParser:
    parser = new_parser(PROG, "Print the statistics that UM applications and DROs publish.")
    add = parser.add_argument
    add("-t", "--transport", choices=TRANSPORTS, default=TRANSPORTS[0],
        help="module that they travel by (default %(default)s)")  # fmt: skip
    add("--transport-opts", default="", metavar="OPTIONS",
        help="name=value;name=value: config, topic, wctopic and SCOPE|OPTION of lbm and lbmsnmp; port, interface and "
        "mcgroup of udp")  # fmt: skip
    add(
        "-f",
        "--format",
        choices=FORMATS,
        default="",
        help="take this format alone; by default each packet says its own",
    )
    add("--format-opts", default="", metavar="OPTIONS", help="of csv: separator=CHARACTER (default: found out)")
    add("-n", "--packets", type=positive, metavar="NUM", help="end after NUM packets")
    add("--json", action="store_true", help="print JSON, an object on each line")
    return parser


def _run(options: MonitorOptions, stop: EndRequest) -> int:
    place = place_of(options.transport, options.transport_opts, options.config)
    printer = Printer(PROG, stop, is_json=options.json, packets=options.packets)
    printer.only = FORMATS.get(options.format, 0)
    printer.separator = separator_of(options.format, options.format_opts)
    StatisticsListener(stop, printer.on_open, printer.on_lost).hear(place, printer.on_packet)
    printer.sum_up()
    return signal_status(stop.signal) if stop.signal else EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status."""
    open_standard_streams()
    options = arguments().parse_args(argv, MonitorOptions())
    return run_tool(PROG, options, lambda stop: _run(options, stop))


if __name__ == "__main__":
    sys.exit(main())
