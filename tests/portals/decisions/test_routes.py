"""Route tables by sets of source domains, against a model that looks at each pair of domains."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import combinations, permutations
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dro.bus.messages import Route
from dro.clock import ms, s
from dro.shares import ALL_SHARES
from portals.decisions import routes as module
from portals.decisions.core import AT_ONCE, PortalCore
from portals.decisions.routes import HELD_NS, LONGER_NS, Changes, Changing, Routes, held_ns
from tests.bench.route_tables import longest_ns, memory_bytes, portal, transit_table, turns

ME = 1
EVEN, ODD = 0x5555555555555555, 0xAAAAAAAAAAAAAAAA
ORIGINS, WANTED = (11, 12, 13, 14), (21, 22, 23)
Path = tuple[int, int]
Way = tuple[int, int, int]  # ingress, egress, trees
Ways = dict[Path, dict[Path, int]]  # by pair of domains and (ingress, egress): trees


def at_once(steps: Changing) -> Changes:
    while True:
        try:
            next(steps)
        except StopIteration as e:
            changes: Changes = e.value
            return changes


@dataclass
class Before:
    until_ns: int
    ways: Ways
    inbound: set[Path]
    carried: dict[int, int]


@dataclass
class ByPairs:
    """The model."""

    ways: Ways = field(default_factory=dict)
    before: list[Before] = field(default_factory=list)
    version: int = 0
    least: int = 1
    now: tuple[set[Path], dict[int, int]] = field(default_factory=lambda: (set(), {}))
    is_divided: bool = False
    is_reviewed: bool = True

    def entering(self) -> set[Path]:
        return {(way[1], wanted) for (_, wanted), ways in self.ways.items() for way in ways if way[0] == ME}

    def carried(self) -> dict[int, int]:
        found: defaultdict[int, int] = defaultdict(int)
        for (origin, _), ways in self.ways.items():
            for (ingress, _), shares in ways.items():
                if ingress == ME:
                    found[origin] |= shares
        return dict(found)

    def leaving(self, pair: Path) -> dict[Path, int]:
        return {way: shares for way, shares in self.ways.get(pair, {}).items() if way[1] == ME}

    def change(self, version: int, routes: Iterable[Route], now_ns: int, topics: int = 0) -> Changes:
        if version < self.least:
            return set(), set()
        self.version, self.least = version, version + 1
        pairs = {(origin, wanted) for origin in ORIGINS for wanted in WANTED}
        had = {pair: self.leaving(pair) for pair in pairs}
        entering, carried = self.entering(), self.carried()
        self.ways = {}
        for route in routes:
            for origin in route.source_domains:
                ways = self.ways.setdefault((origin, route.interested_domain), {})
                ways[route.ingress, route.egress] = route.shares
        has = {pair: self.leaving(pair) for pair in pairs}
        off = {
            pair: {way: lost for way, shares in had[pair].items() if (lost := shares & ~has[pair].get(way, 0))}
            for pair in pairs
        }
        off = {pair: ways for pair, ways in off.items() if ways}
        ended = {origin: shares & ~self.carried().get(origin, 0) for origin, shares in carried.items()}
        if off or entering - self.entering() or any(ended.values()):
            self.before.append(Before(now_ns + held_ns(topics), off, entering - self.entering(), ended))
        was_divided, self.is_divided = self.is_divided, any(t != ALL_SHARES for t in self.carried().values())
        self.is_reviewed = self.is_reviewed and was_divided == self.is_divided
        return self.enter(), {pair[0] for pair in pairs if had[pair] != has[pair]}

    def enter(self) -> set[Path]:
        inbound, carried = self.entering(), self.carried()
        for before in self.before:
            inbound |= before.inbound
            carried |= {origin: carried.get(origin, 0) | shares for origin, shares in before.carried.items()}
        self.is_reviewed = self.is_reviewed and (carried == self.now[1] or not self.is_divided)
        moved = inbound ^ self.now[0]
        self.now = inbound, carried
        return moved

    def forget(self, now_ns: int) -> Changes:
        over = [before for before in self.before if before.until_ns <= now_ns]
        origins = {origin for before in over for origin, _ in before.ways}
        for before in over:
            before.ways = {}
        self.before = [before for before in self.before if before.until_ns + LONGER_NS > now_ns]
        return self.enter(), origins

    def drop(self) -> Changes:
        version = self.version
        moved, origins = self.change(self.least, (), 0)
        self.version = self.least = version
        others, more = self.forget(1 << 63)
        return moved ^ others, origins | more

    def feeders(self, ways: Ways, origin: int, interested: Iterable[int], share: int) -> set[int]:
        found = [way for wanted in interested for way in ways.get((origin, wanted), {}).items()]
        return {ingress for (ingress, egress), shares in found if egress == ME and shares & share}


WHOLE = object()
WORKERS = list(permutations((ME, 2, 3), 2))
CHOICES: list[tuple[Way, ...]] = [
    *(((*one, ALL_SHARES),) for one in WORKERS),
    *(((*one, half),) for one in WORKERS for half in (EVEN, ODD)),
    *(((*one, EVEN), (*other, ODD)) for one, other in permutations(WORKERS, 2)),
]


@st.composite
def tables(draw: st.DrawFn) -> tuple[Route, ...]:
    """No two routes of a pair hold for the same tree; some have their source domains in one object."""
    few = draw(st.lists(st.sampled_from(CHOICES), min_size=1, max_size=3))
    sources: defaultdict[tuple[int, Way], list[int]] = defaultdict(list)
    for wanted in WANTED:
        for origin in ORIGINS:
            for way in draw(st.sampled_from([(), *few])):
                sources[wanted, way].append(origin)
    same: dict[tuple[int, ...], tuple[int, ...]] = {}
    if draw(st.booleans()):
        return tuple(Route(same.setdefault(tuple(o), tuple(o)), w, *way) for (w, way), o in sources.items())
    return tuple(Route((origin,), w, *way) for (w, way), found in sources.items() for origin in found)


OPERATIONS = st.one_of(
    st.tuples(st.just("change"), tables(), st.sampled_from((0, 5000))),
    st.tuples(st.just("overtaken"), tables(), tables(), st.integers(1, 4)),
    st.tuples(st.just("stale"), tables()),
    st.tuples(st.just("wait"), st.sampled_from((ms(400), HELD_NS, s(20)))),
    st.tuples(st.just("drop")),
)


def assert_same(routes: Routes, model: ByPairs) -> None:
    assert (routes.version, routes.inbound, routes.is_divided) == (model.version, model.now[0], model.is_divided)
    deadlines = [before.until_ns + LONGER_NS * (not before.ways) for before in model.before]
    assert routes.next_deadline() == min(deadlines, default=None)
    for origin in ORIGINS:
        arrivals = {ingress for wanted in WANTED for ingress, _ in model.leaving((origin, wanted))}
        assert {worker for worker in (2, 3) if routes.leaves(origin, worker)} == arrivals
        for share in (1, 2):
            assert routes.carries(origin, share) == bool(model.now[1].get(origin, 0) & share)
            for interested in (some for count in (0, 1, 3) for some in combinations(WANTED, count)):
                feeders = model.feeders(model.ways, origin, interested, share)
                held = [model.feeders(before.ways, origin, interested, share) for before in model.before]
                assert routes.feeders(origin, interested, share) == feeders
                assert routes.held(origin, interested, share) == set().union(*held)


@given(st.lists(OPERATIONS, max_size=8))
def test_sets_of_domains_say_what_pairs_say(operations: list[tuple[object, ...]]) -> None:
    routes, model, now_ns = Routes(ME), ByPairs(), 0
    for operation in operations:
        version = model.least
        match operation:
            case "change", tuple(table), int(topics):
                assert at_once(routes.change(version, table, now_ns, topics)) == model.change(
                    version, table, now_ns, topics
                )
            case "overtaken", tuple(first), tuple(second), int(count):
                with patch.object(module, "_STEP", 1):
                    steps = routes.change(version, first, now_ns)
                    is_whole = WHOLE in [next(steps, WHOLE) for _ in range(count)]
                    if is_whole:
                        model.change(version, first, now_ns)
                    changes = at_once(routes.change(version + 1, second, now_ns))
                    assert changes == model.change(version + 1, second, now_ns)
                    assert is_whole or at_once(steps) == (set(), set())
            case "stale", tuple(table):
                assert at_once(routes.change(version - 1, table, now_ns)) == model.change(version - 1, table, now_ns)
            case "wait", int(ns):
                now_ns += ns
                assert routes.forget(now_ns) == model.forget(now_ns)
            case ("drop",):
                assert routes.drop() == model.drop()
        assert_same(routes, model)
        if now_ns % s(1):
            assert routes.take_review() != model.is_reviewed
            model.is_reviewed = True


THOUSAND = 1000


@pytest.fixture
def core() -> PortalCore:
    return portal()


def test_no_turn_is_long_with_a_thousand_domains() -> None:
    """Half of them on either side: half a million pairs."""
    assert longest_ns(THOUSAND) < ms(20)


def test_a_table_of_a_thousand_domains_takes_a_megabyte() -> None:
    kept, most = memory_bytes(THOUSAND)
    assert kept <= most < 1 << 20


def test_a_table_counts_when_all_of_it_has_been_compared(core: PortalCore) -> None:
    deque(turns(core, transit_table(THOUSAND).routes), maxlen=0)
    taking = turns(core, [Route((1, 2), d, ME, 2) for d in range(501, 501 + 2 * AT_ONCE * module._STEP)])
    next(taking)
    assert core.routes.feeders(999, [1], 1) == {2}
    assert (2, THOUSAND + 1) not in core.routes.inbound
    deque(taking, maxlen=0)
    assert core.routes.feeders(999, [1], 1) == set()
    assert core.routes.held(999, [1], 1) == {2}
    assert (2, THOUSAND + 1) in core.routes.inbound


def test_a_newer_table_replaces_one_that_is_being_compared(core: PortalCore) -> None:
    first = turns(core, [Route((1,), d, 2, ME) for d in range(10, 10 + 2 * AT_ONCE * module._STEP)])
    next(first)
    deque(turns(core, [Route((1,), 2, 3, ME)]), maxlen=0)
    deque(first, maxlen=0)
    assert core.routes.feeders(1, range(2, 100), 1) == {3}
    assert core.routes.version == 2


def test_routes_are_forgotten_while_a_table_is_being_compared(core: PortalCore) -> None:
    """It may hold for a link that is gone."""
    taking = turns(core, [Route((1,), d, 2, ME) for d in range(10, 10 + 2 * AT_ONCE * module._STEP)])
    next(taking)
    core.forget_routes(0)
    deque(taking, maxlen=0)
    assert core.routes.feeders(1, range(10, 100), 1) == set()
