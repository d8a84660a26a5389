"""Multicast immediate messages (MIM) through this DRO: where one that a portal takes in leaves. Common to all kinds.

Everything goes to all TRDs, without interest and without access lists, along the tree of paths from the domain that a
message was sent in: what comes in here leaves by the portals that lie on a path from that domain that begins here. One
DRO brings it into each TRD.

State: the egress portals by originating domain, and which messages passed this portal, in either direction: each does
once, by the OTID of its sender and its number. So a message ends where another DRO has brought it before, as two may
while routes change, and there is no circle that it could follow.

Source: forwarding notes, section 12; peer link notes, section 14. Guess: the number of a message counts in its sender's
session; there is no count of hops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from dro.bus.messages import Route
from dro.errors import DecodeError
from dro.proto.unicast.streams import SeenStreams
from dro.wire.lbmc.origin import MessageOrigin, completed, read_origin


class ImmediateDropReason(Enum):
    """Why a message goes no further."""

    BROKEN = "broken"
    NO_DOMAIN = "no_domain"
    DUPLICATE = "duplicate"
    NO_ROUTES_YET = "no_routes_yet"


@dataclass(frozen=True, slots=True)
class Class:
    """What a message is counted as."""

    has_topic: bool = False
    is_request: bool = False


@dataclass(frozen=True, slots=True)
class ImmediateDropped:
    why: ImmediateDropReason
    kind: Class = Class()
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ImmediateLeaves:
    """By these portals, which may be none: another DRO brings it to where it goes."""

    workers: tuple[int, ...]
    message: bytes
    kind: Class


class ImmediateForwarding:
    """See the module text."""

    def __init__(self, domain_id: int) -> None:
        """`domain_id` of the portal's TRD, 0 for a peer portal."""
        self._domain_id = domain_id
        self._egress: dict[int, tuple[int, ...]] | None = None  # by originating domain; None before the first routes
        self._passed = SeenStreams()

    def on_routes(self, routes: Iterable[Route]) -> None:
        """Take new routes: those of `entering_routes`."""
        once = {(route.egress, id(route.source_domains)): route for route in routes}  # many have the same object
        found: defaultdict[int, set[int]] = defaultdict(set)
        for route in once.values():
            found[route.egress].update(route.source_domains)
        egress: defaultdict[int, tuple[int, ...]] = defaultdict(tuple)
        for worker in sorted(found):
            for source in found[worker]:
                egress[source] += (worker,)
        self._egress = egress

    def on_message(self, message: bytes, otid: bytes | None, now_ns: int) -> ImmediateDropped | ImmediateLeaves:
        """One whole LBMC message from behind this portal. `otid` is for one that has none; a link knows none."""
        try:
            origin = read_origin(message)
            return self._route(message, origin, otid, now_ns)
        except DecodeError as e:
            return ImmediateDropped(ImmediateDropReason.BROKEN, detail=str(e))

    def _route(
        self, message: bytes, origin: MessageOrigin, otid: bytes | None, now_ns: int
    ) -> ImmediateDropped | ImmediateLeaves:
        kind = Class(origin.has_topic, origin.is_request)
        domain_id = self._domain_id if origin.domain_id == 0 else origin.domain_id
        sender = origin.otid if origin.otid is not None else otid
        if not domain_id or sender is None:
            return ImmediateDropped(ImmediateDropReason.NO_DOMAIN, kind)
        if not self._is_new(sender, origin.sqn, now_ns):
            return ImmediateDropped(ImmediateDropReason.DUPLICATE, kind)
        if self._egress is None:
            return ImmediateDropped(ImmediateDropReason.NO_ROUTES_YET, kind)
        workers = self._egress.get(domain_id, ())
        if workers and (origin.otid is None or origin.domain_id != domain_id):
            message = completed(message, origin, domain_id, sender)
        return ImmediateLeaves(workers, message, kind)

    def on_leaving(self, message: bytes, now_ns: int) -> ImmediateDropped | Class:
        """A message that a sibling took in, and that is to be sent here; what it is when it may go.

        Raises: DecodeError for what no sibling passes on.
        """
        origin = read_origin(message)
        if origin.otid is None:
            raise DecodeError("mim", "no OTID")
        kind = Class(origin.has_topic, origin.is_request)
        return (
            kind
            if self._is_new(origin.otid, origin.sqn, now_ns)
            else ImmediateDropped(ImmediateDropReason.DUPLICATE, kind)
        )

    def _is_new(self, sender: bytes, sqn: int, now_ns: int) -> bool:
        self._passed.forget_old(now_ns)
        return self._passed.is_new((sender, 0), sqn, now_ns)
