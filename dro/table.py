"""A mapping for one entry per topic or source: it grows a part at a time.

A dict that is full is copied as a whole: at 87,381 entries that takes 5 to 20 ms, and those of a portal fill up in the
same turn. A table is one dict until it has `SPLIT` entries, and `PARTS` dicts from then on, each of which is copied at
a time of its own. Up to there entries keep the order in which they came; afterwards there is none.
"""

# ruff: noqa: ANN401  # types are in table.pyi: a compiled class cannot be generic
from __future__ import annotations

from collections.abc import Iterator, Set
from itertools import chain
from typing import Any, Final

SPLIT: Final = 1024
PARTS: Final = 64  # a power of two
_MISSING: Final = object()


class Table:
    """What a dict of the same name does, without views; as a set, with None for values. Two to four times as slow."""

    def __init__(self) -> None:
        self._parts: list[dict[Any, Any]] = [{}]
        self._count = 0
        self._mask = 0  # of the number of a part

    def _part(self, key: Any) -> dict[Any, Any]:
        """Find the part of a key; numbers that follow each other lie in one, 1,024 of them."""
        h = hash(key)
        return self._parts[((h >> 10) ^ (h >> 40)) & self._mask]

    def __getitem__(self, key: Any) -> Any:
        return self._part(key)[key]

    def get(self, key: Any, default: Any = None) -> Any:
        return self._part(key).get(key, default)

    def __contains__(self, key: Any) -> bool:
        return key in self._part(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        part = self._part(key)
        before = len(part)
        part[key] = value
        if len(part) != before:
            self._count += 1
            if before >= SPLIT and not self._mask:
                self._split()

    def setdefault(self, key: Any, default: Any) -> Any:
        part = self._part(key)
        if key not in part:
            self[key] = default
            return default
        return part[key]

    def __delitem__(self, key: Any) -> None:
        del self._part(key)[key]
        self._count -= 1

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        part = self._part(key)
        if key in part:
            self._count -= 1
            return part.pop(key)
        if default is _MISSING:
            raise KeyError(key)
        return default

    def _split(self) -> None:
        (whole,) = self._parts
        self._parts, self._mask, self._count = [{} for _ in range(PARTS)], PARTS - 1, 0
        for key, value in whole.items():
            self[key] = value

    def clear(self) -> None:
        self._parts, self._mask, self._count = [{}], 0, 0

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        """With another table, a dict, or a set of the keys."""
        if isinstance(other, Set):
            return set(self) == other
        return dict(self.items()) == (dict(other.items()) if isinstance(other, Table) else other)

    def __repr__(self) -> str:
        return f"Table({dict(self.items())})"

    def __iter__(self) -> Iterator[Any]:
        """Nothing may be added or removed meanwhile, as with a dict."""
        return chain.from_iterable(self._parts)

    def snapshot(self) -> Iterator[Any]:
        """The keys for one who goes on in later turns while others come and go: a part as it is when it is its turn."""
        for part in self._parts:
            yield from list(part)

    def values(self) -> Iterator[Any]:
        return chain.from_iterable(map(dict.values, self._parts))

    def items(self) -> Iterator[tuple[Any, Any]]:
        return chain.from_iterable(map(dict.items, self._parts))
