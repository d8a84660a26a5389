"""The siblings of a portal: their interest, the sources that they offer, and which of them are up.

Everything is stored with the incarnation that reported it. The reports of a dead sibling are kept for `REJOIN_HOLD_NS`,
so that its next incarnation can confirm them; that one has until its `StateConfirmed`, or `RELEARN_LIMIT_NS`. What is
not confirmed by then is dropped. Part of `portals.decisions.core`, which decides what follows from a change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from dro.clock import s
from dro.proto.interest.events import Symbol
from dro.table import Table
from portals.decisions.messages import SourceSeen
from portals.decisions.relearning import RELEARN_LIMIT_NS

REJOIN_HOLD_NS: Final = s(3)  # Guess
NOBODY: Final[Collection[tuple[int, int]]] = ()


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


def cheapest(offer: Offer) -> tuple[int, int, int, int]:
    """The least of several is the feeder to take: lowest cost, fewest hops, lowest worker.

    Of two offers of one sibling the newer is the living one: handles grow with time.
    """
    return offer.source.cost, offer.source.hop_count, offer.worker, -offer.source.handle


@dataclass(slots=True)
class WantedProxy:
    """One wanted proxy source; `feeder` is (worker, handle), None while it waits for its deletion.

    `before`: the feeder that a route change took off, which feeds it for a while yet.
    """

    topic: bytes
    domain_id: int
    feeder: tuple[int, int] | None
    before: tuple[int, int] | None = None


@dataclass(slots=True)
class _Sibling:
    incarnation: int = 0
    is_up: bool = False
    has_sent_known_sources: bool = False  # that this portal had joined for it
    has_sent_initial_state: bool = False  # all that it knew when it came up, or this portal did
    stale_until_ns: int | None = None  # when what only an older incarnation had said is dropped
    symbols: Table[Symbol, None] = field(default_factory=Table)  # that it wants
    offers: Table[int, Offer] = field(default_factory=Table)  # by handle

    @property
    def newest(self) -> int:
        """The first incarnation whose reports hold; one that is down has said its last."""
        return self.incarnation if self.is_up else self.incarnation + 1


class Siblings:
    """See the module text."""

    def __init__(self, on_topic_gone: Callable[[bytes], object] = lambda _: None) -> None:
        """`on_topic_gone`: no sibling offers a source of that topic any more."""
        self._siblings: dict[int, _Sibling] = defaultdict(_Sibling)
        self._on_topic_gone = on_topic_gone
        self._wanted: Table[Symbol, dict[tuple[int, int], int]] = Table()  # -> (worker, domain) -> incarnation
        self._offers: Table[bytes, dict[tuple[int, int], Offer]] = Table()  # OTID -> offers of it by key
        self.by_topic: Table[bytes, set[bytes]] = Table()
        """OTIDs that are offered, by topic."""

    # which there are

    @property
    def up(self) -> list[int]:
        """List the siblings that can be reached."""
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
        if sibling.symbols or sibling.offers or sibling.stale_until_ns is not None:
            sibling.stale_until_ns = now_ns + RELEARN_LIMIT_NS
        sibling.incarnation = incarnation
        sibling.is_up = True
        sibling.has_sent_known_sources = sibling.has_sent_initial_state = False
        return True

    def on_down(self, worker: int, now_ns: int) -> None:
        sibling = self._siblings[worker]
        sibling.is_up = False
        sibling.stale_until_ns = now_ns + REJOIN_HOLD_NS

    def on_removed(self, worker: int) -> None:
        """Forget a sibling that does not come back: what it said is stale."""
        sibling = self._siblings[worker]
        sibling.is_up = False
        sibling.stale_until_ns = None

    def newest(self, worker: int) -> int:
        """The first incarnation whose reports hold."""
        return self._siblings[worker].newest

    def on_known_sources_sent(self, worker: int) -> None:
        self._siblings[worker].has_sent_known_sources = True

    def has_sent_known_sources(self, worker: int) -> bool:
        """Whether the sibling is up and has named all sources that this portal had joined for it."""
        sibling = self._siblings[worker]
        return sibling.is_up and sibling.has_sent_known_sources

    def on_initial_state_sent(self, worker: int) -> None:
        self._siblings[worker].has_sent_initial_state = True

    @property
    def have_sent_initial_state(self) -> bool:
        """Whether all that are up have sent their initial state."""
        return all(sibling.has_sent_initial_state for sibling in self._siblings.values() if sibling.is_up)

    # what they want

    @property
    def symbols(self) -> Table[Symbol, dict[tuple[int, int], int]]:
        return self._wanted

    def symbols_of(self, worker: int) -> Table[Symbol, None]:
        return self._siblings[worker].symbols

    def wanting(self, symbol: Symbol) -> Collection[tuple[int, int]]:
        """(worker, domain) of all that want it."""
        return self._wanted.get(symbol, NOBODY)

    def interest_before(self, worker: int, incarnation: int) -> Iterator[tuple[Symbol, int] | None]:
        """(symbol, domain) of what only older incarnations wanted; None for what was looked at."""
        for symbol in self._siblings[worker].symbols.snapshot():
            for (other, domain_id), said_by in list(self._wanted.get(symbol, {}).items()):
                yield (symbol, domain_id) if other == worker and said_by < incarnation else None

    def offers_before(self, worker: int, incarnation: int) -> Iterator[Offer | None]:
        """Yield what only older incarnations offered; None for what was looked at."""
        for handle in self._siblings[worker].offers.snapshot():
            offer = self._siblings[worker].offers.get(handle)
            yield offer if offer is not None and offer.incarnation < incarnation else None

    def add_interest(self, worker: int, incarnation: int, symbol: Symbol, domain_id: int) -> None:
        self._wanted.setdefault(symbol, {})[worker, domain_id] = incarnation
        self._siblings[worker].symbols[symbol] = None

    def remove_interest(self, worker: int, symbol: Symbol, domain_id: int) -> None:
        """There need not be any."""
        wanting = self._wanted.get(symbol)
        if wanting is None or wanting.pop((worker, domain_id), None) is None:
            return
        if not any(other == worker for other, _ in wanting):
            self._siblings[worker].symbols.pop(symbol, None)
        if not wanting:
            del self._wanted[symbol]

    def remove_interest_before(self, worker: int, incarnation: int) -> Iterator[Symbol]:
        """Drop what only older incarnations wanted, symbol by symbol; gives each that was looked at."""
        for symbol in self._siblings[worker].symbols.snapshot():
            for (other, domain_id), said_by in list(self._wanted.get(symbol, {}).items()):
                if other == worker and said_by < incarnation:
                    self.remove_interest(worker, symbol, domain_id)
            yield symbol

    # what they offer

    @property
    def otids(self) -> Table[bytes, dict[tuple[int, int], Offer]]:
        """Return the offers of all sources."""
        return self._offers

    def offers(self, otid: bytes) -> list[Offer]:
        return list(self._offers.get(otid, {}).values())

    def add_offer(self, offer: Offer) -> SourceSeen | None:
        """Add it for what an older incarnation offered under that OTID; returns what was offered under the handle."""
        sibling, source = self._siblings[offer.worker], offer.source
        before, older = sibling.offers.get(source.handle), self.offers(source.otid)
        sibling.offers[source.handle] = offer
        self._offers.setdefault(source.otid, {})[offer.key] = offer
        self.by_topic.setdefault(source.topic, set()).add(source.otid)
        for known in older:
            if known.worker == offer.worker and known.incarnation < offer.incarnation and known.key != offer.key:
                self.remove_offer(*known.key)
        return None if before is None else before.source

    def remove_offer(self, worker: int, handle: int) -> SourceSeen | None:
        """Return what was offered."""
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
                self._on_topic_gone(source.topic)
        return source

    def remove_offers_before(self, worker: int, incarnation: int) -> Iterator[bytes]:
        """Drop what only older incarnations offered, source by source; gives the OTID of each that was looked at."""
        for handle in self._siblings[worker].offers.snapshot():
            offer = self._siblings[worker].offers.get(handle)
            if offer is None:
                continue
            if offer.incarnation < incarnation:
                self.remove_offer(*offer.key)
            yield offer.source.otid

    # time

    def next_deadline(self) -> int | None:
        times = [sibling.stale_until_ns for sibling in self._siblings.values() if sibling.stale_until_ns is not None]
        return min(times, default=None)

    def take_stale(self, now_ns: int) -> list[tuple[int, int]]:
        """Siblings whose older incarnations are waited for no longer, and the first incarnation that still counts."""
        due = []
        for worker, sibling in self._siblings.items():
            if sibling.stale_until_ns is not None and sibling.stale_until_ns <= now_ns:
                sibling.stale_until_ns = None
                due.append((worker, sibling.newest))
        return due

    def on_exchange_done(self, worker: int) -> None:
        self._siblings[worker].stale_until_ns = None
