"""Effects: what the core of a peer link asks of its host. `connection` is the number that the core gave it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dro.bus.messages import PortalGone, PortalUp
from dro.log.events import LogEvent
from dro.proto.peerlink.messages import SourceRecord
from dro.proto.peerlink.session import LinkEnd, LinkUp
from portals.decisions.effects import FeedProxySource
from portals.decisions.messages import SourceSeen


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line. `is_limited`: a stranger can cause it."""

    event: LogEvent
    fields: Mapping[str, object]
    is_limited: bool = False


# connections


@dataclass(frozen=True, slots=True)
class ConnectToCompanion:
    """Connect to the companion; the end of the attempt is told by `on_failed`, or by `on_over` of a connection."""


@dataclass(frozen=True, slots=True)
class Admit:
    """The connection is the link from now on: greet the companion if that waits, compress, take data and give it."""

    connection: int
    up: LinkUp


@dataclass(frozen=True, slots=True)
class RefuseConnection:
    """Close a connection that is refused; nothing more is reported of it."""

    connection: int


@dataclass(frozen=True, slots=True)
class EndConnection:
    """Take what has come over it, close it, and report that as any other end."""

    connection: int
    why: str
    remedy: str
    end: LinkEnd


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask whether the companion of that connection is there."""

    connection: int


@dataclass(frozen=True, slots=True)
class LinkChanged:
    """The link works, or does not any more."""

    is_up: bool


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The connection of the link is over: keep what waits for the next one."""

    connection: int


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing more is asked of a connection that is over, but of its joined sources."""

    connection: int


@dataclass(frozen=True, slots=True)
class CompanionAway:
    """The link was not back in time: throw away what waits for it, and forget the routes."""


# messages to the companion


@dataclass(frozen=True, slots=True)
class SendUrgent:
    """Before everything that waits."""

    message: bytes


@dataclass(frozen=True, slots=True)
class SendInterest:
    """Changes: urgent, and behind all that was told about interest before."""

    messages: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class SendAllInterest:
    """All that is wanted, urgently, made one by one."""

    messages: Iterator[bytes]


@dataclass(frozen=True, slots=True)
class SendAllSources:
    """All that is offered, made one by one. `is_first`: data follows as soon as all of it is told."""

    messages: Iterator[bytes]
    is_first: bool


@dataclass(frozen=True, slots=True)
class SendInOrder:
    """In its place behind the data given before. `may_be_lost`: where there is no room for it."""

    message: bytes
    may_be_lost: bool = False


@dataclass(frozen=True, slots=True)
class CountLost:
    """Messages for which there is no link."""

    messages: tuple[bytes, ...]


# proxy sources, which are offered to the companion


@dataclass(frozen=True, slots=True)
class OpenProxy:
    """Make a proxy source with the number of its record, fed from `source` of sibling `worker`; offer it."""

    worker: int
    source: SourceSeen
    record: SourceRecord


@dataclass(frozen=True, slots=True)
class CloseProxy:
    """Flush, send the end, delete."""

    otid: bytes
    end: bytes


# sources of the companion


@dataclass(frozen=True, slots=True)
class AddSource:
    """Join a source that the companion offers. `before`: connection and number that the same source had before."""

    connection: int
    record: SourceRecord
    hop_count: int
    cost: int
    before: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ChangeSource:
    """The attributes of a joined source have changed, or how its domain is reached."""

    connection: int
    record: SourceRecord
    hop_count: int
    cost: int


@dataclass(frozen=True, slots=True)
class RemoveSource:
    """Leave a source."""

    connection: int
    number: int


# the rest of the DRO; the route manager is told PortalUp and PortalGone


@dataclass(frozen=True, slots=True)
class ReportRouteInfo:
    """Pass a message of another DRO to the route manager."""

    message: bytes


@dataclass(frozen=True, slots=True)
class RunSteps:
    """Run them to the end, a few in each turn; each may ask for effects of its own."""

    steps: Iterator[None]


ConnectionEffect = Admit | RefuseConnection | EndConnection | Ask | LinkDown | Forget
ToCompanion = SendUrgent | SendInterest | SendAllInterest | SendAllSources
OfferEffect = OpenProxy | FeedProxySource | CloseProxy
SourceEffect = AddSource | ChangeSource | RemoveSource
LinkCoreEffect = (
    ConnectionEffect
    | ToCompanion
    | OfferEffect
    | SourceEffect
    | Log
    | ConnectToCompanion
    | LinkChanged
    | CompanionAway
    | SendInOrder
    | CountLost
    | PortalUp
    | PortalGone
    | ReportRouteInfo
    | RunSteps
)
