"""Topic resolution over TCP as a context sees it: packets of topic resolution over UDP to every SRS, and from them.

What the context says in packets is kept as records (`own`), told to each SRS once, when it changes, and in full over a
new connection (`link`). What SRSes tell (`told`) is handed up as packets of the contexts that it is about, so nothing
above knows of SRS. A repeated query of the context is answered from what is known, once a second at most, and its use
queries from the interest that SRSes have told.

State: the connections, own and told records, times. Several SRSes are used at the same time; what one of them holds is
there. Guess: what an SRS does not tell within `GRACE_NS` of a new connection is gone from it: other contexts connect
anew at other times. Hand-up is paced, so that no limit on new names is met and data is forwarded meanwhile.

Source: topic resolution notes 2.3 and 8, wire notes LBMSRS 4 and 5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from dro.clock import ms, s
from dro.errors import DecodeError
from dro.proto.resolver_service.link import Extension, LinkEvent, Registered, ServiceLink, Told, Unreadable
from dro.proto.resolver_service.own import OwnRecords, ToTell
from dro.proto.resolver_service.told import ToldRecords
from dro.timers import TimerHeap
from dro.wire.lbmr import packet as lbmr
from dro.wire.srs.messages import EXT_DOMAIN, EXT_LBMR, RegistrationRequest

GRACE_NS: Final = s(30)
HAND_UP_EVERY_NS: Final = ms(10)
HAND_UP_MOST: Final = 40
"""Records handed up in a step: 4000 a second, below what one address may bring of new sources and new interest."""
TAKEN_MOST: Final = 2 * HAND_UP_MOST
AGAIN_NS: Final = s(1)
ROUTES_EVERY_NS: Final = s(1)
REFRESH_NS: Final = s(100)
"""How often interest of other domains is handed up again; a portal forgets what it does not hear for 300 s."""
STEPS_AT_ONCE: Final = 256
AWAY_NS: Final = s(60)
"""An SRS that is away for so long holds nothing any more, while another one is there."""
WAITING_MAX: Final = 10_000
"""Datagrams of others that wait to be handed up."""
DOMAIN_INSTANCE: Final = b"SRS\0\0\0\0\0"
"""Stands for the SRS where it tells the domain id."""


class ServiceClient:
    """See the module text. SRSes are named by their place in the list; times are ns of the host's clock."""

    def __init__(
        self, source_id: bytes, source_type: int, domain_id: int, now_ns: int, *, filters: bool = True
    ) -> None:
        """`source_type` is a `SenderType`; `domain_id` that of a DRO, 0 of others; `filters`: is told what it wants."""
        self._filters = filters
        self._releases_soon = False
        self._links: dict[int, ServiceLink] = {}
        self._own = OwnRecords(source_id, source_type, domain_id)
        self._told = ToldRecords(source_id, domain_id)
        self._packets: deque[lbmr.Packet] = deque()
        self._faults: list[DecodeError] = []
        self._timers = TimerHeap()
        self._asked: dict[bytes, None] = {}
        self._hands_up_soon = False
        self._handed_up_ns = now_ns - HAND_UP_EVERY_NS
        self.now_ns = now_ns
        self.connects = 0
        self._every(ROUTES_EVERY_NS, self._hand_up_routes)
        self._every(REFRESH_NS, self._refresh)

    # the context

    def set_domain(self, domain_id: int) -> None:
        """Take the domain id that the context has learnt."""
        self._own.domain_id = self._told.domain_id = domain_id

    def send(self, datagrams: Iterable[bytes], now_ns: int) -> None:
        """Take packets of the context."""
        self.now_ns = now_ns
        for datagram in datagrams:
            packet = lbmr.decode(datagram)
            self._answer(packet)
            for change in self._own.on_packet(packet, datagram, now_ns):
                for link in self._links.values():
                    _tell(link, change)

    def _answer(self, packet: lbmr.Packet) -> None:
        match packet.body:
            case lbmr.Queries(tqrs) if again := [topic for topic in tqrs if self._own.asked(topic)]:
                if not self._asked:
                    self._timers.call_at(self.now_ns + AGAIN_NS, self._answer_queries)
                self._asked.update(dict.fromkeys(again))
            case lbmr.TopicManagement(records):
                for tmr in records:
                    if tmr.kind == lbmr.TmrType.LEAVE:
                        self._release_unwanted_soon()
                    elif not tmr.is_response:
                        answer = self._told.answer(tmr)
                        if answer is not None:
                            self._packets.append(answer)
            case _:
                pass

    def _answer_queries(self) -> None:
        asked, self._asked = self._asked, {}
        for topic in asked:
            self._told.ask(topic)
        self._hand_up_soon()

    def end(self) -> None:
        """Tell every SRS that nothing of the context holds any more."""
        for change in self._own.end():
            for link in self._links.values():
                _tell(link, change)

    def take_packets(self) -> list[lbmr.Packet]:
        """Return packets of others to be handed up now; when there are more, they follow soon."""
        packets = [self._packets.popleft() for _ in range(min(TAKEN_MOST, len(self._packets)))]
        if self._packets:
            self._timers.call_at(self.now_ns + HAND_UP_EVERY_NS, lambda: None)
        return packets

    # the connections

    def on_connected(self, srs: int, registration: RegistrationRequest, now_ns: int) -> None:
        """A connection to that SRS was made."""
        self.now_ns = now_ns
        self.connects += 1
        self._links[srs] = ServiceLink(registration, now_ns)

    def on_bytes(self, srs: int, data: bytes | memoryview, now_ns: int) -> list[DecodeError]:
        """Take what an SRS has sent; returns what could not be read of it.

        Raises: LinkFault when the connection is to be closed.
        """
        self.now_ns = now_ns
        self._faults = []
        for event in self._links[srs].on_bytes(data, now_ns):
            self._on_event(srs, event)
        return self._faults

    def on_closed(self, srs: int) -> None:
        """The connection is gone; what that SRS has told holds for a while."""
        if self._links.pop(srs, None) is not None:
            self._timers.call_at(self.now_ns + AWAY_NS, lambda: self._on_away(srs))

    def output(self, srs: int) -> bytearray:
        """Return what is to be written to that SRS; the host takes off the front what it has written."""
        link = self._links.get(srs)
        return link.output if link is not None else bytearray()

    def is_registered(self, srs: int) -> bool:
        link = self._links.get(srs)
        return link is not None and link.is_registered

    def _on_event(self, srs: int, event: LinkEvent) -> None:
        match event:
            case Registered(domain_id=domain_id):
                link = self._links[srs]
                for change in self._own.all():
                    _tell(link, change)
                self._told.on_registered(srs)
                self._timers.call_at(self.now_ns + GRACE_NS, lambda: self._release_stale(srs, link))
                self._learn(domain_id)
            case Told(records=records):
                for record in records:
                    try:
                        self._told.on_record(srs, record)
                    except DecodeError as e:
                        self._faults.append(e)
                self._hand_up_soon()
            case Extension(kind=kind, data=data):
                if kind == EXT_LBMR:
                    try:
                        if len(self._packets) >= WAITING_MAX:
                            raise DecodeError("srs", f"{WAITING_MAX} datagrams of others wait, more are dropped")
                        self._packets.append(self._told.on_datagram(data, self.now_ns))
                    except DecodeError as e:
                        self._faults.append(e)
                elif kind == EXT_DOMAIN and len(data) == 4:
                    self._learn(int.from_bytes(data, "big"))
            case Unreadable(error=error):
                self._faults.append(error)

    def _learn(self, domain_id: int) -> None:
        """Tell the context the domain id of its TRD, as a packet of a DRO would."""
        if domain_id:
            options = lbmr.standard_options(DOMAIN_INSTANCE, lbmr.SenderType.DRO, domain_id)
            self._packets.append(lbmr.Packet(lbmr.VERSION, options, lbmr.Queries()))

    def _release_unwanted_soon(self) -> None:
        """Forget sources that nobody wants any more: an SRS that filters does not tell their end."""
        if self._filters and not self._releases_soon:
            self._releases_soon = True
            self._timers.call_at(self.now_ns + AGAIN_NS, self._release_unwanted)

    def _release_unwanted(self) -> None:
        self._releases_soon = False
        self._in_slices(self._told.steps_to_release_unwanted(self._own.wants))

    def _release_stale(self, srs: int, link: ServiceLink) -> None:
        if self._links.get(srs) is link:
            self._in_slices(self._told.steps_to_release(srs, all_of_it=False))

    def _on_away(self, srs: int) -> None:
        """Let an SRS that has been away for long hold nothing any more, if another one is there to tell."""
        if self.is_registered(srs):
            return
        if any(link.is_registered for link in self._links.values()):
            self._in_slices(self._told.steps_to_release(srs, all_of_it=True))
        else:
            self._timers.call_at(self.now_ns + AWAY_NS, lambda: self._on_away(srs))

    def _in_slices(self, steps: Iterator[None]) -> None:
        if sum(1 for _ in islice(steps, STEPS_AT_ONCE)) == STEPS_AT_ONCE:
            self._timers.call_at(self.now_ns + HAND_UP_EVERY_NS, lambda: self._in_slices(steps))
        self._hand_up_soon()

    # time

    def next_deadline(self) -> int | None:
        times = [self._timers.next_deadline(), *(link.next_deadline() for link in self._links.values())]
        return min((at_ns for at_ns in times if at_ns is not None), default=None)

    def on_timer(self, now_ns: int) -> list[tuple[int, str]]:
        """Do what is due; returns the SRSes whose connections are to be closed, and why."""
        self.now_ns = now_ns
        self._timers.run_due(now_ns)
        faults = [(srs, link.on_timer(now_ns)) for srs, link in self._links.items()]
        return [(srs, fault) for srs, fault in faults if fault]

    def _every(self, interval_ns: int, act: Callable[[], object]) -> None:
        def again() -> None:
            act()
            self._every(interval_ns, act)

        self._timers.call_at(self.now_ns + interval_ns, again)

    def _hand_up_routes(self) -> None:
        self._packets.extend(self._told.routes(self.now_ns))

    def _refresh(self) -> None:
        self._in_slices(self._told.steps_to_refresh())

    def _hand_up_soon(self) -> None:
        if not self._hands_up_soon and self._told.has_changes:
            self._hands_up_soon = True
            self._timers.call_at(max(self.now_ns, self._handed_up_ns + HAND_UP_EVERY_NS), self._hand_up)

    def _hand_up(self) -> None:
        self._hands_up_soon, self._handed_up_ns = False, self.now_ns
        self._packets.extend(self._told.take_packets(HAND_UP_MOST))
        self._hand_up_soon()


def _tell(link: ServiceLink, change: ToTell) -> None:
    link.tell(change.key, change.record, is_extension=change.is_extension)
