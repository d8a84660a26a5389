"""Answers to `tnwgdctl reload`, `diff`, `confirm` and `rollback`: the records sent over the admin socket."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dro.config.change.element_difference import Change
from supervisor.reload.plan import ReloadPlan

MAX_CONFIRM_S: Final = 24 * 3600.0
"""The longest time within which a reload may wait for its confirmation."""


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """One thing that differs; see `Change`."""

    path: str
    portal: str
    old: str | None
    new: str | None
    reload: str  # live, portal restart, daemon restart, no effect
    origin: str
    was: str


@dataclass(frozen=True, slots=True)
class ActionRecord:
    """One thing that is done; `of_daemon`: the target is no portal."""

    action: str
    target: str
    of_daemon: bool = False


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """What a file would do, or did. `file` is the one that was read."""

    file: str
    changes: tuple[ChangeRecord, ...]
    actions: tuple[ActionRecord, ...]
    warnings: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether both configurations mean the same."""
        return not self.changes


@dataclass(frozen=True, slots=True)
class ReloadRecord:
    """How a reload went. `is_done` is false when nobody waited for its end."""

    plan: PlanRecord
    is_done: bool
    notes: tuple[str, ...] = ()  # what was not clean although it is done
    pending: tuple[str, ...] = ()  # elements that wait for a restart of the daemon
    confirm_s: float = 0.0  # it is taken back after so long unless it is confirmed
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ConfirmRecord:
    """Answer to `confirm` and `rollback`."""

    file: str
    notes: tuple[str, ...] = ()


def plan_record(file: str, plan: ReloadPlan, warnings: tuple[str, ...] = ()) -> PlanRecord:
    return PlanRecord(
        file,
        tuple(map(_change, plan.changes)),
        tuple(ActionRecord(action.kind.value, action.target, action.of_daemon) for action in plan.actions),
        warnings + plan.warnings,
    )


def _change(change: Change) -> ChangeRecord:
    return ChangeRecord(
        change.path, change.portal, change.old, change.new, change.reload.value, change.origin, change.was
    )


def pending_text(change: Change) -> str:
    """A change that waits for a restart of the daemon, for `status`."""
    old, new = ("nothing" if value in (None, "") else value for value in (change.old, change.new))
    return f"{change.path}: {old} -> {new}"
