"""The commands that every running DRO serves on its admin socket."""

from __future__ import annotations

import logging
import os
import time

from dro.config.model import DroConfig
from dro.config.problems import Warn
from supervisor.admin import Arguments, Reply
from supervisor.parent import Parent
from supervisor.portal_commands import PortalCommands
from supervisor.portal_status import PortalsCommand
from supervisor.records import to_json
from supervisor.reload import Reload
from supervisor.reload_questions import Questions
from supervisor.status import DroStatus


class StatusCommand:
    """`status`: what the parent knows about itself and its workers."""

    def __init__(self, parent: Parent[DroConfig], version: str) -> None:
        self._parent = parent
        self._version = version
        self._began = time.monotonic()
        parent.admin.add("status", self.answer, looks=True)

    def answer(self, arguments: Arguments, reply: Reply) -> None:
        arguments.done()
        parent = self._parent
        reply.ok(
            to_json(
                DroStatus(
                    name=parent.name,
                    version=self._version,
                    node_id=str(parent.node_id),
                    pid=os.getpid(),
                    uptime_s=round(time.monotonic() - self._began, 3),
                    config_file=os.path.abspath(parent.config.file),
                    config_loaded=round(parent.loaded_s, 3),
                    is_running=parent.is_running,
                    pending=parent.pending,
                    run_dir=str(parent.run_dir),
                    workers=parent.worker_status(),
                    change=parent.change,
                )
            )
        )


def serve_commands(parent: Parent[DroConfig], version: str, warn: Warn) -> None:
    """Everything that an operator may ask this DRO."""
    StatusCommand(parent, version)
    PortalsCommand(parent)
    PortalCommands(parent, warn)
    Reload(parent, logging.getLogger("dro"))
    Questions(parent)
