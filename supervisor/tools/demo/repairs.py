"""How the receivers of the demonstration get what was on the way when routes changed: they ask the source for it.

Each receiving TRD has a source on the topic `REPAIR`, which the application of the demonstration's source receives
through the DROs. It sends what it is asked for once more, on the same topic. The messages of an application have no
other insurance when routes change: a DRO forwards along the new ones as soon as it has them, and the DROs do not get
them at the same moment.
"""

from __future__ import annotations

import time
from collections import deque
from struct import Struct
from typing import Final

from dro.um.blocking_api import BlockingContext, BlockingSource
from dro.um.message.events import Data, Event
from supervisor.tools.demo.arrivals import Arrivals
from supervisor.tools.demo.flow import DemoSource

REPAIR: Final = "demo.repair"
RANGE: Final = Struct("!II")  # first serial number, how many
RANGES_MAX: Final = 100  # of a message
ASK_S: Final = 0.25
"""Between questions for the same messages."""
AGAIN_MAX: Final = 20
"""Messages that are sent again between two turns of the sender."""


def ranges(serials: list[int]) -> list[tuple[int, int]]:
    """(first, count) of numbers in order."""
    found: list[tuple[int, int]] = []
    for serial in serials:
        if found and sum(found[-1]) == serial:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((serial, 1))
    return found


class Answering:
    """The side of the source. `on_event` is called by its context's thread, `turn` by the main thread."""

    def __init__(self) -> None:
        self._asked: deque[int] = deque()

    def on_event(self, event: Event) -> None:
        if isinstance(event, Data):
            for first, count in RANGE.iter_unpack(event.data):
                self._asked.extend(range(first, first + count))

    def turn(self, sender: DemoSource) -> None:
        sender.send_again([self._asked.popleft() for _ in range(min(AGAIN_MAX, len(self._asked)))])


class RepairRequester:
    """The side of a receiver."""

    def __init__(self, context: BlockingContext, arrivals: Arrivals) -> None:
        self._source: BlockingSource = context.source(REPAIR)
        self._arrivals = arrivals
        self._next_s = 0.0

    def turn(self, sent: int = 0) -> None:
        """Ask for what is missing; `sent` is told once the source sends no more."""
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + ASK_S
        if missing := ranges(self._arrivals.missing(sent)):
            self._source.send(b"".join(RANGE.pack(*one) for one in missing[:RANGES_MAX]))
