"""LBT-TCP, the sending half: the shell around `dro.proto.tcp.source`.

`TcpSender` is one own session: it listens, accepts receivers, and writes the core's data to each of them without ever
blocking.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from struct import Struct
from typing import Final

from dro.clock import NS_PER_S, ms
from dro.errors import DecodeError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.tcp.source import CloseClient, Connected, Discarded, Disconnected, TcpSourceCore, Wakeup
from dro.timers import Timer
from dro.transport import sockets
from dro.transport.frames import drop_first, in_stream, write_topics
from dro.transport.kind import SenderEvents
from dro.transport.runs import KIND_SHIFT, KIND_TSNI, MINIMAL_BYTES, TYPE_CONTROL, WORDS, RunTable, chain
from dro.transport.session import BlockedReceiver, SessionCounts, SourceSessionStatistics
from dro.transport.stream import ByteStream, PlainStream, StreamEvents, StreamMaker
from dro.transport.tcp.kept import KeptStream
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import MESSAGE_MAX, BlockType
from dro.wire.source_string import TcpAddress, format_source

log = logging.getLogger(__name__)
limited = LimitedLogger(log).event
events_log = LimitedLogger.of_events(log)

ACCEPT_PAUSE_NS: Final = ms(100)  # a listener that cannot accept stays readable: it is left alone for so long
OPENING_MAX: Final = 64  # connections that were accepted and are not open yet; of more, the oldest is closed
LINGER_CHECK_NS: Final = ms(5)
LINGER_MAX_NS: Final = 2 * NS_PER_S
"""How long a session that has lost its last source waits for receivers to take what is buffered."""
COPY_BELOW_SHARE: Final = 4
"""Messages that fill less than this fraction of their buffer are copied, so that they do not keep the rest alive."""
_CLIENT_READ: Final = 4096
_CLIENT_READS_AT_END: Final = 16
_TOPIC: Final = Struct("!I")
_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


@dataclass(frozen=True, slots=True)
class TcpSenderSetup:
    """One session to be sent on; sizes of 0 leave them to the system, `keepalive_ns` of 0 switches it off."""

    address: TcpAddress
    listener: socket.socket
    datagram_max_bytes: int
    transport_index: int
    nodelay: bool = True
    send_buffer_bytes: int = 0
    keepalive_ns: int = 0
    make_stream: StreamMaker = PlainStream
    kept: KeptStream | None = None


class TcpSender:
    """A `SenderTransport` on a listening socket.

    With `TcpSenderSetup.kept` it leaves its connections, and what they have yet to get, to the next incarnation of its
    process.
    """

    is_read_on = True

    def __init__(
        self, loop: Loop, setup: TcpSenderSetup, core: TcpSourceCore, events: SenderEvents | None = None
    ) -> None:
        self.address = setup.address
        self.transport_index = setup.transport_index
        self.core = core
        self.datagram_max_bytes = setup.datagram_max_bytes
        self.fragment_max_bytes = min(setup.datagram_max_bytes, MESSAGE_MAX)
        self.on_unblocked: Callable[[], object] | None = None
        self.packs_all = False  # a stream has no datagrams
        self.bad_input = 0  # connections closed because what came is no LBMC messages
        self._loop = loop
        self._setup = setup
        self._kept = setup.kept
        self._events = events
        self._listener = setup.listener
        self._opening: dict[ByteStream, None] = {}  # accepted, not open yet; the oldest first
        self._clients: dict[int, ByteStream] = {}
        self._scratch = memoryview(bytearray(_CLIENT_READ))
        self._names: dict[int, str] = {}
        self._heard: dict[int, bytes] = {}
        self._silent: set[int] = set()  # clients that are still to say the session id
        self._waiting: dict[int, int] = {}  # clients whose stream takes no more, and when it took something last
        self._is_blocked = False
        self._is_closing = False
        self._is_closed = False
        self._pause: Timer | None = None
        self._linger: Timer | None = None
        self._listen()

    @property
    def is_blocked(self) -> bool:
        return self._is_blocked

    def is_heard(self, since_ns: int, now_ns: int) -> bool:
        return self.core.is_heard

    @property
    def is_flushing(self) -> bool:
        return self._is_closing and not self._is_closed

    # sending

    def send_batch(self, buffer: bytearray, table: RunTable, now_ns: int) -> int:
        if self._is_blocked or self._is_closed:
            return 0
        offered = table.fragments()
        if not self._clients:  # nobody listens: the stream starts with the next message that somebody hears
            self.core.stats.msgs_sent += offered
            self.core.stats.bytes_sent += table.nbytes()
            table.rows = 0
            return offered
        write_topics(buffer, table)
        _, _, count, at, length, stride, shape = table.words[:WORDS]
        if (
            table.rows == 1
            and shape >> KIND_SHIFT != KIND_TSNI
            and (stride == length or count == 1)
            and count * length * COPY_BELOW_SHARE >= len(buffer)
        ):
            taken = self._send(buffer, at, range(at + length, at + count * length + 1, length), now_ns)
        else:
            stream, ends = in_stream(buffer, table)
            taken = self._send(stream, 0, ends, now_ns)
        if taken == offered:
            table.rows = 0
        else:
            drop_first(table, taken)
        return taken

    def flush(self) -> None:
        pass

    def send_message(self, message: bytes, now_ns: int, payload_bytes: int = 0) -> bool:
        if self._is_blocked or self._is_closed:
            return False
        return self._send(message, 0, (len(message),), now_ns) == 1

    def send_packed(self, messages: Sequence[bytes], payload_bytes: int, now_ns: int) -> int:
        if self._is_blocked or self._is_closed:
            return 0
        return self._send(b"".join(messages), 0, list(accumulate(map(len, messages))), now_ns)

    def _send(
        self, buffer: bytes | bytearray, start: int, ends: range | list[int] | tuple[int, ...], now_ns: int
    ) -> int:
        done, total = 0, len(ends)
        while done < total:
            taken = self.core.send_run(buffer, start, ends[done:], now_ns)
            if not taken:
                self._is_blocked = True
                break
            done += taken
            end = ends[done - 1]
            if self._kept is not None:
                self._kept.note(memoryview(buffer)[start:end])
            start = end
            for client in self.core.send_order():
                if client not in self._waiting:
                    self._write(client, now_ns)
        self._perform(now_ns, is_sending=True)
        return done

    def _write(self, client: int, now_ns: int, took_ns: int | None = None) -> None:
        """Write what the client's stream takes; `took_ns`: when it took something last, if it has waited since."""
        stream = self._clients[client]
        while pieces := self.core.pending(client):
            try:
                written = stream.send_pieces(pieces)
            except BlockingIOError:
                self._waiting[client] = now_ns if took_ns is None else took_ns
                return
            except OSError:
                self._drop(client, now_ns)
                return
            self.core.on_written(client, written, now_ns)
            took_ns = None

    def _on_writable(self, client: int) -> None:
        took_ns = self._waiting.pop(client, None)
        now_ns = self._loop.now_ns()
        self._write(client, now_ns, took_ns)
        self._perform(now_ns)

    # what it has sent

    def settling(self, now_ns: int, linger_ns: int, *, is_last: bool) -> Callable[[int], bool]:
        """While more follows, the buffers of the system do not run empty: they count only for what is the last."""
        mark = self.core.mark()
        return lambda _: self.core.has_passed(mark) and not (is_last and self._has_unacknowledged())

    def _has_unacknowledged(self) -> bool:
        """Say whether something was sent but has not reached the machine of some receiver."""
        return bool(self.core.stats.bytes_buffered) or any(stream.backlog() for stream in self._clients.values())

    def counts(self) -> SessionCounts:
        return SessionCounts(bad=self.bad_input, discarded=self.core.stats.msgs_discarded)

    def statistics(self) -> SourceSessionStatistics:
        counters = replace(self.core.stats)
        return SourceSessionStatistics(format_source(self.address), counters, blocked=tuple(self._blocked()))

    def _blocked(self) -> Iterator[BlockedReceiver]:
        core, now_ns = self.core, self._loop.now_ns()
        for client, took_ns in self._waiting.items():
            waiting, discarded = core.pending_bytes(client), core.discarded(client)
            yield BlockedReceiver(self._names[client], waiting, now_ns - took_ns, discarded, self._is_blocked)

    # receivers

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._on_accept)

    def _on_accept(self) -> bool:
        try:
            sock, peer = self._listener.accept()
        except BlockingIOError:
            return False
        except OSError as e:
            limited(LogEvent.TCP_ACCEPT_FAILED, extra={"port": self.address.port, "error": e.strerror})
            if e.errno in _EXHAUSTED:
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(ACCEPT_PAUSE_NS, self._listen)
            return False  # else the client gave up: on with the next
        sock.setblocking(False)
        if self._setup.nodelay:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._setup.send_buffer_bytes:
            sockets.set_buffer(sock, socket.SO_SNDBUF, self._setup.send_buffer_bytes)
        sockets.set_keepalive(sock, self._setup.keepalive_ns)
        self._open(sock, f"{peer[0]}:{peer[1]}")
        return True

    def go_on(self, name: str, sock: socket.socket, missing: bytes) -> None:
        """Go on with a connection of another process, which has yet to get the bytes that are missing."""
        self._open(sock, name, missing)

    def _open(self, sock: socket.socket, name: str, missing: bytes | None = None) -> None:
        client = sock.fileno()
        stream = self._setup.make_stream(self._loop, sock, True)
        self._opening[stream] = None
        if len(self._opening) > OPENING_MAX:
            self._on_lost(next(iter(self._opening)))
        stream.start(
            StreamEvents(
                on_open=lambda: self._on_open(client, name, stream, sock, missing),
                on_lost=lambda: self._on_lost(stream),
                on_readable=lambda: self._on_client_bytes(client),
                on_writable=lambda: self._on_writable(client),
            )
        )

    def _on_lost(self, stream: ByteStream) -> None:
        """Drop a connection that never was open."""
        del self._opening[stream]
        stream.close()

    def _on_open(self, client: int, name: str, stream: ByteStream, sock: socket.socket, missing: bytes | None) -> None:
        del self._opening[stream]
        now_ns = self._loop.now_ns()
        if self.core.on_connected(client, now_ns):
            self._clients[client] = stream
            self._names[client] = name
            self._heard[client] = b""
            if missing is not None:
                self.core.go_on(client, missing)
            elif self._kept is not None:
                self._kept.keep(name, sock)
            if self.address.session_id and missing is None:
                self._silent.add(client)
            self._write(client, now_ns)  # an offer to filter
        else:
            stream.close()
        self._perform(now_ns)

    def _on_client_bytes(self, client: int) -> bool:
        now_ns = self._loop.now_ns()
        try:
            count = self._clients[client].read_into(self._scratch)
        except BlockingIOError:
            return False
        except OSError:
            count = 0
        if not count:
            self._drop(client, now_ns)
            self._perform(now_ns)
            return False
        self._silent.discard(client)
        heard = self._heard[client] + self._scratch[:count]
        try:
            while len(heard) >= MINIMAL_BYTES:
                length = lbmc.MINIMAL.unpack_from(heard)[2]
                if length < MINIMAL_BYTES:
                    raise DecodeError("lbmc.msglen", f"{length} from a receiver")
                if len(heard) < length:
                    break
                self._on_client_message(client, heard[:length], now_ns)
                heard = heard[length:]
        except DecodeError:
            self.bad_input += 1
            self.core.on_bad_input(client, now_ns)
        if client in self._heard:
            self._heard[client] = heard
        self._perform(now_ns)
        return count == _CLIENT_READ and client in self._clients

    def _on_client_message(self, client: int, message: bytes, now_ns: int) -> None:
        kind, head, length = lbmc.MINIMAL.unpack_from(message)
        if kind != TYPE_CONTROL:
            return
        for code, at, size in chain(message, MINIMAL_BYTES, length, head):
            if code == BlockType.TCP_SID:
                if size != 8:
                    raise DecodeError("tcp_sid", f"block of {size} bytes")
                self.core.on_session_id(client, _TOPIC.unpack_from(message, at + 4)[0], now_ns)

    def _drop(self, client: int, now_ns: int) -> None:
        self._forget(client)
        self.core.on_disconnected(client, now_ns)

    def _forget(self, client: int) -> None:
        stream = self._clients.pop(client, None)
        if stream is not None:
            self._heard.pop(client, None)
            self._waiting.pop(client, None)
            self._silent.discard(client)
            stream.close()
            if self._kept is not None:
                self._kept.drop(self._names[client])

    def _perform(self, now_ns: int, *, is_sending: bool = False) -> None:
        """Carry out what the core asks for.

        `is_sending`: from within a send, whose result tells the caller more than a wake-up between two parts of it.
        """
        while self.core.has_events:
            for event in self.core.take_events():
                match event:
                    case Connected(client=client):
                        if self._events is not None:
                            self._events.on_client(self, self._names.get(client, "?"), True)
                    case Disconnected(client=client):
                        self._forget(client)
                        name = self._names.pop(client, "?")
                        if self._events is not None:
                            self._events.on_client(self, name, False)
                    case CloseClient(client=client, reason=reason):
                        extra = {"client": self._names.get(client, "?"), "reason": reason.value}
                        events_log.event(LogEvent.TCP_RECEIVER_CLOSED, extra)  # `Disconnected` follows
                    case Discarded(client=client, messages=messages):
                        name = self._names.get(client, "?")
                        if self._kept is not None:
                            self._kept.drop(name)
                        limited(LogEvent.TCP_DISCARDED, extra={"client": name, "messages": messages})
                    case Wakeup() if not is_sending and self._is_blocked:
                        self._is_blocked = False
                        if self.on_unblocked is not None:
                            self.on_unblocked()

    # end

    def close(self, linger_ns: int, now_ns: int) -> None:
        """Accept no more receivers, wait up to `linger_ns` for those there are to take what is buffered, then close."""
        if self._is_closed:
            return
        self._is_closing = True
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for stream in list(self._opening):
            self._on_lost(stream)
        for timer in (self._pause, self._linger):
            if timer is not None:
                timer.cancel()
        self._close_when_empty(now_ns + min(linger_ns, LINGER_MAX_NS))

    def _close_when_empty(self, end_ns: int) -> None:
        now_ns = self._loop.now_ns()
        is_held = self.core.stats.bytes_buffered or any(stream.holds for stream in self._clients.values())
        # what a client says after the close is answered by a reset, which takes what its machine has not got
        is_held = is_held or any(self._clients[client].backlog() for client in self._silent)
        if is_held and now_ns < end_ns:
            due_ns = min(now_ns + LINGER_CHECK_NS, end_ns)
            self._linger = self._loop.call_at(due_ns, lambda: self._close_when_empty(end_ns))
            return
        self._is_closed = True
        if self._kept is not None:
            self._kept.forget()
        self.on_unblocked = None  # it knows the session
        for client, stream in list(self._clients.items()):
            self._read_out(stream)
            self._forget(client)
        if self._events is not None:
            self._events.on_closed(self)

    def _read_out(self, stream: ByteStream) -> None:
        """Take what the other side has said: a close with unread bytes is a reset, which takes what is on its way."""
        with contextlib.suppress(OSError):
            for _ in range(_CLIENT_READS_AT_END):
                if not stream.read_into(self._scratch):
                    break
