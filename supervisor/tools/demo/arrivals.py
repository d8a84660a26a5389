"""What the receivers of the demonstration got, message by message.

Every message has a serial number. One that is sent again because a receiver asked for it has no time stamp, so that it
is neither taken for a duplicate nor for a message that was late.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

from dro.um.message.events import Data, Event, Loss, LossBurst

STAMP: Final = Struct("!IQ")  # serial number, monotonic clock in ns
SENT_AGAIN: Final = 0  # in place of the clock


@dataclass
class Arrivals:
    """Counts what one receiver got. Written by its context's thread, read by the main thread."""

    name: str
    received: int = 0
    lost: int = 0
    duplicates: int = 0
    out_of_order: int = 0
    repaired: int = 0
    source: str = ""
    latencies_ns: deque[int] = field(default_factory=lambda: deque(maxlen=5000))
    _next: int = 0
    _gaps: set[int] = field(default_factory=set)  # serial numbers below `_next` that have not come

    def on_event(self, event: Event) -> None:
        now_ns = time.monotonic_ns()
        match event:
            case Data(data=data, source=source):
                serial, sent_ns = STAMP.unpack_from(data)
                if self._take(serial, was_sent_again=sent_ns == SENT_AGAIN):
                    self.source = source
                    self.received += 1
                    if sent_ns != SENT_AGAIN:
                        self.latencies_ns.append(now_ns - sent_ns)
            case Loss() | LossBurst():
                self.lost += 1
            case _:
                pass

    def _take(self, serial: int, *, was_sent_again: bool) -> bool:
        """Count a message; whether it is new."""
        if serial >= self._next:
            self._gaps.update(range(self._next, serial))
            self._next = serial + 1
        elif serial in self._gaps:
            self._gaps.remove(serial)
            self.out_of_order += not was_sent_again
        else:
            self.duplicates += not was_sent_again
            return False
        self.repaired += was_sent_again
        return True

    def missing(self, sent: int = 0) -> list[int]:
        """Serial numbers that have not come, up to the last one that did, or of all that were sent, in order."""
        following = self._next
        return [*sorted(self._gaps.copy()), *range(following, sent)]

    def percentile_us(self, fraction: float) -> float:
        values = sorted(self.latencies_ns.copy())
        return values[min(len(values) - 1, int(len(values) * fraction))] / 1000 if values else 0.0


def exit_status(sent: int, arrivals: Sequence[Arrivals]) -> int:
    """0 when every receiver got every message once and, but for those that were sent again, in order."""
    is_right = all(a.received == sent and not a.duplicates and not a.out_of_order for a in arrivals)
    return 0 if sent and is_right else 1
