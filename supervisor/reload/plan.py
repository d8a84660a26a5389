"""The reload plan: for a changed configuration, which parts change in place and which portals are restarted.

Pure: two configurations in, a plan out. Its actions are in order of execution: changes in place, removals, additions,
restarts, and at last additions that need what a restarted portal releases (its domain, its resolver channel, its port).
Portals that no action names are not affected.

Called by the reload of a running DRO, by `tnwgdctl diff`, and by tests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from dro.config.change.difference import Portal, differences, keep_daemon, portals_of, with_portals
from dro.config.change.element_difference import Change
from dro.config.change.reload_class import ReloadClass
from dro.config.dro_xml.model import DroConfig, EndpointConfig, statistics_on
from dro.config.um.interfaces import ANY
from dro.config.um.sets import RequestOptions, ResolverOptions, UnicastResolverOptions, servers_of, uses_multicast
from supervisor.admin.status import ROUTE_MANAGER_NAME
from supervisor.parent.process_plan import STATISTICS_NAME

LOG: Final = "log"


class ActionKind(Enum):
    """What happens to the target of an action, in the order of a reload."""

    LIVE = "change in place"
    REMOVE = "drain and remove"
    ADD = "start"
    RESTART = "restart"
    PENDING = "waits for a restart of the daemon"


@dataclass(frozen=True, slots=True)
class Action:
    """`target` is a portal, or with `of_daemon` `route-manager`, `statistics`, `log`, or for PENDING the element that
    waits."""

    kind: ActionKind
    target: str
    of_daemon: bool = False


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    """All changes, and what is done about them. A plan without actions changes nothing in the running DRO."""

    changes: tuple[Change, ...]
    actions: tuple[Action, ...]
    late: frozenset[str] = frozenset()
    """The portals that start after the restarts."""

    def portals(self, kind: ActionKind) -> tuple[str, ...]:
        """The portals that something happens to."""
        return tuple(action.target for action in self.actions if action.kind is kind and not action.of_daemon)

    def has_live(self, target: str) -> bool:
        """Whether something of the daemon itself changes in place."""
        return Action(ActionKind.LIVE, target, of_daemon=True) in self.actions

    @property
    def pending(self) -> tuple[Change, ...]:
        """Changes that wait for a restart of the daemon."""
        return tuple(change for change in self.changes if change.reload is ReloadClass.DAEMON)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Say what applications notice of it."""
        return tuple(
            f"{change.path}: {change.old} -> {change.new}: every other DRO of this TRD needs {change.new} as well; "
            f"applications of this library take it when no DRO tells {change.old} any more, those of the commercial "
            "product hear nothing of this DRO until they are started anew"
            for change in self.changes
            if change.path.endswith("]/domain-id")
        )

    @property
    def is_empty(self) -> bool:
        """Nothing is to be done now; changes may wait for a restart of the daemon, or have no effect."""
        return all(action.kind is ActionKind.PENDING for action in self.actions)


# Who takes over a change of an element of <daemon>.
LIVE_OWNERS: Final = {
    "log": LOG,
    **dict.fromkeys(("monitor", "daemon-monitor"), STATISTICS_NAME),
    **dict.fromkeys(("route-info", "route-recalculation", "extensions"), ROUTE_MANAGER_NAME),
}


def plan_reload(running: DroConfig, new: DroConfig) -> ReloadPlan:
    """Plan how to come from one configuration to the other."""
    changes = differences(running, new)
    before, after = portals_of(running), portals_of(new)
    parts: dict[str, None] = {}  # of the daemon
    live: dict[str, None] = {}
    restarts: dict[str, None] = {}
    pending: dict[str, None] = {}
    for change in changes:
        element = _element(change.path)
        match change.reload:
            case ReloadClass.DAEMON:
                pending[element] = None
            case ReloadClass.LIVE if not change.portal:
                parts[LIVE_OWNERS[element]] = None
            case ReloadClass.LIVE:
                live[change.portal] = None
            case ReloadClass.PORTAL:
                restarts[change.portal] = None
            case ReloadClass.NONE:
                pass
    is_told = statistics_on(running) and statistics_on(new)
    if is_told and any(change.reload in (ReloadClass.LIVE, ReloadClass.PORTAL) for change in changes):
        parts[STATISTICS_NAME] = None
    removed = [name for name in before if name not in after or type(before[name]) is not type(after[name])]
    added = [name for name in after if name not in before or name in removed]
    for name in (*removed, *added):
        restarts.pop(name, None)
    given_up = frozenset[object]().union(*(needs(before[name]) for name in restarts))
    late = frozenset(name for name in added if needs(after[name]) & given_up)
    actions = [
        *(Action(ActionKind.LIVE, part, of_daemon=True) for part in parts),
        *(Action(ActionKind.LIVE, name) for name in live if name not in restarts),
        *(Action(ActionKind.REMOVE, name) for name in removed),
        *(Action(ActionKind.ADD, name) for name in added if name not in late),
        *(Action(ActionKind.RESTART, name) for name in restarts),
        *(Action(ActionKind.ADD, name) for name in added if name in late),
        *(Action(ActionKind.PENDING, element, of_daemon=True) for element in pending),
    ]
    return ReloadPlan(changes, tuple(actions), late)


def _element(path: str) -> str:
    """Find the child of the daemon or of a portal that a path leads through; names of portals may hold anything."""
    return path.removeprefix("daemon/").partition("/")[0].partition("@")[0]


def needs(portal: Portal) -> frozenset[object]:
    """Return what no two portals can have at once: a domain, a resolver channel, a port that is not of a range."""
    found: set[object] = set()
    if isinstance(portal, EndpointConfig):
        found.add(("domain", portal.domain_id))
    resolver, unicast = ResolverOptions.of(portal.um), UnicastResolverOptions.of(portal.um)
    if isinstance(portal, EndpointConfig):
        found.update((name, at.address, at.port) for name, servers in servers_of(portal.um).items() for at in servers)
        found.update(("port", at.interface, at.ports.start) for at in unicast.places() if len(at.ports) == 1)
        if uses_multicast(portal.um) and resolver.incoming_address != ANY:
            found.add(("resolver", resolver.incoming_address, resolver.incoming_port, resolver.interface))
    request = RequestOptions.of(portal.um)
    if request.port:
        found.add(("port", request.interface, request.port))
    return frozenset(found)


def after_reload(running: DroConfig, new: DroConfig, plan: ReloadPlan) -> DroConfig:
    """The configuration that runs when the plan was carried out: the new one, but for what waits for a restart."""
    return keep_daemon(running, new, frozenset(_element(change.path) for change in plan.pending))


def part_for(config: DroConfig, only: frozenset[str] | None) -> DroConfig:
    """Return what these workers have to read: the rest would hold up their traffic. The tree is for the parent."""
    part = config if only is None or STATISTICS_NAME in only else with_portals(config, only)
    return replace(part, tree=None)
