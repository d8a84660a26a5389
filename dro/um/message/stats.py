"""Statistics of a context and its sessions, as snapshots; names are those of the UM statistics.

Counters live where they are counted, in the cores; this module copies them. Source: client library notes, section 13.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from dro.transport.session import ReceiverSessionStatistics, SourceSessionStatistics

if TYPE_CHECKING:
    from dro.um.message.context import MessageContext


@dataclass(frozen=True, slots=True)
class ContextStatistics:
    """Topic resolution of one context, and what its sockets dropped."""

    tr_dgrams_sent: int
    tr_bytes_sent: int
    tr_dgrams_rcved: int
    tr_bytes_rcved: int
    tr_dgrams_dropped_malformed: int
    tr_dgrams_send_failed: int
    tr_src_topics: int
    tr_rcv_topics: int
    tr_rcv_unresolved_topics: int
    unknown_msgs_rcved: dict[str, int]  # by transport; `lbtrm_unknown_msgs_rcved` is one of them
    fragments_malformed: int
    headers_malformed: int  # properties and other headers of messages that were delivered without them


@dataclass(frozen=True, slots=True)
class Statistics:
    """Everything of one context at one moment."""

    context: ContextStatistics
    sources: tuple[SourceSessionStatistics, ...]
    receivers: tuple[ReceiverSessionStatistics, ...]


def collect(owner: MessageContext) -> Statistics:
    core = owner.core
    context = ContextStatistics(
        **asdict(core.resolution.channel.stats),
        tr_dgrams_dropped_malformed=core.stats.tr_dgrams_dropped_malformed,
        tr_src_topics=core.source_count,
        tr_rcv_topics=core.topic_count,
        tr_rcv_unresolved_topics=core.unresolved_topic_count,
        unknown_msgs_rcved={name: kind.counts().unknown for name, kind in core.joined.kinds.items()},
        fragments_malformed=owner.delivery.malformed,
        headers_malformed=owner.delivery.headers_malformed,
    )
    return Statistics(
        context,
        tuple([sender.statistics() for sender in core.pools.senders()]),
        tuple([session.statistics() for session in core.joined.sessions()]),
    )
