"""What clients of a server of topic resolution over TCP have told: sources by topic, interest by name.

Only the state and its accounts; who is told of a change is decided in `records`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeAlias, TypeVar

from dro.proto.srs.connection import SrsConnection
from dro.wire.srs.messages import InterestMode, RegistrationRequest

SOURCE_COST: Final = 1024
INTEREST_COST: Final = 512
PATTERN_COST: Final = 8192
"""Bytes that a record counts for beside its own: what it takes in memory."""

ClientKey: TypeAlias = tuple[int, int, int]
"""Address, port and session id: the same client after a new connection."""
NameKey: TypeAlias = tuple[bool, bytes]
"""Whether it is a pattern, and the topic or pattern."""
InterestKey: TypeAlias = tuple[bool, bytes, int]
"""The same and the domain id."""


@dataclass(slots=True, eq=False)
class RosterNode:
    """A link in a `Roster`."""

    before: RosterNode | None = None
    after: RosterNode | None = None
    is_listed: bool = False
    walks: int = 0  # that stand here


N = TypeVar("N", bound=RosterNode)


class Roster(Generic[N]):
    """A list that can be walked over many turns while it changes.

    A walk meets all that was there when it began and still is. What is removed keeps its place while a walk stands
    there, so that it goes on; it holds nothing else that was removed.
    """

    __slots__ = ("_first", "_last")

    def __init__(self) -> None:
        self._first: N | None = None
        self._last: N | None = None

    def add(self, node: N) -> None:
        node.is_listed, node.before = True, self._last
        if self._last is None:
            self._first = node
        else:
            self._last.after = node
        self._last = node

    def remove(self, node: N) -> None:
        node.is_listed = False
        if not node.walks:
            self._unlink(node)

    def _unlink(self, node: N) -> None:
        if node.before is None:
            self._first = node.after  # type: ignore[assignment]  # links of a roster lead to its own kind
        else:
            node.before.after = node.after
        if node.after is None:
            self._last = node.before  # type: ignore[assignment]
        else:
            node.after.before = node.before
        node.before = node.after = None

    def walk(self) -> Iterator[N | None]:
        """Yield what is listed, and None for each step on the way."""
        node = self._first
        while node is not None:
            node.walks += 1
            try:
                yield node if node.is_listed else None
            finally:  # also when nobody goes on with it
                after = node.after
                node.walks -= 1
                if not node.walks and not node.is_listed:
                    self._unlink(node)
            node = after  # type: ignore[assignment]


@dataclass(slots=True, eq=False)
class SrsClient:
    """Who has registered; what it has told outlives its connection."""

    key: ClientKey
    number: int
    registration: RegistrationRequest
    connection: SrsConnection | None = None
    generation: int = 0  # how often it has registered
    record_bytes: int = 0
    patterns: int = 0
    sources: OrderedDict[bytes, SrsSource] = field(default_factory=OrderedDict)  # by OTID; old generations first
    interest: OrderedDict[InterestKey, int] = field(default_factory=OrderedDict)
    """To the generation in which it was told last; old ones first."""
    route: bytes = b""  # the frame of its last domain route
    route_until_ns: int = 0
    relay_second: int = 0
    relayed_bytes: int = 0  # in that second
    relayed_datagrams: int = 0

    @property
    def mode(self) -> InterestMode:
        """Guess: a mode that is not known is the usual one."""
        try:
            return InterestMode(self.registration.interest_mode)
        except ValueError:
            return InterestMode.FILTER


@dataclass(slots=True, eq=False)
class SrsTopic(RosterNode):
    """A topic that has sources."""

    name: bytes = b""
    sources: dict[SrsSource, None] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class SrsSource:
    """A source as one client tells it: several DROs may tell one OTID."""

    client: SrsClient
    otid: bytes
    topic: SrsTopic
    address: bytes  # its source string
    raw: bytes  # its record
    generation: int
    farewell: bytes = b""  # the record that says its end, from then until the others are told
    farewell_due_ns: int = 0


@dataclass(slots=True, eq=False)
class SrsInterest(RosterNode):
    """A topic or pattern that clients want."""

    key: NameKey = (False, b"")
    holders: dict[tuple[SrsClient, int], bytes] = field(default_factory=dict)  # client and domain to record
    wanting: dict[SrsClient, int] = field(default_factory=dict)  # in how many domains
    domains: dict[int, int] = field(default_factory=dict)  # to the number of clients
