"""The parent as reloads see it: its operations for transactions, and what runs now for trials."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from dro import log as logs
from dro.config.difference import with_portals
from dro.config.model import DroConfig
from supervisor.parent import Parent
from supervisor.reload_steps import Done
from supervisor.reload_trial import Situation

_RESTING: Final = ("paused", "drained")


class ParentHands:
    """The parent as transactions see it."""

    def __init__(self, parent: Parent[DroConfig]) -> None:
        self._parent = parent

    def set_config(self, config: DroConfig) -> None:
        self._parent.set_config(config)

    def reconfigure(
        self, config: DroConfig, done: Callable[[Mapping[str, str]], object], *, only: frozenset[str]
    ) -> None:
        self._parent.reconfigure(config, done, only=only)

    def set_log(self, settings: logs.Settings) -> None:
        self._parent.set_log(settings)

    def is_resting(self, name: str) -> bool:
        return any(w.name == name and w.state in _RESTING for w in self._parent.worker_status())

    def add(self, name: str, done: Done) -> None:
        self._parent.operations.add(self._parent.spec_of(name), done)

    def remove(self, name: str, done: Done) -> None:
        self._parent.operations.remove(name, done)

    def restart(self, name: str, done: Done) -> None:
        self._parent.operations.restart(name, done)

    def pause(self, name: str, done: Done) -> None:
        self._parent.operations.pause(name, done)

    def resume(self, name: str, done: Done) -> None:
        self._parent.operations.resume(name, done)


def part_for(config: DroConfig, only: frozenset[str] | None) -> DroConfig:
    """What these workers have to read: the rest would hold up their traffic longer. The tree is for the parent."""
    part = config if only is None else with_portals(config, only)
    return replace(part, tree=None)


def situation_of(parent: Parent[DroConfig]) -> Situation:
    """What runs now."""
    workers = parent.worker_status()
    return Situation(
        config=parent.config,
        portals=frozenset(worker.name for worker in workers),
        resting=frozenset(worker.name for worker in workers if worker.state in _RESTING),
        shm=parent.counters_dir,
        log=logs.settings(),
    )
