"""The commands `portal restart|pause|resume|drain|add|remove` on the admin socket.

An answer comes when the operation is done. `add` reads the configuration file again, in a child, takes that one portal
from it and leaves everything else as it runs; `remove` takes the portal out of the running configuration, not out of
the file: a later reload brings it back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dro.clock import s
from dro.config.model import DroConfig
from dro.config.portal_edit import with_portal, without_portal
from dro.config.problems import Warn
from dro.errors import DroError, RefusedError, ResourceError
from supervisor.admin import Arguments, Handler, Reply
from supervisor.child import Failed
from supervisor.operations import DRAIN_LIMIT_MS, Done, Outcome
from supervisor.parent import Parent
from supervisor.records import to_json
from supervisor.reload_trial import read_new
from supervisor.status import OperationResult

LOAD_LIMIT_NS: Final = s(30)
MAX_DRAIN_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class _Named:
    """The order `action` on a portal."""

    name: str
    limit_ms: int = 0


class PortalCommands:
    """Registers itself with the parent's admin server."""

    def __init__(self, parent: Parent[DroConfig], warn: Warn) -> None:
        """`warn` gets warnings about a file that is read again."""
        self._parent = parent
        self._warn = warn
        operations = parent.operations
        add = parent.admin.add
        add("portal restart", self._simple(operations.restart))
        add("portal pause", self._simple(operations.pause))
        add("portal resume", self._simple(operations.resume))
        add("portal drain", self._drain)
        add("portal add", self._add)
        add("portal remove", self._remove)

    def _check_unclaimed(self) -> None:
        """Raises: RefusedError while a reload stops and starts portals by its plan."""
        if claim := self._parent.claim_of_portals():
            raise RefusedError(f"{claim} is under way", remedy="try again when it is done")

    def _simple(self, operation: Callable[[str, Done], object]) -> Handler:
        def handle(arguments: Arguments, reply: Reply) -> None:
            name = _name(arguments)
            self._check_unclaimed()
            operation(name, lambda outcome: _answer(reply, outcome))

        return handle

    def _drain(self, arguments: Arguments, reply: Reply) -> None:
        order = _with_limit(arguments)
        self._check_unclaimed()
        self._parent.operations.drain(order.name, lambda outcome: _answer(reply, outcome), limit_ms=order.limit_ms)

    def _remove(self, arguments: Arguments, reply: Reply) -> None:
        order = _with_limit(arguments)
        parent = self._parent

        def on_removed(outcome: Outcome) -> None:
            if outcome.is_ok:
                parent.set_config(without_portal(parent.config, order.name), is_read=False)
            parent.end_change()
            _answer(reply, outcome)

        self._change(
            f"portal remove {order.name}",
            lambda: parent.operations.remove(order.name, on_removed, limit_ms=order.limit_ms),
        )

    def _change(self, what: str, begin: Callable[[], object]) -> None:
        """Begin a change of the configuration; whoever ends it calls `end_change`."""
        self._parent.begin_change(what)
        try:
            begin()
        except DroError:
            self._parent.end_change()
            raise

    # add

    def _add(self, arguments: Arguments, reply: Reply) -> None:
        name = _name(arguments)
        parent = self._parent
        for worker in parent.worker_status():
            if worker.name == name:
                what = f"this DRO has {name} already, it is {worker.state}"
                remedy = "resume it" if worker.state in ("paused", "drained") else ""
                raise RefusedError(what, remedy=remedy)
        self._change(f"portal add {name}", lambda: self._read_file(name, reply))

    def _read_file(self, name: str, reply: Reply) -> None:
        parent = self._parent
        file = os.path.abspath(parent.config.file)

        def on_read(result: object) -> None:
            try:
                if isinstance(result, Failed):
                    raise result.error()
                assert isinstance(result, tuple)
                new, warnings = result
                for warning in warnings:
                    self._warn(warning)
                self._start(name, with_portal(parent.config, new, name), reply)
            except DroError as e:
                parent.end_change()
                reply.fail(e)

        parent.work_aside(lambda: read_new(file), on_read, limit_ns=LOAD_LIMIT_NS, what=f"reading {file}")

    def _start(self, name: str, config: DroConfig, reply: Reply) -> None:
        """Raises: DroError; the configuration is then what it was."""
        parent = self._parent
        before = parent.config

        def on_started(outcome: Outcome) -> None:
            if not outcome.is_ok:
                parent.set_config(before, is_read=False)
            parent.end_change()
            _answer(reply, outcome)

        parent.set_config(config, is_read=False)
        try:
            parent.operations.add(parent.spec_of(name), on_started)
        except DroError:
            parent.set_config(before, is_read=False)
            raise


def _name(arguments: Arguments) -> str:
    name = arguments.text("name")
    arguments.done()
    return name


def _with_limit(arguments: Arguments) -> _Named:
    limit_s = arguments.number("limit_s", DRAIN_LIMIT_MS / 1000, minimum=0, maximum=MAX_DRAIN_S)
    return _Named(_name(arguments), int(limit_s * 1000))


def _answer(reply: Reply, outcome: Outcome) -> None:
    if outcome.is_ok:
        reply.ok(to_json(OperationResult(outcome.worker, outcome.state, outcome.note)))
    else:
        reply.fail(_failure(outcome))


def _failure(outcome: Outcome) -> DroError:
    return ResourceError(f"{outcome.worker} is {outcome.state}: {outcome.problem}", remedy=outcome.remedy)
