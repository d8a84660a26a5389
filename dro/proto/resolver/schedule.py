"""When topic resolution records are sent: phases, doubling intervals, and ticks.

State: per object (own source, receiver topic, wildcard receiver, context name) the phase and the next ideal due time.
Called by the resolver cores; does not send. Time is int ns.

    INITIAL     first record at the start, then the minimum interval, doubled after each record up to the maximum;
                ends with the first record at or after its duration
    SUSTAINING  one record per interval, ends the same way
    QUIESCENT   nothing until something wakes it

A record leaves at the first tick at or after its due time, and the next due time counts from the due time, so delays do
not accumulate. While it waits for a rate limit no other falls due, and its phase lasts until it has left. Source: UM
documentation of the resolver options and rates, and a real capture for the record after the duration (5130, 5100 ms).
Guess: ticks are on a grid common to all schedules, whose origin the owner gives.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import ClassVar, Final

from dro.clock import NS_PER_MS, NS_PER_S

INITIAL_ADVERTISEMENT_TICK_NS: Final = 10 * NS_PER_MS
INITIAL_QUERY_TICK_NS: Final = 20 * NS_PER_MS
WILDCARD_TICK_NS: Final = 30 * NS_PER_MS
SUSTAIN_TICK_NS: Final = 100 * NS_PER_MS


class Phase(Enum):
    INITIAL = "initial"
    SUSTAINING = "sustaining"
    QUIESCENT = "quiescent"


_INITIAL, _SUSTAINING = Phase.INITIAL, Phase.SUSTAINING  # members of an enum are looked up slowly


@dataclass(frozen=True, slots=True)
class AdvertisingOptions:
    """`resolver_*advertisement*` of one source. Intervals 0: phase off; durations 0: phase without end."""

    send_initial: bool = True  # one record at creation, before the phases
    minimum_initial_interval_ns: int = 10 * NS_PER_MS
    maximum_initial_interval_ns: int = 500 * NS_PER_MS
    minimum_initial_duration_ns: int = 5000 * NS_PER_MS
    sustain_interval_ns: int = 1000 * NS_PER_MS
    minimum_sustain_duration_ns: int = 60 * NS_PER_S
    send_immediate_response: bool = True


@dataclass(frozen=True, slots=True)
class QueryOptions:
    """`resolver_query_*` of one receiver, and its thresholds."""

    minimum_initial_interval_ns: int = 20 * NS_PER_MS
    maximum_initial_interval_ns: int = 200 * NS_PER_MS
    minimum_initial_duration_ns: int = 5000 * NS_PER_MS
    sustain_interval_ns: int = 1000 * NS_PER_MS
    minimum_sustain_duration_ns: int = 60 * NS_PER_S
    source_threshold: int = 10_000_000  # known sources that end the sustaining phase; 0 = no queries at all
    no_source_threshold: int = 0  # unanswered queries that make a notification; 0 = none
    use_hotlink: bool = False  # join the sessions of all planes


@dataclass(frozen=True, slots=True)
class WildcardQueryOptions:
    """`resolver_query_*` of one wildcard receiver, and what becomes of its sub-receivers without a source."""

    minimum_interval_ns: int = 50 * NS_PER_MS
    maximum_interval_ns: int = 1000 * NS_PER_MS
    minimum_duration_ns: int = 60 * NS_PER_S
    no_source_threshold: int = 10  # unanswered queries for a topic that only patterns want
    no_source_linger_ns: int = 1000 * NS_PER_MS


def tick_at(due_ns: int, tick_ns: int, grid_ns: int) -> int:
    """The first tick at or after `due_ns`; ticks lie at `grid_ns` plus multiples of `tick_ns`."""
    return grid_ns - (grid_ns - due_ns) // tick_ns * tick_ns if tick_ns > 0 else due_ns


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """What a schedule goes by; very many have the same. Intervals and durations as in the options, 0 likewise.

    `first_at_once`: the first record leaves at the start, not at the first tick after it.
    """

    minimum_ns: int
    maximum_ns: int
    duration_ns: int
    tick_ns: int
    first_at_once: bool
    sustain_interval_ns: int = 0
    sustain_duration_ns: int = 0
    sustain_tick_ns: int = SUSTAIN_TICK_NS
    grid_ns: int = 0


@lru_cache(maxsize=256)
def plan_of(plan: SchedulePlan) -> SchedulePlan:
    """The plan that is followed: no interval is below its tick, and all of one kind are one object."""
    is_off = plan.minimum_ns <= 0 or plan.maximum_ns <= 0
    minimum_ns = 0 if is_off else max(plan.minimum_ns, plan.tick_ns)
    interval_ns = plan.sustain_interval_ns
    return replace(
        plan,
        minimum_ns=minimum_ns,
        maximum_ns=max(plan.maximum_ns, minimum_ns),
        sustain_interval_ns=max(interval_ns, plan.sustain_tick_ns) if interval_ns > 0 else 0,
    )


class PhasedSchedule:
    """The schedule of a record that has an initial and perhaps a sustaining phase; the classes below name the uses."""

    __slots__ = ("_due_ns", "_interval_ns", "_phase_start_ns", "_plan", "_quiet_until_ns", "phase")

    def __init__(self, plan: SchedulePlan, start_ns: int) -> None:
        self._plan = plan_of(plan)
        self.restart(start_ns)

    def restart(self, now_ns: int) -> None:
        """Begin again with the initial phase."""
        self._quiet_until_ns = now_ns
        self._phase_start_ns = now_ns
        self._due_ns = now_ns
        self._interval_ns = self._plan.minimum_ns
        self.phase = Phase.INITIAL
        if self._plan.minimum_ns == 0:
            self._enter_sustaining(now_ns)

    @property
    def is_at_start(self) -> bool:
        """Whether no record has been due yet."""
        return self.phase is Phase.INITIAL and self._due_ns == self._phase_start_ns

    def stop(self) -> None:
        self.phase = Phase.QUIESCENT

    def next_due(self) -> int | None:
        """Return when the next record leaves, ticks included; None while quiescent."""
        phase, due_ns, plan = self.phase, self._due_ns, self._plan
        if phase is _INITIAL:
            if plan.first_at_once and due_ns == self._phase_start_ns:
                return due_ns
            tick_ns = plan.tick_ns
        elif phase is _SUSTAINING:
            tick_ns = plan.sustain_tick_ns
        else:
            return None
        return tick_at(due_ns, tick_ns, plan.grid_ns) if tick_ns > 0 else due_ns

    def on_tick(self, now_ns: int) -> bool:
        """Whether one record leaves now; what was missed since it was due is not made up for.

        A phase ends with a record: the one that leaves late begins the next phase late.
        """
        phase, is_due = self.phase, False
        due = self.next_due()
        while due is not None and due <= now_ns:
            if self.phase is not phase:
                self._enter_sustaining(now_ns)
                break
            is_due = True
            self._skip(now_ns)
            due = self.next_due()
        return is_due

    def _advance(self) -> None:
        """Find the next due time and the phase, as the record due at `_due_ns` was sent."""
        sent_ns = self._due_ns
        age_ns = sent_ns - self._phase_start_ns
        if self.phase is _INITIAL:
            if 0 < self._plan.duration_ns <= age_ns:
                self._enter_sustaining(sent_ns)
                return
            self._due_ns = sent_ns + self._interval_ns
            self._interval_ns = min(self._interval_ns * 2, self._plan.maximum_ns)
        elif 0 < self._plan.sustain_duration_ns <= age_ns:
            self.phase = Phase.QUIESCENT
        else:
            self._due_ns = sent_ns + self._plan.sustain_interval_ns

    def _skip(self, now_ns: int) -> None:
        """Let due times that lie behind pass, in one step once the interval no longer grows."""
        if self.phase is _SUSTAINING:
            interval_ns, duration_ns = self._plan.sustain_interval_ns, self._plan.sustain_duration_ns
            tick_ns = self._plan.sustain_tick_ns
        else:
            interval_ns, duration_ns, tick_ns = self._interval_ns, self._plan.duration_ns, self._plan.tick_ns
        if self.phase is _SUSTAINING or interval_ns == self._plan.maximum_ns:
            last_tick_ns = now_ns - (now_ns - self._plan.grid_ns) % tick_ns if tick_ns > 0 else now_ns
            whole = (last_tick_ns - self._due_ns) // interval_ns
            if duration_ns > 0:
                whole = min(whole, -(-(duration_ns + self._phase_start_ns - self._due_ns) // interval_ns))
            self._due_ns += max(whole, 0) * interval_ns
        self._advance()

    def _enter_sustaining(self, now_ns: int) -> None:
        if self._plan.sustain_interval_ns == 0:
            self.phase = Phase.QUIESCENT
            return
        self.phase = Phase.SUSTAINING
        self._phase_start_ns = now_ns
        self._due_ns = now_ns + self._plan.sustain_interval_ns
        self._skip_quiet()

    def _skip_quiet(self) -> None:
        """Leave out due times that come less than an interval after a record sent out of turn."""
        behind_ns = self._quiet_until_ns - self._due_ns
        if behind_ns > 0:
            self._due_ns += -(-behind_ns // self._plan.sustain_interval_ns) * self._plan.sustain_interval_ns


class _TwoPhases(PhasedSchedule):
    """Follows the options of a source or receiver."""

    __slots__ = ()
    TICK_NS: ClassVar[int]
    FIRST_AT_ONCE: ClassVar[bool]

    def __init__(
        self,
        options: AdvertisingOptions | QueryOptions,
        start_ns: int,
        *,
        grid_ns: int = 0,
        sustain_tick_ns: int = SUSTAIN_TICK_NS,
    ) -> None:
        plan = _plan_of_options(options, self.TICK_NS, self.FIRST_AT_ONCE, sustain_tick_ns, grid_ns)
        super().__init__(plan, start_ns)


@lru_cache(maxsize=256)
def _plan_of_options(
    options: AdvertisingOptions | QueryOptions, tick_ns: int, first_at_once: bool, sustain_tick_ns: int, grid_ns: int
) -> SchedulePlan:
    return SchedulePlan(
        options.minimum_initial_interval_ns,
        options.maximum_initial_interval_ns,
        options.minimum_initial_duration_ns,
        tick_ns,
        first_at_once,
        options.sustain_interval_ns,
        options.minimum_sustain_duration_ns,
        sustain_tick_ns,
        grid_ns,
    )


class AdvertisingSchedule(_TwoPhases):
    """TIRs of one source, without the one at creation, which has no place in the phases."""

    __slots__ = ()
    TICK_NS = INITIAL_ADVERTISEMENT_TICK_NS
    FIRST_AT_ONCE = False

    def on_answered(self, now_ns: int) -> None:
        """A TIR went out in answer to a query, or was asked for.

        The initial phase runs on undisturbed (real capture); otherwise the sustaining phase begins anew and its first
        record comes a full interval later.
        """
        if self.phase is not Phase.INITIAL:
            self._enter_sustaining(now_ns)


class QuerySchedule(_TwoPhases):
    """TQRs of one receiver topic; `is_initial` False for topics that never queried (found by a pattern)."""

    __slots__ = ()
    TICK_NS = INITIAL_QUERY_TICK_NS
    FIRST_AT_ONCE = True

    def restart_sustaining(self, now_ns: int) -> None:
        """A query went out of turn at `now_ns` (end of a source, request of a DRO); the full duration follows it.

        A running phase keeps its due times and leaves out those within an interval of the extra query (real capture:
        an extra TQR at 12.358 s, the one of 13.26 s missing, the next at 14.309 s).
        """
        self._quiet_until_ns = now_ns + self._plan.sustain_interval_ns
        match self.phase:
            case Phase.INITIAL:
                return
            case Phase.SUSTAINING:
                self._phase_start_ns = now_ns
                self._skip_quiet()
            case Phase.QUIESCENT:
                self._enter_sustaining(now_ns)


class WildcardQuerySchedule(PhasedSchedule):
    """WC-TQRs of one wildcard receiver: doubling, no sustaining phase."""

    __slots__ = ()

    def __init__(
        self, options: WildcardQueryOptions, start_ns: int, *, grid_ns: int = 0, tick_ns: int = WILDCARD_TICK_NS
    ) -> None:
        intervals = (options.minimum_interval_ns, options.maximum_interval_ns)
        super().__init__(
            SchedulePlan(*intervals, options.minimum_duration_ns, tick_ns, True, grid_ns=grid_ns), start_ns
        )


class DoublingSchedule(PhasedSchedule):
    """Repeats from a minimum to a maximum interval without end, to the ns: interest records, domain routes."""

    __slots__ = ()

    def __init__(self, minimum_ns: int, maximum_ns: int, start_ns: int) -> None:
        super().__init__(SchedulePlan(minimum_ns, maximum_ns, 0, 0, True), start_ns)

    def set_intervals(self, minimum_ns: int, maximum_ns: int, now_ns: int) -> None:
        """Repeat by other intervals; the next record leaves when it would have, or a longest interval from now.

        A schedule that was off begins with the first record; one that is switched off stops.
        """
        was_off = self._plan.minimum_ns == 0
        plan = self._plan = plan_of(SchedulePlan(minimum_ns, maximum_ns, 0, 0, True))
        if plan.minimum_ns == 0 or was_off:
            self.restart(now_ns)
            return
        self._interval_ns = min(max(self._interval_ns, plan.minimum_ns), plan.maximum_ns)
        self._due_ns = min(self._due_ns, now_ns + plan.maximum_ns)
