"""Defines what sessions of every transport can do, for contexts, proxies and links.

A `ReceiverTransport` is one joined transport session with the wanted sources on it; it delivers fragments in runs, in
order of arrival, to the one `FragmentSink` of the context. A `SenderTransport` is one own session that sources share;
it accepts runs and returns how much it accepted. Every kind of transport implements these two
(`dro.transport.kind`); the layers above do not distinguish kinds. Applications never see this level: the message
level (`MessageReceiver`, `MessageSource`) and the portals are both built on it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import Field, astuple, dataclass
from operator import add
from typing import Any, ClassVar, Protocol

from dro.proto.context.sources import BoundSource
from dro.transport.runs import RunTable
from dro.wire.source_string import TransportAddress


@dataclass(frozen=True, slots=True)
class SessionCounts:
    """`bad`: datagrams and streams that break their layout; `unknown`: datagrams of sessions that are not joined;
    `unrecoverable`: datagrams given up; `naks_sent`: sequence numbers asked for; `retransmitted`: datagrams;
    `trains`: sends of several datagrams at once; `socket_drops`: datagrams that found a full receive buffer;
    `unsent`: datagrams that the system refused to send; `discarded`: messages not sent to a slow receiver, counted
    for each; `lost`: datagrams that were missing at first."""

    bad: int = 0
    unknown: int = 0
    unrecoverable: int = 0
    naks_sent: int = 0
    retransmitted: int = 0
    trains: int = 0
    socket_drops: int = 0
    unsent: int = 0
    discarded: int = 0
    lost: int = 0

    def __add__(self, other: SessionCounts) -> SessionCounts:
        return SessionCounts(*map(add, astuple(self), astuple(other)))


class ReceiverCounters(Protocol):
    """A dataclass of counters under the names of the C API; every kind has these, and its own."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    bytes_rcved: int
    lbm_msgs_rcved: int
    lbm_msgs_no_topic_rcved: int


class SourceCounters(Protocol):
    """Counters of a source session, as `ReceiverCounters`."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    msgs_sent: int
    bytes_sent: int


@dataclass(frozen=True, slots=True)
class BlockedReceiver:
    """A receiver with a connection that does not take what waits for it.

    `blocked_ns`: since it took something last; `discarded`: messages, since it is connected. `blocks_others`: its
    session takes nothing more, so other receivers of it wait as well.
    """

    address: str
    waiting_bytes: int
    blocked_ns: int
    discarded: int
    blocks_others: bool


@dataclass(frozen=True, slots=True)
class SourceSessionStatistics:
    """One session that a context sends on; `source` is its source string without a topic index."""

    source: str
    counters: SourceCounters
    txw_msgs: int = 0
    txw_bytes: int = 0
    rctlr_rx_msgs: int = 0
    blocked: tuple[BlockedReceiver, ...] = ()


@dataclass(frozen=True, slots=True)
class ReceiverSessionStatistics:
    """One session that a context has joined."""

    source: str
    counters: ReceiverCounters


class DataReader:
    """Base of what reads a socket that fragments come from: a client that lags behind leaves such sockets alone."""


class ReceiverTransport(ABC):
    """A joined transport session, whatever its kind. Implements `dro.proto.context.sources.SessionView`.

    `sources` are by topic index.
    """

    is_in_order: bool = False
    """Fragments come in the order in which they were sent; what is missing then never comes."""
    shows_life: bool = True
    """The session says something even while its sources are idle."""

    def __init__(self, address: TransportAddress) -> None:
        self.address = address
        self.sources: dict[int, BoundSource[Any]] = {}
        self.generation_ns = 0
        self.has_begun = False
        self.was_connected = True
        self.lbm_msgs_no_topic_rcved = 0
        self.on_lost: OnLost | None = None

    def add_source(self, source: BoundSource[Any]) -> None:
        """A source of the session is wanted from now on."""
        self.sources[source.topic_index] = source

    def remove_source(self, source: BoundSource[Any]) -> None:
        if self.sources.get(source.topic_index) is source:
            del self.sources[source.topic_index]

    @property
    @abstractmethod
    def active_ns(self) -> int:
        """When something was last heard on the session."""

    @abstractmethod
    def counts(self) -> SessionCounts: ...

    @abstractmethod
    def statistics(self) -> ReceiverSessionStatistics: ...

    @abstractmethod
    def leave(self) -> None:
        """Forget the session for good; nothing more is reported. May be called twice."""

    def mark(self) -> int | None:
        """The place in the stream of datagrams that was reached; None for a session that does not number them."""
        return None

    def is_whole(self, mark: int | None) -> bool:
        """Say whether nothing is missing any more from before `mark`; what was given up or left is not missing."""
        return True


class SessionSink(Protocol):
    """What takes the fragments of joined sessions."""

    def on_fragments(self, view: memoryview, parts: Sequence[tuple[ReceiverTransport, RunTable]], now_ns: int) -> None:
        """What one batch of a socket brought, by session, each in order of arrival.

        `view` and the tables are valid during the call only. Runs may name unknown topics.
        """

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        """First activity on the session (BOS)."""


class FragmentSink(SessionSink, Protocol):
    """What takes the fragments of a context, and learns what sources they come from."""

    def on_bound(self, source: BoundSource[Any], now_ns: int) -> None:
        """The source was joined; nothing of it has come yet."""

    def on_unbound(self, source: BoundSource[Any], *, ended: bool, now_ns: int) -> None:
        """The source is gone. `ended`: the session or a final advertisement ended it; else nobody wants it more."""


OnEnded = Callable[[ReceiverTransport, int], object]
"""(session, ns): activity timeout, disconnect, or a connection that could not be made."""


OnLost = Callable[[ReceiverTransport, int, str, int], object]
"""(session, count, cause, ns): so many datagrams were given up."""


class SenderTransport(Protocol):
    """A transport session of ours. It works on fragments that carry their LBMC headers already."""

    packs_all: bool
    """Fill datagrams with what is sent at once up to their size, not only up to `implicit_batching_minimum_length`."""

    is_read_on: bool
    """What has settled may still lie unread on the machines of receivers."""

    @property
    def address(self) -> TransportAddress: ...

    @property
    def transport_index(self) -> int: ...

    @property
    def datagram_max_bytes(self) -> int:
        """Return the largest datagram as configured; for a stream, what messages are divided by."""

    @property
    def fragment_max_bytes(self) -> int:
        """Largest LBMC message that fits a datagram of this session."""

    on_unblocked: Callable[[], object] | None
    """Called when a session that took less than it was given has room again; never from within a send."""

    def send_batch(self, buffer: bytearray, table: RunTable, now_ns: int) -> int:
        """Send the runs of the table, which lie in `buffer`; returns how many fragments were taken.

        The first word of a row is the topic index to be sent with; it is written into the fragments, or into the
        TOPIC_IDX block of a run of KIND_CONTROL. A run of KIND_TSNI becomes a message. The session may put the rows
        of a table into another order, in which each topic keeps its own; what it does not take are the last ones, and
        `table` holds exactly these afterwards. The buffer belongs to the session from then on, apart from fragments
        that were not taken.
        """

    def flush(self) -> None:
        """No more batches follow for now: send what is held back to be sent together with more."""

    def send_message(self, message: bytes, now_ns: int, payload_bytes: int = 0) -> bool:
        """Send one finished LBMC message, such as a TSNI; False when the session is blocked.

        `payload_bytes` is the user data in it.
        """

    def send_packed(self, messages: Sequence[bytes], payload_bytes: int, now_ns: int) -> int:
        """Send messages that were batched for one datagram; returns how many were taken."""

    @property
    def is_blocked(self) -> bool: ...

    def close(self, linger_ns: int, now_ns: int) -> None:
        """No source is left. The session goes on repairing for `linger_ns` after its last data, then ends.

        May be called again while it lingers. With a `linger_ns` of 0 it has ended when this returns.
        """

    def is_heard(self, since_ns: int, now_ns: int) -> bool:
        """Say whether a receiver has joined, as far as it can know, which was advertised last at `since_ns`."""

    @property
    def is_flushing(self) -> bool:
        """Was the session closed while receivers had not taken all that was sent, and do they go on taking it?"""

    def settling(self, now_ns: int, linger_ns: int, *, is_last: bool) -> Callable[[int], bool]:
        """A question, to be asked with the time: has all that was sent so far left, and can none of it be asked for?

        Repairs are asked for up to `linger_ns` after data. `is_last`: nothing will follow what was sent so far.
        """

    def counts(self) -> SessionCounts: ...

    def statistics(self) -> SourceSessionStatistics: ...


OnClient = Callable[[SenderTransport, str, bool], object]
"""(session, client address, connected): a receiver of a session that has connections."""
