"""The TR channel of one context on real sockets: LBMR datagrams in, LBMR datagrams out.

What all channels have in common, and the multicast channel: it owns the socket that has joined the resolver's incoming
group and the one that sends to the outgoing group. The resolver core interprets the datagrams. Called by the context.
Source: topic resolution notes, section 2.1.
"""

from __future__ import annotations

import logging
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from dro.clock import NS_PER_MS
from dro.config.um.resolver_entries import ResolverEntry
from dro.config.um.sets import ResolverOptions
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.transport import mmsg
from dro.transport.sockets import OS_SOCKETS, Sockets, address_towards, ip_number, receive_drops

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ResolverServer:
    """Tells of a resolver daemon or SRS whether it answers. `kind`: lbmrd or SRS."""

    kind: str
    entry: ResolverEntry
    answers: bool


OnDatagrams = Callable[[Iterator[tuple[bytes, int]], int], object]
"""((datagram, sender's IPv4 address) of one turn, now_ns)"""
TURN_NS: Final = NS_PER_MS
"""How long a turn may take before the rest of a batch waits for the next one; a datagram can hold 100 records."""
SEND_BUFFER_BYTES: Final = 1 << 20  # a burst of advertisements must not be cut short by the system's default


@dataclass(slots=True)
class ChannelStats:
    """Datagrams of the channel; names of the UM context statistics."""

    tr_dgrams_sent: int = 0
    tr_bytes_sent: int = 0
    tr_dgrams_rcved: int = 0
    tr_bytes_rcved: int = 0
    tr_dgrams_send_failed: int = 0


class TrChannel(ABC):
    """The channel of one context: sends datagrams, hands up in turns what its sockets receive."""

    is_relayed = False
    """Whether datagrams come by way of a daemon, whose address says nothing of who sent them first."""

    def __init__(self, loop: Loop, batch: mmsg.DatagramBatch, on_datagrams: OnDatagrams) -> None:
        self.stats = ChannelStats()
        self._loop = loop
        self._batch = batch
        self._on_datagrams = on_datagrams
        self._waiting: deque[tuple[bytes, int]] = deque()  # received, not handed up yet
        self._receivers: list[socket.socket] = []
        self.unexpected = 0
        """Datagrams dropped because their sender is no daemon."""

    @property
    @abstractmethod
    def local_address(self) -> int:
        """The IPv4 address that others see this context's packets come from."""

    @abstractmethod
    def _send(self, datagram: bytes) -> None:
        """Send one. Raises: OSError."""

    def servers(self) -> list[ResolverServer]:
        """List the daemons of the channel."""
        return []

    def _is_expected(self, sender: int, now_ns: int) -> bool:
        """Say whether a datagram of this sender, as a batch has it, belongs to the channel."""
        return True

    def send(self, datagrams: Iterable[bytes]) -> None:
        """Send each datagram; what the system refuses is counted and comes again with the next advertisement."""
        for datagram in datagrams:
            self._send_one(self._send, datagram)

    def _send_one(self, send: Callable[[bytes], object], datagram: bytes) -> None:
        stats = self.stats
        try:
            send(datagram)
        except OSError as e:
            stats.tr_dgrams_send_failed += 1
            failed = stats.tr_dgrams_send_failed
            if failed & (failed - 1) == 0:  # the 1st, 2nd, 4th, ...
                log.warning(LogEvent.TR_NOT_SENT, extra={"error": e.strerror, "failed": failed})
        else:
            stats.tr_dgrams_sent += 1
            stats.tr_bytes_sent += len(datagram)

    def _listen(self, receiver: socket.socket) -> None:
        self._receivers.append(receiver)
        self._loop.add_reader(receiver, lambda: self._on_readable(receiver))

    def _on_readable(self, receiver: socket.socket) -> bool:
        is_more = not self._waiting and self._receive(receiver)
        if self._waiting:
            now_ns = self._loop.now_ns()
            self._on_datagrams(self._of_this_turn(now_ns + TURN_NS), now_ns)
        return is_more or bool(self._waiting)

    def _of_this_turn(self, until_ns: int) -> Iterator[tuple[bytes, int]]:
        while self._waiting:
            yield self._waiting.popleft()
            if self._loop.now_ns() >= until_ns:
                return

    def _receive(self, receiver: socket.socket) -> bool:
        """Receive one batch; True when there may be another."""
        if receiver not in self._receivers:
            return False
        batch = self._batch
        try:
            count = batch.receive(receiver.fileno())
        except OSError as e:
            log.warning(LogEvent.TR_RECEIVE_FAILED, extra={"error": e.strerror})
            return False
        stats = self.stats
        stats.tr_dgrams_rcved += count
        stats.tr_bytes_rcved += sum(batch.lengths[:count])
        view = batch.view
        now_ns = self._loop.now_ns()
        for i in range(count):  # copies: what they cause may use the batch for another socket
            if self._is_expected(batch.senders[i], now_ns):
                datagram = bytes(view[batch.offsets[i] : batch.offsets[i] + batch.lengths[i]])
                self._waiting.append((datagram, mmsg.address_of(batch.senders[i])[0]))
        return count == mmsg.BATCH

    def socket_drops(self) -> int:
        """Datagrams that found a full receive buffer."""
        return sum(map(receive_drops, self._receivers))

    def close(self) -> None:
        for receiver in self._receivers:
            self._loop.remove_reader(receiver)
            receiver.close()
        self._receivers.clear()
        self._waiting.clear()


class NoChannel(TrChannel):
    """Topic resolution over UDP is off."""

    is_relayed = True

    def __init__(self, loop: Loop, batch: mmsg.DatagramBatch, on_datagrams: OnDatagrams, towards: str) -> None:
        """`towards`: whom the context reaches others by."""
        super().__init__(loop, batch, on_datagrams)
        self._towards = towards

    @property
    def local_address(self) -> int:
        return ip_number(address_towards(self._towards))

    def send(self, datagrams: Iterable[bytes]) -> None:
        """Send nothing."""

    def _send(self, datagram: bytes) -> None:
        raise NotImplementedError


class MulticastChannel(TrChannel):
    """Multicast topic resolution. Raises: ResourceError naming the option when a socket cannot be had."""

    def __init__(
        self,
        loop: Loop,
        options: ResolverOptions,
        batch: mmsg.DatagramBatch,
        on_datagrams: OnDatagrams,
        sockets: Sockets = OS_SOCKETS,
    ) -> None:
        super().__init__(loop, batch, on_datagrams)
        incoming = ip_number(options.incoming_address)
        receiver = None
        if incoming:
            receiver = sockets.multicast_receiver(
                incoming,
                options.incoming_port,
                options.interface,
                buffer_bytes=options.receive_buffer_bytes,
                option="resolver_multicast_incoming_address and _port",
            )
        try:
            self._sender = sockets.multicast_sender(
                ip_number(options.outgoing_address),
                options.outgoing_port,
                options.interface,
                ttl=options.ttl,
                buffer_bytes=SEND_BUFFER_BYTES,
            )
        except ResourceError:
            if receiver is not None:
                receiver.close()
            raise
        if receiver is not None:
            self._listen(receiver)

    @property
    def local_address(self) -> int:
        return ip_number(self._sender.getsockname()[0])

    def _send(self, datagram: bytes) -> None:
        self._sender.send(datagram)

    def close(self) -> None:
        super().close()
        self._sender.close()
