"""The messages of a demonstration: sent at a steady rate, and counted until all have arrived."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from dro.um.blocking_api import BlockingSource
from supervisor.tools.demo.arrivals import SENT_AGAIN, STAMP

TOPIC: Final = "demo.prices.ACME"
PATTERN: Final = r"^demo\.prices\."
PAYLOAD_BYTES: Final = 200
TURN_S: Final = 0.002
ALL_ARRIVED_S: Final = 15.0
RESOLVED_S: Final = 90.0  # processes start ten times slower on a machine that is busy
SETTLE_S: Final = 0.3
"""After the receivers have joined: a message sent meanwhile would be older than their session, not lost."""
_PADDING: Final = bytes(PAYLOAD_BYTES - STAMP.size)


class DemoSource:
    """A source that sends `rate` messages per second from the moment that this is made."""

    def __init__(self, source: BlockingSource, rate: int) -> None:
        self._source = source
        self._rate = rate
        self._began = time.monotonic()
        self.sent = 0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def send_due(self) -> None:
        due = int(self.elapsed_s * self._rate)
        while self.sent < due:
            self._source.send(STAMP.pack(self.sent, time.monotonic_ns()) + _PADDING)
            self.sent += 1

    def send_again(self, serials: Iterable[int]) -> None:
        for serial in serials:
            if serial < self.sent:
                self._source.send(STAMP.pack(serial, SENT_AGAIN) + _PADDING)


def send_until(
    is_over: Callable[[], bool], sender: DemoSource, stop: threading.Event, each_turn: Callable[[], bool]
) -> bool:
    """Send until it is over or stopped. False as soon as `each_turn` says so."""
    while not stop.is_set() and not is_over():
        sender.send_due()
        if not each_turn():
            return False
        stop.wait(TURN_S)
    return True


def wait_arrived(is_done: Callable[[], bool], meanwhile: Callable[[], object] = lambda: None) -> None:
    """Wait until the receivers have all that they will get, but not for ever."""
    deadline = time.monotonic() + ALL_ARRIVED_S
    while time.monotonic() < deadline and not is_done():
        meanwhile()
        time.sleep(0.02)
