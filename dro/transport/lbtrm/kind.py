"""LBT-RM as a transport kind: joined sessions on the sockets of their groups, sources on a pool of groups.

A source without an explicit group takes the next unused one from low to high; when all are in use they are shared,
round robin. An explicit group outside of the range gets a separate session. The rate limits are those of the context
and shared by all its sessions. Source: transport notes 15.3. Guess: an explicit group inside of the range is that
member of it.
"""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from functools import partial
from typing import Final

from dro.config.um.options import UmOptions
from dro.config.um.sets import ImmediateOptions, LbtrmReceiverOptions, LbtrmSourceOptions
from dro.errors import DecodeError, ResourceError
from dro.kept.log import SharedLog
from dro.log.events import LogEvent
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.loss import LossConfig
from dro.proto.repair.receiver import ReceiverSession
from dro.proto.repair.source import SourceConfig, SourceSession
from dro.sqn import MASK
from dro.transport import sockets
from dro.transport.datagrams.former import FormerDatagrams
from dro.transport.datagrams.logs import log_bytes, window_log_bytes
from dro.transport.datagrams.receiver import NAK_OVERHEAD_BYTES, DatagramReceiver
from dro.transport.datagrams.setup import DatagramSenderSetup
from dro.transport.kept_senders import KeptSenders, SentBefore
from dro.transport.kind import ImmediateSessions, SenderEvents, SenderPool, SessionHost, TransportKind
from dro.transport.lbtrm.immediate import ImmediateReceiver
from dro.transport.lbtrm.receiver import LbtrmGroup
from dro.transport.lbtrm.sender import LbtrmSender
from dro.transport.session import OnEnded, SenderTransport, SessionCounts, SessionSink
from dro.transport.stream import nothing
from dro.wire.lbtrm import DATA_HEADER
from dro.wire.source_string import LbtrmAddress, format_source

log = logging.getLogger(__name__)

GroupKey = tuple[int, int]  # group, port


class LbtrmReceivers:
    """Owns the group sockets and the one that NAKs leave from. The last session of a group closes its socket."""

    def __init__(self, host: SessionHost, sink: SessionSink, on_ended: OnEnded) -> None:
        self._host = host
        self._sink = sink
        self._on_ended = on_ended
        self._nak_socket: socket.socket | None = None
        self._past = SessionCounts()  # of groups that were left
        self.groups: dict[GroupKey, LbtrmGroup] = {}

    def join(self, address: LbtrmAddress, options: UmOptions, now_ns: int) -> DatagramReceiver:
        o = LbtrmReceiverOptions.of(options)
        group = self._group(address, o)
        config = o.fill(LossConfig, max_naks_per_packet=max(1, (o.datagram_max_bytes - NAK_OVERHEAD_BYTES) // 4))
        session = group.join(
            address, ReceiverSession(config, self._host.rng.random, now_ns), self._sink, self._on_ended
        )
        session.generation_ns = o.generation_ns
        log.debug(LogEvent.SESSION_JOINED, extra={"source": format_source(address)})
        return session

    def _group(self, address: LbtrmAddress, o: LbtrmReceiverOptions) -> LbtrmGroup:
        key = (address.group, address.dport)
        group = self.groups.get(key)
        if group is None:
            if not sockets.is_multicast(address.group):
                raise ResourceError(f"{sockets.ip_text(address.group)} is no multicast group")
            if self._nak_socket is None:
                self._nak_socket = self._host.sockets.nak_socket(o.interface)
            group = self.groups[key] = LbtrmGroup(
                self._host,
                *key,
                o.interface,
                buffer_bytes=o.receive_buffer_bytes,
                nak_socket=self._nak_socket,
                on_empty=self._on_group_empty,
                kept=self._host.kept,
            )
        return group

    def _on_group_empty(self, group: LbtrmGroup) -> None:
        if self.groups.pop((group.group, group.port), None) is not None:
            self._past += group.counts()
            group.close()

    def counts(self) -> SessionCounts:
        return sum((group.counts() for group in self.groups.values()), self._past)

    def close(self) -> None:
        for group in self.groups.values():
            group.close()
        self.groups.clear()
        if self._nak_socket is not None:
            self._nak_socket.close()
            self._nak_socket = None


SOURCE_KIND: Final = b"lbtrm"
_DATA, _NAKS = b"data", b"naks"


class LbtrmSenders(SenderPool[GroupKey]):
    """The sender sessions of one context. Those of a portal outlive its process (`dro.transport.kept_senders`)."""

    def __init__(self, host: SessionHost, events: SenderEvents, sm_before_data: bool) -> None:
        super().__init__()
        self._host = host
        self._events = events
        self._sm_before_data = sm_before_data
        self._kept = KeptSenders(host.kept, SOURCE_KIND)
        self._full: LbtrmSourceOptions | None = None  # options all of whose groups have a session: `_members`
        self._members: list[SenderTransport] = []
        o = LbtrmSourceOptions.of(host.options)
        now_ns = host.loop.now_ns()
        self._data_limiter = RateLimiter(o.data_rate_bps, o.rate_interval_ns, now_ns)
        self._retransmit_limiter = RateLimiter(o.retransmit_rate_bps, o.rate_interval_ns, now_ns)

    def acquire(self, options: UmOptions, former: int = 0) -> SenderTransport:
        o = LbtrmSourceOptions.of(options)
        if former and (sender := self._former(former, o)) is not None:
            return sender
        if o is self._full:
            return self._share(self._members)
        port = o.destination_port
        if group := sockets.ip_number(o.address):
            return self._open.get((group, port)) or self._open_session((group, port), o)
        low, high = sockets.ip_number(o.address_low), sockets.ip_number(o.address_high)
        if not sockets.is_multicast(low) or not sockets.is_multicast(high) or low > high:
            raise ResourceError(
                f"no groups from {o.address_low} to {o.address_high}",
                remedy="set transport_lbtrm_multicast_address_low and _high to a range of multicast groups",
            )
        free = next((g for g in range(low, high + 1) if (g, port) not in self._open), None)
        if free is not None:
            return self._open_session((free, port), o)
        self._full, self._members = o, [x for (g, p), x in self._open.items() if p == port and low <= g <= high]
        return self._share(self._members)

    def forget(self, sender: SenderTransport) -> None:
        super().forget(sender)
        self._full, self._members = None, []  # it holds what it could repair

    def _former(self, transport_index: int, o: LbtrmSourceOptions) -> SenderTransport | None:
        """Find the session of that transport index, which the former incarnation may have left."""
        for sender in self._open.values():
            if sender.transport_index == transport_index:
                return sender
        key = self._kept.key_of(transport_index)
        if key is None:
            return None
        group, port = key
        former = self._go_on(transport_index, (group, port), o)
        if former is not None:
            self._open[group, port], self._full = former, None
        return former

    def forget_waiting(self) -> None:
        super().forget_waiting()
        self._kept.forget_waiting()

    def _open_session(self, key: GroupKey, o: LbtrmSourceOptions) -> SenderTransport:
        waiting = self._kept.waiting_at(key)
        former = None if waiting is None else self._go_on(waiting, key, o)
        self._open[key] = sender = self.open_alone(key, o, is_kept=True) if former is None else former
        self._full = None
        return sender

    def open_immediate(self, o: ImmediateOptions) -> SenderTransport:
        """A session for multicast immediate messages. Raises: ResourceError."""
        made = replace(
            LbtrmSourceOptions.of(self._host.options),
            window_size_bytes=o.window_size_bytes,
            window_limit_bytes=o.window_limit_bytes,
            ignore_ns=o.ignore_ns,
            sm_min_ns=o.sm_min_ns,
            sm_max_ns=o.sm_max_ns,
            tgsz=o.tgsz,
        )
        return self.open_alone((sockets.ip_number(o.outgoing_address), o.outgoing_port), made)

    def open_alone(self, key: GroupKey, o: LbtrmSourceOptions, *, is_kept: bool = False) -> LbtrmSender:
        """A session that no other source gets. `is_kept`: it outlives this process. Raises: ResourceError."""
        group, port = key
        host = self._host
        if not sockets.is_multicast(group):
            raise ResourceError(
                f"{sockets.ip_text(group)} is no multicast group", remedy="change transport_lbtrm_multicast_address"
            )
        ports = range(o.nak_port_low, o.nak_port_high + 1)
        option = "transport_lbtrm_source_port_low/_high"
        nak_socket = host.sockets.bind_in_range(socket.SOCK_DGRAM, o.interface, ports, option=option)
        try:
            data_socket = host.sockets.multicast_sender(
                group, port, o.interface, ttl=o.ttl, buffer_bytes=o.send_buffer_bytes
            )
        except ResourceError:
            nak_socket.close()
            raise
        transport_index, session_id = host.new_id(), host.new_id()
        log = None
        if is_kept and self._kept.keeps:
            log = self._kept.log(transport_index, log_bytes(o), 0, session_id)
        if log is not None:
            self._kept.keep(transport_index, key, _DATA, data_socket)
            self._kept.keep(transport_index, key, _NAKS, nak_socket)
        return self._sender(transport_index, key, session_id, (data_socket, nak_socket), o, log)

    def _go_on(self, transport_index: int, key: GroupKey, o: LbtrmSourceOptions) -> LbtrmSender | None:
        """Go on with a session of the former incarnation, behind what that one had logged; None when it cannot be."""
        former = self._kept.take(transport_index, (_DATA, _NAKS), log_bytes(o))
        if former is None:
            return None
        log = former.log
        try:
            self.sent_before[transport_index] = SentBefore(log, DATA_HEADER, self._host.kept.turn.former)
        except DecodeError:
            former.close()
            self._kept.forget(transport_index, key, log)
            return None
        data_socket, nak_socket = former.sockets[_DATA], former.sockets[_NAKS]
        interface = nak_socket.getsockname()[0]
        sockets.adopt(data_socket, interface, sends_to_groups=interface != sockets.ANY)
        sender = self._sender(transport_index, key, log.mark, (data_socket, nak_socket), o, log, log.after)
        sender.core.adopt(log.after - log.first & MASK, FormerDatagrams(log).find)
        sender.go_on(self._host.loop.now_ns())
        return sender

    def _sender(
        self,
        transport_index: int,
        key: GroupKey,
        session_id: int,
        open_sockets: tuple[socket.socket, socket.socket],
        o: LbtrmSourceOptions,
        log: SharedLog | None,
        first_sqn: int = 0,
    ) -> LbtrmSender:
        host, (group, port), (data_socket, nak_socket) = self._host, key, open_sockets
        ip = sockets.ip_number(data_socket.getsockname()[0])
        config = o.fill(
            SourceConfig,
            rx_queue_bytes=max(o.retransmit_rate_bps // 8, 65536) if o.retransmit_rate_bps else 1 << 30,
            sm_before_data=self._sm_before_data,
            max_ncfs_per_packet=max(1, (o.datagram_max_bytes - NAK_OVERHEAD_BYTES) // 4),
            first_sqn=first_sqn,
        )
        session = DatagramSenderSetup(
            LbtrmAddress(ip, group, session_id, port, nak_socket.getsockname()[1]),
            data_socket,
            nak_socket,
            interface=sockets.ip_text(ip),
            datagram_max_bytes=o.datagram_max_bytes,
            transport_index=transport_index,
            header_bytes=DATA_HEADER,
            pack_bytes=o.pack_bytes,
            log=log,
            window_log_bytes=window_log_bytes(o),
            forget=nothing if log is None else partial(self._kept.forget, transport_index, key, log),
        )
        core = SourceSession(config, self._data_limiter, self._retransmit_limiter, host.loop.now_ns())
        tgsz_log2 = max(0, o.tgsz.bit_length() - 1)
        return LbtrmSender(host.loop, session, core, self._data_limiter, host.batch, self._events.on_closed, tgsz_log2)


KIND: Final = TransportKind(
    LbtrmAddress, LbtrmReceivers, LbtrmSenders, ImmediateSessions(LbtrmSenders.open_immediate, ImmediateReceiver)
)
