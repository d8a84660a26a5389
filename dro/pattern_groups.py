"""A long list of patterns applied to one topic: which entries may match, without a search for each of them.

The list is cut into groups, groups of groups and so on, each with one expression that joins the patterns below it by
alternation. A group whose expression does not match the topic is skipped as a whole, so a topic that none of a thousand
patterns matches costs one search, and a matching one about forty. Patterns that cannot be joined without a change of
meaning (references to groups by number or name, verbs, quoted text) are searched one by one, as are all when a joined
search exceeds its limit.

`PatternIndex` is for a list that stays, as of an access control list; `PatternSet` for patterns that come and go, as of
wildcard receivers. Both can be searched step by step: a thousand patterns that are made to be slow take 0.1 s. Pure.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Final, Generic, TypeAlias, TypeVar

from dro.patterns import Pattern, PatternLimit, Search, joined

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
Matcher: TypeAlias = Callable[[bytes], bool]

GROUP: Final = 16
"""Entries of a group, and groups of a group of groups."""
FEW: Final = 4
"""Fewer entries behind each other are asked one by one."""
JOINED_STEPS: Final = 4
"""A joined search counts as so many steps; the search of one pattern is one."""
BUILD_COST: Final = 8
"""What it costs to add a pattern to an index, in searches."""
_EVERYTHING: Final = frozenset({b"", b".", b".*", b"^", b"^.*", b"^.*$", b".*$", b"$", b"(?s).", b"(?s)(?:.*)"})
"""Patterns that fit whatever a topic is: among others they would make every group fit."""
_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_BY_NUMBER_OR_NAME: Final = b"0123456789gkQEc"
_GROUP_OPENING: Final = re.compile(rb"\(([?*].?.?)")
_PLAIN_OPENINGS: Final = re.compile(rb"\?(?::|=|!|<=|<!|>|[ims]+[:)])")


def is_joinable(pattern: bytes) -> bool:
    """Whether a valid pattern means the same as one alternative among others. False when in doubt."""
    if any(char in _BY_NUMBER_OR_NAME for char in _ESCAPED.findall(pattern)):
        return False
    openings = _GROUP_OPENING.findall(_ESCAPED.sub(b"", pattern))
    return all(_PLAIN_OPENINGS.match(opening) for opening in openings)


@dataclass(frozen=True, slots=True)
class _Group(Generic[T]):
    """Entries, or groups of them, that are searched as one; `may_fit` is None where every member has to be asked."""

    may_fit: Search | None
    members: tuple[_Group[T] | T, ...]


class PatternIndex(Generic[T]):
    """Entries in order, each with a pattern that must occur in a topic for it to fit, or None."""

    def __init__(self, entries: Sequence[tuple[Pattern | None, T]]) -> None:
        self._members: tuple[_Group[T] | T, ...] = ()
        deque(self.build(entries), maxlen=0)

    def build(self, entries: Sequence[tuple[Pattern | None, T]]) -> Iterator[None]:
        """Take these entries and no others, step by step; until the last step the index is what it was."""
        members: list[_Group[T] | T] = []
        run: list[tuple[bytes, T]] = []
        for pattern, entry in entries:
            if pattern is not None and pattern.pcre not in _EVERYTHING and is_joinable(pattern.pcre):
                run.append((pattern.pcre, entry))
            else:
                members += [*(yield from _tree(run)), entry]
                run = []
        self._members = (*members, *(yield from _tree(run)))

    def candidates(self, topic: bytes) -> Iterator[T]:
        """The entries that may fit, in order; those left out cannot."""
        return (entry for entry in self.steps(topic) if entry is not None)

    def steps(self, topic: bytes) -> Iterator[T | None]:
        """Yield as above, with None for each step of a search on the way."""
        return _candidates(self._members, topic)


def _tree(run: list[tuple[bytes, T]]) -> Generator[None, None, list[_Group[T] | T]]:
    """Join entries that stand behind each other to one member; a few stay as they are. A step for each expression."""
    if len(run) < FEW:
        return [entry for _, entry in run]
    level: list[tuple[list[bytes], _Group[T] | T]] = [([pattern], entry) for pattern, entry in run]
    while len(level) > 1:
        below, level = level, []
        for at in range(0, len(below), GROUP):
            level.append(_joined(below[at : at + GROUP]))
            yield
    return [level[0][1]]


def _joined(level: list[tuple[list[bytes], _Group[T] | T]]) -> tuple[list[bytes], _Group[T]]:
    patterns = [pattern for below, _ in level for pattern in below]
    return patterns, _Group(joined(patterns), tuple(member for _, member in level))


def _candidates(members: tuple[_Group[T] | T, ...], topic: bytes) -> Iterator[T | None]:
    for member in members:
        if not isinstance(member, _Group):
            yield member
            continue
        if member.may_fit is not None:
            try:
                may_fit = member.may_fit(topic)
            except PatternLimit:
                may_fit = True  # the patterns below may still be decided one by one
            yield from repeat(None, JOINED_STEPS)
            if not may_fit:
                continue
        yield from _candidates(member.members, topic)


class PatternSet(Generic[K]):
    """Patterns that come and go, by keys. What came last is asked one by one until it is worth an index."""

    def __init__(self) -> None:
        self._matchers: dict[K, Matcher] = {}
        self._index: PatternIndex[K] = PatternIndex(())
        self._indexed = 0  # entries of the index, those that are gone included
        self._gone: set[K] = set()  # of these
        self._recent: dict[K, None] = {}
        self._asked_one_by_one = 0  # since the index was built

    def __len__(self) -> int:
        return len(self._matchers)

    def add(self, key: K, matcher: Matcher) -> None:
        """`matcher` is a `Pattern`, or anything else that says whether a topic matches. The key is a new one."""
        if key in self._gone:
            self._build()
        self._matchers[key] = matcher
        self._recent[key] = None

    def remove(self, key: K) -> None:
        del self._matchers[key]
        if key in self._recent:
            del self._recent[key]
            return
        self._gone.add(key)
        if len(self._gone) * 2 > self._indexed:
            self._build()

    def matching(self, topic: bytes) -> list[K]:
        """The keys of the patterns that match, in the order in which they came."""
        return [key for key in self.steps(topic) if key is not None]

    def steps(self, topic: bytes) -> Iterator[K | None]:
        """Yield as above, with None for each step on the way. What comes after the first step may not be asked."""
        self._asked_one_by_one += len(self._recent)
        if self._asked_one_by_one > BUILD_COST * len(self._matchers):
            yield from self._building()
        for key in chain(self._index.steps(topic), list(self._recent)):
            matcher = None if key is None else self._matchers.get(key)
            yield key if matcher is not None and matcher(topic) else None

    def _build(self) -> None:
        deque(self._building(), maxlen=0)

    def _building(self) -> Iterator[None]:
        """Make a new index, unless a pattern goes or another one is made meanwhile."""
        self._asked_one_by_one = 0
        before, matchers = self._index, dict(self._matchers)
        made: PatternIndex[K] = PatternIndex(())
        yield from made.build([(m if isinstance(m, Pattern) else None, key) for key, m in matchers.items()])
        if self._index is before and all(self._matchers.get(key) is m for key, m in matchers.items()):
            self._index, self._indexed = made, len(matchers)
            self._gone.clear()
            self._recent = dict.fromkeys(key for key in self._matchers if key not in matchers)
