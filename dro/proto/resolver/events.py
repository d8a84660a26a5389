"""Events of the resolver for its owner: records from `Resolver.take_events()` in chronological order.

No state. The owner is a client context or a portal; it joins and leaves transport sessions accordingly.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Final, TypeAlias

from dro.proto.resolver.cache import CachedSource
from dro.wire.lbmr.packet import Tir
from dro.wire.source_string import TransportAddress


@dataclass(frozen=True, slots=True)
class FoundSource:
    """A source as advertised in this TRD, at the time of the event.

    `otid_made`: the advertisement has no OTID, this one was made from it. `source_id`: of the advertising context.
    """

    topic: bytes
    tir: Tir
    otid: bytes
    otid_made: bool
    cost: int
    hop_count: int
    from_dro: bool
    source_id: bytes | None
    source_ip: int

    @property
    def address(self) -> TransportAddress:
        return self.tir.transport

    @property
    def topic_index(self) -> int:
        return self.tir.topic_index


_TAKEN: Final = attrgetter(
    "tir.topic", "tir", "otid", "otid_made", "cost", "hop_count", "from_dro", "source_id", "source_ip"
)


def found(entry: CachedSource) -> FoundSource:
    return FoundSource(*_TAKEN(entry))


@dataclass(frozen=True, slots=True)
class SourceFound:
    """Join this: a wanted source that is not joined yet; `is_known`: it may be wanted soon, see `join_known`."""

    source: FoundSource
    is_known: bool = False


@dataclass(frozen=True, slots=True)
class SourceChanged:
    """A joined source advertises something else than before: cost, late join range, request address."""

    source: FoundSource


@dataclass(frozen=True, slots=True)
class SourceSwitched:
    """Join `new`, go on by topic sqn, then leave `old`: the same originating source on a cheaper session."""

    old: FoundSource
    new: FoundSource


@dataclass(frozen=True, slots=True)
class SourceFinal:
    """A final advertisement for a joined source: its end, even if the session lives on for other topics."""

    source: FoundSource


@dataclass(frozen=True, slots=True)
class SourceRefused:
    """A joined source is no longer accepted: leave it."""

    source: FoundSource


@dataclass(frozen=True, slots=True)
class TopicMatched:
    """The pattern of a wildcard receiver matches a topic that has a source: make a sub-receiver."""

    wildcard: int
    topic: bytes


@dataclass(frozen=True, slots=True)
class TopicUnmatched:
    """A sub-receiver has had no source for too long: delete it."""

    wildcard: int
    topic: bytes


@dataclass(frozen=True, slots=True)
class NoSource:
    """So many queries for a topic were not answered."""

    topic: bytes


@dataclass(frozen=True, slots=True)
class OtidMismatch:
    """A joined source was advertised with another OTID; ignored."""

    topic: bytes
    tir: Tir


@dataclass(frozen=True, slots=True)
class BadPattern:
    """A wildcard query whose pattern cannot be used; ignored, told once per pattern."""

    pattern: bytes
    pattern_type: int


@dataclass(frozen=True, slots=True)
class DomainIdLearned:
    """The TRD's domain id is known from now on."""

    domain_id: int


@dataclass(frozen=True, slots=True)
class DomainMismatch:
    """A packet of another domain was dropped."""

    domain_id: int
    source_ip: int


@dataclass(frozen=True, slots=True)
class DomainRoute:
    """Unicast traffic for these domains goes to this DRO portal."""

    domains: tuple[int, ...]
    ip: int
    port: int


ResolverEvent: TypeAlias = (
    SourceFound
    | SourceChanged
    | SourceSwitched
    | SourceFinal
    | SourceRefused
    | TopicMatched
    | TopicUnmatched
    | NoSource
    | OtidMismatch
    | BadPattern
    | DomainIdLearned
    | DomainMismatch
    | DomainRoute
)
