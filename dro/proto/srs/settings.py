"""Times and limits of a server of topic resolution over TCP.

Source: topic resolution notes 2.3 for the state lifetimes and the leave back-off. Guess: all other numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from dro.clock import NS_PER_S

MIB: Final = 1 << 20
DAY_NS: Final = 86_400 * NS_PER_S


@dataclass(frozen=True, slots=True)
class SrsTimes:
    """`..._state_ns`: how long what a lost client has told is kept; 0 is for ever."""

    source_state_ns: int = DAY_NS
    interest_state_ns: int = DAY_NS
    route_state_ns: int = 30 * NS_PER_S
    source_leave_backoff_ns: int = NS_PER_S // 2
    grace_ns: int = 30 * NS_PER_S
    """What a client that has come again does not tell within this time is gone."""
    half_open_ns: int = 10 * NS_PER_S
    """Until it has registered, a connection may take so long."""
    lifetime_min_ns: int = NS_PER_S
    lifetime_max_ns: int = 300 * NS_PER_S
    """Bounds of the silence after which a connection is over, which the client names."""
    stall_ns: int = 60 * NS_PER_S
    """A client that has taken nothing of what waits for it for so long is cut off."""


@dataclass(frozen=True, slots=True)
class SrsLimits:
    """What clients may bring. Bytes of records are counted with what they cost beside their own size."""

    connections: int = 10_000
    clients: int = 20_000
    """Those that are lost included; the one lost first makes room."""
    client_record_bytes: int = 256 * MIB
    record_bytes: int = 2048 * MIB
    client_patterns: int = 1000
    patterns: int = 10_000
    queue_bytes: int = 16 * MIB
    """Of changes that wait for one client. What it is told when it comes is not kept for it, and does not count."""
    queues_bytes: int = 512 * MIB
    frame_bytes: int = MIB
    unregistered_frame_bytes: int = 4096
    inputs_bytes: int = 256 * MIB
    """Of frames that have come in part, of all clients."""
    batch_bytes: int = 32 * 1024
    relayed_bytes_s: int = 1_000_000
    """Datagrams of topic resolution over UDP that a client may have relayed a second."""
    relayed_datagrams_s: int = 2000


@dataclass(frozen=True, slots=True)
class SrsSettings:
    times: SrsTimes = field(default_factory=SrsTimes)
    limits: SrsLimits = field(default_factory=SrsLimits)
    domain_id: int = 0
    """Of the TRD; 0: learnt from the first DRO that registers."""
