"""What statistics over UM cost a DRO: processor time of the worker beside that of forwarding, and that of portals.

`python -m tests.bench.statistics`: a real DRO of three TRDs with a flow of 100 topics from TRD 1 (TCP) to TRD 2
(LBT-RM), in turn without statistics and with all of them at the intervals of the guide's examples: `<daemon-monitor>`
5 s and 30 s, beside `<monitor>` every 5 s in csv, in a TRD of their own. Receivers read both topics in this process.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from tests.rigs.flow import Board
from tests.rigs.site import Site, running
from tests.rigs.statistics import BINARY_TOPIC, daemon_monitor_xml, listening, monitor_xml, publishing, statistics_file

GROUPS = '<group name="default" ivl="5"/><group name="gateway-config" ivl="30"/><group name="portal-config" ivl="30"/>'
STATISTICS = "statistics"


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def all_cpu_s(site: Site) -> dict[str, float]:
    return {name: cpu_s(pid) for name, pid in site.workers().items()} | {"parent": cpu_s(site.pid)}


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=10_000, help="messages a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(given)
    with ExitStack() as stack:
        found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
        for _ in range(options.rounds):
            for is_on in (False, True):
                with ExitStack() as round_stack:
                    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                    site = Site(folder, 3, transports={1: "tcp"})
                    file = statistics_file(site)
                    own = file.read_text().replace(f"{site.net(3)}.1\n", f"{site.net(3)}.9\n")
                    file.write_text(own)
                    if is_on:
                        publishing(site, monitor_xml(file, interval_s=5, form="csv") + daemon_monitor_xml(file, GROUPS))
                    round_stack.enter_context(running(site))
                    if is_on:
                        round_stack.enter_context(listening(file))
                        round_stack.enter_context(listening(file, BINARY_TOPIC))
                    board = Board.create(folder, "T", 100)
                    for way, trd in (("receive", 2), ("send", 1)):
                        rate = ("--rate", str(options.rate)) if way == "send" else ()
                        site.python(
                            "-m", "tests.rigs.flow", str(site.config(trd)), f"--{way}", str(board.path), *rate, name=way
                        )
                    site.wait(lambda board=board: board[3] > options.rate, "traffic")  # type: ignore[misc]
                    before, received, began = all_cpu_s(site), board[3], time.monotonic()
                    time.sleep(options.seconds)
                    passed_s, after = time.monotonic() - began, all_cpu_s(site)
                    flow = (board[3] - received) / passed_s
                    costs = {name: 100 * (after[name] - before[name]) / passed_s for name in before}
                    found[is_on].append(costs)
                    shown = ", ".join(f"{name} {value:.2f} %" for name, value in costs.items())
                    print(f"{'on ' if is_on else 'off'}: {flow:,.0f} messages/s; processor time: {shown}", flush=True)

        def forwarding(costs: dict[str, float]) -> float:
            return sum(value for name, value in costs.items() if name != STATISTICS)

        off, on = (median(map(forwarding, found[is_on])) for is_on in (False, True))
        worker = median(costs[STATISTICS] for costs in found[True])
        share = 100 * worker / off
        print(f"forwarding {off:.2f} % without, {on:.2f} % with statistics; worker {worker:.3f} %: {share:.2f} % of it")


if __name__ == "__main__":
    main()
