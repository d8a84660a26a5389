"""The interest recorded at a portal: topics and patterns of receivers behind it, and which may leave the DRO there.

Which patterns find a topic is searched once and remembered, both ways, step by step: patterns can be made to be slow.
Part of `portals.decisions.core`, which decides what follows from a change.

Guess: `PATTERNS_MAX`. What is wanted beyond it waits until other patterns have gone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Set
from itertools import chain
from typing import Final

from dro.pattern_groups import PatternSet
from dro.proto.interest.events import Symbol
from dro.table import Table
from portals.decisions.acl_enforcement import AclEnforcement
from portals.decisions.messages import PATTERN_NONE, InterestAdded, InterestRemoved

Matcher = Callable[[bytes], bool]
NOBODY: Final[frozenset[int]] = frozenset()
PATTERNS_MAX: Final = 1000
"""Patterns of a TRD or a companion, all its receivers together."""

_Key = tuple[Symbol, int]  # a pattern that goes and comes again has another key


class RecordedInterest:
    """See the module text."""

    def __init__(
        self,
        compile_pattern: Callable[[bytes, int], Matcher | None],
        acl: AclEnforcement,
        offered: Table[bytes, set[bytes]],
    ) -> None:
        """`compile_pattern(pattern, type)` returns None for a pattern that does not compile, which it logs.

        `offered`: OTIDs by topic, of the sources that siblings offer.
        """
        self.domains: Table[Symbol, set[int]] = Table()
        self.withheld: Table[bytes, None] = Table()
        """Topics that are wanted and may not leave: siblings do not know of the interest in them."""
        self._compile = compile_pattern
        self._acl = acl
        self._offered = offered
        self._matchers: dict[Symbol, Matcher] = {}
        self._patterns: PatternSet[_Key] = PatternSet()
        self._keys: dict[Symbol, _Key] = {}
        self._serial = 0
        self.waiting: Table[Symbol, set[int]] = Table()
        """Patterns beyond `PATTERNS_MAX`, with the domains that want them."""
        self._finders: Table[bytes, tuple[Symbol, ...]] = Table()  # the patterns that find a topic
        self._found: dict[Symbol, Table[bytes, None]] = {}  # the same the other way round
        self._searches: dict[bytes, object] = {}  # that go on, by topic
        self._put_off: dict[bytes, list[bytes]] = {}  # OTIDs, by topics that are searched

    def add(self, symbol: Symbol, domain_id: int) -> bool:
        """Whether siblings and proxy sources are concerned: it is new, and may leave."""
        name, pattern = symbol
        if pattern != PATTERN_NONE and symbol not in self._matchers and not self._take_pattern(symbol, domain_id):
            return False
        is_known = symbol in self.domains
        domains = self.domains.setdefault(symbol, set())
        if domain_id in domains:
            return False
        domains.add(domain_id)
        if not is_known and pattern == PATTERN_NONE and not self._acl.may_leave(name):
            self.withheld[name] = None
        return self.is_told(symbol)

    def _take_pattern(self, symbol: Symbol, domain_id: int) -> bool:
        matcher = self._compile(*symbol)
        if matcher is None:
            return False
        if len(self._matchers) >= PATTERNS_MAX:
            self.waiting.setdefault(symbol, set()).add(domain_id)
            return False
        self._serial += 1
        self._matchers[symbol], self._keys[symbol] = matcher, (symbol, self._serial)
        self._patterns.add(self._keys[symbol], matcher)
        return True

    def take_waiting(self) -> list[tuple[Symbol, int]]:
        """One pattern for which there is room now, with the domains that want it."""
        if len(self._matchers) >= PATTERNS_MAX or not self.waiting:
            return []
        symbol = next(iter(self.waiting))
        return [(symbol, domain_id) for domain_id in sorted(self.waiting.pop(symbol))]

    def remove(self, symbol: Symbol, domain_id: int) -> bool:
        """Whether siblings and proxy sources are concerned: it was there, and siblings know of it."""
        if (waiting := self.waiting.get(symbol)) is not None:
            waiting.discard(domain_id)
            if not waiting:
                del self.waiting[symbol]
        domains = self.domains.get(symbol, set())
        if domain_id not in domains:
            return False
        domains.remove(domain_id)
        is_told = self.is_told(symbol)
        if not domains:
            del self.domains[symbol]
            if self._matchers.pop(symbol, None) is not None:
                self._patterns.remove(self._keys.pop(symbol))
            if symbol[1] == PATTERN_NONE:
                self.withheld.pop(symbol[0], None)
        return is_told

    def is_told(self, symbol: Symbol) -> bool:
        """Whether siblings know of it. A pattern cannot be judged; the topics that it finds are."""
        return symbol[1] != PATTERN_NONE or symbol[0] not in self.withheld

    def interested(self, topic: bytes) -> Set[int]:
        """Domains that get a topic from here, if `has_searched`."""
        if not self._acl.may_leave(topic):
            return NOBODY
        domains = self.domains.get((topic, PATTERN_NONE), NOBODY)
        if not self._matchers:
            return domains
        return domains.union(*(self.domains[symbol] for symbol in self._finders_of(topic)))

    def _finders_of(self, topic: bytes) -> tuple[Symbol, ...]:
        finders = self._finders.get(topic)
        if finders is None:  # an operator asks
            return tuple(symbol for symbol, _ in self._patterns.matching(topic))
        return finders

    def has_searched(self, topic: bytes) -> bool:
        """Whether it is known which patterns find the topic. If not, what needs it is `put_off`."""
        return not self._matchers or (topic in self._finders and topic not in self._searches)

    def put_off(self, topic: bytes, otid: bytes) -> bool:
        """Put the source off until the topic has been searched; whether a `search` has to be begun for it."""
        otids = self._put_off.setdefault(topic, [])
        otids.append(otid)
        return len(otids) == 1

    def search(self, topic: bytes) -> Generator[None, None, list[bytes]]:
        """Find the patterns that find the topic, step by step, until it is forgotten; returns what was put off."""
        self._finders[topic] = ()
        self._searches[topic] = token = object()
        for key in self._patterns.steps(topic):
            if key is not None:
                self._remember(topic, key[0])
            yield
            if self._searches.get(topic) is not token:
                break
        else:
            del self._searches[topic]
        return self._put_off.pop(topic)

    def _remember(self, topic: bytes, symbol: Symbol) -> None:
        finders = self._finders.get(topic)
        if finders is not None and symbol not in finders:
            self._finders[topic] = (*finders, symbol)
            self._found.setdefault(symbol, Table())[topic] = None

    def forget(self, topic: bytes) -> None:
        """Forget a topic, unless a sibling offers a source of it."""
        if topic in self._offered:
            return
        self._searches.pop(topic, None)
        for symbol in self._finders.pop(topic, ()):
            self._found[symbol].pop(topic, None)

    def topics_of(self, symbol: Symbol) -> Iterator[bytes | None]:
        """Known topics that the recorded symbol is, or finds; None for each that it does not find.

        A pattern that is new becomes a finder of them on the way. It ends when the pattern is not recorded any more.
        """
        if symbol[1] == PATTERN_NONE:
            yield symbol[0]
            return
        matcher = self._matchers.get(symbol)
        others = (topic for topic in self._finders.snapshot() if topic not in self._offered)
        for topic in chain(self._offered.snapshot(), others):
            if matcher is None or self._matchers.get(symbol) is not matcher:
                return
            if not matcher(topic):
                yield None
                continue
            self._remember(topic, symbol)
            yield topic

    def take_found(self, symbol: Symbol) -> list[bytes]:
        """Return the same of a symbol that is not recorded any more, or not for all domains."""
        if symbol[1] == PATTERN_NONE:
            return [symbol[0]]
        if symbol in self.domains:
            return list(self._found.get(symbol, ()))
        topics = self._found.pop(symbol, Table())
        for topic in topics:
            self._finders[topic] = tuple(finder for finder in self._finders[topic] if finder != symbol)
        return list(topics)

    def set_acl(self, acl: AclEnforcement) -> None:
        """`changes` has what follows for topics that are known already."""
        self._acl = acl

    def changes(self) -> Iterator[list[InterestAdded | InterestRemoved]]:
        """Yield what siblings have to learn because of another access control list, topic by topic."""
        for symbol in self.domains.snapshot():
            topic, pattern = symbol
            domains = self.domains.get(symbol)
            if domains is None or pattern != PATTERN_NONE:
                yield []
                continue
            may = self._acl.may_leave(topic)
            if may == self.is_told(symbol):
                yield []
                continue
            if may:
                del self.withheld[topic]
            else:
                self.withheld[topic] = None
            kind = InterestAdded if may else InterestRemoved
            yield [kind(topic, pattern, domain_id) for domain_id in sorted(domains)]
