"""Changing the configuration of a running DRO: one reload at a time, from the request to the last portal, or back.

    IDLE -> TRYING (a forked child reads, plans, tries) -> APPLYING -> IDLE, or CONFIRMING -> IDLE
                                                           APPLYING, CONFIRMING -> TAKING_BACK -> IDLE

Whatever fails before APPLYING changes nothing; what fails there is taken back. Requests that come meanwhile are made
into one, which begins afterwards; SIGHUPs in a row are one as well. The end of the DRO ends all of it at once.

Called by the parent's loop: SIGHUP, and the commands `reload`, `confirm` and `rollback` of the admin socket.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from dro import log as logs
from dro.clock import NS_PER_S, ms, s
from dro.config.model import DroConfig
from dro.errors import DroError, RefusedError
from dro.timers import Timer
from supervisor.admin import Arguments, Reply
from supervisor.child import Failed
from supervisor.parent import Parent
from supervisor.records import to_json
from supervisor.reload_hands import ParentHands, part_for, situation_of
from supervisor.reload_plan import ActionKind, ReloadPlan
from supervisor.reload_records import (
    MAX_CONFIRM_S,
    ConfirmRecord,
    PlanRecord,
    ReloadRecord,
    pending_text,
    plan_record,
)
from supervisor.reload_steps import Result, Transaction
from supervisor.reload_trial import Trial, try_out

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


@dataclass(slots=True)
class _Request:
    """Somebody wants a reload, or several do. Each of `waiting` is answered once."""

    confirm_s: float = 0.0
    is_signal: bool = False  # SIGHUP is among them
    first_ns: int = 0
    waiting: list[tuple[Reply, bool]] = field(default_factory=list)  # and whether it waits for the end

    def merge(self, other: _Request) -> None:
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
        self._log = log
        self._path = os.path.abspath(parent.config.file)
        self._state = ReloadState.IDLE
        self._current: _Request | None = None
        self._next: _Request | None = None
        self._next_timer: Timer | None = None
        self._applied: _Applied | None = None
        self._taking_back: list[Reply] = []
        self._began_ns = 0
        self._loaded_before_s = 0.0  # when what a reload replaced was read
        self._warned: set[str] = set()
        parent.for_workers = part_for
        parent.on_hangup = self.on_hangup
        parent.on_stopping = self._on_stopping
        parent.admin.add("reload", self._on_reload)
        parent.admin.add("confirm", self._on_confirm)
        parent.admin.add("rollback", self._on_rollback)

    # requests

    def on_hangup(self) -> None:
        """SIGHUP: reload, unless somebody has yet to confirm the last one."""
        if self._state is ReloadState.CONFIRMING:
            self._log.warning("SIGHUP ignored: the last reload is not confirmed yet")
            return
        now_ns = self._parent.loop.now_ns()
        self._ask(_Request(is_signal=True, first_ns=now_ns))

    def _on_reload(self, arguments: Arguments, reply: Reply) -> None:
        confirm_s = arguments.number("confirm", 0, minimum=0, maximum=MAX_CONFIRM_S)
        waits = not arguments.flag("no_wait")
        arguments.done()
        if not self._parent.is_running:
            raise RefusedError("the DRO is starting or stopping", remedy="try again when it runs")
        self._ask(_Request(confirm_s, False, self._parent.loop.now_ns(), [(reply, waits)]))

    def _ask(self, request: _Request) -> None:
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
        """A SIGHUP soon after the last reload began waits whether there are more."""
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

    def _begin(self, request: _Request) -> None:
        try:
            self._parent.begin_change("a reload", takes_portals=True)
        except RefusedError as e:
            self._put_off(request, e)
            return
        self._current = request
        self._state = ReloadState.TRYING
        self._began_ns = self._parent.loop.now_ns()
        self._log.info("reload begins", extra={"file": self._path})
        situation, path = situation_of(self._parent), self._path
        self._parent.work_aside(
            lambda: try_out(situation, path), self._on_trial, limit_ns=TRIAL_LIMIT_NS, what="trial of the new file"
        )

    def _put_off(self, request: _Request, why: RefusedError) -> None:
        """Somebody else changes the configuration: who waits for an answer gets it, a SIGHUP is tried again."""
        for reply, _ in request.waiting:
            reply.fail(why)
        if request.is_signal and not self._parent.is_stopping:
            request.waiting = []
            self._next = request
            self._next_timer = self._parent.loop.call_later(RETRY_NS, self._begin_next)

    def _on_trial(self, result: object | Failed) -> None:
        if isinstance(result, Failed):
            for problem in result.problems[:_LOGGED]:
                self._log.error("reload refused, nothing has changed", extra={"reason": str(problem.error())})
            self._end(result.error())
            return
        assert isinstance(result, Trial)
        fresh = [warning for warning in result.warnings if warning not in self._warned]
        self._warned = set(result.warnings)
        for warning in fresh[:_LOGGED]:
            self._log.warning(warning)
        busy = self._busy(result.plan)
        if busy is not None:
            self._log.error("reload refused, nothing has changed", extra={"reason": str(busy)})
            self._end(busy)
            return
        for change in result.plan.changes[:_LOGGED]:
            extra = {"path": change.path, "old": change.old, "new": change.new, "reload": change.reload.value}
            self._log.info("configuration changed", extra=extra)
        if len(result.plan.changes) > _LOGGED:
            self._log.info("configuration changed", extra={"further_changes": len(result.plan.changes) - _LOGGED})
        try:
            self._apply(result)
        except Exception:  # a bug in a reload must not take the whole DRO with it: nobody restarts the parent
            self._log.critical("reload failed", exc_info=True)
            self._end(RefusedError("internal error in the reload", remedy="see the log of the DRO"))

    def _busy(self, plan: ReloadPlan) -> RefusedError | None:
        """A portal that shall go or start anew, and with which an operator has begun something already."""
        names = {*plan.portals(ActionKind.REMOVE), *plan.portals(ActionKind.RESTART)}
        for worker in self._parent.worker_status():
            if worker.operation and worker.name in names:
                what = f"{worker.name} is busy: {worker.operation} is under way"
                return RefusedError(what, remedy="try again when that is done")
        return None

    # applying

    def _apply(self, trial: Trial) -> None:
        request, before = self._current, self._parent.config
        self._loaded_before_s = self._parent.loaded_s
        assert request is not None
        self._state = ReloadState.APPLYING
        running = situation_of(self._parent).running
        record = plan_record(self._path, trial.plan, trial.warnings)
        pending = tuple(map(pending_text, trial.plan.pending))
        transaction = Transaction(
            ParentHands(self._parent), trial.plan, running, trial.after, (logs.settings(), trial.log)
        )
        for reply, waits in request.waiting:
            if not waits:
                reply.ok(to_json(ReloadRecord(record, False, (), pending, request.confirm_s)))

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
        old_pending, self._parent.pending = self._parent.pending, tuple(map(pending_text, plan.pending))
        confirm_s = request.confirm_s if not plan.is_empty else 0.0
        if plan.is_empty:
            self._log.info("reload done, nothing had to be changed", extra={"took_s": took_s})
        else:
            counts = {kind.name.lower(): len(plan.portals(kind)) for kind in ActionKind if plan.portals(kind)}
            self._log.info("reload done", extra={"took_s": took_s, **counts})
        for change in plan.pending:
            self._log.warning("change waits for a restart of the daemon", extra={"path": change.path})
        for note in result.notes:
            self._log.warning("reload done, but", extra={"note": note})
        done = ReloadRecord(record, True, result.notes, self._parent.pending, confirm_s, took_s)
        for reply, _ in request.waiting:
            reply.ok(to_json(done))
        if not confirm_s:
            self._end()
            return
        self._current = None
        self._state = ReloadState.CONFIRMING
        self._parent.end_change()
        self._parent.begin_change("a reload that waits for its confirmation")
        timer = self._parent.loop.call_later(int(confirm_s * NS_PER_S), self._on_unconfirmed)
        self._applied = _Applied(transaction, before, old_pending, timer)
        self._log.warning("reload is taken back unless it is confirmed", extra={"within_s": confirm_s})

    def _on_failure(self, transaction: Transaction, before: DroConfig, result: Result) -> None:
        for problem in result.problems[:_LOGGED]:
            self._log.error("reload failed, it is taken back", extra={"reason": problem})

        def ended(back: Result) -> None:
            if self._parent.is_stopping:
                return
            self._after_taking_back(before, back)
            parts = [*result.problems, *(f"and could not be taken back: {problem}" for problem in back.problems)]
            remedy = (
                "the former configuration is in force again" if back.is_ok else "look at the portals that are named"
            )
            self._end(RefusedError("; ".join(parts), remedy=remedy))

        self._state = ReloadState.TAKING_BACK
        transaction.take_back(ended)

    def _after_taking_back(self, before: DroConfig, back: Result) -> None:
        """Places in `before` are those of the whole configuration, with portals that an operator has removed."""
        self._parent.set_config(before, loaded_s=self._loaded_before_s)
        for problem in back.problems:
            self._log.error("reload taken back, but not wholly", extra={"reason": problem})
        if back.is_ok:
            self._log.warning("reload taken back, the former configuration is in force")

    # confirmation

    def _on_confirm(self, arguments: Arguments, reply: Reply) -> None:
        arguments.done()
        applied = self._take_applied()
        applied.timer.cancel()
        self._log.info("reload confirmed")
        self._end()
        reply.ok(to_json(ConfirmRecord(self._path)))

    def _on_rollback(self, arguments: Arguments, reply: Reply) -> None:
        arguments.done()
        applied = self._take_applied()
        applied.timer.cancel()
        self._take_back(applied, reply)

    def _on_unconfirmed(self) -> None:
        self._log.warning("reload was not confirmed in time, it is taken back")
        self._take_back(self._take_applied(), None)

    def _take_applied(self) -> _Applied:
        """Raises: RefusedError when nothing waits for a confirmation."""
        applied = self._applied
        if applied is None:
            raise RefusedError("no reload waits for a confirmation", remedy="reload with --confirm SECONDS")
        self._applied = None
        return applied

    def _take_back(self, applied: _Applied, reply: Reply | None) -> None:
        self._state = ReloadState.TAKING_BACK
        self._parent.end_change()
        self._parent.begin_change("a reload that is taken back", takes_portals=True)
        if reply is not None:
            self._taking_back.append(reply)

        def ended(back: Result) -> None:
            if self._parent.is_stopping:
                return
            self._after_taking_back(applied.before, back)
            self._parent.pending = applied.pending
            replies, self._taking_back = self._taking_back, []
            for waiting in replies:
                if back.is_ok:
                    waiting.ok(to_json(ConfirmRecord(self._path, back.notes)))
                else:
                    waiting.fail(RefusedError("; ".join(back.problems)))
            self._end()

        applied.transaction.take_back(ended)

    # ends

    def _end(self, error: DroError | None = None) -> None:
        """Whatever was under way is over; with an `error`, whoever waits for it is told."""
        request, self._current = self._current, None
        if request is not None and error is not None:
            for reply, _ in request.waiting:
                reply.fail(error)
        self._state = ReloadState.IDLE
        self._parent.end_change()
        self._arrange_next()

    def _on_stopping(self) -> None:
        """SIGTERM wins."""
        if self._state is not ReloadState.IDLE:
            self._log.warning("reload ends with the DRO", extra={"state": self._state.value})
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
