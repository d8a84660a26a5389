"""From the arguments of `tnwgd` to a running DRO, in the order in which things can fail: signals, configuration,
detaching, log, ground, processes. Whatever fails says why, with file and line where there is one.
"""

from __future__ import annotations

import logging
import os
import platform
import sys
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Final

from dro.config.load import load_dro
from dro.config.model import DroConfig
from dro.config.problems import ConfigErrors, Warn
from dro.config.unsupported import ConfigWarning, unsupported
from dro.errors import ConfigError, DroError, ResourceError
from dro.log import Settings, finish, hold, set_up
from dro.streams import say
from supervisor.commands import serve_commands
from supervisor.detach import STOPPED, Report, detach, is_kept
from supervisor.early import EarlySignals
from supervisor.ground import Ground, GroundPlan
from supervisor.log_settings import open_log
from supervisor.parent import EXIT_OK, Parent
from supervisor.plan import plan_of
from supervisor.privileges import Identity, identity_of

PROCESS: Final = "tnwgd"
EXIT_FAILED: Final = 1
_LIBRARIES: Final = ("pyzmq", "msgpack", "lxml", "networkx", "pcre2")


@dataclass(frozen=True, slots=True)
class Order:
    """What the command line asks for."""

    config: str
    log: Settings
    detached: bool = False
    run_dir: str = ""


def version() -> str:
    """Of the installed package; a source tree that is not installed has none."""
    return _version_of("open-dro") or "unknown (not installed)"


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def refuse_unsupported(config: DroConfig, warn: Warn) -> None:
    """Raises: ConfigErrors for what would make this DRO do something else than the file says."""
    errors = []
    for limit in unsupported(config):
        if isinstance(limit, ConfigWarning):
            warn(str(limit))
        else:
            errors.append(limit)
    if errors:
        raise ConfigErrors(errors)


def run(order: Order, signals: EarlySignals) -> int:
    """Run the DRO until its end; the exit status. `signals` are in force, and undone only if it cannot start."""
    os.umask(os.umask(0o022) | 0o022)  # nobody else may connect to the sockets of the bus
    log = hold(order.log.level)
    try:
        config = load_dro(order.config, warn=log.warning)
        refuse_unsupported(config, log.warning)
        workers = len(plan_of(config))
        identity = _identity_of(config)
    except ConfigError as e:
        return _refused(order, e)
    try:
        report = detach(PROCESS) if order.detached else None
    except ResourceError as e:
        return _refused(order, e)
    try:
        open_log(PROCESS, config, order.log)
    except ConfigError as e:
        status = _refused(order, e)
        if report is not None:
            report.failed(status)  # the reason is on its way already
        return status
    log.info("starting", extra={"dro": config.daemon.name or PROCESS, "version": version(), "config": config.file})
    log.info("build", extra=_build())
    _tell_configuration(log, config)
    ground = Ground(_ground_plan(order, config, identity, workers), log)
    parent = Parent(config.daemon.name or PROCESS, config, plan_of, log, ground=ground)
    parent.on_running = lambda: _on_running(log, config, report)
    serve_commands(parent, version(), log.warning)
    signals.leave()
    status = parent.run()
    _tell_end(config, parent.failure, status, report)
    finish()
    return status


def _refused(order: Order, error: DroError) -> int:
    set_up(PROCESS, replace(order.log, console_fd=2))  # for what was logged so far
    say(sys.stderr, f"{error}\n")
    return EXIT_FAILED


def _identity_of(config: DroConfig) -> Identity | None:
    """Raises: ConfigError with the place of the element."""
    daemon = config.daemon
    try:
        return identity_of(daemon.uid, daemon.gid)
    except ResourceError as e:
        name = "gid" if daemon.uid is None else "uid"
        nodes = config.tree.find("daemon", name) if config.tree is not None else []
        line = nodes[0].line if nodes else 0
        file = nodes[0].file if nodes else config.file
        raise ConfigError(e.what, file=file, line=line, element=f"<{name}>", remedy=e.remedy) from e


def _ground_plan(order: Order, config: DroConfig, identity: Identity | None, workers: int) -> GroundPlan:
    return GroundPlan(
        config.daemon.name or PROCESS,
        run_dir=Path(order.run_dir) if order.run_dir else None,
        pid_file=Path(config.daemon.pidfile) if config.daemon.pidfile else None,
        identity=identity,
        workers=workers,
    )


def _build() -> dict[str, object]:
    """What this process is made of."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return {"python": python, "machine": platform.machine(), **{name: _version_of(name) for name in _LIBRARIES}}


def _tell_configuration(log: logging.Logger, config: DroConfig) -> None:
    """One line for the whole, one for each portal."""
    files = dict.fromkeys(path for portal in config.portals for path in portal.lbm_config)
    log.info("configuration read", extra={"portals": len(config.portals), "um_files": len(files)})
    for portal in config.portals:
        extra = {"portal": portal.name, "domain": portal.domain_id, "cost": portal.cost}
        log.info("portal configured", extra=extra | {"lbm_config": " ".join(portal.lbm_config)})


def _files_of(config: DroConfig) -> list[str]:
    """What a reload will read again."""
    named = [config.file, config.daemon.xml_config, *(path for portal in config.portals for path in portal.lbm_config)]
    return [path for path in dict.fromkeys(named) if path and "://" not in path]


def _on_running(log: logging.Logger, config: DroConfig, report: Report | None) -> None:
    if config.daemon.uid is not None or config.daemon.gid is not None:
        for path in _files_of(config):
            if not os.access(path, os.R_OK):
                log.warning("file is not readable for the user of the DRO: a reload will fail", extra={"file": path})
    if report is not None:
        if config.daemon.log.type == "console" and not is_kept(sys.stdout.fileno()):
            log.warning("the console log ends here: the DRO is detached")
        report.running()


def _tell_end(config: DroConfig, failure: str, status: int, report: Report | None) -> None:
    """Say on the terminal why there is no DRO, unless the log is there and says so."""
    on_console = config.daemon.log.type == "console"
    if report is None:
        if failure and not on_console:
            say(sys.stderr, f"{PROCESS}: {failure}\n")
    elif status == EXIT_OK:
        report.failed(EXIT_FAILED, STOPPED)
    else:
        report.failed(status, "" if on_console else failure)
