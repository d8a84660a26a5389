"""From the arguments of `tnwgd` to a running DRO, in the order in which things can fail: signals, configuration,
detaching, log, host resources, processes. Each failure is reported with its reason, with file and line if there is one.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from dro.command_line import CONFLICT_REMEDY, conflicting_distribution, version, version_of
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.config.dro_xml.unsupported import split_limits
from dro.config.reading.problems import ConfigErrors
from dro.errors import ConfigError, DroError, ResourceError
from dro.log.events import LogEvent, configuration_warning
from dro.log.handler import Settings
from dro.log.setup import finish, hold, set_up
from dro.standard_streams import close_others, say
from dro.start_folder import absolute, keep_start_folder
from supervisor.commands.registry import serve_commands
from supervisor.history.worker import HistoryOptions
from supervisor.host.detach import STOPPED, StartReport, detach, is_kept
from supervisor.host.early_signals import EarlySignals
from supervisor.host.privileges import Identity, identity_of
from supervisor.host.resources import HostResources, ResourcePlan
from supervisor.host.service_manager import READY, STOPPING, ServiceManager
from supervisor.host.single_instance import claims_of
from supervisor.parent.log_settings import at_element, open_log
from supervisor.parent.parent import EXIT_OK, Parent
from supervisor.parent.process_plan import plan_of
from supervisor.reload.plan import part_for
from supervisor.start.take_over import history_record
from supervisor.upgrade.description import ProgramRecord
from supervisor.upgrade.order import UpgradeCommand, UpgradeSetting
from supervisor.upgrade.programs import own_command

PROCESS: Final = "tnwgd"
EXIT_FAILED: Final = 1
_LIBRARIES: Final = ("pyzmq", "msgpack", "lxml", "networkx", "pcre2")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What the command line asks for."""

    config: str
    log: Settings
    detached: bool = False
    run_dir: str = ""
    history: HistoryOptions | None = None


def refuse_unsupported(config: DroConfig, log: logging.Logger) -> None:
    """Refuse what would make this DRO do something else than the file says. Raises: ConfigErrors."""
    refusals, warnings = split_limits(config)
    for warning in warnings:
        log.log(logging.INFO if warning.is_information else logging.WARNING, LogEvent.CONFIG_WARNING, warning)
    if refusals:
        raise ConfigErrors(refusals)


def run(options: CommandLine, signals: EarlySignals) -> int:
    """Run the DRO until its end; the exit status. `signals` are in force, and undone only if it cannot start."""
    keep_start_folder()
    os.umask(os.umask(0o022) | 0o022)  # nobody else may connect to the sockets of the bus
    environment = dict(os.environ)
    manager = ServiceManager(os.environ)
    log = hold(options.log.level)
    try:
        config = load_dro(options.config, warn=configuration_warning(log))
        config = replace(config, file=absolute(config.file))
        refuse_unsupported(config, log)
        workers = len(plan_of(config, options.history))
        identity = _identity_of(config)
    except ConfigError as e:
        return _refused(options, e)
    close_others()  # now, as a configuration may come by one of them
    try:
        report = detach(PROCESS) if options.detached else None
    except ResourceError as e:
        return _refused(options, e)
    try:
        open_log(PROCESS, config, options.log)
    except ConfigError as e:
        status = _refused(options, e)
        if report is not None:
            report.failed(status)  # the reason is on its way already
        return status
    name = config.daemon.name or PROCESS
    log.info(LogEvent.STARTING, extra={"dro": name, "version": version(), "config": config.file})
    log.info(LogEvent.BUILD, extra=_build())
    if problem := conflicting_distribution():
        log.warning(LogEvent.PACKAGE_SHARED, extra={"reason": problem, "remedy": CONFLICT_REMEDY})
    _log_configuration(log, config)
    resources = HostResources(_resource_plan(options, config, identity, workers), log)
    planner = partial(plan_of, history=options.history)
    parent = Parent(config.daemon.name or PROCESS, config, planner, log, part_for=part_for, resources=resources)
    reload = serve_commands(parent, version(), configuration_warning(log))
    setting = UpgradeSetting(
        ProgramRecord(0, version(), own_command(), environment), history_record(options.history), manager.say
    )
    UpgradeCommand(parent, setting, log)
    signals.hand_over()

    def on_running() -> None:
        _on_running(log, config, report)
        manager.say(READY, f"STATUS={name}: {len(config.all_portals)} portals run")

    def on_stopping() -> None:
        manager.say(STOPPING)
        reload.on_stopping()

    manager.watch(parent.loop)
    status = parent.run(on_running=on_running, on_hangup=reload.on_hangup, on_stopping=on_stopping)
    _report_end(config, parent.failure, status, report)
    finish()
    return status


def _refused(options: CommandLine, error: DroError) -> int:
    set_up(PROCESS, replace(options.log, console_fd=2))  # for what was logged so far
    say(sys.stderr, f"{error}\n")
    return EXIT_FAILED


def _identity_of(config: DroConfig) -> Identity | None:
    """Find whom the DRO is to run as. Raises: ConfigError with the place of the element."""
    daemon = config.daemon
    try:
        return identity_of(daemon.uid, daemon.gid)
    except ResourceError as e:
        raise at_element(config, "gid" if daemon.uid is None else "uid", e) from e


def _resource_plan(options: CommandLine, config: DroConfig, identity: Identity | None, workers: int) -> ResourcePlan:
    return ResourcePlan(
        config.daemon.name or PROCESS,
        run_dir=Path(absolute(options.run_dir)) if options.run_dir else None,
        pid_file=Path(absolute(config.daemon.pidfile)) if config.daemon.pidfile else None,
        identity=identity,
        workers=workers,
        claims=claims_of(config.file, config.daemon.name),
    )


def _build() -> dict[str, object]:
    """List what this process is made of."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {"python": python, "machine": platform.machine(), **{name: version_of(name) for name in _LIBRARIES}}


def _log_configuration(log: logging.Logger, config: DroConfig) -> None:
    """Log one line for the whole, one for each portal."""
    portals = config.all_portals
    files = dict.fromkeys(path for portal in portals for path in portal.lbm_config)
    log.info(LogEvent.CONFIGURATION_READ, extra={"portals": len(portals), "um_files": len(files)})
    for portal in portals:
        extra = {"portal": portal.name, "domain": getattr(portal, "domain_id", 0), "cost": portal.cost}
        log.info(LogEvent.PORTAL_CONFIGURED, extra=extra | {"lbm_config": " ".join(portal.lbm_config)})


def _files_of(config: DroConfig) -> list[str]:
    """List what a reload will read again."""
    named = [
        config.file,
        config.daemon.xml_config,
        config.daemon.route_authentication.key_file if config.daemon.route_authentication is not None else "",
        *(path for portal in config.all_portals for path in portal.lbm_config),
    ]
    return [path for path in dict.fromkeys(named) if path and "://" not in path]


def _on_running(log: logging.Logger, config: DroConfig, report: StartReport | None) -> None:
    if config.daemon.uid is not None or config.daemon.gid is not None:
        for path in _files_of(config):
            if not os.access(path, os.R_OK):
                log.warning(LogEvent.FILE_NOT_READABLE, extra={"file": path})
    if report is not None:
        if config.daemon.log.type == "console" and not is_kept(sys.stdout.fileno()):
            log.warning(LogEvent.CONSOLE_LOG_ENDS)
        report.running()


def _report_end(config: DroConfig, failure: str, status: int, report: StartReport | None) -> None:
    """Say on the terminal why there is no DRO, unless the log is there and says so."""
    on_console = config.daemon.log.type == "console"
    if report is None:
        if failure and not on_console:
            say(sys.stderr, f"{PROCESS}: {failure}\n")
    elif status == EXIT_OK:
        report.failed(EXIT_FAILED, STOPPED)
    else:
        report.failed(status, "" if on_console else failure)
