"""The state of a link for the counter page of its portal: round trip times, batches, reconnects.

Source: DRO guide 5.4.3.
"""

from __future__ import annotations

from collections.abc import Mapping

from dro.clock import NS_PER_S
from dro.metrics.slots import Slot
from dro.proto.peerlink.session import RttStatistics
from portals.decisions.messages import PATTERN_NONE, PATTERN_PCRE, PATTERN_REGEX
from portals.peer.link_watch import LinkWatch
from portals.peer.sender import LinkCounters


def interest_gauges(kinds: Mapping[int, int]) -> dict[Slot, int]:
    """`kinds`: what the companion wants, by kind of pattern."""
    return {
        Slot.REMOTE_TOPICS: kinds[PATTERN_NONE],
        Slot.REMOTE_PCRE: kinds[PATTERN_PCRE],
        Slot.REMOTE_REGEX: kinds[PATTERN_REGEX],
    }


def link_gauges(rtt: RttStatistics, watch: LinkWatch, sent: LinkCounters, now_ns: int, now_s: int) -> dict[Slot, int]:
    """Since the start of the portal. `now_s`: since 1970."""
    answered_s = now_s - (now_ns - rtt.last_ns) // NS_PER_S if rtt.samples else 0
    return {
        Slot.LINK_UP: watch.is_up,
        Slot.LINK_RECONNECTS: max(0, watch.links - 1),
        Slot.LINK_REPAIRS: watch.repairs,
        Slot.LINK_BATCHES: sent.batches,
        Slot.LINK_BATCH_MIN_BYTES: sent.batch_min_bytes,
        Slot.LINK_BATCH_MEAN_BYTES: sent.batch_mean_bytes,
        Slot.LINK_BATCH_MAX_BYTES: sent.batch_max_bytes,
        Slot.LINK_LOST_BYTES: sent.lost_bytes,
        Slot.RTT_SAMPLES: rtt.samples,
        Slot.RTT_MIN_US: rtt.minimum_us,
        Slot.RTT_MEAN_US: rtt.mean_us,
        Slot.RTT_MAX_US: rtt.maximum_us,
        Slot.KEEPALIVE_ANSWERED_S: answered_s,
    }
