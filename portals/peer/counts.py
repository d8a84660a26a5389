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
    lost: int = 0  # waited when the connection ended
    lost_bytes: int = 0

    def on_received(self, nbytes: int) -> None:
        self.received += 1
        self.received_bytes += nbytes

    def on_sent(self, nbytes: int) -> None:
        self.sent += 1
        self.sent_bytes += nbytes

    def on_lost(self, nbytes: int) -> None:
        self.lost += 1
        self.lost_bytes += nbytes

    def move_to(self, page: CounterPage) -> None:
        """Add them to the page of the portal, and begin anew."""
        page.add_sized(Slot.GATEWAY_CONTROL_RCVD, self.received, self.received_bytes)
        page.add_sized(Slot.GATEWAY_CONTROL_SENT, self.sent, self.sent_bytes)
        page.add_sized(Slot.GATEWAY_CONTROL_NOT_OPERATIONAL, self.lost, self.lost_bytes)
        self.received = self.received_bytes = self.sent = self.sent_bytes = self.lost = self.lost_bytes = 0


def count_lost(page: CounterPage, *messages: bytes) -> None:
    """Control messages for which there is no connection."""
    page.add_sized(Slot.GATEWAY_CONTROL_NOT_OPERATIONAL, len(messages), sum(map(len, messages)))
