"""Effects: actions that the core of a portal requests from its shell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from portals.decisions.messages import PortalMessage, SourceSeen


@dataclass(frozen=True, slots=True)
class SendToSibling:
    """Send a message. `then` is asked for when the sibling has worked it off; not if that ends before."""

    worker: int
    message: PortalMessage
    then: AdvertiseProxySource | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class SendInitialState:
    """`messages` are made one by one, as things are when they leave; None: something was looked at, go on."""

    worker: int
    messages: Iterator[PortalMessage | None]


@dataclass(frozen=True, slots=True)
class GoOn:
    """Run `steps` to the end, a few in each turn; each may ask for effects of its own."""

    steps: Iterator[object]


@dataclass(frozen=True, slots=True)
class OpenProxyReceiver:
    """Look for sources of this topic or pattern behind this portal, and announce the interest of `domains` there."""

    symbol: bytes
    pattern: int
    domains: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class UpdateProxyReceiver:
    """The set of interested domains behind an open proxy receiver changed."""

    symbol: bytes
    pattern: int
    added: tuple[int, ...]
    removed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CloseProxyReceiver:
    symbol: bytes
    pattern: int
    domains: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OpenProxySource:
    """Create a proxy source that is fed from `source` of sibling `worker`; `AdvertiseProxySource` follows."""

    worker: int
    source: SourceSeen


@dataclass(frozen=True, slots=True)
class AdvertiseProxySource:
    """Advertise a proxy source: its feeder forwards now, so who hears of it gets what is sent from then on."""

    otid: bytes


@dataclass(frozen=True, slots=True)
class FeedProxySource:
    """An existing proxy source is fed from another place: its origin came back, or a route changed.

    `is_beside`: the feeder before goes on for a while, until `FeederEnded`.
    """

    worker: int
    source: SourceSeen
    is_beside: bool = False


@dataclass(frozen=True, slots=True)
class FeederEnded:
    """The feeder before of a proxy source, which went on beside the new one, has ended, or was told to."""

    worker: int
    handle: int


@dataclass(frozen=True, slots=True)
class UpdateProxySource:
    """The advertisement of the source that feeds a proxy source has changed."""

    worker: int
    source: SourceSeen


@dataclass(frozen=True, slots=True)
class DelayDeletion:
    """No sibling feeds the proxy source any more: it is deleted at `delete_at_ns`, unless it is fed again.

    What its feeder handed over may still come: control messages overtake data. `is_fed`: advertise its end now; it is
    fed until `delete_at_ns` for receivers that have not left it yet.
    """

    otid: bytes
    delete_at_ns: int
    is_fed: bool = False


@dataclass(frozen=True, slots=True)
class CloseProxySource:
    """Flush, advertise the end, delete."""

    otid: bytes


@dataclass(frozen=True, slots=True)
class JoinKnownSource:
    """Join a source as an older incarnation of this portal had it joined: the proxies for it are there."""

    source: SourceSeen


@dataclass(frozen=True, slots=True)
class RecordKnownInterest:
    """Take what an older incarnation of this portal had recorded for what the TRD wants, until it is asked."""

    symbol: bytes
    pattern: int
    domain_id: int


@dataclass(frozen=True, slots=True)
class ReviewSources:
    """Join those sources of the TRD that the routes bring in here, and leave the others."""


@dataclass(frozen=True, slots=True)
class CheckKnown:
    """The portal knows its TRD again: leave known sources that nobody wants, ask whether known interest holds."""


@dataclass(frozen=True, slots=True)
class ChangeForwarding:
    """The siblings that want the fragments of an own source."""

    handle: int
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadQueue:
    """The proxy sources that the sibling feeds are open, as far as it knew: what it has announced can be delivered."""

    worker: int


@dataclass(frozen=True, slots=True)
class ExpireQueue:
    """The sibling has been down for too long: its next incarnation is to drop what waits for it."""

    worker: int


class WhyIgnored(Enum):
    TOO_MANY_HOPS = "too many hops"
    OTID_IS_KNOWN = "its OTID is known under another topic or domain"


@dataclass(frozen=True, slots=True)
class SourceIgnored:
    """For the log: what a sibling offers cannot be used."""

    why: WhyIgnored
    otid: bytes
    topic: bytes


@dataclass(frozen=True, slots=True)
class InterestIgnored:
    """For the log: no topic or pattern can have that name, or the pattern waits until there are fewer."""

    name: bytes
    waits: bool = False


ProxyEffect = (
    OpenProxyReceiver
    | UpdateProxyReceiver
    | CloseProxyReceiver
    | OpenProxySource
    | AdvertiseProxySource
    | FeedProxySource
    | UpdateProxySource
    | DelayDeletion
    | CloseProxySource
    | JoinKnownSource
    | RecordKnownInterest
    | CheckKnown
    | ReviewSources
)
"""What depends on where the portal leads to."""
HostEffect = (
    SendToSibling
    | SendInitialState
    | FeederEnded
    | ChangeForwarding
    | ReadQueue
    | ExpireQueue
    | SourceIgnored
    | InterestIgnored
)
"""Concerns siblings, the data path and the log."""
Effect = ProxyEffect | HostEffect | GoOn
