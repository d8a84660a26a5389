"""Sources that a context has joined, and what its decisions may ask of their transport sessions.

Sessions belong to the host of the context: sockets in a process, a queue of messages in the simulator. Both are a
`SessionView` here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from dro.wire.lbmr.packet import Tir
from dro.wire.source_string import TransportAddress

U = TypeVar("U")


class SessionView(Protocol):
    """Says of a joined session what decisions need. Read only."""

    @property
    def address(self) -> TransportAddress: ...

    @property
    def active_ns(self) -> int:
        """Return when something was last heard on the session."""

    @property
    def generation_ns(self) -> int:
        """How long the session tries to repair, 0 when it does not repair."""

    @property
    def is_in_order(self) -> bool:
        """Fragments come in the order in which they were sent; what is missing then never comes."""

    @property
    def shows_life(self) -> bool:
        """The session says something even while its sources are idle."""

    @property
    def was_connected(self) -> bool:
        """False for a session that ended before there was a connection."""

    @property
    def has_begun(self) -> bool:
        """There was activity (BOS)."""

    def mark(self) -> int | None:
        """The place in the stream of datagrams that was reached; None for a session that does not number them."""

    def is_whole(self, mark: int | None) -> bool:
        """Say whether nothing is missing any more from before `mark`; what was given up or left is not missing."""


@dataclass(slots=True, eq=False)
class BoundSource(Generic[U]):
    """One source that was found and joined: a topic on a transport session.

    `tir` is the latest advertisement; `is_from_dro` says that a DRO sent it. `source_id` and `source_ip` name the
    context that advertises it. `user` is what the sink of its fragments keeps with it.
    """

    topic: bytes
    otid: bytes
    topic_index: int
    transport: SessionView
    tir: Tir
    is_from_dro: bool
    user: U | None = None
    source_id: bytes | None = None
    source_ip: int = 0

    @property
    def address(self) -> TransportAddress:
        return self.transport.address
