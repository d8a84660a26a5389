"""How long what a companion wanted and offered is held when its link has gone down, so that a reset costs no data.

A link that is back within `HOLD_NS` goes on as the same one: what it confirms was never away. It has confirmed all
that it will when nothing is left, or when nothing more was confirmed for `QUIET_NS`; the protocol has no end of the
exchange. A link that goes down again before that holds no longer than from the first time on.

Guess: both times. A default initiator that finds nobody at once comes again after 5 to 6 s, and TLS and HELLO take a
moment; a route table that leads elsewhere comes at default timers after 6 s and leaves the proxies two more.
"""

from __future__ import annotations

from typing import Final

from dro.clock import ms, s

HOLD_NS: Final = s(8)
QUIET_NS: Final = s(2)
LOOK_NS: Final = ms(100)
"""Between looks at what is left, while the link is up."""


class LinkHold:
    """One per peer portal. `left`, an argument: how much is held and not confirmed."""

    def __init__(self) -> None:
        self._since_ns: int | None = None  # when the link went down
        self._due_ns: int | None = None
        self._quiet_ns: int | None = None  # of a link that is up: when it has confirmed all that it will
        self._left = 0

    @property
    def is_on(self) -> bool:
        return self._since_ns is not None

    def on_down(self, now_ns: int) -> None:
        if self._since_ns is None:
            self._since_ns = now_ns
        self._due_ns, self._quiet_ns = self._since_ns + HOLD_NS, None

    def on_up(self, now_ns: int, left: int) -> None:
        if self.is_on:
            self._left, self._quiet_ns, self._due_ns = left, now_ns + QUIET_NS, now_ns + LOOK_NS

    def next_deadline(self) -> int | None:
        return self._due_ns

    def on_timer(self, now_ns: int, left: int) -> bool:
        """Whether it is over: what is left goes."""
        if self._due_ns is None or now_ns < self._due_ns:
            return False
        if self._quiet_ns is not None and left:
            if left < self._left:
                self._quiet_ns = now_ns + QUIET_NS
            if now_ns < self._quiet_ns:
                self._left, self._due_ns = left, min(now_ns + LOOK_NS, self._quiet_ns)
                return False
        self.end()
        return True

    def end(self) -> None:
        self._since_ns = self._due_ns = self._quiet_ns = None
