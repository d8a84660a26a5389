"""`tnwgdmon`: print the daemon statistics of DROs, binary ones and those among statistics of UM applications.

Exit status: as that of `lbmmon`. Options and output: `docs/tools.md`. Source: DRO guide, chapter 8.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from dro.config.um.used import STATISTICS_TOPIC
from dro.standard_streams import open_standard_streams
from dro.tools.lbm.arguments import CommonOptions, new_parser, positive
from dro.tools.lbm.ending import EXIT_OK, EndRequest, signal_status
from dro.tools.lbm.running import run_tool
from dro.tools.lbmmon.listening import StatisticsListener
from dro.tools.lbmmon.printing import Printer
from dro.um.message.events import UsageError
from dro.um.statistics import statistics_config

PROG: Final = "tnwgdmon"
DAEMON_TOPIC: Final = "tnwgd.monitor"


class DaemonOptions(CommonOptions):
    topic: str
    statistics_topic: str
    json: bool
    packets: int | None


def arguments() -> argparse.ArgumentParser:
    parser = new_parser(PROG, "Print the daemon statistics of DROs.")
    add = parser.add_argument
    add("topic", nargs="?", default=DAEMON_TOPIC, help="of binary statistics (default %(default)s)")
    add("--statistics-topic", default=STATISTICS_TOPIC, metavar="TOPIC",
        help="of statistics in pb (default %(default)s)")  # fmt: skip
    add("-n", "--packets", type=positive, metavar="NUM", help="end after NUM messages")
    add("--json", action="store_true", help="print JSON, an object on each line")
    return parser


def _run(options: DaemonOptions, stop: EndRequest) -> int:
    if options.topic == options.statistics_topic:
        raise UsageError(f"binary statistics and those in pb have the same topic {options.topic}")
    printer = Printer(PROG, stop, is_json=options.json, packets=options.packets)
    printer.is_dro_alone = True
    topics = {options.topic: printer.on_binary, options.statistics_topic: printer.on_packet}
    StatisticsListener(stop, printer.on_open, printer.on_lost).hear_topics(statistics_config(options.config), topics)
    printer.sum_up()
    return signal_status(stop.signal) if stop.signal else EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point. Returns the exit status."""
    open_standard_streams()
    options = arguments().parse_args(argv, DaemonOptions())
    return run_tool(PROG, options, lambda stop: _run(options, stop))


if __name__ == "__main__":
    sys.exit(main())
