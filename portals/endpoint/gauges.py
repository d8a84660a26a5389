"""Gauges of an endpoint portal's page: its proxy sources, the interest of its TRD, its transport sessions.

In addition to those of `portals.shell.portal`. Its only state is the counts of earlier incarnations of the portal.
"""

from __future__ import annotations

from typing import Final

from dro.bus.counters import CounterPage
from dro.um.fragment.context import FragmentContext
from portals.datapath.counters import Slot
from portals.endpoint.interest import TrdInterest

_OF_SESSIONS: Final = {
    Slot.BAD_DATAGRAMS: "bad",
    Slot.UNRECOVERABLE: "unrecoverable",
    Slot.TRAINS_OUT: "trains",
    Slot.NAKS_SENT: "naks_sent",
    Slot.RETRANSMITTED: "retransmitted",
    Slot.SOCKET_DROPS: "socket_drops",
    Slot.UNSENT: "unsent",
    Slot.DISCARDED: "discarded",
}
"""Slots that are added up from the `SessionCounts` of both contexts."""


class Gauges:
    """See the module text."""

    def __init__(
        self, page: CounterPage, interest: TrdInterest, receiving: FragmentContext, sending: FragmentContext
    ) -> None:
        self._page = page
        self._interest = interest
        self._receiving = receiving
        self._sending = sending
        self._counted_before = {slot: page[slot] for slot in _OF_SESSIONS}  # by earlier incarnations

    def refresh(self, proxy_sources: int) -> None:
        counts = self._receiving.counts() + self._sending.counts()
        values = self._interest.counts()
        values |= {Slot.PROXY_SOURCES: proxy_sources, Slot.SOURCES_NOT_IN: self._receiving.resolver.cache.refused}
        values |= {slot: self._counted_before[slot] + getattr(counts, name) for slot, name in _OF_SESSIONS.items()}
        for slot, value in values.items():
            self._page.set(slot, value)
