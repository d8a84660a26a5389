"""Makes what a new incarnation of a sibling is told: what it had before, and all that the portal knows.

In the order in which it is waited for, as proxies and sources do not wait for interest; None for what was looked at and
need not be told. Each message is made when it leaves, by the state of that moment. Part of `portals.decisions.core`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from dro.table import Table
from portals.decisions.heard_sources import HeardSources
from portals.decisions.messages import (
    InitialStateSent,
    InterestAdded,
    KnownInterest,
    KnownProxiesSent,
    KnownProxy,
    KnownSource,
    KnownSourcesSent,
    PortalMessage,
)
from portals.decisions.recorded_interest import RecordedInterest
from portals.decisions.siblings import Siblings
from portals.decisions.wanted_sources import WantedSources

MAX_WORKER: Final = 256  # more than any


@dataclass(frozen=True, slots=True)
class Exchange:
    """See the module text. A portal that is withdrawn meanwhile tells nothing more."""

    me: int
    own: HeardSources
    recorded: RecordedInterest
    siblings: Siblings
    sources: WantedSources
    is_withdrawn: Callable[[], bool]

    def everything(self, worker: int, incarnation: int) -> Iterator[PortalMessage | None]:
        """Make what that incarnation of the sibling is told."""
        messages = self._everything(worker, incarnation)
        return (
            None
            if self.is_withdrawn() and not isinstance(m, KnownProxiesSent | KnownSourcesSent | InitialStateSent)
            else m
            for m in messages
        )

    def _everything(self, worker: int, incarnation: int) -> Iterator[PortalMessage | None]:
        told: Table[int, None] = Table()
        for source in self.own.wanted_before(worker):
            if source is None or source.handle in told:
                yield None
            else:
                told[source.handle] = None
                yield KnownProxy(source)
        yield KnownProxiesSent()
        yield from self._known_before(worker, incarnation)
        for symbol in self.recorded.domains.snapshot():
            domains = self.recorded.domains.get(symbol, ()) if self.recorded.is_told(symbol) else ()
            for domain_id in sorted(domains):
                yield InterestAdded(*symbol, domain_id)
            if not domains:
                yield None
        for handle in self.own.seen.snapshot():
            yield None if handle in told else self.own.seen.get(handle)
        yield InitialStateSent()

    def _known_before(self, worker: int, incarnation: int) -> Iterator[PortalMessage | None]:
        """Yield what an older incarnation of the sibling had told; all know its interest, so only one tells that."""
        for offer in self.siblings.offers_before(worker, incarnation):
            proxy = None if offer is None else self.sources.by_otid.get(offer.source.otid)
            is_fed = offer is not None and proxy is not None and proxy.feeder == offer.key
            yield KnownSource(offer.source) if offer and is_fed else None
        yield KnownSourcesSent()
        if self.me < min((other for other in self.siblings.up if other != worker), default=MAX_WORKER):
            for known in self.siblings.interest_before(worker, incarnation):
                yield None if known is None else KnownInterest(*known[0], known[1])
