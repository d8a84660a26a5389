"""Unicast messages through this DRO: what becomes of one that a portal takes in. Common to all kinds of portals.

State: the egress portal of each domain that is reached through here, the streams that were seen, the contexts that are
known. The checks, in this order, each with its reason: the message says where it goes; it has a stream; it was not seen
before; it has not passed too many DROs; there is a route. The routes are looked up for every message.

    own domain of the portal       it leaves where it came in (a DRO is asked for what the TRD could do itself)
    another domain                 to the egress portal that the routes name
    route and context information  is for this DRO and goes no further

Source: peer link notes, section 11; forwarding notes, sections 10 and 11.1. Guess: the egress for a domain is the same
from all source domains, as paths to a domain are an in-tree; a DRO does not forward to its own request ports. Guess: a
message without a known block that says where it goes, and with an unknown one, says it by that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from dro.bus.messages import Route
from dro.errors import DecodeError
from dro.proto.unicast.contexts import KnownContexts
from dro.proto.unicast.streams import SeenStreams
from dro.wire.lbmc.addressing import Addressing, read_addressing, with_hops
from dro.wire.lbmc.codes import BlockType

HOPS_MAX: Final = 255
HOPS_HIGH: Final = 100


class UnicastDropReason(Enum):
    """Why a message goes no further."""

    BROKEN = "broken"
    NO_FORWARDING = "no_forwarding"
    UNKNOWN_FORWARDING = "unknown_forwarding"
    NO_STREAM = "no_stream"
    DUPLICATE = "duplicate"
    HOPS = "hops"
    NO_CONTEXT = "no_context"
    NO_ROUTES_YET = "no_routes_yet"
    NO_ROUTE = "no_route"
    UNHANDLED = "unhandled"


@dataclass(frozen=True, slots=True)
class UnicastDropped:
    """`domain_id` of the destination, 0 when not known; `detail` says more of a broken message or a context."""

    why: UnicastDropReason
    domain_id: int = 0
    detail: str = ""


@dataclass(frozen=True, slots=True)
class UnicastLeaves:
    """Traffic that leaves the DRO by `worker`, perhaps this portal, towards that domain. `hops` if unusually many."""

    worker: int
    domain_id: int
    message: bytes
    high_hops: int = 0


@dataclass(frozen=True, slots=True)
class ForRoutes:
    """Route information of some DRO."""


@dataclass(frozen=True, slots=True)
class ForContexts:
    """Context information, a question or an answer."""


Verdict = UnicastDropped | UnicastLeaves | ForRoutes | ForContexts


class UnicastForwarding:
    """See the module text."""

    def __init__(self, worker: int, domain_id: int, contexts: KnownContexts) -> None:
        """`domain_id` of the portal's TRD, 0 for a peer portal."""
        self._worker = worker
        self._domain_id = domain_id
        self._contexts = contexts
        self._seen = SeenStreams()
        self._egress: dict[int, int] | None = None  # by domain; None before the first routes
        self.own_addresses: frozenset[tuple[int, int]] = frozenset()
        """Request ports of this portal's contexts."""

    def on_routes(self, routes: Iterable[Route]) -> None:
        """Take new routes: those of `entering_routes`."""
        self._egress = {route.interested_domain: route.egress for route in routes}

    def on_message(self, message: bytes, now_ns: int) -> Verdict:
        """One whole LBMC message from a context of the TRD, or from another DRO."""
        self._seen.forget_old(now_ns)
        try:
            to = read_addressing(message)
        except DecodeError as e:
            return UnicastDropped(UnicastDropReason.BROKEN, detail=str(e))
        if to.dro_code:
            return _of_dros(to.dro_code)
        if to.destination is None and to.instance is None:
            return UnicastDropped(
                UnicastDropReason.UNKNOWN_FORWARDING if to.has_unknown else UnicastDropReason.NO_FORWARDING
            )
        if to.stream is None:
            return UnicastDropped(UnicastDropReason.NO_STREAM)
        sender, stream_id, sqn = to.stream
        if not self._seen.is_new((sender, stream_id), sqn, now_ns):
            return UnicastDropped(UnicastDropReason.DUPLICATE)
        return self._route(message, to, now_ns)

    def _route(self, message: bytes, to: Addressing, now_ns: int) -> Verdict:
        high_hops = 0
        if to.destination is not None:
            domain_id = to.destination.domain_id
            hops = to.destination.hops_taken + 1
            if hops >= HOPS_MAX:
                return UnicastDropped(UnicastDropReason.HOPS, domain_id)
            if domain_id == self._domain_id and (to.destination.ip, to.destination.port) in self.own_addresses:
                return UnicastDropped(UnicastDropReason.UNHANDLED, domain_id)
            message = with_hops(message, to.destination, hops)
            high_hops = hops if hops >= HOPS_HIGH else 0
        else:
            assert to.instance is not None
            context = self._contexts.find(to.instance, now_ns)
            if context is None:
                return UnicastDropped(UnicastDropReason.NO_CONTEXT, detail=to.instance.hex())
            domain_id = context.domain_id
        if self._egress is None:
            return UnicastDropped(UnicastDropReason.NO_ROUTES_YET, domain_id)
        worker = self._worker if domain_id and domain_id == self._domain_id else self._egress.get(domain_id)
        if worker is None:
            return UnicastDropped(UnicastDropReason.NO_ROUTE, domain_id)
        return UnicastLeaves(worker, domain_id, message, high_hops)


def _of_dros(code: int) -> Verdict:
    match code:
        case BlockType.ROUTE_INFO:
            return ForRoutes()
        case BlockType.CTXINFO:
            return ForContexts()
        case _:
            return UnicastDropped(UnicastDropReason.UNHANDLED)
