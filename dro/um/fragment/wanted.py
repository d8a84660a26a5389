"""Topics and patterns that the receivers of one context want, counted by reference, with the options of the first.

State: the counts, and the topics that each pattern has found. Additions and removals are passed to the resolver; joined
sources are in `dro.um.fragment.bindings`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from dro.config.um.options import UmOptions
from dro.config.um.sets import DeliveryOptions, QueryOptions, WildcardOptions
from dro.proto.resolver import schedule
from dro.proto.resolver.core import Resolver
from dro.proto.resolver.source_advertisements import Matcher
from dro.table import Table

MERGED_MAX: Final = 256

PatternKey = tuple[bytes, int]  # pattern, pattern type


@dataclass(slots=True)
class _Pattern:
    key: PatternKey
    handle: int
    users: int = 1
    topics: set[bytes] = field(default_factory=set)


class WantedTopics:
    """Removals give the topics that may have lost their last receiver."""

    def __init__(self, resolver: Resolver, options: UmOptions, *, uses_hotlinks: bool = True) -> None:
        """`uses_hotlinks`: as `use_hotlink` says; False: never, as in a DRO."""
        self._uses_hotlinks = uses_hotlinks
        self._resolver = resolver
        self._options = options
        self._merged: dict[UmOptions, UmOptions] = {}  # options of objects -> those with the context's
        self._topics: Table[bytes, int] = Table()
        self._topic_options: Table[bytes, UmOptions] = Table()  # where they are not those of the context
        self._patterns: dict[PatternKey, _Pattern] = {}
        self._by_handle: dict[int, _Pattern] = {}
        self._matched: Table[bytes, int] = Table()  # topics that patterns have found: how many

    # topics

    def add_topic(self, topic: bytes, options: UmOptions | None, now_ns: int) -> None:
        """Want a topic, once more or for the first time. Raises: DecodeError when it cannot be a topic name."""
        count = self._topics.get(topic, 0)
        if not count:
            chosen = self.merged(options)
            self._resolver.add_receiver(topic, now_ns, self._queries(chosen))
            if chosen is not self._options:
                self._topic_options[topic] = chosen
        self._topics[topic] = count + 1

    def remove_topic(self, topic: bytes, now_ns: int) -> set[bytes]:
        self._topics[topic] -= 1
        if self._topics[topic]:
            return set()
        del self._topics[topic]
        self._topic_options.pop(topic, None)
        self._resolver.remove_receiver(topic, now_ns)
        return {topic}

    # patterns

    def add_pattern(self, key: PatternKey, matcher: Matcher, options: UmOptions | None, now_ns: int) -> None:
        """Want a pattern, once more or for the first time. Raises: DecodeError when it cannot be sent as a pattern."""
        known = self._patterns.get(key)
        if known is not None:
            known.users += 1
            return
        chosen = self.merged(options)
        queries = WildcardOptions.filling(schedule.WildcardQueryOptions, chosen)
        handle = self._resolver.add_wildcard(*key, matcher, now_ns, queries, self._queries(chosen))
        self._patterns[key] = self._by_handle[handle] = _Pattern(key, handle)

    def remove_pattern(self, key: PatternKey, now_ns: int) -> Iterator[bytes]:
        """Remove a pattern that finds nothing more; its topics are let go one by one, as the result is gone through."""
        known = self._patterns[key]
        known.users -= 1
        if known.users:
            return iter(())
        del self._patterns[key]
        del self._by_handle[known.handle]
        return self._take_topics(known, self._resolver.remove_wildcard(known.handle, now_ns))

    def _queries(self, options: UmOptions) -> schedule.QueryOptions:
        queries = QueryOptions.filling(schedule.QueryOptions, options)
        if self._uses_hotlinks and DeliveryOptions.of(options).use_hotlink:
            return replace(queries, use_hotlink=True)
        return queries

    def _take_topics(self, pattern: _Pattern, topics: Iterator[bytes]) -> Iterator[bytes]:
        for topic in topics:
            if topic in pattern.topics:
                self._forget_match(topic)
            yield topic

    def on_matched(self, handle: int, topic: bytes) -> PatternKey | None:
        """The resolver found a topic of a pattern; returns the pattern, None when nobody wants it any more."""
        known = self._by_handle.get(handle)
        if known is None:
            return None
        if topic not in known.topics:
            known.topics.add(topic)
            self._matched[topic] = self._matched.get(topic, 0) + 1
        return known.key

    def on_unmatched(self, handle: int, topic: bytes) -> PatternKey | None:
        """A topic of a pattern has no source any more."""
        known = self._by_handle.get(handle)
        if known is None:
            return None
        if topic in known.topics:
            known.topics.remove(topic)
            self._forget_match(topic)
        return known.key

    def _forget_match(self, topic: bytes) -> None:
        self._matched[topic] -= 1
        if not self._matched[topic]:
            del self._matched[topic]

    def remove_all(self, now_ns: int) -> None:
        """Take everything from the resolver; for the end of the context."""
        for topic in self._topics:
            self._resolver.remove_receiver(topic, now_ns)
        for pattern in self._patterns.values():
            for _ in self._resolver.remove_wildcard(pattern.handle, now_ns):
                pass

    # questions

    def is_wanted(self, topic: bytes) -> bool:
        return topic in self._topics or topic in self._matched

    def options_of(self, topic: bytes) -> UmOptions | None:
        """Return those of its first receiver; None for a topic that only patterns want."""
        return self._topic_options.get(topic, self._options) if topic in self._topics else None

    def named_topics(self) -> set[bytes]:
        """Topics that receivers want by name."""
        return set(self._topics)

    def all_topics(self) -> set[bytes]:
        """Topics that receivers want, those that patterns found included."""
        return {*self._topics, *self._matched}

    def topics_of(self, key: PatternKey) -> frozenset[bytes]:
        """Topics that a wanted pattern has found."""
        known = self._patterns.get(key)
        return frozenset(known.topics) if known is not None else frozenset()

    def merged(self, options: UmOptions | None) -> UmOptions:
        """The options of this context, overwritten by those of one object; equal ones are one object."""
        if options is None or not options.explicit:
            return self._options
        merged = self._merged.get(options)
        if merged is None:
            if len(self._merged) >= MERGED_MAX:
                self._merged.clear()
            merged = self._merged[options] = self._options.merged(options)
        return merged
