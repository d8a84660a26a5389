"""Connections of a peer portal that are not its link: too many of them, and those that want the place of the link.

Who has connected while there is a link is not greeted before it is known whether it takes the place of the link. Part
of `portals.peer.link_core`; connections are the numbers that it gave them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from dro.log.events import LogEvent
from dro.proto.peerlink.connecting import ANSWER_NS, PAUSED_NS, REMEDIES, ConnectionClaim, claim_of
from dro.proto.peerlink.session import LinkEnd, LinkSession, LinkUp
from dro.wire.source_string import TcpAddress, address_text
from portals.peer.link_effects import Ask, LinkCoreEffect, Log
from portals.peer.link_watch import LinkWatch

UNGREETED_MAX: Final = 64
"""Connections whose dialogue is not up yet; of more, the oldest is closed."""


@dataclass(frozen=True, slots=True, eq=False)
class Connection:
    """Says what the core knows of a connection."""

    number: int
    address: TcpAddress
    session: LinkSession


@dataclass(frozen=True, slots=True)
class _Claimant:
    connection: Connection
    up: LinkUp
    link: Connection  # whose place it wants
    asked_ns: int


class Newcomers:
    """See the module text."""

    def __init__(
        self, watch: LinkWatch, ask: Callable[[LinkCoreEffect], object], close: Callable[[int], object]
    ) -> None:
        """`close` closes a connection that is refused."""
        self._watch = watch
        self._ask = ask
        self._close_connection = close
        self._ungreeted: dict[int, Connection] = {}
        self._claimant: _Claimant | None = None  # waits for the answer of the link, or for its silence

    def __len__(self) -> int:
        return len(self._ungreeted)

    @property
    def newest(self) -> int | None:
        return next(reversed(self._ungreeted), None)

    def add(self, connection: Connection) -> None:
        self._ungreeted[connection.number] = connection
        if len(self._ungreeted) > UNGREETED_MAX:
            oldest = self._ungreeted.pop(next(iter(self._ungreeted)))
            self._close_connection(oldest.number)
            why = "too many connections at once that say nothing"
            self.refuse(oldest.address, why, "find who connects to this port", LinkEnd.TIMEOUT)

    def remove(self, number: int) -> bool:
        """Remove a connection that is over, or has said who it is. Returns whether it had not done so before."""
        if self._claimant is not None and number == self._claimant.connection.number:
            self._claimant = None
            return True
        return self._ungreeted.pop(number, None) is not None

    def refuse(self, address: TcpAddress, reason: str, remedy: str, end: LinkEnd) -> None:
        peer = address_text(address)
        self._watch.on_attempt_failed(end)
        self._watch.on_failed(f"{peer} was refused: {reason}", remedy)
        fields = {"peer": peer, "reason": reason, "remedy": remedy}
        self._ask(Log(LogEvent.PEER_REFUSED, fields, is_limited=True))

    def judge(self, connection: Connection, up: LinkUp, link: Connection, silent_ns: int, now_ns: int) -> None:
        """Refuse it, or let it wait: it may take the place of the link later, see `on_timer` and `take_claimant`."""
        claim = claim_of(connection.session, link.session, now_ns, silent_ns)
        if claim is ConnectionClaim.ASKS and self._claimant is None:
            self._wait(_Claimant(connection, up, link, now_ns))
        else:
            self._close(connection, claim)

    def _wait(self, claimant: _Claimant) -> None:
        """Wait for the answer of the link."""
        self._claimant = claimant
        self._ask(Ask(claimant.link.number))

    def next_deadline(self) -> int | None:
        return self._claimant.asked_ns + ANSWER_NS if self._claimant is not None else None

    def on_timer(self, now_ns: int, link: Connection | None) -> tuple[Connection, LinkUp] | None:
        """Return the connection that takes the place of a link that has not answered."""
        claimant = self._claimant
        if claimant is None or now_ns < claimant.asked_ns + ANSWER_NS:
            return None
        self._claimant = None
        if link is claimant.link and link.session.heard_ns > claimant.asked_ns:
            self._close(claimant.connection, ConnectionClaim.ASKS)
            return None
        if link is claimant.link and now_ns >= claimant.asked_ns + ANSWER_NS + PAUSED_NS:
            self._wait(replace(claimant, asked_ns=now_ns))
            return None
        return claimant.connection, claimant.up

    def take_claimant(self, *, is_free: bool) -> tuple[Connection, LinkUp] | None:
        """The link is over. Return who waits for its place, unless another one has taken that."""
        claimant, self._claimant = self._claimant, None
        if claimant is not None and not is_free:
            self._close(claimant.connection, ConnectionClaim.SECOND)
            return None
        return (claimant.connection, claimant.up) if claimant is not None else None

    def _close(self, connection: Connection, claim: ConnectionClaim) -> None:
        self._close_connection(connection.number)
        reason = claim.value
        hello = connection.session.hello
        if claim is ConnectionClaim.CLONE and hello is not None:
            reason += f": {hello.name.decode(errors='replace')}, and this one has node id {hello.node_id or 'none'}"
        self.refuse(connection.address, reason, REMEDIES[claim], LinkEnd.REMOTE)
        if claim is ConnectionClaim.CLONE:
            self._watch.on_claimed(reason, REMEDIES[claim])
