"""When a portal that has just started knows its TRD again: what is wanted there, and which sources are heard.

What its siblings remember of an older incarnation of it holds until then. Interest and sources come as fast as the rate
limits of the TRD's contexts let them, so it is over when they have almost ceased to come.

Long before that it makes the proxy sources that siblings name, when it has routes, and reads their queues.

Guess: less than a hundredth more in `CHECK_NS`, twice in a row, as the first answers may take a while;
`RELEARN_LIMIT_NS` is the longest that a site of 100,000 topics needs at the default limits of UM.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from dro.clock import s
from portals.decisions.effects import Effect, ReadQueue

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
        """Say if it is over, each `CHECK_NS`; `known`: topics, patterns, sources; `is_told`: siblings have said all."""
        grown, self._known = known - self._known, known
        self._quiet = self._quiet + 1 if is_told and grown * _STILL <= known else 0
        return self._quiet >= QUIET_CHECKS or now_ns >= self._until_ns


class UnreadQueues:
    """Keeps the siblings whose proxy sources here are not open yet. `ask` asks the shell for an effect, in order."""

    def __init__(self, ask: Callable[[Effect], object]) -> None:
        self._ask = ask
        self._waiting: list[int] = []
        self._tables = 0  # that are being followed
        self._has_routes = False

    def on_known_proxies_sent(self, worker: int) -> None:
        """The sibling has named all that this portal had a proxy source for."""
        self._waiting.append(worker)
        self._read()

    def assume_routes(self) -> None:
        """Wait for no table."""
        self._has_routes = True

    def following(self, steps: Iterator[None]) -> Iterator[None]:
        """Follow a route table; what it leads to is decided after these steps."""
        self._tables += 1
        return self._follow(steps)

    def _follow(self, steps: Iterator[None]) -> Iterator[None]:
        yield from steps
        self._tables -= 1
        self._has_routes = True
        self._read()

    def _read(self) -> None:
        if self._has_routes and not self._tables:
            while self._waiting:
                self._ask(ReadQueue(self._waiting.pop(0)))
