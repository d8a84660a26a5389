"""`portals` on the admin socket: the counters of each portal."""

from __future__ import annotations

import contextlib
import time

from dro.config.dro_xml.model import DroConfig, EndpointConfig, PeerConfig
from dro.config.um.sets import tr_ways
from supervisor.admin.status import PortalPlace, PortalsStatus
from supervisor.parent.parent import Parent
from supervisor.samples.pages import Pages


def places_of(config: DroConfig) -> tuple[PortalPlace, ...]:
    """The portals of a configuration, in order."""
    return tuple(map(_place_of, config.all_portals))


def _place_of(portal: EndpointConfig | PeerConfig) -> PortalPlace:
    if isinstance(portal, PeerConfig):
        return PortalPlace(portal.name, 0, portal.cost)
    return PortalPlace(portal.name, portal.domain_id, portal.cost, tuple(tr_ways(portal.receiving.context())))


def portals_status(parent: Parent[DroConfig]) -> PortalsStatus:
    """The portals that belong to the DRO now, whatever state they are in."""
    with contextlib.closing(Pages(parent.run_dirs.shm)) as pages:
        portals = pages.portals(parent.worker_status(), places_of(parent.configuration.current))
    return PortalsStatus(round(time.monotonic(), 6), portals)
