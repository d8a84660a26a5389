"""Multicast immediate messages of a portal, counted and logged: in from its link, over to siblings, out by its link.

Carries out what `portals.decisions.immediate.multicast` decides.
What comes in is counted once, and once more with the reason
when it is dropped there; what leaves by this portal is counted as forwarded, then as sent or dropped.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from dro.bus.actor import WorkerContext
from dro.log.events import LogEvent
from dro.metrics.slots import Slot
from dro.proto.unicast.connections import Outcome
from portals.datapath.addressed import AddressedData
from portals.datapath.descriptor import BatchKind
from portals.decisions.immediate.multicast import Class, ImmediateDropped, ImmediateDropReason, ImmediateForwarding
from portals.shell.link import Link
from portals.shell.send_books import SendBooks

ALL_DOMAINS: Final = 0
IMMEDIATE_SHARE: Final = 10
"""Immediate messages wait in this part of `<max-queue>`; over a peer link unless `<uim-max-queue>` is set."""
NO_DOMAIN_REMEDY: Final = "its sender is older than UM 6.0; update it"
TOO_LARGE_REMEDY: Final = "give all TRDs the same transport_lbtrm_datagram_max_size"

_Pair = tuple[Slot, Slot]
_RECEIVED: Final[_Pair] = (Slot.IMMEDIATE_TOPICLESS_RCVD, Slot.IMMEDIATE_TOPIC_RCVD)
_REQUESTS_RECEIVED: Final[_Pair] = (Slot.IMMEDIATE_TOPICLESS_REQ_RCVD, Slot.IMMEDIATE_TOPIC_REQ_RCVD)
_REQUESTS_SENT: Final[_Pair] = (Slot.IMMEDIATE_TOPICLESS_REQ_SENT, Slot.IMMEDIATE_TOPIC_REQ_SENT)
_OUTCOMES: Final[dict[Outcome, _Pair]] = {
    Outcome.SENT: (Slot.IMMEDIATE_TOPICLESS_SENT, Slot.IMMEDIATE_TOPIC_SENT),
    Outcome.FULL: (Slot.IMMEDIATE_TOPICLESS_DROPPED_BLOCKED, Slot.IMMEDIATE_TOPIC_DROPPED_BLOCKED),
    Outcome.DOWN: (Slot.IMMEDIATE_TOPICLESS_DROPPED_ERROR, Slot.IMMEDIATE_TOPIC_DROPPED_ERROR),
    Outcome.FAILED: (Slot.IMMEDIATE_TOPICLESS_DROPPED_ERROR, Slot.IMMEDIATE_TOPIC_DROPPED_ERROR),
    Outcome.TOO_LARGE: (Slot.IMMEDIATE_TOPICLESS_DROPPED_SIZE, Slot.IMMEDIATE_TOPIC_DROPPED_SIZE),
}
_REPEATED: Final[_Pair] = (Slot.IMMEDIATE_TOPICLESS_DROPPED_DUP, Slot.IMMEDIATE_TOPIC_DROPPED_DUP)
_DROPPED: Final = {
    ImmediateDropReason.BROKEN: Slot.IMMEDIATE_BROKEN,
    ImmediateDropReason.NO_DOMAIN: Slot.IMMEDIATE_NO_DOMAIN,
    ImmediateDropReason.DUPLICATE: Slot.IMMEDIATE_DUP,
    ImmediateDropReason.NO_ROUTES_YET: Slot.IMMEDIATE_NO_ROUTE,
}


class ImmediateTraffic:
    """See the module text. Made by the link; `on_entering` is told of the routes."""

    def __init__(self, ctx: WorkerContext, addressed: AddressedData, domain_id: int, link: Link) -> None:
        """`domain_id` of the portal's TRD, 0 for a peer portal."""
        self._ctx = ctx
        self._page = ctx.counters
        self._books = SendBooks(ctx.counters, "immediate_topicless"), SendBooks(ctx.counters, "immediate_topic")
        self._addressed = addressed
        self._core = ImmediateForwarding(domain_id)
        self.on_entering = self._core.on_routes
        self._link = link
        addressed.handlers[BatchKind.IMMEDIATE] = self._on_handed

    # in

    def on_received(self, message: bytes, peer: str, otid: bytes | None = None) -> None:
        """A message has come from that host, or over the link. `otid`: of its sender, if it names none."""
        verdict = self._core.on_message(message, otid, self._ctx.loop.now_ns())
        nbytes = len(message)
        self._count(_RECEIVED, verdict.kind, nbytes)
        if verdict.kind.is_request:
            self._count(_REQUESTS_RECEIVED, verdict.kind, nbytes)
        if isinstance(verdict, ImmediateDropped):
            self._page.add_sized(_DROPPED[verdict.why], 1, nbytes)
            self._log_dropped(verdict, peer)
            return
        for worker in verdict.workers:
            self._addressed.send(worker, BatchKind.IMMEDIATE, ALL_DOMAINS, verdict.message)

    def _log_dropped(self, dropped: ImmediateDropped, peer: str) -> None:
        match dropped.why:
            case ImmediateDropReason.DUPLICATE:
                pass
            case ImmediateDropReason.BROKEN:
                self._ctx.limited(LogEvent.IMMEDIATE_BROKEN, extra={"peer": peer, "error": dropped.detail})
            case ImmediateDropReason.NO_DOMAIN:
                extra = {"peer": peer, "remedy": NO_DOMAIN_REMEDY}
                self._ctx.limited(LogEvent.IMMEDIATE_NO_DOMAIN, extra=extra)
            case ImmediateDropReason.NO_ROUTES_YET:
                self._ctx.limited(LogEvent.IMMEDIATE_TOO_EARLY, extra={"peer": peer})

    # over, and out

    def _on_handed(self, worker: int, domain_id: int, data: memoryview) -> None:
        message = bytes(data)
        verdict = self._core.on_leaving(message, self._ctx.loop.now_ns())
        kind = verdict.kind if isinstance(verdict, ImmediateDropped) else verdict
        books = self._books[kind.has_topic]
        books.begin(len(message))
        if isinstance(verdict, ImmediateDropped):
            books.end(_REPEATED[kind.has_topic], len(message))
        else:
            self._link.send_immediate(message, partial(self._on_outcome, kind, len(message)))

    def _on_outcome(self, kind: Class, nbytes: int, outcome: Outcome) -> None:
        self._books[kind.has_topic].end(_OUTCOMES[outcome][kind.has_topic], nbytes)
        if outcome is Outcome.SENT and kind.is_request:
            self._count(_REQUESTS_SENT, kind, nbytes)
        elif outcome is Outcome.TOO_LARGE:
            extra = {"bytes": nbytes, "remedy": TOO_LARGE_REMEDY}
            self._ctx.limited(LogEvent.IMMEDIATE_TOO_LARGE, extra=extra)

    def _count(self, slots: _Pair, kind: Class, nbytes: int) -> None:
        self._page.add_sized(slots[kind.has_topic], 1, nbytes)
