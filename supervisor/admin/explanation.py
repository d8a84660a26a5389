"""Records of `explain`: how the configuration of a DRO treats a topic from one domain to another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ACCEPTED: Final = "accepted"
REJECTED: Final = "rejected"
DEPENDS: Final = "depends on the session"
NOT_HERE: Final = "not by this DRO"
INBOUND: Final = "inbound"
OUTBOUND: Final = "outbound"


@dataclass(frozen=True, slots=True)
class VerdictRecord:
    """Tells what one portal says in one direction. `ace` counts from 1; 0 is no entry."""

    portal: str
    direction: str
    verdict: str
    reason: str
    ace: int = 0
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class OptionRecord:
    """One UM option that is set for a proxy of this topic; `origin` says where."""

    portal: str
    proxy: str  # receiver or source
    option: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class ExplainRecord:
    """The answer. `missing` names the conditions whose values would be needed to decide."""

    topic: str
    source_domain: int
    interested_domain: int
    verdict: str
    reason: str
    ingress: str = ""
    egress: str = ""
    cost: int = 0
    verdicts: tuple[VerdictRecord, ...] = ()
    options: tuple[OptionRecord, ...] = ()
    missing: tuple[str, ...] = ()
    states: tuple[str, ...] = ()  # of portals that are not running now
