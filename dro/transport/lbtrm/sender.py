"""LBT-RM, the sending half: one source session on its data socket and its NAK socket."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

from dro.clock import ms
from dro.errors import DecodeError
from dro.loop import Loop
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.effects import Retransmit, SendNcf
from dro.proto.repair.session_messages import SendSm
from dro.proto.repair.source import Effect, SourceSession
from dro.transport import mmsg
from dro.transport.datagrams.sender import DatagramSender
from dro.transport.datagrams.setup import DatagramSenderSetup
from dro.transport.lbtrm.headers import write_headers
from dro.transport.session import SenderTransport
from dro.wire import lbtrm
from dro.wire.source_string import LbtrmAddress

_TRAIL_AND_FLAGS: Final = Struct("!IB")
JOIN_NS: Final = ms(20)
"""How long a receiver takes from the advertisement of a session until it hears the session. Guess."""
FLAGS: Final = lbtrm.FLAG_UCAST_NAKS


class LbtrmSender(DatagramSender):
    """A `SenderTransport`."""

    def __init__(
        self,
        loop: Loop,
        setup: DatagramSenderSetup,
        core: SourceSession,
        data_limiter: RateLimiter,
        batch: mmsg.DatagramBatch,
        on_closed: Callable[[SenderTransport], object] | None = None,
        tgsz_log2: int = 0,
    ) -> None:
        """`tgsz_log2` goes into the TGSZ byte; the FEC symbol is the sqn modulo that group size."""
        super().__init__(loop, setup, core, data_limiter, batch, on_closed)
        address = setup.address
        assert isinstance(address, LbtrmAddress)
        self._nak_port = address.nak_port
        self._session_id = address.session_id
        self._tgsz = tgsz_log2
        self._symbol_mask = (1 << tgsz_log2) - 1

    def is_heard(self, since_ns: int, now_ns: int) -> bool:
        """Receivers of LBT-RM do not say that they have joined; those of a session that goes on have."""
        return self._goes_on or now_ns - since_ns >= JOIN_NS

    def _write_headers(self, buffer: bytearray | memoryview, offsets: Sequence[int]) -> None:
        core = self.core
        key = self._nak_port << 32 | self._session_id
        write_headers(buffer, offsets, key, core.next_sqn, core.trail, self._tgsz, self._symbol_mask)

    def on_packet(self, packet: bytes, sender: int, now_ns: int) -> None:
        try:
            nak = lbtrm.decode(packet)
        except DecodeError:
            self.bad_packets += 1
            return
        if not isinstance(nak, lbtrm.Nak) or nak.session_id != self._session_id or nak.ucast_port != self._nak_port:
            self.bad_packets += 1
            return
        self._perform(self.core.on_nak(nak.sqns, now_ns))
        self._arm()

    def _perform(self, effects: list[Effect]) -> None:
        port, session_id, trail = self._nak_port, self._session_id, self.core.trail
        for effect in effects:
            match effect:
                case Retransmit(sqn=sqn, buffer=buffer, offset=offset, length=length):
                    datagram = bytearray(buffer[offset : offset + length])
                    _TRAIL_AND_FLAGS.pack_into(datagram, 12, trail, FLAGS | lbtrm.FLAG_RETRANSMISSION)
                    self._repair(self.core, sqn, datagram)
                case SendNcf(reason=reason, sqns=sqns):
                    self._send_one(lbtrm.encode(lbtrm.Ncf(port, session_id, trail, reason, 0, tuple(sqns))))
                case SendSm(sm_sqn=sm_sqn, lead=lead, trail=trail_then):
                    message = lbtrm.SessionMessage(port, session_id, sm_sqn, lead, trail_then, FLAGS, self._tgsz)
                    self._send_one(lbtrm.encode(message))
