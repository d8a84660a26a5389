"""Which form of a step of the data path runs: compiled, or plain Python.

A step is a module with a `.pxd` in the source tree; installing compiles it where there is a C compiler, into a library
beside it, which Python prefers. `DRO_PURE=1` in the environment chooses the plain form. So does one step that is not
compiled, or whose source is newer than its library: what was changed is what runs. An installer writes a library and
its source in any order, so in an installation a source has changed when it is newer than the list of installed files.

Source of the rule: both forms run the same lines, so no behaviour is in the compiled one alone. Plain Python is the
slow reference: nothing is written in another way so that it runs faster there.
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

_BY_FOLDER: Final = {
    "dro": "clock loop table timers",
    "dro.bus": "channel counters descriptors",
    "dro.kept": "log rows",
    "dro.proto": "ratelimit",
    "dro.proto.repair": "receiver retransmit source",
    "dro.shared_memory": "ring",
    "dro.transport": "frames mmsg runs scan session trains",
    "dro.transport.datagrams": "receiver sender",
    "dro.transport.lbtrm": "headers receiver sender",
    "dro.transport.lbtru": "headers",
    "portals.datapath": "descriptor duplicate_window egress handover ingress intake outgoing plan select",
    "portals.peer.stream": "link_frames",
    "router": "trees",
}
"""List those that have a `.pxd`, by hand: an installation has none, and a search would cost each program time."""
STEPS: Final = tuple(f"{folder}.{name}" for folder, names in _BY_FOLDER.items() for name in names.split())
VIEWS: Final = "dro.compiled_views"
"""A library without a source here: what the compiled steps share of views of memory (setup.py)."""


class PlainSteps(MetaPathFinder):
    """Finds the steps as plain Python."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in STEPS or not path:
            return None
        return spec_from_file_location(fullname, Path(path[0]) / f"{fullname.rpartition('.')[2]}.py")


def is_current(root: Path) -> bool:
    """Say whether each step below `root` is compiled from its source of now. The form of one knows that of others."""
    installed = max((record.stat().st_mtime for record in root.glob("open_dro-*.dist-info/RECORD")), default=0.0)
    for name in STEPS:
        source = root / f"{name.replace('.', '/')}.py"
        library = source.with_suffix(EXTENSION_SUFFIXES[0])
        if not library.exists() or max(library.stat().st_mtime, installed) < source.stat().st_mtime:
            return False
    return (root / f"{VIEWS.replace('.', '/')}{EXTENSION_SUFFIXES[0]}").exists()


def choose() -> None:
    """Choose the compiled or the plain steps, before the first step is imported."""
    if os.environ.get("DRO_PURE") == "1" or not is_current(Path(__file__).parents[1]):
        sys.meta_path.insert(0, PlainSteps())


def form() -> str:
    """Name the form of the steps that are loaded: `compiled` or `plain Python`."""
    loaded = [module for name in STEPS if (module := sys.modules.get(name)) is not None]
    return "plain Python" if any(str(module.__file__).endswith(".py") for module in loaded) else "compiled"
