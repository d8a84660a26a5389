"""Log lines about a state that changes quickly: limited in rate, unless the state lasts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from dro.clock import s

INTERVAL_NS: Final = s(10)  # between two short episodes that are logged
LONG_NS: Final = s(1)  # an episode that lasts is logged in any case


class Episodes:
    """A rate limit alone fills and empties a queue a hundred times a second."""

    def __init__(self, log_begin: Callable[[Mapping[str, object]], object], log_end: Callable[[], object]) -> None:
        """`log_begin` gets the fields of its line."""
        self._log_begin = log_begin
        self._log_end = log_end
        self._began_ns: int | None = None
        self._is_logged = False
        self._logged_ns: int | None = None
        self._suppressed = 0  # since the last one that was logged

    def on_begin(self, now_ns: int) -> None:
        """Note that the state holds; may be called repeatedly. Logged at once after a quiet time, else later."""
        if self._began_ns is None:
            self._began_ns = now_ns
        if self._is_logged:
            return
        is_quiet = self._logged_ns is None or now_ns - self._logged_ns >= INTERVAL_NS
        if is_quiet or now_ns - self._began_ns >= LONG_NS:
            extra = {"suppressed": self._suppressed} if self._suppressed else {}
            self._is_logged, self._logged_ns, self._suppressed = True, now_ns, 0
            self._log_begin(extra)

    def on_end(self) -> None:
        """Note that the state is over; may be called when it did not hold."""
        if self._is_logged:
            self._log_end()
        elif self._began_ns is not None:
            self._suppressed += 1
        self._began_ns, self._is_logged = None, False
