"""A network without sockets below whole contexts: TR channels, request ports, and transport sessions of both kinds.

What is sent arrives in the next turn of the receiver's loop, once and in order; loops may be of several threads.
Nothing is lost, blocked or held back. `SimulatedNetwork.install` puts it in the place of the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest

from dro.config.um.options import UmOptions
from dro.config.um.sets import ResolverOptions
from dro.loop import Loop
from dro.transport import mmsg
from dro.transport.frames import lay_out
from dro.transport.kind import SenderEvents, SenderPool, SessionHost, TransportKind
from dro.transport.registry import KINDS
from dro.transport.runs import RunTable, read_messages
from dro.transport.session import (
    OnEnded,
    ReceiverSessionStatistics,
    ReceiverTransport,
    SenderTransport,
    SessionCounts,
    SessionSink,
    SourceSessionStatistics,
)
from dro.transport.sockets import Sockets
from dro.um.fragment.tr_channel import ChannelStats, OnDatagrams
from dro.wire.source_string import LbtrmAddress, TcpAddress, TransportAddress, format_source
from tests.fakes.transport import FakeCounters, FakeSender

IP: Final = 0x7F000001
DATAGRAM_BYTES: Final = 8192
HEADROOM: Final = 16
SESSIONS_MOST: Final = 3  # groups of LBT-RM


@dataclass
class SentCounts:
    msgs_sent: int = 0
    bytes_sent: int = 0


@dataclass(eq=False)
class SimulatedNetwork:
    """All that the contexts of one test share."""

    channels: list[SimulatedChannel] = field(default_factory=list)
    senders: dict[TransportAddress, SimulatedSender] = field(default_factory=dict)
    joined: list[SimulatedReceiver] = field(default_factory=list)
    strangers: set[TransportAddress] = field(default_factory=set)
    """Streams that take connections and send nothing."""
    ports: int = 0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Contexts made from now on are on this network."""

        def channel(
            loop: Loop, o: ResolverOptions, _: mmsg.DatagramBatch, on_datagrams: OnDatagrams, sockets: Sockets
        ) -> SimulatedChannel:
            return SimulatedChannel(self, loop, o, on_datagrams)

        monkeypatch.setattr("dro.um.fragment.resolution.MulticastChannel", channel)
        monkeypatch.setattr(
            "dro.um.fragment.unicast_ports.RequestPort", lambda *_: SimulatedPort((IP, self.new_port()))
        )
        for module in ("async_api", "blocking_api"):
            monkeypatch.setattr(f"dro.um.{module}.DeviceFollower", IdleFollower)
        for name, kind in KINDS.items():
            monkeypatch.setitem(KINDS, name, self._simulated(kind))

    def _simulated(self, kind: TransportKind[Any]) -> TransportKind[Any]:
        is_stream = kind.address is TcpAddress
        return replace(
            kind,
            receivers=lambda host, sink, on_ended: SimulatedReceivers(self, host, sink, on_ended),
            senders=lambda host, events, _: SimulatedSenders(self, host, events, is_stream=is_stream),
        )

    def new_port(self) -> int:
        self.ports += 1
        return 20_000 + self.ports

    def say(self, datagram: bytes) -> None:
        """Send a datagram of a stranger on the channel."""
        for channel in list(self.channels):
            channel.put([datagram])


class SimulatedChannel:
    """In the place of `MulticastChannel`: hears all who send where it listens, itself too."""

    local_address = IP
    is_relayed = False

    def __init__(
        self, network: SimulatedNetwork, loop: Loop, options: ResolverOptions, on_datagrams: OnDatagrams
    ) -> None:
        self.stats = ChannelStats()
        self._network = network
        self._loop = loop
        self._to = options.outgoing_address, options.outgoing_port
        self._at = options.incoming_address, options.incoming_port
        self._on_datagrams = on_datagrams
        network.channels.append(self)

    def send(self, datagrams: Iterable[bytes]) -> None:
        sent = list(datagrams)
        self.stats.tr_dgrams_sent += len(sent)
        for other in list(self._network.channels):
            if sent and other._at == self._to:
                other.put(sent)

    def put(self, datagrams: Sequence[bytes]) -> None:
        self._loop.call_soon_threadsafe(lambda: self._hand_up(datagrams))

    def _hand_up(self, datagrams: Sequence[bytes]) -> None:
        if self in self._network.channels:
            self.stats.tr_dgrams_rcved += len(datagrams)
            self._on_datagrams(((datagram, IP) for datagram in datagrams), self._loop.now_ns())

    def socket_drops(self) -> int:
        return 0

    def close(self) -> None:
        self._network.channels.remove(self)


@dataclass
class SimulatedPort:
    """In the place of `RequestPort`: an address that nobody can reach."""

    address: tuple[int, int]
    broken: int = 0

    def close(self) -> None:
        pass


class IdleFollower:
    """In the place of `DeviceFollower`: no device comes or goes."""

    def __init__(self, loop: Loop) -> None:
        pass

    def close(self) -> None:
        pass


class SimulatedReceivers:
    """Implements `JoinedSessions`."""

    def __init__(self, network: SimulatedNetwork, host: SessionHost, sink: SessionSink, on_ended: OnEnded) -> None:
        self._network = network
        self._host = host
        self._sink = sink
        self._on_ended = on_ended
        self.options: dict[TransportAddress, UmOptions] = {}
        """Those that sessions were joined with."""

    def join(self, address: TransportAddress, options: UmOptions, now_ns: int) -> SimulatedReceiver:
        self.options[address] = options
        return SimulatedReceiver(self._network, self._host.loop, address, self._sink, self._on_ended)

    def counts(self) -> SessionCounts:
        return SessionCounts()

    def close(self) -> None:
        pass


class SimulatedReceiver(ReceiverTransport):
    """A joined session: one of a stream connects, and ends with its source; others are only heard."""

    def __init__(
        self, network: SimulatedNetwork, loop: Loop, address: TransportAddress, sink: SessionSink, on_ended: OnEnded
    ) -> None:
        super().__init__(address)
        self.is_stream = self.is_in_order = isinstance(address, TcpAddress)
        self.shows_life = not self.is_stream
        self.was_connected = not self.is_stream
        self.client = f"127.0.0.1:{network.new_port()}"
        self.loop = loop
        self._network = network
        self._sink = sink
        self._on_ended = on_ended
        self._heard_ns = loop.now_ns()
        self._table = RunTable()
        self._counts = FakeCounters()
        network.joined.append(self)
        if self.is_stream:
            loop.call_soon_threadsafe(self._connect)

    @property
    def active_ns(self) -> int:
        return self._heard_ns

    def _connect(self) -> None:
        sender = self._network.senders.get(self.address)
        if sender is None and self.address not in self._network.strangers:
            self.end()
        elif self in self._network.joined:
            self.was_connected = True
            if sender is not None:
                sender.tell(self.client, is_connected=True)

    def hear(self, datagram: bytearray) -> None:
        """Take what came, in the next turn."""
        self.loop.call_soon_threadsafe(lambda: self._on_datagram(datagram))

    def _on_datagram(self, datagram: bytearray) -> None:
        if self not in self._network.joined:
            return
        self._heard_ns = now_ns = self.loop.now_ns()
        if not self.has_begun:
            self.has_begun = True
            self._sink.on_began(self, now_ns)
        self._counts.bytes_rcved += len(datagram)
        self._counts.lbm_msgs_rcved += read_messages(datagram, HEADROOM, len(datagram), 0, self._table)
        self._sink.on_fragments(memoryview(datagram), [(self, self._table)], now_ns)
        self._table.clear()

    def end(self) -> None:
        """The session ends by itself, in the next turn."""
        self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if self in self._network.joined:
            self.leave()
            self._on_ended(self, self.loop.now_ns())

    def leave(self) -> None:
        if self in self._network.joined:
            self._network.joined.remove(self)
            sender = self._network.senders.get(self.address)
            if sender is not None and self.is_stream and self.was_connected:
                sender.tell(self.client, is_connected=False)

    def counts(self) -> SessionCounts:
        return SessionCounts()

    def statistics(self) -> ReceiverSessionStatistics:
        counters = replace(self._counts, lbm_msgs_no_topic_rcved=self.lbm_msgs_no_topic_rcved)
        return ReceiverSessionStatistics(format_source(self.address), counters)


class SimulatedSenders(SenderPool[int]):
    """Sessions of one kind, as many as the kind has by default."""

    def __init__(self, network: SimulatedNetwork, host: SessionHost, events: SenderEvents, *, is_stream: bool) -> None:
        super().__init__()
        self._network = network
        self._host = host
        self._events = events
        self._is_stream = is_stream

    def acquire(self, options: UmOptions, former: int = 0) -> SenderTransport:
        most = options.value("context", "transport_tcp_maximum_ports") if self._is_stream else SESSIONS_MOST
        assert isinstance(most, int)
        if len(self._open) >= most:
            return self._share(list(self._open.values()))
        port, session_id = self._network.new_port(), self._host.new_id()
        address: TransportAddress = TcpAddress(IP, port, session_id)
        if not self._is_stream:
            address = LbtrmAddress(IP, 0xEFC90000 + len(self._open), session_id, 14400, port)
        sender = SimulatedSender(self._network, self._host, self._events, address)
        self._open[port] = self._network.senders[address] = sender
        return sender


class SimulatedSender(FakeSender):
    """Implements `SenderTransport`. It is never blocked."""

    is_blocked = False
    datagram_max_bytes = DATAGRAM_BYTES
    fragment_max_bytes = DATAGRAM_BYTES - HEADROOM

    def __init__(
        self, network: SimulatedNetwork, host: SessionHost, events: SenderEvents, address: TransportAddress
    ) -> None:
        self.address = address
        self.transport_index = host.new_id()
        self.on_unblocked: Callable[[], object] | None = None
        self._network = network
        self._loop = host.loop
        self._events = events
        self._counts = SentCounts()

    def tell(self, client: str, *, is_connected: bool) -> None:
        """Tell of a receiver that comes or goes, in the next turn."""
        self._loop.call_soon_threadsafe(lambda: self._events.on_client(self, client, is_connected))

    def send_batch(self, buffer: bytearray, table: RunTable, now_ns: int) -> int:
        taken, at = table.fragments(), 0
        made, sizes, _, _ = lay_out(buffer, table, HEADROOM, DATAGRAM_BYTES)
        for size in sizes:
            self._send(bytearray(made[at : at + size]))
            at += size
        table.clear()
        return taken

    def flush(self) -> None:
        pass

    def send_message(self, message: bytes, now_ns: int, payload_bytes: int = 0) -> bool:
        return self.send_packed([message], payload_bytes, now_ns) == 1

    def send_packed(self, messages: Sequence[bytes], payload_bytes: int, now_ns: int) -> int:
        self._send(bytearray(b"".join([bytes(HEADROOM), *messages])))
        return len(messages)

    def _send(self, datagram: bytearray) -> None:
        self._counts.msgs_sent += 1
        self._counts.bytes_sent += len(datagram)
        for receiver in list(self._network.joined):
            if receiver.address == self.address and receiver.was_connected:
                receiver.hear(datagram)

    def is_heard(self, since_ns: int, now_ns: int) -> bool:
        return any(receiver.address == self.address for receiver in list(self._network.joined))

    def close(self, linger_ns: int, now_ns: int) -> None:
        if self._network.senders.pop(self.address, None) is None:
            return
        for receiver in list(self._network.joined):
            if receiver.address == self.address and receiver.is_stream:
                receiver.end()
        self._events.on_closed(self)

    def statistics(self) -> SourceSessionStatistics:
        return SourceSessionStatistics(format_source(self.address), replace(self._counts))
