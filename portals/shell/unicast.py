"""Unicast messages of a portal, counted and logged: in from its link, over to siblings, out by its link.

Carries out what `portals.decisions.immediate.unicast` decides.
Every message is counted once where it comes in, and once more
with the reason when it is dropped there; what leaves by this portal is counted as forwarded, then as sent or dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dro.bus.actor import WorkerContext
from dro.errors import DecodeError
from dro.log.events import LogEvent
from dro.metrics.slots import Slot
from dro.proto.new_entries import NewEntryLimiter, NewEntryRate
from dro.proto.unicast.connections import Outcome
from dro.wire.lbmc.addressing import asks_for_repair
from dro.wire.lbmc.codes import MessageType
from portals.datapath.addressed import AddressedData
from portals.datapath.descriptor import BatchKind
from portals.decisions.immediate.contexts import BEHIND
from portals.decisions.immediate.unicast import (
    ForContexts,
    ForRoutes,
    UnicastDropped,
    UnicastDropReason,
    UnicastForwarding,
    UnicastLeaves,
)
from portals.shell.link import Link
from portals.shell.send_books import SendBooks

CONTROL_RATE: Final = NewEntryRate(in_all=4000, of_one=2000)
"""Control messages of DROs a second: more would fill the queue of the route manager. Guess: a DRO sends one for each
DRO that it knows."""
_REFUSED_REMEDY: Final = "find who sends it; of a DRO, let request_tcp_interface and response_tcp_interface be the same"
NOBODY: Final = 0
"""In place of a domain: the message is for the portal itself."""

_Pair = tuple[Slot, Slot]
_RECEIVED: Final[_Pair] = (Slot.UNICAST_DATA_RCVD, Slot.UNICAST_CONTROL_RCVD)
_DROPPED: Final[dict[UnicastDropReason, _Pair]] = {  # of data, of control
    UnicastDropReason.BROKEN: (Slot.UNICAST_BROKEN, Slot.UNICAST_BROKEN),
    UnicastDropReason.NO_FORWARDING: (Slot.UNICAST_DATA_NO_FORWARDING, Slot.UNICAST_CONTROL_NO_FORWARDING),
    UnicastDropReason.UNKNOWN_FORWARDING: (Slot.UNICAST_UNKNOWN_FORWARDING, Slot.UNICAST_CONTROL_NO_FORWARDING),
    UnicastDropReason.NO_STREAM: (Slot.UNICAST_DATA_NO_STREAM, Slot.UNICAST_CONTROL_NO_STREAM),
    UnicastDropReason.DUPLICATE: (Slot.UNICAST_DATA_DUP, Slot.UNICAST_CONTROL_DUP),
    UnicastDropReason.HOPS: (Slot.UNICAST_HOPS, Slot.UNICAST_HOPS),
    UnicastDropReason.NO_CONTEXT: (Slot.UNICAST_NO_CONTEXT, Slot.UNICAST_NO_CONTEXT),
    UnicastDropReason.NO_ROUTES_YET: (Slot.UNICAST_DATA_NO_ROUTE, Slot.UNICAST_CONTROL_NO_ROUTE),
    UnicastDropReason.NO_ROUTE: (Slot.UNICAST_DATA_NO_ROUTE, Slot.UNICAST_CONTROL_NO_ROUTE),
    UnicastDropReason.UNHANDLED: (Slot.UNICAST_UNHANDLED, Slot.UNICAST_CONTROL_UNHANDLED),
}
_Events = tuple[LogEvent, LogEvent]
_LOGGED: Final[dict[UnicastDropReason, _Events]] = {  # the others are logged below, or happen in good order
    UnicastDropReason.NO_FORWARDING: (LogEvent.UNICAST_DATA_UNADDRESSED, LogEvent.UNICAST_CONTROL_UNADDRESSED),
    UnicastDropReason.UNKNOWN_FORWARDING: (LogEvent.UNICAST_DATA_UNADDRESSED, LogEvent.UNICAST_CONTROL_UNADDRESSED),
    UnicastDropReason.NO_STREAM: (LogEvent.UNICAST_DATA_NO_STREAM, LogEvent.UNICAST_CONTROL_NO_STREAM),
    UnicastDropReason.HOPS: (LogEvent.UNICAST_DATA_LOOPS, LogEvent.UNICAST_CONTROL_LOOPS),
    UnicastDropReason.NO_ROUTES_YET: (LogEvent.UNICAST_TOO_EARLY, LogEvent.UNICAST_TOO_EARLY),
    UnicastDropReason.UNHANDLED: (LogEvent.UNICAST_UNHANDLED, LogEvent.UNICAST_UNHANDLED),
}
_MANY_HOPS: Final[_Events] = (LogEvent.UNICAST_DATA_MANY_HOPS, LogEvent.UNICAST_CONTROL_MANY_HOPS)
_OUTCOMES: Final = {
    Outcome.SENT: Slot.UNICAST_SENT,
    Outcome.FULL: Slot.UNICAST_DROPPED_BLOCKED,
    Outcome.FAILED: Slot.UNICAST_DROPPED_ERROR,
    Outcome.DOWN: Slot.UNICAST_DROPPED_NOT_OPERATIONAL,
}
_OUTCOMES_OF_CONTROL: Final = {
    Outcome.SENT: Slot.GATEWAY_CONTROL_SENT,
    Outcome.FULL: Slot.GATEWAY_CONTROL_DROPPED,
    Outcome.FAILED: Slot.GATEWAY_CONTROL_NOT_OPERATIONAL,
    Outcome.DOWN: Slot.GATEWAY_CONTROL_NOT_OPERATIONAL,
}


def send_to_sibling(addressed: AddressedData, worker: int, message: bytes) -> None:
    """Send context information to the portal `worker` itself."""
    addressed.send(worker, BatchKind.UNICAST, NOBODY, message)


class UnicastTraffic:
    """See the module text. Made by the link."""

    def __init__(
        self,
        ctx: WorkerContext,
        addressed: AddressedData,
        core: UnicastForwarding,
        link: Link,
        report_route_info: Callable[[bytes, int, int], object],
        on_unknown: Callable[[bytes], object],
        is_dro: Callable[[int], bool] = lambda ip: True,
    ) -> None:
        """`is_dro`: whether a DRO has that address. `on_unknown` is told the context instance of a message that could
        not be sent on."""
        self._ctx = ctx
        self._report_route_info = report_route_info
        self._is_dro = is_dro
        self._on_unknown = on_unknown
        self._page = ctx.counters
        self._books = SendBooks(ctx.counters, "unicast", Slot.UNICAST_QUEUED_BYTES_MAX)
        self._addressed = addressed
        self._core = core
        self._link = link
        self._of_dros = NewEntryLimiter(CONTROL_RATE)
        addressed.handlers[BatchKind.UNICAST] = self._on_handed

    # in

    def on_received(self, message: bytes, peer: str, ip: int = 0, port: int = 0) -> None:
        """A message has come from that host (and address), or over the link."""
        verdict = self._core.on_message(message, self._ctx.loop.now_ns())
        if isinstance(verdict, ForRoutes | ForContexts):
            self._take_control(verdict, message, peer, (ip, port))
            return
        control = int(message[0] & 0xF == MessageType.CONTROL)
        self._page.add_sized(_RECEIVED[control], 1, len(message))
        if control and asks_for_repair(message):
            self._page.add_sized(Slot.RXREQ_RCVD, 1, len(message))
        if isinstance(verdict, UnicastDropped):
            self._page.add_sized(_DROPPED[verdict.why][control], 1, len(message))
            self._log_dropped(verdict, control, peer)
            return
        if verdict.high_hops:
            self._ctx.limited(_MANY_HOPS[control], extra={"hops": verdict.high_hops, "peer": peer})
        self._pass_on(verdict)

    def _take_control(
        self, verdict: ForRoutes | ForContexts, message: bytes, peer: str, sender: tuple[int, int]
    ) -> None:
        """Take a control message of another DRO, for this one."""
        if isinstance(verdict, ForRoutes) and not self._is_dro(sender[0]):
            self._page.add_sized(Slot.GATEWAY_CONTROL_REFUSED, 1, len(message))
            self._ctx.limited(LogEvent.GATEWAY_CONTROL_REFUSED, extra={"peer": peer, "remedy": _REFUSED_REMEDY})
            return
        if not self._of_dros.admit(sender[0], self._ctx.loop.now_ns()):
            self._page.add_sized(Slot.GATEWAY_CONTROL_LIMITED, 1, len(message))
            self._ctx.limited(LogEvent.GATEWAY_CONTROL_LIMITED, extra={"peer": peer})
            return
        self._page.add_sized(Slot.GATEWAY_CONTROL_RCVD, 1, len(message))
        if isinstance(verdict, ForRoutes):
            self._report_route_info(message, *sender)
            return
        try:
            self._link.on_context_info(BEHIND, message)
        except DecodeError as e:
            self._page.add_sized(Slot.UNICAST_BROKEN, 1, len(message))
            self._ctx.limited(LogEvent.UNICAST_BROKEN, extra={"peer": peer, "error": str(e)})

    def _pass_on(self, leaves: UnicastLeaves) -> None:
        if leaves.worker == self._ctx.index:
            self._send(leaves.domain_id, leaves.message)
        else:
            self._addressed.send(leaves.worker, BatchKind.UNICAST, leaves.domain_id, leaves.message)

    def _log_dropped(self, dropped: UnicastDropped, control: int, peer: str) -> None:
        on_outcome = self._ctx.limited
        match dropped.why:
            case UnicastDropReason.DUPLICATE:
                pass
            case UnicastDropReason.BROKEN:
                on_outcome(LogEvent.UNICAST_BROKEN, extra={"peer": peer, "error": dropped.detail})
            case UnicastDropReason.NO_CONTEXT:
                on_outcome(LogEvent.UNICAST_NO_CONTEXT, extra={"instance": dropped.detail, "peer": peer})
                self._on_unknown(bytes.fromhex(dropped.detail))
            case UnicastDropReason.NO_ROUTE:
                on_outcome(LogEvent.UNICAST_NO_ROUTE, extra={"domain_id": dropped.domain_id, "peer": peer})
            case _:
                on_outcome(_LOGGED[dropped.why][control], extra={"peer": peer})

    # over

    def _on_handed(self, worker: int, domain_id: int, message: memoryview) -> None:
        if domain_id == NOBODY:
            self._link.on_context_info(worker, bytes(message))
        else:
            self._send(domain_id, bytes(message))

    # out

    def _send(self, domain_id: int, message: bytes) -> None:
        nbytes = len(message)
        self._books.begin(nbytes)
        try:
            self._link.send_unicast(domain_id, message, lambda outcome: self._books.end(_OUTCOMES[outcome], nbytes))
        except DecodeError:
            self._books.end(Slot.UNICAST_DROPPED_ERROR, nbytes)
            raise
        self._books.note_most()

    def count_control(self, nbytes: int, outcome: Outcome) -> None:
        """What has become of a control message for another DRO."""
        self._page.add_sized(_OUTCOMES_OF_CONTROL[outcome], 1, nbytes)
