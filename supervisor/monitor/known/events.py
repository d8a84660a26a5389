"""The log events of all processes of the DRO: received over a UNIX socket, the newest kept, and told to who listens."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from supervisor.samples.events import CATEGORIES, LEVELS, EventRow, EventSocket

KEPT: Final = 1000
MAX_LISTENERS: Final = 32
MAX_WAITING: Final = 256
"""Events that one listener may leave unread."""


class EventReader:
    """What waits for one reader; `is_late` when it would have been too much."""

    def __init__(self, wants: Callable[[EventRow], bool], on_late: Callable[[], object]) -> None:
        self.wants: Final = wants
        self.waiting: Final[asyncio.Queue[EventRow]] = asyncio.Queue(MAX_WAITING)
        self.is_late = False
        self._on_late = on_late

    def tell(self, row: EventRow) -> None:
        """Take an event that it wants."""
        if self.is_late or not self.wants(row):
            return
        try:
            self.waiting.put_nowait(row)
        except asyncio.QueueFull:
            self.is_late = True
            self._on_late()


class Events:
    """Used in the loop of the monitor alone."""

    def __init__(self, path: Path, on_malformed: Callable[[], object]) -> None:
        """Bind the socket at `path`, also when a killed monitor has left one there. Raises: ResourceError."""
        self._rows: deque[EventRow] = deque(maxlen=KEPT)
        self.listeners: Final[set[EventReader]] = set()
        self._socket = EventSocket(path, self._on_event, on_malformed)

    def start(self) -> None:
        """Receive from now on, in the running loop."""
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._socket.read)

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()

    def recent(
        self, level: str = "", category: str = "", after: int = 0, limit: int = 100
    ) -> tuple[list[EventRow], int]:
        """The newest ones, oldest first, and how many there are in all: of that severity or above, of that category,
        with a higher serial than `after`. Raises: ValueError for a level or category that does not exist."""
        wants, after = wanted(level, category), self.known(after)
        found = [row for row in self._rows if row.serial > after and wants(row)]
        return found[max(0, len(found) - limit) :], len(found)

    def known(self, after: int) -> int:
        """`after`, or 0 if no event has had that serial yet: it is another DRO's, or the clock was set back."""
        return after if after <= self._socket.serial else 0

    def _on_event(self, row: EventRow) -> None:
        self._rows.append(row)
        for listener in self.listeners:
            listener.tell(row)


def wanted(level: str, category: str) -> Callable[[EventRow], bool]:
    """Whether an event has at least that severity and that category; empty: any. Raises: ValueError."""
    if category and category not in CATEGORIES:
        raise ValueError(f"no category {category!r}; there are {', '.join(CATEGORIES)}")
    if level and level not in LEVELS:
        raise ValueError(f"no level {level!r}; there are {', '.join(LEVELS)}")
    least = LEVELS[level] if level else logging.NOTSET
    return lambda row: LEVELS[row.level] >= least and category in ("", row.category)
