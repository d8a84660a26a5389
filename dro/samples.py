"""The smallest, the largest and the mean of some figure, such as the time of an answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Samples:
    """Keeps these of whole numbers; all are 0 before the first."""

    count: int = 0
    minimum: int = 0
    maximum: int = 0
    total: int = 0

    def add(self, value: int) -> None:
        self.minimum = min(self.minimum, value) if self.count else value
        self.maximum = max(self.maximum, value)
        self.count += 1
        self.total += value

    @property
    def mean(self) -> int:
        return self.total // max(1, self.count)
