"""The decisions of a portal: which proxies exist, and where fragments go.

Owns: interest recorded here (local and remote), the reports of siblings (`siblings`), the sources heard here
(`heard_sources`), and the wanted proxies that follow from interest x routes. Knows no socket, no clock, no bus, no
logger: the shell (`portals.shell.portal`) calls `on_...` and carries out what `take_effects` returns.

The three route-based decisions are those of the forwarding notes, section 2: an entry (S, R) -> (ingress, egress)
of the route table says that traffic from domain S to domain R enters this DRO at `ingress` and leaves it at `egress`.
With several ways for a pair (equal-cost sharing) interest goes by all, and a source by that of the tree of its OTID.
The feeder of a proxy source is the sibling that forwards to it, with the handle that the source has there.

What concerns many topics at once (routes, an access control list, a pattern, a sibling that left) is decided in steps:
the first at once, the others in slices, which the shell runs (`GoOn`), each one thing by the state of that moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import islice
from typing import Final

from dro.bus.messages import Route
from dro.proto.interest.events import InterestEvent, InterestGained, InterestLost, Symbol
from dro.shares import share_of
from dro.table import Table
from portals.decisions.acl_enforcement import OPEN, AclEnforcement
from portals.decisions.advertisement import MAX_HOPS, is_name
from portals.decisions.effects import (
    CheckKnown,
    CloseProxyReceiver,
    CloseProxySource,
    DelayDeletion,
    Effect,
    ExpireQueue,
    FeedProxySource,
    GoOn,
    InterestIgnored,
    JoinKnownSource,
    OpenProxyReceiver,
    OpenProxySource,
    RecordKnownInterest,
    ReviewSources,
    SendToSibling,
    SourceIgnored,
    TellEverything,
    UpdateProxyReceiver,
    UpdateProxySource,
    WhyIgnored,
)
from portals.decisions.heard_sources import HeardSources
from portals.decisions.messages import (
    PATTERN_NONE,
    ExchangeDone,
    ForwardStart,
    ForwardStop,
    InterestAdded,
    InterestRemoved,
    KnownInterest,
    KnownProxy,
    KnownSource,
    PortalHello,
    PortalMessage,
    Released,
    Settle,
    Settled,
    SourceGone,
    SourceSeen,
    Taken,
    ToldAll,
    ToldProxies,
    Withdraw,
)
from portals.decisions.recorded_interest import Matcher, RecordedInterest
from portals.decisions.relearning import UnreadQueues
from portals.decisions.routes import HELD_NS, Path, Routes
from portals.decisions.siblings import Offer, Siblings, WantedProxy, cheapest
from portals.decisions.source_deletion_delay import SourceDeletionDelay
from portals.decisions.steps import (
    close_receivers,
    close_sources,
    decide_found,
    decide_sources,
    decide_topics,
    drop_before,
    drop_interest_before,
    everything,
    follow_acl,
    stop_before,
    stop_fed,
)

_NEW: Final = (InterestAdded, SourceSeen, ForwardStart, KnownSource, KnownProxy, KnownInterest)
"""What a drained portal ignores."""
AT_ONCE: Final = 32
"""Steps that are not left to later turns: some milliseconds with what follows from them."""


class PortalCore:
    """See the module text. Handles are unique within an incarnation of this portal."""

    def __init__(
        self,
        worker: int,
        incarnation: int,
        domain_id: int,
        *,
        source_deletion_delay_ns: int,
        matcher: Callable[[bytes, int], Matcher | None],
        acl: AclEnforcement = OPEN,
    ) -> None:
        """`matcher(pattern, type)` compiles a pattern, or returns None for one that does not compile.

        `domain_id`: of the portal's TRD; 0 if it leads to another DRO, whose interest all has a domain of its own.
        """
        self.me = worker
        self._incarnation = incarnation
        self._domain = domain_id
        self._acl = acl
        self.refused: Table[Symbol, None] = Table()  # what siblings want and may not be asked for here
        self._effects: list[Effect] = []
        self.routes = Routes(worker)
        self.siblings = Siblings(lambda topic: self.recorded.forget(topic))
        self.recorded = RecordedInterest(matcher, acl, self.siblings.by_topic)
        self.proxy_receivers: Table[Symbol, set[int]] = Table()  # -> interested domains
        self.receiver_kinds: Counter[int] = Counter()
        """How many of them there are by type of pattern."""
        self.proxies: Table[bytes, WantedProxy] = Table()  # by OTID
        self._had_proxy: Table[bytes, None] = Table()
        """OTIDs for which an older incarnation had one, until interest is recorded, or the TRD is known again."""
        self.deletion_delay = SourceDeletionDelay(source_deletion_delay_ns)
        self.own = HeardSources(incarnation, self.send_to_all, self.ask)
        self.is_withdrawn = False  # this portal is drained
        self._has_relearnt = False
        self._unread = UnreadQueues(self.ask)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def ask(self, effect: Effect) -> None:
        """Ask the shell for it, after all that was asked for before."""
        self._effects.append(effect)

    def _go_through(self, steps: Iterator[object]) -> None:
        """Run the first steps, and ask for the others."""
        if sum(1 for _ in islice(steps, AT_ONCE)) == AT_ONCE:
            self._effects.append(GoOn(steps))

    # routes

    def on_routes(self, version: int, routes: Iterable[Route], now_ns: int) -> None:
        self._go_through(self._unread.following(self._take_routes(version, routes, now_ns)))

    def _take_routes(self, version: int, routes: Iterable[Route], now_ns: int) -> Iterator[None]:
        topics = len(self.siblings.otids) + len(self.proxy_receivers)
        changes = yield from self.routes.change(version, routes, now_ns, topics)
        yield from self._follow_routes(*changes, now_ns)

    def forget_routes(self, now_ns: int) -> None:
        """Forget the routes to what this portal led to and is gone: nothing is made by them when it is there again."""
        self._go_through(self._follow_routes(*self.routes.drop(), now_ns))

    def _follow_routes(
        self, moved: set[Path], origins: set[int], now_ns: int, *, is_over: bool = False
    ) -> Iterator[None]:
        """`moved`: (egress, interested domain) of paths that changed; `origins`: domains whose paths to here did.

        `is_over`: these are paths of a table before, kept until now."""
        if self.routes.take_review():
            self._effects.append(ReviewSources())
        for worker in {worker for worker, _ in moved}:
            for symbol in self.siblings.symbols_of(worker).snapshot():
                if not moved.isdisjoint(self.siblings.wanting(symbol)):
                    self.decide_receiver(symbol)
                yield
        for otid in self.known_otids() if origins else ():
            if (otid in self.proxies or otid in self.siblings.otids) and self._identity(otid)[1] in origins:
                self.decide_source(otid, now_ns, is_over=is_over)
            yield

    # interest recorded at this portal

    def on_interest(self, event: InterestEvent, now_ns: int) -> None:
        """Local interest (own domain) or remote interest (a domain beyond a neighbour DRO) appeared or went here."""
        domain_id = event.domain_id or self._domain
        symbol = event.symbol
        if isinstance(event, InterestLost):
            if self.recorded.remove(symbol, domain_id):
                self.send_to_all(InterestRemoved(*symbol, domain_id))
                self._go_through(decide_topics(self, iter(self.recorded.take_found(symbol)), now_ns))
                for waiting, wanted_by in self.recorded.take_waiting():
                    self.on_interest(InterestGained(waiting, wanted_by), now_ns)
        elif self.is_withdrawn:
            return
        elif not is_name(symbol[0]):
            self._effects.append(InterestIgnored(symbol[0]))
        elif self.recorded.add(symbol, domain_id):
            self.send_to_all(InterestAdded(*symbol, domain_id))
            if symbol[1] == PATTERN_NONE:
                self.decide_topic(symbol[0], now_ns)
            else:
                self._go_through(decide_topics(self, self.recorded.topics_of(symbol), now_ns))
        elif symbol in self.recorded.waiting:
            self._effects.append(InterestIgnored(symbol[0], waits=True))

    def decide_topic(self, topic: bytes, now_ns: int) -> None:
        for otid in list(self.siblings.by_topic.get(topic, ())):
            self.decide_source(otid, now_ns)

    # changes of the configuration

    def on_acl(self, acl: AclEnforcement, now_ns: int) -> None:
        """Another access control list: apply only the differences (interest sent, proxies opened and closed)."""
        before, self._acl = self._acl, acl
        self.recorded.set_acl(acl)
        self._go_through(follow_acl(self, acl, before, now_ns))

    # siblings

    def on_sibling_up(
        self,
        worker: int,
        incarnation: int,
        forwarded: int,
        forwarded_bytes: int,
        now_ns: int,
        announced: int = 0,
        expired: int = 0,
    ) -> None:
        """A new incarnation of a sibling can be reached: send it everything. The numbers are those of `PortalHello`."""
        if not self.siblings.on_up(worker, incarnation, now_ns):
            return
        self._go_through(self.own.keep_wanted(worker))
        self.send(worker, PortalHello(self.me, self._incarnation, forwarded, forwarded_bytes, announced, expired))
        self._effects.append(TellEverything(worker, everything(self, worker, incarnation)))
        if self._has_relearnt:
            self.send(worker, ExchangeDone())
        # its fragments are asked for again as soon as it offers the source again, see _on_source_seen

    @property
    def known(self) -> int:
        """How much the portal knows of its TRD: topics, patterns and sources."""
        return len(self.recorded.domains) + len(self.own.seen)

    def on_relearnt(self, now_ns: int) -> None:
        """The portal knows its TRD again, see `portals.decisions.relearning`."""
        self._has_relearnt = True
        self.own.forget_known()
        had, self._had_proxy = self._had_proxy, Table()
        self._go_through(decide_sources(self, had, now_ns))
        self._effects.append(CheckKnown())
        self.send_to_all(ExchangeDone())

    def on_sibling_down(self, worker: int, now_ns: int) -> None:
        """The sibling died or was removed; what it said is kept for a moment, its next incarnation may confirm it."""
        self.siblings.on_down(worker, now_ns)
        self._go_through(self.own.keep_wanted(worker))

    def on_sibling_removed(self, worker: int, now_ns: int) -> None:
        """The sibling is gone for good."""
        self.forward_nothing_to(worker)
        self.siblings.on_removed(worker)
        self._go_through(drop_before(self, worker, self.siblings.newest(worker), now_ns))

    def on_sibling_released(self, worker: int) -> None:
        """The sibling is drained, and has had all that it will get: what it wanted does not count any more."""
        self.forward_nothing_to(worker)
        self._go_through(drop_interest_before(self, worker, self.siblings.newest(worker) + 1))

    def forward_nothing_to(self, worker: int) -> None:
        """The sibling gets nothing more, nor does its next incarnation until it asks."""
        for _ in self.own.keep_wanted(worker):
            pass
        self._go_through(self._forget_wanted_before(worker))

    def _forget_wanted_before(self, worker: int) -> Iterator[None]:
        """Stop what only older incarnations of the sibling wanted; one that is down is not waited for any more."""
        yield from self.own.forget_wanted_before(worker)
        if not self.siblings.is_up(worker):
            self._effects.append(ExpireQueue(worker))

    def on_message(self, worker: int, incarnation: int, message: PortalMessage, now_ns: int) -> None:
        if self.siblings.is_outdated(worker, incarnation):
            return
        if self.is_withdrawn and isinstance(message, _NEW):
            return
        match message:
            case InterestAdded(symbol=name, pattern=pattern, domain_id=domain_id):
                self.siblings.add_interest(worker, incarnation, (name, pattern), domain_id)
                self.decide_receiver((name, pattern))
            case InterestRemoved(symbol=name, pattern=pattern, domain_id=domain_id):
                self.siblings.remove_interest(worker, (name, pattern), domain_id)
                self.decide_receiver((name, pattern))
            case SourceSeen():
                self._on_source_seen(Offer(worker, incarnation, message), now_ns)
            case SourceGone(handle=handle):
                if (seen := self.siblings.remove_offer(worker, handle)) is not None:
                    self.decide_source(seen.otid, now_ns)
            case ForwardStart(handle=handle) | ForwardStop(handle=handle):
                self.own.forward(worker, handle, is_wanted=isinstance(message, ForwardStart))
            case ExchangeDone():
                self.siblings.on_exchange_done(worker)
                self._go_through(self._forget_wanted_before(worker))
                self._go_through(drop_before(self, worker, incarnation, now_ns))
            case KnownSource(source=source):
                if not self._has_relearnt and self.own.know(worker, source):
                    self._effects.append(JoinKnownSource(source))
            case KnownProxy(source=source):
                if not self._has_relearnt:
                    self._had_proxy[source.otid] = None
                self._on_source_seen(Offer(worker, incarnation, source), now_ns)
            case ToldProxies():
                self._unread.on_told(worker)
            case KnownInterest(symbol=name, pattern=pattern, domain_id=domain_id):
                if not self._has_relearnt:
                    self._effects.append(RecordKnownInterest(name, pattern, domain_id))
            case ToldAll():
                self.siblings.on_told(worker)
            case PortalHello() | Withdraw() | Released() | Settle() | Settled() | Taken():
                pass

    def _on_source_seen(self, offer: Offer, now_ns: int) -> None:
        seen = offer.source
        why = WhyIgnored.TOO_MANY_HOPS if seen.hop_count >= MAX_HOPS else None
        for known in self.siblings.offers(seen.otid):
            if (known.source.topic, known.source.domain_id) != (seen.topic, seen.domain_id):
                why = WhyIgnored.OTID_IS_KNOWN
        if why is not None:
            self._effects.append(SourceIgnored(why, seen.otid, seen.topic))
            return
        made = self.proxies.get(seen.otid)
        if made is not None and (made.topic, made.domain_id) != (seen.topic, seen.domain_id):
            self._delete(seen.otid)  # it waits for its deletion: nobody offers what it was made for
        before = self.siblings.add_offer(offer)
        self.decide_source(seen.otid, now_ns)
        proxy = self.proxies.get(seen.otid)
        if before is not None and before != seen and proxy is not None and proxy.feeder == offer.key:
            self._effects.append(UpdateProxySource(offer.worker, seen))

    # the drain of this portal, as `portals.decisions.drain` orders it

    def withdraw(self) -> None:
        """From now on make nothing new, keep all proxies, and do not report which own sources end."""
        self.is_withdrawn = True
        self.own.keep_ends()
        self.deletion_delay.clear()

    def close_receivers(self) -> None:
        """Close all proxy receivers, and forward nothing any more, whatever the siblings want."""
        self.own.forward_nothing()
        self._go_through(close_receivers(self))

    def end_sources(self) -> None:
        """Report the end of all own sources to the siblings, also of those that were kept from them."""
        self._go_through(self.own.end_all())

    def close_sources(self) -> None:
        """Close all proxy sources, whatever is wanted here."""
        self._go_through(close_sources(self))

    # decisions

    def decide_receiver(self, symbol: Symbol) -> None:
        """Decisions 1 and 2: is a proxy receiver needed here, and for which domains?"""
        if self.is_withdrawn:
            return
        wanted = {domain_id for _, domain_id in self.routes.inbound.intersection(self.siblings.wanting(symbol))}
        if wanted and not self._acl.may_ask(*symbol):
            self.refused[symbol] = None
            wanted = set()
        else:
            self.refused.pop(symbol, None)
        had = self.proxy_receivers.get(symbol)
        if wanted and had is None:
            self.proxy_receivers[symbol] = wanted
            self.receiver_kinds[symbol[1]] += 1
            self._effects.append(OpenProxyReceiver(*symbol, tuple(sorted(wanted))))
        elif not wanted and had is not None:
            del self.proxy_receivers[symbol]
            self.receiver_kinds[symbol[1]] -= 1
            self._effects.append(CloseProxyReceiver(*symbol, tuple(sorted(had))))
        elif had is not None and wanted != had:
            self.proxy_receivers[symbol] = wanted
            self._effects.append(UpdateProxyReceiver(*symbol, tuple(sorted(wanted - had)), tuple(sorted(had - wanted))))

    def decide_source(self, otid: bytes, now_ns: int, *, is_over: bool = False) -> None:
        """Decision 3: is a proxy source for this OTID needed here, and which sibling feeds it?

        `is_over`: what a route change took off has been kept until now."""
        proxy = self.proxies.get(otid)
        offers = self.siblings.offers(otid)
        if self.is_withdrawn or (proxy is None and not offers):
            return  # withdrawn: siblings end what they fed; what came before that stays until all of it has been sent
        topic, origin = self._identity(otid)
        if not self.recorded.has_searched(topic):
            if self.recorded.put_off(topic, otid):
                self._go_through(decide_found(self, topic, now_ns))
            return
        interested = self.recorded.interested(topic)
        usable = self._usable(otid, topic, origin, interested, offers)
        workers = self.routes.held(origin, interested, share_of(otid))
        held = {offer.key: offer for offer in offers if offer.worker in workers}
        feeder, before = (None, None) if proxy is None else (proxy.feeder, proxy.before)
        if proxy is not None and before is not None and before not in held:
            stop_before(self, proxy)
        if feeder in usable and not self.deletion_delay.is_fed(otid):
            return  # a working feeder is kept, even when another one would be cheaper
        is_offered = feeder is not None and any(feeder == offer.key for offer in offers)
        best = min(usable.values(), key=cheapest, default=None)
        if best is None and not is_offered and before is not None:
            best = held.get(before)
        if best is not None:
            self._feed(otid, proxy, best, is_beside=feeder in held)
        if feeder in held:
            if proxy is not None and best is not None:
                stop_before(self, proxy, feeder)
            return  # it goes on until the routes before are forgotten
        has_waited = is_over and is_offered and self.deletion_delay.delay_ns <= HELD_NS
        if best is None and interested and is_offered and self.deletion_delay.is_fed(otid):
            return  # until its time is over
        if best is None and interested and has_waited and self._domain and otid not in self.deletion_delay:
            self._effects.append(DelayDeletion(otid, self.deletion_delay.begin_fed(otid, now_ns), is_fed=True))
            return
        if feeder is not None and is_offered and (best is None or best.key != feeder):
            self.send(feeder[0], ForwardStop(feeder[1]))  # the new one has been asked by then
        if best is not None or proxy is None:
            return
        if not interested and otid not in self._had_proxy:
            self._delete(otid)
        elif otid not in self.deletion_delay:
            proxy.feeder = None
            self._effects.append(DelayDeletion(otid, self.deletion_delay.begin(otid, now_ns, is_soon=has_waited)))

    def _usable(
        self, otid: bytes, topic: bytes, origin: int, interested: Set[int], offers: Iterable[Offer]
    ) -> dict[tuple[int, int], Offer]:
        """Offers by key that are on the path to an interested domain; before interest is known again, to any."""
        workers = self.routes.feeders(origin, interested, share_of(otid))
        usable = {offer.key: offer for offer in offers if offer.worker in workers}
        if otid not in self._had_proxy:
            return usable
        if not usable and self._acl.may_leave(topic):
            return {offer.key: offer for offer in offers if self.routes.leaves(origin, offer.worker)}
        del self._had_proxy[otid]
        return usable

    def _feed(self, otid: bytes, proxy: WantedProxy | None, offer: Offer, *, is_beside: bool) -> None:
        """Ask for the source that the offer names, for a proxy source that is new or had, or keeps, another feeder."""
        worker, seen = offer.worker, offer.source
        if proxy is None:
            self.proxies[otid] = WantedProxy(seen.topic, seen.domain_id, offer.key)
            self._effects.append(OpenProxySource(worker, seen))
        else:
            proxy.feeder = offer.key
            self.deletion_delay.end(otid)
            self._effects.append(FeedProxySource(worker, seen, is_beside))
        self.send(worker, ForwardStart(seen.handle))

    def _delete(self, otid: bytes) -> None:
        stop_before(self, self.proxies.pop(otid))
        self.deletion_delay.end(otid)
        self._effects.append(CloseProxySource(otid))

    def known_otids(self) -> Iterator[bytes]:
        """Offered by a sibling, or with a proxy source here."""
        yield from self.siblings.otids.snapshot()
        yield from (otid for otid in self.proxies.snapshot() if otid not in self.siblings.otids)

    def _identity(self, otid: bytes) -> tuple[bytes, int]:
        """Topic and originating domain of a known OTID."""
        known = self.proxies.get(otid) or self.siblings.offers(otid)[0].source
        return known.topic, known.domain_id

    # time

    def next_deadline(self) -> int | None:
        deadlines = (part.next_deadline() for part in (self.siblings, self.deletion_delay, self.routes))
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def on_timer(self, now_ns: int) -> None:
        for worker, incarnation in self.siblings.take_stale(now_ns):
            self._go_through(self._forget_wanted_before(worker))
            self._go_through(drop_before(self, worker, incarnation, now_ns))
        stop_fed(self, now_ns)
        for otid in self.deletion_delay.due(now_ns):
            self._delete(otid)
        self._go_through(self._follow_routes(*self.routes.forget(now_ns), now_ns, is_over=True))

    # messages out

    def send(self, worker: int, message: PortalMessage) -> None:
        """Send this after all that was decided before, unless the sibling is down."""
        if self.siblings.is_up(worker):
            self._effects.append(SendToSibling(worker, message))

    def send_to_all(self, message: PortalMessage) -> None:
        for worker in self.siblings.up:
            self._effects.append(SendToSibling(worker, message))
