"""Configure a delivery controller by its receiver and its session, and count what it does. No state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dro.clock import NS_PER_S
from dro.wire.lbmc.headers import MessageHeaders

NEVER_NS: Final = 1 << 62
"""Later than any deadline."""


def held_size(payload: bytes | memoryview, headers: MessageHeaders | None) -> int:
    """Count the bytes of a fragment with its headers, as they take memory, about."""
    return len(payload) + (0 if headers is None else headers.size)


@dataclass(frozen=True, slots=True)
class DeliveryConfig:
    """Tell one controller of its receiver and of the transport session that feeds it."""

    ordered_delivery: int = 1
    generation_interval_ns: int = 10 * NS_PER_S  # of the NAKs of the session
    burst_limit: int = 1024  # fragments
    map_limit: int = 200_000  # fragments held, 0 = only the bounds of this module
    loss_check_interval_ns: int = 0  # 0 = off
    immediate: bool = False  # TCP and IPC: no recovery below, a gap is a loss
    from_dro: bool = False  # the advertisement has a hop count above 0
    dro_loss_recovery_timeout_ns: int = 0  # with `immediate` and `from_dro` only
    ipc_dro_loss_recovery_timeout_ns: int = 0  # in its place, for a stream that begins on LBT-IPC
    message_max_bytes: int = 1 << 28
    held_max_bytes: int = 1 << 28
    row_max: int = 1 << 32  # sqns in a row that are given up one by one; more of them are a burst
    recovers: bool = False  # off-transport recovery says when a gap is lost, no deadline does

    @property
    def loss_wait_ns(self) -> int:
        """From the sight of a gap to its being given up."""
        if self.recovers:
            return NEVER_NS
        if self.immediate:
            return self.dro_loss_recovery_timeout_ns if self.from_dro else 0
        return self.generation_interval_ns


@dataclass(slots=True)
class DeliveryStats:
    """Counts of one controller; plain ints, read by whoever likes."""

    delivered: int = 0  # messages, or fragments in mode 0
    duplicates: int = 0  # fragments
    lost: int = 0  # sqns, bursts included
    bursts: int = 0
    discarded: int = 0  # fragments held when a burst or the end of the session came
    malformed: int = 0  # fragments
    too_long: int = 0  # messages
    orphans: int = 0  # fragments of messages of which another part is lost
