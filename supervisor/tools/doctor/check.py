"""The doctor's results: one line per check. No state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class Status(Enum):
    """`note` is worth knowing and nothing to mend: what could not be checked, or only by halves."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    FAIL = "fail"


_ORDER = (Status.OK, Status.NOTE, Status.WARN, Status.FAIL)


@dataclass(frozen=True, slots=True)
class Check:
    """One finding; `portal` is empty for what concerns the DRO or the host."""

    portal: str
    name: str
    status: Status
    what: str
    remedy: str = ""
    place: str = ""  # file:line

    def line(self) -> str:
        place = f"{self.place}: " if self.place else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{self.status.value:<5} {self.name}: {place}{self.what}{remedy}"


def worst(checks: Iterable[Check]) -> Status:
    """The worst status; ok without any check."""
    return max((check.status for check in checks), key=_ORDER.index, default=Status.OK)


def ok(portal: str, name: str, what: str) -> Check:
    return Check(portal, name, Status.OK, what)


def note(portal: str, name: str, what: str, remedy: str = "", place: str = "") -> Check:
    return Check(portal, name, Status.NOTE, what, remedy, place)


def warn(portal: str, name: str, what: str, remedy: str, place: str = "") -> Check:
    return Check(portal, name, Status.WARN, what, remedy, place)


def fail(portal: str, name: str, what: str, remedy: str, place: str = "") -> Check:
    return Check(portal, name, Status.FAIL, what, remedy, place)
