"""Which contexts are where: by context instance, for messages that name an instance instead of an address.

State: domain, address and port of every context that was heard of, and when last. An entry that is not confirmed for
`forget_ns` is forgotten. Source: DRO guide, `<context-query timeout>`; peer link notes, section 12. Guess: the limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dro.clock import s

CONTEXTS_MAX: Final = 16_384
FORGET_NS: Final = s(900)


@dataclass(frozen=True, slots=True)
class ContextPlace:
    """The TRD of a context and its request port there."""

    domain_id: int
    ip: int
    port: int


class KnownContexts:
    """See the module text."""

    def __init__(self, forget_ns: int = FORGET_NS, contexts_max: int = CONTEXTS_MAX) -> None:
        self.forget_ns = forget_ns
        self._contexts_max = contexts_max
        self._known: dict[bytes, tuple[ContextPlace, int]] = {}  # and when last heard; the longest silent first

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, instance: bytes, place: ContextPlace, now_ns: int) -> bool:
        """The context is there; whether that is new. What cannot be an address is ignored."""
        if not place.domain_id or not place.ip or not place.port:
            return False
        known = self._known.pop(instance, None)
        if known is None and len(self._known) >= self._contexts_max:
            del self._known[next(iter(self._known))]
        self._known[instance] = (place, now_ns)
        return known is None or known[0] != place

    def find(self, instance: bytes, now_ns: int) -> ContextPlace | None:
        known = self._known.get(instance)
        if known is None:
            return None
        if now_ns - known[1] >= self.forget_ns:
            del self._known[instance]
            return None
        return known[0]
