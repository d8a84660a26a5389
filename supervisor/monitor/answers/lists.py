"""The lists of the workers for who asks over HTTP: collected from all portals, kept for a moment.

They come over a connection of their own, so that a long list does not keep the watch from its look at the parent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from dro.errors import DroError
from supervisor.admin.lists import holders, rows_of
from supervisor.admin.status import DroStatus
from supervisor.monitor.answers.turns import Turns
from supervisor.samples.watch import Asker

RECENT_S: Final = 1.0
RECENT_TIMES: Final = 3
"""A list that took long to collect is kept so many times as long."""
MAX_ROWS: Final = 200_000
"""One list has no more; what is beyond is left out, and said to be."""
MAX_KEPT: Final = 8
"""Lists that are kept at the same time."""


@dataclass(frozen=True, slots=True)
class Listing:
    """`problems`: why rows of a process are missing."""

    rows: tuple[Any, ...]
    problems: tuple[str, ...] = ()
    made_s: float = 0.0  # of the monotonic clock
    took_s: float = 0.0


class Lists:
    """Collects lists of one DRO, for many threads; one is collected at a time."""

    def __init__(self, asker: Asker, status: Callable[[], DroStatus], turns: Turns) -> None:
        self._turns = turns
        self._asker = asker
        self._status = status
        self._lock = threading.Lock()
        self._kept: dict[tuple[str, str, str], Listing] = {}

    def of(self, what: str, portal: str = "", text: str = "") -> Listing:
        """Collect the rows of a list of `dro.bus.listing.LISTS`, of one portal or of all processes that have it.

        `text` is what the process is to look for: a part of a topic. Raises: ApiError when too many ask.
        """
        key = what, portal, text
        found = self._known(key)
        if found is not None:
            return found
        with self._turns.take():
            found = self._known(key)  # somebody else has asked meanwhile
            if found is None:
                found = self._collect(what, portal, text)
                self._keep(key, found)
            return found

    def _known(self, key: tuple[str, str, str]) -> Listing | None:
        with self._lock:
            found = self._kept.get(key)
        if found is None or time.monotonic() - found.made_s > max(RECENT_S, RECENT_TIMES * found.took_s):
            return None
        return found

    def _keep(self, key: tuple[str, str, str], found: Listing) -> None:
        with self._lock:
            self._kept.pop(key, None)
            while len(self._kept) >= MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = found

    def _collect(self, what: str, portal: str, text: str) -> Listing:
        rows: list[Any] = []
        began_s = time.monotonic()
        asked, problems = holders(self._status(), what, portal)
        for name in asked:
            try:
                rows += self._asker.ask(lambda client, name=name: list(rows_of(client, what, name, text)))  # type: ignore[misc]
            except DroError as e:
                problems.append(f"{name}: {e}")
            if len(rows) > MAX_ROWS:
                del rows[MAX_ROWS:]
                problems.append(f"only the first {MAX_ROWS} rows are here")
                break
        made_s = time.monotonic()
        return Listing(tuple(rows), tuple(problems), made_s, made_s - began_s)
