"""The interest recorded at a portal: topics and patterns of receivers behind it, and which may leave the DRO there.

Part of `portals.decisions.core`, which decides what follows from a change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from dro.proto.interest.events import Symbol
from portals.decisions.acl_enforcement import AclEnforcement
from portals.decisions.messages import PATTERN_NONE, InterestAdded, InterestRemoved

Matcher = Callable[[bytes], bool]


class RecordedInterest:
    """See the module text."""

    def __init__(self, compile_pattern: Callable[[bytes, int], Matcher | None], acl: AclEnforcement) -> None:
        """`compile_pattern(pattern, type)` returns None for a pattern that does not compile, which it logs."""
        self.domains: dict[Symbol, set[int]] = {}
        self.withheld: set[bytes] = set()
        """Topics that are wanted and may not leave."""
        self._compile = compile_pattern
        self._acl = acl
        self._matchers: dict[Symbol, Matcher] = {}

    def add(self, symbol: Symbol, domain_id: int) -> bool:
        """Whether siblings and proxy sources are concerned: it is new, and may leave."""
        name, pattern = symbol
        if pattern != PATTERN_NONE and symbol not in self._matchers:
            matcher = self._compile(name, pattern)
            if matcher is None:
                return False
            self._matchers[symbol] = matcher
        domains = self.domains.setdefault(symbol, set())
        if domain_id in domains:
            return False
        domains.add(domain_id)
        if self.may_leave(symbol):
            return True
        self.withheld.add(name)
        return False

    def remove(self, symbol: Symbol, domain_id: int) -> bool:
        """Whether siblings and proxy sources are concerned: it was there, and might leave."""
        domains = self.domains.get(symbol, set())
        if domain_id not in domains:
            return False
        domains.remove(domain_id)
        if not domains:
            del self.domains[symbol]
            self._matchers.pop(symbol, None)
            if symbol[1] == PATTERN_NONE:
                self.withheld.discard(symbol[0])
        return self.may_leave(symbol)

    def may_leave(self, symbol: Symbol) -> bool:
        """A pattern cannot be judged; the topics that it finds are."""
        return symbol[1] != PATTERN_NONE or self._acl.may_leave(symbol[0])

    def interested(self, topic: bytes) -> set[int]:
        """Domains that get a topic from here."""
        if not self._acl.may_leave(topic):
            return set()
        domains = set(self.domains.get((topic, PATTERN_NONE), ()))
        for symbol, matcher in self._matchers.items():
            wanted = self.domains[symbol]
            if not wanted <= domains and matcher(topic):
                domains |= wanted
        return domains

    def found_by(self, symbol: Symbol, by_topic: Mapping[bytes, Set[bytes]]) -> list[bytes]:
        """The OTIDs whose topic the recorded symbol is, or finds."""
        if symbol[1] == PATTERN_NONE:
            return list(by_topic.get(symbol[0], ()))
        if (matcher := self._matchers.get(symbol)) is None:
            return []
        return [otid for topic, otids in by_topic.items() if matcher(topic) for otid in otids]

    def set_acl(self, acl: AclEnforcement) -> list[InterestAdded | InterestRemoved]:
        """What siblings have to learn of the difference."""
        before, self._acl = self._acl, acl
        changes: list[InterestAdded | InterestRemoved] = []
        if acl.lets_out_like(before):
            return changes
        for (topic, pattern), domains in self.domains.items():
            may_leave = acl.may_leave(topic)
            if pattern == PATTERN_NONE and may_leave != before.may_leave(topic):
                (self.withheld.discard if may_leave else self.withheld.add)(topic)
                kind = InterestAdded if may_leave else InterestRemoved
                changes += [kind(topic, pattern, domain_id) for domain_id in sorted(domains)]
        return changes
