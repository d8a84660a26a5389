"""Topic resolution over TCP of one context on real sockets: a connection to each SRS, made again when it is lost.

The sockets under `dro.proto.resolver_service.client`. Owned by the topic resolution of the context. Source: topic
resolution notes, section 2.3. Guess: how long to wait between two attempts.
"""

from __future__ import annotations

import contextlib
import logging
import random
import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from dro.clock import ms, s
from dro.config.um.resolver_entries import ResolverEntry
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.resolver_service.client import ServiceClient
from dro.proto.resolver_service.link import LinkFault
from dro.timers import Timer
from dro.transport.sockets import ANY, Sockets, ip_number, set_keepalive
from dro.transport.stream import ByteStream, PlainStream, StreamEvents
from dro.um.fragment.tr_channel import ResolverServer
from dro.wire.lbmr import packet as lbmr
from dro.wire.srs.messages import RegistrationRequest

log = logging.getLogger(__name__)

RETRY_NS: Final = ms(500)
CONNECT_NS: Final = s(5)
"""How long an attempt may take."""
READ_BYTES: Final = 64 << 10

OnPacket = Callable[[lbmr.Packet, int, int], object]
"""(packet, IPv4 address of the SRS, now_ns)"""


class ServiceLinks:
    """See the module text. Connects when the loop runs."""

    def __init__(
        self,
        loop: Loop,
        entries: tuple[ResolverEntry, ...],
        client: ServiceClient,
        sockets: Sockets,
        *,
        rng: random.Random,
        registration: Callable[[], RegistrationRequest],
        on_packet: OnPacket,
    ) -> None:
        """`registration` says who the context is, when a connection is made."""
        self._loop = loop
        self._entries = entries
        self._client = client
        self._sockets = sockets
        self._rng = rng
        self._registration = registration
        self._on_packet = on_packet
        self._faults = LimitedLogger(log, loop.now_ns)
        self.malformed = 0
        self._streams: dict[int, ByteStream] = {}
        self._attempts: dict[int, Timer] = {}  # the next attempt, or the end of the one that is under way
        self._scratch = memoryview(bytearray(READ_BYTES))
        self._timer: Timer | None = None
        self._acts_soon = False
        self._is_closed = False
        for srs in range(len(entries)):
            self._attempts[srs] = loop.call_at(loop.now_ns(), partial(self._connect, srs))
        self._act_soon()

    def send(self, datagrams: Iterable[bytes]) -> None:
        """Tell what the context says in these packets."""
        self._client.send(datagrams, self._loop.now_ns())
        self._act_soon()

    def servers(self) -> list[ResolverServer]:
        """List the SRSes; one answers while the context is registered with it."""
        return [ResolverServer("SRS", entry, self._client.is_registered(n)) for n, entry in enumerate(self._entries)]

    # the client core

    def _act_soon(self) -> None:
        if not self._acts_soon and not self._is_closed:
            self._acts_soon = True
            self._loop.call_soon(self._act)

    def _act(self) -> None:
        self._acts_soon = False
        if self._is_closed:
            return
        now_ns = self._loop.now_ns()
        for srs, fault in self._client.on_timer(now_ns):
            self._on_lost(srs, fault)
        for packet in self._client.take_packets():
            self._on_packet(packet, ip_number(self._entries[0].address), now_ns)
            if self._is_closed:
                return
        for srs in list(self._streams):
            self._write(srs)
        deadline_ns = self._client.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if deadline_ns is None else self._loop.call_at(deadline_ns, self._act)

    # connections

    def _connect(self, srs: int) -> None:
        entry = self._entries[srs]
        self._attempts[srs] = self._loop.call_later(CONNECT_NS, partial(self._on_lost, srs, "no answer"))
        try:
            sock = self._sockets.connecting(
                (entry.address, entry.port), entry.interface or ANY, buffer_bytes=0, keepalive=False,
                port=entry.source_port,
            )  # fmt: skip
        except OSError as e:
            self._on_lost(srs, e.strerror or str(e))
            return
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            set_keepalive(sock, s(10))
        stream = self._streams[srs] = PlainStream(self._loop, sock, False)
        stream.start(
            StreamEvents(
                on_open=partial(self._on_open, srs),
                on_lost=lambda: self._on_lost(srs, stream.failure or "refused"),
                on_readable=partial(self._on_readable, srs, stream),
                on_writable=self._act_soon,
            )
        )

    def _on_open(self, srs: int) -> None:
        self._attempts.pop(srs).cancel()
        self._client.on_connected(srs, self._registration(), self._loop.now_ns())
        self._act_soon()

    def _on_lost(self, srs: int, why: str) -> None:
        attempt = self._attempts.pop(srs, None)
        if attempt is not None:
            attempt.cancel()
        stream = self._streams.pop(srs, None)
        if stream is not None:
            stream.close()
        self._client.on_closed(srs)
        if self._is_closed:
            return
        self._faults.event(LogEvent.SRS_LOST, {"srs": self._entries[srs], "reason": why}, key=srs)
        wait_ns = RETRY_NS // 2 + self._rng.randrange(RETRY_NS)  # not all contexts at the same time
        self._attempts[srs] = self._loop.call_later(wait_ns, partial(self._connect, srs))

    def _on_readable(self, srs: int, stream: ByteStream) -> bool:
        if self._streams.get(srs) is not stream:
            return False
        try:
            count = stream.read_into(self._scratch)
        except BlockingIOError:
            return False
        except OSError as e:
            self._on_lost(srs, e.strerror or str(e))
            return False
        if not count:
            self._on_lost(srs, "closed by the SRS")
            return False
        was_registered = self._client.is_registered(srs)
        try:
            faults = self._client.on_bytes(srs, self._scratch[:count], self._loop.now_ns())
        except LinkFault as fault:
            self._on_lost(srs, str(fault))
            return False
        if not was_registered and self._client.is_registered(srs):
            log.info(LogEvent.SRS_CONNECTED, extra={"srs": self._entries[srs]})
        for error in faults:
            self.malformed += 1
            self._faults.event(
                LogEvent.SRS_MALFORMED, {"srs": self._entries[srs], "error": error, "dropped": self.malformed}
            )
        self._act_soon()
        return count == READ_BYTES

    def _write(self, srs: int) -> None:
        stream = self._streams[srs]
        while output := self._client.output(srs):
            try:
                with memoryview(output) as view:
                    count = stream.send_pieces([view])
            except BlockingIOError:
                return
            except OSError as e:
                self._on_lost(srs, e.strerror or str(e))
                return
            del output[:count]

    def close(self) -> None:
        """End everything; that nothing of the context holds any more is told as far as it can be without waiting."""
        if self._is_closed:
            return
        self._client.end()
        self._is_closed = True
        for srs in list(self._streams):
            self._write(srs)
        for timer in (*self._attempts.values(), *([self._timer] if self._timer is not None else [])):
            timer.cancel()
        self._timer = None
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        self._attempts.clear()
