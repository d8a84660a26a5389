"""`tnwgd` that counts its objects when asked to, for tests that look for what is never given back.

Run as `python -m tests.rigs.census dro.xml`, with the arguments of `tnwgd`. SIGUSR1 makes any of its processes write
`census.<pid>.json` beside the configuration; the workers inherit the handler across the fork. With `CENSUS_TRACE=1`
in the environment the census also names the places that hold most memory; everything is slow then.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import time
import tracemalloc
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

OURS: Final = ("dro", "portals", "router", "supervisor")
TRACE: Final = "CENSUS_TRACE"
WRITTEN_S: Final = 30.0


@dataclass
class Census:
    """What a process holds."""

    objects: int = 0
    """That the garbage collector knows."""
    blocks: int = 0
    """Blocks of memory that Python's allocator has handed out: nothing is aside."""
    ours: dict[str, int] = field(default_factory=dict)
    """Instances of the project's classes by `module.class`."""
    traced_bytes: int = 0
    """Memory that Python's allocator has handed out, and below which places hold most of it; when traced."""
    places: list[str] = field(default_factory=list)

    @property
    def total_ours(self) -> int:
        return sum(self.ours.values())


def take() -> Census:
    """Of this process, garbage collected first."""
    gc.unfreeze()
    gc.collect()
    blocks = sys.getallocatedblocks()
    found: Counter[str] = Counter()
    objects = gc.get_objects()
    for thing in objects:
        kind = type(thing)
        if str(kind.__module__).partition(".")[0] in OURS:  # a type may have a descriptor of that name
            found[f"{kind.__module__}.{kind.__qualname__}"] += 1
    places: list[str] = []
    if tracemalloc.is_tracing():
        places = [str(line) for line in tracemalloc.take_snapshot().statistics("lineno")[:40]]
    return Census(len(objects), blocks, dict(found), tracemalloc.get_traced_memory()[0], places)


def on_signal(_number: int, _frame: FrameType | None) -> None:
    census = take()
    path = _path(Path(sys.argv[-1]).parent, os.getpid())
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(census)))
    fresh.rename(path)


def _path(folder: Path, pid: int) -> Path:
    return folder / f"census.{pid}.json"


def ask(folder: Path, pid: int) -> Census:
    """Of another process, which runs this program on a configuration in `folder`. Raises: TimeoutError."""
    path = _path(folder, pid)
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR1)
    deadline = time.monotonic() + WRITTEN_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} does not count")
        time.sleep(0.01)
    return Census(**json.loads(path.read_text()))


def main() -> int:
    from supervisor.main import main as tnwgd

    if os.environ.get(TRACE):
        tracemalloc.start(8)
    signal.signal(signal.SIGUSR1, on_signal)
    return tnwgd()


if __name__ == "__main__":
    sys.exit(main())
