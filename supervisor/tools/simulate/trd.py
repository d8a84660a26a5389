"""A simulated TRD: topic resolution packets and data come from each of its members to all others.

Topic resolution of DROs crosses it as the datagrams that their cores make. Sources are modelled: one that is advertised
is joined `RESOLVE_NS` later by each member that wants it. A portal joins one session of a source, the cheapest; the one
of a portal that has died is left when another one is there, at once for the next incarnation of the same portal, and
`SILENT_NS` after the death for another. Applications join all sessions, and so notice what comes twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from dro.clock import ms, s
from dro.errors import DecodeError
from dro.wire.lbmr import packet as lbmr
from dro.wire.lbmr.options import TirOption
from supervisor.tools.simulate.clock import SimClock
from supervisor.tools.simulate.messages import Sent

DELAY_NS: Final = ms(1) // 2
RESOLVE_NS: Final = ms(10)
SILENT_NS: Final = s(3)
ACTIVITY_NS: Final = s(60)
"""The default activity timeout of LBT-RM."""


class Member(Protocol):
    """A portal or an application in a TRD."""

    @property
    def portal_name(self) -> str:
        """Empty for an application."""

    def on_packet(self, packet: lbmr.Packet, sender_ip: int) -> None: ...

    def wants(self, session: SimSession) -> bool: ...

    def on_joined(self, session: SimSession) -> None: ...

    def on_changed(self, session: SimSession) -> None:
        """One that is joined is advertised otherwise."""

    def on_left(self, session: SimSession) -> None: ...

    def on_data(self, session: SimSession, sent: Sent) -> None: ...

    def on_unicast(self, message: bytes, sender_ip: int) -> None:
        """Take route information of another DRO in the TRD; for portals alone."""


@dataclass(eq=False, slots=True)
class SimSession:
    """A source, of an application or a proxy source, as it is advertised."""

    owner: Member
    otid: bytes
    topic: bytes
    options: tuple[TirOption, ...] = ()
    is_open: bool = True
    ended_ns: int = 0
    joined: dict[Member, None] = field(default_factory=dict)

    @property
    def cost(self) -> int:
        cost = self.option(lbmr.Cost)
        return cost.cost if isinstance(cost, lbmr.Cost) else 0

    def option(self, kind: type[lbmr.Cost] | type[lbmr.DomainId]) -> lbmr.Cost | lbmr.DomainId | None:
        return next((item for item in self.options if isinstance(item, kind)), None)


class Trd:
    def __init__(self, clock: SimClock, domain_id: int) -> None:
        self.clock, self.domain_id = clock, domain_id
        self.members: dict[Member, int] = {}  # with their address
        self.packets = 0
        """Topic resolution datagrams."""
        self.data = 0
        """Data messages."""
        self._sessions: dict[SimSession, None] = {}
        self._joined: dict[tuple[Member, bytes], SimSession] = {}  # by portals, by OTID
        self._next_ip = 0x7F000001

    @property
    def name(self) -> str:
        return f"TRD{self.domain_id}"

    def enter(self, member: Member) -> int:
        """Take in a client; returns its address. What is advertised already is found."""
        self._next_ip += 1
        self.members[member] = self._next_ip
        self.look(member)
        return self._next_ip

    def leave(self, member: Member) -> None:
        """Remove a client that has died: nothing comes from it or to it any more."""
        del self.members[member]
        for session in [*self._sessions]:
            self._leave(member, session)
            if session.owner is member:
                self._end(session, ACTIVITY_NS)
                self.clock.after(SILENT_NS, partial(self._replace, session))

    def _others(self, member: Member) -> Iterator[tuple[Member, int]]:
        ip = self.members[member]
        return ((other, ip) for other in self.members if other is not member)

    def _to_all(self, member: Member, delay_ns: int, act: Callable[[Member, int], object]) -> None:
        for other, ip in self._others(member):
            self.clock.after(delay_ns, partial(self._if_there, other, partial(act, other, ip)))

    def _if_there(self, member: Member, act: Callable[[], object]) -> None:
        if member in self.members:
            act()

    # topic resolution

    def send_packets(self, member: Member, datagrams: list[bytes]) -> None:
        for datagram in datagrams:
            self.packets += 1
            try:
                packet = lbmr.decode(datagram)
            except DecodeError as e:  # our own: a fault of the program
                raise AssertionError(f"a DRO sent what does not decode: {e}") from e
            self._to_all(member, DELAY_NS, partial(self._hand_packet, packet))

    @staticmethod
    def _hand_packet(packet: lbmr.Packet, member: Member, sender_ip: int) -> None:
        member.on_packet(packet, sender_ip)

    def send_route_info(self, member: Member, message: bytes) -> None:
        """Send route information to each other DRO of the TRD."""
        self._to_all(member, DELAY_NS, lambda other, sender_ip: other.on_unicast(message, sender_ip))

    # sources

    def advertise(self, session: SimSession) -> None:
        self._sessions[session] = None
        self.clock.after(RESOLVE_NS, partial(self._offer, session))

    def _offer(self, session: SimSession) -> None:
        for member in [*self.members]:
            self._join(member, session)

    def _join(self, member: Member, session: SimSession) -> None:
        is_other = member is not session.owner and member not in session.joined
        if not (session.is_open and is_other and member in self.members and member.wants(session)):
            return
        key = member, session.otid
        if member.portal_name and (before := self._joined.get(key)) is not None:
            if not self._gives_way(before, session, member):
                return
            self._leave(member, before)
        if member.portal_name:
            self._joined[key] = session
        session.joined[member] = None
        member.on_joined(session)

    def _replace(self, session: SimSession) -> None:
        for member in [*session.joined]:
            self._look(member)

    def _gives_way(self, before: SimSession, session: SimSession, member: Member) -> bool:
        if before.is_open:
            return session.cost < before.cost
        if before.owner.portal_name == session.owner.portal_name:
            return True
        silent_ns = before.ended_ns + SILENT_NS - self.clock.now_ns
        if silent_ns > 0:
            self.clock.after(silent_ns, partial(self._join, member, session))
        return silent_ns <= 0

    def _leave(self, member: Member, session: SimSession) -> None:
        session.joined.pop(member, None)
        if self._joined.get((member, session.otid)) is session:
            del self._joined[member, session.otid]
        if member in self.members:
            member.on_left(session)

    def look(self, member: Member) -> None:
        """Look for something that was not wanted before."""
        self.clock.after(RESOLVE_NS, partial(self._look, member))

    def _look(self, member: Member) -> None:
        for session in [*self._sessions]:
            self._join(member, session)

    def unwant(self, member: Member) -> None:
        """Leave what is not wanted any more."""
        for session in [*self._sessions]:
            if member in session.joined and not member.wants(session):
                self._leave(member, session)

    def change(self, session: SimSession) -> None:
        """Advertise a source otherwise."""
        for member in session.joined:
            self.clock.after(RESOLVE_NS, partial(self._if_there, member, partial(member.on_changed, session)))

    def end(self, session: SimSession) -> None:
        self._end(session, RESOLVE_NS)

    def _end(self, session: SimSession, delay_ns: int) -> None:
        session.is_open, session.ended_ns = False, self.clock.now_ns
        self._sessions.pop(session, None)
        self.clock.after(delay_ns, partial(self._ended, session))

    def _ended(self, session: SimSession) -> None:
        for member in [*session.joined]:
            self._leave(member, session)
            self._look(member)

    def send(self, session: SimSession, sent: Sent) -> None:
        """Data of an open session."""
        self.data += 1
        for member in session.joined:
            self.clock.after(DELAY_NS, partial(self._arrive, member, session, sent))

    def _arrive(self, member: Member, session: SimSession, sent: Sent) -> None:
        if member in session.joined and member in self.members:
            member.on_data(session, sent)
