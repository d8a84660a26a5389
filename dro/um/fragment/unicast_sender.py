"""Unicast immediate messages to the request ports of other contexts: the sockets under `dro.proto.unicast.connections`.

One connection for each address, made when there is something to send and kept until it has been idle for a while. What
is sent in one turn leaves together at the beginning of the next.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from dro.config.um.sets import RequestOptions
from dro.errors import ResourceError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.unicast.connections import (
    CloseTarget,
    ConnectionLimits,
    Connections,
    ConnectTarget,
    OnOutcome,
    Outcome,
    Target,
    Write,
)
from dro.timers import Timer
from dro.transport.sockets import OS_SOCKETS, Sockets, ip_text, set_buffer, set_keepalive
from dro.transport.stream import ByteStream, PlainStream, StreamEvents, StreamMaker

limited = LimitedLogger(logging.getLogger(__name__)).event

_READ_BYTES: Final = 4096  # of what the other side must not send


def ignore_outcome(_: Outcome) -> None:
    """Ignore the outcome of a message that nobody counts."""


class UnicastSender:
    """The connections that one context has made."""

    def __init__(
        self,
        loop: Loop,
        options: RequestOptions,
        make_stream: Callable[[], StreamMaker] = lambda: PlainStream,
        sockets: Sockets = OS_SOCKETS,
    ) -> None:
        """`make_stream` is called at the first connection; it may raise ResourceError, which is a failed attempt."""
        self._loop = loop
        self._options = options
        self._sockets = sockets
        self._stream_maker = make_stream
        self._make_stream: StreamMaker | None = None
        self._core = Connections(ConnectionLimits(options.response_deletion_ns, options.response_buffer_bytes))
        self._streams: dict[Target, ByteStream] = {}
        self._scratch = memoryview(bytearray(_READ_BYTES))
        self._timer: Timer | None = None
        self._acts_soon = False
        self._is_closed = False

    def __len__(self) -> int:
        """Connections, and addresses that rest after a failure."""
        return len(self._core)

    def send(self, ip: int, port: int, message: bytes, on_outcome: OnOutcome = ignore_outcome) -> None:
        """Send one whole LBMC message; `on_outcome` is called once with what has become of it, from within or later."""
        if self._is_closed:
            on_outcome(Outcome.FAILED)
            return
        if self._acts_soon and self._core.would_refuse((ip, port), len(message)):
            self._perform()  # what the connection takes at once does not count
        self._core.send((ip, port), message, on_outcome, self._loop.now_ns())
        self._act_soon()

    def close(self) -> None:
        """Close all connections; what still waits has failed."""
        if not self._is_closed:
            self._is_closed = True
            self._core.close()
            self._perform()

    # the core

    def _act_soon(self) -> None:
        if not self._acts_soon:
            self._acts_soon = True
            self._loop.call_soon(self._on_soon)

    def _on_soon(self) -> None:
        self._acts_soon = False
        self._perform()

    def _perform(self) -> None:
        while effects := self._core.take_effects():
            for effect in effects:
                match effect:
                    case ConnectTarget(target=target):
                        self._connect(target)
                    case Write(target=target):
                        self._write(target)
                    case CloseTarget(target=target):
                        if (stream := self._streams.pop(target, None)) is not None:
                            stream.close()
        self._arm()

    def _arm(self) -> None:
        deadline = self._core.next_deadline()
        if self._timer is not None:
            if self._timer.is_pending and self._timer.when_ns == deadline:
                return
            self._timer.cancel()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._core.on_timer(self._loop.now_ns())
        self._perform()

    # sockets

    def _connect(self, target: Target) -> None:
        o = self._options
        try:
            make_stream = self._make_stream = self._make_stream or self._stream_maker()
            sock = self._sockets.connecting(
                (ip_text(target[0]), target[1]), o.response_interface, buffer_bytes=0, keepalive=False
            )
            self._set_up(sock)
        except (OSError, ResourceError) as e:
            self._on_lost(target, str(e))
            return
        stream = self._streams[target] = make_stream(self._loop, sock, False)
        stream.start(
            StreamEvents(
                on_open=partial(self._on_open, target),
                on_lost=partial(self._on_lost, target, "refused, or nobody is there"),
                on_readable=partial(self._on_readable, target, stream),
                on_writable=partial(self._on_writable, target),
            )
        )

    def _set_up(self, sock: socket.socket) -> None:
        o = self._options
        try:
            if o.response_nodelay:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            set_buffer(sock, socket.SO_SNDBUF, o.response_send_buffer_bytes)
            set_keepalive(sock, o.response_activity_timeout_ns)
        except OSError:
            sock.close()
            raise

    def _on_open(self, target: Target) -> None:
        self._core.on_open(target, self._loop.now_ns())
        self._act_soon()

    def _on_lost(self, target: Target, why: str) -> None:
        extra = {"peer": f"{ip_text(target[0])}:{target[1]}", "reason": why}
        limited(LogEvent.UNICAST_CONNECTION_LOST, extra=extra)
        self._core.on_lost(target, self._loop.now_ns())
        self._act_soon()

    def _on_readable(self, target: Target, stream: ByteStream) -> bool:
        """Read until the end; nothing else is expected."""
        try:
            if stream.read_into(self._scratch):
                return True
        except BlockingIOError:
            return False
        except OSError:
            pass
        self._core.on_lost(target, self._loop.now_ns())
        self._act_soon()
        return False

    def _on_writable(self, target: Target) -> None:
        self._core.on_writable(target)
        self._act_soon()

    def _write(self, target: Target) -> None:
        stream = self._streams.get(target)
        while stream is not None and (pieces := self._core.pieces(target)):
            try:
                count = stream.send_pieces(pieces)
            except BlockingIOError:
                self._core.on_blocked(target)
                return
            except OSError as e:
                self._on_lost(target, e.strerror or str(e))
                return
            self._core.on_taken(target, count, self._loop.now_ns())
