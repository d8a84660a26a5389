"""`tnwgdctl status`: the DRO and its processes."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict

from dro.clock import duration
from supervisor.admin.status import DroStatus, PortalsStatus
from supervisor.explain.neighbours import neighbour_problems
from supervisor.tools.ctl.lists import routes_text
from supervisor.tools.ctl.output import EXIT_OK, Commands, connect, put_answer, table


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    status = commands.add_parser("status", parents=[common], help="the DRO, its configuration and its processes")
    status.set_defaults(run=show_status)


def show_status(args: argparse.Namespace) -> int:
    with connect(args) as client:
        status = client.ask(DroStatus, "status")
        has_ways = any(place.resolved_by for place in status.portals)
        portals = client.ask(PortalsStatus, "portals").portals if has_ways else ()
        problems = neighbour_problems(client, status)
    resolution = {portal.name: portal.resolution for portal in portals if portal.resolution}
    lines = [f"{name} resolves topics by {ways}" for name, ways in resolution.items()]
    lines += [f"neighbours: {problem}" for problem in problems]
    text = "\n".join([status_text(status), *lines])
    more = {"neighbours": [asdict(problem) for problem in problems], "resolution": resolution}
    put_answer(args, asdict(status) | more, text)
    return EXIT_OK


def status_text(status: DroStatus) -> str:
    loaded = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(status.config_loaded))
    state = "running" if status.is_running else "starting or stopping"
    head = [
        f"{status.name}  open-dro {status.version}  node {status.node_id}",
        f"pid {status.pid}, {state}, up {duration(status.uptime_s)}",
        f"configuration {status.config_file}, loaded {loaded}",
        routes_text(status),
        *([f"under way: {status.change}"] if status.change else []),
        *(f"{worker.name} is {worker.state}: {worker.trouble}" for worker in status.workers if worker.trouble),
        *(f"waits for a restart of the daemon: {what}" for what in status.pending),
        "",
    ]
    rows = [
        (
            worker.name,
            worker.state + (f" ({worker.operation})" if worker.operation else ""),
            worker.pid or "",
            duration(worker.uptime_s) if worker.pid else "",
            worker.restarts,
            worker.last_death,
            worker.version if worker.version != status.version else "",
        )
        for worker in status.workers
    ]
    names = ("PROCESS", "STATE", "PID", "UP", "RESTARTS", "LAST END", "VERSION")
    return "\n".join(head) + "\n" + table(names, rows)
