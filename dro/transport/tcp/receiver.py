"""LBT-TCP, the receiving half: the shell around `dro.proto.tcp.receiver`.

`TcpReceiver` is one joined session: it connects, sends the session id, splits the stream into LBMC messages in place
(LBMC framing) and delivers them as runs. Where the source filters for its receivers (SSF_INIT), it asks for the topics
of its sources (SSF_CREQ), as `dro.proto.tcp.filter_requests` says.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from dro.errors import DecodeError
from dro.log.events import LogEvent
from dro.log.limits import LimitedLogger
from dro.loop import Loop
from dro.proto.context.sources import BoundSource
from dro.proto.session_events import Began, Ended
from dro.proto.tcp.filter_requests import FilterRequests
from dro.proto.tcp.receiver import CloseSession, ConnectSession, SendSessionId, TcpReceiverCore, TcpState
from dro.proto.unicast.connections import Outcome
from dro.timers import Timer
from dro.transport import sockets
from dro.transport.kind import SendUnicast
from dro.transport.read_space import ReadSpace
from dro.transport.scan import BadStream, scan_stream
from dro.transport.session import (
    DataReader,
    OnEnded,
    ReceiverSessionStatistics,
    ReceiverTransport,
    SessionCounts,
    SessionSink,
)
from dro.transport.stream import ByteStream, PlainStream, StreamEvents, StreamMaker
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import BlockType, MessageType
from dro.wire.lbmc.data_blocks import SsfCreq, SsfInit
from dro.wire.source_string import TcpAddress, format_source

log = logging.getLogger(__name__)
limited = LimitedLogger(log).event
events = LimitedLogger.of_events(log)

_READS_PER_TURN: Final = 2
_FIRST_READS: Final = 8
"""Of a connection, in which it is looked for an offer to filter; a source makes it when a receiver connects."""


class TcpReceiver(ReceiverTransport, DataReader):
    """One joined session. Make it, then `advertised` or `connect_at`; a session that ended may be advertised again."""

    is_in_order = True
    shows_life = False

    def __init__(
        self,
        loop: Loop,
        address: TcpAddress,
        core: TcpReceiverCore,
        sink: SessionSink,
        on_ended: OnEnded,
        *,
        connect: Callable[[], socket.socket],
        space: ReadSpace,
        send_unicast: SendUnicast,
        make_stream: StreamMaker = PlainStream,
    ) -> None:
        """`connect`: a socket on its way to the source. Raises: OSError."""
        super().__init__(address)
        self.core = core
        self.bad_stream = 0
        self._loop = loop
        self._sink = sink
        self._on_ended = on_ended
        self._connecting = connect
        self._send_unicast = send_unicast
        self._make_stream = make_stream
        self._stream: ByteStream | None = None
        self._requests: FilterRequests | None = None  # of this connection, whose source has made the offer
        self._request_timer: Timer | None = None
        self._space = space
        self._timer: Timer | None = None
        self._is_left = False

    def advertised(self, now_ns: int) -> None:
        """The session was advertised: join it if it is not joined."""
        if not self._is_left:
            self.core.on_advertised(now_ns)
            self._perform(now_ns)

    def connect_at(self, at_ns: int) -> None:
        """Do as `advertised`, at that time."""
        self._timer = self._loop.call_at(at_ns, lambda: self.advertised(self._loop.now_ns()))

    @property
    def active_ns(self) -> int:
        return self.core.active_ns

    def counts(self) -> SessionCounts:
        return SessionCounts(bad=self.bad_stream)

    def statistics(self) -> ReceiverSessionStatistics:
        counters = replace(self.core.stats, lbm_msgs_no_topic_rcved=self.lbm_msgs_no_topic_rcved)
        return ReceiverSessionStatistics(format_source(self.address), counters)

    def leave(self) -> None:
        """Leave the session; not even what has been read already is reported any more."""
        self._is_left = True
        self._disconnect()
        if self._timer is not None:
            self._timer.cancel()

    # connection

    def _connect(self, now_ns: int) -> None:
        self._begin()
        try:
            sock = self._connecting()
        except OSError:
            self._lost(now_ns)
            return
        self._start(self._make_stream(self._loop, sock, False), self._on_connected)

    def _begin(self) -> None:
        """Forget what belongs to the connection before."""
        self._kept = b""  # of an incomplete message
        self._out = b""
        self._first_reads = _FIRST_READS

    def _start(self, stream: ByteStream, on_open: Callable[[], object]) -> None:
        self._stream = stream
        stream.start(
            StreamEvents(
                on_open=on_open,
                on_lost=lambda: self._lost(self._loop.now_ns()),
                on_readable=self._on_readable,
                on_writable=lambda: self._say(b""),
            )
        )

    def _on_connected(self) -> None:
        now_ns = self._loop.now_ns()
        self.core.on_connected(now_ns)
        self._perform(now_ns)

    def _say(self, message: bytes) -> None:
        self._out += message
        with contextlib.suppress(OSError):  # it blocks and will be writable, or broke, which the reader finds out
            while self._out and self._stream is not None:
                self._out = self._out[self._stream.send_pieces((self._out,)) :]

    def _disconnect(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
        self._requests = None
        if self._request_timer is not None:
            self._request_timer.cancel()

    def _lost(self, now_ns: int) -> None:
        self.core.on_closed(now_ns)
        self._perform(now_ns)

    # receiving

    def _on_readable(self) -> bool:
        for _ in range(_READS_PER_TURN):
            stream = self._stream
            if stream is None:
                return False
            try:
                count = self._space.read(stream, self._kept)
            except BlockingIOError:
                return False
            except OSError:
                count = 0
            now_ns = self._loop.now_ns()
            if not count:
                self._lost(now_ns)
                return False
            end = len(self._kept) + count
            self._kept = bytes(self._space.view[self._on_bytes(end, now_ns) : end])
            if count < self._space.read_bytes:
                return False
        return True

    def _on_bytes(self, end: int, now_ns: int) -> int:
        """Take what there is in the view up to `end`; returns where the first incomplete message begins."""
        stream, view, table = self._stream, self._space.view, self._space.table
        error: DecodeError | None = None
        pos = begin = 0
        while begin < end and error is None:  # usually once: only a full table needs more
            try:
                pos, messages = scan_stream(view, begin, end, table)
            except BadStream as e:
                pos, messages, error = e.pos, e.messages, e.error
            if self._first_reads and messages:
                self._first_reads -= 1
                self._look_for_filter(view[begin:pos])
            if messages:
                self.core.on_messages(messages, pos - begin, now_ns)
                if self.core.has_events:
                    self._perform(now_ns)
                if table.rows and self._stream is stream:
                    self._sink.on_fragments(view, [(self, table)], now_ns)
            table.clear()
            if self._stream is not stream:
                return end
            if not messages:
                break
            begin = pos
        if error is not None:
            self.bad_stream += 1
            limited(
                LogEvent.TCP_STREAM_BROKEN,
                extra={"source": format_source(self.address), "error": str(error)},
            )
            self._lost(now_ns)
            return end
        return pos

    # a source that filters

    def _look_for_filter(self, messages: memoryview) -> None:
        """Find the offer of the source to send only what it is asked for."""
        for at, length in lbmc.walk(messages, 0, len(messages)):
            if messages[at] == MessageType.CONTROL:
                with contextlib.suppress(DecodeError):
                    if any(code == BlockType.SSF_INIT for code, _, _ in lbmc.chain(messages, at, length)[0]):
                        self._on_offer(lbmc.decode(messages[at : at + length].tobytes()).get(SsfInit))

    def _on_offer(self, offer: SsfInit | None) -> None:
        if offer is None or self._requests is not None:
            return
        if not offer.port or not offer.ip or sockets.is_multicast(offer.ip):
            self._tell_not_asked(offer)
            return
        self._begin_requests(offer)

    def _begin_requests(self, offer: SsfInit) -> None:
        self._requests = FilterRequests(offer, self._loop.now_ns())
        for topic_index in self.sources:
            self._requests.want(topic_index)
        self._ask()

    def add_source(self, source: BoundSource[Any]) -> None:
        super().add_source(source)
        if self._requests is not None:
            self._requests.want(source.topic_index)
            self._ask()

    def remove_source(self, source: BoundSource[Any]) -> None:
        is_there = self.sources.get(source.topic_index) is source
        super().remove_source(source)
        if is_there and self._requests is not None:
            self._requests.unwant(source.topic_index, self._loop.now_ns())
            self._ask()

    def _ask(self) -> None:
        """Send the requests that are due, and come back for the next."""
        requests, now_ns = self._requests, self._loop.now_ns()
        if requests is None:
            return
        for request in requests.take(now_ns):
            message, on_outcome = lbmc.control_message(request), partial(self._on_asked, requests, request)
            self._send_unicast(requests.offer.ip, requests.offer.port, lbmc.encode(message), on_outcome)
        if self._request_timer is not None:
            self._request_timer.cancel()
        due_ns = requests.next_deadline()
        self._request_timer = None if due_ns is None else self._loop.call_at(max(due_ns, now_ns), self._ask)

    def _on_asked(self, requests: FilterRequests, request: SsfCreq, outcome: Outcome) -> None:
        if requests is not self._requests:
            return  # of a connection that has ended
        requests.on_outcome(request, self._loop.now_ns(), is_sent=outcome is Outcome.SENT)
        if outcome is not Outcome.SENT:
            self._tell_not_asked(requests.offer)
        if not requests.on_way:
            self._ask()

    def _tell_not_asked(self, offer: SsfInit) -> None:
        extra = {"source": format_source(self.address), "peer": f"{sockets.ip_text(offer.ip)}:{offer.port}"}
        limited(LogEvent.SOURCE_NOT_ASKED, extra=extra)

    # events

    def _perform(self, now_ns: int) -> None:
        for event in self.core.take_events():
            if self._is_left:
                return
            match event:
                case ConnectSession():
                    self._connect(now_ns)
                case SendSessionId(session_id=session_id):
                    self._say(lbmc.encode(lbmc.tcp_sid_message(session_id)))
                case CloseSession():
                    self._disconnect()
                case Began():
                    self.has_begun = True
                    self._sink.on_began(self, now_ns)
                case Ended():
                    self.was_connected = self.core.was_connected
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
        self.core.on_timer(now_ns)
        self._perform(now_ns)

    @property
    def is_connected(self) -> bool:
        return self._stream is not None and self.core.state is TcpState.CONNECTED
