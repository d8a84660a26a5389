"""Gauges of an endpoint portal's page: its proxy sources, the interest of its TRD, its transport sessions.

In addition to those of `portals.shell.portal`. Its only state is the counts of earlier incarnations of the portal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from dro.bus.counters import CounterPage
from dro.bus.totals import Totals
from dro.log.events import LogEvent
from dro.metrics.slots import Slot
from dro.um.fragment.context import FragmentContext
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
_OF_SERVERS: Final = {
    Slot.UNKNOWN_SENDERS: "unknown_senders",
    Slot.SRS_MALFORMED: "malformed",
    Slot.SRS_CONNECTS: "connects",
}
_SERVERS: Final = {
    "lbmrd": (Slot.LBMRDS, Slot.LBMRDS_ANSWERING, Slot.LBMRDS_WHICH),
    "SRS": (Slot.SRSES, Slot.SRSES_ANSWERING, Slot.SRSES_WHICH),
}
_WHICH_MAX: Final = 32

_LEFT_OUT: Final = (Slot.SOURCES_LIMITED, Slot.SOURCES_FULL, Slot.INTEREST_LIMITED, Slot.INTEREST_FULL)


class Gauges:
    """See the module text."""

    def __init__(
        self,
        page: CounterPage,
        interest: TrdInterest,
        receiving: FragmentContext,
        sending: FragmentContext,
        tell: Callable[[LogEvent, Mapping[str, object]], object],
    ) -> None:
        """`tell`: the limited log of the portal."""
        self._page = page
        self._interest = interest
        self._receiving = receiving
        self._sending = sending
        self._tell = tell
        self._totals = Totals(page, (*_OF_SESSIONS, *_OF_SERVERS))
        self._left_out_before = {slot: page[slot] for slot in _LEFT_OUT}  # by earlier incarnations

    def refresh(self, proxy_sources: int) -> None:
        counts = self._receiving.counts() + self._sending.counts()
        values = self._interest.counts()
        values |= {Slot.PROXY_SOURCES: proxy_sources, Slot.SOURCES_NOT_IN: self._receiving.resolver.cache.refused}
        for slot, value in values.items():
            self._page.set(slot, value)
        self._totals.show({slot: getattr(counts, name) for slot, name in _OF_SESSIONS.items()})
        self._refresh_servers()
        self._refresh_left_out()

    def _refresh_servers(self) -> None:
        resolution = self._receiving.resolution
        for kind, (listed, answering, which) in _SERVERS.items():
            servers = sorted((str(one.entry), one.answers) for one in resolution.servers() if one.kind == kind)
            self._page.set(listed, len(servers))
            self._page.set(answering, sum(answers for _, answers in servers))
            self._page.set(which, sum(answers << n for n, (_, answers) in enumerate(servers[:_WHICH_MAX])))
        counts = resolution.server_counts()
        self._totals.show({slot: getattr(counts, name) for slot, name in _OF_SERVERS.items()})

    def _refresh_left_out(self) -> None:
        cache = self._receiving.resolver.cache
        left_out = {Slot.SOURCES_LIMITED: cache.limited, Slot.SOURCES_FULL: cache.turned_away}
        left_out |= self._interest.left_out()
        for slot, count in left_out.items():
            more = self._left_out_before[slot] + count - self._page[slot]
            if more:
                self._page.add(slot, more)
                self._tell(LogEvent.NEW_NAMES_LEFT_OUT, {"counter": slot.name, "count": more})
