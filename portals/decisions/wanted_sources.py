"""Which proxy sources a portal has, and which sibling feeds each: decision 3. Part of `portals.decisions.core`.

The feeder of a proxy source is the sibling that forwards to it, with the handle that the source has there. What only a
route change takes off is kept for a while, see `portals.decisions.routes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set

from dro.shares import share_of
from dro.table import Table
from portals.decisions.acl_enforcement import AclEnforcement
from portals.decisions.effects import (
    AdvertiseProxySource,
    CloseProxySource,
    DelayDeletion,
    Effect,
    FeederEnded,
    FeedProxySource,
    OpenProxySource,
    UpdateProxySource,
)
from portals.decisions.messages import ForwardStart, ForwardStop, PortalMessage
from portals.decisions.recorded_interest import RecordedInterest
from portals.decisions.routes import HELD_NS, Routes
from portals.decisions.siblings import Offer, Siblings, WantedProxy, cheapest
from portals.decisions.source_deletion_delay import SourceDeletionDelay


class WantedSources:
    """See the module text. `acl` is replaced when another list holds."""

    def __init__(
        self,
        domain_id: int,
        routes: Routes,
        siblings: Siblings,
        recorded: RecordedInterest,
        acl: AclEnforcement,
        deletion_delay: SourceDeletionDelay,
        ask: Callable[[Effect], object],
        send: Callable[[int, PortalMessage, AdvertiseProxySource | None], object],
        go_through: Callable[[Iterator[object]], object],
    ) -> None:
        """`send` sends to a sibling, see `SendToSibling`; `go_through` takes steps that are too many for one turn."""
        self.acl = acl
        self.is_withdrawn = False
        """Siblings end what they fed; what came before that stays until all of it has been sent."""
        self._domain = domain_id
        self._routes = routes
        self._siblings = siblings
        self._recorded = recorded
        self._deletion_delay = deletion_delay
        self._ask = ask
        self._send = send
        self._go_through = go_through
        self.by_otid: Table[bytes, WantedProxy] = Table()
        self._had: Table[bytes, None] = Table()
        """OTIDs for which an older incarnation had one, until interest is recorded, or the TRD is known again."""

    def known_otids(self) -> Iterator[bytes]:
        """Offered by a sibling, or with a proxy source here."""
        yield from self._siblings.otids.snapshot()
        yield from (otid for otid in self.by_otid.snapshot() if otid not in self._siblings.otids)

    def origin_of(self, otid: bytes) -> int | None:
        """Return the originating domain of a source that is known; None for one that is not."""
        if otid not in self.by_otid and otid not in self._siblings.otids:
            return None
        return self._identity(otid)[1]

    def _identity(self, otid: bytes) -> tuple[bytes, int]:
        """Return topic and originating domain of a known OTID."""
        known = self.by_otid.get(otid) or self._siblings.offers(otid)[0].source
        return known.topic, known.domain_id

    # what an older incarnation had

    def on_had(self, otid: bytes) -> None:
        self._had[otid] = None

    @property
    def has_all_had(self) -> bool:
        """Whether each that an older incarnation had is there again: routes may come after they are named."""
        return all(otid in self.by_otid for otid in self._had)

    def take_had(self) -> Iterable[bytes]:
        had, self._had = self._had, Table()
        return had

    # decisions

    def on_offer(self, offer: Offer, now_ns: int) -> None:
        """A sibling offers the source, for the first time or with other attributes."""
        seen = offer.source
        made = self.by_otid.get(seen.otid)
        if made is not None and (made.topic, made.domain_id) != (seen.topic, seen.domain_id):
            self.delete(seen.otid)  # it waits for its deletion: nobody offers what it was made for
        before = self._siblings.add_offer(offer)
        self.decide(seen.otid, now_ns)
        proxy = self.by_otid.get(seen.otid)
        if before is not None and before != seen and proxy is not None and proxy.feeder == offer.key:
            self._ask(UpdateProxySource(offer.worker, seen))

    def decide(self, otid: bytes, now_ns: int, *, is_over: bool = False) -> None:
        """Decide whether a proxy source for this OTID is needed here, and which sibling feeds it.

        `is_over`: what a route change took off has been kept until now."""
        proxy = self.by_otid.get(otid)
        offers = self._siblings.offers(otid)
        if self.is_withdrawn or (proxy is None and not offers):
            return
        topic, origin = self._identity(otid)
        if not self._recorded.has_searched(topic):
            if self._recorded.put_off(topic, otid):
                self._go_through(self._decide_found(topic, now_ns))
            return
        interested = self._recorded.interested(topic)
        usable = self._usable(otid, topic, origin, interested, offers)
        workers = self._routes.held(origin, interested, share_of(otid))
        held = {offer.key: offer for offer in offers if offer.worker in workers}
        feeder, before = (None, None) if proxy is None else (proxy.feeder, proxy.before)
        if proxy is not None and before is not None and before not in held:
            self._stop_before(proxy)
        if feeder in usable and not self._deletion_delay.is_fed(otid):
            return  # a working feeder is kept, even when another one would be cheaper
        is_offered = feeder is not None and any(feeder == offer.key for offer in offers)
        best = min(usable.values(), key=cheapest, default=None)
        if best is None and not is_offered and before is not None:
            best = held.get(before)
        if best is not None:
            self._feed(otid, proxy, best, is_beside=feeder in held)
        if feeder in held:
            if proxy is not None and best is not None:
                self._stop_before(proxy, feeder)
            return  # it goes on until the routes before are forgotten
        has_waited = is_over and is_offered and self._deletion_delay.delay_ns <= HELD_NS
        if best is None and interested and is_offered and self._deletion_delay.is_fed(otid):
            return  # until its time is over
        if best is None and interested and has_waited and self._domain and otid not in self._deletion_delay:
            self._ask(DelayDeletion(otid, self._deletion_delay.begin_fed(otid, now_ns), is_fed=True))
            return
        if feeder is not None and is_offered and (best is None or best.key != feeder):
            self._send(feeder[0], ForwardStop(feeder[1]), None)  # the new one has been asked by then
        if best is not None or proxy is None:
            return
        if not interested and otid not in self._had:
            self.delete(otid)
        elif otid not in self._deletion_delay:
            proxy.feeder = None
            self._ask(DelayDeletion(otid, self._deletion_delay.begin(otid, now_ns, is_soon=has_waited)))

    def _usable(
        self, otid: bytes, topic: bytes, origin: int, interested: Set[int], offers: Iterable[Offer]
    ) -> dict[tuple[int, int], Offer]:
        """Find offers by key on the path to an interested domain; before interest is known again, to any."""
        workers = self._routes.feeders(origin, interested, share_of(otid))
        usable = {offer.key: offer for offer in offers if offer.worker in workers}
        if otid not in self._had:
            return usable
        if not usable and self.acl.may_leave(topic):
            return {offer.key: offer for offer in offers if self._routes.leaves(origin, offer.worker)}
        del self._had[otid]
        return usable

    def _feed(self, otid: bytes, proxy: WantedProxy | None, offer: Offer, *, is_beside: bool) -> None:
        """Ask for the source that the offer names, for a proxy source that is new or had, or keeps, another feeder."""
        worker, seen = offer.worker, offer.source
        if proxy is None:
            self.by_otid[otid] = WantedProxy(seen.topic, seen.domain_id, offer.key)
            self._ask(OpenProxySource(worker, seen))
        else:
            proxy.feeder = offer.key
            self._deletion_delay.end(otid)
            self._ask(FeedProxySource(worker, seen, is_beside))
        self._send(worker, ForwardStart(seen.handle), AdvertiseProxySource(otid))

    def delete(self, otid: bytes) -> None:
        self._stop_before(self.by_otid.pop(otid))
        self._deletion_delay.end(otid)
        self._ask(CloseProxySource(otid))

    def _stop_before(self, proxy: WantedProxy, now: tuple[int, int] | None = None) -> None:
        """Stop the feeder before, which has been kept long enough, or is another one by now."""
        before, proxy.before = proxy.before, now
        if before is not None and before not in (proxy.feeder, now):
            self._send(before[0], ForwardStop(before[1]), None)
            self._ask(FeederEnded(*before))

    def stop_fed(self, now_ns: int) -> None:
        """Stop the feeders of proxy sources whose end was advertised a moment ago; they are deleted soon."""
        for otid in self._deletion_delay.take_fed(now_ns):
            proxy = self.by_otid[otid]
            if proxy.feeder is not None and any(proxy.feeder == offer.key for offer in self._siblings.offers(otid)):
                self._send(proxy.feeder[0], ForwardStop(proxy.feeder[1]), None)
            proxy.feeder = None
            self._ask(DelayDeletion(otid, self._deletion_delay.begin(otid, now_ns, is_soon=True)))

    # in steps

    def _decide_found(self, topic: bytes, now_ns: int) -> Iterator[None]:
        """Search the patterns that find a topic, then decide what was put off until then."""
        otids = yield from self._recorded.search(topic)
        for otid in otids:
            self.decide(otid, now_ns)
            yield
        self._recorded.forget(topic)

    def close_all(self) -> Iterator[None]:
        """Close all, in steps."""
        for otid in self.by_otid.snapshot():
            if self.by_otid.pop(otid, None) is not None:
                self._ask(CloseProxySource(otid))
            yield
