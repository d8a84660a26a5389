"""All transport kinds: one for each folder beside this module, by the `KIND` of its module `kind`.

The folder has the name of the kind in the option `transport`.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from dro import transport
from dro.transport.kind import ImmediateSessions, TransportKind
from dro.wire.source_string import TransportAddress


def find_kinds() -> dict[str, TransportKind[Any]]:
    return {
        module.name: import_module(f"{__package__}.{module.name}.kind").KIND
        for module in pkgutil.iter_modules(transport.__path__)
        if module.ispkg and find_spec(f"{__package__}.{module.name}.kind")
    }


KINDS: Final = find_kinds()


_NEAR: Final = {kind.address: kind.is_near for kind in KINDS.values()}


def is_near(address: TransportAddress) -> bool:
    """Say whether a session may be joined from here, as far as its kind knows."""
    return _NEAR.get(type(address), lambda _: True)(address)


def immediate_kind() -> tuple[str, ImmediateSessions]:
    """The kind that carries multicast immediate messages, with its name."""
    return next((name, kind.immediate) for name, kind in KINDS.items() if kind.immediate is not None)
