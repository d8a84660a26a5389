"""Connections of a peer portal that are not its link yet: too many of them, and those that want the place of the link.

Who has connected while there is a link is not greeted before it is known whether it takes the place of the link.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dro.bus.actor import WorkerContext
from dro.log.events import LogEvent
from dro.proto.peerlink.connecting import ANSWER_NS, REMEDIES, Claim, claim_of
from dro.proto.peerlink.session import LinkEnd
from dro.timers import Timer
from dro.um.transport.sockets import address_text
from dro.um.transport.stream import nothing
from portals.peer.connection import PeerConnection
from portals.peer.link_watch import LinkWatch

UNGREETED_MAX: Final = 64
"""Connections whose dialogue is not up yet; of more, the oldest is closed."""


class Newcomers:
    """See the module text."""

    def __init__(self, ctx: WorkerContext, watch: LinkWatch) -> None:
        self._ctx = ctx
        self._watch = watch
        self._ungreeted: dict[PeerConnection, None] = {}
        self._waiting: PeerConnection | None = None  # for the answer of the link, or for its silence
        self._timer: Timer | None = None
        self._take: Callable[[], object] = nothing

    @property
    def newest(self) -> PeerConnection | None:
        return next(reversed(self._ungreeted), None)

    def add(self, connection: PeerConnection) -> None:
        self._ungreeted[connection] = None
        if len(self._ungreeted) > UNGREETED_MAX:
            oldest = next(iter(self._ungreeted))
            del self._ungreeted[oldest]
            oldest.close()
            why = "too many connections at once that say nothing"
            self.refuse(oldest, why, "find who connects to this port", LinkEnd.TIMEOUT)

    def remove(self, connection: PeerConnection) -> bool:
        """Remove a connection that is over, or has said who it is. Returns whether it had not done so before."""
        if connection is self._waiting:
            self._stop_waiting()
            return True
        return self._ungreeted.pop(connection, self) is None

    def refuse(self, connection: PeerConnection, reason: str, remedy: str, end: LinkEnd) -> None:
        self._watch.on_attempt_failed(end)
        self._watch.on_failed(f"{address_text(connection.address)} was refused: {reason}", remedy)
        extra = {"peer": address_text(connection.address), "reason": reason, "remedy": remedy}
        self._ctx.limited(LogEvent.PEER_REFUSED, extra=extra)

    def judge(
        self, connection: PeerConnection, link: PeerConnection, silent_ns: int, take: Callable[[], object]
    ) -> None:
        """Whether it takes the place of the link; `take` is called then, now or when nobody has answered there."""
        now_ns = self._ctx.loop.now_ns()
        claim = claim_of(connection.session, link.session, now_ns, silent_ns)
        if claim is Claim.REPLACES:
            take()
            return
        if claim is not Claim.ASKS or self._waiting is not None:
            self._close(connection, claim)
            return
        self._waiting, self._take = connection, take
        self._timer = self._ctx.loop.call_later(ANSWER_NS, lambda: self._on_answer_due(link, now_ns))
        link.ask()

    def _on_answer_due(self, link: PeerConnection, asked_ns: int) -> None:
        connection, take = self._waiting, self._take
        self._stop_waiting()
        if connection is not None:
            if link.is_open and link.session.heard_ns > asked_ns:
                self._close(connection, Claim.ASKS)
            else:
                take()

    def on_link_over(self) -> None:
        """Whoever waits need not wait any more."""
        if (connection := self._waiting) is not None:
            take = self._take
            self._stop_waiting()
            self._ctx.loop.call_soon(lambda: self._after_link(connection, take))

    def _after_link(self, connection: PeerConnection, take: Callable[[], object]) -> None:
        """The place is free, or another one that was silent for less has taken it."""
        if self._watch.is_up:
            self._close(connection, Claim.SECOND)
        else:
            take()

    def _close(self, connection: PeerConnection, claim: Claim) -> None:
        connection.close()
        reason = claim.value
        hello = connection.session.hello
        if claim is Claim.CLONE and hello is not None:
            reason += f": {hello.name.decode(errors='replace')}, and this one has node id {hello.node_id}"
        self.refuse(connection, reason, REMEDIES[claim], LinkEnd.REMOTE)
        if claim is Claim.CLONE:
            self._watch.on_claimed(reason, REMEDIES[claim])

    def _stop_waiting(self) -> None:
        self._waiting, self._take = None, nothing
        if self._timer is not None:
            self._timer.cancel()

    def close(self) -> None:
        for connection in (*self._ungreeted, *([self._waiting] if self._waiting is not None else [])):
            connection.close()
        self._stop_waiting()
