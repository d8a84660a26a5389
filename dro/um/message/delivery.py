"""From fragments to messages: the sink that the message level puts behind its context.

A stream is one originating source (topic and OTID) as its receivers see it. Its delivery controller is kept when the
source moves to another transport session, so nothing is delivered twice or out of order. A `Listener` is one receiver;
several on one topic, plain or by pattern, share a stream.

    bound            stream made, or taken up again                  source callback
    first activity   BOS (at once for listeners that come later)
    fragments        in-order runs pass whole, the rest goes through the controller
    unbound, ended   EOS; the stream waits a while for another way to its source
    unbound, else    nothing: nobody listens any more

With `use_hotlink` several sessions carry a stream side by side (`dro.um.message.planes`): it has the source string of
its origin, and a source callback for the first session and the last one only.

Source: client library notes, sections 1, 3 and 4. Guess: a stream without a session is kept for `PARK_NS`; what its
controller holds is then dropped without a report, as UM does at the end of a session.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from dro.clock import s
from dro.config.um.layers import SOURCE
from dro.config.um.options import OptionKey, UmOptions
from dro.config.um.sets import DeliveryOptions
from dro.config.um.used import used_options
from dro.errors import DecodeError
from dro.log.events import LogEvent
from dro.loop import Loop
from dro.proto.context.sources import BoundSource
from dro.proto.delivery.order import DeliveryConfig, DeliveryController, DeliveryEvent, Lost
from dro.proto.delivery.order import LossBurst as Burst
from dro.proto.delivery.reassembly import Delivered
from dro.sqn import MASK
from dro.timers import Timer
from dro.transport.runs import HEADER_BYTES, KIND_DATA, KIND_TSNI, Run, RunTable
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
    UsageError,
)
from dro.um.message.planes import Planes, origin_string
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.codes import END_DATA, UNDERSTOOD_CODES, BlockType, MessageType
from dro.wire.lbmc.data_blocks import BATCH_END, BATCH_START
from dro.wire.source_string import format_source

log = logging.getLogger(__name__)

PARK_NS: Final = s(60)
PARKED_MAX: Final = 1024
NAME_MAX_BYTES: Final = 255
_IGNORE_TOP: Final = 0x80


class Listener(Protocol):
    """One receiver of the application. Called on the loop; must not raise."""

    @property
    def wants_batches(self) -> bool:
        """Take `on_batch` for messages that come in a row."""

    def on_events(self, events: list[Event]) -> None: ...

    def on_batch(self, batch: MessageBatch) -> None: ...

    def on_source(self, topic: str, source: str, *, added: bool) -> None:
        """A source was found and joined, or is gone."""

    def close(self) -> None:
        """The receiver was closed: the application hears nothing more, not even what is being handed up."""


def topic_text(topic: bytes) -> str:
    return topic.decode("utf-8", "surrogateescape")


def topic_bytes(topic: str) -> bytes:
    """Encode a topic or pattern. Raises: UsageError when it is longer than it may be, or empty."""
    name = topic.encode("utf-8", "surrogateescape")
    if not 0 < len(name) <= NAME_MAX_BYTES:
        raise UsageError(f"{topic[:80]!r} has {len(name)} bytes; a topic or pattern has 1 to {NAME_MAX_BYTES}")
    return name


@dataclass(slots=True, eq=False)
class _Takeover:
    """A session that has begun to carry a source which others carried before: where, once that is known."""

    bound: BoundSource[DeliveryStream]
    first_sqn: int | None = None
    mark: int | None = None  # the place of the session that was reached then


@dataclass(slots=True, eq=False)
class DeliveryStream:
    """One originating source of one topic."""

    topic: str
    otid: bytes
    controller: DeliveryController
    listeners: list[Listener]
    begun: dict[BoundSource[DeliveryStream], bool] = field(
        default_factory=dict
    )  # sessions that carry it: whether there was activity
    live: BoundSource[DeliveryStream] | None = None  # the one whose source string is current
    takeover: _Takeover | None = None
    source: str = ""
    planes: Planes | None = None
    timer: Timer | None = None
    park: Timer | None = None

    def tell(self, event: Event) -> None:
        for listener in self.listeners:
            listener.on_events([event])


class Delivery:
    """Implements `FragmentSink` for one context."""

    def __init__(self, loop: Loop, options: UmOptions) -> None:
        self._loop = loop
        self._options = options
        self._streams: dict[bytes, dict[bytes, DeliveryStream]] = {}  # by topic and OTID
        self._parked: dict[tuple[bytes, bytes], DeliveryStream] = {}  # without a session, oldest first
        self._plain: dict[bytes, list[Listener]] = {}
        self._by_pattern: dict[bytes, list[Listener]] = {}  # topic -> wildcard receivers that it matches
        self._topic_options: dict[bytes, UmOptions] = {}
        self._differing: set[OptionKey] = set()  # those that were warned about
        self.malformed = 0

    # listeners

    def add(self, topic: bytes, listener: Listener, options: UmOptions, *, by_pattern: bool = False) -> None:
        """One more listener. A topic has the options of its first one.

        Raises: ConfigError for a plain one that would have others; a wildcard receiver, which nobody opens for the
        topic, is only warned about.
        """
        if not self._listeners(topic):
            self._topic_options[topic] = options
        elif differing := _differing(self._topic_options[topic], options):
            key = differing[0]
            held = self._topic_options[topic].value(*key)
            if not by_pattern and topic in self._plain:
                what = f"another receiver of topic {topic_text(topic)[:80]!r} in this context has the value {held}"
                raise options.error(key, what, "give both the same options, or open this one in another context")
            if key not in self._differing:
                self._differing.add(key)
                extra = {"topic": topic_text(topic), "option": " ".join(key), "value": held}
                log.warning(LogEvent.RECEIVERS_DIFFER, extra=extra)
        table = self._by_pattern if by_pattern else self._plain
        table.setdefault(topic, []).append(listener)
        for stream in self._streams_of(topic):
            stream.listeners = self._listeners(topic)
            for number, (bound, has_begun) in enumerate(stream.begun.items()):
                source, proxy = self._names(stream, bound)
                if stream.planes is None or not number:
                    listener.on_source(stream.topic, source, added=True)
                if has_begun:
                    listener.on_events([BOS(stream.topic, source, proxy)])

    def remove(self, topic: bytes, listener: Listener, *, by_pattern: bool = False) -> None:
        table = self._by_pattern if by_pattern else self._plain
        listeners = table.get(topic, [])
        if listener not in listeners:
            return
        rest = [other for other in listeners if other is not listener]
        if rest:
            table[topic] = rest
        else:
            del table[topic]
        remaining = self._listeners(topic)
        for stream in self._streams_of(topic):
            stream.listeners = remaining
        if not remaining:
            self._topic_options.pop(topic, None)
            for stream in self._streams_of(topic):
                if stream.park is not None:  # who listens later starts anew
                    self._drop(stream, (topic, stream.otid))

    def _listeners(self, topic: bytes) -> list[Listener]:
        return [*self._plain.get(topic, ()), *self._by_pattern.get(topic, ())]

    def _streams_of(self, topic: bytes) -> list[DeliveryStream]:
        return list(self._streams.get(topic, {}).values())

    def sources_of(self, topic: bytes) -> list[str]:
        """Source strings of the joined sources of a topic."""
        streams = self._streams_of(topic)
        return list(dict.fromkeys(self._names(stream, bound)[0] for stream in streams for bound in stream.begun))

    def streams(self) -> list[DeliveryStream]:
        return [stream for streams in self._streams.values() for stream in streams.values()]

    def on_no_source(self, topic: bytes) -> None:
        for listener in self._plain.get(topic, ()):
            listener.on_events([NoSource(topic_text(topic))])

    # FragmentSink

    def on_bound(self, source: BoundSource[DeliveryStream], now_ns: int) -> None:
        streams = self._streams.setdefault(source.topic, {})
        stream = streams.get(source.otid)
        if stream is None:
            stream = streams[source.otid] = self._new_stream(source)
        if stream.park is not None:
            del self._parked[source.topic, source.otid]
            stream.park.cancel()
            stream.park = None
        stream.begun[source] = False
        source.user = stream
        if stream.planes is None or len(stream.begun) == 1:
            self._tell_source(stream, source, added=True)
        if source.transport.has_begun:
            self._begin(stream, source)

    def on_began(self, transport: ReceiverTransport, now_ns: int) -> None:
        for bound in list(transport.sources.values()):
            if bound.user is not None:
                self._begin(bound.user, bound)

    def on_unbound(self, source: BoundSource[DeliveryStream], *, ended: bool, now_ns: int) -> None:
        stream = source.user
        if stream is None:
            return
        stream.begun.pop(source, None)
        if ended and source.transport.was_connected:
            stream.tell(EOS(stream.topic, *self._names(stream, source)))
        if stream.planes is None or not stream.begun:
            self._tell_source(stream, source, added=False)
        if stream.planes is not None:
            stream.planes.forget(source)
            self._settle_planes(stream, stream.planes)
        if stream.takeover is not None:
            if stream.takeover.bound is source:
                stream.takeover = None
            else:
                self._finish_takeover(stream)
        if not stream.begun:
            if ended and source.transport.was_connected:
                self._park(stream, (source.topic, source.otid))
            else:
                self._drop(stream, (source.topic, source.otid))

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
            stream: DeliveryStream | None = bound.user
            if stream is None:
                continue
            if stream.live is not bound:
                self._begin(stream, bound)
                if bound not in stream.begun:
                    continue  # the application closed the receiver when it was told
            if run.kind == KIND_DATA:
                if (
                    run.next_header == END_DATA
                    and view[run.offset] == MessageType.MESSAGE
                    and stream.controller.accept_run(run.first_sqn, run.fragments)
                ):
                    self._hand(stream, run, view)
                elif stream.planes is None or not stream.controller.drop_run(run.first_sqn, run.fragments):
                    self._take(stream, run, view, now_ns)
                if stream.takeover is not None:
                    self._on_takeover(stream, run)
            elif run.kind == KIND_TSNI:
                stream.controller.on_tsni(run.first_sqn, now_ns)
                self._settle(stream)
            if stream.planes is not None and run.kind in (KIND_DATA, KIND_TSNI):
                stream.planes.on_run(bound, run.first_sqn, run.fragments)
                self._settle_planes(stream, stream.planes)

    # inside

    def _string(self, source: BoundSource[DeliveryStream]) -> str:
        return format_source(source.address, source.topic_index)

    def _names(self, stream: DeliveryStream, source: BoundSource[DeliveryStream]) -> tuple[str, str]:
        """Return the source string, and with hotlinks that of the session, if it is another."""
        text = self._string(source)
        return (text, "") if stream.planes is None else (stream.source, text if text != stream.source else "")

    def _tell_source(self, stream: DeliveryStream, source: BoundSource[DeliveryStream], *, added: bool) -> None:
        text = self._names(stream, source)[0]
        for listener in stream.listeners:
            listener.on_source(stream.topic, text, added=added)

    def _new_stream(self, source: BoundSource[DeliveryStream]) -> DeliveryStream:
        o = DeliveryOptions.of(self._topic_options.get(source.topic, self._options))
        config = self._config(source, o)
        planes = Planes(config, o.lbtrm_generation_ns) if o.use_hotlink else None
        controller = DeliveryController(config if planes is None else planes.config)
        stream = DeliveryStream(
            topic_text(source.topic), source.otid, controller, self._listeners(source.topic), planes=planes
        )
        if planes is not None:
            stream.source = origin_string(source.otid, self._string(source))
        return stream

    def _config(self, source: BoundSource[DeliveryStream], o: DeliveryOptions) -> DeliveryConfig:
        cost = source.tir.options.cost if source.tir.options is not None else None
        return o.fill(
            DeliveryConfig,
            generation_interval_ns=source.transport.generation_ns or o.lbtrm_generation_ns,
            immediate=source.transport.is_in_order,
            from_dro=cost is not None and cost.hop_count > 0,
        )

    def _begin(self, stream: DeliveryStream, bound: BoundSource[DeliveryStream]) -> None:
        """Make the session, which is active, the stream's current one from now on."""
        if bound not in stream.begun:
            return
        stream.live = bound
        if stream.planes is None:
            stream.source = self._string(bound)
        if not stream.begun[bound]:
            stream.begun[bound] = True
            if stream.controller.expected is not None and stream.planes is None:
                stream.takeover = _Takeover(bound)
            stream.tell(BOS(stream.topic, *self._names(stream, bound)))

    def _settle_planes(self, stream: DeliveryStream, planes: Planes) -> None:
        """Give up what no session can supply any more."""
        if stream.controller.is_waiting and (sqn := planes.passed(stream.begun)) is not None:
            stream.controller.on_replaced(sqn)
            self._settle(stream)

    def _on_takeover(self, stream: DeliveryStream, run: Run) -> None:
        """Note where a new session begins, and finish the takeover if that is possible already."""
        takeover = stream.takeover
        assert takeover is not None
        if takeover.first_sqn is None and stream.live is takeover.bound:
            takeover.first_sqn, takeover.mark = run.first_sqn, takeover.bound.transport.mark()
        self._finish_takeover(stream)

    def _finish_takeover(self, stream: DeliveryStream) -> None:
        """Give up what nobody can repair: the other sessions are gone, and the new one has all since it began."""
        takeover = stream.takeover
        if takeover is None or takeover.first_sqn is None or len(stream.begun) > 1:
            return
        if takeover.bound.transport.is_whole(takeover.mark):
            stream.takeover = None
            stream.controller.on_replaced(takeover.first_sqn)
            self._settle(stream)

    def _hand(self, stream: DeliveryStream, run: Run, view: memoryview) -> None:
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
        topic, source, otid, first = stream.topic, stream.source, stream.otid, run.first_sqn
        events: list[Event] | None = None
        for listener in stream.listeners:
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

    def _take(self, stream: DeliveryStream, run: Run, view: memoryview, now_ns: int) -> None:
        """Pass fragments one by one through the controller."""
        on_fragment = stream.controller.on_fragment
        sqn = run.first_sqn
        for at in range(run.offset, run.offset + run.fragments * run.stride, run.stride):
            try:
                frag, start, flags = _read(view, at, run.length)
            except DecodeError as e:
                self.malformed += 1
                log.debug(LogEvent.FRAGMENT_DROPPED, extra={"source": stream.source, "error": str(e)})
            else:
                on_fragment(sqn, frag, view[start : at + run.length], now_ns, flags)
            sqn = (sqn + 1) & MASK
        self._settle(stream)

    def _settle(self, stream: DeliveryStream) -> None:
        """Hand up what the controller has, and set its timer."""
        controller = stream.controller
        if controller.has_events:
            events = [self._event(stream, event) for event in controller.take_events()]
            for listener in stream.listeners:
                listener.on_events(events)
        if controller.is_waiting or stream.timer is not None:
            self._arm(stream)

    @staticmethod
    def _event(stream: DeliveryStream, event: DeliveryEvent) -> Event:
        match event:
            case Delivered(sqn=sqn, payload=payload, flags=flags):
                return Data(stream.topic, stream.source, sqn, bytes(payload), flags, stream.otid)
            case Lost(sqn=sqn):
                return Loss(stream.topic, stream.source, sqn)
            case Burst(first_sqn=first, count=count):
                return LossBurst(stream.topic, stream.source, first, count)

    def _arm(self, stream: DeliveryStream) -> None:
        deadline = stream.controller.next_deadline()
        timer = stream.timer
        if timer is not None and timer.is_pending:
            if timer.when_ns == deadline:
                return
            timer.cancel()
        stream.timer = None if deadline is None else self._loop.call_at(deadline, lambda: self._on_timer(stream))

    def _on_timer(self, stream: DeliveryStream) -> None:
        stream.controller.on_timer(self._loop.now_ns())
        self._settle(stream)

    def _park(self, stream: DeliveryStream, key: tuple[bytes, bytes]) -> None:
        if len(self._parked) >= PARKED_MAX:
            oldest = next(iter(self._parked))
            self._drop(self._parked[oldest], oldest)
        self._parked[key] = stream
        stream.park = self._loop.call_later(PARK_NS, lambda: self._drop(stream, key))

    def _drop(self, stream: DeliveryStream, key: tuple[bytes, bytes]) -> None:
        for timer in (stream.park, stream.timer):
            if timer is not None:
                timer.cancel()
        stream.controller.on_end()
        self._parked.pop(key, None)
        streams = self._streams.get(key[0], {})
        if streams.get(key[1]) is stream:
            del streams[key[1]]
            if not streams:
                del self._streams[key[0]]

    def close(self) -> None:
        for topic, streams in list(self._streams.items()):
            for otid, stream in list(streams.items()):
                self._drop(stream, (topic, otid))


def _differing(one: UmOptions, other: UmOptions) -> list[OptionKey]:
    """List the options with an effect on receivers that are not the same in both."""
    keys = {key for key in (*one.explicit, *other.explicit) if key[0] != SOURCE and key in used_options()}
    return sorted(key for key in keys if one.value(*key) != other.value(*key))


def _read(view: memoryview, pos: int, length: int) -> tuple[tuple[int, int, int] | None, int, int]:
    """Read FRAG data, offset of the user data, and flags of the message at `pos`.

    Raises: DecodeError for a broken chain, and for a block that must be understood and is not.
    """
    flags = FLAG_RETRANSMIT if view[pos] == MessageType.RETRANSMISSION else 0
    if view[pos + 1] == END_DATA:
        return None, pos + HEADER_BYTES, flags
    blocks, end, at = lbmc.chain(view, pos, length)
    has_frag = False
    for code, block, size in blocks:
        if code == BlockType.FRAG:
            has_frag = True
        elif code == BlockType.BATCH and size >= 4:
            marks = view[block + 3]
            flags |= (FLAG_START_BATCH if marks & BATCH_START else 0) | (FLAG_END_BATCH if marks & BATCH_END else 0)
        elif code not in UNDERSTOOD_CODES and not view[block + 2] & _IGNORE_TOP:
            raise DecodeError("lbmc.block", f"block {code:#04x} is not known and must not be ignored", block)
    frag = lbmc.frag_of(view, pos, length) if has_frag else None
    if frag is None:
        return None, at if end == END_DATA else pos + length, flags
    return frag[:3], frag[3], flags
