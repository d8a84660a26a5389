"""The state of a link for the counter page of its portal: round trip times, batches, reconnects, datagrams.

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
from dro.proto.lbtrm.receiver import Recoveries
from dro.proto.peerlink.datagram_session import DatagramCounts
from dro.proto.peerlink.session import LinkEnd, RttStatistics
from dro.samples import Samples
from dro.wire.transport import DropReason
from portals.decisions.messages import PATTERN_NONE, PATTERN_PCRE, PATTERN_REGEX
from portals.peer.link_watch import LinkWatch
from portals.peer.sender import LinkCounters

_ENDS: Final = {
    LinkEnd.REMOTE: Slot.DISCONNECTED_REMOTE,
    LinkEnd.ERROR: Slot.DISCONNECTED_ERROR,
    LinkEnd.TIMEOUT: Slot.DISCONNECTED_TIMEOUT,
    LinkEnd.NEGOTIATION: Slot.DISCONNECTED_NEGOTIATION,
    LinkEnd.SHUTDOWN: Slot.DISCONNECTED_SHUTDOWN,
}
SESSION: Final = "session"
"""Why a datagram was dropped, beside what `DropReason` names: it is of another session."""
_DROPS: Final = {
    DropReason.SIZE.name.lower(): Slot.UDP_DROPPED_SIZE,
    DropReason.TYPE.name.lower(): Slot.UDP_DROPPED_TYPE,
    DropReason.VERSION.name.lower(): Slot.UDP_DROPPED_VERSION,
    DropReason.HEADER.name.lower(): Slot.UDP_DROPPED_HEADER,
    SESSION: Slot.UDP_DROPPED_SESSION,
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
            **_extent("LINK_BATCH_{}_BYTES", self._sent.batch_bytes),
            **_extent("BATCH_{}_MESSAGES", self._sent.batch_messages),
            **_extent("RTT_{}_US", rtt.us),
            Slot.KEEPALIVE_ANSWERED_S: now_s - (now_ns - rtt.last_ns) // NS_PER_S if rtt.us.count else 0,
        }
        for slot, value in gauges.items():
            page.set(slot, value)


def datagram_totals(counts: DatagramCounts) -> dict[Slot, int]:
    """Counters of the UDP part, since the start of the process."""
    received, sent = counts.received, counts.sent
    dropped = {slot: counts.dropped.get(reason, 0) for reason, slot in _DROPS.items()}
    other = sum(counts.dropped.values()) - sum(dropped.values()) + received.dgrams_dropped_other
    return dropped | {
        Slot.UDP_DROPPED_OTHER: other,
        Slot.UDP_RCVD: received.msgs_rcved,
        Slot.UDP_RCVD_BYTES: received.bytes_rcved,
        Slot.UDP_NAK_PACKETS_SENT: received.nak_pckts_sent,
        Slot.UDP_NAKS_SENT: received.naks_sent,
        Slot.UDP_LOST: received.lost,
        Slot.UDP_NCFS_IGNORED: received.ncfs_ignored,
        Slot.UDP_NCFS_SHED: received.ncfs_shed,
        Slot.UDP_NCFS_RX_DELAY: received.ncfs_rx_delay,
        Slot.UDP_NCFS_UNKNOWN: received.ncfs_unknown,
        Slot.UDP_DUPLICATES: received.duplicate_data,
        Slot.UDP_UNRECOVERED_WINDOW: received.unrecovered_txw,
        Slot.UDP_UNRECOVERED_TIMEOUT: received.unrecovered_tmo,
        Slot.UDP_SENT: sent.msgs_sent,
        Slot.UDP_SENT_BYTES: sent.bytes_sent,
        Slot.UDP_NAK_PACKETS_RCVD: sent.nak_pckts_rcved,
        Slot.UDP_NAKS_RCVD: sent.naks_rcved,
        Slot.UDP_NAKS_IGNORED: sent.naks_ignored,
        Slot.UDP_NAKS_SHED: sent.naks_shed,
        Slot.UDP_NAKS_RX_DELAY: sent.naks_rx_delay_ignored,
        Slot.UDP_RETRANSMITTED: sent.rxs_sent,
        Slot.UDP_RETRANSMITTED_BYTES: sent.rx_bytes_sent,
    }


def recovery_gauges(recoveries: Recoveries) -> dict[Slot, int]:
    """How missing datagrams were repaired, since the start of the process."""
    return _extent("UDP_RECOVERY_{}_US", recoveries.us) | _extent("UDP_NAKS_PER_LOSS_{}", recoveries.naks)


def _extent(name: str, samples: Samples) -> dict[Slot, int]:
    """`name`: of the three slots, with a place for MIN, MEAN and MAX."""
    values = {"MIN": samples.minimum, "MEAN": samples.mean, "MAX": samples.maximum}
    return {Slot[name.format(part)]: value for part, value in values.items()}
