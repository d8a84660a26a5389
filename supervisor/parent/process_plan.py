"""The processes of a configuration: the route manager first, then one per portal in order, then the monitor."""

from __future__ import annotations

from typing import Final

from dro.bus.counters import MAX_WORKERS
from dro.bus.messages import Role
from dro.config.dro_xml.model import DroConfig, EndpointConfig, PeerConfig
from dro.errors import ConfigError
from supervisor.parent.workers import WorkerSpec

ROUTE_MANAGER_NAME: Final = "route-manager"
MONITOR_NAME: Final = "monitor"


def plan_of(config: DroConfig) -> list[WorkerSpec]:
    """One entry per process; the place in the list is the worker's index. Raises: ConfigError."""
    # Loaded before the first fork, so that a restarted worker starts in milliseconds, and not by who only reads a file.
    from portals.endpoint.portal import run_endpoint
    from portals.peer.portal import run_peer
    from router.worker import run_route_manager
    from supervisor.monitor.worker import run_monitor

    portals = config.all_portals
    if len(portals) + 2 > MAX_WORKERS:
        raise ConfigError(f"{len(portals)} portals, at most {MAX_WORKERS - 2} are possible", file=config.file)

    def portal(part: EndpointConfig | PeerConfig) -> WorkerSpec:
        if isinstance(part, PeerConfig):
            return WorkerSpec(part.name, Role.PEER, lambda ctx: run_peer(ctx, part, config))
        return WorkerSpec(part.name, Role.ENDPOINT, lambda ctx: run_endpoint(ctx, part, config))

    first = WorkerSpec(ROUTE_MANAGER_NAME, Role.ROUTE_MANAGER, lambda ctx: run_route_manager(ctx, config))
    found = [first, *map(portal, portals)]
    if (where := config.daemon.web_monitor) is not None:
        found.append(WorkerSpec(MONITOR_NAME, Role.MONITOR, lambda ctx: run_monitor(ctx, where, config)))
    return found
