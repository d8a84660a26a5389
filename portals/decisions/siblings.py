"""The siblings of a portal: their interest, the sources that they offer, and which of them are up.

Everything is stored with the incarnation that reported it. The reports of a dead sibling are kept for `REJOIN_HOLD_NS`,
so that its next incarnation can confirm them; what is not confirmed by then is dropped. Part of
`portals.decisions.core`, which decides what follows from a change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Final

from dro.clock import s
from dro.proto.interest.events import Symbol
from portals.decisions.messages import SourceSeen

REJOIN_HOLD_NS: Final = s(3)  # Guess


@dataclass(frozen=True, slots=True)
class Offer:
    """A source that a sibling hears and would forward."""

    worker: int
    incarnation: int
    source: SourceSeen

    @property
    def key(self) -> tuple[int, int]:
        """(worker, handle)"""
        return self.worker, self.source.handle


@dataclass(frozen=True, slots=True)
class Dropped:
    """What a sibling had said and does not say any more: symbols that it wanted, OTIDs that it offered."""

    symbols: list[Symbol] = field(default_factory=list)
    otids: list[bytes] = field(default_factory=list)


@dataclass(slots=True)
class _Sibling:
    incarnation: int = 0
    is_up: bool = False
    stale_until_ns: int | None = None  # when what only an older incarnation had said is dropped
    interest: dict[Symbol, dict[int, int]] = field(default_factory=dict)  # -> domain -> incarnation
    offers: dict[int, Offer] = field(default_factory=dict)  # by handle


class Siblings:
    """See the module text."""

    def __init__(self) -> None:
        self._siblings: dict[int, _Sibling] = defaultdict(_Sibling)
        self._offers: dict[bytes, dict[tuple[int, int], Offer]] = {}  # OTID -> offers of it by key
        self.by_topic: dict[bytes, set[bytes]] = {}
        """OTIDs that are offered, by topic."""

    # which there are

    @property
    def up(self) -> list[int]:
        """Those that can be reached."""
        return [worker for worker, sibling in self._siblings.items() if sibling.is_up]

    def is_up(self, worker: int) -> bool:
        return self._siblings[worker].is_up

    def is_outdated(self, worker: int, incarnation: int) -> bool:
        """Whether a later incarnation has come up already."""
        return incarnation < self._siblings[worker].incarnation

    def on_up(self, worker: int, incarnation: int, now_ns: int) -> bool:
        """False when nothing is new: that incarnation is up already, or a later one came before it."""
        sibling = self._siblings[worker]
        if incarnation <= sibling.incarnation and sibling.is_up:
            return False
        if sibling.incarnation:
            sibling.stale_until_ns = now_ns + REJOIN_HOLD_NS
        sibling.incarnation = incarnation
        sibling.is_up = True
        return True

    def on_down(self, worker: int, now_ns: int) -> None:
        sibling = self._siblings[worker]
        sibling.is_up = False
        sibling.stale_until_ns = now_ns + REJOIN_HOLD_NS

    def on_removed(self, worker: int) -> Dropped:
        """It does not come back: nothing is held for it."""
        self._siblings[worker].is_up = False
        dropped = Dropped()
        self._sweep(worker, dropped)
        del self._siblings[worker]
        return dropped

    # what they want

    @property
    def symbols(self) -> set[Symbol]:
        return {symbol for sibling in self._siblings.values() for symbol in sibling.interest}

    def wanting(self, symbol: Symbol) -> Iterator[tuple[int, int]]:
        """(worker, domain) of all that want it."""
        for worker, sibling in self._siblings.items():
            for domain_id in sibling.interest.get(symbol, ()):
                yield worker, domain_id

    def add_interest(self, worker: int, incarnation: int, symbol: Symbol, domain_id: int) -> None:
        self._siblings[worker].interest.setdefault(symbol, {})[domain_id] = incarnation

    def remove_interest(self, worker: int, symbol: Symbol, domain_id: int) -> None:
        """There need not be any."""
        interest = self._siblings[worker].interest
        if (domains := interest.get(symbol)) is not None:
            domains.pop(domain_id, None)
            if not domains:
                del interest[symbol]

    def remove_all_interest(self, worker: int) -> list[Symbol]:
        """What it wanted."""
        sibling = self._siblings[worker]
        symbols, sibling.interest = list(sibling.interest), {}
        return symbols

    # what they offer

    @property
    def otids(self) -> Set[bytes]:
        """Of all sources that are offered."""
        return self._offers.keys()

    def offers(self, otid: bytes) -> list[Offer]:
        return list(self._offers.get(otid, {}).values())

    def add_offer(self, offer: Offer) -> SourceSeen | None:
        """Instead of what an older incarnation offered under that OTID; returns what was offered under the handle."""
        sibling, source = self._siblings[offer.worker], offer.source
        before = sibling.offers.get(source.handle)
        for known in self.offers(source.otid):
            if known.key == offer.key or (known.worker == offer.worker and known.incarnation < offer.incarnation):
                self.remove_offer(*known.key)
        sibling.offers[source.handle] = offer
        self._offers.setdefault(source.otid, {})[offer.key] = offer
        self.by_topic.setdefault(source.topic, set()).add(source.otid)
        return None if before is None else before.source

    def remove_offer(self, worker: int, handle: int) -> SourceSeen | None:
        """What was offered."""
        offer = self._siblings[worker].offers.pop(handle, None)
        if offer is None:
            return None
        source = offer.source
        offers, otids = self._offers[source.otid], self.by_topic[source.topic]
        del offers[offer.key]
        if not offers:
            del self._offers[source.otid]
            otids.discard(source.otid)
            if not otids:
                del self.by_topic[source.topic]
        return source

    # time

    def next_deadline(self) -> int | None:
        times = [sibling.stale_until_ns for sibling in self._siblings.values() if sibling.stale_until_ns is not None]
        return min(times, default=None)

    def on_timer(self, now_ns: int) -> Dropped:
        dropped = Dropped()
        for worker, sibling in self._siblings.items():
            if sibling.stale_until_ns is not None and sibling.stale_until_ns <= now_ns:
                sibling.stale_until_ns = None
                self._sweep(worker, dropped)
        return dropped

    def _sweep(self, worker: int, dropped: Dropped) -> None:
        """Drop what only an older incarnation, or one that did not come back, had said."""
        sibling = self._siblings[worker]
        current = sibling.incarnation if sibling.is_up else sibling.incarnation + 1
        for symbol, domains in list(sibling.interest.items()):
            for domain_id, incarnation in list(domains.items()):
                if incarnation < current:
                    self.remove_interest(worker, symbol, domain_id)
                    dropped.symbols.append(symbol)
        for offer in list(sibling.offers.values()):
            if offer.incarnation < current:
                self.remove_offer(*offer.key)
                dropped.otids.append(offer.source.otid)
