"""Answers of a responder to doctors: `ResponderCore` decides, within limits, and `responder` owns the sockets."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Final

from dro.clock import NS_PER_S, s
from dro.errors import DecodeError
from dro.wire.lbmr import packet as lbmr
from supervisor.tools.doctor import messages as probe
from supervisor.tools.doctor.messages import FROM_DOCTOR, FROM_RESPONDER, GroupAddress

MAX_SESSIONS: Final = 32
SESSION_NS: Final = s(60)
MAX_PLACES: Final = 8  # of one session
MAX_SENT: Final = 100  # datagrams of one message
SENT_PER_SECOND: Final = 400
MAX_REPEAT: Final = 10
MAX_KEYS: Final = 500

Joining = Callable[[GroupAddress], str]
"""Joins a place; the result is what went wrong, or empty."""


@dataclass(slots=True)
class _Session:
    places: dict[GroupAddress, str] = field(default_factory=dict)
    received: Counter[str] = field(default_factory=Counter)
    last_ns: int = 0


@dataclass(frozen=True, slots=True)
class SendDatagrams:
    """Datagrams that a message wants sent."""

    place: GroupAddress
    ttl: int
    datagrams: tuple[bytes, ...]
    is_whole: bool


class ResponderCore:
    """Who has asked for what, and what has come of it. Time is ns of any clock that does not go back."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._sessions: OrderedDict[tuple[str, int], _Session] = OrderedDict()
        self._second = 0
        self._sent = 0

    def places(self, now_ns: int) -> set[GroupAddress]:
        """Return what must be listened to; sessions that nobody asks about any more are forgotten."""
        for key, session in list(self._sessions.items()):
            if now_ns - session.last_ns > SESSION_NS:
                del self._sessions[key]
        return {place for session in self._sessions.values() for place in session.places}

    def on_message(
        self, data: bytes, sender: str, now_ns: int, clock_ns: int, join: Joining
    ) -> tuple[probe.DoctorMessage | None, SendDatagrams | None]:
        """The answer, and what to send before it; None where there is nothing."""
        try:
            message = probe.read_message(data)
        except DecodeError:
            return None, None
        cookie = probe.cookie_of(self._secret, sender)
        match message:
            case probe.Hello(nonce=nonce):
                return probe.Welcome(nonce, cookie, clock_ns), None
            case probe.Watch(nonce=nonce, cookie=given) if given == cookie:
                return probe.Done(nonce, self._watch(message, sender, now_ns, join)), None
            case probe.Report(nonce=nonce, cookie=given) if given == cookie:
                session = self._sessions.get((sender, nonce))
                return probe.Counts(nonce, dict(session.received) if session is not None else {}), None
            case probe.Send(nonce=nonce, cookie=given) if given == cookie:
                problem, sending = self._send(message, sender, now_ns)
                return probe.Done(nonce, problem), sending
        return None, None

    def _watch(self, message: probe.Watch, sender: str, now_ns: int, join: Joining) -> str:
        kinds = [(place, kind) for kind in ("tr", "data", "sized") for place in getattr(message, kind)]
        if len(kinds) > MAX_PLACES or not all(_is_place(place) for place, _ in kinds):
            return "too many groups, or some that are none"
        session = self._sessions.setdefault((sender, message.nonce), _Session())
        session.last_ns = now_ns
        if len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        problems = []
        for place, kind in kinds:
            problem = join(place)
            if problem:
                problems.append(problem)
            else:
                session.places[place] = kind
        return "; ".join(problems)

    def _send(self, message: probe.Send, sender: str, now_ns: int) -> tuple[str, SendDatagrams | None]:
        session = self._sessions.get((sender, message.nonce))
        if session is None or message.place not in session.places:
            return "the group was not asked for before", None
        if (write := probe.SIGNALS.get(message.what)) is not None:
            datagrams = [write(FROM_RESPONDER, message.nonce)] * min(message.count, MAX_REPEAT)
        else:
            sizes = [size for size in message.sizes if probe.SIZED_HEADER <= size <= probe.MAX_SIZED]
            datagrams = [
                probe.write_sized(FROM_RESPONDER, message.nonce, size, is_whole=message.is_whole) for size in sizes
            ]
        if (
            not 0 < len(datagrams) <= MAX_SENT
            or not 0 <= message.ttl <= 255
            or not self._may_send(len(datagrams), now_ns)
        ):
            return "too much at once", None
        session.last_ns = now_ns
        return "", SendDatagrams(
            message.place, message.ttl, tuple(datagrams), message.is_whole and message.what == "sized"
        )

    def _may_send(self, count: int, now_ns: int) -> bool:
        second = now_ns // NS_PER_S
        if second != self._second:
            self._second, self._sent = second, 0
        self._sent += count
        return self._sent <= SENT_PER_SECOND

    def on_multicast(self, place: GroupAddress, data: bytes) -> None:
        """Count a probe of a doctor."""
        received = read_probe(place, data)
        if received is None or received.sender_kind != FROM_DOCTOR:
            return
        for (_, nonce), session in self._sessions.items():
            if nonce == received.nonce and place in session.places:
                key = probe.key_of(place, received)
                if key in session.received or len(session.received) < MAX_KEYS:
                    session.received[key] += 1


def _is_place(place: GroupAddress) -> bool:
    try:
        return IPv4Address(place.group).is_multicast and 0 < place.port <= 65535
    except ValueError:
        return False


def read_probe(place: GroupAddress, data: bytes) -> probe.Probe | None:
    """The probe that a datagram is, whatever its kind; None for everything else."""
    sized = probe.read_sized(data)
    if sized is not None:
        return sized
    packet, _ = lbmr.decode_lenient(data)
    signal = probe.read_tr_signal(packet) if packet is not None else None
    return signal or probe.read_data_signal(data)
