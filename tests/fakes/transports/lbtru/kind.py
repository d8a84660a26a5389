"""A kind of transport on loopback: a source sends to all who have asked it, and repairs what it has lost on purpose.

Its packets are those of LBT-RU, without session ids; how a client asks for data is not that of LBT-RU.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import accumulate
from typing import Final

from dro.clock import NS_PER_S, ms
from dro.config.um.options import UmOptions
from dro.errors import DecodeError
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.effects import Retransmit, SendNcf
from dro.proto.repair.loss import LossConfig, NakDue, Skipped, Unrecoverable
from dro.proto.repair.receiver import ReceiverSession
from dro.proto.repair.session_messages import SendSm
from dro.proto.repair.source import Effect, SourceConfig, SourceSession
from dro.proto.session_events import Began, Ended
from dro.sqn import HALF, MASK
from dro.timers import Timer
from dro.transport import sockets
from dro.transport.frames import lay_out
from dro.transport.kind import SenderEvents, SenderPool, SessionHost, TransportKind
from dro.transport.runs import FLAG_REPAIR, RunTable, read_messages
from dro.transport.session import (
    OnEnded,
    ReceiverSessionStatistics,
    ReceiverTransport,
    SenderTransport,
    SessionCounts,
    SessionSink,
    SourceSessionStatistics,
)
from dro.wire import lbtru
from dro.wire.lbtru import DATA_LAYOUT, FLAG_RETRANSMISSION, PacketType
from dro.wire.source_string import LbtruAddress, format_source
from tests.fakes.transports.lbtru.options import ReceiverOptions, SourceOptions

HOST: Final = "127.0.0.1"
LOSES_EACH: Final = 5
ASK_AGAIN_NS: Final = ms(20)
DATAGRAM_MOST: Final = 65507  # what UDP carries


class Receivers:
    """Implements `JoinedSessions`: each session has a socket of its own, so nothing is shared."""

    def __init__(self, host: SessionHost, sink: SessionSink, on_ended: OnEnded) -> None:
        self._host = host
        self._sink = sink
        self._on_ended = on_ended

    def join(self, address: LbtruAddress, options: UmOptions, now_ns: int) -> Receiver:
        o = ReceiverOptions.of(options)
        core = ReceiverSession(o.fill(LossConfig, initial_backoff_ns=0), self._host.rng.random, now_ns)
        session = Receiver(self._host, address, core, self._sink, self._on_ended)
        session.generation_ns = o.generation_ns
        return session

    def counts(self) -> SessionCounts:
        return SessionCounts()

    def close(self) -> None:
        pass


class Receiver(ReceiverTransport):
    """One joined session."""

    def __init__(
        self, host: SessionHost, address: LbtruAddress, core: ReceiverSession, sink: SessionSink, on_ended: OnEnded
    ) -> None:
        super().__init__(address)
        self._loop = host.loop
        self._core = core
        self._sink = sink
        self._on_ended = on_ended
        self._table = RunTable()
        self._timer: Timer | None = None
        self._unrecoverable = self._messages = 0
        self._is_left = False
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.connect((sockets.ip_text(address.ip), address.port))
        self._loop.add_reader(self._socket, self._on_readable)
        self._ask()
        self._arm()

    @property
    def active_ns(self) -> int:
        return self._core.active_ns

    def counts(self) -> SessionCounts:
        return SessionCounts(unrecoverable=self._unrecoverable, naks_sent=self._core.stats.naks_sent)

    def statistics(self) -> ReceiverSessionStatistics:
        no_topic = self.lbm_msgs_no_topic_rcved
        counters = replace(self._core.stats, lbm_msgs_rcved=self._messages, lbm_msgs_no_topic_rcved=no_topic)
        return ReceiverSessionStatistics(format_source(self.address), counters)

    def mark(self) -> int | None:
        return None if self._is_left else self._core.expected

    def is_whole(self, mark: int | None) -> bool:
        if mark is None or self._is_left or self._core.expected is None:
            return True
        return (self._core.contiguous + 1 - mark) & MASK < HALF

    def leave(self) -> None:
        if not self._is_left:
            self._is_left = True
            self._loop.remove_reader(self._socket)
            self._socket.close()
            if self._timer is not None:
                self._timer.cancel()

    def _ask(self) -> None:
        """Ask to be served until something has come."""
        if not self._is_left and not self.has_begun:
            self._send(lbtru.ConnectRequest())
            self._loop.call_later(ASK_AGAIN_NS, self._ask)

    def _send(self, packet: lbtru.Packet) -> None:
        with suppress(OSError):  # what is asked for is asked again
            self._socket.send(lbtru.encode(packet))

    def _on_readable(self) -> bool:
        """True: there may be more to read."""
        try:
            datagram = self._socket.recv(DATAGRAM_MOST)
        except OSError:
            return False
        now_ns = self._loop.now_ns()
        try:
            self._on_packet(bytearray(datagram), lbtru.decode(datagram, lbtru.RECEIVER_TYPES), now_ns)
        except DecodeError:
            return True
        self._arm()
        return not self._is_left

    def _on_packet(self, datagram: bytearray, packet: lbtru.Packet, now_ns: int) -> None:
        core, end = self._core, len(datagram)
        match packet:
            case lbtru.Data(sqn, trail, flags, payload):
                is_repair = bool(flags & FLAG_RETRANSMISSION)
                if core.on_data(sqn, trail, is_repair, now_ns, end):
                    begin, marks = end - len(payload), FLAG_REPAIR if is_repair else 0
                    self._messages += read_messages(datagram, begin, end, 0, self._table, marks)
            case lbtru.SessionMessage(lead=lead, trail=trail):
                core.on_session_message(lead, trail, now_ns)
            case lbtru.Ncf(trail=trail, reason=reason, sqns=sqns):
                core.on_ncf(sqns, reason, trail, now_ns)
        self._perform(now_ns)
        if self._table.rows and not self._is_left:
            self._sink.on_fragments(memoryview(datagram), [(self, self._table)], now_ns)
        self._table.clear()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline_ns = self._core.next_deadline()
        if deadline_ns is not None and not self._is_left:
            self._timer = self._loop.call_at(deadline_ns, self._on_timer)

    def _on_timer(self) -> None:
        now_ns = self._loop.now_ns()
        self._core.on_timer(now_ns)
        self._perform(now_ns)
        self._arm()

    def _perform(self, now_ns: int) -> None:
        for event in self._core.take_events():
            match event:
                case NakDue(sqns=sqns):
                    self._send(lbtru.Nak(sqns))
                case Unrecoverable() | Skipped():
                    self._unrecoverable += event.count
                    if self.on_lost is not None:
                        self.on_lost(self, event.count, event.cause, now_ns)
                case Began():
                    self.has_begun = True
                    self._sink.on_began(self, now_ns)
                case Ended():
                    self.leave()
                    self._on_ended(self, now_ns)


class Senders(SenderPool[None]):
    """One session for all sources of a context."""

    def __init__(self, host: SessionHost, events: SenderEvents, sm_before_data: bool) -> None:
        super().__init__()
        self._host = host
        self._events = events
        self._sm_before_data = sm_before_data

    def acquire(self, options: UmOptions, former: int = 0) -> SenderTransport:
        if None not in self._open:
            o = SourceOptions.of(options)
            config = o.fill(SourceConfig, charge_data=False, sm_before_data=self._sm_before_data)
            self._open[None] = Sender(self._host, self._events, config, o.datagram_max_bytes)
        return self._open[None]


class Sender:
    """Implements `SenderTransport`. It has no rate limit, so it is never blocked."""

    packs_all = False
    is_read_on = False
    is_flushing = False
    is_blocked = False

    def __init__(self, host: SessionHost, events: SenderEvents, config: SourceConfig, datagram_max_bytes: int) -> None:
        self.on_unblocked: Callable[[], object] | None = None
        self.transport_index = host.new_id()
        self.datagram_max_bytes = min(datagram_max_bytes, DATAGRAM_MOST)
        self.fragment_max_bytes = self.datagram_max_bytes - DATA_LAYOUT.size
        self.lost = 0
        self._loop = host.loop
        self._events = events
        now_ns = host.loop.now_ns()
        no_limit = RateLimiter(0, NS_PER_S, now_ns)
        self._core = SourceSession(config, no_limit, no_limit, now_ns)
        self._clients: list[tuple[str, int]] = []
        self._timer: Timer | None = None
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind((HOST, 0))
        self.address = LbtruAddress(sockets.ip_number(HOST), self._socket.getsockname()[1])
        self._loop.add_reader(self._socket, self._on_readable)
        self._arm()

    def is_heard(self, since_ns: int, now_ns: int) -> bool:
        return bool(self._clients)

    # sending

    def send_batch(self, buffer: bytearray, table: RunTable, now_ns: int) -> int:
        taken = table.fragments()
        made, sizes, _, payloads = lay_out(buffer, table, DATA_LAYOUT.size, self.datagram_max_bytes)
        self._send_datagrams(bytearray(made), sizes, payloads, now_ns)
        table.clear()
        return taken

    def flush(self) -> None:
        pass

    def send_message(self, message: bytes, now_ns: int, payload_bytes: int = 0) -> bool:
        return self.send_packed([message], payload_bytes, now_ns) == 1

    def send_packed(self, messages: Sequence[bytes], payload_bytes: int, now_ns: int) -> int:
        datagram = bytearray(b"".join([bytes(DATA_LAYOUT.size), *messages]))
        self._send_datagrams(datagram, [len(datagram)], [payload_bytes], now_ns)
        return len(messages)

    def _send_datagrams(self, buffer: bytearray, sizes: list[int], payloads: list[int], now_ns: int) -> None:
        """Datagrams lie in `buffer` back to back, with room for a header in front of each."""
        core, ends = self._core, [*accumulate(sizes)]
        for number, (end, size) in enumerate(zip(ends, sizes, strict=True)):
            sqn = core.next_sqn + number & 0xFFFFFFFF
            DATA_LAYOUT.pack_into(buffer, end - size, PacketType.DATA, 0, 0, sqn, core.trail)
            if sqn % LOSES_EACH == LOSES_EACH - 1:
                self.lost += 1
            else:
                self._send(buffer[end - size : end])
        core.on_sent_mixed(ends, payloads, buffer, now_ns)
        self._arm()

    def _send(self, datagram: bytes | bytearray) -> bool:
        """False: a client did not get it, which it may ask for."""
        try:
            for client in self._clients:
                self._socket.sendto(datagram, client)
        except OSError:
            return False
        return True

    # what clients ask for, and time

    def _on_readable(self) -> bool:
        try:
            datagram, client = self._socket.recvfrom(DATAGRAM_MOST)
            packet = lbtru.decode(datagram, lbtru.SOURCE_TYPES)
        except DecodeError:
            return True
        except OSError:
            return False
        now_ns = self._loop.now_ns()
        match packet:
            case lbtru.ConnectRequest():
                if client not in self._clients:
                    self._clients.append(client)
                    self._events.on_client(self, f"{client[0]}:{client[1]}", True)
                self._perform([self._core.make_sm(now_ns)])
            case lbtru.Nak(sqns):
                self._perform(self._core.on_nak(sqns, now_ns))
        self._arm()
        return True

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline_ns = self._core.next_deadline()
        if deadline_ns is not None:
            self._timer = self._loop.call_at(deadline_ns, self._on_timer)

    def _on_timer(self) -> None:
        self._perform(self._core.on_timer(self._loop.now_ns()))
        self._arm()

    def _perform(self, effects: Sequence[Effect]) -> None:
        trail = self._core.trail
        for effect in effects:
            match effect:
                case Retransmit(sqn, buffer, offset, length):
                    datagram = bytearray(buffer[offset : offset + length])
                    DATA_LAYOUT.pack_into(datagram, 0, PacketType.DATA, 0, FLAG_RETRANSMISSION, sqn, trail)
                    if not self._send(datagram):
                        self._core.on_send_failed(sqn, length)
                case SendNcf(reason, sqns):
                    self._send(lbtru.encode(lbtru.Ncf(trail, reason, 0, sqns)))
                case SendSm(sm_sqn, lead, trail):
                    self._send(lbtru.encode(lbtru.SessionMessage(sm_sqn, lead, trail)))

    # the end, and what it has sent

    def close(self, linger_ns: int, now_ns: int) -> None:
        """May be called again while it lingers."""
        end_ns = self._core.busy_until(now_ns, linger_ns) if linger_ns else now_ns
        if end_ns > now_ns:
            self._loop.call_at(end_ns, self._end)
        else:
            self._end()

    def _end(self) -> None:
        if self._socket.fileno() < 0:
            return
        self._core.close()
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._events.on_closed(self)

    def settling(self, now_ns: int, linger_ns: int, *, is_last: bool) -> Callable[[int], bool]:
        end_ns = self._core.busy_until(now_ns, linger_ns)
        return lambda now_ns: now_ns >= end_ns

    def counts(self) -> SessionCounts:
        return SessionCounts(retransmitted=self._core.stats.rxs_sent)

    def statistics(self) -> SourceSessionStatistics:
        core = self._core
        return SourceSessionStatistics(format_source(self.address), replace(core.stats), core.txw_msgs, core.txw_bytes)


KIND: Final = TransportKind(LbtruAddress, Receivers, Senders)
