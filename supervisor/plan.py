"""Which processes a configuration asks for: the route manager first, then one per portal in order.

The modules of the workers are imported here, before the first fork, so that a restarted worker starts in
milliseconds.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final, cast

from dro.bus.actor import WorkerContext
from dro.bus.counters import MAX_WORKERS
from dro.bus.messages import Role
from dro.config.model import DroConfig, EndpointConfig
from dro.errors import ConfigError
from supervisor.fleet import WorkerSpec

ENTRIES: Final = {
    Role.ROUTE_MANAGER: ("router.worker", "run_route_manager"),
    Role.ENDPOINT: ("portals.endpoint.main", "run_endpoint"),
}
ROUTE_MANAGER_NAME: Final = "route-manager"

RouteManagerMain = Callable[[WorkerContext, DroConfig], object]
EndpointMain = Callable[[WorkerContext, EndpointConfig, DroConfig], object]


def _entry(role: Role) -> object:
    module, function = ENTRIES[role]
    return getattr(importlib.import_module(module), function)


def plan_of(config: DroConfig) -> list[WorkerSpec]:
    """One entry per process; the place in the list is the worker's index. Raises: ConfigError."""
    if len(config.portals) >= MAX_WORKERS:
        raise ConfigError(f"{len(config.portals)} portals, at most {MAX_WORKERS - 1} are possible", file=config.file)
    route_manager = cast(RouteManagerMain, _entry(Role.ROUTE_MANAGER))
    endpoint = cast(EndpointMain, _entry(Role.ENDPOINT))

    def portal(part: EndpointConfig) -> WorkerSpec:
        return WorkerSpec(part.name, Role.ENDPOINT, lambda ctx: endpoint(ctx, part, config))

    first = WorkerSpec(ROUTE_MANAGER_NAME, Role.ROUTE_MANAGER, lambda ctx: route_manager(ctx, config))
    return [first, *map(portal, config.portals)]
