"""What the configuration of a `<peer>` says to the cores of its link.

Source: DRO guide, `<keepalive>`, `<batching>` and `<udp>`. Guess: retransmissions that wait are bounded by what their
limit carries in a second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from dro.clock import ms
from dro.config.dro_xml.model import PeerConfig, PeerTcpConfig, PeerUdpConfig
from dro.proto.peerlink.datagram_session import LINK_LOSS, LINK_SOURCE, NEVER_NS, DatagramOptions
from dro.proto.peerlink.session import CanaryOptions, LinkOptions
from dro.proto.ratelimit import BITS_PER_BYTE


@dataclass(frozen=True, slots=True)
class Batching:
    """`<batching>` and `<max-datagram>`: bytes, ns, bytes."""

    min_bytes: int
    interval_ns: int
    max_bytes: int


MIN_QUEUE_BYTES: Final = 65536
CANARY_BYTES: Final = 1200
"""So that with all that stands around it, it fits a packet of 1,400 bytes."""


def address_of(tcp: PeerTcpConfig) -> str:
    """Return the address of the companion, or where this side listens."""
    to = tcp.initiator
    return f"{to.address}:{to.port}" if to is not None else f"{tcp.interface}:{tcp.listen_port}"


def options_of(config: PeerConfig, padding: bytes = b"") -> LinkOptions:
    """`padding`: of canaries, `CANARY_BYTES` that cannot be compressed."""
    alive, canary = config.keepalive, config.canary
    return LinkOptions(
        ms(alive.interval_ms),
        ms(alive.timeout_ms),
        alive.only_when_idle,
        uses_udp=config.udp is not None,
        uses_compression=bool(config.tcp.compression),
        canary=CanaryOptions(ms(canary.interval_ms), ms(canary.timeout_ms), padding) if canary is not None else None,
    )


def fast_of(config: PeerConfig) -> tuple[int, int] | None:
    """Return what HELLO tells of `<fast-keepalive>`: gap and timeout in ms."""
    fast = config.fast_keepalive
    return (fast.interval_ms, fast.timeout_ms) if fast is not None else None


def batching_of(config: PeerConfig) -> Batching:
    return Batching(config.batch_min_bytes, ms(config.batch_interval_ms), config.max_datagram_bytes)


def datagram_options_of(udp: PeerUdpConfig) -> DatagramOptions:
    queue_bytes = max(udp.retransmit_rate_bps // BITS_PER_BYTE, MIN_QUEUE_BYTES) if udp.retransmit_rate_bps else 0
    return DatagramOptions(
        replace(
            LINK_LOSS,
            initial_backoff_ns=ms(udp.nak_initial_backoff_ms),
            backoff_ns=ms(udp.nak_backoff_ms),
            suppress_ns=ms(udp.nak_suppress_ms),
            generation_ns=ms(udp.nak_generation_ms),
            send_naks=udp.send_naks,
            activity_timeout_ns=ms(udp.activity_timeout_ms) or NEVER_NS,
        ),
        replace(
            LINK_SOURCE,
            window_size_bytes=udp.window_size_bytes,
            window_limit_bytes=udp.window_limit_bytes,
            ignore_ns=ms(udp.ignore_interval_ms),
            sm_min_ns=ms(udp.sm_min_interval_ms),
            sm_max_ns=ms(udp.sm_max_interval_ms),
            rx_queue_bytes=queue_bytes or udp.window_size_bytes,
        ),
        ms(udp.connect_interval_ms),
        udp.connect_attempts,
    )
