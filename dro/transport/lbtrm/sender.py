"""LBT-RM, the sending half: one source session on its data socket and its NAK socket.

Datagrams are built in place (a private copy of the received fragments, with room for the header in front of each), sent
as trains with segmentation offload where the kernel supports it, and stay in place as the transmission window. The core
(`dro.proto.repair.source`) handles numbers, retransmissions and session messages; the rate limits are shared by all
sessions of a context.

With a log (`dro.kept.log`) datagrams are in it before they leave, so that the next incarnation of the process repairs
them and goes on behind them. Where the log has room for the whole window, it is the window: datagrams are built in it.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from struct import Struct
from typing import Final

from dro.clock import ms
from dro.errors import DecodeError
from dro.kept.log import SharedLog
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.effects import Retransmit, SendNcf
from dro.proto.repair.retransmit import Chunk
from dro.proto.repair.session_messages import SendSm
from dro.proto.repair.source import Effect, SourceSession
from dro.sqn import MASK
from dro.timers import Timer
from dro.transport import mmsg, sockets
from dro.transport.frames import Datagrams, drop_first, lay_out, write_topics
from dro.transport.lbtrm.headers import write_headers
from dro.transport.lbtrm.setup import LbtrmSenderSetup
from dro.transport.runs import FRAGMENTS, HEADER_BYTES, KIND_SHIFT, KIND_TSNI, LENGTH, SHAPE, WORDS, RunTable
from dro.transport.session import SenderTransport, SessionCounts, SourceSessionStatistics
from dro.transport.trains import BUSY, Trains
from dro.wire import lbtrm
from dro.wire.lbtrm import DATA_HEADER
from dro.wire.source_string import format_source

log = logging.getLogger(__name__)

_HEADROOM: Final = bytes(DATA_HEADER)
_TRAIL_AND_FLAGS: Final = Struct("!IB")
_MAX_DATAGRAM: Final = 65507  # what UDP over IPv4 carries
_RETRY_NS: Final = ms(1)  # a device without buffers leaves the socket writable
_NAKS_NS: Final = ms(2)  # of a turn
MAX_KEPT: Final = 256
"""Retransmissions that wait for room in the socket. Guess: others are asked for again; UM's bound is not public."""
JOIN_NS: Final = ms(20)
"""How long a receiver takes from the advertisement of a session until it hears the session. Guess."""
FLAGS: Final = lbtrm.FLAG_UCAST_NAKS


class LbtrmSender:
    """A `SenderTransport`."""

    is_read_on = False
    is_flushing = False

    def is_heard(self, since_ns: int, now_ns: int) -> bool:
        """Receivers of LBT-RM do not say that they have joined; those of a session that goes on have."""
        return self._goes_on or now_ns - since_ns >= JOIN_NS

    def __init__(
        self,
        loop: Loop,
        setup: LbtrmSenderSetup,
        core: SourceSession,
        data_limiter: RateLimiter,
        batch: mmsg.DatagramBatch,
        on_closed: Callable[[SenderTransport], object] | None = None,
    ) -> None:
        self.address = setup.address
        self.transport_index = setup.transport_index
        self.core = core
        self.datagram_max_bytes = setup.datagram_max_bytes
        self.fragment_max_bytes = min(setup.datagram_max_bytes, _MAX_DATAGRAM) - DATA_HEADER
        self.on_unblocked: Callable[[], object] | None = None
        self.send_errors = 0
        self.unsent = 0  # datagrams of these
        self.bad_naks = 0
        self._loop = loop
        self._limiter = data_limiter
        self.packs_all = False
        self._pack_bytes = setup.pack_bytes
        self._socket = setup.data_socket
        self._nak_socket = setup.nak_socket
        self._asked: deque[bytes] = deque()  # NAK packets that were received and not looked at yet
        self._nak_drops = 0  # NAKs that the socket had dropped when it was closed
        self._goes_on = False
        self._log = setup.log
        self._window_log_bytes = setup.window_log_bytes
        self._is_window = setup.log is not None and setup.log.capacity >= setup.window_log_bytes
        self._forget = setup.forget
        self._batch = batch
        self._tgsz = setup.tgsz_log2
        self._symbol_mask = (1 << setup.tgsz_log2) - 1
        self._on_closed = on_closed
        self._is_blocked = False
        self._is_closed = False
        self._timer: Timer | None = None
        self._wake: Timer | None = None
        self._linger: Timer | None = None
        self._is_full = False  # it waits for room in the socket, by a writer or by this timer
        self._room: Timer | None = None
        self._kept: deque[tuple[int, bytearray]] = deque()  # retransmissions that leave first when there is room
        self._trains = Trains(self._socket, setup.interface, self._on_send_error)
        loop.add_reader(self._nak_socket, self._on_naks)
        self._arm()

    @property
    def is_blocked(self) -> bool:
        return self._is_blocked

    def go_on(self, now_ns: int) -> None:
        """Go on with a session of another process, whose datagrams the core knows; receivers are told the last sqn."""
        self._goes_on = True
        self.core.go_on(now_ns)
        self._perform([self.core.make_sm(now_ns)])
        self._arm()

    # sending

    def send_batch(self, buffer: bytearray, table: RunTable, now_ns: int) -> int:
        if self._is_blocked or self._is_closed:
            return 0
        offered = table.fragments()
        words = table.words
        most = self.fragment_max_bytes + DATA_HEADER
        if not self.packs_all:
            most = min(self._pack_bytes, most)
        if (
            table.rows == 1
            and words[SHAPE] >> KIND_SHIFT != KIND_TSNI
            and (words[FRAGMENTS] == 1 or DATA_HEADER + 2 * words[LENGTH] > most)
        ):
            write_topics(buffer, table)
            taken = self._send_run(buffer, table, now_ns)
        else:
            datagrams = lay_out(buffer, table, DATA_HEADER, most, self._reserve if self._is_window else None)
            taken = self._send_datagrams(datagrams, now_ns)
        if taken == offered:
            table.rows = 0
        else:
            drop_first(table, taken)
        return taken

    def flush(self) -> None:
        pass

    def _send_run(self, buffer: bytearray, table: RunTable, now_ns: int) -> int:
        """Send equal fragments, from where they are when there is room for headers in front of them."""
        _, _, fragments, offset, length, stride, shape = table.words[:WORDS]
        size = length + DATA_HEADER
        count = self._admit(fragments, size, now_ns)
        if not count:
            return 0
        if shape & 0xFF >= DATA_HEADER and stride == size:
            at = offset - DATA_HEADER
        else:
            view = memoryview(buffer)
            parts: list[bytes | memoryview] = [_HEADROOM] * (2 * count)
            parts[1::2] = [view[o : o + length] for o in range(offset, offset + count * stride, stride)]
            buffer, at = bytearray().join(parts), 0
        payload = length - HEADER_BYTES if shape < 1 << KIND_SHIFT else 0
        self._write_headers(buffer, range(at, at + count * size, size))
        stays = self._note_run(memoryview(buffer)[at : at + count * size], count, size, payload)
        sent = self._trains.send_equal(memoryview(buffer), at, count, size)
        if sent < count:
            self._unnote(sent)
        if sent:
            chunk = Chunk(buffer, at, size, size) if stays is None else Chunk(stays, 0, size, size)
            self.core.on_sent_run(sent, payload, chunk, now_ns)
        self._after_send(sent < count, now_ns)
        return sent

    def _send_datagrams(self, datagrams: Datagrams, now_ns: int) -> int:
        """Send datagrams; returns how many fragments were sent, in whole datagrams."""
        buffer, sizes, fragments, payloads = datagrams
        offered = len(sizes)
        count = self._admit_sizes(sizes, now_ns)
        if not count:
            return 0
        if count < offered:
            del sizes[count:]
        ends = [*accumulate(sizes)]
        self._write_headers(buffer, [0, *ends[:-1]])
        self._note_mixed(buffer, ends, payloads)
        sent = self._trains.send_sizes(buffer, sizes, ends)
        if sent < count:
            self._unnote(sent)
        if sent == offered:
            self.core.on_sent_mixed(ends, payloads, buffer, now_ns)
        elif sent:
            self.core.on_sent_mixed(ends[:sent], payloads[:sent], buffer[: ends[sent - 1]], now_ns)
        self._after_send(sent < count, now_ns)
        return sum(fragments[:sent])

    def send_message(self, message: bytes, now_ns: int, payload_bytes: int = 0) -> bool:
        return self.send_datagram(bytearray(_HEADROOM + message), payload_bytes, now_ns)

    def send_packed(self, messages: Sequence[bytes], payload_bytes: int, now_ns: int) -> int:
        datagram = bytearray(b"".join([_HEADROOM, *messages]))
        return len(messages) if self.send_datagram(datagram, payload_bytes, now_ns) else 0

    def send_datagram(self, datagram: bytearray, payload_bytes: int, now_ns: int) -> bool:
        """Send LBMC messages that stand behind `DATA_HEADER` free bytes; False when the session is blocked.

        `payload_bytes` is the user data in it, which the transmission window is measured in.
        """
        size = len(datagram)
        if not self._admit(1, size, now_ns):
            return False
        self._write_headers(datagram, (0,))
        self._note_run(memoryview(datagram), 1, size, payload_bytes)
        sent = self._trains.send_equal(memoryview(datagram), 0, 1, size)
        if not sent:
            self._unnote(0)
        if sent:
            self.core.on_sent_run(1, payload_bytes, Chunk(datagram, 0, size, size), now_ns)
        self._after_send(not sent, now_ns)
        return sent == 1

    # what the next incarnation of this process gets

    def _reserve(self, nbytes: int, count: int) -> memoryview | None:
        """Return where datagrams are to be built: in the log, while it is the window."""
        if (log := self._log) is None:
            return None
        place = log.reserve(nbytes, count)
        self._after_room(log)
        return place if self._is_window else None

    def _note_run(self, data: memoryview, count: int, size: int, payload: int) -> memoryview | None:
        """Log equal datagrams that are about to be sent; returns them there, where the log is the window."""
        if (log := self._log) is None:
            return None
        first = self.core.next_sqn
        if not log.append(first, count, size, payload, data, first + count & MASK):
            self._stop_log()
        self._after_room(log)
        return log.newest() if self._is_window else None

    def _note_mixed(self, buffer: bytearray | memoryview, ends: list[int], payloads: list[int]) -> None:
        """Log datagrams of any sizes that are about to be sent; a view is memory of the log."""
        if (log := self._log) is None:
            return
        first, after = self.core.next_sqn, self.core.next_sqn + len(ends) & MASK
        if type(buffer) is not bytearray:
            log.commit_mixed(first, ends, payloads, after)
            return
        if not log.append_mixed(first, ends, payloads, memoryview(buffer)[: ends[-1]], after):
            self._stop_log()
        self._after_room(log)

    def _after_room(self, log: SharedLog) -> None:
        """Let go of datagrams whose memory in the log is used again; it may have room for less than before."""
        if self._is_window or self._goes_on:
            self.core.leave_logged(log.first, self._is_window)
            self._is_window = self._is_window and log.capacity >= self._window_log_bytes

    def _unnote(self, sent: int) -> None:
        """Take back of what was logged last what the socket did not take."""
        if self._log is not None:
            self._log.cut(sent, self.core.next_sqn + sent & MASK)

    def _stop_log(self) -> None:
        """Go on as a session that ends with its process: there is no memory for its log."""
        if self._log is not None:
            self._log, self._is_window = None, False
            self.core.leave_adopted()  # they are found in the log; memory of it that the window has stays
            self._forget()

    def _admit(self, count: int, size: int, now_ns: int) -> int:
        """Return how many of `count` datagrams may go now; if not all, the session is blocked until it wakes."""
        if self._is_full:  # repairs wait, and go first
            self._is_blocked = True
        if self._is_blocked or self._is_closed:
            return 0
        fits = self._limiter.take_run(count, size, now_ns, self)
        if fits < count:
            self._is_blocked = True
            self._wake = self._loop.call_at(self._limiter.hold(self, size, now_ns), self._on_wake)
        return fits

    def _admit_sizes(self, sizes: list[int], now_ns: int) -> int:
        """Return how many datagrams of these sizes may go now; if not all, the session is blocked until it wakes."""
        limiter = self._limiter
        fits = limiter.take_sizes(sizes, now_ns, self)
        if fits < len(sizes):
            self._is_blocked = True
            self._wake = self._loop.call_at(limiter.hold(self, sizes[fits], now_ns), self._on_wake)
        return fits

    def _on_wake(self) -> None:
        if self._is_full:
            return
        self._is_blocked = False
        if self.on_unblocked is not None:
            self.on_unblocked()
        if not self._is_blocked:
            self._limiter.release(self)

    def _write_headers(self, buffer: bytearray | memoryview, offsets: Sequence[int]) -> None:
        """Write the headers of the datagrams that are sent next."""
        core, address = self.core, self.address
        write_headers(
            buffer,
            offsets,
            address.nak_port << 32 | address.session_id,
            core.next_sqn,
            core.trail,
            self._tgsz,
            self._symbol_mask,
        )

    def _after_send(self, is_busy: bool, now_ns: int) -> None:
        self._arm()
        if is_busy and not self._is_blocked:
            self._is_blocked = True
            self._wait_for_room()

    def _wait_for_room(self) -> None:
        if self._is_full:
            return
        self._is_full = True
        if self._trains.busy == errno.ENOBUFS:
            self._room = self._loop.call_later(_RETRY_NS, self._on_room)
        else:
            self._loop.add_writer(self._socket, self._on_room)

    def _on_room(self) -> None:
        """Send repairs as the socket takes more, then data, unless that waits for the rate limit."""
        self._is_full = False
        self._loop.remove_writer(self._socket)
        while self._kept:
            if not self._send_repair(*self._kept[0]):
                self._wait_for_room()
                return
            self._kept.popleft()
        if self._is_blocked and (self._wake is None or not self._wake.is_pending):
            self._on_wake()

    def _on_send_error(self, error: OSError, datagrams: int = 1) -> None:
        """Count datagrams as sent and lost: they are in the window, and receivers ask for them again."""
        self.unsent += datagrams
        self.send_errors += 1
        if self.send_errors & (self.send_errors - 1) == 0:  # the 1st, 2nd, 4th, ...
            log.warning(LogEvent.SEND_FAILED, extra={"session": format_source(self.address), "error": error.strerror,
                                              "failed": self.send_errors})  # fmt: skip

    # what it has sent

    def settling(self, now_ns: int, linger_ns: int, *, is_last: bool) -> Callable[[int], bool]:
        end_ns = self.core.busy_until(now_ns, linger_ns)
        return lambda now_ns: now_ns >= end_ns

    def counts(self) -> SessionCounts:
        return SessionCounts(
            bad=self.bad_naks,
            retransmitted=self.core.stats.rxs_sent,
            trains=self._trains.sent,
            socket_drops=self._nak_drops + sockets.receive_drops(self._nak_socket),
            unsent=self.unsent,
        )

    def statistics(self) -> SourceSessionStatistics:
        core, source = self.core, format_source(self.address)
        return SourceSessionStatistics(source, replace(core.stats), core.txw_msgs, core.txw_bytes, core.rctlr_rx_msgs)

    # NAKs and timers

    def _on_naks(self) -> bool:
        """Serve NAKs for a while: each names up to thousands of sqns, so what has come may last some turns."""
        is_more = not self._asked and self._receive_naks()
        end_ns = self._loop.now_ns() + _NAKS_NS
        while self._asked and (now_ns := self._loop.now_ns()) < end_ns:
            self.on_nak_packet(self._asked.popleft(), now_ns)
        return is_more or bool(self._asked)

    def _receive_naks(self) -> bool:
        """Receive one batch; True when there may be another."""
        batch = self._batch
        try:
            count = batch.receive(self._nak_socket.fileno())
        except OSError as e:
            log.warning(LogEvent.NAK_SOCKET_FAILED, extra={"error": e.strerror})
            return False
        for offset, length in zip(batch.offsets[:count], batch.lengths, strict=False):
            self._asked.append(bytes(batch.view[offset : offset + length]))
        return count == mmsg.BATCH

    def on_nak_packet(self, packet: bytes, now_ns: int) -> None:
        """A datagram that came to the NAK port. What is no NAK of this session is counted and dropped."""
        try:
            nak = lbtrm.decode(packet)
        except DecodeError:
            self.bad_naks += 1
            return
        address = self.address
        if not isinstance(nak, lbtrm.Nak) or nak.session_id != address.session_id or nak.ucast_port != address.nak_port:
            self.bad_naks += 1
            return
        self._perform(self.core.on_nak(nak.sqns, now_ns))
        self._arm()

    def _perform(self, effects: list[Effect]) -> None:
        address = self.address
        for effect in effects:
            match effect:
                case Retransmit(sqn=sqn, buffer=buffer, offset=offset, length=length):
                    datagram = bytearray(buffer[offset : offset + length])
                    _TRAIL_AND_FLAGS.pack_into(datagram, 12, self.core.trail, FLAGS | lbtrm.FLAG_RETRANSMISSION)
                    self._repair(sqn, datagram)
                case SendNcf(reason=reason, sqns=sqns):
                    ncf = lbtrm.Ncf(address.nak_port, address.session_id, self.core.trail, reason, 0, tuple(sqns))
                    self._send_one(lbtrm.encode(ncf))
                case SendSm(sm_sqn=sm_sqn, lead=lead, trail=trail):
                    message = lbtrm.SessionMessage(
                        address.nak_port, address.session_id, sm_sqn, lead, trail, FLAGS, self._tgsz
                    )
                    self._send_one(lbtrm.encode(message))

    def _repair(self, sqn: int, datagram: bytearray) -> None:
        if not self._kept and not self._is_full and self._send_repair(sqn, datagram):
            return
        if len(self._kept) < MAX_KEPT:
            self._kept.append((sqn, datagram))
            self._wait_for_room()
        else:
            self.core.on_send_failed(sqn, len(datagram))

    def _send_repair(self, sqn: int, datagram: bytearray) -> bool:
        """Send a repair; False: the socket is full."""
        try:
            self._socket.send(datagram)
        except OSError as e:
            if e.errno in BUSY:
                self._trains.busy = e.errno
                return False
            self.core.on_send_failed(sqn, len(datagram))
            self._on_send_error(e)
        return True

    def _send_one(self, datagram: bytes | bytearray) -> None:
        try:
            self._socket.send(datagram)
        except OSError as e:  # also when the socket is busy: it is asked for again, or sent again, later
            self._on_send_error(e)

    def _arm(self) -> None:
        deadline = self.core.next_deadline()
        timer = self._timer
        if timer is not None and timer.is_pending:
            if deadline is not None and deadline >= timer.when_ns:
                return
            timer.cancel()
        self._timer = None if deadline is None or self._is_closed else self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._perform(self.core.on_timer(self._loop.now_ns()))
        self._arm()

    # end

    def close(self, linger_ns: int, now_ns: int) -> None:
        end_ns = self.core.busy_until(now_ns, linger_ns) if linger_ns else now_ns
        if self._linger is not None:
            self._linger.cancel()
        if end_ns > now_ns:
            self._linger = self._loop.call_at(end_ns, self._shut)
        else:
            self._shut()

    def _shut(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._stop_log()
        self._kept.clear()
        for timer in (self._timer, self._wake, self._room):
            if timer is not None:
                timer.cancel()
        self._limiter.release(self)
        self.core.close()
        self._loop.remove_writer(self._socket)
        self._loop.remove_reader(self._nak_socket)
        self._nak_drops = sockets.receive_drops(self._nak_socket)
        self._socket.close()
        self._nak_socket.close()
        self._trains.close()
        self.on_unblocked = None  # it knows the session
        if self._on_closed is not None:
            self._on_closed(self)
