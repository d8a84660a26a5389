"""The request port of a context: the TCP port that its advertisements name for unicast immediate messages.

Owns the listening socket and the connections that others have made. Each is a stream of LBMC messages, which are handed
on one by one with the address that they came from; nothing is ever sent. A stream that is no row of LBMC messages is
closed. Source: UM Configuration Guide, `request_tcp_*`; wire notes LBMC, section 4. Guess: a context takes
`CONNECTIONS_MAX` connections, and closes the one that was silent for longest when one more comes.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Callable
from typing import Final

from dro.clock import ms
from dro.config.um.sets import RequestOptions
from dro.errors import DecodeError, ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.unicast.splitter import MessageSplitter
from dro.timers import Timer
from dro.transport.sockets import ANY, OS_SOCKETS, Sockets, ip_number, ip_text, set_keepalive
from dro.transport.stream import ByteStream, PlainStream, StreamEvents, StreamMaker

_log: Final = logging.getLogger(__name__)
limited = LimitedLogger(_log).event

ACCEPTS_PER_TURN: Final = 16
ACCEPT_PAUSE_NS: Final = ms(100)
"""A listener that cannot accept stays readable: it is left alone for so long."""
CONNECTIONS_MAX: Final = 256
MESSAGES_PER_TURN: Final = 32
"""Of one connection; the rest of what was read follows in the next turn."""
READ_BYTES: Final = 64 * 1024
ANY_PORT_REMEDY: Final = "for a firewall, set request_tcp_port_low and request_tcp_port_high"
_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

Sender = tuple[int, int]
"""Address (u32) and port that a connection comes from; not the request port of who made it."""
OnUnicast = Callable[[bytes, Sender], object]
"""One whole LBMC message, not decoded, and where it came from."""


class _Connection:
    """One of the streams that others write on."""

    __slots__ = ("has_more", "messages", "sender", "stream")

    def __init__(self, stream: ByteStream, sender: Sender) -> None:
        self.stream = stream
        self.sender = sender
        self.messages = MessageSplitter()
        self.has_more = False  # to read, as the last read took all that it could

    @property
    def peer(self) -> str:
        return f"{ip_text(self.sender[0])}:{self.sender[1]}"


class RequestPort:
    """Raises: ResourceError naming the option when no port of the range is free."""

    def __init__(
        self,
        loop: Loop,
        options: RequestOptions,
        fallback_ip: int,
        on_unicast: OnUnicast,
        make_stream: Callable[[], StreamMaker] = lambda: PlainStream,
        sockets: Sockets = OS_SOCKETS,
    ) -> None:
        """`fallback_ip`: what to advertise when the port listens on every interface.

        `make_stream` is called at the first connection; it may raise ResourceError, then none is taken.
        """
        self._loop = loop
        self._options = options
        self._on_unicast = on_unicast
        self._stream_maker = make_stream
        self._make_stream: StreamMaker | None = None
        ports, option = options.ports
        self._listener = sockets.bind_in_range(socket.SOCK_STREAM, options.interface, ports, option=option)
        self._listener.listen(options.listen_backlog)
        host, port = self._listener.getsockname()
        if port not in ports:
            extra = {"port": port, "range": f"{options.port_low} to {options.port_high}", "remedy": ANY_PORT_REMEDY}
            _log.info(LogEvent.REQUEST_PORT_OUTSIDE, extra=extra)
        self.address = (fallback_ip if host == ANY else ip_number(host), int(port))
        self.broken = 0
        """Connections that were closed because what came is no LBMC messages."""
        self._connections: dict[_Connection, None] = {}  # the one silent for longest first
        self._memory = memoryview(bytearray(READ_BYTES))
        self._pause: Timer | None = None
        self._is_closed = False
        self._listen()

    def __len__(self) -> int:
        """Connections."""
        return len(self._connections)

    # connections

    def _listen(self) -> None:
        self._loop.add_reader(self._listener, self._on_accept)

    def _on_accept(self) -> bool:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                sock, (host, port) = self._listener.accept()
            except BlockingIOError:
                return False
            except OSError as e:
                self._tell_failure(e.strerror or str(e))
                if e.errno in _EXHAUSTED:
                    self._loop.remove_reader(self._listener)
                    self._pause = self._loop.call_later(ACCEPT_PAUSE_NS, self._listen)
                return False
            sock.setblocking(False)
            set_keepalive(sock, self._options.activity_timeout_ns)
            try:
                self._make_stream = self._make_stream or self._stream_maker()
            except ResourceError as e:
                sock.close()
                self._tell_failure(f"{e} ({e.remedy})")
                return False
            self._take(self._make_stream(self._loop, sock, True), (ip_number(host), int(port)))
        return True

    def _tell_failure(self, error: str) -> None:
        limited(LogEvent.REQUEST_PORT_FAILED, extra={"port": self.address[1], "error": error})

    def _take(self, stream: ByteStream, sender: Sender) -> None:
        connection = _Connection(stream, sender)
        self._connections[connection] = None
        if len(self._connections) > CONNECTIONS_MAX:
            silent = next(iter(self._connections))
            limited(LogEvent.REQUEST_PORT_FULL, extra={"peer": silent.peer, "limit": CONNECTIONS_MAX})
            self._end(silent)
        stream.start(
            StreamEvents(
                on_open=lambda: None,
                on_lost=lambda: self._end(connection),
                on_readable=lambda: self._on_readable(connection),
                on_writable=lambda: None,
            )
        )

    def _end(self, connection: _Connection) -> None:
        if connection in self._connections:
            del self._connections[connection]
            connection.stream.close()

    # messages

    def _on_readable(self, connection: _Connection) -> bool:
        messages = connection.messages
        if not messages.has_message():
            try:
                count = connection.stream.read_into(self._memory)
            except BlockingIOError:
                return False
            except OSError:
                count = 0
            if not count:
                self._end(connection)
                return False
            messages.feed(self._memory[:count])
            connection.has_more = count == READ_BYTES
            self._connections[connection] = self._connections.pop(connection)
        try:
            for _ in range(MESSAGES_PER_TURN):
                message = messages.next_message()
                if message is None:
                    return connection.has_more
                self._on_unicast(message, connection.sender)
                if connection not in self._connections:
                    return False
        except DecodeError as e:
            self.broken += 1
            limited(LogEvent.REQUEST_STREAM_BROKEN, extra={"peer": connection.peer, "error": str(e)})
            self._end(connection)
            return False
        return True

    def close(self) -> None:
        """Close the port and all connections. Nothing more is handed on."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for connection in list(self._connections):
            self._end(connection)
