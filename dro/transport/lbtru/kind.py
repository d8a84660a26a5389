"""LBT-RU as a transport kind: joined sessions share a socket, sources share a pool of ports.

A source without an explicit port takes a new one of the range, up to the maximum number of ports; then they are shared,
round robin. An explicit port joins the pool. The rate limits are those of the context and shared by all its sessions.
Source: transport notes 7 and 15.3. Guess: a maximum of no ports is one; a source without an interface sends from the
address that it is advertised by, as receivers know it by that.
"""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from functools import partial
from typing import Final

from dro.config.um.options import UmOptions
from dro.errors import DecodeError, ResourceError
from dro.kept.log import SharedLog
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.proto.lbtru.connect import ConnectConfig
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.loss import LossConfig
from dro.proto.repair.receiver import ReceiverSession
from dro.proto.repair.source import SourceConfig, SourceSession
from dro.sqn import MASK
from dro.transport import sockets
from dro.transport.datagrams.former import FormerDatagrams
from dro.transport.datagrams.logs import log_bytes, window_log_bytes
from dro.transport.datagrams.receiver import NAK_OVERHEAD_BYTES
from dro.transport.datagrams.setup import DatagramSenderSetup
from dro.transport.kept_senders import KeptSenders, SentBefore
from dro.transport.kind import SenderEvents, SenderPool, SessionHost, TransportKind
from dro.transport.lbtru.headers import HEADER_BYTES, SID_BYTES
from dro.transport.lbtru.kept import KeptClients
from dro.transport.lbtru.options import LbtruReceiverOptions, LbtruSourceOptions
from dro.transport.lbtru.receiver import LbtruReceiver, LbtruSocket
from dro.transport.lbtru.sender import LbtruSender
from dro.transport.session import OnEnded, SenderTransport, SessionCounts, SessionSink
from dro.transport.stream import nothing
from dro.wire.source_string import LbtruAddress, format_source

log = logging.getLogger(__name__)
limited = LimitedLogger(log).event

SocketKey = tuple[str, int, int]  # interface, ports

SOURCE_KIND: Final = b"lbtru"
_DATA: Final = b"data"


class LbtruReceivers:
    """Owns the sockets. The last session of a socket closes it."""

    def __init__(self, host: SessionHost, sink: SessionSink, on_ended: OnEnded) -> None:
        self._host = host
        self._sink = sink
        self._on_ended = on_ended
        self._past = SessionCounts()  # of sockets that were closed
        self._sockets: dict[SocketKey, LbtruSocket] = {}

    def join(self, address: LbtruAddress, options: UmOptions, now_ns: int) -> LbtruReceiver:
        o = LbtruReceiverOptions.of(options)
        config = o.fill(LossConfig, max_naks_per_packet=max(1, (o.datagram_max_bytes - NAK_OVERHEAD_BYTES) // 4))
        key = (o.interface, o.port_low, o.port_high)
        shared = self._sockets.get(key)
        if shared is None:
            on_empty = partial(self._on_empty, key)
            shared = self._sockets[key] = LbtruSocket(self._host, o, on_empty=on_empty, kept=self._host.kept)
        core = ReceiverSession(config, self._host.rng.random, now_ns)
        session = shared.join(address, core, o.fill(ConnectConfig), self._sink, self._on_ended)
        session.generation_ns = o.generation_ns
        log.debug(LogEvent.SESSION_JOINED, extra={"source": format_source(address)})
        return session

    def _on_empty(self, key: SocketKey, shared: LbtruSocket) -> None:
        if self._sockets.pop(key, None) is not None:
            self._past += shared.counts()
            shared.close()

    def counts(self) -> SessionCounts:
        return sum((shared.counts() for shared in self._sockets.values()), self._past)

    def close(self) -> None:
        for shared in self._sockets.values():
            shared.close()
        self._sockets.clear()


class LbtruSenders(SenderPool[int]):
    """The sender sessions of one context, by port. Those of a portal outlive its process."""

    def __init__(self, host: SessionHost, events: SenderEvents, sm_before_data: bool) -> None:
        super().__init__()
        self._host = host
        self._events = events
        self._sm_before_data = sm_before_data
        self._kept = KeptSenders(host.kept, SOURCE_KIND)
        self._instead: dict[int, int] = {}  # ports by explicit ones that were taken
        o = LbtruSourceOptions.of(host.options)
        now_ns = host.loop.now_ns()
        self._data_limiter = RateLimiter(o.data_rate_bps, o.rate_interval_ns, now_ns)
        self._retransmit_limiter = RateLimiter(o.retransmit_rate_bps, o.rate_interval_ns, now_ns)

    def acquire(self, options: UmOptions, former: int = 0) -> SenderTransport:
        o = LbtruSourceOptions.of(options)
        if former and (sender := self._former(former, o)) is not None:
            return sender
        if o.port:
            return self._open.get(self._instead.get(o.port, o.port)) or self._explicit(o)
        if len(self._open) < max(1, o.maximum_ports):
            try:
                return self._open_session(o, range(o.port_low, o.port_high + 1), "transport_lbtru_port_low/_high")
            except ResourceError:
                if not self._open:
                    raise
        return self._share(list(self._open.values()))

    def _explicit(self, o: LbtruSourceOptions) -> SenderTransport:
        try:
            return self._open_session(o, (o.port,), "transport_lbtru_port")
        except ResourceError:
            if not o.allow_ephemeral:
                raise
        sender = self._open_session(replace(o, port=0), (0,), "transport_lbtru_allow_ephemeral")
        self._instead[o.port] = sender.address.port
        limited(LogEvent.LBTRU_PORTS_TAKEN, extra={"low": o.port, "high": o.port, "port": sender.address.port})
        return sender

    def _former(self, transport_index: int, o: LbtruSourceOptions) -> SenderTransport | None:
        """Find the session of that transport index, which the former incarnation may have left."""
        for sender in self._open.values():
            if sender.transport_index == transport_index:
                return sender
        key = self._kept.key_of(transport_index)
        return None if key is None else self._go_on(transport_index, key[0], o)

    def forget_waiting(self) -> None:
        super().forget_waiting()
        self._kept.forget_waiting()

    def _open_session(self, o: LbtruSourceOptions, ports: range | tuple[int, ...], option: str) -> LbtruSender:
        waiting = self._kept.waiting_at((o.port,))
        if waiting is not None and (former := self._go_on(waiting, o.port, o)) is not None:
            return former
        host = self._host
        sock = host.sockets.bind_in_range(socket.SOCK_DGRAM, self._interface(o), ports, option=option, taken=self._open)
        sockets.set_buffer(sock, socket.SO_RCVBUF, o.receive_buffer_bytes)
        if o.send_buffer_bytes:
            sockets.set_buffer(sock, socket.SO_SNDBUF, o.send_buffer_bytes)
        transport_index, session_id = host.new_id(), host.new_id() if o.use_session_id else 0
        session_log = self._kept.log(transport_index, log_bytes(o), 0, session_id) if self._kept.keeps else None
        if session_log is not None:
            self._kept.keep(transport_index, (sock.getsockname()[1],), _DATA, sock)
        return self._sender(transport_index, sock, session_id, o, session_log)

    def _interface(self, o: LbtruSourceOptions) -> str:
        """Return the address to bind to: the one that the session is advertised by, if it is of this host."""
        if o.interface != sockets.ANY:
            return o.interface
        advertised = self._host.own_address or sockets.default_address()
        return advertised if advertised in sockets.devices() else sockets.ANY

    def _go_on(self, transport_index: int, port: int, o: LbtruSourceOptions) -> LbtruSender | None:
        """Go on with a session of the former incarnation, behind what that one had logged; None when it cannot be."""
        former = self._kept.take(transport_index, (_DATA,), log_bytes(o))
        if former is None:
            return None
        session_log, session_id = former.log, former.log.mark
        try:
            header = HEADER_BYTES + (SID_BYTES if session_id else 0)
            self.sent_before[transport_index] = SentBefore(session_log, header, self._host.kept.turn.former)
        except DecodeError:
            former.close()
            self._kept.forget(transport_index, (port,), session_log)
            return None
        sock = former.sockets[_DATA]
        sockets.adopt(sock, sock.getsockname()[0])
        sender = self._sender(transport_index, sock, session_id, o, session_log, session_log.after)
        sender.core.adopt(session_log.after - session_log.first & MASK, FormerDatagrams(session_log).find)
        sender.go_on(self._host.loop.now_ns())
        return sender

    def _sender(
        self,
        transport_index: int,
        sock: socket.socket,
        session_id: int,
        o: LbtruSourceOptions,
        session_log: SharedLog | None,
        first_sqn: int = 0,
    ) -> LbtruSender:
        host, (bound, port) = self._host, sock.getsockname()
        ip = (host.own_address or sockets.default_address()) if bound == sockets.ANY else bound
        config = o.fill(
            SourceConfig,
            rx_queue_bytes=max(o.retransmit_rate_bps // 8, 65536) if o.retransmit_rate_bps else 1 << 30,
            charge_data=False,
            sm_before_data=self._sm_before_data,
            max_ncfs_per_packet=max(1, (o.datagram_max_bytes - NAK_OVERHEAD_BYTES) // 4),
            first_sqn=first_sqn,
        )
        forget = nothing
        if session_log is not None:
            forget = partial(self._kept.forget, transport_index, (port,), session_log)
        setup = DatagramSenderSetup(
            LbtruAddress(sockets.ip_number(ip), port, session_id),
            sock,
            sock,
            interface=bound,
            datagram_max_bytes=o.datagram_max_bytes,
            transport_index=transport_index,
            header_bytes=HEADER_BYTES + (SID_BYTES if session_id else 0),
            pack_bytes=o.pack_bytes,
            log=session_log,
            window_log_bytes=window_log_bytes(o),
            forget=forget,
        )
        now_ns = host.loop.now_ns()
        rows = host.kept.rows if session_log is not None else None
        kept = KeptClients(rows, transport_index) if rows is not None else None
        sender = LbtruSender(
            host.loop,
            setup,
            SourceSession(config, self._data_limiter, self._retransmit_limiter, now_ns),
            self._data_limiter,
            host.batch,
            self._events,
            client_timeout_ns=o.client_timeout_ns,
            kept=kept,
        )
        self._open[port] = sender
        if kept is not None:
            sender.adopt(kept.former, now_ns)
        return sender


KIND: Final = TransportKind(LbtruAddress, LbtruReceivers, LbtruSenders)
