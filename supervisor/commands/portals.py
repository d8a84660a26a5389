"""The commands `portal restart|pause|resume|drain|add|remove` on the admin socket.

The answer is sent when the operation is done. `add` reads the configuration file again, in a child, and applies only
that portal; `remove` removes the portal from the running configuration, not from the file: a later reload starts it
again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Final

from dro.clock import s
from dro.config.change.portal_edit import with_portal, without_portal
from dro.config.dro_xml.model import DroConfig, statistics_on
from dro.config.reading.problems import Warn
from dro.errors import DroError, RefusedError, ResourceError
from supervisor.admin.server import Arguments, Handler, Reply
from supervisor.admin.status import OperationResult
from supervisor.parent.forked_task import Failed
from supervisor.parent.operations import DRAIN_LIMIT_MS, Done, OperationOutcome
from supervisor.parent.parent import Parent
from supervisor.parent.process_plan import STATISTICS_NAME
from supervisor.reload.plan import part_for
from supervisor.reload.trial import read_new

LOAD_LIMIT_NS: Final = s(30)
MAX_DRAIN_S: Final = 3600.0


class PortalCommands:
    """Registers itself with the parent's admin server."""

    def __init__(self, parent: Parent[DroConfig], warn: Warn) -> None:
        """`warn` gets warnings about a file that is read again."""
        self._parent = parent
        self._warn = warn
        operations = parent.operations
        add = parent.admin.add
        add("portal restart", self._restart)
        add("portal pause", self._simple(operations.pause))
        add("portal resume", self._simple(operations.resume))
        add("portal drain", self._drain)
        add("portal add", self._add)
        add("portal remove", self._remove)

    def _check_unclaimed(self) -> None:
        """Check that no reload stops and starts portals by its plan. Raises: RefusedError while one does."""
        if claim := self._parent.configuration.claim_of_portals():
            raise RefusedError(f"{claim} is under way", remedy="try again when it is done")

    def _simple(self, operation: Callable[[str, Done], object]) -> Handler:
        def handle(arguments: Arguments, reply: Reply) -> None:
            name = _name(arguments)
            self._check_unclaimed()
            operation(name, lambda outcome: _answer(reply, outcome))

        return handle

    def _restart(self, arguments: Arguments, reply: Reply) -> None:
        clean = arguments.flag("clean")
        self._simple(partial(self._parent.operations.restart, clean=clean))(arguments, reply)

    def _drain(self, arguments: Arguments, reply: Reply) -> None:
        name, limit_ms = _with_limit(arguments)
        self._check_unclaimed()
        self._parent.operations.drain(name, lambda outcome: _answer(reply, outcome), limit_ms=limit_ms)

    def _remove(self, arguments: Arguments, reply: Reply) -> None:
        name, limit_ms = _with_limit(arguments)
        operations, configuration = self._parent.operations, self._parent.configuration

        def on_removed(outcome: OperationOutcome) -> None:
            if outcome.is_ok:
                configuration.set_config(without_portal(configuration.current, name), is_read=False)
                self._tell_statistics()
            configuration.end_change()
            _answer(reply, outcome)

        self._change(f"portal remove {name}", lambda: operations.remove(name, on_removed, limit_ms=limit_ms))

    def _tell_statistics(self) -> None:
        """Tell who publishes statistics which portals there are."""
        config, only = self._parent.configuration.current, frozenset({STATISTICS_NAME})
        if statistics_on(config):
            with suppress(DroError):  # no memory: it learns it with the next reload
                self._parent.rollout.begin(part_for(config, only), lambda _: None, only=only)

    def _change(self, what: str, begin: Callable[[], object]) -> None:
        """Begin a change of the configuration; whoever ends it calls `end_change`."""
        self._parent.configuration.begin_change(what)
        try:
            begin()
        except DroError:
            self._parent.configuration.end_change()
            raise

    # add

    def _add(self, arguments: Arguments, reply: Reply) -> None:
        name = _name(arguments)
        for worker in self._parent.worker_status():
            if worker.name == name:
                remedy = "resume it" if worker.is_resting else ""
                raise RefusedError(f"this DRO has {name} already, it is {worker.state}", remedy=remedy)
        self._change(f"portal add {name}", lambda: self._read_file(name, reply))

    def _read_file(self, name: str, reply: Reply) -> None:
        configuration = self._parent.configuration
        file = configuration.current.file

        def on_read(result: tuple[DroConfig, tuple[str, ...]] | Failed) -> None:
            try:
                if isinstance(result, Failed):
                    raise result.error()
                new, warnings = result
                for warning in warnings:
                    self._warn(warning)
                self._start(name, with_portal(configuration.current, new, name), reply)
            except DroError as e:
                configuration.end_change()
                reply.fail(e)

        self._parent.run_forked(lambda: read_new(file), on_read, limit_ns=LOAD_LIMIT_NS, what=f"reading {file}")

    def _start(self, name: str, config: DroConfig, reply: Reply) -> None:
        """Start a portal of the new configuration. Raises: DroError; the configuration is then what it was."""
        configuration = self._parent.configuration
        before = configuration.current

        def on_started(outcome: OperationOutcome) -> None:
            if outcome.is_ok:
                self._tell_statistics()
            else:
                configuration.set_config(before, is_read=False)
            configuration.end_change()
            _answer(reply, outcome)

        configuration.set_config(config, is_read=False)
        try:
            self._parent.operations.add(name, on_started)
        except DroError:
            configuration.set_config(before, is_read=False)
            raise


def _name(arguments: Arguments) -> str:
    name = arguments.text("name")
    arguments.done()
    return name


def _with_limit(arguments: Arguments) -> tuple[str, int]:
    """Read the name of the portal, and the limit in milliseconds."""
    limit_s = arguments.number("limit_s", DRAIN_LIMIT_MS / 1000, minimum=0, maximum=MAX_DRAIN_S)
    return _name(arguments), int(limit_s * 1000)


def _answer(reply: Reply, outcome: OperationOutcome) -> None:
    if outcome.is_ok:
        reply.ok(asdict(OperationResult(outcome.worker, outcome.state, outcome.note)))
    else:
        what = f"{outcome.worker} is {outcome.state}: {outcome.problem}"
        reply.fail(ResourceError(what, remedy=outcome.remedy))
