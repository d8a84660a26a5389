"""The receiving half of transports that repair datagrams: the shells around the receiver sessions of `dro.proto`.

A `SessionSocket` owns a UDP socket and distributes datagrams to the sessions joined on it, each a `DatagramReceiver`.
Neither contains policy: loss and NAK timing are decided by the cores. What a kind adds is where its packets have what,
and what it sends.

The receive path works on batches. What is data in order goes through the scan (`dro.transport.scan`); any other
datagram is looked at here, one by one. A batch is handed up once, with the run tables of all its sessions.

Where a former process left its sessions (`dro.kept`), the socket is that one, with all that waits in it, and
a session goes on behind the last datagram before which nothing was missing. That is noted in its row when a turn of the
loop is over, when all that was handed up has been passed on: what a process that is killed did not note comes twice.

Wire layout: protocol notes, LBT-RM and LBT-RU sections; acceptance order and counters: the same, "acceptance order".
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from dro.clock import Clock
from dro.errors import DecodeError
from dro.kept.rows import KeptRow, KeptRows
from dro.kept.store import NOTHING_KEPT, Kept
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.proto.repair.loss import NakDue, SessionEvent, Skipped, Unrecoverable
from dro.proto.repair.receiver import ReceiverSession
from dro.proto.session_events import Began, Ended
from dro.sqn import HALF, MASK
from dro.timers import Timer
from dro.transport import mmsg
from dro.transport.datagrams.drops import DroppedDatagrams
from dro.transport.datagrams.held import HeldDatagrams
from dro.transport.kind import SessionHost
from dro.transport.runs import FLAG_REPAIR, RunTable, read_messages
from dro.transport.scan import DatagramHeader, Stream, Streams, find, scan_datagrams
from dro.transport.session import (
    DataReader,
    OnEnded,
    ReceiverSessionStatistics,
    ReceiverTransport,
    SessionCounts,
    SessionSink,
)
from dro.transport.sockets import ip_text, receive_drops
from dro.wire.source_string import LbtrmAddress, LbtruAddress, format_source

log = logging.getLogger(__name__)
limited = LimitedLogger(log).event

_BATCHES_PER_TURN: Final = 4
_READS_BEFORE_END: Final = 64
NAK_OVERHEAD_BYTES: Final = 16
_IS_NOTED: Final = 1
NO_ROOM: Final = RunTable(0)
"""Of a session that no data has come of: a table has some 200 KiB, and many sessions say little."""

SessionName = tuple[int, int]
"""Key as the scan finds it in a datagram, and IPv4 address of the source as it lies in a raw socket address."""


class DatagramReceiver(ReceiverTransport):
    """One joined session: its core, its timer, and where it stands in the rows that outlive this process."""

    def __init__(
        self,
        address: LbtrmAddress | LbtruAddress,
        key: int,
        core: ReceiverSession,
        sink: SessionSink,
        on_ended: OnEnded,
        owner: SessionSocket,
    ) -> None:
        """`key`: as the scan finds it in the session's datagrams."""
        super().__init__(address)
        self.core = core
        self.sink = sink
        self.on_ended = on_ended
        self.key = key
        self.name: SessionName = (key, int.from_bytes(address.ip.to_bytes(4, "big"), "little"))
        self.source_at = (ip_text(address.ip), address.nak_port if isinstance(address, LbtrmAddress) else address.port)
        """Where NAKs go."""
        self.stream = Stream(key, NO_ROOM)
        self.timer: Timer | None = None
        self.is_left = False
        self.lbm_msgs_rcved = 0
        self.unrecoverable_dgrams = 0
        self.row: KeptRow | None = None
        self.held: HeldDatagrams | None = None
        self._noted: int | None = None
        self._owner = owner

    @property
    def is_joined(self) -> bool:
        return self._owner.has(self)

    @property
    def active_ns(self) -> int:
        return self.core.active_ns

    def mark(self) -> int | None:
        return None if self.is_left else self.core.expected

    def is_whole(self, mark: int | None) -> bool:
        if mark is None or self.is_left or self.core.expected is None:
            return True
        return (self.core.contiguous + 1 - mark) & MASK < HALF

    def next_deadline(self) -> int | None:
        """Return when `on_timer` has work, ns."""
        return self.core.next_deadline()

    def on_timer(self, now_ns: int) -> None:
        """Do what is due."""
        self.core.on_timer(now_ns)

    def take_events(self) -> list[SessionEvent]:
        """Return what has happened since the last call, in order."""
        return self.core.take_events()

    def settle(self, now_ns: int) -> None:
        """Tell the core of the datagrams in order that the scan found."""
        stream = self.stream
        if stream.datagrams:
            self.core.on_run(stream.first, stream.datagrams, stream.trail, now_ns, stream.nbytes)
            self.lbm_msgs_rcved += stream.messages
            stream.datagrams = stream.nbytes = stream.messages = 0

    def follow(self) -> None:
        """Tell the scan what the core expects next; while something is held back, it leaves all to the socket."""
        expected = self.core.expected
        self.stream.expected = -1 if expected is None or self.held is not None else expected

    def go_on(self, rows: KeptRows, row_kind: bytes, now_ns: int) -> bool:
        """Go on where the former process has left the session, if it has; this one leaves it in the same place."""
        self.row = row = rows.row(row_kind, self.row_name)
        if row is None or (former := row.former) is None or former.b != _IS_NOTED:
            return False
        self.core.go_on_at(former.a & MASK, now_ns)
        self.held = HeldDatagrams()
        self.follow()
        return True

    def hand_up_held(self, now_ns: int) -> None:
        """Hand up in order what was held back, when it is time."""
        held = self.held
        if held is None or not held.is_over(self.core.missing, now_ns):
            return
        self.held = None
        self.follow()
        for view, table, messages in held.batches():
            self.lbm_msgs_rcved += messages
            if not self.is_left:
                self.sink.on_fragments(view, [(self, table)], now_ns)

    def note(self) -> None:
        """Note up to which datagram nothing is missing, when all of that has been passed on; what is held was not."""
        if self.row is None or self.core.expected is None or self.held is not None:
            return
        following = (self.core.contiguous + 1) & MASK
        if following != self._noted:
            self._noted = following
            self.row.write(following, _IS_NOTED)

    @property
    def row_name(self) -> bytes:
        return format_source(self.address).encode()

    def counts(self) -> SessionCounts:
        stats = self.core.stats
        return SessionCounts(unrecoverable=self.unrecoverable_dgrams, naks_sent=stats.naks_sent, lost=stats.lost)

    def statistics(self) -> ReceiverSessionStatistics:
        no_topic = self.lbm_msgs_no_topic_rcved
        counters = replace(self.core.stats, lbm_msgs_rcved=self.lbm_msgs_rcved, lbm_msgs_no_topic_rcved=no_topic)
        return ReceiverSessionStatistics(format_source(self.address), counters)

    def leave(self) -> None:
        self._owner.leave(self)


class SessionSocket(DataReader):
    """A UDP socket and the sessions that were joined on it.

    A kind implements `_on_datagram`, `_perform_own`, and with its own `join` calls `_add`. `_socket` is open when
    `_begin` is called.
    """

    def __init__(
        self,
        host: SessionHost,
        header: DatagramHeader,
        *,
        label: str,
        row_kind: bytes,
        kept_name: bytes,
        on_empty: Callable[[Any], object],
        kept: Kept = NOTHING_KEPT,
    ) -> None:
        """`label`: what the log calls it. `kept`: where the socket and the sessions of a former process are, and these
        are left, under `kept_name` and `row_kind`.
        """
        self.stats = DroppedDatagrams()
        self._header = header
        self._loop = host.loop
        self._clock: Clock = host.loop.clock
        self._batch = mmsg.DatagramBatch(like=host.batch)
        self._label = label
        self._row_kind = row_kind
        self._on_empty = on_empty
        self._sessions: dict[SessionName, DatagramReceiver] = {}
        self._streams: Streams = {}
        self._touched: list[Stream] = []
        self._due: dict[DatagramReceiver, None] = {}
        self._moved: dict[DatagramReceiver, None] = {}  # sessions that something has come of in this turn
        self._kept = kept
        self._kept_name = kept_name

    def _start(self, sock: socket.socket) -> None:
        """Read that socket when the process may read what a former one has left."""
        self._socket = sock
        self._kept.sockets.keep(self._kept_name, sock)
        self._kept.gate.when_open(self._begin)

    def _begin(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket, self._on_readable)

    # sessions

    def _add(self, session: DatagramReceiver) -> bool:
        """Take a session in. True: it goes on with one of a former process."""
        rows = self._kept.rows
        goes_on = rows is not None and session.go_on(rows, self._row_kind, self._clock.now_ns())
        self._sessions[session.name] = session
        self._streams[session.name] = session.stream
        return goes_on

    def has(self, session: DatagramReceiver) -> bool:
        return self._sessions.get(session.name) is session

    def leave(self, session: DatagramReceiver) -> None:
        if not self.has(session):
            return
        del self._sessions[session.name]
        del self._streams[session.name]
        self._forget(session)
        if not self._sessions:
            self._on_empty(self)

    def counts(self) -> SessionCounts:
        """Datagrams for other sessions than the joined ones are none of ours, but not bad."""
        s = self.stats
        return SessionCounts(s.bad, s.unknown_msgs_rcved, socket_drops=receive_drops(self._socket))

    def close(self) -> None:
        for session in self._sessions.values():
            self._forget(session)
        self._sessions.clear()
        self._streams.clear()
        self._loop.remove_reader(self._socket)
        self._kept.sockets.drop(self._kept_name)
        self._socket.close()

    def _forget(self, session: DatagramReceiver) -> None:
        session.is_left = True
        self._moved.pop(session, None)
        if session.row is not None and self._kept.rows is not None:
            session.row = None
            self._kept.rows.free(self._row_kind, session.row_name)
        if session.timer is not None:
            session.timer.cancel()

    # receiving

    def _read_out(self) -> None:
        """Read what waits, before a session ends of silence: it may be this process that was away."""
        for _ in range(_READS_BEFORE_END):
            if not self._kept.gate.is_open or self._socket.fileno() < 0 or not self._on_readable():
                break

    def _is_idle(self) -> bool:
        """Say whether nobody wants what comes."""
        return not self._sessions

    def _on_readable(self) -> bool:
        for _ in range(_BATCHES_PER_TURN):
            if self._is_idle():
                break
            try:
                count = self._batch.receive(self._socket.fileno())
            except OSError as e:
                limited(LogEvent.RECEIVE_FAILED, extra={"group": self._label, "error": e.strerror})
                return False
            if not count:
                return False
            self._on_batch(self._clock.now_ns())
            if count < mmsg.BATCH:
                return False
        return True

    def _on_batch(self, now_ns: int) -> None:
        batch, streams, header = self._batch, self._streams, self._header
        view, offsets, lengths, senders = batch.view, batch.offsets, batch.lengths, batch.senders
        at = scan_datagrams(view, offsets, lengths, senders, 0, streams, self._touched, header)
        while at < batch.count:
            self._on_datagram(view, offsets[at], lengths[at], senders[at], now_ns)
            at = scan_datagrams(view, offsets, lengths, senders, at + 1, streams, self._touched, header)
        self._hand_up(view, now_ns)

    def _on_datagram(self, view: memoryview, offset: int, length: int, sender: int, now_ns: int) -> None:
        """Take one datagram that the scan left to us."""
        raise NotImplementedError

    def _session(self, key: int, sender: int, now_ns: int) -> DatagramReceiver | None:
        """Find the session of a datagram; its core knows then of all that came before."""
        stream = find(self._streams, key, sender)
        if stream is None:
            return None
        self._touch(stream)
        session = self._sessions[stream.key, sender >> 32]
        session.settle(now_ns)
        return session

    def _touch(self, stream: Stream) -> None:
        if not stream.is_touched:
            stream.is_touched = True
            self._touched.append(stream)

    def _on_data(
        self,
        session: DatagramReceiver,
        view: memoryview,
        place: tuple[int, int, int],
        sqn: int,
        trail: int,
        now_ns: int,
        *,
        is_repair: bool,
    ) -> None:
        """Take a datagram with data; `place`: where it begins, where its messages do, and where it ends."""
        start, pos, end = place
        core, stream = session.core, session.stream
        is_new = True
        if sqn == core.expected and not is_repair:
            core.on_run(sqn, 1, trail, now_ns, end - start)
        else:
            is_new = core.on_data(sqn, trail, is_repair, now_ns, end - start)
        session.follow()
        if not is_new:
            return
        if session.held is not None:
            session.held.keep(sqn, bytes(view[start:end]), pos - start, is_repair=is_repair, now_ns=now_ns)
            session.hand_up_held(now_ns)
            return
        if stream.table.room * 8 < end - pos:
            if stream.table is NO_ROOM:
                stream.table = RunTable()
            else:
                self._hand_up(view, now_ns)
                self._touch(stream)
        try:
            headroom, marks = min(pos - start, 255), FLAG_REPAIR if is_repair else 0
            session.lbm_msgs_rcved += read_messages(view, pos, end, headroom, stream.table, marks)
        except DecodeError as e:
            self.stats.dgrams_dropped_size += 1
            log.debug(LogEvent.LBMC_BROKEN, extra={"error": str(e)})

    # timers and events of a session

    def _hand_up(self, view: memoryview, now_ns: int) -> None:
        """Hand up events and runs of one batch; the beginning of a session comes before its data."""
        touched, self._touched = self._touched, []
        parts: list[tuple[DatagramReceiver, RunTable]] = []
        for stream in touched:
            stream.is_touched = False
            session = self._sessions.get((stream.key, stream.sender >> 32))
            if session is None or session.stream is not stream:
                continue
            session.settle(now_ns)
            if session.row is not None:
                self._moved[session] = None
            if session.core.has_events:
                self._perform(session, now_ns)
            if stream.table.rows and not session.is_left:
                parts.append((session, stream.table))
            deadline = session.next_deadline()
            timer = session.timer
            if deadline is not None and (timer is None or not timer.is_pending or deadline < timer.when_ns):
                self._arm(session)
        if len(parts) == 1:
            parts[0][0].sink.on_fragments(view, parts, now_ns)
        else:
            for _, same in groupby(parts, key=lambda part: id(part[0].sink)):
                found = list(same)
                found[0][0].sink.on_fragments(view, found, now_ns)
        for stream in touched:
            stream.table.rows = 0
        if self._moved:
            self._loop.when_settled(self._note)

    def _note(self) -> None:
        moved, self._moved = self._moved, {}
        for session in moved:
            session.note()

    def _arm(self, session: DatagramReceiver) -> None:
        if session.timer is not None:
            session.timer.cancel()
            session.timer = None
        deadline = session.next_deadline()
        if deadline is not None and not session.is_left:
            session.timer = self._loop.call_at(deadline, lambda: self._on_timer(session))

    def _on_timer(self, session: DatagramReceiver) -> None:
        """Serve a due session in slices: those that lost much at once are due at once, and sockets get time between."""
        if not self._due:
            self._loop.run_in_slices(self._serve_due())
        self._due[session] = None

    def _serve_due(self) -> Iterator[None]:
        while self._due:
            session = next(iter(self._due))
            del self._due[session]
            if not session.is_left and self._clock.now_ns() >= session.core.end_ns:
                self._read_out()
            if not session.is_left:
                now_ns = self._clock.now_ns()
                session.on_timer(now_ns)
                session.follow()
                self._perform(session, now_ns)
                session.hand_up_held(now_ns)
                self._arm(session)
            yield

    def _perform(self, session: DatagramReceiver, now_ns: int) -> None:
        for event in session.take_events():
            if session.is_left:
                return
            match event:
                case NakDue(sqns=sqns):
                    self._send(session, self._nak(session, sqns))
                case Unrecoverable() | Skipped():
                    session.unrecoverable_dgrams += event.count
                    if session.on_lost is not None:
                        session.on_lost(session, event.count, event.cause, now_ns)
                case Began():
                    session.has_begun = True
                    session.sink.on_began(session, now_ns)
                case Ended():
                    self.leave(session)
                    session.on_ended(session, now_ns)

    def _nak(self, session: DatagramReceiver, sqns: tuple[int, ...]) -> bytes:
        """Return the packet that asks for these datagrams."""
        raise NotImplementedError

    def _sending_socket(self) -> socket.socket:
        """Return the socket that packets for the source leave from."""
        return self._socket

    def _send(self, session: DatagramReceiver, packet: bytes) -> None:
        """Send a packet to the source of a session; what is lost is said again later."""
        try:
            self._sending_socket().sendto(packet, session.source_at)
        except OSError as e:
            # the next NAK comes by itself; an ICMP answer of a source that has gone is no fault of ours
            if e.errno not in (errno.ECONNREFUSED, errno.EAGAIN):
                limited(LogEvent.NAK_NOT_SENT, extra={"to": session.source_at[0], "error": e.strerror})
