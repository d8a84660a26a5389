"""Samples of a DRO with the portals P1 and P2, as `tnwgd-top` takes them, on a clock of the test's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from dro.metrics.slots import Slot
from supervisor.admin.status import DroStatus, PortalPlace, PortalStatus, WorkerStatus
from supervisor.samples.processes import ProcessFigures
from supervisor.tools.top.sample import ParentAnswer, Sample

PARENT, MANAGER, P1, P2 = 100, 101, 102, 103
"""Process ids."""
NOON_S: Final = 1_790_000_000.0
WORKERS: Final = (
    WorkerStatus("route-manager", "route manager", 0, "ready", MANAGER, 1, 0, 10.0, ""),
    WorkerStatus("P1", "endpoint", 1, "ready", P1, 2, 0, 10.0, ""),
    WorkerStatus("P2", "peer", 2, "ready", P2, 3, 0, 10.0, ""),
)
STATUS: Final = DroStatus(
    "NORTH", "0.1.0", "9223372036854775809", PARENT, 11.0, "dro.xml", NOON_S, is_running=True, workers=WORKERS,
    routes=6, portals=(PortalPlace("P1", 1, 1), PortalPlace("P2", 0, 1)), start_s=NOON_S - 11,
)  # fmt: skip


def portal(name: str, **counters: int) -> PortalStatus:
    """`counters`: those that are not 0."""
    worker = next(w for w in WORKERS if w.name == name)
    all_counters = {slot.name: 0 for slot in Slot} | {"QUEUE_LIMIT": 1000} | counters
    return PortalStatus(name, worker.role, worker.state, 1, 1, worker.index, all_counters)


def sample(
    at_s: float,
    *portals: PortalStatus,
    cpu_s: dict[int, float] | None = None,
    status: DroStatus = STATUS,
    **more: Any,  # noqa: ANN401 - as the fields of a sample
) -> Sample:
    """`cpu_s`: by process id. The status has just been told, unless `more` says otherwise."""
    living = frozenset((PARENT, *(w.pid for w in status.workers if w.pid)))
    processes = {pid: ProcessFigures(cpu_s=(cpu_s or {}).get(pid, 0.0), resident_bytes=1 << 20) for pid in living}
    first = Sample(
        at_s, NOON_S + at_s, status, at_s, 0.0, ParentAnswer.ALIVE, living=living, portals=portals, processes=processes,
        longest_turns_us={1: 12_345},
    )  # fmt: skip
    return replace(first, **more)
