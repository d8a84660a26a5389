"""A DRO as its monitor sees it: counter pages with something in each cell, and what the parent tells of its workers."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final

from dro.bus.counters import GENERAL_SLOTS, CounterPage
from dro.bus.listing import TopologyRow
from dro.metrics.table import ENDPOINT, PEER
from supervisor.admin.status import DroStatus, PortalPlace, WorkerStatus
from supervisor.samples.watch import KnownDros

LARGE: Final = 1 << 40


def add_pages(folder: Path, portals: int, seed: int = 1) -> None:
    """A page for each worker of `known` that has none yet; most cells are 0, as on a real page, others are large."""
    chance = random.Random(seed)
    for index in range(portals + 1):
        if (folder / f"counters.{index}").exists():
            continue
        page = CounterPage.create(folder / f"counters.{index}")
        for slot in range(GENERAL_SLOTS):
            page.set(slot, chance.choice((0, 0, 0, 1, chance.randrange(1000), chance.randrange(LARGE))))
        page.publish()
        page.close()


def known(folder: Path, portals: int, *, others: int = 1, left_out: int = 0, name: str = "A") -> KnownDros:
    """A DRO with that many portals, every second one of which is a peer portal, and pages in `folder`; `left_out`: the
    index of one that is not there any more."""
    kinds = {index: (PEER, ENDPOINT)[index % 2] for index in range(1, portals + 1) if index != left_out}
    pid = os.getpid()
    workers = [WorkerStatus("route-manager", "route manager", 0, "ready", pid, 1, 0, 5.0, "")]
    workers += [WorkerStatus(f"P{n}", kind, n, "ready", pid, 1, n, 5.0, "") for n, kind in kinds.items()]
    places = tuple(PortalPlace(f"P{n}", n if kind == ENDPOINT else 0, n) for n, kind in kinds.items())
    status = DroStatus(
        name, "1.0", "12345", pid, 5.0, "dro.xml", 1e9, True, workers=tuple(workers), portals=places,
        start_s=1.7e9, shm=str(folder),
    )  # fmt: skip
    rows = tuple(
        TopologyRow(f"O{n}", str(n), 3, f"{n:08x}", age_s=1.5, neighbour="12345", kind="DRO", egress_cost=2)
        for n in range(others)
    )
    return KnownDros(status, rows, 1.0, 1.7e9)
