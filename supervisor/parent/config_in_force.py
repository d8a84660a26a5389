"""The configuration in force in a running DRO, the claim to change it, and its way to the workers.

One change at a time: it is claimed before a change. A worker gets the configuration in force at its fork; `reconfigure`
sends a changed one to the running workers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from dro.errors import RefusedError
from supervisor.parent.rollout import RolledOut, Rollout
from supervisor.parent.workers import Workers, WorkerSpec

C = TypeVar("C")
Planner = Callable[[C], Sequence[WorkerSpec]]
"""The workers that a configuration asks for, the route manager first. Raises: ConfigError."""


PartFor = Callable[[C, frozenset[str] | None], object]
"""What of a changed configuration the running workers (those named, or all) are given to read."""


class ConfigInForce(Generic[C]):
    """The configuration of one DRO."""

    def __init__(
        self, workers: Workers, rollout: Rollout, config: C, planner: Planner[C], part_for: PartFor[C]
    ) -> None:
        self._workers, self._rollout = workers, rollout
        self._planner = planner
        self._part_for = part_for
        self.current = config
        """What is in force, apart from `pending`; a worker that starts now gets this."""
        self.loaded_s = time.time()
        """When `current` was read from its file, in seconds since the epoch."""
        self.change = ""
        """What has claimed the configuration; empty when nothing has."""
        self._takes_portals = False
        self._closed = ""
        self.pending: tuple[str, ...] = ()
        """Changes that wait for a restart of the daemon, for `status`."""

    def begin_change(self, what: str, *, takes_portals: bool = False) -> None:
        """Claim the configuration until `end_change`: one change at a time. Raises: RefusedError when it is claimed.

        `takes_portals`: until then nobody else may stop or start a portal either.
        """
        if self.change:
            raise RefusedError(f"the configuration is being changed: {self.change} is under way")
        if self._closed:
            raise RefusedError(self._closed)
        self.change = what
        self._takes_portals = takes_portals

    def end_change(self) -> None:
        self.change = ""
        self._takes_portals = False

    def close(self, why: str) -> None:
        """Refuse every later change: the DRO stops."""
        self._closed = why

    def claim_of_portals(self) -> str:
        """The change that portals are not to be stopped or started beside; empty when there is none."""
        return self.change if self._takes_portals else ""

    def set_config(self, config: C, *, is_read: bool = True, loaded_s: float | None = None) -> None:
        """Take `config` for every later start of a worker; those that run are not informed. Raises: ConfigError.

        A worker that is not in it any more keeps what it had: `operations.remove` takes it out. `is_read`: it comes
        from a file that was read just now, or at `loaded_s`.
        """
        specs = {spec.name: spec for spec in self._planner(config)}
        self.current = config
        if is_read:
            self.loaded_s = time.time() if loaded_s is None else loaded_s
        for worker in self._workers:
            worker.spec = specs.get(worker.name, worker.spec)

    def spec_of(self, name: str) -> WorkerSpec:
        """Make the spec from the current configuration, for `operations.add`. Raises: RefusedError."""
        for spec in self._planner(self.current):
            if spec.name == name:
                return spec
        raise RefusedError(f"the configuration has no portal {name!r}")

    def reconfigure(self, config: C, done: RolledOut, *, only: frozenset[str] | None = None) -> None:
        """`set_config`, and let the running workers (or those of `only`) take over what can change while they run.

        `done` is called once, later, with the problems by name of worker; a worker with a problem has changed
        nothing. Raises: ConfigError, ResourceError; nothing has changed then.
        """
        self._planner(config)
        self._rollout.begin(self._part_for(config, only), done, only=only)
        self.set_config(config)
