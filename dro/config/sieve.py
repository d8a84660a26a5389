"""A long list of patterns, asked about one topic: which entries may fit, without a search for each of them.

The list is cut into groups, groups of groups and so on, each with one expression that joins the patterns below it by
alternation. A group whose expression does not occur in the topic is passed over whole, so a topic that none of a
thousand patterns fits costs one search, and one that a pattern fits some forty. What cannot be joined without a change
of its meaning (references to groups by number or name, verbs, quoted text) is asked about one by one, as is everything
when a joined search gives up.

Called by the access control lists; pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from dro.config.pcre import Matcher, PatternLimit, compile_joined

T = TypeVar("T")

GROUP: Final = 16
"""Entries of a group, and groups of a group of groups."""
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_BY_NUMBER_OR_NAME: Final = frozenset("0123456789gkQEc")
_GROUP_OPENING: Final = re.compile(r"\(([?*].?.?)")
_PLAIN_OPENINGS: Final = re.compile(r"\?(?::|=|!|<=|<!|>|[ims]+[:)])")


def is_joinable(pattern: str) -> bool:
    """Whether a valid pattern means the same as one alternative among others. False when in doubt."""
    if any(char in _BY_NUMBER_OR_NAME for char in _ESCAPED.findall(pattern)):
        return False
    openings = _GROUP_OPENING.findall(_ESCAPED.sub("", pattern))
    return all(_PLAIN_OPENINGS.match(opening) for opening in openings)


@dataclass(frozen=True, slots=True)
class _Group(Generic[T]):
    """`may_fit` is None where every member has to be asked."""

    may_fit: Matcher | None
    members: tuple[_Group[T] | T, ...]


class Sieve(Generic[T]):
    """Entries in order, each with a pattern that must occur in a topic for it to fit, or None."""

    def __init__(self, entries: Sequence[tuple[str | None, T]]) -> None:
        """Patterns are valid, in the syntax of PCRE2."""
        level: list[tuple[tuple[str, ...] | None, _Group[T] | T]] = [
            ((pattern,) if pattern is not None and is_joinable(pattern) else None, entry) for pattern, entry in entries
        ]
        while len(level) > GROUP:
            level = [_joined(level[at : at + GROUP]) for at in range(0, len(level), GROUP)]
        if len(entries) > GROUP:
            level = [_joined(level)]
        self._members: tuple[_Group[T] | T, ...] = tuple(member for _, member in level)

    def candidates(self, topic: str) -> Iterator[T]:
        """The entries that may fit, in order; those left out cannot."""
        yield from _candidates(self._members, topic)


def _joined(
    level: list[tuple[tuple[str, ...] | None, _Group[T] | T]],
) -> tuple[tuple[str, ...] | None, _Group[T]]:
    patterns: list[str] = []
    members = tuple(member for _, member in level)
    for below, _ in level:
        if below is None:
            return None, _Group(None, members)
        patterns += below
    return tuple(patterns), _Group(compile_joined(patterns), members)


def _candidates(members: tuple[_Group[T] | T, ...], topic: str) -> Iterator[T]:
    for member in members:
        if not isinstance(member, _Group):
            yield member
            continue
        if member.may_fit is not None:
            try:
                if not member.may_fit(topic):
                    continue
            except PatternLimit:
                pass  # the patterns below may still be decided one by one
        yield from _candidates(member.members, topic)
