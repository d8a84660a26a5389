"""When a process that goes on with the sockets of the former one begins to read them.

What comes meanwhile waits in the kernel: it would find nobody who wants it before the process knows again what it
forwards.
"""

from __future__ import annotations

from collections.abc import Callable


class Gate:
    """Is closed once at most, before anybody asks."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.is_open = is_open
        self._waiting: list[Callable[[], object]] = []

    def when_open(self, call: Callable[[], object]) -> None:
        """Call it when the gate is open, now if it is."""
        if self.is_open:
            call()
        else:
            self._waiting.append(call)

    def open(self) -> None:
        """Let all begin that wait; an open one stays open."""
        self.is_open = True
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()
