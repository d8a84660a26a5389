"""Which configuration is in force in a running DRO: the half of the parent that knows it, guards it and hands it out.

One change at a time: whoever changes it claims it first. A worker gets the configuration of the moment of its fork;
`reconfigure` gives a changed one to those that run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from dro.errors import RefusedError
from supervisor.fleet import Fleet, WorkerSpec
from supervisor.rollout import RolledOut, Rollout

C = TypeVar("C")
Planner = Callable[[C], Sequence[WorkerSpec]]
"""The workers that a configuration asks for, the route manager first. Raises: ConfigError."""


class ConfigInForce(Generic[C]):
    """Base of the parent, which has the workers, the way to tell them, and the end."""

    _fleet: Fleet
    _rollout: Rollout

    def __init__(self, config: C, planner: Planner[C]) -> None:
        self._planner = planner
        self._config = config
        self._loaded_s = time.time()
        self._change = ""
        self._takes_portals = False
        self.pending: tuple[str, ...] = ()
        """Changes that wait for a restart of the daemon, for `status`."""
        self.for_workers: Callable[[C, frozenset[str] | None], object] = lambda config, _only: config
        """What of a changed configuration the running workers (those named, or all) are given to read."""

    @property
    def run_dir(self) -> Path:
        raise NotImplementedError

    @property
    def is_stopping(self) -> bool:
        raise NotImplementedError

    @property
    def config(self) -> C:
        """What is in force, apart from `pending`; a worker that starts now gets this."""
        return self._config

    @property
    def loaded_s(self) -> float:
        """When `config` was read from its file, in seconds since the epoch."""
        return self._loaded_s

    def begin_change(self, what: str, *, takes_portals: bool = False) -> None:
        """Claim the configuration until `end_change`: one change at a time. Raises: RefusedError when it is claimed.

        `takes_portals`: until then nobody else may stop or start a portal either.
        """
        if self._change:
            raise RefusedError(f"the configuration is being changed: {self._change} is under way")
        if self.is_stopping:
            raise RefusedError("the DRO is stopping")
        self._change = what
        self._takes_portals = takes_portals

    @property
    def change(self) -> str:
        """What has claimed the configuration; empty when nothing has."""
        return self._change

    def end_change(self) -> None:
        self._change = ""
        self._takes_portals = False

    def claim_of_portals(self) -> str:
        """The change that portals are not to be stopped or started beside; empty when there is none."""
        return self._change if self._takes_portals else ""

    def set_config(self, config: C, *, is_read: bool = True, loaded_s: float | None = None) -> None:
        """Take `config` for every later start of a worker; those that run are not told. Raises: ConfigError.

        A worker that is not in it any more keeps what it had: `operations.remove` takes it out. `is_read`: it comes
        from a file that was read just now, or at `loaded_s`.
        """
        specs = {spec.name: spec for spec in self._planner(config)}
        self._config = config
        if is_read:
            self._loaded_s = time.time() if loaded_s is None else loaded_s
        for worker in self._fleet:
            worker.spec = specs.get(worker.name, worker.spec)

    def spec_of(self, name: str) -> WorkerSpec:
        """Of the current configuration, for `operations.add`. Raises: RefusedError."""
        for spec in self._planner(self._config):
            if spec.name == name:
                return spec
        raise RefusedError(f"the configuration has no portal {name!r}")

    def reconfigure(self, config: C, done: RolledOut, *, only: frozenset[str] | None = None) -> None:
        """`set_config`, and let the running workers (or those of `only`) take over what can change while they run.

        `done` is called once, later, with the problems by name of worker; a worker with a problem has changed
        nothing. Raises: ConfigError, ResourceError; nothing has changed then.
        """
        self._planner(config)
        self._rollout.begin(self.for_workers(config, only), self.run_dir, done, only=only)
        self.set_config(config)
