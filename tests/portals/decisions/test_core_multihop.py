"""A core whose DRO is one of many: sources and receivers in domains of others, routes that change, peer portals."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dro.bus import messages
from dro.clock import ms
from dro.proto.interest.events import InterestGained, InterestLost
from dro.shares import share_of
from portals.decisions.core import AT_ONCE, PortalCore
from portals.decisions.effects import (
    CloseProxyReceiver,
    CloseProxySource,
    DelayDeletion,
    Effect,
    FeederEnded,
    FeedProxySource,
    GoOn,
    OpenProxyReceiver,
    OpenProxySource,
    ReviewSources,
    SendToSibling,
    SourceIgnored,
    UpdateProxyReceiver,
)
from portals.decisions.messages import (
    PATTERN_NONE,
    ForwardStart,
    ForwardStop,
    InterestAdded,
    InterestRemoved,
    KnownProxy,
    SourceGone,
    SourceSeen,
)
from portals.decisions.routes import HELD_EACH_NS, HELD_NS, LONGER_NS, MANY
from portals.decisions.source_deletion_delay import FED_NS, SOON_NS
from tests.builders.routes import whole
from tests.fakes.patterns import compile_pattern

ME = 1
HERE = 10  # the domain of this portal, when it has one
LEFT, RIGHT = 2, 3  # its siblings
FAR, FARTHER = 50, 51  # domains of sources, beyond the siblings
END, OTHER_END = 60, 61  # domains of receivers, beyond this portal
OTID = bytes(range(32))
DELAY = ms(100)
AAA = (b"AAA", PATTERN_NONE)
Route = tuple[int, int, int, int]


def offer(handle: int, cost: int = 5, otid: bytes = OTID, topic: bytes = b"AAA", domain_id: int = FAR) -> SourceSeen:
    return SourceSeen(handle, otid, topic, domain_id, 2, cost, b"")


@dataclass
class Transit:
    """The core of portal 1; siblings 2 and 3 are only messages."""

    domain_id: int
    now_ns: int = 0
    version: int = 0
    done: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core = PortalCore(ME, 1, self.domain_id, source_deletion_delay_ns=DELAY, matcher=compile_pattern)
        for sibling in (LEFT, RIGHT):
            self.core.on_sibling_up(sibling, 1, 0, 0, 0)
        self.core.take_effects()

    def take(self) -> list[Effect]:
        """All effects, those of long decisions too."""
        effects = self.core.take_effects()
        for effect in effects:
            if isinstance(effect, GoOn):
                for _ in effect.steps:
                    pass
        rest = self.take() if any(isinstance(effect, GoOn) for effect in effects) else []
        return [effect for effect in effects if not isinstance(effect, GoOn)] + rest

    def routes(self, *entries: Route) -> list[Effect]:
        return self.shared_routes(whole(entries))

    def shared_routes(self, entries: list[messages.Route]) -> list[Effect]:
        self.version += 1
        self.core.on_routes(self.version, entries, self.now_ns)
        return self.take()

    def want(self, *domains: int) -> list[Effect]:
        """Interest in AAA is recorded here, of receivers beyond this portal."""
        for domain_id in domains:
            self.core.on_interest(InterestGained(AAA, domain_id), self.now_ns)
        return [effect for effect in self.take() if not _is_interest(effect)]

    def unwant(self, domain_id: int) -> list[Effect]:
        self.core.on_interest(InterestLost(AAA, domain_id), self.now_ns)
        return [effect for effect in self.take() if not _is_interest(effect)]

    def hear(self, sibling: int, message: SourceSeen | SourceGone | InterestAdded | KnownProxy) -> list[Effect]:
        self.core.on_message(sibling, 1, message, self.now_ns)
        return self.take()

    def forget(self) -> list[Effect]:
        self.core.forget_routes(self.now_ns)
        return self.take()

    def wait(self, duration_ns: int) -> list[Effect]:
        self.now_ns += duration_ns
        self.core.on_timer(self.now_ns)
        return self.take()


def _is_interest(effect: Effect) -> bool:
    return isinstance(effect, SendToSibling) and isinstance(effect.message, InterestAdded | InterestRemoved)


def start(sibling: int, handle: int) -> SendToSibling:
    return SendToSibling(sibling, ForwardStart(handle))


def stop(sibling: int, handle: int) -> SendToSibling:
    return SendToSibling(sibling, ForwardStop(handle))


def end(sibling: int, handle: int) -> list[Effect]:
    """The feeder before has been kept long enough, or is gone."""
    return [stop(sibling, handle), FeederEnded(sibling, handle)]


def beside(sibling: int, seen: SourceSeen) -> list[Effect]:
    """It feeds from now on, and the one before goes on."""
    return [FeedProxySource(sibling, seen, is_beside=True), start(sibling, seen.handle)]


@pytest.fixture(params=[HERE, 0], ids=["endpoint", "peer"])
def transit(request: pytest.FixtureRequest) -> Transit:
    return Transit(request.param)


# where paths between two domains of others lead


def test_a_source_of_a_far_domain_is_for_receivers_of_another_if_the_path_leads_this_way(transit: Transit) -> None:
    transit.routes((FAR, END, LEFT, ME), (FAR, OTHER_END, LEFT, RIGHT), (END, FAR, ME, LEFT))
    assert transit.want(OTHER_END) == []
    assert transit.hear(LEFT, offer(7)) == [], "that path leaves by another portal"
    assert transit.hear(RIGHT, offer(8)) == [], "no path comes from there"
    assert transit.want(END) == [OpenProxySource(LEFT, offer(7)), start(LEFT, 7)]
    assert transit.unwant(OTHER_END) == []
    assert transit.unwant(END) == [stop(LEFT, 7), CloseProxySource(OTID)]


def test_each_source_takes_the_path_from_its_own_domain(transit: Transit) -> None:
    transit.routes((FAR, END, LEFT, ME), (FARTHER, END, RIGHT, ME))
    transit.want(END)
    second = offer(9, otid=bytes(32), domain_id=FARTHER)
    assert transit.hear(LEFT, second) == []
    assert transit.hear(RIGHT, second) == [OpenProxySource(RIGHT, second), start(RIGHT, 9)]
    assert transit.hear(RIGHT, offer(7)) == []
    assert transit.hear(LEFT, offer(8)) == [OpenProxySource(LEFT, offer(8)), start(LEFT, 8)]


def test_interest_of_a_far_domain_is_announced_where_paths_to_it_enter(transit: Transit) -> None:
    transit.routes((FAR, END, ME, LEFT), (FAR, OTHER_END, ME, RIGHT), (FARTHER, HERE, LEFT, ME))
    assert transit.hear(RIGHT, InterestAdded(*AAA, END)) == [], "paths to there leave by the left one"
    assert transit.hear(LEFT, InterestAdded(*AAA, HERE)) == [], "that is where it would go"
    assert transit.hear(LEFT, InterestAdded(*AAA, END)) == [OpenProxyReceiver(*AAA, (END,))]
    assert transit.hear(RIGHT, InterestAdded(*AAA, OTHER_END)) == [UpdateProxyReceiver(*AAA, (OTHER_END,), ())]
    assert transit.routes((FAR, END, ME, RIGHT), (FAR, OTHER_END, LEFT, RIGHT)) == []
    assert transit.wait(HELD_NS + LONGER_NS - 1) == []
    assert transit.wait(1) == [UpdateProxyReceiver(*AAA, (), (OTHER_END,))], "both know of the first"


# routes that change


def test_a_source_whose_path_changes_is_asked_for_at_the_new_sibling_before_it_is_stopped_at_the_old(
    transit: Transit,
) -> None:
    transit.want(END)
    transit.hear(LEFT, offer(7))
    transit.hear(RIGHT, offer(8, cost=1))
    assert transit.routes((FAR, END, LEFT, ME)) == [OpenProxySource(LEFT, offer(7)), start(LEFT, 7)]
    after = transit.routes((FAR, END, RIGHT, ME))
    assert after == beside(RIGHT, offer(8, cost=1)), "both feed it for a while"
    assert transit.wait(HELD_NS - 1) == []
    assert transit.wait(1) == end(LEFT, 7)
    assert transit.hear(LEFT, SourceGone(7)) == []
    assert transit.wait(2 * DELAY) == []


def test_of_very_many_topics_the_feeder_before_is_kept_for_longer(transit: Transit) -> None:
    """The new path is told topic by topic."""
    transit.want(END)
    transit.hear(LEFT, offer(7))
    for number in range(MANY):
        transit.hear(LEFT, offer(1000 + number, otid=number.to_bytes(32, "big"), domain_id=FARTHER))
    transit.routes((FAR, END, LEFT, ME))
    transit.routes((FAR, END, RIGHT, ME))
    assert transit.wait(HELD_NS + MANY * HELD_EACH_NS - 1) == []
    now_ns = transit.now_ns + 1
    first = DelayDeletion(OTID, now_ns + FED_NS, is_fed=True) if transit.domain_id else stop(LEFT, 7)
    assert transit.wait(1)[:1] == [first]


def test_a_feeder_before_that_is_gone_is_not_waited_for(transit: Transit) -> None:
    """The way before is cut, and that is why it was left."""
    transit.want(END)
    transit.hear(LEFT, offer(7))
    transit.hear(RIGHT, offer(8))
    transit.routes((FAR, END, LEFT, ME))
    assert transit.routes((FAR, END, RIGHT, ME)) == beside(RIGHT, offer(8))
    assert transit.hear(LEFT, SourceGone(7)) == end(LEFT, 7)
    assert transit.wait(HELD_NS) == []


def test_the_feeder_before_takes_over_again_when_the_new_one_ends_or_its_path_is_back(transit: Transit) -> None:
    transit.want(END)
    transit.hear(LEFT, offer(7))
    transit.hear(RIGHT, offer(8))
    transit.routes((FAR, END, LEFT, ME))
    transit.routes((FAR, END, RIGHT, ME))
    assert transit.hear(RIGHT, SourceGone(8)) == [FeedProxySource(LEFT, offer(7)), start(LEFT, 7)]
    assert transit.hear(RIGHT, offer(9)) == beside(RIGHT, offer(9))
    assert transit.routes((FAR, END, LEFT, ME)) == beside(LEFT, offer(7))
    assert transit.wait(HELD_NS) == end(RIGHT, 9)
    assert transit.unwant(END) == [stop(LEFT, 7), CloseProxySource(OTID)]


def test_what_nobody_wants_any_more_is_stopped_at_both_feeders_at_once(transit: Transit) -> None:
    transit.want(END)
    transit.hear(LEFT, offer(7))
    transit.hear(RIGHT, offer(8))
    transit.routes((FAR, END, LEFT, ME))
    transit.routes((FAR, END, RIGHT, ME))
    assert transit.unwant(END) == [*end(LEFT, 7), stop(RIGHT, 8), CloseProxySource(OTID)]


def test_of_two_sources_of_the_same_origin_at_one_sibling_the_other_is_taken_when_one_ends(transit: Transit) -> None:
    """Two DROs may bring a source into a transit domain."""
    transit.routes((FAR, END, LEFT, ME))
    transit.want(END)
    transit.hear(LEFT, offer(7))
    assert transit.hear(LEFT, offer(8)) == []
    assert transit.hear(LEFT, SourceGone(7)) == [FeedProxySource(LEFT, offer(8)), start(LEFT, 8)]


def test_a_feeder_that_some_path_still_comes_from_is_kept(transit: Transit) -> None:
    transit.routes((FAR, END, LEFT, ME), (FAR, OTHER_END, LEFT, ME))
    transit.want(END, OTHER_END)
    transit.hear(LEFT, offer(7))
    assert transit.hear(RIGHT, offer(8, cost=1)) == []
    assert transit.routes((FAR, END, RIGHT, ME), (FAR, OTHER_END, LEFT, ME)) == []
    after = transit.unwant(OTHER_END)
    assert after == beside(RIGHT, offer(8, cost=1)), "nobody on its path wants it any more"
    assert transit.wait(HELD_NS) == end(LEFT, 7)
    assert transit.routes((FAR, END, RIGHT, ME), (FAR, OTHER_END, RIGHT, ME)) == []


def test_a_path_whose_sibling_does_not_have_the_source_yet_is_waited_for(transit: Transit) -> None:
    transit.routes((FAR, END, LEFT, ME))
    transit.want(END)
    transit.hear(LEFT, offer(7))
    assert transit.routes((FAR, END, RIGHT, ME)) == []
    assert transit.wait(HELD_NS - 1) == []
    assert transit.hear(RIGHT, offer(8)) == beside(RIGHT, offer(8))
    assert transit.wait(1) == end(LEFT, 7)
    assert transit.wait(2 * DELAY) == []


def test_a_deletion_delay_that_is_longer_holds_too(transit: Transit) -> None:
    transit.core.deletion_delay.change(HELD_NS + 1)
    transit.routes((FAR, END, LEFT, ME))
    transit.want(END)
    transit.hear(LEFT, offer(7))
    transit.routes((FAR, END, RIGHT, ME))
    assert transit.wait(HELD_NS) == [stop(LEFT, 7), DelayDeletion(OTID, 2 * HELD_NS + 1)]
    assert transit.wait(HELD_NS) == []
    assert transit.wait(1) == [CloseProxySource(OTID)]


@pytest.mark.parametrize("after", [[(FAR, END, LEFT, RIGHT)], []], ids=["another portal", "partition"])
def test_a_source_that_no_path_brings_here_any_more_is_closed_after_the_delay(
    transit: Transit, after: list[Route]
) -> None:
    transit.routes((FAR, END, LEFT, ME))
    transit.want(END)
    transit.hear(LEFT, offer(7))
    assert transit.routes(*after) == []
    assert transit.wait(HELD_NS - 1) == []
    fed_ns = 0
    if transit.domain_id:  # receivers of a TRD take another source while this one is fed
        fed_ns = FED_NS
        assert transit.wait(1) == [DelayDeletion(OTID, HELD_NS + FED_NS, is_fed=True)]
        assert transit.wait(FED_NS - 1) == []
    assert transit.wait(1) == [stop(LEFT, 7), DelayDeletion(OTID, HELD_NS + fed_ns + SOON_NS)]
    assert transit.wait(SOON_NS - 1) == []
    assert transit.wait(1) == [CloseProxySource(OTID)]
    assert transit.routes((FAR, END, LEFT, ME)) == [OpenProxySource(LEFT, offer(7)), start(LEFT, 7)]


@pytest.fixture
def ended() -> Transit:
    """An endpoint whose proxy source has advertised its end, and is fed."""
    made = Transit(HERE)
    made.routes((FAR, END, LEFT, ME))
    made.want(END)
    made.hear(LEFT, offer(7))
    made.routes()
    assert made.wait(HELD_NS) == [DelayDeletion(OTID, HELD_NS + FED_NS, is_fed=True)]
    return made


def test_a_source_that_has_advertised_its_end_goes_on_when_the_path_is_back(ended: Transit) -> None:
    assert ended.routes((FAR, END, LEFT, ME)) == [FeedProxySource(LEFT, offer(7), is_beside=False), start(LEFT, 7)]
    assert ended.wait(2 * HELD_NS) == []


def test_a_source_that_has_advertised_its_end_takes_another_feeder(ended: Transit) -> None:
    ended.hear(RIGHT, offer(8))
    taken = ended.routes((FAR, END, RIGHT, ME))
    assert taken == [FeedProxySource(RIGHT, offer(8), is_beside=False), start(RIGHT, 8), stop(LEFT, 7)]
    assert ended.wait(2 * HELD_NS) == []


def test_what_changes_beside_it_does_not_stop_a_source_earlier_that_has_advertised_its_end(ended: Transit) -> None:
    assert ended.routes((FAR, OTHER_END, LEFT, ME)) == []
    assert ended.hear(RIGHT, offer(8)) == []
    assert ended.wait(FED_NS)[:1] == [stop(LEFT, 7)]


def test_a_source_that_has_advertised_its_end_is_closed_at_once_when_nobody_wants_it(ended: Transit) -> None:
    assert ended.unwant(END) == [stop(LEFT, 7), CloseProxySource(OTID)]
    assert ended.wait(2 * HELD_NS) == []


def test_a_source_that_has_advertised_its_end_is_deleted_when_its_feeder_is_gone(ended: Transit) -> None:
    assert ended.hear(LEFT, SourceGone(7)) == []
    assert ended.wait(FED_NS) == [DelayDeletion(OTID, HELD_NS + FED_NS + SOON_NS)]
    assert ended.wait(SOON_NS) == [CloseProxySource(OTID)]


def test_a_partition_ends_what_is_asked_for_beyond_it_until_it_is_healed(transit: Transit) -> None:
    routes = [(FAR, END, ME, LEFT), (FAR, OTHER_END, ME, LEFT)]
    transit.routes(*routes)
    for domain_id in (END, OTHER_END):
        transit.hear(LEFT, InterestAdded(*AAA, domain_id))
    assert transit.routes(routes[0]) == []
    assert transit.wait(HELD_NS + LONGER_NS) == [UpdateProxyReceiver(*AAA, (), (OTHER_END,))]
    assert transit.routes() == []
    assert transit.wait(HELD_NS + LONGER_NS) == [CloseProxyReceiver(*AAA, (END,))]
    assert transit.routes(*routes) == [OpenProxyReceiver(*AAA, (END, OTHER_END))]


def test_routes_that_change_often_delete_nothing_that_comes_back_in_time(transit: Transit) -> None:
    transit.want(END)
    transit.hear(LEFT, offer(7))
    transit.hear(RIGHT, offer(8))
    done: list[Effect] = []
    for turn in range(20):
        way = (LEFT, RIGHT)[turn % 2]
        done += transit.routes((FAR, END, way, ME)) + transit.wait(DELAY // 3)
        done += transit.routes() + transit.wait(DELAY // 3)
    assert not any(isinstance(effect, CloseProxySource) for effect in done)
    running = set()
    for effect in done:
        if isinstance(effect, SendToSibling) and isinstance(effect.message, ForwardStart):
            running.add(effect.worker)
        elif isinstance(effect, SendToSibling) and isinstance(effect.message, ForwardStop):
            running.remove(effect.worker)
    proxy = transit.core.proxies[OTID]
    assert running == {feeder[0] for feeder in (proxy.feeder, proxy.before) if feeder}


def test_many_sources_follow_each_of_two_changes_that_come_while_they_are_worked_off(transit: Transit) -> None:
    count = 4 * AT_ONCE
    for n in range(count):
        otid, topic = n.to_bytes(32, "big"), b"%d" % n
        transit.core.on_interest(InterestGained((topic, PATTERN_NONE), END), 0)
        for sibling in (LEFT, RIGHT):
            transit.hear(sibling, offer(n, otid=otid, topic=topic))
    transit.routes((FAR, END, LEFT, ME))
    under_way: list[Effect] = []
    for version, way in ((8, RIGHT), (9, LEFT)):
        transit.core.on_routes(version, whole([(FAR, END, way, ME)]), 0)
        under_way += transit.core.take_effects()
    for effect in reversed(under_way):
        for _ in effect.steps if isinstance(effect, GoOn) else ():
            pass
    transit.core.take_effects()
    assert {proxy.feeder for proxy in transit.core.proxies.values()} == {(LEFT, n) for n in range(count)}


def test_routes_that_are_forgotten_make_nothing_until_a_table_comes_that_is_not_older(transit: Transit) -> None:
    """The last one may come again: it holds still, for a link that is back before another was calculated."""
    routes = [(FAR, END, LEFT, ME), (END, FAR, ME, LEFT)]
    transit.routes()
    transit.routes(*routes)
    transit.want(END)
    transit.hear(LEFT, offer(7))
    transit.hear(LEFT, InterestAdded(*AAA, FAR))
    for _ in range(2):
        assert transit.forget() == [
            CloseProxyReceiver(*AAA, (FAR,)), stop(LEFT, 7), DelayDeletion(OTID, transit.now_ns + DELAY)
        ]  # fmt: skip
        assert transit.forget() == [], "there are none"
        transit.core.on_routes(transit.version - 1, whole(routes), transit.now_ns)
        assert transit.take() == [], "an older one"
        assert transit.unwant(END) == [CloseProxySource(OTID)]
        assert transit.want(END) == []
        assert transit.hear(LEFT, offer(7)) == []
        assert transit.wait(HELD_NS + LONGER_NS) == [], "nothing is kept"
        transit.core.on_routes(transit.version, whole(routes), transit.now_ns)
        again = [OpenProxyReceiver(*AAA, (FAR,)), OpenProxySource(LEFT, offer(7)), start(LEFT, 7)]
        assert transit.take() == again
        transit.core.on_routes(transit.version, (), transit.now_ns)
        assert transit.take() == [], "once"
    transit.forget()
    transit.unwant(END)
    assert transit.want(END) == []
    assert transit.routes(*routes) == again


def test_routes_that_are_forgotten_take_what_was_kept_of_others_along(transit: Transit) -> None:
    transit.want(END)
    for sibling, handle in ((LEFT, 7), (RIGHT, 8)):
        transit.hear(sibling, offer(handle))
        transit.hear(sibling, InterestAdded(*AAA, FAR))
    transit.routes((FAR, END, LEFT, ME), (END, FAR, ME, LEFT))
    transit.routes((FAR, END, RIGHT, ME))
    assert transit.forget() == [
        CloseProxyReceiver(*AAA, (FAR,)), stop(LEFT, 7), FeederEnded(LEFT, 7), stop(RIGHT, 8),
        DelayDeletion(OTID, DELAY),
    ]  # fmt: skip
    assert transit.wait(DELAY) == [CloseProxySource(OTID)]
    assert transit.core.next_deadline() is None


# a portal that returns, names that meet


def test_a_returned_portal_goes_on_with_a_source_between_two_far_domains(transit: Transit) -> None:
    """Whichever receivers it was for: that is not known yet."""
    assert transit.hear(LEFT, KnownProxy(offer(7))) == []
    assert transit.routes((FAR, END, LEFT, ME)) == [OpenProxySource(LEFT, offer(7)), start(LEFT, 7)]
    assert transit.want(OTHER_END) == [], "for which no path leads here"
    assert transit.want(END) == []
    assert transit.unwant(END) == [stop(LEFT, 7), DelayDeletion(OTID, DELAY)]
    transit.core.on_relearnt(0)
    assert CloseProxySource(OTID) in transit.wait(DELAY)


def test_a_returned_portal_ends_a_source_that_nobody_has_come_to_want(transit: Transit) -> None:
    transit.routes((FAR, END, LEFT, ME), (FARTHER, END, RIGHT, ME))
    assert transit.hear(RIGHT, KnownProxy(offer(8))) == [], "its path does not come from there any more"
    assert [type(effect) for effect in transit.hear(LEFT, offer(7))] == [OpenProxySource, SendToSibling]
    transit.core.on_relearnt(0)
    assert transit.take()[:2] == [stop(LEFT, 7), CloseProxySource(OTID)]


def test_a_source_of_another_domain_under_the_name_of_one_that_is_gone_gets_a_proxy_source_of_its_own(
    transit: Transit,
) -> None:
    transit.routes((FAR, END, LEFT, ME), (FARTHER, END, LEFT, ME))
    transit.want(END)
    transit.hear(LEFT, offer(7))
    assert transit.hear(LEFT, SourceGone(7)) == [DelayDeletion(OTID, DELAY)]
    other = offer(8, domain_id=FARTHER)
    assert transit.hear(LEFT, other) == [CloseProxySource(OTID), OpenProxySource(LEFT, other), start(LEFT, 8)]
    assert isinstance(transit.hear(RIGHT, offer(9))[0], SourceIgnored), "as long as that one is there"


# equal-cost sharing

HALVES = (0x5555555555555555, 0xAAAAAAAAAAAAAAAA)
"""Of the trees. The source of `FAR` is in the first, that of `FARTHER` in the other."""
EVEN, ODD = offer(7, otid=bytes([FAR]) * 32), offer(8, otid=bytes([FARTHER]) * 32)  # of different halves of the trees


def shared(*ways: tuple[int, int]) -> list[messages.Route]:
    """From `FAR` to `END`, the halves of the trees by these siblings."""
    return [messages.Route((FAR,), END, *way, half) for way, half in zip(ways, HALVES, strict=True)]


def test_a_source_comes_by_the_way_of_its_tree_and_by_no_other(transit: Transit) -> None:
    transit.shared_routes(shared((LEFT, ME), (RIGHT, ME)))
    transit.want(END)
    assert transit.hear(RIGHT, EVEN) == []
    assert transit.hear(LEFT, ODD) == []
    assert transit.hear(LEFT, EVEN) == [OpenProxySource(LEFT, EVEN), start(LEFT, 7)]
    assert transit.hear(RIGHT, ODD) == [OpenProxySource(RIGHT, ODD), start(RIGHT, 8)]


def test_interest_goes_by_all_ways(transit: Transit) -> None:
    """Half of the trees enters here, the other half at a sibling; the domain is asked for once."""
    transit.shared_routes(shared((ME, LEFT), (RIGHT, LEFT)))
    assert transit.hear(LEFT, InterestAdded(*AAA, END)) == [OpenProxyReceiver(*AAA, (END,))]
    assert transit.shared_routes(shared((ME, LEFT), (ME, RIGHT))) == [ReviewSources()], "all trees enter here"
    assert transit.hear(RIGHT, InterestAdded(*AAA, END)) == []


def test_a_source_of_another_tree_is_not_touched_when_a_way_moves(transit: Transit) -> None:
    """All trees go by the left one; then half of them by the right one: only its source moves, make before break."""
    transit.routes((FAR, END, LEFT, ME))
    transit.want(END)
    for seen in (EVEN, ODD):
        for sibling in (LEFT, RIGHT):
            transit.hear(sibling, seen)
    assert transit.shared_routes(shared((LEFT, ME), (RIGHT, ME))) == beside(RIGHT, ODD)
    assert transit.wait(HELD_NS) == end(LEFT, 8)
    assert transit.shared_routes(shared((RIGHT, ME), (RIGHT, ME))) == beside(RIGHT, EVEN)
    assert transit.wait(HELD_NS) == end(LEFT, 7)


def test_sources_of_trees_that_enter_elsewhere_are_left_a_moment_after_a_change(transit: Transit) -> None:
    """All trees enter here; then half of them elsewhere; then all here again. Without a division nobody is asked."""
    routes = transit.core.routes
    assert transit.routes((FAR, END, ME, LEFT)) == []
    assert not routes.is_divided
    assert transit.shared_routes(shared((ME, LEFT), (RIGHT, LEFT))) == [ReviewSources()]
    assert [routes.carries(FAR, half) for half in HALVES] == [True, True]
    assert transit.wait(HELD_NS) == []
    assert transit.wait(LONGER_NS) == [ReviewSources()]
    assert [routes.carries(FAR, half) for half in HALVES] == [True, False]
    assert not routes.carries(FARTHER, HALVES[0])
    other = messages.Route((FAR,), OTHER_END, ME, LEFT, HALVES[0])
    assert transit.shared_routes([*shared((ME, LEFT), (RIGHT, LEFT)), other]) == []
    assert transit.routes((FAR, END, ME, LEFT)) == [ReviewSources()]
    assert transit.routes((FARTHER, END, ME, LEFT)) == []


# anything


ENTRIES: tuple[Route, ...] = tuple(
    (origin, wanted, ingress, egress)
    for origin in (FAR, FARTHER)
    for wanted in (END, OTHER_END)
    for ingress, egress in ((LEFT, ME), (RIGHT, ME), (LEFT, RIGHT), (ME, LEFT), (ME, RIGHT))
)


Table = dict[tuple[int, int, int], tuple[int, int]]
"""By half, origin and interested domain: where paths enter and leave."""


def half_of(otid: bytes) -> int:
    return next(half for half in HALVES if half & share_of(otid))


class AnyRoutes(RuleBasedStateMachine):
    """What is open after each event follows from interest, offers and routes: those of now, and those kept."""

    def __init__(self) -> None:
        super().__init__()
        self.transit = Transit(0)
        self.table: Table = {}
        self.tables_before: list[tuple[int, Table]] = []  # (when it went, what went)
        self.wanted: set[int] = set()
        self.asked: set[tuple[int, int]] = set()
        self.offers: dict[bytes, set[int]] = {bytes([origin]) * 32: set() for origin in (FAR, FARTHER)}
        self.fed: dict[bytes, int | None] = {}
        self.waited_for: dict[bytes, int] = {}  # the feeder before, which goes on
        self.running: set[tuple[int, int]] = set()
        self.open: set[int] = set()

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case OpenProxySource(worker=worker, source=source):
                    assert source.otid not in self.fed
                    self.fed[source.otid] = worker
                case FeedProxySource(worker=worker, source=source, is_beside=is_beside):
                    before = self.fed[source.otid]
                    assert before != worker
                    self.fed[source.otid] = worker
                    self.waited_for.pop(source.otid, None)
                    if is_beside and before is not None:
                        self.waited_for[source.otid] = before
                case FeederEnded(worker=worker, handle=handle):
                    if self.waited_for.get(bytes([handle]) * 32) == worker:
                        del self.waited_for[bytes([handle]) * 32]
                case DelayDeletion(otid=otid):
                    self.fed[otid] = None
                case CloseProxySource(otid=otid):
                    del self.fed[otid]
                case OpenProxyReceiver(domains=domains):
                    assert not self.open
                    self.open = set(domains)
                case UpdateProxyReceiver(added=added, removed=removed):
                    self.open = self.open - set(removed) | set(added)
                case CloseProxyReceiver(domains=domains):
                    assert self.open == set(domains)
                    self.open = set()
                case SendToSibling(worker=worker, message=ForwardStart(handle=handle)):
                    self.running.add((worker, handle))
                case SendToSibling(worker=worker, message=ForwardStop(handle=handle)):
                    assert any(other == handle for _, other in self.running - {(worker, handle)}) or not self.usable(
                        bytes([handle]) * 32
                    ), "another one has been asked before"
                    origins = self.offers[bytes([handle]) * 32]
                    assert worker not in origins or (worker, handle) in self.running
                    self.running.discard((worker, handle))  # of one that has gone, it may come as well

    def usable(self, otid: bytes) -> set[int]:
        return self.among(otid, self.table)

    def among(self, otid: bytes, *tables: Table) -> set[int]:
        paths = {table.get((half_of(otid), otid[0], wanted)) for wanted in self.wanted for table in tables}
        return {sibling for sibling in self.offers[otid] if (sibling, ME) in paths}

    def before(self, age_ns: int) -> list[Table]:
        return [went for since_ns, went in self.tables_before if self.transit.now_ns < since_ns + age_ns]

    @rule(first=st.lists(st.sampled_from(ENTRIES)), second=st.none() | st.lists(st.sampled_from(ENTRIES)))
    def change_routes(self, first: list[Route], second: list[Route] | None) -> None:
        """`second`: of the other half of the trees, None for the same."""
        table: Table = {}
        for half, entries in zip(HALVES, (first, first if second is None else second), strict=True):
            table |= {(half, origin, wanted): (ingress, egress) for origin, wanted, ingress, egress in entries}
        went = {key: way for key, way in self.table.items() if table.get(key) != way}
        self.tables_before.append((self.transit.now_ns, went))
        self.table = table
        before = dict(self.fed)
        masks = Counter[Route]()
        for (half, origin, wanted), way in table.items():
            masks[origin, wanted, *way] += half
        routes = [messages.Route((s,), wanted, i, e, mask) for (s, wanted, i, e), mask in masks.items()]
        self.perform(self.transit.shared_routes(routes))
        for otid, feeder in before.items():
            if feeder in self.usable(otid):
                assert self.fed[otid] == feeder, "it is kept"

    @rule()
    def forget_routes(self) -> None:
        self.table, self.tables_before = {}, []
        self.perform(self.transit.forget())

    @rule(wanted=st.sampled_from((END, OTHER_END)))
    def change_interest(self, wanted: int) -> None:
        self.wanted ^= {wanted}
        change = self.transit.want if wanted in self.wanted else self.transit.unwant
        self.perform(change(wanted))

    @rule(sibling=st.sampled_from((LEFT, RIGHT)), origin=st.sampled_from((FAR, FARTHER)))
    def change_offers(self, sibling: int, origin: int) -> None:
        otid = bytes([origin]) * 32
        self.offers[otid] ^= {sibling}
        if sibling in self.offers[otid]:
            self.perform(self.transit.hear(sibling, offer(origin, otid=otid, domain_id=origin)))
        else:
            self.running.discard((sibling, origin))
            self.perform(self.transit.hear(sibling, SourceGone(origin)))

    @rule(sibling=st.sampled_from((LEFT, RIGHT)), wanted=st.sampled_from((END, OTHER_END)))
    def ask(self, sibling: int, wanted: int) -> None:
        self.asked ^= {(sibling, wanted)}
        kind = InterestAdded if (sibling, wanted) in self.asked else InterestRemoved
        self.transit.core.on_message(sibling, 1, kind(*AAA, wanted), self.transit.now_ns)
        self.perform(self.transit.take())

    @rule(duration_ns=st.sampled_from((1, DELAY // 2, DELAY, LONGER_NS, HELD_NS)))
    def wait(self, duration_ns: int) -> None:
        self.perform(self.transit.wait(duration_ns))

    @invariant()
    def sources_come_from_where_a_path_does(self) -> None:
        for otid in self.offers:
            usable, feeder = self.usable(otid), self.fed.get(otid)
            held = self.among(otid, *self.before(HELD_NS))
            assert (feeder in usable) if usable else feeder is None or feeder in held
            running = {worker for worker, handle in self.running if handle == otid[0]}
            assert {feeder} - {None} <= running <= held | {feeder}
            assert {self.waited_for.get(otid)} - {None} == running - {feeder}
        if not self.wanted:
            assert all(feeder is None for feeder in self.fed.values())

    @invariant()
    def interest_is_announced_where_paths_to_it_enter(self) -> None:
        tables = (self.table, *self.before(HELD_NS + LONGER_NS))
        paths = [(wanted, way) for table in tables for (_, _, wanted), way in table.items()]
        entering = {(egress, wanted) for wanted, (ingress, egress) in paths if ingress == ME}
        assert self.open == {wanted for egress, wanted in entering & self.asked}


TestAnyRoutes = AnyRoutes.TestCase
TestAnyRoutes.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
