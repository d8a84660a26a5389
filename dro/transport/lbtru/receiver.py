"""LBT-RU, the receiving half: the socket that sessions share, and what each says to its source.

A session is known by address and port of its source, and by its session id: another session id at the same place is
that of a session before or after, and is dropped. Wire layout: protocol notes, LBT-RU section.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Final

from dro.errors import DecodeError
from dro.kept.store import NOTHING_KEPT, RECEIVING, Kept
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.proto.lbtru.connect import ConnectConfig, ConnectCore, SendConnectRequest
from dro.proto.repair.receiver import ReceiverSession
from dro.transport import mmsg, sockets
from dro.transport.datagrams.receiver import DatagramReceiver, SessionSocket
from dro.transport.kind import SessionHost
from dro.transport.lbtru.options import LbtruReceiverOptions
from dro.transport.scan import DatagramHeader
from dro.transport.session import OnEnded, SessionSink
from dro.wire import lbtru
from dro.wire.lbtru import FLAG_RETRANSMISSION, OPTION_SID
from dro.wire.source_string import LbtruAddress
from dro.wire.transport import TransportDecodeError, TransportOption

limited = LimitedLogger(logging.getLogger(__name__)).event

SID_KEY: Final = 0x0008_0000  # the head of a SID option behind which none follows
HEADER: Final = DatagramHeader(
    20, key_at=12, sqn_at=4, trail_at=8, mark_at=0, mark_bytes=4, mark_mask=0xFFFF_0000 | FLAG_RETRANSMISSION,
    mark=OPTION_SID << 16,
)  # fmt: skip
"""Of data with a session id; data without one is left to the codec."""
ROW_KIND: Final = b"lbtru-rcv"
SOCKET_PREFIX: Final = RECEIVING + b"lbtru "


class LbtruReceiver(DatagramReceiver):
    """One joined session."""

    def __init__(
        self,
        address: LbtruAddress,
        core: ReceiverSession,
        sink: SessionSink,
        on_ended: OnEnded,
        owner: SessionSocket,
        config: ConnectConfig,
        now_ns: int,
    ) -> None:
        session_id = address.session_id
        key = SID_KEY << 32 | session_id if session_id else address.port
        super().__init__(address, key, core, sink, on_ended, owner)
        self.sender = mmsg.raw_address(*self.source_at)
        self.stream.only_from = self.sender
        self.connection = ConnectCore(config, core, now_ns)
        self.sid: tuple[TransportOption, ...] = (lbtru.sid_option(session_id),) if session_id else ()
        self.was_connected = False

    def next_deadline(self) -> int | None:
        return self.connection.next_deadline()

    def on_timer(self, now_ns: int) -> None:
        self.connection.on_timer(now_ns)


class LbtruSocket(SessionSocket):
    """The socket of all sessions that were joined from one interface."""

    def __init__(
        self,
        host: SessionHost,
        o: LbtruReceiverOptions,
        *,
        on_empty: Callable[[LbtruSocket], object],
        kept: Kept = NOTHING_KEPT,
    ) -> None:
        """Raises: ResourceError."""
        place = f"{o.interface}:{o.port_low}-{o.port_high}"
        super().__init__(
            host,
            HEADER,
            label=place,
            row_kind=ROW_KIND,
            kept_name=SOCKET_PREFIX + place.encode(),
            on_empty=on_empty,
            kept=kept,
        )
        self._by_sender: dict[int, dict[int, LbtruReceiver]] = {}
        """By raw address of the source and session id."""
        sock = kept.sockets.take(self._kept_name)
        if sock is None:
            sock = self._bound(host, o)
            sockets.set_buffer(sock, socket.SO_RCVBUF, o.receive_buffer_bytes)
        else:
            sockets.adopt(sock, o.interface)
        self._start(sock)

    def _bound(self, host: SessionHost, o: LbtruReceiverOptions) -> socket.socket:
        """Open a socket on a port of the range, or any other one when all of these are taken."""
        ports = (*range(o.port_low, o.port_high + 1), 0)
        option = "transport_lbtru_port_low/_high (receiver)"
        sock = host.sockets.bind_in_range(socket.SOCK_DGRAM, o.interface, ports, option=option)
        port = sock.getsockname()[1]
        if not o.port_low <= port <= o.port_high:
            limited(LogEvent.LBTRU_PORTS_TAKEN, extra={"low": o.port_low, "high": o.port_high, "port": port})
        return sock

    def join(
        self,
        address: LbtruAddress,
        core: ReceiverSession,
        config: ConnectConfig,
        sink: SessionSink,
        on_ended: OnEnded,
    ) -> LbtruReceiver:
        now_ns = self._clock.now_ns()
        session = LbtruReceiver(address, core, sink, on_ended, self, config, now_ns)
        self._by_sender.setdefault(session.sender, {})[address.session_id] = session
        if self._add(session):
            session.connection.on_heard(now_ns)
            session.was_connected = True
        self._arm(session)
        return session

    def _forget(self, session: DatagramReceiver) -> None:
        super()._forget(session)
        assert isinstance(session, LbtruReceiver)
        there = self._by_sender.get(session.sender, {})
        if there.get(session.address.session_id) is session:  # type: ignore[union-attr]
            del there[session.address.session_id]  # type: ignore[union-attr]
            if not there:
                del self._by_sender[session.sender]

    def _on_datagram(self, view: memoryview, offset: int, length: int, sender: int, now_ns: int) -> None:
        try:
            packet = lbtru.decode(bytes(view[offset : offset + length]), lbtru.RECEIVER_TYPES)
        except TransportDecodeError as e:
            self.stats.dropped(e.reason)
            return
        except DecodeError:
            self.stats.dgrams_dropped_other += 1
            return
        there = self._by_sender.get(sender)
        if there is None:
            self.stats.unknown_msgs_rcved += 1
            return
        session = there.get(packet.session_id)
        if isinstance(packet, lbtru.Reset) and len(there) == 1:  # it has no session id
            (session,) = there.values()
        if session is None:
            next(iter(there.values())).core.stats.dgrams_dropped_sid += 1
            return
        self._session(session.key, sender, now_ns)  # its core knows then of all that came before
        self._on_packet(session, packet, view, offset, length, now_ns)

    def _on_packet(
        self, session: LbtruReceiver, packet: lbtru.Packet, view: memoryview, offset: int, length: int, now_ns: int
    ) -> None:
        if isinstance(packet, lbtru.Data | lbtru.SessionMessage) and not session.was_connected:
            session.connection.on_heard(now_ns)
            session.was_connected = True
        match packet:
            case lbtru.Data(sqn=sqn, trail=trail, flags=flags, payload=payload):
                end = offset + length
                is_repair = bool(flags & FLAG_RETRANSMISSION)
                self._on_data(session, view, (offset, end - len(payload), end), sqn, trail, now_ns, is_repair=is_repair)
            case lbtru.SessionMessage(lead=lead, trail=trail):
                session.core.on_session_message(lead, trail, now_ns)
                session.follow()
            case lbtru.Ncf(sqns=sqns, reason=reason, trail=trail):
                session.core.on_ncf(sqns, reason, trail, now_ns)
            case lbtru.Reset():
                session.connection.on_reset(now_ns)

    def _perform(self, session: DatagramReceiver, now_ns: int) -> None:
        assert isinstance(session, LbtruReceiver)
        for event in session.connection.take_sends():
            if isinstance(event, SendConnectRequest):
                self._send(session, lbtru.encode(lbtru.ConnectRequest(options=session.sid)))
            else:
                self._send(session, lbtru.encode(lbtru.Ack(event.sqn, options=session.sid)))
        super()._perform(session, now_ns)

    def _nak(self, session: DatagramReceiver, sqns: tuple[int, ...]) -> bytes:
        assert isinstance(session, LbtruReceiver)
        return lbtru.encode(lbtru.Nak(sqns, options=session.sid))
