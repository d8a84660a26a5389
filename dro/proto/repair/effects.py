"""Describes what a source that repairs loss has its shell send, and what it counts of that."""

from __future__ import annotations

from dataclasses import dataclass

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Retransmit:
    """Send `buffer[offset:offset + length]` again, with the retransmission flag set and the trail of now."""

    sqn: int
    buffer: Buffer
    offset: int
    length: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class SendNcf:
    """Tell the receivers why these will not come now. Shape: oldest first, at most `max_ncfs_per_packet`."""

    reason: int
    sqns: tuple[int, ...]
    at_ns: int


@dataclass(slots=True)
class RetransmitStats:
    """Statistics of NAK handling, under the names of the C API."""

    nak_pckts_rcved: int = 0
    naks_rcved: int = 0
    naks_ignored: int = 0
    naks_shed: int = 0
    naks_rx_delay_ignored: int = 0
    rxs_sent: int = 0
    rx_bytes_sent: int = 0
