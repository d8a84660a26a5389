"""Which form of a step of the data path runs: compiled, or plain Python.

A step is a module with a `.pxd` in the source tree; installing compiles it where there is a C compiler, into a library
beside it, which Python prefers. `DRO_PURE=1` in the environment chooses the plain form. So does a source that is newer
than its library: what was changed is what runs.

Source of the rule: the plain form is complete, and the reference; no behaviour is in the compiled one alone.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final

STEPS: Final = (
    "dro.um.transport.frames",
    "dro.um.transport.runs",
    "dro.um.transport.scan",
    "portals.datapath.duplicate_window",
    "portals.datapath.plan",
    "portals.datapath.select",
)


class PlainSteps(MetaPathFinder):
    """Finds the steps that are to run as plain Python."""

    def __init__(self, *, always: bool) -> None:
        """`always`: not only those whose source is newer than their library."""
        self._always = always

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in STEPS or not path:
            return None
        source = Path(path[0]) / f"{fullname.rpartition('.')[2]}.py"
        library = source.with_suffix(EXTENSION_SUFFIXES[0])
        if library.exists() and not self._always and library.stat().st_mtime >= source.stat().st_mtime:
            return None
        return spec_from_file_location(fullname, source)


def choose() -> None:
    """Before the first step is imported."""
    sys.meta_path.insert(0, PlainSteps(always=os.environ.get("DRO_PURE") == "1"))


def form() -> str:
    """Of the steps that are loaded: `compiled`, `plain Python`, or how many of them are compiled."""
    loaded = [module for name in STEPS if (module := sys.modules.get(name)) is not None]
    compiled = [module for module in loaded if not str(module.__file__).endswith(".py")]
    if not compiled:
        return "plain Python"
    return "compiled" if len(compiled) == len(loaded) else f"{len(compiled)} of {len(loaded)} compiled"
