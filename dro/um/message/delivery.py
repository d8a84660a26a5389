"""From fragments to messages: the sink that the message level puts behind its context.

A host of streams (`dro.proto.stream`), which decide what is handed up and when a source begins and ends: it gives them
the fragments, keeps a timer for them, and calls the listeners. Runs in order pass it whole; the rest goes through the
delivery controller of the stream one by one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from dro.config.um.options import UmOptions
from dro.config.um.sets import DeliveryOptions
from dro.errors import DecodeError
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.proto.context.sources import BoundSource
from dro.proto.delivery.order import DeliveryConfig, DeliveryEvent, Lost
from dro.proto.delivery.order import LossBurst as Burst
from dro.proto.delivery.reassembly import Delivered, Frag
from dro.proto.stream.stream import SessionBegan, SessionEnded, SourceChange, SourceStream, SourceStreams, StreamEvent
from dro.sqn import MASK
from dro.timers import Timer
from dro.transport.runs import HEADER_BYTES, KIND_DATA, KIND_TSNI, TYPE_MESSAGE, Run, RunTable
from dro.transport.session import ReceiverTransport
from dro.um.message.events import (
    BOS,
    EOS,
    FLAG_END_BATCH,
    FLAG_RETRANSMIT,
    FLAG_START_BATCH,
    Data,
    Event,
    Loss,
    LossBurst,
    MessageBatch,
    NoSource,
    RequestMsg,
    Responding,
)
from dro.um.message.listeners import Listener, ListenersByTopic
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import END_DATA, UNDERSTOOD_CODES, BlockType, MessageType
from dro.wire.lbmc.data_blocks import BATCH_END, BATCH_START
from dro.wire.lbmc.headers import HEADER_CODES, MessageHeaders, ReturnAddress, read_headers

log = logging.getLogger(__name__)

_IGNORE_TOP: Final = 0x80


class Delivery:
    """Implements `FragmentSink` for one context."""

    def __init__(self, loop: Loop, options: UmOptions) -> None:
        self._loop = loop
        self._listeners = ListenersByTopic(options)
        self._streams = SourceStreams()
        self._timer: Timer | None = None
        self.malformed = 0
        self.make_response: Callable[[ReturnAddress], Responding] = _no_response

    # listeners

    def add(self, topic: bytes, listener: Listener, options: UmOptions, *, by_pattern: bool = False) -> None:
        """One more listener, which hears at once of the sources that are there.

        Raises: ConfigError for a plain one that would have other options than the first one of its topic.
        """
        self._listeners.add(topic, listener, options, by_pattern=by_pattern)
        for stream in self._streams.of_topic(topic):
            for event in stream.known():
                _tell(listener, self._listeners[topic].topic, event)

    def remove(self, topic: bytes, listener: Listener, *, by_pattern: bool = False) -> None:
        self._listeners.remove(topic, listener, by_pattern=by_pattern)
        if topic not in self._listeners:
            self._streams.forget_parked(topic)
            self._arm()

    def plain(self, topic: bytes) -> list[Listener]:
        """List who listens to exactly this topic."""
        return self._listeners[topic].plain

    def sources_of(self, topic: bytes) -> list[str]:
        """Source strings of the joined sources of a topic."""
        streams = self._streams.of_topic(topic)
        return list(dict.fromkeys(stream.names(session)[0] for stream in streams for session in stream.sessions))

    def on_no_source(self, topic: bytes) -> None:
        heard = self._listeners[topic]
        for listener in list(heard.plain):
            listener.on_events([NoSource(heard.topic)])

    # FragmentSink

    def on_bound(self, source: BoundSource[SourceStream], now_ns: int) -> None:
        o = DeliveryOptions.of(self._listeners[source.topic].options)
        config = o.fill(DeliveryConfig, generation_interval_ns=o.lbtrm_generation_ns)
        stream = self._streams.on_bound(source, config, use_hotlink=o.use_hotlink)
        self._settle(stream)
        if source.transport.has_begun:
            self._begin(stream, source)
        self._arm()

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        for bound in list(transport.sources.values()):
            if bound.user is not None:
                self._begin(bound.user, bound)

    def on_unbound(self, source: BoundSource[SourceStream], *, ended: bool, now_ns: int) -> None:
        stream = self._streams.on_unbound(source, ended=ended, now_ns=now_ns)
        if stream is not None:
            self._settle(stream)
            self._arm()

    def on_fragments(self, view: memoryview, parts: Sequence[tuple[ReceiverTransport, RunTable]], now_ns: int) -> None:
        for transport, table in parts:
            self._on_runs(transport, view, table, now_ns)

    def _on_runs(self, transport: ReceiverTransport, view: memoryview, runs: Iterable[Run], now_ns: int) -> None:
        sources = transport.sources
        for run in runs:
            bound = sources.get(run.topic_index)
            if bound is None:
                transport.lbm_msgs_no_topic_rcved += run.fragments
                continue
            stream: SourceStream | None = bound.user
            if stream is None:
                continue
            if stream.live is not bound:
                self._begin(stream, bound)
                if stream.live is not bound:
                    continue  # the application closed the receiver when it was told
            if run.kind == KIND_DATA:
                if (
                    run.next_header == END_DATA
                    and view[run.offset] == TYPE_MESSAGE
                    and stream.controller.accept_run(run.first_sqn, run.fragments)
                ):
                    self._hand(stream, run, view)
                    if stream.takeover is None and stream.planes is None:
                        continue
                elif stream.planes is None or not stream.controller.drop_run(run.first_sqn, run.fragments):
                    self._take(stream, run, view, now_ns)
                stream.on_run(bound, run.first_sqn, run.fragments)
            elif run.kind == KIND_TSNI:
                stream.on_tsni(bound, run.first_sqn, now_ns)
            self._settle(stream)

    # inside

    def _begin(self, stream: SourceStream, session: BoundSource[SourceStream]) -> None:
        """Tell the stream of activity on a session."""
        stream.on_began(session)
        self._settle(stream)

    def _hand(self, stream: SourceStream, run: Run, view: memoryview) -> None:
        """Hand whole messages in order straight to the listeners."""
        size = run.length - HEADER_BYTES
        start = run.offset + HEADER_BYTES
        count, stride = run.fragments, run.stride
        if count == 1:
            payloads = [bytes(view[start : start + size])]
        else:
            span = (count - 1) * stride + size
            block = bytes(view[start : start + span])
            payloads = [block[at : at + size] for at in range(0, span if size else count * stride, stride)]
        heard = self._listeners[stream.topic]
        topic, source, otid, first = heard.topic, stream.source, stream.otid, run.first_sqn
        events: list[Event] | None = None
        for listener in heard.all:
            if listener.wants_batches:
                listener.on_batch(MessageBatch(topic, source, first, payloads, otid))
                continue
            if events is None:
                if first + count <= MASK:
                    events = [Data(topic, source, sqn, data, 0, otid) for sqn, data in enumerate(payloads, first)]
                else:
                    events = [
                        Data(topic, source, sqn & MASK, data, 0, otid) for sqn, data in enumerate(payloads, first)
                    ]
            listener.on_events(events)

    def _take(self, stream: SourceStream, run: Run, view: memoryview, now_ns: int) -> None:
        """Pass fragments one by one through the controller."""
        on_fragment = stream.controller.on_fragment
        sqn = run.first_sqn
        for at in range(run.offset, run.offset + run.fragments * run.stride, run.stride):
            try:
                frag, start, flags, headers = _read(view, at, run.length)
            except DecodeError as e:
                self.malformed += 1
                log.debug(LogEvent.FRAGMENT_DROPPED, extra={"source": stream.source, "error": str(e)})
            else:
                on_fragment(sqn, frag, view[start : at + run.length], now_ns, flags, headers)
            sqn = (sqn + 1) & MASK

    def _settle(self, stream: SourceStream) -> None:
        """Hand up what the stream and its controller have, and set the timer."""
        controller = stream.controller
        heard = self._listeners[stream.topic]
        for change in stream.take_events() if stream.events else ():
            for listener in heard.all:
                _tell(listener, heard.topic, change)
        if controller.has_events:
            events = [_event(heard.topic, stream, event, self.make_response) for event in controller.take_events()]
            for listener in heard.all:
                listener.on_events(events)
        if controller.is_waiting or stream.due_ns is not None:
            self._streams.set_due(stream)
            self._arm()

    def _arm(self) -> None:
        deadline = self._streams.next_deadline()
        timer = self._timer
        if timer is not None and timer.is_pending:
            if timer.when_ns == deadline:
                return
            timer.cancel()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        for stream in self._streams.on_timer(self._loop.now_ns()):
            self._settle(stream)
        self._arm()

    def close(self) -> None:
        self._streams.close()
        self._arm()


def _tell(listener: Listener, topic: str, event: StreamEvent) -> None:
    """Tell a listener of a change of a stream's sessions."""
    match event:
        case SourceChange(source=source, added=added):
            listener.on_source(topic, source, added=added)
        case SessionBegan(source=source, proxy_source=proxy):
            listener.on_events([BOS(topic, source, proxy)])
        case SessionEnded(source=source, proxy_source=proxy):
            listener.on_events([EOS(topic, source, proxy)])


def _no_response(_: ReturnAddress) -> Responding:
    raise AssertionError("the context says how to respond")


def _event(
    topic: str, stream: SourceStream, event: DeliveryEvent, make_response: Callable[[ReturnAddress], Responding]
) -> Event:
    """Make an event of the application from one of the stream's controller."""
    match event:
        case Delivered(sqn=sqn, payload=payload, flags=flags, headers=headers) if headers and headers.returns_to:
            response = make_response(headers.returns_to)
            return RequestMsg(topic, stream.source, sqn, bytes(payload), flags, stream.otid, response=response)
        case Delivered(sqn=sqn, payload=payload, flags=flags):
            return Data(topic, stream.source, sqn, bytes(payload), flags, stream.otid)
        case Lost(sqn=sqn):
            return Loss(topic, stream.source, sqn)
        case Burst(first_sqn=first, count=count):
            return LossBurst(topic, stream.source, first, count)


def _read(view: memoryview, pos: int, length: int) -> tuple[Frag | None, int, int, MessageHeaders | None]:
    """Read FRAG data, offset of the user data, flags and headers of the message at `pos`.

    Raises: DecodeError for a broken chain, a block that must be understood and is not, and headers that make no sense.
    """
    flags = FLAG_RETRANSMIT if view[pos] == MessageType.RETRANSMISSION else 0
    if view[pos + 1] == END_DATA:
        return None, pos + HEADER_BYTES, flags, None
    blocks, end, at = lbmc.chain(view, pos, length)
    has_frag = has_headers = False
    for code, block, size in blocks:
        if code == BlockType.FRAG:
            has_frag = True
        elif code in HEADER_CODES:
            has_headers = True
        elif code == BlockType.BATCH and size >= 4:
            marks = view[block + 3]
            flags |= (FLAG_START_BATCH if marks & BATCH_START else 0) | (FLAG_END_BATCH if marks & BATCH_END else 0)
        elif code not in UNDERSTOOD_CODES and not view[block + 2] & _IGNORE_TOP:
            raise DecodeError("lbmc.block", f"block {code:#04x} is not known and must not be ignored", block)
    headers = read_headers(lbmc.decode(bytes(view[pos : pos + length]))) if has_headers else None
    frag = lbmc.frag_of(view, pos, length) if has_frag else None
    if frag is None:
        return None, at if end == END_DATA else pos + length, flags, headers
    return frag[:3], frag[3], flags, headers
