"""Name what a stream asks of the origin of its source, and what it may ask. No behaviour: see `recovery`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True)
class AskLimits:
    """Requests for messages. `outstanding_max` 0: `ASKED_MAX` of the core. Intervals double up to the greatest."""

    outstanding_max: int
    interval_ns: int
    interval_max_ns: int
    timeout_ns: int
    flag: int  # of the messages that come so


@dataclass(frozen=True, slots=True)
class RecoveryConfig:
    """Says what one stream may ask for, and how."""

    late_join: AskLimits | None = None
    otr: AskLimits | None = None
    info_interval_ns: int = 0
    info_max: int = 0
    request_max: int = 0  # how far back, 0 = all
    proximity: int = 0  # live fragments ahead of the one that is missing, 0x7FFFFFFF and more = all
    held_max: int = 0  # as the controller holds, 0 = no limit of its own
    asks_silent: bool = False  # a source that has sent nothing is asked for its sqn
    silent_interval_ns: int = 0
    silent_max: int = 0
    otr_delay_ns: int = 0
    otr_threshold: int = 0  # fragments held that start OTR at once


NOTHING: Final = RecoveryConfig()


@dataclass(frozen=True, slots=True)
class AskRetained:
    """Ask which messages are retained."""


@dataclass(frozen=True, slots=True)
class AskNewest:
    """Ask for a TSNI."""


@dataclass(frozen=True, slots=True)
class AskAgain:
    """Ask for one fragment. `is_otr`: what it is for."""

    sqn: int
    is_otr: bool


RetransmissionAsk: TypeAlias = AskRetained | AskNewest | AskAgain
