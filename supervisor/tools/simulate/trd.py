"""A simulated TRD: a wire that carries topic resolution and data from each of its members to all others.

What is found, joined and left is decided by the engine of each member, as in a process. A source has a session of its
own here: a connection for each receiver (TCP), which ends with its owner, or one that falls silent then (LBT-RM,
LBT-RU, and LBT-IPC, for which all members are on one host).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from dro.clock import ms
from dro.config.um.options import UmOptions
from dro.config.um.sets import source_transport
from dro.errors import DecodeError
from dro.proto.repair.session_messages import SmSchedule
from dro.wire.lbmr import packet as lbmr
from dro.wire.source_string import IpcAddress, LbtrmAddress, LbtruAddress, TcpAddress, TransportAddress
from supervisor.tools.simulate.clock import SimClock
from supervisor.tools.simulate.messages import Sent

DELAY_NS: Final = ms(1) // 2
_GROUP: Final = 0xEFFF0001
_PORT: Final = 14371
_ID: Final = 20001
_KIND_OF: Final[dict[type, str]] = {LbtrmAddress: "lbtrm", LbtruAddress: "lbtru", IpcAddress: "lbtipc"}
_INTERVALS: Final = ("minimum_interval", "maximum_interval")
_IPC_INTERVAL: Final = "transport_lbtipc_sm_interval"


class Member(Protocol):
    """Is in the TRD: a context there."""

    ip: int
    options: UmOptions

    def on_packet(self, packet: lbmr.Packet, sender_ip: int) -> None: ...

    def on_unicast(self, message: bytes, sender_ip: int) -> None: ...

    def on_data(self, session: SimSession, sent: Sent) -> None: ...

    def on_session_ended(self, session: SimSession) -> None: ...

    def on_servers_back(self) -> None: ...


class SimSession:
    """The session of one source. Implements `SessionView` for all who have joined it."""

    generation_ns: Final = 0
    was_connected: Final = True
    has_begun: Final = True

    def __init__(
        self, trd: Trd, owner: Member, address: TransportAddress, options: UmOptions, *, sm_before_data: bool
    ) -> None:
        self._trd = trd
        self.owner = owner
        self.address = address
        self.is_in_order = isinstance(address, TcpAddress | IpcAddress)
        self.shows_life = not isinstance(address, TcpAddress)
        self.kind = _KIND_OF.get(type(address), "lbtrm")
        names = (
            (_IPC_INTERVAL,) * 2 if self.kind == "lbtipc" else (f"transport_{self.kind}_sm_{end}" for end in _INTERVALS)
        )
        self._sms = SmSchedule(*(options.get_ns("source", name) for name in names))
        if sm_before_data:
            self._sms.restart(trd.clock.now_ns)
        self._heard_ns = trd.clock.now_ns
        self.is_open = True
        self.joined: dict[Member, int] = {}  # and since when

    @property
    def active_ns(self) -> int:
        """When data or a session message was last sent."""
        now_ns, due_ns = self._trd.clock.now_ns, self._sms.due_ns
        while self.shows_life and self.is_open and due_ns is not None and due_ns <= now_ns:
            self._heard_ns = due_ns
            self._sms.take(due_ns)
            due_ns = self._sms.due_ns
        return self._heard_ns

    def on_data(self, now_ns: int) -> None:
        self._heard_ns = now_ns
        self._sms.restart(now_ns)

    def close(self) -> None:
        """Say nothing more."""
        self._heard_ns = self.active_ns
        self.is_open = False

    def mark(self) -> int | None:
        return None

    def is_whole(self, mark: int | None) -> bool:
        return True


class Trd:
    """See the module text."""

    def __init__(self, clock: SimClock, domain_id: int) -> None:
        self.clock, self.domain_id = clock, domain_id
        self.members: dict[Member, int] = {}  # with their address
        self.is_unresolved = False
        """No resolver daemon and no SRS answers."""
        self.packets = 0
        """Topic resolution datagrams."""
        self.data = 0
        """Data messages."""
        self.copies: Counter[tuple[bytes, int]] = Counter()
        """Of each message, by OTID and sqn, over all sessions."""
        self.repeated: Counter[bytes] = Counter()
        """Copies of messages beyond the first, by OTID."""
        self._sessions: dict[TransportAddress, SimSession] = {}
        self._numbers = 0
        self._next_ip = 0x7F000001
        self._hosts: dict[str, int] = {}  # addresses

    @property
    def name(self) -> str:
        return f"TRD{self.domain_id}"

    def enter(self, member: Member, host: str = "") -> int:
        """Take in a context; returns its address, the same for all of a host that has a name."""
        ip = self._hosts.get(host)
        if ip is None:
            self._next_ip = ip = self._next_ip + 1
        if host:
            self._hosts[host] = ip
        self.members[member] = ip
        return ip

    def leave(self, member: Member) -> None:
        """Remove a context that has died: nothing comes from it or to it any more."""
        del self.members[member]
        for session in [*self._sessions.values()]:
            session.joined.pop(member, None)
            if session.owner is member:
                self.close_session(session)

    def _to_all(self, member: Member, act: Callable[[Member, int], object]) -> None:
        ip = self.members[member]
        for other in self.members:
            if other is not member:
                self.clock.after(DELAY_NS, partial(self._if_there, other, partial(act, other, ip)))

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
                raise AssertionError(f"a context sent what does not decode: {e}") from e
            if not self.is_unresolved:
                self._to_all(member, partial(self._hand_packet, packet))

    def set_unresolved(self, *, is_unresolved: bool) -> None:
        """Let all servers fall silent, or answer again; then everybody tells everything anew."""
        was, self.is_unresolved = self.is_unresolved, is_unresolved
        if was and not is_unresolved:
            for member in list(self.members):
                member.on_servers_back()

    @staticmethod
    def _hand_packet(packet: lbmr.Packet, member: Member, sender_ip: int) -> None:
        member.on_packet(packet, sender_ip)

    def send_route_info(self, member: Member, message: bytes) -> None:
        """Send route information to each other DRO of the TRD."""
        self._to_all(member, lambda other, sender_ip: other.on_unicast(message, sender_ip))

    # sessions

    def open_session(self, owner: Member, options: UmOptions, *, sm_before_data: bool) -> SimSession:
        """Open the session of a source with these options."""
        self._numbers += 1
        address: TransportAddress
        match source_transport(options):
            case "lbtrm":
                address = LbtrmAddress(owner.ip, _GROUP, self._numbers, _PORT, _PORT)
            case "lbtru":
                address = LbtruAddress(owner.ip, _PORT, self._numbers)
            case "lbtipc":
                address = IpcAddress(0, self._numbers, _ID)
            case _:
                address = TcpAddress(owner.ip, _PORT, self._numbers)
        session = self._sessions[address] = SimSession(self, owner, address, options, sm_before_data=sm_before_data)
        return session

    def join(self, member: Member, address: TransportAddress) -> SimSession:
        """Join a session; where its owner has closed it, one that is silent, or a connection that is refused."""
        session = self._sessions.get(address)
        if session is None:
            session = SimSession(self, member, address, member.options, sm_before_data=False)
            session.is_open = False
        session.joined[member] = self.clock.now_ns
        if session.shows_life:
            self._look_at(session, member, self.clock.now_ns)
        elif not session.is_open:
            self._end_soon(session)
        return session

    def _look_at(self, session: SimSession, member: Member, since_ns: int) -> None:
        """End a session for a member that has heard nothing of it for the activity timeout, or look later.

        `since_ns`: when it joined; one that has left and joined again since is looked at for that.
        """
        if session.joined.get(member) != since_ns or member not in self.members:
            return
        heard_ns = max(session.active_ns, since_ns) + DELAY_NS
        timeout_ns = member.options.get_ns("receiver", f"transport_{session.kind}_activity_timeout")
        left_ns = heard_ns + timeout_ns - self.clock.now_ns
        if left_ns > 0:
            self.clock.after(left_ns, partial(self._look_at, session, member, since_ns))
        else:
            del session.joined[member]
            member.on_session_ended(session)

    def close_session(self, session: SimSession) -> None:
        """End it: connections of TCP end at once, others fall silent."""
        session.close()
        del self._sessions[session.address]
        if not session.shows_life:
            self._end_soon(session)

    def _end_soon(self, session: SimSession) -> None:
        self.clock.after(DELAY_NS, partial(self._ended, session))

    def _ended(self, session: SimSession) -> None:
        joined, session.joined = session.joined, {}
        for member in joined:
            if member in self.members:
                member.on_session_ended(session)

    def send(self, session: SimSession, sent: Sent) -> None:
        """Data of an open session."""
        self.data += 1
        self.repeated[sent.otid] += (sent.otid, sent.sqn) in self.copies
        self.copies[sent.otid, sent.sqn] += 1
        session.on_data(self.clock.now_ns)
        for member in session.joined:
            self.clock.after(DELAY_NS, partial(self._arrive, member, session, sent))

    def _arrive(self, member: Member, session: SimSession, sent: Sent) -> None:
        if member in session.joined and member in self.members:
            member.on_data(session, sent)
