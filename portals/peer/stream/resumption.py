"""Confirms to the companion of a link what of its data has been handed up, and takes what it confirms.

With a companion that does not do so, nothing happens here. One per peer portal, over all its connections.

Source: own design, `dro.proto.peerlink.resume`. Guess: when a confirmation leaves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dro.bus.actor import WorkerContext
from dro.clock import ms
from dro.log.events import LogEvent
from dro.proto.peerlink.resume import Progress, ProgressKind, ReceivedData, progress
from dro.timers import Timer
from portals.peer.stream.connection import PeerConnection
from portals.peer.stream.kept_link import KeptLink
from portals.peer.stream.sender import LinkSender

CONFIRM_NS: Final = ms(50)
"""What was handed up is confirmed after that at the latest."""
CONFIRM_BYTES: Final = 4 << 20
CONFIRM_DATAGRAMS: Final = 4096
"""Or after so much. It frees memory of the companion earlier; what is sent again depends on the first one of the next
connection alone, so few are enough."""

_REMEDY: Final = "a larger <max-queue>: so much may be under way when a connection breaks"


class LinkResumption:
    """See the module text."""

    def __init__(
        self,
        ctx: WorkerContext,
        sender: LinkSender,
        kept: KeptLink,
        on_begins: Callable[[int], object],
        *,
        by_packet: bool,
    ) -> None:
        """`kept`: what the former process has left.

        `on_begins`: the companion's data goes on, and lacks so much of what came before.
        """
        self.is_offered = True
        """False once the companion has miscounted: links begin anew then, as with one that confirms nothing."""
        self._ctx = ctx
        self._loop = ctx.loop
        self._sender = sender
        self._on_begins = on_begins
        self._step = CONFIRM_DATAGRAMS if by_packet else CONFIRM_BYTES
        self._kept = kept
        self._companion = kept.companion
        self._received = ReceivedData(kept.companion, kept.position)
        self._connection: PeerConnection | None = None
        self._count: Callable[[], int] | None = None
        self._noted = self._told = 0
        self._must_confirm = False
        self._timer: Timer | None = None

    def on_link(self, companion: bytes) -> None:
        """There is a link to the companion with that context instance; empty for one that confirms nothing."""
        self._companion = companion
        self._received.on_connection(companion)
        self._loop.when_settled(self._settle)

    def admit(self, connection: PeerConnection, count: Callable[[], int]) -> None:
        """Begin with a connection that is the link now. `count`: how much data of it has been handed up."""
        self._connection, self._count = connection, count
        self._must_confirm = True
        connection.on_progress = self._on_progress

    def close(self) -> None:
        """The link is down, and all that had come is handed up."""
        self._connection = self._count = None
        self._received.on_down()
        self._loop.when_settled(self._settle)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_data(self) -> None:
        """Data may have been handed up."""
        if self._connection is not None:
            self._loop.when_settled(self._settle)

    def _settle(self) -> None:
        """Note what the siblings have been told of, and confirm it, now or soon: nobody has to send that again."""
        self._noted = self._received.position
        self._kept.note(self._companion, self._noted)
        if self._connection is None or not self._connection.is_open:
            return
        behind = self._noted - self._told
        if self._must_confirm or behind >= self._step:
            self._confirm()
        elif behind and self._timer is None:
            self._timer = self._loop.call_later(CONFIRM_NS, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._noted != self._told:
            self._confirm()

    def _confirm(self) -> None:
        if self._connection is not None:
            self._must_confirm = False
            self._told = self._noted
            self._connection.writer.put_urgent(progress(ProgressKind.GOT, self._told))

    def _on_progress(self, found: Progress) -> str:
        """Take what the companion says. Returns what is wrong, which ends the connection."""
        wrong = self._taken(found)
        if wrong:
            self.is_offered = False
            self._kept.forget()
        return wrong

    def _taken(self, found: Progress) -> str:
        if found.kind is ProgressKind.GOT:
            return self._on_got(found.position)
        assert self._count is not None
        lacking = found.position - self._received.position
        wrong = self._received.on_begins(found.position, self._count)
        if not wrong:
            self._told = found.position
            self._on_begins(lacking)
        return wrong

    def _on_got(self, position: int) -> str:
        sent = self._sender.sent
        before = sent.lost_bytes
        wrong = self._sender.on_got(position)
        if lost := sent.lost_bytes - before:
            self._sender.counters.lost_bytes += lost
            extra = {"bytes": lost, "kept": sent.limit_bytes, "remedy": _REMEDY}
            self._ctx.log.warning(LogEvent.PEER_DATA_FORGOTTEN, extra=extra)
        return wrong
