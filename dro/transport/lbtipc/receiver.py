"""LBT-IPC, the receiving half: the shell around `dro.proto.lbtipc.receiver`.

`IpcReceiver` is one joined session: it asks the source for its memory over a local socket, and reads records when it is
woken: first all wake-ups are taken off the socket, then the memory is read up to the newest record, so none is missed.
Nothing that is found in the memory is believed. Where a process leaves its sessions to the next one, connection and the
number of the next record are kept.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Final

from dro.errors import DecodeError, ResourceError
from dro.kept.rows import KeptRow
from dro.kept.store import RECEIVING, Kept
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.lbtipc.receiver import ConnectMemory, IpcReceiverCore
from dro.proto.session_events import Began, Ended
from dro.shared_memory.records import RecordReader
from dro.timers import Timer
from dro.transport.lbtipc import memory as shared
from dro.transport.runs import RunTable
from dro.transport.scan import BadStream, scan_stream
from dro.transport.session import (
    DataReader,
    OnEnded,
    ReceiverSessionStatistics,
    ReceiverTransport,
    SessionCounts,
    SessionSink,
)
from dro.wire import lbtipc
from dro.wire.lbtipc import IpcHello, IpcPosition, IpcRefusal, IpcWelcome
from dro.wire.source_string import IpcAddress, format_source

log = logging.getLogger(__name__)
limited = LimitedLogger(log).event

ROW_KIND: Final = b"lbtipc-rcv"
CONNECTION_PREFIX: Final = RECEIVING + b"lbtipc "
READ_BYTES: Final = 128 << 10
"""Of the memory in one go, and up to a record more."""
SAID_SHARE: Final = 8
"""Each time it has read this part of the memory, or of its index, a receiver says so where the session waits for it."""
_PACKETS_PER_TURN: Final = 64
_IS_NOTED: Final = 1


class IpcReceiver(ReceiverTransport, DataReader):
    """One joined session."""

    is_in_order = True

    def __init__(
        self,
        loop: Loop,
        address: IpcAddress,
        core: IpcReceiverCore,
        sink: SessionSink,
        on_ended: OnEnded,
        *,
        table: RunTable,
        kept: Kept,
    ) -> None:
        """`table`: is empty between turns, and may be that of other sessions too."""
        super().__init__(address)
        self.core = core
        self.bad = 0
        self.lost = 0
        self.was_connected = False
        self._loop = loop
        self._sink = sink
        self._on_ended = on_ended
        self._table = table
        self._store = kept
        self._source = format_source(address)
        self._name = CONNECTION_PREFIX + self._source.encode()
        self._row: KeptRow | None = None
        self._sock: socket.socket | None = None
        self._memory: RecordReader | None = None
        self._has_joined = False
        self._is_paced = False
        self._at = lbtipc.NEW  # the record to go on with
        self._life = self._asked = 0
        self._said = self._said_bytes = 0
        self._is_left = False
        # Not at once: what fails on the spot would end before its sources are bound.
        self._timer: Timer | None = loop.call_at(core.active_ns, self._on_timer)

    @property
    def active_ns(self) -> int:
        return self.core.active_ns

    def counts(self) -> SessionCounts:
        return SessionCounts(bad=self.bad, unrecoverable=self.lost, lost=self.lost)

    def statistics(self) -> ReceiverSessionStatistics:
        counters = replace(self.core.stats, lbm_msgs_no_topic_rcved=self.lbm_msgs_no_topic_rcved)
        return ReceiverSessionStatistics(self._source, counters)

    def leave(self) -> None:
        self._is_left = True
        self._disconnect()
        if self._timer is not None:
            self._timer.cancel()
        if self._row is not None and self._store.rows is not None:
            self._row = None
            self._store.rows.free(ROW_KIND, self._source.encode())

    # connection

    def _connect(self, now_ns: int) -> None:
        if self._sock is not None and not self._store.gate.is_open:
            return  # it waits for the gate
        sock = self._former()
        self._disconnect()
        try:
            self._sock = sock = sock or shared.connect(self.address_ipc)
            if not shared.may_be_read(sock):
                self._tell_refused("user", "let the source run as the user of the receiver, or in a group of it")
                self._disconnect()
                return
            sock.send(lbtipc.encode(IpcHello(self.address_ipc.session_id, self._at), shared.LAYOUT))
        except OSError:
            self._disconnect()
            return
        self._store.gate.when_open(self._listen)

    @property
    def address_ipc(self) -> IpcAddress:
        assert isinstance(self.address, IpcAddress)
        return self.address

    def _former(self) -> socket.socket | None:
        """Take the connection of the former process, and where it was."""
        rows = self._store.rows
        if rows is not None and self._row is None:
            self._row = rows.row(ROW_KIND, self._source.encode())
            if self._row is not None and self._row.former is not None and self._row.former.b == _IS_NOTED:
                self._at = self._row.former.a
        sock = self._store.sockets.take(self._name)
        if sock is None:
            return None
        with contextlib.suppress(OSError):
            while sock.recv(lbtipc.PACKET_MAX):
                """Wake-ups of the former process."""
        return sock

    def _listen(self) -> None:
        if self._sock is not None:
            self._loop.add_reader(self._sock, self._on_readable)

    def _disconnect(self) -> None:
        sock, self._sock = self._sock, None
        self._has_joined = False
        if sock is not None:
            self._store.sockets.drop(self._name)
            self._loop.remove_reader(sock)
            self._loop.remove_writer(sock)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        if self._memory is not None:
            self._at = self._memory.number
            self._memory.close()
            self._memory = None

    def _lost(self, now_ns: int) -> None:
        self._disconnect()
        self.core.on_closed(now_ns)
        self._perform(now_ns)

    def _on_welcome(self, packet: bytes, fds: list[int], now_ns: int) -> None:
        """Take the answer to a hello. Raises: DecodeError, ResourceError for what is none."""
        match lbtipc.decode(packet, shared.LAYOUT):
            case IpcWelcome() if fds and not shared.stays_whole(fds[0]):
                self._tell_refused(
                    "memory of another user, who could cut it short",
                    "let both run as the same user, or in the same group",
                )
                self._lost(now_ns)
            case IpcWelcome(at, is_receiver_paced) if fds:
                name = Path(shared.shared_name(self.address_ipc))
                self._memory = memory = RecordReader(name, fds[0], self.address_ipc.session_id, at)
                self._has_joined = self.was_connected = True
                self._is_paced = is_receiver_paced
                self._said, self._said_bytes = at, 0  # of bytes too few: it says once more than it has to
                self._life, self._asked = memory.life, memory.asked
                self.core.on_connected(now_ns)
                self._note()
                if self._sock is not None:
                    self._store.sockets.keep(self._name, self._sock)
            case IpcRefusal(reason):
                self._tell_refused(reason.name.lower(), "the log of the source has the remedy")
                self._lost(now_ns)
            case other:
                raise DecodeError("lbtipc", f"{type(other).__name__} with {len(fds)} descriptors")

    def _tell_refused(self, reason: str, remedy: str) -> None:
        limited(LogEvent.IPC_NOT_JOINED, extra={"source": self._source, "reason": reason, "remedy": remedy})

    # receiving

    def _on_readable(self) -> bool:
        sock, now_ns = self._sock, self._loop.now_ns()
        is_gone = False
        for _ in range(_PACKETS_PER_TURN):
            if sock is None or self._sock is not sock:
                return False
            try:
                packet, fds, _, _ = socket.recv_fds(sock, lbtipc.PACKET_MAX, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                break
            except OSError:
                packet, fds = b"", []
            if not packet:
                is_gone = True
                break
            try:
                if packet != lbtipc.WAKE and not self._has_joined:
                    self._on_welcome(packet, fds, now_ns)
            except (DecodeError, ResourceError) as e:
                self._broken(str(e), now_ns)
            finally:
                for fd in fds:
                    os.close(fd)
        has_more = self._has_joined and self._read(now_ns)
        if is_gone and not has_more and self._sock is sock:
            self._lost(now_ns)
        return has_more

    def _read(self, now_ns: int) -> bool:
        """Read records; True when there are more."""
        memory = self._memory
        if memory is None:
            return False
        buffer = bytearray()
        try:
            if memory.life != self._life:
                self._life = memory.life
                self.core.on_life(now_ns)
            read, lost = memory.read(buffer, READ_BYTES)
        except DecodeError as e:
            self._broken(str(e), now_ns)
            return False
        if lost:
            self.lost += lost
            if self.on_lost is not None:
                self.on_lost(self, lost, "overrun", now_ns)
        if read:
            self.core.on_records(read, 0, len(buffer), now_ns)
        self._perform(now_ns)
        if read and self._memory is memory:
            self._hand_up(buffer, now_ns)
        if self._memory is not memory:
            return False
        self._say_position(memory)
        if read and self._row is not None:
            self._loop.when_settled(self._note)
        return memory.number < memory.count

    def _hand_up(self, buffer: bytearray, now_ns: int) -> None:
        memory, table, view = self._memory, self._table, memoryview(buffer)
        pos, end = 0, len(buffer)
        while pos < end and self._memory is memory:
            error = ""
            try:
                after, messages = scan_stream(view, pos, end, table)
                if not messages:
                    error = f"{end - pos} bytes are no message"
            except BadStream as e:
                after, messages, error = e.pos, e.messages, str(e)
            self.core.stats.lbm_msgs_rcved += messages
            if table.rows:
                self._sink.on_fragments(view, [(self, table)], now_ns)
            table.clear()
            if error and self._memory is memory:
                self._broken(error, now_ns)
            pos = after

    def _broken(self, error: str, now_ns: int) -> None:
        self.bad += 1
        limited(LogEvent.IPC_BROKEN, extra={"source": self._source, "error": error})
        self._disconnect()
        self.core.on_broken(now_ns)
        self._perform(now_ns)

    def _say_position(self, memory: RecordReader) -> None:
        """Say how far it is where the session waits for it, and that is a good deal, or it asks."""
        if not self._is_paced or (
            memory.asked == self._asked
            and memory.number - self._said < memory.entries // SAID_SHARE
            and memory.end - self._said_bytes < memory.capacity // SAID_SHARE
        ):
            return
        sock, asked = self._sock, memory.asked
        if sock is None:
            return
        try:
            sock.send(lbtipc.encode(IpcPosition(memory.number), shared.LAYOUT))
        except BlockingIOError:
            self._loop.add_writer(sock, self._on_writable)
            return
        except OSError:
            return  # its end is read in a moment
        self._asked, self._said, self._said_bytes = asked, memory.number, memory.end

    def _on_writable(self) -> None:
        if self._sock is not None and self._memory is not None:
            self._loop.remove_writer(self._sock)
            self._say_position(self._memory)

    def _note(self) -> None:
        """Note for the next process what has been passed on."""
        if self._row is not None and self._memory is not None:
            self._row.write(self._memory.number, _IS_NOTED)

    # events

    def _perform(self, now_ns: int) -> None:
        for event in self.core.take_events():
            if self._is_left:
                return
            match event:
                case ConnectMemory():
                    self._connect(now_ns)
                case Began():
                    self.has_begun = True
                    self._sink.on_began(self, now_ns)
                case Ended():
                    self._disconnect()
                    self._on_ended(self, now_ns)
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        deadline = self.core.next_deadline()
        if deadline is not None and not self._is_left:
            self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        now_ns = self._loop.now_ns()
        if self._has_joined:
            self._read(now_ns)  # before it ends of silence: it may be this process that was away
        self.core.on_timer(now_ns)
        self._perform(now_ns)
