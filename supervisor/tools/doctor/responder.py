"""`tnwgdctl doctor --respond`: runs on another host of a TRD and answers the doctor.

`ResponderCore` decides, `respond` owns the sockets. It sends only a beacon until a doctor asks, and serves only a
doctor that has got its cookie (so a forged sender address has no effect), within limits: sessions, groups, datagrams a
second.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from typing import Final

from dro.clock import NS_PER_S, ms
from dro.errors import ResourceError
from dro.transport import sockets
from dro.transport.sockets import OS_SOCKETS
from supervisor.tools.doctor import messages as probe
from supervisor.tools.doctor.messages import GroupAddress
from supervisor.tools.doctor.responder_core import MAX_PLACES, MAX_SESSIONS, ResponderCore

BEACON_NS: Final = ms(300)
BEACON_TTL: Final = 16
BUFFER_BYTES: Final = 1 << 20
GAP_S: Final = 0.002  # between datagrams, so that small buffers hold them


class Responder:
    """The sockets of a responder. Raises: ResourceError."""

    def __init__(self, address: str, port: int = probe.PROBE_PORT) -> None:
        self.address = address
        self.port = port
        self._core = ResponderCore(os.urandom(16))
        self._meeting = GroupAddress(probe.MEETING_GROUP, port)
        self._joined: dict[GroupAddress, socket.socket] = {}
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
            self._listener = OS_SOCKETS.multicast_receiver(
                sockets.ip_number(self._meeting.group), port, address, buffer_bytes=0, option="--port"
            )
            self._beacon = OS_SOCKETS.multicast_sender(
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
                    self._beacon.send(probe.write_message(probe.Beacon(1)))
                self._leave(now_ns)
            self._turn((self._next_beacon_ns - now_ns) / NS_PER_S)

    def _turn(self, wait_s: float) -> None:
        readable, _, _ = select.select(
            [self._unicast, self._listener, *self._joined.values()], [], [], max(0.0, wait_s)
        )
        for place, sock in list(self._joined.items()):
            if sock in readable:
                for data, _ in read_all(sock):
                    self._core.on_multicast(place, data)
        for sock in (self._unicast, self._listener):
            if sock in readable:
                for data, sender in read_all(sock):
                    self._on_message(data, sender)

    def _on_message(self, data: bytes, sender: tuple[str, int]) -> None:
        answer, sending = self._core.on_message(data, sender[0], time.monotonic_ns(), time.time_ns(), self._join)
        if sending is not None:
            problem = send_all(sending.place, sending.datagrams, self.address, sending.ttl, is_whole=sending.is_whole)
            if problem and isinstance(answer, probe.Done):
                answer = probe.Done(answer.nonce, problem)
        if answer is not None:
            with contextlib.suppress(OSError):
                self._unicast.sendto(probe.write_message(answer), sender)

    def _join(self, place: GroupAddress) -> str:
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


def listen(place: GroupAddress, address: str) -> socket.socket:
    """A socket that hears a place on the interface with that address. Raises: ResourceError."""
    group = sockets.ip_number(place.group)
    return OS_SOCKETS.multicast_receiver(group, place.port, address, buffer_bytes=BUFFER_BYTES, option="the group")


def read_all(sock: socket.socket, limit: int = 256) -> list[tuple[bytes, tuple[str, int]]]:
    """Return what is there, with the senders."""
    found: list[tuple[bytes, tuple[str, int]]] = []
    with contextlib.suppress(OSError):
        while len(found) < limit:
            data, sender = sock.recvfrom(65536)
            found.append((data, (str(sender[0]), int(sender[1]))))
    return found


_IP_MTU_DISCOVER: Final = 10
_PMTUDISC_DONT: Final = 0
_PMTUDISC_PROBE: Final = 3


def send_all(
    place: GroupAddress, datagrams: tuple[bytes, ...], address: str, ttl: int, *, is_whole: bool = False
) -> str:
    """Send datagrams to a group from that address; the result is what went wrong, or empty.

    `is_whole` forbids fragments; those that the interface itself cannot take then are left out in silence.
    """
    try:
        sock = OS_SOCKETS.multicast_sender(
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
