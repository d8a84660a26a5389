"""Statistics of a context and its sessions, as snapshots; names are those of the UM statistics.

Counters live where they are counted, in the cores; this module copies them. Source: client library notes, section 13.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dro.proto.lbtrm_receiver import ReceiverStats
from dro.proto.lbtrm_source import SourceStats
from dro.proto.tcp_receiver import TcpReceiverStats
from dro.proto.tcp_source import TcpSourceStats
from dro.um.lbtrm_io import LbtrmReceiver
from dro.um.lbtrm_sender import LbtrmSender
from dro.wire.source_string import format_source

if TYPE_CHECKING:
    from dro.um.message_context import MessageContext


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
    lbtrm_unknown_msgs_rcved: int
    fragments_malformed: int


@dataclass(frozen=True, slots=True)
class SourceSessionStatistics:
    """One session that this context sends on; `source` is its source string without a topic index."""

    source: str
    counters: SourceStats | TcpSourceStats
    txw_msgs: int = 0
    txw_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ReceiverSessionStatistics:
    """One session that this context has joined."""

    source: str
    counters: ReceiverStats | TcpReceiverStats


@dataclass(frozen=True, slots=True)
class Statistics:
    """Everything of one context at one moment."""

    context: ContextStatistics
    sources: tuple[SourceSessionStatistics, ...]
    receivers: tuple[ReceiverSessionStatistics, ...]


def collect(owner: MessageContext) -> Statistics:
    core = owner.core
    channel = core.channel.stats
    context = ContextStatistics(
        tr_dgrams_sent=channel.tr_dgrams_sent,
        tr_bytes_sent=channel.tr_bytes_sent,
        tr_dgrams_rcved=channel.tr_dgrams_rcved,
        tr_bytes_rcved=channel.tr_bytes_rcved,
        tr_dgrams_dropped_malformed=core.stats.tr_dgrams_dropped_malformed,
        tr_dgrams_send_failed=channel.tr_dgrams_send_failed,
        tr_src_topics=core.source_count,
        tr_rcv_topics=core.topic_count,
        tr_rcv_unresolved_topics=core.unresolved_topic_count,
        lbtrm_unknown_msgs_rcved=sum(group.stats.unknown_msgs_rcved for group in core.joined.groups),
        fragments_malformed=owner.delivery.malformed,
    )
    sources = []
    for sender in core.pools.senders():
        text = format_source(sender.address)
        if isinstance(sender, LbtrmSender):
            window = sender.core
            sources.append(SourceSessionStatistics(text, replace(window.stats), window.txw_msgs, window.txw_bytes))
        else:
            sources.append(SourceSessionStatistics(text, replace(sender.core.stats)))
    receivers = []
    for joined in core.joined.sessions():
        text = format_source(joined.transport.address)
        counters: ReceiverStats | TcpReceiverStats
        no_topic = joined.transport.lbm_msgs_no_topic_rcved
        if isinstance(joined.session, LbtrmReceiver):
            messages = joined.session.lbm_msgs_rcved
            counters = replace(joined.session.core.stats, lbm_msgs_rcved=messages, lbm_msgs_no_topic_rcved=no_topic)
        else:
            counters = replace(joined.session.core.stats, lbm_msgs_no_topic_rcved=no_topic)
        receivers.append(ReceiverSessionStatistics(text, counters))
    return Statistics(context, tuple(sources), tuple(receivers))
