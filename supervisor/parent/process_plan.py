"""The processes of a configuration: the route manager first, then one per portal in order, then those that look on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dro.bus.counters import MAX_WORKERS
from dro.bus.messages import Role
from dro.config.change.reload_class import live_fields
from dro.config.dro_xml.model import DroConfig, EndpointConfig, PeerConfig, statistics_on
from dro.errors import ConfigError
from supervisor.admin.status import ROUTE_MANAGER_NAME
from supervisor.parent.workers import WorkerSpec

if TYPE_CHECKING:
    from supervisor.history.worker import HistoryOptions

MONITOR_NAME: Final = "monitor"
HISTORY_NAME: Final = "history"
STATISTICS_NAME: Final = "statistics"
"""It is given every configuration, as it tells of all of it."""
OTHERS: Final = 4
"""Processes that are no portals, at most."""


def plan_of(config: DroConfig, history: HistoryOptions | None = None) -> list[WorkerSpec]:
    """One entry per process; the place in the list is the worker's index. Raises: ConfigError."""
    # Loaded before the first fork, so that a restarted worker starts in milliseconds, and not by who only reads a file.
    from portals.endpoint.portal import run_endpoint
    from portals.peer.process.portal import run_peer
    from router.worker import run_route_manager
    from supervisor.history.worker import run_history
    from supervisor.monitor.worker import run_monitor
    from supervisor.statistics.worker import run_statistics

    portals = config.all_portals
    if len(portals) + OTHERS > MAX_WORKERS:
        raise ConfigError(f"{len(portals)} portals, at most {MAX_WORKERS - OTHERS} are possible", file=config.file)

    def portal(part: EndpointConfig | PeerConfig) -> WorkerSpec:
        if isinstance(part, PeerConfig):
            live = live_fields("peer")
            return WorkerSpec(part.name, Role.PEER, lambda ctx: run_peer(ctx, part, config), part, live)
        live = live_fields("endpoint")
        return WorkerSpec(part.name, Role.ENDPOINT, lambda ctx: run_endpoint(ctx, part, config), part, live)

    first = WorkerSpec(ROUTE_MANAGER_NAME, Role.ROUTE_MANAGER, lambda ctx: run_route_manager(ctx, config))
    found = [first, *map(portal, portals)]
    if (where := config.daemon.web_monitor) is not None:
        found.append(WorkerSpec(MONITOR_NAME, Role.MONITOR, lambda ctx: run_monitor(ctx, where, config)))
    if statistics_on(config):
        found.append(WorkerSpec(STATISTICS_NAME, Role.STATISTICS, lambda ctx: run_statistics(ctx, config)))
    if history is not None:
        found.append(WorkerSpec(HISTORY_NAME, Role.HISTORY, lambda ctx: run_history(ctx, history, config)))
    return found
