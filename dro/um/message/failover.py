"""Hot failover of applications: a receiver that joins all sources of a topic, and sources whose messages have numbers.

`FailoverListener` stands between the delivery layer and the listener of the application. It keeps one merged stream per
topic (`dro.proto.stream.failover`), so wildcard receivers have the same. Called on the loop. Source: client library
notes, section 11. Guess: the stream of a topic is forgotten with its last source; who sends later begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from dro.config.um.application_options import FailoverOptions
from dro.config.um.options import UmOptions
from dro.errors import ConfigError
from dro.loop import Loop
from dro.proto.stream.failover import FailoverConfig, FailoverStream, Merged, NumbersLost, NumbersReset
from dro.timers import Calendar, Due, Timer
from dro.um.message.delivery import Delivery
from dro.um.message.events import (
    BOS,
    EOS,
    FLAG_HF_DUPLICATE,
    FLAG_HF_PASS_THROUGH,
    FLAG_IMMEDIATE,
    Data,
    Event,
    HFReset,
    Loss,
    LossBurst,
    MessageBatch,
    NoSource,
)
from dro.um.message.listeners import Listener, topic_bytes
from dro.um.message.properties import ComposedMessage, Properties, compose, properties_size
from dro.wire.lbmc.failover import HotFailover

LOSSES_MAX: Final = 1 << 16  # in a row that are reported one by one
MESSAGE_OVERHEAD_BYTES: Final = 256
"""Counts for what a held message takes beside its data."""


def refuse_hotlinks(options: UmOptions, scope: str) -> None:
    """Refuse hot failover beside hotlinks (DRO guide, 3.6.5). Raises: ConfigError that names both."""
    if options.get_int(scope, "use_hotlink"):
        why: ConfigError = options.error(
            (scope, "use_hotlink"), "hot failover cannot be combined with use_hotlink", "set it to 0"
        )
        raise why


@dataclass(slots=True, eq=False)
class _TopicFailover(Due):
    """The merged stream of one topic."""

    topic: str
    stream: FailoverStream[Data]
    on_wait_over: Callable[[_TopicFailover], object]
    sources: set[str] = field(default_factory=set)
    newest: str = ""  # source that was heard last

    def on_due(self) -> None:
        self.on_wait_over(self)


class FailoverListener:
    """Implements `Listener`, for hot failover; hands to `inner` what is merged, and passes everything else through."""

    wants_batches = False

    def __init__(self, loop: Loop, delivery: Delivery, inner: Listener, options: UmOptions) -> None:
        """Raises: ConfigError."""
        refuse_hotlinks(options, "receiver")
        self._loop = loop
        self._delivery = delivery
        self._inner = inner
        self._options = FailoverOptions.of(options)
        self._config = self._options.fill(
            FailoverConfig, wait_ns=self._options.wait_ns, is_in_order=self._options.is_in_order
        )
        self._topics: dict[str, _TopicFailover] = {}
        self._calendar = Calendar()  # topics that wait for a number
        self._is_closed = False
        self._timer: Timer | None = None

    # from the delivery layer

    def on_events(self, events: list[Event]) -> None:
        for event in events:
            if self._is_closed:
                return
            match event:
                case Data(failover=failover, flags=flags) if failover is not None and not flags & FLAG_IMMEDIATE:
                    self._on_number(event, failover)
                case Data(flags=flags) | BOS(flags=flags) | EOS(flags=flags) | NoSource(flags=flags):
                    self._inner.on_events([replace(event, flags=flags | FLAG_HF_PASS_THROUGH)])
                case Loss(topic=topic, source=source) | LossBurst(topic=topic, source=source):
                    if (known := self._topics.get(topic)) is not None:
                        known.stream.on_lost(source)
                case HFReset(topic=topic, source=source, generation=generation):
                    reset = HotFailover(None, generation=generation)
                    self._on_number(Data(topic, source, 0, b"", failover=reset), reset)
        self._arm()

    def on_batch(self, batch: MessageBatch) -> None:
        raise AssertionError("batches are not wanted")

    def on_source(self, topic: str, source: str, *, added: bool) -> None:
        if self._is_closed:
            return
        known = self._of(topic)
        known.stream.on_source(source, added=added, now_ns=self._loop.now_ns())
        (known.sources.add if added else known.sources.discard)(source)
        self._hand(known)
        if not known.sources:
            self._topics.pop(topic, None)
            self._calendar.set(known, None)
        self._arm()
        self._inner.on_source(topic, source, added=added)

    def close(self) -> None:
        self._is_closed = True
        self._topics.clear()
        self._calendar = Calendar()
        self._arm()
        self._inner.close()

    # inside

    def _of(self, topic: str) -> _TopicFailover:
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = _TopicFailover(topic, FailoverStream(self._config), self._on_wait_over)
        return known

    def _on_number(self, event: Data, failover: HotFailover) -> None:
        known = self._of(event.topic)
        known.newest = event.source
        is_whole = self._options.is_in_order or not self._delivery.is_waiting(topic_bytes(event.topic), event.source)
        size = len(event.data) + MESSAGE_OVERHEAD_BYTES + properties_size(event.properties)
        known.stream.on_message(event.source, failover, event, size, self._loop.now_ns(), is_whole=is_whole)
        self._hand(known)

    def _hand(self, known: _TopicFailover) -> None:
        """Hand up what the stream of a topic has settled."""
        topic = known.topic
        events: list[Event] = []
        for event in known.stream.take_events():
            match event:
                case Merged(item=item, is_duplicate=False):
                    events.append(item)
                case Merged(item=item):
                    events.append(replace(item, flags=item.flags | FLAG_HF_DUPLICATE))
                case NumbersReset(source=source, generation=generation):
                    events.append(HFReset(topic, source, generation))
                case NumbersLost(first=first, count=count):
                    if count + len(events) > min(self._options.burst_limit, LOSSES_MAX):
                        events.append(LossBurst(topic, known.newest, first, count))
                    else:
                        events.extend(Loss(topic, known.newest, first + i) for i in range(count))
        if not self._is_closed:
            self._calendar.set(known, known.stream.next_deadline())
        if events:
            self._inner.on_events(events)

    def _arm(self) -> None:
        deadline = self._calendar.next_deadline()
        timer = self._timer
        if timer is not None and timer.is_pending:
            if timer.when_ns == deadline:
                return
            timer.cancel()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._calendar.run_due(self._loop.now_ns())
        self._arm()

    def _on_wait_over(self, known: _TopicFailover) -> None:
        if not self._is_closed:
            known.stream.on_timer(self._loop.now_ns())
            self._hand(known)


class FailoverNumbering:
    """Gives the messages of one source their numbers, and counts its resets."""

    def __init__(self) -> None:
        self._generation = 0

    def compose(
        self,
        data: bytes,
        number: int,
        bits: int,
        *,
        is_optional: bool,
        properties: Properties | None,
        channel: int | None,
    ) -> ComposedMessage:
        """Raises: UsageError."""
        return compose(data, properties, channel, HotFailover(number, bits, is_optional, self._generation))

    def reset(self) -> ComposedMessage:
        """Begin anew; returns the message that says so to receivers."""
        self._generation = (self._generation + 1) % 256
        return compose(b"", failover=HotFailover(None, generation=self._generation))

    def take_back(self) -> None:
        """Go on as before the last reset, which was not sent."""
        self._generation = (self._generation - 1) % 256
