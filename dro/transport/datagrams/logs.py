"""How large the log of a session has to be (`dro.kept.log`)."""

from __future__ import annotations

from typing import Final, Protocol

LOG_S: Final = 4
"""How many seconds at the rate limit a log has room for; what is older cannot be repaired after a kill."""
LOG_LEAST: Final = 1 << 20
HEADERS_SHARE: Final = 2
"""How many times its payload a datagram of small messages has in bytes, with all headers. Where it is more, repairs
reach back less far than the transmission window says."""


class WindowOptions(Protocol):
    """The options of a source that decide."""

    @property
    def window_size_bytes(self) -> int: ...

    @property
    def data_rate_bps(self) -> int: ...


def window_log_bytes(o: WindowOptions) -> int:
    """Return how many bytes a log needs that holds the whole transmission window, which is measured in payload."""
    return HEADERS_SHARE * o.window_size_bytes + LOG_LEAST


def log_bytes(o: WindowOptions) -> int:
    """Return how many bytes the log of a session has room for."""
    most = window_log_bytes(o)
    return min(most, max(LOG_LEAST, o.data_rate_bps // 8 * LOG_S)) if o.data_rate_bps else most
