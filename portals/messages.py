"""What the portals of one DRO tell each other over the bus.

A portal that meets a sibling incarnation for the first time sends `PortalHello`, then all interest recorded at it,
then all sources seen at it, then `ExchangeDone`; joining and rejoining are the same. Whatever the older incarnation
of that sibling had said is forgotten when its exchange is done.

`Withdraw`, `Released`, `Settle` and `Settled` are the conversation of a portal that is drained with its siblings, see
`portals.endpoint.drain`. Their counts are needed because control messages overtake data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dro.bus.codec import Codec

PATTERN_NONE: Final = 0
PATTERN_PCRE: Final = 1
PATTERN_REGEX: Final = 2


@dataclass(frozen=True, slots=True)
class PortalHello:
    """First message to a sibling incarnation.

    `forwarded` is how many fragments the sender's page says it ever handed to that portal: what the portal cannot
    account for was lost with a worker and is counted as `worker_restart`.
    """

    worker: int
    incarnation: int
    forwarded: int
    forwarded_bytes: int


@dataclass(frozen=True, slots=True)
class InterestAdded:
    """Receivers of domain `domain_id`, reached through the sender, want `symbol` (a topic, or a pattern)."""

    symbol: bytes
    pattern: int
    domain_id: int


@dataclass(frozen=True, slots=True)
class InterestRemoved:
    symbol: bytes
    pattern: int
    domain_id: int


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """A source is heard at the sender, which has joined it. `handle` names it in descriptors and later messages.

    `hop_count` and `cost` are those of the advertisement at the sender, whose own portal cost is added.
    `pass_through` holds, encoded, the advertisement options that cross a DRO unchanged.
    """

    handle: int
    otid: bytes
    topic: bytes
    domain_id: int
    hop_count: int
    cost: int
    pass_through: bytes


@dataclass(frozen=True, slots=True)
class SourceGone:
    """The source ended at the sender, or is no longer wanted there."""

    handle: int


@dataclass(frozen=True, slots=True)
class ForwardStart:
    """The sender has a proxy source for `handle` and wants its fragments."""

    handle: int


@dataclass(frozen=True, slots=True)
class ForwardStop:
    handle: int


@dataclass(frozen=True, slots=True)
class ExchangeDone:
    """End of the full exchange that a `PortalHello` opened."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The sender is drained: it makes nothing new. Stop forwarding to it as soon as nothing is missing before."""


@dataclass(frozen=True, slots=True)
class Released:
    """Answer to `Withdraw`: the sender forwards nothing more; it handed over so many fragments in its life's books."""

    fragments: int


@dataclass(frozen=True, slots=True)
class Settle:
    """The sender, which is drained, hands over nothing more; it handed over so many fragments in its life's books."""

    fragments: int


@dataclass(frozen=True, slots=True)
class Settled:
    """Answer to `Settle`: all of them were sent or dropped, and nobody can ask for a repair of them any more."""


PortalMessage = (
    PortalHello
    | InterestAdded
    | InterestRemoved
    | SourceSeen
    | SourceGone
    | ForwardStart
    | ForwardStop
    | ExchangeDone
    | Withdraw
    | Released
    | Settle
    | Settled
)
PORTAL_MESSAGES: Final = Codec[PortalMessage](
    {
        32: PortalHello,
        33: InterestAdded,
        34: InterestRemoved,
        35: SourceSeen,
        36: SourceGone,
        37: ForwardStart,
        38: ForwardStop,
        39: ExchangeDone,
        40: Withdraw,
        41: Released,
        42: Settle,
        43: Settled,
    }
)
