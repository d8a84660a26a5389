"""What the sessions of one context have counted, those that have ended included.

The statistics of a session go with it; a portal's counters go on. So whoever owns sessions adds up what they had at
their end, and `ContextCore.counts` adds those that live.
"""

from __future__ import annotations

from dataclasses import dataclass

from dro.um.lbtrm_io import LbtrmGroup, LbtrmReceiver
from dro.um.lbtrm_sender import LbtrmSender
from dro.um.session import ReceiverTransport
from dro.um.tcp_io import TcpReceiver, TcpSender


@dataclass(slots=True)
class SessionCounts:
    """`bad`: datagrams and streams that break their layout; `unrecoverable`: datagrams given up; `naks_sent`:
    sequence numbers asked for; `retransmitted`: datagrams; `trains`: sends of several datagrams at once."""

    bad: int = 0
    unrecoverable: int = 0
    naks_sent: int = 0
    retransmitted: int = 0
    trains: int = 0

    def add(self, other: SessionCounts) -> None:
        self.bad += other.bad
        self.unrecoverable += other.unrecoverable
        self.naks_sent += other.naks_sent
        self.retransmitted += other.retransmitted
        self.trains += other.trains


def of_group(group: LbtrmGroup) -> SessionCounts:
    """Datagrams for other sessions than the joined ones are none of ours, but not bad."""
    s = group.stats
    return SessionCounts(
        bad=s.dgrams_dropped_size
        + s.dgrams_dropped_version
        + s.dgrams_dropped_type
        + s.dgrams_dropped_hdr
        + s.dgrams_dropped_other
    )


def of_receiver(transport: ReceiverTransport, session: LbtrmReceiver | TcpReceiver) -> SessionCounts:
    if isinstance(session, TcpReceiver):
        return SessionCounts(bad=session.bad_stream)
    return SessionCounts(unrecoverable=transport.unrecoverable_dgrams, naks_sent=session.core.stats.naks_sent)


def of_sender(sender: LbtrmSender | TcpSender) -> SessionCounts:
    if isinstance(sender, TcpSender):
        return SessionCounts(bad=sender.bad_input)
    return SessionCounts(bad=sender.bad_naks, retransmitted=sender.core.stats.rxs_sent, trains=sender.trains)
