"""The schedule of session messages of one source session: shared by LBT-RM and LBT-RU.

A session message goes out when no data has been sent for the minimum interval; each further gap is twice the one
before, up to the maximum. Data starts the series again; retransmissions and NCFs do not.

Source: UM Configuration Guide, `transport_lbtrm_sm_minimum_interval` and `_maximum_interval`; gaps of a UM 6.14
capture.
"""

from __future__ import annotations

from dataclasses import dataclass

from dro.clock import NS_PER_MS
from dro.state import StateLayout


@dataclass(frozen=True, slots=True)
class SendSm:
    """Send a session message with these numbers."""

    sm_sqn: int
    lead: int
    trail: int
    at_ns: int


class SmSchedule:
    """When the next session message is due. The series is anchored: a late timer does not shift what follows."""

    __slots__ = ("_gap_ns", "_max_ns", "_min_ns", "due_ns")

    def __init__(self, min_ns: int, max_ns: int) -> None:
        # Guess: an interval below 1 ms, or a maximum below the minimum, is read as the nearest that works.
        self._min_ns = max(min_ns, NS_PER_MS)
        self._max_ns = max(max_ns, self._min_ns)
        self._gap_ns = self._min_ns
        self.due_ns: int | None = None

    def restart(self, now_ns: int) -> None:
        """Data was sent, or the series begins."""
        self._gap_ns = self._min_ns
        self.due_ns = now_ns + self._min_ns

    def take(self, now_ns: int) -> bool:
        """True when a session message is due; the next one is then scheduled."""
        due_ns = self.due_ns
        if due_ns is None or due_ns > now_ns:
            return False
        self._gap_ns = min(2 * self._gap_ns, self._max_ns)
        due_ns += self._gap_ns
        # A process that was stopped for long sends one, not all that it missed.
        self.due_ns = due_ns if due_ns > now_ns else now_ns + self._gap_ns
        return True


StateLayout(SmSchedule, 1, _gap_ns=int, due_ns=int | None)
