"""The problems that were seen lately, the latest first; one that lasts is one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from supervisor.tools.top.sample import Complaint

KEPT: Final = 50


@dataclass(frozen=True, slots=True)
class ShownProblem:
    since_s: float  # since 1970
    last_s: float  # when it was seen last
    text: str  # as it was then
    is_over: bool = False


class ProblemHistory:
    def __init__(self) -> None:
        self._all: dict[str, ShownProblem] = {}
        self._events: set[str] = set()  # what is noted once

    @property
    def latest(self) -> tuple[ShownProblem, ...]:
        """List problems, those that last before those that are over."""
        return tuple(sorted(self._all.values(), key=lambda p: (p.is_over, -p.last_s, -p.since_s)))

    def take(self, now_s: float, complaints: Iterable[Complaint]) -> None:
        """Note what is wrong now; everything else is over."""
        now = {complaint.about: complaint.text for complaint in complaints}
        for about, text in now.items():
            before = self._all.get(about)
            since_s = now_s if before is None or before.is_over else before.since_s
            self._all[about] = ShownProblem(since_s, now_s, text)
        for about, problem in self._all.items():
            if about not in now and not problem.is_over:
                self._all[about] = replace(problem, is_over=True)
        self._forget()

    def add_once(self, about: str, at_s: float, text: str) -> None:
        """Note an event, which is over at once, unless it is known."""
        if about not in self._events:
            self._events.add(about)
            self._all[about] = ShownProblem(at_s, at_s, text, is_over=True)
            self._forget()

    def _forget(self) -> None:
        for problem in self.latest[KEPT:]:
            self._all = {about: kept for about, kept in self._all.items() if kept is not problem}
