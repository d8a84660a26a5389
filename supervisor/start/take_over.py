"""Takes over a running DRO in its process, from the program that was run there, or says whether that would go well.

`check` is run as a child by the program that is there; `take_over` after an exec, in its place. What fails before the
DRO is adopted has changed nothing: the former program comes back and goes on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import traceback
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Final

from dro.command_line import version
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.errors import DroError, RefusedError
from dro.log.events import LogEvent, configuration_warning
from dro.log.handler import Settings
from dro.log.setup import finish, set_up
from dro.standard_streams import open_standard_streams, say
from dro.start_folder import keep_start_folder
from supervisor.commands.registry import serve_commands
from supervisor.history.worker import HistoryOptions
from supervisor.host.resources import HostResources, ResourcePlan
from supervisor.host.service_manager import STOPPING, ServiceManager
from supervisor.parent.parent import Parent
from supervisor.parent.process_plan import plan_of
from supervisor.parent.processes import FormerProgram
from supervisor.reload.plan import part_for
from supervisor.upgrade.adoption import adopt, check_workers
from supervisor.upgrade.description import (
    Description,
    HistoryRecord,
    ProgramRecord,
    check_open,
    let_through,
    read,
)
from supervisor.upgrade.former import end
from supervisor.upgrade.layouts import differing, layouts
from supervisor.upgrade.order import UpgradeCommand, UpgradeSetting
from supervisor.upgrade.programs import become, own_command

PROCESS: Final = "tnwgd"
EXIT_FAILED: Final = 1
_LAYOUT_REMEDY: Final = "replace the DRO as docs/upgrade.md says for other versions"


def history_record(options: HistoryOptions | None) -> HistoryRecord | None:
    return None if options is None else HistoryRecord(options.history, options.interval_s, str(options.journal or ""))


def _history(record: HistoryRecord | None) -> HistoryOptions | None:
    return (
        None
        if record is None
        else HistoryOptions(record.directory, record.interval_s, Path(record.journal) if record.journal else None)
    )


def _configuration(description: Description) -> DroConfig:
    """Read the configuration and see whether it fits what runs. Raises: DroError."""
    if others := differing(layouts(), description.layouts):
        what = f"versions {description.program.version} and {version()} differ in: {', '.join(others)}"
        raise RefusedError(what, remedy=_LAYOUT_REMEDY)
    config = load_dro(description.config_file, warn=lambda _: None)
    check_workers(description, plan_of(config, _history(description.history)))
    return config


def check(fd: int) -> int:
    """Say on standard output, as JSON, whether this program could take over; the exit status."""
    problem = remedy = ""
    try:
        _configuration(read(fd))
    except DroError as e:
        problem, remedy = str(e), getattr(e, "remedy", "")
        problem = problem.removesuffix(f"; {remedy}") if remedy else problem
    say(sys.stdout, json.dumps({"version": version(), "problem": problem, "remedy": remedy}) + "\n")
    return 0


def take_over(fd: int) -> int:
    """Run the DRO until its end; the exit status. Goes back to the former program when it cannot take over."""
    open_standard_streams()
    description: Description | None = None
    try:
        description = read(fd)
        os.close(fd)
        check_open(description)
        let_through(description, is_let=False)
        made = _Taken(description)
    except Exception as e:
        reason = str(e) if isinstance(e, DroError | OSError) else "".join(traceback.format_exception(e))
        return _go_back(description, reason)
    return made.run()


def _go_back(description: Description | None, reason: str) -> int:
    """Run the former program again, as nothing has changed yet; return when that is impossible."""
    if description is not None and description.former is not None:
        end(description.former)
    if description is not None and (to := description.back_to) is not None:
        failed = replace(
            description, number=to.number, back_to=None, former=None, failure=f"{version()} cannot take over: {reason}",
            remedy="see the log; nothing was replaced",
        )  # fmt: skip
        with contextlib.suppress(OSError):
            become(to, failed)
    say(sys.stderr, f"{PROCESS}: the DRO cannot be taken over, and ends: {reason}\n")
    return EXIT_FAILED


class _Taken:
    """A DRO that was taken over, ready to run."""

    def __init__(self, description: Description) -> None:
        """Raises: DroError, OSError; nothing has changed then, and all of it is still open."""
        keep_start_folder()
        environment = dict(os.environ)
        self._manager = ServiceManager(os.environ)
        config = _configuration(description)
        log = set_up(PROCESS, Settings(**asdict(description.log)))
        warn = configuration_warning(logging.getLogger("dro"))
        history = _history(description.history)
        planner = partial(plan_of, history=history)
        former = FormerProgram(int(description.node_id), description.start_s, description.began_ns)
        resources = HostResources(ResourcePlan(description.name), log)
        self._parent = Parent(
            description.name, config, planner, log, part_for=part_for, resources=resources, former=former
        )
        adopt(self._parent, description)
        self._reload = serve_commands(self._parent, version(), warn)
        program = ProgramRecord(description.number, version(), own_command(), environment)
        setting = UpgradeSetting(program, description.history, self._manager.say)
        self._upgrade = UpgradeCommand(self._parent, setting, log, description)
        extra = {"dro": description.name, "version": version(), "former": description.program.version}
        log.info(LogEvent.DRO_TAKEN_OVER, extra=extra)

    def run(self) -> int:
        self._manager.watch(self._parent.loop)
        status = self._parent.run(on_hangup=self._reload.on_hangup, on_stopping=self._on_stopping)
        self._upgrade.close()
        finish()
        return status

    def _on_stopping(self) -> None:
        self._manager.say(STOPPING)
        self._reload.on_stopping()
