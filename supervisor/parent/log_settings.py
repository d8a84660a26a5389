"""Log settings from element `<log>` and the command line. Called at the start and on reload."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Final

from dro.config.dro_xml.model import DroConfig, LogConfig
from dro.errors import ConfigError, ResourceError
from dro.log.handler import Settings
from dro.log.setup import check_settings, set_up
from dro.start_folder import absolute

_BYTES_PER_SIZE: Final = 1_000_000  # Source: element table, `size` counts millions of bytes


def log_settings(log: LogConfig, base: Settings) -> Settings:
    """`base` holds what the command line says; a relative file name counts from the working directory of the start."""
    return replace(
        base,
        kind=log.type,
        file=absolute(log.file) if log.type == "file" else "",
        frequency=log.frequency if log.type == "file" else "disable",
        size_bytes=log.size_mb * _BYTES_PER_SIZE if log.type == "file" else 0,
    )


def open_log(process: str, config: DroConfig, base: Settings) -> logging.Logger:
    """Begin the log that the configuration asks for. Raises: ConfigError with the place of the element."""
    written = config.tree.find("daemon", "log") if config.tree is not None else []
    has_type = any(name == "type" and value.line for node in written for name, value in node.attributes)
    try:
        return set_up(process, log_settings(config.daemon.log, base), greets=not has_type)
    except ResourceError as e:
        raise at_element(config, "log", e) from e


def check_log(config: DroConfig, base: Settings) -> None:
    """Check that the log can be had that the configuration asks for. Raises: ConfigError with the element's place."""
    try:
        check_settings(log_settings(config.daemon.log, base))
    except ResourceError as e:
        raise at_element(config, "log", e) from e


def at_element(config: DroConfig, name: str, e: ResourceError) -> ConfigError:
    """The error with the place of that element of the daemon."""
    nodes = config.tree.find("daemon", name) if config.tree is not None else []
    file, line = (nodes[0].file, nodes[0].line) if nodes else (config.file, 0)
    return ConfigError(e.what, file=file, line=line, element=f"<{name}>", remedy=e.remedy)
