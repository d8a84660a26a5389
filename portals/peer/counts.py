"""Control messages of one connection of a peer link, both ways: keepalives, routes, interest and sources."""

from __future__ import annotations

from dataclasses import dataclass

from dro.bus.counters import CounterPage
from dro.metrics.slots import Slot


@dataclass(slots=True)
class ControlCounts:
    """Since they were taken last."""

    received: int = 0
    received_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0

    def on_received(self, nbytes: int) -> None:
        self.received += 1
        self.received_bytes += nbytes

    def on_sent(self, nbytes: int) -> None:
        self.sent += 1
        self.sent_bytes += nbytes

    def move_to(self, page: CounterPage) -> None:
        """Add them to the page of the portal, and begin anew."""
        page.add_sized(Slot.GATEWAY_CONTROL_RCVD, self.received, self.received_bytes)
        page.add_sized(Slot.GATEWAY_CONTROL_SENT, self.sent, self.sent_bytes)
        self.received = self.received_bytes = self.sent = self.sent_bytes = 0
