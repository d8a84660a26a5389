"""The other DROs of a TRD: which there are, and where they take unicast messages.

State: the portals of other DROs that announce themselves, by context instance, and when each was last heard. Owned by
an endpoint portal, which announces its sending context in the same way.

    start               with the query bit, three times, 1 s apart
    later               every 10 s
    a query is heard    at once, but at most once in 500 ms: an answer is heard by all

Source: wire notes LBMR, section 8.4 (TNWG context information). Guess: who announces what and when; a DRO is forgotten
when three announcements have not come; one that announces the address of another has replaced it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from dro.clock import ms, s
from dro.proto.new_entries import NewEntryLimiter, NewEntryRate
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.tnwg import TnwgAddress, TnwgContextFlag, TnwgContextInstance, TnwgDomain

REPEAT_NS: Final = s(10)
START_NS: Final = s(1)
START_QUERIES: Final = 3
ANSWER_NS: Final = ms(500)
FORGET_NS: Final = 3 * REPEAT_NS + s(1)
NEIGHBOURS_MAX: Final = 256
OF_ONE_MAX: Final = 16
"""Portals that one address may announce."""
NEW_NEIGHBOURS: Final = NewEntryRate(in_all=32, of_one=8)
_INSTANCE_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class NeighbourDro:
    """A DRO's portal in the TRD: its sending context, and the address of its request port."""

    instance: bytes
    ip: int
    port: int


class NeighbourDros:
    """See the module text."""

    def __init__(self, own: NeighbourDro, domain_id: int, now_ns: int) -> None:
        """Without a request port nothing is announced, and others are heard all the same."""
        self._own = own
        self._domain_id = domain_id
        self._heard: dict[bytes, tuple[NeighbourDro, int]] = {}  # and when last; the one silent for longest first
        self._announced_by: dict[bytes, int] = {}  # the address from which the announcement has come
        self._newcomers = NewEntryLimiter(NEW_NEIGHBOURS)
        self._queries = START_QUERIES
        self._due_ns: int | None = now_ns if own.port else None
        self._announced_ns: int | None = None
        self._pending: list[lbmr.TnwgContextInfo] = []
        self._news: list[NeighbourDro] = []

    def __iter__(self) -> Iterator[NeighbourDro]:
        return iter([neighbour for neighbour, _ in self._heard.values()])

    def is_there(self, ip: int) -> bool:
        """Whether a DRO of that address is known."""
        return any(neighbour.ip == ip for neighbour, _ in self._heard.values())

    def take_news(self) -> list[NeighbourDro]:
        """Give those that have come, or moved, since the last call."""
        news, self._news = self._news, []
        return news

    def on_packet(self, packet: lbmr.Packet, now_ns: int, source_ip: int) -> None:
        """Context information of DROs; everything else is ignored."""
        body = packet.body
        if not isinstance(body, lbmr.TnwgContextInfo):
            return
        if body.flags & TnwgContextFlag.QUERY and self._due_ns is not None:
            answered_ns = self._announced_ns if self._announced_ns is not None else now_ns - ANSWER_NS
            self._due_ns = min(self._due_ns, max(now_ns, answered_ns + ANSWER_NS))
        neighbour = self._neighbour(body)
        if neighbour is not None and neighbour.instance != self._own.instance:
            self._on_neighbour(neighbour, now_ns, source_ip)

    def _neighbour(self, body: lbmr.TnwgContextInfo) -> NeighbourDro | None:
        instance, ip, port = b"", 0, 0
        for option in body.options:
            if isinstance(option, TnwgContextInstance):
                instance = option.instance
            elif isinstance(option, TnwgAddress):
                ip, port = option.ip, option.port
            elif isinstance(option, TnwgDomain) and option.domain_id != self._domain_id:
                return None
        is_portal = body.flags & TnwgContextFlag.DRO_SOURCE and not body.flags & TnwgContextFlag.PROXY
        if not is_portal or len(instance) != _INSTANCE_BYTES or not ip or not port:
            return None
        return NeighbourDro(instance, ip, port)

    def _on_neighbour(self, neighbour: NeighbourDro, now_ns: int, source_ip: int) -> None:
        known = self._heard.get(neighbour.instance)
        if known is None or known[0] != neighbour:
            of_one = sum(ip == source_ip for ip in self._announced_by.values())
            if (
                len(self._heard) >= NEIGHBOURS_MAX
                or (of_one >= OF_ONE_MAX and self._announced_by.get(neighbour.instance) != source_ip)
                or not self._newcomers.admit(source_ip, now_ns)
            ):
                return
            address = (neighbour.ip, neighbour.port)
            for other, _ in list(self._heard.values()):
                if (other.ip, other.port) == address:
                    self._forget(other.instance)
            self._news.append(neighbour)
            self._announced_by[neighbour.instance] = source_ip
        self._heard.pop(neighbour.instance, None)
        self._heard[neighbour.instance] = (neighbour, now_ns)

    def _forget(self, instance: bytes) -> None:
        del self._heard[instance], self._announced_by[instance]

    # time

    def next_deadline(self) -> int | None:
        forget_ns = next(iter(self._heard.values()))[1] + FORGET_NS if self._heard else None
        return min((at for at in (self._due_ns, forget_ns) if at is not None), default=None)

    def on_timer(self, now_ns: int) -> None:
        while self._heard:
            neighbour, heard_ns = next(iter(self._heard.values()))
            if now_ns - heard_ns < FORGET_NS:
                break
            self._forget(neighbour.instance)
        if self._due_ns is not None and now_ns >= self._due_ns:
            self._announce(now_ns)

    def _announce(self, now_ns: int) -> None:
        flags = int(TnwgContextFlag.DRO_SOURCE)
        if self._queries:
            self._queries -= 1
            flags |= TnwgContextFlag.QUERY
        own = self._own
        options = (TnwgContextInstance(own.instance), TnwgAddress(own.port, ip=own.ip), TnwgDomain(self._domain_id))
        self._pending.append(lbmr.TnwgContextInfo(0, flags, options=options))
        self._announced_ns = now_ns
        self._due_ns = now_ns + (START_NS if self._queries else REPEAT_NS)

    def take_outgoing(self) -> list[lbmr.TnwgContextInfo]:
        pending, self._pending = self._pending, []
        return pending
