"""The decisions of an endpoint portal: which proxies exist, and where fragments go.

Owns: interest recorded here (local and remote), what the siblings said (interest, sources), own sources, and the
wanted proxies that follow from interest x routes. Knows no socket, no clock, no bus: the shell (`portals.endpoint.
main`) calls `on_...` and carries out what `take_effects` returns.

The three route-based decisions are those of the forwarding notes, section 2: an entry (S, R) -> (ingress, egress)
of the route table says that traffic from domain S to domain R enters this DRO at `ingress` and leaves it at `egress`.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from dro.clock import s
from dro.log import LimitedLogger
from portals.endpoint.access import OPEN, Access
from portals.endpoint.advertisement import MAX_HOPS
from portals.endpoint.effects import (
    CloseProxyReceiver,
    CloseProxySource,
    Effect,
    FeedProxySource,
    OpenProxyReceiver,
    OpenProxySource,
    StarveProxySource,
    Tell,
    UpdateProxyReceiver,
    UpdateProxySource,
)
from portals.endpoint.own_sources import OwnSources
from portals.messages import (
    PATTERN_NONE,
    ExchangeDone,
    ForwardStart,
    ForwardStop,
    InterestAdded,
    InterestRemoved,
    PortalHello,
    PortalMessage,
    Released,
    Settle,
    Settled,
    SourceGone,
    SourceSeen,
    Withdraw,
)

log = logging.getLogger(__name__)
limited = LimitedLogger(log).limited

REJOIN_HOLD_NS = s(3)  # Guess: how long what a dead sibling had said is kept for its next incarnation to confirm

Symbol = tuple[bytes, int]
"""(topic or pattern, pattern type)"""
Matcher = Callable[[bytes], bool]


@dataclass(slots=True)
class _Sibling:
    incarnation: int = 0
    is_up: bool = False
    stale_until_ns: int | None = None  # when what only the older incarnation had said is dropped
    interest: dict[Symbol, dict[int, int]] = field(
        default_factory=lambda: defaultdict(dict)
    )  # -> domain -> incarnation
    sources: dict[int, tuple[SourceSeen, int]] = field(default_factory=dict)  # handle -> (source, incarnation)


@dataclass(slots=True)
class _Proxy:
    """One wanted proxy source; `feeder` is (worker, handle), None while it starves."""

    topic: bytes
    domain_id: int
    feeder: tuple[int, int] | None


class EndpointCore:
    """See the module text. Handles are unique within an incarnation of this portal."""

    def __init__(
        self,
        worker: int,
        incarnation: int,
        domain_id: int,
        *,
        source_deletion_delay_ns: int,
        matcher: Callable[[bytes, int], Matcher | None],
        access: Access = OPEN,
    ) -> None:
        """`matcher(pattern, type)` compiles a pattern, or returns None for one that does not compile."""
        self._me = worker
        self._incarnation = incarnation
        self._domain = domain_id
        self._deletion_delay_ns = source_deletion_delay_ns
        self._compile = matcher
        self._access = access
        self._withheld: set[bytes] = set()  # topics recorded here that may not leave here
        self._refused: set[Symbol] = set()  # what siblings want and may not be asked for here
        self._effects: list[Effect] = []
        self.route_version = 0
        self._routes: dict[tuple[int, int], tuple[int, int]] = {}
        self._inbound: set[tuple[int, int]] = set()  # (egress worker, interested domain) of paths that enter here
        self._recorded: dict[Symbol, set[int]] = {}
        self._patterns: dict[Symbol, Matcher] = {}
        self._siblings: dict[int, _Sibling] = defaultdict(_Sibling)
        self._proxy_receivers: dict[Symbol, set[int]] = {}
        self._proxies: dict[bytes, _Proxy] = {}
        self._starving: dict[bytes, int] = {}  # otid -> when the proxy source is deleted, earliest first
        self._by_otid: dict[bytes, set[tuple[int, int]]] = defaultdict(set)  # otid -> (worker, handle)
        self._by_topic: dict[bytes, set[bytes]] = defaultdict(set)  # topic -> otids
        self._own = OwnSources(incarnation, self._tell_all, lambda effect: self._effects.append(effect))
        self._is_withdrawn = False  # this portal is drained

    # what there is, for counters and tests

    @property
    def proxy_receivers(self) -> dict[Symbol, set[int]]:
        return self._proxy_receivers

    @property
    def proxy_sources(self) -> Iterable[bytes]:
        return self._proxies.keys()

    @property
    def own_sources(self) -> dict[int, SourceSeen]:
        return self._own.seen

    @property
    def withheld(self) -> int:
        """How many topics are wanted here and rejected on their way out."""
        return len(self._withheld)

    @property
    def refused(self) -> int:
        """How many topics and patterns the siblings want and this portal may not ask for."""
        return len(self._refused)

    def receiver_interest(self, *, pattern: int) -> int:
        """How many topics or patterns of the given type the siblings want from here."""
        return sum(1 for _, kind in self._proxy_receivers if kind == pattern)

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    # routes

    def on_routes(self, version: int, entries: Iterable[tuple[int, int, int, int]], now_ns: int) -> None:
        """`entries`: (source domain, interested domain, ingress worker, egress worker)."""
        if version <= self.route_version:
            return
        self.route_version = version
        routes = {(origin, wanted): (ingress, egress) for origin, wanted, ingress, egress in entries}
        if routes == self._routes:
            return
        self._routes = routes
        self._inbound = {(egress, wanted) for (_, wanted), (ingress, egress) in routes.items() if ingress == self._me}
        symbols = set(self._proxy_receivers)
        for sibling in self._siblings.values():
            symbols.update(sibling.interest)
        for symbol in symbols:
            self._decide_receiver(symbol)
        for otid in list(self._by_otid.keys() | self._proxies.keys()):
            self._decide_source(otid, now_ns)

    # interest recorded at this portal

    def on_interest_added(self, symbol: bytes, pattern: int, domain_id: int, now_ns: int) -> None:
        """Local interest (own domain) or remote interest (a domain beyond a neighbour DRO) appeared here."""
        if self._is_withdrawn:
            return
        key = (symbol, pattern)
        if pattern != PATTERN_NONE and key not in self._patterns:
            matcher = self._compile(symbol, pattern)
            if matcher is None:
                return  # the compiler has logged it
            self._patterns[key] = matcher
        domains = self._recorded.setdefault(key, set())
        if domain_id in domains:
            return
        domains.add(domain_id)
        if not self._may_leave(key):
            self._withheld.add(symbol)
            return
        self._tell_all(InterestAdded(symbol, pattern, domain_id))
        self._decide_matching(key, now_ns)

    def on_interest_removed(self, symbol: bytes, pattern: int, domain_id: int, now_ns: int) -> None:
        key = (symbol, pattern)
        domains = self._recorded.get(key)
        if domains is None or domain_id not in domains:
            return
        domains.remove(domain_id)
        matching = self._matching_otids(key)
        if not domains:
            del self._recorded[key]
            self._patterns.pop(key, None)
        if not self._may_leave(key):
            if not domains:
                self._withheld.discard(symbol)
            return
        self._tell_all(InterestRemoved(symbol, pattern, domain_id))
        for otid in matching:
            self._decide_source(otid, now_ns)

    def _decide_matching(self, key: Symbol, now_ns: int) -> None:
        for otid in self._matching_otids(key):
            self._decide_source(otid, now_ns)

    def _matching_otids(self, key: Symbol) -> list[bytes]:
        symbol, pattern = key
        if pattern == PATTERN_NONE:
            return list(self._by_topic.get(symbol, ()))
        matcher = self._patterns[key]
        return [otid for topic, otids in self._by_topic.items() if matcher(topic) for otid in otids]

    def _may_leave(self, key: Symbol) -> bool:
        """A pattern cannot be judged; the topics that it finds are."""
        return key[1] != PATTERN_NONE or self._access.may_leave(key[0])

    def _interested(self, topic: bytes) -> set[int]:
        if not self._access.may_leave(topic):
            return set()
        domains = set(self._recorded.get((topic, PATTERN_NONE), ()))
        for key, matcher in self._patterns.items():
            wanted = self._recorded[key]
            if not wanted <= domains and matcher(topic):
                domains |= wanted
        return domains

    # changes of the configuration

    def set_deletion_delay(self, delay_ns: int) -> None:
        """Also for what starves already: its delay began when it did."""
        longer_ns = delay_ns - self._deletion_delay_ns
        self._deletion_delay_ns = delay_ns
        for otid in self._starving:
            self._starving[otid] += longer_ns

    def on_access(self, access: Access, now_ns: int) -> None:
        """Another access control list: what it says otherwise is told, opened and closed, and nothing else."""
        before, self._access = self._access, access
        if self._is_withdrawn:
            return
        if not access.lets_in_like(before):
            wanted = {symbol for sibling in self._siblings.values() for symbol in sibling.interest}
            for symbol in wanted | self._proxy_receivers.keys():
                self._decide_receiver(symbol)
        if access.lets_out_like(before):
            return
        for (topic, pattern), domains in self._recorded.items():
            may = access.may_leave(topic)
            if pattern != PATTERN_NONE or may == before.may_leave(topic):
                continue
            if may:
                self._withheld.discard(topic)
            else:
                self._withheld.add(topic)
            for domain_id in sorted(domains):
                self._tell_all((InterestAdded if may else InterestRemoved)(topic, pattern, domain_id))
        for otid in list(self._by_otid.keys() | self._proxies.keys()):
            topic = self._identity(otid, self._proxies.get(otid))[0]
            if access.may_leave(topic) != before.may_leave(topic):
                self._decide_source(otid, now_ns)

    # sources of the own TRD

    def on_source_seen(
        self, otid: bytes, topic: bytes, domain_id: int, hop_count: int, cost: int, pass_through: bytes
    ) -> int:
        """A source of the own TRD was joined; returns its handle."""
        return self._own.add(otid, topic, domain_id, hop_count, cost, pass_through)

    def on_source_changed(self, handle: int, hop_count: int, cost: int, pass_through: bytes) -> None:
        """It is advertised otherwise, or it costs something else to reach this portal."""
        self._own.change(handle, hop_count, cost, pass_through)

    def on_source_gone(self, handle: int) -> None:
        self._own.end(handle)

    # siblings

    def on_sibling_up(self, worker: int, incarnation: int, forwarded: int, forwarded_bytes: int, now_ns: int) -> None:
        """A new incarnation of a sibling can be reached: tell it everything."""
        sibling = self._siblings[worker]
        if incarnation <= sibling.incarnation and sibling.is_up:
            return
        if sibling.incarnation:
            sibling.stale_until_ns = now_ns + REJOIN_HOLD_NS
        sibling.incarnation = incarnation
        sibling.is_up = True
        self._own.forward_nothing_to(worker)
        self._tell(worker, PortalHello(self._me, self._incarnation, forwarded, forwarded_bytes))
        if self._is_withdrawn:
            self._tell(worker, ExchangeDone())
            return
        for key, domains in self._recorded.items():
            for domain_id in sorted(domains) if self._may_leave(key) else ():
                self._tell(worker, InterestAdded(*key, domain_id))
        for seen in self._own.seen.values():
            self._tell(worker, seen)
        self._tell(worker, ExchangeDone())
        # its fragments are asked for again as soon as it offers the source again, see _on_source_seen

    def on_sibling_down(self, worker: int, now_ns: int) -> None:
        """The sibling died or was removed; what it said is kept for a moment, its next incarnation may confirm it."""
        sibling = self._siblings[worker]
        sibling.is_up = False
        sibling.stale_until_ns = now_ns + REJOIN_HOLD_NS
        self._own.forward_nothing_to(worker)

    def on_sibling_removed(self, worker: int, now_ns: int) -> None:
        """The sibling is gone for good."""
        sibling = self._siblings.get(worker)
        if sibling is not None:
            sibling.is_up = False
            self._own.forward_nothing_to(worker)
            self._sweep(worker, sibling, now_ns)
            del self._siblings[worker]

    def on_sibling_released(self, worker: int) -> None:
        """The sibling is drained, and has had all that it will get: what it wanted does not count any more."""
        self._own.forward_nothing_to(worker)
        sibling = self._siblings[worker]
        for key, domains in list(sibling.interest.items()):
            for domain_id in list(domains):
                self._drop_interest(sibling, key, domain_id)

    def on_message(self, worker: int, incarnation: int, message: PortalMessage, now_ns: int) -> None:
        sibling = self._siblings[worker]
        if incarnation < sibling.incarnation:
            return
        if self._is_withdrawn and isinstance(message, InterestAdded | SourceSeen | ForwardStart):
            return
        match message:
            case InterestAdded(symbol=symbol, pattern=pattern, domain_id=domain_id):
                key = (symbol, pattern)
                known = domain_id in sibling.interest[key]
                sibling.interest[key][domain_id] = incarnation
                if not known:
                    self._decide_receiver(key)
            case InterestRemoved(symbol=symbol, pattern=pattern, domain_id=domain_id):
                self._drop_interest(sibling, (symbol, pattern), domain_id)
            case SourceSeen():
                self._on_source_seen(worker, sibling, incarnation, message, now_ns)
            case SourceGone(handle=handle):
                self._drop_source(worker, sibling, handle, now_ns)
            case ForwardStart(handle=handle):
                self._own.forward(worker, handle, is_wanted=True)
            case ForwardStop(handle=handle):
                self._own.forward(worker, handle, is_wanted=False)
            case PortalHello() | ExchangeDone() | Withdraw() | Released() | Settle() | Settled():
                pass

    def _drop_interest(self, sibling: _Sibling, key: Symbol, domain_id: int) -> None:
        domains = sibling.interest.get(key)
        if domains is None or domains.pop(domain_id, None) is None:
            return
        if not domains:
            del sibling.interest[key]
        self._decide_receiver(key)

    def _on_source_seen(self, worker: int, sibling: _Sibling, incarnation: int, seen: SourceSeen, now_ns: int) -> None:
        if seen.hop_count >= MAX_HOPS:
            limited("hops", "source ignored: too many hops", extra={"topic": seen.topic.decode(errors="replace")})
            return
        for known_worker, known_handle in self._by_otid.get(seen.otid, ()):
            known, _ = self._siblings[known_worker].sources[known_handle]
            if (known.topic, known.domain_id) != (seen.topic, seen.domain_id):
                limited(
                    "otid",
                    "source ignored: its OTID is known under another topic or domain",
                    extra={"otid": seen.otid.hex(), "topic": seen.topic.decode(errors="replace")},
                )
                return
        before = sibling.sources.get(seen.handle)
        for known_worker, handle in list(self._by_otid.get(seen.otid, ())):
            if known_worker == worker and (handle == seen.handle or sibling.sources[handle][1] < incarnation):
                self._forget_source(worker, sibling, handle)
        sibling.sources[seen.handle] = (seen, incarnation)
        self._by_otid[seen.otid].add((worker, seen.handle))
        self._by_topic[seen.topic].add(seen.otid)
        self._decide_source(seen.otid, now_ns)
        proxy = self._proxies.get(seen.otid)
        if before is not None and before[0] != seen and proxy is not None and proxy.feeder == (worker, seen.handle):
            self._effects.append(UpdateProxySource(worker, seen))

    def _drop_source(self, worker: int, sibling: _Sibling, handle: int, now_ns: int) -> None:
        seen = self._forget_source(worker, sibling, handle)
        if seen is not None:
            self._decide_source(seen.otid, now_ns)

    def _forget_source(self, worker: int, sibling: _Sibling, handle: int) -> SourceSeen | None:
        entry = sibling.sources.pop(handle, None)
        if entry is None:
            return None
        seen = entry[0]
        feeders = self._by_otid[seen.otid]
        feeders.discard((worker, handle))
        if not feeders:
            del self._by_otid[seen.otid]
            otids = self._by_topic[seen.topic]
            otids.discard(seen.otid)
            if not otids:
                del self._by_topic[seen.topic]
        return seen

    # the drain of this portal, as `portals.endpoint.drain` orders it

    def withdraw(self) -> None:
        """From now on make nothing new, keep all proxies, and keep to yourself which own sources end."""
        self._is_withdrawn = True
        self._own.keep_ends()
        self._starving.clear()

    def close_receivers(self) -> None:
        """Close all proxy receivers, whoever wants them."""
        closing, self._proxy_receivers = self._proxy_receivers, {}
        for (symbol, pattern), domains in closing.items():
            self._effects.append(CloseProxyReceiver(symbol, pattern, tuple(sorted(domains))))

    def end_sources(self) -> None:
        """Tell the siblings of the end of all own sources, also of those that were kept from them."""
        self._own.end_all()

    def close_sources(self) -> None:
        """Close all proxy sources, whoever wants them."""
        self._starving.clear()
        for otid in self._proxies:
            self._effects.append(CloseProxySource(otid))
        self._proxies.clear()

    # decisions

    def _decide_receiver(self, key: Symbol) -> None:
        """Decisions 1 and 2: is a proxy receiver needed here, and for which domains?"""
        if self._is_withdrawn:
            return
        wanted = {
            domain_id
            for worker, sibling in self._siblings.items()
            for domain_id in sibling.interest.get(key, ())
            if (worker, domain_id) in self._inbound
        }
        if wanted and not self._access.may_ask(*key):
            self._refused.add(key)
            wanted = set()
        else:
            self._refused.discard(key)
        had = self._proxy_receivers.get(key)
        symbol, pattern = key
        if wanted and had is None:
            self._proxy_receivers[key] = wanted
            self._effects.append(OpenProxyReceiver(symbol, pattern, tuple(sorted(wanted))))
        elif not wanted and had is not None:
            del self._proxy_receivers[key]
            self._effects.append(CloseProxyReceiver(symbol, pattern, tuple(sorted(had))))
        elif had is not None and wanted != had:
            self._proxy_receivers[key] = wanted
            self._effects.append(
                UpdateProxyReceiver(symbol, pattern, tuple(sorted(wanted - had)), tuple(sorted(had - wanted)))
            )

    def _decide_source(self, otid: bytes, now_ns: int) -> None:
        """Decision 3: is a proxy source for this OTID needed here, and who feeds it?"""
        if self._is_withdrawn:
            return  # siblings end what they fed; what came before that stays until all of it has been sent
        proxy = self._proxies.get(otid)
        offers = self._by_otid.get(otid, ())
        if proxy is None and not offers:
            return
        topic, origin = self._identity(otid, proxy)
        interested = self._interested(topic)
        best: tuple[int, int, int, int] | None = None
        for worker, handle in offers:
            seen, _ = self._siblings[worker].sources[handle]
            if any(self._routes.get((origin, wanted)) == (worker, self._me) for wanted in interested):
                # a handle grows with time: of two offers of one sibling the newer one is the living one
                rank = (seen.cost, seen.hop_count, worker, -handle)
                if proxy is not None and proxy.feeder == (worker, handle):
                    rank = (-1, 0, worker, -handle)
                best = rank if best is None else min(best, rank)
        feeder = None if best is None else (best[2], -best[3])
        if proxy is None:
            if feeder is not None:
                self._proxies[otid] = _Proxy(topic, origin, feeder)
                self._effects.append(OpenProxySource(feeder[0], self._siblings[feeder[0]].sources[feeder[1]][0]))
                self._tell(feeder[0], ForwardStart(feeder[1]))
            return
        if feeder is not None and feeder == proxy.feeder:
            return
        if proxy.feeder is not None and proxy.feeder in offers:
            self._tell(proxy.feeder[0], ForwardStop(proxy.feeder[1]))
        if feeder is not None:
            proxy.feeder = feeder
            self._starving.pop(otid, None)
            self._effects.append(FeedProxySource(feeder[0], self._siblings[feeder[0]].sources[feeder[1]][0]))
            self._tell(feeder[0], ForwardStart(feeder[1]))
        elif not interested:
            del self._proxies[otid]
            self._starving.pop(otid, None)
            self._effects.append(CloseProxySource(otid))
        elif otid not in self._starving:
            proxy.feeder = None
            self._starving[otid] = now_ns + self._deletion_delay_ns
            self._effects.append(StarveProxySource(otid, self._starving[otid]))

    def _identity(self, otid: bytes, proxy: _Proxy | None) -> tuple[bytes, int]:
        if proxy is not None:
            return proxy.topic, proxy.domain_id
        worker, handle = next(iter(self._by_otid[otid]))
        seen, _ = self._siblings[worker].sources[handle]
        return seen.topic, seen.domain_id

    # time

    def next_deadline(self) -> int | None:
        deadlines = [x.stale_until_ns for x in self._siblings.values() if x.stale_until_ns is not None]
        deadlines += islice(self._starving.values(), 1)
        return min(deadlines, default=None)

    def on_timer(self, now_ns: int) -> None:
        for worker, sibling in self._siblings.items():
            if sibling.stale_until_ns is not None and sibling.stale_until_ns <= now_ns:
                sibling.stale_until_ns = None
                self._sweep(worker, sibling, now_ns)
        while self._starving:
            otid, delete_at_ns = next(iter(self._starving.items()))
            if delete_at_ns > now_ns:
                break
            del self._starving[otid]
            del self._proxies[otid]
            self._effects.append(CloseProxySource(otid))

    def _sweep(self, worker: int, sibling: _Sibling, now_ns: int) -> None:
        """Drop what only an older incarnation, or one that did not come back, had said."""
        current = sibling.incarnation if sibling.is_up else sibling.incarnation + 1
        for key, domains in list(sibling.interest.items()):
            for domain_id, incarnation in list(domains.items()):
                if incarnation < current:
                    self._drop_interest(sibling, key, domain_id)
        for handle, (_, incarnation) in list(sibling.sources.items()):
            if incarnation < current:
                self._drop_source(worker, sibling, handle, now_ns)

    # messages out

    @property
    def siblings(self) -> list[int]:
        """Those that can be talked to."""
        return [worker for worker, sibling in self._siblings.items() if sibling.is_up]

    def tell(self, worker: int, message: PortalMessage) -> None:
        """Send this after all that was decided before."""
        self._tell(worker, message)

    def _tell(self, worker: int, message: PortalMessage) -> None:
        if self._siblings[worker].is_up:
            self._effects.append(Tell(worker, message))

    def _tell_all(self, message: PortalMessage) -> None:
        for worker, sibling in self._siblings.items():
            if sibling.is_up:
                self._effects.append(Tell(worker, message))
