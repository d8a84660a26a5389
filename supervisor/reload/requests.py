"""Changing the configuration of a running DRO: one reload at a time, from the request to the last step, or rolled back.

Its states are the table `TRANSITIONS`. In TRYING a forked child reads, plans and checks the new file. A failure before
APPLYING changes nothing; a failure there is rolled back. Requests that arrive meanwhile are combined into one, which
begins afterwards, as are consecutive SIGHUPs. The end of the DRO ends a reload at once.

Called by the parent's loop: SIGHUP, and the commands `reload`, `confirm` and `rollback` of the admin socket.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Final

from dro.clock import NS_PER_S, ms, s
from dro.config.dro_xml.model import DroConfig
from dro.errors import DroError, LocalProtocolError, RefusedError
from dro.log import setup as logs
from dro.log.events import LogEvent, configuration_warning
from dro.timers import Timer
from supervisor.admin.server import Arguments, Reply
from supervisor.parent.forked_task import Failed
from supervisor.parent.parent import Parent
from supervisor.reload.addresses import AddressChanges, is_of_interfaces
from supervisor.reload.plan import ActionKind, ReloadPlan
from supervisor.reload.records import MAX_CONFIRM_S, ConfirmRecord, PlanRecord, ReloadRecord, pending_text, plan_record
from supervisor.reload.steps import Result, Transaction
from supervisor.reload.trial import Trial, situation_of, try_out

TRIAL_LIMIT_NS: Final = s(60)  # files may come from a network
QUIET_NS: Final = ms(200)
"""After the first one, a SIGHUP waits until no other came for so long: an editor's and a script's are one."""
QUIET_LIMIT_NS: Final = s(2)  # but no longer than that
RETRY_NS: Final = ms(500)  # of a SIGHUP that comes while the DRO starts, or while an operator changes a portal
_LOGGED: Final = 20  # problems, warnings and changes of one reload in the log


class ReloadState(Enum):
    IDLE = "idle"
    TRYING = "trying the new file"
    APPLYING = "applying"
    CONFIRMING = "waiting for confirmation"
    TAKING_BACK = "taking back"


class ReloadEvent(Enum):
    BEGINS = "begins"
    REFUSED = "refused by the trial"
    PASSED = "passed by the trial"
    APPLIED = "applied"
    TO_CONFIRM = "applied, to be confirmed"
    FAILED = "failed"
    CONFIRMED = "confirmed"
    ROLLED_BACK = "rolled back, or not confirmed in time"
    TAKEN_BACK = "taken back"
    BROKEN = "ended by an internal error"


TRANSITIONS: Final[Mapping[tuple[ReloadState, ReloadEvent], ReloadState]] = {
    (ReloadState.IDLE, ReloadEvent.BEGINS): ReloadState.TRYING,
    (ReloadState.TRYING, ReloadEvent.REFUSED): ReloadState.IDLE,
    (ReloadState.TRYING, ReloadEvent.PASSED): ReloadState.APPLYING,
    (ReloadState.APPLYING, ReloadEvent.APPLIED): ReloadState.IDLE,
    (ReloadState.APPLYING, ReloadEvent.TO_CONFIRM): ReloadState.CONFIRMING,
    (ReloadState.APPLYING, ReloadEvent.FAILED): ReloadState.TAKING_BACK,
    (ReloadState.APPLYING, ReloadEvent.BROKEN): ReloadState.IDLE,
    (ReloadState.CONFIRMING, ReloadEvent.CONFIRMED): ReloadState.IDLE,
    (ReloadState.CONFIRMING, ReloadEvent.ROLLED_BACK): ReloadState.TAKING_BACK,
    (ReloadState.TAKING_BACK, ReloadEvent.TAKEN_BACK): ReloadState.IDLE,
    (ReloadState.TAKING_BACK, ReloadEvent.BROKEN): ReloadState.IDLE,
}
"""Every legal move; anything else is a bug of ours."""


@dataclass(slots=True)
class _ReloadRequest:
    """Somebody wants a reload, or several do. Each of `waiting` is answered once."""

    confirm_s: float = 0.0
    is_signal: bool = False  # SIGHUP is among them
    first_ns: int = 0
    waiting: list[tuple[Reply, bool]] = field(default_factory=list)  # and whether it waits for the end
    is_of_addresses: bool = False  # nobody but the host wants it: for other local addresses alone

    def merge(self, other: _ReloadRequest) -> None:
        self.is_of_addresses &= other.is_of_addresses
        self.is_signal |= other.is_signal
        self.waiting += other.waiting


@dataclass(frozen=True, slots=True)
class _Applied:
    """A reload that can still be taken back."""

    transaction: Transaction
    before: DroConfig
    pending: tuple[str, ...]
    timer: Timer


class Reload:
    """All reloads of one DRO."""

    def __init__(self, parent: Parent[DroConfig], log: logging.Logger) -> None:
        self._parent = parent
        self._configuration = parent.configuration
        self._log = log
        self._path = parent.configuration.current.file
        self._state = ReloadState.IDLE
        self._current: _ReloadRequest | None = None
        self._next: _ReloadRequest | None = None
        self._next_timer: Timer | None = None
        self._applied: _Applied | None = None
        self._taking_back: list[Reply] = []
        self._began_ns = 0
        self._loaded_before_s = 0.0  # when what a reload replaced was read
        self._warned: set[str] = set()
        parent.on_addresses = AddressChanges(
            parent.loop, lambda: self._configuration.current, self._on_addresses
        ).look_later
        parent.admin.add("reload", self._on_reload)
        parent.admin.add("confirm", self._on_confirm)
        parent.admin.add("rollback", self._on_rollback)

    # requests

    def on_hangup(self) -> None:
        """SIGHUP: reload, unless somebody has yet to confirm the last one."""
        if self._state is ReloadState.CONFIRMING:
            self._log.warning(LogEvent.HANGUP_BEFORE_CONFIRMATION)
            return
        now_ns = self._parent.loop.now_ns()
        self._submit(_ReloadRequest(is_signal=True, first_ns=now_ns))

    def _on_addresses(self) -> None:
        """Begin a reload, as this host has not all addresses of the configuration any more."""
        if self._state is not ReloadState.CONFIRMING:
            now_ns = self._parent.loop.now_ns()
            self._submit(_ReloadRequest(is_signal=True, first_ns=now_ns, is_of_addresses=True))

    def _on_reload(self, arguments: Arguments, reply: Reply) -> None:
        confirm_s = arguments.number("confirm", 0, minimum=0, maximum=MAX_CONFIRM_S)
        waits = not arguments.flag("no_wait")
        arguments.done()
        if not self._parent.is_running:
            raise RefusedError("the DRO is starting or stopping", remedy="try again when it runs")
        self._submit(_ReloadRequest(confirm_s, False, self._parent.loop.now_ns(), [(reply, waits)]))

    def _submit(self, request: _ReloadRequest) -> None:
        """Begin it, or put it behind the one that is under way; raises RefusedError when it can be neither."""
        if self._state is ReloadState.CONFIRMING:
            raise RefusedError("the last reload is not confirmed yet", remedy="confirm it or roll it back first")
        waiting = self._next
        if waiting is not None:
            if request.confirm_s != waiting.confirm_s and not request.is_signal:
                raise RefusedError("another reload waits already", remedy="try again when that is done")
            waiting.merge(request)
            self._arrange_next()
        elif self._state is not ReloadState.IDLE or (request.is_signal and not self._may_begin()):
            self._next = request
            self._arrange_next()
        else:
            self._begin(request)

    def _may_begin(self) -> bool:
        """Say whether a reload may begin: a SIGHUP soon after the last one began waits whether there are more."""
        since_ns = self._parent.loop.now_ns() - self._began_ns
        return self._parent.is_running and (self._began_ns == 0 or since_ns >= s(1))

    def _arrange_next(self) -> None:
        """Begin what waits when it is its time. Each further SIGHUP puts that off, within a limit."""
        request = self._next
        if request is None or self._state is not ReloadState.IDLE:
            return
        if self._next_timer is not None:
            self._next_timer.cancel()
            self._next_timer = None
        now_ns = self._parent.loop.now_ns()
        when_ns = min(now_ns + QUIET_NS, request.first_ns + QUIET_LIMIT_NS) if request.is_signal else now_ns
        if not self._parent.is_running:
            when_ns = now_ns + RETRY_NS
        self._next_timer = self._parent.loop.call_at(when_ns, self._begin_next)

    def _begin_next(self) -> None:
        self._next_timer = None
        request = self._next
        if request is None or self._state is not ReloadState.IDLE or self._parent.is_stopping:
            return
        if not self._parent.is_running:
            self._arrange_next()
            return
        self._next = None
        self._begin(request)

    # the trial

    def _begin(self, request: _ReloadRequest) -> None:
        try:
            self._configuration.begin_change("a reload", takes_portals=True)
        except RefusedError as e:
            self._put_off(request, e)
            return
        self._current = request
        self._move(ReloadEvent.BEGINS)
        self._began_ns = self._parent.loop.now_ns()
        if not request.is_of_addresses:  # nobody has asked for those, and most change nothing
            self._log.info(LogEvent.RELOAD_BEGINS, extra={"file": self._path})
        situation, path = situation_of(self._parent), self._path
        self._parent.run_forked(
            lambda: try_out(situation, path), self._on_trial, limit_ns=TRIAL_LIMIT_NS, what="trial of the new file"
        )

    def _put_off(self, request: _ReloadRequest, why: RefusedError) -> None:
        """Put a reload off while somebody else changes things: who waits gets an answer, a SIGHUP is tried again."""
        for reply, _ in request.waiting:
            reply.fail(why)
        if request.is_signal and not self._parent.is_stopping:
            request.waiting = []
            self._next = request
            self._next_timer = self._parent.loop.call_later(RETRY_NS, self._begin_next)

    def _on_trial(self, result: Trial | Failed) -> None:
        if self._current is not None and self._current.is_of_addresses:
            changes = () if isinstance(result, Failed) else result.plan.changes
            if not changes or not all(map(is_of_interfaces, changes)):
                if any(map(is_of_interfaces, changes)):
                    self._log.warning(LogEvent.ADDRESSES_NOT_TAKEN, extra={"remedy": "tnwgdctl diff, then reload"})
                self._end(ReloadEvent.REFUSED)
                return
        if isinstance(result, Failed):
            for problem in result.problems[:_LOGGED]:
                self._log.error(LogEvent.RELOAD_REFUSED, extra={"reason": str(problem.error())})
            self._end(ReloadEvent.REFUSED, result.error())
            return
        fresh = [warning for warning in result.warnings if warning not in self._warned]
        self._warned = set(result.warnings)
        for warning in fresh[:_LOGGED]:
            configuration_warning(self._log)(warning)
        busy = self._refusal_while_busy(result.plan)
        if busy is not None:
            self._log.error(LogEvent.RELOAD_REFUSED, extra={"reason": str(busy)})
            self._end(ReloadEvent.REFUSED, busy)
            return
        for change in result.plan.changes[:_LOGGED]:
            extra = {"path": change.path, "old": change.old, "new": change.new, "reload": change.reload.value}
            self._log.info(LogEvent.CONFIGURATION_CHANGED, extra=extra)
        if (further := len(result.plan.changes) - _LOGGED) > 0:
            self._log.info(LogEvent.CONFIGURATION_CHANGED, extra={"further_changes": further})
        try:
            self._apply(result)
        except Exception:  # a bug in a reload must not take the whole DRO with it: nobody restarts the parent
            self._log.critical(LogEvent.RELOAD_BROKEN, exc_info=True)
            if self._state is not ReloadState.IDLE:
                error = RefusedError("internal error in the reload", remedy="see the log of the DRO")
                self._end(ReloadEvent.BROKEN, error)

    def _refusal_while_busy(self, plan: ReloadPlan) -> RefusedError | None:
        """Refuse if a portal shall go or start anew with which an operator has begun something already."""
        names = {*plan.portals(ActionKind.REMOVE), *plan.portals(ActionKind.RESTART)}
        for worker in self._parent.worker_status():
            if worker.operation and worker.name in names:
                what = f"{worker.name} is busy: {worker.operation} is under way"
                return RefusedError(what, remedy="try again when that is done")
        return None

    # applying

    def _apply(self, trial: Trial) -> None:
        request, before = self._current, self._configuration.current
        self._loaded_before_s = self._configuration.loaded_s
        assert request is not None
        self._move(ReloadEvent.PASSED)
        running = situation_of(self._parent).running
        record = plan_record(self._path, trial.plan, trial.warnings)
        pending = tuple(map(pending_text, trial.plan.pending))
        transaction = Transaction(self._parent, trial.plan, running, trial.after, (logs.settings(), trial.log))
        for reply, waits in request.waiting:
            if not waits:
                reply.ok(asdict(ReloadRecord(record, False, (), pending, request.confirm_s)))

        def ended(result: Result) -> None:
            if self._parent.is_stopping:
                return
            if result.is_ok:
                self._on_applied(transaction, before, trial.plan, record, result)
            else:
                self._on_failure(transaction, before, result)

        transaction.begin(ended)

    def _on_applied(
        self, transaction: Transaction, before: DroConfig, plan: ReloadPlan, record: PlanRecord, result: Result
    ) -> None:
        request = self._current
        assert request is not None
        took_s = round((self._parent.loop.now_ns() - self._began_ns) / NS_PER_S, 3)
        old_pending, self._configuration.pending = self._configuration.pending, tuple(map(pending_text, plan.pending))
        confirm_s = request.confirm_s if not plan.is_empty else 0.0
        if plan.is_empty:
            self._log.info(LogEvent.RELOAD_WITHOUT_CHANGE, extra={"took_s": took_s})
        else:
            counts = {kind.name.lower(): len(plan.portals(kind)) for kind in ActionKind if plan.portals(kind)}
            self._log.info(LogEvent.RELOAD_DONE, extra={"took_s": took_s, **counts})
        for change in plan.pending:
            self._log.warning(LogEvent.CHANGE_NEEDS_RESTART, extra={"path": change.path})
        for note in (*plan.warnings, *result.notes):
            self._log.warning(LogEvent.RELOAD_NOTE, extra={"note": note})
        done = ReloadRecord(record, True, result.notes, self._configuration.pending, confirm_s, took_s)
        for reply, _ in request.waiting:
            reply.ok(asdict(done))
        if not confirm_s:
            self._end(ReloadEvent.APPLIED)
            return
        self._current = None
        self._move(ReloadEvent.TO_CONFIRM)
        self._configuration.end_change()
        self._configuration.begin_change("a reload that waits for its confirmation")
        timer = self._parent.loop.call_later(int(confirm_s * NS_PER_S), self._on_unconfirmed)
        self._applied = _Applied(transaction, before, old_pending, timer)
        self._log.warning(LogEvent.RELOAD_UNCONFIRMED, extra={"within_s": confirm_s})

    def _on_failure(self, transaction: Transaction, before: DroConfig, result: Result) -> None:
        for problem in result.problems[:_LOGGED]:
            self._log.error(LogEvent.RELOAD_FAILED, extra={"reason": problem})

        def ended(back: Result) -> None:
            if self._parent.is_stopping:
                return
            self._after_taking_back(before, back)
            parts = [*result.problems, *(f"and could not be taken back: {problem}" for problem in back.problems)]
            is_back, is_not = "the former configuration is in force again", "look at the portals that are named"
            self._end(ReloadEvent.TAKEN_BACK, RefusedError("; ".join(parts), remedy=is_back if back.is_ok else is_not))

        self._move(ReloadEvent.FAILED)
        transaction.take_back(ended)

    def _after_taking_back(self, before: DroConfig, back: Result) -> None:
        """Set the configuration `before`; its places are of the whole one, with portals an operator has removed."""
        self._configuration.set_config(before, loaded_s=self._loaded_before_s)
        for problem in back.problems:
            self._log.error(LogEvent.RELOAD_PARTLY_TAKEN_BACK, extra={"reason": problem})
        if back.is_ok:
            self._log.warning(LogEvent.RELOAD_TAKEN_BACK)

    # confirmation

    def _on_confirm(self, arguments: Arguments, reply: Reply) -> None:
        arguments.done()
        self._take_applied()
        self._log.info(LogEvent.RELOAD_CONFIRMED)
        self._end(ReloadEvent.CONFIRMED)
        reply.ok(asdict(ConfirmRecord(self._path)))

    def _on_rollback(self, arguments: Arguments, reply: Reply) -> None:
        arguments.done()
        self._take_back(self._take_applied(), [reply])

    def _on_unconfirmed(self) -> None:
        self._log.warning(LogEvent.RELOAD_NOT_CONFIRMED)
        self._take_back(self._take_applied(), [])

    def _take_applied(self) -> _Applied:
        """Take the reload that waits for a confirmation. Raises: RefusedError when there is none."""
        applied = self._applied
        if applied is None:
            raise RefusedError("no reload waits for a confirmation", remedy="reload with --confirm SECONDS")
        self._applied = None
        applied.timer.cancel()
        return applied

    def _take_back(self, applied: _Applied, waiting: list[Reply]) -> None:
        self._move(ReloadEvent.ROLLED_BACK)
        self._configuration.end_change()
        self._configuration.begin_change("a reload that is taken back", takes_portals=True)
        self._taking_back = waiting

        def ended(back: Result) -> None:
            if self._parent.is_stopping:
                return
            self._after_taking_back(applied.before, back)
            self._configuration.pending = applied.pending
            self._taking_back = []
            for reply in waiting:
                if back.is_ok:
                    reply.ok(asdict(ConfirmRecord(self._path, back.notes)))
                else:
                    reply.fail(RefusedError("; ".join(back.problems)))
            self._end(ReloadEvent.TAKEN_BACK)

        applied.transaction.take_back(ended)

    # ends

    def _move(self, event: ReloadEvent) -> None:
        """Go to the state after the event. Raises: LocalProtocolError for what cannot happen in this state."""
        following = TRANSITIONS.get((self._state, event))
        if following is None:
            raise LocalProtocolError(f"reload is {self._state.value} and {event.value}")
        self._state = following

    def _end(self, event: ReloadEvent, error: DroError | None = None) -> None:
        """End whatever was under way; with an `error`, the requests that wait for it get it."""
        self._move(event)
        request, self._current = self._current, None
        if request is not None and error is not None:
            for reply, _ in request.waiting:
                reply.fail(error)
        self._configuration.end_change()
        self._arrange_next()

    def on_stopping(self) -> None:
        """SIGTERM wins."""
        if self._state is not ReloadState.IDLE:
            self._log.warning(LogEvent.RELOAD_ENDS_WITH_DRO, extra={"state": self._state.value})
        if self._applied is not None:
            self._applied.timer.cancel()
        if self._next_timer is not None:
            self._next_timer.cancel()
        error = RefusedError("the DRO is stopping")
        for request in (self._current, self._next):
            for reply, _ in request.waiting if request is not None else ():
                reply.fail(error)
        for reply in self._taking_back:
            reply.fail(error)
