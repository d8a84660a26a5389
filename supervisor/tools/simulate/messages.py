"""Carries data over a simulated network: messages of sources, which remember what they passed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sent:
    """A message of a source, somewhere on its path: the portals that it has passed, and TRDs between DROs."""

    otid: bytes
    topic: bytes
    sqn: int
    passed: tuple[str, ...] = ()

    def past(self, *places: str) -> Sent:
        return Sent(self.otid, self.topic, self.sqn, (*self.passed, *places))
