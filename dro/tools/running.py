"""What the sending and receiving tools do alike around a context: set up logging and configuration, report failures."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Sequence

from dro.errors import ConfigError, DroError
from dro.log import ToolFormatter
from dro.streams import output_lost, say
from dro.tools.arguments import CommonOptions, Setting
from dro.tools.ending import EXIT_RESOURCE, EXIT_USAGE, Stop
from dro.um.client_config import Config
from dro.um.events import UsageError
from dro.um.patterns import PatternError

_LEVELS = (logging.WARNING, logging.WARNING, logging.INFO, logging.DEBUG)


def load_config(options: CommonOptions, settings: Sequence[Setting]) -> Config:
    """The files of `-c` in order, then what other options say. Raises: ConfigError."""
    config = Config.load(*options.config)
    for scope, name, value in settings:
        config = config.with_(scope, name, value)
    return config


def run_tool(prog: str, options: CommonOptions, work: Callable[[Stop], int]) -> int:
    """Do the work with signals held; a failure becomes a line on standard error and its exit status."""
    level = _LEVELS[min(options.verbose, len(_LEVELS) - 1)]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ToolFormatter(prog))
    logging.basicConfig(level=level, handlers=[handler])
    with Stop() as stop:
        try:
            status = work(stop)
            sys.stdout.flush()
        except OSError as e:  # of everything else that the system refuses, a ResourceError is made where it happens
            error = output_lost(e)
            return EXIT_RESOURCE if error is None else _fail(prog, error, EXIT_RESOURCE)
        except PatternError as e:
            return _fail(prog, ConfigError(str(e), element="pattern"), EXIT_USAGE)
        except (ConfigError, UsageError) as e:
            return _fail(prog, e, EXIT_USAGE)
        except DroError as e:
            return _fail(prog, e, EXIT_RESOURCE)
    return status


def _fail(prog: str, error: DroError, status: int) -> int:
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    for line in str(error).splitlines():
        say(sys.stderr, f"{prog}: {line}\n")
    return status
