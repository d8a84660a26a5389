"""The workers of one DRO as records: its role, its state, and the table of legal transitions.

A worker index is not reused while there are others, so that counters and accounting keep their meaning. Only the parent
has such records.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from dro.bus.actor import WorkerMain
from dro.bus.control import ControlSocket
from dro.bus.counters import MAX_WORKERS
from dro.bus.messages import ParentMessage, Ready, Role, StartFailed, WorkerReport
from dro.clock import NS_PER_S
from dro.errors import LocalProtocolError, RefusedError
from dro.timers import Timer
from supervisor.admin.status import DEGRADED, WorkerStatus
from supervisor.parent.backoff import Backoff


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker of a configuration; names are unique."""

    name: str
    role: Role
    main: WorkerMain
    part: object = None
    """Its part of the configuration; lives with equal ones can go on one from the other."""
    live: tuple[str, ...] = ()
    """Fields of that part, a record, that a running process takes over."""

    def taken_over(self, before: Any) -> object:  # noqa: ANN401
        """Return the part that a process has which was started with `before`, and has taken over this one."""
        return replace(before, **{name: getattr(self.part, name) for name in self.live}) if self.live else before

    @property
    def is_portal(self) -> bool:
        return self.role in (Role.ENDPOINT, Role.PEER)

    @property
    def is_on_bus(self) -> bool:
        """Whether it and its siblings talk to each other; the others only look."""
        return self.role in (Role.ROUTE_MANAGER, Role.ENDPOINT, Role.PEER)


class WorkerState(Enum):
    WAITING = "waiting"  # for its next start
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"  # ordered to give up its traffic; still announced to its siblings
    STOPPING = "stopping"  # ordered to end
    PAUSED = "paused"  # not running until an operator resumes it
    DRAINED = "drained"  # alike, and it lost nothing
    REMOVED = "removed"  # for good
    ENDED = "ended"  # with the DRO


class Event(Enum):
    """What happens to a worker, or is decided about it."""

    FORKED = "forked"
    BECAME_READY = "became ready"
    DRAIN = "ordered to drain"
    STOP = "ordered to stop"
    AGAIN = "shall be started"
    PAUSED = "rests, paused"  # its process is gone, and so on
    DRAINED = "rests, drained"
    REMOVED = "is taken out"
    OVER = "ends with the DRO"


_LIVING: Final = (WorkerState.STARTING, WorkerState.READY, WorkerState.DRAINING, WorkerState.STOPPING)
_RESTING: Final = (WorkerState.PAUSED, WorkerState.DRAINED)

TRANSITIONS: Final[Mapping[tuple[WorkerState, Event], WorkerState]] = {
    (WorkerState.WAITING, Event.FORKED): WorkerState.STARTING,
    (WorkerState.STARTING, Event.BECAME_READY): WorkerState.READY,
    (WorkerState.STOPPING, Event.BECAME_READY): WorkerState.STOPPING,  # its report crossed the order
    (WorkerState.READY, Event.DRAIN): WorkerState.DRAINING,
    **{
        (state, Event.STOP): WorkerState.STOPPING
        for state in (WorkerState.STARTING, WorkerState.READY, WorkerState.DRAINING)
    },
    **{
        (s, Event.AGAIN): WorkerState.WAITING
        for s in (WorkerState.STARTING, WorkerState.READY, WorkerState.STOPPING, *_RESTING)
    },
    **{(state, Event.PAUSED): WorkerState.PAUSED for state in (WorkerState.WAITING, *_LIVING)},
    **{(state, Event.DRAINED): WorkerState.DRAINED for state in (WorkerState.WAITING, *_LIVING)},
    **{(state, Event.REMOVED): WorkerState.REMOVED for state in (WorkerState.WAITING, *_LIVING, *_RESTING)},
    **{(state, Event.OVER): WorkerState.ENDED for state in (WorkerState.WAITING, *_LIVING, *_RESTING)},
}
"""Every legal move; anything else is a bug of ours."""


@dataclass(slots=True, eq=False)
class Worker:
    """One worker. `move` is the only way to change its state."""

    spec: WorkerSpec
    index: int
    state: WorkerState = WorkerState.WAITING
    incarnation: int = 0
    pid: int = 0
    pidfd: int = -1
    control: ControlSocket[ParentMessage, WorkerReport] | None = None
    ready: Ready | None = None
    is_announced: bool = False  # in this life, to its siblings
    failure: StartFailed | None = None
    was_ready: bool = False  # in any life
    unanswered: int = 0  # pings since its last report
    starts: int = 0
    program: int = 0  # that its process was forked from, see `WorkerProcesses.program`
    version: str = ""  # of that program
    started_ns: int = 0  # of this life
    last_death: str = ""
    operation: str = ""  # what an operator ordered and is not done
    hands_over: bool = False  # this life was ordered to end so that the next one goes on from it
    is_tried: bool = False  # if its next life fails to start, another program goes on from this one
    trouble: str = ""  # of this life: why it cannot do all that it should
    config_serial: int = 0  # of the configuration that this life has
    restart: Timer | None = None
    backoff: Backoff = field(default_factory=lambda: Backoff(random.random))

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def is_alive(self) -> bool:
        return self.state in _LIVING

    @property
    def is_resting(self) -> bool:
        """Not running because an operator wants it so."""
        return self.state in _RESTING

    def move(self, event: Event) -> None:
        """Go to the state after the event. Raises: LocalProtocolError for what cannot happen in this state."""
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise LocalProtocolError(f"worker {self.name} is {self.state.value} and {event.value}")
        self.state = following

    def forget(self) -> None:
        """Drop, after its removal, the configuration that its main function holds."""
        self.spec = removed_spec(self.spec.name, self.spec.role)

    def cancel_restart(self) -> None:
        if self.restart is not None:
            self.restart.cancel()
            self.restart = None

    def status(self, now_ns: int) -> WorkerStatus:
        return WorkerStatus(
            name=self.name,
            role=self.spec.role.name.lower().replace("_", " "),
            index=self.index,
            state=DEGRADED if self.trouble and self.state is WorkerState.READY else self.state.value,
            pid=self.pid if self.is_alive else 0,
            incarnation=self.incarnation,
            restarts=max(0, self.starts - 1),
            uptime_s=round((now_ns - self.started_ns) / NS_PER_S, 3) if self.is_alive else 0.0,
            last_death=self.last_death,
            operation=self.operation,
            trouble=self.trouble,
            version=self.version if self.is_alive else "",
        )


def removed_spec(name: str, role: Role) -> WorkerSpec:
    """Make the spec of a worker that is not to run again."""
    return WorkerSpec(name, role, _never)


def _never(_ctx: object) -> None:
    """Refuse to do what a removed worker would do."""
    raise LocalProtocolError("a removed worker was started")


class Workers:
    """All workers that this DRO has or had, the place of each being its index."""

    def __init__(self, specs: Sequence[WorkerSpec]) -> None:
        self._all = [Worker(spec, index) for index, spec in enumerate(specs)]

    def ever(self) -> Sequence[Worker]:
        """All of them, also those that were removed, by index."""
        return self._all

    def adopt(self, workers: Sequence[Worker]) -> None:
        """Be these, in the order of their indexes."""
        self._all[:] = workers

    def __iter__(self) -> Iterator[Worker]:
        """Those that belong to the DRO now."""
        return (worker for worker in self._all if worker.state is not WorkerState.REMOVED)

    def find(self, name: str) -> Worker | None:
        return next((worker for worker in self if worker.name == name), None)

    def of(self, name: str) -> Worker:
        """Find a portal's worker. Raises: RefusedError that names the portals there are."""
        worker = self.find(name)
        if worker is None:
            known = ", ".join(w.name for w in self if w.spec.is_portal)
            raise RefusedError(f"this DRO has no portal {name!r}", remedy=f"it has {known}" if known else "")
        return worker

    def add(self, spec: WorkerSpec) -> Worker:
        """A new record with the next index, or that of the worker that left longest ago. Raises: RefusedError.

        To its siblings, whoever gets a former index is a new incarnation of the one that left.
        """
        if self.find(spec.name) is not None:
            raise RefusedError(f"this DRO has a portal {spec.name!r} already")
        if len(self._all) < MAX_WORKERS:
            self._all.append(Worker(spec, len(self._all)))
            return self._all[-1]
        gone = [worker for worker in self._all if worker.state is WorkerState.REMOVED]
        if not gone:
            raise RefusedError(f"this DRO has {MAX_WORKERS - 1} portals, more are not possible", remedy="remove one")
        index = min(gone, key=lambda worker: worker.incarnation).index
        self._all[index] = Worker(spec, index)
        return self._all[index]

    def working_siblings(self, apart_from: Worker) -> list[Worker]:
        """The siblings that are to be connected with this worker."""
        return [w for w in self._others(apart_from) if w.state in (WorkerState.READY, WorkerState.DRAINING)]

    def informed_siblings(self, apart_from: Worker) -> list[Worker]:
        """The siblings that were connected with others: they have to be informed when this worker goes."""
        return [w for w in self._others(apart_from) if w.is_alive and w.is_announced]

    def _others(self, worker: Worker) -> Iterator[Worker]:
        return (w for w in self if w is not worker and w.spec.is_on_bus and worker.spec.is_on_bus)
