"""Interest records that the tables of a DRO portal share: topics and patterns that are wanted, and changes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Symbol: TypeAlias = tuple[bytes, int]
"""A topic (pattern type 0), or a pattern with its `PatternType`."""


@dataclass(frozen=True, slots=True)
class InterestGained:
    """Receivers of a domain want a symbol; `domain_id` 0 is the portal's own TRD."""

    symbol: Symbol
    domain_id: int = 0


@dataclass(frozen=True, slots=True)
class InterestLost:
    """No receiver of a domain wants the symbol any more."""

    symbol: Symbol
    domain_id: int = 0


InterestEvent: TypeAlias = InterestGained | InterestLost
