"""The first half of a reload: read the file, plan, check what can fail. Runs in a forked child and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dro.config.change.difference import with_portals
from dro.config.dro_xml.load import load_dro
from dro.config.dro_xml.model import DroConfig
from dro.config.dro_xml.unsupported import split_limits
from dro.config.reading.problems import ConfigErrors
from dro.log import setup as logs
from dro.log.handler import Settings
from supervisor.parent.log_settings import check_log, log_settings
from supervisor.parent.parent import Parent
from supervisor.parent.process_plan import plan_of
from supervisor.reload.checks import check_plan
from supervisor.reload.plan import LOG, ReloadPlan, after_reload, plan_reload


@dataclass(frozen=True, slots=True)
class Situation:
    """What runs when the trial begins.

    `portals` are those that the DRO has, running or not; `resting` those that an operator has stopped.
    """

    config: DroConfig
    portals: frozenset[str]
    resting: frozenset[str]
    shm: Path
    log: Settings

    @property
    def running(self) -> DroConfig:
        """The configuration without portals that an operator has removed."""
        return with_portals(self.config, self.portals)


def situation_of(parent: Parent[DroConfig]) -> Situation:
    """Return what runs now."""
    workers = parent.worker_status()
    return Situation(
        config=parent.configuration.current,
        portals=frozenset(worker.name for worker in workers),
        resting=frozenset(worker.name for worker in workers if worker.is_resting),
        shm=parent.run_dirs.shm,
        log=logs.settings(),
    )


@dataclass(frozen=True, slots=True)
class Trial:
    """What a reload would do. `after` is the configuration that runs then: the file's, but for what waits."""

    plan: ReloadPlan
    after: DroConfig
    log: Settings
    warnings: tuple[str, ...]


def read_new(path: str) -> tuple[DroConfig, tuple[str, ...]]:
    """The configuration in a file and the warnings about it.

    Raises: ConfigError, also for what this release refuses to run.
    """
    warnings: list[str] = []
    config = load_dro(path, warn=warnings.append)
    refusals, limits = split_limits(config)
    warnings += [str(limit) for limit in limits if not limit.is_information]
    if refusals:
        raise ConfigErrors(refusals)
    plan_of(config)
    return config, tuple(warnings)


def compare(situation: Situation, path: str) -> Trial:
    """Read and plan only, for `diff`. Raises: ConfigError."""
    new, warnings = read_new(path)
    plan = plan_reload(situation.running, new)
    settings = log_settings(new.daemon.log, situation.log)
    return Trial(plan, after_reload(situation.running, new, plan), settings, warnings)


def try_out(situation: Situation, path: str) -> Trial:
    """Read, plan and check. Raises: ConfigError with everything that stands against it."""
    trial = compare(situation, path)
    if trial.plan.has_live(LOG):
        check_log(trial.after, situation.log)
    check_plan(situation.running, trial.after, trial.plan, situation.resting, situation.shm)
    return trial
