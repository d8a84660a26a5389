"""Interface of a transport kind: how its sessions are joined, and how sources get one. Called by the context.

A kind is a folder beside this module, named as in the option `transport`, with a module `kind` that defines `KIND`;
`dro.transport.registry` finds it. A kind that UM has changes no other file; its options are sets in a module
`options` of the folder. CONTRIBUTING.md has the steps.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from dro.config.um.options import UmOptions
from dro.config.um.sets import ImmediateOptions
from dro.kept.store import NOTHING_KEPT, Kept
from dro.loop import Loop
from dro.proto.tcp.filters import SourceFilters
from dro.proto.unicast.connections import OnOutcome, Outcome
from dro.transport import mmsg
from dro.transport.kept_senders import SentBefore
from dro.transport.session import OnClient, OnEnded, ReceiverTransport, SenderTransport, SessionCounts, SessionSink
from dro.transport.sockets import OS_SOCKETS, Sockets
from dro.wire.source_string import TransportAddress

A = TypeVar("A")
A_contra = TypeVar("A_contra", contravariant=True)
K = TypeVar("K")


SendUnicast = Callable[[int, int, bytes, OnOutcome], object]


def _refuse_unicast(ip: int, port: int, message: bytes, on_outcome: OnOutcome) -> None:
    on_outcome(Outcome.FAILED)


@dataclass(frozen=True, slots=True)
class SessionHost:
    """Lends what sessions of every kind need of their context. `options` are the context's; `sockets` opens theirs.

    `send_unicast(ip, port, message, on_outcome)`: to the request port of another context. `filters`: see
    `dro.proto.tcp.filters`. `kept`: what sessions of the former process have left, and those of this one leave.
    """

    loop: Loop
    options: UmOptions
    batch: mmsg.DatagramBatch
    rng: random.Random
    sockets: Sockets = OS_SOCKETS
    own_address: str = ""
    """The address that sources without an interface of their own are advertised under; empty: found by the route."""
    send_unicast: SendUnicast = _refuse_unicast
    filters: SourceFilters = field(default_factory=SourceFilters)
    kept: Kept = NOTHING_KEPT

    def new_id(self) -> int:
        """A random session or transport id, never 0."""
        return self.rng.randrange(1, 1 << 32)


@dataclass(frozen=True, slots=True)
class SenderEvents:
    """What sessions of sources report."""

    on_client: OnClient
    on_closed: Callable[[SenderTransport], object]


class JoinedSessions(Protocol[A_contra]):
    """Sessions of one kind that a context has joined, and the sockets that they share."""

    def join(self, address: A_contra, options: UmOptions, now_ns: int) -> ReceiverTransport:
        """A session that is not joined yet. Raises: ResourceError. Nothing is reported from within."""

    def counts(self) -> SessionCounts:
        """Count since the start what belongs to no session."""

    def close(self) -> None:
        """All sessions have been left."""


class SenderPool(ABC, Generic[K]):
    """Sessions of one kind that sources share, by key. The options of the first source of a session hold."""

    def __init__(self) -> None:
        self._open: dict[K, SenderTransport] = {}  # without those that linger
        self._turn = 0
        self.sent_before: dict[int, SentBefore] = {}
        """By transport index, of sessions that the former incarnation of this process had."""

    @abstractmethod
    def acquire(self, options: UmOptions, former: int = 0) -> SenderTransport:
        """The session for a new source, opened or shared. Raises: ResourceError naming the option to change.

        `former`: transport index of the session that the former incarnation of this process had for the source.
        """

    def forget_waiting(self) -> None:
        """Forget the sessions of the former incarnation that no source has asked for."""
        self.sent_before.clear()

    def forget(self, sender: SenderTransport) -> None:
        """The session has lost its last source: no other one gets it."""
        for key, known in list(self._open.items()):
            if known is sender:
                del self._open[key]

    def _share(self, members: list[SenderTransport]) -> SenderTransport:
        """Choose a session by turns."""
        self._turn += 1
        return members[(self._turn - 1) % len(members)]


OnImmediate = Callable[[bytes, TransportAddress], object]
"""(LBMC message, session)"""


class ImmediateListener(Protocol):
    """Hears the sessions of multicast immediate messages."""

    def sessions(self) -> Sequence[ReceiverTransport]:
        """List those that it hears now."""

    def counts(self) -> SessionCounts:
        """Add up those of all sessions since the start."""

    def close(self) -> None:
        """Nothing is heard any more."""


@dataclass(frozen=True, slots=True)
class ImmediateSessions:
    """Sessions that carry multicast immediate messages, which nobody advertises; of one kind, LBT-RM in UM.

    `open(pool, options)`: a session to send on, of the kind's pool. `listen(host, options, on_message, is_own)`: hear
    all sessions of the group but those that `is_own` names. Both raise ResourceError.
    """

    open: Callable[[Any, ImmediateOptions], SenderTransport]
    listen: Callable[
        [SessionHost, ImmediateOptions, OnImmediate, Callable[[TransportAddress], bool]], ImmediateListener
    ]


def _is_anywhere(address: object) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class TransportKind(Generic[A]):
    """`address`: what sessions are advertised by.

    `senders(host, events, sm_before_data)`: proxy sources send session messages before their first data.
    `is_near(address)`: whether a session can be joined from here at all; of others no source is taken on.
    """

    address: type[A]
    receivers: Callable[[SessionHost, SessionSink, OnEnded], JoinedSessions[A]]
    senders: Callable[[SessionHost, SenderEvents, bool], SenderPool[Any]]
    immediate: ImmediateSessions | None = None
    is_near: Callable[[A], bool] = _is_anywhere
