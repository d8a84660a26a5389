"""The first half of a reload: read the file, plan, try what can fail. Done in a forked child; nothing changes here."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from dro.config.difference import with_portals
from dro.config.load import load_dro
from dro.config.model import DroConfig
from dro.config.problems import ConfigErrors
from dro.config.unsupported import ConfigWarning, unsupported
from dro.errors import ConfigError
from dro.log import Settings
from supervisor.log_settings import check_log, log_settings
from supervisor.plan import plan_of
from supervisor.reload_checks import check_plan
from supervisor.reload_plan import LOG, ReloadPlan, after_reload, plan_reload


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
    errors: list[ConfigError] = []
    for limit in unsupported(config):
        if isinstance(limit, ConfigWarning):
            warnings.append(str(limit))
        else:
            errors.append(limit)
    if errors:
        raise ConfigErrors(errors)
    plan_of(config)
    return config, tuple(warnings)


def compare(situation: Situation, path: str) -> Trial:
    """Read and plan only, for `diff`. Raises: ConfigError."""
    new, warnings = read_new(path)
    plan = plan_reload(situation.running, new)
    settings = log_settings(new, replace(situation.log))
    return Trial(plan, after_reload(situation.running, new), settings, warnings)


def try_out(situation: Situation, path: str) -> Trial:
    """Read, plan and check. Raises: ConfigError with everything that stands against it."""
    trial = compare(situation, path)
    if trial.plan.has_live(LOG):
        check_log(trial.after, situation.log)
    check_plan(situation.running, trial.after, trial.plan, situation.resting, situation.shm)
    return trial
