"""The datagrams of a link for the counter page of its portal.

Source: DRO guide 5.4.3.
"""

from __future__ import annotations

from typing import Final

from dro.metrics.slots import Slot
from dro.proto.peerlink.datagram_session import DatagramCounts
from dro.proto.repair.receiver import Recoveries
from dro.wire.transport import DropReason
from portals.shell.gauges import extent

SESSION: Final = "session"
"""Why a datagram was dropped, beside what `DropReason` names: it is of another session."""
_DROPS: Final = {
    DropReason.SIZE.name.lower(): Slot.UDP_DROPPED_SIZE,
    DropReason.TYPE.name.lower(): Slot.UDP_DROPPED_TYPE,
    DropReason.VERSION.name.lower(): Slot.UDP_DROPPED_VERSION,
    DropReason.HEADER.name.lower(): Slot.UDP_DROPPED_HEADER,
    SESSION: Slot.UDP_DROPPED_SESSION,
}


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
    """Show how missing datagrams were repaired, since the start of the process."""
    return extent("UDP_RECOVERY_{}_US", recoveries.us) | extent("UDP_NAKS_PER_LOSS_{}", recoveries.naks)
