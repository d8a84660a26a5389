"""Joined sessions as the decisions of a context see them: what a test says of them, and no more."""

from __future__ import annotations

from dataclasses import dataclass

from dro.wire.source_string import TransportAddress


@dataclass(eq=False)
class ToldSession:
    """Implements `SessionView`. `active_ns`: when something was last heard.

    `at`: the place that was reached; `whole_to`: nothing is missing of what came before it.
    """

    address: TransportAddress
    active_ns: int = 0
    generation_ns: int = 0
    is_in_order: bool = False
    shows_life: bool = True
    was_connected: bool = True
    has_begun: bool = False
    at: int | None = None
    whole_to: int = 0

    def mark(self) -> int | None:
        return self.at

    def is_whole(self, mark: int | None) -> bool:
        return mark is None or self.whole_to >= mark
