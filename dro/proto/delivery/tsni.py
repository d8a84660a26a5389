"""When an idle source sends its newest topic sqn (TSNI), so that receivers detect a loss at the end of a burst.

State: the time of the last data and of the last TSNI. One per source; `on_data` is a store, so it may run per message.

    silent for the interval      TSNI, and again each interval
    threshold after the data     no more (0 = for ever)
    data                         starts over

Source: UM documentation, "TSNI". Guess: a TSNI that falls on the end of the threshold is still sent (12 with the
defaults); before the first data there is no sqn, so nothing is sent.
"""

from __future__ import annotations

from dro.clock import NS_PER_MS, NS_PER_S
from dro.state import StateLayout


class TsniSchedule:
    """Deadlines of one source's TSNIs. `interval_ns` 0 = none; `threshold_ns` 0 = no end."""

    __slots__ = ("_interval_ns", "_last_data_ns", "_sent", "_threshold_ns")

    def __init__(self, interval_ns: int = 5000 * NS_PER_MS, threshold_ns: int = 60 * NS_PER_S) -> None:
        self._interval_ns = interval_ns
        self._threshold_ns = threshold_ns
        self._last_data_ns: int | None = None
        self._sent = 0  # intervals used up since the last data

    def on_data(self, now_ns: int) -> None:
        """Data of the topic was sent."""
        self._last_data_ns = now_ns
        self._sent = 0

    def next_deadline(self) -> int | None:
        """Return when the next TSNI is due; data moves it, so a timer may find nothing due and must ask again."""
        if self._last_data_ns is None or self._interval_ns <= 0:
            return None
        after_ns = (self._sent + 1) * self._interval_ns
        if 0 < self._threshold_ns < after_ns:
            return None
        return self._last_data_ns + after_ns

    def on_timer(self, now_ns: int) -> bool:
        """Whether to send one TSNI now. Intervals missed by a late timer are not made up for."""
        deadline = self.next_deadline()
        if deadline is None or deadline > now_ns or self._last_data_ns is None:
            return False
        self._sent = (now_ns - self._last_data_ns) // self._interval_ns
        return True


StateLayout(TsniSchedule, 1, _last_data_ns=int | None, _sent=int)
