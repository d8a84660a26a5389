"""A portal that has done nothing, as `tnwgdctl portals` gets it."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, get_type_hints

from supervisor.admin.status import PortalStatus


def idle(name: str, state: str = "ready", **others: Any) -> PortalStatus:  # noqa: ANN401 - any field
    hints = get_type_hints(PortalStatus)
    values: dict[str, Any] = {
        field.name: {str: "", int: 0}.get(hints[field.name], {})
        for field in fields(PortalStatus)
        if field.default is MISSING and field.default_factory is MISSING
    }
    return PortalStatus(**values | {"name": name, "state": state, "queue_limit_bytes": 100} | others)
