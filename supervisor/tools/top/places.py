"""Which DRO is meant, of those that have a directory in shared memory: running ones, and dead ones as long as no other
DRO has started and removed what they left.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from supervisor.admin.client import UnreachableError, is_trusted
from supervisor.host.run_dirs import RUN_LINK, SHARED_MEMORY, Instance, instance_of, safe_name, start_time_of


@dataclass(frozen=True, slots=True)
class DroPlace:
    """The directory of one DRO in shared memory, and where its sockets are."""

    instance: Instance
    shm: Path
    run_dir: Path | None

    @property
    def is_alive(self) -> bool:
        return start_time_of(self.instance.pid) == self.instance.start

    def __str__(self) -> str:
        dead = "" if self.is_alive else f", dead: --shm {self.shm}"
        return f"{self.instance.name} (pid {self.instance.pid}{dead})"


def place_of(shm: Path) -> DroPlace | None:
    """None when that is not the directory of a DRO, or not one that may be trusted."""
    instance = instance_of(shm.name)
    if instance is None or not is_trusted(shm):
        return None
    run_dir = None
    with contextlib.suppress(OSError):
        run_dir = Path(os.readlink(shm / RUN_LINK))
    return DroPlace(instance, shm, run_dir)


def places(base: Path = SHARED_MEMORY) -> list[DroPlace]:
    """All of this user (for root: of every user), running ones first."""
    found: list[DroPlace] = []
    with contextlib.suppress(OSError):
        found = [place for entry in base.iterdir() if (place := place_of(entry)) is not None]
    return sorted(found, key=lambda p: (not p.is_alive, p.instance.name, p.instance.pid))


def choose(name: str | None = None, run_dir: str | None = None, shm: str | None = None) -> DroPlace:
    """A running DRO if one fits, else a dead one. Raises: UnreachableError that names what there is.

    `shm`: the directory of one DRO, or where the directories of DROs are.
    """
    base = Path(shm).absolute() if shm else SHARED_MEMORY
    if (one := place_of(base)) is not None:
        return one
    known = places(base)
    fitting = [place for place in known if _fits(place, name, run_dir)]
    wanted = [place for place in fitting if place.is_alive] or fitting
    if len(wanted) == 1:
        return wanted[0]
    if wanted:
        kind = "DROs run" if wanted[0].is_alive else "dead DROs are"
        remedy = "choose one with --dro NAME, its pid, --run-dir DIR or --shm DIR"
        raise UnreachableError(f"several {kind} here: {_list(wanted)}", remedy=remedy)
    meant = f" {name!r}" if name else f" with the run directory {run_dir}" if run_dir else " of this user"
    remedy = f"there are: {_list(known)}" if known else "start one with tnwgd"
    raise UnreachableError(f"no DRO{meant} runs here, and no dead one is left in {base}", remedy=remedy)


def _fits(place: DroPlace, name: str | None, run_dir: str | None) -> bool:
    if run_dir and (place.run_dir is None or place.run_dir != Path(run_dir).absolute()):
        return False
    return not name or name in (str(place.instance.pid), place.instance.name) or place.instance.name == safe_name(name)


def _list(known: Sequence[DroPlace]) -> str:
    return ", ".join(map(str, known))
