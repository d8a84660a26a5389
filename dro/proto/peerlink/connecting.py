"""When an initiator connects, and which of the connections of an acceptor counts.

Source: DRO guide, `reconnect-interval`; forwarding notes, 21.2. Guess: pauses are spread over a fifth more than the
interval, so that initiators whose network was away do not all come at once. After a link that lasted for the interval
at least there is none, then `PAUSE_NS`, doubled each time until the interval is reached, also by links that last less,
so that a reset, or a companion that starts anew, even twice, costs no more than it must, and nobody who refuses is
hammered. A new connection takes the
place of the old one when that is asked and does not answer within `ANSWER_NS`. It is asked for the sake of the DRO that
it is with; for any other one when it has been silent for a keepalive interval.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from dro.clock import ms
from dro.proto.peerlink.session import LinkSession

_SPREAD: Final = 5
PAUSE_NS: Final = ms(100)
"""The shortest pause, for a smaller interval; also the first one after an attempt to make a lost link anew."""
ANSWER_NS: Final = ms(1000)
PAUSED_NS: Final = ms(200)
"""A timer that is so late shows that this process did not run, and so has not read what came."""


class InitiatorCore:
    """One attempt or connection at a time."""

    def __init__(self, interval_ns: int, now_ns: int, draw: Callable[[int], int], *, had_link: bool = False) -> None:
        """`draw(n)` is a random number below n; `had_link`: the process before had one."""
        self.interval_ns = max(interval_ns, PAUSE_NS)
        self._draw = draw
        self._due_ns: int | None = now_ns
        self._up_ns: int | None = None  # since when there is a link
        self._pause_ns = PAUSE_NS if had_link else self.interval_ns  # the next one
        self.attempts = 0
        """Since the last connection whose dialogue was up."""

    def next_deadline(self) -> int | None:
        """Return when to connect."""
        return self._due_ns

    def on_attempt(self) -> None:
        self.attempts += 1
        self._due_ns = None

    def on_up(self, now_ns: int) -> None:
        self.attempts = 0
        self._up_ns = now_ns

    def on_over(self, now_ns: int) -> None:
        """The attempt failed, or the connection is over."""
        if self._up_ns is not None and now_ns - self._up_ns >= self.interval_ns:
            pause_ns, self._pause_ns = 0, PAUSE_NS
        else:
            pause_ns, self._pause_ns = self._pause_ns, min(2 * self._pause_ns, self.interval_ns)
        spread_ns = self._draw(pause_ns // _SPREAD) if pause_ns else 0
        self._due_ns, self._up_ns = now_ns + pause_ns + spread_ns, None

    def at_once(self, now_ns: int) -> None:
        self._due_ns = now_ns


class ConnectionClaim(Enum):
    """Says what a connection whose HELLO has come is beside the one that is up; the values say why it is refused."""

    ASKS = "the companion is connected, and answers"
    """It may be the same DRO, which has lost the old one without our notice: if that is so, nobody answers there."""
    CLONE = "another DRO of the same name is connected"
    SECOND = "the portal has a link already"


REMEDIES: Final = {
    ConnectionClaim.ASKS: "nothing, if the companion has just restarted; else find who uses its name",
    ConnectionClaim.CLONE: "give each DRO a <name> and a companion of its own: two hosts run the same configuration",
    ConnectionClaim.SECOND: "give each companion a portal of its own",
}


def claim_of(newcomer: LinkSession, old: LinkSession, now_ns: int, silent_ns: int) -> ConnectionClaim:
    """Judge a newcomer. `silent_ns`: of the old one, after which that is asked for the sake of any other.

    A node id is drawn at each start of a DRO, so one name with two of them, or with one in one HELLO alone, is two
    DROs that run. Without a name, the same DRO is the portal of the same context instance.
    """
    assert newcomer.hello is not None
    assert old.hello is not None
    one, other = newcomer.hello, old.hello
    if now_ns - old.heard_ns >= silent_ns:
        return ConnectionClaim.ASKS
    if one.name != other.name or (not one.name and one.context_instance != other.context_instance):
        return ConnectionClaim.SECOND
    if one.node_id != other.node_id:
        return ConnectionClaim.CLONE
    return ConnectionClaim.ASKS
