"""Joined sessions as the decisions of a context see them: what a test says of them, and no more."""

from __future__ import annotations

from dataclasses import dataclass

from dro.wire.source_string import TransportAddress


@dataclass(slots=True, eq=False)
class ToldSession:
    """Implements `SessionView`. `active_ns`: when something was last heard; nothing of it is ever missing."""

    address: TransportAddress
    active_ns: int = 0
    generation_ns: int = 0
    is_in_order: bool = False
    shows_life: bool = True
    was_connected: bool = True
    has_begun: bool = False

    def mark(self) -> int | None:
        return None

    def is_whole(self, mark: int | None) -> bool:
        return True
