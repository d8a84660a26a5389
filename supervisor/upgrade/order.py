"""`upgrade` on the admin socket: the DRO moves to another program, in its process and without losing anything.

In order, each on the condition that what came before went well:

    check     the configuration files are those in force; the other program, run as a child, says that it fits
    exec      this process becomes the other program, which adopts what runs (`supervisor.upgrade.adoption`)
    replace   worker by worker, each by a restart from which it goes on, until it forwards again
    go back   after a failure: the worker that does not run is forked by what was left of the former program
              (`supervisor.upgrade.former`), and the process becomes the former program again, which replaces what was
              replaced; without it, as it was overwritten by the other one, the rest stays as it is

The parent comes first, as workers are forked from its image. A program that fails before it has adopted the DRO goes
back by itself (`supervisor.start.take_over`). Whoever gave the order asks for the outcome by `upgrade-state`.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Final

from dro.bus.actor import FORK_MASK
from dro.bus.messages import Role
from dro.clock import ms, s
from dro.config.dro_xml.model import DroConfig
from dro.errors import ConfigError, DroError, RefusedError, ResourceError
from dro.log import setup as logs
from dro.log.events import LogEvent
from dro.os_errors import remedy_of
from supervisor.admin.server import Arguments, Reply
from supervisor.admin.status import UpgradeState
from supervisor.host.service_manager import ALIVE
from supervisor.parent.forked_task import Failed
from supervisor.parent.operations import OperationOutcome
from supervisor.parent.parent import Parent
from supervisor.parent.workers import Worker, WorkerState
from supervisor.reload.trial import compare, situation_of
from supervisor.upgrade.adoption import describe
from supervisor.upgrade.description import Description, FormerRecord, HistoryRecord, ProgramRecord
from supervisor.upgrade.former import FormerProcess, end, leave
from supervisor.upgrade.programs import ask, become, command_of

_LIMIT_NS: Final = s(150)  # of the checks
_LOOK_NS: Final = ms(20)
_QUIET_LOOKS: Final = 500
_SETTLE_NS: Final = s(2)  # from the last worker on, in which none may end
_ANSWER_NS: Final = ms(200)  # for the answer to leave before the program does
_ORDER: Final = (Role.ROUTE_MANAGER, Role.ENDPOINT, Role.PEER, Role.MONITOR, Role.HISTORY, Role.STATISTICS)
RELOAD_FIRST: Final = "tnwgdctl reload first, or restore the file"
_NO_WAY_BACK: Final = "the former program is not there any more: see the log, install what works and upgrade again"


@dataclass(frozen=True, slots=True)
class UpgradeSetting:
    """What an upgrade needs to know of this program. `say` tells the service manager."""

    program: ProgramRecord
    history: HistoryRecord | None
    say: Callable[[str], object]


class UpgradeCommand:
    """See the module text. Registers itself with the parent's admin server."""

    def __init__(
        self, parent: Parent[DroConfig], setting: UpgradeSetting, log: logging.Logger, taken: Description | None = None
    ) -> None:
        """`taken`: the DRO that was taken over, whose workers are to be replaced."""
        self._parent, self._setting, self._log = parent, setting, log
        self._state = UpgradeState()
        self._back_to: ProgramRecord | None = None
        self._tried: set[str] = set()
        self._replaced: dict[Worker, int] = {}  # -> its incarnation
        self._left: FormerRecord | None = None
        self._former: FormerProcess | None = None
        parent.processes.program, parent.processes.version = setting.program.number, setting.program.version
        parent.admin.add("upgrade", self._on_order)
        parent.admin.add("upgrade-state", self._on_question, looks=True)
        if taken is not None:
            self._back_to = taken.back_to
            if taken.former is not None:
                self._former = parent.processes.other = FormerProcess(taken.former)
            former = taken.program.version
            parent.configuration.begin_change(f"upgrade from {former} to {setting.program.version}", takes_portals=True)
            self._state = UpgradeState(True, former, setting.program.version, taken.failure, taken.remedy)
            parent.loop.call_soon(self._replace_next)

    def _on_question(self, arguments: Arguments, reply: Reply) -> None:
        arguments.done()
        left = len(self._to_replace()) if self._state.is_under_way else 0
        reply.ok(asdict(self._state) | {"left": left})

    # the checks

    def _on_order(self, arguments: Arguments, reply: Reply) -> None:
        place = arguments.text("to", "")
        arguments.done()
        parent, setting = self._parent, self._setting
        command = command_of(place) if place else setting.program.command
        if not parent.is_running:
            raise RefusedError("the DRO is starting or stopping", remedy="try again when it runs")
        if busy := [worker.name for worker in parent.workers if worker.operation]:
            raise RefusedError(f"an order for {busy[0]} is under way", remedy="try again when it is done")
        parent.configuration.begin_change("upgrade", takes_portals=True)
        situation, path = situation_of(parent), parent.configuration.current.file
        own = setting.program
        description = describe(parent, own, setting.history, own.number + 1, back_to=own)

        def check() -> tuple[str, bool]:
            """Return the version of the other program, and whether this one could be run again."""
            if changes := compare(situation, path).plan.actions:
                what = f"{path} is not what is in force: {changes[0].target} would be changed"
                raise ConfigError(what, file=path, remedy=RELOAD_FIRST)
            version = ask(command, own.environment, description)
            try:
                return version, own.version == (version if command == own.command else ask_own())
            except RefusedError:
                return version, False

        def ask_own() -> str:
            return ask(own.command, own.environment, description)

        def checked(found: tuple[str, bool] | Failed) -> None:
            if isinstance(found, Failed):
                parent.configuration.end_change()
                error = found.error()
                self._log.error(LogEvent.UPGRADE_REFUSED, extra={"reason": error.what, "remedy": error.remedy})
                reply.fail(error)
                return
            version, has_way_back = found
            try:
                self._left = leave(parent, own)
            except OSError as e:
                parent.configuration.end_change()
                reply.fail(ResourceError(f"no process can be started: {e.strerror}", remedy=remedy_of(e.errno)))
                return
            self._state = UpgradeState(True, own.version, version)
            reply.ok(asdict(self._state))
            extra = {"former": own.version, "version": version, "can_go_back": has_way_back}
            self._log.info(LogEvent.UPGRADE_BEGINS, extra=extra)
            to = ProgramRecord(own.number + 1, version, command, own.environment)
            back_to = own if has_way_back else None
            parent.loop.call_later(_ANSWER_NS, lambda: self._become(to, back_to=back_to))

        parent.run_forked(check, checked, limit_ns=_LIMIT_NS, what="the check of the other program")

    # the exec

    def _become(
        self, to: ProgramRecord, *, back_to: ProgramRecord | None, failure: str = "", remedy: str = "", look: int = 0
    ) -> None:
        """Run that program here as soon as nothing is under way; with a `failure` it is the way back."""
        parent = self._parent
        if parent.is_stopping:
            self.close()
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, FORK_MASK)  # they wait for the next program
        try:
            if not parent.is_quiet and look < _QUIET_LOOKS:
                again = partial(self._become, to, back_to=back_to, failure=failure, remedy=remedy, look=look + 1)
                parent.loop.call_later(_LOOK_NS, again)
                return
            if not parent.is_quiet:
                self._end(failure or "work of the parent did not end", remedy or "try again")
                return
            self._setting.say(ALIVE)
            logs.tick()
            own, history = self._setting.program, self._setting.history
            self._end_former()
            description = describe(
                parent, own, history, to.number, back_to=back_to, failure=failure, remedy=remedy, former=self._left
            )
            become(to, description)
        except OSError as e:
            self._end(failure or f"{to.command[0]} cannot be run: {e.strerror or e}", remedy or "see the log")
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, FORK_MASK)

    # the workers

    def _to_replace(self) -> list[Worker]:
        """List those that run another program than this one, in order; first those that wait for their start."""
        number, found = self._setting.program.number, list[Worker]()
        for worker in self._parent.workers:
            is_former = worker.is_alive and worker.program != number
            if worker.name not in self._tried and (is_former or worker.state is WorkerState.WAITING):
                found.append(worker)
        return sorted(found, key=lambda worker: (worker.is_alive, _ORDER.index(worker.spec.role), worker.index))

    def _ended_again(self) -> Worker | None:
        """Return a worker of this version that has ended since it was replaced."""
        return next(
            (worker for worker, life in self._replaced.items() if worker.incarnation != life or not worker.is_alive),
            None,
        )

    def _replace_next(self, *, is_last_look: bool = False) -> None:
        parent = self._parent
        to_replace = self._to_replace()
        if parent.is_stopping:
            return
        if (ended := self._ended_again()) is not None and not self._state.problem:
            problem = f"{ended.name} of the new version does not go on running: {ended.last_death}"
            self._take_back(ended, problem, "see the log")
            return
        if not (to_replace or self._state.problem or is_last_look):
            parent.loop.call_later(_SETTLE_NS, lambda: self._replace_next(is_last_look=True))
            return
        if not to_replace:
            self._end(self._state.problem, self._state.remedy)
            return
        worker = to_replace[0]
        self._tried.add(worker.name)
        ran_before = worker.is_alive

        def done(outcome: OperationOutcome) -> None:
            self._on_replaced(outcome, ran_before=ran_before)

        try:
            parent.operations.restart(worker.name, done, is_trial=ran_before and parent.processes.other is not None)
        except DroError as e:
            self._fail(str(e), "")

    def _on_replaced(self, outcome: OperationOutcome, *, ran_before: bool) -> None:
        if self._parent.is_stopping:
            return
        if outcome.is_ok or self._state.problem or not ran_before:  # on the way back, what can run shall run
            if outcome.is_ok:
                worker = self._parent.workers.of(outcome.worker)
                self._replaced[worker] = worker.incarnation
            self._replace_next()
            return
        problem = f"{outcome.worker} of the new version does not run: {outcome.problem}"
        self._take_back(self._parent.workers.of(outcome.worker), problem, outcome.remedy)

    def _take_back(self, worker: Worker, problem: str, remedy: str) -> None:
        """Have a worker forked by what was left of the former program, and go back."""
        processes = self._parent.processes
        if processes.other is None or worker.operation:
            self._fail(problem, remedy)
            return
        processes.by_other.add(worker)
        self._parent.operations.restart(worker.name, lambda _: self._fail(problem, remedy))

    def _fail(self, problem: str, remedy: str) -> None:
        """Go back to the former program, if it is there."""
        to = self._back_to
        if to is None:
            self._end(problem, self._state.remedy if self._state.problem else _NO_WAY_BACK)
            return
        self._log.error(LogEvent.UPGRADE_GOES_BACK, extra={"reason": problem, "version": to.version})
        self._become(to, back_to=None, failure=problem, remedy=remedy)

    def _end(self, problem: str, remedy: str) -> None:
        """End the upgrade, whatever it has come to."""
        version = self._setting.program.version
        self.close()
        for worker in self._parent.workers:
            if worker.is_tried and not worker.is_alive and not worker.operation:
                self._parent.operations.restart(worker.name, lambda _: None)
        self._parent.configuration.end_change()
        self._state = UpgradeState(False, self._state.former, version, problem, remedy)
        if problem:
            extra = {"version": version, "reason": problem, "remedy": remedy}
            self._log.error(LogEvent.UPGRADE_FAILED, extra=extra)
        else:
            self._log.info(LogEvent.UPGRADE_DONE, extra={"version": version})

    def close(self) -> None:
        """End what was left of this program or the former one, as nobody needs it any more."""
        self._end_former()
        if self._left is not None:
            end(self._left)
            self._left = None

    def _end_former(self) -> None:
        if self._former is not None:
            self._former.close()
            self._former = self._parent.processes.other = None
            self._parent.processes.by_other.clear()
