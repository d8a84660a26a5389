"""Records of `tnwgdctl status` and `portals`, sent over the admin socket."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dro.metrics.slots import DROP_SLOTS, Slot
from dro.metrics.table import PORTAL_TYPES, drop_reasons

_SERVER_SLOTS: Final = {
    "lbmrd": (Slot.LBMRDS, Slot.LBMRDS_ANSWERING, Slot.LBMRDS_WHICH),
    "SRS": (Slot.SRSES, Slot.SRSES_ANSWERING, Slot.SRSES_WHICH),
}
ROUTE_MANAGER: Final = "route manager"
"""The role."""
ROUTE_MANAGER_NAME: Final = "route-manager"
"""The worker."""
DEGRADED: Final = "degraded"
"""State of a process that works, but cannot do all that it should."""
WORKING: Final = ("ready", "draining", DEGRADED)
"""States of a process that answers; in any other one its gauges tell of the past."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One process of the DRO; one that is not running has pid 0."""

    name: str
    role: str  # route manager, endpoint, ...
    index: int
    state: str
    pid: int
    incarnation: int
    restarts: int  # lives after the first, whatever ended the earlier ones
    uptime_s: float  # of this life; 0 when it is not running
    last_death: str  # how its last life ended; empty when it still has its first
    operation: str = ""  # what an operator has ordered and is not done
    trouble: str = ""  # why it is degraded
    version: str = ""  # of its program; empty when it is not running

    @property
    def is_portal(self) -> bool:
        return self.role in PORTAL_TYPES

    @property
    def is_resting(self) -> bool:
        """Stopped by an operator, until it is resumed."""
        return self.state in ("paused", "drained")


@dataclass(frozen=True, slots=True)
class PortalPlace:
    """What the configuration says of a portal."""

    name: str
    domain_id: int  # 0 of a peer portal
    cost: int
    resolved_by: tuple[str, ...] = ()  # of an endpoint: groups, or lbmrd or SRS and addresses


@dataclass(frozen=True, slots=True)
class DroStatus:
    name: str
    version: str
    node_id: str  # decimal, as in the log; JSON readers would round the number
    pid: int
    uptime_s: float
    config_file: str
    config_loaded: float  # seconds since the epoch
    is_running: bool  # every worker was ready at least once, and the DRO is not stopping
    pending: tuple[str, ...] = ()  # changed elements that wait for a restart of the daemon
    run_dir: str = ""
    workers: tuple[WorkerStatus, ...] = field(default=())
    change: str = ""  # of the configuration, that is under way or waits for its confirmation
    routes: int = -1  # of the last calculation; -1 before the first
    routes_wait_s: float = 0.0  # the first follows so long after the last portal was ready
    portals: tuple[PortalPlace, ...] = ()
    start_s: float = 0.0  # seconds since the epoch
    shm: str = ""  # directory of the counter pages
    is_stopping: bool = False
    logged: dict[str, int] = field(default_factory=dict)  # lines of the parent, by severity

    @property
    def manager(self) -> WorkerStatus | None:
        """The route manager."""
        return next((worker for worker in self.workers if worker.role == ROUTE_MANAGER), None)


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """The configuration in force. `text`: as a file, each value with its origin as a comment, secrets hidden."""

    file: str
    loaded: float  # seconds since the epoch
    text: str


@dataclass(frozen=True, slots=True)
class PortalStatus:
    """One portal, with its counters since the start of the DRO. Fragments and bytes go with the name of the portal that
    sends them into its TRD; those that its full channel refused count as forwarded and dropped here."""

    name: str
    kind: str  # endpoint or peer
    state: str
    domain_id: int
    cost: int
    index: int = -1  # of its worker
    counters: dict[str, int] = field(default_factory=dict)  # by the names of `dro.metrics.slots.Slot`
    resolved_by: tuple[str, ...] = ()  # as of a `PortalPlace`

    def __getitem__(self, slot: Slot) -> int:
        """Look up one counter; 0 when the DRO is of a release that has none of that name."""
        return self.counters.get(slot.name, 0)

    def dropped(self, *traffic: str) -> dict[str, int]:
        """Messages that were dropped, by reason, where they came in and where they leave."""
        reasons = drop_reasons(traffic, self.kind)
        return {reason: sum(self.counters.get(name, 0) for name in names) for reason, names in reasons.items()}

    @property
    def resolution(self) -> str:
        """Tell how topics are resolved, and which of the servers answer."""
        return " and ".join(map(self._with_answers, self.resolved_by))

    def _with_answers(self, way: str) -> str:
        kind, _, servers = way.partition(" ")
        if kind not in _SERVER_SLOTS or not self[_SERVER_SLOTS[kind][0]]:  # or the portal does not work
            return way
        which = self[_SERVER_SLOTS[kind][2]]
        shown = (f"{one} ({'answers' if which >> n & 1 else 'silent'})" for n, one in enumerate(servers.split(", ")))
        return f"{kind} {', '.join(shown)}"

    @property
    def silent_servers(self) -> list[str]:
        """List kinds of servers of which none answers: lbmrd, SRS."""
        return [kind for kind, (listed, answering, _) in _SERVER_SLOTS.items() if self[listed] and not self[answering]]

    @property
    def is_cut_off(self) -> bool:
        """Whether topics are resolved by servers alone, and none of them answers."""
        listed = [kind for kind, (slot, *_) in _SERVER_SLOTS.items() if self[slot]]
        return bool(listed) and listed == self.silent_servers and len(self.resolved_by) == len(listed)

    @property
    def dropped_total(self) -> int:
        """Fragments of sources that were not sent."""
        return sum(self[slot] for slot in DROP_SLOTS.values())


@dataclass(frozen=True, slots=True)
class PortalsStatus:
    """All portals at one moment."""

    time_s: float  # of a monotonic clock, for rates
    portals: tuple[PortalStatus, ...]


@dataclass(frozen=True, slots=True)
class OperationResult:
    """What an operation on a portal has come to. `note` tells what was not clean, and is empty otherwise."""

    portal: str
    state: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class UpgradeState:
    """How the upgrade that is under way goes, or how the last one ended."""

    is_under_way: bool = False
    former: str = ""  # version before; empty when there was no upgrade
    version: str = ""  # that the DRO goes to while it is under way, then that it has
    problem: str = ""  # why it has gone back, or goes back
    remedy: str = ""
    left: int = 0  # processes that are still to be replaced


@dataclass(frozen=True, slots=True)
class LeaveResult:
    """What `drain --all` has come to: the DRO ends next. `notes` tell what was not clean, and are empty otherwise.

    `paths` between domains led through this DRO to the end, as there is no other way; -1 when routes did not follow in
    time.
    """

    paths: int
    drained: tuple[str, ...]
    notes: tuple[str, ...] = ()
