"""Lists what a context asks of its host, in order; some events of the resolver are passed on as they are.

JoinSession                 the host joins it and answers, before it takes more, by `ContextEngine.on_joined`
LeaveSession                nobody wants a source of it any more
Bound, Unbound, Changed     for who takes the fragments of sources
TopicFound, TopicLost       for who wants a pattern
ProxyLeft, IndexTaken       for the log
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from dro.proto.context.sources import BoundSource, SessionView
from dro.proto.resolver import events as ev

PatternKey: TypeAlias = tuple[bytes, int]
"""A pattern and its type."""


@dataclass(frozen=True, slots=True)
class JoinSession:
    """Join the session of a source; `is_known`: though the source may be wanted only later."""

    source: ev.FoundSource
    is_known: bool = False


@dataclass(frozen=True, slots=True)
class LeaveSession:
    session: SessionView


@dataclass(frozen=True, slots=True)
class Bound:
    """The source was joined; nothing of it has come yet."""

    source: BoundSource[Any]


@dataclass(frozen=True, slots=True)
class Unbound:
    """The source is gone. `ended`: the session or a final advertisement ended it; else nobody wants it more."""

    source: BoundSource[Any]
    ended: bool


@dataclass(frozen=True, slots=True)
class Changed:
    """A bound source is advertised with other attributes than before."""

    source: BoundSource[Any]


@dataclass(frozen=True, slots=True)
class TopicFound:
    """A pattern has found a topic."""

    pattern: PatternKey
    topic: bytes


@dataclass(frozen=True, slots=True)
class TopicLost:
    """A topic of a pattern has no source any more."""

    pattern: PatternKey
    topic: bytes


@dataclass(frozen=True, slots=True)
class ProxyLeft:
    """A proxy source was left, as its DRO is dead and another session of the same source is advertised."""

    source: BoundSource[Any]


@dataclass(frozen=True, slots=True)
class IndexTaken:
    """A source is not joined, as another one has its topic index on the session."""

    source: ev.FoundSource


Note: TypeAlias = (
    ev.NoSource
    | ev.DomainIdLearned
    | ev.DomainMismatch
    | ev.DomainRoute
    | ev.OtidMismatch
    | ev.BadPattern
    | ProxyLeft
    | IndexTaken
)
"""Nothing to be done but to tell it."""
ContextEffect: TypeAlias = JoinSession | LeaveSession | Bound | Unbound | Changed | TopicFound | TopicLost | Note
