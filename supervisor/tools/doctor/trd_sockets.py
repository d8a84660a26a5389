"""The doctor's sockets in one TRD: reception, and messages to responders.

Owns them and the received data; `trd` decides what to send and interprets it. One thread, bounded waits.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from dro.clock import ms, s
from dro.errors import DecodeError, ResourceError
from dro.wire.lbmr import packet as lbmr
from supervisor.tools.doctor import messages as probe
from supervisor.tools.doctor.messages import FROM_DOCTOR, FROM_RESPONDER, GroupAddress
from supervisor.tools.doctor.responder import listen, read_all
from supervisor.tools.doctor.responder_core import read_probe

SETTLE_NS: Final = ms(250)  # after the last probe: what has not come by then does not come
ANSWER_NS: Final = ms(400)
SENT_NS: Final = s(2)  # its answer says that all has been sent
TRIES: Final = 6
MAX_FOUND: Final = 16
MAX_HOSTS: Final = 4096

M = TypeVar("M", probe.Welcome, probe.Done, probe.Counts)


@dataclass(frozen=True, slots=True)
class FoundResponder:
    """A responder: what it wants to see with every message, and how far its wall clock is ahead of ours."""

    cookie: str
    clock_ns: int


@dataclass(slots=True)
class _Received:
    probes: Counter[tuple[str, int, str]] = field(default_factory=Counter)  # key, kind of sender, its address
    hosts: set[str] = field(default_factory=set)  # that spoke topic resolution
    domains: dict[tuple[int, bool], str] = field(default_factory=dict)  # domain id, from a DRO: the first host


class TrdSockets:
    """Raises: ResourceError when a group cannot be joined."""

    def __init__(
        self, address: str, port: int, ttl: int, tr: Iterable[GroupAddress], others: Iterable[GroupAddress]
    ) -> None:
        """`tr`: the places of topic resolution; `port`: that of responders."""
        self.nonce = random.SystemRandom().randrange(1, 1 << 32)
        self.received = _Received()
        self.found: dict[str, FoundResponder] = {}  # by address
        self._address = address
        self._port = port
        self._ttl = ttl
        self._tr = frozenset(tr)
        self._lost: set[str] = set()  # responders that have stopped answering
        self._answers: dict[str, dict[type, probe.DoctorMessage]] = {}
        self._sockets: dict[GroupAddress, socket.socket] = {}
        self._meeting = GroupAddress(probe.MEETING_GROUP, port)
        self._unicast = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._unicast.setblocking(False)
            self._unicast.bind((address, 0))
            self._unicast.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
            self._unicast.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, max(1, ttl))
            for place in {*self._tr, *others, self._meeting}:
                self._sockets[place] = listen(place, address)
        except OSError as e:
            self.close()
            raise ResourceError(f"no socket on {address}: {e.strerror}") from e
        except ResourceError:
            self.close()
            raise

    def close(self) -> None:
        for sock in (self._unicast, *self._sockets.values()):
            sock.close()

    def hello(self, responders: Sequence[str]) -> None:
        """Ask who is there: everybody, and those of these addresses that have not answered yet."""
        hello = probe.write_message(probe.Hello(self.nonce))
        self._send_to(probe.MEETING_GROUP, hello)  # from the socket that the answer is to come to
        for address in responders:
            if address not in self.found:
                self._send_to(address, hello)

    def watch(
        self,
        address: str,
        tr: tuple[GroupAddress, ...],
        data: tuple[GroupAddress, ...],
        sized: tuple[GroupAddress, ...],
    ) -> str:
        """Have a responder join; the result is what went wrong, or empty."""
        done = self._request(address, probe.Watch(self.nonce, self.found[address].cookie, tr, data, sized), probe.Done)
        return done.problem if done is not None else "no answer"

    def request_send(
        self, address: str, what: str, place: GroupAddress, *, count: int = 1, sizes: tuple[int, ...] = (),
        is_whole: bool = False,
    ) -> None:  # fmt: skip
        """Have a responder send; asked once, since a lost answer must not double it."""
        cookie = self.found[address].cookie
        self._request(
            address, probe.Send(self.nonce, cookie, what, place, self._ttl, count, sizes, is_whole), probe.Done
        )

    def reported(self, address: str) -> Counter[str]:
        """Return what a responder has received of us, by `messages.key_of`."""
        counts = self._request(address, probe.Report(self.nonce, self.found[address].cookie), probe.Counts)
        return Counter(counts.received if counts is not None else {})

    def own_key(self, place: GroupAddress, size: int = 0, *, is_whole: bool = False) -> str:
        return probe.key_of(place, probe.Probe(FROM_DOCTOR, self.nonce, size, is_whole))

    def own(self, place: GroupAddress) -> int:
        """Count our own signals that came back."""
        key = self.own_key(place)
        return sum(count for (k, kind, _), count in self.received.probes.items() if (k, kind) == (key, FROM_DOCTOR))

    def received_from(self, address: str, place: GroupAddress, size: int = 0, *, is_whole: bool = False) -> int:
        """Count the probes of a responder that came in."""
        key = probe.key_of(place, probe.Probe(FROM_RESPONDER, self.nonce, size, is_whole))
        return self.received.probes[key, FROM_RESPONDER, address]

    def settle(self) -> None:
        self.receive(time.monotonic_ns() + SETTLE_NS)

    def receive(self, until_ns: int, is_enough: Callable[[], bool] = lambda: False) -> None:
        """Take in what comes until then; what is there already in any case."""
        by_socket = {sock: place for place, sock in self._sockets.items()}
        left_ns = 1
        while left_ns and not is_enough():
            left_ns = max(0, until_ns - time.monotonic_ns())
            readable, _, _ = select.select([self._unicast, *by_socket], [], [], left_ns / 1e9)
            for sock in readable:
                for data, sender in read_all(sock):
                    place = by_socket.get(sock)
                    if place is None:
                        self._on_answer(data, sender[0])
                    elif place == self._meeting:
                        self._on_meeting(data, sender[0])
                    else:
                        self._on_multicast(place, data, sender[0])

    def _send_to(self, address: str, data: bytes) -> None:
        with contextlib.suppress(OSError):  # as if it had got lost
            self._unicast.sendto(data, (address, self._port))

    def _request(self, address: str, message: probe.DoctorMessage, kind: type[M]) -> M | None:
        """Send a message, and return its answer; what does no harm twice is sent again, since datagrams get lost."""
        answers = self._answers.setdefault(address, {})
        answers.pop(kind, None)
        if address in self._lost:
            return None
        is_once = isinstance(message, probe.Send)
        for _ in range(1 if is_once else TRIES):
            self._send_to(address, probe.write_message(message))
            self.receive(time.monotonic_ns() + (SENT_NS if is_once else ANSWER_NS), lambda: kind in answers)
            answer = answers.get(kind)
            if isinstance(answer, kind):
                return answer
        if not is_once:
            self._lost.add(address)
        return None

    def has_found(self, addresses: Sequence[str]) -> bool:
        """Whether all of these have answered."""
        return all(address in self.found for address in addresses)

    def has_lost(self, address: str) -> bool:
        """Whether that responder has stopped answering; nothing is asked of it any more."""
        return address in self._lost

    def _on_answer(self, data: bytes, sender: str) -> None:
        try:
            message = probe.read_message(data)
        except DecodeError:
            return
        if isinstance(message, probe.Welcome) and message.nonce == self.nonce:
            if len(self.found) < MAX_FOUND:
                self.found.setdefault(sender, FoundResponder(message.cookie, message.clock_ns - time.time_ns()))
        elif isinstance(message, probe.Done | probe.Counts) and message.nonce == self.nonce:
            self._answers.setdefault(sender, {})[type(message)] = message

    def _on_meeting(self, data: bytes, sender: str) -> None:
        """Greet the responder of a beacon, which the greeting to the group may not reach."""
        with contextlib.suppress(DecodeError):
            if isinstance(probe.read_message(data), probe.Beacon) and sender not in self.found:
                self._send_to(sender, probe.write_message(probe.Hello(self.nonce)))

    def _on_multicast(self, place: GroupAddress, data: bytes, sender: str) -> None:
        probed = read_probe(place, data)
        if probed is not None:
            if probed.nonce == self.nonce:
                self.received.probes[probe.key_of(place, probed), probed.sender_kind, sender] += 1
            return
        packet = lbmr.decode_lenient(data)[0] if place in self._tr else None
        if packet is None or len(self.received.hosts) >= MAX_HOSTS:
            return
        self.received.hosts.add(sender)
        options = packet.options if packet.options is not None else lbmr.PacketOptions()
        for option in options.items:
            if isinstance(option, lbmr.LocalDomain):
                self.received.domains.setdefault((option.domain_id, options.is_from_dro), sender)
