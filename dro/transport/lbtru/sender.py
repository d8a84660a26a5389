"""LBT-RU, the sending half: one source session, whose clients say to its socket what they want."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import fields
from struct import Struct
from typing import Final

from dro.errors import DecodeError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.lbtru.clients import (
    ClientAddress,
    ClientAnswer,
    ClientConnected,
    ClientDisconnected,
    ClientEffect,
    ClientList,
    ClientRefused,
    LbtruSourceStats,
    SendReset,
    SendSyn,
)
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.effects import Retransmit, SendNcf
from dro.proto.repair.retransmit import Retransmitter
from dro.proto.repair.session_messages import SendSm
from dro.proto.repair.source import Effect, SourceSession
from dro.timers import Timer
from dro.transport import mmsg, sockets
from dro.transport.datagrams.sender import DatagramSender
from dro.transport.datagrams.setup import DatagramSenderSetup
from dro.transport.kind import SenderEvents
from dro.transport.lbtru.headers import write_headers
from dro.transport.lbtru.kept import KeptClients
from dro.transport.lbtru.trains import ClientTrains
from dro.transport.runs import RunTable
from dro.transport.session import SourceSessionStatistics
from dro.wire import lbtru
from dro.wire.lbtru import FLAG_RETRANSMISSION, FLAG_SYN
from dro.wire.source_string import format_source

limited = LimitedLogger(logging.getLogger(__name__)).event

_FLAGS: Final = Struct("!H")
_TRAIL: Final = Struct("!I")


class LbtruSender(DatagramSender):
    """A `SenderTransport`. What is sent while nobody has connected leaves no trace but in the counters."""

    def __init__(
        self,
        loop: Loop,
        setup: DatagramSenderSetup,
        core: SourceSession,
        data_limiter: RateLimiter,
        batch: mmsg.DatagramBatch,
        events: SenderEvents,
        *,
        client_timeout_ns: int,
        kept: KeptClients | None = None,
    ) -> None:
        """`kept`: where clients are noted for the next process."""
        self._client_trains = ClientTrains(setup.data_socket, setup.interface)
        super().__init__(loop, setup, core, data_limiter, batch, events.on_closed, self._client_trains)
        self._events = events
        self._session_id: int = setup.address.session_id
        self._sid = (lbtru.sid_option(self._session_id),) if self._session_id else ()
        self._clients = ClientList(core, client_timeout_ns)
        self._client_timer: Timer | None = None
        self._noted = kept
        self._copies = 0

    def is_heard(self, since_ns: int, now_ns: int) -> bool:
        return bool(self._copies)

    def adopt(self, clients: Sequence[ClientAddress], now_ns: int) -> None:
        """Go on with the clients of another process."""
        self._perform_of_clients([self._clients.add(client, now_ns) for client in clients])

    # sending

    def send_batch(self, buffer: bytearray, table: RunTable, now_ns: int) -> int:
        if self._copies or self._is_closed:
            return super().send_batch(buffer, table, now_ns)
        offered = table.fragments()
        self.core.stats.msgs_sent += offered
        self.core.stats.bytes_sent += table.nbytes()
        table.rows = 0
        return offered

    def send_datagram(self, datagram: bytearray, payload_bytes: int, now_ns: int) -> bool:
        if self._copies or self._is_closed:
            return super().send_datagram(datagram, payload_bytes, now_ns)
        self.core.stats.msgs_sent += 1
        self.core.stats.bytes_sent += len(datagram) - self._header
        return True

    def _write_headers(self, buffer: bytearray | memoryview, offsets: Sequence[int]) -> None:
        write_headers(buffer, offsets, self._session_id, self.core.next_sqn, self.core.trail)

    # what clients say

    def on_packet(self, packet: bytes, sender: int, now_ns: int) -> None:
        """Take a packet for the session from a raw address; what is none of its receivers is counted and dropped."""
        try:
            said = lbtru.decode(packet, lbtru.SOURCE_TYPES)
        except DecodeError:
            self.bad_packets += 1
            return
        ip, port = mmsg.address_of(sender)
        client = sockets.ip_text(ip), port
        if said.session_id not in (self._session_id, 0) or not port:
            self.bad_packets += 1  # of a session before this one: it finds out by its timeout
            return
        match said:
            case lbtru.ConnectRequest(request=lbtru.REQUEST_SYN):
                effects = self._clients.on_request(client, now_ns)
            case lbtru.ConnectRequest(request=request):
                self.bad_packets += 1
                limited(LogEvent.LBTRU_REQUEST_UNKNOWN, extra={"client": f"{client[0]}:{port}", "request": request})
                return
            case lbtru.Nak(sqns=sqns):
                effects = self._clients.on_nak(client, sqns, now_ns)
            case _:
                effects = self._clients.on_acknowledgement(client, now_ns)
        self._perform_of_clients(effects)
        self._arm()
        self._arm_clients()

    def _perform_of_clients(self, effects: Sequence[ClientEffect]) -> None:
        for effect in effects:
            match effect:
                case SendSyn(client=client, message=message):
                    self._send_one(self._session_message(message, FLAG_SYN), client)
                case ClientAnswer(client=client, effect=Retransmit() as again, owner=owner):
                    self._send_again(client, again, owner)
                case ClientAnswer(client=client, effect=SendNcf(reason=reason, sqns=sqns)):
                    ncf = lbtru.Ncf(self.core.trail, reason, 0, sqns, options=self._sid)
                    self._send_one(lbtru.encode(ncf), client)
                case SendReset(client=client):
                    self._send_one(lbtru.encode(lbtru.Reset()), client)
                case ClientConnected(client=client) | ClientDisconnected(client=client):
                    self._on_client(client, is_connected=isinstance(effect, ClientConnected))
                case ClientRefused(client=client):
                    name, most = f"{client[0]}:{client[1]}", self._clients.most
                    limited(LogEvent.LBTRU_CLIENT_REFUSED, extra={"client": name, "limit": most})

    def _on_client(self, client: ClientAddress, *, is_connected: bool) -> None:
        if is_connected:
            self._client_trains.clients.append(client)
        else:
            self._client_trains.clients.remove(client)
        self._copies = len(self._client_trains.clients)
        if self._noted is not None:
            self._noted.note(client, is_there=is_connected)
        self._events.on_client(self, f"{client[0]}:{client[1]}", is_connected)

    def _send_again(self, client: ClientAddress, again: Retransmit, owner: Retransmitter) -> None:
        datagram = bytearray(again.buffer[again.offset : again.offset + again.length])
        _FLAGS.pack_into(datagram, 2, FLAG_RETRANSMISSION)
        _TRAIL.pack_into(datagram, 8, self.core.trail)
        self._repair(owner, again.sqn, datagram, client)

    def _session_message(self, sm: SendSm, flags: int = 0) -> bytes:
        return lbtru.encode(lbtru.SessionMessage(sm.sm_sqn, sm.lead, sm.trail, flags, options=self._sid))

    def _perform(self, effects: list[Effect]) -> None:
        """Send session messages, which alone are for all clients."""
        for effect in effects:
            if isinstance(effect, SendSm):
                message = self._session_message(effect)
                for client in self._client_trains.clients:
                    self._send_one(message, client)

    # timers

    def _arm_clients(self) -> None:
        deadline, timer = self._clients.next_deadline(), self._client_timer
        if timer is not None and timer.is_pending:
            if deadline is not None and deadline >= timer.when_ns:
                return
            timer.cancel()
        due = None if deadline is None or self._is_closed else deadline
        self._client_timer = None if due is None else self._loop.call_at(due, self._on_client_timer)

    def _on_client_timer(self) -> None:
        self._perform_of_clients(self._clients.on_timer(self._loop.now_ns()))
        self._arm_clients()

    # what it has sent, and the end

    def settling(self, now_ns: int, linger_ns: int, *, is_last: bool) -> Callable[[int], bool]:
        has_settled = super().settling(now_ns, linger_ns, is_last=is_last)
        return lambda now_ns: not self._copies or has_settled(now_ns)

    def statistics(self) -> SourceSessionStatistics:
        core = self.core
        counted = {field.name: getattr(core.stats, field.name) for field in fields(core.stats)}
        counters = LbtruSourceStats(**counted, num_clients=self._copies)
        waiting = self._clients.waiting_count
        return SourceSessionStatistics(format_source(self.address), counters, core.txw_msgs, core.txw_bytes, waiting)

    def close(self, linger_ns: int, now_ns: int) -> None:
        super().close(linger_ns if self._copies else 0, now_ns)

    def _shut(self) -> None:
        self._clients.close()
        if self._client_timer is not None:
            self._client_timer.cancel()
        self._client_trains.clients.clear()
        super()._shut()

    def _stop_log(self) -> None:
        if self._noted is not None:
            self._noted.forget()
            self._noted = None
        super()._stop_log()
