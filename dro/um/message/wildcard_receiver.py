"""Wildcard receivers of the message level: a sub-receiver for every topic that matches.

A sub-receiver is created at the first advertisement of a topic and removed when its sources have gone and queries stay
unanswered; the resolver decides both. Wildcard matching is in `dro.patterns`. Source: client library notes, section 10.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol

from dro.config.um.options import UmOptions
from dro.config.um.sets import WildcardOptions
from dro.errors import ConfigError, DecodeError
from dro.log.events import LogEvent
from dro.patterns import PCRE, REGEX, Pattern
from dro.um.fragment.context import FragmentContext
from dro.um.message.delivery import Delivery
from dro.um.message.events import UsageError
from dro.um.message.listeners import Listener, topic_bytes, topic_text

log = logging.getLogger(__name__)

OnTopic = Callable[[str], object]
_KINDS: Final = {"pcre": PCRE, "regex": REGEX}


class WildcardOwner(Protocol):
    """Does for a wildcard receiver what it asks of its context."""

    options: UmOptions
    delivery: Delivery
    core: FragmentContext

    def on_wildcard_opened(self, wildcard: PatternReceiver) -> None: ...

    def on_wildcard_closed(self, wildcard: PatternReceiver) -> None: ...


class PatternReceiver:
    """One wildcard receiver. `on_created` and `on_deleted` are told of its sub-receivers, by topic."""

    def __init__(
        self,
        owner: WildcardOwner,
        pattern: str,
        listener: Listener,
        options: UmOptions,
        on_created: OnTopic | None = None,
        on_deleted: OnTopic | None = None,
    ) -> None:
        """Raises: PatternError, ConfigError, UsageError."""
        self.pattern = pattern
        self.is_closed = False
        self.on_closed: Callable[[], object] = lambda: None
        self.topics: set[str] = set()
        self._owner = owner
        self._listener = listener
        self._options = owner.options.merged(options)
        self._on_created = on_created
        self._on_deleted = on_deleted
        kind = _KINDS.get(WildcardOptions.of(self._options).pattern_type)
        if kind is None:
            raise ConfigError(
                "patterns that the application matches are not supported",
                element="wildcard_receiver pattern_type",
                remedy="use pcre or regex",
            )
        self.key = (topic_bytes(pattern), kind)
        matcher = self._matcher = Pattern(*self.key, owner.core.resolution.on_pattern_limit)
        owner.on_wildcard_opened(self)
        known = owner.core.matched_topics(*self.key)
        try:
            owner.core.want_pattern(*self.key, matcher, options)
        except DecodeError as e:
            owner.on_wildcard_closed(self)
            raise UsageError(f"pattern {pattern[:80]!r} cannot be used: {e.why}") from e
        for topic in known:  # found for another receiver with the same pattern
            self.on_matched(topic)

    def listener_for(self, topic: bytes) -> Listener | None:
        """Return who hears of a topic, found or not, if the pattern matches it."""
        return self._listener if self._matcher(topic) else None

    def on_matched(self, topic: bytes) -> None:
        text = topic_text(topic)
        if self.is_closed or text in self.topics:
            return
        self.topics.add(text)
        self._call(self._on_created, text)
        if not self.is_closed:
            self._owner.delivery.add(topic, self._listener, self._options, by_pattern=True)

    def on_unmatched(self, topic: bytes) -> None:
        text = topic_text(topic)
        if text in self.topics:
            self.topics.discard(text)
            self._owner.delivery.remove(topic, self._listener, by_pattern=True)
            self._call(self._on_deleted, text)

    def _call(self, callback: OnTopic | None, topic: str) -> None:
        if callback is not None:
            try:
                callback(topic)
            except Exception:  # the application's code: the loop goes on whatever it does
                log.exception(LogEvent.TOPIC_CALLBACK, extra={"topic": topic})

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        self._listener.close()
        for topic in self.topics:
            self._owner.delivery.remove(topic_bytes(topic), self._listener, by_pattern=True)
        self.topics.clear()
        self._owner.on_wildcard_closed(self)
        self.on_closed()
        self._owner.core.unwant_pattern(*self.key)
