"""Receivers of applications by topic: who listens, and with which options.

A `Listener` is one receiver; several on one topic, plain or by pattern, hear the same streams, so they have the same
options as far as these have an effect. Called by the delivery layer.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Final, Protocol

from dro.config.um.layers import SOURCE
from dro.config.um.options import OptionKey, UmOptions
from dro.config.um.used import used_options
from dro.log.events import LogEvent
from dro.um.message.events import Event, MessageBatch, UsageError

log = logging.getLogger(__name__)

NAME_MAX_BYTES: Final = 255


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


@dataclass(slots=True)
class TopicListeners:
    """Says who listens to one topic. `all` is replaced, never changed: who walks it sees no one come or go."""

    topic: str
    options: UmOptions
    plain: list[Listener] = field(default_factory=list)
    by_pattern: list[Listener] = field(default_factory=list)
    all: list[Listener] = field(default_factory=list)


class ListenersByTopic(dict[bytes, TopicListeners]):
    """The topics of one context that somebody listens to; any other one has nobody, and the options of the context."""

    def __init__(self, options: UmOptions) -> None:
        super().__init__()
        self._options = options
        self._differing: set[OptionKey] = set()  # those that were warned about

    def __missing__(self, topic: bytes) -> TopicListeners:
        return TopicListeners(topic_text(topic), self._options)

    def add(self, topic: bytes, listener: Listener, options: UmOptions, *, by_pattern: bool = False) -> None:
        """One more listener. A topic has the options of its first one.

        Raises: ConfigError for a plain one that would have others; a wildcard receiver, which nobody opens for the
        topic, is only warned about.
        """
        if topic not in self:
            self[topic] = TopicListeners(topic_text(topic), options)
        elif differing := _differing(self[topic].options, options):
            self._on_differing(
                self[topic], options, differing[0], is_refused=bool(self[topic].plain) and not by_pattern
            )
        heard = self[topic]
        (heard.by_pattern if by_pattern else heard.plain).append(listener)
        heard.all = [*heard.plain, *heard.by_pattern]

    def remove(self, topic: bytes, listener: Listener, *, by_pattern: bool = False) -> None:
        heard = self[topic]
        listeners = heard.by_pattern if by_pattern else heard.plain
        if listener in listeners:
            listeners.remove(listener)
            heard.all = [*heard.plain, *heard.by_pattern]
            if not heard.all:
                del self[topic]

    def _on_differing(self, heard: TopicListeners, options: UmOptions, key: OptionKey, *, is_refused: bool) -> None:
        """Refuse a listener, or warn once of it. Raises: ConfigError."""
        held = heard.options.value(*key)
        if is_refused:
            what = f"another receiver of topic {heard.topic[:80]!r} in this context has the value {held}"
            raise options.error(key, what, "give both the same options, or open this one in another context")
        if key not in self._differing:
            self._differing.add(key)
            extra = {"topic": heard.topic, "option": " ".join(key), "value": held}
            log.warning(LogEvent.RECEIVERS_DIFFER, extra=extra)


def _differing(one: UmOptions, other: UmOptions) -> list[OptionKey]:
    """List the options with an effect on receivers that are not the same in both."""
    keys = {key for key in (*one.explicit, *other.explicit) if key[0] != SOURCE and key in used_options()}
    keys = {key for key in keys if not key[1].startswith("hf_")}  # these are the business of each receiver
    return sorted(key for key in keys if one.value(*key) != other.value(*key))
