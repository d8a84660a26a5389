"""A source of the message level: messages in, LBMC fragments out, on the loop of its context.

State: the next topic sqn, and when to send a TSNI. The writer sends. Called by the asyncio and blocking interfaces.
Source: client library notes, section 2; transport notes, sections 10 to 12.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

from dro.clock import NS_PER_S
from dro.config.um.options import UmOptions
from dro.config.um.sets import AdvertisingOptions, TsniSourceOptions, repair_ns, source_transport
from dro.errors import DroError
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.proto.delivery.batching import ImplicitBatch
from dro.proto.delivery.fragment import FRAG_BLOCK_BYTES, LBMC_HEADER_BYTES, fragments, message_limit
from dro.proto.delivery.tsni import TsniSchedule
from dro.proto.stream.retention import Retention
from dro.sqn import MASK
from dro.timers import Timer
from dro.um.fragment.own_source import FragmentSource
from dro.um.message.events import Connect, Disconnect, SourceEvent, SqnRange, UsageError, Wakeup, WouldBlock, check_data
from dro.um.message.requests import OnRequestFailed, OnResponse, OpenRequest, UnicastRequests
from dro.um.message.writer import Piece, SessionWriter
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.codes import BlockType, MessageType
from dro.wire.lbmc.data_blocks import BATCH_END, Batch, Frag
from dro.wire.lbmc.message import FRAG_HEADER

log = logging.getLogger(__name__)

MESSAGE_MAX_BYTES: Final = 1 << 28  # what a receiver of this library takes
TSNI_RETRY_NS: Final = NS_PER_S // 10


class SourceOwner(Protocol):
    """Does for a source what it asks of its context."""

    loop: Loop
    requests: UnicastRequests

    def on_source_closed(self, source: MessageSource) -> None: ...


class MessageSource:
    """One source. `on_event` is called on the loop."""

    def __init__(
        self,
        owner: SourceOwner,
        topic: str,
        source: FragmentSource,
        writer: SessionWriter,
        options: UmOptions,
        on_event: Callable[[SourceEvent], object] | None,
        retention: Retention | None = None,
    ) -> None:
        self.topic = topic
        self.fragments = source
        self.writer = writer
        self.clients: set[str] = set()
        self.is_closed = False
        self.on_closed: Callable[[], object] = lambda: None
        self.messages_sent = 0
        self.on_event = on_event
        self.retention = retention
        """What receivers can have again, of a source that offers late join."""
        self._owner = owner
        self._loop = owner.loop
        self._index = source.topic_index
        self._largest = message_limit(writer.sender.datagram_max_bytes)
        self._next_sqn = 0
        tsni = TsniSourceOptions.of(options)
        self._tsni = TsniSchedule(tsni.interval_ns, tsni.active_threshold_ns)
        self._timer: Timer | None = None
        self._send_final = AdvertisingOptions.of(options).send_final
        self._linger_ns = repair_ns(options, source_transport(options))
        self._wants_wakeup = False
        self._group: ImplicitBatch[Piece] | None = None  # the explicit batch that has begun

    @property
    def source_string(self) -> str:
        return self.fragments.source_string

    @property
    def next_sqn(self) -> int:
        return self._next_sqn

    def send(self, data: bytes, *, flush: bool = True, blocks: Sequence[AnyBlock] = (), marks: int = 0) -> SqnRange:
        """Send one message, with blocks before its data. `marks`: `BATCH_START`, `BATCH_END` of an explicit batch.

        Raises: WouldBlock, with nothing taken; UsageError.
        """
        if self.is_closed:
            raise UsageError(f"source of {self.topic!r} is closed")
        if type(data) is not bytes:
            check_data(data)
        size = len(data)
        if size > MESSAGE_MAX_BYTES:
            raise UsageError(f"message of {size} bytes, at most {MESSAGE_MAX_BYTES} can be sent")
        writer = self.writer
        if writer.is_blocked:
            raise WouldBlock(f"source of {self.topic!r}")
        now_ns = self._loop.now_ns()
        first = self._next_sqn
        if marks:
            blocks = (Batch(flags=marks), *blocks)
        length = size + LBMC_HEADER_BYTES
        if blocks or length > self._largest:
            pieces = self._fragment(data, first, blocks)
            last = (first + len(pieces) - 1) & MASK
        else:
            header = lbmc.HEADER.pack(MessageType.MESSAGE, 0, length, self._index, first)
            pieces = [Piece(header + data, size)]
            last = first
        self._next_sqn = (last + 1) & MASK
        self.messages_sent += 1
        if marks or self._group is not None:
            self._gather(pieces, marks, now_ns)
        else:
            writer.send(pieces, now_ns, flush=flush)
        if self.retention is not None:
            self.retention.add(first, [piece.message for piece in pieces], now_ns)
        self._tsni.on_data(now_ns)
        if self._timer is None:
            self._arm()
        return SqnRange(first, last)

    def request(self, data: bytes, on_response: OnResponse, on_failed: OnRequestFailed = lambda _: None) -> OpenRequest:
        """Send a request to the receivers; `on_response` is called on the loop until it is closed.

        `on_failed`: the context is closed before.

        Raises: as `send`; ResourceError without a request port.
        """
        request = self._owner.requests.open(f"topic {self.topic!r}", on_response, on_failed)
        try:
            self.send(data, blocks=request.blocks)
        except DroError:
            request.close()
            raise
        return request

    def _fragment(self, data: bytes, first: int, blocks: Sequence[AnyBlock]) -> list[Piece]:
        """Make the pieces of a message; `blocks` stand in the first one, which is as long as the others."""
        whole = lbmc.Message(MessageType.MESSAGE, self._index, first, tuple(blocks))
        head = len(lbmc.encode(whole))
        if head + len(data) <= self._largest:
            return [Piece(lbmc.encode(replace(whole, payload=data)), len(data))]
        room = self._largest - head - FRAG_BLOCK_BYTES
        if room <= 0:
            raise UsageError(f"blocks of {head} bytes leave no room for data in {self._largest} bytes")
        pieces = []
        for f in fragments(data, first, room):
            if blocks and not f.offset:
                place = Frag(f.first_sqn, f.offset, f.total)
                made = lbmc.encode(replace(whole, blocks=(*blocks, place), payload=bytes(f.piece)))
            else:
                length = FRAG_HEADER.size + len(f.piece)
                header = FRAG_HEADER.pack(
                    MessageType.MESSAGE, BlockType.FRAG, length, self._index, f.sqn,
                    0, FRAG_BLOCK_BYTES, 0, f.first_sqn, f.offset, f.total,
                )  # fmt: skip
                made = header + f.piece
            pieces.append(Piece(made, len(f.piece)))
        return pieces

    def _gather(self, pieces: Sequence[Piece], marks: int, now_ns: int) -> None:
        """Hold the messages of an explicit batch until its end; those that fill a datagram leave before."""
        group = self._group = self._group or self.writer.new_group()
        datagrams = [datagram for piece in pieces for datagram in group.add(piece, len(piece.message), now_ns)]
        if marks & BATCH_END:
            datagrams += group.flush()
            self._group = None
        self.writer.send_group(datagrams, now_ns)

    def flush(self) -> None:
        """Send what waits for more messages to share a datagram with, or for the end of its batch."""
        now_ns = self._loop.now_ns()
        if self._group is not None:
            self.writer.send_group(self._group.flush(), now_ns)
        self.writer.flush(now_ns)

    def tell_wakeup(self) -> None:
        """A send was refused and the caller does not wait: give one `Wakeup` when the session takes messages again."""
        if not self._wants_wakeup:
            self._wants_wakeup = True
            self.writer.call_when_ready(self._on_ready)

    def _on_ready(self) -> None:
        self._wants_wakeup = False
        self.tell(Wakeup())

    def on_client(self, client: str, *, connected: bool) -> None:
        if connected:
            self.clients.add(client)
        else:
            self.clients.discard(client)
        self.tell(Connect(client) if connected else Disconnect(client))

    def tell(self, event: SourceEvent) -> None:
        if self.on_event is None or self.is_closed:
            return
        try:
            self.on_event(event)
        except Exception:  # the application's code: the loop goes on whatever it does
            log.exception(LogEvent.SOURCE_EVENT_CALLBACK, extra={"topic": self.topic})

    def send_tsni(self) -> bool:
        """Tell receivers the newest sqn, of a source that has sent nothing the one before its first; False when data
        waits, or the session is blocked."""
        is_idle = self.writer.is_idle and (self._group is None or self._group.is_empty)
        return is_idle and self.fragments.send_tsni((self._next_sqn - 1) & MASK, self._loop.now_ns())

    def _arm(self) -> None:
        deadline = self._tsni.next_deadline()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        now_ns = self._loop.now_ns()
        if self.is_closed:
            return
        deadline = self._tsni.next_deadline()
        if deadline is not None and deadline <= now_ns:
            if self.send_tsni():
                self._tsni.on_timer(now_ns)
            else:
                self._timer = self._loop.call_at(now_ns + TSNI_RETRY_NS, self._on_timer)
                return
        self._arm()

    def close(self, *, final: bool | None = None) -> None:
        """Stop being a source. `final`: with final advertisements; None as the option says."""
        if self.is_closed:
            return
        self.flush()
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.on_closed()
        self._owner.on_source_closed(self)
        self.fragments.close(final=self._send_final if final is None else final, linger_ns=self._linger_ns)
