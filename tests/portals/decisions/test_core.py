"""Endpoint cores of one DRO joined by a list: who opens which proxy when, without processes or sockets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import permutations

import pytest

from dro.clock import ms, s
from dro.proto.interest.events import InterestGained, InterestLost
from portals.decisions.core import PortalCore
from portals.decisions.effects import (
    ChangeForwarding,
    CheckKnown,
    CloseProxyReceiver,
    CloseProxySource,
    DelayDeletion,
    Effect,
    ExpireQueue,
    FeedProxySource,
    GoOn,
    InterestIgnored,
    OpenProxyReceiver,
    OpenProxySource,
    ReadQueue,
    SendInitialState,
    SendToSibling,
    SourceIgnored,
    UpdateProxyReceiver,
    UpdateProxySource,
    WhyIgnored,
)
from portals.decisions.messages import (
    PATTERN_NONE,
    PATTERN_PCRE,
    ForwardStart,
    InterestAdded,
    PortalHello,
    SourceGone,
    SourceSeen,
    StateConfirmed,
)
from portals.decisions.routes import HELD_NS, LONGER_NS
from portals.decisions.siblings import REJOIN_HOLD_NS
from tests.builders.routes import whole
from tests.fakes.patterns import compile_pattern

OTID = bytes(range(32))
DELAY = ms(1000)


@dataclass
class Dro:
    """Portals 1..n, portal k in domain k; `seen[k]` is all that core k asked its shell to do but SendToSibling.

    What it asked for about the queues of siblings is in `queues[k]`.
    """

    portals: int
    now_ns: int = 0
    cores: dict[int, PortalCore] = field(default_factory=dict)
    incarnations: dict[int, int] = field(default_factory=dict)
    seen: dict[int, list[Effect]] = field(default_factory=dict)
    queues: dict[int, list[Effect]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for worker in range(1, self.portals + 1):
            self.start(worker)

    def start(self, worker: int) -> None:
        """Start an incarnation of a portal and introduce it to the others, both ways."""
        incarnation = self.incarnations.get(worker, 0) + 1
        self.incarnations[worker] = incarnation
        core = PortalCore(worker, incarnation, worker, source_deletion_delay_ns=DELAY, matcher=compile_pattern)
        self.cores[worker] = core
        self.seen[worker], self.queues[worker] = [], []
        core.on_routes(1, whole(self.routes()), self.now_ns)
        for other, there in self.cores.items():
            if other != worker:
                there.on_sibling_up(worker, incarnation, 0, 0, self.now_ns)
                core.on_sibling_up(other, self.incarnations[other], 0, 0, self.now_ns)
        self.settle()

    def kill(self, worker: int) -> None:
        del self.cores[worker]
        for core in self.cores.values():
            core.on_sibling_down(worker, self.now_ns)
        self.settle()

    def routes(self) -> list[tuple[int, int, int, int]]:
        return [(a, b, a, b) for a, b in permutations(range(1, self.portals + 1), 2)]

    def settle(self) -> None:
        moved = True
        while moved:
            moved = False
            for worker, core in list(self.cores.items()):
                for effect in core.take_effects():
                    moved = True
                    self._perform(worker, effect)

    def _perform(self, worker: int, effect: Effect) -> None:
        match effect:
            case SendToSibling(worker=to, message=message):
                if to in self.cores:
                    self.cores[to].on_message(worker, self.incarnations[worker], message, self.now_ns)
            case SendInitialState(worker=to, messages=messages):
                for told in messages:
                    if told is not None:
                        self._perform(worker, SendToSibling(to, told))
            case GoOn(steps=steps):
                for _ in steps:
                    pass
            case ReadQueue() | ExpireQueue():
                self.queues[worker].append(effect)
            case _:
                self.seen[worker].append(effect)

    def relearn(self) -> None:
        """All portals know their domains again."""
        for core in self.cores.values():
            core.on_relearnt(0)
        self.settle()

    def pass_time(self, duration_ns: int) -> None:
        end = self.now_ns + duration_ns
        while True:
            deadlines = [d for core in self.cores.values() if (d := core.next_deadline()) is not None and d <= end]
            if not deadlines:
                break
            self.now_ns = max(self.now_ns, min(deadlines))
            for core in self.cores.values():
                core.on_timer(self.now_ns)
            self.settle()
        self.now_ns = end

    def want(self, worker: int, symbol: bytes, pattern: int = PATTERN_NONE) -> None:
        self.cores[worker].on_interest(InterestGained((symbol, pattern), worker), self.now_ns)
        self.settle()

    def unwant(self, worker: int, symbol: bytes, pattern: int = PATTERN_NONE) -> None:
        self.cores[worker].on_interest(InterestLost((symbol, pattern), worker), self.now_ns)
        self.settle()

    def source(self, worker: int, topic: bytes, otid: bytes = OTID) -> int:
        handle = self.cores[worker].own.add(otid, topic, worker, 0, 0, b"")
        self.settle()
        return handle

    def take(self, worker: int) -> list[Effect]:
        effects, self.seen[worker] = self.seen[worker], []
        return effects


def test_interest_opens_a_proxy_receiver_at_every_other_portal_and_nowhere_else() -> None:
    dro = Dro(4)
    dro.want(2, b"AAA")
    for worker in (1, 3, 4):
        assert dro.take(worker) == [OpenProxyReceiver(b"AAA", 0, (2,))]
    assert dro.take(2) == []
    dro.want(3, b"AAA")
    assert dro.take(1) == [UpdateProxyReceiver(b"AAA", 0, (3,), ())]
    assert dro.take(2) == [OpenProxyReceiver(b"AAA", 0, (3,))]


def test_a_source_becomes_a_proxy_source_only_where_it_is_wanted() -> None:
    dro = Dro(3)
    dro.want(2, b"AAA")
    dro.take(1)
    handle = dro.source(1, b"AAA")
    assert [type(e) for e in dro.take(2)] == [OpenProxySource]
    assert dro.take(3) == [OpenProxyReceiver(b"AAA", 0, (2,))]
    assert dro.take(1) == [ChangeForwarding(handle, (2,))]
    dro.want(3, b"AAA")
    assert dro.take(1) == [UpdateProxyReceiver(b"AAA", 0, (3,), ()), ChangeForwarding(handle, (2, 3))]


def test_removed_interest_takes_all_proxies_away_at_once() -> None:
    dro = Dro(2)
    dro.want(2, b"AAA")
    handle = dro.source(1, b"AAA")
    dro.take(1)
    dro.take(2)
    dro.unwant(2, b"AAA")
    assert dro.take(2) == [CloseProxySource(OTID)]
    assert dro.take(1) == [CloseProxyReceiver(b"AAA", 0, (2,)), ChangeForwarding(handle, ())]


def test_a_source_that_ends_is_deleted_after_the_delay_and_survives_a_return_before_it() -> None:
    dro = Dro(2)
    dro.want(2, b"AAA")
    handle = dro.source(1, b"AAA")
    dro.take(2)
    dro.cores[1].own.end(handle)
    dro.settle()
    assert dro.take(2) == [DelayDeletion(OTID, DELAY)]
    dro.pass_time(DELAY - 1)
    dro.source(1, b"AAA")
    assert [type(e) for e in dro.take(2)] == [FeedProxySource]
    dro.pass_time(s(60))
    assert dro.take(2) == []


def test_a_source_that_stays_away_is_closed_when_the_delay_is_over() -> None:
    dro = Dro(2)
    dro.want(2, b"AAA")
    dro.cores[1].own.end(dro.source(1, b"AAA"))
    dro.settle()
    dro.take(2)
    dro.pass_time(DELAY - 1)
    assert dro.take(2) == []
    dro.pass_time(1)
    assert dro.take(2) == [CloseProxySource(OTID)]


def test_what_changes_meanwhile_does_not_put_a_deletion_off() -> None:
    dro = Dro(3)
    dro.want(2, b"AAA")
    dro.cores[1].own.end(dro.source(1, b"AAA"))
    dro.settle()
    dro.take(2)
    dro.pass_time(DELAY - 1)
    dro.want(3, b"AAA")
    dro.cores[2].on_routes(2, [], dro.now_ns)
    dro.settle()
    dro.pass_time(1)
    assert dro.take(2)[-1] == CloseProxySource(OTID)


def test_a_pattern_takes_matching_topics_and_leaves_those_that_a_topic_still_needs() -> None:
    dro = Dro(2)
    dro.want(2, b"^AA", PATTERN_PCRE)
    for number, topic in enumerate((b"AAA", b"AAB", b"BBB")):
        dro.source(1, topic, bytes([number]) * 32)
    assert [e.source.topic for e in dro.take(2) if isinstance(e, OpenProxySource)] == [b"AAA", b"AAB"]
    dro.want(2, b"AAA")
    dro.unwant(2, b"^AA", PATTERN_PCRE)
    assert dro.take(2) == [CloseProxySource(b"\x01" * 32)]


def test_a_bad_pattern_changes_nothing() -> None:
    dro = Dro(2)
    dro.want(2, b"*(", PATTERN_PCRE)
    assert dro.take(1) == []


def test_three_sources_of_one_topic_are_three_proxy_sources_behind_one_proxy_receiver() -> None:
    dro = Dro(2)
    dro.want(2, b"AAA")
    for number in range(3):
        dro.source(1, b"AAA", bytes([number]) * 32)
    assert len([e for e in dro.take(2) if isinstance(e, OpenProxySource)]) == 3
    assert len([e for e in dro.take(1) if isinstance(e, OpenProxyReceiver)]) == 1


def test_nothing_is_done_before_the_first_route_table() -> None:
    core = PortalCore(1, 1, 1, source_deletion_delay_ns=DELAY, matcher=compile_pattern)
    core.on_sibling_up(2, 1, 0, 0, 0)
    core.take_effects()
    from portals.decisions.messages import InterestAdded

    core.on_message(2, 1, InterestAdded(b"AAA", 0, 2), 0)
    assert core.take_effects() == []
    core.on_routes(1, whole([(1, 2, 1, 2)]), 0)
    assert core.take_effects() == [OpenProxyReceiver(b"AAA", 0, (2,))]


@pytest.mark.parametrize("dead", [1, 2])
def test_a_portal_that_died_and_returns_gets_the_flow_back(dead: int) -> None:
    """1 has the source, 2 the receiver; 3 forwards something else between itself and the survivor undisturbed."""
    dro = Dro(3)
    dro.want(2, b"AAA")
    before = dro.source(1, b"AAA")
    dro.want(3, b"AAA")
    dro.kill(dead)
    dro.take(3 - dead)
    dro.take(3)
    dro.start(dead)
    if dead == 1:
        handle = dro.source(1, b"AAA")
        assert handle == before, "it is named by the siblings"
        assert dro.take(2) == dro.take(3) == []
        assert ChangeForwarding(handle, (2, 3)) in dro.take(1)
    else:
        dro.want(2, b"AAA")
        assert [type(e) for e in dro.take(2) if isinstance(e, OpenProxySource)] == [OpenProxySource]
        assert dro.take(3) == []
        assert dro.take(1) == [], "it has got the fragments all the time"
    dro.pass_time(s(10))
    assert [e for e in dro.take(3) if isinstance(e, DelayDeletion | CloseProxySource)] == []


def test_a_portal_that_does_not_return_is_forgotten_after_the_hold() -> None:
    dro = Dro(3)
    dro.want(2, b"AAA")
    handle = dro.source(1, b"AAA")
    dro.take(1)
    dro.kill(2)
    dro.pass_time(REJOIN_HOLD_NS - 1)
    assert dro.take(1) == []
    dro.pass_time(1)
    effects = dro.take(1)
    assert CloseProxyReceiver(b"AAA", 0, (2,)) in effects
    assert ChangeForwarding(handle, ()) in effects, "until then its queue has got what it wanted"
    assert dro.queues[1][-1] == ExpireQueue(2)
    dro.start(2)
    assert ExpireQueue(2) not in dro.queues[1][-1:]


def test_a_known_otid_under_another_topic_is_ignored() -> None:
    dro = Dro(2)
    dro.want(2, b"AAA")
    dro.want(2, b"BBB")
    dro.source(1, b"AAA")
    dro.take(2)
    dro.source(1, b"BBB")
    assert dro.take(2) == [SourceIgnored(WhyIgnored.OTID_IS_KNOWN, OTID, b"BBB")]


def test_a_source_that_nobody_wanted_goes_without_a_trace() -> None:
    dro = Dro(2)
    dro.cores[1].own.end(dro.source(1, b"AAA"))
    dro.settle()
    assert dro.take(2) == []
    assert dro.cores[2].siblings.by_topic == {}
    assert dro.cores[2].next_deadline() is None


def test_a_source_with_255_hops_gets_no_proxy_source() -> None:
    dro = Dro(2)
    dro.want(2, b"AAA")
    dro.cores[1].own.add(OTID, b"AAA", 1, 255, 0, b"")
    dro.settle()
    assert dro.take(2) == [SourceIgnored(WhyIgnored.TOO_MANY_HOPS, OTID, b"AAA")]


@pytest.mark.parametrize("name", [b"", b"a\0b", bytes(247)])
def test_interest_in_what_cannot_be_a_name_is_ignored(name: bytes) -> None:
    dro = Dro(2)
    dro.want(2, name)
    assert dro.take(2) == [InterestIgnored(name)]
    assert dro.take(1) == []


# (cost, hops) of the offers of siblings 1 and 3; portal 2 takes the one of
PREFERENCES = [
    ((5, 1), (5, 2), 1),
    ((5, 2), (5, 1), 3),
    ((5, 9), (6, 1), 1),
    ((6, 1), (5, 9), 3),
    ((5, 1), (5, 1), 1),
]


@pytest.mark.parametrize(("first", "third", "taken"), PREFERENCES)
@pytest.mark.parametrize("order", [(1, 3), (3, 1)])
def test_the_lowest_cost_decides_then_the_fewest_hops_then_the_lowest_sibling(
    first: tuple[int, int], third: tuple[int, int], taken: int, order: tuple[int, int]
) -> None:
    core = PortalCore(2, 1, 2, source_deletion_delay_ns=DELAY, matcher=compile_pattern)
    core.on_routes(1, whole([(1, 2, 1, 2), (1, 22, 3, 2)]), 0)
    for sibling in order:
        cost, hops = {1: first, 3: third}[sibling]
        core.on_sibling_up(sibling, 1, 0, 0, 0)
        core.on_message(sibling, 1, SourceSeen(7, OTID, b"AAA", 1, hops, cost, b""), 0)
    core.take_effects()
    for domain in (2, 22):  # of the first alone the offer of 1 can be used; it is taken, and kept
        core.on_interest(InterestGained((b"AAA", PATTERN_NONE), domain), 0)
    assert [e.worker for e in core.take_effects() if isinstance(e, OpenProxySource | FeedProxySource)] == [1]
    core.on_routes(2, [], 0)
    core.on_timer(HELD_NS)
    core.on_routes(3, whole([(1, 2, 1, 2), (1, 22, 3, 2)]), HELD_NS)
    assert [e.worker for e in core.take_effects() if isinstance(e, FeedProxySource)] == [taken]


def test_of_two_offers_of_one_sibling_the_newer_is_taken() -> None:
    core = PortalCore(2, 1, 2, source_deletion_delay_ns=DELAY, matcher=compile_pattern)
    core.on_routes(1, whole([(1, 2, 1, 2)]), 0)
    core.on_sibling_up(1, 1, 0, 0, 0)
    for handle in (8, 9, 7):
        core.on_message(1, 1, SourceSeen(handle, OTID, b"AAA", 1, 0, 0, b""), 0)
    core.on_interest(InterestGained((b"AAA", PATTERN_NONE), 2), 0)
    assert [e.source.handle for e in core.take_effects() if isinstance(e, OpenProxySource)] == [9]


def test_a_full_exchange_of_many_sources_takes_time_in_proportion() -> None:
    """Guards against a look at all sources for each one: 20000 of them took minutes."""
    core = PortalCore(2, 1, 2, source_deletion_delay_ns=DELAY, matcher=compile_pattern)
    core.on_routes(1, whole([(1, 2, 1, 2)]), 0)
    core.on_sibling_up(1, 1, 0, 0, 0)
    core.on_interest(InterestGained((b".", PATTERN_PCRE), 2), 0)
    for life in (1, 2):
        core.on_sibling_up(1, life, 0, 0, 0)
        for i in range(20_000):
            core.on_message(1, life, SourceSeen(life << 24 | i, i.to_bytes(32, "big"), b"%d" % i, 1, 0, 0, b""), 0)
            core.next_deadline()
    opened = [e for e in core.take_effects() if isinstance(e, OpenProxySource | FeedProxySource)]
    assert len(opened) == 40_000
    core.on_message(1, 2, StateConfirmed(), 0)
    for effect in core.take_effects():
        for _ in effect.steps if isinstance(effect, GoOn) else ():
            pass
    assert (len(core.proxies), len(core.siblings.otids)) == (20_000, 20_000)


@dataclass
class Alone:
    """The core of portal 1 in domain 1, with siblings 2 and 3 of which only messages are seen."""

    core: PortalCore = field(
        default_factory=lambda: PortalCore(1, 1, 1, source_deletion_delay_ns=DELAY, matcher=compile_pattern)
    )

    def __post_init__(self) -> None:
        self.core.on_routes(5, whole([(a, b, a, b) for a, b in permutations((1, 2, 3), 2)]), 0)
        for worker in (2, 3):
            self.core.on_sibling_up(worker, 4, 0, 0, 0)
        self.core.take_effects()

    def wants(self, *symbols: bytes, worker: int = 2, incarnation: int = 4) -> None:
        for symbol in symbols:
            self.core.on_message(worker, incarnation, InterestAdded(symbol, PATTERN_NONE, worker), 0)

    def offers(self, handle: int, topic: bytes, worker: int = 2, cost: int = 0, incarnation: int = 4) -> SourceSeen:
        seen = SourceSeen(handle, topic.ljust(32), topic, worker, 0, cost, b"")
        self.core.on_message(worker, incarnation, seen, 0)
        return seen


def test_an_older_route_table_and_one_that_says_the_same_change_nothing() -> None:
    alone = Alone()
    alone.wants(b"AAA")
    alone.core.take_effects()
    for version in (4, 5):
        alone.core.on_routes(version, [], 0)
        assert alone.core.take_effects() == []
        assert alone.core.next_deadline() is None
    alone.core.on_routes(6, [], 0)
    assert alone.core.take_effects() == []
    alone.core.on_timer(HELD_NS + LONGER_NS)
    assert alone.core.take_effects() == [CloseProxyReceiver(b"AAA", PATTERN_NONE, (2,))]


def test_a_sibling_that_comes_up_once_more_gets_nothing_again() -> None:
    core = Alone().core
    for incarnation in (4, 3):
        core.on_sibling_up(2, incarnation, 0, 0, 0)
        assert core.take_effects() == []
    core.on_sibling_up(2, 5, 8, 9, 0)
    hello, everything = core.take_effects()
    assert hello == SendToSibling(2, PortalHello(1, 1, 8, 9))
    assert isinstance(everything, SendInitialState)
    core.on_relearnt(0)
    assert core.take_effects() == [CheckKnown(), *(SendToSibling(worker, StateConfirmed()) for worker in (2, 3))]
    core.on_sibling_up(2, 6, 8, 9, 0)
    assert core.take_effects()[-1] == SendToSibling(2, StateConfirmed()), "to those that come later at once"


def test_a_sibling_that_is_removed_while_it_is_up_is_forgotten_at_once() -> None:
    alone = Alone()
    alone.core.on_interest(InterestGained((b"BBB", PATTERN_NONE)), 0)
    alone.wants(b"AAA")
    seen = alone.offers(1, b"BBB")
    alone.core.take_effects()
    alone.core.on_sibling_removed(2, 0)
    assert alone.core.take_effects() == [
        CloseProxyReceiver(b"AAA", PATTERN_NONE, (2,)),
        DelayDeletion(seen.otid, DELAY),
    ]
    assert alone.core.siblings.up == [3]
    assert (alone.core.siblings.symbols, alone.core.siblings.by_topic) == (set(), {})
    assert alone.core.next_deadline() == DELAY
    alone.core.on_timer(DELAY - 1)
    assert alone.core.take_effects() == []
    alone.core.on_timer(DELAY)
    assert alone.core.take_effects() == [CloseProxySource(seen.otid)]
    assert (alone.core.next_deadline(), alone.core.proxies) == (None, {})


def test_what_a_sibling_says_before_it_is_known_to_be_up_is_used_but_not_answered() -> None:
    alone = Alone()
    alone.core.on_interest(InterestGained((b"AAA", PATTERN_NONE)), 0)
    alone.core.take_effects()
    alone.core.on_routes(6, whole([(9, 1, 9, 1)]), 0)
    seen = alone.offers(1, b"AAA", worker=9)
    assert alone.core.take_effects() == [OpenProxySource(9, seen)]
    assert not alone.core.siblings.is_up(9)
    assert alone.core.siblings.up == [2, 3]


def test_reports_are_held_for_three_seconds_and_those_of_the_next_life_stay() -> None:
    alone = Alone()
    alone.wants(b"old", b"both")
    alone.core.on_sibling_down(2, 100)
    alone.wants(b"both", b"new", incarnation=5)
    alone.core.take_effects()
    assert alone.core.next_deadline() == 100 + s(3) == 100 + REJOIN_HOLD_NS
    alone.core.on_timer(100 + s(3) - 1)
    assert alone.core.take_effects() == []
    alone.core.on_timer(100 + s(3))
    assert alone.core.take_effects() == [ExpireQueue(2), CloseProxyReceiver(b"old", PATTERN_NONE, (2,))]
    assert alone.core.siblings.symbols == {(b"both", PATTERN_NONE), (b"new", PATTERN_NONE)}
    assert alone.core.next_deadline() is None
    alone.wants(b"late")
    alone.core.on_sibling_up(2, 5, 0, 0, 0)
    alone.core.take_effects()
    alone.wants(b"later", incarnation=4)
    assert alone.core.take_effects() == [], "of a life that is over"


def test_a_changed_offer_is_told_only_to_the_proxy_source_that_it_feeds() -> None:
    alone = Alone()
    alone.core.on_interest(InterestGained((b"AAA", PATTERN_NONE)), 0)
    alone.offers(1, b"AAA")
    alone.offers(1, b"BBB", worker=3)
    alone.core.take_effects()
    changed = alone.offers(1, b"AAA", cost=3)
    assert alone.core.take_effects() == [UpdateProxySource(2, changed)]
    alone.offers(1, b"AAA", cost=3)
    alone.offers(2, b"AAA", cost=2)
    alone.offers(1, b"BBB", worker=3, cost=3)
    assert alone.core.take_effects() == []


def test_after_the_end_of_its_sources_nobody_is_forwarded_anything() -> None:
    core = Alone().core
    handle = core.own.add(OTID, b"AAA", 1, 0, 0, b"")
    core.on_message(2, 4, ForwardStart(handle), 0)
    core.end_sources()
    core.take_effects()
    core.on_sibling_down(2, 0)
    assert core.take_effects() == []


def test_closed_proxies_are_not_closed_again() -> None:
    alone = Alone()
    alone.core.on_interest(InterestGained((b"AAA", PATTERN_NONE)), 0)
    seen = alone.offers(1, b"AAA")
    alone.wants(b"BBB")
    alone.core.withdraw()
    alone.core.take_effects()
    for expected in ([CloseProxyReceiver(b"BBB", PATTERN_NONE, (2,)), CloseProxySource(seen.otid)], []):
        alone.core.close_receivers()
        alone.core.close_sources()
        assert alone.core.take_effects() == expected
        assert (alone.core.proxies, alone.core.proxy_receivers) == ({}, {})


def test_interest_that_goes_leaves_nothing_behind() -> None:
    alone = Alone()
    for symbol in ((b"AAA", PATTERN_NONE), (b"A.*", PATTERN_PCRE)):
        alone.core.on_interest(InterestGained(symbol), 0)
        alone.core.on_interest(InterestLost(symbol), 0)
        alone.core.take_effects()
        alone.core.on_interest(InterestLost(symbol), 0)
    alone.offers(1, b"AAA")
    assert (alone.core.recorded.domains, alone.core.take_effects()) == ({}, [])


def searching(alone: Alone) -> list[tuple[bytes, bytes]]:
    """(pattern, topic) of each search from now on; every pattern is a prefix."""
    searched: list[tuple[bytes, bytes]] = []

    def compile_prefix(pattern: bytes, kind: int) -> Callable[[bytes], bool]:
        def search(topic: bytes) -> bool:
            searched.append((pattern, topic))
            return topic.startswith(pattern)

        return search

    alone.core.recorded._compile = compile_prefix
    return searched


def test_a_pattern_is_searched_once_in_each_topic_that_is_offered() -> None:
    alone = Alone()
    searched = searching(alone)
    for pattern in (b"A", b"B"):
        alone.core.on_interest(InterestGained((pattern, PATTERN_PCRE)), 0)
    seen = alone.offers(1, b"AA")
    assert searched == [(b"A", b"AA"), (b"B", b"AA")]
    searched.clear()
    alone.core.on_message(3, 4, seen, 0)
    alone.core.on_message(2, 4, SourceGone(1), 0)
    alone.core.on_routes(6, whole([(2, 1, 3, 1)]), 0)
    alone.core.on_routes(7, [], 0)
    alone.core.on_interest(InterestLost((b"B", PATTERN_PCRE)), 0)
    assert searched == []
    alone.core.on_interest(InterestGained((b"AA", PATTERN_PCRE)), 0)
    assert searched == [(b"AA", b"AA")], "what is new is searched for"
    alone.core.on_message(3, 4, SourceGone(1), 0)
    searched.clear()
    alone.offers(2, b"AA")
    assert searched == [(b"A", b"AA"), (b"AA", b"AA")], "nothing is remembered of a topic that was gone"


def test_what_patterns_found_goes_with_the_topic_and_with_the_pattern() -> None:
    alone = Alone()
    alone.core.on_interest(InterestGained((b"A", PATTERN_PCRE)), 0)
    alone.offers(1, b"AA")
    alone.core.on_interest(InterestGained((b".A", PATTERN_PCRE)), 0)
    alone.core.take_effects()
    alone.core.on_interest(InterestLost((b"A", PATTERN_PCRE)), 0)
    assert [e for e in alone.core.take_effects() if isinstance(e, CloseProxySource)] == [], "the other one wants it"
    alone.core.on_interest(InterestLost((b".A", PATTERN_PCRE)), 0)
    assert [type(e) for e in alone.core.take_effects() if not isinstance(e, SendToSibling)] == [CloseProxySource]
    alone.core.on_message(2, 4, SourceGone(1), 0)
    recorded = alone.core.recorded
    assert (recorded._finders, [topics for topics in recorded._found.values() if topics]) == ({}, [])


def test_a_sibling_that_is_released_gets_nothing_more_and_wants_nothing() -> None:
    alone = Alone()
    handle = alone.core.own.add(OTID, b"AAA", 1, 0, 0, b"")
    alone.core.on_message(2, 4, ForwardStart(handle), 0)
    alone.wants(b"AAA")
    alone.core.take_effects()
    alone.core.on_forwarding_stopped(2)
    assert alone.core.take_effects() == [
        ChangeForwarding(handle, ()),
        CloseProxyReceiver(b"AAA", PATTERN_NONE, (2,)),
    ]


def test_a_proxy_source_that_was_fed_anew_follows_its_new_feeder() -> None:
    alone = Alone()
    alone.core.on_routes(6, whole([(2, 1, worker, 1) for worker in (3,)] + [(3, 1, 3, 1)]), 0)
    alone.core.on_timer(HELD_NS + LONGER_NS)
    alone.core.on_interest(InterestGained((b"AAA", PATTERN_NONE)), 0)
    first = alone.offers(1, b"AAA", worker=3)
    alone.core.on_message(3, 4, SourceGone(1), 0)
    alone.core.take_effects()
    again = alone.offers(2, b"AAA", worker=3)
    assert alone.core.take_effects() == [FeedProxySource(3, again), SendToSibling(3, ForwardStart(2))]
    assert alone.core.next_deadline() is None
    alone.core.on_message(3, 4, SourceGone(2), 0)
    assert alone.core.take_effects() == [DelayDeletion(first.otid, DELAY)]
