"""LBT-TCP, the receiving half where a process leaves its connections to the next one (`dro.kept`).

What has come stays in the kernel, which is what outlives the process: bytes are looked at (MSG_PEEK), and taken off
(MSG_TRUNC, which copies nothing) at the end of the loop's turn, when all whole messages in them have been passed on. So
the next process finds the first message that nobody may have heard of; some come twice.

The beginning of a message waits there too. A call that finds no more than that asks to be called again when the whole
message is there (SO_RCVLOWAT); who is called before nevertheless, as at the end of the connection, or when the buffer
cannot hold so much, takes it off as other sessions do, until that message is whole. Meanwhile nobody can go on with the
connection, so it is not kept.

The offer of a source to filter is noted in a row, as it came long before. A connection is kept when the session id has
been said.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from typing import Final

from dro.kept.rows import KeptRow, RowValues
from dro.kept.store import RECEIVING, Kept
from dro.loop import Loop
from dro.proto.tcp.receiver import TcpReceiverCore
from dro.transport.kind import SendUnicast
from dro.transport.read_space import ReadSpace
from dro.transport.session import OnEnded, SessionSink
from dro.transport.stream import PlainStream
from dro.transport.tcp.receiver import TcpReceiver
from dro.wire.lbmc.codes import MESSAGE_MAX
from dro.wire.lbmc.data_blocks import SsfInit
from dro.wire.source_string import TcpAddress, format_source

ROW_KIND: Final = b"tcp-rcv"
CONNECTION_PREFIX: Final = RECEIVING + b"tcp "
HEADER_BYTES: Final = 4
"""Of a message, that say how long it is."""
LEAST_BUFFER_BYTES: Final = 2 * MESSAGE_MAX
"""Of the system, for a connection: the longest message finds room, where the system lets it."""
_IS_NOTED: Final = 1


class PeekedStream(PlainStream):
    """TCP whose bytes are looked at first and taken off later."""

    def __init__(self, loop: Loop, sock: socket.socket, is_accepted: bool) -> None:
        super().__init__(loop, sock, is_accepted)
        self._least = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)

    def hold(self) -> None:
        """Report nothing that comes until `go_on`."""
        self._loop.remove_reader(self.sock)

    def go_on(self) -> None:
        if self.sock.fileno() >= 0:
            self._loop.add_reader(self.sock, self._events.on_readable)

    def peek_into(self, view: memoryview) -> int:
        """Do as `read_into`, and leave the bytes there."""
        return self.sock.recv_into(view, 0, socket.MSG_PEEK)

    def take_off(self, view: memoryview, count: int) -> None:
        """Take so many bytes off that were looked at; nothing is put into the view. Raises: OSError."""
        while count:
            taken = self.sock.recv_into(view, count, socket.MSG_TRUNC)
            if not taken:
                raise ConnectionResetError
            count -= taken

    def close(self) -> None:
        """End the connection at once, also while a duplicate of the socket is held."""
        self._loop.remove_reader(self.sock)
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        super().close()

    def wait_for(self, count: int) -> bool:
        """Report nothing before so many bytes are there; False when that has been asked for already."""
        if count == self._least:
            return False
        self._least = count
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
        return True


class KeptTcpReceiver(TcpReceiver):
    """See the module text. Its streams are `PeekedStream`s."""

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
        kept: Kept,
    ) -> None:
        """`kept`: where the connection of a former process is, and this one is left."""
        super().__init__(
            loop, address, core, sink, on_ended, connect=connect, space=space, send_unicast=send_unicast,
            make_stream=PeekedStream,
        )  # fmt: skip
        name = format_source(address).encode()
        self._store = kept
        self._name = CONNECTION_PREFIX + name
        self._row_name = name
        self._row: KeptRow | None = None
        self._whole_bytes = 0  # of messages that were passed on, in the kernel still
        self._is_kept = False
        self._can_go_on = True

    # connection

    def _connect(self, now_ns: int) -> None:
        self._whole_bytes = 0
        self._can_go_on = True
        if self._store.rows is not None:
            self._row = self._store.rows.row(ROW_KIND, self._row_name)
        sock = self._store.sockets.take(self._name)
        if sock is None:
            if self._row is not None:
                self._row.write(0)
            super()._connect(now_ns)
            return
        self._begin()
        self._start(PeekedStream(self._loop, sock, True), self._on_taken_over)

    def _on_taken_over(self) -> None:
        now_ns = self._loop.now_ns()
        self.core.on_taken_over(now_ns)
        former = self._row.former if self._row is not None else None
        self._keep()
        self._wait_for_gate()
        self._perform(now_ns)
        if former is not None and former.d == _IS_NOTED:
            self._begin_requests(_offer_of(former))

    def _on_connected(self) -> None:
        self._wait_for_gate()
        super()._on_connected()
        if self._stream is not None and not self._out:
            self._keep()

    def _say(self, message: bytes) -> None:
        super()._say(message)
        if not self._out and self.is_connected:
            self._keep()

    def _wait_for_gate(self) -> None:
        stream, gate = self._peeked, self._store.gate
        if stream is not None and not gate.is_open:
            stream.hold()
            gate.when_open(stream.go_on)

    def _keep(self) -> None:
        if not self._is_kept and self._can_go_on and (stream := self._peeked) is not None:
            self._is_kept = True
            self._store.sockets.keep(self._name, stream.sock)

    def _drop(self) -> None:
        if self._is_kept:
            self._is_kept = False
            self._store.sockets.drop(self._name)

    def _disconnect(self) -> None:
        self._drop()
        if self._row is not None and self._store.rows is not None:
            self._row = None
            self._store.rows.free(ROW_KIND, self._row_name)
        super()._disconnect()

    @property
    def _peeked(self) -> PeekedStream | None:
        stream = self._stream
        assert stream is None or isinstance(stream, PeekedStream)
        return stream

    # receiving

    def _on_readable(self) -> bool:
        stream = self._peeked
        if stream is None or self._whole_bytes:  # what was passed on is taken off first
            return False
        if self._kept:
            self._complete(stream)
            return False
        space = self._space
        try:
            count = stream.peek_into(space.view[: space.read_bytes])
        except BlockingIOError:
            return False
        except OSError:
            count = 0
        now_ns = self._loop.now_ns()
        if not count:
            self._lost(now_ns)
            return False
        self._whole_bytes = self._on_bytes(count, now_ns)
        if self._stream is not stream:
            return False
        if self._whole_bytes:
            self._loop.when_settled(self._take_off)
            return count == space.read_bytes
        if not stream.wait_for(_message_bytes(space.view, count)):
            self._complete(stream)
        return False

    def _take_off(self) -> None:
        """Take off what has been passed on."""
        count, self._whole_bytes = self._whole_bytes, 0
        stream = self._peeked
        if stream is None:
            return
        try:
            stream.take_off(self._space.view, count)
            stream.wait_for(1)
        except OSError:
            self._lost(self._loop.now_ns())

    def _complete(self, stream: PeekedStream) -> None:
        """Take off what there is of a message that the kernel cannot hold until it is whole, and what follows of it."""
        self._drop()
        view, begin = self._space.view, len(self._kept)
        view[:begin] = self._kept
        missing = _message_bytes(view, begin) - begin
        try:
            stream.wait_for(1)
            count = stream.read_into(view[begin : begin + missing])
        except BlockingIOError:
            return
        except OSError:
            count = 0
        now_ns = self._loop.now_ns()
        if not count:
            self._lost(now_ns)
            return
        end = begin + count
        if end < HEADER_BYTES or end < _message_bytes(view, end):
            self._kept = view[:end].tobytes()
            return
        self._kept = b""
        self._on_bytes(end, now_ns)
        if self._stream is stream:
            self._loop.when_settled(self._keep)

    # a source that filters

    def _begin_requests(self, offer: SsfInit) -> None:
        super()._begin_requests(offer)
        if self._row is not None:
            self._row.write(
                offer.transport_index << 32 | offer.client_index, offer.ip << 32 | offer.port, offer.flags, _IS_NOTED
            )
        else:  # the next process could not ask
            self._can_go_on = False
            self._drop()


def _message_bytes(view: memoryview, end: int) -> int:
    """Return how long the message is that begins the view; its header when there is not even that up to `end`."""
    return view[2] << 8 | view[3] if end >= HEADER_BYTES else HEADER_BYTES


def _offer_of(noted: RowValues) -> SsfInit:
    mask = 0xFFFF_FFFF
    return SsfInit(noted.a >> 32, noted.a & mask, noted.b >> 32, noted.b & 0xFFFF, flags=noted.c & 0xFF)
