"""Gauges of an endpoint portal's page: how much of everything there is, as of now.

No state of its own but what earlier incarnations of the portal had counted. Called by the portal twice a second.
"""

from __future__ import annotations

from typing import Final

from dro.bus.counters import CounterPage
from dro.um.context_core import ContextCore
from portals.counters import Slot
from portals.endpoint.core import EndpointCore
from portals.endpoint.interest import TrdInterest
from portals.messages import PATTERN_NONE, PATTERN_PCRE, PATTERN_REGEX

SESSION_SLOTS: Final = (Slot.BAD_DATAGRAMS, Slot.UNRECOVERABLE, Slot.TRAINS_OUT, Slot.NAKS_SENT, Slot.RETRANSMITTED)
"""Slots that are added up from the statistics of the transport sessions."""


class Gauges:
    """See the module text."""

    def __init__(
        self,
        page: CounterPage,
        core: EndpointCore,
        interest: TrdInterest,
        receiving: ContextCore,
        sending: ContextCore,
    ) -> None:
        self._page = page
        self._core = core
        self._interest = interest
        self._receiving = receiving
        self._sending = sending
        self._counted_before = {slot: page[slot] for slot in SESSION_SLOTS}  # by earlier incarnations

    def refresh(self, proxy_sources: int) -> None:
        core, page = self._core, self._page
        interest = self._interest.counts()
        page.set(Slot.LOCAL_TOPICS, interest.local_topics)
        page.set(Slot.LOCAL_PCRE, interest.local_pcre)
        page.set(Slot.LOCAL_REGEX, interest.local_regex)
        page.set(Slot.REMOTE_TOPICS, interest.remote_topics)
        page.set(Slot.REMOTE_PCRE, interest.remote_pcre)
        page.set(Slot.REMOTE_REGEX, interest.remote_regex)
        page.set(Slot.PROXY_RECEIVERS, len(core.proxy_receivers))
        page.set(Slot.RECEIVER_TOPICS, core.receiver_interest(pattern=PATTERN_NONE))
        page.set(Slot.RECEIVER_PCRE, core.receiver_interest(pattern=PATTERN_PCRE))
        page.set(Slot.RECEIVER_REGEX, core.receiver_interest(pattern=PATTERN_REGEX))
        page.set(Slot.PROXY_SOURCES, proxy_sources)
        page.set(Slot.TOPICS_NOT_OUT, core.withheld)
        page.set(Slot.TOPICS_NOT_IN, core.refused)
        page.set(Slot.SOURCES_NOT_IN, self._receiving.resolver.cache.refused)
        counts = self._receiving.counts()
        counts.add(self._sending.counts())
        for slot, total in (
            (Slot.BAD_DATAGRAMS, counts.bad),
            (Slot.UNRECOVERABLE, counts.unrecoverable),
            (Slot.TRAINS_OUT, counts.trains),
            (Slot.NAKS_SENT, counts.naks_sent),
            (Slot.RETRANSMITTED, counts.retransmitted),
        ):
            page.set(slot, self._counted_before[slot] + total)
