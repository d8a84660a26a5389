"""How an endpoint portal gives up its traffic without losing any of it, and how its siblings help.

D, the portal that is drained, and each sibling S that is up:

    D -> S   Withdraw         nothing new is made at either side; S begins the handover of what it forwards to D
    S -> D   Released(n)      S will hand over nothing more; n fragments were handed over in all. D's interest at S ends
    D -> S   Settle(n)        D's own handover is over, its proxy receivers are closed; n fragments were handed to S
    S -> D   Settled          all of them were sent or dropped, and repairs of them are over
    D -> S   SourceGone       for every source: S deletes its proxy sources as after any other end

    handed over      `portals.endpoint.handover`
    delivered        D has accounted for what every sibling released, so its queue is empty as well
    at rest          nothing that was sent can be asked for any more: TCP receivers have taken it; on LBT-RM the NAK
                     generation interval after the newest datagram is over
    ended            the proxy sources are closed and their final advertisements are out

Both directions go on side by side. Control messages overtake data, so the counts decide and not the order. A sibling
that dies is not waited for; one that comes up meanwhile is greeted and told nothing. `DrainCore` is the part of D,
`DrainHelp` that of S; both are driven by ticks. At the limit D says what it waits for and stays as it is.

Source: ours, the original has no such operation. Source: forwarding notes, section 9, for the end of a source.
Guess: all receivers of the portal's LBT-RM proxy sources use the NAK generation interval that the portal has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from dro.clock import ms
from portals.endpoint.handover import ForwardEntry, Handover, Sessions
from portals.messages import PortalMessage, Released, Settle, Settled, Withdraw

TICK_NS: Final = ms(20)


class Rest(Protocol):
    """Transport sessions of ours that are to come to rest."""

    @property
    def is_read_on(self) -> bool:
        """Whether receivers may have to read on when it is over: their machines hold what they have not read."""

    def is_over(self, now_ns: int) -> bool: ...


class Portal(Protocol):
    """What both parts need of the portal that they belong to."""

    @property
    def sessions(self) -> Sessions:
        """Those that were joined."""

    def entries(self) -> Iterable[ForwardEntry]:
        """Own sources, as the data path knows them."""

    def tell(self, worker: int, message: PortalMessage) -> None: ...

    def name(self, worker: int) -> str:
        """Of a sibling, for operators."""

    def handed(self, worker: int) -> int:
        """Fragments that the sibling's channel ever took."""

    def accounted(self, worker: int) -> int:
        """Fragments of the sibling that were ever sent or dropped here."""

    def rest(self, worker: int | None) -> Rest:
        """Of the sessions of all proxy sources, or of those that the sibling feeds, from now on."""

    def release(self, worker: int) -> None:
        """Forget the sibling's interest, and that it gets fragments."""

    # of the portal that is drained

    def siblings(self) -> Iterable[int]:
        """Those that are up."""

    def withdraw(self) -> None:
        """Make nothing new, and keep to yourself which sources end."""

    def close_receivers(self) -> None:
        """Close all proxy receivers: cancel the interest, leave the sessions."""

    def end_sources(self) -> None:
        """Tell the siblings of the end of every source, also of those that were kept."""

    def close_sources(self) -> None:
        """Close all proxy sources, with final advertisements."""

    def finals_pending(self) -> int: ...

    def drained(self, waiting: str) -> None:
        """Nothing is held any more, or `waiting` is what the limit came before. Called once for each order."""


@dataclass(slots=True)
class _Departing:
    """A sibling that is drained."""

    handover: Handover | None
    settle: int | None = None  # how much it handed over
    rest: Rest | None = None  # once all of that is accounted for


class DrainHelp:
    """What a portal does for siblings that are drained."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self._departing: dict[int, _Departing] = {}

    @property
    def is_idle(self) -> bool:
        return not any(d.handover is not None or d.settle is not None for d in self._departing.values())

    def on_withdraw(self, worker: int) -> None:
        portal = self._portal
        if worker not in self._departing:
            self._departing[worker] = _Departing(Handover(portal.sessions, portal.entries(), {worker}))

    def on_settle(self, worker: int, fragments: int) -> None:
        """Also from a sibling whose handover is still going on: both directions are independent."""
        if (departing := self._departing.get(worker)) is not None:
            departing.settle = fragments

    def on_gone(self, worker: int) -> None:
        """The sibling is down, drained or not; whoever comes up under its number begins anew."""
        departing = self._departing.pop(worker, None)
        if departing is not None and departing.handover is not None:
            departing.handover.cancel()

    def on_tick(self, now_ns: int) -> None:
        portal = self._portal
        for worker, departing in self._departing.items():
            if departing.handover is not None and departing.handover.on_tick():
                departing.handover = None
                portal.release(worker)
                portal.tell(worker, Released(portal.handed(worker)))
            if departing.settle is not None and self._is_settled(worker, departing, now_ns):
                departing.settle = departing.rest = None
                portal.tell(worker, Settled())

    def _is_settled(self, worker: int, departing: _Departing, now_ns: int) -> bool:
        assert departing.settle is not None
        if departing.rest is None and self._portal.accounted(worker) >= departing.settle:
            departing.rest = self._portal.rest(worker)
        return departing.rest is not None and departing.rest.is_over(now_ns)


@dataclass(slots=True)
class _Helper:
    """What a sibling has said to the portal that is drained."""

    released: int | None = None
    is_settled: bool = False


class DrainCore:
    """The portal that is drained; made with the order to do it."""

    def __init__(self, portal: Portal, limit_ns: int, *, end_delay_ns: int) -> None:
        """`limit_ns`: when it gives up. `end_delay_ns`: how long proxy sources stay for those who read on."""
        self._portal = portal
        self._limit_ns = limit_ns
        self._end_delay_ns = end_delay_ns
        self._is_told = False
        self._rest: Rest | None = None
        self._close_at_ns: int | None = None
        self._are_sources_closed = False
        self._are_sources_ended = False
        self._helpers = {worker: _Helper() for worker in portal.siblings()}
        portal.withdraw()
        for worker in self._helpers:
            portal.tell(worker, Withdraw())
        self._handover: Handover | None = Handover(portal.sessions, portal.entries(), self._helpers)

    @property
    def is_over(self) -> bool:
        """Nothing is held any more; the order may have been answered earlier, at the limit."""
        return self._are_sources_ended and self._are_sources_closed and not self._portal.finals_pending()

    # what happens

    def on_again(self, limit_ns: int) -> None:
        """The order came once more; the new limit counts, and it is answered once more."""
        self._limit_ns = limit_ns
        self._is_told = False

    def on_released(self, worker: int, fragments: int) -> None:
        if (helper := self._helpers.get(worker)) is not None:
            helper.released = fragments

    def on_settled(self, worker: int) -> None:
        if (helper := self._helpers.get(worker)) is not None:
            helper.is_settled = True

    def on_gone(self, worker: int) -> None:
        """What was on the way to or from it is lost with it, and counted when it comes back."""
        self._helpers.pop(worker, None)

    def on_tick(self, now_ns: int) -> None:
        self._give_up_sources()
        self._give_up_proxies(now_ns)
        if self._is_told:
            return
        if self.is_over:
            self._is_told = True
            self._portal.drained("")
        elif now_ns >= self._limit_ns:
            self._is_told = True
            self._portal.drained(self.waiting)

    # the two directions

    def _give_up_sources(self) -> None:
        """As ingress: hand over, withdraw, wait for the siblings, say that the sources are gone."""
        portal = self._portal
        if self._handover is not None:
            if not self._handover.on_tick():
                return
            self._handover = None
            for worker in self._helpers:
                portal.tell(worker, Settle(portal.handed(worker)))
            portal.close_receivers()
        if not self._are_sources_ended and all(helper.is_settled for helper in self._helpers.values()):
            self._are_sources_ended = True
            portal.end_sources()

    def _give_up_proxies(self, now_ns: int) -> None:
        """As egress: wait until everything has come, been sent and been repaired, then close."""
        portal = self._portal
        if self._are_sources_closed:
            return
        if self._rest is None:
            if any(not self._has_delivered(*item) for item in self._helpers.items()):
                return
            self._rest = portal.rest(None)
        if self._close_at_ns is None:
            if not self._rest.is_over(now_ns):
                return
            self._close_at_ns = now_ns + (self._end_delay_ns if self._rest.is_read_on else 0)
        if now_ns >= self._close_at_ns:
            self._are_sources_closed = True
            portal.close_sources()

    def _has_delivered(self, worker: int, helper: _Helper) -> bool:
        return helper.released is not None and self._portal.accounted(worker) >= helper.released

    # words

    @property
    def waiting(self) -> str:
        """What it waits for, as a sentence for the operator; empty when it is over."""
        found = []
        helpers = self._helpers.items()
        if self._handover is not None:
            repairs = self._handover.waiting
            found.append(f"repairs of {repairs} joined sessions" if repairs else "its own forwarding to end")
        if unreleased := [worker for worker, helper in helpers if helper.released is None]:
            found.append(f"{self._names(unreleased)} to stop forwarding")
        if late := [w for w, h in helpers if h.released is not None and not self._has_delivered(w, h)]:
            found.append(f"queued fragments of {self._names(late)} to be sent")
        if self._handover is None and (unsettled := [worker for worker, helper in helpers if not helper.is_settled]):
            found.append(f"{self._names(unsettled)} to send and repair what was handed over")
        if self._rest is not None and not self._are_sources_closed:
            found.append("receivers of the proxy sources to take or repair what was sent")
        if self._are_sources_closed and (finals := self._portal.finals_pending()):
            found.append(f"final advertisements of {finals} proxy sources")
        return f"it still waited for {'; '.join(found)}" if found else ""

    def _names(self, workers: Iterable[int]) -> str:
        return ", ".join(map(self._portal.name, sorted(workers)))
