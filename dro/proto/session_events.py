"""When a transport session of a receiver begins and ends, on any transport."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Began:
    """Beginning of session: the first activity after joining."""

    at_ns: int


@dataclass(frozen=True, slots=True)
class Ended:
    """End of session: silence for the activity timeout. The session takes nothing in any more."""

    at_ns: int
