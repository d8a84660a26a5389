"""A portal that has done nothing, as `tnwgdctl portals` gets it."""

from __future__ import annotations

from supervisor.admin.status import PortalStatus


def idle(name: str, state: str = "ready", **counters: int) -> PortalStatus:
    """`counters`: those that are not 0, by the names of their slots."""
    return PortalStatus(name, "endpoint", state, 0, 0, 1, {"QUEUE_LIMIT": 100} | counters)
