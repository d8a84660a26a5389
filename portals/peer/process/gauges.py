"""The state of a link for the counter page of its portal: round trip times, batches, reconnects.

Source: DRO guide 5.4.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dro.bus.counters import CounterPage, Histogram
from dro.bus.totals import Totals
from dro.clock import NS_PER_S
from dro.metrics.slots import Slot
from dro.metrics.table import PORTAL, bounds_of
from dro.proto.peerlink.session import LinkEnd, RttStatistics
from portals.decisions.messages import PATTERN_NONE, PATTERN_PCRE, PATTERN_REGEX
from portals.peer.link_watch import LinkWatch
from portals.peer.stream.sender import LinkCounters
from portals.shell.gauges import extent

_ENDS: Final = {
    LinkEnd.REMOTE: Slot.DISCONNECTED_REMOTE,
    LinkEnd.ERROR: Slot.DISCONNECTED_ERROR,
    LinkEnd.TIMEOUT: Slot.DISCONNECTED_TIMEOUT,
    LinkEnd.NEGOTIATION: Slot.DISCONNECTED_NEGOTIATION,
    LinkEnd.SHUTDOWN: Slot.DISCONNECTED_SHUTDOWN,
}


class LinkGauges:
    """Shows what is known of the link, and of the links before, also of those of earlier processes."""

    def __init__(self, page: CounterPage, rtt: RttStatistics, watch: LinkWatch, sent: LinkCounters) -> None:
        self._page = page
        self._watch = watch
        self._rtt = rtt
        self._sent = sent
        self._times = Histogram(page, Slot.RTT, bounds_of(PORTAL, "RTT"))
        rtt.on_sample = self._on_answer
        self._totals = Totals(page, self._counted())

    def _on_answer(self, rtt_us: int) -> None:
        self._page.add(Slot.RTT_SAMPLES)
        self._times.observe(rtt_us)

    def _counted(self) -> dict[Slot, int]:
        watch = self._watch
        return {slot: watch.ends[end] for end, slot in _ENDS.items()} | {
            Slot.CONNECTS: watch.links,
            Slot.CONNECT_FAILURES: watch.failures,
            Slot.LINK_REPAIRS: watch.repairs,
            Slot.LINK_BATCHES: self._sent.batch_bytes.count,
            Slot.LINK_LOST_BYTES: self._sent.lost_bytes,
            Slot.KEEPALIVES_SENT: self._rtt.asked,
        }

    def show(self, now_ns: int, now_s: int, wanted: Mapping[int, int], proxies: int) -> None:
        """`now_s`: since 1970. `wanted`: what the companion wants, by kind of pattern. `proxies`: proxy sources."""
        page, rtt = self._page, self._rtt
        self._totals.show(self._counted())
        gauges = {
            Slot.REMOTE_TOPICS: wanted[PATTERN_NONE],
            Slot.REMOTE_PCRE: wanted[PATTERN_PCRE],
            Slot.REMOTE_REGEX: wanted[PATTERN_REGEX],
            Slot.PROXY_SOURCES: proxies,
            Slot.LINK_UP: int(self._watch.is_up),
            Slot.LINK_RECONNECTS: max(0, page[Slot.CONNECTS] - 1),
            **extent("LINK_BATCH_{}_BYTES", self._sent.batch_bytes),
            **extent("BATCH_{}_MESSAGES", self._sent.batch_messages),
            **extent("RTT_{}_US", rtt.us),
            Slot.KEEPALIVE_ANSWERED_S: now_s - (now_ns - rtt.last_ns) // NS_PER_S if rtt.us.count else 0,
        }
        for slot, value in gauges.items():
            page.set(slot, value)
