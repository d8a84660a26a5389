"""Transport sessions of the sources of one context: which are open, and which one a new source lands on.

Without an explicit session a source takes the next unused member of its transport's pool (LBT-RM: every group from
low to high; TCP: up to the maximum number of ports); when all are in use they are shared, round robin. An explicit
LBT-RM group outside of the pool makes a session apart, an explicit TCP port one that joins the pool. Source: transport
notes 15.3. Guess: an explicit group inside of the pool is the member that it names; no ports at all are one.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from dataclasses import dataclass

from dro.clock import NS_PER_S
from dro.config.options import UmOptions
from dro.config.um_sets import LbtrmSourceOptions, TcpSourceOptions, source_transport
from dro.errors import ResourceError
from dro.loop import Loop
from dro.proto.lbtrm_source import SourceConfig, SourceSession
from dro.proto.ratelimit import RateLimiter
from dro.proto.tcp_source import SlowReceiver, TcpSourceConfig, TcpSourceCore
from dro.um import counts, mmsg, sockets
from dro.um.counts import SessionCounts
from dro.um.lbtrm_sender import LbtrmSender
from dro.um.tcp_io import TcpSender
from dro.wire.source_string import LbtrmAddress, TcpAddress

Sender = LbtrmSender | TcpSender


@dataclass(slots=True)
class _Open:
    """An open session and how many sources are on it."""

    sender: Sender
    users: int = 0


class SourcePools:
    """Opens, shares and closes the sender sessions of one context. Options of the first source of a session hold."""

    def __init__(
        self, loop: Loop, options: UmOptions, batch: mmsg.DatagramBatch, rng: random.Random, *,
        on_client: Callable[[Sender, str, bool], object], sm_before_data: bool,
    ) -> None:  # fmt: skip
        self._loop = loop
        self._batch = batch
        self._rng = rng
        self._on_client = on_client
        self._sm_before_data = sm_before_data
        context = LbtrmSourceOptions.of(options)
        now_ns = loop.now_ns()
        self.data_limiter = RateLimiter(context.data_rate_bps, context.rate_interval_ns, now_ns)
        self.retransmit_limiter = RateLimiter(context.retransmit_rate_bps, context.rate_interval_ns, now_ns)
        self._lbtrm: dict[tuple[int, int], _Open] = {}  # (group, port), without those that linger
        self._tcp: dict[int, _Open] = {}
        self._lingering: set[Sender] = set()
        self._past = SessionCounts()  # of sessions that have ended
        self._turn = {"lbtrm": 0, "tcp": 0}

    def senders(self) -> list[Sender]:
        return [x.sender for x in (*self._lbtrm.values(), *self._tcp.values())]

    def acquire(self, options: UmOptions) -> Sender:
        """The session for a new source with these options. Raises: ResourceError naming the option to change."""
        transport = source_transport(options)
        if transport == "lbtrm":
            found = self._acquire_lbtrm(LbtrmSourceOptions.of(options))
        elif transport == "tcp":
            found = self._acquire_tcp(TcpSourceOptions.of(options))
        else:
            raise ResourceError(f"transport {transport} is not supported yet", remedy="use tcp or lbtrm as transport")
        found.users += 1
        return found.sender

    def release(self, sender: Sender, linger_ns: int) -> None:
        """A source left its session; with the last one the session ends, after lingering for late repairs."""
        table: dict[tuple[int, int], _Open] | dict[int, _Open]
        table = self._lbtrm if isinstance(sender, LbtrmSender) else self._tcp
        for key, found in list(table.items()):
            if found.sender is sender:
                found.users -= 1
                if not found.users:
                    del table[key]  # type: ignore[arg-type]  # key and table belong together
                    self._lingering.add(sender)
                    sender.close(linger_ns, self._loop.now_ns())
                return

    def close(self) -> None:
        """End every session at once."""
        for sender in [*self.senders(), *self._lingering]:
            sender.close(0, self._loop.now_ns())
        self._lbtrm.clear()
        self._tcp.clear()

    def counts(self) -> SessionCounts:
        """Of all sessions since the start."""
        total = SessionCounts()
        total.add(self._past)
        for sender in (*self.senders(), *self._lingering):
            total.add(counts.of_sender(sender))
        return total

    def _on_closed(self, sender: Sender) -> None:
        self._lingering.discard(sender)
        self._past.add(counts.of_sender(sender))

    def _new_id(self) -> int:
        return self._rng.randrange(1, 1 << 32)

    # LBT-RM

    def _acquire_lbtrm(self, o: LbtrmSourceOptions) -> _Open:
        group = sockets.ip_number(o.address)
        if group:
            key = (group, o.destination_port)
            return self._lbtrm.get(key) or self._open_lbtrm(key, o)
        low, high = sockets.ip_number(o.address_low), sockets.ip_number(o.address_high)
        if not sockets.is_multicast(low) or not sockets.is_multicast(high) or low > high:
            raise ResourceError(
                f"no groups from {o.address_low} to {o.address_high}",
                remedy="set transport_lbtrm_multicast_address_low and _high to a range of multicast groups",
            )
        port = o.destination_port
        free = next((g for g in range(low, high + 1) if (g, port) not in self._lbtrm), None)
        if free is not None:
            return self._open_lbtrm((free, port), o)
        return self._share("lbtrm", [x for (g, p), x in self._lbtrm.items() if p == port and low <= g <= high])

    def _share(self, transport: str, members: list[_Open]) -> _Open:
        turn = self._turn[transport]
        self._turn[transport] += 1
        return members[turn % len(members)]

    def _open_lbtrm(self, key: tuple[int, int], o: LbtrmSourceOptions) -> _Open:
        group, port = key
        if not sockets.is_multicast(group):
            raise ResourceError(f"{sockets.ip_text(group)} is no multicast group",
                                remedy="change transport_lbtrm_multicast_address")  # fmt: skip
        nak_socket = sockets.bind_in_range(
            socket.SOCK_DGRAM, o.interface, range(o.nak_port_low, o.nak_port_high + 1),
            option="transport_lbtrm_source_port_low/_high",
        )  # fmt: skip
        try:
            data_socket = sockets.multicast_sender(
                group, port, o.interface, ttl=o.ttl, buffer_bytes=o.send_buffer_bytes
            )
        except ResourceError:
            nak_socket.close()
            raise
        ip = sockets.ip_number(data_socket.getsockname()[0])
        address = LbtrmAddress(ip, group, self._new_id(), port, nak_socket.getsockname()[1])
        config = SourceConfig(
            window_size_bytes=o.window_size_bytes,
            window_limit_bytes=o.window_limit_bytes,
            ignore_ns=o.ignore_ns,
            sm_min_ns=o.sm_min_ns,
            sm_max_ns=o.sm_max_ns,
            rx_queue_bytes=max(o.retransmit_rate_bps // 8, 65536) if o.retransmit_rate_bps else 1 << 30,
            sm_before_data=self._sm_before_data,
            max_ncfs_per_packet=max(1, (o.datagram_max_bytes - 16) // 4),
        )
        core = SourceSession(config, self.data_limiter, self.retransmit_limiter, self._loop.now_ns())
        sender = LbtrmSender(
            self._loop,
            address,
            core,
            self.data_limiter,
            data_socket=data_socket,
            nak_socket=nak_socket,
            batch=self._batch,
            datagram_max_bytes=o.datagram_max_bytes,
            transport_index=self._new_id(),
            interface=sockets.ip_text(ip),
            tgsz_log2=max(0, o.tgsz.bit_length() - 1),
            on_closed=self._on_closed,
        )
        self._lbtrm[key] = found = _Open(sender)
        return found

    # TCP

    def _acquire_tcp(self, o: TcpSourceOptions) -> _Open:
        if o.port:
            return self._tcp.get(o.port) or self._open_tcp(o, (o.port,), "transport_tcp_port")
        if len(self._tcp) < max(1, o.maximum_ports):
            try:
                return self._open_tcp(o, range(o.port_low, o.port_high + 1), "transport_tcp_port_low/_high")
            except ResourceError:
                if not self._tcp:
                    raise
        return self._share("tcp", list(self._tcp.values()))

    def _open_tcp(self, o: TcpSourceOptions, ports: range | tuple[int, ...], option: str) -> _Open:
        listener = sockets.bind_in_range(socket.SOCK_STREAM, o.interface, ports, option=option, taken=self._tcp)
        listener.listen(o.listen_backlog)
        host, port = listener.getsockname()
        if host == sockets.ANY:
            host = sockets.default_address()
        session_id = self._new_id() if o.use_session_id else 0
        address = TcpAddress(sockets.ip_number(host), port, session_id)
        core = TcpSourceCore(
            TcpSourceConfig(
                behavior=SlowReceiver(o.multiple_receiver_behavior),
                max_buffer_bytes=o.session_buffer_bytes,
                session_id=session_id,
                random_order=o.send_order == "random",
            ),
            self._rng.random,
        )
        sender = TcpSender(
            self._loop,
            address,
            core,
            listener=listener,
            datagram_max_bytes=o.datagram_max_bytes,
            transport_index=self._new_id(),
            nodelay=o.nodelay,
            send_buffer_bytes=o.send_buffer_bytes,
            keepalive_ns=o.activity_timeout_ns,
            on_client=lambda client, connected: self._on_client(sender, client, connected),
            on_closed=self._on_closed,
        )
        self._tcp[port] = found = _Open(sender)
        return found


TCP_LINGER_NS = 2 * NS_PER_S
"""How long a TCP session that has lost its last source waits for receivers to take what is buffered."""
