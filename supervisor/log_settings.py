"""From element `<log>` and the options of the command line to where the log goes. Called at the start and on reload."""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Final

from dro.config.model import DroConfig
from dro.errors import ConfigError, ResourceError
from dro.log import Settings, check_settings, set_up

_BYTES_PER_SIZE: Final = 1_000_000  # Source: element table, `size` counts millions of bytes


def log_settings(config: DroConfig, base: Settings) -> Settings:
    """`base` holds what the command line says; a relative file name counts from the working directory of the start."""
    log = config.daemon.log
    return replace(
        base,
        kind=log.type,
        file=os.path.abspath(log.file) if log.type == "file" else "",
        frequency=log.frequency if log.type == "file" else "disable",
        size_bytes=log.size_mb * _BYTES_PER_SIZE if log.type == "file" else 0,
    )


def open_log(process: str, config: DroConfig, base: Settings) -> logging.Logger:
    """Begin the log that the configuration asks for. Raises: ConfigError with the place of the element."""
    try:
        return set_up(process, log_settings(config, base), greets=True)
    except ResourceError as e:
        raise _at_element(config, e) from e


def check_log(config: DroConfig, base: Settings) -> None:
    """Can the log be had that the configuration asks for? Raises: ConfigError with the place of the element."""
    try:
        check_settings(log_settings(config, base))
    except ResourceError as e:
        raise _at_element(config, e) from e


def _at_element(config: DroConfig, e: ResourceError) -> ConfigError:
    nodes = config.tree.find("daemon", "log") if config.tree is not None else []
    file, line = (nodes[0].file, nodes[0].line) if nodes else (config.file, 0)
    return ConfigError(e.what, file=file, line=line, element="<log>", remedy=e.remedy)
