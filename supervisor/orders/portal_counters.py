"""`portals` on the admin socket: the counters of each portal."""

from __future__ import annotations

import contextlib
import time

from dro.config.dro_xml.model import DroConfig
from supervisor.admin.status import PortalsStatus
from supervisor.parent.parent import Parent
from supervisor.samples.pages import Pages


def portals_status(parent: Parent[DroConfig]) -> PortalsStatus:
    """The portals that belong to the DRO now, whatever state they are in."""
    configured = {portal.name: portal for portal in parent.configuration.current.all_portals}
    with contextlib.closing(Pages(parent.run_dirs.shm, parent.workers.indices)) as pages:
        portals = tuple(
            pages.status_of(worker, getattr(portal, "domain_id", 0), portal.cost)
            for worker in parent.worker_status()
            if (portal := configured.get(worker.name)) is not None
        )
    return PortalsStatus(round(time.monotonic(), 6), portals)
