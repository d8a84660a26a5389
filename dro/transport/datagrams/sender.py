"""The sending half of transports that repair datagrams: one source session on its sockets.

Datagrams are built in place (a private copy of the received fragments, with room for the header in front of each), sent
as trains with segmentation offload where the kernel supports it, and stay in place as the transmission window. The core
(`dro.proto.repair.source`) handles numbers, retransmissions and session messages; the rate limits are shared by all
sessions of a context. What a kind adds is its packets, and who gets them.

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
from typing import Any, Final

from dro.clock import ms
from dro.kept.log import SharedLog
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.proto.ratelimit import RateLimiter
from dro.proto.repair.retransmit import Chunk, Retransmitter
from dro.proto.repair.source import Effect, SourceSession
from dro.sqn import MASK
from dro.timers import Timer
from dro.transport import mmsg
from dro.transport.datagrams.setup import DatagramSenderSetup
from dro.transport.frames import Datagrams, drop_first, lay_out, write_topics
from dro.transport.runs import FRAGMENTS, HEADER_BYTES, KIND_SHIFT, KIND_TSNI, LENGTH, SHAPE, WORDS, RunTable
from dro.transport.session import SenderTransport, SessionCounts, SourceSessionStatistics
from dro.transport.sockets import receive_drops
from dro.transport.trains import BUSY, Trains
from dro.wire.source_string import format_source

log = logging.getLogger(__name__)

_MAX_DATAGRAM: Final = 65507  # what UDP over IPv4 carries
_RETRY_NS: Final = ms(1)  # a device without buffers leaves the socket writable
_CONTROL_NS: Final = ms(2)  # of a turn
MAX_KEPT: Final = 256
"""Retransmissions that wait for room in the socket. Guess: others are asked for again; UM's bound is not public."""

Address = tuple[str, int]


class DatagramSender:
    """A `SenderTransport` but for what a kind adds: `is_heard`, `_write_headers`, `on_packet`, `_perform`."""

    is_read_on = False
    is_flushing = False

    def __init__(
        self,
        loop: Loop,
        setup: DatagramSenderSetup,
        core: SourceSession,
        data_limiter: RateLimiter,
        batch: mmsg.DatagramBatch,
        on_closed: Callable[[SenderTransport], object] | None = None,
        trains: Trains | None = None,
    ) -> None:
        """`trains`: what datagrams leave by, if not to whom the data socket is connected to."""
        self._header = setup.header_bytes
        self._headroom = bytes(setup.header_bytes)
        self._copies = 1  # of each datagram that leave, which the rate limit counts
        self.address: Any = setup.address
        self.transport_index = setup.transport_index
        self.core = core
        self.datagram_max_bytes = setup.datagram_max_bytes
        self.fragment_max_bytes = min(setup.datagram_max_bytes, _MAX_DATAGRAM) - self._header
        self.on_unblocked: Callable[[], object] | None = None
        self.send_errors = 0
        self.unsent = 0  # datagrams of these
        self.bad_packets = 0  # that came and are none of the session's receivers
        self._loop = loop
        self._limiter = data_limiter
        self.packs_all = False
        self._pack_bytes = setup.pack_bytes
        self._socket = setup.data_socket
        self._control_socket = setup.control_socket
        self._unread: deque[tuple[bytes, int]] = deque()  # packets of receivers, and raw addresses of these
        self._control_drops = 0  # packets that the socket had dropped when it was closed
        self._goes_on = False
        self._log = setup.log
        self._window_log_bytes = setup.window_log_bytes
        self._is_window = setup.log is not None and setup.log.capacity >= setup.window_log_bytes
        self._forget = setup.forget
        self._batch = batch
        self._on_closed = on_closed
        self._is_blocked = False
        self._is_closed = False
        self._timer: Timer | None = None
        self._wake: Timer | None = None
        self._linger: Timer | None = None
        self._is_full = False  # it waits for room in the socket, by a writer or by this timer
        self._room: Timer | None = None
        # retransmissions that leave first when there is room: who is told of a failure, sqn, datagram, receiver
        self._kept: deque[tuple[SourceSession | Retransmitter, int, bytearray, Address | None]] = deque()
        self._trains = Trains(self._socket, setup.interface) if trains is None else trains
        self._trains.on_error = self._on_send_error
        loop.add_reader(self._control_socket, self._on_readable)
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

    def is_heard(self, since_ns: int, now_ns: int) -> bool:
        raise NotImplementedError

    # sending

    def send_batch(self, buffer: bytearray, table: RunTable, now_ns: int) -> int:
        if self._is_blocked or self._is_closed:
            return 0
        offered = table.fragments()
        words = table.words
        header = self._header
        most = self.fragment_max_bytes + header
        if not self.packs_all:
            most = min(self._pack_bytes, most)
        if (
            table.rows == 1
            and words[SHAPE] >> KIND_SHIFT != KIND_TSNI
            and (words[FRAGMENTS] == 1 or header + 2 * words[LENGTH] > most)
        ):
            write_topics(buffer, table)
            taken = self._send_run(buffer, table, now_ns)
        else:
            datagrams = lay_out(buffer, table, header, most, self._reserve if self._is_window else None)
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
        header = self._header
        size = length + header
        count = self._admit(fragments, size, now_ns)
        if not count:
            return 0
        if shape & 0xFF >= header and stride == size:
            at = offset - header
        else:
            view = memoryview(buffer)
            parts: list[bytes | memoryview] = [self._headroom] * (2 * count)
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
        return self.send_datagram(bytearray(self._headroom + message), payload_bytes, now_ns)

    def send_packed(self, messages: Sequence[bytes], payload_bytes: int, now_ns: int) -> int:
        datagram = bytearray(b"".join([self._headroom, *messages]))
        return len(messages) if self.send_datagram(datagram, payload_bytes, now_ns) else 0

    def send_datagram(self, datagram: bytearray, payload_bytes: int, now_ns: int) -> bool:
        """Send LBMC messages that stand behind room for a header; False when the session is blocked.

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
        size *= self._copies
        fits = self._limiter.take_run(count, size, now_ns, self)
        if fits < count:
            self._is_blocked = True
            self._wake = self._loop.call_at(self._limiter.hold(self, size, now_ns), self._on_wake)
        return fits

    def _admit_sizes(self, sizes: list[int], now_ns: int) -> int:
        """Return how many datagrams of these sizes may go now; if not all, the session is blocked until it wakes."""
        limiter, copies = self._limiter, self._copies
        if copies > 1:
            sizes = [copies * size for size in sizes]
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
        raise NotImplementedError

    def _after_send(self, is_busy: bool, now_ns: int) -> None:
        self._arm()
        if (is_busy or self._trains.is_behind) and not self._is_blocked:
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
        if not self._trains.catch_up():
            self._wait_for_room()
            return
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
            bad=self.bad_packets,
            retransmitted=self.core.stats.rxs_sent,
            trains=self._trains.sent,
            socket_drops=self._control_drops + receive_drops(self._control_socket),
            unsent=self.unsent,
        )

    def statistics(self) -> SourceSessionStatistics:
        core, source = self.core, format_source(self.address)
        return SourceSessionStatistics(source, replace(core.stats), core.txw_msgs, core.txw_bytes, core.rctlr_rx_msgs)

    # what receivers say, and timers

    def _on_readable(self) -> bool:
        """Read what receivers say, for a while: a NAK names up to thousands of sqns, so it may last some turns."""
        is_more = not self._unread and self._receive()
        end_ns = self._loop.now_ns() + _CONTROL_NS
        while self._unread and (now_ns := self._loop.now_ns()) < end_ns:
            self.on_packet(*self._unread.popleft(), now_ns)
        return is_more or bool(self._unread)

    def _receive(self) -> bool:
        """Receive one batch; True when there may be another."""
        batch = self._batch
        try:
            count = batch.receive(self._control_socket.fileno())
        except OSError as e:
            log.warning(LogEvent.NAK_SOCKET_FAILED, extra={"error": e.strerror})
            return False
        for offset, length, sender in zip(batch.offsets[:count], batch.lengths, batch.senders, strict=False):
            self._unread.append((bytes(batch.view[offset : offset + length]), sender))
        return count == mmsg.BATCH

    def on_packet(self, packet: bytes, sender: int, now_ns: int) -> None:
        """Take a packet for the session from a raw address; what is none of its receivers is counted and dropped."""
        raise NotImplementedError

    def _perform(self, effects: list[Effect]) -> None:
        """Send what the core asks for."""
        raise NotImplementedError

    def _repair(
        self, owner: SourceSession | Retransmitter, sqn: int, datagram: bytearray, to: Address | None = None
    ) -> None:
        """Send a datagram again, to all or to one receiver; `owner` is told if that fails."""
        if not self._kept and not self._is_full and self._send_repair(owner, sqn, datagram, to):
            return
        if len(self._kept) < MAX_KEPT:
            self._kept.append((owner, sqn, datagram, to))
            self._wait_for_room()
        else:
            owner.on_send_failed(sqn, len(datagram))

    def _send_repair(
        self, owner: SourceSession | Retransmitter, sqn: int, datagram: bytearray, to: Address | None
    ) -> bool:
        """Send a repair; False: the socket is full."""
        try:
            self._send_to(datagram, to)
        except OSError as e:
            if e.errno in BUSY:
                self._trains.busy = e.errno
                return False
            owner.on_send_failed(sqn, len(datagram))
            self._on_send_error(e)
        return True

    def _send_one(self, datagram: bytes | bytearray, to: Address | None = None) -> None:
        try:
            self._send_to(datagram, to)
        except OSError as e:  # also when the socket is busy: it is asked for again, or sent again, later
            self._on_send_error(e)

    def _send_to(self, datagram: bytes | bytearray, to: Address | None) -> None:
        """Send to one receiver, or to whom the socket is connected to. Raises: OSError."""
        if to is None:
            self._socket.send(datagram)
        else:
            self._socket.sendto(datagram, to)

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
        self._loop.remove_reader(self._control_socket)
        self._control_drops = receive_drops(self._control_socket)
        self._socket.close()
        self._control_socket.close()
        self._trains.close()
        self.on_unblocked = None  # it knows the session
        if self._on_closed is not None:
            self._on_closed(self)
