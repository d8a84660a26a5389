"""What an observer knows of its DRO: asked of the parent each second and of the route manager
more seldom, kept while they are silent.

Requests over the admin socket block, so they are made in threads; one connection serves all, in turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from dro.bus.actor import WorkerContext
from dro.bus.listing import TOPOLOGY, TopologyRow
from dro.command_line import version
from dro.config.dro_xml.model import DroConfig
from dro.errors import DroError
from supervisor.admin.client import Client, UnreachableError
from supervisor.admin.lists import rows_of
from supervisor.admin.status import ROUTE_MANAGER, ROUTE_MANAGER_NAME, DroStatus, PortalPlace, WorkerStatus

INTERVAL_S: Final = 1.0
TOPOLOGY_S: Final = 5.0
"""Between two looks at the topology, which is work for the route manager of a large network."""
ANSWER_LIMIT_S: Final = 5.0
SILENT_S: Final = 5.0
"""A parent that has told nothing for so long is said to be silent."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KnownDros:
    """`topology`: a row for each neighbour of each DRO. `asked_s`: by the monotonic clock; `problem`: why
    there is nothing newer."""

    status: DroStatus
    topology: tuple[TopologyRow, ...] = ()
    asked_s: float = -1.0  # never
    topology_s: float = 0.0  # when the route manager told it, since 1970
    problem: str = ""

    @property
    def age_s(self) -> float:
        return time.monotonic() - self.asked_s if self.asked_s >= 0 else float("inf")

    @property
    def is_fresh(self) -> bool:
        return self.age_s < SILENT_S


class Asker:
    """One connection to the parent, for threads; a new one when it broke."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._lock = threading.Lock()
        self._client: Client | None = None

    def ask(self, question: Callable[[Client], T]) -> T:
        """Ask the DRO. Raises: DroError, whatever is wrong."""
        with self._lock:
            try:
                if self._client is None or self._client.is_closed:
                    self.close()
                    self._client = Client(self.run_dir)
                return question(self._client)
            except UnreachableError:
                self.close()
                raise

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


class DroObserver:
    """Keeps `known` up to date."""

    def __init__(self, run_dir: Path, first: DroStatus) -> None:
        """`first`: what the configuration says, for the time before the parent has answered."""
        self.known = KnownDros(first)
        self.asker: Final = Asker(run_dir)

    async def run(self) -> None:
        """Ask until it is cancelled."""
        while True:
            await self.refresh()
            await asyncio.sleep(INTERVAL_S)

    async def refresh(self) -> None:
        await asyncio.to_thread(self.look)

    def look(self) -> KnownDros:
        """Ask now; what is known then."""
        self.known = self._look()
        return self.known

    def _look(self) -> KnownDros:
        before = self.known
        try:
            status = self.asker.ask(lambda client: client.ask(DroStatus, "status", within_s=ANSWER_LIMIT_S))
        except DroError as e:
            return replace(before, problem=str(e))
        known = replace(before, status=status, asked_s=time.monotonic(), problem="")
        manager = status.manager
        if manager is None or manager.state != "ready" or time.time() - before.topology_s < TOPOLOGY_S:
            return known
        with contextlib.suppress(DroError):  # it has just ended, or is busy
            rows = self.asker.ask(lambda client: tuple(rows_of(client, TOPOLOGY, manager.name, "")))
            known = replace(known, topology=rows, topology_s=time.time())
        return known


def first_status(ctx: WorkerContext, config: DroConfig) -> DroStatus:
    """Return what the configuration says of the DRO, before its parent has told anything."""
    names = [(ROUTE_MANAGER_NAME, ROUTE_MANAGER), *((p.name, role_of(p)) for p in config.all_portals)]
    workers = [WorkerStatus(n, role, at, "waiting", 0, 0, 0, 0.0, "") for at, (n, role) in enumerate(names)]
    workers.append(
        WorkerStatus(ctx.name, ctx.role.name.lower(), ctx.index, "starting", os.getpid(), ctx.incarnation, 0, 0.0, "")
    )
    return DroStatus(
        name=config.daemon.name or "tnwgd",
        version=version(),
        node_id=str(ctx.identity.dro_node_id),
        pid=ctx.identity.parent_pid,
        uptime_s=0.0,
        config_file=config.file,
        config_loaded=0.0,
        is_running=False,
        run_dir=str(ctx.run_dir),
        workers=tuple(workers),
        portals=tuple(PortalPlace(p.name, getattr(p, "domain_id", 0), p.cost) for p in config.all_portals),
        shm=str(ctx.identity.counters_path.parent),
        start_s=time.time(),
    )


def role_of(portal: object) -> str:
    """Name the role as the parent does."""
    return "endpoint" if hasattr(portal, "domain_id") else "peer"
