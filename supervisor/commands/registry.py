"""The table of all commands on the admin socket."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import asdict

from dro.bus.codec import Record
from dro.clock import NS_PER_S
from dro.config.dro_xml.model import DroConfig
from dro.config.reading.problems import Warn
from dro.log.handler import counted
from supervisor.admin.server import Arguments, Reply
from supervisor.admin.status import DroStatus
from supervisor.commands.last_status import LastStatusFile
from supervisor.commands.leave import LeaveCommand
from supervisor.commands.portal_counters import places_of, portals_status
from supervisor.commands.portals import PortalCommands
from supervisor.commands.queries import AdminQueries
from supervisor.commands.recalculation import serve_recalculation
from supervisor.parent.file_keeper import FileKeeper
from supervisor.parent.parent import Parent
from supervisor.reload.requests import Reload


def _status(parent: Parent[DroConfig], version: str) -> DroStatus:
    """Collect what the parent knows about itself and its workers."""
    configuration = parent.configuration
    return DroStatus(
        name=parent.name,
        version=version,
        node_id=str(parent.node_id),
        pid=os.getpid(),
        uptime_s=round((parent.loop.now_ns() - parent.began_ns) / NS_PER_S, 3),
        config_file=configuration.current.file,
        config_loaded=round(configuration.loaded_s, 3),
        is_running=parent.is_running,
        pending=configuration.pending,
        run_dir=str(parent.run_dirs.run),
        workers=parent.worker_status(),
        change=configuration.change,
        routes=-1 if parent.routes is None else parent.routes.routes,
        routes_wait_s=configuration.current.daemon.route_recalculation.backoff_interval_ms / 1000,
        portals=places_of(configuration.current),
        start_s=round(parent.start_s, 3),
        shm=str(parent.run_dirs.shm),
        is_stopping=parent.is_stopping,
        logged=dict(counted),
    )


def serve_commands(parent: Parent[DroConfig], version: str, warn: Warn) -> Reload:
    """Everything that an operator may ask this DRO; the result also takes its signals."""

    def add_look(command: str, look: Callable[[], Record]) -> None:
        def answer(arguments: Arguments, reply: Reply) -> None:
            arguments.done()
            reply.ok(asdict(look()))

        parent.admin.add(command, answer, looks=True)

    def status() -> DroStatus:
        return _status(parent, version)

    add_look("status", status)
    FileKeeper(parent, logging.getLogger("dro"))
    LastStatusFile(parent.loop, lambda: parent.run_dirs.shm, status)
    add_look("portals", lambda: portals_status(parent))
    PortalCommands(parent, warn)
    LeaveCommand(parent)
    AdminQueries(parent)
    serve_recalculation(parent)
    return Reload(parent, logging.getLogger("dro"))
