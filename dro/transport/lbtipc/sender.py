"""LBT-IPC, the sending half: the shell around `dro.proto.lbtipc.source`.

`IpcSender` is one own session: it lets receivers in, writes records into the memory, and wakes them up. Nothing of what
a receiver does can hold it up, but for the session's pacing.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Final

from dro.clock import ms
from dro.errors import DecodeError
from dro.kept.store import TurnNumber
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.lbtipc.source import IpcSourceCore
from dro.shared_memory.records import RecordWriter
from dro.timers import Timer
from dro.transport.frames import drop_first, in_stream, write_topics
from dro.transport.kind import SenderEvents
from dro.transport.lbtipc import memory as shared
from dro.transport.lbtipc.kept import KeptIpc
from dro.transport.runs import RunTable
from dro.transport.session import BlockedReceiver, SessionCounts, SourceSessionStatistics
from dro.wire import lbtipc
from dro.wire.lbmc.codes import MESSAGE_MAX
from dro.wire.lbtipc import IpcHello, IpcPosition, IpcRefusal, IpcWelcome, OtherLayout, Refused
from dro.wire.source_string import IpcAddress, format_source

log = logging.getLogger(__name__)
limited = LimitedLogger(log).event

ACCEPT_PAUSE_NS: Final = ms(100)  # a listener that cannot accept stays readable: it is left alone for so long
OPENING_MAX: Final = 64  # connections that have not said hello; of more, the oldest is closed
_PACKETS_PER_TURN: Final = 16
_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_REMEDIES: Final = {
    Refused.FULL: "raise transport_lbtipc_maximum_receivers_per_transport of the source",
    Refused.LAYOUT: "run the same version in all processes of the host",
    Refused.USER: "let the receiver run as the user of the source, or in a group of it",
    Refused.SESSION: "none is needed: it joins again when the source is advertised",
}


@dataclass(frozen=True, slots=True)
class IpcSenderSetup:
    """One session to be sent on."""

    address: IpcAddress
    transport_index: int
    listener: socket.socket
    memory: RecordWriter
    datagram_max_bytes: int
    turn: TurnNumber
    kept: KeptIpc | None = None


class _Client:
    """One connection."""

    def __init__(self, number: int, sock: socket.socket, name: str) -> None:
        self.number = number
        self.sock = sock
        self.name = name
        self.has_joined = False


class IpcSender:
    """One own session. Implements `SenderTransport`."""

    is_read_on = True
    is_flushing = False

    def __init__(
        self, loop: Loop, setup: IpcSenderSetup, core: IpcSourceCore, events: SenderEvents | None = None
    ) -> None:
        """Raises: ResourceError, without a descriptor for receivers."""
        self.address = setup.address
        self.transport_index = setup.transport_index
        self.core = core
        self.datagram_max_bytes = setup.datagram_max_bytes
        self.fragment_max_bytes = min(setup.datagram_max_bytes, MESSAGE_MAX)
        self.on_unblocked: Callable[[], object] | None = None
        self.packs_all = False  # there are no datagrams
        self.bad_input = 0
        self._fd = shared.for_readers(setup.memory)
        self._loop = loop
        self._events = events
        self._listener = setup.listener
        self._memory = setup.memory
        self._kept = setup.kept
        self._turn = setup.turn
        self._opening: dict[int, _Client] = {}  # that have not said hello; the oldest first
        self._clients: dict[int, _Client] = {}
        self._numbers = 0
        self._is_blocked = False
        self._wanted_bytes = 0
        self._blocked_ns = 0
        self._is_closed = False
        self._pause: Timer | None = None
        self._timer: Timer | None = None
        self._listen()
        self._arm()

    @property
    def is_blocked(self) -> bool:
        return self._is_blocked

    def is_heard(self, since_ns: int, now_ns: int) -> bool:
        return bool(self._clients)

    # sending

    def send_batch(self, buffer: bytearray, table: RunTable, now_ns: int) -> int:
        if self._is_blocked or self._is_closed:
            return 0
        offered = table.fragments()
        if not self._clients:
            self._count_sent(offered, table.nbytes())
            table.rows = 0
            return offered
        write_topics(buffer, table)
        stream, ends = in_stream(buffer, table)
        taken = self._send(stream, ends, now_ns)
        if taken == offered:
            table.rows = 0
        else:
            drop_first(table, taken)
        return taken

    def flush(self) -> None:
        """Nothing is held back."""

    def send_message(self, message: bytes, now_ns: int, payload_bytes: int = 0) -> bool:
        return self.send_packed((message,), payload_bytes, now_ns) == 1

    def send_packed(self, messages: Sequence[bytes], payload_bytes: int, now_ns: int) -> int:
        if self._is_blocked or self._is_closed:
            return 0
        return self._send(b"".join(messages), list(accumulate(map(len, messages))), now_ns)

    def _send(self, stream: bytes, ends: list[int], now_ns: int) -> int:
        """Write messages that end there, in records; how many were taken."""
        if not self._clients:  # nobody listens: who joins begins with the next message
            self._count_sent(len(ends), len(stream))
            return len(ends)
        memory, done, start = self._memory, 0, 0
        view = memoryview(stream)
        while done < len(ends):
            until = max(bisect_right(ends, start + memory.record_max, done), done + 1)
            end = ends[until - 1]
            if not self._write(view[start:end]):
                self._is_blocked, self._wanted_bytes, self._blocked_ns = True, end - start, now_ns
                memory.ask()
                break
            self._count_sent(until - done, end - start)
            done, start = until, end
        self._loop.at_turn_end(self._wake)
        return done

    def _write(self, record: memoryview) -> bool:
        """Write a record; False while a receiver has still to read what is there."""
        memory = self._memory
        if self.core.is_receiver_paced and not memory.has_room(len(record), self.core.oldest(memory.count)):
            return False
        memory.write(record, self._turn.now)
        return True

    def _count_sent(self, fragments: int, nbytes: int) -> None:
        self.core.stats.msgs_sent += fragments
        self.core.stats.bytes_sent += nbytes

    def _wake(self) -> None:
        """Tell all receivers that there is something new; one that has a wake-up waiting needs no other."""
        for client in self._clients.values():
            with contextlib.suppress(OSError):  # BlockingIOError; a broken connection is found by its reader
                client.sock.send(lbtipc.WAKE)

    def _unblock(self) -> None:
        """Go on if there is room now."""
        memory = self._memory
        if self._is_blocked and memory.has_room(self._wanted_bytes, self.core.oldest(memory.count)):
            self._is_blocked = False
            if self.on_unblocked is not None:
                self.on_unblocked()

    # what it has sent

    def settling(self, now_ns: int, linger_ns: int, *, is_last: bool) -> Callable[[int], bool]:
        """Say at once that it has: what is in the memory is read to its end, also when the session is gone."""
        return lambda _: True

    def counts(self) -> SessionCounts:
        return SessionCounts(bad=self.bad_input)

    def statistics(self) -> SourceSessionStatistics:
        counters = replace(self.core.stats)
        return SourceSessionStatistics(format_source(self.address), counters, blocked=tuple(self._blocked()))

    def _blocked(self) -> Iterator[BlockedReceiver]:
        memory, now_ns = self._memory, self._loop.now_ns()
        if self._is_blocked:
            for client in self._clients.values():
                at = self.core.position(client.number)
                if not memory.has_room(self._wanted_bytes, at):
                    yield BlockedReceiver(client.name, memory.bytes_from(at), now_ns - self._blocked_ns, 0, True)

    # messages of life

    def _arm(self) -> None:
        due_ns = self.core.next_deadline()
        self._timer = None if due_ns is None else self._loop.call_at(due_ns, self._on_timer)

    def _on_timer(self) -> None:
        if self.core.is_life_due(self._loop.now_ns()):
            self._memory.show_life()
            self._wake()
        self._arm()

    # receivers

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._on_accept)

    def _on_accept(self) -> bool:
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return False
        except OSError as e:
            limited(LogEvent.IPC_ACCEPT_FAILED, extra={"source": format_source(self.address), "error": e.strerror})
            if e.errno in _EXHAUSTED:
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(ACCEPT_PAUSE_NS, self._listen)
            return False
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # few wake-ups wait
        client = self._add(sock, f"process-{shared.peer_of(sock).process}:{self._numbers}")
        if not shared.may_read(sock):
            self._refuse(client, Refused.USER)
            return True
        if len(self._opening) > OPENING_MAX:
            self._drop(next(iter(self._opening.values())))
        return True

    def _add(self, sock: socket.socket, name: str) -> _Client:
        client = _Client(self._numbers, sock, name)
        self._numbers += 1
        self._opening[client.number] = client
        self._loop.add_reader(sock, partial(self._on_packets, client))
        return client

    def go_on(self, name: str, sock: socket.socket) -> None:
        """Go on with a connection of another process, which has joined; how far it is it will say."""
        sock.setblocking(False)
        self._numbers = max(self._numbers, int(name.rpartition(":")[2]) + 1)
        client = self._add(sock, name)
        self._join(client, 0 if self.core.is_receiver_paced else self._memory.count)
        self._loop.at_turn_end(self._wake)

    def _on_packets(self, client: _Client) -> bool:
        for _ in range(_PACKETS_PER_TURN):
            try:
                packet = client.sock.recv(lbtipc.PACKET_MAX)
            except BlockingIOError:
                return False
            except OSError:
                packet = b""
            if not packet:
                self._drop(client)
                return False
            try:
                self._on_packet(client, lbtipc.decode(packet, shared.LAYOUT))
            except DecodeError:
                self.bad_input += 1
                self._drop(client)
            if client.sock.fileno() < 0:
                return False
        return True

    def _on_packet(self, client: _Client, packet: lbtipc.IpcPacket) -> None:
        """Do what a receiver asks for. Raises: DecodeError for what no receiver says."""
        match packet:
            case IpcPosition(at) if client.has_joined:
                self.core.on_position(client.number, at, self._memory.count)
                self._unblock()
                if self._is_blocked and at < self._memory.count:  # it says so again when it has read on
                    self._memory.ask()
                    self._loop.at_turn_end(self._wake)
            case IpcHello(session_id) if session_id != self.address.session_id:
                self._refuse(client, Refused.SESSION)
            case IpcHello() if self.core.is_full and not client.has_joined:
                self._refuse(client, Refused.FULL)
            case IpcHello(_, at):
                self._welcome(client, min(at, self._memory.count))
            case OtherLayout():
                self._refuse(client, Refused.LAYOUT)
            case _:
                raise DecodeError("lbtipc", type(packet).__name__)

    def _refuse(self, client: _Client, reason: Refused) -> None:
        extra = {"source": format_source(self.address), "client": client.name, "reason": reason.name.lower()}
        limited(LogEvent.IPC_RECEIVER_REFUSED, extra=extra | {"remedy": _REMEDIES[reason]})
        with contextlib.suppress(OSError):
            client.sock.send(lbtipc.encode(IpcRefusal(reason), shared.LAYOUT))
        self._drop(client)

    def _welcome(self, client: _Client, at: int) -> None:
        packet = lbtipc.encode(IpcWelcome(at, self.core.is_receiver_paced), shared.LAYOUT)
        try:
            socket.send_fds(client.sock, [packet], [self._fd])
        except OSError:
            self._drop(client)
            return
        self._join(client, at)

    def _join(self, client: _Client, at: int) -> None:
        self.core.on_joined(client.number, at)
        if not client.has_joined:
            client.has_joined = True
            del self._opening[client.number]
            self._clients[client.number] = client
            if self._kept is not None:
                self._kept.keep(client.name, client.sock)
            if self._events is not None:
                self._events.on_client(self, client.name, True)

    def _drop(self, client: _Client) -> None:
        """Close a connection, of a receiver that has joined or not."""
        if client.sock.fileno() < 0:
            return
        self._loop.remove_reader(client.sock)
        _close(client.sock)
        self._opening.pop(client.number, None)
        if self._clients.pop(client.number, None) is None:
            return
        self.core.on_gone(client.number)
        if self._kept is not None:
            self._kept.drop(client.name)
        if self._events is not None:
            self._events.on_client(self, client.name, False)
        if not self._is_closed:
            self._unblock()

    # end

    def close(self, linger_ns: int, now_ns: int) -> None:
        """Close at once: receivers read what is in the memory to its end."""
        if self._is_closed:
            return
        self._is_closed = True
        self.on_unblocked = None  # it knows the session
        for timer in (self._pause, self._timer):
            if timer is not None:
                timer.cancel()
        self._loop.remove_reader(self._listener)
        _close(self._listener)
        for client in [*self._opening.values(), *self._clients.values()]:
            self._drop(client)
        if self._kept is not None:
            self._kept.forget()
        os.close(self._fd)
        self._memory.close(unlink=self._kept is not None)
        if self._events is not None:
            self._events.on_closed(self)


def _close(sock: socket.socket) -> None:
    """Close a socket at once, also while a duplicate is held."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
