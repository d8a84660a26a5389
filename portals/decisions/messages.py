"""Messages between the portals of one DRO over the bus.

To a sibling incarnation that is new to it a portal sends `PortalHello`, then what an older incarnation of the
sibling had reported to it or asked it for, so that the sibling goes on with it at once (`KnownProxy`,
`KnownProxiesSent`, `KnownSource`, `KnownSourcesSent`, `KnownInterest`), then all interest recorded at it, then all
sources seen at it, and `InitialStateSent`; joining and rejoining are the same. `StateConfirmed` follows when the portal
knows its own TRD (again, if it was restarted): what only its older incarnations had reported is dropped then.

Messages travel in batches (`portals.decisions.outbox`): a frame is one or more encoded messages, and `FramesAcked`
confirms whole frames.

`Withdraw`, `ForwardingStopped`, `HandoverEnded` and `HandoverAcked` are exchanged by a portal that is drained and its
siblings, see `portals.decisions.drain`. Their counts are needed because control messages can overtake data.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, get_args

from dro.bus.codec import Codec
from dro.wire.lbmr.records import PatternType

PATTERN_NONE: Final = 0
PATTERN_PCRE: Final = int(PatternType.PCRE)
PATTERN_REGEX: Final = int(PatternType.REGEX)


@dataclass(frozen=True, slots=True)
class PortalHello:
    """First message to a sibling incarnation.

    `forwarded` counts the fragments that the sender ever handed to that portal, by its page: what the portal cannot
    account for was lost with a worker and is counted as `worker_restart`. `announced`: the descriptors that they are
    in; what is handed over meanwhile lies behind them. Of these, the first `expired` have waited for too long for a
    portal that was down.
    """

    worker: int
    incarnation: int
    forwarded: int
    forwarded_bytes: int
    announced: int = 0
    expired: int = 0


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
    `pass_through` holds, encoded, the advertisement options that cross a DRO unchanged. `join_info` says how the sender
    has joined it, which only the sender's next incarnation understands; empty: that one finds it anew.
    """

    handle: int
    otid: bytes
    topic: bytes
    domain_id: int
    hop_count: int
    cost: int
    pass_through: bytes
    join_info: bytes = b""


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
class StateConfirmed:
    """The sender has sent its state, and knows its TRD again: what its older incarnations said holds no more."""


@dataclass(frozen=True, slots=True)
class KnownSource:
    """An older incarnation of the receiver had this source joined, and the sender has a proxy source that it fed."""

    source: SourceSeen


@dataclass(frozen=True, slots=True)
class KnownProxy:
    """The sender has this source, and an older incarnation of the receiver had a proxy source that it fed."""

    source: SourceSeen


@dataclass(frozen=True, slots=True)
class KnownProxiesSent:
    """Each source of the sender for which an older incarnation of the receiver had a proxy source has been named.

    As soon as these are open, the receiver can deliver what the sender has announced to it.
    """


@dataclass(frozen=True, slots=True)
class KnownSourcesSent:
    """Each source that an older incarnation of the receiver had joined for the sender has been named.

    As soon as these are joined, the receiver forwards to the sender what its older incarnation did.
    """


@dataclass(frozen=True, slots=True)
class KnownInterest:
    """An older incarnation of the receiver had reported this interest."""

    symbol: bytes
    pattern: int
    domain_id: int


@dataclass(frozen=True, slots=True)
class InitialStateSent:
    """The sender has sent all that it knew when the receiver came up."""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The sender is drained: it makes nothing new. Stop forwarding to it as soon as nothing is missing before."""


@dataclass(frozen=True, slots=True)
class ForwardingStopped:
    """Answer to `Withdraw`: the sender forwards nothing more. `fragments`: handed over by all its incarnations."""

    fragments: int


@dataclass(frozen=True, slots=True)
class HandoverEnded:
    """The sender, which is drained, hands over nothing more. `fragments`: handed over by all its incarnations."""

    fragments: int


@dataclass(frozen=True, slots=True)
class HandoverAcked:
    """Answer to `HandoverEnded`: all of them were sent or dropped, and nobody can ask for a repair of them any more."""


@dataclass(frozen=True, slots=True)
class FramesAcked:
    """Confirm so many more frames as worked off; 0: the sender is alive and cannot yet. Is not confirmed itself."""

    frames: int


PortalMessage = (
    PortalHello
    | InterestAdded
    | InterestRemoved
    | SourceSeen
    | SourceGone
    | ForwardStart
    | ForwardStop
    | StateConfirmed
    | Withdraw
    | ForwardingStopped
    | HandoverEnded
    | HandoverAcked
    | FramesAcked
    | KnownSource
    | KnownInterest
    | InitialStateSent
    | KnownProxy
    | KnownProxiesSent
    | KnownSourcesSent
)
PORTAL_MESSAGES: Final = Codec[PortalMessage](dict(enumerate(get_args(PortalMessage), 32)))
"""Tags from 32 on, in this order; those below are of `dro.bus.messages`."""
