"""The processes of a configuration: the route manager first, then one per portal in order."""

from __future__ import annotations

from typing import Final

from dro.bus.counters import MAX_WORKERS
from dro.bus.messages import Role
from dro.config.dro_xml.model import DroConfig, EndpointConfig, PeerConfig
from dro.errors import ConfigError
from supervisor.parent.workers import WorkerSpec

ROUTE_MANAGER_NAME: Final = "route-manager"


def plan_of(config: DroConfig) -> list[WorkerSpec]:
    """One entry per process; the place in the list is the worker's index. Raises: ConfigError."""
    # Loaded before the first fork, so that a restarted worker starts in milliseconds, and not by who only reads a file.
    from portals.endpoint.portal import run_endpoint
    from portals.peer.portal import run_peer
    from router.worker import run_route_manager

    portals = config.all_portals
    if len(portals) >= MAX_WORKERS:
        raise ConfigError(f"{len(portals)} portals, at most {MAX_WORKERS - 1} are possible", file=config.file)

    def portal(part: EndpointConfig | PeerConfig) -> WorkerSpec:
        if isinstance(part, PeerConfig):
            return WorkerSpec(part.name, Role.PEER, lambda ctx: run_peer(ctx, part, config))
        return WorkerSpec(part.name, Role.ENDPOINT, lambda ctx: run_endpoint(ctx, part, config))

    first = WorkerSpec(ROUTE_MANAGER_NAME, Role.ROUTE_MANAGER, lambda ctx: run_route_manager(ctx, config))
    return [first, *map(portal, portals)]
