"""Topics and patterns that the receivers of one context want, counted by reference.

State: the counts, and the topics that each pattern has found. Additions and removals are passed to the resolver; joined
sources are in `dro.proto.context.bound`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from dro.proto.context.effects import PatternKey
from dro.proto.resolver.core import QUERY, WILDCARD_QUERY, Resolver
from dro.proto.resolver.schedule import QueryOptions, WildcardQueryOptions
from dro.proto.resolver.source_advertisements import Matcher
from dro.table import Table

COUNTED_AT_ONCE: Final = 256


@dataclass(slots=True)
class _Pattern:
    key: PatternKey
    handle: int
    users: int = 1
    topics: set[bytes] = field(default_factory=set)


class WantedTopics:
    """Removals give the topics that may have lost their last receiver. Options are those of the first who wants it."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver
        self._topics: Table[bytes, int] = Table()
        self._patterns: dict[PatternKey, _Pattern] = {}
        self._by_handle: dict[int, _Pattern] = {}
        self._matched: Table[bytes, int] = Table()  # topics that patterns have found: how many

    # topics

    def add_topic(self, topic: bytes, now_ns: int, queries: QueryOptions = QUERY) -> bool:
        """Want a topic once more; True for the first time. Raises: DecodeError when it cannot be a topic name."""
        count = self._topics.get(topic, 0)
        if not count:
            self._resolver.add_receiver(topic, now_ns, queries)
        self._topics[topic] = count + 1
        return not count

    def remove_topic(self, topic: bytes, now_ns: int) -> bool:
        """Want it once less; True when no receiver of the topic is left."""
        self._topics[topic] -= 1
        if self._topics[topic]:
            return False
        del self._topics[topic]
        self._resolver.remove_receiver(topic, now_ns)
        return True

    # patterns

    def add_pattern(
        self,
        key: PatternKey,
        matcher: Matcher,
        now_ns: int,
        wildcard_queries: WildcardQueryOptions = WILDCARD_QUERY,
        queries: QueryOptions = QUERY,
    ) -> None:
        """Want a pattern, once more or for the first time. Raises: DecodeError when it cannot be sent as a pattern."""
        known = self._patterns.get(key)
        if known is not None:
            known.users += 1
            return
        handle = self._resolver.add_wildcard(*key, matcher, now_ns, wildcard_queries, queries)
        self._patterns[key] = self._by_handle[handle] = _Pattern(key, handle)

    def remove_pattern(self, key: PatternKey, now_ns: int) -> Iterator[bytes]:
        """Want it once less; the last time it finds nothing more from now on.

        Its topics are let go one by one as the result is gone through, which the caller does to its end.
        """
        known = self._patterns[key]
        known.users -= 1
        if known.users:
            return iter(())
        del self._patterns[key]
        del self._by_handle[known.handle]
        return self._take_topics(known, self._resolver.remove_wildcard(known.handle, now_ns))

    def _take_topics(self, pattern: _Pattern, topics: Iterator[bytes]) -> Iterator[bytes]:
        for topic in topics:
            if topic in pattern.topics:
                pattern.topics.remove(topic)
                self._forget_match(topic)
            yield topic
        while pattern.topics:  # those that the resolver has let go already, and nobody was told yet
            topic = pattern.topics.pop()
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

    def named_topics(self) -> set[bytes]:
        """Topics that receivers want by name."""
        return set(self._topics)

    def all_topics(self) -> set[bytes]:
        """Topics that receivers want, those that patterns found included."""
        return {*self._topics, *self._matched}

    def count(self, has_source: Callable[[bytes], bool]) -> Iterator[tuple[int, int]]:
        """Count topics that receivers want, and of those wanted by name the ones without a source: in steps, as there
        may be very many. The last of what it yields is the result."""
        named, found = list(self._topics), list(self._matched)
        count, unresolved = len(named), 0
        for at in range(0, len(named), COUNTED_AT_ONCE):
            unresolved += sum([not has_source(topic) for topic in named[at : at + COUNTED_AT_ONCE]])
            yield count, unresolved
        for at in range(0, len(found), COUNTED_AT_ONCE):
            count += sum([topic not in self._topics for topic in found[at : at + COUNTED_AT_ONCE]])
            yield count, unresolved
        yield count, unresolved

    def topics_of(self, key: PatternKey) -> frozenset[bytes]:
        """Topics that a wanted pattern has found."""
        known = self._patterns.get(key)
        return frozenset(known.topics) if known is not None else frozenset()
