"""Common to the sending and receiving tools: logging, configuration, and reports of failures around a context."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Callable, Sequence

from dro.errors import ConfigError, DroError
from dro.log.setup import ToolFormatter
from dro.standard_streams import output_lost, say
from dro.tools.lbm.arguments import CommonOptions, Setting
from dro.tools.lbm.ending import EXIT_OK, EXIT_RESOURCE, EXIT_USAGE, EndRequest
from dro.um.message.client_config import Config
from dro.um.message.events import UsageError

_LEVELS = (logging.WARNING, logging.WARNING, logging.INFO, logging.DEBUG)


class Periods:
    """Ends of periods of equal length; a length of 0 has none."""

    def __init__(self, now_s: float, length_s: float) -> None:
        self._length_s = length_s
        self.due_s = now_s + length_s if length_s else float("inf")

    def is_over(self, now_s: float) -> bool:
        if now_s < self.due_s:
            return False
        self.due_s = max(self.due_s + self._length_s, now_s)
        return True


def load_config(options: CommonOptions, settings: Sequence[Setting]) -> Config:
    """The files of `-c` in order, then what other options say. Raises: ConfigError."""
    config = Config.load(*options.config)
    for scope, name, value in settings:
        config = config.with_(scope, name, value)
    return config


def run_tool(prog: str, options: CommonOptions, work: Callable[[EndRequest], int]) -> int:
    """Do the work, which may hold signals; a failure becomes a line on standard error and its exit status."""
    level = _LEVELS[min(options.verbose, len(_LEVELS) - 1)]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ToolFormatter(prog))
    logging.basicConfig(level=level, handlers=[handler])
    with EndRequest() as stop:
        try:
            status = work(stop)
            sys.stdout.flush()
        except OSError as e:  # of everything else that the system refuses, a ResourceError is made where it happens
            error = output_lost(e)
            return EXIT_OK if error is None else _fail(prog, error, EXIT_RESOURCE)
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
