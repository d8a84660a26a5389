"""LBT-RM, the receiving half: the socket of a multicast group, and the sessions that were joined on it.

Wire layout: protocol notes, LBT-RM section; acceptance order and counters: the same, "acceptance order".
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from struct import Struct
from typing import Final

from dro.errors import DecodeError
from dro.kept.store import NOTHING_KEPT, RECEIVING, Kept
from dro.proto.repair.receiver import ReceiverSession
from dro.sqn import MASK
from dro.transport import sockets
from dro.transport.datagrams.receiver import DatagramReceiver, SessionSocket
from dro.transport.kind import SessionHost
from dro.transport.scan import DatagramHeader
from dro.transport.session import OnEnded, SessionSink
from dro.wire import lbtrm
from dro.wire.lbtrm import DATA_HEADER, FLAG_RETRANSMISSION, FLAGS_OFFSET
from dro.wire.source_string import LbtrmAddress
from dro.wire.transport import TransportDecodeError

_SESSION: Final = Struct("!Q")  # version, type, next header, NAK port and session id: all of it names the session
_DATA: Final = Struct("!QIIBBH")
_KEY_MASK: Final = 0x0000FFFFFFFFFFFF  # without version and type
HEADER: Final = DatagramHeader(
    DATA_HEADER, key_at=0, sqn_at=8, trail_at=12, mark_at=FLAGS_OFFSET, mark_bytes=1, mark_mask=FLAG_RETRANSMISSION,
    mark=0,
)  # fmt: skip
RX: Final = lbtrm.FLAG_RETRANSMISSION
ROW_KIND: Final = b"lbtrm-rcv"
GROUP_PREFIX: Final = RECEIVING + b"lbtrm-group "


class LbtrmGroup(SessionSocket):
    """The socket of one group and port."""

    def __init__(
        self,
        host: SessionHost,
        group: int,
        port: int,
        interface: str,
        *,
        buffer_bytes: int,
        nak_socket: socket.socket,
        on_empty: Callable[[LbtrmGroup], object],
        on_stranger: Callable[[LbtrmAddress], object] | None = None,
        kept: Kept = NOTHING_KEPT,
    ) -> None:
        """`on_stranger` may join a session that data has come of; without it, only what is joined is listened to."""
        text = sockets.ip_text(group)
        super().__init__(
            host,
            HEADER,
            label=text,
            row_kind=ROW_KIND,
            kept_name=GROUP_PREFIX + f"{text}:{port}:{interface}".encode(),
            on_empty=on_empty,
            kept=kept,
        )
        self.group = group
        self.port = port
        self._nak_socket = nak_socket
        self._on_stranger = on_stranger
        self._start(
            self._taken(interface)
            or host.sockets.multicast_receiver(
                group, port, interface, buffer_bytes=buffer_bytes, option="transport_lbtrm_multicast_address"
            )
        )

    def _taken(self, interface: str) -> socket.socket | None:
        """Take the socket that the former process had for this group."""
        sock = self._kept.sockets.take(self._kept_name)
        if sock is not None:
            try:
                sockets.adopt_group(sock, self.group, interface)
            except OSError:  # its device is gone
                sock.close()
                self._kept.sockets.drop(self._kept_name)
                return None
        return sock

    def join(
        self, address: LbtrmAddress, core: ReceiverSession, sink: SessionSink, on_ended: OnEnded
    ) -> DatagramReceiver:
        session = DatagramReceiver(address, address.nak_port << 32 | address.session_id, core, sink, on_ended, self)
        self._add(session)
        self._arm(session)
        return session

    def _is_idle(self) -> bool:
        return not self._sessions and self._on_stranger is None

    def _on_datagram(self, view: memoryview, offset: int, length: int, sender: int, now_ns: int) -> None:
        if length < 8:
            self.stats.dgrams_dropped_size += 1
            return
        key = _SESSION.unpack_from(view, offset)[0]
        if key >> 48 or length < DATA_HEADER:  # not DATA, or with options: the rare ones go through the codec
            self._on_other(view, offset, length, key & _KEY_MASK, sender, now_ns)
            return
        session = self._session(key, sender, now_ns)
        if session is None and self._on_stranger is not None:
            ip = int.from_bytes((sender >> 32).to_bytes(4, "little"), "big")
            self._on_stranger(LbtrmAddress(ip, self.group, key & MASK, self.port, key >> 32 & 0xFFFF))
            session = self._session(key, sender, now_ns)
        if session is None:
            self.stats.unknown_msgs_rcved += 1
            return
        _, sqn, trail, flags, _, _ = _DATA.unpack_from(view, offset)
        place = offset, offset + DATA_HEADER, offset + length
        self._on_data(session, view, place, sqn, trail, now_ns, is_repair=bool(flags & RX))

    def _on_other(self, view: memoryview, offset: int, length: int, key: int, sender: int, now_ns: int) -> None:
        try:
            packet = lbtrm.decode(bytes(view[offset : offset + length]))
        except TransportDecodeError as e:
            self.stats.dropped(e.reason)
            return
        except DecodeError:
            self.stats.dgrams_dropped_other += 1
            return
        if isinstance(packet, lbtrm.Nak):  # asked of the group by somebody else
            self.stats.dgrams_dropped_type += 1
            return
        session = self._session(key, sender, now_ns)
        if session is None:
            self.stats.unknown_msgs_rcved += 1
            return
        match packet:
            case lbtrm.SessionMessage(lead=lead, trail=trail):
                session.core.on_session_message(lead, trail, now_ns)
                session.follow()
            case lbtrm.Ncf(sqns=sqns, reason=reason, trail=trail):
                session.core.on_ncf(sqns, reason, trail, now_ns)
            case lbtrm.Data(sqn=sqn, trail=trail, flags=flags, payload=payload):
                end = offset + length
                place = offset, end - len(payload), end
                self._on_data(session, view, place, sqn, trail, now_ns, is_repair=bool(flags & RX))

    def _nak(self, session: DatagramReceiver, sqns: tuple[int, ...]) -> bytes:
        return lbtrm.encode(lbtrm.Nak(session.source_at[1], session.key & MASK, sqns))

    def _sending_socket(self) -> socket.socket:
        return self._nak_socket
