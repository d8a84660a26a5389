"""How a peer portal gets its connections: the initiator connects, again and again; the acceptor listens.

A link that worked and is lost is made anew at once, then after ever longer pauses, at last `reconnect-interval`.

Names are looked up anew at each attempt, outside the loop. An interface that is not there yet is tried again. A
connection counts only when both sides have said who they are.

Source: DRO guide, `<initiator>`, `<acceptor>`; peer link notes, section 2; forwarding notes, section 21.
"""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable
from ipaddress import AddressValueError, IPv4Address
from typing import Final

from dro.bus.actor import WorkerContext
from dro.clock import ms
from dro.config.dro_xml.model import PeerTcpConfig
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.os_errors import remedy_of
from dro.proto.peerlink.session import LinkEnd
from dro.timers import Timer
from dro.transport import sockets
from dro.transport.sockets import OS_SOCKETS
from dro.transport.stream import ByteStream, StreamMaker
from dro.wire.source_string import TcpAddress
from portals.peer.link_watch import LinkWatch
from portals.peer.options import address_of

LISTEN_RETRY_NS: Final = ms(1000)
ACCEPT_PAUSE_NS: Final = ms(100)
BACKLOG: Final = 128
_LISTENER: Final = b"listener"
_EXHAUSTED: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))

_NO_THREAD_REMEDY: Final = "raise the limit of processes of the DRO's user, or TasksMax of its unit"

OnStream = Callable[[ByteStream, TcpAddress], object]
"""A stream that has not been started, and who is at the other end."""


def set_options(sock: socket.socket, tcp: PeerTcpConfig) -> None:
    """Set the socket options of `<single-tcp>`."""
    sock.setblocking(False)
    sockets.set_buffer(sock, socket.SO_SNDBUF, tcp.send_buffer_bytes)
    if tcp.keepalive:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if tcp.nodelay:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class NameLookup:
    """One look-up at a time, in a thread: the system's may take many seconds."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def find(self, name: str, then: Callable[[str, str], object]) -> None:
        """`then(address, "")`, or `then("", why)`; from within for an address, and when no thread can be started."""
        try:
            IPv4Address(name)
        except AddressValueError:
            thread = threading.Thread(target=self._look_up, args=(name, then), daemon=True, name="lookup")
            try:
                thread.start()
            except (RuntimeError, MemoryError) as e:
                then("", f"cannot look up {name}: {str(e) or 'no memory'}; {_NO_THREAD_REMEDY}")
        else:
            then(name, "")

    def _look_up(self, name: str, then: Callable[[str, str], object]) -> None:
        try:
            found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
            address, why = str(found[0][4][0]), ""
        except OSError as e:
            address, why = "", e.strerror or str(e)
        self._loop.call_soon_threadsafe(lambda: then(address, why))


class Initiator:
    """Connects when it is told to, one attempt at a time."""

    def __init__(
        self,
        ctx: WorkerContext,
        tcp: PeerTcpConfig,
        make_stream: StreamMaker,
        on_stream: OnStream,
        on_failed: Callable[[str, LinkEnd], object],
    ) -> None:
        """`on_failed`: no connection was made, and why."""
        assert tcp.initiator is not None
        self._ctx = ctx
        self._tcp = tcp
        self._to = tcp.initiator
        self._make_stream = make_stream
        self._on_stream = on_stream
        self._on_failed = on_failed
        self._lookup = NameLookup(ctx.loop)
        self._is_closed = False
        self.address = address_of(tcp)

    def close(self) -> None:
        self._is_closed = True

    def connect(self) -> None:
        if not self._is_closed:
            self._lookup.find(self._to.address, self._on_found)

    def _on_found(self, address: str, why: str) -> None:
        if self._is_closed:
            return
        try:
            if not address:
                raise OSError(why)
            sock = OS_SOCKETS.connecting(
                (address, self._to.port),
                self._tcp.interface,
                buffer_bytes=self._tcp.receive_buffer_bytes,
                keepalive=self._tcp.keepalive,
            )
        except OSError as e:
            self._on_failed(e.strerror or str(e), LinkEnd.ERROR)
            return
        set_options(sock, self._tcp)
        to = TcpAddress(sockets.ip_number(address), self._to.port, 0)
        self._on_stream(self._make_stream(self._ctx.loop, sock, False), to)


class Acceptor:
    """Listens. Connections whose dialogue is not up yet are bounded in number: of more, the oldest is closed."""

    def __init__(
        self,
        ctx: WorkerContext,
        tcp: PeerTcpConfig,
        make_stream: StreamMaker,
        on_stream: OnStream,
        watch: LinkWatch,
    ) -> None:
        self._ctx = ctx
        self._tcp = tcp
        self._make_stream = make_stream
        self._on_stream = on_stream
        self._watch = watch
        self._sockets = ctx.kept_state.sockets
        self._listener: socket.socket | None = None
        self._timer: Timer | None = None
        self.address = address_of(tcp)

    def start(self) -> None:
        """Listen, on the socket of the former process if it has left one: who has connected meanwhile waits there."""
        sock = self._sockets.take(_LISTENER)
        if sock is not None:
            self._begin(sock)
            return
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sockets.set_buffer(sock, socket.SO_RCVBUF, self._tcp.receive_buffer_bytes)
            sockets.retransmit_soon(sock)
            sock.bind((self._tcp.interface, self._tcp.listen_port))
            sock.listen(BACKLOG)
        except OSError as e:
            sock.close()
            self._watch.on_failed(f"cannot listen on {self.address}: {e.strerror}", remedy_of(e.errno))
            extra = {"address": self.address, "error": e.strerror, "remedy": remedy_of(e.errno)}
            self._ctx.limited(LogEvent.PEER_LISTEN_FAILED, extra=extra)
            self._timer = self._ctx.loop.call_later(LISTEN_RETRY_NS, self.start)
            return
        self._sockets.keep(_LISTENER, sock)
        self._begin(sock)

    def _begin(self, sock: socket.socket) -> None:
        self._listener = sock
        self._watch.on_failed("")
        self._ctx.loop.add_reader(sock, self._on_accept)

    @property
    def is_listening(self) -> bool:
        return self._listener is not None

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._listener is not None:
            self._ctx.loop.remove_reader(self._listener)
            self._sockets.drop(_LISTENER)
            self._listener.close()
            self._listener = None

    def _on_accept(self) -> bool:
        listener = self._listener
        if listener is None:
            return False
        try:
            sock, (host, port) = listener.accept()
        except BlockingIOError:
            return False
        except OSError as e:
            self._watch.on_attempt_failed(LinkEnd.ERROR)
            self._ctx.limited(LogEvent.PEER_ACCEPT_FAILED, extra={"address": self.address, "error": e.strerror})
            if e.errno in _EXHAUSTED:
                self._ctx.loop.remove_reader(listener)
                self._timer = self._ctx.loop.call_later(ACCEPT_PAUSE_NS, self._accept_again)
            return False
        set_options(sock, self._tcp)
        self._on_stream(self._make_stream(self._ctx.loop, sock, True), TcpAddress(sockets.ip_number(host), port, 0))
        return True

    def _accept_again(self) -> None:
        if self._listener is not None:
            self._ctx.loop.add_reader(self._listener, self._on_accept)
