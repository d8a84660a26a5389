"""What it takes for a changed value to hold in a running DRO: one class for each element of the file.

An element has the class of what is around it, unless the table names it. Called by whoever applies a changed file and
by the reference of the configuration.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import cache
from typing import Final

from dro.config.options import Option
from dro.config.schema import elements
from dro.config.um_used import used_options


class ReloadClass(Enum):
    """How a change comes into force."""

    LIVE = "live"
    PORTAL = "portal restart"
    DAEMON = "daemon restart"
    NONE = "no effect"


_CLASSES: Final = {
    "tnw-gateway": ReloadClass.DAEMON,
    "daemon": ReloadClass.DAEMON,
    "log": ReloadClass.LIVE,
    "lbm-license-file": ReloadClass.NONE,
    "topicmap": ReloadClass.NONE,
    "patternmap": ReloadClass.NONE,
    "monitor": ReloadClass.LIVE,
    "web-monitor": ReloadClass.LIVE,
    "daemon-monitor": ReloadClass.LIVE,
    "xml-config": ReloadClass.PORTAL,
    "route-info": ReloadClass.LIVE,
    "route-recalculation": ReloadClass.LIVE,
    "portals": ReloadClass.PORTAL,
    "cost": ReloadClass.LIVE,
    "source-deletion-delay": ReloadClass.LIVE,
    "max-queue": ReloadClass.LIVE,
    "smart-batch": ReloadClass.LIVE,
    "acl": ReloadClass.LIVE,
    "topic-resolution": ReloadClass.LIVE,
    "remote-topic": ReloadClass.LIVE,
    "remote-pattern": ReloadClass.LIVE,
    "context-query": ReloadClass.LIVE,
    "publishing-interval": ReloadClass.LIVE,
    "batching": ReloadClass.LIVE,
    "gateway-keepalive": ReloadClass.LIVE,
}
# Of elements with several parents: the one whose class counts.
_COUNTS: Final = {"name": "portals", "lbm-config": "portals"}
_PORTALS: Final = ("endpoint", "peer")


@cache
def reload_class(element: str) -> ReloadClass:
    """The class of an element of the table, its attributes included."""
    spec = elements()[element]
    if spec.status == "eliminated" or (spec.status == "yes" and spec.parents[0] in _PORTALS):
        return _CLASSES.get(element, ReloadClass.NONE)
    known = _CLASSES.get(element)
    if known is not None:
        return known
    living = [parent for parent in spec.parents if elements()[parent].status != "eliminated"]
    return reload_class(_COUNTS.get(element, living[-1]))


def reload_class_at(path: Sequence[str]) -> ReloadClass:
    """The class of an element at a place, from `daemon`, `endpoint` or `peer` down: some names stand in several."""
    found = ReloadClass.PORTAL if path[0] in _PORTALS else ReloadClass.DAEMON
    for name in path:
        spec = elements()[name]
        if spec.status == "eliminated" or (spec.status == "yes" and spec.parents[0] in _PORTALS):
            found = ReloadClass.NONE
        found = _CLASSES.get(name, found)
    return found


def um_reload_class(option: Option) -> ReloadClass:
    """The class of a UM option: contexts, sources and receivers of a portal take their options when they are made.

    One that no portal asks for is no reason to restart one: applications and portals share files.
    """
    is_used = option.relevance == "yes" and option.key in used_options(in_portals=True)
    return ReloadClass.PORTAL if is_used else ReloadClass.NONE
