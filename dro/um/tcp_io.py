"""LBT-TCP on real sockets: the shells around the TCP cores of `dro.proto`.

`TcpReceiver` is one joined session: it connects, names the session id, splits the stream into LBMC messages in place
and hands them up as runs. `TcpSender` is one session of ours: it listens, accepts receivers, and writes what the core
has for each of them without ever blocking.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import Final, Protocol

from dro.clock import ms
from dro.errors import DecodeError
from dro.log import LimitedLogger
from dro.loop import Loop
from dro.proto.lbtrm_receiver import Began, Ended
from dro.proto.tcp_receiver import Close, Connect, SendSessionId, TcpReceiverCore, TcpState
from dro.proto.tcp_source import CloseClient, Connected, Disconnected, TcpSourceCore, Wakeup
from dro.timers import Timer
from dro.um import sockets
from dro.um.runs import KIND_CONTROL, KIND_DATA, LBMC_HEADER, TYPE_MESSAGE, Run, RunBuilder, chain, read_messages
from dro.wire import lbmc
from dro.wire.source_string import TcpAddress, format_source

log = logging.getLogger(__name__)
limited = LimitedLogger(log).limited
events = LimitedLogger.of_events(log)

READ_BYTES: Final = 256 * 1024
MAX_MESSAGE: Final = 65535
ACCEPT_PAUSE_NS: Final = ms(100)  # a listener that cannot accept stays readable: it is left alone for so long
LINGER_CHECK_NS: Final = ms(5)
COPY_BELOW_SHARE: Final = 4
"""Messages that fill less than this fraction of their buffer are copied, so that they do not keep the rest alive."""
_READS_PER_TURN: Final = 2
_PROBE_FIRST: Final = 16  # messages that are looked at together; twice as many each time it was a stream
_PROBE_MOST: Final = 4096
_PROBE_LEAST: Final = 4
_CLIENT_READ: Final = 4096
_CLIENT_READS_AT_END: Final = 16
_HEAD: Final = Struct("!BBH")
_TOPIC: Final = Struct("!I")
_BLOCK_TCP_SID: Final = 0x6B
_BLOCK_TOPIC_IDX: Final = 0x65
_TYPE_CONTROL: Final = 0x8
_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class _BadStream(Exception):
    """The stream cannot be split from `pos` on; `messages` sound ones lie before it."""

    def __init__(self, pos: int, messages: int, error: DecodeError) -> None:
        super().__init__(str(error))
        self.pos = pos
        self.messages = messages
        self.error = error


@lru_cache(maxsize=256)
def _columns(length: int) -> Struct:
    """Headers of LBMC messages of `length` bytes that lie back to back."""
    return Struct(f"!BBHII{length - 12}x")


class TcpSink(Protocol):
    """Who takes what a TCP receiver session hands up."""

    def on_tcp_runs(self, session: TcpReceiver, view: memoryview, runs: list[Run], now_ns: int) -> None:
        """Fragments in order; `view` is valid during the call only."""

    def on_tcp_began(self, session: TcpReceiver, now_ns: int) -> None: ...

    def on_tcp_ended(self, session: TcpReceiver, now_ns: int) -> None:
        """The connection ended or could not be made."""


class TcpReceiver:
    """One joined session. Make it, then `advertised`; after `on_tcp_ended` a new advertisement joins again."""

    def __init__(
        self, loop: Loop, address: TcpAddress, core: TcpReceiverCore, sink: TcpSink, *, interface: str,
        buffer_bytes: int, keepalive: bool = False,
    ) -> None:  # fmt: skip
        self.address = address
        self.core = core
        self.bad_stream = 0
        self._loop = loop
        self._sink = sink
        self._interface = interface
        self._buffer_bytes = buffer_bytes
        self._keepalive = keepalive
        self._socket: socket.socket | None = None
        self._memory = bytearray(READ_BYTES + MAX_MESSAGE)
        self._view = memoryview(self._memory)
        self._held = 0  # bytes of an incomplete message at the start of the buffer
        self._out = b""
        self._builder = RunBuilder()
        self._timer: Timer | None = None
        self._is_left = False

    def advertised(self, now_ns: int) -> None:
        """The session was advertised: join it if it is not joined."""
        if not self._is_left:
            self.core.on_advertised(now_ns)
            self._perform(now_ns)

    def leave(self) -> None:
        """Forget the session for good; nothing more is reported, not even of what has been read already."""
        self._is_left = True
        self._disconnect()
        if self._timer is not None:
            self._timer.cancel()
        # sink and session know each other: without this the buffer would wait for the garbage collector
        self._memory = bytearray()
        self._view = memoryview(self._memory)

    # connection

    def _connect(self, now_ns: int) -> None:
        self._held = 0
        self._out = b""
        try:
            self._socket = sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.setblocking(False)
            if self._buffer_bytes:
                sockets.set_buffer(sock, socket.SO_RCVBUF, self._buffer_bytes)
            if self._keepalive:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self._interface != sockets.ANY:
                sock.bind((self._interface, 0))
            code = sock.connect_ex((sockets.ip_text(self.address.ip), self.address.port))
        except OSError as e:
            code = e.errno or errno.EIO
        if code not in (0, errno.EINPROGRESS):
            self._lost(now_ns)
            return
        self._loop.add_writer(sock, self._on_connected)

    def _on_connected(self) -> None:
        sock = self._socket
        assert sock is not None
        now_ns = self._loop.now_ns()
        self._loop.remove_writer(sock)
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._lost(now_ns)
            return
        self._loop.add_reader(sock, self._on_readable)
        self.core.on_connected(now_ns)
        self._perform(now_ns)

    def _say(self, message: bytes) -> None:
        self._out += message
        sock = self._socket
        if sock is None:
            return
        try:
            self._out = self._out[sock.send(self._out) :]
        except BlockingIOError:
            pass
        except OSError:
            return  # the reader finds out
        if self._out:
            self._loop.add_writer(sock, self._on_writable)

    def _on_writable(self) -> None:
        if self._socket is not None:
            self._loop.remove_writer(self._socket)
            self._say(b"")

    def _disconnect(self) -> None:
        sock, self._socket = self._socket, None
        if sock is not None:
            self._loop.remove_reader(sock)
            self._loop.remove_writer(sock)
            sock.close()

    def _lost(self, now_ns: int) -> None:
        self._disconnect()
        self.core.on_closed(now_ns)
        self._perform(now_ns)

    # receiving

    def _on_readable(self) -> bool:
        for _ in range(_READS_PER_TURN):
            sock = self._socket
            if sock is None:
                return False
            try:
                count = sock.recv_into(self._view[self._held :], READ_BYTES)
            except BlockingIOError:
                return False
            except OSError:
                count = 0
            now_ns = self._loop.now_ns()
            if not count:
                self._lost(now_ns)
                return False
            if not self._on_bytes(self._held + count, now_ns):
                return False
            if count < READ_BYTES:
                return False
        return True

    def _on_bytes(self, end: int, now_ns: int) -> bool:
        """Messages in the buffer up to `end`; False when the connection is no longer the same, or was given up."""
        sock = self._socket
        error: DecodeError | None = None
        try:
            pos, messages = self._read_stream(end)
        except _BadStream as e:
            pos, messages, error = e.pos, e.messages, e.error
        runs = self._builder.take()
        if messages:
            self.core.on_messages(messages, pos, now_ns)
            if self.core.has_events:
                self._perform(now_ns)
            if runs and self._socket is sock:
                self._sink.on_tcp_runs(self, self._view, runs, now_ns)
        if self._socket is not sock:
            return False
        if error is not None:
            self.bad_stream += 1
            limited(
                "stream",
                "TCP session closed: its bytes are no LBMC messages",
                extra={"source": format_source(self.address), "error": str(error)},
            )
            self._lost(now_ns)
            return False
        if pos and pos < end:
            self._memory[: end - pos] = self._memory[pos:end]
        self._held = end - pos
        return True

    def _read_stream(self, end: int) -> tuple[int, int]:
        """Add the messages up to `end` to the builder; (where the first incomplete one begins, how many there were).

        Raises: _BadStream when the bytes cannot be split further; the messages before that have been added.
        """
        view, add = self._view, self._builder.add
        pos = messages = 0
        probe, careful = _PROBE_FIRST, 0  # up to `careful` messages are looked at one by one
        while end - pos >= 4:
            kind, head, length = _HEAD.unpack_from(view, pos)
            if length < lbmc.header_size(kind):
                why = f"type {kind:#04x} with {length} bytes"
                raise _BadStream(pos, messages, DecodeError("lbmc.header", why, pos))
            if pos + length > end:
                break
            if kind == TYPE_MESSAGE:
                count = min((end - pos) // length, probe)
                if pos >= careful and count >= _PROBE_LEAST:
                    if self._take_equal(pos, count, head, length):
                        pos += count * length
                        messages += count
                        probe = min(2 * probe, _PROBE_MOST)
                        continue
                    careful, probe = pos + count * length, _PROBE_FIRST
                _, _, _, topic_index, sqn = LBMC_HEADER.unpack_from(view, pos)
                add(topic_index, sqn, pos, length, 0, head)
            else:
                try:
                    read_messages(view, pos, pos + length, 0, self._builder)
                except DecodeError as e:
                    raise _BadStream(pos, messages, e) from e
            messages += 1
            pos += length
        return pos, messages

    def _take_equal(self, pos: int, count: int, head: int, length: int) -> bool:
        """Take `count` messages from `pos` as one run; False, with nothing done, when they are none."""
        stream = self._view[pos : pos + count * length]
        kinds, heads, lengths, topics, sqns = zip(*_columns(length).iter_unpack(stream), strict=True)
        first = sqns[0]
        if (
            lengths.count(length) != count
            or kinds.count(TYPE_MESSAGE) != count
            or heads.count(head) != count
            or topics.count(topics[0]) != count
            or sqns != tuple(range(first, first + count))
        ):
            return False
        self._builder.add_run(Run(topics[0], first, count, pos, length, length, 0, head, KIND_DATA))
        return True

    # events

    def _perform(self, now_ns: int) -> None:
        for event in self.core.take_events():
            if self._is_left:
                return
            match event:
                case Connect():
                    self._connect(now_ns)
                case SendSessionId(session_id=session_id):
                    self._say(lbmc.encode(lbmc.tcp_sid_message(session_id)))
                case Close():
                    self._disconnect()
                case Began():
                    self._sink.on_tcp_began(self, now_ns)
                case Ended():
                    self._sink.on_tcp_ended(self, now_ns)
        self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.core.next_deadline()
        if deadline is not None and not self._is_left:
            self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        now_ns = self._loop.now_ns()
        self.core.on_timer(now_ns)
        self._perform(now_ns)

    @property
    def is_connected(self) -> bool:
        return self._socket is not None and self.core.state is TcpState.CONNECTED


class TcpSender:
    """A `SenderTransport` on a listening socket."""

    def __init__(
        self,
        loop: Loop,
        address: TcpAddress,
        core: TcpSourceCore,
        *,
        listener: socket.socket,
        datagram_max_bytes: int,
        transport_index: int,
        nodelay: bool = True,
        send_buffer_bytes: int = 0,
        keepalive_ns: int = 0,
        on_client: Callable[[str, bool], object] | None = None,
        on_closed: Callable[[TcpSender], object] | None = None,
    ) -> None:
        """`on_client(address text, connected)` is told of receivers that come and go."""
        self.address = address
        self.transport_index = transport_index
        self.core = core
        self.datagram_max_bytes = datagram_max_bytes
        self.fragment_max_bytes = min(datagram_max_bytes, MAX_MESSAGE)
        self.on_unblocked: Callable[[], object] | None = None
        self.on_client = on_client
        self.bad_input = 0  # connections closed because what came is no LBMC messages
        self._loop = loop
        self._listener = listener
        self._nodelay = nodelay
        self._send_buffer = send_buffer_bytes
        self._keepalive_ns = keepalive_ns
        self._on_closed = on_closed
        self._clients: dict[int, socket.socket] = {}
        self._names: dict[int, str] = {}
        self._heard: dict[int, bytes] = {}
        self._waiting: set[int] = set()  # clients whose socket is full
        self._is_blocked = False
        self._is_closed = False
        self._pause: Timer | None = None
        self._linger: Timer | None = None
        self._listen()

    @property
    def is_blocked(self) -> bool:
        return self._is_blocked

    @property
    def is_open(self) -> bool:
        return not self._is_closed

    # sending

    def send_run(
        self, buffer: bytearray, run: Run, start: int, topic_index: int | None, now_ns: int, *, first: int = 0
    ) -> int:
        if self._is_blocked or self._is_closed:
            return 0
        count, length, stride = run.fragments - first, run.length, run.stride
        at = start + run.offset + first * stride
        if not self._clients:  # nobody listens: the stream starts with the next message that somebody hears
            self.core.stats.msgs_sent += count
            self.core.stats.bytes_sent += count * length
            return count
        if topic_index is None:
            pass
        elif run.kind == KIND_CONTROL:
            for code, block, size in chain(buffer, at + 4, at + length, run.next_header):
                if code == _BLOCK_TOPIC_IDX and size >= 8:
                    _TOPIC.pack_into(buffer, block + 4, topic_index)
        else:
            pack = _TOPIC.pack_into
            for tidx_at in range(at + 4, at + 4 + count * stride, stride):
                pack(buffer, tidx_at, topic_index)
        if stride != length or count * length * COPY_BELOW_SHARE < len(buffer):
            view = memoryview(buffer)
            buffer = bytearray().join([view[o : o + length] for o in range(at, at + count * stride, stride)])
            at = 0
        return self._send(buffer, at, range(at + length, at + count * length + 1, length), now_ns)

    def send_message(self, message: bytes, now_ns: int) -> bool:
        if self._is_blocked or self._is_closed:
            return False
        return self._send(message, 0, (len(message),), now_ns) == 1

    def send_batch(self, messages: bytearray, ends: list[int], now_ns: int) -> int:
        """Send LBMC messages that lie back to back from 0; `ends` are their ends. Returns how many were taken."""
        if self._is_blocked or self._is_closed:
            return 0
        return self._send(messages, 0, ends, now_ns)

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
            start = ends[done - 1]
            for client in self.core.send_order():
                if client not in self._waiting:
                    self._write(client, now_ns)
        self._perform(now_ns, is_sending=True)
        return done

    def _write(self, client: int, now_ns: int) -> None:
        sock = self._clients[client]
        while pieces := self.core.pending(client):
            try:
                written = sock.sendmsg(pieces) if len(pieces) > 1 else sock.send(pieces[0])
            except BlockingIOError:
                self._waiting.add(client)
                self._loop.add_writer(sock, lambda: self._on_writable(client))
                return
            except OSError:
                self._drop(client, now_ns)
                return
            self.core.on_written(client, written, now_ns)

    def _on_writable(self, client: int) -> None:
        sock = self._clients.get(client)
        if sock is None:
            return
        self._loop.remove_writer(sock)
        self._waiting.discard(client)
        now_ns = self._loop.now_ns()
        self._write(client, now_ns)
        self._perform(now_ns)

    def has_unacknowledged(self) -> bool:
        """Is there something that was sent but has not reached the machine of some receiver?"""
        return bool(self.core.stats.bytes_buffered) or any(
            sockets.unacknowledged_bytes(sock) for sock in self._clients.values()
        )

    # receivers

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._on_accept)

    def _on_accept(self) -> bool:
        try:
            sock, peer = self._listener.accept()
        except BlockingIOError:
            return False
        except OSError as e:
            limited("accept", "accept failed", extra={"port": self.address.port, "error": e.strerror})
            if e.errno in _EXHAUSTED:
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(ACCEPT_PAUSE_NS, self._listen)
            return False  # else the client gave up: on with the next
        sock.setblocking(False)
        if self._nodelay:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._send_buffer:
            sockets.set_buffer(sock, socket.SO_SNDBUF, self._send_buffer)
        sockets.set_keepalive(sock, self._keepalive_ns)
        client = sock.fileno()
        now_ns = self._loop.now_ns()
        if self.core.on_connected(client, now_ns):
            self._clients[client] = sock
            self._names[client] = f"{peer[0]}:{peer[1]}"
            self._heard[client] = b""
            self._loop.add_reader(sock, lambda: self._on_client_bytes(client))
        else:
            sock.close()
        self._perform(now_ns)
        return True

    def _on_client_bytes(self, client: int) -> None:
        sock = self._clients[client]
        now_ns = self._loop.now_ns()
        try:
            data = sock.recv(_CLIENT_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(client, now_ns)
            self._perform(now_ns)
            return
        heard = self._heard[client] + data
        try:
            while len(heard) >= 4:
                length = _HEAD.unpack_from(heard)[2]
                if length < 4:
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

    def _on_client_message(self, client: int, message: bytes, now_ns: int) -> None:
        kind, head, length = _HEAD.unpack_from(message)
        if kind != _TYPE_CONTROL:
            return
        for code, at, size in chain(message, 4, length, head):
            if code == _BLOCK_TCP_SID:
                if size != 8:
                    raise DecodeError("tcp_sid", f"block of {size} bytes")
                self.core.on_session_id(client, _TOPIC.unpack_from(message, at + 4)[0], now_ns)

    def _drop(self, client: int, now_ns: int) -> None:
        self._forget(client)
        self.core.on_disconnected(client, now_ns)

    def _forget(self, client: int) -> None:
        sock = self._clients.pop(client, None)
        if sock is not None:
            self._heard.pop(client, None)
            self._waiting.discard(client)
            self._loop.remove_reader(sock)
            self._loop.remove_writer(sock)
            sock.close()

    def _perform(self, now_ns: int, *, is_sending: bool = False) -> None:
        """Carry out what the core asks for.

        `is_sending`: from within a send, whose result tells the caller more than a wake-up between two parts of it.
        """
        while self.core.has_events:
            for event in self.core.take_events():
                match event:
                    case Connected(client=client):
                        if self.on_client is not None:
                            self.on_client(self._names.get(client, "?"), True)
                    case Disconnected(client=client):
                        self._forget(client)
                        name = self._names.pop(client, "?")
                        if self.on_client is not None:
                            self.on_client(name, False)
                    case CloseClient(client=client, reason=reason):
                        extra = {"client": self._names.get(client, "?"), "reason": reason.value}
                        events.told("receiver connection closed", extra)
                        self._forget(client)
                    case Wakeup() if not is_sending and self._is_blocked:
                        self._is_blocked = False
                        if self.on_unblocked is not None:
                            self.on_unblocked()

    # end

    def close(self, linger_ns: int, now_ns: int) -> None:
        """Accept no more receivers, wait up to `linger_ns` for those there are to take what is buffered, then close."""
        if self._is_closed:
            return
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for timer in (self._pause, self._linger):
            if timer is not None:
                timer.cancel()
        self._close_when_empty(now_ns + linger_ns)

    def _close_when_empty(self, end_ns: int) -> None:
        now_ns = self._loop.now_ns()
        if self.core.stats.bytes_buffered and now_ns < end_ns:
            due_ns = min(now_ns + LINGER_CHECK_NS, end_ns)
            self._linger = self._loop.call_at(due_ns, lambda: self._close_when_empty(end_ns))
            return
        self._is_closed = True
        for client, sock in list(self._clients.items()):
            _read_out(sock)
            self._forget(client)
        if self._on_closed is not None:
            self._on_closed(self)


def _read_out(sock: socket.socket) -> None:
    """Take what the other side has said: a close with unread bytes is a reset and takes with it what is on its way."""
    with contextlib.suppress(OSError):
        for _ in range(_CLIENT_READS_AT_END):
            if not sock.recv(_CLIENT_READ):
                break
