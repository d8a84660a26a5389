"""The decisions of a portal: which proxies exist, and where fragments go.

Owns: interest recorded here (local and remote), the reports of siblings (`siblings`), the sources heard here
(`heard_sources`), and the wanted proxies that follow from interest x routes. Knows no socket, no clock, no bus, no
logger: the shell (`portals.shell.portal`) calls `on_...` and carries out what `take_effects` returns.

The three route-based decisions are those of the forwarding notes, section 2: an entry (S, R) -> (ingress, egress)
of the route table says that traffic from domain S to domain R enters this DRO at `ingress` and leaves it at `egress`.
With several paths for a pair (equal-cost sharing) interest goes by all, and a source by that of the tree of its OTID.
The feeder of a proxy source is the sibling that forwards to it, with the handle that the source has there.

What concerns many topics at once (routes, an access control list, a pattern, a sibling that left) is decided in steps:
the first at once, the others in slices, which the shell runs (`GoOn`), each one thing by the state of that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from dro.bus.messages import Route
from dro.proto.interest.events import InterestEvent, InterestGained, InterestLost
from portals.decisions.acl_enforcement import OPEN, AclEnforcement
from portals.decisions.advertisement import MAX_HOPS, is_name
from portals.decisions.effects import (
    AdvertiseProxySource,
    CheckKnown,
    Effect,
    ExpireQueue,
    GoOn,
    InterestIgnored,
    JoinKnownSource,
    RecordKnownInterest,
    ReviewSources,
    SendInitialState,
    SendToSibling,
    SourceIgnored,
    WhyIgnored,
)
from portals.decisions.exchange import Exchange
from portals.decisions.heard_sources import HeardSources
from portals.decisions.messages import (
    PATTERN_NONE,
    ForwardingStopped,
    ForwardStart,
    ForwardStop,
    FramesAcked,
    HandoverAcked,
    HandoverEnded,
    InitialStateSent,
    InterestAdded,
    InterestRemoved,
    KnownInterest,
    KnownProxiesSent,
    KnownProxy,
    KnownSource,
    KnownSourcesSent,
    PortalHello,
    PortalMessage,
    SourceGone,
    SourceSeen,
    StateConfirmed,
    Withdraw,
)
from portals.decisions.recorded_interest import Matcher, RecordedInterest
from portals.decisions.relearning import UnreadQueues
from portals.decisions.routes import Path, Routes
from portals.decisions.siblings import Offer, Siblings
from portals.decisions.source_deletion_delay import SourceDeletionDelay
from portals.decisions.wanted_receivers import WantedReceivers
from portals.decisions.wanted_sources import WantedSources

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
        self._effects: list[Effect] = []
        self.ask = self._effects.append
        """Asks the host for an effect, after all that was asked for before."""
        self.routes = Routes(worker)
        self.siblings = Siblings(lambda topic: self.recorded.forget(topic))
        self.recorded = RecordedInterest(matcher, acl, self.siblings.by_topic)
        self.deletion_delay = SourceDeletionDelay(source_deletion_delay_ns)
        self.receivers = WantedReceivers(self.routes, self.siblings, acl, self.ask)
        self.sources = WantedSources(
            domain_id, self.routes, self.siblings, self.recorded, acl, self.deletion_delay, self.ask, self.send,
            self._go_through,
        )  # fmt: skip
        self.proxy_receivers, self.proxies = self.receivers.domains, self.sources.by_otid
        self.own = HeardSources(incarnation, self.send_to_all, self.ask)
        self.is_withdrawn = False  # this portal is drained
        self._has_relearnt = False
        self._unread = UnreadQueues(self.ask)
        self._exchange = Exchange(
            worker, self.own, self.recorded, self.siblings, self.sources, lambda: self.is_withdrawn
        )

    def take_effects(self) -> list[Effect]:
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    @property
    def has_effects(self) -> bool:
        return bool(self._effects)

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

    def assume_routes(self) -> None:
        """Make what an older incarnation had without a route, as long as no table has one that leaves here."""
        self.routes.is_assumed = True
        self._unread.assume_routes()

    def forget_routes(self, now_ns: int) -> None:
        """Forget the routes to what this portal led to and is gone: nothing is made by them when it is there again."""
        self._go_through(self._follow_routes(*self.routes.drop(), now_ns))

    def _follow_routes(
        self, moved: set[Path], origins: set[int], now_ns: int, *, is_over: bool = False
    ) -> Iterator[None]:
        """Decide anew for paths that changed: those that `moved`, and those to here from the domains `origins`.

        `moved`: (egress, interested domain). `is_over`: these are paths of a table before, kept until now."""
        if self.routes.take_review():
            self._effects.append(ReviewSources())
        for worker in {worker for worker, _ in moved}:
            for symbol in self.siblings.symbols_of(worker).snapshot():
                if not moved.isdisjoint(self.siblings.wanting(symbol)):
                    self.receivers.decide(symbol)
                yield
        for otid in self.sources.known_otids() if origins else ():
            if self.sources.origin_of(otid) in origins:
                self.sources.decide(otid, now_ns, is_over=is_over)
            yield

    # interest recorded at this portal

    def on_interest(self, event: InterestEvent, now_ns: int) -> None:
        """Local interest (own domain) or remote interest (a domain beyond a neighbour DRO) appeared or went here."""
        domain_id = event.domain_id or self._domain
        symbol = event.symbol
        if isinstance(event, InterestLost):
            if self.recorded.remove(symbol, domain_id):
                self.send_to_all(InterestRemoved(*symbol, domain_id))
                self._go_through(self._decide_topics(iter(self.recorded.take_found(symbol)), now_ns))
                for waiting, wanted_by in self.recorded.take_waiting():
                    self.on_interest(InterestGained(waiting, wanted_by), now_ns)
        elif self.is_withdrawn:
            return
        elif not is_name(symbol[0]):
            self._effects.append(InterestIgnored(symbol[0]))
        elif self.recorded.add(symbol, domain_id):
            self.send_to_all(InterestAdded(*symbol, domain_id))
            if symbol[1] == PATTERN_NONE:
                self._decide_topic(symbol[0], now_ns)
            else:
                self._go_through(self._decide_topics(self.recorded.topics_of(symbol), now_ns))
        elif symbol in self.recorded.waiting:
            self._effects.append(InterestIgnored(symbol[0], waits=True))

    def _decide_topic(self, topic: bytes, now_ns: int) -> None:
        for otid in list(self.siblings.by_topic.get(topic, ())):
            self.sources.decide(otid, now_ns)

    # changes of the configuration

    def on_acl(self, acl: AclEnforcement, now_ns: int) -> None:
        """Apply only what differs in another access control list (interest sent, proxies opened and closed)."""
        before, self._acl = self._acl, acl
        self.receivers.acl = self.sources.acl = acl
        self.recorded.set_acl(acl)
        self._go_through(self._follow_acl(acl, before, now_ns))

    # siblings

    def rejoin(self, sources: Iterable[tuple[SourceSeen, Iterable[int]]]) -> None:
        """Join what an older incarnation of this portal had joined, and forward it to the same siblings."""
        for source, workers in sources:
            for worker in workers:
                if self.own.know(worker, source):
                    self._effects.append(JoinKnownSource(source))

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
        self._effects.append(SendInitialState(worker, self._exchange.everything(worker, incarnation)))
        if self._has_relearnt:
            self.send(worker, StateConfirmed())
        # its fragments are asked for again as soon as it offers the source again, see _on_source_seen

    @property
    def known(self) -> int:
        """How much the portal knows of its TRD: topics, patterns and sources."""
        return len(self.recorded.domains) + len(self.own.seen)

    def on_relearnt(self, now_ns: int) -> None:
        """The portal knows its TRD again, see `portals.decisions.relearning`."""
        self._has_relearnt = True
        self.own.forget_known()
        self._go_through(self._decide_sources(self.sources.take_had(), now_ns))
        self._effects.append(CheckKnown())
        self.send_to_all(StateConfirmed())

    def on_sibling_down(self, worker: int, now_ns: int) -> None:
        """The sibling died or was removed; what it said is kept for a moment, its next incarnation may confirm it."""
        self.siblings.on_down(worker, now_ns)
        self._go_through(self.own.keep_wanted(worker))

    def on_sibling_removed(self, worker: int, now_ns: int) -> None:
        """The sibling is gone for good."""
        self.forward_nothing_to(worker)
        self.siblings.on_removed(worker)
        self._go_through(self._drop_before(worker, self.siblings.newest(worker), now_ns))

    def on_forwarding_stopped(self, worker: int) -> None:
        """The sibling is drained, and has had all that it will get: what it wanted does not count any more."""
        self.forward_nothing_to(worker)
        self._go_through(self._drop_interest_before(worker, self.siblings.newest(worker) + 1))

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
                self.receivers.decide((name, pattern))
            case InterestRemoved(symbol=name, pattern=pattern, domain_id=domain_id):
                self.siblings.remove_interest(worker, (name, pattern), domain_id)
                self.receivers.decide((name, pattern))
            case SourceSeen():
                self._on_source_seen(Offer(worker, incarnation, message), now_ns)
            case SourceGone(handle=handle):
                if (seen := self.siblings.remove_offer(worker, handle)) is not None:
                    self.sources.decide(seen.otid, now_ns)
            case ForwardStart(handle=handle) | ForwardStop(handle=handle):
                self.own.forward(worker, handle, is_wanted=isinstance(message, ForwardStart))
            case StateConfirmed():
                self.siblings.on_exchange_done(worker)
                self._go_through(self._forget_wanted_before(worker))
                self._go_through(self._drop_before(worker, incarnation, now_ns))
            case KnownSource(source=source):
                if not self._has_relearnt and self.own.know(worker, source):
                    self._effects.append(JoinKnownSource(source))
            case KnownProxy(source=source):
                if not self._has_relearnt:
                    self.sources.on_had(source.otid)
                self._on_source_seen(Offer(worker, incarnation, source), now_ns)
            case KnownProxiesSent():
                self._unread.on_known_proxies_sent(worker)
            case KnownSourcesSent():
                self.siblings.on_known_sources_sent(worker)
            case KnownInterest(symbol=name, pattern=pattern, domain_id=domain_id):
                if not self._has_relearnt:
                    self._effects.append(RecordKnownInterest(name, pattern, domain_id))
            case InitialStateSent():
                self.siblings.on_initial_state_sent(worker)
            case PortalHello() | Withdraw() | ForwardingStopped() | HandoverEnded() | HandoverAcked() | FramesAcked():
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
        self.sources.on_offer(offer, now_ns)

    # the drain of this portal, as `portals.decisions.drain` orders it

    def withdraw(self) -> None:
        """Make nothing new from now on, keep all proxies, and do not report which own sources end."""
        self.is_withdrawn = self.receivers.is_withdrawn = self.sources.is_withdrawn = True
        self.own.keep_ends()
        self.deletion_delay.clear()

    def close_receivers(self) -> None:
        """Close all proxy receivers, and forward nothing any more, whatever the siblings want."""
        self.own.forward_nothing()
        self._go_through(self.receivers.close_all())

    def end_sources(self) -> None:
        """Report the end of all own sources to the siblings, also of those that were kept from them."""
        self._go_through(self.own.end_all())

    def close_sources(self) -> None:
        """Close all proxy sources, whatever is wanted here."""
        self._go_through(self.sources.close_all())

    # in steps, each one thing by the state of that moment

    def _decide_sources(self, otids: Iterable[bytes], now_ns: int) -> Iterator[None]:
        for otid in otids:
            self.sources.decide(otid, now_ns)
            yield

    def _decide_topics(self, topics: Iterable[bytes | None], now_ns: int) -> Iterator[None]:
        for topic in topics:
            if topic is not None:
                self._decide_topic(topic, now_ns)
            yield

    def _follow_acl(self, acl: AclEnforcement, before: AclEnforcement, now_ns: int) -> Iterator[None]:
        """Apply what differs between two access control lists."""
        if not acl.lets_in_like(before):
            for symbol in self.siblings.symbols.snapshot():
                self.receivers.decide(symbol)
                yield
        if acl.lets_out_like(before):
            return
        for changes in self.recorded.changes():
            for change in changes if not self.is_withdrawn else ():
                self.send_to_all(change)
            yield
        yield from self._decide_sources(self.sources.known_otids(), now_ns)

    def _drop_before(self, worker: int, incarnation: int, now_ns: int) -> Iterator[None]:
        """Drop what only older incarnations of the sibling had said."""
        yield from self._drop_interest_before(worker, incarnation)
        for otid in self.siblings.remove_offers_before(worker, incarnation):
            self.sources.decide(otid, now_ns)
            yield

    def _drop_interest_before(self, worker: int, incarnation: int) -> Iterator[None]:
        for symbol in self.siblings.remove_interest_before(worker, incarnation):
            self.receivers.decide(symbol)
            yield

    # time

    def next_deadline(self) -> int | None:
        deadlines = (part.next_deadline() for part in (self.siblings, self.deletion_delay, self.routes))
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def on_timer(self, now_ns: int) -> None:
        for worker, incarnation in self.siblings.take_stale(now_ns):
            self._go_through(self._forget_wanted_before(worker))
            self._go_through(self._drop_before(worker, incarnation, now_ns))
        self.sources.stop_fed(now_ns)
        for otid in self.deletion_delay.due(now_ns):
            self.sources.delete(otid)
        self._go_through(self._follow_routes(*self.routes.forget(now_ns), now_ns, is_over=True))

    # messages out

    def send(self, worker: int, message: PortalMessage, then: AdvertiseProxySource | None = None) -> None:
        """Send this after all that was decided before, unless the sibling is down."""
        if self.siblings.is_up(worker):
            self._effects.append(SendToSibling(worker, message, then))

    def send_to_all(self, message: PortalMessage) -> None:
        for worker in self.siblings.up:
            self._effects.append(SendToSibling(worker, message))
