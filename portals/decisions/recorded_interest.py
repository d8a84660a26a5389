"""The interest recorded at a portal: topics and patterns of receivers behind it, and which may leave the DRO there.

Which patterns find a topic that siblings offer is searched once and remembered, both ways. Part of
`portals.decisions.core`, which decides what follows from a change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import Final

from dro.proto.interest.events import Symbol
from dro.table import Table
from portals.decisions.acl_enforcement import AclEnforcement
from portals.decisions.messages import PATTERN_NONE, InterestAdded, InterestRemoved

Matcher = Callable[[bytes], bool]
NOBODY: Final[frozenset[int]] = frozenset()


class RecordedInterest:
    """See the module text."""

    def __init__(
        self,
        compile_pattern: Callable[[bytes, int], Matcher | None],
        acl: AclEnforcement,
        offered: Table[bytes, set[bytes]],
    ) -> None:
        """`compile_pattern(pattern, type)` returns None for a pattern that does not compile, which it logs.

        `offered`: OTIDs by topic, of the sources that siblings offer; `forget` is called when a topic has left it.
        """
        self.domains: Table[Symbol, set[int]] = Table()
        self.withheld: Table[bytes, None] = Table()
        """Topics that are wanted and may not leave: siblings do not know of the interest in them."""
        self._compile = compile_pattern
        self._acl = acl
        self._offered = offered
        self._matchers: dict[Symbol, Matcher] = {}
        self._finders: Table[bytes, tuple[Symbol, ...]] = Table()  # of an offered topic: the patterns that find it
        self._found: dict[Symbol, Table[bytes, None]] = {}  # the same the other way round

    def add(self, symbol: Symbol, domain_id: int) -> bool:
        """Whether siblings and proxy sources are concerned: it is new, and may leave."""
        name, pattern = symbol
        if pattern != PATTERN_NONE and symbol not in self._matchers:
            matcher = self._compile(name, pattern)
            if matcher is None:
                return False
            self._matchers[symbol] = matcher
        is_known = symbol in self.domains
        domains = self.domains.setdefault(symbol, set())
        if domain_id in domains:
            return False
        domains.add(domain_id)
        if not is_known and pattern == PATTERN_NONE and not self._acl.may_leave(name):
            self.withheld[name] = None
        return self.is_told(symbol)

    def remove(self, symbol: Symbol, domain_id: int) -> bool:
        """Whether siblings and proxy sources are concerned: it was there, and siblings know of it."""
        domains = self.domains.get(symbol, set())
        if domain_id not in domains:
            return False
        domains.remove(domain_id)
        is_told = self.is_told(symbol)
        if not domains:
            del self.domains[symbol]
            self._matchers.pop(symbol, None)
            if symbol[1] == PATTERN_NONE:
                self.withheld.pop(symbol[0], None)
        return is_told

    def is_told(self, symbol: Symbol) -> bool:
        """Whether siblings know of it. A pattern cannot be judged; the topics that it finds are."""
        return symbol[1] != PATTERN_NONE or symbol[0] not in self.withheld

    def interested(self, topic: bytes) -> Set[int]:
        """Domains that get a topic from here."""
        if not self._acl.may_leave(topic):
            return NOBODY
        domains = self.domains.get((topic, PATTERN_NONE), NOBODY)
        if not self._matchers:
            return domains
        return domains.union(*(self.domains[symbol] for symbol in self._finders_of(topic)))

    def _finders_of(self, topic: bytes) -> tuple[Symbol, ...]:
        finders = self._finders.get(topic)
        if finders is None:
            finders = tuple(symbol for symbol, matcher in self._matchers.items() if matcher(topic))
            if topic in self._offered:
                self._finders[topic] = finders
                for symbol in finders:
                    self._found.setdefault(symbol, Table())[topic] = None
        return finders

    def forget(self, topic: bytes) -> None:
        """No sibling offers a source of it any more."""
        for symbol in self._finders.pop(topic, ()):
            self._found[symbol].pop(topic, None)

    def topics_of(self, symbol: Symbol) -> Iterator[bytes | None]:
        """Offered topics that the recorded symbol is, or finds; None for each that it does not find.

        A pattern that is new becomes a finder of them on the way. It ends when the pattern is not recorded any more.
        """
        if symbol[1] == PATTERN_NONE:
            yield symbol[0]
            return
        matcher = self._matchers.get(symbol)
        for topic in self._offered.snapshot():
            if matcher is None or self._matchers.get(symbol) is not matcher:
                return
            if not matcher(topic):
                yield None
                continue
            finders = self._finders.get(topic)
            if finders is not None and symbol not in finders:
                self._finders[topic] = (*finders, symbol)
                self._found.setdefault(symbol, Table())[topic] = None
            yield topic

    def take_found(self, symbol: Symbol) -> list[bytes]:
        """Likewise, of a symbol that is not recorded any more, or not for all domains."""
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
        """What siblings have to learn because of another access control list, topic by topic."""
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
