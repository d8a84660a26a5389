"""What is seen of one DRO at one moment, as records; who takes samples is `looker`, who compares them `figures`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from supervisor.admin.status import DroStatus, PortalStatus
from supervisor.samples.processes import ProcessFigures


class ParentAnswer(Enum):
    ALIVE = "alive"
    STOPPED = "stopped"  # by a signal, until SIGCONT
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Complaint:
    """Something that is not as it should be, told by the DRO. `about` is the same for as long as it is the same."""

    about: str
    text: str


@dataclass(frozen=True, slots=True)
class Sample:
    time_s: float  # of the monotonic clock
    clock_s: float  # since 1970
    status: DroStatus
    status_s: float  # when the parent told or wrote it, of the monotonic clock
    silent_s: float  # for so long the parent has not answered; 0 when its last answer has just come
    parent: ParentAnswer
    has_answered: bool = True  # else the status is from its file
    living: frozenset[int] = frozenset()  # process ids
    has_pages: bool = True  # else the portals are those of an earlier sample
    portals: tuple[PortalStatus, ...] = ()
    processes: Mapping[int, ProcessFigures] = field(default_factory=dict)  # by process id
    longest_turns_us: Mapping[int, int] = field(default_factory=dict)  # by index of the worker
    complaints: tuple[Complaint, ...] = ()
