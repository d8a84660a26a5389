"""How a changed value takes effect in a running DRO: the reload class of each element of the file.

An element has the class of the element around it, unless its row has one of its own. Called by the reload and by the
reference of the configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cache

from dro.config.reading.schema import elements, fields_of, is_used
from dro.config.um.options import Option
from dro.config.um.used import MONITORING, used_options


class ReloadClass(Enum):
    """How a change comes into force."""

    LIVE = "live"
    PORTAL = "portal restart"
    DAEMON = "daemon restart"
    NONE = "no effect"


@cache
def reload_class(element: str) -> ReloadClass:
    """The class of an element of the table, its attributes included; of one with several parents, below the first."""
    spec = elements()[element]
    if spec.reload:
        return ReloadClass(spec.reload)
    return reload_class(next(parent for parent in spec.parents if elements()[parent].status != "eliminated"))


def reload_class_at(path: Sequence[str]) -> ReloadClass:
    """The class of an element at a place, from `daemon`, `endpoint` or `peer` down: some names stand in several."""
    stated = [elements()[name].reload for name in path if elements()[name].reload]
    return ReloadClass(stated[-1]) if stated else ReloadClass.PORTAL


@cache
def live_fields(element: str) -> tuple[str, ...]:
    """The fields of the record of an element that may change in place, and that something uses."""
    living = [name for name in elements()[element].children if reload_class_at((element, name)) is ReloadClass.LIVE]
    return tuple(field for name in living if is_used(name) for field in fields_of(name))


def um_reload_class(option: Option) -> ReloadClass:
    """The class of a UM option: contexts, sources and receivers of a portal take their options when they are made.

    One that no portal asks for is no reason to restart one: applications and portals share files. Those of monitoring
    count where they come to something, in `<monitor>`.
    """
    is_used = option.relevance == "yes" and option.key in used_options(in_portals=True).difference(MONITORING)
    return ReloadClass.PORTAL if is_used else ReloadClass.NONE
