"""What the core of an endpoint portal asks its shell to do."""

from __future__ import annotations

from dataclasses import dataclass

from portals.messages import PortalMessage, SourceSeen


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a message to one sibling."""

    worker: int
    message: PortalMessage


@dataclass(frozen=True, slots=True)
class OpenProxyReceiver:
    """Look for sources of this topic or pattern in the own TRD, and announce the interest of `domains` there."""

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
    """Create a proxy source that is fed from `source` of sibling `worker`."""

    worker: int
    source: SourceSeen


@dataclass(frozen=True, slots=True)
class FeedProxySource:
    """An existing proxy source is fed from another place: its origin came back, or a route changed."""

    worker: int
    source: SourceSeen


@dataclass(frozen=True, slots=True)
class UpdateProxySource:
    """The source that feeds a proxy source is advertised otherwise than before."""

    worker: int
    source: SourceSeen


@dataclass(frozen=True, slots=True)
class StarveProxySource:
    """The proxy source gets nothing new; it is deleted at `delete_at_ns` unless it is fed again.

    What its feeder handed over before its end may come later than this: control messages overtake data.
    """

    otid: bytes
    delete_at_ns: int


@dataclass(frozen=True, slots=True)
class CloseProxySource:
    """Flush, advertise the end, delete."""

    otid: bytes


@dataclass(frozen=True, slots=True)
class ChangeForwarding:
    """The siblings that want the fragments of an own source."""

    handle: int
    workers: tuple[int, ...]


Effect = (
    Tell
    | OpenProxyReceiver
    | UpdateProxyReceiver
    | CloseProxyReceiver
    | OpenProxySource
    | FeedProxySource
    | UpdateProxySource
    | StarveProxySource
    | CloseProxySource
    | ChangeForwarding
)
