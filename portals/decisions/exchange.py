"""What a portal tells a new incarnation of a sibling: what that had before, and everything that the portal knows.

Part of `portals.decisions.core`. Messages are made one by one, as things are when they leave; None for what was looked
at and need not be told. The order is that in which they are waited for: proxies and sources do not wait for interest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from dro.table import Table
from portals.decisions.messages import (
    InterestAdded,
    KnownInterest,
    KnownProxy,
    KnownSource,
    PortalMessage,
    ToldAll,
    ToldProxies,
)

if TYPE_CHECKING:
    from portals.decisions.core import PortalCore

MAX_WORKER: Final = 256  # more than any


def everything(core: PortalCore, worker: int, incarnation: int) -> Iterator[PortalMessage | None]:
    """For that incarnation of the sibling; a portal that is withdrawn meanwhile tells nothing more."""
    told: Table[int, None] = Table()
    for source in core.own.wanted_before(worker):
        if core.is_withdrawn or source is None or source.handle in told:
            yield None
        else:
            told[source.handle] = None
            yield KnownProxy(source)
    yield ToldProxies()
    yield from _known_before(core, worker, incarnation)
    for symbol in core.recorded.domains.snapshot():
        domains = core.recorded.domains.get(symbol, ()) if core.recorded.is_told(symbol) else ()
        for domain_id in sorted(domains):
            yield None if core.is_withdrawn else InterestAdded(*symbol, domain_id)
        if not domains:
            yield None
    for handle in core.own.seen.snapshot():
        yield None if core.is_withdrawn or handle in told else core.own.seen.get(handle)
    yield ToldAll()


def _known_before(core: PortalCore, worker: int, incarnation: int) -> Iterator[PortalMessage | None]:
    """What an older incarnation of the sibling had told; its interest is known to all, so only one tells that."""
    for offer in core.siblings.offers_before(worker, incarnation):
        proxy = None if offer is None else core.proxies.get(offer.source.otid)
        is_fed = offer is not None and proxy is not None and proxy.feeder == offer.key
        yield KnownSource(offer.source) if offer and is_fed and offer.source.way and not core.is_withdrawn else None
    if core.me < min((other for other in core.siblings.up if other != worker), default=MAX_WORKER):
        for known in core.siblings.interest_before(worker, incarnation):
            yield None if known is None or core.is_withdrawn else KnownInterest(*known[0], known[1])
