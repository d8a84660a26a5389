"""LBT-TCP as a transport kind: joined sessions are connections, sources share a pool of listening ports.

A source without an explicit port takes a new one up to the maximum number of ports; then they are shared, round robin.
An explicit port joins the pool. Source: transport notes 15.3. Guess: a maximum of no ports is one; a session that ended
is not tried again within a second, however often it is advertised.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import Final

from dro.clock import NS_PER_S
from dro.config.um.options import UmOptions
from dro.config.um.sets import TcpReceiverOptions, TcpSourceOptions, TlsOptions
from dro.errors import DecodeError, ResourceError
from dro.kept.store import NOTHING_KEPT
from dro.proto.tcp.receiver import TcpReceiverConfig, TcpReceiverCore
from dro.proto.tcp.source import SlowReceiver, TcpSourceConfig, TcpSourceCore
from dro.transport import sockets
from dro.transport.kept_senders import KeptSenders, SentBefore
from dro.transport.kind import SenderEvents, SenderPool, SessionHost, TransportKind
from dro.transport.read_space import ReadSpace
from dro.transport.session import OnEnded, SenderTransport, SessionCounts, SessionSink
from dro.transport.stream import PlainStream, StreamMaker
from dro.transport.tcp.kept import LISTENER, LOG_LEAST, SOURCE_KIND, KeptStream, open_stream
from dro.transport.tcp.kept_receiver import LEAST_BUFFER_BYTES, KeptTcpReceiver
from dro.transport.tcp.receiver import TcpReceiver
from dro.transport.tcp.sender import TcpSender, TcpSenderSetup
from dro.transport.tls import stream_maker
from dro.wire.source_string import TcpAddress

RETRY_NS: Final = NS_PER_S
TRIED_MAX: Final = 4096  # addresses whose last attempt is remembered


class TcpReceivers:
    """Knows which addresses were tried when."""

    def __init__(self, host: SessionHost, sink: SessionSink, on_ended: OnEnded) -> None:
        self._host = host
        self._sink = sink
        self._on_ended = on_ended
        self._tried: dict[TcpAddress, int] = {}
        self._make_stream: StreamMaker | None = None
        self._space: ReadSpace | None = None  # of all sessions

    def join(self, address: TcpAddress, options: UmOptions, now_ns: int) -> TcpReceiver:
        o = TcpReceiverOptions.of(options)
        if self._make_stream is None:
            self._make_stream = stream_maker(TlsOptions.of(self._host.options), is_server=False)
        if self._space is None:
            self._space = ReadSpace()
        is_keepalive = o.activity_method == "so_keepalive" and o.activity_timeout_ns > 0
        config = TcpReceiverConfig(
            session_id=address.session_id, activity_timeout_ns=0 if is_keepalive else o.activity_timeout_ns
        )
        is_kept = self._host.kept is not NOTHING_KEPT and self._make_stream is PlainStream
        buffer_bytes = o.receive_buffer_bytes
        connect = partial(
            self._host.sockets.connecting,
            (sockets.ip_text(address.ip), address.port),
            o.interface,
            buffer_bytes=max(buffer_bytes, LEAST_BUFFER_BYTES) if is_kept and buffer_bytes else buffer_bytes,
            keepalive=is_keepalive,
        )
        loop, core = self._host.loop, TcpReceiverCore(config)
        session: TcpReceiver
        if is_kept:
            session = KeptTcpReceiver(
                loop, address, core, self._sink, self._on_ended,
                connect=connect, space=self._space, send_unicast=self._host.send_unicast, kept=self._host.kept,
            )  # fmt: skip
        else:
            session = TcpReceiver(
                loop, address, core, self._sink, self._on_ended, connect=connect, space=self._space,
                send_unicast=self._host.send_unicast, make_stream=self._make_stream,
            )  # fmt: skip
        # Not at once: a connection that fails on the spot would end before its sources are bound.
        session.connect_at(self._next_try(address, now_ns))
        return session

    def _next_try(self, address: TcpAddress, now_ns: int) -> int:
        tried_ns = self._tried.pop(address, None)
        at_ns = now_ns if tried_ns is None else max(now_ns, tried_ns + RETRY_NS)
        self._tried[address] = at_ns
        while (oldest := next(iter(self._tried))) != address and (
            self._tried[oldest] + RETRY_NS <= now_ns or len(self._tried) > TRIED_MAX
        ):
            del self._tried[oldest]  # too long ago to matter
        return at_ns

    def counts(self) -> SessionCounts:
        return SessionCounts()

    def close(self) -> None:
        pass


class TcpSenders(SenderPool[int]):
    """The sender sessions of one context, by port."""

    def __init__(self, host: SessionHost, events: SenderEvents, sm_before_data: bool) -> None:
        """TCP has no session messages."""
        super().__init__()
        self._host = host
        self._events = events
        self._kept = KeptSenders(host.kept, SOURCE_KIND)

    def acquire(self, options: UmOptions, former: int = 0) -> SenderTransport:
        o = TcpSourceOptions.of(options)
        if former and (sender := self._former(former, o)) is not None:
            return sender
        if o.port:
            return self._open.get(o.port) or self._open_session(o, (o.port,), "transport_tcp_port")
        if len(self._open) < max(1, o.maximum_ports):
            try:
                return self._open_session(o, range(o.port_low, o.port_high + 1), "transport_tcp_port_low/_high")
            except ResourceError:
                if not self._open:
                    raise
        return self._share(list(self._open.values()))

    def _former(self, transport_index: int, o: TcpSourceOptions) -> SenderTransport | None:
        """Find the session of that transport index, which the former incarnation may have left."""
        for sender in self._open.values():
            if sender.transport_index == transport_index:
                return sender
        key = self._kept.key_of(transport_index)
        return None if key is None else self._go_on(transport_index, key[0], o)

    def _go_on(self, transport_index: int, port: int, o: TcpSourceOptions) -> SenderTransport | None:
        """Go on with a session of the former incarnation; None when that cannot be."""
        former = self._kept.take(transport_index, (LISTENER,), _log_bytes(o))
        if former is None:
            return None
        kept = KeptStream(self._host.kept, self._kept, transport_index, port, former.log)
        try:
            self.sent_before[transport_index] = SentBefore(former.log, 0, self._host.kept.turn.former)
        except DecodeError:
            former.close()
            kept.forget()
            return None
        sender = self._sender(transport_index, former.sockets[LISTENER], o, former.log.mark, kept, PlainStream)
        for name, sock, missing in kept.connections(former):
            sender.go_on(name, sock, missing)
        return sender

    def forget_waiting(self) -> None:
        super().forget_waiting()
        self._kept.forget_waiting()

    def forget(self, sender: SenderTransport) -> None:
        super().forget(sender)
        self._host.filters.close(sender.transport_index)

    def _is_filtered(self, o: TcpSourceOptions) -> bool:
        """Say whether a new session filters. Raises: ResourceError when nobody could ask it for anything."""
        if o.source_side_filtering_behavior != "inclusion":
            return False
        if not self._host.filters.request_address[1]:
            raise ResourceError(
                "transport_source_side_filtering_behavior inclusion needs a request port",
                remedy="set request_tcp_bind_request_port to 1",
            )
        return True

    def _open_session(self, o: TcpSourceOptions, ports: range | tuple[int, ...], option: str) -> SenderTransport:
        waiting = self._kept.waiting_at((o.port,))
        if waiting is not None and (sender := self._go_on(waiting, o.port, o)) is not None:
            return sender
        transport_index = self._host.new_id()
        make_stream = stream_maker(TlsOptions.of(self._host.options), is_server=True)
        is_filtered = self._is_filtered(o)
        listener = self._host.sockets.bind_in_range(
            socket.SOCK_STREAM, o.interface, ports, option=option, taken=self._open
        )
        listener.listen(o.listen_backlog)
        session_id = self._host.new_id() if o.use_session_id else 0
        kept = None
        if make_stream is PlainStream and not is_filtered:
            port = listener.getsockname()[1]
            kept = open_stream(self._host.kept, self._kept, transport_index, port, _log_bytes(o), session_id)
            if kept is not None:
                self._kept.keep(transport_index, (port,), LISTENER, listener)
        return self._sender(transport_index, listener, o, session_id, kept, make_stream, is_filtered=is_filtered)

    def _sender(
        self,
        transport_index: int,
        listener: socket.socket,
        o: TcpSourceOptions,
        session_id: int,
        kept: KeptStream | None,
        make_stream: StreamMaker,
        *,
        is_filtered: bool = False,
    ) -> TcpSender:
        host, port = listener.getsockname()
        if host == sockets.ANY:
            host = self._host.own_address or sockets.default_address()
        config = TcpSourceConfig(
            behavior=SlowReceiver(o.multiple_receiver_behavior),
            max_buffer_bytes=o.session_buffer_bytes,
            session_id=session_id,
            random_order=o.send_order == "random",
        )
        setup = TcpSenderSetup(
            TcpAddress(sockets.ip_number(host), port, session_id),
            listener,
            datagram_max_bytes=o.datagram_max_bytes,
            transport_index=transport_index,
            nodelay=o.nodelay,
            send_buffer_bytes=o.send_buffer_bytes,
            keepalive_ns=o.activity_timeout_ns,
            make_stream=make_stream,
            kept=kept,
        )
        filtering = self._host.filters.open(transport_index, self._host.new_id) if is_filtered else None
        core = TcpSourceCore(config, self._host.rng.random, filtering)
        sender = TcpSender(self._host.loop, setup, core, self._events)
        self._open[port] = sender
        return sender


def _log_bytes(o: TcpSourceOptions) -> int:
    """Return how many bytes the log of a session has room for."""
    return max(LOG_LEAST, 4 * o.session_buffer_bytes)


KIND: Final = TransportKind(TcpAddress, TcpReceivers, TcpSenders)
