"""Multicast immediate messages of one context: LBMC bytes to messages in the order of their sender, and back.

State: a delivery controller for each sender, by OTID, whatever way its messages come: what several DROs bring is taken
once, and what one way has lost may come by another. A message without an OTID is told by its session. A sender that is
silent for `idle_ns` is forgotten, the one silent for longest as well when there are more than `STREAMS_MAX`, or when
more than `PARTS_MAX_BYTES` wait for what is missing.

    with a topic    topic index 0; TOPICNAME, ODOMAIN [REQUEST] OTID [FRAG]
    without         topic index 0; ODOMAIN [REQUEST] OTID [FRAG]

Source: wire notes LBMC, 6 and 7; forwarding notes, section 12; UM Configuration Guide, `mim_*`. Guess: a gap wider than
`mim_sqn_window_size` is one loss, after which all goes on behind it. Guess: what waits behind a gap is handed up when
its time is over, looked at each `mim_delivery_control_loss_check_interval`, or without one each
`mim_delivery_control_activity_check_interval`. Guess: the limits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from dro.clock import ms
from dro.errors import DecodeError
from dro.proto.delivery.config import DeliveryConfig
from dro.proto.delivery.fragment import FRAG_BLOCK_BYTES, fragments
from dro.proto.delivery.order import ARRIVAL, IN_ORDER, DeliveryController, Lost
from dro.proto.delivery.reassembly import Delivered
from dro.proto.unicast.messages import Immediate
from dro.sqn import add
from dro.wire import otid as otid_codec
from dro.wire.lbmc import message as lbmc
from dro.wire.lbmc.blocks import AnyBlock
from dro.wire.lbmc.codes import END_DATA, MessageType
from dro.wire.lbmc.data_blocks import Frag, OtidBlock, TopicName
from dro.wire.lbmc.headers import MessageHeaders, read_headers
from dro.wire.source_string import TransportAddress, format_source

STREAMS_MAX: Final = 256
PARTS_MAX_BYTES: Final = 1 << 26
MESSAGE_MAX_BYTES: Final = 1 << 20
ROW_MAX: Final = 256
"""Sqns in a row that are told as lost one by one."""
CHECK_LEAST_NS: Final = ms(10)


@dataclass(frozen=True, slots=True)
class MulticastLimits:
    """How senders are followed: options `mim_*` of the context. `ordered_delivery`: 1, or 0 as messages come."""

    ordered_delivery: int
    window_size: int
    generation_ns: int
    loss_check_ns: int
    idle_ns: int
    check_ns: int


@dataclass(frozen=True, slots=True)
class _NamedHeaders(MessageHeaders):
    """The headers of a message, and what else its first piece says."""

    topic: bytes | None = None


@dataclass(frozen=True, slots=True)
class MulticastMessage:
    """A whole message; `source` is the session that it was first sent on, `sqn` that of its last piece."""

    immediate: Immediate
    source: str
    sqn: int
    otid: bytes


@dataclass(frozen=True, slots=True)
class MulticastLoss:
    """A sqn was given up, or `count` from `sqn` on."""

    source: str
    sqn: int
    count: int = 1


MulticastEvent: TypeAlias = MulticastMessage | MulticastLoss


@dataclass(slots=True)
class _Stream:
    source: str
    otid: bytes
    controller: DeliveryController
    active_ns: int = 0
    held_bytes: int = 0


class MulticastReader:
    """See the module text. `broken` counts messages that are not taken."""

    def __init__(self, limits: MulticastLimits) -> None:
        self.broken = 0
        self._limits = limits
        self._check_interval_ns = max(min(limits.check_ns, limits.loss_check_ns or limits.check_ns), CHECK_LEAST_NS)
        self._config = DeliveryConfig(
            ordered_delivery=IN_ORDER if limits.ordered_delivery else ARRIVAL,
            generation_interval_ns=limits.generation_ns,
            burst_limit=limits.window_size,
            row_max=ROW_MAX,
            loss_check_interval_ns=self._check_interval_ns,
            message_max_bytes=MESSAGE_MAX_BYTES,
            held_max_bytes=MESSAGE_MAX_BYTES,
        )
        self._streams: dict[object, _Stream] = {}  # the one silent for longest first
        self._held_bytes = 0
        self._check_ns: int | None = None

    def __len__(self) -> int:
        """Senders that are followed."""
        return len(self._streams)

    @property
    def duplicates(self) -> int:
        """Pieces of the senders followed now that had come before."""
        return sum(stream.controller.stats.duplicates for stream in self._streams.values())

    def read(self, message: bytes, session: TransportAddress, now_ns: int) -> list[MulticastEvent]:
        """Take one LBMC message from a session."""
        try:
            made = lbmc.decode(message)
            headers = read_headers(made)
        except DecodeError:
            self.broken += 1
            return []
        if made.must_drop or made.type != MessageType.MESSAGE or made.end != END_DATA or made.sqn is None:
            self.broken += 1
            return []
        stream = self._stream_of(made, session, now_ns)
        name, frag = made.get(TopicName), made.get(Frag)
        named = _NamedHeaders(
            None if headers is None else headers.returns_to,
            () if headers is None else headers.elements,
            None if name is None else name.topic,
        )
        place = None if frag is None else (frag.first_sqn, frag.offset, frag.length)
        stream.controller.on_fragment(made.sqn, place, made.payload, now_ns, 0, named)
        events = self._events(stream)
        while self._held_bytes > PARTS_MAX_BYTES:
            self._forget(next(iter(self._streams)))
        return events

    def _stream_of(self, message: lbmc.Message, session: TransportAddress, now_ns: int) -> _Stream:
        block = message.get(OtidBlock)
        key: object = session if block is None else block.otid
        stream = self._streams.pop(key, None)
        if stream is None:
            if len(self._streams) >= STREAMS_MAX:
                self._forget(next(iter(self._streams)))
            otid = b"" if block is None else block.otid
            stream = _Stream(_origin_of(otid, session), otid, DeliveryController(self._config))
        self._streams[key] = stream
        stream.active_ns = now_ns
        if self._check_ns is None:
            self._check_ns = now_ns + self._check_interval_ns
        return stream

    def _events(self, stream: _Stream) -> list[MulticastEvent]:
        controller = stream.controller
        self._held_bytes += controller.held_bytes - stream.held_bytes
        stream.held_bytes = controller.held_bytes
        events: list[MulticastEvent] = []
        for event in controller.take_events():
            if isinstance(event, Delivered):
                if (taken := self._taken(event)) is not None:
                    events.append(MulticastMessage(taken, stream.source, event.sqn, stream.otid))
            elif isinstance(event, Lost):
                events.append(MulticastLoss(stream.source, event.sqn))
            else:
                events.append(MulticastLoss(stream.source, event.first_sqn, event.count))
        return events

    def _taken(self, message: Delivered) -> Immediate | None:
        named = message.headers
        assert isinstance(named, _NamedHeaders)
        if named.properties_length > len(message.payload):
            self.broken += 1
            return None
        headers = MessageHeaders(named.returns_to, named.elements) if named.returns_to or named.elements else None
        return Immediate(bytes(message.payload), named.topic, headers)

    def _forget(self, key: object) -> None:
        self._held_bytes -= self._streams.pop(key).held_bytes

    # time

    def next_deadline(self) -> int | None:
        return self._check_ns

    def on_timer(self, now_ns: int) -> list[MulticastEvent]:
        """Give up what is due, and forget who is silent."""
        if self._check_ns is None or now_ns < self._check_ns:
            return []
        events: list[MulticastEvent] = []
        for key, stream in list(self._streams.items()):
            stream.controller.on_timer(now_ns)
            events += self._events(stream)
            if now_ns - stream.active_ns >= self._limits.idle_ns and not stream.controller.is_waiting:
                self._forget(key)
        self._check_ns = now_ns + self._check_interval_ns if self._streams else None
        return events


def _origin_of(otid: bytes, session: TransportAddress) -> str:
    try:
        return format_source(otid_codec.decode(otid).address)
    except DecodeError:
        return format_source(session)


class MulticastWriter:
    """The messages of one session, numbered from 0."""

    def __init__(self, otid: bytes) -> None:
        self._otid = OtidBlock(otid)
        self._next_sqn = 0

    def pieces(self, data: bytes, blocks: Iterable[AnyBlock], largest: int) -> list[bytes]:
        """Make those of one message, of at most `largest` bytes each. Raises: DecodeError when blocks leave no room."""

        def made(sqn: int, piece: bytes, *behind: AnyBlock) -> bytes:
            return lbmc.encode(lbmc.Message(MessageType.MESSAGE, 0, sqn, (*before, *behind), piece))

        before = (*blocks, self._otid)
        first = self._next_sqn
        room = largest - len(made(0, b""))
        if len(data) <= room:
            self._next_sqn = add(first, 1)
            return [made(first, data)]
        room -= FRAG_BLOCK_BYTES
        if room <= 0:
            raise DecodeError("lbmc.msglen", f"the blocks leave no room for data in {largest} bytes")
        parts = fragments(data, first, room)
        self._next_sqn = add(first, len(parts))
        return [made(p.sqn, bytes(p.piece), Frag(p.first_sqn, p.offset, p.total)) for p in parts]
