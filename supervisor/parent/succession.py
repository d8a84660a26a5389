"""Whether the next life of a worker goes on from the one before, or starts clean.

A portal goes on after a death that nobody ordered, and after the order to hand over, when it had been ready, has the
same part of the configuration as the process before, what that had taken over while it ran included, and did not die in
a short life that went on itself: what ended that one may be in what it went on from.
"""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.parent.backoff import LONG_LIFE_NS


@dataclass(frozen=True, slots=True)
class SuccessionRecord:
    """Holds what is known of the lives of a worker, for another program in this process."""

    obstacle: str
    has_lost_files: bool
    started_ns: int
    went_on: bool


class Succession:
    """The lives of one worker, as far as the next one depends on them."""

    def __init__(self, *, is_portal: bool) -> None:
        self._is_portal = is_portal
        self._obstacle = "it has not run yet"
        self._has_lost_files = False
        self.part: object = None
        """The part of the configuration that the process has; the owner replaces it when it takes over another."""
        self._started_ns = 0
        self._went_on = False
        self._before: tuple[SuccessionRecord, object] = self.record(), None

    def record(self) -> SuccessionRecord:
        return SuccessionRecord(self._obstacle, self._has_lost_files, self._started_ns, self._went_on)

    def adopt(self, known: SuccessionRecord, part: object) -> None:
        """Go on from what another program knew. `part`: what that one called the part of the life that runs."""
        self._obstacle = known.obstacle
        self._has_lost_files = self._has_lost_files or known.has_lost_files
        self._started_ns, self._went_on, self.part = known.started_ns, known.went_on, part

    def obstacle(self, part: object) -> str:
        """Return why a life with this part of the configuration starts clean; empty when it goes on."""
        if self._obstacle:
            return self._obstacle
        if self._has_lost_files:
            return "its files were removed"
        return "" if part == self.part else "its configuration has changed"

    def on_start(self, now_ns: int, part: object) -> None:
        """Note that a process was forked, with that part of the configuration."""
        self._before = self.record(), self.part
        self._went_on = not self.obstacle(part)
        self._started_ns, self.part = now_ns, part
        self._obstacle = "its start failed"
        self._has_lost_files = False

    def take_back(self) -> None:
        """Forget the last life, as if it had not been."""
        self.adopt(*self._before)

    def on_ready(self) -> None:
        self._obstacle = "" if self._is_portal else "it is no portal"

    def on_files_lost(self) -> None:
        self._has_lost_files = True

    def on_order(self, order: str) -> None:
        """Note that whatever runs has ended, or what is to start does so, by that order."""
        self._obstacle = f"ordered: {order}"

    def on_death(self, now_ns: int, *, in_good_order: bool) -> None:
        """Note an end that nobody has ordered here. `in_good_order`: it had said goodbye to its network."""
        if in_good_order:
            self._obstacle = "it ended in good order"
        elif self._went_on and now_ns - self._started_ns < LONG_LIFE_NS and not self._obstacle:
            self._obstacle = "it went on and died soon after"
