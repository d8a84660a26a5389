"""A live demonstration of the DRO: a source, receivers, and real `tnwgd` processes between them.

Three DROs in a triangle of peer links, with `--direct` one DRO between two TRDs, or with `--cloud` two DROs with TRDs
that have no multicast. Everything runs on the loopback interface. On a terminal a table is redrawn twice a second;
otherwise a line is printed each second. The exit status is 0 only if every message arrived once, at both receivers.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

from dro.command_line import Parser
from dro.standard_streams import open_standard_streams, output_lost, say
from supervisor.tools.demo import demonstration, history
from supervisor.tools.demo.network import CLOUD, DIRECT, TRIANGLE, DemoLayout


def run(layout: DemoLayout, seconds: float, rate: int, *, is_monitored: bool, kept: Path | None) -> int:
    """Returns the exit status. `seconds` 0: until interrupted. `kept`: the directory of a history."""
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    with tempfile.TemporaryDirectory(prefix="dro-demo-") as name:
        return demonstration.run(layout, Path(name), stop, seconds, rate, is_monitored=is_monitored, kept=kept)


def main() -> None:
    open_standard_streams()
    parser = Parser(prog="python -m supervisor.tools.demo.main", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=0, help="stop after so many seconds (default: at Ctrl-C)")
    parser.add_argument("--rate", type=int, default=500, help="messages per second (default 500)")
    parser.set_defaults(layout=TRIANGLE)
    layouts = parser.add_mutually_exclusive_group()
    layouts.add_argument("--direct", dest="layout", action="store_const", const=DIRECT,
                         help="one DRO between two TRDs instead of three DROs")  # fmt: skip
    layouts.add_argument("--cloud", dest="layout", action="store_const", const=CLOUD,
                         help="two DROs, in TRDs without multicast: one by lbmrd, one by SRS")  # fmt: skip
    parser.add_argument("--monitor", action="store_true", help="with Prometheus beside the DROs")
    parser.add_argument("--history", metavar="DIR", type=Path, help="keep a history of the DROs, and show it")
    arguments = parser.parse_args()
    if arguments.seconds < 0 or not 0 < arguments.rate <= 100_000:
        parser.error("--seconds must not be negative, --rate from 1 to 100000")
    kept = arguments.history and arguments.history.resolve()
    if kept and (lack := history.lack()):
        parser.error(lack)
    if kept and kept.exists() and any(kept.iterdir()):
        parser.error(f"{kept} is not empty: name another directory")
    try:
        status = run(arguments.layout, arguments.seconds, arguments.rate, is_monitored=arguments.monitor, kept=kept)
        sys.stdout.flush()
    except OSError as e:
        error = output_lost(e)
        if error is not None:
            say(sys.stderr, f"demo: {error}\n")
        status = 1
    sys.exit(status)


if __name__ == "__main__":
    main()
