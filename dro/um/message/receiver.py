"""Receivers of the message level, on the loop of their context, and what they hand their events to.

A receiver registers a `Listener` with the delivery layer and wants its topic. `CallbackListener` calls the application;
the listeners with queues belong to the asyncio and blocking interfaces. Source: client library notes, sections 1 and 3.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from dro.config.um.options import UmOptions
from dro.errors import DecodeError
from dro.log.events import LogEvent
from dro.um.fragment.context import FragmentContext
from dro.um.message.delivery import Delivery
from dro.um.message.events import Data, Event, MessageBatch, RequestMsg, UsageError
from dro.um.message.listeners import Listener, topic_bytes

log = logging.getLogger(__name__)

OnEvent = Callable[[Event], object]
OnMessages = Callable[[MessageBatch], object]
OnSource = Callable[[str, str, bool], object]
"""(topic, source string, added)"""


class CallbackListener:
    """Calls the application. With `on_messages` all messages go there, those that came in a row at once.

    Those with properties, a channel or a number, which a batch does not show, go to `on_event` if there is one.
    """

    def __init__(
        self, on_event: OnEvent | None, on_messages: OnMessages | None = None, on_source: OnSource | None = None
    ) -> None:
        self._on_event = on_event
        self._on_messages = on_messages
        self._on_source = on_source
        self._is_closed = False

    @property
    def wants_batches(self) -> bool:
        return self._on_messages is not None

    def on_events(self, events: list[Event]) -> None:
        on_event, on_messages = self._on_event, self._on_messages
        for event in events:
            if self._is_closed:
                return
            try:
                if on_messages is not None and isinstance(event, Data) and not _is_for_events(event, on_event):
                    on_messages(MessageBatch(event.topic, event.source, event.sqn, [event.data], event.otid))
                elif on_event is not None:
                    on_event(event)
            except Exception:  # the application's code: the loop goes on whatever it does
                log.exception(LogEvent.RECEIVER_EVENT_CALLBACK, extra={"topic": event.topic})

    def on_batch(self, batch: MessageBatch) -> None:
        if self._on_messages is not None and not self._is_closed:
            try:
                self._on_messages(batch)
            except Exception:  # as above
                log.exception(LogEvent.MESSAGE_CALLBACK, extra={"topic": batch.topic})

    def on_source(self, topic: str, source: str, *, added: bool) -> None:
        if self._on_source is not None and not self._is_closed:
            try:
                self._on_source(topic, source, added)
            except Exception:  # as above
                log.exception(LogEvent.SOURCE_CALLBACK, extra={"topic": topic})

    def close(self) -> None:
        self._is_closed = True


def _is_for_events(event: Data, on_event: OnEvent | None) -> bool:
    """Say whether a message goes to `on_event` although others go in batches, which have no room for its headers."""
    return on_event is not None and (event.has_headers or isinstance(event, RequestMsg))


class ReceiverOwner(Protocol):
    """Does for a receiver what it asks of its context."""

    options: UmOptions
    delivery: Delivery
    core: FragmentContext

    def on_receiver_closed(self, receiver: MessageReceiver) -> None: ...


class MessageReceiver:
    """One receiver of one topic."""

    def __init__(self, owner: ReceiverOwner, topic: str, listener: Listener, options: UmOptions) -> None:
        """Raises: UsageError when the topic cannot be one, ConfigError when another receiver has other options."""
        self.topic = topic
        self.is_closed = False
        self.on_closed: Callable[[], object] = lambda: None
        self._owner = owner
        self._name = topic_bytes(topic)
        self._listener = listener
        owner.delivery.add(self._name, listener, owner.options.merged(options))
        try:
            owner.core.want_topic(self._name, options)
        except DecodeError as e:
            owner.delivery.remove(self._name, listener)
            raise UsageError(f"topic {topic[:80]!r} cannot be used: {e.why}") from e

    @property
    def sources(self) -> list[str]:
        """Source strings of the joined sources."""
        return self._owner.delivery.sources_of(self._name)

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._listener.close()
        self._owner.delivery.remove(self._name, self._listener)
        self._owner.on_receiver_closed(self)
        self.on_closed()
        self._owner.core.unwant_topic(self._name)
