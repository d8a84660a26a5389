"""The fragment level of the client library: what contexts, transports and proxies agree on.

A `ReceiverTransport` is one joined transport session with the sources on it that somebody wants; fragments come up
from it in runs, in order of arrival, to the one `FragmentSink` of the context. A `SenderTransport` is one session of
ours that sources share; it takes runs and says how much it took. Applications never see this level: the message
level (`Receiver`, `Source`) and the portals are both built on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from dro.um.runs import Run
from dro.wire.lbmr import Tir
from dro.wire.source_string import TransportAddress


@dataclass(slots=True, eq=False)
class BoundSource:
    """One source that was found and joined: a topic on a transport session.

    `tir` is the latest advertisement; `is_from_dro` says that a DRO sent it. `source_id` and `source_ip` name the
    context that advertises it. `user` belongs to the sink.
    """

    topic: bytes
    otid: bytes
    topic_index: int
    transport: ReceiverTransport
    tir: Tir
    is_from_dro: bool
    user: object = None
    source_id: bytes | None = None
    source_ip: int = 0

    @property
    def address(self) -> TransportAddress:
        return self.transport.address


@dataclass(slots=True, eq=False)
class ReceiverTransport:
    """A joined transport session, whatever its kind. `leave` is called when its last source is unbound.

    `was_connected` is False for a TCP session that ended before its connection stood.
    """

    address: TransportAddress
    leave: Callable[[], None]
    sources: dict[int, BoundSource] = field(default_factory=dict)  # by topic index
    generation_ns: int = 0  # how long the transport tries to repair; 0: it does not repair (TCP)
    has_begun: bool = False
    was_connected: bool = True
    unrecoverable_dgrams: int = 0
    lbm_msgs_no_topic_rcved: int = 0


class FragmentSink(Protocol):
    """Who takes the fragments of a context."""

    def on_bound(self, source: BoundSource, now_ns: int) -> None:
        """The source was joined; nothing of it has come yet."""

    def on_fragments(self, transport: ReceiverTransport, view: memoryview, runs: list[Run], now_ns: int) -> None:
        """Fragments in order of arrival. `view` is valid during the call only. Runs may name unknown topics."""

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        """First activity on the session (BOS)."""

    def on_unbound(self, source: BoundSource, *, ended: bool, now_ns: int) -> None:
        """The source is gone. `ended`: the session or a final advertisement ended it; else nobody wants it more."""


class SenderTransport(Protocol):
    """A transport session of ours. It works on fragments that carry their LBMC headers already."""

    @property
    def address(self) -> TransportAddress: ...

    @property
    def transport_index(self) -> int: ...

    @property
    def fragment_max_bytes(self) -> int:
        """Largest LBMC message that fits a datagram of this session."""

    on_unblocked: Callable[[], object] | None
    """Called when a session that took less than it was given has room again; never from within a send."""

    def send_run(
        self, buffer: bytearray, run: Run, start: int, topic_index: int | None, now_ns: int, *, first: int = 0
    ) -> int:
        """Send the run from fragment `first` on; returns how many fragments were taken.

        The run lies in `buffer` at `start + run.offset`.

        The buffer belongs to the session from then on, apart from fragments that were not taken; those can be given
        again with a higher `first`. Topic indexes are rewritten to `topic_index`; a run of KIND_CONTROL likewise in
        its TOPIC_IDX block. None leaves them as they are: fragments of several topics, which need not be consecutive.
        """

    def send_message(self, message: bytes, now_ns: int) -> bool:
        """Send one finished LBMC message, such as a TSNI; False when the session is blocked."""

    @property
    def is_blocked(self) -> bool: ...

    def close(self, linger_ns: int, now_ns: int) -> None:
        """No source is left. The session goes on repairing for `linger_ns` after its last data, then ends."""
