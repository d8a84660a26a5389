"""The TR channel of a context in a TRD without multicast: by way of unicast resolver daemons (`lbmrd`).

Owns a UDP socket for each interface and port that daemons are reached from. Each datagram goes to one daemon, which
sends it to all other contexts that it knows; keepalives go to all daemons (`dro.proto.lbmrd.daemons`). Guess: a context
tells everything anew when a daemon is heard after all were silent, because a daemon keeps nothing. Source: topic
resolution notes, section 2.2.
"""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Callable, Iterable
from functools import partial

from dro.config.um.sets import LocalPlace, UnicastResolverOptions
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.lbmrd.daemons import DaemonTimes, ResolverDaemons
from dro.timers import Timer
from dro.transport import mmsg
from dro.transport.sockets import ANY, Sockets, address_towards, ip_number, ip_text, set_buffer
from dro.um.fragment.tr_channel import SEND_BUFFER_BYTES, OnDatagrams, ResolverServer, TrChannel

log = logging.getLogger(__name__)


class UnicastChannel(TrChannel):
    """See the module text. Raises: ResourceError naming the option when a port cannot be had."""

    is_relayed = True

    def __init__(
        self,
        loop: Loop,
        options: UnicastResolverOptions,
        batch: mmsg.DatagramBatch,
        on_datagrams: OnDatagrams,
        sockets: Sockets,
        *,
        keepalive: Callable[[], bytes],
        on_daemon_back: Callable[[], object],
        rng: random.Random,
    ) -> None:
        """`keepalive` makes a keepalive datagram; `on_daemon_back`: all daemons were silent, one is heard again."""
        super().__init__(loop, batch, on_datagrams)
        self._options = options
        self._keepalive = keepalive
        self._on_daemon_back = on_daemon_back
        self._faults = LimitedLogger(log, loop.now_ns)
        self._is_started = False
        self._timer: Timer | None = None
        self._entries = entries = options.daemons
        self._numbers = {(ip_number(entry.address), entry.port): n for n, entry in enumerate(entries)}
        self._senders: list[socket.socket] = []
        opened: dict[LocalPlace, socket.socket] = {}
        try:
            for place in options.places():
                if place not in opened:
                    opened[place] = self._open(sockets, place)
                self._senders.append(opened[place])
        except Exception:
            self.close()
            raise
        self._times = DaemonTimes(options.keepalive_ns, options.check_ns, options.change_ns, options.activity_ns)
        self._random = rng.random
        self._daemons = ResolverDaemons(len(entries), self._times, self._random, loop.now_ns())
        if options.force_alive:
            loop.call_soon(self._start)

    def _open(self, sockets: Sockets, place: LocalPlace) -> socket.socket:
        sock = sockets.bind_in_range(socket.SOCK_DGRAM, place.interface, place.ports, option=place.option)
        set_buffer(sock, socket.SO_RCVBUF, self._options.receive_buffer_bytes)
        set_buffer(sock, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        self._listen(sock)
        return sock

    @property
    def local_address(self) -> int:
        bound = self._senders[0].getsockname()[0]
        return ip_number(address_towards(self._entries[0].address) if bound == ANY else bound)

    def servers(self) -> list[ResolverServer]:
        answering = self._daemons.answering
        return [ResolverServer("lbmrd", entry, number in answering) for number, entry in enumerate(self._entries)]

    def send(self, datagrams: Iterable[bytes]) -> None:
        for datagram in datagrams:
            self._start()
            self._send_one(self._send, datagram)

    def _send(self, datagram: bytes) -> None:
        self._send_to(self._daemons.current, datagram)

    def _send_to(self, daemon: int, datagram: bytes) -> None:
        entry = self._entries[daemon]
        self._daemons.on_sent(daemon, self._loop.now_ns())
        self._senders[daemon].sendto(datagram, (entry.address, entry.port))

    def _is_expected(self, sender: int, now_ns: int) -> bool:
        address = mmsg.address_of(sender)
        number = self._numbers.get(address)
        if number is None:
            if not self._options.ignore_unknown_source:
                return True
            self.unexpected += 1
            extra = {
                "from": f"{ip_text(address[0])}:{address[1]}",
                "dropped": self.unexpected,
                "remedy": "list it in resolver_unicast_daemon, under the address that it sends from",
            }
            self._faults.event(LogEvent.TR_UNKNOWN_SENDER, extra=extra)
            return False
        was_any_active = bool(self._daemons.active)
        if self._daemons.on_heard(number, now_ns):
            self._tell(LogEvent.DAEMON_HEARD, number)
            if not was_any_active:
                self._loop.call_soon(self._on_daemon_back)
        return True

    def _tell(self, event: LogEvent, daemon: int) -> None:
        extra = {"daemon": self._entries[daemon], "active": len(self._daemons.active)}
        log.log(event.level or logging.INFO, event, extra=extra)

    def _start(self) -> None:
        if not self._is_started and self._receivers:
            self._is_started = True
            now_ns = self._loop.now_ns()  # none is silent yet
            self._daemons = ResolverDaemons(len(self._entries), self._times, self._random, now_ns)
            self._on_timer()

    def _on_timer(self) -> None:
        now_ns = self._loop.now_ns()
        for silent in self._daemons.on_timer(now_ns):
            self._tell(LogEvent.DAEMON_SILENT, silent)
        due = self._daemons.due_keepalives(now_ns)
        if due:
            datagram = self._keepalive()
            for daemon in due:
                self._daemons.on_keepalive(daemon, now_ns)
                self._send_one(partial(self._send_to, daemon), datagram)
        deadline_ns = self._daemons.next_deadline()
        self._timer = None if deadline_ns is None else self._loop.call_at(deadline_ns, self._on_timer)

    def close(self) -> None:
        super().close()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
