"""When a portal that has just started knows its TRD again: what is wanted there, and which sources are heard.

What its siblings remember of an older incarnation of it holds until then. Interest and sources come as fast as the rate
limits of the TRD's contexts let them, so it is over when they have almost ceased to come.

Guess: less than a hundredth more in `CHECK_NS`, twice in a row, as the first answers may take a while;
`RELEARN_LIMIT_NS` is the longest that a site of 100,000 topics needs at the default limits of UM.
"""

from __future__ import annotations

from typing import Final

from dro.clock import s

CHECK_NS: Final = s(3)
QUIET_CHECKS: Final = 2
RELEARN_LIMIT_NS: Final = s(300)
_STILL: Final = 100  # parts of what is known


class Relearning:
    """See the module text. Made when the portal starts."""

    def __init__(self, now_ns: int) -> None:
        self._until_ns = now_ns + RELEARN_LIMIT_NS
        self._known = 0
        self._quiet = 0

    def is_over(self, known: int, now_ns: int, *, is_told: bool = True) -> bool:
        """Asked every `CHECK_NS`; `known`: topics, patterns and sources; `is_told`: siblings have said all."""
        grown, self._known = known - self._known, known
        self._quiet = self._quiet + 1 if is_told and grown * _STILL <= known else 0
        return self._quiet >= QUIET_CHECKS or now_ns >= self._until_ns
