"""`portals` on the admin socket: the counters of each portal."""

from __future__ import annotations

import contextlib
import time

from dro.config.dro_xml.model import DroConfig
from supervisor.admin.status import PortalPlace, PortalsStatus
from supervisor.parent.parent import Parent
from supervisor.samples.pages import Pages


def places_of(config: DroConfig) -> tuple[PortalPlace, ...]:
    """The portals of a configuration, in order."""
    return tuple(PortalPlace(p.name, getattr(p, "domain_id", 0), p.cost) for p in config.all_portals)


def portals_status(parent: Parent[DroConfig]) -> PortalsStatus:
    """The portals that belong to the DRO now, whatever state they are in."""
    with contextlib.closing(Pages(parent.run_dirs.shm)) as pages:
        portals = pages.portals(parent.worker_status(), places_of(parent.configuration.current))
    return PortalsStatus(round(time.monotonic(), 6), portals)
