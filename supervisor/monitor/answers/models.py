"""Types of the answers of the admin API that no other program of the DRO has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from pydantic import BaseModel

from dro.bus.listing import PeerRow
from supervisor.admin.explanation import ExplainRecord
from supervisor.admin.status import DroStatus, WorkerStatus
from supervisor.explain.first_reason import PathFinding
from supervisor.explain.network import SharedPath

R = TypeVar("R")
MAX_TEXT: Final = 300  # characters of a topic or name that is looked for
MAX_OFFSET: Final = 10_000_000
MAX_LIMIT: Final = 10_000
MAX_DOMAIN: Final = 2**32 - 1


class Page(BaseModel, Generic[R]):
    """A part of a list. `total`: rows in all; `problems`: why rows of a process are missing."""

    rows: list[R]
    total: int
    offset: int
    limit: int
    problems: list[str]


class Problem(BaseModel):
    """Why a request got no other answer."""

    what: str
    remedy: str = ""


PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    404: {"model": Problem, "description": "there is no such portal, or no path between these domains"},
    422: {"model": Problem, "description": "the request is not understood, or the DRO refuses it"},
    503: {"model": Problem, "description": "the DRO does not answer"},
}
"""Answers that every path may give beside what was asked for."""


class ApiError(Exception):
    """A request that is answered with a `Problem`."""

    def __init__(self, status: int, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.status: Final = status
        self.problem: Final = Problem(what=what, remedy=remedy)


@dataclass(frozen=True, slots=True)
class DroView:
    """Has what the parent said last. `problems`: why the DRO does not forward, or not all that it is configured for;
    `age_s`: of the answer."""

    status: DroStatus
    problems: list[str]
    age_s: float


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One process. Memory is its part of what it shares; CPU since it started."""

    worker: WorkerStatus
    cpu_s: float
    resident_bytes: int
    threads: int
    open_fds: int
    longest_turn_s: float


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """Figures of the C library's allocator in one process: bytes, but for two counts (`ordblks`, `hblks`)."""

    worker: str
    arena: int
    ordblks: int
    hblks: int
    hblkhd: int
    uordblks: int
    fordblks: int


@dataclass(frozen=True, slots=True)
class HopView:
    """One DRO of a path; portals have names if it was asked."""

    dro: str
    entered_at: str
    left_at: str
    ingress_cost: int
    egress_cost: int
    was_asked: bool


@dataclass(frozen=True, slots=True)
class ExplainView:
    """How a topic gets from one domain to another: what the configuration of this DRO says, and what the DROs on this
    host that are on the path say. `finding` and `path` are empty when both domains are one."""

    configured: ExplainRecord
    finding: PathFinding | None
    path: list[HopView]
    cost: int
    way: SharedPath | None
    problems: list[str]


@dataclass(frozen=True, slots=True)
class EndView:
    """One end of a link: the portal there, its counters and its own view of the link."""

    dro: str
    portal: str
    state: str
    peer: PeerRow | None  # None when its process does not answer
    counters: dict[str, int]


@dataclass(frozen=True, slots=True)
class LinkView:
    """Both ends of a link. `far` is known when the DRO there runs on this host, for the same user."""

    near: EndView
    far: EndView | None
    problem: str  # why `far` is not known
