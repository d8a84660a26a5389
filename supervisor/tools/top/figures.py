"""From samples to what a viewer sees: rates between two of them, states, what is wrong. It owns the sample before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from dro.clock import duration
from dro.metrics.slots import Slot
from dro.metrics.table import PORTAL, rows
from supervisor.admin.status import WORKING, PortalStatus, WorkerStatus
from supervisor.samples.growth import growth, growth_of_portal
from supervisor.tools.top.problems import ProblemHistory, ShownProblem
from supervisor.tools.top.sample import Complaint, ParentAnswer, Sample

SILENT_S: Final = 3.0
"""A parent that has not answered for so long is said to be silent."""
FULL_PART: Final = 0.8  # of the limit of a queue
_TRAFFIC: Final = tuple(
    dict.fromkeys(
        traffic
        for row in rows(PORTAL)
        if row.metric in ("dropped", "receive_exception")
        for labels in row.labels.values()
        if (traffic := dict(labels or ()).get("traffic"))
    )
)
"""All kinds of it that may be dropped."""


@dataclass(frozen=True, slots=True)
class Count:
    """A counter since the start of the DRO, and its growth; None without an earlier sample of the portal."""

    total: int
    per_s: float | None


@dataclass(frozen=True, slots=True)
class PortalFigures:
    """Fragments of sources, as `tnwgdctl portals` has them; what was dropped, of all traffic."""

    name: str
    kind: str
    state: str
    received: Count
    received_bytes: Count
    sent: Count
    sent_bytes: Count
    dropped: Count
    reason: str  # for which most was dropped meanwhile
    reason_of_all: str  # since the start
    queue_bytes: int
    queue_limit: int
    rtt_ms: float | None  # mean of the answers that came meanwhile, else of those before
    blocked: float | None  # part of the time in which its sends blocked


@dataclass(frozen=True, slots=True)
class ProcessLine:
    name: str
    state: str
    pid: int  # 0: there is none
    cpu_percent: float | None
    memory_bytes: int
    restarts: int
    longest_turn_ms: float


@dataclass(frozen=True, slots=True)
class DroHead:
    name: str
    version: str
    node_id: str
    pid: int
    state: str
    notice: str  # what the viewer has to know of the parent; empty: it answers
    uptime_s: float | None  # None of a dead one
    start_s: float  # since 1970
    routes: int  # -1: none yet
    answer_age_s: float | None  # None: there was no answer


@dataclass(frozen=True, slots=True)
class DroFigures:
    clock_s: float
    head: DroHead
    portals: tuple[PortalFigures, ...]
    processes: tuple[ProcessLine, ...]
    problems: tuple[ShownProblem, ...]  # the latest first
    is_dead: bool


class Figures:
    """Takes samples of one DRO in turn."""

    def __init__(self) -> None:
        self._before: Sample | None = None
        self._problems = ProblemHistory()
        self._rtt_ms: dict[str, float] = {}  # of the portals that have had an answer

    def take(self, sample: Sample) -> DroFigures:
        """Return what is to be seen now."""
        before = self._before or sample
        earlier = {portal.name: portal for portal in before.portals}
        dead = _dead(sample)
        portals = tuple(self._portal(sample, before, p, earlier.get(p.name), dead) for p in sample.portals)
        processes = (_parent_line(sample, before), *(_process(sample, before, w, dead) for w in sample.status.workers))
        head = _head(sample)
        for worker in sample.status.workers:
            if worker.restarts:
                at_s = sample.clock_s - _uptime_s(sample, worker) if worker.pid else sample.clock_s
                text = f"{worker.name} was restarted: {worker.last_death}"
                self._problems.add_once(f"restart {worker.name} {worker.incarnation}", at_s, text)
        now = [*_complaints_of(sample, portals, dead), *sample.complaints]
        if head.notice:
            now.append(Complaint("parent", head.notice))
        self._problems.take(sample.clock_s, now)
        self._before = sample
        problems = tuple(problem for problem in self._problems.latest if problem.text != head.notice)
        return DroFigures(
            sample.clock_s, head, portals, processes, problems, is_dead=sample.parent is ParentAnswer.DEAD
        )

    def _portal(
        self, sample: Sample, before: Sample, portal: PortalStatus, old: PortalStatus | None, dead: frozenset[str]
    ) -> PortalFigures:
        span_s = sample.time_s - before.time_s if old is not None else 0.0
        grown = growth_of_portal(old or portal, portal)

        def count(total: int, step: int) -> Count:
            return Count(total, round(step / span_s, 1) if span_s > 0 else None)

        def count_of(slot: Slot) -> Count:
            return count(portal[slot], grown[slot])

        reasons, recent = portal.dropped(*_TRAFFIC), grown.dropped(*_TRAFFIC)
        blocked = count_of(Slot.SEND_BLOCKED_US).per_s
        self._note_rtt(portal, grown)
        return PortalFigures(
            name=portal.name,
            kind=portal.kind,
            state=_state(portal, dead),
            received=count_of(Slot.TOPIC_RCVD),
            received_bytes=count_of(Slot.TOPIC_RCVD_BYTES),
            sent=count_of(Slot.SENT),
            sent_bytes=count_of(Slot.SENT_BYTES),
            dropped=count(sum(reasons.values()), sum(recent.values())),
            reason=_leading(recent),
            reason_of_all=_leading(reasons),
            queue_bytes=portal[Slot.QUEUED_BYTES],
            queue_limit=portal[Slot.QUEUE_LIMIT],
            rtt_ms=self._rtt_ms.get(portal.name),
            blocked=None if blocked is None else min(blocked / 1e6, 1.0),
        )

    def _note_rtt(self, portal: PortalStatus, grown: PortalStatus) -> None:
        """Note the mean of round trips by their sum and their number meanwhile."""
        if not portal[Slot.RTT_SAMPLES]:
            self._rtt_ms.pop(portal.name, None)
            return
        if samples := grown[Slot.RTT_SAMPLES]:
            self._rtt_ms[portal.name] = round(grown[Slot.RTT_SUM] / samples / 1000, 3)
        else:
            self._rtt_ms.setdefault(portal.name, portal[Slot.RTT_MEAN_US] / 1000)


def _leading(reasons: Mapping[str, int]) -> str:
    reason = max(reasons, key=lambda name: reasons[name], default="")
    return reason if reason and reasons[reason] else ""


def _uptime_s(sample: Sample, worker: WorkerStatus) -> float:
    return worker.uptime_s + sample.time_s - sample.status_s


# states


def _dead(sample: Sample) -> frozenset[str]:
    """Name the workers whose processes have ended since the parent told of them."""
    return frozenset(w.name for w in sample.status.workers if w.pid and w.pid not in sample.living)


def _state(of: PortalStatus | WorkerStatus, dead: frozenset[str]) -> str:
    return "dead" if of.name in dead else of.state


def _process(sample: Sample, before: Sample, worker: WorkerStatus, dead: frozenset[str]) -> ProcessLine:
    figures = sample.processes.get(worker.pid)
    return ProcessLine(
        name=worker.name,
        state=_state(worker, dead) + (f" ({worker.operation})" if worker.operation else ""),
        pid=worker.pid,
        cpu_percent=_cpu(sample, before, worker.pid),
        memory_bytes=figures.resident_bytes if figures is not None else 0,
        restarts=worker.restarts,
        longest_turn_ms=sample.longest_turns_us.get(worker.index, 0) / 1000,
    )


def _parent_line(sample: Sample, before: Sample) -> ProcessLine:
    pid = sample.status.pid
    figures = sample.processes.get(pid)
    states = {ParentAnswer.DEAD: "dead", ParentAnswer.STOPPED: "stopped"}
    state = states.get(sample.parent, "silent" if sample.silent_s >= SILENT_S else "ready")
    memory = figures.resident_bytes if figures is not None else 0
    return ProcessLine("tnwgd", state, pid, _cpu(sample, before, pid), memory, 0, 0.0)


def _cpu(sample: Sample, before: Sample, pid: int) -> float | None:
    now, then = sample.processes.get(pid), before.processes.get(pid)
    span_s = sample.time_s - before.time_s
    if now is None or then is None or span_s <= 0:
        return None
    return round(100 * growth(then.cpu_s, now.cpu_s) / span_s, 1)


def _head(sample: Sample) -> DroHead:
    status = sample.status
    is_dead = sample.parent is ParentAnswer.DEAD
    return DroHead(
        name=status.name,
        version=status.version,
        node_id=status.node_id,
        pid=status.pid,
        state=_state_of_dro(sample),
        notice=_notice(sample),
        uptime_s=None if is_dead else status.uptime_s + sample.time_s - sample.status_s,
        start_s=status.start_s,
        routes=status.routes,
        answer_age_s=sample.time_s - sample.status_s if sample.has_answered else None,
    )


def _state_of_dro(sample: Sample) -> str:
    status = sample.status
    if sample.parent is ParentAnswer.DEAD:
        return "dead"
    if status.is_stopping:
        return "stopping"
    return "running" if status.is_running else "starting"


def _notice(sample: Sample) -> str:
    pid = sample.status.pid
    if sample.parent is ParentAnswer.DEAD:
        living = sum(1 for worker in sample.status.workers if worker.pid in sample.living)
        still = f"; {living} of its processes still run" if living else ""
        end = "is dead" if sample.has_pages else "has ended and its files have been removed"
        return f"the parent (pid {pid}) {end}; these are its last values{still}"
    if sample.silent_s < SILENT_S and sample.parent is ParentAnswer.ALIVE:
        return ""
    silent = f"the parent (pid {pid}) does not answer for {duration(sample.silent_s)}"
    if sample.parent is ParentAnswer.STOPPED:
        silent += f"; a signal has stopped it, kill -CONT {pid} lets it go on"
    return f"{silent}; counters are read from its pages"


# what is wrong


def _complaints_of(sample: Sample, portals: tuple[PortalFigures, ...], dead: frozenset[str]) -> Iterator[Complaint]:
    is_ending = sample.parent is ParentAnswer.DEAD or sample.status.is_stopping
    for worker in () if is_ending else sample.status.workers:
        state = _state(worker, dead)
        if state not in WORKING and not worker.is_resting:
            why = f": {worker.last_death}" if worker.last_death and state != "dead" else ""
            yield Complaint(f"state {worker.name}", f"{worker.name} is {state}{why}")
    for status in () if is_ending else sample.portals:
        for kind in status.silent_servers:
            yield Complaint(f"resolver {status.name} {kind}", f"{status.name} gets no answer from any {kind}")
    for portal in portals:
        if portal.dropped.per_s:
            text = f"{portal.name} drops {portal.dropped.per_s:g} messages/s, most for {portal.reason}"
            yield Complaint(f"drops {portal.name} {portal.reason}", text)
        if portal.queue_limit and portal.queue_bytes >= FULL_PART * portal.queue_limit:
            part = 100 * portal.queue_bytes // portal.queue_limit
            yield Complaint(f"queue {portal.name}", f"the queue of {portal.name} is full to {part} %")
