"""Drain: how a portal hands over its traffic without loss, and the part of its siblings.

D, the portal that is drained, and each sibling S that is up:

    D -> S   Withdraw              nothing new is made at either side; S begins the handover of what it forwards to D
    S -> D   ForwardingStopped(n)  S will hand over nothing more; n fragments in all. D's interest at S ends
    D -> S   HandoverEnded(n)      D's own handover is over, its proxy receivers are closed; n fragments in all
    S -> D   HandoverAcked         all of them were sent or dropped, and repairs of them are over
    D -> S   SourceGone            for every source: S deletes its proxy sources as after any other end

    handed over      `portals.datapath.handover`
    delivered        D has accounted for what every sibling released, so its queue is empty as well
    at rest          no receiver can request a repair any more: TCP receivers have got everything; on LBT-RM the NAK
                     generation interval after the newest datagram is over
    ended            the proxy sources are closed and their final advertisements are out

Both directions proceed in parallel. Control messages can overtake data, so the counts decide and not the order. D does
not wait for a sibling that dies; one that comes up meanwhile gets a `PortalHello` and nothing else. `DrainCore` is the
part of D, `DrainHelp` that of S; both are driven by ticks. At the limit D reports what it waits for and stays as it is.

Source: own design, the original has no such operation. Source: forwarding notes, section 9, for the end of a source.
Guess: all receivers of the portal's LBT-RM proxy sources use the NAK generation interval that the portal has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from dro.clock import ms
from portals.datapath.handover import ForwardEntry, Handover
from portals.decisions.core import PortalCore
from portals.decisions.messages import ForwardingStopped, HandoverAcked, HandoverEnded, Withdraw

TICK_NS: Final = ms(20)


class Quiescence(Protocol):
    """Transport sessions of ours that are to come to rest."""

    is_read_on: bool
    """Whether receivers may have to read on when it is over: their machines hold what they have not read."""

    def is_over(self, now_ns: int) -> bool: ...


class DrainablePortal(Protocol):
    """What both parts need of the portal that they belong to."""

    core: PortalCore

    def entries(self) -> Iterable[ForwardEntry]:
        """Own sources, as the data path knows them."""

    def name(self, worker: int) -> str:
        """Return the name of a sibling, for operators."""

    def handed(self, worker: int) -> int:
        """Fragments that the sibling's channel ever took."""

    def accounted(self, worker: int) -> int:
        """Fragments of the sibling that were ever sent or dropped here."""

    def quiescence(self, worker: int | None, now_ns: int) -> Quiescence:
        """Watch the sessions of all proxy sources, or of those that the sibling feeds, from now on."""

    # of the portal that is drained

    def close_sources(self) -> None:
        """Close all proxy sources, with final advertisements."""

    def finals_pending(self) -> int: ...

    def drained(self, waiting: str) -> None:
        """Nothing is held any more, or `waiting` is what the limit came before. Called once for each order."""


@dataclass(slots=True)
class _DrainedSibling:
    """A sibling that is drained."""

    handover: Handover | None
    handed_over: int | None = None  # how much it handed over
    quiescence: Quiescence | None = None  # once all of that is accounted for


class DrainHelp:
    """What a portal does for siblings that are drained."""

    def __init__(self, portal: DrainablePortal) -> None:
        self._portal = portal
        self._drained: dict[int, _DrainedSibling] = {}

    @property
    def is_idle(self) -> bool:
        return not any(d.handover is not None or d.handed_over is not None for d in self._drained.values())

    def on_withdraw(self, worker: int) -> None:
        portal = self._portal
        if worker not in self._drained:
            self._drained[worker] = _DrainedSibling(Handover(portal.entries(), {worker}))

    def on_handover_ended(self, worker: int, fragments: int) -> None:
        """Also from a sibling whose handover is still going on: both directions are independent."""
        if (sibling := self._drained.get(worker)) is not None:
            sibling.handed_over = fragments

    def on_gone(self, worker: int) -> None:
        """The sibling is down, drained or not; whoever comes up under its number begins anew."""
        sibling = self._drained.pop(worker, None)
        if sibling is not None:
            if sibling.handover is not None:
                sibling.handover.cancel()
            self._portal.core.forward_nothing_to(worker)

    def on_tick(self, now_ns: int) -> None:
        portal = self._portal
        for worker, sibling in self._drained.items():
            if sibling.handover is not None and sibling.handover.on_tick():
                sibling.handover = None
                portal.core.on_forwarding_stopped(worker)
                portal.core.send(worker, ForwardingStopped(portal.handed(worker)))
            if sibling.handed_over is not None and self._is_delivered(worker, sibling, now_ns):
                sibling.handed_over = sibling.quiescence = None
                portal.core.send(worker, HandoverAcked())

    def _is_delivered(self, worker: int, sibling: _DrainedSibling, now_ns: int) -> bool:
        assert sibling.handed_over is not None
        if sibling.quiescence is None and self._portal.accounted(worker) >= sibling.handed_over:
            sibling.quiescence = self._portal.quiescence(worker, now_ns)
        return sibling.quiescence is not None and sibling.quiescence.is_over(now_ns)


@dataclass(slots=True)
class _Helper:
    """What a sibling has said to the portal that is drained."""

    released: int | None = None
    has_acked: bool = False


class DrainCore:
    """The portal that is drained; made with the order to do it."""

    def __init__(self, portal: DrainablePortal, limit_ns: int, *, end_delay_ns: int) -> None:
        """`limit_ns`: when it gives up. `end_delay_ns`: how long proxy sources stay for those who read on."""
        self._portal = portal
        self._limit_ns = limit_ns
        self._end_delay_ns = end_delay_ns
        self._is_reported = False
        self._quiescence: Quiescence | None = None
        self._close_at_ns: int | None = None
        self._are_sources_closed = False
        self._are_sources_ended = False
        self._helpers = {worker: _Helper() for worker in portal.core.siblings.up}
        portal.core.withdraw()
        for worker in self._helpers:
            portal.core.send(worker, Withdraw())
        self._handover: Handover | None = Handover(portal.entries(), self._helpers)

    @property
    def is_over(self) -> bool:
        """Nothing is held any more; the order may have been answered earlier, at the limit."""
        return self._are_sources_ended and self._are_sources_closed and not self._unfinished()

    def _unfinished(self) -> int:
        """Count proxy sources that are being closed, or advertise their end."""
        return len(self._portal.core.proxies) + self._portal.finals_pending()

    # what happens

    def on_again(self, limit_ns: int) -> None:
        """The order came once more; the new limit counts, and it is answered once more."""
        self._limit_ns = limit_ns
        self._is_reported = False

    def on_forwarding_stopped(self, worker: int, fragments: int) -> None:
        if (helper := self._helpers.get(worker)) is not None:
            helper.released = fragments

    def on_handover_acked(self, worker: int) -> None:
        if (helper := self._helpers.get(worker)) is not None:
            helper.has_acked = True

    def on_gone(self, worker: int) -> None:
        """What was on the way to or from it is lost with it, and counted when it comes back."""
        self._helpers.pop(worker, None)

    def on_tick(self, now_ns: int) -> None:
        self._give_up_sources()
        self._give_up_proxies(now_ns)
        if self._is_reported:
            return
        if self.is_over:
            self._is_reported = True
            self._portal.drained("")
        elif now_ns >= self._limit_ns:
            self._is_reported = True
            self._portal.drained(self.waiting)

    # the two directions

    def _give_up_sources(self) -> None:
        """Give up sources as ingress: hand over, withdraw, wait for the siblings, report that they are gone."""
        portal = self._portal
        if self._handover is not None:
            if not self._handover.on_tick():
                return
            self._handover = None
            for worker in self._helpers:
                portal.core.send(worker, HandoverEnded(portal.handed(worker)))
            portal.core.close_receivers()
        if not self._are_sources_ended and all(helper.has_acked for helper in self._helpers.values()):
            self._are_sources_ended = True
            portal.core.end_sources()

    def _give_up_proxies(self, now_ns: int) -> None:
        """Give up proxies as egress: wait until all has come, been sent and been repaired, then close."""
        portal = self._portal
        if self._are_sources_closed:
            return
        if self._quiescence is None:
            if any(not self._has_delivered(*item) for item in self._helpers.items()):
                return
            self._quiescence = portal.quiescence(None, now_ns)
        if self._close_at_ns is None:
            if not self._quiescence.is_over(now_ns):
                return
            self._close_at_ns = now_ns + (self._end_delay_ns if self._quiescence.is_read_on else 0)
        if now_ns >= self._close_at_ns:
            self._are_sources_closed = True
            portal.close_sources()

    def _has_delivered(self, worker: int, helper: _Helper) -> bool:
        return helper.released is not None and self._portal.accounted(worker) >= helper.released

    # words

    @property
    def waiting(self) -> str:
        """Return what it waits for, as a sentence for the operator; empty when it is over."""
        found = []
        helpers = self._helpers.items()
        if self._handover is not None:
            repairs = self._handover.waiting
            found.append(f"repairs of {repairs} joined sessions" if repairs else "its own forwarding to end")
        if unreleased := [worker for worker, helper in helpers if helper.released is None]:
            found.append(f"{self._names(unreleased)} to stop forwarding")
        if late := [w for w, h in helpers if h.released is not None and not self._has_delivered(w, h)]:
            found.append(f"queued fragments of {self._names(late)} to be sent")
        if self._handover is None and (unacked := [worker for worker, helper in helpers if not helper.has_acked]):
            found.append(f"{self._names(unacked)} to send and repair what was handed over")
        if self._quiescence is not None and not self._are_sources_closed:
            found.append("receivers of the proxy sources to take or repair what was sent")
        if self._are_sources_closed and (finals := self._unfinished()):
            found.append(f"final advertisements of {finals} proxy sources")
        return f"it still waited for {'; '.join(found)}" if found else ""

    def _names(self, workers: Iterable[int]) -> str:
        return ", ".join(map(self._portal.name, sorted(workers)))
