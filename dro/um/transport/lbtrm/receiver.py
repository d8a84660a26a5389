"""LBT-RM, the receiving half: the shells around the receiver sessions of `dro.proto`.

`LbtrmGroup` owns the UDP socket of one (group, port, interface) and distributes datagrams to the joined sessions, each
an `LbtrmReceiver`. Neither contains policy: loss and NAK timing are decided by the cores.

The receive path works on batches. Usually a batch is one steady stream: then its headers are unpacked in one go,
compared column by column, and one `Run` describes it. Everything else is processed datagram by datagram.

Wire layout: protocol notes, LBT-RM section; acceptance order and counters: the same, "acceptance order".
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from struct import Struct
from typing import Final

from dro.clock import Clock
from dro.errors import DecodeError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.lbtrm.loss import NakDue, Skipped, Unrecoverable
from dro.proto.lbtrm.receiver import ReceiverSession
from dro.proto.session_events import Began, Ended
from dro.sqn import HALF, MASK
from dro.timers import Timer
from dro.um.transport import mmsg, sockets
from dro.um.transport.runs import HEADER_BYTES, KIND_DATA, TYPE_MESSAGE, Run, RunBuilder, read_messages
from dro.um.transport.session import (
    DataReader,
    OnEnded,
    ReceiverSessionStatistics,
    ReceiverTransport,
    SessionCounts,
    SessionSink,
)
from dro.wire import lbtrm
from dro.wire.lbtrm import DATA_HEADER
from dro.wire.source_string import LbtrmAddress, format_source
from dro.wire.transport import DropReason, TransportDecodeError

log = logging.getLogger(__name__)
limited = LimitedLogger(log).event

STEADY_MIN_BYTES: Final = DATA_HEADER + HEADER_BYTES
_SESSION: Final = Struct("!Q")  # version, type, next header, NAK port and session id: all of it names the session
_DATA: Final = Struct("!QIIBBH")
_KEY_BITS: Final = 0x0000FFFFFFFFFFFF
_BATCHES_PER_TURN: Final = 4
RX: Final = lbtrm.FLAG_RETRANSMISSION


@lru_cache(maxsize=256)
def _columns(stride: int) -> Struct:
    """Headers of LBT-RM DATA with one LBMC message, for datagrams of `stride` bytes that lie back to back."""
    return Struct(f"!QIIBBHBBHII{stride - STEADY_MIN_BYTES}x")


@dataclass(slots=True)
class GroupStats:
    """Datagrams of one group that were dropped, by reason (UM statistics names)."""

    unknown_msgs_rcved: int = 0
    dgrams_dropped_size: int = 0
    dgrams_dropped_version: int = 0
    dgrams_dropped_type: int = 0
    dgrams_dropped_hdr: int = 0
    dgrams_dropped_other: int = 0

    def dropped(self, reason: DropReason) -> None:
        match reason:
            case DropReason.SIZE:
                self.dgrams_dropped_size += 1
            case DropReason.VERSION:
                self.dgrams_dropped_version += 1
            case DropReason.TYPE:
                self.dgrams_dropped_type += 1
            case DropReason.HEADER:
                self.dgrams_dropped_hdr += 1
            case _:
                self.dgrams_dropped_other += 1


class LbtrmReceiver(ReceiverTransport):
    """One joined session: its core, its timer, and where its NAKs go."""

    def __init__(
        self, address: LbtrmAddress, core: ReceiverSession, sink: SessionSink, on_ended: OnEnded, group: LbtrmGroup
    ) -> None:
        super().__init__(address)
        self.core = core
        self.sink = sink
        self.on_ended = on_ended
        self.key = address.nak_port << 32 | address.session_id
        self.ip = address.ip
        self.nak_to = (sockets.ip_text(address.ip), address.nak_port)
        self.sender = 0  # raw sockaddr of the last datagram that was found to be of this session
        self.builder = RunBuilder()
        self.timer: Timer | None = None
        self.is_left = False
        self.lbm_msgs_rcved = 0
        self.unrecoverable_dgrams = 0
        self._group = group

    @property
    def is_joined(self) -> bool:
        return self._group.has(self)

    @property
    def active_ns(self) -> int:
        return self.core.active_ns

    def mark(self) -> int | None:
        return None if self.is_left else self.core.expected

    def is_whole(self, mark: int | None) -> bool:
        if mark is None or self.is_left or self.core.expected is None:
            return True
        return (self.core.contiguous + 1 - mark) & MASK < HALF

    def counts(self) -> SessionCounts:
        return SessionCounts(unrecoverable=self.unrecoverable_dgrams, naks_sent=self.core.stats.naks_sent)

    def statistics(self) -> ReceiverSessionStatistics:
        no_topic = self.lbm_msgs_no_topic_rcved
        counters = replace(self.core.stats, lbm_msgs_rcved=self.lbm_msgs_rcved, lbm_msgs_no_topic_rcved=no_topic)
        return ReceiverSessionStatistics(format_source(self.address), counters)

    def leave(self) -> None:
        self._group.leave(self)


class LbtrmGroup(DataReader):
    """The socket of one group and port and the sessions that were joined on it."""

    def __init__(
        self,
        loop: Loop,
        group: int,
        port: int,
        interface: str,
        batch: mmsg.DatagramBatch,
        *,
        buffer_bytes: int,
        nak_socket: socket.socket,
        on_empty: Callable[[LbtrmGroup], None],
    ) -> None:
        self.group = group
        self.port = port
        self.interface = interface
        self.stats = GroupStats()
        self._loop = loop
        self._clock: Clock = loop.clock
        self._batch = batch
        self._nak_socket = nak_socket
        self._on_empty = on_empty
        self._sessions: dict[int, list[LbtrmReceiver]] = {}
        self._due: dict[LbtrmReceiver, None] = {}
        self._socket = sockets.multicast_receiver(
            group, port, interface, buffer_bytes=buffer_bytes, option="transport_lbtrm_multicast_address"
        )
        loop.add_reader(self._socket, self._on_readable)

    # sessions

    def join(self, address: LbtrmAddress, core: ReceiverSession, sink: SessionSink, on_ended: OnEnded) -> LbtrmReceiver:
        session = LbtrmReceiver(address, core, sink, on_ended, self)
        self._sessions.setdefault(session.key, []).append(session)
        self._arm(session)
        return session

    def has(self, session: LbtrmReceiver) -> bool:
        return session in self._sessions.get(session.key, ())

    def leave(self, session: LbtrmReceiver) -> None:
        sessions = self._sessions.get(session.key, [])
        if session not in sessions:
            return
        sessions.remove(session)
        if not sessions:
            del self._sessions[session.key]
        self._forget(session)
        if not self._sessions:
            self._on_empty(self)

    def counts(self) -> SessionCounts:
        """Datagrams for other sessions than the joined ones are none of ours, but not bad."""
        s = self.stats
        bad = s.dgrams_dropped_size + s.dgrams_dropped_version + s.dgrams_dropped_type
        bad += s.dgrams_dropped_hdr + s.dgrams_dropped_other
        return SessionCounts(bad, s.unknown_msgs_rcved, socket_drops=sockets.receive_drops(self._socket))

    def close(self) -> None:
        for sessions in list(self._sessions.values()):
            for session in sessions:
                self._forget(session)
        self._sessions.clear()
        self._loop.remove_reader(self._socket)
        self._socket.close()

    @staticmethod
    def _forget(session: LbtrmReceiver) -> None:
        session.is_left = True
        if session.timer is not None:
            session.timer.cancel()

    # receiving

    def _on_readable(self) -> bool:
        for _ in range(_BATCHES_PER_TURN):
            if not self._sessions:
                break
            try:
                count = self._batch.receive(self._socket.fileno())
            except OSError as e:
                limited(LogEvent.RECEIVE_FAILED, extra={"group": sockets.ip_text(self.group), "error": e.strerror})
                return False
            if not count:
                return False
            self._on_batch(self._clock.now_ns())
            if count < mmsg.BATCH:
                return False
        return True

    def _on_batch(self, now_ns: int) -> None:
        batch = self._batch
        senders = batch.senders
        if (
            batch.is_uniform
            and batch.lengths[0] >= STEADY_MIN_BYTES
            and senders.count(senders[0]) == batch.count
            and self._on_stream(now_ns)
        ):
            return
        touched: dict[int, LbtrmReceiver] = {}
        view = batch.view
        for offset, length, sender in zip(batch.offsets, batch.lengths, senders, strict=True):
            session = self._on_datagram(view, offset, length, sender, now_ns)
            if session is not None:
                touched[id(session)] = session
        for session in touched.values():
            self._hand_up(session, view, session.builder.take(), now_ns)

    def _on_stream(self, now_ns: int) -> bool:
        """Take a batch of one session in order, one message each; False, with nothing done, when it is none."""
        batch = self._batch
        n = batch.count
        size = batch.lengths[0]
        start = batch.offsets[0]
        columns = tuple(zip(*_columns(size).iter_unpack(batch.view[start : start + n * size]), strict=True))
        keys, sqns, trails, flags, _, _, kinds, heads, lengths, topics, topic_sqns = columns
        key = keys[0]
        first, topic_first = sqns[0], topic_sqns[0]
        if (
            key >> 48  # type DATA, no option
            or (session := self._session(key, batch.senders[0])) is None
            or session.core.expected != first
            or keys.count(key) != n
            or sqns != tuple(range(first, first + n))
            or flags.count(flags[0]) != n
            or flags[0] & RX
            or lengths.count(size - DATA_HEADER) != n
            or kinds.count(TYPE_MESSAGE) != n
        ):
            return False
        session.core.on_run(first, n, trails[-1], now_ns, n * size)
        session.lbm_msgs_rcved += n
        offset, length = start + DATA_HEADER, size - DATA_HEADER
        if (
            topics.count(topics[0]) == n
            and heads.count(heads[0]) == n
            and topic_sqns == tuple(range(topic_first, topic_first + n))
        ):
            runs = [Run(topics[0], topic_first, n, offset, length, size, DATA_HEADER, heads[0], KIND_DATA)]
        else:
            builder = session.builder
            for topic, sqn, head in zip(topics, topic_sqns, heads, strict=True):
                builder.add(topic, sqn, offset, length, DATA_HEADER, head)
                offset += size
            runs = builder.take()
        self._hand_up(session, batch.view, runs, now_ns)
        return True

    def _session(self, key: int, sender: int) -> LbtrmReceiver | None:
        for session in self._sessions.get(key & _KEY_BITS, ()):
            if session.sender == sender:
                return session
            if mmsg.address_of(sender)[0] == session.ip:
                session.sender = sender
                return session
        return None

    def _on_datagram(
        self, view: memoryview, offset: int, length: int, sender: int, now_ns: int
    ) -> LbtrmReceiver | None:
        """One datagram; returns the session that it was for."""
        if length < 8:
            self.stats.dgrams_dropped_size += 1
            return None
        key = _SESSION.unpack_from(view, offset)[0]
        if key >> 48 or length < DATA_HEADER:  # not DATA, or with options: the rare ones go through the codec
            return self._on_other(view[offset : offset + length], key, sender, now_ns)
        session = self._session(key, sender)
        if session is None:
            self.stats.unknown_msgs_rcved += 1
            return None
        _, sqn, trail, flags, _, _ = _DATA.unpack_from(view, offset)
        core = session.core
        if sqn == core.expected and not flags & RX:
            core.on_run(sqn, 1, trail, now_ns, length)
        elif not core.on_data(sqn, trail, bool(flags & RX), now_ns, length):
            return session
        self._read(session, view, offset + DATA_HEADER, offset + length, DATA_HEADER)
        return session

    def _read(self, session: LbtrmReceiver, view: memoryview, pos: int, end: int, headroom: int) -> None:
        try:
            session.lbm_msgs_rcved += read_messages(view, pos, end, headroom, session.builder)
        except DecodeError as e:
            self.stats.dgrams_dropped_size += 1
            log.debug(LogEvent.LBMC_BROKEN, extra={"error": str(e)})

    def _on_other(self, datagram: memoryview, key: int, sender: int, now_ns: int) -> LbtrmReceiver | None:
        try:
            packet = lbtrm.decode(bytes(datagram))
        except TransportDecodeError as e:
            self.stats.dropped(e.reason)
            return None
        except DecodeError:
            self.stats.dgrams_dropped_other += 1
            return None
        if isinstance(packet, lbtrm.Nak):  # asked of the group by somebody else
            self.stats.dgrams_dropped_type += 1
            return None
        session = self._session(key, sender)
        if session is None:
            self.stats.unknown_msgs_rcved += 1
            return None
        match packet:
            case lbtrm.SessionMessage(lead=lead, trail=trail):
                session.core.on_session_message(lead, trail, now_ns)
            case lbtrm.Ncf(sqns=sqns, reason=reason, trail=trail):
                session.core.on_ncf(sqns, reason, trail, now_ns)
            case lbtrm.Data(sqn=sqn, trail=trail, flags=flags, payload=payload):
                if session.core.on_data(sqn, trail, bool(flags & RX), now_ns, len(datagram)):
                    builder = session.builder
                    self._hand_up(session, self._batch.view, builder.take(), now_ns)
                    copy = memoryview(payload)
                    self._read(session, copy, 0, len(copy), 0)
                    self._hand_up(session, copy, builder.take(), now_ns)
        return session

    # timers and events of a session

    def _hand_up(self, session: LbtrmReceiver, view: memoryview, runs: list[Run], now_ns: int) -> None:
        """Events and runs of one batch; the beginning of a session comes before its data."""
        if session.core.has_events:
            self._perform(session, now_ns)
        if runs and not session.is_left:
            session.sink.on_fragments(session, view, runs, now_ns)
        deadline = session.core.next_deadline()
        timer = session.timer
        if deadline is not None and (timer is None or not timer.is_pending or deadline < timer.when_ns):
            self._arm(session)

    def _arm(self, session: LbtrmReceiver) -> None:
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        deadline = session.core.next_deadline()
        if deadline is not None and not session.is_left:
            session.timer = self._loop.call_at(deadline, lambda: self._on_timer(session))

    def _on_timer(self, session: LbtrmReceiver) -> None:
        """Sessions that lost much at once are due at once: sockets get their share of the time between them."""
        if not self._due:
            self._loop.run_in_slices(self._serve_due())
        self._due[session] = None

    def _serve_due(self) -> Iterator[None]:
        while self._due:
            session = next(iter(self._due))
            del self._due[session]
            if not session.is_left:
                now_ns = self._clock.now_ns()
                session.core.on_timer(now_ns)
                self._perform(session, now_ns)
                self._arm(session)
            yield

    def _perform(self, session: LbtrmReceiver, now_ns: int) -> None:
        for event in session.core.take_events():
            if session.is_left:
                return
            match event:
                case NakDue(sqns=sqns):
                    self._send_nak(session, sqns)
                case Unrecoverable(ranges=ranges):
                    session.unrecoverable_dgrams += sum([count for _, count in ranges])
                case Skipped(count=count):
                    session.unrecoverable_dgrams += count
                case Began():
                    session.has_begun = True
                    session.sink.on_began(session, now_ns)
                case Ended():
                    self.leave(session)
                    session.on_ended(session, now_ns)

    def _send_nak(self, session: LbtrmReceiver, sqns: tuple[int, ...]) -> None:
        nak = lbtrm.Nak(session.nak_to[1], session.key & MASK, sqns)
        try:
            self._nak_socket.sendto(lbtrm.encode(nak), session.nak_to)
        except OSError as e:
            # the next NAK comes by itself; an ICMP answer of a source that has gone is no fault of ours
            if e.errno not in (errno.ECONNREFUSED, errno.EAGAIN):
                limited(LogEvent.NAK_NOT_SENT, extra={"to": session.nak_to[0], "error": e.strerror})
