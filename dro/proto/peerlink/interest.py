"""Interest on a peer link: what the other side wants, and what this side wants from it.

Both tables have an entry for each topic or pattern, with the domains that want it. What the other side wants is bounded
in number, and there is no digest of it once something was not taken. When the link goes down it is held; what the next
connection confirms is not reported at all, and what is left when the hold is over is reported as lost part by part.

Source: peer link notes, section 8. Guess: the limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from dro.proto.interest.events import InterestEvent, InterestGained, InterestLost, Symbol
from dro.proto.peerlink.digest import Digest, of_interest
from dro.proto.peerlink.messages import fits, pattern_interest, topic_interest
from dro.table import Table
from dro.wire.lbmc.data_blocks import TopicName
from dro.wire.lbmc.dro_blocks import (
    CAPABILITY3_PCRE,
    CAPABILITY3_REGEX,
    INTEREST_CANCEL,
    PATTERN_CANCEL,
    PATTERN_PCRE,
    PATTERN_REGEX,
    PatternMdInterest,
    TopicMdInterest,
)
from dro.wire.lbmc.message import Message

TOPIC: Final = 0  # the kind of a symbol that is no pattern
MEMBERS_MAX: Final = 1 << 20
"""Topics and patterns, each as often as domains want it."""
_CAPABILITY: Final = {PATTERN_PCRE: CAPABILITY3_PCRE, PATTERN_REGEX: CAPABILITY3_REGEX}


class HeardInterest:
    """What the other side wants."""

    def __init__(self, members_max: int = MEMBERS_MAX) -> None:
        self._most = members_max
        self._members = 0
        self._is_complete = True
        self._domains: Table[Symbol, set[int]] = Table()
        self._held: Table[Symbol, set[int]] = Table()  # of links before, not confirmed by this one
        self._events: list[InterestEvent] = []
        self._digest = Digest()
        self.kinds: Counter[int] = Counter()
        """How many symbols there are of each kind."""
        self.refused = 0
        """What was not taken: there is too much, or it is no possible name."""

    def __len__(self) -> int:
        return len(self._domains)

    @property
    def digest(self) -> int | None:
        return self._digest.value if self._is_complete else None

    @property
    def held(self) -> int:
        """Topics and patterns that are held, and not confirmed yet."""
        return len(self._held)

    def _refuse(self) -> None:
        self.refused += 1
        self._is_complete = False

    def take_events(self) -> list[InterestEvent]:
        events, self._events = self._events, []
        return events

    def on_message(self, message: Message) -> bool:
        """Whether it was a message about interest."""
        name, topic, pattern = message.get(TopicName), message.get(TopicMdInterest), message.get(PatternMdInterest)
        if name is None or (topic is None and pattern is None):
            return False
        if topic is not None:
            self._change((name.topic, TOPIC), topic.domains, is_cancelled=bool(topic.flags & INTEREST_CANCEL))
        elif pattern is not None and pattern.pattern_type in _CAPABILITY:
            symbol = (name.topic, pattern.pattern_type)
            self._change(symbol, pattern.domains, is_cancelled=bool(pattern.flags & PATTERN_CANCEL))
        else:
            self._refuse()
        return True

    def _change(self, symbol: Symbol, domains: Iterable[int], *, is_cancelled: bool) -> None:
        known = self._domains.get(symbol)
        if known is None:
            if is_cancelled:
                return
            if not fits(symbol[0]) or b"\0" in symbol[0]:
                self._refuse()
                return
            known = self._domains[symbol] = set()
            self.kinds[symbol[1]] += 1
        for domain_id in domains:
            member = of_interest(*symbol, domain_id)
            if is_cancelled and domain_id in known:
                known.remove(domain_id)
                self._members -= 1
                self._digest.remove(member)
                self._events.append(InterestLost(symbol, domain_id))
            elif not is_cancelled and domain_id and domain_id not in known:
                if self._members >= self._most:
                    self._refuse()
                    break
                known.add(domain_id)
                self._members += 1
                self._digest.add(member)
                if not self._is_confirmed(symbol, domain_id):
                    self._events.append(InterestGained(symbol, domain_id))
        if not known:
            del self._domains[symbol]
            self.kinds[symbol[1]] -= 1

    def _is_confirmed(self, symbol: Symbol, domain_id: int) -> bool:
        """Say whether it was wanted before the link went down and not reported as lost since; it is held no more."""
        held = self._held.get(symbol)
        if held is None or domain_id not in held:
            return False
        held.remove(domain_id)
        if not held:
            del self._held[symbol]
        return True

    def on_down(self) -> None:
        """Hold what was wanted until `lose`."""
        for symbol, domains in self._held.items():  # the link has been down before, and not all was confirmed
            self._domains.setdefault(symbol, set()).update(domains)
        self._held, self._domains, self._digest = self._domains, Table(), Digest()
        self.kinds.clear()
        self._members, self._is_complete = 0, True

    def lose(self) -> Iterator[None]:
        """Report what is held now as lost, part by part, unless the link goes down meanwhile, or before the first."""
        return self._lose(self._held)

    def _lose(self, held: Table[Symbol, set[int]]) -> Iterator[None]:
        for symbol in held.snapshot():
            if held is not self._held:
                return
            self._events += [InterestLost(symbol, domain_id) for domain_id in sorted(held.pop(symbol, ()))]
            yield


class ToldInterest:
    """What this side wants from the other. Messages are made only for a link that is up; see `all`."""

    def __init__(self) -> None:
        self._domains: Table[Symbol, set[int]] = Table()
        self._indexes: dict[Symbol, int] = {}  # of patterns
        self._next_index = 1
        self._topics_digest = Digest()
        self.capabilities3 = 0
        """Of the other side."""
        self.unfit = 0
        """Symbols whose name does not fit into a message, or that the other side cannot search for."""

    def __len__(self) -> int:
        return len(self._domains)

    @property
    def digest(self) -> int:
        """Patterns are few, and which of them are told depends on the other side."""
        made = Digest(self._topics_digest.value)
        for symbol in filter(self._can_tell, self._indexes):
            for domain_id in self._domains[symbol]:
                made.add(of_interest(*symbol, domain_id))
        return made.value

    def change(self, symbol: Symbol, added: Collection[int], removed: Collection[int]) -> list[bytes]:
        """The messages that tell it."""
        known = self._domains.get(symbol)
        if known is None:
            if not added:
                return []
            known = self._domains[symbol] = set()
            if symbol[1] != TOPIC:
                self._indexes[symbol] = self._next_index
                self._next_index += 1
        new, gone = set(added) - known, set(removed) & known
        known |= new
        known -= gone
        messages: list[bytes] = []
        if self._can_tell(symbol):
            messages = [*self._messages(symbol, new), *self._messages(symbol, gone, is_cancel=True)]
            for change, domains in ((self._topics_digest.add, new), (self._topics_digest.remove, gone)):
                for domain_id in domains if symbol[1] == TOPIC else ():
                    change(of_interest(*symbol, domain_id))
        else:
            self.unfit += 1
        if not known:
            del self._domains[symbol]
            self._indexes.pop(symbol, None)
        return messages

    def _can_tell(self, symbol: Symbol) -> bool:
        return fits(symbol[0]) and (symbol[1] == TOPIC or bool(self.capabilities3 & _CAPABILITY[symbol[1]]))

    def _messages(
        self, symbol: Symbol, domains: Iterable[int], *, is_cancel: bool = False, is_refresh: bool = False
    ) -> Iterator[bytes]:
        name, kind = symbol
        if kind == TOPIC:
            return topic_interest(name, domains, is_cancel=is_cancel, is_refresh=is_refresh)
        index = self._indexes[symbol]
        return pattern_interest(name, kind, index, domains, is_cancel=is_cancel, is_refresh=is_refresh)

    def all(self, *, is_refresh: bool) -> Iterator[bytes]:
        """All that the other side is to be told, made one by one, as things are then."""
        for symbol in self._domains.snapshot():
            domains = self._domains.get(symbol)
            if domains is not None and self._can_tell(symbol):
                yield from self._messages(symbol, domains, is_refresh=is_refresh)
