"""`tnwgdctl doctor --respond`: stands on another host of a TRD and answers the doctor there.

`ResponderCore` decides, `respond` owns the sockets. It says nothing but a beacon until a doctor asks, obeys only who
has got its cookie (so a forged sender address moves nothing), and within limits: sessions, groups, datagrams a second.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Final

from dro.clock import NS_PER_S, ms, s
from dro.errors import DecodeError, ResourceError
from dro.um import sockets
from dro.wire import lbmr
from supervisor import doctor_probe as probe
from supervisor.doctor_probe import FROM_DOCTOR, FROM_RESPONDER, Place

MAX_SESSIONS: Final = 32
SESSION_NS: Final = s(60)
MAX_PLACES: Final = 8  # of one session
MAX_SAID: Final = 100  # datagrams of one order
SAID_PER_SECOND: Final = 400
MAX_REPEAT: Final = 10
MAX_KEYS: Final = 500
BEACON_NS: Final = ms(300)
BEACON_TTL: Final = 16
BUFFER_BYTES: Final = 1 << 20
GAP_S: Final = 0.002  # between datagrams, so that small buffers hold them

Joining = Callable[[Place], str]
"""Joins a place; the result is what went wrong, or empty."""


@dataclass(slots=True)
class _Session:
    places: dict[Place, str] = field(default_factory=dict)
    heard: Counter[str] = field(default_factory=Counter)
    last_ns: int = 0


@dataclass(frozen=True, slots=True)
class Sending:
    """Datagrams that an order wants sent."""

    place: Place
    ttl: int
    datagrams: tuple[bytes, ...]
    is_whole: bool


class ResponderCore:
    """Who has asked for what, and what has come of it. Time is ns of any clock that does not go back."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._sessions: OrderedDict[tuple[str, int], _Session] = OrderedDict()
        self._second = 0
        self._said = 0

    def places(self, now_ns: int) -> set[Place]:
        """What must be listened to; sessions that nobody asks about any more are forgotten."""
        for key, session in list(self._sessions.items()):
            if now_ns - session.last_ns > SESSION_NS:
                del self._sessions[key]
        return {place for session in self._sessions.values() for place in session.places}

    def on_order(
        self, data: bytes, sender: str, now_ns: int, clock_ns: int, join: Joining
    ) -> tuple[probe.Order | None, Sending | None]:
        """The answer, and what to send before it; None where there is nothing."""
        try:
            order = probe.read_order(data)
        except DecodeError:
            return None, None
        cookie = probe.cookie_of(self._secret, sender)
        match order:
            case probe.Hello(nonce=nonce):
                return probe.Welcome(nonce, cookie, clock_ns), None
            case probe.Watch(nonce=nonce, cookie=given) if given == cookie:
                return probe.Done(nonce, self._watch(order, sender, now_ns, join)), None
            case probe.Report(nonce=nonce, cookie=given) if given == cookie:
                session = self._sessions.get((sender, nonce))
                return probe.Counts(nonce, dict(session.heard) if session is not None else {}), None
            case probe.Say(nonce=nonce, cookie=given) if given == cookie:
                problem, sending = self._say(order, sender, now_ns)
                return probe.Done(nonce, problem), sending
        return None, None

    def _watch(self, order: probe.Watch, sender: str, now_ns: int, join: Joining) -> str:
        kinds = [(place, kind) for kind in ("tr", "data", "sized") for place in getattr(order, kind)]
        if len(kinds) > MAX_PLACES or not all(_is_place(place) for place, _ in kinds):
            return "too many groups, or some that are none"
        session = self._sessions.setdefault((sender, order.nonce), _Session())
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

    def _say(self, order: probe.Say, sender: str, now_ns: int) -> tuple[str, Sending | None]:
        session = self._sessions.get((sender, order.nonce))
        if session is None or order.place not in session.places:
            return "the group was not asked for before", None
        count = min(order.count, MAX_REPEAT) if order.what in ("tr", "data") else 0
        sizes = [size for size in order.sizes if probe.SIZED_HEADER <= size <= probe.MAX_SIZED]
        if order.what == "tr":
            datagrams = [probe.write_tr_signal(FROM_RESPONDER, order.nonce)] * count
        elif order.what == "data":
            datagrams = [probe.write_data_signal(FROM_RESPONDER, order.nonce)] * count
        else:
            datagrams = [
                probe.write_sized(FROM_RESPONDER, order.nonce, size, is_whole=order.is_whole) for size in sizes
            ]
        if not 0 < len(datagrams) <= MAX_SAID or not 0 <= order.ttl <= 255 or not self._may_say(len(datagrams), now_ns):
            return "too much at once", None
        session.last_ns = now_ns
        return "", Sending(order.place, order.ttl, tuple(datagrams), order.is_whole and order.what == "sized")

    def _may_say(self, count: int, now_ns: int) -> bool:
        second = now_ns // NS_PER_S
        if second != self._second:
            self._second, self._said = second, 0
        self._said += count
        return self._said <= SAID_PER_SECOND

    def on_multicast(self, place: Place, data: bytes) -> None:
        """Count a probe of a doctor."""
        heard = read_probe(place, data)
        if heard is None or heard.sender_kind != FROM_DOCTOR:
            return
        for (_, nonce), session in self._sessions.items():
            if nonce == heard.nonce and place in session.places:
                key = probe.key_of(place, heard)
                if key in session.heard or len(session.heard) < MAX_KEYS:
                    session.heard[key] += 1


def _is_place(place: Place) -> bool:
    try:
        return IPv4Address(place.group).is_multicast and 0 < place.port <= 65535
    except ValueError:
        return False


def read_probe(place: Place, data: bytes) -> probe.Heard | None:
    """The probe that a datagram is, whatever its kind; None for everything else."""
    sized = probe.read_sized(data)
    if sized is not None:
        return sized
    packet, _ = lbmr.decode_lenient(data)
    signal = probe.read_tr_signal(packet) if packet is not None else None
    return signal or probe.read_data_signal(data)


class Responder:
    """The sockets of a responder. Raises: ResourceError."""

    def __init__(self, address: str, port: int = probe.PROBE_PORT) -> None:
        self.address = address
        self.port = port
        self._core = ResponderCore(os.urandom(16))
        self._meeting = Place(probe.MEETING_GROUP, port)
        self._joined: dict[Place, socket.socket] = {}
        self._unicast = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._unicast.setblocking(False)
            self._unicast.bind((address, port))
        except OSError as e:
            self._unicast.close()
            raise ResourceError(
                f"UDP port {port} of {address}: {e.strerror}",
                remedy="give a local address, or another --port on both hosts",
            ) from e
        try:
            self._listener = sockets.multicast_receiver(
                sockets.ip_number(self._meeting.group), port, address, buffer_bytes=0, option="--port"
            )
            self._beacon = sockets.multicast_sender(
                sockets.ip_number(self._meeting.group), port, address, ttl=BEACON_TTL, buffer_bytes=0
            )
        except ResourceError:
            self._unicast.close()
            raise
        self._next_beacon_ns = 0

    def close(self) -> None:
        for sock in (self._unicast, self._listener, self._beacon, *self._joined.values()):
            sock.close()

    def run(self, until_ns: int = 0) -> None:
        """Answer until that time of the monotonic clock; 0: for ever."""
        while True:
            now_ns = time.monotonic_ns()
            if until_ns and now_ns >= until_ns:
                return
            if now_ns >= self._next_beacon_ns:
                self._next_beacon_ns = now_ns + BEACON_NS
                with contextlib.suppress(OSError):  # the next one follows
                    self._beacon.send(probe.write_order(probe.Beacon(1)))
                self._leave(now_ns)
            self._turn((self._next_beacon_ns - now_ns) / NS_PER_S)

    def _turn(self, wait_s: float) -> None:
        readable, _, _ = select.select(
            [self._unicast, self._listener, *self._joined.values()], [], [], max(0.0, wait_s)
        )
        for place, sock in list(self._joined.items()):
            if sock in readable:
                for data, _ in received(sock):
                    self._core.on_multicast(place, data)
        for sock in (self._unicast, self._listener):
            if sock in readable:
                for data, sender in received(sock):
                    self._on_order(data, sender)

    def _on_order(self, data: bytes, sender: tuple[str, int]) -> None:
        answer, sending = self._core.on_order(data, sender[0], time.monotonic_ns(), time.time_ns(), self._join)
        if sending is not None:
            problem = send_all(sending.place, sending.datagrams, self.address, sending.ttl, is_whole=sending.is_whole)
            if problem and isinstance(answer, probe.Done):
                answer = probe.Done(answer.nonce, problem)
        if answer is not None:
            with contextlib.suppress(OSError):
                self._unicast.sendto(probe.write_order(answer), sender)

    def _join(self, place: Place) -> str:
        if place in self._joined:
            return ""
        if len(self._joined) >= MAX_PLACES * MAX_SESSIONS:
            return "too many groups"
        try:
            self._joined[place] = listen(place, self.address)
        except ResourceError as e:
            return str(e)
        return ""

    def _leave(self, now_ns: int) -> None:
        wanted = self._core.places(now_ns)
        for place in [place for place in self._joined if place not in wanted]:
            self._joined.pop(place).close()


def listen(place: Place, address: str) -> socket.socket:
    """A socket that hears a place on the interface with that address. Raises: ResourceError."""
    group = sockets.ip_number(place.group)
    return sockets.multicast_receiver(group, place.port, address, buffer_bytes=BUFFER_BYTES, option="the group")


def received(sock: socket.socket, limit: int = 256) -> list[tuple[bytes, tuple[str, int]]]:
    """What is there, with the senders."""
    found: list[tuple[bytes, tuple[str, int]]] = []
    with contextlib.suppress(OSError):
        while len(found) < limit:
            data, sender = sock.recvfrom(65536)
            found.append((data, (str(sender[0]), int(sender[1]))))
    return found


_IP_MTU_DISCOVER: Final = 10
_PMTUDISC_DONT: Final = 0
_PMTUDISC_PROBE: Final = 3


def send_all(place: Place, datagrams: tuple[bytes, ...], address: str, ttl: int, *, is_whole: bool = False) -> str:
    """Send datagrams to a group from that address; the result is what went wrong, or empty.

    `is_whole` forbids fragments; those that the interface itself cannot take then are left out in silence.
    """
    try:
        sock = sockets.multicast_sender(
            sockets.ip_number(place.group), place.port, address, ttl=ttl, buffer_bytes=BUFFER_BYTES
        )
    except ResourceError as e:
        return str(e)
    with contextlib.closing(sock):
        how = _PMTUDISC_PROBE if is_whole else _PMTUDISC_DONT
        sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, how)
        problem = ""
        for datagram in datagrams:
            try:
                sock.send(datagram)
            except OSError as e:
                if not is_whole:
                    problem = f"cannot send to {place.group}:{place.port}: {e.strerror}"
            time.sleep(GAP_S)
    return problem
